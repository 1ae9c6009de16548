// SPDX-License-Identifier: MIT
#include "radixmlp/index/ragged_batch.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "radixmlp/index/prefix_trie.hpp"
#include "support/catch.hpp"

using radixmlp::BuildOptions;
using radixmlp::InvalidBatch;
using radixmlp::PositionSpan;
using radixmlp::PrefixIndexView;
using radixmlp::PrefixTrie;
using radixmlp::RaggedBatch;
using radixmlp::Status;

namespace {

using Batch = RaggedBatch<std::int32_t>;

const std::vector<std::int32_t> tokens{5, 6, 7, 5, 6, 8};
const std::vector<std::int32_t> cu_seqlens{0, 3, 6};

Batch good() { return {.tokens = tokens, .cu_seqlens = cu_seqlens}; }

// Every way to build must refuse with this argument, index and value, and leave what it was given as it was.
void require_refused(const Batch& batch, BuildOptions options, const std::string& argument, std::int64_t index,
                     std::int64_t value) {
  CAPTURE(argument, index, value);
  const auto check = [&](const radixmlp::Error& error) {
    CHECK(error.argument() == argument);
    CHECK(error.index() == index);
    CHECK(error.value() == value);
    const std::string text = error.what();
    CHECK(text.find(argument) != std::string::npos);
    CHECK(text.find(std::to_string(value)) != std::string::npos);
    if (index >= 0) {
      CHECK(text.find('[' + std::to_string(index) + ']') != std::string::npos);
    }
  };
  const auto refuses = [&](const std::function<void()>& build) {
    bool refused = false;
    try {
      build();
    } catch (const InvalidBatch& error) {
      refused = true;
      check(error);
    }
    CHECK(refused);
  };

  PrefixTrie trie;
  const PrefixIndexView before = trie.build(good());
  const std::vector<std::byte> maps(before.block.begin(), before.block.end());
  refuses([&] { trie.build(batch, options); });
  CHECK(std::memcmp(before.block.data(), maps.data(), maps.size()) == 0);

  alignas(radixmlp::index_alignment) std::byte memory[4096];
  std::memset(memory, 0x5a, sizeof memory);
  refuses([&] { trie.build_into(memory, batch, options); });
  CHECK(std::all_of(std::begin(memory), std::end(memory), [](std::byte b) { return b == std::byte{0x5a}; }));

  PrefixIndexView untouched;
  untouched.compact_rows = 77;
  const Status status = trie.try_build(batch, options, untouched);
  CHECK_FALSE(status.ok());
  CHECK(untouched.compact_rows == 77);
  check(radixmlp::Error(status));
}

}  // namespace

TEST_CASE("a valid batch passes") {
  CHECK(validate(good()).ok());
  CHECK(validate(good()).message() == "radixmlp: ok");
  CHECK(good().rows() == 6);
  CHECK(good().sequences() == 2);
}

TEST_CASE("cu_seqlens must be there, start at 0, never fall and end at N") {
  Batch batch = good();
  batch.cu_seqlens = {};
  require_refused(batch, {}, "cu_seqlens", -1, 0);

  const std::vector<std::int32_t> late{1, 3, 6};
  batch.cu_seqlens = late;
  require_refused(batch, {}, "cu_seqlens", 0, 1);

  const std::vector<std::int32_t> negative{-2, 3, 6};
  batch.cu_seqlens = negative;
  require_refused(batch, {}, "cu_seqlens", 0, -2);

  const std::vector<std::int32_t> falling{0, 4, 2, 6};
  batch.cu_seqlens = falling;
  require_refused(batch, {}, "cu_seqlens", 2, 2);

  const std::vector<std::int32_t> below_zero{0, std::numeric_limits<std::int32_t>::min(), 6};
  batch.cu_seqlens = below_zero;
  require_refused(batch, {}, "cu_seqlens", 1, std::numeric_limits<std::int32_t>::min());

  const std::vector<std::int32_t> short_end{0, 3, 5};
  batch.cu_seqlens = short_end;
  require_refused(batch, {}, "cu_seqlens", 2, 5);

  const std::vector<std::int32_t> far_end{0, 3, 2147483647};
  batch.cu_seqlens = far_end;
  require_refused(batch, {}, "cu_seqlens", 2, 2147483647);
}

