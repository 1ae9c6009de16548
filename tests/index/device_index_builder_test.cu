// SPDX-License-Identifier: MIT
#include "radixmlp/index/device_index_builder.cuh"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "benchmarks/support/workloads.hpp"
#include "radixmlp/index/device_index.cuh"
#include "radixmlp/index/prefix_trie.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/device_backend.cuh"
#include "support/skip.hpp"

using namespace radixmlp_test;
using radixmlp::DeviceIndexBuilder;
using radixmlp::IndexCapacity;
using radixmlp::IndexCounts;
using radixmlp::Key128;
using radixmlp::PrefixIndexView;
using radixmlp::RaggedBatch;

namespace {

// The arrays of a host batch on the device, with cu_seqlens of one's own: of a batch that does not fill the arrays.
template <class Token, class Position, class Key>
class DeviceBatch {
 public:
  DeviceBatch(const RaggedBatch<Token>& host, const std::vector<std::int32_t>& cu_seqlens)
      : tokens_(copied(host.tokens)),
        cu_seqlens_(cu_seqlens),
        positions_(copied(std::span(static_cast<const Position*>(host.positions.data()), host.positions.size()))),
        token_keys_(keys(host.token_keys)),
        sequence_keys_(keys(host.sequence_keys)),
        past_lengths_(copied(host.past_lengths)),
        opt_out_(copied(host.opt_out)) {
    batch_.tokens = {tokens_.data(), host.tokens.size()};
    batch_.cu_seqlens = {cu_seqlens_.data(), cu_seqlens.size()};
    if (const radixmlp::PositionSpan& p = host.positions; !p.empty()) {
      batch_.positions = {std::span<const Position>(positions_.data(), p.size()), p.axes(), p.token_stride(),
                          p.axis_stride()};
    }
    batch_.token_keys = std::span<const Key>(token_keys_.data(), host.token_keys.size());
    batch_.sequence_keys = std::span<const Key>(sequence_keys_.data(), host.sequence_keys.size());
    batch_.past_lengths = {past_lengths_.data(), host.past_lengths.size()};
    batch_.opt_out = {opt_out_.data(), host.opt_out.size()};
  }

  const RaggedBatch<Token>& batch() const { return batch_; }

 private:
  template <class T>
  using Array = DeviceBackend::Array<T>;
  template <class T>
  static std::vector<T> copied(std::span<const T> values) {
    return {values.begin(), values.end()};
  }
  static std::vector<Key> keys(const radixmlp::KeySpan& keys) {
    return copied(std::span(static_cast<const Key*>(keys.data()), keys.size()));
  }

  Array<Token> tokens_;
  Array<std::int32_t> cu_seqlens_;
  Array<Position> positions_;
  Array<Key> token_keys_, sequence_keys_;
  Array<std::int32_t> past_lengths_;
  Array<std::uint8_t> opt_out_;
  RaggedBatch<Token> batch_;
};

// A builder, its memory full of rubbish at first and of the last batch from then on.
class Device {
 public:
  explicit Device(const IndexCapacity& capacity, int hash_bits = radixmlp::detail::hash_bits)
      : builder_(capacity, hash_bits),
        index_(std::vector<std::byte>(builder_.index_bytes(), std::byte{0xa5})),
        workspace_(std::vector<std::byte>(builder_.workspace_bytes(), std::byte{0x5a})) {
    static_cast<void>(radixmlp::empty_index(where(), capacity, index_memory()));
  }

  cudaStream_t where() const { return backend_.where(); }
  void synchronize() const { backend_.synchronize(); }
  const DeviceIndexBuilder& builder() const { return builder_; }
  std::span<std::byte> index_memory() { return {index_.data(), builder_.index_bytes()}; }
  std::span<std::byte> workspace() { return {workspace_.data(), builder_.workspace_bytes()}; }

  template <class Token>
  PrefixIndexView build(const RaggedBatch<Token>& batch) {
    return builder_.build(where(), batch, index_memory(), workspace());
  }
  // What a query says.
  IndexCounts query(const PrefixIndexView& view) {
    IndexCounts counts;
    radixmlp::query_counts(where(), view, &counts);
    synchronize();
    return counts;
  }
  // The index of the last batch, on the host.
  PrefixIndexView download(const PrefixIndexView& view) {
    synchronize();
    host_ = index_.download();
    return view.relocated(host_.data());
  }
  bool repaired() {
    synchronize();
    radixmlp::detail::BuildState state;
    check_cuda(cudaMemcpy(&state, workspace_.data(), sizeof state, cudaMemcpyDeviceToHost));
    return state.unverified != 0;
  }

 private:
  DeviceBackend backend_;
  DeviceIndexBuilder builder_;
  DeviceBackend::Array<std::byte> index_, workspace_;
  std::vector<std::byte> host_;
};

// The first map of a downloaded index, to the end of the capacity, in which it is not what the host's index becomes
// when it is put there.
std::string staged_difference(const PrefixIndexView& view, const PrefixIndexView& host, const IndexCapacity& capacity) {
  std::vector<std::byte> memory(radixmlp::index_bytes(capacity) + radixmlp::index_alignment);
  void* start = memory.data();
  std::size_t space = memory.size();
  std::align(radixmlp::index_alignment, radixmlp::index_bytes(capacity), start, space);
  const PrefixIndexView staged = radixmlp::stage_index(host, capacity, {static_cast<std::byte*>(start), space});
  for (const auto& [name, a, b] : {std::tuple{"scatter", view.scatter, staged.scatter},
                                   {"gather", view.gather, staged.gather},
                                   {"compact_cu", view.compact_cu, staged.compact_cu},
                                   {"ragged_cu", view.ragged_cu, staged.ragged_cu},
                                   {"parent", view.parent, staged.parent},
                                   {"last_rows", view.last_rows, staged.last_rows}}) {
    if (!std::equal(a.begin(), a.end(), b.begin(), b.end()))
      return name;
  }
  const IndexCounts& a = *view.counts;
  const IndexCounts& b = *staged.counts;
  return std::tie(a.compact_rows, a.ragged_rows, a.sequences, a.max_seqlen) ==
                 std::tie(b.compact_rows, b.ragged_rows, b.sequences, b.max_seqlen)
             ? ""
             : "counts";
}

// A spec in arrays that are larger than it: rows of rubbish behind its own, and empty sequences.
struct Roomy {
  BatchSpec filled;  // the spec, with the empty sequences
  BatchSpec arrays;  // and with the rubbish, in the last sequence
};

Roomy roomy(const BatchSpec& spec, std::int32_t rows, std::size_t sequences) {
  Roomy result{spec, {}};
  BatchSpec& filled = result.filled;
  for (std::size_t s = 0; s < sequences; ++s) {
    filled.cu_seqlens.push_back(spec.rows());
    if (!spec.sequence_keys.empty())
      filled.sequence_keys.push_back({1, 1});
    if (!spec.past_lengths.empty())
      filled.past_lengths.push_back(7);
    if (!spec.opt_out.empty())
      filled.opt_out.push_back(1);
  }
  BatchSpec& arrays = result.arrays;
  arrays = filled;
  if (filled.sequences() == 0)
    return result;
  for (std::int32_t i = 0; i < rows; ++i) {
    if (!spec.tokens.empty())
      arrays.tokens.push_back(1);
    if (!spec.token_keys.empty())
      arrays.token_keys.push_back({});
    for (auto& axis : arrays.positions)
      axis.push_back(i);
  }
  const bool has_rows = !arrays.tokens.empty() || !arrays.token_keys.empty();
  arrays.cu_seqlens.back() += has_rows ? rows : 0;
  return result;
}

// What differs from the oracle and from the host's builder.
template <class Token, class Position, class Key>
std::string build_difference(Device& device, const BatchSpec& spec, const OracleIndex& expected, AxisOrder order,
                             std::int32_t more_rows, std::size_t more_sequences) {
  const Roomy room = roomy(spec, more_rows, more_sequences);
  const TypedBatch<Token, Position, Key> arrays(room.arrays, order);
  const TypedBatch<Token, Position, Key> filled(room.filled, order);
  const DeviceBatch<Token, Position, Key> batch(arrays.batch(), room.filled.cu_seqlens);
  const PrefixIndexView view = device.build(batch.batch());
  const PrefixIndexView downloaded = device.download(view);
  radixmlp::PrefixTrie trie;
  const std::string differing = staged_difference(downloaded, trie.build(filled.batch()), device.builder().capacity());
  if (differing != "")
    return "host: " + differing;
  OracleIndex with_empty = expected;
  with_empty.last_rows.resize(room.filled.sequences(), -1);
  with_empty.compact_cu.resize(room.filled.sequences() + 1, expected.compact_rows);
  return difference(radixmlp::filled_index(downloaded, device.query(view), spec.pad_to), with_empty, room.filled);
}

int random_batches() {
  const char* count = std::getenv("RADIXMLP_RANDOM_BATCHES");
  return count ? std::atoi(count) : 8;
}

constexpr IndexCapacity roomy_capacity{.ragged_rows = 5000, .compact_rows = 5100, .sequences = 80};

}  // namespace

