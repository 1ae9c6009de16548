// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>

#include "radixmlp/config.hpp"
#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/rows/row_units.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

// Columns that are summed side by side.
template <int Columns>
struct Sums {
  static_assert(Columns > 0);
  float values[static_cast<std::size_t>(Columns)];
};

template <int Columns>
RADIXMLP_HOST_DEVICE inline void add(Sums<Columns>& left, const Sums<Columns>& right) {
  for (int c = 0; c < Columns; ++c) {
    left.values[c] += right.values[c];
  }
}

// load(0) + ... + load(count - 1), 1 <= count <= unit_rows, as a binary tree of depth ceil(log2 count): its left half
// is the largest power of two of loads below count. The same tree, and so the same bits, wherever it runs.
template <int Columns, class Load>
[[nodiscard]] RADIXMLP_HOST_DEVICE inline Sums<Columns> sum_tree(int count, const Load& load) {
  constexpr int levels = 5;  // blocks of 4, 8, ..., 64 that wait for their right neighbour
  Sums<Columns> waiting[levels] = {};
  int blocks = 0;
  for (int i = 0; i < count; i += 4, ++blocks) {
    Sums<Columns> block = load(i);
    if (i + 4 <= count) {  // four loads before the first use
      Sums<Columns> second = load(i + 1);
      Sums<Columns> third = load(i + 2);
      const Sums<Columns> fourth = load(i + 3);
      add(block, second);
      add(third, fourth);
      add(block, third);
    } else if (i + 1 < count) {
      add(block, load(i + 1));
      if (i + 2 < count) {
        add(block, load(i + 2));
      }
    }
    bool carries = true;
    for (int level = 0; level < levels; ++level) {
      if (carries && (blocks >> level & 1) != 0) {
        Sums<Columns> left = waiting[level];
        add(left, block);
        block = left;
      } else if (carries) {
        waiting[level] = block;
        carries = false;
      }
    }
  }
  Sums<Columns> sum{};
  bool any = false;
  for (int level = 0; level < levels; ++level) {
    if ((blocks >> level & 1) != 0) {
      Sums<Columns> left = waiting[level];
      if (any) {
        add(left, sum);
      }
      sum = left;
      any = true;
    }
  }
  return sum;
}

// Sums of lists longer than unit_rows go by levels: pieces of unit_rows entries first, then of so many sums of the
// level below. Level l reads leaves of unit_rows^l entries.
[[nodiscard]] inline int sum_levels(std::int64_t longest) noexcept {
  int levels = 1;
  for (std::int64_t reach = unit_rows; reach < longest; reach *= unit_rows) {
    ++levels;
  }
  return levels;
}

// Rows of partial sums that a level reads: a piece that starts at value x has row 2 (x / leaf), or the next where it
// does not lead its list (row_units.hpp says why no two share one).
[[nodiscard]] RADIXMLP_HOST_DEVICE inline std::int64_t partial_row(std::int64_t first, bool leads, int level) {
  return 2 * (first >> unit_bits * level) + (leads ? 0 : 1);
}
[[nodiscard]] inline std::int64_t partial_rows(std::int64_t values, int level) noexcept {
  return 2 * leaves_of(values, level);
}

// Rows of values to rows of lists.
template <class Source, class Target>
[[nodiscard]] ByteRows checked_sum(const RowLists& lists, const RowCopy<Source, Target>& rows) {
  check_lists(lists);
  return checked_bytes(
      {static_cast<std::int64_t>(lists.values.size()), static_cast<std::int64_t>(lists.offsets.size()) - 1}, rows)[0];
}

}  // namespace detail

// Floats of device memory that sum_duplicates needs on a stream, for lists of `values` entries in all (N), no list
// longer than `longest`, and rows of `width`. A compact row is in a sequence at most once, so the number of sequences
// bounds the lists of an index; up to 64 nothing is needed.
[[nodiscard]] inline std::size_t sum_workspace_floats(std::int64_t values, std::int64_t longest,
                                                      std::int64_t width) noexcept {
  std::int64_t rows = 0;
  for (int level = 1; level < detail::sum_levels(longest); ++level) {
    rows += detail::partial_rows(values, level);
  }
  return static_cast<std::size_t>(rows * width);
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
