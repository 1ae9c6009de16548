// SPDX-License-Identifier: MIT

// The C ABI on a stream, beside the CUDA headers. Without a GPU its calls must say so by a status.
#include <cuda_runtime.h>
#include <radixmlp/c/radixmlp.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "radixmlp/cuda.cuh"
#include "token_lines.h"

namespace {

bool rows_move(const radixmlp_index& index, const token_lines& lines) {
  const std::size_t bytes = 4 * static_cast<std::size_t>(index.ragged_rows);
  int devices = 0;
  const bool gpu = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  alignas(RADIXMLP_INDEX_ALIGNMENT) static char nowhere[1 << 20];
  void* memory = nowhere;
  void* rows[2] = {nowhere, nowhere};
  if (gpu && (cudaMalloc(&memory, static_cast<std::size_t>(index.block_bytes)) != cudaSuccess ||
              cudaMalloc(&rows[0], bytes) != cudaSuccess || cudaMalloc(&rows[1], bytes) != cudaSuccess ||
              cudaMemcpy(rows[0], lines.tokens, bytes, cudaMemcpyHostToDevice) != cudaSuccess)) {
    return false;
  }
  radixmlp_index moved{};
  moved.size = sizeof moved;
  radixmlp_status status;
  const std::int32_t code = radixmlp_cuda_copy_index(nullptr, &index, memory, index.block_bytes, &moved, &status);
  if (!gpu) {
    return code == RADIXMLP_CUDA_ERROR && status.value != 0 && moved.gather == nullptr;
  }
  const radixmlp_row_copy there{{rows[0], index.ragged_rows, 4, 4}, {rows[1], index.padded_rows, 4, 4}};
  const radixmlp_row_copy back{{rows[1], index.padded_rows, 4, 4}, {rows[0], index.ragged_rows, 4, 4}};
  std::vector<std::int32_t> got(static_cast<std::size_t>(index.ragged_rows));
  bool same = code == RADIXMLP_OK && radixmlp_cuda_gather_rows(nullptr, &moved, &there, 1, &status) == RADIXMLP_OK &&
              radixmlp_cuda_scatter_rows(nullptr, &moved, &back, 1, &status) == RADIXMLP_OK &&
              cudaMemcpy(got.data(), rows[0], bytes, cudaMemcpyDeviceToHost) == cudaSuccess;
  for (std::size_t i = 0; same && i < got.size(); ++i) {
    same = got[i] == lines.tokens[i];
  }
  cudaFree(memory);
  cudaFree(rows[0]);
  cudaFree(rows[1]);
  return same;
}

}  // namespace

int main(int, char** argv) {
  token_lines lines;
  if (read_token_lines(argv[1], &lines) == 0) {
    return 1;
  }
  radixmlp_trie* trie = nullptr;
  radixmlp_batch batch{};
  batch.size = sizeof batch;
  batch.tokens = {lines.tokens, lines.cu_seqlens[lines.sequences], RADIXMLP_INT32};
  batch.cu_seqlens = {lines.cu_seqlens, lines.sequences + 1};
  radixmlp_index index{};
  index.size = sizeof index;
  radixmlp_status status;
  const bool works = radixmlp_trie_create(&trie, &status) == RADIXMLP_OK &&
                     radixmlp_build(trie, &batch, nullptr, &index, &status) == RADIXMLP_OK && rows_move(index, lines);
  if (works) {
    std::printf("N' = %d\n", index.compact_rows);
  } else {
    std::printf("%s\n", status.message);
  }
  radixmlp_trie_destroy(trie);
  free_token_lines(&lines);
}
