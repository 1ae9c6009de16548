// SPDX-License-Identifier: MIT

// Row movement on a GPU against a thread an element, a warp a row in 4-byte loads (as published kernels do for fp16),
// thrust::gather, and a device-to-device copy of as many bytes (the roofline). Every result is compared on the device
// before any timing. Exits with 77 where there is no GPU.

#include <cuda_bf16.h>
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
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "radixmlp/cuda.cuh"
#include "support/device.cuh"
#include "support/interleave.hpp"
#include "support/report.hpp"
#include "support/workloads.hpp"

namespace radixmlp_bench {
namespace {

using radixmlp::PrefixIndexView;
using radixmlp::RowCopy;
using radixmlp::RowLists;
using radixmlp::RowMap;
using radixmlp::RowView;

// A move: target row i is source row map[i]. The library's two calls are this with one map or the other.
template <class T>
struct Move {
  const T* source;
  T* target;
  const std::int32_t* map;
  std::int64_t mapped_rows;
  std::int64_t width;
};

constexpr int threads = 256;

unsigned blocks_for(std::int64_t items) { return static_cast<unsigned>((items + threads - 1) / threads); }

// Per-element indexing, as `target[i][c] = source[map[i]][c]` is written first.
template <class T>
__global__ void element_kernel(Move<T> move) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < move.mapped_rows * move.width) {
    move.target[i] = move.source[move.map[i / move.width] * move.width + i % move.width];
  }
}

template <class T>
void move_elements(cudaStream_t stream, const Move<T>& move) {
  element_kernel<<<blocks_for(move.mapped_rows * move.width), threads, 0, stream>>>(move);
  check(cudaPeekAtLastError(), "element_kernel");
}

// A warp a row in 4-byte loads, eight blocks a multiprocessor: the published kernel's design. Rows of an odd number of
// 2-byte elements go by elements, as there.
__global__ void __launch_bounds__(threads, 8)
    words_kernel(const std::uint32_t* source, std::uint32_t* target, const std::int32_t* map, std::int64_t rows,
                 std::int64_t words) {
  for (std::int64_t row = std::int64_t{blockIdx.x} * (threads / 32) + threadIdx.x / 32; row < rows;
       row += std::int64_t{gridDim.x} * (threads / 32)) {
    const std::uint32_t* const from = source + map[row] * words;
    std::uint32_t* const to = target + row * words;
    for (std::int64_t i = threadIdx.x % 32; i < words; i += 32) {
      to[i] = from[i];
    }
  }
}

template <class T>
void move_words(cudaStream_t stream, const Move<T>& move, int multiprocessors) {
  const std::int64_t bytes = move.width * std::int64_t{sizeof(T)};
  if (bytes % 4 != 0) {
    move_elements(stream, move);
    return;
  }
  const auto blocks = static_cast<unsigned>(
      std::min<std::int64_t>((move.mapped_rows * 32 + threads - 1) / threads, multiprocessors * 8));
  words_kernel<<<blocks, threads, 0, stream>>>(reinterpret_cast<const std::uint32_t*>(move.source),
                                               reinterpret_cast<std::uint32_t*>(move.target), move.map,
                                               move.mapped_rows, bytes / 4);
  check(cudaPeekAtLastError(), "words_kernel");
}

struct SourceElement {
  const std::int32_t* map;
  std::int64_t width;
  __host__ __device__ std::int64_t operator()(std::int64_t i) const { return map[i / width] * width + i % width; }
};

template <class T>
void move_with_thrust(cudaStream_t stream, const Move<T>& move) {
  const auto elements = thrust::make_transform_iterator(thrust::make_counting_iterator(std::int64_t{0}),
                                                        SourceElement{move.map, move.width});
  thrust::gather(thrust::cuda::par_nosync.on(stream), elements, elements + move.mapped_rows * move.width, move.source,
                 move.target);
}

// Different in every element of a tensor that an error could confuse with another: rows, columns, tensors.
template <class Bits>
__host__ __device__ Bits pattern(std::int64_t row, std::int64_t column) {
  return static_cast<Bits>((static_cast<std::uint64_t>(row) * 40'503 + static_cast<std::uint64_t>(column) * 7) >> 1);
}
template <class T>
using BitsOf = std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>;

template <class Bits>
__global__ void fill_kernel(Bits* rows, std::int64_t count, std::int64_t width) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count * width) {
    rows[i] = pattern<Bits>(i / width, i % width);
  }
}

template <class T>
__global__ void count_differences_kernel(Move<T> move, unsigned* differences) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < move.mapped_rows * move.width && reinterpret_cast<const BitsOf<T>*>(move.target)[i] !=
                                               pattern<BitsOf<T>>(move.map[i / move.width], i % move.width)) {
    atomicAdd(differences, 1u);
  }
}

// One shape: a source with known contents, its map, and enough pairs of source and target that launches which take
// turns among them find no row in the L2 cache, as far as memory allows.
template <class T>
class Shape {
 public:
  Shape(const std::vector<std::int32_t>& map, std::int64_t source_rows, std::int64_t width, std::size_t l2_bytes)
      : map_(map),
        lists_(lists_of(map, source_rows)),
        runs_(radixmlp::count_runs(map)),
        source_rows_(source_rows),
        width_(width) {
    std::vector<std::int32_t> sorted = map;
    std::sort(sorted.begin(), sorted.end());
    distinct_rows_ = std::unique(sorted.begin(), sorted.end()) - sorted.begin();
    const std::size_t pair_bytes = (static_cast<std::size_t>(source_rows) + map_.size()) * row_bytes();
    const std::size_t pairs = std::clamp<std::size_t>(4 * l2_bytes / pair_bytes, 1, 16);
    for (std::size_t p = 0; p < pairs; ++p) {
      const DeviceArray<T>& source = sources_.emplace_back(static_cast<std::size_t>(source_rows * width));
      targets_.emplace_back(map_.size() * static_cast<std::size_t>(width));
      fill_kernel<<<blocks_for(source_rows * width), threads>>>(reinterpret_cast<BitsOf<T>*>(source.data()),
                                                                source_rows, width);
      check(cudaPeekAtLastError(), "fill_kernel");
    }
  }

  // Buffers of the n-th launch.
  [[nodiscard]] Move<T> move(std::size_t n) const {
    return {sources_[n % sources_.size()].data(), targets_[n % targets_.size()].data(), map_.data(),
            static_cast<std::int64_t>(map_.size()), width_};
  }
  [[nodiscard]] RowMap map() const { return {{map_.data(), map_.size()}, source_rows_, rows()}; }
  // The map the other way round.
  [[nodiscard]] RowLists lists() const {
    const auto offsets = static_cast<std::size_t>(source_rows_) + 1;
    return {{lists_.data(), offsets}, {lists_.data() + offsets, map_.size()}};
  }
  // An index whose scatter is this map; row kernels look at nothing else of it.
  [[nodiscard]] PrefixIndexView scatter_index() const {
    PrefixIndexView index;
    index.scatter = {map_.data(), map_.size()};
    index.ragged_rows = static_cast<std::int32_t>(map_.size());
    index.compact_rows = index.padded_rows = static_cast<std::int32_t>(source_rows_);
    return index;
  }
  [[nodiscard]] std::int64_t rows() const { return static_cast<std::int64_t>(map_.size()); }
  [[nodiscard]] auto copy(std::size_t n) const {
    return RowCopy{RowView<const T>(move(n).source, source_rows_, width_), RowView<T>(move(n).target, rows(), width_)};
  }
  [[nodiscard]] radixmlp::RowPlan plan(std::size_t l2_bytes) const {
    return plan_rows(row_work(map(), distinct_rows_, runs_, static_cast<std::int64_t>(l2_bytes), copy(0)));
  }

  [[nodiscard]] std::int64_t source_rows() const { return source_rows_; }
  [[nodiscard]] std::int64_t width() const { return width_; }
  [[nodiscard]] std::size_t row_bytes() const { return static_cast<std::size_t>(width_) * sizeof(T); }
  [[nodiscard]] std::size_t target_bytes() const { return map_.size() * row_bytes(); }
  [[nodiscard]] std::size_t distinct_bytes() const { return static_cast<std::size_t>(distinct_rows_) * row_bytes(); }

 private:
  static std::vector<std::int32_t> lists_of(const std::vector<std::int32_t>& map, std::int64_t source_rows) {
    std::vector<std::int32_t> lists(static_cast<std::size_t>(source_rows) + 1 + map.size());
    for (const std::int32_t row : map) {
      ++lists[static_cast<std::size_t>(row) + 1];
    }
    for (std::int64_t j = 0; j < source_rows; ++j) {
      lists[static_cast<std::size_t>(j) + 1] += lists[static_cast<std::size_t>(j)];
    }
    std::vector<std::int32_t> next(lists.begin(), lists.begin() + source_rows);
    for (std::size_t i = 0; i < map.size(); ++i) {
      const std::int32_t at = next[static_cast<std::size_t>(map[i])]++;
      lists[static_cast<std::size_t>(source_rows) + 1 + static_cast<std::size_t>(at)] = static_cast<std::int32_t>(i);
    }
    return lists;
  }

  DeviceArray<std::int32_t> map_, lists_;
  std::int64_t runs_;
  std::int64_t source_rows_;
  std::int64_t width_;
  std::ptrdiff_t distinct_rows_ = 0;
  std::vector<DeviceArray<T>> sources_, targets_;
};

using Launch = std::function<void(std::size_t)>;

