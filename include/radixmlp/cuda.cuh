// SPDX-License-Identifier: MIT
#pragma once

// The whole library for CUDA translation units: the host side, and the same calls on a stream. Does not include CUB.

#include "radixmlp/config.hpp"

#if RADIXMLP_CPLUSPLUS >= 202002L  // else config.hpp has said so, once
#include "radixmlp/index/device_index.cuh"
#include "radixmlp/radixmlp.hpp"
#include "radixmlp/rows/device_row_ops.cuh"
#include "radixmlp/rows/device_rows.cuh"
#include "radixmlp/rows/row_kernels.cuh"
#include "radixmlp/rows/row_op_kernels.cuh"
#endif