TEST_CASE("an index that the device builds is the host's and the oracle's, bit by bit") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  RandomBatches random(20260201);
  Device device(roomy_capacity);
  const int count = random_batches();
  for (int i = 0; i < count; ++i) {
    const BatchSpec spec = random.next();
    BatchSpec low = spec;  // what 64-bit keys can hold
    for (auto* keys : {&low.token_keys, &low.sequence_keys}) {
      for (Key128& key : *keys) {
        key.hi = 0;
      }
    }
    const OracleIndex expected = oracle(spec);
    const OracleIndex expected_low = oracle(low);
    CAPTURE(i);
    for (const AxisOrder order : {AxisOrder::one_axis, AxisOrder::token_major, AxisOrder::axis_major}) {
      if (spec.positions.size() != 1 && order == AxisOrder::one_axis)
        continue;
      const auto rows = static_cast<std::int32_t>(random.below(2) * random.below(40));
      const std::size_t sequences = random.below(2) * random.below(3);
      switch (i % 4) {
        case 0:
          REQUIRE(build_difference<std::int32_t, std::int32_t, Key128>(device, spec, expected, order, rows,
                                                                       sequences) == "");
          break;
        case 1:
          REQUIRE(build_difference<std::uint32_t, std::int64_t, std::uint64_t>(device, low, expected_low, order, rows,
                                                                               sequences) == "");
          break;
        case 2:
          REQUIRE(build_difference<std::int64_t, std::uint8_t, Key128>(device, spec, expected, order, rows,
                                                                       sequences) == "");
          break;
        default:
          REQUIRE(build_difference<std::int32_t, std::int16_t, std::uint64_t>(device, low, expected_low, order, rows,
                                                                              sequences) == "");
      }
    }
    REQUIRE_FALSE(device.repaired());
  }
}

TEST_CASE("real requests") {
  const std::filesystem::path folder = std::filesystem::path(RADIXMLP_SHARED_DIR) / "workloads";
  if (skip_without(DeviceBackend::present() && std::filesystem::exists(folder),
                   "GPU, or workloads at " + folder.string()))
    return;
  constexpr std::size_t tokens = 4096;
  constexpr IndexCapacity capacity{.ragged_rows = tokens, .compact_rows = tokens, .sequences = tokens};
  Device device(capacity);
  radixmlp::PrefixTrie trie;
  int workloads = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".jsonl")
      continue;
    CAPTURE(file.path().filename().string());
    radixmlp_bench::Batch batch;
    for (std::vector<std::int32_t>& request : radixmlp_bench::load_requests(file.path().string(), tokens)) {
      request.resize(std::min(request.size(), tokens - batch.tokens.size()));
      batch.add(request);
    }
    REQUIRE(batch.tokens.size() == tokens);
    const DeviceBatch<std::int32_t, std::int32_t, Key128> on_device(batch.view(), batch.cu_seqlens);
    const PrefixIndexView built = device.download(device.build(on_device.batch()));
    CHECK(staged_difference(built, trie.build(batch.view()), capacity) == "");
    CHECK_FALSE(device.repaired());
    ++workloads;
  }
  CHECK(workloads >= 16);
}

