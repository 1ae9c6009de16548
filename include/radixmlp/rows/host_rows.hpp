// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0 {

// Where host work runs: parallel_for(n, f) calls f(i) for every i in [0, n), in any order, possibly on several threads,
// and returns when all calls have. f does not throw.
template <class E>
concept HostExecutor = requires(const E& executor, std::int64_t n, void (*f)(std::int64_t)) {
  executor.parallel_for(n, f);
};

struct SerialExecutor {
  template <class F>
  void parallel_for(std::int64_t n, F&& f) const {
    for (std::int64_t i = 0; i < n; ++i) {
      f(i);
    }
  }
};

inline constexpr SerialExecutor serial{};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

// Rows first .. last of the target: row i is row map[i] of the source. A stretch of the map that counts up by one is
// one block where both sides are contiguous.
inline void copy_mapped_rows(const ByteRows& rows, const std::int32_t* map, std::int64_t first,
                             std::int64_t last) noexcept {
  const bool contiguous = rows.source_stride == rows.row_bytes && rows.target_stride == rows.row_bytes;
  const auto bytes = static_cast<std::size_t>(rows.row_bytes);
  for (std::int64_t i = first; i < last;) {
    std::int64_t count = 1;
    while (contiguous && i + count < last && map[i + count] == map[i] + count) {
      ++count;
    }
    std::memcpy(rows.target + i * rows.target_stride, rows.source + map[i] * rows.source_stride,
                bytes * static_cast<std::size_t>(count));
    i += count;
  }
}

inline void zero_rows(const ByteRows& rows, std::int64_t first, std::int64_t last) noexcept {
  for (std::int64_t i = first; i < last; ++i) {
    std::memset(rows.target + i * rows.target_stride, 0, static_cast<std::size_t>(rows.row_bytes));
  }
}

// Copies map.size() rows of every tensor in tasks of about 256 KiB, enough to hide the cost of handing one out.
template <HostExecutor Executor>
void copy_mapped_rows(const Executor& executor, std::span<const ByteRows> tensors, std::span<const std::int32_t> map) {
  constexpr std::int64_t task_bytes = std::int64_t{256} * 1024;
  const auto mapped = static_cast<std::int64_t>(map.size());
  for (const ByteRows& rows : tensors) {
    if (rows.row_bytes == 0) {
      continue;
    }
    const std::int64_t task_rows = rows.row_bytes < task_bytes ? task_bytes / rows.row_bytes : 1;
    executor.parallel_for((mapped + task_rows - 1) / task_rows, [&](std::int64_t task) {
      const std::int64_t first = task * task_rows;
      copy_mapped_rows(rows, map.data(), first, mapped < first + task_rows ? mapped : first + task_rows);
    });
  }
}

}  // namespace detail

// compact[j] = ragged[gather[j]] for j < N', zeros for N' <= j < padded_rows, for every RowCopy{ragged, compact}.
// Returns when the rows are written. Throws InvalidRows before any row is.
template <HostExecutor Executor, class... Sources, class... Targets>
void gather_rows(const Executor& executor, const PrefixIndexView& index, const RowCopy<Sources, Targets>&... copies) {
  const auto tensors = detail::checked_bytes(detail::gather_extents(index), copies...);
  detail::copy_mapped_rows(executor, std::span<const detail::ByteRows>(tensors),
                           index.gather.first(static_cast<std::size_t>(index.compact_rows)));
  for (const detail::ByteRows& rows : tensors) {
    detail::zero_rows(rows, index.compact_rows, index.padded_rows);
  }
}

// ragged[i] = compact[scatter[i]] for i < N, for every RowCopy{compact, ragged}. Returns when the rows are written.
// Throws InvalidRows before any row is.
template <HostExecutor Executor, class... Sources, class... Targets>
void scatter_rows(const Executor& executor, const PrefixIndexView& index, const RowCopy<Sources, Targets>&... copies) {
  const auto tensors = detail::checked_bytes(detail::scatter_extents(index), copies...);
  detail::copy_mapped_rows(executor, std::span<const detail::ByteRows>(tensors), index.scatter);
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
