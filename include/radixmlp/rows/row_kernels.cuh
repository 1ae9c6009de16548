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

// One launch: rows of up to tensors_per_launch tensors, one tensor a value of blockIdx.y. Row i of a target is row
// map[i] of its source for i < mapped_rows, and zero for the padding behind.
struct MappedRows {
  ByteRows tensors[tensors_per_launch];
  std::uint8_t lanes_log2[tensors_per_launch];  // threads that share a row, a power of two up to row_threads
  const std::int32_t* map;
  std::int64_t mapped_rows;
  std::int64_t rows;
};

// Each group of lanes walks its rows at grid stride; each lane has loads_in_flight vectors under way, neighbouring
// lanes touch neighbouring vectors. RowBytes 0: the widths are read from the tensors.
template <int VectorBytes, std::int64_t RowBytes>
__global__ void __launch_bounds__(row_threads) RADIXMLP_HIDDEN
    copy_mapped_rows_kernel(const __grid_constant__ MappedRows launch) {
  using Vector = typename VectorOf<VectorBytes>::type;
  const ByteRows& tensor = launch.tensors[blockIdx.y];
  const std::int64_t vectors = (RowBytes != 0 ? RowBytes : tensor.row_bytes) / VectorBytes;
  const int lanes_log2 = launch.lanes_log2[blockIdx.y];
  const int lanes = 1 << lanes_log2;
  const int lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const int rows_per_block = row_threads >> lanes_log2;
  std::int64_t row = std::int64_t{blockIdx.x} * rows_per_block + (threadIdx.x >> lanes_log2);
  for (; row < launch.rows; row += std::int64_t{gridDim.x} * rows_per_block) {
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
