// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>

#include "radixmlp/c/radixmlp.h"
#include "radixmlp/index/prefix_index.hpp"
#include "radixmlp/index/ragged_batch.hpp"

namespace radixmlp_test {

// The library's types as the C ABI has them, with the sizes that they claim.

template <class T>
constexpr std::int32_t c_type() {
  constexpr bool is_signed = std::is_signed_v<T>;
  switch (sizeof(T)) {
    case 1:
      return is_signed ? RADIXMLP_INT8 : RADIXMLP_UINT8;
    case 2:
      return is_signed ? RADIXMLP_INT16 : RADIXMLP_UINT16;
    case 4:
      return is_signed ? RADIXMLP_INT32 : RADIXMLP_UINT32;
    default:
      return is_signed ? RADIXMLP_INT64 : RADIXMLP_UINT64;
  }
}

template <class T>
T sized() {
  T value{};
  value.size = sizeof value;
  return value;
}

inline radixmlp_int32s to_c(std::span<const std::int32_t> values) {
  return {values.data(), static_cast<std::int64_t>(values.size())};
}

inline radixmlp_array to_c(const radixmlp::KeySpan& keys) {
  return {keys.data(), static_cast<std::int64_t>(keys.size()),
          keys.key_bytes() == 16 ? RADIXMLP_KEY128 : RADIXMLP_UINT64};
}

template <class Token>
radixmlp_batch to_c(const radixmlp::RaggedBatch<Token>& batch) {
  auto c = sized<radixmlp_batch>();
  c.tokens = {batch.tokens.data(), static_cast<std::int64_t>(batch.tokens.size()), c_type<Token>()};
  c.cu_seqlens = to_c(batch.cu_seqlens);
  const radixmlp::PositionSpan& positions = batch.positions;
  const std::int32_t widths[] = {0, 1, 3, 0, 5, 0, 0, 0, 7};  // the signed type of so many bytes
  c.positions = {positions.data(), static_cast<std::int64_t>(positions.size()),
                 widths[positions.element_bytes()] + (positions.is_signed() ? 0 : 1)};
  if (positions.axes() != 1 || positions.token_stride() != 1 || positions.axis_stride() != 0) {
    c.position_axes = positions.axes();
    c.position_token_stride = positions.token_stride();
    c.position_axis_stride = positions.axis_stride();
  }
  c.token_keys = to_c(batch.token_keys);
  c.sequence_keys = to_c(batch.sequence_keys);
  c.past_lengths = to_c(batch.past_lengths);
  c.opt_out = {batch.opt_out.data(), static_cast<std::int64_t>(batch.opt_out.size())};
  return c;
}

// The other way, for what compares with the oracle.
inline radixmlp::PrefixIndexView from_c(const radixmlp_index& c) {
  const auto map = [](const std::int32_t* data, std::int64_t count) {
    return std::span(data, static_cast<std::size_t>(count));
  };
  radixmlp::PrefixIndexView view;
  view.gather = map(c.gather, c.padded_rows);
  view.scatter = map(c.scatter, c.ragged_rows);
  view.compact_cu = map(c.compact_cu, std::int64_t{c.sequences} + 1);
  view.ragged_cu = map(c.ragged_cu, std::int64_t{c.sequences} + 1);
  view.parent = map(c.parent, c.compact_rows);
  view.last_rows = map(c.last_rows, c.sequences);
  view.ragged_rows = c.ragged_rows;
  view.compact_rows = c.compact_rows;
  view.padded_rows = c.padded_rows;
  view.max_seqlen = c.max_seqlen;
  view.block = {static_cast<const std::byte*>(c.block), static_cast<std::size_t>(c.block_bytes)};
  return view;
}

}  // namespace radixmlp_test
