// SPDX-License-Identifier: MIT
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "support/device_backend.cuh"

using Backend = radixmlp_test::DeviceBackend;
using Fp32 = float;
using Fp64 = double;
using Fp16 = __half;
using Bf16 = __nv_bfloat16;

#include "rows/row_ops_cases.hpp"
