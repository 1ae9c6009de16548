// SPDX-License-Identifier: MIT

// Bounds::trap on the device: an index outside the source ends the kernel with an error, and the target is not written
// from anywhere. A program of its own, because a context does not outlive a trap.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "radixmlp/cuda.cuh"
#include "support/device_backend.cuh"

using namespace radixmlp;
using radixmlp_test::DeviceBackend;

// The error after map_rows (or scatter_to_slots) with `entry` (or a slot of it) among good ones.
cudaError_t move_with(std::int32_t entry, bool slots) {
  constexpr std::int64_t rows = 40;
  std::vector<std::int32_t> map(rows, 3);
  map[17] = entry;
  DeviceBackend backend;
  DeviceBackend::Array<float> source(std::vector<float>(10 * 8)), target(std::vector<float>(rows * 8));
  DeviceBackend::Array<std::int32_t> there(map), good(std::vector<std::int32_t>(rows, 0));
  constexpr RowOptions trap{.bounds = Bounds::trap};
  const RowCopy copy{RowView<const float>(source.data(), 10, 8), RowView<float>(target.data(), rows, 8)};
  if (slots) {
    PrefixIndexView index;
    index.scatter = {good.data(), rows};
    index.ragged_rows = rows;
    index.compact_rows = index.padded_rows = 10;
    scatter_to_slots<trap>(backend.where(), index, std::span<const std::int32_t>(there.data(), rows), copy);
  } else {
    map_rows<trap>(backend.where(), RowMap{{there.data(), rows}, 10, rows}, copy);
  }
  return cudaStreamSynchronize(backend.where());
}

int main(int argc, char** argv) {
  if (!DeviceBackend::present()) {
    return 77;
  }
  // Good ones first; the last call leaves the context with the error.
  if (move_with(9, false) != cudaSuccess || move_with(39, true) != cudaSuccess || move_with(-1, true) != cudaSuccess) {
    std::printf("entries within bounds trapped\n");
    return 1;
  }
  const bool slots = argc > 1 && std::strcmp(argv[1], "slot") == 0;
  const std::int32_t bad = slots ? 40 : argc > 1 && std::strcmp(argv[1], "high") == 0 ? 10 : -1;
  const cudaError_t error = move_with(bad, slots);
  std::printf("entry %d: %s\n", bad, cudaGetErrorString(error));
  return error == cudaSuccess ? 1 : 0;
}
