// SPDX-License-Identifier: MIT

// What the C ABI refuses: with a status that says what the library's own does, and with nothing written.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "c/c_batch.hpp"
#include "radixmlp/index/ragged_batch.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/counting_new.hpp"

using namespace radixmlp_test;

namespace {

using Batch = radixmlp::RaggedBatch<std::int32_t>;

const std::vector<std::int32_t> tokens{5, 6, 7, 5, 6, 8};
const std::vector<std::int32_t> cu_seqlens{0, 3, 6};

Batch good() { return {.tokens = tokens, .cu_seqlens = cu_seqlens}; }

// A trie with an index of good(), and memory around it.
struct Fixture {
  Fixture() {
    REQUIRE(radixmlp_trie_create(&trie, nullptr) == RADIXMLP_OK);
    batch = to_c(good());
    REQUIRE(radixmlp_build(trie, &batch, nullptr, &index, nullptr) == RADIXMLP_OK);
    REQUIRE(index.compact_rows == 4);
  }
  ~Fixture() { radixmlp_trie_destroy(trie); }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  radixmlp_trie* trie = nullptr;
  radixmlp_batch batch{};
  radixmlp_index index = sized<radixmlp_index>();
  std::vector<std::int32_t> memory = std::vector<std::int32_t>(256, -5);
};

using Call = std::function<std::int32_t(radixmlp_status*)>;

void check_refused(const Call& call, std::int32_t code, const std::string& argument, std::int64_t index,
                   std::int64_t value) {
  CAPTURE(argument, index, value);
  radixmlp_status status;
  std::memset(&status, 0x7f, sizeof status);
  CHECK(call(&status) == code);
  CAPTURE(status.message);
  CHECK(status.code == code);
  CHECK(status.argument == argument);
  CHECK(status.index == index);
  CHECK(status.value == value);
  const std::string message = status.message;
  CHECK(message.find("radixmlp: " + argument) == 0);
  CHECK(message.find(" = " + std::to_string(value) + ": ") != std::string::npos);
  CHECK((index < 0 || message.find('[' + std::to_string(index) + ']') != std::string::npos));
  CHECK(call(nullptr) == code);  // a status is not required
}

void check_invalid(const std::string& argument, std::int64_t value, const Call& call) {
  check_refused(call, RADIXMLP_INVALID_ARGUMENT, argument, -1, value);
}

// The library refuses this batch; the C ABI must in the same words, into the trie and into memory, and write nothing.
void check_as_library(const Batch& batch, const radixmlp::Status& expected, std::int32_t pad_to = 1) {
  REQUIRE_FALSE(expected.ok());
  Fixture f;
  const std::vector<std::int32_t> before(f.index.scatter, f.index.scatter + 6);
  const radixmlp_batch c = to_c(batch);
  alignas(RADIXMLP_INDEX_ALIGNMENT) std::byte memory[4096];
  std::memset(memory, 0x5a, sizeof memory);
  for (const bool into_memory : {false, true}) {
    auto options = sized<radixmlp_build_options>();
    options.pad_to = pad_to;
    options.memory = into_memory ? memory : nullptr;
    options.memory_bytes = into_memory ? sizeof memory : 0;
    auto index = sized<radixmlp_index>();
    index.compact_rows = 77;
    const Call build = [&](radixmlp_status* status) { return radixmlp_build(f.trie, &c, &options, &index, status); };
    check_refused(build, RADIXMLP_INVALID_BATCH, expected.argument, expected.index, expected.value);
    radixmlp_status status;
    build(&status);
    CHECK(status.message == expected.message());
    CHECK(index.compact_rows == 77);
  }
  CHECK(std::equal(before.begin(), before.end(), f.index.scatter));
  CHECK(std::all_of(std::begin(memory), std::end(memory), [](std::byte b) { return b == std::byte{0x5a}; }));
}

}  // namespace

TEST_CASE("every rule of a batch is refused in the library's words") {
  const auto with = [](const std::function<void(Batch&)>& change) {
    Batch batch = good();
    change(batch);
    check_as_library(batch, validate(batch));
  };
  with([](Batch& b) { b.cu_seqlens = {}; });
  const std::vector<std::vector<std::int32_t>> wrong_cu{{1, 3, 6},    {-2, 3, 6},
                                                        {0, 4, 2, 6}, {0, std::numeric_limits<std::int32_t>::min(), 6},
                                                        {0, 3, 5},    {0, 3, 2147483647}};
  for (const auto& cu : wrong_cu) {
    with([&](Batch& b) { b.cu_seqlens = cu; });
  }
  // Counts that lie are refused before anything is read.
  with([](Batch& b) { b.tokens = {tokens.data(), std::size_t{1} << 31}; });
  with([](Batch& b) { b.cu_seqlens = {cu_seqlens.data(), std::size_t{1} << 31}; });
  const std::uint64_t key = 1;
  with([&](Batch& b) {
    b.tokens = {};
    b.token_keys = std::span<const std::uint64_t>(&key, std::size_t{1} << 31);
  });

  const std::vector<std::int32_t> five(5), seven(7), past{3, -4}, eighteen(18);
  const std::vector<std::uint64_t> five_keys(5), three_keys(3);
  const std::vector<radixmlp::Key128> wide_keys(7);
  const std::vector<std::uint8_t> one_byte(1);
  with([&](Batch& b) { b.positions = five; });
  with([&](Batch& b) { b.positions = seven; });
  with([&](Batch& b) { b.token_keys = five_keys; });
  with([&](Batch& b) { b.token_keys = wide_keys; });
  with([&](Batch& b) { b.sequence_keys = three_keys; });
  with([&](Batch& b) { b.past_lengths = five; });
  with([&](Batch& b) { b.past_lengths = past; });
  with([&](Batch& b) { b.opt_out = one_byte; });
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::array<std::int64_t, 3>> wrong_strides{
      {4, 1, 6}, {3, 4, 1}, {0, 1, 6}, {1, -1, 0}, {2, 1, -3}, {19, 0, 0}, {2147483647, 0, 0}, {3, most, 1}};
  for (const auto& [axes, token_stride, axis_stride] : wrong_strides) {
    with([&, axes = axes, token_stride = token_stride, axis_stride = axis_stride](Batch& b) {
      b.positions = {eighteen, static_cast<std::int32_t>(axes), token_stride, axis_stride};
    });
  }
  using radixmlp::detail::invalid_batch;
  check_as_library(good(), invalid_batch("pad_to", -1, -8, "must be at least", 1), -8);
  const std::vector<std::int32_t> huge_cu{0, (1 << 30) + 1};
  check_as_library({.tokens = {tokens.data(), (std::size_t{1} << 30) + 1}, .cu_seqlens = huge_cu},
                   invalid_batch("pad_to", -1, 1 << 30, "rows rounded up to it must not exceed", radixmlp::max_rows),
                   1 << 30);
}

TEST_CASE("memory of an index that is too small or misaligned") {
  Fixture f;
  alignas(RADIXMLP_INDEX_ALIGNMENT) std::byte memory[4096];
  std::int64_t needed = 0;
  REQUIRE(radixmlp_index_bytes(6, 2, 0, &needed, nullptr) == RADIXMLP_OK);
  auto options = sized<radixmlp_build_options>();
  const auto build = [&](std::byte* at, std::int64_t bytes) -> Call {
    options.memory = at;
    options.memory_bytes = bytes;
    return [&](radixmlp_status* status) { return radixmlp_build(f.trie, &f.batch, &options, &f.index, status); };
  };
  CHECK(build(memory, needed)(nullptr) == RADIXMLP_OK);
  check_refused(build(memory, needed - 1), RADIXMLP_INVALID_BATCH, "memory", -1, needed - 1);
  check_refused(build(memory + 4, needed), RADIXMLP_INVALID_BATCH, "memory", -1, 4);
  check_invalid("memory", -3, build(memory, -3));

  auto moved = sized<radixmlp_index>();
  check_invalid("base", 8,
                [&](auto* status) { return radixmlp_index_relocated(&f.index, memory + 8, &moved, status); });
  check_invalid("base", 0, [&](auto* status) { return radixmlp_index_relocated(&f.index, nullptr, &moved, status); });
  const auto block = reinterpret_cast<std::uintptr_t>(f.index.block);
  for (const std::uintptr_t at :
       {block - 4, block + 4096, block + static_cast<std::uintptr_t>(f.index.block_bytes) - 4}) {
    radixmlp_index elsewhere = f.index;
    elsewhere.parent = reinterpret_cast<const std::int32_t*>(at);
    check_invalid("parent", static_cast<std::int64_t>(at),
                  [&](auto* status) { return radixmlp_index_relocated(&elsewhere, memory, &moved, status); });
  }
  CHECK(moved.gather == nullptr);
}

