// SPDX-License-Identifier: MIT
// Device memory from plain C++: radixmlp::cuda brings the runtime's header and library.
#include <cuda_runtime_api.h>

#include "../shared_prefix.hpp"

int main() {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess && version > 0 && shared_prefix_works(4) ? 0 : 1;
}
