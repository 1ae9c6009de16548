// SPDX-License-Identifier: MIT
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "support/device_backend.cuh"

using Backend = radixmlp_test::DeviceBackend;
using Fp32 = float;
using Fp16 = __half;
using HalfType = __half;
using BrainType = __nv_bfloat16;

#include "rows/row_lists_cases.hpp"
