// SPDX-License-Identifier: MIT
#include "radixmlp/index/prefix_trie.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/host_backend.hpp"

using namespace radixmlp_test;
using radixmlp::Key128;
using radixmlp::PrefixIndex;
using radixmlp::PrefixIndexView;
using radixmlp::PrefixTrie;
using radixmlp::RaggedBatch;
using Ints = std::vector<std::int32_t>;

namespace {

std::int32_t compact_rows(const BatchSpec& spec) {
  const TypedBatch<std::int32_t> typed(spec);
  PrefixTrie trie;
  const PrefixIndexView view = trie.build(typed.batch(), {.pad_to = spec.pad_to});
  CHECK(difference(view, oracle(spec), spec) == "");
  return view.compact_rows;
}

// Tasks from the last to the first, so that nothing may depend on the order of chunks.
struct BackwardExecutor {
  template <class F>
  void parallel_for(std::int64_t n, F&& f) const {
    for (std::int64_t i = n; i-- > 0;) {
      f(i);
    }
  }
};

// Two workers that come at the same time.
struct TwoAtOnce {
  template <class F>
  void parallel_for(std::int64_t n, F&& f) const {
    std::atomic<int> here = 0;
    const auto come = [&](std::int64_t i) {
      ++here;
      while (here < 2) {
      }
      for (; i < n; i += 2) {
        f(i);
      }
    };
    std::thread other(come, 1);
    come(0);
    other.join();
  }
};

// Builds the spec with the given types and compares all fields with the oracle.
template <class Token, class Position, class Key>
std::string build_difference(PrefixTrie& trie, const BatchSpec& spec, const OracleIndex& expected) {
  std::string differing;
  for (const AxisOrder order : {AxisOrder::one_axis, AxisOrder::token_major, AxisOrder::axis_major}) {
    if (spec.positions.size() != 1 && order == AxisOrder::one_axis) {
      continue;
    }
    const TypedBatch<Token, Position, Key> typed(spec, order);
    differing += difference(trie.build(typed.batch(), {.pad_to = spec.pad_to}), expected, spec);
    differing += difference(trie.build(typed.batch(), {.pad_to = spec.pad_to}, BackwardExecutor{}), expected, spec);
  }
  return differing;
}

int random_batches() {
  const char* count = std::getenv("RADIXMLP_RANDOM_BATCHES");
  return count ? std::atoi(count) : 4000;
}

// How often a compare of n values is wrong, for every n and every length of agreement up to `most`, in memory that
// ends with the values or some way behind.
template <class T>
int wrong_compares(std::int64_t most) {
  int wrong = 0;
  for (std::int64_t n = 0; n <= most; ++n) {
    for (const std::int64_t readable : {n, n + 40}) {
      const auto bytes = static_cast<std::size_t>(readable) * sizeof(T);
      const std::vector<std::byte> a(bytes);
      for (std::int64_t agreement = 0; agreement <= readable; ++agreement) {
        std::vector<std::byte> b(bytes);
        if (agreement < readable) {
          b[static_cast<std::size_t>(agreement + 1) * sizeof(T) - 1] = std::byte{1};
        }
        const std::int64_t equal = radixmlp::detail::equal_values<T>(a.data(), b.data(), n, readable);
        wrong += equal != std::min(agreement, n);
        if constexpr (sizeof(T) >= 4) {  // as it is done where there is no AVX2 and no SSE2
          const auto size = static_cast<std::int64_t>(sizeof(T));
          const std::int64_t portable =
              radixmlp::detail::equal_bytes<false>(a.data(), b.data(), n * size, readable * size) / size;
          wrong += portable != std::min(agreement, n);
        }
      }
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("the maps of a small batch") {
  //   1 2 3        rows 0 1 2
  //   1 2 4        shares 1 2, brings row 3
  //   1 2 3 5      shares 1 2 3, brings row 4
  //   9            brings row 5
  const BatchSpec spec = spec_of({{1, 2, 3}, {1, 2, 4}, {1, 2, 3, 5}, {9}});
  const TypedBatch<std::int32_t> typed(spec);
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch(), {.pad_to = 4});
  CHECK(to_vector(index.scatter) == Ints{0, 1, 2, 0, 1, 3, 0, 1, 2, 4, 5});
  CHECK(to_vector(index.gather) == Ints{0, 1, 2, 5, 9, 10, 0, 0});
  CHECK(to_vector(index.parent) == Ints{-1, 0, 1, 1, 2, -1});
  CHECK(to_vector(index.compact_cu) == Ints{0, 3, 4, 5, 6});
  CHECK(to_vector(index.ragged_cu) == Ints{0, 3, 6, 10, 11});
  CHECK(to_vector(index.last_rows) == Ints{2, 3, 4, 5});
  CHECK(index.ragged_rows == 11);
  CHECK(index.compact_rows == 6);
  CHECK(index.padded_rows == 8);
  CHECK(index.max_seqlen == 4);
  CHECK(index.sequences() == 4);
  CHECK(index.ratio() == 6.0 / 11.0);
}

TEST_CASE("nothing, empty sequences, duplicates, and sequences that are prefixes of others") {
  CHECK(compact_rows(spec_of({})) == 0);
  CHECK(compact_rows(spec_of({{}, {}})) == 0);
  CHECK(compact_rows(spec_of({{}, {7}, {}, {7, 8}, {}})) == 2);
  CHECK(compact_rows(spec_of({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}})) == 3);
  CHECK(compact_rows(spec_of({{1, 2, 3, 4}, {1, 2}, {1, 2, 3}, {1}})) == 4);
  CHECK(compact_rows(spec_of({{1}, {1, 2}, {1, 2, 3}, {1, 2, 3, 4}})) == 4);
  PrefixTrie trie;
  CHECK(trie.build(TypedBatch<std::int32_t>(spec_of({})).batch()).ratio() == 1.0);
}

TEST_CASE("the same tokens after another history are other rows") {
  CHECK(compact_rows(spec_of({{1, 5, 6, 7}, {2, 5, 6, 7}})) == 8);
}

TEST_CASE("positions are part of a row, wherever they start and however they go") {
  BatchSpec spec = spec_of({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}});
  spec.positions = {{0, 1, 2, 0, 1, 5, 10, 11, 12}};
  CHECK(compact_rows(spec) == 3 + 1 + 3);
  spec.positions = {{3, 2, 2, 3, 2, 2, 3, 2, 1}};
  CHECK(compact_rows(spec) == 3 + 1);
}

TEST_CASE("any axis of M-RoPE positions tells rows apart") {
  BatchSpec spec = spec_of({{1, 2, 3}, {1, 2, 3}});
  spec.positions = {{0, 1, 2, 0, 1, 2}, {0, 1, 2, 0, 1, 2}, {0, 1, 2, 0, 7, 2}};
  CHECK(compact_rows(spec) == 5);
}

TEST_CASE("token keys tell equal ids apart, and can stand alone") {
  BatchSpec spec = spec_of({{1, 9, 9, 2}, {1, 9, 9, 2}});
  spec.token_keys = {{}, {5, 0}, {6, 0}, {}, {}, {5, 0}, {7, 0}, {}};
  CHECK(compact_rows(spec) == 6);
  spec.tokens.clear();
  CHECK(compact_rows(spec) == 6);
}

TEST_CASE("128-bit keys are compared on all bits") {
  BatchSpec spec = spec_of({{1, 2}, {1, 2}});
  spec.token_keys = {{3, 0}, {3, 0}, {3, 0}, {3, 1}};
  PrefixTrie trie;
  CHECK(trie.build(TypedBatch<std::int32_t, std::int32_t, Key128>(spec).batch()).compact_rows == 3);
  spec.token_keys = {};
  spec.sequence_keys = {{3, 0}, {3, 1}};
  CHECK(trie.build(TypedBatch<std::int32_t, std::int32_t, Key128>(spec).batch()).compact_rows == 4);
}

TEST_CASE("64-bit tokens that agree in their low halves differ") {
  BatchSpec spec = spec_of({{1, 2}, {1, 2}});
  spec.tokens[3] += std::int64_t{1} << 32;
  PrefixTrie trie;
  CHECK(trie.build(TypedBatch<std::int64_t>(spec).batch()).compact_rows == 3);
}

TEST_CASE("sequences share only within key and past length, and not after an opt-out") {
  BatchSpec spec = spec_of({{1, 2}, {1, 2}, {1, 2}, {1, 2}});
  spec.sequence_keys = {{1, 0}, {2, 0}, {1, 0}, {2, 0}};
  CHECK(compact_rows(spec) == 4);
  spec.past_lengths = {0, 0, 8, 0};
  CHECK(compact_rows(spec) == 6);
  spec.opt_out = {0, 0, 0, 1};
  CHECK(compact_rows(spec) == 8);
  spec.sequence_keys.clear();
  spec.past_lengths.clear();
  CHECK(compact_rows(spec) == 4);
}

TEST_CASE("all fields equal the oracle of whole prefixes on random batches") {
  RandomBatches random(20260115);
  PrefixTrie trie;  // one for all: what it kept from the batch before must not show
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
    REQUIRE(build_difference<std::int32_t, std::int32_t, Key128>(trie, spec, expected) == "");
    REQUIRE(build_difference<std::uint32_t, std::int64_t, std::uint64_t>(trie, low, expected_low) == "");
    REQUIRE(build_difference<std::int64_t, std::uint8_t, Key128>(trie, spec, expected) == "");
    REQUIRE(build_difference<std::int32_t, std::int16_t, std::uint64_t>(trie, low, expected_low) == "");
  }
}

TEST_CASE("a parallel build gives the same index") {
  RandomBatches random(99);
  PrefixTrie trie, backward_trie, thread_trie;  // apart, so that none finds another's result in its memory
  for (int round = 0; round < 60; ++round) {
    // Many random batches in one, so that there are chunks of every kind: shared, opted out, empty, in other
    // namespaces.
    BatchSpec spec;
    const bool keyed = random.below(2) == 0;
    while (spec.rows() < 70'000) {
      const BatchSpec more = random.next();
      if (more.tokens.empty()) {
        continue;
      }
      for (std::size_t repeat = 0; repeat <= random.below(40); ++repeat) {
        for (std::size_t s = 0; s < more.sequences(); ++s) {
          spec.tokens.insert(spec.tokens.end(), more.tokens.begin() + more.cu_seqlens[s],
                             more.tokens.begin() + more.cu_seqlens[s + 1]);
          spec.cu_seqlens.push_back(static_cast<std::int32_t>(spec.tokens.size()));
          spec.opt_out.push_back(random.below(10) == 0 ? 1 : 0);
          if (keyed) {
            spec.sequence_keys.push_back({random.below(20) == 0 ? 1U : 0U, 0});
          }
        }
      }
    }
    if (random.below(2) == 0) {
      spec.opt_out.clear();
    }
    const TypedBatch<std::int32_t> typed(spec);
    const PrefixIndex expected(trie.build(typed.batch(), {.pad_to = 8}));
    const PrefixIndexView backward = backward_trie.build(typed.batch(), {.pad_to = 8}, BackwardExecutor{});
    CAPTURE(round);
    REQUIRE(backward.compact_rows == expected.view().compact_rows);
    REQUIRE(backward.max_seqlen == expected.view().max_seqlen);
    REQUIRE(to_vector(backward.scatter) == to_vector(expected.view().scatter));
    REQUIRE(to_vector(backward.gather) == to_vector(expected.view().gather));
    REQUIRE(to_vector(backward.parent) == to_vector(expected.view().parent));
    REQUIRE(to_vector(backward.last_rows) == to_vector(expected.view().last_rows));
    REQUIRE(to_vector(backward.compact_cu) == to_vector(expected.view().compact_cu));
    const bool with_parent = round % 2 == 0;
    const PrefixIndexView threads =
        thread_trie.build(typed.batch(), {.pad_to = 8, .parent = with_parent}, TwoThreads{});
    REQUIRE(to_vector(threads.scatter) == to_vector(expected.view().scatter));
    REQUIRE(to_vector(threads.gather) == to_vector(expected.view().gather));
    REQUIRE(to_vector(threads.parent) == (with_parent ? to_vector(expected.view().parent) : Ints{}));
    REQUIRE(to_vector(threads.last_rows) == to_vector(expected.view().last_rows));
  }
}

// The two long sequences lie in chunks of their own. One thread compares them, which takes long where positions are
// strided, while the other comes to where it needs the result. In a second build what stands there until then is from
// the first, and far too large.
TEST_CASE("a parallel build waits for a compare that is under way") {
  constexpr std::int32_t length = 400'000;
  BatchSpec spec = spec_of({{1, 2, 3}});
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (std::int32_t i = 0; i < length; ++i) {
      spec.tokens.push_back(i + 7);
    }
    spec.cu_seqlens.push_back(static_cast<std::int32_t>(spec.tokens.size()));
  }
  std::vector<std::int64_t> positions(spec.tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::iota(positions.end() - length, positions.end(), 3);  // those of the sequence before
  spec.positions = {positions, positions, positions, positions};
  const TypedBatch<std::int32_t, std::int32_t> typed(spec, AxisOrder::token_major);
  PrefixTrie trie, thread_trie;
  const PrefixIndexView expected = trie.build(typed.batch());
  REQUIRE(expected.compact_rows == 3 + length);
  for (int build = 0; build < 4; ++build) {
    const PrefixIndexView index = thread_trie.build(typed.batch(), {}, TwoAtOnce{});
    CAPTURE(build);
    REQUIRE(to_vector(index.scatter) == to_vector(expected.scatter));
    REQUIRE(to_vector(index.gather) == to_vector(expected.gather));
    REQUIRE(to_vector(index.last_rows) == to_vector(expected.last_rows));
  }
}

TEST_CASE("without parent all other maps are the same, and the block ends before it") {
  RandomBatches random(2027);
  PrefixTrie trie;
  for (int i = 0; i < 300; ++i) {
    CAPTURE(i);
    const BatchSpec spec = random.next();
    const TypedBatch<std::int32_t, std::int32_t, radixmlp::Key128> typed(spec);
    OracleIndex expected = oracle(spec);
    expected.parent.clear();
    PrefixTrie other;
    const PrefixIndexView all = other.build(typed.batch(), {.pad_to = spec.pad_to});
    const PrefixIndex kept(trie.build(typed.batch(), {.pad_to = spec.pad_to, .parent = false}));
    const PrefixIndexView& index = kept.view();
    REQUIRE(difference(index, expected, spec) == "");
    REQUIRE(index.parent.empty());
    const std::ptrdiff_t parent_at = reinterpret_cast<const std::byte*>(all.parent.data()) - all.block.data();
    REQUIRE(static_cast<std::ptrdiff_t>(index.block.size()) == parent_at);
    alignas(radixmlp::index_alignment) std::byte copy[1 << 14];
    REQUIRE(index.block.size() <= sizeof copy);
    std::memcpy(copy, index.block.data(), index.block.size());
    REQUIRE(difference(index.relocated(copy), expected, spec) == "");
  }
}

TEST_CASE("long runs: every length of agreement around the compare's block sizes") {
  PrefixTrie trie;
  Ints lengths(70);
  std::iota(lengths.begin(), lengths.end(), 1);
  lengths.insert(lengths.end(), {127, 128, 129, 191, 192, 193, 208, 209, 300});
  for (const std::int32_t length : lengths) {
    for (std::int32_t shared = 0; shared <= length; ++shared) {
      Ints first(static_cast<std::size_t>(length));
      std::iota(first.begin(), first.end(), 100);
      Ints second = first;
      if (shared < length) {
        second[static_cast<std::size_t>(shared)] = 7;
      }
      const BatchSpec spec = spec_of({first, second, first});  // the third at the end, where nothing may be read behind
      CAPTURE(length, shared);
      const PrefixIndexView index = trie.build(TypedBatch<std::int32_t>(spec).batch());
      REQUIRE(index.compact_rows == 2 * length - shared);
      Ints expected(static_cast<std::size_t>(3 * length));
      std::iota(expected.begin(), expected.begin() + length, 0);
      std::iota(expected.begin() + length, expected.begin() + length + shared, 0);
      std::iota(expected.begin() + length + shared, expected.begin() + 2 * length, length);
      std::iota(expected.begin() + 2 * length, expected.end(), 0);
      REQUIRE(to_vector(index.scatter) == expected);
      REQUIRE(trie.build(TypedBatch<std::int64_t>(spec).batch()).compact_rows == 2 * length - shared);
    }
  }
}

// Tags of 32 bits, whose seed is secret. Of 400,000 children 19 pairs are to be expected that have one tag; without any
// the test would see nothing, once in 10^8 runs.
TEST_CASE("children with one tag are told apart by their values") {
  constexpr std::int32_t children = 400'000;
  std::mt19937_64 random(91);
  std::vector<std::int64_t> tokens(children);
  for (std::int64_t& token : tokens) {
    token = static_cast<std::int64_t>(random());
  }
  tokens.insert(tokens.end(), tokens.begin(), tokens.end());  // all of them again
  std::vector<std::int32_t> cu_seqlens(tokens.size() + 1);
  std::iota(cu_seqlens.begin(), cu_seqlens.end(), 0);
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(RaggedBatch<std::int64_t>{.tokens = tokens, .cu_seqlens = cu_seqlens});
  CHECK(index.compact_rows == children);
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    wrong += index.scatter[i] != static_cast<std::int32_t>(i) % children;
  }
  CHECK(wrong == 0);
}

// Where the first child has the tag of another, no batch can be made that shows what happens: the comparisons behind
// tags are tested by themselves.
TEST_CASE("the compare counts equal values, whatever their number and what lies behind them") {
  CHECK(wrong_compares<std::uint8_t>(300) == 0);
  CHECK(wrong_compares<std::uint16_t>(150) == 0);
  CHECK(wrong_compares<std::uint32_t>(150) == 0);
  CHECK(wrong_compares<std::uint64_t>(80) == 0);
}

TEST_CASE("what a tag proposes is decided on the values") {
  BatchSpec spec = spec_of({{1, 2}, {1, 2}, {1, 2}});
  spec.sequence_keys = {{7, 1}, {7, 2}, {7, 1}};
  spec.past_lengths = {3, 3, 4};
  spec.token_keys = {{5, 0}, {5, 0}, {5, 0}, {5, 1}, {6, 0}, {5, 0}};
  spec.positions = {{0, 1, 0, 1, 0, 1}, {0, 1, 0, 1, 0, 9}};
  const TypedBatch<std::int64_t, std::int32_t, Key128> typed(spec, AxisOrder::axis_major);
  const radixmlp::detail::RowIdentity identity(typed.batch());
  CHECK(identity.same_namespace(0, 0));
  CHECK_FALSE(identity.same_namespace(0, 1));  // the keys' high words
  CHECK_FALSE(identity.same_namespace(0, 2));  // the pasts
  CHECK(identity.match(0, 2, 2) == 1);         // the second rows' keys, in their high words
  CHECK(identity.match(0, 4, 2) == 0);         // the first rows' keys
  CHECK(identity.match(1, 5, 1) == 0);         // the last axis
  CHECK(identity.match(0, 2, 1) == 1);
}

TEST_CASE("a node with 20,000 children") {
  std::vector<Ints> sequences;
  for (std::int32_t child = 0; child < 20000; ++child) {
    sequences.push_back({1, 2, child * 64});
    sequences.push_back({1, 2, child * 64, 5});
  }
  const BatchSpec spec = spec_of(sequences);
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(TypedBatch<std::int32_t>(spec).batch());
  CHECK(index.compact_rows == 2 + 2 * 20000);
  for (std::int32_t s = 0; s < index.sequences(); s += 2) {
    const auto at = static_cast<std::size_t>(s);
    REQUIRE(index.parent[static_cast<std::size_t>(index.last_rows[at])] == 1);
    REQUIRE(index.parent[static_cast<std::size_t>(index.last_rows[at + 1])] == index.last_rows[at]);
  }
}

TEST_CASE("the block holds all maps, tightly, and can be moved") {
  const BatchSpec spec = spec_of({{1, 2, 3}, {1, 2, 4}, {}, {1, 2, 3, 5}});
  const TypedBatch<std::int32_t> typed(spec);
  const OracleIndex expected = oracle(spec);
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());

  SECTION("a copy of the block is the same index") {
    std::vector<std::byte> copy(index.block.begin(), index.block.end());
    const PrefixIndexView moved = index.relocated(copy.data());
    CHECK(difference(moved, expected, spec) == "");
    CHECK(reinterpret_cast<const std::byte*>(moved.scatter.data()) >= copy.data());
    CHECK(reinterpret_cast<const std::byte*>(moved.parent.data() + moved.parent.size()) <= copy.data() + copy.size());
    CHECK(index.block.size() <= radixmlp::index_bytes(index.ragged_rows, index.sequences()));
  }
  SECTION("PrefixIndex outlives the trie's next build") {
    const PrefixIndex kept(index);
    trie.build(TypedBatch<std::int32_t>(spec_of({{9, 9, 9, 9, 9, 9, 9, 9, 9, 9}})).batch());
    CHECK(difference(kept, expected, spec) == "");
    PrefixIndex moved;
    CHECK(moved.view().compact_rows == 0);
  }
  SECTION("build_into writes nothing outside its memory and needs no trie afterwards") {
    const std::size_t bytes = radixmlp::index_bytes(index.ragged_rows, index.sequences(), 8);
    alignas(radixmlp::index_alignment) std::byte memory[2048];
    REQUIRE(bytes + 64 <= sizeof memory);
    std::memset(memory, 0x5a, sizeof memory);
    PrefixIndexView into;
    {
      PrefixTrie other;
      into = other.build_into(std::span(memory).first(bytes), typed.batch(), {.pad_to = 8});
    }
    BatchSpec padded = spec;
    padded.pad_to = 8;
    CHECK(difference(into, oracle(padded), padded) == "");
    for (std::size_t i = bytes; i < sizeof memory; ++i) {
      REQUIRE(memory[i] == std::byte{0x5a});
    }
  }
}
