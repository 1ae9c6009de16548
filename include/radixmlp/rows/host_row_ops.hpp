// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "radixmlp/executor.hpp"
#include "radixmlp/rows/host_rows.hpp"
#include "radixmlp/rows/row_map.hpp"
#include "radixmlp/rows/row_view.hpp"

// The calls of device_row_ops.cuh on the host: same arguments, same results to the last bit.

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

// map[i] as a row of the source, or zero_row.
template <Bounds bounds>
[[nodiscard]] std::int32_t bounded_row(std::int32_t row, std::int64_t source_rows) noexcept {
  if constexpr (bounds == Bounds::clamp) {
    return static_cast<std::int32_t>(std::min<std::int64_t>(std::max(row, 0), source_rows - 1));
  } else if constexpr (bounds == Bounds::zero) {
    return in_rows(row, source_rows) ? row : zero_row;
  }
  return row;
}

template <Bounds bounds>
void check_entries_in_rows(std::span<const std::int32_t> map, std::int64_t source_rows) {
  if constexpr (bounds == Bounds::trap) {
    for (std::size_t i = 0; i < map.size(); ++i) {
      if (!in_rows(map[i], source_rows)) {
        raise(invalid_rows("map.map", static_cast<std::int64_t>(i), map[i], "must be a row of the source, below",
                           source_rows));
      }
    }
  }
}

inline void copy_or_zero_row(const ByteRows& rows, std::int64_t target_row, std::int32_t source_row) noexcept {
  if (source_row == zero_row) {
    zero_rows(rows, target_row, target_row + 1);
  } else {
    copy_run(rows, target_row, source_row, 1);
  }
}

}  // namespace detail

// target[i] = source[map[i]], and zeros behind the mapped rows, for every RowCopy{source, target}. Returns when the rows
// are written. Throws InvalidRows before any row is.
template <RowOptions options = RowOptions{}, HostExecutor Executor, class... Sources, class... Targets>
void map_rows(const Executor& executor, const RowMap& map, const RowCopy<Sources, Targets>&... copies) {
  detail::check_map(map);
  const auto tensors = detail::checked_bytes({map.source_rows, map.target_rows}, copies...);
  const auto capacity = static_cast<std::int64_t>(map.map.size());
  const std::int64_t mapped = map.count == nullptr ? capacity : *map.count;
  if (!detail::in_rows(mapped, capacity + 1)) {
    return;
  }
  const std::span<const std::int32_t> entries = map.map.first(static_cast<std::size_t>(mapped));
  detail::check_entries_in_rows<options.bounds>(entries, map.source_rows);
  detail::copy_rows(executor, tensors, mapped,
                    [&](const detail::ByteRows& rows, std::int64_t first, std::int64_t last) {
                      if constexpr (options.bounds == Bounds::trust || options.bounds == Bounds::trap) {
                        detail::copy_mapped_rows(rows, entries, first, last);
                      } else {
                        for (std::int64_t i = first; i < last; ++i) {
                          detail::copy_or_zero_row(rows, i,
                                                   detail::bounded_row<options.bounds>(
                                                       entries[static_cast<std::size_t>(i)], map.source_rows));
                        }
                      }
                    });
  for (const detail::ByteRows& rows : tensors) {
    detail::zero_rows(rows, mapped, map.target_rows);
  }
}

// cache[slots[i]] = compact[scatter[i]] for i < N where slots[i] is not negative, for every RowCopy{compact, cache}.
// Slots beyond a cache's rows are trusted not to be there, or refused, or left out (Bounds::clamp and zero). Where two
// rows go to one slot, they must be copies of one compact row; check_slots finds others. Throws InvalidRows before any
// row is written.
template <RowOptions options = RowOptions{}, HostExecutor Executor, class... Sources, class... Targets>
void scatter_to_slots(const Executor& executor, const PrefixIndexView& index, const Slots& slots,
                      const RowCopy<Sources, Targets>&... copies) {
  detail::check_slots_size(index, slots);
  const detail::RowExtents extents = detail::slot_extents(index, copies...);
  const auto tensors = detail::checked_bytes(extents, copies...);
  detail::check_entries_in_rows<options.bounds>(index.scatter, index.compact_rows);
  for (std::int64_t i = 0; options.bounds == Bounds::trap && i < index.ragged_rows; ++i) {
    if (slots[i] >= extents.target_rows) {
      detail::raise(detail::invalid_rows("slots", i, slots[i], "must be a row of the cache, below",
                                         extents.target_rows));
    }
  }
  const std::array target_rows{copies.target.rows()...};
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    detail::copy_rows(executor, std::span(tensors).subspan(t, 1), index.ragged_rows,
                      [&](const detail::ByteRows& rows, std::int64_t first, std::int64_t last) {
                        for (std::int64_t i = first; i < last; ++i) {
                          const std::int64_t slot = slots[i];
                          if (slot >= 0 && (options.bounds == Bounds::trust || slot < target_rows[t])) {
                            detail::copy_or_zero_row(
                                rows, slot,
                                detail::bounded_row<options.bounds>(index.scatter[static_cast<std::size_t>(i)],
                                                                    index.compact_rows));
                          }
                        }
                      });
  }
}

// int32 entries of memory that check_slots needs for a cache of so many rows.
[[nodiscard]] inline std::size_t check_slots_entries(std::int64_t cache_rows) noexcept {
  return static_cast<std::size_t>(cache_rows);
}

// Whether scatter_to_slots writes every row of a cache in one way: no slot is beyond it, and none takes two different
// compact rows. Index and slots in host memory, `memory` the caller's; O(N + cache_rows). Throws InvalidRows with the
// first slot that does not fit.
inline void check_slots(const PrefixIndexView& index, const Slots& slots, std::int64_t cache_rows,
                        std::span<std::int32_t> memory) {
  detail::check_slots_size(index, slots);
  if (cache_rows < 0 || memory.size() < check_slots_entries(cache_rows)) {
    detail::raise(detail::invalid_rows("memory", -1, static_cast<std::int64_t>(memory.size()),
                                       "its size must be at least", cache_rows));
  }
  std::fill_n(memory.begin(), cache_rows, -1);
  for (std::int64_t i = 0; i < index.ragged_rows; ++i) {
    const std::int64_t slot = slots[i];
    if (slot < 0) {
      continue;
    }
    if (slot >= cache_rows) {
      detail::raise(detail::invalid_rows("slots", i, slot, "must be a row of the cache, below", cache_rows));
    }
    std::int32_t& taken = memory[static_cast<std::size_t>(slot)];
    const std::int32_t row = index.scatter[static_cast<std::size_t>(i)];
    if (taken >= 0 && taken != row) {
      detail::raise(detail::invalid_rows("slots", i, slot, "already takes another row, compact row", taken));
    }
    taken = row;
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
