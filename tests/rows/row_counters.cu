// SPDX-License-Identifier: MIT

// Moves rows of several shapes, a launch each, and prints for every launch what it must move and how. The emulator
// counts; check_row_counters.cmake compares. Counters are not times: they show that no byte moves twice.

#include <cuda_fp16.h>

#include <cstdint>
#include <cstdio>
#include <vector>

#include "radixmlp/cuda.cuh"
#include "support/device_backend.cuh"

using radixmlp::PrefixIndexView;
using radixmlp::RowCopy;
using radixmlp::RowView;
using radixmlp_test::DeviceBackend;

namespace {

constexpr std::int64_t compact_rows = 1500;
constexpr std::int64_t ragged_rows = 4096;

// Maps without order, so that nothing coalesces by luck.
struct Maps {
  Maps() : map(indices()) {
    view.scatter = {map.data(), static_cast<std::size_t>(ragged_rows)};
    view.ragged_rows = ragged_rows;
    view.compact_rows = view.padded_rows = compact_rows;
  }
  static std::vector<std::int32_t> indices() {
    std::vector<std::int32_t> values;
    for (std::int64_t i = 0; i < ragged_rows; ++i) {
      values.push_back(static_cast<std::int32_t>(i * 977 % compact_rows));
    }
    return values;
  }
  DeviceBackend::Array<std::int32_t> map;
  PrefixIndexView view;
};

template <class T>
struct Tensor {
  explicit Tensor(std::int64_t width)
      : source(std::vector<T>(static_cast<std::size_t>(compact_rows * width))),
        target(std::vector<T>(static_cast<std::size_t>(ragged_rows * width))),
        copy{{source.data(), compact_rows, width}, {target.data(), ragged_rows, width}} {}
  DeviceBackend::Array<T> source, target;
  RowCopy<RowView<const T>, RowView<T>> copy;
};

// Bytes that must move: every row out is read and written once, every index is read once for each tensor.
void expect(const char* name, std::int64_t row_bytes, std::int64_t tensors, int vector_bytes, int loads_in_flight) {
  const std::int64_t bytes = ragged_rows * (2 * row_bytes + std::int64_t{sizeof(std::int32_t)} * tensors);
  std::printf("%s %lld %d %d\n", name, static_cast<long long>(bytes), vector_bytes, loads_in_flight);
}

template <class T>
void move(const char* name, std::int64_t width, int vector_bytes, int loads_in_flight) {
  const Maps maps;
  const Tensor<T> tensor(width);
  scatter_rows(cudaStream_t{nullptr}, maps.view, tensor.copy);
  expect(name, width * std::int64_t{sizeof(T)}, 1, vector_bytes, loads_in_flight);
}

}  // namespace

int main() {
  if (!DeviceBackend::present()) {
    return 77;
  }
  move<__half>("fp16x64", 64, 16, 1);
  move<__half>("fp16x128", 128, 16, 1);
  move<__half>("fp16x576", 576, 16, 4);
  move<__half>("fp16x1024", 1024, 16, 4);
  move<__half>("fp16x4096", 4096, 16, 4);
  move<float>("fp32x2560", 2560, 16, 4);
  {
    const Maps maps;
    const Tensor<__half> q(2048), k(1024), v(1024);
    scatter_rows(cudaStream_t{nullptr}, maps.view, q.copy, k.copy, v.copy);
    expect("qkv", (2048 + 1024 + 1024) * 2, 3, 16, 4);
  }
  radixmlp_test::check_cuda(cudaDeviceSynchronize());
}
