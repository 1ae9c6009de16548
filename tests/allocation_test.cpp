// SPDX-License-Identifier: MIT

// What the library promises not to allocate, counted by replacing operator new for this program.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "radixmlp/pipeline/index_pipeline.hpp"
#include "radixmlp/radixmlp.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/counting_new.hpp"

using namespace radixmlp_test;
using namespace radixmlp;

TEST_CASE("the counter counts") {
  const std::int64_t before = allocations;
  ::operator delete(::operator new(4));  // as calls, which compilers may not leave out
  CHECK(allocations == before + 1);
}

TEST_CASE("a second build of a batch of the same size allocates nothing") {
  std::vector<std::vector<std::int32_t>> sequences, others;
  for (std::int32_t s = 0; s < 300; ++s) {
    sequences.push_back({1, 2, 3, s % 7, s, s, s});
    others.push_back({s, s % 3, s, s, s % 5, s, 1});
  }
  const TypedBatch<std::int32_t> first(spec_of(sequences)), second(spec_of(others));
  PrefixTrie trie;
  std::int64_t before = allocations;
  trie.build(first.batch(), {.pad_to = 8});
  CHECK(allocations > before);
  before = allocations;
  trie.build(second.batch(), {.pad_to = 8});
  CHECK(allocations == before);
}

TEST_CASE("a pipeline whose slots have seen a batch of the size allocates nothing, whoever builds") {
  const TypedBatch<std::int32_t> typed(spec_of({{1, 2, 3}, {1, 2, 4}, {1, 2, 3, 5}}));
  for (const std::int32_t workers : {0, 1}) {
    IndexPipeline pipeline({.slots = 2, .workers = workers});
    std::int64_t before = allocations, taken = 0;
    for (int i = 0; i < 10; ++i) {
      if (i == 2) {
        CHECK(allocations > before);
        before = allocations;
      }
      if (pipeline.try_submit(typed.batch()) && pipeline.take().view().compact_rows == 5) {
        ++taken;
      }
    }
    CHECK(allocations == before);
    CHECK(taken == 10);
  }
}

// The kernel's flags of the mapping that an address lies in, as in "rd wr mr mw me ac hg".
std::string mapping_flags(const std::byte* address) {
  std::ifstream maps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2) {
      found = begin <= reinterpret_cast<std::uintptr_t>(address) && reinterpret_cast<std::uintptr_t>(address) < end;
    } else if (found && line.starts_with("VmFlags:")) {
      return line + ' ';
    }
  }
  return {};
}

TEST_CASE("memory for an index asks for huge pages where it spans them") {
  constexpr std::size_t page = std::size_t{2} << 20;
  constexpr std::size_t bytes = 3 * page + 64;
  HostIndexAllocator allocator;
  auto* const memory = static_cast<std::byte*>(allocator.allocate(bytes));
  REQUIRE(memory != nullptr);
  CHECK(reinterpret_cast<std::uintptr_t>(memory) % index_alignment == 0);
  const std::byte* const first = memory + (page - reinterpret_cast<std::uintptr_t>(memory) % page) % page;
  const std::string flags = mapping_flags(first);
  if (std::filesystem::exists("/sys/kernel/mm/transparent_hugepage") && !flags.empty()) {
    CHECK(flags.find(" hg ") != std::string::npos);
    CHECK(mapping_flags(first + page).find(" hg ") != std::string::npos);
  } else {
    std::puts("skipped: this kernel has no huge pages on request");
  }
  allocator.deallocate(memory, bytes);
}

TEST_CASE("one builder of a pipeline has one trie, however many slots there are") {
  std::vector<std::vector<std::int32_t>> sequences;
  for (std::int32_t s = 0; s < 100; ++s) {
    sequences.push_back({1, s % 7, s});
  }
  const TypedBatch<std::int32_t> typed(spec_of(sequences));
  for (const std::int32_t workers : {0, 1}) {
    IndexPipeline pipeline({.slots = 8, .workers = workers, .slot_bytes = index_bytes(300, 100)});
    REQUIRE(pipeline.try_submit(typed.batch()));
    CHECK(pipeline.take().view().compact_rows == 108);
    const std::int64_t before = allocations;
    bool taken = true;
    for (int i = 0; i < 8; ++i) {
      taken = taken && pipeline.try_submit(typed.batch()) && pipeline.take().view().compact_rows == 108;
    }
    const std::int64_t made = allocations - before;
    CHECK(made == 0);
    CHECK(taken);
  }
}

TEST_CASE("without its outputs a trie takes at most 8 bytes a token and 128 bytes a sequence") {
  for (const bool several_namespaces : {false, true}) {
    for (const std::int32_t length : {1, 2, 9}) {
      // Just above a power of two, where a hash table is largest for its contents; each sequence splits the one before.
      constexpr std::int32_t sequences = 4097;
      BatchSpec spec;
      for (std::int32_t s = 0; s < sequences; ++s) {
        for (std::int32_t i = 0; i < length; ++i) {
          spec.tokens.push_back(i < s % length ? i : s);
        }
        spec.cu_seqlens.push_back(static_cast<std::int32_t>(spec.tokens.size()));
        if (several_namespaces) {
          spec.sequence_keys.push_back({static_cast<std::uint64_t>(s) % 1000, 0});
        }
      }
      const TypedBatch<std::int32_t> typed(spec);
      const std::int64_t rows = std::int64_t{sequences} * length;
      std::vector<std::byte> memory(index_bytes(rows, sequences) + index_alignment);
      const std::size_t misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % index_alignment;
      const std::span<std::byte> outputs = std::span(memory).subspan((index_alignment - misaligned) % index_alignment);
      CAPTURE(several_namespaces, length);
      const std::int64_t before = allocated_bytes;
      PrefixTrie trie;
      CHECK(trie.build_into(outputs, typed.batch()).sequences() == sequences);
      CHECK(allocated_bytes - before <= 8 * rows + 128 * sequences);
    }
  }
}

TEST_CASE("a plan, a decision and a layer on compact rows allocate nothing") {
  const TypedBatch<std::int32_t> typed(spec_of({{1, 2, 3}, {1, 2, 4}, {1, 2, 3, 5}}));
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch(), {.pad_to = 8});
  const AttentionWidths widths{.q = 4, .k = 4, .v = 4, .out = 4};
  const std::vector<std::int32_t> pasts{2, 2, 2};
  std::vector<std::int32_t> memory(1000);
  std::vector<float> state(8 * 4), pooled(3 * 4);
  alignas(workspace_alignment) std::byte workspace[4096];
  for (const AttentionLayout layout : {AttentionLayout::compact_query, AttentionLayout::paged}) {
    for (const QueryPartition partition : {QueryPartition::sequences, QueryPartition::edges}) {
      const std::int64_t before = allocations;
      AttentionPlanOptions options{.partition = partition, .query_tile = 2, .window = 3};
      if (layout == AttentionLayout::compact_query) {
        options.past_lengths = pasts;
      }
      CHECK(attention_plan_entries(index, options) <= memory.size());
      const AttentionPlan plan = attention_plan(index, memory, options);
      const CompactionDecision decision = CompactionPolicy{}.decide(index, layout);
      const CompactedBlock<float> block(index, widths, workspace, decision, plan);
      int calls = 0;
      block.forward(
          serial, RowView<float>(state.data(), 8, 4), [&](auto, auto, auto, auto) { ++calls; },
          serving<AttentionLayout::compact_query, AttentionLayout::paged>([&](const auto&) { ++calls; }),
          [&](auto, auto) { ++calls; });
      block.take(serial, index.last_rows, RowView<float>(state.data(), 8, 4), RowView<float>(pooled.data(), 3, 4));
      block.mean(serial, RowView<float>(state.data(), 8, 4), RowView<float>(pooled.data(), 3, 4));
      const std::int64_t made = allocations - before;
      CHECK(made == 0);
      CHECK(calls == 3);
    }
  }
  const std::int64_t before = allocations;
  const TreeMask mask = tree_mask(index, memory);
  CostModel model{.costs = {1, 1, 1, 1, 1}, .widths = widths, .element_bytes = 4};
  const CompactionDecision decision = model.decide(index_stats(index), {AttentionLayout::paged});
  CHECK(allocations == before);
  CHECK(mask.pre.size() == 8);
  CHECK(decision.compacts);
}

TEST_CASE("a layer allocates nothing") {
  const TypedBatch<std::int32_t> typed(spec_of({{1, 2, 3}, {1, 2, 4}, {1, 2, 3, 5}}));
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());
  const AttentionWidths widths{.q = 4, .k = 4, .v = 4, .out = 4};
  std::vector<float> ragged(10 * 4), compact(10 * 4);
  alignas(workspace_alignment) std::byte workspace[4096];
  const CompactedBlock<float> block(index, widths, workspace);
  REQUIRE(block.compacts());
  const std::int64_t before = allocations;
  const RowView<float> state =
      block.select(serial, RowView<float>(ragged.data(), 10, 4), RowView<float>(compact.data(), 10, 4));
  int calls = 0;
  block.forward(
      serial, state, [&](auto, auto, auto, auto) { ++calls; }, [&](const auto&) { ++calls; },
      [&](auto, auto) { ++calls; });
  block.expand(serial, state, RowView<float>(ragged.data(), 10, 4));
  CHECK(allocations == before);
  CHECK(calls == 3);
}
