// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "radixmlp/executor.hpp"
#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/rows/float_format.hpp"
#include "radixmlp/rows/host_rows.hpp"
#include "radixmlp/rows/row_map.hpp"
#include "radixmlp/rows/row_runs.hpp"
#include "radixmlp/rows/row_sums.hpp"
#include "radixmlp/rows/row_units.hpp"
#include "radixmlp/rows/row_view.hpp"

// The calls of device_row_ops.cuh on the host: same arguments, same results to the last bit.

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

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
  const std::int64_t mapped = detail::mapped_rows(scatter_map(index));
  if (mapped < 0) {
    return;
  }
  detail::check_entries_in_rows<options.bounds>(index.scatter.first(static_cast<std::size_t>(mapped)),
                                                index.compact_rows);
  for (std::int64_t i = 0; options.bounds == Bounds::trap && i < mapped; ++i) {
    if (slots[i] >= extents.target_rows) {
      detail::raise(
          detail::invalid_rows("slots", i, slots[i], "must be a row of the cache, below", extents.target_rows));
    }
  }
  const std::array target_rows{copies.target.rows()...};
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    detail::copy_rows(
        executor, std::span(tensors).subspan(t, 1), index.compact_rows, mapped,
        [&](const detail::ByteRows& rows, std::int64_t first, std::int64_t last, detail::Footprint footprint) {
          detail::with_row_copy(rows, footprint, [&](const auto& copy_row) {
            for (std::int64_t i = first; i < last; ++i) {
              const std::int64_t slot = slots[i];
              if (slot < 0 || (options.bounds != Bounds::trust && slot >= target_rows[t])) {
                continue;
              }
              const std::int32_t row =
                  detail::bounded_row<options.bounds>(index.scatter[static_cast<std::size_t>(i)], index.compact_rows);
              if (row == detail::zero_row) {
                detail::zero_row_at(rows, slot);
              } else {
                copy_row(rows.target + slot * rows.target_stride, rows.source + row * rows.source_stride);
              }
            }
          });
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
  detail::check_without_counts(index);
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

namespace detail {

// The sum of `length` entries of a list from `first` on, columns first_column and on, along the tree of row_sums.hpp.
template <int Columns, FloatFormat format>
[[nodiscard]] Sums<Columns> sum_entries(const ByteRows& rows, std::span<const std::int32_t> entries, std::int64_t leaf,
                                        std::int64_t first_column) {
  using Float = HostFloat<format>;
  const auto length = static_cast<std::int64_t>(entries.size());
  return sum_tree<Columns>(static_cast<int>((length + leaf - 1) / leaf), [&](int i) {
    const std::int64_t first = i * leaf;
    if (leaf > 1) {
      const auto piece =
          entries.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(std::min(leaf, length - first)));
      return sum_entries<Columns, format>(rows, piece, leaf / unit_rows, first_column);
    }
    const std::byte* const row = rows.source + entries[static_cast<std::size_t>(first)] * rows.source_stride;
    Sums<Columns> sums;
    for (int c = 0; c < Columns; ++c) {
      typename Float::Bits bits;
      std::memcpy(&bits, row + (first_column + c) * std::int64_t{sizeof bits}, sizeof bits);
      sums.values[c] = Float::load(bits);
    }
    return sums;
  });
}

template <int Columns, FloatFormat format>
void sum_columns(const ByteRows& rows, std::span<const std::int32_t> entries, std::int64_t target_row,
                 std::int64_t first_column) {
  using Float = HostFloat<format>;
  Sums<Columns> sums{};
  if (!entries.empty()) {
    std::int64_t leaf = 1;
    while (leaf * unit_rows < static_cast<std::int64_t>(entries.size())) {
      leaf *= unit_rows;
    }
    sums = sum_entries<Columns, format>(rows, entries, leaf, first_column);
  }
  for (int c = 0; c < Columns; ++c) {
    const typename Float::Bits bits = Float::store(sums.values[c]);
    std::memcpy(rows.target + target_row * rows.target_stride + (first_column + c) * std::int64_t{sizeof bits}, &bits,
                sizeof bits);
  }
}

}  // namespace detail

// Copies every run, for every RowCopy{source, target}. The runs are trusted; check_runs checks them. Returns when the
// rows are written. Throws InvalidRows before any row is.
template <HostExecutor Executor, class... Sources, class... Targets>
void copy_runs(const Executor& executor, const RowRuns& runs, const RowCopy<Sources, Targets>&... copies) {
  const auto tensors = detail::checked_bytes({runs.source_rows, runs.target_rows}, copies...);
  for (const detail::ByteRows& rows : tensors) {
    executor.parallel_for(rows.row_bytes == 0 ? 0 : static_cast<std::int64_t>(runs.runs.size()), [&](std::int64_t r) {
      const RowRun& run = runs.runs[static_cast<std::size_t>(r)];
      detail::with_row_copy(rows, detail::Footprint::cache, [&](const auto& copy_row) {
        detail::copy_run(rows, run.target, run.source, run.rows, detail::Footprint::cache, copy_row);
      });
    });
  }
}

// Target row i = source row j for every i in list j, for every RowCopy{source, target}: with the lists of `duplicates`,
// scatter_rows. The lists name rows below lists.values.size(), each at most once; they are trusted.
template <HostExecutor Executor, class... Sources, class... Targets>
void multicast_rows(const Executor& executor, const RowLists& lists, const RowCopy<Sources, Targets>&... copies) {
  detail::check_lists(lists);
  const detail::RowExtents extents = detail::list_extents(lists);
  const auto tensors = detail::checked_bytes(extents, copies...);
  for (const detail::ByteRows& rows : tensors) {
    executor.parallel_for(rows.row_bytes == 0 ? 0 : extents.source_rows, [&](std::int64_t j) {
      detail::with_row_copy(rows, detail::Footprint::cache, [&](const auto& copy_row) {
        for (const std::int32_t target_row : lists.of(static_cast<std::int32_t>(j))) {
          copy_row(rows.target + target_row * rows.target_stride, rows.source + j * rows.source_stride);
        }
      });
    });
  }
}

// compact[j] = sum of ragged[i] over i in list j, for rows of float, Fp16, Bf16 or a type with a FloatFormatOf. The
// order of the sums, and so every bit but a NaN's, is that of sum_duplicates on a stream (device_row_ops.cuh says
// which). An empty list gives zeros; rows of `compact` behind the lists are left alone. Throws InvalidRows before any
// row is written.
template <HostExecutor Executor, class S, std::int64_t SourceWidth, class T, std::int64_t TargetWidth>
void sum_duplicates(const Executor& executor, const RowLists& lists, const RowView<S, SourceWidth>& ragged,
                    const RowView<T, TargetWidth>& compact) {
  constexpr FloatFormat format = FloatFormatOf<T>::value;
  constexpr int columns = 16;
  const detail::ByteRows rows = detail::checked_sum(lists, RowCopy{ragged, compact});
  executor.parallel_for(static_cast<std::int64_t>(lists.offsets.size()) - 1, [&](std::int64_t j) {
    const std::span<const std::int32_t> entries = lists.of(static_cast<std::int32_t>(j));
    std::int64_t column = 0;
    for (; column + columns <= ragged.width(); column += columns) {
      detail::sum_columns<columns, format>(rows, entries, j, column);
    }
    for (; column < ragged.width(); ++column) {
      detail::sum_columns<1, format>(rows, entries, j, column);
    }
  });
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
