// SPDX-License-Identifier: MIT
#include <cuda_runtime_api.h>

namespace sm_80 {
bool moves_rows();
}
namespace sm_90 {
bool moves_rows();
}

// On a GPU, the unit that was compiled for it; without one, both, which then expect an error.
int main() {
  int major = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) != cudaSuccess) {
    return sm_80::moves_rows() && sm_90::moves_rows() ? 0 : 1;
  }
  if (major != 8 && major != 9) {
    return 77;
  }
  return (major == 8 ? sm_80::moves_rows() : sm_90::moves_rows()) ? 0 : 1;
}