TEST_CASE("batches that are a block of threads, a row more, a row less") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  for (const std::int32_t rows : {1, 511, 512, 513, 1025}) {
    // Of equal tokens, so that the place alone tells rows apart; of the Thue-Morse sequence and its inverse, whose sums
    // and polynomials agree; of one token each.
    for (const int kind : {0, 1, 2}) {
      CAPTURE(rows, kind);
      BatchSpec spec;
      for (std::int32_t i = 0; i < rows; ++i) {
        spec.tokens.push_back(kind == 1 ? __builtin_popcount(static_cast<unsigned>(i)) % 2 : i % (1 + kind));
        if (kind == 2)
          spec.cu_seqlens.push_back(i + 1);
      }
      if (kind < 2)
        spec.cu_seqlens.push_back(rows);
      if (kind == 1) {
        for (std::int32_t i = 0; i < rows; ++i) {
          spec.tokens.push_back(1 - spec.tokens[static_cast<std::size_t>(i)]);
        }
        spec.cu_seqlens.push_back(2 * rows);
      }
      Device device({.ragged_rows = spec.rows(), .compact_rows = spec.rows(), .sequences = rows + 1});
      CHECK(build_difference<std::int32_t, std::int32_t, Key128>(device, spec, oracle(spec), AxisOrder::one_axis, 0,
                                                                 0) == "");
      CHECK_FALSE(device.repaired());
    }
  }
}

TEST_CASE("prefixes whose hashes are equal are found and told apart") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  RandomBatches random(7);
  int repaired = 0;
  int not_repaired = 0;
  for (int i = 0; i < random_batches() / 2; ++i) {
    const BatchSpec spec = random.next();
    const OracleIndex expected = oracle(spec);
    for (const int bits : {0, 1, 5}) {
      CAPTURE(i, bits);
      Device device(roomy_capacity, bits);
      REQUIRE(build_difference<std::int64_t, std::uint8_t, Key128>(device, spec, expected, AxisOrder::axis_major, 3,
                                                                   1) == "");
      (device.repaired() ? repaired : not_repaired) += 1;
      if (bits == 0) {  // first rows are one in the table, and others
        const auto first = std::count(expected.parent.begin(), expected.parent.end(), -1);
        CHECK(device.repaired() == (first > 1 || expected.compact_rows - first > 1));
      }
    }
  }
  CHECK(repaired > 0);
  CHECK(not_repaired > 0);

  // One attribute alone tells two of three rows apart.
  const BatchSpec equal = spec_of({{1}, {1}, {1}});
  std::vector<BatchSpec> specs(8, equal);
  specs[0].tokens = {1, 1, std::int64_t{1} << 32 | 1};
  specs[1].token_keys = {{3, 0}, {3, 1}, {3, 0}};
  specs[2].positions = {{0, 0, 0}, {0, 0, 0}, {0, 1, 1}};
  specs[3].sequence_keys = {{0, 5}, {0, 5}, {1, 5}};
  specs[4].sequence_keys = {{0, 5}, {0, 5}, {0, 6}};
  specs[5].past_lengths = {8, 0, 8};
  specs[6].opt_out = {0, 1, 0};
  specs[7].opt_out = {1, 0, 0};
  for (std::size_t i = 0; i < specs.size(); ++i) {
    CAPTURE(i);
    Device device(roomy_capacity, 0);
    const OracleIndex expected = oracle(specs[i]);
    REQUIRE(expected.compact_rows == 2);
    CHECK(build_difference<std::int64_t, std::uint8_t, Key128>(device, specs[i], expected, AxisOrder::axis_major, 0,
                                                               0) == "");
    CHECK(device.repaired());
    Device whole_hashes(roomy_capacity);
    CHECK(build_difference<std::int64_t, std::uint8_t, Key128>(whole_hashes, specs[i], expected, AxisOrder::axis_major,
                                                               0, 0) == "");
    CHECK_FALSE(whole_hashes.repaired());
  }

  // First rows are no other rows, whatever stands before them in the arrays.
  for (const auto& sequences : std::vector<std::vector<std::vector<std::int32_t>>>{
           {{1}, {2}, {1, 2}}, {{1, 2}, {2}}, {{2, 1, 1}, {1}, {1, 1}}}) {
    const BatchSpec spec = spec_of(sequences);
    Device device(roomy_capacity, 0);
    CHECK(build_difference<std::int32_t, std::int32_t, Key128>(device, spec, oracle(spec), AxisOrder::one_axis, 0, 0) ==
          "");
    CHECK(device.repaired());
  }

  // All of them: one-token sequences.
  BatchSpec spec;
  for (std::int32_t i = 0; i < 700; ++i) {
    spec.tokens.push_back(i * 7919 % 300);
    spec.cu_seqlens.push_back(i + 1);
  }
  Device device({.ragged_rows = 800, .compact_rows = 300, .sequences = 702}, 0);
  CHECK(build_difference<std::int32_t, std::int32_t, Key128>(device, spec, oracle(spec), AxisOrder::one_axis, 9, 2) ==
        "");
  CHECK(device.repaired());
}

