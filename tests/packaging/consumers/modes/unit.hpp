// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <span>

#include "radixmlp/radixmlp.hpp"

// A unit's functions. What passes between units has the same type in all, or this does not link.
#define DECLARE_UNIT(unit)                                                                     \
  namespace unit {                                                                             \
  radixmlp::PrefixIndexView build(std::span<std::byte> memory);                                \
  bool is_right(const radixmlp::PrefixIndexView& index, radixmlp::RowView<const float> ragged, \
                radixmlp::RowView<float> compact);                                             \
  radixmlp::Status refusal();                                                                  \
  bool throws();                                                                               \
  }

DECLARE_UNIT(plain)
DECLARE_UNIT(quiet)
DECLARE_UNIT(release)
DECLARE_UNIT(parallel)
DECLARE_UNIT(wide)
DECLARE_UNIT(widest)
