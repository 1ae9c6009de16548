// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "radixmlp/config.hpp"
#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail {

// Rows of a list that one work item takes. A power of two, so that sums by items form binary trees.
inline constexpr int unit_bits = 6;
inline constexpr std::int64_t unit_rows = 1 << unit_bits;

// Lists are cut by levels: a leaf of level l is unit_rows^l entries. Shifts, not divisions: on a device those of 64
// bits are calls.
[[nodiscard]] RADIXMLP_HOST_DEVICE constexpr std::int64_t leaf_of(int level) {
  return std::int64_t{1} << unit_bits * level;
}
[[nodiscard]] RADIXMLP_HOST_DEVICE constexpr std::int64_t leaves_of(std::int64_t entries, int level) {
  return (entries + leaf_of(level) - 1) >> unit_bits * level;
}

// A piece of list `row`: entries first .. first + entries of the values. It starts `unit_rows` to the power of a level
// times a whole number behind the list's start, and is the list's first piece where `leads`.
struct RowUnit {
  std::int32_t row = -1;  // -1: there is none
  bool leads = false;
  std::int64_t first = 0;
  std::int64_t entries = 0;
};

// The last list that starts before `position`, or -1. That list is not empty where position lies within the values.
[[nodiscard]] RADIXMLP_HOST_DEVICE inline std::int32_t list_before(const std::int32_t* offsets, std::int32_t rows,
                                                                   std::int64_t position) {
  std::int32_t low = 0;
  std::int32_t high = rows;
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (offsets[middle] < position) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low - 1;
}

// Lists (offsets as in RowLists) cut into pieces of a leaf of the next level from their starts; above level 0 those
// lists that are longer than a leaf. Nothing but the offsets is needed to find a piece, because of all pieces that do
// not lead their list at most one starts in each stretch of leaf * unit_rows values, and of all lists longer than a
// leaf at most one starts in each stretch of a leaf.
//
// Work items 0 .. row_unit_count are these pieces, and some are empty.
[[nodiscard]] RADIXMLP_HOST_DEVICE inline std::int64_t leading_units(std::int32_t rows, std::int64_t values,
                                                                     int level) {
  return level == 0 ? rows : leaves_of(values, level);
}
[[nodiscard]] RADIXMLP_HOST_DEVICE inline std::int64_t row_unit_count(std::int32_t rows, std::int64_t values,
                                                                      int level) {
  return leading_units(rows, values, level) + leaves_of(values, level + 1);
}
[[nodiscard]] RADIXMLP_HOST_DEVICE inline RowUnit row_unit(const std::int32_t* offsets, std::int32_t rows,
                                                           std::int64_t values, int level, std::int64_t unit) {
  const std::int64_t leaf = leaf_of(level);
  const std::int64_t size = leaf_of(level + 1);
  const std::int64_t leading = leading_units(rows, values, level);
  RowUnit piece;
  if (unit < leading) {
    piece.row = level == 0 ? static_cast<std::int32_t>(unit) : list_before(offsets, rows, leaf * (unit + 1));
    piece.leads = true;
    piece.first = piece.row < 0 ? 0 : offsets[piece.row];
    if (level > 0 && (piece.row < 0 || piece.first < leaf * unit || offsets[piece.row + 1] - piece.first <= leaf)) {
      return {};
    }
  } else {
    const std::int64_t position = size * (unit - leading);
    piece.row = list_before(offsets, rows, position);
    if (piece.row < 0) {
      return {};
    }
    const std::int64_t start = offsets[piece.row];
    piece.first = start + leaves_of(position - start, level + 1) * size;
  }
  const std::int64_t left = offsets[piece.row + 1] - piece.first;
  piece.entries = left < size ? left : size;
  return left > 0 || piece.leads ? piece : RowUnit{};
}

inline void check_lists(const RowLists& lists) { check_entries("lists.offsets", lists.offsets.size(), 1); }

// Source row j goes to rows lists.of(j), of which there are as many as values.
[[nodiscard]] inline RowExtents list_extents(const RowLists& lists) noexcept {
  return {static_cast<std::int64_t>(lists.offsets.size()) - 1, static_cast<std::int64_t>(lists.values.size())};
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail
