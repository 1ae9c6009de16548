// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "radixmlp/executor.hpp"
#include "radixmlp/rows/row_map.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

// Copies that together move more than this go past the caches, as far as they are long enough: what they write would be
// gone from a cache of this size before anybody read it, and a line that is stored whole need not be read first.
inline constexpr std::int64_t streaming_bytes = std::int64_t{32} * 1024 * 1024;
inline constexpr std::int64_t shortest_stream = 2048;

inline constexpr std::int64_t cache_line = 64;

// memcpy, but where the two sides lie differently in their cache lines, in blocks that compilers turn into vector
// moves: glibc before 2.39 takes up to four times as long there on Zen 3 and 4 (`rep movsb`; benchmarks/README.md).
inline void copy_bytes(std::byte* target, const std::byte* source, std::int64_t bytes) noexcept {
  const auto apart = reinterpret_cast<std::uintptr_t>(target) - reinterpret_cast<std::uintptr_t>(source);
  if (apart % cache_line != 0) {
    for (; bytes >= cache_line; bytes -= cache_line, target += cache_line, source += cache_line) {
      std::memcpy(target, source, cache_line);
    }
  }
  std::memcpy(target, source, static_cast<std::size_t>(bytes));
}

// `streams` stretches side by side, each of `bytes` and one behind the other, in whole cache lines past the caches.
template <int streams>
inline void stream_lines(std::byte* target, const std::byte* source, std::int64_t bytes) noexcept {
  using Vector = long long __attribute__((vector_size(16)));
  constexpr std::int64_t ahead = 512;
  for (std::int64_t at = 0; at < bytes; at += cache_line) {
    for (std::int64_t i = at; i < streams * bytes; i += bytes) {
      if (at + ahead < bytes) {
        __builtin_prefetch(source + i + ahead);
      }
      Vector a, b, c, d;
      std::memcpy(&a, source + i, sizeof a);
      std::memcpy(&b, source + i + 16, sizeof b);
      std::memcpy(&c, source + i + 32, sizeof c);
      std::memcpy(&d, source + i + 48, sizeof d);
      RADIXMLP_STREAM_16(target + i, a);
      RADIXMLP_STREAM_16(target + i + 16, b);
      RADIXMLP_STREAM_16(target + i + 32, c);
      RADIXMLP_STREAM_16(target + i + 48, d);
    }
  }
}

// copy_bytes past the caches, but for the ends. Long copies in four streams: a processor fetches ahead for each of
// them, up to the end of its page.
[[gnu::noinline]] inline void stream_bytes(std::byte* target, const std::byte* source, std::int64_t bytes) noexcept {
  constexpr int streams = 4;
  constexpr std::int64_t shortest_of_streams = 32 * 1024;
  const auto to_line = static_cast<std::int64_t>(-reinterpret_cast<std::uintptr_t>(target) % cache_line);
  std::int64_t at = std::min(to_line, bytes);
  copy_bytes(target, source, at);
  if (bytes - at >= shortest_of_streams) {
    const std::int64_t part = (bytes - at) / (streams * cache_line) * cache_line;
    stream_lines<streams>(target + at, source + at, part);
    at += streams * part;
  }
  const std::int64_t lines = (bytes - at) / cache_line * cache_line;
  stream_lines<1>(target + at, source + at, lines);
  at += lines;
  copy_bytes(target + at, source + at, bytes - at);
}

inline void copy_block(std::byte* target, const std::byte* source, std::int64_t bytes, bool streams) noexcept {
  if (streams && bytes >= shortest_stream) {
    stream_bytes(target, source, bytes);
  } else {
    copy_bytes(target, source, bytes);
  }
}

[[nodiscard]] inline bool is_contiguous(const ByteRows& rows) noexcept {
  return rows.source_stride == rows.row_bytes && rows.target_stride == rows.row_bytes;
}

// `count` rows from `source_row` on become rows from `target_row` on: one block where both sides are contiguous.
inline void copy_run(const ByteRows& rows, std::int64_t target_row, std::int64_t source_row, std::int64_t count,
                     bool streams) noexcept {
  std::byte* target = rows.target + target_row * rows.target_stride;
  const std::byte* source = rows.source + source_row * rows.source_stride;
  if (is_contiguous(rows)) {
    copy_block(target, source, count * rows.row_bytes, streams);
    return;
  }
  for (; count > 0; --count, target += rows.target_stride, source += rows.source_stride) {
    copy_block(target, source, rows.row_bytes, streams);
  }
}

// The first bytes of a row, from where the processor goes on by itself.
inline void prefetch_row(const std::byte* row, std::int64_t row_bytes) noexcept {
  constexpr std::int64_t prefetched = 256;
  for (std::int64_t at = 0; at < prefetched && at < row_bytes; at += cache_line) {
    __builtin_prefetch(row + at);
  }
}

// copy(target_row, source_row, count) for the runs of target rows first .. last, which are stretches of the map that
// count up by one. What does not follow the row before it is fetched ahead.
template <class Copy>
void for_each_run(const ByteRows& rows, std::span<const std::int32_t> map, std::int64_t first, std::int64_t last,
                  const Copy& copy) noexcept {
  constexpr std::int64_t ahead = 8;  // rows
  const std::int32_t* const source = map.data();
  const ByteRows r = rows;  // a copy: a compiler knows that writing rows does not change it
  for (std::int64_t i = first; i < last;) {
    if (const std::int64_t next = i + ahead; next < last && source[next] != source[next - 1] + 1) {
      prefetch_row(r.source + source[next] * r.source_stride, r.row_bytes);
    }
    std::int64_t count = 1;
    while (i + count < last && source[i + count] == source[i] + count) {
      ++count;
    }
    copy(i, source[i], count);
    i += count;
  }
}

// Target rows first .. last. Rows without gaps have a loop of their own, up to a tenth faster where they are short.
inline void copy_mapped_rows(const ByteRows& rows, std::span<const std::int32_t> map, std::int64_t first,
                             std::int64_t last, bool streams) noexcept {
  if (is_contiguous(rows)) {
    for_each_run(rows, map, first, last,
                 [target = rows.target, source = rows.source, bytes = rows.row_bytes, streams](
                     std::int64_t target_row, std::int64_t source_row, std::int64_t count) {
                   copy_block(target + target_row * bytes, source + source_row * bytes, count * bytes, streams);
                 });
  } else {
    for_each_run(rows, map, first, last,
                 [&rows, streams](std::int64_t target_row, std::int64_t source_row, std::int64_t count) {
                   copy_run(rows, target_row, source_row, count, streams);
                 });
  }
}

// The same for `gather`, whose runs are known: the new rows of each sequence. No map is read.
inline void copy_new_rows(const ByteRows& rows, const PrefixIndexView& index, std::int64_t first, std::int64_t last,
                          bool streams) noexcept {
  const std::span<const std::int32_t> cu = index.compact_cu;
  for (auto s = static_cast<std::size_t>(std::upper_bound(cu.begin(), cu.end(), first) - cu.begin()); first < last;
       ++s) {
    const std::int64_t end = last < cu[s] ? last : cu[s];
    copy_run(rows, first, index.ragged_cu[s] - cu[s] + first, end - first, streams);
    first = end;
  }
}

inline void zero_rows(const ByteRows& rows, std::int64_t first, std::int64_t last) noexcept {
  for (std::int64_t i = first; i < last && rows.row_bytes > 0; ++i) {  // rows without width may be nowhere
    std::memset(rows.target + i * rows.target_stride, 0, static_cast<std::size_t>(rows.row_bytes));
  }
}

// copy(tensor, first, last, streams) for all target rows of every tensor, in tasks of about 256 KiB, enough to hide the
// cost of handing one out. `source_rows` is how many different rows are read.
template <HostExecutor Executor, class Copy>
void copy_rows(const Executor& executor, std::span<const ByteRows> tensors, std::int64_t source_rows,
               std::int64_t target_rows, const Copy& copy) {
  constexpr std::int64_t task_bytes = std::int64_t{256} * 1024;
  std::int64_t row_bytes = 0;
  for (const ByteRows& rows : tensors) {
    row_bytes += rows.row_bytes;
  }
  const bool streams = (source_rows + target_rows) * row_bytes > streaming_bytes;
  for (const ByteRows& rows : tensors) {
    if (rows.row_bytes == 0) {
      continue;
    }
    const std::int64_t task_rows = rows.row_bytes < task_bytes ? task_bytes / rows.row_bytes : 1;
    executor.parallel_for((target_rows + task_rows - 1) / task_rows, [&](std::int64_t task) {
      const std::int64_t first = task * task_rows;
      copy(rows, first, target_rows < first + task_rows ? target_rows : first + task_rows, streams);
      if (streams) {
        RADIXMLP_STREAM_FENCE();
      }
    });
  }
}

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

