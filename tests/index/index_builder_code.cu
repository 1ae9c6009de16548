// SPDX-License-Identifier: MIT

// The kernels of DeviceIndexBuilder for check_row_code.cmake to compile and read; never run.

#include "radixmlp/index/device_index_builder.cuh"

void instantiate(cudaStream_t stream, const radixmlp::DeviceIndexBuilder& builder,
                 const radixmlp::RaggedBatch<std::int32_t>& batch, std::span<std::byte> memory) {
  builder.build(stream, batch, memory, memory);
}