namespace {

constexpr IndexCapacity small_capacity{.ragged_rows = 12, .compact_rows = 6, .sequences = 4, .max_seqlen = 8};

// A batch in arrays of all of small_capacity: tokens are 0, 1, 2, ...
RaggedBatch<std::int32_t> small_batch(DeviceBackend::Array<std::int32_t>& tokens,
                                      DeviceBackend::Array<std::int32_t>& cu_seqlens,
                                      DeviceBackend::Array<std::int32_t>& past_lengths) {
  return {
      .tokens = {tokens.data(), 12}, .cu_seqlens = {cu_seqlens.data(), 5}, .past_lengths = {past_lengths.data(), 4}};
}

// What is wrong with the maps of a batch that has no index.
std::string not_empty(const PrefixIndexView& view) {
  const auto all = [](std::span<const std::int32_t> map, std::int32_t value) {
    return std::all_of(map.begin(), map.end(), [=](std::int32_t entry) { return entry == value; });
  };
  const IndexCounts& counts = *view.counts;
  std::string wrong;
  wrong += counts.compact_rows == -1 && counts.ragged_rows == -1 && counts.sequences == -1 ? "" : "counts ";
  wrong += all(view.gather, 0) && all(view.scatter, 0) ? "" : "gather or scatter ";
  wrong += all(view.ragged_cu, 0) && all(view.compact_cu, 0) ? "" : "cu ";
  wrong += all(view.parent, -1) && all(view.last_rows, -1) ? "" : "parent or last_rows";
  return wrong;
}

}  // namespace