inline void copy_or_zero_row(const ByteRows& rows, std::int64_t target_row, std::int32_t source_row,
                             bool streams) noexcept {
  if (source_row == zero_row) {
    zero_rows(rows, target_row, target_row + 1);
  } else {
    copy_run(rows, target_row, source_row, 1, streams);
  }
}

}  // namespace detail

// target[i] = source[map[i]], and zeros behind the mapped rows, for every RowCopy{source, target}. Returns when the
// rows are written. Throws InvalidRows before any row is.
template <RowOptions options = RowOptions{}, HostExecutor Executor, class... Sources, class... Targets>
void map_rows(const Executor& executor, const RowMap& map, const RowCopy<Sources, Targets>&... copies) {
  detail::check_map(map);
  const auto tensors = detail::checked_bytes({map.source_rows, map.target_rows}, copies...);
  const std::int64_t mapped = detail::mapped_rows(map);
  if (mapped < 0) {
    return;
  }
  const std::span<const std::int32_t> entries = map.map.first(static_cast<std::size_t>(mapped));
  detail::check_entries_in_rows<options.bounds>(entries, map.source_rows);
  detail::copy_rows(
      executor, tensors, std::min(map.source_rows, mapped), mapped,
      [&](const detail::ByteRows& rows, std::int64_t first, std::int64_t last, bool streams) {
        if constexpr (options.bounds == Bounds::trust || options.bounds == Bounds::trap) {
          detail::copy_mapped_rows(rows, entries, first, last, streams);
        } else {
          for (std::int64_t i = first; i < last; ++i) {
            detail::copy_or_zero_row(
                rows, i, detail::bounded_row<options.bounds>(entries[static_cast<std::size_t>(i)], map.source_rows),
                streams);
          }
        }
      });
  for (const detail::ByteRows& rows : tensors) {
    detail::zero_rows(rows, mapped, map.target_rows);
  }
}

// compact[j] = ragged[gather[j]] for j < N', zeros for N' <= j < padded_rows, for every RowCopy{ragged, compact}.
// Returns when the rows are written. Throws InvalidRows before any row is.
template <HostExecutor Executor, class... Sources, class... Targets>
void gather_rows(const Executor& executor, const PrefixIndexView& index, const RowCopy<Sources, Targets>&... copies) {
  const auto tensors = detail::checked_bytes(detail::gather_extents(index), copies...);
  const RowMap map = gather_map(index);
  const std::int64_t mapped = detail::mapped_rows(map);
  if (mapped < 0) {
    return;
  }
  detail::copy_rows(executor, tensors, mapped, mapped,
                    [&](const detail::ByteRows& rows, std::int64_t first, std::int64_t last, bool streams) {
                      if (index.compact_cu.empty()) {
                        detail::copy_mapped_rows(rows, map.map, first, last, streams);
                      } else {
                        detail::copy_new_rows(rows, index, first, last, streams);
                      }
                    });
  for (const detail::ByteRows& rows : tensors) {
    detail::zero_rows(rows, mapped, index.padded_rows);
  }
}

// ragged[i] = compact[scatter[i]] for i < N, for every RowCopy{compact, ragged}. Returns when the rows are written.
// Throws InvalidRows before any row is.
template <HostExecutor Executor, class... Sources, class... Targets>
void scatter_rows(const Executor& executor, const PrefixIndexView& index, const RowCopy<Sources, Targets>&... copies) {
  map_rows(executor, scatter_map(index), copies...);
}

// Rows from *count on become zero; none where *count is below 0: there is no index of the batch.
template <HostExecutor Executor, class T, std::int64_t Width>
void zero_rows_behind(const Executor&, const std::int32_t* count, const RowView<T, Width>& rows) {
  for (std::int64_t i = *count; i >= 0 && i < rows.rows(); ++i) {
    std::memset(static_cast<void*>(rows.row(i)), 0, static_cast<std::size_t>(rows.width()) * sizeof(T));
  }
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
