// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "radixmlp/rows/row_map.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail::inline RADIXMLP_ARCHS {

inline constexpr int row_threads = 128;  // of a block
inline constexpr int row_warps = row_threads / 32;
inline constexpr unsigned whole_warp = 0xffffffff;
inline constexpr int loads_in_flight = 4;  // vectors a thread reads before it writes the first
inline constexpr int tensors_per_launch = 8;

template <int Bytes>
struct VectorOf;
template <>
struct VectorOf<32> {
  struct alignas(32) type {
    std::uint64_t words[4];
  };
};
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

// How threads take a tensor's rows: vectors of so many bytes, up to 32 (two of 16 before sm_100), and lanes that share
// a row: 32, 8 (vectors of 16 bytes or more) or 1 (rows of one vector).
[[nodiscard]] RADIXMLP_HOST_DEVICE constexpr std::int32_t thread_shape(int vector_bytes, int lanes) noexcept {
  return vector_bytes * 64 + lanes;
}

// One tensor of a launch and how the warps of its blocks, first_block and on of the grid, share its rows. Strides and
// rows are below 2 GiB.
struct TensorBlocks {
  const std::byte* source;
  std::byte* target;
  std::int64_t target_rows;    // bound of a slot
  std::uint32_t rows_of_grid;  // that the blocks take before they stride on; rows are counted below 2^31
  std::int32_t source_stride;  // bytes
  std::int32_t target_stride;
  std::int32_t row_bytes;
  std::int32_t first_block;
  std::int32_t set_rows;  // that a warp takes at a time; up to 32
  std::int32_t shape;     // thread_shape
  bool narrow;            // a thread loads from loads_in_flight rows at once, not so many vectors of one row
};

// Row i of a target is row map[i] of its source for i < mapped_rows, and zero for the padding behind. With slots, it is
// put into row slots[i] of the target instead.
struct MappedRows {
  TensorBlocks tensors[tensors_per_launch];
  std::int32_t tensor_count;
  std::int32_t slot_bytes;
  const std::int32_t* map;
  const void* slots;
  const std::int32_t* count;  // null: mapped_rows
  std::uint32_t mapped_rows;
  std::uint32_t rows;
  std::int32_t source_rows;
};

template <Caching caching, class Vector>
__device__ __forceinline__ void store(Vector* target, const Vector& value) {
  if constexpr (caching == Caching::normal) {
    *target = value;
  } else if constexpr (sizeof(Vector) == 32) {
    asm volatile("st.global.cs.v4.b64 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(target)),
                 "l"(value.words[0]), "l"(value.words[1]), "l"(value.words[2]), "l"(value.words[3])
                 : "memory");
  } else {
    __stcs(target, value);
  }
}

// __shfl_sync of a whole warp in one PTX instruction instead of three.
__device__ __forceinline__ std::int32_t from_lane(std::int32_t value, int lane) {
  std::int32_t result;
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;" : "=r"(result) : "r"(value), "r"(lane));
  return result;
}
__device__ __forceinline__ std::int64_t from_lane(std::int64_t value, int lane) {
  return __shfl_sync(whole_warp, value, lane);
}

// row * stride in one instruction; the compiler widens both first and multiplies in 64 bits.
__device__ __forceinline__ std::int64_t offset_of(std::int32_t row, std::int32_t stride) {
  std::int64_t offset;
  asm("mul.wide.s32 %0, %1, %2;" : "=l"(offset) : "r"(row), "r"(stride));
  return offset;
}

template <Bounds bounds>
__device__ __forceinline__ std::int32_t bounded(std::int32_t row, std::int32_t rows) {
  if constexpr (bounds == Bounds::trap) {
    if (!in_rows(row, rows)) {
      __trap();
    }
  } else if constexpr (bounds == Bounds::clamp) {
    return row < 0 && rows > 0 ? 0 : row < rows ? row : rows - 1;  // zero_row without rows
  } else if constexpr (bounds == Bounds::zero) {
    return in_rows(row, rows) ? row : zero_row;
  }
  return row;
}

// The cache row of ragged row i, or -1 where it goes nowhere.
template <Bounds bounds>
__device__ __forceinline__ std::int64_t slot_of(const MappedRows& launch, std::uint32_t i, std::int64_t target_rows) {
  const std::int64_t slot = launch.slot_bytes == 8 ? static_cast<const std::int64_t*>(launch.slots)[i]
                                                   : static_cast<const std::int32_t*>(launch.slots)[i];
  if constexpr (bounds != Bounds::trust) {
    if (slot >= target_rows) {
      if constexpr (bounds == Bounds::trap) {
        __trap();
      }
      return -1;
    }
  }
  return slot;
}

