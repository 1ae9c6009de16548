// SPDX-License-Identifier: MIT
#include "support/host_backend.hpp"

using Backend = radixmlp_test::HostBackend;

// The host has no 16-bit floating types of its own; rows move as bytes.
using Fp32 = float;
using Fp64 = double;
using Fp16 = std::uint16_t;
using Bf16 = std::uint16_t;

#include "rows/row_ops_cases.hpp"
