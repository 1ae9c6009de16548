// SPDX-License-Identifier: MIT

// The CUDA engine's kernels against the reference in double. A plain kernel stands in for cuBLAS, so that the test
// runs in the emulator, too.

#include "engine/cuda_engine.cuh"

#include <cuda_fp16.h>

#include <cstdint>
#include <vector>

#include "engine/token_file.hpp"
#include "support/catch.hpp"
#include "support/skip.hpp"
#include "tests/reference_model.hpp"

namespace {

using namespace example;
using radixmlp::RowView;
using enum radixmlp::AttentionLayout;

template <class T>
__global__ void linear_kernel(DeviceRows<const T> x, const T* weight, float beta, DeviceRows<T> y,
                              std::int64_t inputs) {
  const T* const row = x.row(blockIdx.x);
  const T* const column = weight + threadIdx.x * inputs;
  float sum = 0;
  for (std::int64_t i = 0; i < inputs; ++i) {
    sum += float(row[i]) * float(column[i]);
  }
  T& target = y.row(blockIdx.x)[threadIdx.x];
  target = T(beta == 0 ? sum : sum + beta * float(target));
}

template <class T>
struct PlainGemm {
  cudaStream_t stream;

  void operator()(const RowView<const T>& x, const T* weight, float beta, const RowView<T>& y) const {
    linear_kernel<T><<<static_cast<unsigned>(y.rows()), static_cast<unsigned>(y.width()), 0, stream>>>(
        {x.data(), x.stride()}, weight, beta, {y.data(), y.stride()}, x.width());
    check(cudaGetLastError());
  }
};

// The hidden states of all rows, as the CUDA demo computes them.
template <class T>
std::vector<float> run_engine(const ModelConfig& config, const std::vector<LayerWeights>& weights,
                              const TokenBatch& batch, double max_ratio, std::int32_t pad_to,
                              radixmlp::AttentionLayout layout = ragged, std::int32_t group_keys = 0) {
  const cudaStream_t stream = nullptr;
  const CudaEngine<T, PlainGemm<T>> engine(config, stream, {stream}, 64);
  std::vector<DeviceLayer<T>> layers;
  for (const LayerWeights& layer : weights) {
    layers.emplace_back(layer);
  }
  radixmlp::PrefixTrie trie;
  const radixmlp::PrefixIndexView host_index = trie.build(batch.ragged(), {.pad_to = pad_to});
  const DeviceArray<std::byte> index_memory(host_index.block.size());
  const radixmlp::PrefixIndexView index = radixmlp::copy_to_device(stream, host_index, index_memory.span());
  const radixmlp::CompactionDecision decision =
      radixmlp::CompactionPolicy{.max_ratio = max_ratio}.decide(host_index, layout);
  const radixmlp::AttentionPlanOptions options{.group_keys = group_keys};
  std::vector<std::int32_t> host_plan_memory(radixmlp::attention_plan_entries(host_index, options));
  const radixmlp::AttentionPlan host_plan = radixmlp::attention_plan(host_index, host_plan_memory, options);
  const DeviceArray<std::int32_t> plan_memory({host_plan.block.begin(), host_plan.block.end()});
  const radixmlp::AttentionPlan plan = host_plan.relocated(plan_memory.data(), host_index, index);
  const DeviceArray<std::byte> workspace(
      radixmlp::CompactedBlock<T>::workspace_bytes(config.widths(), index, decision, plan));
  const radixmlp::CompactedBlock<T> block(index, config.widths(), workspace.span(), decision, plan);

  const DeviceArray<std::int32_t> all_tokens(batch.tokens), all_positions(batch.positions);
  const DeviceArray<std::int32_t> token_storage(batch.tokens.size() + 8), position_storage(batch.tokens.size() + 8);
  const auto select = [&](const DeviceArray<std::int32_t>& values, const DeviceArray<std::int32_t>& storage) {
    return block.select(stream, RowView<const std::int32_t>(values.data(), index.ragged_rows, 1),
                        RowView<std::int32_t>(storage.data(), block.rows(), 1));
  };
  const RowView<const std::int32_t> tokens = select(all_tokens, token_storage);
  const RowView<const std::int32_t> positions = select(all_positions, position_storage);
  const DeviceArray<T> hidden_memory(static_cast<std::size_t>(block.rows() * config.hidden));
  const RowView<T> hidden(hidden_memory.data(), block.rows(), config.hidden);
  engine.embed(tokens, hidden);
  for (const DeviceLayer<T>& layer : layers) {
    block.forward(
        stream, hidden,
        [&](const auto& x, const auto& q, const auto& k, const auto& v) {
          engine.pre_attention(layer, positions, x, q, k, v);
        },
        radixmlp::serving<ragged, compact_query, paged>(
            [&](const radixmlp::AttentionCall<T>& call) { engine.attention(call); }),
        [&](const auto& out, const auto& x) { engine.post_attention(layer, out, x); });
  }
  std::vector<T> output(static_cast<std::size_t>(index.ragged_rows * config.hidden));
  const DeviceArray<T> storage(output.size());
  const RowView<T> expanded =
      block.expand(stream, hidden, RowView<T>(storage.data(), index.ragged_rows, config.hidden));
  check(cudaMemcpy(output.data(), expanded.data(), storage.bytes(), cudaMemcpyDeviceToHost));
  return {output.begin(), output.end()};
}

}  // namespace

TEST_CASE("decoder layers on the device equal the reference in double, with and without compaction") {
  if (radixmlp_test::skip_without(has_gpu(), "a GPU")) {
    return;
  }
  const ModelConfig config{"test", 32, 4, 2, 32, 48};
  const std::vector<LayerWeights> weights{LayerWeights(config, 0), LayerWeights(config, 1)};
  TokenBatch batch;
  const std::vector<std::vector<std::int32_t>> requests{
      {}, {1, 2, 3, 4, 5, 6}, {1, 2, 3, 4, 9, 9}, {1, 2, 3}, {}, {1, 2, 3, 4, 5, 6}, {8}, {}};
  for (const auto& request : requests) {
    batch.append(request);
  }
  const reference::Rows expected = reference::forward(config, weights, batch);
  CHECK(reference::relative_difference(run_engine<float>(config, weights, batch, 0, 1), expected) <= 1e-5);
  CHECK(reference::relative_difference(run_engine<float>(config, weights, batch, 1, 1), expected) <= 1e-5);
  CHECK(reference::relative_difference(run_engine<float>(config, weights, batch, 1, 8), expected) <= 1e-5);
  for (const auto layout : {compact_query, paged}) {
    CHECK(reference::relative_difference(run_engine<float>(config, weights, batch, 1, 8, layout), expected) <= 1e-5);
  }
  CHECK(reference::relative_difference(run_engine<float>(config, weights, batch, 1, 8, compact_query, 7), expected) <=
        1e-5);
  CHECK(reference::relative_difference(run_engine<__half>(config, weights, batch, 1, 8), expected) <= 1e-2);
  CHECK(reference::relative_difference(run_engine<__half>(config, weights, batch, 1, 1, paged), expected) <= 1e-2);
}