// Copies a row with `Lanes` threads side by side. Source and target are those of this thread's first vector, `left` is
// how many the row has from there on.
template <int Lanes, Caching caching, class Vector>
__device__ __forceinline__ void copy_row(const Vector* source, Vector* target, int left) {
  Vector values[loads_in_flight];
#pragma unroll 1
  for (; left > (loads_in_flight - 1) * Lanes; left -= loads_in_flight * Lanes) {
#pragma unroll
    for (int k = 0; k < loads_in_flight; ++k) {
      values[k] = source[k * Lanes];
    }
#pragma unroll
    for (int k = 0; k < loads_in_flight; ++k) {
      store<caching>(target + k * Lanes, values[k]);
    }
    source += loads_in_flight * Lanes;
    target += loads_in_flight * Lanes;
  }
#pragma unroll
  for (int k = 0; k < loads_in_flight - 1; ++k) {
    if (left > k * Lanes) {
      values[k] = source[k * Lanes];
    }
  }
#pragma unroll
  for (int k = 0; k < loads_in_flight - 1; ++k) {
    if (left > k * Lanes) {
      store<caching>(target + k * Lanes, values[k]);
    }
  }
}

// The same for so many rows at once, a vector of each at a time. target(k) is where row k goes.
template <int Lanes, Caching caching, class Vector, class Target>
__device__ __forceinline__ void copy_narrow_rows(const Vector* (&sources)[loads_in_flight], const Target& target,
                                                 int left) {
#pragma unroll 1
  for (int at = 0; at < left; at += Lanes) {
    Vector values[loads_in_flight];
#pragma unroll
    for (int k = 0; k < loads_in_flight; ++k) {
      values[k] = *sources[k];
      sources[k] += Lanes;
    }
#pragma unroll
    for (int k = 0; k < loads_in_flight; ++k) {
      store<caching>(target(k) + at, values[k]);
    }
  }
}

// A warp's rows of one tensor. It reads the indices of a set of rows in one load and hands them out by shuffles.
template <int VectorBytes, int Lanes, Bounds bounds, Caching caching, bool to_slots>
__device__ __forceinline__ void move_rows(const MappedRows& launch, const TensorBlocks& tensor,
                                          std::uint32_t mapped_rows) {
  using Vector = typename VectorOf<VectorBytes>::type;
  constexpr int groups = 32 / Lanes;  // rows side by side
  const auto warp = static_cast<int>(threadIdx.x / 32);
  const auto warp_lane = static_cast<int>(threadIdx.x % 32);
  const auto lane = static_cast<int>(threadIdx.x % Lanes);
  const auto group = static_cast<int>(threadIdx.x % 32 / Lanes);
  const int set_rows = tensor.set_rows;
  const int left = static_cast<int>(static_cast<unsigned>(tensor.row_bytes) / VectorBytes) - lane;
  const std::int64_t target_stride = tensor.target_stride;
  const std::int64_t step = groups * target_stride;
  const std::byte* const source = tensor.source + lane * VectorBytes;

  const std::uint32_t set = (blockIdx.x - static_cast<std::uint32_t>(tensor.first_block)) * row_warps + warp;
#pragma unroll 1
  for (std::uint32_t first = set * set_rows; first < launch.rows; first += tensor.rows_of_grid) {
    std::byte* const target = tensor.target + lane * VectorBytes + (to_slots ? 0 : first * target_stride);
    std::int32_t rows = zero_row;  // lane i has that of row first + i
    std::int64_t slots = -1;
    const bool mapped = warp_lane < set_rows && first + warp_lane < mapped_rows;
    if (mapped) {
      rows = bounded<bounds>(launch.map[first + warp_lane], launch.source_rows);
      if constexpr (to_slots) {
        slots = slot_of<bounds>(launch, first + warp_lane, tensor.target_rows);
      }
    }
    const auto source_of = [&](int i) {
      const std::int32_t row = from_lane(rows, i);
      return reinterpret_cast<const Vector*>(source + offset_of(row, tensor.source_stride));
    };
    const auto target_of = [&](std::byte* in_order, int i) {
      if constexpr (to_slots) {
        return reinterpret_cast<Vector*>(target + from_lane(slots, i) * target_stride);
      } else {
        return reinterpret_cast<Vector*>(in_order);
      }
    };
    bool every_row = first + set_rows <= mapped_rows;
    if constexpr (to_slots || bounds == Bounds::clamp || bounds == Bounds::zero) {
      every_row = __all_sync(whole_warp, warp_lane >= set_rows || (rows >= 0 && (!to_slots || slots >= 0)));
    }
    if (!every_row) {  // some are zero, some go nowhere
#pragma unroll 1
      for (int i = group; i < set_rows; i += groups) {
        const std::int32_t row = from_lane(rows, i);
        const std::int64_t slot = from_lane(slots, i);
        const Vector* const from = reinterpret_cast<const Vector*>(source + offset_of(row, tensor.source_stride));
        Vector* const to = reinterpret_cast<Vector*>(target + (to_slots ? slot : i) * target_stride);
        if (to_slots ? slot >= 0 : first + i < launch.rows) {
#pragma unroll 1
          for (int at = 0; at < left; at += Lanes) {
            store<caching>(to + at, row < 0 ? Vector{} : from[at]);
          }
        }
      }
    } else if (VectorBytes == 32 || !tensor.narrow) {
      std::byte* to = target + group * target_stride;
#pragma unroll 1
      for (int i = group; i < set_rows; i += groups, to += step) {
        const Vector* const from = source_of(i);
        copy_row<Lanes, caching>(from, target_of(to, i), left);
      }
    } else {
      std::byte* to = target + group * target_stride;
#pragma unroll 1
      for (int i = group; i < set_rows; i += loads_in_flight * groups, to += loads_in_flight * step) {
        const Vector* from[loads_in_flight];
        Vector* slot[loads_in_flight];  // stays unused without slots
#pragma unroll
        for (int k = 0; k < loads_in_flight; ++k) {
          from[k] = source_of(i + k * groups);
          slot[k] = target_of(to, i + k * groups);
        }
        copy_narrow_rows<Lanes, caching>(
            from, [&](int k) { return to_slots ? slot[k] : reinterpret_cast<Vector*>(to + k * step); }, left);
      }
    }
  }
}

