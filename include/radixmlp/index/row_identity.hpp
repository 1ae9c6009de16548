// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <span>

#include "radixmlp/index/ragged_batch.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail {

template <class T>
[[nodiscard]] inline T load(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Multiply and fold to 64 bits.
[[nodiscard]] inline std::uint64_t mix(std::uint64_t a, std::uint64_t b) noexcept {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

// Secret, so that no input can be made that collides; an index does not depend on it.
[[nodiscard]] inline std::uint64_t fresh_seed(const void* salt) noexcept {
  std::timespec now{};
  static_cast<void>(std::timespec_get(&now, TIME_UTC));
  return mix(static_cast<std::uint64_t>(now.tv_nsec) ^ reinterpret_cast<std::uintptr_t>(salt),
             0xa0761d6478bd642f + (static_cast<std::uint64_t>(now.tv_sec) << 20));
}

// Which of the sixteen 4-byte words at a differ from those at b, a bit each: with SSE2, or in vectors of the compilers'
// own language alone. That has no word for "collect the signs of the lanes", so every lane brings a bit of its own.
template <bool sse2 = RADIXMLP_HAS_SSE2>
[[nodiscard]] inline std::uint32_t differing_words(const std::byte* a, const std::byte* b) noexcept {
  using Vector = std::uint32_t __attribute__((vector_size(16)));
  Vector equal[4];
  for (std::size_t v = 0; v < 4; ++v) {
    equal[v] = load<Vector>(a + v * sizeof(Vector)) == load<Vector>(b + v * sizeof(Vector));
  }
  if constexpr (sse2) {
    return RADIXMLP_SIGNS_OF_WORDS(equal[0], equal[1], equal[2], equal[3]) ^ 0xffffU;
  }
  Vector bits = {};
  for (std::uint32_t v = 0; v < 4; ++v) {
    const std::uint32_t first = 1U << (4 * v);
    bits |= ~equal[v] & Vector{first, 2 * first, 4 * first, 8 * first};
  }
  using Halves = std::uint64_t __attribute__((vector_size(16)));
  const auto halves = Halves(bits);
  const std::uint64_t half = halves[0] | halves[1];
  return static_cast<std::uint32_t>(half | half >> 32);
}

// Equal leading bytes of two arrays of at least 128 bytes, on a processor with AVX2. Where in a block the difference is
// takes no branch. What lies `ahead` bytes behind each block of b is fetched.
[[nodiscard]] RADIXMLP_TARGET_AVX2 inline std::int64_t equal_bytes_avx2(const std::byte* a, const std::byte* b,
                                                                        std::int64_t bytes,
                                                                        std::int64_t ahead) noexcept {
  using Vector = char __attribute__((vector_size(32)));
  constexpr std::int64_t block = 128;
  for (std::int64_t i = 0;; i = std::min(i + block, bytes - block)) {  // the last block may overlap the one before
    __builtin_prefetch(b + i + ahead);
    __builtin_prefetch(b + i + ahead + block / 2);
    Vector equal[4];
    for (std::size_t v = 0; v < 4; ++v) {
      Vector x, y;
      std::memcpy(&x, a + i + v * sizeof x, sizeof x);
      std::memcpy(&y, b + i + v * sizeof y, sizeof y);
      equal[v] = x == y;
    }
    if (RADIXMLP_SIGNS_OF_BYTES(equal[0] & equal[1] & (equal[2] & equal[3])) != ~std::uint32_t{0}) {
      const std::uint64_t low = RADIXMLP_SIGNS_OF_BYTES(equal[0]) | std::uint64_t{RADIXMLP_SIGNS_OF_BYTES(equal[1])}
                                                                        << 32;
      const std::uint64_t high = RADIXMLP_SIGNS_OF_BYTES(equal[2]) | std::uint64_t{RADIXMLP_SIGNS_OF_BYTES(equal[3])}
                                                                         << 32;
      return i + std::countr_one(low) + (~low == 0 ? std::countr_one(high) : 0);
    }
    if (i == bytes - block) {
      return bytes;
    }
  }
}

// Equal leading bytes of two arrays, at least up to the 4-byte word that differs; the first `readable` bytes of both
// may be read. Where `next` is known, the next compare begins that many bytes behind b. Without `x86` as on a processor
// of another kind.
template <bool x86 = RADIXMLP_HAS_SSE2>
[[nodiscard]] inline std::int64_t equal_bytes(const std::byte* a, const std::byte* b, std::int64_t bytes,
                                              std::int64_t readable, std::int64_t next = 0) noexcept {
  static_assert(std::endian::native == std::endian::little, "radixmlp: hosts are little-endian");
  constexpr std::int64_t long_block = 256;
  constexpr std::int64_t block = 64;
  constexpr std::int64_t word = 4;
  std::int64_t i = 0;
  if (bytes < long_block && block <= readable) {  // one branch where the runs are short
    const std::uint32_t differing = differing_words<x86>(a, b);
    if ((differing != 0) | (bytes <= block)) {
      return std::min(word * std::countr_zero(differing | 1U << (block / word)), bytes);
    }
    i = block;
  }
  if (x86 && bytes >= long_block && RADIXMLP_HAS_AVX2()) {
    // Of the next array as much as is equal here, so that its compare finds it in the cache; else what comes next.
    constexpr std::int64_t far = 2048;
    return equal_bytes_avx2(a, b, bytes, 0 < next && next <= far ? next : far / 2);
  }
  // Elsewhere long runs are memcmp's, which may have wider vectors than the build's target.
  std::size_t size = long_block;
  asm("" : "+r"(size));  // g++ would expand a memcmp of known size into scalar code under -march=native
  while (i + long_block <= bytes && std::memcmp(a + i, b + i, size) == 0) {
    i += long_block;
  }
  for (; i < bytes && i + block <= readable; i += block) {
    if (const std::uint32_t differing = differing_words<x86>(a + i, b + i); differing != 0) {
      return std::min(i + word * std::countr_zero(differing), bytes);
    }
  }
  while (i + word <= bytes && load<std::uint32_t>(a + i) == load<std::uint32_t>(b + i)) {
    i += word;
  }
  return std::min(i, bytes);
}

// How many of n values at a, `stride` bytes apart, equal those at b, counted from the front. Where the values are
// contiguous, `readable` of them may be read. Where `next` is known, the next compare begins that many values behind b.
template <class T>
[[nodiscard]] inline std::int64_t equal_values(const std::byte* a, const std::byte* b, std::int64_t n,
                                               std::int64_t readable, std::int64_t next = 0,
                                               std::int64_t stride = sizeof(T)) noexcept {
  constexpr std::int64_t size = sizeof(T);
  std::int64_t i = 0;
  if (stride == size) {
    if (n == 0 || load<T>(a) != load<T>(b)) {
      return 0;
    }
    i = equal_bytes(a, b, n * size, readable * size, next * size) / size;
    if constexpr (size >= 4) {
      return i;
    }
  }
  while (i < n && load<T>(a + i * stride) == load<T>(b + i * stride)) {
    ++i;
  }
  return i;
}

[[nodiscard]] inline std::uint64_t hash_value(std::uint64_t value, std::uint64_t seed) noexcept {
  return mix(seed ^ value, 0x9e3779b97f4a7c15);
}

[[nodiscard]] inline std::uint32_t tag_of(std::uint64_t hash) noexcept {
  return static_cast<std::uint32_t>(hash >> 32);
}

// One attribute of every row: `width` bytes, `stride` bytes apart. Values of one type are equal exactly if their bytes
// are, so the trie is compiled once and not for every combination of integer types.
struct Column {
  const std::byte* data = nullptr;
  std::int64_t stride = 0;
  std::int32_t width = 0;

  [[nodiscard]] explicit operator bool() const noexcept { return data != nullptr; }
  [[nodiscard]] const std::byte* row(std::int64_t i) const noexcept { return data + i * stride; }

  [[nodiscard]] std::uint64_t hash(std::int64_t i, std::uint64_t seed) const noexcept {
    const std::byte* p = row(i);
    switch (width) {
      case 1:
        return hash_value(load<std::uint8_t>(p), seed);
      case 2:
        return hash_value(load<std::uint16_t>(p), seed);
      case 4:
        return hash_value(load<std::uint32_t>(p), seed);
      case 8:
        return hash_value(load<std::uint64_t>(p), seed);
      default:
        return hash_value(load<std::uint64_t>(p + 8), hash_value(load<std::uint64_t>(p), seed));
    }
  }

  [[nodiscard]] std::int64_t match(std::int64_t a, std::int64_t b, std::int64_t n,
                                   std::int64_t next = 0) const noexcept {
    switch (width) {
      case 1:
        return equal_values<std::uint8_t>(row(a), row(b), n, n, next, stride);
      case 2:
        return equal_values<std::uint16_t>(row(a), row(b), n, n, next, stride);
      case 4:
        return equal_values<std::uint32_t>(row(a), row(b), n, n, next, stride);
      case 8:
        return equal_values<std::uint64_t>(row(a), row(b), n, n, next, stride);
      default:
        return equal_values<Key128>(row(a), row(b), n, n, next, stride);
    }
  }
};

// Rows that are their tokens and nothing else, the common case: RowIdentity's match and tag, known at compile time.
template <TokenId Token>
class TokenRows {
 public:
  static constexpr bool tag_is_row = sizeof(Token) == sizeof(std::uint32_t);  // rows with equal tags are equal

  explicit TokenRows(std::span<const Token> tokens) noexcept
      : tokens_(tokens.data()), count_(static_cast<std::int64_t>(tokens.size())) {}

  // a comes before b.
  [[nodiscard]] std::int64_t match(std::int64_t a, std::int64_t b, std::int64_t n,
                                   std::int64_t next = 0) const noexcept {
    return equal_values<Token>(reinterpret_cast<const std::byte*>(tokens_ + a),
                               reinterpret_cast<const std::byte*>(tokens_ + b), n, count_ - b, next);
  }
  // A row, or the end, that is compared soon.
  void fetch(std::int64_t row) const noexcept { __builtin_prefetch(tokens_ + row); }
  [[nodiscard]] std::uint32_t tag(std::int64_t row, std::uint64_t seed) const noexcept {
    if constexpr (tag_is_row) {
      return static_cast<std::uint32_t>(tokens_[row]);
    } else {
      return tag_of(hash_value(static_cast<std::uint64_t>(tokens_[row]), seed));
    }
  }

 private:
  const Token* tokens_;
  std::int64_t count_;
};

// The attributes of a batch, each a column. The batch must be valid; its arrays may lie on a device.
struct BatchColumns {
  Column tokens, token_keys, positions, sequence_keys, past_lengths;
  const std::uint8_t* opt_out = nullptr;
  std::int64_t axis_bytes = 0;  // from a row's position on one axis to that on the next
  std::int32_t axes = 0;

  template <TokenId Token>
  explicit BatchColumns(const RaggedBatch<Token>& batch) noexcept
      : token_keys(keys(batch.token_keys)),
        sequence_keys(keys(batch.sequence_keys)),
        opt_out(batch.opt_out.empty() ? nullptr : batch.opt_out.data()) {
    if (!batch.tokens.empty()) {
      tokens = column(batch.tokens.data(), sizeof(Token), sizeof(Token));
    }
    if (!batch.past_lengths.empty()) {
      past_lengths = column(batch.past_lengths.data(), sizeof(std::int32_t), sizeof(std::int32_t));
    }
    if (const PositionSpan& p = batch.positions; !p.empty()) {
      positions = column(p.data(), p.token_stride() * p.element_bytes(), p.element_bytes());
      axes = p.axes();
      axis_bytes = p.axis_stride() * p.element_bytes();
    }
  }

 private:
  [[nodiscard]] static Column column(const void* data, std::int64_t stride, std::int32_t width) noexcept {
    return {static_cast<const std::byte*>(data), stride, width};
  }
  [[nodiscard]] static Column keys(const KeySpan& keys) noexcept {
    return keys.empty() ? Column{} : column(keys.data(), keys.key_bytes(), keys.key_bytes());
  }
};

// What makes two rows equal: the batch's attributes with their types erased. The batch must be valid.
class RowIdentity : BatchColumns {
 public:
  static constexpr bool tag_is_row = false;

  template <TokenId Token>
  explicit RowIdentity(const RaggedBatch<Token>& batch) noexcept : BatchColumns(batch) {}

  [[nodiscard]] bool opted_out(std::int64_t sequence) const noexcept { return opt_out && opt_out[sequence] != 0; }
  [[nodiscard]] bool tokens_only() const noexcept { return tokens && !token_keys && axes == 0; }
  [[nodiscard]] bool one_namespace() const noexcept { return !sequence_keys && !past_lengths; }

  // How many of the n rows from a on equal the n rows from b on, counted from the front. Where `next` is known, the
  // next compare begins that many rows behind b.
  [[nodiscard]] std::int64_t match(std::int64_t a, std::int64_t b, std::int64_t n,
                                   std::int64_t next = 0) const noexcept {
    if (tokens) {
      n = tokens.match(a, b, n, next);
    }
    if (token_keys) {
      n = token_keys.match(a, b, n, next);
    }
    for (std::int32_t axis = 0; axis < axes; ++axis) {
      n = axis_column(axis).match(a, b, n, next);
    }
    return n;
  }

  // A row, or the end, that is compared soon.
  void fetch(std::int64_t row) const noexcept { __builtin_prefetch((tokens ? tokens : token_keys).row(row)); }

  // 32 bits that equal rows have in common: where they differ, so do the rows.
  [[nodiscard]] std::uint32_t tag(std::int64_t row, std::uint64_t seed) const noexcept {
    if (tokens) {
      seed = tokens.hash(row, seed);
    }
    if (token_keys) {
      seed = token_keys.hash(row, seed);
    }
    for (std::int32_t axis = 0; axis < axes; ++axis) {
      seed = axis_column(axis).hash(row, seed);
    }
    return tag_of(seed);
  }

  [[nodiscard]] bool same_namespace(std::int64_t a, std::int64_t b) const noexcept {
    return (!sequence_keys || sequence_keys.match(a, b, 1) == 1) && (!past_lengths || past_lengths.match(a, b, 1) == 1);
  }

  [[nodiscard]] std::uint32_t namespace_tag(std::int64_t sequence, std::uint64_t seed) const noexcept {
    if (sequence_keys) {
      seed = sequence_keys.hash(sequence, seed);
    }
    return tag_of(past_lengths ? past_lengths.hash(sequence, seed) : seed);
  }

 private:
  [[nodiscard]] Column axis_column(std::int32_t axis) const noexcept {
    return {positions.data + axis * axis_bytes, positions.stride, positions.width};
  }
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail
