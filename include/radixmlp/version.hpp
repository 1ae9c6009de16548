// SPDX-License-Identifier: MIT
#pragma once

// The one place that holds the version; CMake reads it from here.
#define RADIXMLP_VERSION_MAJOR 0
#define RADIXMLP_VERSION_MINOR 1
#define RADIXMLP_VERSION_PATCH 0
