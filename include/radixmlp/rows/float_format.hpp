// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstdint>

#include "radixmlp/config.hpp"

namespace radixmlp::inline v0 {

// How sums read and write an element.
enum class FloatFormat : std::uint8_t { fp32, fp16, bf16 };

// 16-bit floats for hosts that have no types of their own.
struct Fp16 {
  std::uint16_t bits;
};
struct Bf16 {
  std::uint16_t bits;
};

// The format of T. Specialise it for an engine's own 16-bit type; cuda.cuh does for __half and __nv_bfloat16.
template <class T>
struct FloatFormatOf;
template <>
struct FloatFormatOf<float> {
  static constexpr FloatFormat value = FloatFormat::fp32;
};
template <>
struct FloatFormatOf<Fp16> {
  static constexpr FloatFormat value = FloatFormat::fp16;
};
template <>
struct FloatFormatOf<Bf16> {
  static constexpr FloatFormat value = FloatFormat::bf16;
};
template <class T>
struct FloatFormatOf<const T> : FloatFormatOf<T> {};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail {

// Exact. (std::bit_cast is not for device code.)
[[nodiscard]] RADIXMLP_HOST_DEVICE inline float bf16_to_float(std::uint16_t bits) {
  return __builtin_bit_cast(float, std::uint32_t{bits} << 16);
}
// To the nearest, ties to even; NaN stays NaN.
[[nodiscard]] RADIXMLP_HOST_DEVICE inline std::uint16_t float_to_bf16(float value) {
  const auto bits = __builtin_bit_cast(std::uint32_t, value);
  if ((bits & 0x7fffffff) > 0x7f800000) {
    return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  }
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

[[nodiscard]] inline float fp16_to_float(std::uint16_t bits) noexcept {
  const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
  const std::uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00) {  // infinity, NaN
    return std::bit_cast<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
  }
  if (magnitude < 0x400) {  // below the smallest normal, 2^-14: multiples of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + ((127 - 15) << 23)));
}
[[nodiscard]] inline std::uint16_t float_to_fp16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return static_cast<std::uint16_t>(sign | 0x7e00);
  }
  if (magnitude >= 0x477ff000) {  // 65520 and up round to infinity
    return static_cast<std::uint16_t>(sign | 0x7c00);
  }
  if (magnitude < 0x38800000) {  // below 2^-14: the addition rounds to a multiple of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000));
  }
  const std::uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return static_cast<std::uint16_t>(sign | (rounded - ((127 - 15) << 23)) >> 13);
}

// An element as host code reads and writes it.
template <FloatFormat format>
struct HostFloat;
template <>
struct HostFloat<FloatFormat::fp32> {
  using Bits = float;
  static float load(float value) noexcept { return value; }
  static float store(float value) noexcept { return value; }
};
template <>
struct HostFloat<FloatFormat::fp16> {
  using Bits = std::uint16_t;
  static float load(std::uint16_t bits) noexcept { return fp16_to_float(bits); }
  static std::uint16_t store(float value) noexcept { return float_to_fp16(value); }
};
template <>
struct HostFloat<FloatFormat::bf16> {
  using Bits = std::uint16_t;
  static float load(std::uint16_t bits) noexcept { return bf16_to_float(bits); }
  static std::uint16_t store(float value) noexcept { return float_to_bf16(value); }
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail
