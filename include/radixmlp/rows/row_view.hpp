// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "radixmlp/error.hpp"
#include "radixmlp/index/prefix_index.hpp"

namespace radixmlp::inline v0 {

inline constexpr std::int64_t dynamic_width = -1;

// `rows` rows of `width` elements, `stride` elements from one row's start to the next. Not owned; host or device
// memory. T is any trivially copyable type (float, __half, __nv_bfloat16, double, std::int8_t for quantised bytes, ...;
// const for a source); rows move as bytes. A static Width is checked when the program is compiled.
//
// A source's stride may be 0 (one row for all); a target's must be at least its width.
template <class T, std::int64_t Width = dynamic_width>
class RowView {
  static_assert(std::is_trivially_copyable_v<T>, "radixmlp: rows move as bytes, so T must be trivially copyable");
  static_assert(Width == dynamic_width || Width > 0, "radixmlp: a static width must be positive");

 public:
  using value_type = T;
  static constexpr std::int64_t static_width = Width;

  RowView() = default;

  // Static width; contiguous unless a stride is given.
  RADIXMLP_HOST_DEVICE constexpr RowView(T* data, std::int64_t rows) noexcept requires(Width != dynamic_width)
      : RowView(data, rows, Width, Width) {}

  // The width must equal a static Width.
  RADIXMLP_HOST_DEVICE constexpr RowView(T* data, std::int64_t rows, std::int64_t width) noexcept
      : RowView(data, rows, width, width) {}
  RADIXMLP_HOST_DEVICE constexpr RowView(T* data, std::int64_t rows, std::int64_t width, std::int64_t stride) noexcept
      : data_(data), rows_(rows), width_(width), stride_(stride) {}

  // To const, and from static to run-time width.
  template <class U, std::int64_t OtherWidth>
  requires(std::is_convertible_v<U (*)[], T (*)[]> &&
           (Width == dynamic_width || Width == OtherWidth)) RADIXMLP_HOST_DEVICE
      constexpr RowView(const RowView<U, OtherWidth>& other) noexcept
      : RowView(other.data(), other.rows(), other.width(), other.stride()) {}

  [[nodiscard]] RADIXMLP_HOST_DEVICE constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] RADIXMLP_HOST_DEVICE constexpr std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] RADIXMLP_HOST_DEVICE constexpr std::int64_t width() const noexcept { return width_; }
  [[nodiscard]] RADIXMLP_HOST_DEVICE constexpr std::int64_t stride() const noexcept { return stride_; }
  [[nodiscard]] RADIXMLP_HOST_DEVICE constexpr T* row(std::int64_t i) const noexcept { return data_ + i * stride_; }

  // Columns first .. first + width of the same rows, such as Q in a packed QKV.
  [[nodiscard]] constexpr RowView<T> columns(std::int64_t first, std::int64_t width) const noexcept {
    return {rows_ == 0 ? data_ : data_ + first, rows_, width, stride_};  // of no rows, data may be null
  }
  [[nodiscard]] constexpr RowView first_rows(std::int64_t rows) const noexcept {
    return {data_, rows, width_, stride_};
  }
  // Rows first .. first + rows.
  [[nodiscard]] constexpr RowView rows_from(std::int64_t first, std::int64_t rows) const noexcept {
    return {row(first), rows, width_, stride_};
  }

 private:
  T* data_ = nullptr;
  std::int64_t rows_ = 0;
  std::int64_t width_ = Width == dynamic_width ? 0 : Width;
  std::int64_t stride_ = Width == dynamic_width ? 0 : Width;
};

template <class T>
inline constexpr bool is_row_view = false;
template <class T, std::int64_t Width>
inline constexpr bool is_row_view<RowView<T, Width>> = true;

// One tensor of a call that moves several (Q, K and V; hidden states and residual): source rows to target rows.
template <class Source, class Target>
struct RowCopy {
  static_assert(is_row_view<Source> && is_row_view<Target>, "radixmlp: RowCopy takes two RowViews");
  static_assert(!std::is_const_v<typename Target::value_type>, "radixmlp: the target of a row copy must not be const");
  static_assert(std::is_same_v<std::remove_const_t<typename Source::value_type>, typename Target::value_type>,
                "radixmlp: source and target of a row copy must have the same element type");
  static_assert(Source::static_width == Target::static_width || Source::static_width == dynamic_width ||
                    Target::static_width == dynamic_width,
                "radixmlp: source and target of a row copy must have the same width");

  Source source;
  Target target;
};
template <class Source, class Target>
RowCopy(Source, Target) -> RowCopy<Source, Target>;

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail {

// A row copy in bytes: what kernels and host loops take.
struct ByteRows {
  const std::byte* source;
  std::byte* target;
  std::int64_t source_stride;
  std::int64_t target_stride;
  std::int64_t row_bytes;
};

// Where a call reads and writes: source rows [0, source_rows) and target rows [0, target_rows).
struct RowExtents {
  std::int64_t source_rows;
  std::int64_t target_rows;
};

[[nodiscard]] inline Status invalid_rows(const char* argument, std::int64_t index, std::int64_t value,
                                         const char* requirement, std::int64_t bound) noexcept {
  return {StatusCode::invalid_rows, argument, requirement, index, value, bound, true};
}

// Whether byte ranges of the rows meet. Views into the columns of one buffer (equal strides) may interleave.
[[nodiscard]] inline bool rows_overlap(const ByteRows& rows, const RowExtents& extents) noexcept {
  if (rows.row_bytes == 0 || extents.source_rows == 0 || extents.target_rows == 0) {
    return false;
  }
  const auto source = reinterpret_cast<std::intptr_t>(rows.source);
  const auto target = reinterpret_cast<std::intptr_t>(rows.target);
  const std::int64_t source_end = source + (extents.source_rows - 1) * rows.source_stride + rows.row_bytes;
  const std::int64_t target_end = target + (extents.target_rows - 1) * rows.target_stride + rows.row_bytes;
  if (source_end <= target || target_end <= source) {
    return false;
  }
  if (rows.source_stride != rows.target_stride || rows.source_stride == 0) {
    return true;
  }
  const std::int64_t stride = rows.source_stride;
  const std::int64_t offset = ((target - source) % stride + stride) % stride;
  return offset < rows.row_bytes || offset + rows.row_bytes > stride;
}

// Checks tensor `t` of a call and turns it into bytes. `index` in an error is the tensor's number.
template <class Source, class Target>
[[nodiscard]] Status to_bytes(const RowCopy<Source, Target>& copy, std::int64_t t, const RowExtents& extents,
                              ByteRows& bytes) noexcept {
  constexpr std::int64_t element = sizeof(typename Target::value_type);
  constexpr std::int64_t max_elements = std::int64_t{1} << 47;  // of a row
  constexpr std::int64_t max_bytes = std::int64_t{1} << 61;     // of all rows; keeps every address in 64 bits
  const auto& [source, target] = copy;
  const auto fail = [&](const char* argument, std::int64_t value, const char* requirement, std::int64_t bound) {
    return invalid_rows(argument, t, value, requirement, bound);
  };
  if (source.width() < 0 || source.width() > max_elements) {
    return fail("source.width", source.width(), "must be from 0 to", max_elements);
  }
  if (Source::static_width != dynamic_width && source.width() != Source::static_width) {
    return fail("source.width", source.width(), "must equal the static width,", Source::static_width);
  }
  if (target.width() != source.width()) {
    return fail("target.width", target.width(), "must equal the source's width,", source.width());
  }
  if (source.rows() < extents.source_rows) {
    return fail("source.rows", source.rows(), "must be at least", extents.source_rows);
  }
  if (target.rows() < extents.target_rows) {
    return fail("target.rows", target.rows(), "must be at least", extents.target_rows);
  }
  if (source.stride() != 0 && source.stride() < source.width()) {
    return fail("source.stride", source.stride(), "must be 0 or at least the width,", source.width());
  }
  if (target.stride() < target.width()) {
    return fail("target.stride", target.stride(), "must be at least the width,", target.width());
  }
  const std::int64_t longest = source.stride() < target.stride() ? target.stride() : source.stride();
  if (longest > max_elements) {
    return fail("stride", longest, "must not exceed", max_elements);
  }
  const std::int64_t most = extents.source_rows < extents.target_rows ? extents.target_rows : extents.source_rows;
  const std::int64_t rows = most < 1 ? 1 : most;
  if (longest > max_bytes / element / rows) {
    return fail("stride", longest, "with so many rows must not exceed", max_bytes / element / rows);
  }
  const std::int64_t row_bytes = source.width() * element;
  if (row_bytes > 0 && extents.source_rows > 0 && source.data() == nullptr) {
    return fail("source.data", 0, "must not be null: rows to read,", extents.source_rows);
  }
  if (row_bytes > 0 && extents.target_rows > 0 && target.data() == nullptr) {
    return fail("target.data", 0, "must not be null: rows to write,", extents.target_rows);
  }
  bytes = {reinterpret_cast<const std::byte*>(source.data()), reinterpret_cast<std::byte*>(target.data()),
           source.stride() * element, target.stride() * element, row_bytes};
  if (rows_overlap(bytes, extents)) {
    return fail("target.data", static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(target.data())),
                "its rows must not overlap the source's, which start at",
                static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(source.data())));
  }
  return {};
}

// All tensors of a call, checked before the first row is written.
template <class... Copies>
[[nodiscard]] std::array<ByteRows, sizeof...(Copies)> checked_bytes(const RowExtents& extents,
                                                                    const Copies&... copies) {
  std::array<ByteRows, sizeof...(Copies)> bytes{};
  std::size_t t = 0;
  (..., (raise_unless_ok(to_bytes(copies, static_cast<std::int64_t>(t), extents, bytes[t])), ++t));
  return bytes;
}

[[nodiscard]] inline RowExtents gather_extents(const PrefixIndexView& index) noexcept {
  return {index.ragged_rows, index.padded_rows};
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail
