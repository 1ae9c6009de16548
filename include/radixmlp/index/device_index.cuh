// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "radixmlp/cuda_error.cuh"
#include "radixmlp/index/prefix_index.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// Enqueues the one copy that brings an index from the host to `memory` on the device and returns the view of it there.
// `memory` is the caller's, at least index.block.size() bytes, aligned to index_alignment (cudaMalloc gives more).
// The host block must not change until the copy is done; from pinned memory the call does not wait for it.
// Throws InvalidBatch before anything is enqueued, CudaError.
[[nodiscard]] RADIXMLP_HIDDEN inline PrefixIndexView copy_to_device(cudaStream_t stream, const PrefixIndexView& index,
                                                                    std::span<std::byte> memory) {
  if (memory.size() < index.block.size()) {
    detail::raise(detail::invalid_batch("memory", -1, static_cast<std::int64_t>(memory.size()),
                                        "its bytes must be at least", static_cast<std::int64_t>(index.block.size())));
  }
  if (const auto off = reinterpret_cast<std::uintptr_t>(memory.data()) % index_alignment; off != 0) {
    detail::raise(detail::invalid_batch("memory", -1, static_cast<std::int64_t>(off),
                                        "its address must be a multiple of", index_alignment));
  }
  detail::raise_unless_success(
      cudaMemcpyAsync(memory.data(), index.block.data(), index.block.size(), cudaMemcpyHostToDevice, stream),
      "cudaMemcpyAsync");
  return index.relocated(memory.data());
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
