// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "radixmlp/cuda_error.cuh"
#include "radixmlp/rows/device_rows.cuh"
#include "radixmlp/rows/row_op_kernels.cuh"
#include "radixmlp/rows/row_runs.hpp"
#include "radixmlp/rows/row_sums.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail::inline RADIXMLP_ARCHS {

// Enough to fill any device several times over; kernels stride from there on.
inline constexpr std::int64_t most_blocks = std::int64_t{1} << 20;

[[nodiscard]] inline unsigned blocks_for(std::int64_t items, std::int64_t of_block) noexcept {
  return static_cast<unsigned>(std::min((items + of_block - 1) / of_block, most_blocks));
}

RADIXMLP_HIDDEN inline void launch_kernel(const void* kernel, cudaStream_t stream, dim3 grid, void* launch) {
  void* arguments[] = {launch};
  raise_unless_success(cudaLaunchKernel(kernel, grid, dim3(row_threads), arguments, 0, stream), "cudaLaunchKernel");
}

// Launches of up to tensors_per_launch tensors each; those without width are left out.
template <std::size_t Tensors>
RADIXMLP_HIDDEN void enqueue_runs(cudaStream_t stream, const std::array<ByteRows, Tensors>& tensors,
                                  const RowRuns& runs) {
  constexpr std::int64_t tile_bytes = 16 * 1024;
  check_device_rows(tensors);
  RunRows launch{};
  launch.runs = runs.runs.data();
  launch.target_rows = runs.target_rows;
  launch.run_count = static_cast<std::int32_t>(runs.runs.size());
  for (std::size_t t = 0; t < tensors.size();) {
    unsigned count = 0;
    std::int64_t least_rows = max_rows;  // of a tile
    for (; t < tensors.size() && count < tensors_per_launch; ++t) {
      if (tensors[t].row_bytes > 0) {
        const std::int64_t rows = std::max<std::int64_t>(tile_bytes / tensors[t].row_bytes, 1);
        least_rows = std::min(least_rows, rows);
        launch.tensors[count] = tensors[t];
        launch.tile_rows[count++] = static_cast<std::int32_t>(rows);
      }
    }
    if (count > 0 && launch.run_count > 0 && launch.target_rows > 0) {
      launch_kernel(reinterpret_cast<const void*>(&copy_runs_kernel<row_threads>), stream,
                    dim3(blocks_for(runs.target_rows, least_rows * row_warps), count), &launch);
    }
  }
}

template <std::size_t Tensors>
RADIXMLP_HIDDEN void enqueue_multicast(cudaStream_t stream, const std::array<ByteRows, Tensors>& tensors,
                                       const RowLists& lists) {
  check_device_rows(tensors);
  MulticastRows launch{};
  launch.offsets = lists.offsets.data();
  launch.values = lists.values.data();
  launch.value_count = static_cast<std::int64_t>(lists.values.size());
  launch.source_rows = static_cast<std::int32_t>(lists.offsets.size() - 1);
  launch.units = row_unit_count(launch.source_rows, launch.value_count, 0);
  for (std::size_t t = 0; t < tensors.size();) {
    unsigned count = 0;
    int most_lanes = 1;
    for (; t < tensors.size() && count < tensors_per_launch; ++t) {
      const ByteRows& rows = tensors[t];
      if (rows.row_bytes > 0) {
        const int lanes = vector_bytes(rows) == 32 && rows.row_bytes < 2048 ? 8 : 32;
        most_lanes = std::max(most_lanes, lanes);
        launch.tensors[count++] = {rows.source,
                                   rows.target,
                                   static_cast<std::int32_t>(rows.source_stride),
                                   static_cast<std::int32_t>(rows.target_stride),
                                   static_cast<std::int32_t>(rows.row_bytes),
                                   thread_shape(std::min(vector_bytes(rows), 16), lanes)};
      }
    }
    if (count > 0 && launch.value_count > 0) {
      launch_kernel(reinterpret_cast<const void*>(&multicast_rows_kernel<row_threads>), stream,
                    dim3(blocks_for(launch.units, row_threads / most_lanes), count), &launch);
    }
  }
}

// `launch` has the lists; `longest` bounds them (0: all entries).
template <FloatFormat format>
RADIXMLP_HIDDEN void enqueue_sums(cudaStream_t stream, const ByteRows& rows, std::int64_t width, SumRows launch,
                                  std::span<float> memory, std::int64_t longest) {
  longest = longest == 0 ? launch.value_count : longest;
  const std::size_t needed = sum_workspace_floats(launch.value_count, longest, width);
  if (memory.size() < needed) {
    raise(invalid_rows("workspace", -1, static_cast<std::int64_t>(memory.size()), "its floats must be at least",
                       static_cast<std::int64_t>(needed)));
  }
  if (launch.rows == 0 || rows.row_bytes == 0) {
    return;
  }
  float* const workspace = memory.data();
  launch.source = rows.source;
  launch.target = rows.target;
  launch.source_stride = rows.source_stride;
  launch.target_stride = rows.target_stride;
  launch.width = width;
  constexpr std::uint64_t columns = 4;  // that a thread sums where everything is aligned to so many elements
  constexpr std::uint64_t element = format == FloatFormat::fp32 ? 4 : 2;
  const std::uint64_t off =
      (reinterpret_cast<std::uintptr_t>(launch.source) | reinterpret_cast<std::uintptr_t>(launch.target) |
       static_cast<std::uint64_t>(launch.source_stride | launch.target_stride)) %
          (columns * element) +
      reinterpret_cast<std::uintptr_t>(workspace) % (columns * sizeof(float)) +
      static_cast<std::uint64_t>(launch.width) % columns;
  const bool vectors = off == 0;
  launch.chunks = (launch.width + (vectors ? 128 : 32) - 1) / (vectors ? 128 : 32);
  const int levels = sum_levels(longest);
  float* next = workspace;
  for (launch.level = 0; launch.level < levels; ++launch.level) {
    launch.partials_in = launch.partials_out;
    launch.partials_out = next;
    next += partial_rows(launch.value_count, launch.level + 1) * launch.width;
    launch.units = row_unit_count(launch.rows, launch.value_count, launch.level);
    launch_kernel(vectors ? reinterpret_cast<const void*>(&sum_rows_kernel<format, 4>)
                          : reinterpret_cast<const void*>(&sum_rows_kernel<format, 1>),
                  stream, dim3(blocks_for(launch.units * launch.chunks, row_warps)), &launch);
  }
}

}  // namespace detail::inline RADIXMLP_ARCHS

// On a stream, with runs and rows in device memory: copies every run, for every RowCopy{source, target}, in blocks of
// up to 16 KiB that cross the borders of contiguous rows. One launch for up to 8 tensors; returns at once, allocates
// nothing, can be captured. The runs are trusted; check_runs checks them on the host. Throws InvalidRows before
// anything is enqueued, CudaError from the launch.
template <class... Sources, class... Targets>
RADIXMLP_ALWAYS_INLINE inline void copy_runs(cudaStream_t stream, const RowRuns& runs,
                                             const RowCopy<Sources, Targets>&... copies) {
  static_assert(sizeof...(Sources) > 0, "radixmlp: copy_runs needs a RowCopy");
  detail::enqueue_runs(stream, detail::checked_bytes({runs.source_rows, runs.target_rows}, copies...), runs);
}

// On a stream, as above: target row i = source row j for every i in list j, so that a row is read once for each 64 rows
// it becomes, instead of once for each. With the lists of `duplicates`, copied to the device, that is scatter_rows. The
// lists name rows below lists.values.size(), each at most once; they are trusted.
template <class... Sources, class... Targets>
RADIXMLP_ALWAYS_INLINE inline void multicast_rows(cudaStream_t stream, const RowLists& lists,
                                                  const RowCopy<Sources, Targets>&... copies) {
  static_assert(sizeof...(Sources) > 0, "radixmlp: multicast_rows needs a RowCopy");
  detail::check_lists(lists);
  detail::enqueue_multicast(stream, detail::checked_bytes(detail::list_extents(lists), copies...), lists);
}

// On a stream, as above, the backward of scatter_rows: compact[j] = sum of ragged[i] over i in list j, for rows of
// float, __half, __nv_bfloat16 or a type with a FloatFormatOf. Sums in fp32 along a binary tree over the list's order,
// and rounds once: the same bits whatever the launch, and on the host; |error| <= (ceil(log2 m) + 1) 2^-24 sum|x| +
// half a unit in the last place for a list of m rows. No atomics. An empty list gives zeros; rows of `compact` behind
// the lists are left alone.
//
// No list is longer than `longest` (0: lists.values.size()): 1 launch up to 64, 2 up to 4096, 3 up to 262,144.
// `workspace` is device memory of sum_workspace_floats(...) floats, which the caller keeps until the stream is done.
template <class S, std::int64_t SourceWidth, class T, std::int64_t TargetWidth>
RADIXMLP_ALWAYS_INLINE inline void sum_duplicates(cudaStream_t stream, const RowLists& lists,
                                                  const RowView<S, SourceWidth>& ragged,
                                                  const RowView<T, TargetWidth>& compact, std::span<float> workspace,
                                                  std::int64_t longest = 0) {
  const detail::ByteRows rows = detail::checked_sum(lists, RowCopy{ragged, compact});
  detail::SumRows launch{};
  launch.offsets = lists.offsets.data();
  launch.values = lists.values.data();
  launch.value_count = static_cast<std::int64_t>(lists.values.size());
  launch.rows = static_cast<std::int32_t>(lists.offsets.size() - 1);
  detail::enqueue_sums<FloatFormatOf<T>::value>(stream, rows, ragged.width(), launch, workspace, longest);
}

// On a stream, as above: out[s] = mean of the rows of sequence s, zeros if it is empty. `rows` are the index's compact
// rows, or its ragged ones (`compact` false). Summed as by sum_duplicates, and multiplied by 1 / length, in fp32.
// `workspace` has sum_workspace_floats(N, index.max_seqlen, width) floats.
template <class S, std::int64_t SourceWidth, class T, std::int64_t TargetWidth>
RADIXMLP_ALWAYS_INLINE inline void mean_rows(cudaStream_t stream, const PrefixIndexView& index, bool compact,
                                             const RowView<S, SourceWidth>& rows, const RowView<T, TargetWidth>& out,
                                             std::span<float> workspace) {
  const detail::RowExtents extents{compact ? index.compact_rows : index.ragged_rows, index.sequences()};
  detail::SumRows launch{};
  launch.offsets = index.ragged_cu.data();
  launch.values = compact ? index.scatter.data() : nullptr;
  launch.value_count = index.ragged_rows;
  launch.rows = index.sequences();
  launch.means = true;
  detail::enqueue_sums<FloatFormatOf<T>::value>(stream, detail::checked_bytes(extents, RowCopy{rows, out})[0],
                                                rows.width(), launch, workspace, index.max_seqlen);
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
