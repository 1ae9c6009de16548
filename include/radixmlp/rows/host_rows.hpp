// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "radixmlp/executor.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

// In blocks of a fixed size, which compilers turn into vector moves. On Zen 3, glibc 2.36's memcpy took two to four
// times as long for rows of 16 KiB where the target lies 16 bytes further into its page (benchmarks/README.md; likely
// `rep movsb`).
inline void copy_bytes(std::byte* target, const std::byte* source, std::size_t bytes) noexcept {
  constexpr std::size_t block = 64;
  for (; bytes >= block; bytes -= block, target += block, source += block) {
    std::memcpy(target, source, block);
  }
  std::memcpy(target, source, bytes);
}

// `count` rows from `source_row` on become rows from `target_row` on: one block where both sides are contiguous.
inline void copy_run(const ByteRows& rows, std::int64_t target_row, std::int64_t source_row,
                     std::int64_t count) noexcept {
  const bool contiguous = rows.source_stride == rows.row_bytes && rows.target_stride == rows.row_bytes;
  const std::int64_t blocks = contiguous ? 1 : count;
  const auto bytes = static_cast<std::size_t>(rows.row_bytes * (contiguous ? count : 1));
  for (std::int64_t i = 0; i < blocks; ++i) {
    copy_bytes(rows.target + (target_row + i) * rows.target_stride, rows.source + (source_row + i) * rows.source_stride,
               bytes);
  }
}

// Target rows first .. last in runs: a stretch of the map that counts up by one. Rows in random order are fetched
// ahead, without which short ones take twice as long.
inline void copy_mapped_rows(const ByteRows& rows, std::span<const std::int32_t> map, std::int64_t first,
                             std::int64_t last) noexcept {
  constexpr std::int64_t ahead = 8;         // rows
  constexpr std::int64_t prefetched = 256;  // bytes of a row, from where the processor goes on by itself
  const std::int32_t* const source = map.data();
  for (std::int64_t i = first; i < last;) {
    if (i + ahead < last) {
      const std::byte* const row = rows.source + source[i + ahead] * rows.source_stride;
      for (std::int64_t at = 0; at < prefetched && at < rows.row_bytes; at += 64) {
        __builtin_prefetch(row + at);
      }
    }
    std::int64_t count = 1;
    while (i + count < last && source[i + count] == source[i] + count) {
      ++count;
    }
    copy_run(rows, i, source[i], count);
    i += count;
  }
}

// The same for `gather`, whose runs are known: the new rows of each sequence. No map is read.
inline void copy_new_rows(const ByteRows& rows, const PrefixIndexView& index, std::int64_t first,
                          std::int64_t last) noexcept {
  const std::span<const std::int32_t> cu = index.compact_cu;
  for (auto s = static_cast<std::size_t>(std::upper_bound(cu.begin(), cu.end(), first) - cu.begin()); first < last;
       ++s) {
    const std::int64_t end = last < cu[s] ? last : cu[s];
    copy_run(rows, first, index.ragged_cu[s] - cu[s] + first, end - first);
    first = end;
  }
}

inline void zero_rows(const ByteRows& rows, std::int64_t first, std::int64_t last) noexcept {
  for (std::int64_t i = first; i < last; ++i) {
    std::memset(rows.target + i * rows.target_stride, 0, static_cast<std::size_t>(rows.row_bytes));
  }
}

// copy(tensor, first, last) for all target rows of every tensor, in tasks of about 256 KiB, enough to hide the cost of
// handing one out.
template <HostExecutor Executor, class Copy>
void copy_rows(const Executor& executor, std::span<const ByteRows> tensors, std::int64_t target_rows,
               const Copy& copy) {
  constexpr std::int64_t task_bytes = std::int64_t{256} * 1024;
  for (const ByteRows& rows : tensors) {
    if (rows.row_bytes == 0) {
      continue;
    }
    const std::int64_t task_rows = rows.row_bytes < task_bytes ? task_bytes / rows.row_bytes : 1;
    executor.parallel_for((target_rows + task_rows - 1) / task_rows, [&](std::int64_t task) {
      const std::int64_t first = task * task_rows;
      copy(rows, first, target_rows < first + task_rows ? target_rows : first + task_rows);
    });
  }
}

}  // namespace detail

// compact[j] = ragged[gather[j]] for j < N', zeros for N' <= j < padded_rows, for every RowCopy{ragged, compact}.
// Returns when the rows are written. Throws InvalidRows before any row is.
template <HostExecutor Executor, class... Sources, class... Targets>
void gather_rows(const Executor& executor, const PrefixIndexView& index, const RowCopy<Sources, Targets>&... copies) {
  const auto tensors = detail::checked_bytes(detail::gather_extents(index), copies...);
  detail::copy_rows(executor, tensors, index.compact_rows,
                    [&](const detail::ByteRows& rows, std::int64_t first, std::int64_t last) {
                      if (index.compact_cu.empty()) {
                        detail::copy_mapped_rows(rows, index.gather, first, last);
                      } else {
                        detail::copy_new_rows(rows, index, first, last);
                      }
                    });
  for (const detail::ByteRows& rows : tensors) {
    detail::zero_rows(rows, index.compact_rows, index.padded_rows);
  }
}

// ragged[i] = compact[scatter[i]] for i < N, for every RowCopy{compact, ragged}. Returns when the rows are written.
// Throws InvalidRows before any row is.
template <HostExecutor Executor, class... Sources, class... Targets>
void scatter_rows(const Executor& executor, const PrefixIndexView& index, const RowCopy<Sources, Targets>&... copies) {
  const auto tensors = detail::checked_bytes(detail::scatter_extents(index), copies...);
  detail::copy_rows(executor, tensors, index.ragged_rows,
                    [&](const detail::ByteRows& rows, std::int64_t first, std::int64_t last) {
                      detail::copy_mapped_rows(rows, index.scatter, first, last);
                    });
}

// One tensor.
template <HostExecutor Executor, class S, std::int64_t SourceWidth, class T, std::int64_t TargetWidth>
void gather_rows(const Executor& executor, const PrefixIndexView& index, const RowView<S, SourceWidth>& ragged,
                 const RowView<T, TargetWidth>& compact) {
  gather_rows(executor, index, RowCopy{ragged, compact});
}
template <HostExecutor Executor, class S, std::int64_t SourceWidth, class T, std::int64_t TargetWidth>
void scatter_rows(const Executor& executor, const PrefixIndexView& index, const RowView<S, SourceWidth>& compact,
                  const RowView<T, TargetWidth>& ragged) {
  scatter_rows(executor, index, RowCopy{compact, ragged});
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
