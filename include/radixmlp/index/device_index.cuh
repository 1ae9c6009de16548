// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "radixmlp/cuda_error.cuh"
#include "radixmlp/index/index_capacity.hpp"
#include "radixmlp/index/prefix_index.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// Enqueues the one copy that brings an index from the host to `memory` on the device and returns the view of it there.
// `memory` is the caller's, at least index.block.size() bytes, aligned to index_alignment (cudaMalloc gives more).
// The host block must not change until the copy is done; from pinned memory the call does not wait for it.
// Throws InvalidBatch before anything is enqueued, CudaError.
[[nodiscard]] RADIXMLP_HIDDEN inline PrefixIndexView copy_to_device(cudaStream_t stream, const PrefixIndexView& index,
                                                                    std::span<std::byte> memory) {
  detail::check_index_memory(memory, index.block.size());
  detail::raise_unless_success(
      cudaMemcpyAsync(memory.data(), index.block.data(), index.block.size(), cudaMemcpyHostToDevice, stream),
      "cudaMemcpyAsync");
  return index.relocated(memory.data());
}

// Enqueues that `memory` on the device becomes the index of an empty batch, without a fault, and returns its view for
// the capacity. Before a builder uses the memory for the first time. Throws as capacity_index, and CudaError.
[[nodiscard]] RADIXMLP_HIDDEN inline PrefixIndexView empty_index(cudaStream_t stream, const IndexCapacity& capacity,
                                                                 std::span<std::byte> memory) {
  const PrefixIndexView index = capacity_index(capacity, memory);
  detail::raise_unless_success(cudaMemsetAsync(memory.data(), 0, index.block.size(), stream), "cudaMemsetAsync");
  return index;
}

// Enqueues the query of an index for a capacity: what has happened to it since the last query. Copies its counts to
// `result`, which is best in pinned memory, and then clears the fault. Once the stream is there, `filled_index(index,
// *result)` is the index of the last batch alone, or raises the first fault, as index_status(*result, index) says it.
// May be captured. Throws CudaError.
RADIXMLP_HIDDEN inline void query_counts(cudaStream_t stream, const PrefixIndexView& index, IndexCounts* result) {
  if (index.counts == nullptr) {
    detail::raise({StatusCode::invalid_batch, "index.counts", "must not be null", -1, 0, 0, false});
  }
  detail::raise_unless_success(cudaMemcpyAsync(result, index.counts, sizeof *result, cudaMemcpyDeviceToHost, stream),
                               "cudaMemcpyAsync");
  auto* const fault = const_cast<std::int32_t*>(&index.counts->fault);  // the memory was given as one to write to
  detail::raise_unless_success(cudaMemsetAsync(fault, 0, sizeof *fault, stream), "cudaMemsetAsync");
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
