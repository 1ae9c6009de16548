// SPDX-License-Identifier: MIT
#pragma once

#include <vector>

#include "radixmlp/cuda.cuh"
#include "shared_prefix.hpp"

namespace {

// Gathers and scatters two equal sequences of `length` tokens on the device, by themselves and in a block. Without a
// GPU, the library must say so by an Error.
bool device_rows_move(std::int32_t length) {
  const std::vector<std::int32_t> tokens(static_cast<std::size_t>(2 * length), 7);
  const std::vector<std::int32_t> cu_seqlens{0, length, 2 * length};
  radixmlp::PrefixTrie trie;
  const radixmlp::PrefixIndexView host =
      trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = tokens, .cu_seqlens = cu_seqlens});
  std::vector<float> rows(tokens.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    rows[i] = static_cast<float>(i);
  }
  int devices = 0;
  const bool gpu = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  std::byte* memory = nullptr;
  float* ragged = nullptr;
  float* compact = nullptr;
  if (gpu && (cudaMalloc(&memory, host.block.size()) != cudaSuccess ||
              cudaMalloc(&ragged, rows.size() * sizeof(float)) != cudaSuccess ||
              cudaMalloc(&compact, rows.size() * sizeof(float)) != cudaSuccess ||
              cudaMemcpy(ragged, rows.data(), rows.size() * sizeof(float), cudaMemcpyHostToDevice) != cudaSuccess)) {
    return false;
  }
  try {
    const cudaStream_t stream = nullptr;
    const radixmlp::PrefixIndexView index =
        radixmlp::copy_to_device(stream, host, {memory, gpu ? host.block.size() : 0});
    const radixmlp::RowView<float> ragged_rows(ragged, 2 * length, 1);
    const radixmlp::RowView<float> compact_rows(compact, length, 1);
    radixmlp::gather_rows(stream, index, ragged_rows, compact_rows);
    radixmlp::scatter_rows(stream, index, compact_rows, ragged_rows);
    const radixmlp::CompactedBlock<float> block(index, {}, {});
    static_cast<void>(block.expand(stream, block.select(stream, ragged_rows, compact_rows), ragged_rows));
  } catch (const radixmlp::Error&) {
    return !gpu;
  }
  std::vector<float> moved(rows.size());
  const bool copied =
      cudaMemcpy(moved.data(), ragged, rows.size() * sizeof(float), cudaMemcpyDeviceToHost) == cudaSuccess;
  cudaFree(memory);
  cudaFree(ragged);
  cudaFree(compact);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (moved[i] != static_cast<float>(i % static_cast<std::size_t>(length))) {
      return false;
    }
  }
  return gpu && copied;
}

}  // namespace
