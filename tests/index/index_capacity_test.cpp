// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "radixmlp/radixmlp.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"

using namespace radixmlp_test;
using radixmlp::capacity_index;
using radixmlp::IndexCapacity;
using radixmlp::IndexCounts;
using radixmlp::IndexFault;
using radixmlp::PrefixIndexView;
using radixmlp::PrefixTrie;
using radixmlp::RowView;

namespace {

using Ints = std::vector<std::int32_t>;
using Typed = TypedBatch<std::int32_t, std::int32_t, radixmlp::Key128>;

// Aligned, and full of what is no map.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : size_(bytes), chunks_(bytes / radixmlp::index_alignment + 1) {
    std::fill_n(reinterpret_cast<std::byte*>(chunks_.data()), bytes, std::byte{0x5a});
  }
  std::span<std::byte> span() { return {reinterpret_cast<std::byte*>(chunks_.data()), size_}; }
  Ints words() const {
    const auto* const first = reinterpret_cast<const std::int32_t*>(chunks_.data());
    return {first, first + size_ / sizeof(std::int32_t)};
  }

 private:
  struct alignas(radixmlp::index_alignment) Chunk {
    std::byte bytes[radixmlp::index_alignment];
  };
  std::size_t size_;
  std::vector<Chunk> chunks_;
};

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const radixmlp::InvalidBatch& error) {
    return error.what();
  }
  return "accepted";
}

// N = 10, N' = 5, B = 4, longest 4; the third sequence is empty.
BatchSpec small_spec() { return spec_of({{1, 2, 3}, {1, 2, 3}, {}, {1, 2, 4, 5}}); }

}  // namespace

TEST_CASE("an index that is staged for a capacity has the batch's maps, and what any kernel may read behind them") {
  const Typed typed(small_spec());
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch(), {.pad_to = 4});
  const IndexCapacity capacity{.ragged_rows = 12, .compact_rows = 7, .sequences = 6, .max_seqlen = 9};
  Memory memory(radixmlp::index_bytes(capacity));
  const PrefixIndexView staged = radixmlp::stage_index(index, capacity, memory.span());
  CHECK(to_vector(staged.scatter) == Ints{0, 1, 2, 0, 1, 2, 0, 1, 3, 4, 0, 0});
  CHECK(to_vector(staged.gather) == Ints{0, 1, 2, 8, 9, 0, 0});
  CHECK(to_vector(staged.compact_cu) == Ints{0, 3, 3, 3, 5, 5, 5});
  CHECK(to_vector(staged.ragged_cu) == Ints{0, 3, 6, 6, 10, 10, 10});
  CHECK(to_vector(staged.parent) == Ints{-1, 0, 1, 1, 3, -1, -1});
  CHECK(to_vector(staged.last_rows) == Ints{2, 2, -1, 4, -1, -1});
  CHECK(staged.ragged_rows == 12);
  CHECK(staged.compact_rows == 7);
  CHECK(staged.padded_rows == 7);
  CHECK(staged.sequences() == 6);
  CHECK(staged.max_seqlen == 9);
  CHECK(staged.block.size() == radixmlp::index_bytes(capacity));
  REQUIRE(staged.counts != nullptr);
  CHECK(staged.counts->compact_rows == 5);
  CHECK(staged.counts->ragged_rows == 10);
  CHECK(staged.counts->sequences == 4);
  CHECK(staged.counts->max_seqlen == 4);
  CHECK(staged.counts->fault == 0);

  // The counts move with the maps, also where they are owned.
  Memory other(staged.block.size());
  std::copy(staged.block.begin(), staged.block.end(), other.span().begin());
  const PrefixIndexView moved = staged.relocated(other.span().data());
  const auto counts_at = reinterpret_cast<const std::byte*>(staged.counts) - staged.block.data();
  memory = Memory(staged.block.size());
  CHECK(moved.counts->ragged_rows == 10);
  CHECK(reinterpret_cast<const std::byte*>(moved.counts) - moved.block.data() == counts_at);
  const radixmlp::PrefixIndex owned(moved);
  other = Memory(staged.block.size());
  CHECK(owned.view().counts->compact_rows == 5);
  CHECK(radixmlp::index_status(*owned.view().counts, owned.view()).ok());
  CHECK(difference(radixmlp::filled_index(owned, *owned.view().counts), oracle(small_spec()), small_spec()) == "");
}

