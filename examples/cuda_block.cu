// SPDX-License-Identifier: MIT

// The demo on a GPU: decoder layers with cuBLAS on one stream, with and without compaction. Everything that compaction
// takes is in `forward`; the engine (engine/cuda_engine.cuh) does not know of it.

#include <cublas_v2.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/cuda_engine.cuh"
#include "engine/demo_report.hpp"

namespace {

using namespace example;
using radixmlp::RowView;
using enum radixmlp::AttentionLayout;

void check(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw std::runtime_error(std::string("cuBLAS: ") + cublasGetStatusString(status));
  }
}

class CublasHandle {
 public:
  explicit CublasHandle(cudaStream_t stream) {
    check(cublasCreate(&handle_));
    check(cublasSetStream(handle_, stream));
  }
  ~CublasHandle() { cublasDestroy(handle_); }
  CublasHandle(const CublasHandle&) = delete;
  CublasHandle& operator=(const CublasHandle&) = delete;
  operator cublasHandle_t() const { return handle_; }

 private:
  cublasHandle_t handle_ = nullptr;
};

// The engine's Gemm. cuBLAS is column-major, so it computes y^T = weight * x^T.
template <class T>
struct CublasGemm {
  cublasHandle_t handle;

  void operator()(const RowView<const T>& x, const T* weight, float beta, const RowView<T>& y) const {
    constexpr cudaDataType type = std::is_same_v<T, float> ? CUDA_R_32F : CUDA_R_16F;
    const float alpha = 1;
    check(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(y.width()), static_cast<int>(y.rows()),
                       static_cast<int>(x.width()), &alpha, weight, type, static_cast<int>(x.width()), x.data(), type,
                       static_cast<int>(x.stride()), &beta, y.data(), type, static_cast<int>(y.stride()),
                       CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  }
};

class Stream {
 public:
  Stream() { example::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  [[nodiscard]] cudaStream_t get() const { return stream_; }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { example::check(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) const { example::check(cudaEventRecord(event_, stream)); }
  [[nodiscard]] double seconds_until(const Event& end) const {
    float milliseconds = 0;
    example::check(cudaEventElapsedTime(&milliseconds, event_, end.event_));
    return 1e-3 * milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// What one way of computing a batch keeps in device memory.
template <class T>
struct Activations {
  // After the last layer the hidden states of all N rows go into the workspace, too.
  Activations(const ModelConfig& config, const radixmlp::PrefixIndexView& index,
              const radixmlp::CompactionDecision& decision, const radixmlp::AttentionPlan& plan)
      : rows(decision.compacts ? index.padded_rows : index.ragged_rows),
        hidden(static_cast<std::size_t>(rows * config.hidden)),
        workspace(std::max(radixmlp::CompactedBlock<T>::workspace_bytes(config.widths(), index, decision, plan),
                           static_cast<std::size_t>(index.ragged_rows * config.hidden) * sizeof(T))),
        tokens(decision.compacts ? static_cast<std::size_t>(rows) : 0),
        positions(decision.compacts ? static_cast<std::size_t>(rows) : 0) {}

  [[nodiscard]] std::size_t bytes() const noexcept {
    return hidden.bytes() + workspace.bytes() + tokens.bytes() + positions.bytes();
  }

  std::int64_t rows;
  DeviceArray<T> hidden;
  DeviceArray<std::byte> workspace;
  DeviceArray<std::int32_t> tokens, positions;
};

template <class T>
class Demo {
 public:
  Demo(const ModelConfig& config, std::int64_t layers, std::int64_t longest)
      : config_(config),
        cublas_(stream_),
        engine_(config, stream_, {cublas_}, longest),
        attention_begins_(static_cast<std::size_t>(layers)),
        attention_ends_(static_cast<std::size_t>(layers)) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      layers_.emplace_back(LayerWeights(config, static_cast<std::uint32_t>(layer)));
    }
  }

  [[nodiscard]] BatchResult run(const TokenBatch& batch, const DemoOptions& options) {
    const radixmlp::PrefixIndexView host_index = trie_.build(batch.ragged());
    const DeviceArray<std::byte> index_memory(host_index.block.size());
    const radixmlp::PrefixIndexView index = radixmlp::copy_to_device(stream_, host_index, index_memory.span());
    const radixmlp::CompactionDecision never = radixmlp::CompactionPolicy{.max_ratio = 0}.decide(index);
    const radixmlp::CompactionDecision decision =
        radixmlp::CompactionPolicy{.max_ratio = options.max_ratio}.decide(host_index, options.layout);
    std::vector<std::int32_t> host_plan_memory(radixmlp::attention_plan_entries(host_index));
    const radixmlp::AttentionPlan host_plan = radixmlp::attention_plan(host_index, host_plan_memory);
    const DeviceArray<std::int32_t> plan_memory({host_plan.block.begin(), host_plan.block.end()});
    const radixmlp::AttentionPlan plan = host_plan.relocated(plan_memory.data(), host_index, index);
    const DeviceArray<std::int32_t> tokens(batch.tokens), positions(batch.positions);
    const Activations<T> without(config_, index, never, plan);
    const Activations<T> with(config_, index, decision, plan);
    const Block block_without(index, config_.widths(), without.workspace.span(), never);
    const Block block_with(index, config_.widths(), with.workspace.span(), decision, plan);
    std::fprintf(stderr, "batch of %d sequences, N = %d, N' = %d, activations %.1f GB and %.1f GB\n", index.sequences(),
                 index.ragged_rows, index.compact_rows, 1e-9 * static_cast<double>(without.bytes()),
                 1e-9 * static_cast<double>(with.bytes()));

    BatchResult result;
    RowView<T> expected, actual;
    measure_in_turn(
        1, options.repeat, [&] { return forward(block_without, tokens, positions, without, expected); },
        [&] { return forward(block_with, tokens, positions, with, actual); }, result);
    result.sequences = index.sequences();
    result.ragged_rows = index.ragged_rows;
    result.compact_rows = index.compact_rows;
    result.compacts = block_with.compacts();
    const radixmlp::IndexStats stats = radixmlp::index_stats(host_index);
    result.attention_pairs = stats.attention_pairs;
    result.computed_pairs = block_with.layout() == ragged ? stats.attention_pairs : stats.compact_attention_pairs;
    result.index_seconds = measure_index_build(batch);
    result.without.activation_bytes = without.bytes() + engine_.scratch_bytes();
    result.with.activation_bytes = with.bytes() + engine_.scratch_bytes();
    compare(download(expected), download(actual), result);
    return result;
  }

 private:
  using Block = radixmlp::CompactedBlock<T>;

  // Token ids in, the hidden states of all N rows out, in `output`. Between the first and the last event nothing is
  // allocated and nothing waits.
  PassTime forward(const Block& block, const DeviceArray<std::int32_t>& all_tokens,
                   const DeviceArray<std::int32_t>& all_positions, const Activations<T>& memory, RowView<T>& output) {
    const auto all_rows = static_cast<std::int64_t>(all_tokens.span().size());
    begin_.record(stream_);
    const auto select = [&](const DeviceArray<std::int32_t>& values, const DeviceArray<std::int32_t>& storage) {
      return block.select(stream_.get(), RowView<const std::int32_t>(values.data(), all_rows, 1),
                          RowView<std::int32_t>(storage.data(), memory.rows, 1));
    };
    const RowView<const std::int32_t> tokens = select(all_tokens, memory.tokens);
    const RowView<const std::int32_t> positions = select(all_positions, memory.positions);
    const RowView<T> hidden(memory.hidden.data(), memory.rows, config_.hidden);
    engine_.embed(tokens, hidden);
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      block.forward(
          stream_.get(), hidden,
          [&](const auto& x, const auto& q, const auto& k, const auto& v) {
            engine_.pre_attention(layers_[l], positions, x, q, k, v);
          },
          radixmlp::serving<ragged, compact_query, paged>([&](const radixmlp::AttentionCall<T>& call) {
            attention_begins_[l].record(stream_);
            engine_.attention(call);
            attention_ends_[l].record(stream_);
          }),
          [&](const auto& attention_out, const auto& x) { engine_.post_attention(layers_[l], attention_out, x); });
    }
    // After the last layer the workspace is free, so the rows of all tokens go there.
    const RowView<T> storage(reinterpret_cast<T*>(memory.workspace.data()), all_rows, config_.hidden);
    output = block.expand(stream_.get(), hidden, storage);
    end_.record(stream_);
    example::check(cudaStreamSynchronize(stream_));

    PassTime time{.total = begin_.seconds_until(end_)};
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      time.attention += attention_begins_[l].seconds_until(attention_ends_[l]);
    }
    return time;
  }

  [[nodiscard]] static std::vector<float> download(const RowView<T>& rows) {
    std::vector<T> values(static_cast<std::size_t>(rows.rows() * rows.width()));
    example::check(cudaMemcpy(values.data(), rows.data(), values.size() * sizeof(T), cudaMemcpyDeviceToHost));
    std::vector<float> floats;
    floats.reserve(values.size());
    for (const T value : values) {
      floats.push_back(float(value));
    }
    return floats;
  }

  ModelConfig config_;
  Stream stream_;
  CublasHandle cublas_;
  CudaEngine<T, CublasGemm<T>> engine_;
  std::vector<DeviceLayer<T>> layers_;
  radixmlp::PrefixTrie trie_;
  Event begin_, end_;
  std::vector<Event> attention_begins_, attention_ends_;
};

// `tolerance`: what another number of rows may change in the products, relative to the largest value.
template <class T>
int run(const DemoOptions& options, double tolerance) {
  const ModelConfig& config = find_preset(options.preset);
  const std::vector<TokenBatch> batches = read_token_file(options.file, options.batch_tokens);
  std::int32_t longest = 0;
  for (const TokenBatch& batch : batches) {
    longest = std::max(longest, *std::ranges::max_element(batch.positions) + 1);
  }
  std::fprintf(stderr, "making random weights: %s x %lld\n", options.preset.c_str(),
               static_cast<long long>(options.layers));
  Demo<T> demo(config, options.layers, longest);
  std::vector<BatchResult> results;
  for (const TokenBatch& batch : batches) {
    results.push_back(demo.run(batch, options));
  }
  cudaDeviceProp properties{};
  example::check(cudaGetDeviceProperties(&properties, 0));
  return report(options, std::string(properties.name) + ", " + options.precision, results, tolerance);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const DemoOptions options = parse_options(argc, argv, 10);
    if (options.calibrate || options.cpu_time) {
      throw std::invalid_argument("--calibrate and --cpu-time are for the CPU engine (radixmlp_demo)");
    }
    if (!has_gpu()) {
      std::printf("skipped: no GPU\n");
      return 77;
    }
    return options.precision == "fp32" ? run<float>(options, 1e-4) : run<__half>(options, 1e-2);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "radixmlp_cuda_demo: %s\n", error.what());
    return 2;
  }
}
