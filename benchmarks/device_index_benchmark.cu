// SPDX-License-Identifier: MIT

// The index of a batch whose tokens are on the GPU, built there, against the host's builder and an upload of its maps;
// and what a step of an engine takes with the index built before each compute, ahead on the host, and on the GPU.
// "Compute" is a kernel that spins. Every index is compared with the host's before any timing. Exits with 77 where
// there is no GPU.

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "radixmlp/index/device_index.cuh"
#include "radixmlp/index/device_index_builder.cuh"
#include "radixmlp/index/prefix_trie.hpp"
#include "radixmlp/pipeline/device_index_pipeline.cuh"
#include "support/device.cuh"
#include "support/interleave.hpp"
#include "support/report.hpp"
#include "support/workloads.hpp"

namespace radixmlp_bench {
namespace {

using Clock = std::chrono::steady_clock;
using radixmlp::IndexCapacity;
using radixmlp::PrefixIndexView;
using radixmlp::RaggedBatch;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes) : bytes_(bytes) { check(cudaMallocHost(&data_, bytes), "cudaMallocHost"); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory() { cudaFreeHost(data_); }

  [[nodiscard]] std::span<std::byte> span() const { return {static_cast<std::byte*>(data_), bytes_}; }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

std::span<std::byte> span_of(const DeviceArray<std::byte>& array) { return {array.data(), array.size()}; }

__device__ unsigned long long nanoseconds() {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void spin_kernel(unsigned long long ns) {
  for (const unsigned long long start = nanoseconds(); nanoseconds() - start < ns;) {
  }
}

void compute(cudaStream_t stream, double us) {
  if (us > 0) {
    spin_kernel<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(1e3 * us));
    check(cudaPeekAtLastError(), "spin_kernel");
  }
}

// A batch on the host and on the GPU.
struct Case {
  explicit Case(const Batch& source) : host(source), tokens(source.tokens), cu_seqlens(source.cu_seqlens) {}

  [[nodiscard]] RaggedBatch<std::int32_t> on_device() const {
    return {.tokens = {tokens.data(), tokens.size()}, .cu_seqlens = {cu_seqlens.data(), cu_seqlens.size()}};
  }
  [[nodiscard]] IndexCapacity capacity() const {
    const auto rows = static_cast<std::int32_t>(host.tokens.size());
    return {.ragged_rows = rows, .compact_rows = rows, .sequences = static_cast<std::int32_t>(host.sequences())};
  }

  Batch host;
  DeviceArray<std::int32_t> tokens, cu_seqlens;
};

// The ways to an index, each with memory for the largest of some batches.
class Builders {
 public:
  explicit Builders(const std::vector<Case>& cases)
      : capacity_(largest(cases)),
        builder_(capacity_),
        pinned_(radixmlp::index_bytes(capacity_.ragged_rows, capacity_.sequences)),
        uploaded_(pinned_.span().size()),
        built_(builder_.index_bytes()),
        workspace_(builder_.workspace_bytes()) {
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
    check(cudaEventCreate(&start_), "cudaEventCreate");
    check(cudaEventCreate(&stop_), "cudaEventCreate");
    static_cast<void>(radixmlp::empty_index(stream_, capacity_, span_of(built_)));
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }
  Builders(const Builders&) = delete;
  Builders& operator=(const Builders&) = delete;
  ~Builders() {
    cudaEventDestroy(stop_);
    cudaEventDestroy(start_);
    cudaStreamDestroy(stream_);
  }

  [[nodiscard]] cudaStream_t stream() const { return stream_; }
  void wait() const { check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"); }

  PrefixIndexView on_host(const Case& of) { return trie_.build_into(pinned_.span(), of.host.view()); }
  PrefixIndexView upload(const PrefixIndexView& index) const {
    return radixmlp::copy_to_device(stream_, index, span_of(uploaded_));
  }
  PrefixIndexView on_device(const Case& of) const {
    return builder_.build(stream_, of.on_device(), span_of(built_), span_of(workspace_));
  }

  // Throws unless the index on the device, once the stream has come there, is the host's.
  void check_equal(const std::string& who, const Case& of, const PrefixIndexView& device) {
    std::vector<std::byte> block(device.block.size());
    check(cudaMemcpyAsync(block.data(), device.block.data(), block.size(), cudaMemcpyDeviceToHost, stream_),
          "cudaMemcpyAsync");
    wait();
    PrefixIndexView found = device.relocated(block.data());
    if (found.counts != nullptr) {
      found = radixmlp::filled_index(found, *found.counts);
    }
    const PrefixIndexView expected = trie_.build(of.host.view());
    for (const auto& [name, a, b] : {std::tuple{"scatter", found.scatter, expected.scatter},
                                     {"gather", found.gather, expected.gather},
                                     {"parent", found.parent, expected.parent},
                                     {"compact_cu", found.compact_cu, expected.compact_cu},
                                     {"ragged_cu", found.ragged_cu, expected.ragged_cu},
                                     {"last_rows", found.last_rows, expected.last_rows}}) {
      if (!std::equal(a.begin(), a.end(), b.begin(), b.end())) {
        throw std::runtime_error(who + ": " + name + " is not the host's");
      }
    }
  }

  // Microseconds of the GPU for one of many, between two events.
  double device_us(const std::function<void()>& enqueue, std::size_t times) const {
    check(cudaEventRecord(start_, stream_), "cudaEventRecord");
    for (std::size_t n = 0; n < times; ++n) {
      enqueue();
    }
    check(cudaEventRecord(stop_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(stop_), "cudaEventSynchronize");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start_, stop_), "cudaEventElapsedTime");
    return 1e3 * static_cast<double>(ms) / static_cast<double>(times);
  }

 private:
  static IndexCapacity largest(const std::vector<Case>& cases) {
    IndexCapacity most;
    for (const Case& of : cases) {
      most.ragged_rows = std::max(most.ragged_rows, of.capacity().ragged_rows);
      most.sequences = std::max(most.sequences, of.capacity().sequences);
    }
    most.compact_rows = most.ragged_rows;
    return most;
  }

  IndexCapacity capacity_;
  radixmlp::DeviceIndexBuilder builder_;
  radixmlp::PrefixTrie trie_;
  PinnedMemory pinned_;
  DeviceArray<std::byte> uploaded_, built_, workspace_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr;
  cudaEvent_t stop_ = nullptr;
};

// A captured build, to be launched again.
class BuildGraph {
 public:
  BuildGraph(const Builders& builders, const Case& of) {
    check(cudaStreamBeginCapture(builders.stream(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    static_cast<void>(builders.on_device(of));
    check(cudaStreamEndCapture(builders.stream(), &graph_), "cudaStreamEndCapture");
    check(cudaGraphInstantiate(&executable_, graph_, 0), "cudaGraphInstantiate");
  }
  BuildGraph(const BuildGraph&) = delete;
  BuildGraph& operator=(const BuildGraph&) = delete;
  ~BuildGraph() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  void launch(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

class Comparison {
 public:
  Comparison(bool check_only, Report::Facts facts)
      : check_only_(check_only),
        report_({"batches", "tokens", "sequences"},
                check_only ? std::vector<std::string>{}
                           : std::vector<std::string>{"host us", "upload us", "host+upload", "enqueue us", "device us",
                                                      "kernels us", "graph us", "ratio", "compute us", "serial us",
                                                      "ahead us", "on GPU us", "overlap"},
                std::move(facts)) {}

  // The first batch for the builders, all of them in turn for the steps.
  void add(const std::string& name, const std::vector<Batch>& batches) {
    std::vector<Case> cases;
    for (const Batch& batch : batches) {
      cases.emplace_back(batch);
    }
    Builders builders(cases);
    for (const Case& of : cases) {
      builders.check_equal("upload", of, builders.upload(builders.on_host(of)));
      builders.check_equal("device", of, builders.on_device(of));
    }
    const Case& first = cases.front();
    const BuildGraph graph(builders, first);
    const PrefixIndexView index = builders.on_device(cases.back());
    graph.launch(builders.stream());
    builders.check_equal("graph", first, index);
    check_steps_ahead(builders, cases);

    const std::vector<std::string> names{name, std::to_string(first.host.tokens.size()),
                                         std::to_string(first.host.sequences())};
    if (check_only_) {
      report_.add(names, {});
      return;
    }
    const std::vector<double> build = build_us(builders, first, graph);
    const std::vector<double> step = step_us(builders, cases, 1.5 * build[2]);
    report_.add(names, {build[0], build[1], build[2], build[3], build[4], build[5], build[6], build[2] / build[4],
                        1.5 * build[2], step[0], step[1], step[2], step[0] / step[1]});
    over_host_.push_back(build[2] / build[4]);
    overlap_.push_back(step[0] / step[1]);
  }

  void add_means() {
    std::vector<double> figures(13, no_figure);
    figures[7] = geometric_mean(over_host_);
    figures[12] = geometric_mean(overlap_);
    report_.add({"geometric mean", "", ""}, figures);
  }

  [[nodiscard]] const Report& result() const { return report_; }

 private:
  // Medians of samples that take turns: build on the host; upload; both, until the maps are there; enqueue a build on
  // the GPU; the same until the maps are there; its kernels; the kernels as a graph.
  static std::vector<double> build_us(Builders& builders, const Case& of, const BuildGraph& graph) {
    constexpr std::size_t rounds = 41;
    constexpr std::size_t launches = 20;
    std::vector<std::vector<double>> samples(7);
    for (std::size_t round = 0; round < rounds; ++round) {
      const auto sample = [&](std::size_t n, double us) { samples[n].push_back(us); };
      Clock::time_point start = Clock::now();
      const PrefixIndexView index = builders.on_host(of);
      sample(0, us_since(start));
      static_cast<void>(builders.upload(index));
      builders.wait();
      sample(2, us_since(start));
      sample(1, builders.device_us([&] { static_cast<void>(builders.upload(index)); }, launches));
      start = Clock::now();
      static_cast<void>(builders.on_device(of));
      sample(3, us_since(start));
      builders.wait();
      sample(4, us_since(start));
      sample(5, builders.device_us([&] { static_cast<void>(builders.on_device(of)); }, launches));
      sample(6, builders.device_us([&] { graph.launch(builders.stream()); }, launches));
    }
    std::vector<double> medians;
    for (std::vector<double>& of_way : samples) {
      medians.push_back(median(std::move(of_way)));
    }
    return medians;
  }

  static radixmlp::PipelineOptions pipeline_options(const std::vector<Case>& cases) {
    std::size_t bytes = 1;
    for (const Case& of : cases) {
      bytes = std::max(bytes, radixmlp::index_bytes(of.capacity().ragged_rows, of.capacity().sequences));
    }
    return {.slots = 3, .workers = 1, .slot_bytes = bytes};
  }

  // `steps` batches in turn through a pipeline, each then used.
  template <class Use>
  static void steps_ahead(radixmlp::DeviceIndexPipeline<>& pipeline, const Builders& builders,
                          const std::vector<Case>& cases, std::size_t steps, const Use& use) {
    for (std::size_t submitted = 0, taken = 0; taken < steps; ++taken) {
      while (submitted < steps && pipeline.try_submit(cases[submitted % cases.size()].host.view())) {
        ++submitted;
      }
      const auto lease = pipeline.take(builders.stream());
      use(cases[taken % cases.size()], lease.view());
    }
  }

  static void check_steps_ahead(Builders& builders, const std::vector<Case>& cases) {
    radixmlp::DeviceIndexPipeline<> pipeline(pipeline_options(cases));
    steps_ahead(pipeline, builders, cases, cases.size() + 3,
                [&](const Case& of, const PrefixIndexView& index) { builders.check_equal("pipeline", of, index); });
  }

  // Microseconds a step, which ends when its compute has: of engines that build on the host before each compute, that
  // build ahead, and that build on the GPU. Medians of passes that take turns.
  static std::vector<double> step_us(Builders& builders, const std::vector<Case>& cases, double compute_us) {
    constexpr std::size_t passes = 9;
    constexpr std::size_t steps = 32;
    radixmlp::DeviceIndexPipeline<> pipeline(pipeline_options(cases));
    const auto finish = [&] {
      compute(builders.stream(), compute_us);
      builders.wait();
    };
    const std::vector<std::function<void()>> ways{
        [&] {
          for (std::size_t step = 0; step < steps; ++step) {
            static_cast<void>(builders.upload(builders.on_host(cases[step % cases.size()])));
            finish();
          }
        },
        [&] { steps_ahead(pipeline, builders, cases, steps, [&](const Case&, const PrefixIndexView&) { finish(); }); },
        [&] {
          for (std::size_t step = 0; step < steps; ++step) {
            static_cast<void>(builders.on_device(cases[step % cases.size()]));
            finish();
          }
        }};
    std::vector<std::vector<double>> samples(ways.size());
    for (std::size_t pass = 0; pass < passes; ++pass) {
      for (std::size_t way = 0; way < ways.size(); ++way) {
        const Clock::time_point start = Clock::now();
        ways[way]();
        samples[way].push_back(us_since(start) / static_cast<double>(steps));
      }
    }
    std::vector<double> medians;
    for (std::vector<double>& of_way : samples) {
      medians.push_back(median(std::move(of_way)));
    }
    return medians;
  }

  bool check_only_;
  Report report_;
  std::vector<double> over_host_, overlap_;
};

// Sequences that have their first tokens in common and no others.
Batch shared_batch(std::int32_t sequences, std::int32_t length, std::int32_t shared) {
  Batch batch;
  for (std::int32_t s = 0; s < sequences; ++s) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
    for (std::int32_t i = 0; i < length; ++i) {
      tokens[static_cast<std::size_t>(i)] = i < shared ? i : 1'000'000 + s * length + i;
    }
    batch.add(tokens);
  }
  return batch;
}

void compare_synthetic(Comparison& comparison, bool tiny) {
  struct Shape {
    std::int32_t sequences, length;
  };
  const std::vector<Shape> shapes = tiny
                                        ? std::vector<Shape>{{6, 200}, {300, 1}}
                                        : std::vector<Shape>{{256, 1}, {32, 512}, {256, 512}, {2048, 512}, {65'536, 1}};
  for (const auto& [sequences, length] : shapes) {
    for (const std::int32_t quarters : {0, 2}) {
      if (length > 1 || quarters == 0) {
        comparison.add(std::to_string(sequences) + "x" + std::to_string(length) + " shared 0." +
                           (quarters == 0 ? "00" : std::to_string(quarters * 25)),
                       {shared_batch(sequences, length, length * quarters / 4)});
      }
    }
  }
}

// Up to so many batches of a file's requests.
void compare_requests(Comparison& comparison, const std::filesystem::path& file, std::size_t budget, std::size_t most) {
  std::vector<Batch> all = batches(load_requests(file.string(), most * budget), budget);
  all.resize(std::min(all.size(), most));
  comparison.add(file.stem().string(), all);
}

int run(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  cudaDeviceProp device{};
  if (!find_device(options, device)) {
    return 77;
  }
  Comparison comparison(options.check_only, describe_device(argc, argv, device));
  compare_synthetic(comparison, options.check_only);

  // --data: a file of requests, or a folder of them.
  const std::filesystem::path data = options.data.empty() ? RADIXMLP_SAMPLE : options.data;
  std::vector<std::filesystem::path> files{data};
  if (std::filesystem::is_directory(data)) {
    files.clear();
    for (const auto& entry : std::filesystem::directory_iterator(data)) {
      if (entry.path().extension() == ".jsonl") {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
  }
  for (const std::filesystem::path& file : files) {
    for (const std::size_t budget :
         options.check_only ? std::vector<std::size_t>{1'000} : std::vector<std::size_t>{16'384, 65'536}) {
      compare_requests(comparison, file, budget, options.check_only ? 2 : 8);
    }
  }
  if (options.check_only) {
    std::printf("equal to the host's index: all of the above\n");
  } else {
    comparison.add_means();
  }
  comparison.result().write(options);
  return 0;
}

}  // namespace
}  // namespace radixmlp_bench

int main(int argc, char** argv) { return radixmlp_bench::report_errors(argc, argv, radixmlp_bench::run); }
