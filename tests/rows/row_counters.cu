// SPDX-License-Identifier: MIT

// Moves rows of several shapes, a launch each, and prints for every launch what it must move and how. The emulator
// counts; check_row_counters.cmake compares. Counters are not times: they show that no byte moves twice.

#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "radixmlp/cuda.cuh"
#include "support/device_backend.cuh"

using radixmlp::PrefixIndexView;
using radixmlp::RowCopy;
using radixmlp::RowView;
using radixmlp_test::DeviceBackend;

namespace {

constexpr std::int64_t compact_rows = 6'001;
constexpr std::int64_t ragged_rows = 16'384;

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

// What a launch may cost, for rows that are whole multiples of so many bytes.
struct Limits {
  int permille;      // sectors moved x 32 over the bytes that must move: every row out is read and written once, and
                     // its index read once
  int instructions;  // of a thread for each 16 bytes read and written; 0 = any
  int loads;         // in flight
  int read_permille = 0;  // sectors read x 32 over `read_bytes`; 0 = not looked at
  std::int64_t read_bytes = 1;
};

Limits limits_of(std::int64_t row_bytes) {
  const std::int64_t alignment = row_bytes & -row_bytes;
  const int loads = row_bytes >= 2048 ? 4 : 1;
  if (alignment >= 16) {
    return {alignment >= 32 ? 1020 : 1100, 20, loads};
  }
  return {alignment == 8 ? 1200 : alignment == 4 ? 1300 : 1600, 0, loads};
}

// A line for check_row_counters.cmake: one launch. Each tensor's rows may be read by launches with indices of their
// own.
void expect(const std::string& name, std::int64_t row_bytes, std::int64_t index_bytes, int vector_bytes,
            const Limits& limits, std::int64_t must_move = 0) {
  const auto bytes = static_cast<long long>(must_move != 0 ? must_move : ragged_rows * (2 * row_bytes + index_bytes));
  std::printf("%s %lld %d %d %d %d %d %lld\n", name.c_str(), bytes, vector_bytes, limits.loads, limits.permille,
              limits.instructions, limits.read_permille, static_cast<long long>(limits.read_bytes));
}

template <class T>
void move(const std::string& type, std::int64_t width) {
  const Maps maps;
  const Tensor<T> tensor(width);
  scatter_rows(cudaStream_t{nullptr}, maps.view, tensor.copy);
  const std::int64_t row_bytes = width * std::int64_t{sizeof(T)};
  expect(type + "x" + std::to_string(width), row_bytes, 4,
         static_cast<int>(std::min<std::int64_t>(row_bytes & -row_bytes, 16)), limits_of(row_bytes));
}

}  // namespace

int main() {
  if (!DeviceBackend::present()) {
    return 77;
  }
  // 2-byte types are one to the kernels. The whole table takes half a minute.
  const bool all = std::getenv("RADIXMLP_ALL_COUNTERS") != nullptr;
  for (const std::int64_t width :
       all ? std::vector<std::int64_t>{64, 128, 576, 1024, 2048, 2560, 3584, 4096, 5120, 8192, 100, 577, 1023}
           : std::vector<std::int64_t>{64, 128, 576, 1024, 100}) {
    move<__half>("fp16", width);
    move<float>("fp32", width);
  }
  if (!all) {
    move<__half>("fp16", 577);
  }
  {
    const Maps maps;
    const Tensor<__half> q(2048), k(512), v(512);
    scatter_rows(cudaStream_t{nullptr}, maps.view, q.copy, k.copy, v.copy);
    expect("qkv", (2048 + 512 + 512) * 2, 3 * 4, 16, {1020, 20, 4});
  }
  {
    const Maps maps;
    const Tensor<__half> k(1024), v(1024);
    std::vector<std::int64_t> slots(static_cast<std::size_t>(ragged_rows));
    for (std::size_t i = 0; i < slots.size(); ++i) {
      slots[i] = static_cast<std::int64_t>(i * 7919 % slots.size());
    }
    DeviceBackend::Array<std::int64_t> slots_there(slots);
    scatter_to_slots(cudaStream_t{nullptr}, maps.view, std::span<const std::int64_t>(slots_there.data(), slots.size()),
                     k.copy, v.copy);
    expect("slots", (1024 + 1024) * 2, 2 * (4 + 8), 16, {1020, 20, 4});
  }
  {
    // Lists of 0 to 3000 rows, 16,384 in all: a row of m is read ceil(m / 64) times, 4 KB each.
    std::vector<std::int32_t> offsets{0};
    std::int64_t reads = 0;
    for (std::int32_t j = 0; offsets.back() < ragged_rows; ++j) {
      const auto left = static_cast<std::int32_t>(ragged_rows - offsets.back());
      const std::int32_t size = std::min(j == 3 ? 3000 : j * 37 % 200, left);
      offsets.push_back(offsets.back() + size);
      reads += (size + 63) / 64;
    }
    const auto rows = static_cast<std::int64_t>(offsets.size()) - 1;
    std::vector<std::int32_t> values;
    for (std::int64_t i = 0; i < ragged_rows; ++i) {
      values.push_back(static_cast<std::int32_t>(i * 7919 % ragged_rows));
    }
    DeviceBackend::Array<std::int32_t> offsets_there(offsets), values_there(values);
    const Tensor<__half> tensor(2048);
    multicast_rows(cudaStream_t{nullptr},
                   radixmlp::RowLists{{offsets_there.data(), offsets.size()}, {values_there.data(), values.size()}},
                   RowCopy{RowView<const __half>(tensor.copy.source.data(), rows, 2048), tensor.copy.target});
    // Writes all rows; must read those, each entry once a pass of 2 KB, and where lists start and end.
    const std::int64_t must_read = reads * 4096 + 2 * 4 * ragged_rows;
    Limits limits{1050, 20, 4, 1300, must_read};
    expect("multicast", 4096 / 2, 0, 16, limits, ragged_rows * 4096 + must_read);
  }
  {
    // Runs of 1000 rows, which go through many tiles each: each byte once, and a few runs looked up a tile.
    std::vector<radixmlp::RowRun> runs;
    for (std::int32_t at = 0; at < ragged_rows; at += 1000) {
      runs.push_back({at * 977 % 5000, at, std::min<std::int32_t>(1000, static_cast<std::int32_t>(ragged_rows) - at)});
    }
    DeviceBackend::Array<radixmlp::RowRun> runs_there(runs);
    const Tensor<__half> tensor(128);
    copy_runs(cudaStream_t{nullptr}, radixmlp::RowRuns{{runs_there.data(), runs.size()}, compact_rows, ragged_rows},
              tensor.copy);
    expect("runs", 256, 0, 16, {1050, 20, 4});
  }
  radixmlp_test::check_cuda(cudaDeviceSynchronize());
}
