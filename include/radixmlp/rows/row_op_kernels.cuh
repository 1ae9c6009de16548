// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "radixmlp/rows/float_format.hpp"
#include "radixmlp/rows/row_kernels.cuh"
#include "radixmlp/rows/row_runs.hpp"
#include "radixmlp/rows/row_sums.hpp"
#include "radixmlp/rows/row_units.hpp"

struct __half;  // NOLINT(bugprone-reserved-identifier): as cuda_fp16.h and cuda_bf16.h declare them
struct __nv_bfloat16;

namespace radixmlp::inline v0 {

template <>
struct FloatFormatOf<__half> {
  static constexpr FloatFormat value = FloatFormat::fp16;
};
template <>
struct FloatFormatOf<__nv_bfloat16> {
  static constexpr FloatFormat value = FloatFormat::bf16;
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail::inline RADIXMLP_ARCHS {

// --- Multicast ---

struct MulticastTensor {
  const std::byte* source;
  std::byte* target;
  std::int32_t source_stride;  // bytes
  std::int32_t target_stride;
  std::int32_t row_bytes;
  std::int32_t shape;  // thread_shape
};

// List j, values offsets[j] .. offsets[j + 1], says which rows of a target row j of its source becomes.
struct MulticastRows {
  MulticastTensor tensors[tensors_per_launch];
  const std::int32_t* offsets;
  const std::int32_t* values;
  std::int64_t value_count;
  std::int64_t units;
  std::int32_t source_rows;
};

// A group of lanes reads its vectors of a row once and stores them to all rows of the unit.
template <int VectorBytes, int Lanes>
__device__ __forceinline__ void multicast(const MulticastRows& launch, const MulticastTensor& tensor) {
  using Vector = typename VectorOf<VectorBytes>::type;
  constexpr unsigned group_mask = Lanes == 32 ? whole_warp : (1U << Lanes % 32) - 1;
  const auto lane = static_cast<int>(threadIdx.x % Lanes);
  const unsigned mask = group_mask << (threadIdx.x % 32 - lane);
  const int vectors = static_cast<int>(static_cast<unsigned>(tensor.row_bytes) / VectorBytes);
  constexpr int groups = row_threads / Lanes;
  std::int64_t unit = std::int64_t{blockIdx.x} * groups + threadIdx.x / Lanes;
#pragma unroll 1
  for (; unit < launch.units; unit += std::int64_t{gridDim.x} * groups) {
    const RowUnit piece = row_unit(launch.offsets, launch.source_rows, launch.value_count, 0, unit);
    const auto entries = static_cast<int>(piece.entries);
    const auto* source =
        reinterpret_cast<const Vector*>(tensor.source + offset_of(piece.row, tensor.source_stride)) + lane;
#pragma unroll 1
    for (int at = 0; at < vectors && entries > 0; at += loads_in_flight * Lanes) {
      Vector vector[loads_in_flight];
#pragma unroll
      for (int k = 0; k < loads_in_flight; ++k) {
        if (at + k * Lanes + lane < vectors) {
          vector[k] = source[at + k * Lanes];
        }
      }
#pragma unroll 1
      for (int i = 0; i < entries; i += Lanes) {
        const std::int32_t rows = i + lane < entries ? launch.values[piece.first + i + lane] : 0;
#pragma unroll 1
        for (int j = 0; j < Lanes && i + j < entries; ++j) {
          const std::int32_t row = __shfl_sync(mask, rows, j, Lanes);
          auto* target = reinterpret_cast<Vector*>(tensor.target + offset_of(row, tensor.target_stride)) + lane;
#pragma unroll
          for (int k = 0; k < loads_in_flight; ++k) {
            if (at + k * Lanes + lane < vectors) {
              target[at + k * Lanes] = vector[k];
            }
          }
        }
      }
    }
  }
}

// A template, as all kernels are: units that include it and do not launch it have nothing to compile or to keep.
template <int Threads>
__global__ void __launch_bounds__(Threads, 8) RADIXMLP_HIDDEN
    multicast_rows_kernel(const __grid_constant__ MulticastRows launch) {
  const MulticastTensor& tensor = launch.tensors[blockIdx.y];
  switch (tensor.shape) {
    case thread_shape(16, 32):
      return multicast<16, 32>(launch, tensor);
    case thread_shape(16, 8):
      return multicast<16, 8>(launch, tensor);
    case thread_shape(8, 32):
      return multicast<8, 32>(launch, tensor);
    case thread_shape(4, 32):
      return multicast<4, 32>(launch, tensor);
    case thread_shape(2, 32):
      return multicast<2, 32>(launch, tensor);
    default:
      return multicast<1, 32>(launch, tensor);
  }
}

// --- Runs ---

struct RunRows {
  ByteRows tensors[tensors_per_launch];
  std::int32_t tile_rows[tensors_per_launch];  // target rows that a warp takes
  const RowRun* runs;
  std::int64_t target_rows;
  std::int32_t run_count;
};

// Bytes by a warp, in vectors but for the first and last few.
template <int VectorBytes>
__device__ __forceinline__ void copy_bytes_as(const std::byte* source, std::byte* target, int bytes, int lane) {
  using Vector = typename VectorOf<VectorBytes>::type;
  const auto off = static_cast<int>(reinterpret_cast<std::uintptr_t>(target) % VectorBytes);
  const int head = off == 0 ? 0 : VectorBytes - off < bytes ? VectorBytes - off : bytes;
  if (lane < head) {
    target[lane] = source[lane];
  }
  const int vectors = (bytes - head) / VectorBytes;
  copy_row<32, Caching::normal>(reinterpret_cast<const Vector*>(source + head) + lane,
                                reinterpret_cast<Vector*>(target + head) + lane, vectors - lane);
  const int tail = head + vectors * VectorBytes + lane;
  if (tail < bytes) {
    target[tail] = source[tail];
  }
}

__device__ __forceinline__ void copy_bytes_by_warp(const std::byte* source, std::byte* target, int bytes, int lane) {
  const std::uintptr_t apart = reinterpret_cast<std::uintptr_t>(source) ^ reinterpret_cast<std::uintptr_t>(target);
  if (apart % 16 == 0) {
    copy_bytes_as<16>(source, target, bytes, lane);
  } else if (apart % 4 == 0) {
    copy_bytes_as<4>(source, target, bytes, lane);
  } else if (apart % 2 == 0) {
    copy_bytes_as<2>(source, target, bytes, lane);
  } else {
    copy_bytes_as<1>(source, target, bytes, lane);
  }
}

// A warp takes a tile of target rows, finds the first run in it, and copies each run's part as one block where rows are
// contiguous on both sides.
template <int Threads>
__global__ void __launch_bounds__(Threads, 8) RADIXMLP_HIDDEN copy_runs_kernel(const __grid_constant__ RunRows launch) {
  const ByteRows& rows = launch.tensors[blockIdx.y];
  const std::int64_t tile_rows = launch.tile_rows[blockIdx.y];
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const bool contiguous = rows.source_stride == rows.row_bytes && rows.target_stride == rows.row_bytes;
  std::int64_t first = (std::int64_t{blockIdx.x} * row_warps + threadIdx.x / 32) * tile_rows;
  for (; first < launch.target_rows; first += std::int64_t{gridDim.x} * row_warps * tile_rows) {
    const std::int64_t last = first + tile_rows < launch.target_rows ? first + tile_rows : launch.target_rows;
    std::int32_t run = 0;  // the first that ends behind `first`
    for (std::int32_t high = launch.run_count; run < high;) {
      const std::int32_t middle = run + (high - run) / 2;
      if (std::int64_t{launch.runs[middle].target} + launch.runs[middle].rows <= first) {
        run = middle + 1;
      } else {
        high = middle;
      }
    }
    for (; run < launch.run_count && launch.runs[run].target < last; ++run) {
      const RowRun piece = launch.runs[run];
      const std::int64_t from = piece.target < first ? first : piece.target;
      const std::int64_t end = std::int64_t{piece.target} + piece.rows;
      const std::int64_t count = (end < last ? end : last) - from;
      const std::byte* source = rows.source + (piece.source + (from - piece.target)) * rows.source_stride;
      std::byte* target = rows.target + from * rows.target_stride;
      const std::int64_t blocks = contiguous ? 1 : count;
      const auto bytes = static_cast<int>(contiguous ? count * rows.row_bytes : rows.row_bytes);
      for (std::int64_t i = 0; i < blocks; ++i, source += rows.source_stride, target += rows.target_stride) {
        copy_bytes_by_warp(source, target, bytes, lane);
      }
    }
  }
}

// --- Sums ---

template <FloatFormat format>
struct DeviceFloat;
template <>
struct DeviceFloat<FloatFormat::fp32> {
  using Bits = float;
  static __device__ __forceinline__ float load(float value) { return value; }
  static __device__ __forceinline__ float store(float value) { return value; }
};
template <>
struct DeviceFloat<FloatFormat::fp16> {
  using Bits = std::uint16_t;
  static __device__ __forceinline__ float load(std::uint16_t bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
  }
  static __device__ __forceinline__ std::uint16_t store(float value) {
    std::uint16_t bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
  }
};
template <>
struct DeviceFloat<FloatFormat::bf16> {
  using Bits = std::uint16_t;
  static __device__ __forceinline__ float load(std::uint16_t bits) { return bf16_to_float(bits); }
  static __device__ __forceinline__ std::uint16_t store(float value) { return float_to_bf16(value); }
};

// One level of the sums over lists (row_sums.hpp): reads rows of the source, or partial sums of the level below, and
// writes rows of the target where a list is done, over its length for means, else partial sums.
struct SumRows {
  const std::byte* source;
  std::byte* target;
  const float* partials_in;
  float* partials_out;
  const std::int32_t* offsets;
  const std::int32_t* values;  // null: entry i is row i
  std::int64_t source_stride;  // bytes
  std::int64_t target_stride;
  std::int64_t width;
  std::int64_t value_count;
  std::int64_t units;
  std::int64_t chunks;  // of so many columns as a warp takes
  std::int32_t rows;
  int level;
  bool means;
};

// 1 / x for x >= 1, to the last bit but for rounding. The operator's path for subnormals would be a call, with a stack.
__device__ __forceinline__ float inverse_of(float x) {
  const float guess = __fdividef(1.0F, x);
  return fmaf(guess, fmaf(-x, guess, 1.0F), guess);
}

template <int Columns, class Bits>
struct alignas(Columns * sizeof(Bits)) Elements {
  Bits values[Columns];
};

template <FloatFormat format, int Columns>
__global__ void __launch_bounds__(row_threads) RADIXMLP_HIDDEN sum_rows_kernel(const __grid_constant__ SumRows launch) {
  using Float = DeviceFloat<format>;
  using Bits = typename Float::Bits;
  using Row = Elements<Columns, Bits>;
  using Partials = Elements<Columns, float>;
  const std::int64_t items = launch.units * launch.chunks;
  std::int64_t item = std::int64_t{blockIdx.x} * row_warps + threadIdx.x / 32;
#pragma unroll 1
  for (; item < items; item += std::int64_t{gridDim.x} * row_warps) {
    const std::int64_t unit = item / launch.chunks;
    const std::int64_t column = ((item - unit * launch.chunks) * 32 + threadIdx.x % 32) * Columns;
    const RowUnit piece = row_unit(launch.offsets, launch.rows, launch.value_count, launch.level, unit);
    if (piece.row < 0 || column >= launch.width) {
      continue;
    }
    const auto count = static_cast<int>(leaves_of(piece.entries, launch.level));
    Sums<Columns> sum{};
    if (launch.level == 0) {
      const std::byte* const source = launch.source + column * sizeof(Bits);
      const auto first = static_cast<std::int32_t>(piece.first);
      sum = sum_tree<Columns>(count, [&](int i) {
        const std::int32_t row = launch.values != nullptr ? launch.values[first + i] : first + i;
        const auto elements = *reinterpret_cast<const Row*>(source + row * launch.source_stride);
        Sums<Columns> loaded;
        for (int c = 0; c < Columns; ++c) {
          loaded.values[c] = Float::load(elements.values[c]);
        }
        return loaded;
      });
    } else {
      sum = sum_tree<Columns>(count, [&](int i) {
        const std::int64_t row =
            partial_row(piece.first + i * leaf_of(launch.level), piece.leads && i == 0, launch.level);
        const auto elements = *reinterpret_cast<const Partials*>(launch.partials_in + row * launch.width + column);
        Sums<Columns> loaded;
        for (int c = 0; c < Columns; ++c) {
          loaded.values[c] = elements.values[c];
        }
        return loaded;
      });
    }
    const std::int32_t length = launch.offsets[piece.row + 1] - launch.offsets[piece.row];
    if (length <= leaf_of(launch.level + 1)) {
      const float scale = launch.means && length > 0 ? inverse_of(static_cast<float>(length)) : 1.0F;
      Row elements;
      for (int c = 0; c < Columns; ++c) {
        elements.values[c] = Float::store(sum.values[c] * scale);
      }
      *reinterpret_cast<Row*>(launch.target + piece.row * launch.target_stride + column * sizeof(Bits)) = elements;
    } else {
      Partials elements;
      for (int c = 0; c < Columns; ++c) {
        elements.values[c] = sum.values[c];
      }
      *reinterpret_cast<Partials*>(launch.partials_out +
                                   partial_row(piece.first, piece.leads, launch.level + 1) * launch.width + column) =
          elements;
    }
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail::inline RADIXMLP_ARCHS