TEST_CASE("the index of a random batch comes back from a capacity as it was") {
  RandomBatches random(51);
  PrefixTrie trie;
  for (int i = 0; i < 2000; ++i) {
    const BatchSpec spec = random.next();
    const Typed typed(spec, AxisOrder::axis_major);
    const PrefixIndexView index = trie.build(typed.batch(), {.pad_to = spec.pad_to});
    const auto room = [&] { return static_cast<std::int32_t>(random.below(3) * random.below(70)); };
    const IndexCapacity capacity{index.ragged_rows + room(), index.padded_rows + room(), index.sequences() + room(),
                                 index.max_seqlen + room()};
    Memory memory(radixmlp::index_bytes(capacity));
    const PrefixIndexView staged = radixmlp::stage_index(index, capacity, memory.span());
    const Ints words = memory.words();
    const auto first = reinterpret_cast<const std::int32_t*>(staged.block.data());
    REQUIRE(std::equal(words.begin(), words.end(), first));
    REQUIRE(difference(radixmlp::filled_index(staged, *staged.counts, spec.pad_to), oracle(spec), spec) == "");
  }
}

TEST_CASE("a batch fits a capacity or is refused by name, before anything is written") {
  const Typed typed(small_spec());
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());
  const IndexCapacity exact{10, 5, 4, 4};
  CHECK(radixmlp::fits(index, exact).ok());
  Memory memory(1024);
  const Ints before = memory.words();
  const auto stage = [&](const IndexCapacity& capacity) {
    return refusal([&] { radixmlp::stage_index(index, capacity, memory.span()); });
  };
  CHECK(stage({9, 5, 4, 4}) == "radixmlp: ragged_rows = 10: must fit the capacity, 9");
  CHECK(stage({10, 4, 4, 4}) == "radixmlp: compact_rows = 5: must fit the capacity, 4");
  CHECK(stage({10, 5, 3, 4}) == "radixmlp: sequences = 4: must fit the capacity, 3");
  CHECK(stage({10, 5, 4, 3}) == "radixmlp: max_seqlen = 4: must fit the capacity, 3");
  CHECK(stage({-1, 5, 4, 4}) == "radixmlp: capacity.ragged_rows = -1: must not be negative");
  CHECK(stage({10, -5, 4, 4}) == "radixmlp: capacity.compact_rows = -5: must not be negative");
  CHECK(stage({10, 5, -4, 4}) == "radixmlp: capacity.sequences = -4: must not be negative");
  CHECK(stage({10, 5, 4, -4}) == "radixmlp: capacity.max_seqlen = -4: must not be negative");
  const std::size_t bytes = radixmlp::index_bytes(exact);
  CHECK(refusal([&] { radixmlp::stage_index(index, exact, memory.span().first(bytes - 1)); }) ==
        "radixmlp: memory = " + std::to_string(bytes - 1) + ": its bytes must be at least " + std::to_string(bytes));
  CHECK(refusal([&] { radixmlp::stage_index(index, exact, memory.span().subspan(4)); }) ==
        "radixmlp: memory = 4: its address must be a multiple of 64");
  PrefixTrie without;
  const PrefixIndexView no_parent = without.build(typed.batch(), {.parent = false});
  CHECK(refusal([&] { radixmlp::stage_index(no_parent, exact, memory.span()); }) ==
        "radixmlp: index.parent = 0: must have an entry for each compact row (BuildOptions::parent), 5");
  CHECK(memory.words() == before);
  CHECK(stage(exact) == "accepted");
  const PrefixIndexView staged = capacity_index(exact, memory.span());
  CHECK(stage({12, 7, 6}) == "accepted");
  Memory second(radixmlp::index_bytes(exact));
  CHECK(refusal([&] { radixmlp::stage_index(staged, exact, second.span()); }) ==
        "radixmlp: index.counts = 1: must be null here: pass filled_index(index, counts), which is of one batch");
}

