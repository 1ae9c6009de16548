// SPDX-License-Identifier: MIT
#include "radixmlp/index/device_index_builder.cuh"
#include "support/device_backend.cuh"

using Backend = radixmlp_test::DeviceBackend;

class Builder {
 public:
  explicit Builder(const radixmlp::IndexCapacity& capacity)
      : builder_(capacity), workspace_(std::vector<std::byte>(builder_.workspace_bytes())) {}

  void build(const Backend& backend, const radixmlp::RaggedBatch<std::int32_t>& batch, std::span<std::byte> memory) {
    static_cast<void>(builder_.build(backend.where(), batch, memory, {workspace_.data(), builder_.workspace_bytes()}));
  }

 private:
  radixmlp::DeviceIndexBuilder builder_;
  Backend::Array<std::byte> workspace_;
};

#include "block/block_cases.hpp"
#include "block/capacity_cases.hpp"

TEST_CASE("a layer can be captured in a graph and holds exactly its own launches") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Case batch(half_shared());
  const PrefixIndexView& index = batch.index->view();
  const std::int64_t n = batch.ragged_rows;
  Backend backend;
  Workspace workspace(CompactedBlock<float>::workspace_bytes(widths, index));
  const CompactedBlock<float> block(index, widths, workspace.span);
  typename Backend::template Array<float> ragged(batch.hidden), compact(batch.hidden), expanded(batch.hidden);
  typename Backend::template Array<std::int32_t> positions(batch.positions), compact_positions(batch.positions);

  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamBeginCapture(backend.where(), cudaStreamCaptureModeGlobal));
  const RowView<float> state = block.select(backend.where(), RowView<float>(ragged.data(), n, hidden_width),
                                            RowView<float>(compact.data(), block.rows(), hidden_width));
  const RowView<const std::int32_t> state_positions =
      block.select(backend.where(), RowView<const std::int32_t>(positions.data(), n, 1),
                   RowView<std::int32_t>(compact_positions.data(), block.rows(), 1));
  block.forward(
      backend.where(), state,
      [&](RowView<const float> h, RowView<float> q, RowView<float> k, RowView<float> v) {
        backend.for_each(h.rows(), Project{h, state_positions, q, k, v});
      },
      [&](const AttentionCall<float>& call) {
        backend.for_each(n, Attend{call, index.sequences()});
      },
      [&](RowView<const float> out, RowView<float> h) {
        backend.for_each(h.rows(), Update{out, h});
      });
  block.expand(backend.where(), state, RowView<float>(expanded.data(), n, hidden_width));
  check_cuda(cudaStreamEndCapture(backend.where(), &graph));

  std::size_t nodes = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &nodes));
  // select twice, project, scatter QKV, attend, gather the output, update, expand: no copy, no memset, nothing hidden.
  CHECK(nodes == 8);
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaGraphInstantiate(&executable, graph, 0));
  check_cuda(cudaGraphLaunch(executable, backend.where()));
  backend.synchronize();
  CHECK(same_bits(expanded.download(), batch.reference(1)));
  check_cuda(cudaGraphExecDestroy(executable));
  check_cuda(cudaGraphDestroy(graph));
}