TEST_CASE("what is malformed or does not fit is a fault, and no index") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  using Ints = std::vector<std::int32_t>;
  constexpr std::int32_t largest = std::numeric_limits<std::int32_t>::max();
  constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min();
  const std::string cu_rule = ": must start at 0, never decrease, and end at the rows";
  struct Case {
    Ints cu_seqlens, past_lengths;
    std::string message;
  };
  const std::vector<Case> cases{
      {{1, 1, 2, 3, 4}, {0, 0, 0, 0}, "cu_seqlens[0] = 1" + cu_rule},
      {{-1, 1, 2, 3, 4}, {0, 0, 0, 0}, "cu_seqlens[0] = -1" + cu_rule},
      {{0, 3, 2, 1, 4}, {0, 0, 0, 0}, "cu_seqlens[2] = 2" + cu_rule},
      {{0, 3, 3, 5, -4}, {0, 0, 0, -9}, "cu_seqlens[4] = -4" + cu_rule},
      {{0, largest, least, 5, 5}, {0, 0, 0, 0}, "cu_seqlens[2] = " + std::to_string(least) + cu_rule},
      {{0, 1, 2, 3, 13}, {0, 0, 0, 0}, "ragged_rows = 13: must fit the capacity, 12"},
      {{0, 1, 2, 3, largest}, {0, 0, 0, 0}, "ragged_rows = " + std::to_string(largest) + ": must fit the capacity, 12"},
      {{0, 9, 9, 9, 9}, {0, 0, 0, 0}, "max_seqlen = 9: must fit the capacity, 8"},
      {{0, 4, 7, 7, 7}, {0, 0, 0, 0}, "compact_rows = 7: must fit the capacity, 6"},
      {{0, 2, 3, 3, 3}, {0, -2, 4, -5}, "past_lengths[1] = -2: must not be negative"}};
  Device device(small_capacity);
  Ints values(12);
  std::iota(values.begin(), values.end(), 0);
  DeviceBackend::Array<std::int32_t> tokens(values);
  DeviceBackend::Array<std::int32_t> good_cu(Ints{0, 2, 5, 5, 5}), good_past(Ints{0, 0, 0, 0});
  for (const Case& wrong : cases) {
    CAPTURE(wrong.message);
    DeviceBackend::Array<std::int32_t> cu(wrong.cu_seqlens), past(wrong.past_lengths);
    const PrefixIndexView view = device.build(small_batch(tokens, cu, past));
    CHECK(not_empty(device.download(view)) == "");
    // Neither another wrong batch nor one that fits, which has an index, hides the fault of one that came before.
    DeviceBackend::Array<std::int32_t> other_cu(Ints{2, 5, 5, 5, 5});
    device.build(small_batch(tokens, other_cu, good_past));
    device.build(small_batch(tokens, good_cu, good_past));
    CHECK(device.download(view).counts->compact_rows == 5);
    const IndexCounts first = device.query(view);
    CHECK(radixmlp::index_status(first, view).message() == "radixmlp: " + wrong.message);
    CHECK(radixmlp::index_status(device.query(view), view).ok());
  }

  // Arrays that are smaller than the capacity end where they end.
  DeviceBackend::Array<std::int32_t> cu(Ints{0, 2, 3, 4, 11});
  RaggedBatch<std::int32_t> batch = small_batch(tokens, cu, good_past);
  batch.tokens = batch.tokens.first(10);
  PrefixIndexView view = device.build(batch);
  CHECK(not_empty(device.download(view)) == "");
  CHECK(radixmlp::index_status(device.query(view), view).message() == "radixmlp: cu_seqlens[4] = 11" + cu_rule);

  // Rubbish is never followed out of an array; here the emulator looks.
  RandomBatches random(3);
  for (int i = 0; i < 20; ++i) {
    Ints rubbish(5);
    for (std::int32_t& entry : rubbish) {
      entry = static_cast<std::int32_t>(random.below(40) * (random.below(3) == 0 ? 123'456'789 : 1)) - 10;
    }
    std::sort(rubbish.begin() + 1, rubbish.end() - 1 + static_cast<std::ptrdiff_t>(random.below(2)));
    CAPTURE(rubbish);
    DeviceBackend::Array<std::int32_t> rubbish_cu(rubbish);
    view = device.build(small_batch(tokens, rubbish_cu, good_past));
    const PrefixIndexView built = device.download(view);
    if (built.counts->compact_rows < 0) {
      CHECK(not_empty(built) == "");
      CHECK_FALSE(radixmlp::index_status(device.query(view), view).ok());
    } else {
      CHECK((rubbish[0] == 0 && std::is_sorted(rubbish.begin(), rubbish.end()) && rubbish[4] <= 12));
    }
  }
}

TEST_CASE("no rows, no sequences, no capacity") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  DeviceBackend::Array<std::int32_t> cu(std::vector<std::int32_t>{0, 0, 0}), one(std::vector<std::int32_t>{1});
  for (const IndexCapacity& capacity : {IndexCapacity{}, {.sequences = 2}, {.ragged_rows = 3, .compact_rows = 2}}) {
    CAPTURE(capacity.ragged_rows, capacity.sequences);
    Device device(capacity);
    const auto sequences = static_cast<std::size_t>(capacity.sequences);
    PrefixIndexView view = device.build(RaggedBatch<std::int32_t>{.cu_seqlens = {cu.data(), sequences + 1}});
    const PrefixIndexView filled = radixmlp::filled_index(device.download(view), device.query(view));
    CHECK(filled.compact_rows == 0);
    CHECK(filled.ragged_rows == 0);
    CHECK(to_vector(filled.last_rows) == std::vector<std::int32_t>(sequences, -1));
    view = device.build(RaggedBatch<std::int32_t>{.cu_seqlens = {one.data(), 1}});
    CHECK(radixmlp::index_status(device.query(view), view).message() ==
          "radixmlp: cu_seqlens[0] = 1: must start at 0, never decrease, and end at the rows");
  }
}

TEST_CASE("arguments that the host can see are refused before anything is enqueued") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  constexpr std::int32_t too_many = (1 << 30) + 1;
  const std::string limit = " = 1073741825: must not exceed 1073741824";
  CHECK_THROWS_WITH(DeviceIndexBuilder({.ragged_rows = too_many}), "radixmlp: capacity.ragged_rows" + limit);
  CHECK_THROWS_WITH(DeviceIndexBuilder({.compact_rows = too_many}), "radixmlp: capacity.compact_rows" + limit);
  CHECK_THROWS_WITH(DeviceIndexBuilder({.sequences = too_many}), "radixmlp: capacity.sequences" + limit);
  CHECK(DeviceIndexBuilder({.ragged_rows = 1 << 30}).workspace_bytes() > std::size_t{20} << 30);

  Device device(small_capacity);
  std::vector<std::int32_t> values(12), cu_values{0, 3, 6, 6, 6};
  DeviceBackend::Array<std::int32_t> tokens(values), cu(cu_values), past(values);
  const RaggedBatch<std::int32_t> good = small_batch(tokens, cu, past);
  const PrefixIndexView view = device.build(good);
  const std::vector<std::int32_t> scatter = to_vector(device.download(view).scatter);

  RaggedBatch<std::int32_t> batch = good;
  batch.tokens = {tokens.data(), 13};
  CHECK_THROWS_WITH(device.build(batch), "radixmlp: batch.rows = 13: must fit the capacity, 12");
  batch = good;
  batch.cu_seqlens = {cu.data(), 6};
  batch.past_lengths = {};
  CHECK_THROWS_WITH(device.build(batch), "radixmlp: batch.sequences = 5: must fit the capacity, 4");
  batch = good;
  batch.past_lengths = batch.past_lengths.first(3);
  CHECK_THROWS_WITH(device.build(batch), "radixmlp: past_lengths = 3: its size must be 4");
  batch = good;
  batch.positions = {batch.tokens, 2, 1, 6};
  CHECK_THROWS_WITH(device.build(batch),
                    "radixmlp: positions = 12: its size must exceed the last element that the strides reach, 17");
  batch = good;
  batch.cu_seqlens = {};
  CHECK_THROWS_AS(device.build(batch), radixmlp::InvalidBatch);
  const auto build_in = [&](std::span<std::byte> index, std::span<std::byte> workspace) {
    device.builder().build(device.where(), good, index, workspace);
  };
  CHECK_THROWS_WITH(
      build_in(device.index_memory().first(64), device.workspace()),
      "radixmlp: memory = 64: its bytes must be at least " + std::to_string(device.builder().index_bytes()));
  CHECK_THROWS_WITH(
      build_in(device.index_memory(), device.workspace().first(64)),
      "radixmlp: workspace = 64: its bytes must be at least " + std::to_string(device.builder().workspace_bytes()));
  const std::span<std::byte> shifted(device.workspace().data() + 8, device.workspace().size());
  CHECK_THROWS_WITH(build_in(device.index_memory(), shifted),
                    "radixmlp: workspace = 8: its address must be a multiple of 64");
  CHECK(to_vector(device.download(view).scatter) == scatter);
}

TEST_CASE("an error that the engine has not read yet stays the engine's") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  const BatchSpec spec = spec_of({{1, 2, 3}, {1, 2, 4}});
  Device device(roomy_capacity);
  const TypedBatch<std::int32_t> typed(spec);
  const DeviceBatch<std::int32_t, std::int32_t, std::uint64_t> batch(typed.batch(), spec.cu_seqlens);
  REQUIRE(cudaSetDevice(99) != cudaSuccess);
  const PrefixIndexView view = device.build(batch.batch());
  CHECK(cudaGetLastError() == cudaErrorInvalidDevice);
  CHECK(device.download(view).counts->compact_rows == 4);
}

TEST_CASE("a captured build makes the index of whatever batch lies there") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  constexpr std::size_t rows = 2000;
  constexpr std::size_t sequences = 40;
  constexpr IndexCapacity capacity{.ragged_rows = rows, .compact_rows = 600, .sequences = sequences};
  Device device(capacity);
  DeviceBackend::Array<std::int32_t> tokens(std::vector<std::int32_t>(rows, 1));
  DeviceBackend::Array<std::int32_t> cu_seqlens(std::vector<std::int32_t>(sequences + 1, 0));
  const RaggedBatch<std::int32_t> batch{.tokens = {tokens.data(), rows},
                                        .cu_seqlens = {cu_seqlens.data(), sequences + 1}};
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamBeginCapture(device.where(), cudaStreamCaptureModeGlobal));
  const PrefixIndexView view = device.build(batch);
  check_cuda(cudaStreamEndCapture(device.where(), &graph));
  std::size_t nodes = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &nodes));
  CHECK(nodes == 7);
  check_cuda(cudaGraphInstantiate(&executable, graph, 0));
  RandomBatches random(12);
  radixmlp::PrefixTrie trie;
  int fitting = 0;
  int refused = 0;
  while (fitting < 20 || refused < 2) {
    BatchSpec spec = random.next();
    spec.positions.clear();
    spec.token_keys.clear();
    spec.sequence_keys.clear();
    spec.past_lengths.clear();
    spec.opt_out.clear();
    if (refused < 2 && fitting % 8 == 7) {
      spec = spec_of({{1, 2}, std::vector<std::int32_t>(601, 3)});
    }
    if (spec.tokens.empty() || spec.rows() > static_cast<std::int32_t>(rows)) {
      continue;
    }
    const BatchSpec filled = roomy(spec, 0, sequences - spec.sequences()).filled;
    const TypedBatch<std::int32_t> typed(filled);
    check_cuda(cudaMemcpy(tokens.data(), typed.batch().tokens.data(), typed.batch().tokens.size_bytes(),
                          cudaMemcpyHostToDevice));
    check_cuda(cudaMemcpy(cu_seqlens.data(), filled.cu_seqlens.data(), (sequences + 1) * sizeof(std::int32_t),
                          cudaMemcpyHostToDevice));
    check_cuda(cudaGraphLaunch(executable, device.where()));
    const PrefixIndexView built = device.download(view);
    const PrefixIndexView host = trie.build(typed.batch());
    const radixmlp::Status status = radixmlp::index_status(device.query(view), view);
    CAPTURE(fitting, refused, host.compact_rows);
    if (host.compact_rows <= capacity.compact_rows) {
      ++fitting;
      CHECK(staged_difference(built, host, capacity) == "");
      CHECK(status.ok());
    } else {
      ++refused;
      CHECK(not_empty(built) == "");
      CHECK(status.message() ==
            "radixmlp: compact_rows = " + std::to_string(host.compact_rows) + ": must fit the capacity, 600");
    }
  }
  check_cuda(cudaGraphExecDestroy(executable));
  check_cuda(cudaGraphDestroy(graph));
}

TEST_CASE("as docs/integration.md has it") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  constexpr IndexCapacity capacity{.ragged_rows = 100, .compact_rows = 80, .sequences = 8};
  Device device(capacity);
  DeviceBackend::Array<std::int32_t> token_array(std::vector<std::int32_t>{7, 8, 9, 1, 2, 7, 8, 9, 4, 7, 8, 9, 4, 5});
  DeviceBackend::Array<std::int32_t> cu_seqlens_array(std::vector<std::int32_t>{0, 5, 9, 14});
  const std::span<const std::int32_t> tokens(token_array.data(), 14), cu_seqlens(cu_seqlens_array.data(), 4);
  const cudaStream_t stream = device.where();
  const std::span<std::byte> index_memory = device.index_memory();
  const std::span<std::byte> workspace = device.workspace();
  IndexCounts counts_memory;
  IndexCounts* const counts = &counts_memory;
  // [build]
  // Once. index_memory: builder.index_bytes(), workspace: builder.workspace_bytes(), both device memory.
  const radixmlp::DeviceIndexBuilder builder(capacity);  // the most that a batch may have
  radixmlp::PrefixIndexView index = radixmlp::empty_index(stream, capacity, index_memory);

  // For each batch, or once into a graph. tokens and cu_seqlens are device memory; nothing waits for the stream.
  index = builder.build(stream, radixmlp::RaggedBatch<std::int32_t>{.tokens = tokens, .cu_seqlens = cu_seqlens},
                        index_memory, workspace);

  // Only where the host wants N': counts is pinned memory; an event can wait for the stream too. Throws if the batch
  // was malformed.
  radixmlp::query_counts(stream, index, counts);
  cudaStreamSynchronize(stream);
  const radixmlp::PrefixIndexView filled = radixmlp::filled_index(index, *counts);
  // [/build]
  CHECK(filled.compact_rows == 7);
  CHECK(filled.ragged_rows == 14);
  CHECK(filled.gather.size() == 7);
}