TEST_CASE("the smallest capacity that fits computes the fewest rows") {
  const Typed typed(small_spec());
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());
  const std::vector<IndexCapacity> capacities{{100, 4, 9}, {64, 16, 9}, {64, 8, 3}, {64, 8, 9}, {32, 8, 9}, {32, 8, 9}};
  CHECK(radixmlp::smallest_fit(index, capacities) == 4);
  CHECK(radixmlp::smallest_fit(index, std::span(capacities).first(4)) == 3);
  CHECK(radixmlp::smallest_fit(index, std::span(capacities).first(3)) == 1);
  CHECK(radixmlp::smallest_fit(index, std::span(capacities).first(1)) == 1);  // none
  CHECK(radixmlp::smallest_fit(index, {}) == 0);
}

TEST_CASE("counts say what a batch did to an index, and why there is none") {
  Memory memory(radixmlp::index_bytes({10, 5, 4}));
  const PrefixIndexView index = capacity_index({10, 5, 4}, memory.span());
  CHECK(index.max_seqlen == 10);
  const auto message = [&](IndexFault fault, std::int32_t at, std::int32_t value) {
    const IndexCounts counts{-1, -1, -1, 0, static_cast<std::int32_t>(fault), at, value};
    CHECK(refusal([&] { static_cast<void>(radixmlp::filled_index(index, counts)); }) ==
          radixmlp::index_status(counts, index).message());
    return radixmlp::index_status(counts, index).message();
  };
  using enum IndexFault;
  CHECK(message(ragged_rows, 0, 11) == "radixmlp: ragged_rows = 11: must fit the capacity, 10");
  CHECK(message(compact_rows, 0, 6) == "radixmlp: compact_rows = 6: must fit the capacity, 5");
  CHECK(message(sequences, 0, 9) == "radixmlp: sequences = 9: must fit the capacity, 4");
  CHECK(message(max_seqlen, 0, 12) == "radixmlp: max_seqlen = 12: must fit the capacity, 10");
  CHECK(message(cu_seqlens, 3, 2) ==
        "radixmlp: cu_seqlens[3] = 2: must start at 0, never decrease, and end at the rows");
  CHECK(message(none, 0, 0) == "radixmlp: compact_rows = -1: there is no index; the query before this one said why");
  // An earlier batch's fault is told with the counts of one that fitted.
  const IndexCounts later{3, 4, 2, 2, static_cast<std::int32_t>(sequences), -1, 7};
  CHECK(radixmlp::index_status(later, index).message() == "radixmlp: sequences = 7: must fit the capacity, 4");
}

TEST_CASE("rows move by the counts on the host too, and what reads one batch's maps refuses an index for a capacity") {
  const Typed typed(small_spec());
  PrefixTrie trie;
  const PrefixIndexView built = trie.build(typed.batch());
  const IndexCapacity capacity{.ragged_rows = 12, .compact_rows = 7, .sequences = 6};
  Memory memory(radixmlp::index_bytes(capacity));
  const PrefixIndexView index = radixmlp::stage_index(built, capacity, memory.span());
  auto* const counts = const_cast<IndexCounts*>(index.counts);
  std::vector<float> ragged{0, 1, 2, 0, 1, 2, 0, 1, 3, 4, 99, 99}, compact(7, -1), back(12, -1), cache(20, -1);
  const std::vector<std::int64_t> slots{11, 12, -1, 11, 13, 14, 15, 16, 17, 18, 3, 4};
  const RowView<float> ragged_rows(ragged.data(), 12, 1), compact_rows(compact.data(), 7, 1), rows(back.data(), 12, 1);
  const auto move = [&] {
    radixmlp::gather_rows(radixmlp::serial, index, ragged_rows, compact_rows);
    radixmlp::scatter_rows(radixmlp::serial, index, compact_rows, rows);
    radixmlp::scatter_to_slots(radixmlp::serial, index, slots,
                               radixmlp::RowCopy{compact_rows, RowView<float>(cache.data(), 20, 1)});
  };
  counts->ragged_rows = counts->compact_rows = -1;
  move();
  radixmlp::zero_rows_behind(radixmlp::serial, &index.counts->compact_rows, rows);
  CHECK(compact == std::vector<float>(7, -1));
  CHECK(back == std::vector<float>(12, -1));
  CHECK(cache == std::vector<float>(20, -1));
  counts->ragged_rows = 13;  // nobody's
  counts->compact_rows = 8;
  move();
  CHECK(compact == std::vector<float>(7, -1));
  CHECK(back == std::vector<float>(12, -1));
  CHECK(cache == std::vector<float>(20, -1));
  counts->ragged_rows = 10;
  counts->compact_rows = 5;
  move();
  CHECK(compact == std::vector<float>{0, 1, 2, 3, 4, 0, 0});
  CHECK(back == std::vector<float>{0, 1, 2, 0, 1, 2, 0, 1, 3, 4, 0, 0});
  CHECK(cache == std::vector<float>{-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 1, 2, 0, 1, 3, 4, -1});
  radixmlp::zero_rows_behind(radixmlp::serial, &index.counts->compact_rows, rows);
  CHECK(back == std::vector<float>{0, 1, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0});

  Ints ints(100);
  std::vector<float> floats(100);
  const std::span<float> some(floats);
  const std::vector<std::int32_t> tokens(7);
  const radixmlp::RowLists lists{};
  const std::vector<std::function<void()>> calls{
      [&] { static_cast<void>(radixmlp::index_stats(index)); },
      [&] { static_cast<void>(radixmlp::duplicates(index, ints)); },
      [&] { static_cast<void>(radixmlp::row_sequences(index, ints)); },
      [&] { radixmlp::multiplicities(index, ints); },
      [&] { radixmlp::pooled_rows(index, radixmlp::PooledRow::last, radixmlp::RowSpace::ragged, ints); },
      [&] { radixmlp::compact_rows_of(index, tokens, ints); },
      [&] { radixmlp::compact_tokens(typed.batch(), index, std::span(ints)); },
      [&] { radixmlp::compact_positions(typed.batch(), index, std::span(ints)); },
      [&] { static_cast<void>(radixmlp::tree_mask(index, ints)); },
      [&] { radixmlp::check_slots(index, slots, 20, ints); },
      [&] {
        radixmlp::gather_rows_adjoint(radixmlp::serial, index, radixmlp::RowCopy{compact_rows, rows});
      },
      [&] {
        radixmlp::scatter_rows_adjoint(radixmlp::serial, index, lists, radixmlp::RowCopy{rows, compact_rows});
      },
      [&] { radixmlp::row_weights(index, std::span<const float>(some), {}, some); },
      [&] { radixmlp::edge_log_probabilities(radixmlp::serial, index, compact_rows, tokens, some, some); },
      [&] {
        radixmlp::edge_log_probabilities_adjoint(radixmlp::serial, index, compact_rows, tokens, some, some, some,
                                                 compact_rows);
      },
      [&] {
        alignas(radixmlp::workspace_alignment) std::array<std::byte, 4096> workspace{};
        radixmlp::CompactedBlock<float>(index, {1, 1, 1, 1}, workspace).mean(radixmlp::serial, rows, rows);
      },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    CAPTURE(i);
    CHECK(refusal(calls[i]) ==
          "radixmlp: index.counts = 1: must be null here: pass filled_index(index, counts), which is of one batch");
  }
}

