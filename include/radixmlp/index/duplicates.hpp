// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "radixmlp/index/prefix_index.hpp"

namespace radixmlp::inline v0 {

// Lists of integers, one for each compact row: list j is values[offsets[j]] .. values[offsets[j + 1]]. Host memory of
// the caller's.
struct RowLists {
  std::span<const std::int32_t> offsets;  // [N'+1]
  std::span<const std::int32_t> values;   // [N]

  [[nodiscard]] std::span<const std::int32_t> of(std::int32_t row) const noexcept {
    const auto j = static_cast<std::size_t>(row);
    return values.subspan(static_cast<std::size_t>(offsets[j]), static_cast<std::size_t>(offsets[j + 1] - offsets[j]));
  }
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// int32 entries of memory that the lists of an index need.
[[nodiscard]] inline std::size_t row_lists_entries(const PrefixIndexView& index) noexcept {
  return static_cast<std::size_t>(index.compact_rows) + 1 + static_cast<std::size_t>(index.ragged_rows);
}

namespace detail {

inline void check_entries(const char* argument, std::size_t size, std::size_t needed) {
  if (size < needed) {
    raise(invalid_batch(argument, -1, static_cast<std::int64_t>(size), "its size must be at least",
                        static_cast<std::int64_t>(needed)));
  }
}

// Counting sort of the entries of a map by their row; value(i) is what entry i puts into the list of its row.
template <class Value>
[[nodiscard]] RowLists make_row_lists(std::span<const std::int32_t> map, std::int32_t compact_rows,
                                      std::span<std::int32_t> memory, Value value) {
  const auto rows = static_cast<std::size_t>(compact_rows);
  check_entries("memory", memory.size(), rows + 1 + map.size());
  const std::span<std::int32_t> offsets = memory.first(rows + 1);
  const std::span<std::int32_t> values = memory.subspan(rows + 1, map.size());
  std::memset(offsets.data(), 0, offsets.size_bytes());
  // Counts one place late, so that offsets[j] ends as the start of list j once the filling below has moved it on.
  for (const std::int32_t row : map) {
    if (static_cast<std::size_t>(row) + 2 <= rows) {
      ++offsets[static_cast<std::size_t>(row) + 2];
    }
  }
  for (std::size_t j = 1; j <= rows; ++j) {
    offsets[j] += offsets[j - 1];
  }
  for (std::size_t i = 0; i < map.size(); ++i) {
    const auto row = static_cast<std::size_t>(map[i]);
    values[static_cast<std::size_t>(offsets[row + 1]++)] = value(static_cast<std::int32_t>(i));
  }
  return {offsets, values};
}

}  // namespace detail

// The inverse of any map to compact rows, such as a plan's key_slots: for each row the entries that name it, rising.
// `memory` has rows + 1 + map.size() entries. O(map + rows), no allocation. Throws InvalidBatch where it has fewer.
[[nodiscard]] inline RowLists inverse_of(std::span<const std::int32_t> map, std::int32_t rows,
                                         std::span<std::int32_t> memory) {
  return detail::make_row_lists(map, rows, memory, [](std::int32_t i) { return i; });
}

// The inverse of `scatter`: for each compact row the ragged rows that are equal to it, rising; the first of them is
// gather[j]. O(N), no allocation. Throws InvalidBatch where `memory` is below row_lists_entries(index).
[[nodiscard]] inline RowLists duplicates(const PrefixIndexView& index, std::span<std::int32_t> memory) {
  detail::check_without_counts(index);
  return inverse_of(index.scatter, index.compact_rows, memory);
}

// For each compact row the sequences that it is part of, rising. A sequence has a row at most once, so the lists are as
// long as those of `duplicates`. O(N), no allocation, the same memory.
[[nodiscard]] inline RowLists row_sequences(const PrefixIndexView& index, std::span<std::int32_t> memory) {
  detail::check_without_counts(index);
  std::size_t s = 0;
  return detail::make_row_lists(index.scatter, index.compact_rows, memory, [&](std::int32_t i) {
    while (index.ragged_cu[s + 1] <= i) {
      ++s;
    }
    return static_cast<std::int32_t>(s);
  });
}

// out[j] = number of ragged rows that compact row j stands for: the weight of its loss or of its expert load. [N'] or
// longer; entries behind N' are not touched. O(N), no allocation.
inline void multiplicities(const PrefixIndexView& index, std::span<std::int32_t> out) {
  detail::check_without_counts(index);
  detail::check_entries("out", out.size(), static_cast<std::size_t>(index.compact_rows));
  for (std::int32_t& count : out.first(static_cast<std::size_t>(index.compact_rows))) {
    count = 0;
  }
  for (const std::int32_t row : index.scatter) {
    ++out[static_cast<std::size_t>(row)];
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
