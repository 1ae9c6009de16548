// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail {

inline constexpr int row_threads = 256;    // of a block
inline constexpr int loads_in_flight = 4;  // vectors a thread reads before it writes the first
inline constexpr int tensors_per_launch = 8;

template <int Bytes>
struct VectorOf;
template <>
struct VectorOf<16> {
  using type = uint4;
};
template <>
struct VectorOf<8> {
  using type = uint2;
};
template <>
struct VectorOf<4> {
  using type = std::uint32_t;
};
template <>
struct VectorOf<2> {
  using type = std::uint16_t;
};
template <>
struct VectorOf<1> {
  using type = std::uint8_t;
};

// One tensor of a launch and the blocks that move it, first_block .. first_block + blocks of the grid.
struct TensorBlocks {
  ByteRows rows;
  std::int32_t first_block;
  std::int32_t blocks;
  std::int32_t lanes_log2;  // threads that share a row, a power of two up to row_threads
};

// Row i of a target is row map[i] of its source for i < mapped_rows, and zero for the padding behind.
struct MappedRows {
  TensorBlocks tensors[tensors_per_launch];
  std::int32_t tensor_count;
  const std::int32_t* map;
  std::int64_t mapped_rows;
  std::int64_t rows;
};

// Each group of lanes walks its rows at the stride of its tensor's blocks; each lane has loads_in_flight vectors under
// way, neighbouring lanes touch neighbouring vectors. RowBytes 0: the widths are read from the tensors.
template <int VectorBytes, std::int64_t RowBytes>
__global__ void __launch_bounds__(row_threads) RADIXMLP_HIDDEN
    copy_mapped_rows_kernel(const __grid_constant__ MappedRows launch) {
  using Vector = typename VectorOf<VectorBytes>::type;
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  int t = 0;
  while (t + 1 < launch.tensor_count && block >= launch.tensors[t + 1].first_block) {
    ++t;
  }
  const ByteRows& tensor = launch.tensors[t].rows;
  const std::int64_t vectors = (RowBytes != 0 ? RowBytes : tensor.row_bytes) / VectorBytes;
  const int lanes_log2 = launch.tensors[t].lanes_log2;
  const int lanes = 1 << lanes_log2;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int rows_per_block = row_threads >> lanes_log2;
  const std::int64_t row_stride = std::int64_t{launch.tensors[t].blocks} * rows_per_block;
  std::int64_t row = std::int64_t{block - launch.tensors[t].first_block} * rows_per_block + (threadIdx.x >> lanes_log2);
  for (; row < launch.rows; row += row_stride) {
    const bool mapped = row < launch.mapped_rows;
    const std::int64_t source_row = mapped ? launch.map[row] : 0;
    const auto* source = reinterpret_cast<const Vector*>(tensor.source + source_row * tensor.source_stride) + lane;
    auto* target = reinterpret_cast<Vector*>(tensor.target + row * tensor.target_stride) + lane;
    for (std::int64_t left = vectors - lane; left > 0; left -= loads_in_flight << lanes_log2) {
      Vector values[loads_in_flight];
#pragma unroll
      for (int k = 0; k < loads_in_flight; ++k) {
        values[k] = Vector{};
        if (mapped && k * lanes < left) {
          values[k] = source[k * lanes];
        }
      }
#pragma unroll
      for (int k = 0; k < loads_in_flight; ++k) {
        if (k * lanes < left) {
          target[k * lanes] = values[k];
        }
      }
      source += loads_in_flight << lanes_log2;
      target += loads_in_flight << lanes_log2;
    }
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail
