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
#include "radixmlp/rows/row_map.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail::inline RADIXMLP_ARCHS {

// Largest vector, in bytes, that every row of a tensor starts and ends on a multiple of; up to 32, a sector.
[[nodiscard]] inline int vector_bytes(const ByteRows& rows) noexcept {
  std::uint64_t bits =
      32 | reinterpret_cast<std::uintptr_t>(rows.source) | reinterpret_cast<std::uintptr_t>(rows.target);
  bits |= static_cast<std::uint64_t>(rows.source_stride | rows.target_stride | rows.row_bytes);
  return 1 << std::countr_zero(bits);
}

// How warps share the rows of a tensor, and into `blocks` how many blocks of them. Rows made of sectors take 8 threads
// up to 2 KB, a cache line side by side; rows that may start within a sector take a warp, which splits fewer of them;
// rows of one vector take one thread. Where that leaves a thread fewer than loads_in_flight vectors of a row, it reads
// from as many rows at once. `wide`: the kernel of wide vectors; the other has a warp alone for 16 bytes. A thread
// moves 8 vectors or more, or the arithmetic before the first is most of its work.
[[nodiscard]] inline TensorBlocks shape_blocks(const ByteRows& rows, std::int64_t target_rows, std::int64_t count,
                                               bool wide, std::int32_t first_block, std::int32_t& blocks) noexcept {
  const bool sectors = vector_bytes(rows) == 32;
  const int bytes = std::min(vector_bytes(rows), 16);
  const auto vectors = static_cast<int>(rows.row_bytes / bytes);
  const bool warp_only = bytes == 16 && !wide;
  const int lanes = warp_only ? 32 : vectors == 1 ? 1 : sectors && vectors < 128 ? 8 : 32;
  const int of_row = (vectors + lanes - 1) / lanes;  // a thread's
  const bool narrow = lanes > 1 && vectors < loads_in_flight * lanes;
  int rows_of_thread = lanes > 1 && of_row < 8 ? 2 : 1;
  if (narrow) {
    rows_of_thread = std::clamp((lanes == 8 ? 8 : 16) / of_row, loads_in_flight, lanes);
  }
  const bool twice = wide && sectors && !narrow && vectors >= 2 * loads_in_flight * lanes;
  const int set_rows = 32 / lanes * static_cast<int>(std::bit_floor(static_cast<unsigned>(rows_of_thread)));
  const std::int64_t block_rows = row_warps * set_rows;
  blocks = static_cast<std::int32_t>(std::min((count + block_rows - 1) / block_rows, max_rows / tensors_per_launch));
  return {rows.source,
          rows.target,
          target_rows,
          static_cast<std::uint32_t>(blocks * block_rows),
          static_cast<std::int32_t>(rows.source_stride),
          static_cast<std::int32_t>(rows.target_stride),
          static_cast<std::int32_t>(rows.row_bytes),
          first_block,
          set_rows,
          thread_shape(twice ? 32 : bytes, lanes),
          narrow};
}

// Few wide rows are moved in slices of their columns, as if each were a tensor, so that every multiprocessor has work.
[[nodiscard]] inline std::int64_t slice_bytes(const ByteRows& rows, std::int64_t count, std::size_t most) noexcept {
  constexpr std::int64_t enough_warps = 2048;                // 16 a multiprocessor
  constexpr std::int64_t least = 32 * 16 * loads_in_flight;  // bytes that a warp has under way
  const std::int64_t slices = std::clamp<std::int64_t>(std::min(enough_warps / count, rows.row_bytes / least), 1,
                                                       static_cast<std::int64_t>(most));
  return round_up((rows.row_bytes + slices - 1) / slices, least);
}

// Offsets within a row, and strides, are 32 bits on the device.
inline void check_device_rows(std::span<const ByteRows> tensors) {
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::int64_t longest = std::max({tensors[t].row_bytes, tensors[t].source_stride, tensors[t].target_stride});
    if (longest > max_rows) {
      raise(invalid_rows("stride", static_cast<std::int64_t>(t), longest, "its bytes must not exceed", max_rows));
    }
  }
}

// A kernel that begins with wait_for_kernels_before. Its code for older devices does not wait, and a newer one may have
// been given that; so what the driver has loaded decides.
RADIXMLP_HIDDEN inline void launch_programmatic(const void* kernel, dim3 grid, dim3 block, void** arguments,
                                                cudaStream_t stream) {
  cudaFuncAttributes code{};
  raise_unless_success(cudaFuncGetAttributes(&code, kernel), "cudaFuncGetAttributes");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = code.ptxVersion >= 90 ? 1 : 0;
  raise_unless_success(cudaLaunchKernelExC(&config, kernel, arguments), "cudaLaunchKernelExC");
}

// One launch; `launch` has everything but the tensors.
template <RowOptions options, bool to_slots>
RADIXMLP_HIDDEN void launch_mapped_rows(cudaStream_t stream, std::span<const ByteRows> tensors,
                                        std::span<const std::int64_t> target_rows, MappedRows launch) {
  bool wide = true;
  for (const ByteRows& rows : tensors) {
    wide = wide && vector_bytes(rows) >= 16;
  }
  std::int32_t blocks = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::int64_t slice = slice_bytes(tensors[t], launch.rows, tensors_per_launch / tensors.size());
    for (std::int64_t at = 0; at < tensors[t].row_bytes; at += slice) {
      ByteRows rows = tensors[t];
      rows.source += at;
      rows.target += at;
      rows.row_bytes = std::min(slice, rows.row_bytes - at);
      std::int32_t of_slice = 0;
      launch.tensors[launch.tensor_count++] = shape_blocks(rows, target_rows[t], launch.rows, wide, blocks, of_slice);
      blocks += of_slice;
    }
  }
  void* arguments[] = {&launch};
  constexpr Bounds bounds = options.bounds;  // nvcc knows no kernels over a class such as RowOptions
  constexpr Caching caching = options.caching;
  constexpr LaunchOrder order = options.order;
  const void* const kernel =
      wide ? reinterpret_cast<const void*>(&copy_mapped_rows_kernel<bounds, caching, order, to_slots, true>)
           : reinterpret_cast<const void*>(&copy_mapped_rows_kernel<bounds, caching, order, to_slots, false>);
  const dim3 grid(static_cast<unsigned>(blocks));
  if constexpr (order == LaunchOrder::programmatic) {
    launch_programmatic(kernel, grid, dim3(row_threads), arguments, stream);
  } else {
    raise_unless_success(cudaLaunchKernel(kernel, grid, dim3(row_threads), arguments, 0, stream), "cudaLaunchKernel");
  }
}

// Launches of up to tensors_per_launch tensors each; those without width are left out.
template <RowOptions options, bool to_slots, std::size_t Tensors>
RADIXMLP_HIDDEN void enqueue_mapped_rows(cudaStream_t stream, const std::array<ByteRows, Tensors>& all,
                                         const std::array<std::int64_t, Tensors>& all_target_rows,
                                         const MappedRows& launch) {
  check_device_rows(all);
  std::array<ByteRows, Tensors> tensors{};
  std::array<std::int64_t, Tensors> target_rows{};
  std::size_t count = 0;
  for (std::size_t t = 0; t < Tensors && launch.rows > 0; ++t) {
    if (all[t].row_bytes > 0) {
      tensors[count] = all[t];
      target_rows[count++] = all_target_rows[t];
    }
  }
  for (std::size_t t = 0; t < count; t += tensors_per_launch) {
    const std::size_t taken = std::min<std::size_t>(count - t, tensors_per_launch);
    launch_mapped_rows<options, to_slots>(stream, std::span(tensors).subspan(t, taken),
                                          std::span(target_rows).subspan(t, taken), launch);
  }
}

}  // namespace detail::inline RADIXMLP_ARCHS

// On a stream, with map and rows in device memory: target[i] = source[map[i]], and zeros behind the mapped rows, for
// every RowCopy{source, target}. One launch for up to 8 tensors of any widths and alignments; returns at once,
// allocates nothing, can be captured. Throws InvalidRows before anything is enqueued, CudaError from the launch.
template <RowOptions options = RowOptions{}, class... Sources, class... Targets>
RADIXMLP_ALWAYS_INLINE inline void map_rows(cudaStream_t stream, const RowMap& map,
                                            const RowCopy<Sources, Targets>&... copies) {
  static_assert(sizeof...(Sources) > 0, "radixmlp: map_rows needs a RowCopy");
  detail::check_map(map);
  const auto tensors = detail::checked_bytes({map.source_rows, map.target_rows}, copies...);
  detail::MappedRows launch{};
  launch.map = map.map.data();
  launch.count = map.count;
  launch.mapped_rows = static_cast<std::uint32_t>(map.map.size());
  launch.rows = static_cast<std::uint32_t>(map.target_rows);
  launch.source_rows = static_cast<std::int32_t>(map.source_rows);
  detail::enqueue_mapped_rows<options, false>(stream, tensors, std::array{copies.target.rows()...}, launch);
}

// On a stream, as above: cache[slots[i]] = compact[scatter[i]] for i < N where slots[i] is not negative, for every
// RowCopy{compact, cache}: K and V of a paged cache in one launch. A cache has the rows that its slots name, at least
// one. Slots beyond them are trusted not to be there, or trap, or are left out (Bounds::clamp and zero). Where two rows
// go to one slot, they must be copies of one compact row; check_slots finds others.
template <RowOptions options = RowOptions{}, class... Sources, class... Targets>
RADIXMLP_ALWAYS_INLINE inline void scatter_to_slots(cudaStream_t stream, const PrefixIndexView& index,
                                                    const Slots& slots, const RowCopy<Sources, Targets>&... copies) {
  static_assert(sizeof...(Sources) > 0, "radixmlp: scatter_to_slots needs a RowCopy");
  detail::check_slots_size(index, slots);
  const auto tensors = detail::checked_bytes(detail::slot_extents(index, copies...), copies...);
  detail::MappedRows launch{};
  launch.slot_bytes = slots.entry_bytes();
  launch.map = index.scatter.data();
  launch.slots = slots.data();
  launch.count = scatter_map(index).count;
  launch.mapped_rows = launch.rows = static_cast<std::uint32_t>(index.ragged_rows);
  launch.source_rows = index.compact_rows;
  detail::enqueue_mapped_rows<options, true>(stream, tensors, std::array{copies.target.rows()...}, launch);
}

// On a stream, as above: rows from *count on, which is read when the stream gets there, become zero; none where it is
// below 0: there is no index of the batch.
template <class T, std::int64_t Width>
RADIXMLP_ALWAYS_INLINE inline void zero_rows_behind(cudaStream_t stream, const std::int32_t* count,
                                                    const RowView<T, Width>& rows) {
  constexpr std::int64_t most_blocks = 1024;
  const auto bytes = [](std::int64_t elements) { return elements * std::int64_t{sizeof(T)}; };
  detail::ZeroRows launch{reinterpret_cast<std::byte*>(rows.data()), bytes(rows.stride()), bytes(rows.width()),
                          rows.rows(), count};
  if (launch.rows == 0 || launch.row_bytes == 0) {
    return;
  }
  const std::uint64_t bits =
      reinterpret_cast<std::uintptr_t>(launch.target) | static_cast<std::uint64_t>(launch.stride | launch.row_bytes);
  const bool vectors = bits % 16 == 0;
  const std::int64_t blocks = std::min((launch.rows + detail::row_warps - 1) / detail::row_warps, most_blocks);
  void* arguments[] = {&launch};
  detail::raise_unless_success(
      cudaLaunchKernel(vectors ? reinterpret_cast<const void*>(&detail::zero_rows_kernel<16>)
                               : reinterpret_cast<const void*>(&detail::zero_rows_kernel<1>),
                       dim3(static_cast<unsigned>(blocks)), dim3(detail::row_threads), arguments, 0, stream),
      "cudaLaunchKernel");
}

// On a stream, as above: compact[j] = ragged[gather[j]] for j < N', zeros for
// N' <= j < padded_rows, for every RowCopy{ragged, compact}.
template <class... Sources, class... Targets>
RADIXMLP_ALWAYS_INLINE inline void gather_rows(cudaStream_t stream, const PrefixIndexView& index,
                                               const RowCopy<Sources, Targets>&... copies) {
  static_assert(sizeof...(Sources) > 0, "radixmlp: gather_rows needs a RowCopy");
  map_rows(stream, gather_map(index), copies...);
}

// On a stream, as above: ragged[i] = compact[scatter[i]] for i < N, for every RowCopy{compact, ragged}.
template <class... Sources, class... Targets>
RADIXMLP_ALWAYS_INLINE inline void scatter_rows(cudaStream_t stream, const PrefixIndexView& index,
                                                const RowCopy<Sources, Targets>&... copies) {
  static_assert(sizeof...(Sources) > 0, "radixmlp: scatter_rows needs a RowCopy");
  map_rows(stream, scatter_map(index), copies...);
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
