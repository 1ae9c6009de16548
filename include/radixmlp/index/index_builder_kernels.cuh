// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cub/agent/single_pass_scan_operators.cuh>
#include <cub/block/block_scan.cuh>

#include "radixmlp/index/index_capacity.hpp"
#include "radixmlp/index/row_identity.hpp"

// How an index is built on the device; device_index_builder.cuh launches it. A row is known by its prefix: itself and
// all rows before it in its sequence. Hashes of prefixes propose which rows are equal, values decide:
//
//   prepare   the table of prefixes is emptied
//   hash      a hash of every row's prefix, by one scan; the batch is checked
//   insert    each row finds the slot of its prefix in the table; the slot keeps the lowest row that came
//   verify    each row is compared with the lowest row of its slot
//   repair    returns at once, unless a comparison failed: then finds the lowest rows again, without hashes
//   number    rows that are the lowest are numbered in order, by one scan
//   write     all maps
//
// Why a verified result is exact. Rows with equal prefixes have equal hashes and so one slot. Conversely, let row r be
// the lowest of row i's slot. `verify` has seen that both are first rows and agree in namespace, or neither is and the
// rows before them share a slot; and that the rows themselves agree. By induction over the place in the sequence, rows
// of one slot have equal prefixes.
//
// The scans are CUB's, from its parts for one's own kernels: cub::DeviceScan takes an error that the engine has not
// read yet (cudaPeekAtLastError) for its own, and launches two kernels.
namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail::inline RADIXMLP_ARCHS {

// Of a block, which takes as many rows. The kernels are templates over it, as all are: a unit that includes them and
// launches none has nothing to compile or to keep.
inline constexpr int build_threads = 512;
inline constexpr int hash_bits = 62;
inline constexpr std::uint32_t no_row = 0xffffffff;
inline constexpr std::uint64_t no_fault = ~std::uint64_t{0};

struct BuildState {
  unsigned long long fault;  // lowest of IndexFault << 32 | index that the batch's arrays have, or no_fault
  std::int32_t longest;      // sequence
  std::uint32_t unverified;  // nonzero: the hashes of different prefixes are equal
};

// A number below 2^31, and whether its row is the first of a sequence.
struct Flagged {
  std::uint32_t bits;
  static constexpr std::uint32_t flag = 0x80000000;

  [[nodiscard]] RADIXMLP_HOST_DEVICE static constexpr Flagged of(std::uint32_t number, bool first) noexcept {
    return {number | (first ? flag : 0)};
  }
  [[nodiscard]] RADIXMLP_HOST_DEVICE constexpr std::uint32_t number() const noexcept { return bits & ~flag; }
  [[nodiscard]] RADIXMLP_HOST_DEVICE constexpr bool first() const noexcept { return (bits & flag) != 0; }
  [[nodiscard]] RADIXMLP_HOST_DEVICE friend constexpr bool operator==(Flagged a, Flagged b) noexcept {
    return a.bits == b.bits;
  }
};

// What every kernel is launched with. `rows` and `sequences` are those of the batch's arrays; how many rows the batch
// has, cu_seqlens tells.
struct IndexBuild {
  BatchColumns batch;
  const std::int32_t* cu_seqlens;
  std::int32_t rows, sequences;
  IndexCapacity capacity;  // max_seqlen is not 0 where there are rows
  std::uint64_t seed;
  std::uint64_t hash_mask;  // all of a hash but in tests

  // Workspace, for each row: its prefix's hash, later (in the same memory) the lowest row that equals it and how many
  // rows up to it are the lowest of theirs; its slot; two slots.
  BuildState* state = nullptr;
  unsigned long long* hashes = nullptr;
  Flagged* lowest = nullptr;
  std::uint32_t* numbers = nullptr;
  Flagged* slots = nullptr;
  std::uint32_t* table = nullptr;  // [table_slots]: lowest row with the prefix of a slot, or no_row
  std::uint32_t table_slots = 0;
  void* hash_tiles = nullptr;
  void* number_tiles = nullptr;

  std::int32_t *gather, *scatter, *compact_cu, *ragged_cu, *parent, *last_rows;
  IndexCounts* counts;
};

// --- A row and its sequence ---

// Stafford's mix 13 (splitmix64): a bijection whose every output bit depends on every input bit.
[[nodiscard]] __device__ __forceinline__ std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// A column's value, or the low half of one of 16 bytes.
[[nodiscard]] __device__ __forceinline__ std::uint64_t low_word(const Column& column, std::int64_t row) {
  const std::byte* const at = column.data + row * column.stride;
  switch (column.width) {
    case 1:
      return __ldg(reinterpret_cast<const std::uint8_t*>(at));
    case 2:
      return __ldg(reinterpret_cast<const std::uint16_t*>(at));
    case 4:
      return __ldg(reinterpret_cast<const std::uint32_t*>(at));
    default:
      return __ldg(reinterpret_cast<const std::uint64_t*>(at));
  }
}
[[nodiscard]] __device__ __forceinline__ std::uint64_t high_word(const Column& column, std::int64_t row) {
  return __ldg(reinterpret_cast<const std::uint64_t*>(column.data + row * column.stride) + 1);
}

[[nodiscard]] __device__ __forceinline__ std::uint64_t hash_value(const Column& column, std::int64_t row,
                                                                  std::uint64_t hash) {
  if (column.data == nullptr) {
    return hash;
  }
  hash = mixed(hash ^ low_word(column, row));
  return column.width == 16 ? mixed(hash ^ high_word(column, row)) : hash;
}
[[nodiscard]] __device__ __forceinline__ bool equal_value(const Column& column, std::int64_t a, std::int64_t b) {
  return column.data == nullptr || (low_word(column, a) == low_word(column, b) &&
                                    (column.width != 16 || high_word(column, a) == high_word(column, b)));
}

[[nodiscard]] __device__ __forceinline__ Column axis_of(const BatchColumns& batch, std::int32_t axis) {
  return {batch.positions.data + axis * batch.axis_bytes, batch.positions.stride, batch.positions.width};
}

[[nodiscard]] __device__ inline std::uint64_t hash_row(const BatchColumns& batch, std::int64_t row,
                                                       std::uint64_t hash) {
  hash = hash_value(batch.tokens, row, hash);
  hash = hash_value(batch.token_keys, row, hash);
  for (std::int32_t axis = 0; axis < batch.axes; ++axis) {
    hash = hash_value(axis_of(batch, axis), row, hash);
  }
  return hash;
}
[[nodiscard]] __device__ inline std::uint64_t hash_namespace(const BatchColumns& batch, std::int64_t sequence,
                                                             std::uint64_t hash) {
  hash = hash_value(batch.sequence_keys, sequence, hash);
  hash = hash_value(batch.past_lengths, sequence, hash);
  const bool alone = batch.opt_out != nullptr && batch.opt_out[sequence] != 0;
  return alone ? mixed(hash ^ static_cast<std::uint64_t>(sequence)) : hash;
}

// Of different sequences.
[[nodiscard]] __device__ inline bool same_namespace(const BatchColumns& batch, std::int64_t a, std::int64_t b) {
  return (batch.opt_out == nullptr || (batch.opt_out[a] == 0 && batch.opt_out[b] == 0)) &&
         equal_value(batch.sequence_keys, a, b) && equal_value(batch.past_lengths, a, b);
}

// Rows that the batch has; within its arrays whatever cu_seqlens says.
[[nodiscard]] __device__ __forceinline__ std::int32_t rows_of(const IndexBuild& build) {
  const std::int32_t rows = build.sequences > 0 ? build.cu_seqlens[build.sequences] : 0;
  return min(max(rows, 0), build.rows);
}

// The sequence that a row belongs to; one of them whatever cu_seqlens says.
[[nodiscard]] __device__ inline std::int32_t sequence_of(const IndexBuild& build, std::int32_t row) {
  std::int32_t first = 0;
  for (std::int32_t count = build.sequences; count > 1;) {
    const std::int32_t half = count / 2;
    const bool behind = build.cu_seqlens[first + half] <= row;
    first += behind ? half : 0;
    count = behind ? count - half : half;
  }
  return first;
}

// Whether rows a and b, which both are or both are not the first of their sequences, have equal prefixes. `before` says
// for each row what stands for its prefix.
[[nodiscard]] __device__ inline bool same_prefix(const IndexBuild& build, const Flagged* before, bool first,
                                                 std::int32_t a, std::int32_t b) {
  bool same = equal_value(build.batch.tokens, a, b) && equal_value(build.batch.token_keys, a, b);
  for (std::int32_t axis = 0; axis < build.batch.axes; ++axis) {
    same = same && equal_value(axis_of(build.batch, axis), a, b);
  }
  return same && (first ? same_namespace(build.batch, sequence_of(build, a), sequence_of(build, b))
                        : before[a - 1] == before[b - 1]);
}

// --- Scans ---

// The hash of a prefix is the sum of its rows' hashes, each of which is of the row's place too; modulo 2^62, in the
// upper bits. Bit 1: the last row is the first of its sequence. Bit 0: such a row is in here, and what came before is
// not.
struct AppendRows {
  [[nodiscard]] __device__ __forceinline__ unsigned long long operator()(unsigned long long before,
                                                                         unsigned long long rows) const {
    return (rows & 1) != 0 ? rows : (before & ~2ULL) + rows;
  }
};

struct AddCounts {
  [[nodiscard]] __device__ __forceinline__ unsigned operator()(unsigned before, unsigned count) const {
    return before + count;
  }
};

template <class T>
[[nodiscard]] __device__ __forceinline__ CUB_NS_QUALIFIER::ScanTileState<T> tile_states(void* memory) {
  CUB_NS_QUALIFIER::ScanTileState<T> states;
  states.Init(0, memory, 0);
  return states;
}

// The inclusive scan of one value a thread over all blocks, by decoupled look-back.
template <class T, class Operator>
[[nodiscard]] __device__ __forceinline__ T scan_tiles(T value, Operator combine, void* memory) {
  using Scan = CUB_NS_QUALIFIER::BlockScan<T, build_threads>;
  using Prefix = CUB_NS_QUALIFIER::TilePrefixCallbackOp<T, Operator, CUB_NS_QUALIFIER::ScanTileState<T>>;
  __shared__ typename Scan::TempStorage scan;
  __shared__ typename Prefix::TempStorage look_back;
  auto states = tile_states<T>(memory);
  T result;
  if (blockIdx.x == 0) {
    T sum;
    Scan(scan).InclusiveScan(value, result, combine, sum);
    if (threadIdx.x == 0) {
      states.SetInclusive(0, sum);
    }
  } else {
    Prefix prefix(states, look_back, combine, static_cast<int>(blockIdx.x));
    Scan(scan).InclusiveScan(value, result, combine, prefix);
  }
  return result;
}

// --- Kernels, in order ---

[[nodiscard]] __device__ __forceinline__ std::int32_t thread_number() {
  return static_cast<std::int32_t>(blockIdx.x * build_threads + threadIdx.x);
}

// A thread empties four slots; there are more of those than tiles.
template <int Threads>
__global__ void __launch_bounds__(Threads) RADIXMLP_HIDDEN
    prepare_build_kernel(const __grid_constant__ IndexBuild build, int tiles) {
  const auto i = static_cast<std::uint32_t>(thread_number());
  if (i < build.table_slots / 4) {
    reinterpret_cast<uint4*>(build.table)[i] = {no_row, no_row, no_row, no_row};
  }
  tile_states<unsigned long long>(build.hash_tiles).InitializeStatus(tiles);
  tile_states<unsigned>(build.number_tiles).InitializeStatus(tiles);
  if (i == 0) {
    *build.state = {no_fault, 0, 0};
  }
}

// Checks sequence s, the batch as a whole with the first.
__device__ inline void check_sequence(const IndexBuild& build, std::int32_t s) {
  const auto fault = [&](IndexFault what, std::int32_t index) {
    atomicMin(&build.state->fault,
              static_cast<unsigned long long>(what) << 32 | static_cast<unsigned long long>(index));
  };
  const std::int32_t* const cu = build.cu_seqlens;
  if (s == 0) {
    const std::int32_t rows = cu[build.sequences];
    if (cu[0] != 0) {
      fault(IndexFault::cu_seqlens, 0);
    } else if (rows > build.rows && rows <= build.capacity.ragged_rows) {
      fault(IndexFault::cu_seqlens, build.sequences);
    }
  }
  if (s < build.sequences) {
    if (cu[s + 1] < cu[s]) {
      fault(IndexFault::cu_seqlens, s + 1);
    } else if (const std::int32_t length = cu[s + 1] - cu[s];
               length > *const_cast<volatile std::int32_t*>(&build.state->longest)) {
      atomicMax(&build.state->longest, length);
    }
    if (build.batch.past_lengths.data != nullptr &&
        static_cast<std::int32_t>(low_word(build.batch.past_lengths, s)) < 0) {
      fault(IndexFault::past_lengths, s);
    }
  }
}

// A thread a row, as in all kernels from here on.
template <int Threads>
__global__ void __launch_bounds__(Threads) RADIXMLP_HIDDEN
    hash_prefixes_kernel(const __grid_constant__ IndexBuild build) {
  const std::int32_t row = thread_number();
  for (std::int64_t s = row; s <= build.sequences; s += std::int64_t{gridDim.x} * build_threads) {
    check_sequence(build, static_cast<std::int32_t>(s));
  }
  const bool is_row = row < rows_of(build);
  unsigned long long value = 0;
  if (is_row) {
    const std::int32_t sequence = sequence_of(build, row);
    const auto place = static_cast<std::uint32_t>(row) - static_cast<std::uint32_t>(build.cu_seqlens[sequence]);
    value = hash_row(build.batch, row, mixed(build.seed + place));
    value = place == 0 ? (value + hash_namespace(build.batch, sequence, ~build.seed)) << 2 | 3 : value << 2;
  }
  const unsigned long long prefix = scan_tiles(value, AppendRows{}, build.hash_tiles);
  if (is_row) {
    build.hashes[row] = (prefix & build.hash_mask) | (prefix & 2);
  }
}

// A slot that has been taken keeps its hash: only rows with the same one replace a row in it. So rows with equal hashes
// end at the same slot, in whatever order they come.
template <int Threads>
__global__ void __launch_bounds__(Threads) RADIXMLP_HIDDEN
    insert_prefixes_kernel(const __grid_constant__ IndexBuild build) {
  const std::int32_t row = thread_number();
  if (row >= rows_of(build)) {
    return;
  }
  const auto number = static_cast<std::uint32_t>(row);
  const unsigned long long hash = build.hashes[row];
  auto slot = static_cast<std::uint32_t>(__umul64hi(hash, build.table_slots));
  while (true) {
    std::uint32_t found = __ldcg(&build.table[slot]);
    if (found == no_row) {
      found = atomicCAS(&build.table[slot], no_row, number);
    }
    if (found == no_row) {
      break;
    }
    if (build.hashes[found] == hash) {
      if (number < found) {
        atomicMin(&build.table[slot], number);
      }
      break;
    }
    slot = slot + 1 == build.table_slots ? 0 : slot + 1;
  }
  build.slots[row] = Flagged::of(slot, (hash & 2) != 0);
}

template <int Threads>
__global__ void __launch_bounds__(Threads) RADIXMLP_HIDDEN
    verify_prefixes_kernel(const __grid_constant__ IndexBuild build) {
  const std::int32_t row = thread_number();
  if (row >= rows_of(build)) {
    return;
  }
  const Flagged slot = build.slots[row];
  const auto lowest = static_cast<std::int32_t>(build.table[slot.number()]);
  if (lowest != row && !same_prefix(build, build.slots, slot.first(), row, lowest)) {
    build.state->unverified = 1;
  }
  build.lowest[row] = Flagged::of(static_cast<std::uint32_t>(lowest), slot.first());
}

// One block, of which one thread takes the rows in order: a row's prefix is known by the lowest row that equals the row
// before it, and by the row itself. Never needed unless 62 bits of different prefixes are equal.
template <int Threads>
__global__ void __launch_bounds__(Threads) RADIXMLP_HIDDEN
    repair_prefixes_kernel(const __grid_constant__ IndexBuild build) {
  if (build.state->unverified == 0) {
    return;
  }
  for (std::uint32_t slot = threadIdx.x; slot < build.table_slots; slot += build_threads) {
    build.table[slot] = no_row;
  }
  __syncthreads();
  const std::int32_t rows = threadIdx.x == 0 ? rows_of(build) : 0;
  for (std::int32_t row = 0; row < rows; ++row) {
    const bool first = build.lowest[row].first();
    const std::uint64_t history = first ? hash_namespace(build.batch, sequence_of(build, row), ~build.seed)
                                        : mixed(build.seed + build.lowest[row - 1].number());
    const std::uint64_t hash = hash_row(build.batch, row, history) & build.hash_mask;
    auto slot = static_cast<std::uint32_t>(__umul64hi(hash, build.table_slots));
    std::int32_t lowest = row;
    while (build.table[slot] != no_row) {
      const auto found = static_cast<std::int32_t>(build.table[slot]);
      if (build.lowest[found].first() == first && same_prefix(build, build.lowest, first, row, found)) {
        lowest = found;
        break;
      }
      slot = slot + 1 == build.table_slots ? 0 : slot + 1;
    }
    if (lowest == row) {
      build.table[slot] = static_cast<std::uint32_t>(row);
    }
    build.lowest[row] = Flagged::of(static_cast<std::uint32_t>(lowest), first);
  }
}

[[nodiscard]] __device__ __forceinline__ bool is_lowest(const IndexBuild& build, std::int32_t row) {
  return static_cast<std::int32_t>(build.lowest[row].number()) == row;
}

template <int Threads>
__global__ void __launch_bounds__(Threads) RADIXMLP_HIDDEN
    number_rows_kernel(const __grid_constant__ IndexBuild build) {
  const std::int32_t row = thread_number();
  const unsigned count =
      scan_tiles(row < rows_of(build) && is_lowest(build, row) ? 1U : 0U, AddCounts{}, build.number_tiles);
  if (row < build.rows) {
    build.numbers[row] = count;
  }
}

// The counts, and the fault of a batch that has no index in the capacity.
[[nodiscard]] __device__ inline IndexCounts counts_of(const IndexBuild& build) {
  const BuildState state = *build.state;
  IndexCounts counts;
  counts.ragged_rows = build.cu_seqlens[build.sequences];
  counts.compact_rows = build.rows == 0 ? 0 : static_cast<std::int32_t>(build.numbers[build.rows - 1]);
  counts.sequences = build.sequences;
  counts.max_seqlen = state.longest;
  const auto fault = [&](IndexFault what, std::int32_t value) {
    counts.fault = static_cast<std::int32_t>(what);
    counts.fault_value = value;
  };
  if (state.fault != no_fault) {
    const auto what = static_cast<IndexFault>(state.fault >> 32);
    counts.fault_index = static_cast<std::int32_t>(state.fault);
    fault(what, what == IndexFault::cu_seqlens
                    ? build.cu_seqlens[counts.fault_index]
                    : static_cast<std::int32_t>(low_word(build.batch.past_lengths, counts.fault_index)));
  } else if (counts.ragged_rows > build.capacity.ragged_rows) {
    fault(IndexFault::ragged_rows, counts.ragged_rows);
  } else if (counts.max_seqlen > build.capacity.max_seqlen) {
    fault(IndexFault::max_seqlen, counts.max_seqlen);
  } else if (counts.compact_rows > build.capacity.compact_rows) {
    fault(IndexFault::compact_rows, counts.compact_rows);
  }
  return counts;
}

// A thread for each entry of the longest map. What the batch leaves of the capacity, and all of it where there is a
// fault, becomes what capacity_index says.
template <int Threads>
__global__ void __launch_bounds__(Threads) RADIXMLP_HIDDEN write_maps_kernel(const __grid_constant__ IndexBuild build) {
  const std::int32_t i = thread_number();
  const IndexCounts counts = counts_of(build);
  const bool fits = counts.fault == 0;
  const std::int32_t ragged_rows = fits ? counts.ragged_rows : 0;
  const std::int32_t compact_rows = fits ? counts.compact_rows : 0;
  const auto compact_row = [&](std::int32_t row) {
    return static_cast<std::int32_t>(build.numbers[build.lowest[row].number()]) - 1;
  };
  if (i < ragged_rows) {
    const std::int32_t j = compact_row(i);
    build.scatter[i] = j;
    if (is_lowest(build, i)) {
      build.gather[j] = i;
      build.parent[j] = build.lowest[i].first() ? -1 : compact_row(i - 1);
    }
  } else if (i < build.capacity.ragged_rows) {
    build.scatter[i] = 0;
  }
  if (i >= compact_rows && i < build.capacity.compact_rows) {
    build.gather[i] = 0;
    build.parent[i] = -1;
  }
  if (i <= build.capacity.sequences) {
    const std::int32_t begin = fits ? build.cu_seqlens[min(i, build.sequences)] : 0;
    build.ragged_cu[i] = begin;
    build.compact_cu[i] = begin == 0 ? 0 : static_cast<std::int32_t>(build.numbers[begin - 1]);
    if (i < build.capacity.sequences) {
      const std::int32_t end = fits ? build.cu_seqlens[min(i + 1, build.sequences)] : 0;
      build.last_rows[i] = end == begin ? -1 : compact_row(end - 1);
    }
  }
  if (i == 0) {
    const std::int32_t earlier = build.counts->fault;
    build.counts->compact_rows = fits ? counts.compact_rows : -1;
    build.counts->ragged_rows = fits ? counts.ragged_rows : -1;
    build.counts->sequences = fits ? counts.sequences : -1;
    build.counts->max_seqlen = counts.max_seqlen;
    if (!fits && earlier == 0) {
      build.counts->fault = counts.fault;
      build.counts->fault_index = counts.fault_index;
      build.counts->fault_value = counts.fault_value;
    }
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail::inline RADIXMLP_ARCHS