TEST_CASE("a layer that reads compact rows launches less: nothing moves but K and V, or nothing at all") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Case batch(half_shared());
  const PrefixIndexView& index = batch.index->view();
  // In groups the first sequence's keys lie as they are needed, and attention runs twice.
  for (const auto& [layout, group_keys, launches] :
       {std::tuple{compact_query, 0, 4}, std::tuple{compact_query, 3, 5}, std::tuple{paged, 0, 3}}) {
    const BackendPlan<Backend> planned(batch.host_index, *batch.index, {.group_keys = group_keys});
    const auto decision = always.decide(index, layout);
    Backend backend;
    Workspace workspace(CompactedBlock<float>::workspace_bytes(widths, index, decision, planned.plan));
    const CompactedBlock<float> block(index, widths, workspace.span, decision, planned.plan);
    typename Backend::template Array<float> hidden(std::vector<float>(5 * hidden_width));
    typename Backend::template Array<std::int32_t> positions(std::vector<std::int32_t>(5));
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(backend.where(), cudaStreamCaptureModeGlobal));
    block.forward(
        backend.where(), RowView<float>(hidden.data(), 5, hidden_width),
        [&](RowView<const float> h, RowView<float> q, RowView<float> k, RowView<float> v) {
          backend.for_each(h.rows(), Project{h, {positions.data(), 5, 1}, q, k, v});
        },
        serving<compact_query, paged>(
            [&](const AttentionCall<float>& call) { backend.for_each(call.q.rows(), AttendByPlan(call)); }),
        [&](RowView<const float> out, RowView<float> h) {
          backend.for_each(h.rows(), Update{out, h});
        });
    check_cuda(cudaStreamEndCapture(backend.where(), &graph));
    std::size_t nodes = 0;
    check_cuda(cudaGraphGetNodes(graph, nullptr, &nodes));
    CHECK(nodes == static_cast<std::size_t>(launches));
    check_cuda(cudaGraphDestroy(graph));
  }
}

TEST_CASE("the mean of a sequence's rows on a stream is the host's, from compact space and from ragged rows") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr std::int64_t width = 36;
  std::vector<std::vector<std::int32_t>> sequences{{1, 2, 3}, {}, {1, 2, 4, 5}, {}, {7}};
  sequences[3].resize(150);  // longer than a piece of a sum
  std::iota(sequences[3].begin(), sequences[3].end(), 1);
  const TypedBatch<std::int32_t> typed(spec_of(sequences));
  radixmlp::PrefixTrie trie;
  const PrefixIndexView host_index = trie.build(typed.batch());
  const Backend::Index index(host_index);
  const auto sums =
      static_cast<std::int64_t>(radixmlp::sum_workspace_floats(host_index.ragged_rows, host_index.max_seqlen, width));
  for (const double max_ratio : {1.0, 0.0}) {
    const CompactionPolicy policy{.max_ratio = max_ratio};
    Workspace memory(CompactedBlock<float>::workspace_bytes({}, host_index, policy));
    const CompactedBlock<float> block(index.view(), {}, memory.span, policy);
    const CompactedBlock<float> host_block(host_index, {}, {}, policy);
    std::vector<float> rows(static_cast<std::size_t>(block.rows() * width));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      rows[i] = static_cast<float>(i * 2654435761 % 1000) - 500.0F;
    }
    std::vector<float> expected(5 * width);
    host_block.mean(radixmlp::serial, RowView<const float>(rows.data(), block.rows(), width),
                    RowView<float>(expected.data(), 5, width));
    Backend backend;
    Backend::Array<float> rows_there(rows), out(std::vector<float>(5 * width, 1e9F));
    Backend::Array<float> workspace(std::vector<float>(static_cast<std::size_t>(sums)));
    const RowView<const float> from(rows_there.data(), block.rows(), width);
    const RowView<float> to(out.data(), 5, width);
    block.mean(backend.where(), from, to, std::span<float>(workspace.data(), static_cast<std::size_t>(sums)));
    backend.synchronize();
    const std::vector<float> actual = out.download();
    for (std::size_t i = 0; i < actual.size(); ++i) {
      CHECK(std::abs(actual[i] - expected[i]) <= 1e-4F * (1 + std::abs(expected[i])));
    }
    CHECK_THROWS_WITH(block.mean(backend.where(), from, to, {}),
                      "radixmlp: workspace = 0: its floats must be at least " + std::to_string(sums));
    CHECK_THROWS_WITH(block.mean(backend.where(), from, to.first_rows(4), std::span<float>(workspace.data(), 1)),
                      Catch::Contains("must be at least 5"));
  }
}