TEST_CASE("more than 2^31 - 1 rows are refused before anything is read") {
  Batch batch = good();
  // The span lies about its size: reading it would be caught by the sanitizers.
  batch.tokens = {tokens.data(), std::size_t{1} << 31};
  require_refused(batch, {}, "tokens", -1, std::int64_t{1} << 31);

  std::uint64_t key = 1;
  batch.tokens = {};
  batch.token_keys = std::span<const std::uint64_t>(&key, std::size_t{1} << 31);
  require_refused(batch, {}, "token_keys", -1, std::int64_t{1} << 31);

  batch = good();
  batch.cu_seqlens = {cu_seqlens.data(), std::size_t{1} << 31};
  require_refused(batch, {}, "cu_seqlens", -1, std::int64_t{1} << 31);
}

TEST_CASE("attribute arrays must have the sizes that cu_seqlens and tokens say") {
  const std::vector<std::int32_t> five(5), seven(7);
  const std::vector<std::uint64_t> five_keys(5), three_keys(3);
  const std::vector<std::uint8_t> one_byte(1);

  Batch batch = good();
  batch.positions = five;
  require_refused(batch, {}, "positions", -1, 5);
  batch.positions = seven;
  require_refused(batch, {}, "positions", -1, 7);

  batch = good();
  batch.token_keys = five_keys;
  require_refused(batch, {}, "token_keys", -1, 5);

  batch = good();
  batch.sequence_keys = three_keys;
  require_refused(batch, {}, "sequence_keys", -1, 3);

  batch = good();
  batch.past_lengths = five;
  require_refused(batch, {}, "past_lengths", -1, 5);

  batch = good();
  batch.opt_out = one_byte;
  require_refused(batch, {}, "opt_out", -1, 1);

  const std::vector<std::int32_t> past{3, -4};
  batch = good();
  batch.past_lengths = past;
  require_refused(batch, {}, "past_lengths", 1, -4);
}

TEST_CASE("strides of positions must stay within their array") {
  const std::vector<std::int32_t> eighteen(18);
  Batch batch = good();
  batch.positions = PositionSpan(eighteen, 3, 3, 1);
  CHECK(validate(batch).ok());
  batch.positions = PositionSpan(eighteen, 3, 1, 6);
  CHECK(validate(batch).ok());
  batch.positions = PositionSpan(eighteen, 4, 1, 6);
  require_refused(batch, {}, "positions", -1, 18);
  batch.positions = PositionSpan(eighteen, 3, 4, 1);
  require_refused(batch, {}, "positions", -1, 18);
  batch.positions = PositionSpan(eighteen, 0, 1, 6);
  require_refused(batch, {}, "positions.axes", -1, 0);
  batch.positions = PositionSpan(eighteen, 19, 0, 0);
  require_refused(batch, {}, "positions.axes", -1, 19);
  batch.positions = PositionSpan(eighteen, 1, -1, 0);
  require_refused(batch, {}, "positions.token_stride", -1, -1);
  batch.positions = PositionSpan(eighteen, 2, 1, -3);
  require_refused(batch, {}, "positions.axis_stride", -1, -3);
  batch.positions = PositionSpan(eighteen, 3, std::numeric_limits<std::int64_t>::max(), 1);
  require_refused(batch, {}, "positions", -1, 18);
}

TEST_CASE("pad_to must be positive and the padded count must fit int32") {
  require_refused(good(), {.pad_to = 0}, "pad_to", -1, 0);
  require_refused(good(), {.pad_to = -8}, "pad_to", -1, -8);
  const std::vector<std::int32_t> none{};
  const std::vector<std::int32_t> zero{0};
  PrefixTrie trie;
  CHECK(trie.build(Batch{.tokens = none, .cu_seqlens = zero}, {.pad_to = 2147483647}).padded_rows == 0);
  const std::vector<std::int32_t> huge_cu{0, (1 << 30) + 1};
  const Batch huge{.tokens = {tokens.data(), (std::size_t{1} << 30) + 1}, .cu_seqlens = huge_cu};
  PrefixIndexView view;
  const Status status = trie.try_build(huge, {.pad_to = 1 << 30}, view);
  CHECK(std::string(status.argument) == "pad_to");
  CHECK(status.value == 1 << 30);
}

TEST_CASE("build_into refuses memory that is too small or misaligned") {
  PrefixTrie trie;
  const std::size_t needed = radixmlp::index_bytes(6, 2);
  alignas(radixmlp::index_alignment) std::byte memory[4096];
  const auto argument_of = [&](std::span<std::byte> target) -> std::string {
    PrefixIndexView view;
    const Status status = trie.try_build_into(target, good(), {}, view);
    return status.ok() ? "" : status.message();
  };
  CHECK(argument_of({memory, needed}).empty());
  CHECK(argument_of({memory, needed - 1}).find("memory = " + std::to_string(needed - 1)) != std::string::npos);
  CHECK(argument_of({memory + 4, needed}).find("memory = 4: its address must be a multiple of 64") !=
        std::string::npos);
}
