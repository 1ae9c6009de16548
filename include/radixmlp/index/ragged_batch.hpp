// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "radixmlp/error.hpp"

namespace radixmlp::inline v0 {

// Rows of a batch are counted in int32: cu_seqlens and every map are int32 arrays.
inline constexpr std::int64_t max_rows = std::numeric_limits<std::int32_t>::max();

struct Key128 {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
  friend bool operator==(const Key128&, const Key128&) = default;
};

// [n] keys of 64 or 128 bits. Not owned; empty = absent.
class KeySpan {
 public:
  KeySpan() = default;
  template <std::convertible_to<std::span<const std::uint64_t>> Range>
  KeySpan(const Range& keys) : KeySpan(std::span<const std::uint64_t>(keys), sizeof(std::uint64_t)) {}
  template <std::convertible_to<std::span<const Key128>> Range>
  KeySpan(const Range& keys) : KeySpan(std::span<const Key128>(keys), sizeof(Key128)) {}

  [[nodiscard]] const void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::int32_t key_bytes() const noexcept { return key_bytes_; }

 private:
  template <class Key>
  KeySpan(std::span<const Key> keys, std::size_t key_bytes)
      : data_(keys.data()), size_(keys.size()), key_bytes_(static_cast<std::int32_t>(key_bytes)) {}

  const void* data_ = nullptr;
  std::size_t size_ = 0;
  std::int32_t key_bytes_ = 0;
};

template <class R>
concept IntegerRange = requires(const R& range) {
  std::span(range);
  requires std::integral<typename decltype(std::span(range))::value_type>;
};

// Positions of the rows: any integer type, one axis or several (M-RoPE). Not owned; empty = absent, which means
// that a row's position is its place in its sequence. Row i on axis a is values[i * token_stride + a * axis_stride].
class PositionSpan {
 public:
  PositionSpan() = default;

  // One axis, contiguous: values [N].
  template <IntegerRange Range>
  PositionSpan(const Range& values) : PositionSpan(std::span(values), 1, 1, 0) {}

  // Several axes: token-major is token_stride = axes, axis_stride = 1; axis-major is token_stride = 1,
  // axis_stride = N. Strides count elements.
  template <IntegerRange Range>
  PositionSpan(const Range& values, std::int32_t axes, std::int64_t token_stride, std::int64_t axis_stride)
      : data_(std::span(values).data()),
        size_(std::span(values).size()),
        token_stride_(token_stride),
        axis_stride_(axis_stride),
        axes_(axes),
        element_bytes_(sizeof(typename decltype(std::span(values))::value_type)),
        is_signed_(std::is_signed_v<typename decltype(std::span(values))::value_type>) {}

  [[nodiscard]] const void* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] bool empty() const noexcept { return size_ == 0; }
  [[nodiscard]] std::int32_t axes() const noexcept { return axes_; }
  [[nodiscard]] std::int64_t token_stride() const noexcept { return token_stride_; }
  [[nodiscard]] std::int64_t axis_stride() const noexcept { return axis_stride_; }
  [[nodiscard]] std::int32_t element_bytes() const noexcept { return element_bytes_; }
  [[nodiscard]] bool is_signed() const noexcept { return is_signed_; }

 private:
  const void* data_ = nullptr;
  std::size_t size_ = 0;
  std::int64_t token_stride_ = 1;
  std::int64_t axis_stride_ = 0;
  std::int32_t axes_ = 1;
  std::int32_t element_bytes_ = 0;
  bool is_signed_ = false;
};

template <class T>
concept TokenId = std::same_as<T, std::int32_t> || std::same_as<T, std::uint32_t> || std::same_as<T, std::int64_t>;

// B sequences laid end to end in N rows. Everything is owned by the caller and on the host, for DeviceIndexBuilder on
// the device; an empty span is absent.
//
// Two rows are one row of the index exactly if their sequences agree in key and past length, and the two rows and
// all rows before them in their sequences agree in token, positions on all axes, and token key.
template <TokenId Token>
struct RaggedBatch {
  std::span<const Token> tokens = {};             // [N]; may be absent where token_keys identify every row
  std::span<const std::int32_t> cu_seqlens = {};  // [B+1]: sequence s is rows cu_seqlens[s] .. cu_seqlens[s+1]
  PositionSpan positions = {};                    // [N] on each axis
  KeySpan token_keys = {};     // [N]: what a token stands for beside its id (image content, embedding)
  KeySpan sequence_keys = {};  // [B]: namespace of a sequence (adapter, tenant, identity of its past)
  std::span<const std::int32_t> past_lengths = {};  // [B]: rows that are already in the engine's KV cache
  std::span<const std::uint8_t> opt_out = {};       // [B]: nonzero: this sequence shares with no other

  [[nodiscard]] std::int64_t rows() const noexcept {
    return static_cast<std::int64_t>(tokens.empty() ? token_keys.size() : tokens.size());
  }
  [[nodiscard]] std::int64_t sequences() const noexcept { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

[[nodiscard]] inline Status invalid_batch(const char* argument, std::int64_t index, std::int64_t value,
                                          const char* requirement) noexcept {
  return {StatusCode::invalid_batch, argument, requirement, index, value, 0, false};
}

[[nodiscard]] inline Status invalid_batch(const char* argument, std::int64_t index, std::int64_t value,
                                          const char* requirement, std::int64_t bound) noexcept {
  return {StatusCode::invalid_batch, argument, requirement, index, value, bound, true};
}

[[nodiscard]] inline Status validate_size(const char* argument, std::size_t size, std::int64_t expected) noexcept {
  if (size != 0 && static_cast<std::int64_t>(size) != expected) {
    return invalid_batch(argument, -1, static_cast<std::int64_t>(size), "its size must be", expected);
  }
  return {};
}

[[nodiscard]] inline Status validate_positions(const PositionSpan& positions, std::int64_t rows) noexcept {
  if (positions.empty()) {
    return {};
  }
  if (positions.axes() < 1) {
    return invalid_batch("positions.axes", -1, positions.axes(), "must be at least", 1);
  }
  if (static_cast<std::size_t>(positions.axes()) > positions.size()) {  // whatever the strides: work goes by axes
    return invalid_batch("positions.axes", -1, positions.axes(), "must not exceed the size of positions,",
                         static_cast<std::int64_t>(positions.size()));
  }
  if (positions.token_stride() < 0) {
    return invalid_batch("positions.token_stride", -1, positions.token_stride(), "must not be negative");
  }
  if (positions.axis_stride() < 0) {
    return invalid_batch("positions.axis_stride", -1, positions.axis_stride(), "must not be negative");
  }
  if (positions.axes() == 1 && positions.token_stride() == 1) {
    return validate_size("positions", positions.size(), rows);
  }
  std::int64_t along_rows = 0;
  std::int64_t along_axes = 0;
  std::int64_t last = 0;
  const bool overflow =
      __builtin_mul_overflow(rows > 0 ? rows - 1 : 0, positions.token_stride(), &along_rows) ||
      __builtin_mul_overflow(std::int64_t{positions.axes()} - 1, positions.axis_stride(), &along_axes) ||
      __builtin_add_overflow(along_rows, along_axes, &last);
  if (overflow || static_cast<std::uint64_t>(last) >= positions.size()) {
    return invalid_batch("positions", -1, static_cast<std::int64_t>(positions.size()),
                         "its size must exceed the last element that the strides reach,",
                         overflow ? std::numeric_limits<std::int64_t>::max() : last);
  }
  return {};
}

// The rules that need no look into the arrays, which may lie on a device.
template <TokenId Token>
[[nodiscard]] Status validate_sizes(const RaggedBatch<Token>& batch) noexcept {
  const std::int64_t rows = batch.rows();
  const std::int64_t sequences = batch.sequences();
  if (static_cast<std::uint64_t>(rows) > static_cast<std::uint64_t>(max_rows)) {
    return invalid_batch(batch.tokens.empty() ? "token_keys" : "tokens", -1, rows, "its size must not exceed",
                         max_rows);
  }
  if (sequences < 0) {
    return invalid_batch("cu_seqlens", -1, 0, "its size must be the number of sequences plus one, at least", 1);
  }
  if (sequences >= max_rows) {
    return invalid_batch("cu_seqlens", -1, sequences + 1, "its size must not exceed", max_rows);
  }
  if (Status s = validate_size("token_keys", batch.token_keys.size(), rows); !s.ok()) {
    return s;
  }
  if (Status s = validate_positions(batch.positions, rows); !s.ok()) {
    return s;
  }
  if (Status s = validate_size("sequence_keys", batch.sequence_keys.size(), sequences); !s.ok()) {
    return s;
  }
  if (Status s = validate_size("past_lengths", batch.past_lengths.size(), sequences); !s.ok()) {
    return s;
  }
  return validate_size("opt_out", batch.opt_out.size(), sequences);
}

}  // namespace detail

// Checks every rule of a batch; reads cu_seqlens and past_lengths, O(B). Nothing else is read.
template <TokenId Token>
[[nodiscard]] Status validate(const RaggedBatch<Token>& batch) noexcept {
  using detail::invalid_batch;
  if (Status s = detail::validate_sizes(batch); !s.ok()) {
    return s;
  }
  const std::span<const std::int32_t> cu = batch.cu_seqlens;
  if (cu[0] != 0) {
    return invalid_batch("cu_seqlens", 0, cu[0], "must be", 0);
  }
  for (std::size_t s = 1; s < cu.size(); ++s) {
    if (cu[s] < cu[s - 1]) {
      return invalid_batch("cu_seqlens", static_cast<std::int64_t>(s), cu[s],
                           "must not be less than the entry before it,", cu[s - 1]);
    }
  }
  if (cu.back() != batch.rows()) {
    return invalid_batch("cu_seqlens", batch.sequences(), cu.back(), "must be the number of rows,", batch.rows());
  }
  for (std::size_t s = 0; s < batch.past_lengths.size(); ++s) {
    if (batch.past_lengths[s] < 0) {
      return invalid_batch("past_lengths", static_cast<std::int64_t>(s), batch.past_lengths[s], "must not be negative");
    }
  }
  return {};
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
