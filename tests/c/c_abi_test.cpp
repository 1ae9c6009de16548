// SPDX-License-Identifier: MIT

// The C ABI gives what the library gives, on random batches over all options. What it refuses: c_abi_errors_test.cpp.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "c/c_batch.hpp"
#include "radixmlp/block/compaction_policy.hpp"
#include "radixmlp/index/attention_plan.hpp"
#include "radixmlp/index/compact_inputs.hpp"
#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/index/index_stats.hpp"
#include "radixmlp/index/pooled_rows.hpp"
#include "radixmlp/rows/host_row_ops.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"

using namespace radixmlp_test;

namespace {

// Two threads behind the C executor; counts its calls.
struct CThreads {
  std::int64_t calls = 0;
  radixmlp_executor executor() {
    return {this, [](void* context, std::int64_t n, void (*task)(void*, std::int64_t), void* task_context) {
              ++static_cast<CThreads*>(context)->calls;
              std::thread odd([=] {
                for (std::int64_t i = 1; i < n; i += 2) {
                  task(task_context, i);
                }
              });
              for (std::int64_t i = 0; i < n; i += 2) {
                task(task_context, i);
              }
              odd.join();
            }};
  }
};

struct Trie {
  Trie() { REQUIRE(radixmlp_trie_create(&trie, nullptr) == RADIXMLP_OK); }
  ~Trie() { radixmlp_trie_destroy(trie); }
  Trie(const Trie&) = delete;
  Trie& operator=(const Trie&) = delete;
  radixmlp_trie* trie = nullptr;
};

bool same(const std::int32_t* data, std::int64_t count, std::span<const std::int32_t> expected) {
  return static_cast<std::size_t>(count) == expected.size() && std::equal(expected.begin(), expected.end(), data);
}

// A call of the ABI that must succeed, with what its status says.
#define CHECK_OK(call)                           \
  do {                                           \
    radixmlp_status status;                      \
    const std::int32_t code = call;              \
    CAPTURE(status.message);                     \
    CHECK(code == RADIXMLP_OK);                  \
    CHECK(status.code == RADIXMLP_OK);           \
    CHECK(std::string(status.argument).empty()); \
  } while (false)

bool same_lists(const radixmlp_row_lists& lists, const radixmlp::RowLists& expected) {
  return same(lists.offsets, lists.rows + 1, expected.offsets) &&
         same(lists.values, lists.value_count, expected.values);
}

void check_lists(const radixmlp_index& index, const radixmlp::PrefixIndexView& view) {
  std::int64_t entries = 0;
  CHECK_OK(radixmlp_row_lists_entries(&index, &entries, &status));
  CHECK(entries == static_cast<std::int64_t>(radixmlp::row_lists_entries(view)));
  std::vector<std::int32_t> memory(static_cast<std::size_t>(entries)), other(memory.size());
  radixmlp_row_lists lists{};
  CHECK_OK(radixmlp_duplicates(&index, memory.data(), entries, &lists, &status));
  CHECK(same_lists(lists, radixmlp::duplicates(view, other)));
  CHECK_OK(radixmlp_inverse_of({index.scatter, index.ragged_rows}, index.compact_rows, memory.data(), entries, &lists,
                               &status));
  CHECK(same_lists(lists, radixmlp::duplicates(view, other)));
  CHECK_OK(radixmlp_row_sequences(&index, memory.data(), entries, &lists, &status));
  CHECK(same_lists(lists, radixmlp::row_sequences(view, other)));

  std::vector<std::int32_t> counts(static_cast<std::size_t>(view.compact_rows) + 1, -7), expected(counts);
  CHECK_OK(radixmlp_multiplicities(&index, counts.data(), view.compact_rows + 1, &status));
  radixmlp::multiplicities(view, expected);
  CHECK(counts == expected);
}

void check_pooling(const radixmlp_index& index, const radixmlp::PrefixIndexView& view, RandomBatches& random) {
  const auto sequences = static_cast<std::size_t>(view.sequences());
  std::vector<std::int32_t> rows(sequences + 1), expected(rows);
  for (const std::int32_t which : {RADIXMLP_FIRST_ROW, RADIXMLP_LAST_ROW}) {
    for (const std::int32_t space : {RADIXMLP_RAGGED_SPACE, RADIXMLP_COMPACT_SPACE}) {
      CHECK_OK(radixmlp_pooled_rows(&index, which, space, rows.data(), view.sequences(), &status));
      radixmlp::pooled_rows(view, which == 0 ? radixmlp::PooledRow::first : radixmlp::PooledRow::last,
                            space == 0 ? radixmlp::RowSpace::ragged : radixmlp::RowSpace::compact, expected);
      CHECK(rows == expected);
    }
  }
  if (view.ragged_rows > 0) {
    std::vector<std::int32_t> some, compact(5);
    for (int i = 0; i < 5; ++i) {
      some.push_back(static_cast<std::int32_t>(random.below(static_cast<std::size_t>(view.ragged_rows))));
    }
    CHECK_OK(radixmlp_compact_rows_of(&index, to_c(some), compact.data(), 5, &status));
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(compact[i] == view.scatter[static_cast<std::size_t>(some[i])]);
    }
  }
}

void check_plan(const radixmlp_index& index, const radixmlp::PrefixIndexView& view, RandomBatches& random) {
  using radixmlp::AttentionPlan;
  const auto sequences = static_cast<std::size_t>(view.sequences());
  std::vector<std::int32_t> pasts, slots, indptr, pages;
  radixmlp::AttentionPlanOptions options;
  auto c_options = sized<radixmlp_plan_options>();
  if (random.below(2) == 0) {
    options.partition = radixmlp::QueryPartition::edges;
    c_options.partition = RADIXMLP_BY_EDGES;
  }
  options.keep_empty = random.below(2) == 0;
  c_options.keep_empty = options.keep_empty ? 9 : 0;
  if (random.below(3) == 0) {
    c_options.query_tile = options.query_tile = 4;
  }
  c_options.window = options.window = static_cast<std::int32_t>(random.below(2) * 5);
  if (random.below(2) == 0) {
    c_options.past_page_size = options.past_page_size = 2;
    indptr.push_back(0);
    for (std::size_t s = 0; s < sequences; ++s) {
      pasts.push_back(static_cast<std::int32_t>(random.below(6)));
      for (std::int32_t page = 0; page < (pasts.back() + 1) / 2; ++page) {
        pages.push_back(static_cast<std::int32_t>(random.below(1000)));
      }
      indptr.push_back(static_cast<std::int32_t>(pages.size()));
    }
    options.past_lengths = pasts;
    c_options.past_lengths = to_c(pasts);
    if (random.below(2) == 0) {
      options.past_page_indptr = indptr;
      options.past_pages = pages;
      c_options.past_page_indptr = to_c(indptr);
      c_options.past_pages = to_c(pages);
    }
  }
  if (random.below(2) == 0) {
    for (std::int32_t j = 0; j < view.compact_rows; ++j) {
      slots.push_back(static_cast<std::int32_t>(random.below(10000)));
    }
    options.slots = slots;
    c_options.slots = to_c(slots);
  }

  std::int64_t entries = 0;
  CHECK_OK(radixmlp_plan_entries(&index, &c_options, &entries, &status));
  CHECK(entries == static_cast<std::int64_t>(radixmlp::attention_plan_entries(view, options)));
  std::vector<std::int32_t> memory(static_cast<std::size_t>(entries)), other(memory.size());
  auto plan = sized<radixmlp_plan>();
  CHECK_OK(radixmlp_make_plan(&index, &c_options, memory.data(), entries, &plan, &status));
  const AttentionPlan expected = radixmlp::attention_plan(view, other, options);
  const auto check_arrays = [&](const radixmlp_plan& got) {
    CHECK(got.segments == expected.segments());
    CHECK(same(got.cu_seqlens_q, got.segments + 1, expected.cu_seqlens_q));
    CHECK(same(got.cu_seqlens_k, got.segments + 1, expected.cu_seqlens_k));
    CHECK(same(got.key_slots, got.keys, expected.key_slots));
    CHECK(same(got.last_page_len, got.segments, expected.last_page_len));
    CHECK(same(got.sequences, got.segments, expected.sequences));
    CHECK(same(got.past_k, got.segments, expected.past_k));
    CHECK(same(got.query_rows, got.query_rows == nullptr ? 0 : got.queries, expected.query_rows));
    CHECK(same(got.output_rows, got.output_rows == nullptr ? 0 : index.compact_rows, expected.output_rows));
    CHECK(got.queries == expected.queries);
    CHECK(got.keys == expected.keys);
    CHECK(got.max_seqlen_q == expected.max_seqlen_q);
    CHECK(got.max_seqlen_k == expected.max_seqlen_k);
    CHECK(got.window == expected.window);
    CHECK(got.past_keys == expected.past_keys);
    CHECK(got.in_cache == (expected.in_cache ? 1 : 0));
    CHECK(got.block_entries == static_cast<std::int64_t>(expected.block.size()));
  };
  check_arrays(plan);

  // Both moved away, and what they came from overwritten.
  std::vector<std::int32_t> moved_block(plan.block, plan.block + plan.block_entries);
  const radixmlp::PrefixIndex moved_maps(view);
  auto moved_index = sized<radixmlp_index>();
  CHECK_OK(radixmlp_index_relocated(&index, moved_maps.view().block.data(), &moved_index, &status));
  auto moved = sized<radixmlp_plan>();
  moved_block.reserve(1);
  CHECK_OK(radixmlp_plan_relocated(&plan, moved_block.data(), &index, &moved_index, &moved, &status));
  std::fill(memory.begin(), memory.end(), -99);
  check_arrays(moved);

  std::int64_t table_entries = 0;
  CHECK_OK(radixmlp_page_table_entries(&moved, &table_entries, &status));
  CHECK(table_entries == radixmlp::page_table_entries(expected));
  std::vector<std::int32_t> table_memory(static_cast<std::size_t>(table_entries)), other_table(table_memory.size());
  radixmlp_page_table table{};
  CHECK_OK(radixmlp_make_page_table(&moved, 0, table_memory.data(), table_entries, &table, &status));
  const radixmlp::PageTable expected_table = radixmlp::page_table(expected, other_table);
  CHECK(table.width == expected_table.width);
  CHECK(same(table.seqused_k, moved.segments, expected_table.seqused_k));
  CHECK(same(table.pages, std::int64_t{moved.segments} * table.width, expected_table.pages));

  std::int64_t mask_entries = 0;
  CHECK_OK(radixmlp_tree_mask_entries(&index, &mask_entries, &status));
  std::vector<std::int32_t> mask_memory(static_cast<std::size_t>(mask_entries)), other_mask(mask_memory.size());
  radixmlp_tree_mask mask{};
  CHECK_OK(radixmlp_make_tree_mask(&index, mask_memory.data(), mask_entries, &mask, &status));
  const radixmlp::TreeMask expected_mask = radixmlp::tree_mask(view, other_mask);
  CHECK(same(mask.pre, view.padded_rows, expected_mask.pre));
  CHECK(same(mask.pre_end, view.padded_rows, expected_mask.pre_end));
  CHECK(same(mask.depth, view.padded_rows, expected_mask.depth));
}

void check_counts(const radixmlp_index& index, const radixmlp::PrefixIndexView& view, const BatchSpec& spec) {
  auto stats = sized<radixmlp_stats>();
  CHECK_OK(radixmlp_index_stats(&index, to_c(spec.past_lengths), &stats, &status));
  const radixmlp::IndexStats expected = radixmlp::index_stats(view, spec.past_lengths);
  CHECK(stats.attention_pairs == expected.attention_pairs);
  CHECK(stats.compact_attention_pairs == expected.compact_attention_pairs);
  CHECK(std::equal(expected.shared_rows.begin(), expected.shared_rows.end(), stats.shared_rows));
  for (const double max_ratio : {0.5, 0.9, 1.0}) {
    const radixmlp::CompactionPolicy policy{.max_ratio = max_ratio, .min_rows = 10};
    const auto decided = policy.decide(view, radixmlp::AttentionLayout::paged);
    radixmlp_decision decision{};
    CHECK_OK(radixmlp_decide(&index, max_ratio, 10, RADIXMLP_LAYOUT_PAGED, &decision, &status));
    CHECK(decision.compacts == (decided.compacts ? 1 : 0));
    CHECK(decision.layout == static_cast<std::int32_t>(decided.layout));
    CHECK(decision.reason == static_cast<std::int32_t>(decided.reason));
  }
}

template <class Token, class Position, class Key>
void check_batch(radixmlp_trie* trie, BatchSpec spec, AxisOrder order, RandomBatches& random) {
  for (auto* const keys : {&spec.token_keys, &spec.sequence_keys}) {
    for (radixmlp::Key128& key : *keys) {
      key.hi = sizeof(Key) == sizeof key ? key.hi : 0;
    }
  }
  const TypedBatch<Token, Position, Key> typed(spec, order);
  const radixmlp_batch batch = to_c(typed.batch());
  const OracleIndex expected_index = oracle(spec);

  std::int64_t bytes = 0;
  CHECK_OK(
      radixmlp_index_bytes(spec.rows(), static_cast<std::int64_t>(spec.sequences()), spec.pad_to, &bytes, &status));
  CHECK(bytes == static_cast<std::int64_t>(
                     radixmlp::index_bytes(spec.rows(), static_cast<std::int64_t>(spec.sequences()), spec.pad_to)));
  struct alignas(radixmlp::index_alignment) Line {
    std::byte bytes[radixmlp::index_alignment];
  };
  std::vector<Line> memory(static_cast<std::size_t>(bytes) / sizeof(Line));
  CThreads threads;
  const radixmlp_executor executor = threads.executor();
  for (const bool into_memory : {false, true}) {
    for (const bool parallel : {false, true}) {
      auto options = sized<radixmlp_build_options>();
      options.pad_to = spec.pad_to;
      options.executor = parallel ? &executor : nullptr;
      if (into_memory) {
        options.memory = memory.data();
        options.memory_bytes = bytes;
      }
      auto index = sized<radixmlp_index>();
      CHECK_OK(radixmlp_build(trie, &batch, &options, &index, &status));
      const radixmlp::PrefixIndexView view = from_c(index);
      CHECK(difference(view, expected_index, spec) == "");
      CHECK(index.ratio == view.ratio());
      CHECK(index.block_bytes <= bytes);
      CHECK((view.block.data() == static_cast<const void*>(memory.data())) == (into_memory && !memory.empty()));
    }
  }
  CHECK(threads.calls > 0);

  auto index = sized<radixmlp_index>();
  auto options = sized<radixmlp_build_options>();
  options.pad_to = spec.pad_to;
  CHECK_OK(radixmlp_build(trie, &batch, &options, &index, &status));
  const radixmlp::PrefixIndexView expected = from_c(index);  // for the library's own calls
  const auto padded = static_cast<std::size_t>(index.padded_rows);
  const std::size_t axes = std::max<std::size_t>(spec.positions.size(), 1);
  std::vector<Token> tokens(padded + 1), expected_tokens(padded + 1);
  CHECK_OK(radixmlp_compact_tokens(&batch, &index, tokens.data(), static_cast<std::int64_t>(padded + 1), &status));
  radixmlp::compact_tokens(typed.batch(), expected, std::span(expected_tokens));
  CHECK(tokens == expected_tokens);
  std::vector<std::int32_t> positions(axes * padded + 1), expected_positions(positions);
  CHECK_OK(radixmlp_compact_positions(&batch, &index, positions.data(), static_cast<std::int64_t>(positions.size()),
                                      &status));
  radixmlp::compact_positions(typed.batch(), expected, std::span(expected_positions));
  CHECK(positions == expected_positions);

  check_lists(index, expected);
  check_pooling(index, expected, random);
  check_counts(index, expected, spec);
  check_plan(index, expected, random);
}

}  // namespace

TEST_CASE("the index and all that follows from it are the library's, on random batches over all options") {
  RandomBatches random(81);
  Trie trie;
  for (int i = 0; i < 120; ++i) {
    const BatchSpec spec = random.next();
    const AxisOrder order = random.below(2) == 0 ? AxisOrder::token_major : AxisOrder::axis_major;
    switch (i % 5) {
      case 0:
        check_batch<std::int32_t, std::int32_t, std::uint64_t>(trie.trie, spec, AxisOrder::one_axis, random);
        break;
      case 1:
        check_batch<std::uint32_t, std::int8_t, radixmlp::Key128>(trie.trie, spec, order, random);
        break;
      case 2:
        check_batch<std::int64_t, std::uint8_t, std::uint64_t>(trie.trie, spec, order, random);
        break;
      case 3:
        check_batch<std::uint32_t, std::uint16_t, radixmlp::Key128>(trie.trie, spec, order, random);
        break;
      default:
        check_batch<std::int64_t, std::int64_t, radixmlp::Key128>(trie.trie, spec, order, random);
    }
  }
}

TEST_CASE("the types of a batch that random batches cannot tell apart") {
  Trie trie;
  auto index = sized<radixmlp_index>();
  const std::vector<std::int32_t> cu{0, 2, 4};
  const auto rows_of = [&](radixmlp_batch& batch) {
    batch.cu_seqlens = to_c(cu);
    CHECK_OK(radixmlp_build(trie.trie, &batch, nullptr, &index, &status));
    return index.compact_rows;
  };
  // 2^32 apart: equal in 32 bits, not in 64; as positions and as tokens.
  const std::vector<std::int64_t> wide{1, 2, (std::int64_t{1} << 32) + 1, 2};
  auto batch = sized<radixmlp_batch>();
  batch.tokens = {wide.data(), 4, RADIXMLP_INT64};
  CHECK(rows_of(batch) == 4);
  const std::vector<std::uint32_t> same_tokens{0xffffffff, 7, 0xffffffff, 8};
  batch.tokens = {same_tokens.data(), 4, RADIXMLP_UINT32};
  CHECK(rows_of(batch) == 3);
  for (const std::int32_t type : {RADIXMLP_INT64, RADIXMLP_UINT64}) {
    batch.positions = {wide.data(), 4, type};
    CHECK(rows_of(batch) == 4);
  }
  const std::vector<std::uint16_t> narrow{0x100, 1, 0x200, 1};
  for (const std::int32_t type : {RADIXMLP_INT16, RADIXMLP_UINT16}) {
    batch.positions = {narrow.data(), 4, type};
    CHECK(rows_of(batch) == 4);
  }
  for (const std::int32_t type : {RADIXMLP_INT8, RADIXMLP_UINT8}) {
    batch.positions = {narrow.data(), 4, type};  // bytes 0, 1, 1, 0
    CHECK(rows_of(batch) == 4);
  }
  const std::vector<std::uint32_t> words{5, 6, 5, 6};
  for (const std::int32_t type : {RADIXMLP_INT32, RADIXMLP_UINT32}) {
    batch.positions = {words.data(), 4, type};
    CHECK(rows_of(batch) == 3);
    // Read back in the type's own sign, and with pad.
    std::vector<std::int32_t> positions(3);
    CHECK_OK(radixmlp_compact_positions(&batch, &index, positions.data(), 3, &status));
    CHECK(positions == std::vector<std::int32_t>{5, 6, 6});
  }
  const std::vector<std::uint8_t> high{200, 201, 200, 201};
  std::vector<std::int32_t> positions(3);
  batch.positions = {high.data(), 4, RADIXMLP_UINT8};
  CHECK(rows_of(batch) == 3);
  CHECK_OK(radixmlp_compact_positions(&batch, &index, positions.data(), 3, &status));
  CHECK(positions == std::vector<std::int32_t>{200, 201, 201});
  batch.positions.type = RADIXMLP_INT8;
  CHECK(rows_of(batch) == 3);
  CHECK_OK(radixmlp_compact_positions(&batch, &index, positions.data(), 3, &status));
  CHECK(positions == std::vector<std::int32_t>{-56, -55, -55});
}

TEST_CASE("rows move as the library moves them: several tensors, any width, stride and alignment, padded or not") {
  RandomBatches random(82);
  Trie trie;
  CThreads threads;
  const radixmlp_executor executor = threads.executor();
  for (int round = 0; round < 60; ++round) {
    const BatchSpec spec = random.next();
    const TypedBatch<std::int32_t> typed(spec);
    const radixmlp_batch batch = to_c(typed.batch());
    auto options = sized<radixmlp_build_options>();
    options.pad_to = spec.pad_to;
    auto index = sized<radixmlp_index>();
    CHECK_OK(radixmlp_build(trie.trie, &batch, &options, &index, &status));
    if (round % 3 == 0) {  // maps from elsewhere
      index.compact_cu = index.ragged_cu = index.parent = index.last_rows = nullptr;
      index.block = nullptr;
      index.block_bytes = 0;
    }
    const radixmlp_executor* const where = round % 2 == 0 ? nullptr : &executor;

    struct Tensor {
      std::int64_t width, stride, offset;
      std::vector<std::uint8_t> ragged, compact, cache;
    };
    const auto cache_rows = static_cast<std::int64_t>(random.below(20)) + spec.rows() + 1;
    std::vector<Tensor> tensors(random.below(RADIXMLP_MAX_TENSORS + 1));
    std::vector<radixmlp_row_copy> gathers, scatters, to_slots;
    for (Tensor& tensor : tensors) {
      tensor.width = static_cast<std::int64_t>(random.below(70));
      tensor.stride = tensor.width + static_cast<std::int64_t>(random.below(9));
      tensor.offset = static_cast<std::int64_t>(random.below(5));
      const auto bytes = [&](std::int64_t rows) {
        return static_cast<std::size_t>(rows * tensor.stride + tensor.offset);
      };
      for (std::size_t i = 0; i < bytes(spec.rows()); ++i) {
        tensor.ragged.push_back(static_cast<std::uint8_t>(random.below(256)));
      }
      tensor.compact.assign(bytes(index.padded_rows), 0xee);
      tensor.cache.assign(bytes(cache_rows), 0xdd);
      const std::int64_t w = tensor.width;
      const std::int64_t s = tensor.stride;
      gathers.push_back({{tensor.ragged.data() + tensor.offset, spec.rows(), w, s},
                         {tensor.compact.data() + tensor.offset, index.padded_rows, w, s}});
      scatters.push_back({{tensor.compact.data() + tensor.offset, index.padded_rows, w, s},
                          {tensor.cache.data() + tensor.offset, cache_rows, w, s}});
    }
    const auto count = static_cast<std::int32_t>(tensors.size());
    CHECK_OK(radixmlp_gather_rows(&index, gathers.data(), count, where, &status));
    const auto row = [](const std::vector<std::uint8_t>& rows, const Tensor& tensor, std::int64_t i) {
      const auto from = rows.begin() + tensor.offset + i * tensor.stride;
      return std::vector<std::uint8_t>(from, from + tensor.width);
    };
    for (const Tensor& tensor : tensors) {
      for (std::int32_t j = 0; j < index.padded_rows; ++j) {
        CHECK(row(tensor.compact, tensor, j) ==
              (j < index.compact_rows ? row(tensor.ragged, tensor, index.gather[j])
                                      : std::vector<std::uint8_t>(static_cast<std::size_t>(tensor.width))));
      }
    }
    CHECK_OK(radixmlp_scatter_rows(&index, scatters.data(), count, where, &status));
    for (const Tensor& tensor : tensors) {
      for (std::int32_t i = 0; i < cache_rows; ++i) {
        CHECK(row(tensor.cache, tensor, i) ==
              (i < spec.rows() ? row(tensor.compact, tensor, index.scatter[i])
                               : std::vector<std::uint8_t>(static_cast<std::size_t>(tensor.width), 0xdd)));
      }
    }
    // Slots: rows in another order, some without.
    std::vector<std::int64_t> slots(static_cast<std::size_t>(spec.rows()));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i] = random.below(4) == 0 ? -1 : static_cast<std::int64_t>(slots.size() - 1 - i);
    }
    const std::vector<std::int32_t> narrow(slots.begin(), slots.end());
    const radixmlp_array c_slots = round % 2 == 0 ? radixmlp_array{slots.data(), spec.rows(), RADIXMLP_INT64}
                                                  : radixmlp_array{narrow.data(), spec.rows(), RADIXMLP_INT32};
    for (Tensor& tensor : tensors) {
      std::fill(tensor.cache.begin(), tensor.cache.end(), std::uint8_t{0xdd});
    }
    std::vector<std::int32_t> taken(static_cast<std::size_t>(cache_rows));
    CHECK_OK(radixmlp_check_slots(&index, c_slots, cache_rows, taken.data(), cache_rows, &status));
    CHECK_OK(radixmlp_scatter_to_slots(&index, c_slots, scatters.data(), count, where, &status));
    for (const Tensor& tensor : tensors) {
      std::vector<std::uint8_t> expected(tensor.cache.size(), 0xdd);
      for (std::size_t i = 0; i < slots.size(); ++i) {
        if (slots[i] >= 0) {
          const std::vector<std::uint8_t> moved = row(tensor.compact, tensor, index.scatter[i]);
          std::copy(moved.begin(), moved.end(), expected.begin() + tensor.offset + slots[i] * tensor.stride);
        }
      }
      CHECK(tensor.cache == expected);
    }
  }
  CHECK(threads.calls > 0);
}

TEST_CASE("sums over duplicates have the library's bits in every format") {
  RandomBatches random(83);
  Trie trie;
  for (int round = 0; round < 40; ++round) {
    const BatchSpec spec = random.next();
    const TypedBatch<std::int32_t> typed(spec);
    const radixmlp_batch batch = to_c(typed.batch());
    auto index = sized<radixmlp_index>();
    CHECK_OK(radixmlp_build(trie.trie, &batch, nullptr, &index, &status));
    std::vector<std::int32_t> memory(static_cast<std::size_t>(index.ragged_rows + index.compact_rows + 1));
    radixmlp_row_lists lists{};
    CHECK_OK(radixmlp_duplicates(&index, memory.data(), static_cast<std::int64_t>(memory.size()), &lists, &status));
    const radixmlp::RowLists expected_lists{{lists.offsets, static_cast<std::size_t>(lists.rows) + 1},
                                            {lists.values, static_cast<std::size_t>(lists.value_count)}};
    const auto sum = [&]<class T>(T, std::int32_t format) {
      const auto width = static_cast<std::int64_t>(random.below(40));
      const std::int64_t stride = width + 3;
      std::vector<T> ragged(static_cast<std::size_t>(index.ragged_rows * stride));
      for (T& value : ragged) {
        const auto number = static_cast<float>(random.below(2000)) / 64 - 15;
        const std::uint16_t bits =
            format == RADIXMLP_FP16 ? radixmlp::detail::float_to_fp16(number) : radixmlp::detail::float_to_bf16(number);
        std::memcpy(&value, format == RADIXMLP_FP32 ? static_cast<const void*>(&number) : &bits, sizeof value);
      }
      std::vector<T> compact(static_cast<std::size_t>(index.compact_rows * stride)), expected(compact);
      const std::int64_t element = sizeof(T);
      const radixmlp_row_copy rows{{ragged.data(), index.ragged_rows, width * element, stride * element},
                                   {compact.data(), index.compact_rows, width * element, stride * element}};
      CHECK_OK(radixmlp_sum_duplicates(&lists, format, &rows, nullptr, &status));
      radixmlp::sum_duplicates(radixmlp::serial, expected_lists,
                               radixmlp::RowView<const T>(ragged.data(), index.ragged_rows, width, stride),
                               radixmlp::RowView<T>(expected.data(), index.compact_rows, width, stride));
      CHECK((compact.empty() || std::memcmp(compact.data(), expected.data(), compact.size() * sizeof(T)) == 0));
    };
    sum(0.0F, RADIXMLP_FP32);
    sum(radixmlp::Fp16{}, RADIXMLP_FP16);
    sum(radixmlp::Bf16{}, RADIXMLP_BF16);
  }
}

