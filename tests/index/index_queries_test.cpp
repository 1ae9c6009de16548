// SPDX-License-Identifier: MIT

// What is derived from an index: lists of duplicates and sequences, multiplicities, statistics, compact inputs, and the
// ways into a batch: interleaved rows, sequence keys.

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "radixmlp/index/compact_inputs.hpp"
#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/index/index_stats.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "radixmlp/index/sequence_keys.hpp"
#include "radixmlp/index/tagged_batch.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"

using namespace radixmlp_test;
using namespace radixmlp;
using Ints = std::vector<std::int32_t>;

namespace {

template <class F>
std::string refusal(F call) {
  try {
    call();
  } catch (const InvalidBatch& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("duplicates, row_sequences and multiplicities on random batches") {
  RandomBatches random(5);
  PrefixTrie trie;
  for (int round = 0; round < 500; ++round) {
    const BatchSpec spec = random.next();
    const TypedBatch<std::int32_t, std::int32_t, Key128> typed(spec);
    const PrefixIndexView index = trie.build(typed.batch(), {.pad_to = spec.pad_to});
    std::vector<Ints> rows(static_cast<std::size_t>(index.compact_rows)), sequences = rows;
    for (std::size_t s = 0; s < spec.sequences(); ++s) {
      for (std::int32_t i = spec.cu_seqlens[s]; i < spec.cu_seqlens[s + 1]; ++i) {
        const auto row = static_cast<std::size_t>(index.scatter[static_cast<std::size_t>(i)]);
        rows[row].push_back(i);
        sequences[row].push_back(static_cast<std::int32_t>(s));
      }
    }
    Ints memory(row_lists_entries(index)), other(row_lists_entries(index)), counts(rows.size() + 1, -7);
    const RowLists row_lists = duplicates(index, memory);
    const RowLists sequence_lists = row_sequences(index, other);
    multiplicities(index, counts);
    CAPTURE(round);
    REQUIRE(row_lists.offsets.size() == rows.size() + 1);
    REQUIRE(row_lists.offsets.front() == 0);
    REQUIRE(row_lists.offsets.back() == index.ragged_rows);
    REQUIRE(counts.back() == -7);
    for (std::int32_t j = 0; j < index.compact_rows; ++j) {
      const auto at = static_cast<std::size_t>(j);
      REQUIRE(to_vector(row_lists.of(j)) == rows[at]);
      REQUIRE(to_vector(sequence_lists.of(j)) == sequences[at]);
      REQUIRE(row_lists.of(j).front() == index.gather[at]);
      REQUIRE(counts[at] == static_cast<std::int32_t>(rows[at].size()));
    }
  }
}

TEST_CASE("memory that is too small for the lists is refused") {
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(TypedBatch<std::int32_t>(spec_of({{1, 2}, {1, 3}})).batch());
  Ints memory(row_lists_entries(index) - 1), counts(2);
  CHECK(refusal([&] { static_cast<void>(duplicates(index, memory)); }) ==
        "radixmlp: memory = 7: its size must be at least 8");
  CHECK(refusal([&] { multiplicities(index, counts); }) == "radixmlp: out = 2: its size must be at least 3");
}

TEST_CASE("statistics count what a double loop counts") {
  RandomBatches random(6);
  PrefixTrie trie;
  for (int round = 0; round < 200; ++round) {
    BatchSpec spec = random.next();
    spec.past_lengths.clear();
    if (round % 2 == 1) {
      spec.past_lengths.assign(spec.sequences(), 3);
    }
    const TypedBatch<std::int32_t, std::int32_t, Key128> typed(spec);
    const PrefixIndexView index = trie.build(typed.batch());
    const IndexStats stats = index_stats(index, spec.past_lengths);
    std::int64_t pairs = 0, compact_pairs = 0;
    std::map<std::size_t, std::int32_t> histogram;
    for (std::size_t s = 0; s < spec.sequences(); ++s) {
      std::int32_t shared = 0;
      for (std::int32_t i = spec.cu_seqlens[s]; i < spec.cu_seqlens[s + 1]; ++i) {
        const std::int64_t sees = i - spec.cu_seqlens[s] + 1 + (spec.past_lengths.empty() ? 0 : 3);
        const auto row = static_cast<std::size_t>(index.scatter[static_cast<std::size_t>(i)]);
        pairs += sees;
        if (index.gather[row] == i) {
          compact_pairs += sees;
        } else {
          ++shared;
        }
      }
      CHECK(index.shared_rows(static_cast<std::int32_t>(s)) == shared);
      std::size_t bucket = 0;
      while ((std::int64_t{1} << bucket) <= shared) {
        ++bucket;
      }
      ++histogram[bucket];
    }
    CAPTURE(round);
    REQUIRE(stats.attention_pairs == pairs);
    REQUIRE(stats.compact_attention_pairs == compact_pairs);
    for (std::size_t bucket = 0; bucket < stats.shared_rows.size(); ++bucket) {
      REQUIRE(stats.shared_rows[bucket] == histogram[bucket]);
    }
    REQUIRE(stats.sequences == static_cast<std::int32_t>(spec.sequences()));
    REQUIRE(stats.ragged_rows == index.ragged_rows);
    REQUIRE(stats.compact_rows == index.compact_rows);
    REQUIRE(stats.ratio == index.ratio());
    REQUIRE(stats.map_bytes == index.block.size());
  }
  const PrefixIndexView index = trie.build(TypedBatch<std::int32_t>(spec_of({{1}, {1}})).batch());
  CHECK(refusal([&] {
          static_cast<void>(index_stats(index, Ints{1, 2, 3}));
        }) == "radixmlp: past_lengths = 3: its size must be 2");
}

TEST_CASE("compact tokens and positions are those of the rows that gather names") {
  RandomBatches random(8);
  PrefixTrie trie;
  for (int round = 0; round < 500; ++round) {
    const BatchSpec spec = random.next();
    for (const AxisOrder order : {AxisOrder::token_major, AxisOrder::axis_major}) {
      const TypedBatch<std::uint32_t, std::uint8_t, Key128> typed(spec, order);
      const PrefixIndexView index = trie.build(typed.batch(), {.pad_to = spec.pad_to});
      const auto padded = static_cast<std::size_t>(index.padded_rows);
      const std::size_t axes = std::max<std::size_t>(spec.positions.size(), 1);
      std::vector<std::uint32_t> tokens(padded + 1, 77);
      std::vector<std::int64_t> positions(axes * padded + 1, 77);
      compact_tokens(typed.batch(), index, std::span(tokens));
      compact_positions(typed.batch(), index, std::span(positions));
      CAPTURE(round);
      REQUIRE(tokens.back() == 77);
      REQUIRE(positions.back() == 77);
      for (std::size_t j = 0; j < padded; ++j) {
        const bool real = j < static_cast<std::size_t>(index.compact_rows);
        const auto row = static_cast<std::size_t>(index.gather[j]);
        REQUIRE(tokens[j] == (real && !spec.tokens.empty() ? static_cast<std::uint32_t>(spec.tokens[row]) : 0));
        for (std::size_t axis = 0; axis < axes; ++axis) {
          std::int64_t expected = 0;
          if (real && !spec.positions.empty()) {
            expected = spec.positions[axis][row];
          } else if (real) {
            const auto s = static_cast<std::size_t>(
                std::upper_bound(spec.cu_seqlens.begin(), spec.cu_seqlens.end(), static_cast<std::int32_t>(row)) -
                spec.cu_seqlens.begin() - 1);
            expected = static_cast<std::int64_t>(row) - spec.cu_seqlens[s];
            expected += spec.past_lengths.empty() ? 0 : spec.past_lengths[s];
          }
          REQUIRE(positions[axis * padded + j] == expected);
        }
      }
    }
  }
}

TEST_CASE("negative positions keep their sign, and outputs of another batch are refused") {
  const Ints tokens{1, 2, 3}, cu{0, 3};
  const std::vector<std::int8_t> positions{-3, -2, 100};
  RaggedBatch<std::int32_t> batch{.tokens = tokens, .cu_seqlens = cu, .positions = positions};
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(batch, {.pad_to = 4});
  Ints out(4, 9);
  compact_positions(batch, index, std::span(out));
  CHECK(out == Ints{-3, -2, 100, 0});
  Ints few(3);
  CHECK(refusal([&] { compact_tokens(batch, index, std::span(few)); }) ==
        "radixmlp: out = 3: its size must be at least 4");
  const Ints other{1, 2}, other_cu{0, 2};
  const RaggedBatch<std::int32_t> another{.tokens = other, .cu_seqlens = other_cu};
  CHECK(refusal([&] { compact_tokens(another, index, std::span(out)); }) ==
        "radixmlp: batch.rows = 2: must be the rows of the index, 3");
}

TEST_CASE("interleaved rows with sequence ids become a batch, with the way back") {
  //                   a      b     a     c     b     a
  const Ints tokens{10, 20, 11, 30, 21, 12};
  const Ints positions{0, 5, 1, 0, 6, 2};
  const Ints ids{7, -2, 7, 100, -2, 7};
  TaggedBatch<std::int32_t> tagged;
  tagged.assign(tokens, positions, ids);
  const RaggedBatch<std::int32_t> batch = tagged.batch();
  CHECK(Ints(batch.tokens.begin(), batch.tokens.end()) == Ints{10, 11, 12, 20, 21, 30});
  CHECK(to_vector(batch.cu_seqlens) == Ints{0, 3, 5, 6});
  CHECK(to_vector(tagged.sequence_ids()) == Ints{7, -2, 100});
  CHECK(to_vector(tagged.tagged_row()) == Ints{0, 2, 5, 1, 4, 3});
  CHECK(to_vector(tagged.ragged_row()) == Ints{0, 3, 1, 5, 4, 2});
  CHECK(validate(batch).ok());

  SECTION("an index over random interleavings is that of the sequences") {
    RandomBatches random(12);
    std::mt19937 shuffle(3);
    PrefixTrie trie;
    for (int round = 0; round < 300; ++round) {
      BatchSpec spec = random.next();
      if (spec.tokens.empty()) {
        continue;
      }
      spec = [&] {  // tokens and lengths alone, no empty sequence: an id without a row does not exist
        BatchSpec plain;
        for (std::size_t s = 0; s < spec.sequences(); ++s) {
          if (spec.cu_seqlens[s] < spec.cu_seqlens[s + 1]) {
            plain.tokens.insert(plain.tokens.end(), spec.tokens.begin() + spec.cu_seqlens[s],
                                spec.tokens.begin() + spec.cu_seqlens[s + 1]);
            plain.cu_seqlens.push_back(static_cast<std::int32_t>(plain.tokens.size()));
          }
        }
        return plain;
      }();
      Ints next(spec.cu_seqlens.begin(), spec.cu_seqlens.end() - 1), order, sequence_order, mixed, mixed_ids;
      for (std::size_t s = 0; s < spec.sequences(); ++s) {
        for (std::int32_t i = spec.cu_seqlens[s]; i < spec.cu_seqlens[s + 1]; ++i) {
          order.push_back(static_cast<std::int32_t>(s));
        }
      }
      std::shuffle(order.begin(), order.end(), shuffle);
      for (const std::int32_t s : order) {
        mixed.push_back(
            static_cast<std::int32_t>(spec.tokens[static_cast<std::size_t>(next[static_cast<std::size_t>(s)]++)]));
        mixed_ids.push_back(s * 1000 - 5);
      }
      tagged.assign(mixed, {}, mixed_ids);
      const PrefixIndexView index = trie.build(tagged.batch());
      CAPTURE(round);
      REQUIRE(index.compact_rows == oracle(spec).compact_rows);
      for (std::size_t i = 0; i < mixed.size(); ++i) {
        REQUIRE(static_cast<std::size_t>(tagged.tagged_row()[static_cast<std::size_t>(tagged.ragged_row()[i])]) == i);
      }
    }
  }
  SECTION("sizes that disagree are refused, and nothing changes") {
    CHECK(refusal([&] { tagged.assign(tokens, positions, Ints{1}); }) ==
          "radixmlp: sequence_ids = 1: its size must be 6");
    CHECK(refusal([&] { tagged.assign(tokens, Ints{1}, ids); }) == "radixmlp: positions = 1: its size must be 6");
    CHECK(tagged.batch().rows() == 6);
  }
  SECTION("no rows") {
    tagged.assign({}, {}, {});
    CHECK(validate(tagged.batch()).ok());
    CHECK(tagged.batch().sequences() == 0);
  }
}

TEST_CASE("sequence keys are equal exactly if every field is") {
  SequenceKeys keys;
  const std::vector<SequenceIdentity> identities{
      {},
      {.adapter = "a"},
      {.adapter_version = "a"},
      {.tenant = "a"},  // a tenant that imitates an adapter
      {.other = "a"},
      {.past = {1, 0}},
      {.past = {0, 1}},
      {.adapter = "ab", .tenant = "c"},
      {.adapter = "a", .tenant = "bc"},
      {.adapter = "lora", .adapter_version = "1"},
      {.adapter = "lora", .adapter_version = "2"},  // the same name with other weights
      {.adapter = "lora1"},
      {.tenant = std::string_view("\0", 1)},
  };
  for (std::size_t i = 0; i < identities.size(); ++i) {
    CHECK(keys.key(identities[i]) == i);
  }
  for (std::size_t i = identities.size(); i-- > 0;) {
    CHECK(keys.key(identities[i]) == i);
  }
  CHECK(keys.size() == identities.size());
  keys.clear();
  CHECK(keys.key({.tenant = "x"}) == 0);
}
