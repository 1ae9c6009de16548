// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include "radixmlp/error.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail {

// Throws CudaError from a call's own return value. cudaGetLastError belongs to the engine and is never read.
inline void raise_unless_success(cudaError_t error, const char* call) {
  if (error != cudaSuccess) {
    raise({StatusCode::cuda_error, call, cudaGetErrorString(error), -1, error, 0, false});
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail
