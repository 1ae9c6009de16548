// SPDX-License-Identifier: MIT

// Builds one index on the device, of 16 sequences of 512 tokens of which the first half is the same in all; prints its
// rows. The emulator counts; check_index_builder_counters.cmake compares. Counters are not times.

#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

#include "radixmlp/index/device_index.cuh"
#include "radixmlp/index/device_index_builder.cuh"
#include "support/device_backend.cuh"

using radixmlp_test::DeviceBackend;

int main() {
  constexpr std::int32_t sequences = 16;
  constexpr std::int32_t length = 512;
  constexpr std::int32_t rows = sequences * length;
  std::vector<std::int32_t> tokens, cu_seqlens{0};
  for (std::int32_t s = 0; s < sequences; ++s) {
    for (std::int32_t i = 0; i < length; ++i) {
      tokens.push_back(i < length / 2 ? i : i * sequences + s);
    }
    cu_seqlens.push_back((s + 1) * length);
  }
  DeviceBackend::Array<std::int32_t> device_tokens(tokens), device_cu(cu_seqlens);
  const radixmlp::DeviceIndexBuilder builder({.ragged_rows = rows, .compact_rows = rows, .sequences = sequences});
  DeviceBackend::Array<std::byte> index(std::vector<std::byte>(builder.index_bytes()));
  DeviceBackend::Array<std::byte> workspace(std::vector<std::byte>(builder.workspace_bytes()));
  const radixmlp::PrefixIndexView view =
      builder.build(nullptr,
                    radixmlp::RaggedBatch<std::int32_t>{.tokens = {device_tokens.data(), tokens.size()},
                                                        .cu_seqlens = {device_cu.data(), cu_seqlens.size()}},
                    {index.data(), builder.index_bytes()}, {workspace.data(), builder.workspace_bytes()});
  radixmlp::IndexCounts counts;
  radixmlp::query_counts(nullptr, view, &counts);
  radixmlp_test::check_cuda(cudaDeviceSynchronize());
  constexpr std::int32_t expected = length / 2 + sequences * length / 2;
  std::printf("%d\n", rows);
  return counts.compact_rows == expected ? 0 : 1;
}
