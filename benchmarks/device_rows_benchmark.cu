// SPDX-License-Identifier: MIT

// Row movement on a GPU against a thread an element, thrust::gather, and a device-to-device copy of as many bytes (the
// roofline). Every result is compared on the device before any timing. Exits with 77 where there is no GPU.

#include <cuda_fp16.h>
#include <thrust/execution_policy.h>
#include <thrust/gather.h>
#include <thrust/iterator/counting_iterator.h>
#include <thrust/iterator/transform_iterator.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "radixmlp/cuda.cuh"
#include "support/interleave.hpp"
#include "support/report.hpp"
#include "support/workloads.hpp"

namespace radixmlp_bench {
namespace {

using radixmlp::PrefixIndexView;
using radixmlp::RowCopy;
using radixmlp::RowView;

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
  }
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) { check(cudaMalloc(&data_, bytes()), "cudaMalloc"); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  DeviceArray(DeviceArray&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t bytes() const { return size_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

// A move: target row i is source row map[i]. The library's two calls are this with one map or the other.
struct Move {
  const __half* source;
  __half* target;
  const std::int32_t* map;
  std::int64_t mapped_rows;
  std::int64_t width;
};

constexpr int threads = 256;

unsigned blocks_for(std::int64_t items) { return static_cast<unsigned>((items + threads - 1) / threads); }

// Per-element indexing, as `target[i][c] = source[map[i]][c]` is written first.
__global__ void element_kernel(Move move) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < move.mapped_rows * move.width) {
    move.target[i] = move.source[move.map[i / move.width] * move.width + i % move.width];
  }
}

void move_elements(cudaStream_t stream, const Move& move) {
  element_kernel<<<blocks_for(move.mapped_rows * move.width), threads, 0, stream>>>(move);
  check(cudaPeekAtLastError(), "element_kernel");
}

struct SourceElement {
  const std::int32_t* map;
  std::int64_t width;
  __host__ __device__ std::int64_t operator()(std::int64_t i) const { return map[i / width] * width + i % width; }
};

void move_with_thrust(cudaStream_t stream, const Move& move) {
  const auto elements = thrust::make_transform_iterator(thrust::make_counting_iterator(std::int64_t{0}),
                                                        SourceElement{move.map, move.width});
  thrust::gather(thrust::cuda::par_nosync.on(stream), elements, elements + move.mapped_rows * move.width, move.source,
                 move.target);
}

// Different in every element of a tensor that an error could confuse with another: rows, columns, tensors.
__host__ __device__ std::uint16_t pattern(std::int64_t row, std::int64_t column) {
  return static_cast<std::uint16_t>(
      (static_cast<std::uint64_t>(row) * 40'503 + static_cast<std::uint64_t>(column) * 7) >> 1);
}

__global__ void fill_kernel(std::uint16_t* rows, std::int64_t count, std::int64_t width) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count * width) {
    rows[i] = pattern(i / width, i % width);
  }
}

__global__ void count_differences_kernel(Move move, unsigned* differences) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < move.mapped_rows * move.width &&
      reinterpret_cast<const std::uint16_t*>(move.target)[i] != pattern(move.map[i / move.width], i % move.width)) {
    atomicAdd(differences, 1u);
  }
}

// One shape: a source with known contents, its map, and enough pairs of source and target that launches which take
// turns among them find no row in the L2 cache, as far as memory allows.
class Shape {
 public:
  Shape(std::vector<std::int32_t> map, std::int64_t source_rows, std::int64_t width, std::size_t l2_bytes)
      : map_(map), source_rows_(source_rows), width_(width) {
    std::sort(map.begin(), map.end());
    distinct_rows_ = std::unique(map.begin(), map.end()) - map.begin();
    const std::size_t pair_bytes = (static_cast<std::size_t>(source_rows) + map_.size()) * row_bytes();
    const std::size_t pairs = std::clamp<std::size_t>(4 * l2_bytes / pair_bytes, 1, 16);
    for (std::size_t p = 0; p < pairs; ++p) {
      const DeviceArray<__half>& source = sources_.emplace_back(static_cast<std::size_t>(source_rows * width));
      targets_.emplace_back(map_.size() * static_cast<std::size_t>(width));
      fill_kernel<<<blocks_for(source_rows * width), threads>>>(reinterpret_cast<std::uint16_t*>(source.data()),
                                                                source_rows, width);
      check(cudaPeekAtLastError(), "fill_kernel");
    }
  }

  // Buffers of the n-th launch.
  [[nodiscard]] Move move(std::size_t n) const {
    return {sources_[n % sources_.size()].data(), targets_[n % targets_.size()].data(), map_.data(),
            static_cast<std::int64_t>(map_.size()), width_};
  }
  // An index whose gather, or scatter, is this map; row kernels look at nothing else of it.
  [[nodiscard]] PrefixIndexView gather_index() const {
    PrefixIndexView index;
    index.gather = {map_.data(), map_.size()};
    index.ragged_rows = static_cast<std::int32_t>(source_rows_);
    index.compact_rows = index.padded_rows = static_cast<std::int32_t>(map_.size());
    return index;
  }
  [[nodiscard]] PrefixIndexView scatter_index() const {
    PrefixIndexView index;
    index.scatter = {map_.data(), map_.size()};
    index.ragged_rows = static_cast<std::int32_t>(map_.size());
    index.compact_rows = index.padded_rows = static_cast<std::int32_t>(source_rows_);
    return index;
  }

  [[nodiscard]] std::int64_t source_rows() const { return source_rows_; }
  [[nodiscard]] std::int64_t width() const { return width_; }
  [[nodiscard]] std::size_t row_bytes() const { return static_cast<std::size_t>(width_) * sizeof(__half); }
  [[nodiscard]] std::size_t target_bytes() const { return map_.size() * row_bytes(); }
  [[nodiscard]] std::size_t distinct_bytes() const { return static_cast<std::size_t>(distinct_rows_) * row_bytes(); }

 private:
  DeviceArray<std::int32_t> map_;
  std::int64_t source_rows_;
  std::int64_t width_;
  std::ptrdiff_t distinct_rows_ = 0;
  std::vector<DeviceArray<__half>> sources_, targets_;
};

enum class Call { gather, scatter };

void move_with_radixmlp(cudaStream_t stream, const Shape& shape, Call call, const Move& move) {
  const RowView<const __half> source(move.source, shape.source_rows(), shape.width());
  const RowView<__half> target(move.target, move.mapped_rows, shape.width());
  if (call == Call::gather) {
    gather_rows(stream, shape.gather_index(), source, target);
  } else {
    scatter_rows(stream, shape.scatter_index(), source, target);
  }
}

using Launch = std::function<void(std::size_t)>;

class Comparison {
 public:
  Comparison(bool check_only, Report::Facts facts)
      : check_only_(check_only),
        report_({"call", "map", "rows"},
                check_only ? std::vector<std::string>{}
                           : std::vector<std::string>{"us", "GB/s", "element us", "ratio", "thrust us", "thrust ratio",
                                                      "copy us", "to copy", "to floor"},
                std::move(facts)) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaEventCreate(&start_), "cudaEventCreate");
    check(cudaEventCreate(&stop_), "cudaEventCreate");
  }
  Comparison(const Comparison&) = delete;
  Comparison& operator=(const Comparison&) = delete;
  ~Comparison() {
    cudaEventDestroy(stop_);
    cudaEventDestroy(start_);
    cudaStreamDestroy(stream_);
  }

  void add(Call call, const std::string& map, const Shape& shape) {
    const std::vector<std::string> names{call == Call::gather ? "gather" : "scatter", map,
                                         std::to_string(shape.source_rows()) + "x" + std::to_string(shape.width()) +
                                             " -> " + std::to_string(shape.move(0).mapped_rows)};
    const Launch ours = [&](std::size_t n) { move_with_radixmlp(stream_, shape, call, shape.move(n)); };
    const Launch elements = [&](std::size_t n) { move_elements(stream_, shape.move(n)); };
    const Launch thrust_gather = [&](std::size_t n) { move_with_thrust(stream_, shape.move(n)); };
    for (const auto& [name, launch] :
         {std::pair{"radixmlp", ours}, {"elements", elements}, {"thrust", thrust_gather}}) {
      check_equal(name, names, shape, launch);
    }
    if (check_only_) {
      report_.add(names, {});
      return;
    }
    // The copy writes as many bytes as the move and reads as many different ones.
    DeviceArray<std::byte> plain(shape.target_bytes());
    check(cudaMemset(plain.data(), 1, plain.bytes()), "cudaMemset");
    const Launch copy = [&](std::size_t n) {
      check(cudaMemcpyAsync(shape.move(n).target, plain.data(), plain.bytes(), cudaMemcpyDeviceToDevice, stream_),
            "cudaMemcpyAsync");
    };
    const std::vector<double> us = time({ours, elements, thrust_gather, copy});
    const double moved = 2 * static_cast<double>(shape.target_bytes());
    // Each different row read once and each target row written once, at the copy's bandwidth.
    const double floor = us[3] * static_cast<double>(shape.target_bytes() + shape.distinct_bytes()) / moved;
    report_.add(names, {us[0], moved / us[0] / 1e3, us[1], us[1] / us[0], us[2], us[2] / us[0], us[3], us[0] / us[3],
                        us[0] / floor});
    over_elements_.push_back(us[1] / us[0]);
    over_thrust_.push_back(us[2] / us[0]);
    to_copy_.push_back(us[0] / us[3]);
  }

  // Q, K and V of one attention layer (4096, 1024 and 1024 wide) in one call, against three launches of each baseline.
  void add_qkv(const std::string& map, const std::vector<const Shape*>& qkv) {
    const std::vector<std::string> names{"scatter Q, K, V", map, "-> " + std::to_string(qkv[0]->move(0).mapped_rows)};
    const Launch ours = [&](std::size_t n) {
      const auto tensor = [&](std::size_t t) {
        const Move move = qkv[t]->move(n);
        return RowCopy{RowView<const __half>(move.source, qkv[t]->source_rows(), qkv[t]->width()),
                       RowView<__half>(move.target, move.mapped_rows, qkv[t]->width())};
      };
      scatter_rows(stream_, qkv[0]->scatter_index(), tensor(0), tensor(1), tensor(2));
    };
    for (const Shape* shape : qkv) {
      check_equal("radixmlp", names, *shape, ours);
    }
    if (check_only_) {
      report_.add(names, {});
      return;
    }
    const std::vector<double> us = time({ours,
                                         [&](std::size_t n) {
                                           for (const Shape* shape : qkv) {
                                             move_elements(stream_, shape->move(n));
                                           }
                                         },
                                         [&](std::size_t n) {
                                           for (const Shape* shape : qkv) {
                                             move_with_thrust(stream_, shape->move(n));
                                           }
                                         }});
    double moved = 0;
    for (const Shape* shape : qkv) {
      moved += 2 * static_cast<double>(shape->target_bytes());
    }
    report_.add(names, {us[0], moved / us[0] / 1e3, us[1], us[1] / us[0], us[2], us[2] / us[0], no_figure, no_figure,
                        no_figure});
  }

  void add_means() {
    report_.add({"geometric mean", "", ""},
                {no_figure, no_figure, no_figure, geometric_mean(over_elements_), no_figure,
                 geometric_mean(over_thrust_), no_figure, geometric_mean(to_copy_), no_figure});
  }

  [[nodiscard]] const Report& result() const { return report_; }

 private:
  void check_equal(const std::string& who, const std::vector<std::string>& names, const Shape& shape,
                   const Launch& launch) {
    const Move move = shape.move(0);
    const DeviceArray<unsigned> differences(std::vector<unsigned>{0});
    check(cudaMemsetAsync(move.target, 0xff, shape.target_bytes(), stream_), "cudaMemsetAsync");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // the sources are filled on another stream
    launch(0);
    count_differences_kernel<<<blocks_for(move.mapped_rows * move.width), threads, 0, stream_>>>(move,
                                                                                                 differences.data());
    check(cudaPeekAtLastError(), "count_differences_kernel");
    unsigned found = 0;
    check(cudaMemcpyAsync(&found, differences.data(), sizeof found, cudaMemcpyDeviceToHost, stream_),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    if (found != 0) {
      throw std::runtime_error(who + ": " + std::to_string(found) + " wrong elements: " + names[0] + ", " + names[1] +
                               ", " + names[2]);
    }
  }

  double us_per_launch(const Launch& launch, std::size_t launches) {
    check(cudaEventRecord(start_, stream_), "cudaEventRecord");
    for (std::size_t n = 0; n < launches; ++n) {
      launch(n);
    }
    check(cudaEventRecord(stop_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(stop_), "cudaEventSynchronize");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start_, stop_), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(ms) / static_cast<double>(launches);
  }

  // Medians of samples that take turns; many launches between two events, so that the events cost nothing.
  [[nodiscard]] std::vector<double> time(const std::vector<Launch>& contestants) {
    constexpr double sample_us = 4'000;
    constexpr std::size_t rounds = 11;
    std::vector<std::size_t> launches;
    for (const Launch& launch : contestants) {
      us_per_launch(launch, 3);
      launches.push_back(
          std::clamp<std::size_t>(static_cast<std::size_t>(sample_us / us_per_launch(launch, 8)), 8, 500));
    }
    std::vector<std::vector<double>> samples(contestants.size());
    for (std::size_t round = 0; round < rounds; ++round) {
      for (std::size_t c = 0; c < contestants.size(); ++c) {
        samples[c].push_back(us_per_launch(contestants[c], launches[c]));
      }
    }
    std::vector<double> medians;
    for (std::vector<double>& of_contestant : samples) {
      medians.push_back(median(std::move(of_contestant)));
    }
    return medians;
  }

  bool check_only_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  Report report_;
  std::vector<double> over_elements_, over_thrust_, to_copy_;
};

// The indices of the published kernel's benchmark: the next use of a row is as far away as can be.
std::vector<std::int32_t> cyclic_map(std::int64_t source_rows, std::int64_t rows) {
  std::vector<std::int32_t> map(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < rows; ++i) {
    map[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i % source_rows);
  }
  return map;
}

std::vector<std::int32_t> copied(std::span<const std::int32_t> map) { return {map.begin(), map.end()}; }

void compare_cyclic(Comparison& comparison, bool tiny, std::size_t l2_bytes) {
  struct Rows {
    std::int64_t source_rows, width, rows;
  };
  const std::vector<Rows> shapes =
      tiny ? std::vector<Rows>{{40, 64, 100}, {100, 128, 200}, {10, 1280, 20}, {7, 33, 30}}
           : std::vector<Rows>{{16'000, 1024, 12'000},  {16'000, 1024, 70'000}, {100'000, 2048, 500'000},
                               {2'000, 16'384, 10'000}, {100, 128, 200},        {10, 12'800, 200}};
  for (const Rows& rows : shapes) {
    comparison.add(Call::gather, "i % rows",
                   Shape(cyclic_map(rows.source_rows, rows.rows), rows.source_rows, rows.width, l2_bytes));
  }
}

void compare_trie(Comparison& comparison, const std::string& name, const Batch& batch, bool tiny,
                  std::size_t l2_bytes) {
  radixmlp::PrefixTrie trie;
  const PrefixIndexView index = trie.build(batch.view());
  const auto scatter_shape = [&](std::int64_t width) {
    return Shape(copied(index.scatter), index.compact_rows, width, l2_bytes);
  };
  for (const std::int64_t width : tiny ? std::vector<std::int64_t>{64} : std::vector<std::int64_t>{1024, 2048, 4096}) {
    comparison.add(Call::gather, name, Shape(copied(index.gather), index.ragged_rows, width, l2_bytes));
    comparison.add(Call::scatter, name, scatter_shape(width));
  }
  const Shape q = scatter_shape(tiny ? 128 : 4096);
  const Shape k = scatter_shape(tiny ? 32 : 1024);
  const Shape v = scatter_shape(tiny ? 32 : 1024);
  comparison.add_qkv(name, {&q, &k, &v});
}

Batch first_requests(const std::vector<std::vector<std::int32_t>>& requests, std::size_t count) {
  Batch batch;
  for (std::size_t i = 0; i < std::min(count, requests.size()); ++i) {
    batch.add(requests[i]);
  }
  return batch;
}

Report::Facts describe_device(int argc, char** argv, const cudaDeviceProp& device) {
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  int driver = 0;
  int runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  Report::Facts facts = describe_run(argc, argv);
  facts.push_back({"GPU", device.name});
  facts.push_back({"CUDA", "driver for " + version(driver) + ", runtime " + version(runtime)});
  return facts;
}

int run(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU (%s)\n", error == cudaSuccess ? "no device" : cudaGetErrorString(error));
    return 77;
  }
  cudaDeviceProp device{};
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  if (!options.check_only && std::string_view(device.name).starts_with("Emulated")) {
    std::printf("skipped: %s has no times; --check-only works\n", device.name);
    return 77;
  }
  const auto l2_bytes = static_cast<std::size_t>(device.l2CacheSize);
  const std::vector<std::vector<std::int32_t>> sample =
      load_requests(options.data.empty() ? RADIXMLP_SAMPLE : options.data);

  Comparison comparison(options.check_only, describe_device(argc, argv, device));
  compare_cyclic(comparison, options.check_only, options.check_only ? 0 : l2_bytes);
  if (options.check_only) {
    compare_trie(comparison, "2 requests", first_requests(sample, 2), true, 0);
  } else {
    compare_trie(comparison, "rerank, 16 requests", first_requests(sample, 16), false, l2_bytes);
    compare_trie(comparison, "rerank, 160 requests", first_requests(sample, 160), false, l2_bytes);
    comparison.add_means();
  }
  if (options.check_only) {
    std::printf("equal to per-element indexing: all of the above\n");
  }
  comparison.result().write(options);
  return 0;
}

}  // namespace
}  // namespace radixmlp_bench

int main(int argc, char** argv) { return radixmlp_bench::report_errors(argc, argv, radixmlp_bench::run); }
