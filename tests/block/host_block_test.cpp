// SPDX-License-Identifier: MIT
#include "support/host_backend.hpp"

using Backend = radixmlp_test::HostBackend;

#include "block/block_cases.hpp"
#include "block/capacity_cases.hpp"