TEST_CASE("the attention plan of a capacity is made of the index's maps, and other plans are refused") {
  const IndexCapacity capacity{.ragged_rows = 12, .compact_rows = 7, .sequences = 3, .max_seqlen = 9};
  Memory memory(radixmlp::index_bytes(capacity));
  const PrefixIndexView index = capacity_index(capacity, memory.span());
  const Ints before = memory.words();
  Ints plan_memory(radixmlp::attention_plan_entries(index, {.keep_empty = true}));
  const radixmlp::AttentionPlan plan = radixmlp::attention_plan(index, plan_memory, {.keep_empty = true, .window = 4});
  CHECK(memory.words() == before);
  CHECK(plan_memory == Ints{1, 1, 1, 0, 1, 2, 0, 0, 0});
  CHECK(plan.cu_seqlens_q.data() == index.compact_cu.data());
  CHECK(plan.cu_seqlens_k.data() == index.ragged_cu.data());
  CHECK(plan.key_slots.data() == index.scatter.data());
  CHECK(plan.segments() == 3);
  CHECK(plan.queries == 7);
  CHECK(plan.keys == 12);
  CHECK(plan.max_seqlen_q == 9);
  CHECK(plan.max_seqlen_k == 9);
  CHECK(plan.window == 4);
  CHECK(to_vector(plan.last_page_len) == Ints{1, 1, 1});
  CHECK(to_vector(plan.sequences) == Ints{0, 1, 2});
  CHECK(to_vector(plan.past_k) == Ints{0, 0, 0});

  const auto refused = [&](const radixmlp::AttentionPlanOptions& options) {
    return refusal([&] { static_cast<void>(radixmlp::attention_plan(index, plan_memory, options)); });
  };
  const Ints three(3), four(4), seven(7);
  CHECK(refused({}) == "radixmlp: keep_empty = 0: must be true with an index for a capacity");
  CHECK(refused({.partition = radixmlp::QueryPartition::edges, .keep_empty = true}) ==
        "radixmlp: partition = 1: must be `sequences` with an index for a capacity");
  CHECK(refused({.keep_empty = true, .query_tile = 2}) ==
        "radixmlp: query_tile = 2: must be 1 with an index for a capacity");
  CHECK(refused({.keep_empty = true, .group_keys = 9}) ==
        "radixmlp: group_keys = 9: must be 0 with an index for a capacity");
  CHECK(refused({.keep_empty = true, .past_lengths = three}) ==
        "radixmlp: past_lengths = 3: must be empty with an index for a capacity");
  CHECK(refused({.keep_empty = true, .slots = seven}) ==
        "radixmlp: slots = 7: must be empty with an index for a capacity");
  CHECK(refused({.keep_empty = true, .past_page_indptr = four, .past_pages = seven}) ==
        "radixmlp: past_pages = 7: must be empty with an index for a capacity");
  CHECK(refusal([&] {
          static_cast<void>(radixmlp::attention_plan(index, std::span(plan_memory).first(8), {.keep_empty = true}));
        }) == "radixmlp: memory = 8: its size must be at least 9");

  // A block takes no other plan, and pools one row a sequence.
  alignas(radixmlp::workspace_alignment) std::array<std::byte, 4096> workspace{};
  radixmlp::AttentionPlan other = plan;
  other.key_slots = index.scatter.first(0);
  other.keys = 0;
  const radixmlp::CompactionPolicy always{.max_ratio = 1.0};
  using Block = radixmlp::CompactedBlock<float>;
  const auto decision = always.decide(index, radixmlp::AttentionLayout::paged);
  CHECK_NOTHROW(Block(index, {1, 1, 1, 1}, workspace, decision, plan));
  other.key_slots = plan_memory;
  other.keys = static_cast<std::int32_t>(plan_memory.size());
  CHECK_THROWS_WITH(Block(index, {1, 1, 1, 1}, workspace, decision, other),
                    "radixmlp: plan.key_slots = 0: must be the scatter of an index for a capacity");
  std::vector<float> rows(12);
  CHECK_THROWS_WITH(Block(index, {1, 1, 1, 1}, workspace)
                        .take(radixmlp::serial, plan.cu_seqlens_q, RowView<const float>(rows.data(), 7, 1),
                              RowView<float>(rows.data(), 12, 1)),
                    "radixmlp: chosen = 4: its size must be the sequences of the index's capacity, 3");
}