TEST_CASE("arrays with null or misaligned pointers, negative counts and unknown types") {
  Fixture f;
  auto index = sized<radixmlp_index>();
  const auto with = [&](const std::function<void(radixmlp_batch&)>& change) -> Call {
    radixmlp_batch batch = f.batch;
    change(batch);
    return [&f, &index, batch](radixmlp_status* status) {
      return radixmlp_build(f.trie, &batch, nullptr, &index, status);
    };
  };
  const auto* const bytes = reinterpret_cast<const std::byte*>(f.memory.data());
  check_invalid("tokens", 0, with([](auto& b) { b.tokens.data = nullptr; }));
  check_invalid("tokens", 2, with([&](auto& b) { b.tokens.data = bytes + 2; }));
  check_invalid("tokens", 4, with([&](auto& b) { b.tokens = {f.memory.data() + 1, 6, RADIXMLP_INT64}; }));
  check_invalid("tokens", -1, with([](auto& b) { b.tokens.count = -1; }));
  for (const std::int32_t type : {0, -1, int{RADIXMLP_UINT64}, int{RADIXMLP_INT16}, int{RADIXMLP_KEY128}, 99}) {
    check_invalid("tokens", type, with([&](auto& b) { b.tokens.type = type; }));
  }
  check_invalid("cu_seqlens", 0, with([](auto& b) { b.cu_seqlens.data = nullptr; }));
  check_invalid("cu_seqlens", -9, with([](auto& b) { b.cu_seqlens.count = -9; }));
  check_invalid("positions", 1, with([&](auto& b) { b.positions = {bytes + 1, 6, RADIXMLP_UINT16}; }));
  check_invalid("positions", 0, with([&](auto& b) { b.positions = {nullptr, 6, RADIXMLP_INT8}; }));
  check_invalid("positions", -6, with([&](auto& b) { b.positions = {bytes, -6, RADIXMLP_INT8}; }));
  check_invalid("positions", 9, with([&](auto& b) { b.positions = {bytes, 6, RADIXMLP_KEY128}; }));
  check_invalid("token_keys", 5, with([&](auto& b) { b.token_keys = {bytes, 6, RADIXMLP_INT32}; }));
  check_invalid("token_keys", 4, with([&](auto& b) { b.token_keys = {bytes + 4, 6, RADIXMLP_KEY128}; }));
  check_invalid("sequence_keys", 0, with([&](auto& b) { b.sequence_keys = {nullptr, 2, RADIXMLP_UINT64}; }));
  check_invalid("past_lengths", 3, with([&](auto& b) {
                  b.past_lengths = {reinterpret_cast<const std::int32_t*>(bytes + 3), 2};
                }));
  check_invalid("opt_out", -2, with([&](auto& b) { b.opt_out = {bytes, -2}; }));
  CHECK(index.gather == nullptr);
}

