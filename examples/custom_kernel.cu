// SPDX-License-Identifier: MIT

// A kernel of one's own that reads the maps itself: RMS norm of the compact rows of a batch, fused with the gather, so
// that compact copies of the un-normalised rows are never written. A block takes one compact row.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <vector>

#include "engine/cuda_engine.cuh"
#include "radixmlp/cuda.cuh"

namespace {

using example::DeviceArray;

// out[j] = rms_norm(ragged[gather[j]]) for j < N'
__global__ void gather_and_norm_kernel(const std::int32_t* gather, const float* ragged, const float* weight, int width,
                                       float* out) {
  const std::int64_t j = blockIdx.x;
  const float* const source = ragged + std::int64_t{gather[j]} * width;
  float squares = 0;
  for (int i = example::lane_index(); i < width; i += example::warp_lanes) {
    squares += source[i] * source[i];
  }
  const float scale = rsqrtf(example::warp_sum(squares) / static_cast<float>(width) + 1e-6F);
  for (int i = example::lane_index(); i < width; i += example::warp_lanes) {
    out[j * width + i] = source[i] * scale * weight[i];
  }
}

// The largest difference between the kernel's rows and the same rows computed on the host.
double largest_difference() {
  constexpr int width = 96;
  const std::vector<std::int32_t> tokens{7, 8, 9, 1, 2, 7, 8, 9, 7, 8, 9, 1, 2};
  const std::vector<std::int32_t> cu_seqlens{0, 5, 8, 13};
  std::vector<float> ragged, weight;
  for (const std::int32_t token : tokens) {
    for (int i = 0; i < width; ++i) {
      ragged.push_back(example::embedding(token, i));
    }
  }
  for (std::uint32_t i = 0; i < width; ++i) {
    weight.push_back(1 + example::noise(1, i));
  }

  radixmlp::PrefixTrie trie;
  const radixmlp::PrefixIndexView host_index =
      trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = tokens, .cu_seqlens = cu_seqlens});
  // [copy]
  // index_memory: host_index.block.size() bytes on the device. The view that comes back has the same counts, and device
  // pointers: index.gather.data(), index.scatter.data(), ...
  const DeviceArray<std::byte> index_memory(host_index.block.size());
  const cudaStream_t stream = nullptr;  // or the engine's
  const radixmlp::PrefixIndexView index = radixmlp::copy_to_device(stream, host_index, index_memory.span());
  // [/copy]

  const DeviceArray<float> device_ragged(ragged), device_weight(weight);
  std::vector<float> out(static_cast<std::size_t>(index.compact_rows * width));
  const DeviceArray<float> device_out(out.size());
  gather_and_norm_kernel<<<static_cast<unsigned>(index.compact_rows), example::warp_lanes>>>(
      index.gather.data(), device_ragged.data(), device_weight.data(), width, device_out.data());
  example::check(cudaGetLastError());
  example::check(cudaMemcpy(out.data(), device_out.data(), device_out.bytes(), cudaMemcpyDeviceToHost));

  double largest = 0;
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    const float* const row = ragged.data() + r * width;
    const float* const result = out.data() + static_cast<std::size_t>(host_index.scatter[r]) * width;
    double squares = 0;
    for (int i = 0; i < width; ++i) {
      squares += double{row[i]} * row[i];
    }
    for (int i = 0; i < width; ++i) {
      const double expected = row[i] / std::sqrt(squares / width + 1e-6) * weight[static_cast<std::size_t>(i)];
      largest = std::fmax(largest, std::abs(result[i] - expected));
    }
  }
  return largest;
}

}  // namespace

int main() {
  try {
    if (!example::has_gpu()) {
      std::printf("skipped: no GPU\n");
      return 77;
    }
    const double difference = largest_difference();
    std::printf("largest difference to the host: %.3g\n", difference);
    return difference < 1e-5 ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "custom_kernel: %s\n", error.what());
    return 2;
  }
}
