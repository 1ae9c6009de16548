// SPDX-License-Identifier: MIT

// A layer captured once in a CUDA graph and replayed for batch after batch, in both modes: the host builds the index
// and puts it into the captured memory, or the graph builds it from tokens that are on the device. The layer is a toy
// whose result a few lines on the host can check: a row becomes itself plus the mean of the rows that it sees.

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "engine/cuda_engine.cuh"
#include "radixmlp/cuda.cuh"
#include "radixmlp/index/device_index_builder.cuh"

namespace {

using example::check;
using example::DeviceArray;
using radixmlp::CompactedBlock;
using radixmlp::IndexCounts;
using radixmlp::PrefixIndexView;
using radixmlp::RowView;

constexpr std::int64_t width = 4;
constexpr std::size_t entries(std::int64_t count) { return static_cast<std::size_t>(count); }
constexpr radixmlp::AttentionWidths widths{width, width, width, width};

// The engine's kernels, a thread a row. Shapes are the capacity's; what of it is there, attention reads from the plan.
__global__ void embed_kernel(RowView<const std::int32_t> tokens, RowView<float> hidden) {
  for (std::int64_t i = threadIdx.x; i < hidden.rows(); i += blockDim.x) {
    for (std::int64_t c = 0; c < width; ++c) {
      hidden.row(i)[c] = static_cast<float>(*tokens.row(i) + c);
    }
  }
}
__global__ void project_kernel(RowView<const float> hidden, RowView<float> q, RowView<float> k, RowView<float> v) {
  for (std::int64_t i = threadIdx.x; i < hidden.rows(); i += blockDim.x) {
    for (std::int64_t c = 0; c < width; ++c) {
      q.row(i)[c] = k.row(i)[c] = v.row(i)[c] = hidden.row(i)[c];
    }
  }
}
__global__ void attention_kernel(RowView<const float> v, RowView<float> out, const std::int32_t* cu_q,
                                 const std::int32_t* cu_k, std::int32_t segments) {
  for (std::int32_t e = static_cast<std::int32_t>(threadIdx.x); e < segments;
       e += static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t queries = cu_q[e + 1] - cu_q[e], keys = cu_k[e + 1] - cu_k[e];
    for (std::int32_t i = 0; i < queries; ++i) {
      const std::int32_t seen = keys - queries + i + 1;
      for (std::int64_t c = 0; c < width; ++c) {
        float sum = 0;
        for (std::int32_t k = 0; k < seen; ++k) {
          sum += v.row(cu_k[e] + k)[c];
        }
        out.row(cu_q[e] + i)[c] = sum / static_cast<float>(seen);
      }
    }
  }
}
__global__ void update_kernel(RowView<const float> attention_out, RowView<float> hidden) {
  for (std::int64_t i = threadIdx.x; i < hidden.rows(); i += blockDim.x) {
    for (std::int64_t c = 0; c < width; ++c) {
      hidden.row(i)[c] += attention_out.row(i)[c];
    }
  }
}

struct Batch {
  std::vector<std::int32_t> tokens, cu_seqlens{0};

  explicit Batch(const std::vector<std::vector<std::int32_t>>& requests) {
    for (const auto& request : requests) {
      tokens.insert(tokens.end(), request.begin(), request.end());
      cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
    }
  }
  [[nodiscard]] radixmlp::RaggedBatch<std::int32_t> ragged() const {
    return {.tokens = tokens, .cu_seqlens = cu_seqlens};
  }
};

// The same in double, row by row; the largest difference.
double largest_difference(const Batch& batch, const std::vector<float>& rows) {
  double largest = 0;
  for (std::size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    double sum = 0;
    const std::int32_t begin = batch.cu_seqlens[s];
    for (std::int32_t i = begin; i < batch.cu_seqlens[s + 1]; ++i) {
      const double token = batch.tokens[static_cast<std::size_t>(i)];
      sum += token;
      for (std::int64_t c = 0; c < width; ++c) {
        const double expected = token + static_cast<double>(c) + sum / (i - begin + 1) + static_cast<double>(c);
        largest = std::fmax(largest, std::abs(rows[static_cast<std::size_t>(i * width + c)] - expected));
      }
    }
  }
  return largest;
}

// What the graph is captured for. Everything it touches is allocated once, at addresses that stay.
constexpr radixmlp::IndexCapacity capacity{.ragged_rows = 64, .compact_rows = 32, .sequences = 8, .max_seqlen = 16};

class CapturedLayer {
 public:
  CapturedLayer(cudaStream_t stream, bool builds_index) : stream_(stream) {
    // [capture]
    // IndexCapacity{.ragged_rows = 64, .compact_rows = 32, .sequences = 8, .max_seqlen = 16}, at an address that stays.
    index_ = radixmlp::empty_index(stream, capacity, index_memory_.span());
    // The plan is the index's own maps and constants: made once, good for every batch.
    const radixmlp::AttentionPlanOptions fixed{.keep_empty = true};
    std::vector<std::int32_t> host_memory(radixmlp::attention_plan_entries(index_, fixed));
    const radixmlp::AttentionPlan host_plan = radixmlp::attention_plan(index_, host_memory, fixed);
    check(cudaMemcpy(plan_memory_.data(), host_memory.data(), plan_memory_.bytes(), cudaMemcpyHostToDevice));
    const radixmlp::AttentionPlan plan = host_plan.relocated(plan_memory_.data(), index_, index_);

    const radixmlp::CompactionDecision decision{.compacts = true, .layout = radixmlp::AttentionLayout::compact_query};
    const CompactedBlock<float> block(index_, widths, workspace_.span(), decision, plan);
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    if (builds_index) {  // the first kernels of the graph; what it needs of the batch is on the device
      static_cast<void>(builder_.build(
          stream, radixmlp::RaggedBatch<std::int32_t>{.tokens = tokens.span(), .cu_seqlens = cu_seqlens.span()},
          index_memory_.span(), build_workspace_.span()));
    }
    enqueue(block);
    check(cudaStreamEndCapture(stream, &graph_));
    check(cudaGraphInstantiate(&executable_, graph_, 0));
    // [/capture]
  }
  ~CapturedLayer() {
    cudaGraphExecDestroy(executable_);
    cudaGraphDestroy(graph_);
  }
  CapturedLayer(const CapturedLayer&) = delete;
  CapturedLayer& operator=(const CapturedLayer&) = delete;

  // [host_known]
  // The host knows N': its index replaces the one in the captured memory. Raises InvalidBatch, with nothing enqueued,
  // where the batch does not fit. `staging` is pinned and must not change until the copy is done.
  void replay(const PrefixIndexView& host_index, std::span<std::byte> staging) {
    const PrefixIndexView staged = radixmlp::stage_index(host_index, capacity, staging);
    static_cast<void>(radixmlp::copy_to_device(stream_, staged, index_memory_.span()));
    check(cudaGraphLaunch(executable_, stream_));
  }
  // [/host_known]

  // [device_known]
  // The device knows N': the graph builds the index itself. `result`, in pinned memory, is there when the stream is.
  void replay(IndexCounts* result) {
    check(cudaGraphLaunch(executable_, stream_));
    radixmlp::query_counts(stream_, index_, result);
  }
  // N' and all else of the batch; raises InvalidBatch where it, or one since the last query, did not fit: then the row
  // moves of that batch wrote nothing.
  [[nodiscard]] PrefixIndexView batch_index(const IndexCounts& result) const {
    return radixmlp::filled_index(index_, result);
  }
  // [/device_known]

  // The graph's inputs and output.
  const DeviceArray<std::int32_t> tokens{entries(capacity.ragged_rows)};
  const DeviceArray<std::int32_t> cu_seqlens{entries(capacity.sequences + 1)};
  const DeviceArray<float> out{entries(capacity.ragged_rows * width)};

 private:
  void enqueue(const CompactedBlock<float>& block) const {
    constexpr unsigned threads = 64;
    const RowView<const std::int32_t> compact_tokens =
        block.select(stream_, RowView<const std::int32_t>(tokens.data(), capacity.ragged_rows, 1),
                     RowView<std::int32_t>(compact_tokens_.data(), capacity.compact_rows, 1));
    const RowView<float> hidden(hidden_.data(), block.rows(), width);
    embed_kernel<<<1, threads, 0, stream_>>>(compact_tokens, hidden);
    block.forward(
        stream_, hidden,
        [&](RowView<const float> h, RowView<float> q, RowView<float> k, RowView<float> v) {
          project_kernel<<<1, threads, 0, stream_>>>(h, q, k, v);
        },
        radixmlp::serving<radixmlp::AttentionLayout::compact_query>([&](const radixmlp::AttentionCall<float>& call) {
          attention_kernel<<<1, threads, 0, stream_>>>(call.v, call.out, call.plan.cu_seqlens_q.data(),
                                                       call.plan.cu_seqlens_k.data(), call.plan.segments());
        }),
        [&](RowView<const float> attention_out, RowView<float> h) {
          update_kernel<<<1, threads, 0, stream_>>>(attention_out, h);
        });
    block.expand(stream_, hidden, RowView<float>(out.data(), capacity.ragged_rows, width));
    check(cudaGetLastError());
  }

  cudaStream_t stream_;
  radixmlp::DeviceIndexBuilder builder_{capacity};
  DeviceArray<std::byte> index_memory_{radixmlp::index_bytes(capacity)};
  DeviceArray<std::byte> build_workspace_{builder_.workspace_bytes()};
  DeviceArray<std::byte> workspace_{
      CompactedBlock<float>::workspace_bytes(widths, capacity.ragged_rows, capacity.compact_rows,
                                             radixmlp::AttentionLayout::compact_query, capacity.ragged_rows)};
  DeviceArray<std::int32_t> plan_memory_{entries(3 * capacity.sequences)};
  DeviceArray<std::int32_t> compact_tokens_{entries(capacity.compact_rows)};
  DeviceArray<float> hidden_{entries(capacity.compact_rows * width)};
  PrefixIndexView index_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

std::vector<Batch> batches() {
  return {Batch({{1, 2, 3, 4, 5}, {1, 2, 3, 9}, {1, 2, 3}}), Batch({{7, 7, 7}, {}, {7, 7, 7}, {7, 7, 8}, {5}}),
          Batch({std::vector<std::int32_t>(16, 3), std::vector<std::int32_t>(16, 3), std::vector<std::int32_t>(9, 3)}),
          Batch({{1}, {2}, {3}, {4}, {5}, {6}, {7}, {1, 8}})};
}
// N' = 48
Batch too_large() {
  std::vector<std::int32_t> request;
  std::vector<std::vector<std::int32_t>> requests;
  for (std::int32_t i = 0; i < 48; ++i) {
    request.push_back(i);
    if (request.size() == 12) {
      requests.push_back(std::move(request));
      request.clear();
    }
  }
  return Batch(requests);
}

int run() {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  void* pinned = nullptr;
  check(cudaMallocHost(&pinned, radixmlp::index_bytes(capacity) + sizeof(IndexCounts)));
  const std::span<std::byte> staging(static_cast<std::byte*>(pinned), radixmlp::index_bytes(capacity));
  auto* const counts = reinterpret_cast<IndexCounts*>(static_cast<std::byte*>(pinned) + staging.size());
  int failures = 0;
  for (const bool builds_index : {false, true}) {
    CapturedLayer layer(stream, builds_index);
    radixmlp::PrefixTrie trie;
    std::vector<Batch> all = batches();
    all.push_back(too_large());
    all.push_back(all.front());
    for (const Batch& batch : all) {
      // The inputs at the size of the capacity: sequences behind the last are empty.
      std::vector<std::int32_t> tokens = batch.tokens, cu_seqlens = batch.cu_seqlens;
      tokens.resize(capacity.ragged_rows);
      cu_seqlens.resize(capacity.sequences + 1, cu_seqlens.back());
      check(cudaMemcpyAsync(layer.tokens.data(), tokens.data(), layer.tokens.bytes(), cudaMemcpyHostToDevice, stream));
      check(cudaMemcpyAsync(layer.cu_seqlens.data(), cu_seqlens.data(), layer.cu_seqlens.bytes(),
                            cudaMemcpyHostToDevice, stream));
      std::string refusal;
      std::int32_t compact_rows = 0;
      try {
        if (builds_index) {
          layer.replay(counts);
          check(cudaStreamSynchronize(stream));
          compact_rows = layer.batch_index(*counts).compact_rows;
        } else {
          const PrefixIndexView index = trie.build(batch.ragged());
          layer.replay(index, staging);
          compact_rows = index.compact_rows;
        }
      } catch (const radixmlp::InvalidBatch& error) {
        refusal = error.what();
      }
      std::vector<float> rows(entries(capacity.ragged_rows * width));
      check(cudaMemcpyAsync(rows.data(), layer.out.data(), layer.out.bytes(), cudaMemcpyDeviceToHost, stream));
      check(cudaStreamSynchronize(stream));
      if (!refusal.empty()) {
        std::printf("%s\n", refusal.c_str());
        failures += &batch != &all[all.size() - 2];
      } else {
        std::printf("N' = %d of N = %d\n", compact_rows, batch.cu_seqlens.back());
        failures += largest_difference(batch, rows) > 1e-5;
      }
    }
  }
  cudaFreeHost(pinned);
  cudaStreamDestroy(stream);
  std::printf("%s\n", failures == 0 ? "all as expected" : "WRONG");
  return failures;
}

}  // namespace

int main() {
  if (!example::has_gpu()) {
    std::puts("skipped: no GPU");
    return 77;
  }
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
