// SPDX-License-Identifier: MIT
#include "device_rows_move.cuh"

int main() { return shared_prefix_works(5) && device_rows_move(5) ? 0 : 1; }