// Rows *count .. rows become zero, a warp a row; none where the count is negative.
struct ZeroRows {
  std::byte* target;
  std::int64_t stride;  // bytes
  std::int64_t row_bytes;
  std::int64_t rows;
  const std::int32_t* count;
};

template <int VectorBytes>
__global__ void __launch_bounds__(row_threads) RADIXMLP_HIDDEN
    zero_rows_kernel(const __grid_constant__ ZeroRows launch) {
  using Vector = typename VectorOf<VectorBytes>::type;
  const std::int32_t count = *launch.count;
  std::int64_t row = count + std::int64_t{blockIdx.x} * row_warps + threadIdx.x / 32;
  for (; count >= 0 && row < launch.rows; row += std::int64_t{gridDim.x} * row_warps) {
    auto* const target = reinterpret_cast<Vector*>(launch.target + row * launch.stride);
    for (std::int64_t at = threadIdx.x % 32; at < launch.row_bytes / VectorBytes; at += 32) {
      target[at] = Vector{};
    }
  }
}

// Programmatic dependent launch, of which a launch in order sees nothing: the kernels before this one have ended and
// what they wrote is there; the next may start, which brings its blocks here only when no block of this kernel waits
// for room.
__device__ __forceinline__ void wait_for_kernels_before() {
  if constexpr (RADIXMLP_DEVICE_HAS_DEPENDENT_LAUNCH) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  }
}

// Tensors of different widths and alignments side by side: a block belongs to one of them. `wide`: all take vectors of
// 16 bytes or more. Two kernels, because ptxas cannot hold all shapes in 64 registers. Eight blocks a multiprocessor
// make it stay there.
template <Bounds bounds, Caching caching, LaunchOrder order, bool to_slots, bool wide>
__global__ void __launch_bounds__(row_threads, 8) RADIXMLP_HIDDEN
    copy_mapped_rows_kernel(const __grid_constant__ MappedRows launch) {
  if constexpr (order == LaunchOrder::programmatic) {
    wait_for_kernels_before();
  }
  const TensorBlocks* tensor = launch.tensors;
  for (int t = 1; t < launch.tensor_count && static_cast<std::int32_t>(blockIdx.x) >= launch.tensors[t].first_block;
       ++t) {
    tensor = &launch.tensors[t];
  }
  std::uint32_t mapped_rows = launch.mapped_rows;
  if (launch.count != nullptr) {
    const auto count = static_cast<std::uint32_t>(*launch.count);
    if (count > mapped_rows) {  // or was negative
      return;
    }
    mapped_rows = count;
  }
  const auto move = [&]<int VectorBytes, int Lanes>() {
    move_rows<VectorBytes, Lanes, bounds, caching, to_slots>(launch, *tensor, mapped_rows);
  };
  const std::int32_t shape = tensor->shape;
  if constexpr (wide) {
    if (shape == thread_shape(16, 8)) {  // the shortest rows first, where the way here counts most
      return move.template operator()<16, 8>();
    }
    switch (shape) {
      case thread_shape(16, 32):
        return move.template operator()<16, 32>();
      case thread_shape(32, 32):
        return move.template operator()<RADIXMLP_DEVICE_VECTOR_BYTES, 32>();
      case thread_shape(32, 8):
        return move.template operator()<RADIXMLP_DEVICE_VECTOR_BYTES, 8>();
      default:
        return move.template operator()<16, 1>();
    }
  } else {
    switch (shape) {
      case thread_shape(16, 32):
        return move.template operator()<16, 32>();
      case thread_shape(8, 32):
        return move.template operator()<8, 32>();
      case thread_shape(8, 1):
        return move.template operator()<8, 1>();
      case thread_shape(4, 32):
        return move.template operator()<4, 32>();
      case thread_shape(4, 1):
        return move.template operator()<4, 1>();
      case thread_shape(2, 32):
        return move.template operator()<2, 32>();
      case thread_shape(2, 1):
        return move.template operator()<2, 1>();
      case thread_shape(1, 32):
        return move.template operator()<1, 32>();
      default:
        return move.template operator()<1, 1>();
    }
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail::inline RADIXMLP_ARCHS
