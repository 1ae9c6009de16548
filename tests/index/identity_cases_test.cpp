// SPDX-License-Identifier: MIT

// The cases in which prefix caches have been reported to share what was not equal, or not to share what was. One test
// each; docs/integration.md says what an engine has to give.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "radixmlp/index/sequence_keys.hpp"
#include "radixmlp/radixmlp.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"

using namespace radixmlp_test;
using namespace radixmlp;
using Ints = std::vector<std::int32_t>;
using Ints64 = std::vector<std::int64_t>;

namespace {

template <class Key = std::uint64_t>
PrefixIndex build(const BatchSpec& spec) {
  PrefixTrie trie;
  const TypedBatch<std::int32_t, std::int32_t, Key> typed(spec);
  PrefixIndex index(trie.build(typed.batch(), {.pad_to = spec.pad_to}));
  CHECK(difference(index, oracle(spec), spec) == "");
  return index;
}

// Two requests "describe <image> please" of 2 + 3 + 1 tokens.
BatchSpec two_image_requests(Key128 first, Key128 second) {
  constexpr std::int32_t image = 151655;
  BatchSpec spec = spec_of({{11, 12, image, image, image, 13}, {11, 12, image, image, image, 13}});
  for (const Key128& content : {first, second}) {
    const std::vector<Key128> keys{{}, {}, content, content, content, {}};
    spec.token_keys.insert(spec.token_keys.end(), keys.begin(), keys.end());
  }
  return spec;
}

}  // namespace

TEST_CASE("image placeholders have equal ids; the images tell them apart") {
  CHECK(build(two_image_requests({1, 0}, {1, 0})).view().compact_rows == 6);
  // All rows behind the first image token differ too, though their own tokens and keys are equal.
  CHECK(build(two_image_requests({1, 0}, {2, 0})).view().compact_rows == 2 + 4 + 4);
}

TEST_CASE("hashes of images that agree in their low bits do not collide") {
  CHECK(build(two_image_requests({0x12345, 0}, {0x2345, 0})).view().compact_rows == 10);  // 16 bits agree
  CHECK(build<Key128>(two_image_requests({7, 0}, {7, 1})).view().compact_rows == 10);     // 64 bits agree
}

TEST_CASE("requests of different LoRA adapters share nothing, and a reloaded adapter is another one") {
  SequenceKeys keys;
  BatchSpec spec = spec_of({{1, 2}, {1, 2}, {1, 2}, {1, 2}});
  for (const SequenceIdentity& identity :
       {SequenceIdentity{}, SequenceIdentity{.adapter = "sql", .adapter_version = "1"},
        SequenceIdentity{.adapter = "sql", .adapter_version = "2"},
        SequenceIdentity{.adapter = "sql", .adapter_version = "1"}}) {
    spec.sequence_keys.push_back({keys.key(identity), 0});
  }
  const PrefixIndex index = build(spec);
  CHECK(index.view().compact_rows == 6);
  CHECK(to_vector(index.view().scatter) == Ints{0, 1, 2, 3, 4, 5, 2, 3});
}

TEST_CASE("a user's key that imitates an adapter's namespace stays a user's key") {
  SequenceKeys keys;
  CHECK(keys.key({.adapter = "sql"}) != keys.key({.tenant = "sql"}));
  CHECK(keys.key({.tenant = "lora:sql"}) != keys.key({.adapter = "sql"}));
  CHECK(keys.key({.adapter = "a", .tenant = "b"}) != keys.key({.tenant = "ab"}));
}

TEST_CASE("tenants with different salts share nothing") {
  SequenceKeys keys;
  BatchSpec spec = spec_of({{1, 2}, {1, 2}});
  spec.sequence_keys = {{keys.key({.tenant = "x"}), 0}, {keys.key({.tenant = "y"}), 0}};
  CHECK(build(spec).view().compact_rows == 4);
}

TEST_CASE("prompt embeddings have no token ids: keys alone identify their rows") {
  BatchSpec spec;
  spec.cu_seqlens = {0, 3, 6};
  spec.token_keys = {{1, 5}, {2, 5}, {3, 5}, {1, 5}, {2, 6}, {3, 5}};
  CHECK(build<Key128>(spec).view().compact_rows == 1 + 2 + 2);
}

TEST_CASE("token types are part of a row") {
  BatchSpec spec = spec_of({{1, 2, 3}, {1, 2, 3}});
  spec.token_keys = {{0, 0}, {0, 0}, {1, 0}, {0, 0}, {1, 0}, {1, 0}};
  CHECK(build(spec).view().compact_rows == 5);
}

TEST_CASE(
    "left padding: with positions that start behind it, padded and unpadded prompts differ and keep their last rows") {
  // A padded engine passes pad tokens as rows. They are rows like others: equal pads share, the prompts behind them do
  // not share with unpadded ones, because their history differs.
  BatchSpec spec = spec_of({{0, 0, 5, 6}, {0, 0, 5, 7}, {5, 6, 7, 8}});
  spec.positions = {{0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 2, 3}};
  const PrefixIndex index = build(spec);
  CHECK(index.view().compact_rows == 4 + 1 + 4);
  CHECK(to_vector(index.view().last_rows) == Ints{3, 4, 8});
}

TEST_CASE("equal-length batches keep their sequence bounds") {
  // What attention gets is one description for all batches: bounds are never left out because lengths agree.
  const PrefixIndex index = build(spec_of({{1, 2}, {1, 3}, {4, 5}}));
  CHECK(to_vector(index.view().ragged_cu) == Ints{0, 2, 4, 6});
  alignas(workspace_alignment) std::byte workspace[4096];
  const CompactedBlock<float> block(index, {.q = 1, .k = 1, .v = 1, .out = 1}, workspace);
  std::vector<float> hidden(6);
  block.forward(
      serial, RowView<float>(hidden.data(), 6, 1), [](auto, auto, auto, auto) {},
      [](const AttentionCall<float>& call) {
        CHECK(to_vector(call.cu_seqlens) == Ints{0, 2, 4, 6});
      },
      [](auto, auto) {});
}

TEST_CASE("positions that start anywhere, stand still or fall, and three axes") {
  BatchSpec spec = spec_of({{1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {1, 2, 3}});
  spec.positions = {{100, 101, 102, 100, 101, 102, 100, 100, 100, 100, 99, 98}};
  CHECK(build(spec).view().compact_rows == 3 + 2 + 2);
  spec.positions.push_back(Ints64{0, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0});
  spec.positions.push_back(Ints64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  CHECK(build(spec).view().compact_rows == 3 + 3 + 2 + 2);
}

TEST_CASE("chunked prefill: rows share only behind equal pasts") {
  SequenceKeys keys;
  BatchSpec spec = spec_of({{1, 2}, {1, 2}, {1, 2}, {1, 2}});
  spec.past_lengths = {512, 512, 512, 0};
  spec.sequence_keys = {{keys.key({.past = {0xabc, 1}}), 0},
                        {keys.key({.past = {0xabc, 1}}), 0},
                        {keys.key({.past = {0xabc, 2}}), 0},  // another past of the same length
                        {keys.key({}), 0}};
  CHECK(build(spec).view().compact_rows == 6);
  spec.past_lengths = {512, 1024, 512, 0};  // the same key, another length
  CHECK(build(spec).view().compact_rows == 8);
}

TEST_CASE(
    "a sliding window runs along a row's own history, so equal histories stay equal; a window of its own is a key") {
  // A row's output depends on rows before it in its sequence, at most `window` of them: equal histories give equal
  // windows.
  SequenceKeys keys;
  BatchSpec spec = spec_of({{1, 2, 3, 4}, {1, 2, 3, 5}, {1, 2, 3, 4}});
  CHECK(build(spec).view().compact_rows == 5);
  spec.sequence_keys = {{keys.key({}), 0}, {keys.key({}), 0}, {keys.key({.other = "window 2"}), 0}};
  CHECK(build(spec).view().compact_rows == 5 + 4);
}

TEST_CASE("empty sequences have no rows and no last row") {
  const PrefixIndex index = build(spec_of({{}, {1}, {}, {1}, {}}));
  CHECK(index.view().compact_rows == 1);
  CHECK(to_vector(index.view().last_rows) == Ints{-1, 0, -1, 0, -1});
}

TEST_CASE("whole duplicates and prefixes: several outputs read one row") {
  const PrefixIndex index = build(spec_of({{1, 2, 3}, {1, 2, 3}, {1, 2}, {1, 2, 3, 4}}));
  CHECK(index.view().compact_rows == 4);
  CHECK(to_vector(index.view().last_rows) == Ints{2, 2, 1, 3});
  Ints memory(row_lists_entries(index));
  CHECK(to_vector(row_sequences(index, memory).of(1)) == Ints{0, 1, 2, 3});
}

TEST_CASE("padding rows are zero and reach neither attention nor results, even if memory holds NaN") {
  BatchSpec spec = spec_of({{1, 2, 3}, {1, 2, 4}});
  spec.pad_to = 8;
  const PrefixIndex index = build(spec);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> ragged(6, 1.0F), compact(8, nan);
  alignas(workspace_alignment) std::byte workspace[4096];
  const std::vector<float> poison(1024, nan);
  static_assert(sizeof workspace == 1024 * sizeof(float));
  std::memcpy(workspace, poison.data(), sizeof workspace);
  const CompactedBlock<float> block(index, {.q = 1, .k = 1, .v = 1, .out = 1}, workspace);
  REQUIRE(block.compacts());
  const RowView<float> state =
      block.select(serial, RowView<float>(ragged.data(), 6, 1), RowView<float>(compact.data(), 8, 1));
  CHECK(compact == std::vector<float>{1, 1, 1, 1, 0, 0, 0, 0});
  block.forward(
      serial, state,
      [](RowView<const float> h, RowView<float> q, RowView<float> k, RowView<float> v) {
        for (std::int64_t i = 0; i < h.rows(); ++i) {  // an engine whose padding rows become NaN
          *q.row(i) = *k.row(i) = *v.row(i) = *h.row(i) / *h.row(i);
        }
      },
      [](const AttentionCall<float>& call) {
        for (std::int64_t i = 0; i < call.q.rows(); ++i) {
          CHECK(*call.q.row(i) + *call.k.row(i) + *call.v.row(i) == 3.0F);
          *call.out.row(i) = 2.0F;
        }
      },
      [](RowView<const float> out, RowView<float> h) {
        for (std::int64_t i = 0; i < h.rows(); ++i) {
          CHECK(*out.row(i) == (i < 4 ? 2.0F : 0.0F));
          *h.row(i) = *out.row(i);
        }
      });
  block.expand(serial, state, RowView<float>(ragged.data(), 6, 1));
  CHECK(ragged == std::vector<float>(6, 2.0F));
}