TEST_CASE("sequence keys differ exactly where a field differs") {
  radixmlp_sequence_keys* keys = nullptr;
  CHECK_OK(radixmlp_sequence_keys_create(&keys, &status));
  const auto key = [&](const std::vector<std::string>& fields, std::uint64_t past = 0, std::uint64_t past_low = 0) {
    auto identity = sized<radixmlp_identity>();
    radixmlp_bytes* const members[] = {&identity.adapter, &identity.adapter_version, &identity.tenant, &identity.other};
    for (std::size_t i = 0; i < fields.size(); ++i) {
      *members[i] = {fields[i].data(), static_cast<std::int64_t>(fields[i].size())};
    }
    identity.past[0] = past_low;
    identity.past[1] = past;
    std::uint64_t number = 0;
    CHECK_OK(radixmlp_sequence_key(keys, &identity, &number, &status));
    return number;
  };
  const std::uint64_t none = key({});
  CHECK(key({"a"}) != none);
  CHECK(key({"a"}) == key({"a", "", ""}));
  CHECK(key({"a"}) != key({"", "a"}));
  CHECK(key({"", "a"}) != key({"", "", "a"}));
  CHECK(key({"", "", "a"}) != key({"", "", "", "a"}));
  const std::uint64_t alone[] = {key({"a"}), key({"", "a"}), key({"", "", "a"}), key({"", "", "", "a"}), key({}, 1),
                                 none};
  for (std::size_t i = 0; i < 6; ++i) {
    CHECK(std::count(std::begin(alone), std::end(alone), alone[i]) == 1);
  }
  CHECK(key({}, 1) != key({}, 1, 1));
  CHECK(key({}) == none);
  CHECK_OK(radixmlp_sequence_keys_clear(keys, &status));
  CHECK(key({"again"}) == 0);
  radixmlp_sequence_keys_destroy(keys);
}

TEST_CASE("versions") {
  CHECK(radixmlp_abi_version() == RADIXMLP_ABI_VERSION);
  CHECK(std::string(radixmlp_version()) == std::to_string(RADIXMLP_VERSION_MAJOR) + '.' +
                                               std::to_string(RADIXMLP_VERSION_MINOR) + '.' +
                                               std::to_string(RADIXMLP_VERSION_PATCH));
}
