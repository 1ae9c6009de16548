// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "radixmlp/cuda_error.cuh"
#include "radixmlp/index/index_builder_kernels.cuh"
#include "radixmlp/index/index_capacity.hpp"
#include "radixmlp/index/ragged_batch.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail::inline RADIXMLP_ARCHS {

// Rows, compact rows and sequences of a capacity: what is counted on the device then has a bit to spare.
inline constexpr std::int32_t most_device_rows = std::int32_t{1} << 30;

template <class T>
[[nodiscard]] RADIXMLP_HIDDEN inline std::int64_t tile_states_bytes(int tiles) {
  std::size_t bytes = 0;
  raise_unless_success(CUB_NS_QUALIFIER::ScanTileState<T>::AllocationSize(tiles, bytes),
                       "cub::ScanTileState::AllocationSize");
  return static_cast<std::int64_t>(bytes);
}

// Byte offsets in the workspace: 20 bytes a row, and what the scans need. Hidden, since that is CUB's and may differ
// between the shared objects of a process.
struct RADIXMLP_HIDDEN BuildLayout {
  std::int32_t tiles;
  std::uint32_t table_slots;
  std::int64_t hashes, numbers, slots, table, hash_tiles, number_tiles, bytes;

  explicit BuildLayout(std::int32_t rows)
      : tiles(std::max((rows + build_threads - 1) / build_threads, 1)),
        table_slots(static_cast<std::uint32_t>(std::max(round_up(std::int64_t{2} * rows, 4), std::int64_t{4}))),
        hashes(after(0, sizeof(BuildState))),
        numbers(hashes + std::int64_t{sizeof(std::uint32_t)} * rows),
        slots(after(hashes, std::int64_t{sizeof(std::uint64_t)} * rows)),
        table(after(slots, std::int64_t{sizeof(Flagged)} * rows)),
        hash_tiles(after(table, std::int64_t{sizeof(std::uint32_t)} * table_slots)),
        number_tiles(after(hash_tiles, tile_states_bytes<unsigned long long>(tiles))),
        bytes(after(number_tiles, tile_states_bytes<unsigned>(tiles))) {}

 private:
  [[nodiscard]] static std::int64_t after(std::int64_t offset, std::int64_t bytes) {
    return round_up(offset + bytes, std::int64_t{index_alignment});
  }
};

template <class... Arguments>
RADIXMLP_HIDDEN inline void launch_build(void (*kernel)(IndexBuild, Arguments...), cudaStream_t stream,
                                         std::int64_t threads, IndexBuild& build, Arguments... more) {
  void* arguments[] = {&build, &more...};
  const auto blocks = static_cast<unsigned>(std::max<std::int64_t>((threads + build_threads - 1) / build_threads, 1));
  raise_unless_success(
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(blocks), dim3(build_threads), arguments, 0, stream),
      "cudaLaunchKernel");
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail::inline RADIXMLP_ARCHS

namespace radixmlp::inline v0::inline RADIXMLP_MODE::inline RADIXMLP_ARCHS {

// Bytes of device memory that a build of batches of up to `rows` rows works in, whatever their sequences.
[[nodiscard]] RADIXMLP_HIDDEN inline std::size_t device_index_workspace_bytes(std::int32_t rows) {
  return static_cast<std::size_t>(detail::BuildLayout(rows).bytes);
}

// Builds the index of a batch whose arrays are on the device, there: the maps that PrefixTrie gives, bit by bit. Seven
// kernels on a stream; the host reads nothing, waits for nothing and allocates nothing, and a CUDA graph can capture
// it. See index_builder_kernels.cuh for how.
//
// The index is one for a capacity (see index_capacity.hpp): what does not fit, or is malformed, leaves counts of -1 and
// a fault for query_counts. Needs CUB, which comes with the CUDA Toolkit; not part of cuda.cuh.
class RADIXMLP_HIDDEN DeviceIndexBuilder {
 public:
  // `hash_bits` is for tests: fewer let more rows collide, which takes longer and gives the same index. Throws
  // InvalidBatch for a capacity of more than 2^30 rows, compact rows or sequences.
  explicit DeviceIndexBuilder(const IndexCapacity& capacity, int hash_bits = detail::hash_bits)
      : capacity_(capacity),
        seed_(detail::fresh_seed(this)),
        hash_mask_(hash_bits > 0 ? ~std::uint64_t{0} << (64 - hash_bits) : 0) {
    const auto check = [](std::int32_t value, const char* argument) {
      if (value > detail::most_device_rows) {
        detail::raise(detail::invalid_batch(argument, -1, value, "must not exceed", detail::most_device_rows));
      }
    };
    check(capacity.ragged_rows, "capacity.ragged_rows");
    check(capacity.compact_rows, "capacity.compact_rows");
    check(capacity.sequences, "capacity.sequences");
  }

  [[nodiscard]] const IndexCapacity& capacity() const noexcept { return capacity_; }
  [[nodiscard]] std::size_t index_bytes() const noexcept { return radixmlp::index_bytes(capacity_); }
  [[nodiscard]] std::size_t workspace_bytes() const { return device_index_workspace_bytes(capacity_.ragged_rows); }

  // Enqueues the build and returns its view. The spans of `batch` are device memory; their sizes are the host's and may
  // be larger than the batch: its rows are cu_seqlens[B], sequences behind its own are empty (cu_seqlens repeats its
  // last entry), and what lies behind is not looked at. The batch and the workspace are the build's until the stream
  // has done it; the workspace needs no contents.
  //
  // `index_memory`: index_bytes(); before its first use it needs empty_index(stream, capacity, index_memory), so that
  // it has no fault. `workspace`: workspace_bytes(). Both are aligned to index_alignment.
  //
  // Throws InvalidBatch before anything is enqueued, CudaError.
  template <TokenId Token>
  PrefixIndexView build(cudaStream_t stream, const RaggedBatch<Token>& batch, std::span<std::byte> index_memory,
                        std::span<std::byte> workspace) const {
    detail::raise_unless_ok(detail::validate_sizes(batch));
    return enqueue(stream, detail::BatchColumns(batch), batch.cu_seqlens, batch.rows(), index_memory, workspace);
  }

 private:
  PrefixIndexView enqueue(cudaStream_t stream, const detail::BatchColumns& batch,
                          std::span<const std::int32_t> cu_seqlens, std::int64_t rows,
                          std::span<std::byte> index_memory, std::span<std::byte> workspace) const {
    const auto sequences = static_cast<std::int64_t>(cu_seqlens.size()) - 1;
    if (rows > capacity_.ragged_rows) {
      detail::raise(detail::invalid_batch("batch.rows", -1, rows, "must fit the capacity,", capacity_.ragged_rows));
    }
    if (sequences > capacity_.sequences) {
      detail::raise(
          detail::invalid_batch("batch.sequences", -1, sequences, "must fit the capacity,", capacity_.sequences));
    }
    const PrefixIndexView index = capacity_index(capacity_, index_memory);
    detail::check_index_memory(workspace, workspace_bytes(), "workspace");

    const detail::BuildLayout layout(static_cast<std::int32_t>(rows));
    const auto part = [&]<class T>(std::int64_t offset, T*& pointer) {
      pointer = reinterpret_cast<T*>(workspace.data() + offset);
    };
    // The memory was given as one to write to.
    const auto map = [](std::span<const std::int32_t> values) { return const_cast<std::int32_t*>(values.data()); };
    detail::IndexBuild build{.batch = batch,
                             .cu_seqlens = cu_seqlens.data(),
                             .rows = static_cast<std::int32_t>(rows),
                             .sequences = static_cast<std::int32_t>(sequences),
                             .capacity = {capacity_.ragged_rows, capacity_.compact_rows, capacity_.sequences,
                                          detail::longest_sequence(capacity_)},
                             .seed = seed_,
                             .hash_mask = hash_mask_,
                             .table_slots = layout.table_slots,
                             .gather = map(index.gather),
                             .scatter = map(index.scatter),
                             .compact_cu = map(index.compact_cu),
                             .ragged_cu = map(index.ragged_cu),
                             .parent = map(index.parent),
                             .last_rows = map(index.last_rows),
                             .counts = const_cast<IndexCounts*>(index.counts)};
    part(0, build.state);
    part(layout.hashes, build.hashes);
    part(layout.hashes, build.lowest);
    part(layout.numbers, build.numbers);
    part(layout.slots, build.slots);
    part(layout.table, build.table);
    part(layout.hash_tiles, build.hash_tiles);
    part(layout.number_tiles, build.number_tiles);

    const std::int64_t entries = std::max({std::int64_t{capacity_.ragged_rows}, std::int64_t{capacity_.compact_rows},
                                           std::int64_t{capacity_.sequences} + 1});
    detail::launch_build(detail::prepare_build_kernel<detail::build_threads>, stream, layout.table_slots / 4, build,
                         int{layout.tiles});
    detail::launch_build(detail::hash_prefixes_kernel<detail::build_threads>, stream, rows, build);
    detail::launch_build(detail::insert_prefixes_kernel<detail::build_threads>, stream, rows, build);
    detail::launch_build(detail::verify_prefixes_kernel<detail::build_threads>, stream, rows, build);
    detail::launch_build(detail::repair_prefixes_kernel<detail::build_threads>, stream, 1, build);
    detail::launch_build(detail::number_rows_kernel<detail::build_threads>, stream, rows, build);
    detail::launch_build(detail::write_maps_kernel<detail::build_threads>, stream, entries, build);
    return index;
  }

  IndexCapacity capacity_;
  std::uint64_t seed_;
  std::uint64_t hash_mask_;
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::inline RADIXMLP_ARCHS
