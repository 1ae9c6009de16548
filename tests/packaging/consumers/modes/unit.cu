// SPDX-License-Identifier: MIT
#include "device_rows_move.cuh"

namespace UNIT {

bool moves_rows() { return device_rows_move(5); }

}  // namespace UNIT
