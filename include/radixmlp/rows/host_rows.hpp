// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "radixmlp/executor.hpp"
#include "radixmlp/rows/row_map.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

// What a call reads and writes in all, and so what its copies have to mind.
enum class Footprint : std::uint8_t {
  core,   // a core's own cache holds it: to fetch a row ahead takes longer than to wait for it
  cache,  // rows in random order are fetched ahead
  // Copies go past the caches, as far as they are long enough: what they write would be gone from a cache of this size
  // before anybody read it, and a line that is stored whole need not be read first.
  memory,
};
[[nodiscard]] constexpr Footprint footprint_of(std::int64_t bytes) noexcept {
  constexpr std::int64_t mib = std::int64_t{1024} * 1024;
  return bytes <= mib ? Footprint::core : bytes <= 32 * mib ? Footprint::cache : Footprint::memory;
}
inline constexpr std::int64_t shortest_stream = 2048;

inline constexpr std::int64_t cache_line = 64;

// memcpy in equal pieces of up to 3 KiB. A constant as their length would become a `rep movsq` under g++.
inline void copy_in_pieces(std::byte* target, const std::byte* source, std::int64_t bytes) noexcept {
  constexpr std::int64_t longest = 3072;
  for (const std::int64_t piece = bytes / (bytes / longest + 1); bytes > piece; bytes -= piece) {
    std::memcpy(target, source, static_cast<std::size_t>(piece));
    target += piece;
    source += piece;
  }
  std::memcpy(target, source, static_cast<std::size_t>(bytes));
}

// memcpy, but on AMD in pieces where the two sides lie differently in their cache lines: glibc before 2.39 takes up to
// four times as long there on Zen 3 and 4, from 4 KiB on (`rep movsb`; benchmarks/README.md). Elsewhere pieces cost 1
// to 5%.
inline void copy_bytes(std::byte* target, const std::byte* source, std::int64_t bytes) noexcept {
  const auto apart = reinterpret_cast<std::uintptr_t>(target) - reinterpret_cast<std::uintptr_t>(source);
  if (bytes >= 4096 && apart % cache_line != 0 && RADIXMLP_ON_AMD()) {
    copy_in_pieces(target, source, bytes);
  } else {
    std::memcpy(target, source, static_cast<std::size_t>(bytes));
  }
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

inline void copy_block(std::byte* target, const std::byte* source, std::int64_t bytes, Footprint footprint) noexcept {
  if (footprint == Footprint::memory && bytes >= shortest_stream) {
    stream_bytes(target, source, bytes);
  } else {
    copy_bytes(target, source, bytes);
  }
}

[[nodiscard]] inline bool is_contiguous(const ByteRows& rows) noexcept {
  return rows.source_stride == rows.row_bytes && rows.target_stride == rows.row_bytes;
}

// 16 * vectors bytes, a vector after the other: clang++ stores those of one memcpy from the last to the first, which
// took up to twice as long.
template <int vectors>
inline void copy_vectors(std::byte* target, const std::byte* source) noexcept {
  const auto copy = [&]<int... i>(std::integer_sequence<int, i...>) {
    (std::memcpy(target + 16 * i, source + 16 * i, 16), ...);
  };
  copy(std::make_integer_sequence<int, vectors>{});
}

// The rest of a row of 16 bytes or more, of which `done` are copied.
inline void copy_tail(std::byte* target, const std::byte* source, std::int64_t row_bytes, std::int64_t done) noexcept {
  const std::int64_t left = row_bytes - done;
  if (left == 4) {
    std::memcpy(target + done, source + done, 4);
  } else if (left == 8) {
    std::memcpy(target + done, source + done, 8);
  } else if (left != 0) {
    std::memcpy(target + row_bytes - 16, source + row_bytes - 16, 16);
  }
}

// Copies of one row, each made for rows of some lengths: a call of memcpy takes longer than a short row does.

template <int bytes>
struct ElementRow {  // 1, 2, 4 or 8 bytes
  static constexpr std::int64_t row_bytes = bytes;

  void operator()(std::byte* target, const std::byte* source) const noexcept { std::memcpy(target, source, bytes); }
};

template <int half>
struct TinyRow {  // from `half` bytes to twice as many
  std::int64_t row_bytes;

  void operator()(std::byte* target, const std::byte* source) const noexcept {
    std::memcpy(target, source, half);
    std::memcpy(target + row_bytes - half, source + row_bytes - half, half);
  }
};

template <int vectors>
struct ShortRow {  // from 16 * vectors bytes to 15 more
  std::int64_t row_bytes;

  void operator()(std::byte* target, const std::byte* source) const noexcept {
    copy_vectors<vectors>(target, source);
    copy_tail(target, source, row_bytes, 16 * vectors);
  }
};

struct BlockRow {  // from 64 bytes on
  std::int64_t row_bytes;

  void operator()(std::byte* target, const std::byte* source) const noexcept {
    std::int64_t at = 0;
    for (; at + 64 <= row_bytes; at += 64) {
      copy_vectors<4>(target + at, source + at);
    }
    for (; at + 16 <= row_bytes; at += 16) {
      copy_vectors<1>(target + at, source + at);
    }
    copy_tail(target, source, row_bytes, at);
  }
};

struct LongRow {
  std::int64_t row_bytes;
  Footprint footprint;

  void operator()(std::byte* target, const std::byte* source) const noexcept {
    copy_block(target, source, row_bytes, footprint);
  }
};

// f(copy_row) with the one whose copy_row(target, source) is the fastest for these rows. Where copies wait for a cache
// beyond the core's own, blocks win over memcpy only on rows whose two ends lie differently in their cache lines.
template <class F>
void with_row_copy(const ByteRows& rows, Footprint footprint, const F& f) noexcept {
  constexpr int most_vectors = 7;
  const std::int64_t bytes = rows.row_bytes;
  const auto apart = reinterpret_cast<std::intptr_t>(rows.target) - reinterpret_cast<std::intptr_t>(rows.source);
  const bool alike = (apart | rows.source_stride | rows.target_stride) % cache_line == 0;
  const std::int64_t longest_in_blocks = footprint == Footprint::core ? (alike ? 1024 : 640) : (alike ? 0 : 1024);
  const auto takes = [&](bool does, const auto& copy_row) {
    if (does) {
      f(copy_row);
    }
    return does;
  };
  const auto takes_short = [&]<int... i>(std::integer_sequence<int, i...>) {
    return (takes(bytes / 16 == i + 1, ShortRow<i + 1>{bytes}) || ...);
  };
  if (takes_short(std::make_integer_sequence<int, most_vectors>{}) || takes(bytes == 1, ElementRow<1>{}) ||
      takes(bytes == 2, ElementRow<2>{}) || takes(bytes == 4, ElementRow<4>{}) || takes(bytes == 8, ElementRow<8>{}) ||
      takes(bytes < 4, TinyRow<2>{bytes}) || takes(bytes < 8, TinyRow<4>{bytes}) ||
      takes(bytes < 16, TinyRow<8>{bytes})) {
    return;
  }
  if (bytes <= longest_in_blocks) {
    f(BlockRow{bytes});
  } else {
    f(LongRow{bytes, footprint});
  }
}

// `count` rows from `source_row` on become rows from `target_row` on: one block where both sides are contiguous.
template <class CopyRow>
void copy_run(const ByteRows& rows, std::int64_t target_row, std::int64_t source_row, std::int64_t count,
              Footprint footprint, CopyRow copy_row) noexcept {
  std::byte* target = rows.target + target_row * rows.target_stride;
  const std::byte* source = rows.source + source_row * rows.source_stride;
  if (count > 1 && is_contiguous(rows)) {
    copy_block(target, source, count * rows.row_bytes, footprint);
    return;
  }
  for (; count > 0; --count, target += rows.target_stride, source += rows.source_stride) {
    copy_row(target, source);
  }
}

// The first bytes of a row, from where the processor goes on by itself.
inline void prefetch_row(const std::byte* row, std::int64_t row_bytes) noexcept {
  constexpr std::int64_t prefetched = 256;
  for (std::int64_t at = 0; at < prefetched && at < row_bytes; at += cache_line) {
    __builtin_prefetch(row + at);
  }
}

inline void zero_row_at(const ByteRows& rows, std::int64_t row) noexcept {
  std::fill_n(rows.target + row * rows.target_stride, rows.row_bytes, std::byte{0});
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

inline constexpr std::int64_t rows_ahead = 8;

// Row i of the target is row map[i] of the source, for `count` rows without gaps. Stretches of the map that count up by
// one are runs; what does not follow the row before it is fetched ahead.
template <bool fetches, class CopyRow>
void copy_contiguous_rows(std::byte* target, const std::byte* source, const std::int32_t* map, std::int64_t count,
                          Footprint footprint, CopyRow copy_row) noexcept {
  for (std::int64_t i = 0; i < count;) {
    if (const std::int64_t next = i + rows_ahead; fetches && next < count && map[next] != map[next - 1] + 1) {
      prefetch_row(source + map[next] * copy_row.row_bytes, copy_row.row_bytes);
    }
    const std::int32_t row = map[i];
    if (i + 1 < count && map[i + 1] == row + 1) {
      std::int64_t run = 2;
      while (i + run < count && map[i + run] == row + run) {
        ++run;
      }
      copy_block(target + i * copy_row.row_bytes, source + row * copy_row.row_bytes, run * copy_row.row_bytes,
                 footprint);
      i += run;
    } else {
      copy_row(target + i * copy_row.row_bytes, source + row * copy_row.row_bytes);
      ++i;
    }
  }
}

// The same for rows with gaps, and for entries that may mean none.
template <Bounds bounds, class CopyRow>
void copy_strided_rows(ByteRows rows, const std::int32_t* map, std::int64_t source_rows, std::int64_t first,
                       std::int64_t last, bool fetches, CopyRow copy_row) noexcept {
  for (std::int64_t i = first; i < last; ++i) {
    if (fetches && i + rows_ahead < last) {
      const std::int32_t next = bounded_row<bounds>(map[i + rows_ahead], source_rows);
      if (next != zero_row) {
        prefetch_row(rows.source + next * rows.source_stride, rows.row_bytes);
      }
    }
    const std::int32_t row = bounded_row<bounds>(map[i], source_rows);
    if (row == zero_row) {
      zero_row_at(rows, i);
    } else {
      copy_row(rows.target + i * rows.target_stride, rows.source + row * rows.source_stride);
    }
  }
}

// Rows that are so short that the processor sees the next ones anyway are not fetched ahead, nor those that are so long
// that their first lines do not matter where a cache has them.
[[nodiscard]] constexpr bool fetches_ahead(std::int64_t row_bytes, Footprint footprint) noexcept {
  constexpr std::int64_t too_long = 4096;
  return row_bytes > cache_line &&
         (footprint == Footprint::memory || (footprint == Footprint::cache && row_bytes < too_long));
}

// Target rows first .. last along a map.
template <Bounds bounds>
void copy_mapped_rows(const ByteRows& rows, std::span<const std::int32_t> map, std::int64_t source_rows,
                      std::int64_t first, std::int64_t last, Footprint footprint) noexcept {
  const bool fetches = fetches_ahead(rows.row_bytes, footprint);
  with_row_copy(rows, footprint, [&](auto copy_row) {
    if constexpr (bounds == Bounds::trust || bounds == Bounds::trap) {
      if (is_contiguous(rows)) {
        const auto copy =
            fetches ? copy_contiguous_rows<true, decltype(copy_row)> : copy_contiguous_rows<false, decltype(copy_row)>;
        copy(rows.target + first * rows.target_stride, rows.source, map.data() + first, last - first, footprint,
             copy_row);
        return;
      }
    }
    copy_strided_rows<bounds>(rows, map.data(), source_rows, first, last, fetches, copy_row);
  });
}

// The same for `gather`, whose runs are known: the new rows of each sequence. No map is read.
inline void copy_new_rows(const ByteRows& rows, const PrefixIndexView& index, std::int64_t first, std::int64_t last,
                          Footprint footprint) noexcept {
  const std::span<const std::int32_t> cu = index.compact_cu;
  with_row_copy(rows, footprint, [&](auto copy_row) {
    std::int64_t at = first;
    for (auto s = static_cast<std::size_t>(std::upper_bound(cu.begin(), cu.end(), first) - cu.begin()); at < last;
         ++s) {
      const std::int64_t end = last < cu[s] ? last : cu[s];
      copy_run(rows, at, index.ragged_cu[s] - cu[s] + at, end - at, footprint, copy_row);
      at = end;
    }
  });
}

inline void zero_rows(const ByteRows& rows, std::int64_t first, std::int64_t last) noexcept {
  for (std::int64_t i = first; i < last && rows.row_bytes > 0; ++i) {  // rows without width may be nowhere
    zero_row_at(rows, i);
  }
}

// copy(tensor, first, last, footprint) for all target rows of every tensor, in tasks of about 256 KiB, enough to hide
// the cost of handing one out. `source_rows` is how many different rows are read.
template <HostExecutor Executor, class Copy>
void copy_rows(const Executor& executor, std::span<const ByteRows> tensors, std::int64_t source_rows,
               std::int64_t target_rows, const Copy& copy) {
  constexpr std::int64_t task_bytes = std::int64_t{256} * 1024;
  std::int64_t row_bytes = 0;
  for (const ByteRows& rows : tensors) {
    row_bytes += rows.row_bytes;
  }
  const Footprint footprint = footprint_of((source_rows + target_rows) * row_bytes);
  for (const ByteRows& rows : tensors) {
    if (rows.row_bytes == 0) {
      continue;
    }
    const std::int64_t task_rows = rows.row_bytes < task_bytes ? task_bytes / rows.row_bytes : 1;
    executor.parallel_for((target_rows + task_rows - 1) / task_rows, [&](std::int64_t task) {
      const std::int64_t first = task * task_rows;
      copy(rows, first, target_rows < first + task_rows ? target_rows : first + task_rows, footprint);
      if (footprint == Footprint::memory) {
        RADIXMLP_STREAM_FENCE();
      }
    });
  }
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
      [&](const detail::ByteRows& rows, std::int64_t first, std::int64_t last, detail::Footprint footprint) {
        detail::copy_mapped_rows<options.bounds>(rows, entries, map.source_rows, first, last, footprint);
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
  detail::copy_rows(
      executor, tensors, mapped, mapped,
      [&](const detail::ByteRows& rows, std::int64_t first, std::int64_t last, detail::Footprint footprint) {
        if (index.compact_cu.empty()) {
          detail::copy_mapped_rows<Bounds::trust>(rows, map.map, map.source_rows, first, last, footprint);
        } else {
          detail::copy_new_rows(rows, index, first, last, footprint);
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
