// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "radixmlp/index/prefix_index.hpp"
#include "radixmlp/index/ragged_batch.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

inline void check_same_batch(std::int64_t rows, std::int64_t sequences, const PrefixIndexView& index) {
  check_without_counts(index);
  if (rows != index.ragged_rows) {
    raise(invalid_batch("batch.rows", -1, rows, "must be the rows of the index,", index.ragged_rows));
  }
  if (sequences != index.sequences()) {
    raise(invalid_batch("batch.sequences", -1, sequences, "must be the sequences of the index,", index.sequences()));
  }
}

inline void check_output(std::size_t size, std::int64_t needed) {
  if (static_cast<std::int64_t>(size) < needed) {
    raise(invalid_batch("out", -1, static_cast<std::int64_t>(size), "its size must be at least", needed));
  }
}

// f(sequence, first ragged row, first compact row, rows) for every run of new rows.
template <class F>
void for_each_new_run(const PrefixIndexView& index, F f) {
  for (std::size_t s = 0; s + 1 < index.compact_cu.size(); ++s) {
    const std::int32_t rows = index.compact_cu[s + 1] - index.compact_cu[s];
    if (rows > 0) {
      f(s, index.ragged_cu[s + 1] - rows, index.compact_cu[s], rows);
    }
  }
}

// The value of an integer of any width, as it was in the positions' own type.
[[nodiscard]] inline std::int64_t load_integer(const PositionSpan& positions, std::int64_t element) noexcept {
  const std::byte* from = static_cast<const std::byte*>(positions.data()) + element * positions.element_bytes();
  const auto as = [from]<class T>(T value) {
    std::memcpy(&value, from, sizeof value);
    return static_cast<std::int64_t>(value);
  };
  const bool is_signed = positions.is_signed();
  switch (positions.element_bytes()) {
    case 1:
      return is_signed ? as(std::int8_t{}) : as(std::uint8_t{});
    case 2:
      return is_signed ? as(std::int16_t{}) : as(std::uint16_t{});
    case 4:
      return is_signed ? as(std::int32_t{}) : as(std::uint32_t{});
    default:
      return as(std::int64_t{});
  }
}

}  // namespace detail

// Token ids of the compact rows, for the embedding: out[j] = tokens[gather[j]], 0 behind N'. `out` is on the host, of
// padded_rows entries or more. O(N'), at most B block copies. Throws InvalidBatch before anything is written.
template <TokenId Token>
void compact_tokens(const RaggedBatch<Token>& batch, const PrefixIndexView& index, std::span<Token> out) {
  detail::check_same_batch(batch.rows(), batch.sequences(), index);
  detail::check_output(out.size(), index.padded_rows);
  if (batch.tokens.empty()) {
    std::fill_n(out.begin(), index.padded_rows, Token{0});
    return;
  }
  detail::for_each_new_run(index, [&](std::size_t, std::int32_t source, std::int32_t target, std::int32_t rows) {
    std::copy_n(batch.tokens.begin() + source, rows, out.begin() + target);
  });
  std::fill(out.begin() + index.compact_rows, out.begin() + index.padded_rows, Token{0});
}

// Positions of the compact rows, for RoPE: axis a of row j is out[a * padded_rows + j], 0 behind N'. Where the batch
// has none, a row's position is its place in its sequence behind the sequence's past. `out` is on the host, of axes *
// padded_rows entries or more; values must fit its type. O(N' axes). Throws InvalidBatch before anything is written.
template <TokenId Token, std::integral Position>
void compact_positions(const RaggedBatch<Token>& batch, const PrefixIndexView& index, std::span<Position> out) {
  const PositionSpan& positions = batch.positions;
  const std::int64_t axes = positions.empty() ? 1 : positions.axes();
  detail::check_same_batch(batch.rows(), batch.sequences(), index);
  detail::check_output(out.size(), axes * index.padded_rows);
  for (std::int64_t axis = 0; axis < axes; ++axis) {
    const std::span<Position> row_out =
        out.subspan(static_cast<std::size_t>(axis * index.padded_rows), static_cast<std::size_t>(index.padded_rows));
    detail::for_each_new_run(index, [&](std::size_t s, std::int32_t source, std::int32_t target, std::int32_t rows) {
      const std::int64_t past = batch.past_lengths.empty() ? 0 : batch.past_lengths[s];
      for (std::int32_t i = 0; i < rows; ++i) {
        const std::int64_t row = source + i;
        const std::int64_t position =
            positions.empty()
                ? row - index.ragged_cu[s] + past
                : detail::load_integer(positions, row * positions.token_stride() + axis * positions.axis_stride());
        row_out[static_cast<std::size_t>(target + i)] = static_cast<Position>(position);
      }
    });
    std::fill(row_out.begin() + index.compact_rows, row_out.end(), Position{0});
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