TEST_CASE("structs: null, of an unknown size, with members that this library does not know") {
  Fixture f;
  auto index = sized<radixmlp_index>();
  const auto build = [&](const radixmlp_batch* batch) -> Call {
    return
        [&f, &index, batch](radixmlp_status* status) { return radixmlp_build(f.trie, batch, nullptr, &index, status); };
  };
  radixmlp_batch batch = f.batch;
  check_invalid("batch", 0, build(nullptr));
  for (const std::size_t size : {std::size_t{0}, sizeof batch - 1, std::size_t{4097}, ~std::size_t{0}}) {
    batch.size = size;
    check_invalid("batch", static_cast<std::int64_t>(size), build(&batch));
  }
  // A later caller's batch has more members. Zeros mean nothing; others might mean anything.
  struct {
    radixmlp_batch batch;
    std::int64_t later;
  } longer{f.batch, 0};
  longer.batch.size = sizeof longer;
  CHECK(build(&longer.batch)(nullptr) == RADIXMLP_OK);
  longer.later = 1;
  check_invalid("batch", sizeof longer, build(&longer.batch));

  // Its index has more members too; they become zeros.
  struct {
    radixmlp_index index;
    std::int64_t later;
  } longer_index{index, 7};
  longer_index.index.size = sizeof longer_index;
  CHECK(radixmlp_build(f.trie, &f.batch, nullptr, &longer_index.index, nullptr) == RADIXMLP_OK);
  CHECK(longer_index.index.size == sizeof longer_index);
  CHECK(longer_index.index.compact_rows == 4);
  CHECK(longer_index.later == 0);
  index.size = 8;
  check_invalid("index", 8, build(&f.batch));
  index.size = sizeof index;
  check_invalid("batch", 4,
                build(reinterpret_cast<const radixmlp_batch*>(reinterpret_cast<const std::byte*>(&longer) + 4)));
}

TEST_CASE("every call refuses null pointers, with and without a status") {
  Fixture f;
  const radixmlp_array slots{cu_seqlens.data(), 2, RADIXMLP_INT32};
  std::int64_t entries = 0;
  auto plan = sized<radixmlp_plan>();
  std::int32_t* const memory = f.memory.data();
  const radixmlp_row_lists no_lists{};
  const std::vector<std::pair<std::string, Call>> calls{
      {"trie", [](auto* s) { return radixmlp_trie_create(nullptr, s); }},
      {"bytes", [](auto* s) { return radixmlp_index_bytes(1, 1, 1, nullptr, s); }},
      {"trie", [&](auto* s) { return radixmlp_build(nullptr, &f.batch, nullptr, &f.index, s); }},
      {"index", [&](auto* s) { return radixmlp_build(f.trie, &f.batch, nullptr, nullptr, s); }},
      {"index", [&](auto* s) { return radixmlp_index_relocated(nullptr, memory, &f.index, s); }},
      {"moved", [&](auto* s) { return radixmlp_index_relocated(&f.index, f.index.block, nullptr, s); }},
      {"index", [&](auto* s) { return radixmlp_compact_tokens(&f.batch, nullptr, memory, 256, s); }},
      {"batch", [&](auto* s) { return radixmlp_compact_tokens(nullptr, &f.index, memory, 256, s); }},
      {"out", [&](auto* s) { return radixmlp_compact_tokens(&f.batch, &f.index, nullptr, 256, s); }},
      {"out", [&](auto* s) { return radixmlp_compact_positions(&f.batch, &f.index, nullptr, 256, s); }},
      {"entries", [&](auto* s) { return radixmlp_row_lists_entries(&f.index, nullptr, s); }},
      {"index", [&](auto* s) { return radixmlp_row_lists_entries(nullptr, &entries, s); }},
      {"lists", [&](auto* s) { return radixmlp_duplicates(&f.index, memory, 256, nullptr, s); }},
      {"memory",
       [&](auto* s) {
         radixmlp_row_lists lists;
         return radixmlp_row_sequences(&f.index, nullptr, 256, &lists, s);
       }},
      {"out", [&](auto* s) { return radixmlp_multiplicities(&f.index, nullptr, 4, s); }},
      {"out", [&](auto* s) { return radixmlp_pooled_rows(&f.index, 0, 0, nullptr, 2, s); }},
      {"rows",
       [&](auto* s) {
         return radixmlp_compact_rows_of(&f.index, {nullptr, 2}, memory, 2, s);
       }},
      {"stats", [&](auto* s) { return radixmlp_index_stats(&f.index, {}, nullptr, s); }},
      {"decision", [&](auto* s) { return radixmlp_decide(&f.index, 1, 0, 0, nullptr, s); }},
      {"keys", [](auto* s) { return radixmlp_sequence_keys_create(nullptr, s); }},
      {"keys", [](auto* s) { return radixmlp_sequence_key(nullptr, nullptr, nullptr, s); }},
      {"keys", [](auto* s) { return radixmlp_sequence_keys_clear(nullptr, s); }},
      {"entries", [&](auto* s) { return radixmlp_plan_entries(&f.index, nullptr, nullptr, s); }},
      {"plan", [&](auto* s) { return radixmlp_make_plan(&f.index, nullptr, memory, 256, nullptr, s); }},
      {"memory", [&](auto* s) { return radixmlp_make_plan(&f.index, nullptr, nullptr, 256, &plan, s); }},
      {"plan", [&](auto* s) { return radixmlp_plan_relocated(nullptr, memory, &f.index, &f.index, &plan, s); }},
      {"plan", [&](auto* s) { return radixmlp_page_table_entries(nullptr, &entries, s); }},
      {"plan.cu_seqlens_q", [&](auto* s) { return radixmlp_page_table_entries(&plan, &entries, s); }},
      {"table", [&](auto* s) { return radixmlp_make_page_table(&plan, 0, memory, 256, nullptr, s); }},
      {"entries", [&](auto* s) { return radixmlp_tree_mask_entries(&f.index, nullptr, s); }},
      {"mask", [&](auto* s) { return radixmlp_make_tree_mask(&f.index, memory, 256, nullptr, s); }},
      {"copies", [&](auto* s) { return radixmlp_gather_rows(&f.index, nullptr, 1, nullptr, s); }},
      {"index", [&](auto* s) { return radixmlp_scatter_rows(nullptr, nullptr, 0, nullptr, s); }},
      {"copies",
       [&](auto* s) {
         const radixmlp_array six{tokens.data(), 6, RADIXMLP_INT32};
         return radixmlp_scatter_to_slots(&f.index, six, nullptr, 1, nullptr, s);
       }},
      {"memory", [&](auto* s) { return radixmlp_check_slots(&f.index, slots, 9, nullptr, 9, s); }},
      {"lists", [](auto* s) { return radixmlp_sum_duplicates(nullptr, 0, nullptr, nullptr, s); }},
      {"lists.offsets", [&](auto* s) { return radixmlp_sum_duplicates(&no_lists, 0, nullptr, nullptr, s); }},
  };
  for (const auto& [argument, call] : calls) {
    check_invalid(argument, 0, call);
  }
  radixmlp_trie_destroy(nullptr);
  radixmlp_sequence_keys_destroy(nullptr);
}

TEST_CASE("counts and choices outside what there is") {
  Fixture f;
  std::int64_t bytes = 0;
  const auto index_bytes = [&](std::int64_t rows, std::int64_t sequences, std::int32_t pad_to) -> Call {
    return
        [&bytes, rows, sequences, pad_to](auto* s) { return radixmlp_index_bytes(rows, sequences, pad_to, &bytes, s); };
  };
  const std::int64_t too_many = std::int64_t{1} << 31;
  check_invalid("rows", -1, index_bytes(-1, 0, 1));
  check_invalid("rows", too_many, index_bytes(too_many, 0, 1));
  check_invalid("sequences", -4, index_bytes(1, -4, 1));
  check_invalid("pad_to", -2, index_bytes(1, 1, -2));
  CHECK(index_bytes(too_many - 1, too_many - 1, 2147483647)(nullptr) == RADIXMLP_OK);
  CHECK(bytes > (too_many - 1) * 4 * 6);

  const auto with = [&](const std::function<void(radixmlp_index&)>& change) -> Call {
    radixmlp_index index = f.index;
    change(index);
    return [index, &f](auto* s) { return radixmlp_multiplicities(&index, f.memory.data(), 256, s); };
  };
  check_invalid("ragged_rows", -1, with([](auto& i) { i.ragged_rows = -1; }));
  check_invalid("compact_rows", 7, with([](auto& i) { i.compact_rows = 7; }));
  check_invalid("compact_rows", -7, with([](auto& i) { i.compact_rows = -7; }));
  check_invalid("padded_rows", 3, with([](auto& i) { i.padded_rows = 3; }));
  check_invalid("sequences", -2, with([](auto& i) { i.sequences = -2; }));
  check_invalid("block", -2, with([](auto& i) { i.block_bytes = -2; }));
  check_invalid("scatter", 0, with([](auto& i) { i.scatter = nullptr; }));
  check_invalid("gather", 0, with([](auto& i) { i.gather = nullptr; }));
  check_invalid("ragged_cu", 0, with([](auto& i) { i.ragged_cu = nullptr; }));
  radixmlp_index moved_only = f.index;
  moved_only.compact_cu = nullptr;
  radixmlp_row_lists lists{};
  check_invalid("compact_cu", 0,
                [&](auto* s) { return radixmlp_row_sequences(&moved_only, f.memory.data(), 256, &lists, s); });

  const auto refused_plan = [&](const std::string& argument, std::int64_t value, auto change) {
    auto options = sized<radixmlp_plan_options>();
    change(options);
    auto plan = sized<radixmlp_plan>();
    return [=, &f](radixmlp_status* s) mutable {
      static_cast<void>(argument);
      static_cast<void>(value);
      return radixmlp_make_plan(&f.index, &options, f.memory.data(), 256, &plan, s);
    };
  };
  check_invalid("partition", 2, refused_plan("partition", 2, [](auto& o) { o.partition = 2; }));
  check_refused(refused_plan("query_tile", -1, [](auto& o) { o.query_tile = -1; }), RADIXMLP_INVALID_BATCH,
                "query_tile", -1, -1);
  check_refused(refused_plan("window", -1, [](auto& o) { o.window = -1; }), RADIXMLP_INVALID_BATCH, "window", -1, -1);
  check_refused(refused_plan("slots", 2,
                             [](auto& o) {
                               o.slots = {tokens.data(), 2};
                             }),
                RADIXMLP_INVALID_BATCH, "slots", -1, 2);
  auto plan = sized<radixmlp_plan>();
  check_refused([&](auto* s) { return radixmlp_make_plan(&f.index, nullptr, f.memory.data(), 3, &plan, s); },
                RADIXMLP_INVALID_BATCH, "memory", -1, 3);
  REQUIRE(radixmlp_make_plan(&f.index, nullptr, f.memory.data(), 256, &plan, nullptr) == RADIXMLP_OK);
  radixmlp_page_table table{};
  std::vector<std::int32_t> room(64);
  check_refused([&](auto* s) { return radixmlp_make_page_table(&plan, 5, room.data(), 64, &table, s); },
                RADIXMLP_INVALID_BATCH, "page_table", -1, 8);
  plan.segments = -3;
  check_invalid("plan.segments", -3,
                [&](auto* s) { return radixmlp_make_page_table(&plan, 0, room.data(), 64, &table, s); });

  radixmlp_decision decision{};
  check_invalid("layout", 3, [&](auto* s) { return radixmlp_decide(&f.index, 1, 0, 3, &decision, s); });
  check_invalid("layout", -1, [&](auto* s) { return radixmlp_decide(&f.index, 1, 0, -1, &decision, s); });
  check_invalid("max_ratio", 0, [&](auto* s) { return radixmlp_decide(&f.index, std::nan(""), 0, 0, &decision, s); });
  check_invalid("pooled_row", 2, [&](auto* s) { return radixmlp_pooled_rows(&f.index, 2, 0, f.memory.data(), 9, s); });
  check_invalid("row_space", -1, [&](auto* s) { return radixmlp_pooled_rows(&f.index, 0, -1, f.memory.data(), 9, s); });
  const std::vector<std::int32_t> map{0, 3, 9, 1};
  check_refused([&](auto* s) { return radixmlp_inverse_of(to_c(map), 4, f.memory.data(), 256, &lists, s); },
                RADIXMLP_INVALID_ARGUMENT, "map", 2, 9);
  check_refused([&](auto* s) { return radixmlp_compact_rows_of(&f.index, to_c(map), f.memory.data(), 256, s); },
                RADIXMLP_INVALID_BATCH, "rows", 2, 9);
  check_invalid("rows", -1, [&](auto* s) { return radixmlp_inverse_of({}, -1, f.memory.data(), 256, &lists, s); });
}

TEST_CASE("rows that do not fit are refused before any is written") {
  Fixture f;
  std::vector<float> ragged(24, 1.0F), compact(16, -1.0F);
  const radixmlp_row_copy fits{{ragged.data(), 6, 16, 16}, {compact.data(), 4, 16, 16}};
  const auto with = [&](const std::function<void(radixmlp_row_copy&)>& change) -> Call {
    std::vector<radixmlp_row_copy> copies(2, fits);
    change(copies[1]);
    return [&f, copies](auto* s) { return radixmlp_gather_rows(&f.index, copies.data(), 2, nullptr, s); };
  };
  const auto check_rows = [&](const std::string& argument, std::int64_t value, const Call& call) {
    check_refused(call, RADIXMLP_INVALID_ROWS, argument, 1, value);
    CHECK(std::count(compact.begin(), compact.end(), -1.0F) == 16);
  };
  check_rows("source.width", -1, with([](auto& c) { c.source.width = -1; }));
  check_rows("target.width", 12, with([](auto& c) { c.target.width = 12; }));
  check_rows("source.rows", 5, with([](auto& c) { c.source.rows = 5; }));
  check_rows("target.rows", 3, with([](auto& c) { c.target.rows = 3; }));
  check_rows("source.stride", 15, with([](auto& c) { c.source.stride = 15; }));
  check_rows("target.stride", 0, with([](auto& c) { c.target.stride = 0; }));
  check_rows("source.data", 0, with([](auto& c) { c.source.data = nullptr; }));
  check_rows("target.data", 0, with([](auto& c) { c.target.data = nullptr; }));
  const std::int64_t longest = std::numeric_limits<std::int64_t>::max();
  check_rows("stride", longest, with([&](auto& c) { c.source.stride = longest; }));
  check_rows("target.data", reinterpret_cast<std::intptr_t>(ragged.data()),
             with([&](auto& c) { c.target.data = ragged.data(); }));

  // Addresses of rows beyond 64 bits.
  const std::vector<std::int32_t> many(1 << 17), many_cu{0, 1 << 17};
  const radixmlp_batch large = to_c(Batch{.tokens = many, .cu_seqlens = many_cu});
  auto large_index = sized<radixmlp_index>();
  REQUIRE(radixmlp_build(f.trie, &large, nullptr, &large_index, nullptr) == RADIXMLP_OK);
  const std::int64_t far = std::int64_t{1} << 46;
  const radixmlp_row_copy apart{{ragged.data(), 1 << 17, 4, far}, {compact.data(), 1 << 17, 4, far}};
  check_refused([&](auto* s) { return radixmlp_gather_rows(&large_index, &apart, 1, nullptr, s); },
                RADIXMLP_INVALID_ROWS, "stride", 0, far);
  REQUIRE(radixmlp_build(f.trie, &f.batch, nullptr, &f.index, nullptr) == RADIXMLP_OK);

  std::vector<radixmlp_row_copy> nine(9, fits);
  check_invalid("count", 9, [&](auto* s) { return radixmlp_gather_rows(&f.index, nine.data(), 9, nullptr, s); });
  check_invalid("count", -1, [&](auto* s) { return radixmlp_scatter_rows(&f.index, nine.data(), -1, nullptr, s); });
  const radixmlp_executor none{};
  check_invalid("executor.parallel_for", 0,
                [&](auto* s) { return radixmlp_gather_rows(&f.index, &fits, 1, &none, s); });

  const radixmlp_row_copy to_cache{{compact.data(), 4, 16, 16}, {ragged.data(), 6, 16, 16}};
  const std::vector<std::int32_t> beyond{0, 1, 2, 3, 6, 5};
  const auto slots = [&](std::int64_t count, std::int32_t type) -> Call {
    return [&, count, type](auto* s) {
      return radixmlp_scatter_to_slots(&f.index, {beyond.data(), count, type}, &to_cache, 1, nullptr, s);
    };
  };
  check_refused(slots(6, RADIXMLP_INT32), RADIXMLP_INVALID_ROWS, "slots", 4, 6);
  check_refused(slots(5, RADIXMLP_INT32), RADIXMLP_INVALID_ROWS, "slots", -1, 5);
  check_invalid("slots.type", RADIXMLP_UINT32, slots(6, RADIXMLP_UINT32));
  const std::vector<std::int32_t> twice{0, 1, 2, 0, 1, 2};  // rows 2 and 5 are different, and go to one slot
  check_refused(
      [&](auto* s) {
        return radixmlp_check_slots(&f.index, {twice.data(), 6, RADIXMLP_INT32}, 6, f.memory.data(), 256, s);
      },
      RADIXMLP_INVALID_ROWS, "slots", 5, 2);
  CHECK(std::count(ragged.begin(), ragged.end(), 1.0F) == 24);

  radixmlp_row_lists lists{};
  REQUIRE(radixmlp_duplicates(&f.index, f.memory.data(), 256, &lists, nullptr) == RADIXMLP_OK);
  const auto sum = [&](std::int32_t format, const std::function<void(radixmlp_row_copy&)>& change) -> Call {
    radixmlp_row_copy copy = fits;
    change(copy);
    return [&lists, copy, format](auto* s) { return radixmlp_sum_duplicates(&lists, format, &copy, nullptr, s); };
  };
  const auto as_is = [](radixmlp_row_copy&) {};
  check_invalid("format", 3, sum(3, as_is));
  check_invalid("format", -1, sum(-1, as_is));
  check_refused(sum(RADIXMLP_FP32, [](auto& c) { c.source.width = c.target.width = 14; }), RADIXMLP_INVALID_ARGUMENT,
                "source.width", 0, 14);
  check_refused(sum(RADIXMLP_BF16, [](auto& c) { c.target.stride = 17; }), RADIXMLP_INVALID_ARGUMENT, "target.stride",
                0, 17);
  check_refused(sum(RADIXMLP_FP32, [](auto& c) { c.source.rows = 5; }), RADIXMLP_INVALID_ROWS, "source.rows", 0, 5);
  lists.rows = -1;
  check_invalid("lists.rows", -1, sum(RADIXMLP_FP32, as_is));
  CHECK(std::count(compact.begin(), compact.end(), -1.0F) == 16);
}

TEST_CASE("where memory ends, a status says so") {
  radixmlp_trie* trie = nullptr;
  radixmlp_sequence_keys* keys = nullptr;
  REQUIRE(radixmlp_trie_create(&trie, nullptr) == RADIXMLP_OK);
  REQUIRE(radixmlp_sequence_keys_create(&keys, nullptr) == RADIXMLP_OK);
  const std::vector<std::int32_t> many(100000), cu{0, 100000};
  const radixmlp_batch batch = to_c(Batch{.tokens = many, .cu_seqlens = cu});
  auto index = sized<radixmlp_index>();
  const std::string name(1000, 'x');
  auto identity = sized<radixmlp_identity>();
  identity.adapter = {name.data(), 1000};
  std::uint64_t key = 0;
  radixmlp_trie* other_trie = nullptr;
  radixmlp_sequence_keys* other_keys = nullptr;
  radixmlp_status status[5];
  no_memory = true;
  const std::int32_t codes[] = {radixmlp_build(trie, &batch, nullptr, &index, &status[0]),
                                radixmlp_sequence_key(keys, &identity, &key, &status[1]),
                                radixmlp_trie_create(&other_trie, &status[2]),
                                radixmlp_sequence_keys_create(&other_keys, &status[3])};
  // Too large for a string to try.
  identity.adapter.count = std::numeric_limits<std::int64_t>::max();
  const std::int32_t too_long = radixmlp_sequence_key(keys, &identity, &key, &status[4]);
  no_memory = false;
  CHECK(too_long == RADIXMLP_OUT_OF_MEMORY);
  for (int i = 0; i < 4; ++i) {
    CHECK(codes[i] == RADIXMLP_OUT_OF_MEMORY);
    CHECK(status[i].code == RADIXMLP_OUT_OF_MEMORY);
    CHECK(std::string(status[i].message).find("memory") != std::string::npos);
  }
  CHECK(index.gather == nullptr);
  CHECK(other_trie == nullptr);
  CHECK(other_keys == nullptr);
  // And works again.
  identity.adapter.count = 1000;
  CHECK(radixmlp_build(trie, &batch, nullptr, &index, nullptr) == RADIXMLP_OK);
  CHECK(index.compact_rows == 100000);
  CHECK(radixmlp_sequence_key(keys, &identity, &key, nullptr) == RADIXMLP_OK);
  radixmlp_trie_destroy(trie);
  radixmlp_sequence_keys_destroy(keys);
}
