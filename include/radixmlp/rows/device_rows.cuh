// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "radixmlp/cuda_error.cuh"
#include "radixmlp/rows/row_kernels.cuh"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

// Largest vector, in bytes, that every row of the tensors starts and ends on a multiple of.
[[nodiscard]] inline int vector_bytes(std::span<const ByteRows> tensors) noexcept {
  std::uint64_t bits = 16;
  for (const ByteRows& rows : tensors) {
    bits |= reinterpret_cast<std::uintptr_t>(rows.source) | reinterpret_cast<std::uintptr_t>(rows.target);
    bits |= static_cast<std::uint64_t>(rows.source_stride | rows.target_stride | rows.row_bytes);
  }
  return 1 << std::countr_zero(bits);
}

// Threads that share a row of so many vectors: few enough that each has loads_in_flight of them, but no fewer than 8
// side by side where the row is that long (128 bytes at 16 bytes a vector).
[[nodiscard]] inline int row_lanes_log2(std::int64_t vectors) noexcept {
  const std::int64_t wanted = std::clamp<std::int64_t>(vectors / loads_in_flight, 8, row_threads);
  return std::bit_width(static_cast<std::uint64_t>(std::min(wanted, vectors))) - 1;
}

// The static row width serves vectors that divide it.
template <int VectorBytes, std::int64_t RowBytes>
inline constexpr auto* row_kernel = &copy_mapped_rows_kernel<VectorBytes, (RowBytes % VectorBytes == 0 ? RowBytes : 0)>;

template <std::int64_t RowBytes>
RADIXMLP_HIDDEN void launch_mapped_rows(cudaStream_t stream, std::span<const ByteRows> tensors, const std::int32_t* map,
                                        std::int64_t mapped_rows, std::int64_t rows) {
  static constexpr std::array kernels{row_kernel<1, RowBytes>, row_kernel<2, RowBytes>, row_kernel<4, RowBytes>,
                                      row_kernel<8, RowBytes>, row_kernel<16, RowBytes>};
  MappedRows launch{};
  launch.tensor_count = static_cast<std::int32_t>(tensors.size());
  launch.map = map;
  launch.mapped_rows = mapped_rows;
  launch.rows = rows;
  const int bytes = vector_bytes(tensors);
  std::int32_t blocks = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const int lanes_log2 = row_lanes_log2(tensors[t].row_bytes / bytes);
    const std::int64_t rows_per_block = row_threads >> lanes_log2;
    const std::int64_t wanted = (rows + rows_per_block - 1) / rows_per_block;
    const auto taken = static_cast<std::int32_t>(std::min(wanted, max_rows / tensors_per_launch));
    launch.tensors[t] = {tensors[t], blocks, taken, lanes_log2};
    blocks += taken;
  }
  void* arguments[] = {&launch};
  const dim3 grid(static_cast<unsigned>(blocks));
  raise_unless_success(
      cudaLaunchKernel(reinterpret_cast<const void*>(
                           kernels[static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(bytes)))]),
                       grid, dim3(row_threads), arguments, 0, stream),
      "cudaLaunchKernel");
}

[[nodiscard]] inline bool has_no_width(const ByteRows& rows) noexcept { return rows.row_bytes == 0; }

template <class... Copies>
RADIXMLP_ALWAYS_INLINE inline void enqueue_mapped_rows(cudaStream_t stream, const RowExtents& extents,
                                                       const std::int32_t* map, std::int64_t mapped_rows,
                                                       const Copies&... copies) {
  auto tensors = checked_bytes(extents, copies...);
  const auto end = std::remove_if(tensors.begin(), tensors.end(), has_no_width);
  const auto count = static_cast<std::size_t>(end - tensors.begin());
  if (extents.target_rows == 0) {
    return;
  }
  constexpr std::array widths{Copies::static_row_bytes...};
  constexpr std::int64_t row_bytes = std::ranges::count(widths, widths[0]) == sizeof...(Copies) ? widths[0] : 0;
  for (std::size_t t = 0; t < count; t += tensors_per_launch) {
    launch_mapped_rows<row_bytes>(
        stream, std::span<const ByteRows>(tensors).subspan(t, std::min<std::size_t>(count - t, tensors_per_launch)),
        map, mapped_rows, extents.target_rows);
  }
}

}  // namespace detail

// On a stream, with index and rows in device memory: compact[j] = ragged[gather[j]] for j < N', zeros for
// N' <= j < padded_rows, for every RowCopy{ragged, compact}. One launch for up to 8 tensors; returns at once, allocates
// nothing, can be captured. Throws InvalidRows before anything is enqueued, CudaError from the launch.
template <class... Sources, class... Targets>
RADIXMLP_ALWAYS_INLINE inline void gather_rows(cudaStream_t stream, const PrefixIndexView& index,
                                               const RowCopy<Sources, Targets>&... copies) {
  static_assert(sizeof...(Sources) > 0, "radixmlp: gather_rows needs a RowCopy");
  detail::enqueue_mapped_rows(stream, detail::gather_extents(index), index.gather.data(), index.compact_rows,
                              copies...);
}

// On a stream, as above: ragged[i] = compact[scatter[i]] for i < N, for every RowCopy{compact, ragged}.
template <class... Sources, class... Targets>
RADIXMLP_ALWAYS_INLINE inline void scatter_rows(cudaStream_t stream, const PrefixIndexView& index,
                                                const RowCopy<Sources, Targets>&... copies) {
  static_assert(sizeof...(Sources) > 0, "radixmlp: scatter_rows needs a RowCopy");
  detail::enqueue_mapped_rows(stream, detail::scatter_extents(index), index.scatter.data(), index.ragged_rows,
                              copies...);
}

// One tensor.
template <class S, std::int64_t SourceWidth, class T, std::int64_t TargetWidth>
RADIXMLP_ALWAYS_INLINE inline void gather_rows(cudaStream_t stream, const PrefixIndexView& index,
                                               const RowView<S, SourceWidth>& ragged,
                                               const RowView<T, TargetWidth>& compact) {
  gather_rows(stream, index, RowCopy{ragged, compact});
}
template <class S, std::int64_t SourceWidth, class T, std::int64_t TargetWidth>
RADIXMLP_ALWAYS_INLINE inline void scatter_rows(cudaStream_t stream, const PrefixIndexView& index,
                                                const RowView<S, SourceWidth>& compact,
                                                const RowView<T, TargetWidth>& ragged) {
  scatter_rows(stream, index, RowCopy{compact, ragged});
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