class Comparison {
 public:
  Comparison(bool check_only, const cudaDeviceProp& device, Report::Facts facts)
      : check_only_(check_only),
        l2_bytes_(static_cast<std::size_t>(device.l2CacheSize)),
        multiprocessors_(device.multiProcessorCount),
        report_({"call", "type", "map", "rows", "plan"},
                check_only ? std::vector<std::string>{}
                           : std::vector<std::string>{"us", "GB/s", "indexed us", "dependent us", "multicast us",
                                                      "element us", "ratio", "words us", "words ratio", "thrust us",
                                                      "thrust ratio", "copy us", "to copy", "to floor"},
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

  // "us" is what the plan chose; the kernels alone stand beside it, the indexed one in programmatic launches as well.
  template <class T>
  void add(const std::string& call, const std::string& type, const std::string& map, const Shape<T>& shape) {
    const radixmlp::RowPlan plan = shape.plan(l2_bytes_);
    const std::string text = plan.explain();
    const std::vector<std::string> names{call, type, map,
                                         std::to_string(shape.source_rows()) + "x" + std::to_string(shape.width()) +
                                             " -> " + std::to_string(shape.rows()),
                                         text.substr(0, text.find(':'))};
    const radixmlp::RowMoves moves{shape.map(), {}, shape.lists()};
    radixmlp::RowPlan used = plan;
    if (used.kernel == radixmlp::RowKernel::runs) {  // no run list here
      used.kernel = radixmlp::RowKernel::indexed;
    }
    const Launch planned = [&](std::size_t n) { move_rows(stream_, used, moves, shape.copy(n)); };
    const Launch indexed = [&](std::size_t n) { map_rows(stream_, shape.map(), shape.copy(n)); };
    const Launch dependent = [&](std::size_t n) {
      map_rows<radixmlp::RowOptions{.order = radixmlp::LaunchOrder::programmatic}>(stream_, shape.map(), shape.copy(n));
    };
    const Launch multicast = [&](std::size_t n) { multicast_rows(stream_, shape.lists(), shape.copy(n)); };
    const Launch elements = [&](std::size_t n) { move_elements(stream_, shape.move(n)); };
    const Launch words = [&](std::size_t n) { move_words(stream_, shape.move(n), multiprocessors_); };
    const Launch thrust_gather = [&](std::size_t n) { move_with_thrust(stream_, shape.move(n)); };
    for (const auto& [name, launch] : {std::pair{"planned", planned},
                                       {"indexed", indexed},
                                       {"dependent", dependent},
                                       {"multicast", multicast},
                                       {"elements", elements},
                                       {"words", words},
                                       {"thrust", thrust_gather}}) {
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
    const std::vector<double> us = time({planned, indexed, dependent, multicast, elements, words, thrust_gather, copy});
    const double moved = 2 * static_cast<double>(shape.target_bytes());
    // Each different row read once and each target row written once, at the copy's bandwidth.
    const double floor = us[7] * static_cast<double>(shape.target_bytes() + shape.distinct_bytes()) / moved;
    report_.add(names, {us[0], moved / us[0] / 1e3, us[1], us[2], us[3], us[4], us[4] / us[0], us[5], us[5] / us[0],
                        us[6], us[6] / us[0], us[7], us[0] / us[7], us[0] / floor});
    over_elements_.push_back(us[4] / us[0]);
    over_words_.push_back(us[5] / us[0]);
    over_thrust_.push_back(us[6] / us[0]);
    to_copy_.push_back(us[0] / us[7]);
  }

  // Q, K and V of one attention layer (4096, 1024 and 1024 wide) in one call, against three launches of each baseline.
  void add_qkv(const std::string& map, const std::vector<const Shape<__half>*>& qkv) {
    const std::vector<std::string> names{"scatter Q, K, V", "fp16", map, "-> " + std::to_string(qkv[0]->rows()),
                                         "indexed"};
    const Launch ours = [&](std::size_t n) {
      scatter_rows(stream_, qkv[0]->scatter_index(), qkv[0]->copy(n), qkv[1]->copy(n), qkv[2]->copy(n));
    };
    for (const Shape<__half>* shape : qkv) {
      check_equal("radixmlp", names, *shape, ours);
    }
    if (check_only_) {
      report_.add(names, {});
      return;
    }
    const std::vector<double> us = time({ours,
                                         [&](std::size_t n) {
                                           for (const Shape<__half>* shape : qkv) {
                                             move_elements(stream_, shape->move(n));
                                           }
                                         },
                                         [&](std::size_t n) {
                                           for (const Shape<__half>* shape : qkv) {
                                             move_words(stream_, shape->move(n), multiprocessors_);
                                           }
                                         },
                                         [&](std::size_t n) {
                                           for (const Shape<__half>* shape : qkv) {
                                             move_with_thrust(stream_, shape->move(n));
                                           }
                                         }});
    double moved = 0;
    for (const Shape<__half>* shape : qkv) {
      moved += 2 * static_cast<double>(shape->target_bytes());
    }
    report_.add(names, {us[0], moved / us[0] / 1e3, us[0], no_figure, no_figure, us[1], us[1] / us[0], us[2],
                        us[2] / us[0], us[3], us[3] / us[0], no_figure, no_figure, no_figure});
  }

  void add_means() {
    report_.add({"geometric mean", "", "", "", ""},
                {no_figure, no_figure, no_figure, no_figure, no_figure, no_figure, geometric_mean(over_elements_),
                 no_figure, geometric_mean(over_words_), no_figure, geometric_mean(over_thrust_), no_figure,
                 geometric_mean(to_copy_), no_figure});
  }

  [[nodiscard]] const Report& result() const { return report_; }

 private:
  template <class T>
  void check_equal(const std::string& who, const std::vector<std::string>& names, const Shape<T>& shape,
                   const Launch& launch) {
    const Move<T> move = shape.move(0);
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
                               ", " + names[2] + ", " + names[3]);
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
  std::size_t l2_bytes_;
  int multiprocessors_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
  Report report_;
  std::vector<double> over_elements_, over_words_, over_thrust_, to_copy_;
};

// The indices of the published kernel's benchmark: the next use of a row is as far away as can be.
std::vector<std::int32_t> cyclic_map(std::int64_t source_rows, std::int64_t rows) {
  std::vector<std::int32_t> map(static_cast<std::size_t>(rows));
  for (std::int64_t i = 0; i < rows; ++i) {
    map[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i % source_rows);
  }
  return map;
}

std::vector<std::int32_t> random_map(std::int64_t source_rows, std::int64_t rows) {
  std::mt19937_64 random(5);
  std::vector<std::int32_t> map(static_cast<std::size_t>(rows));
  for (std::int32_t& row : map) {
    row = static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(source_rows));
  }
  return map;
}

std::vector<std::int32_t> copied(std::span<const std::int32_t> map) { return {map.begin(), map.end()}; }

template <class T>
void compare_shapes(Comparison& comparison, const std::string& type, bool tiny, std::size_t l2_bytes) {
  struct Rows {
    std::int64_t source_rows, width, rows;
  };
  const std::vector<Rows> shapes =
      tiny ? std::vector<Rows>{{40, 64, 100}, {10, 1280, 20}, {7, 33, 30}}
           : std::vector<Rows>{{16'000, 1024, 12'000},  {16'000, 1024, 70'000}, {100'000, 2048, 500'000},
                               {2'000, 16'384, 10'000}, {100, 128, 200},        {10, 12'800, 200}};
  for (const Rows& rows : shapes) {
    for (const auto& [name, map] : {std::pair{"i % rows", cyclic_map(rows.source_rows, rows.rows)},
                                    {"random", random_map(rows.source_rows, rows.rows)}}) {
      comparison.add("gather", type, name, Shape<T>(map, rows.source_rows, rows.width, l2_bytes));
    }
  }
}

void compare_trie(Comparison& comparison, const std::string& name, const Batch& batch, bool tiny,
                  std::size_t l2_bytes) {
  radixmlp::PrefixTrie trie;
  const PrefixIndexView index = trie.build(batch.view());
  const auto scatter_shape = [&](std::int64_t width) {
    return Shape<__half>(copied(index.scatter), index.compact_rows, width, l2_bytes);
  };
  for (const std::int64_t width : tiny ? std::vector<std::int64_t>{64} : std::vector<std::int64_t>{1024, 2048, 4096}) {
    comparison.add("gather", "fp16", name, Shape<__half>(copied(index.gather), index.ragged_rows, width, l2_bytes));
    comparison.add("scatter", "fp16", name, scatter_shape(width));
  }
  const Shape<__half> q = scatter_shape(tiny ? 128 : 4096);
  const Shape<__half> k = scatter_shape(tiny ? 32 : 1024);
  const Shape<__half> v = scatter_shape(tiny ? 32 : 1024);
  comparison.add_qkv(name, {&q, &k, &v});
}

Batch first_requests(const std::vector<std::vector<std::int32_t>>& requests, std::size_t count) {
  Batch batch;
  for (std::size_t i = 0; i < std::min(count, requests.size()); ++i) {
    batch.add(requests[i]);
  }
  return batch;
}

int run(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  cudaDeviceProp device{};
  if (!find_device(options, device)) {
    return 77;
  }
  const auto l2_bytes = static_cast<std::size_t>(device.l2CacheSize);
  const std::vector<std::vector<std::int32_t>> sample =
      load_requests(options.data.empty() ? RADIXMLP_SAMPLE : options.data);

  Comparison comparison(options.check_only, device, describe_device(argc, argv, device));
  const std::size_t cold_bytes = options.check_only ? 0 : l2_bytes;
  compare_shapes<__half>(comparison, "fp16", options.check_only, cold_bytes);
  if (!options.check_only) {  // the same kernels as for fp16
    compare_shapes<__nv_bfloat16>(comparison, "bf16", false, cold_bytes);
  }
  compare_shapes<float>(comparison, "fp32", options.check_only, cold_bytes);
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
