// SPDX-License-Identifier: MIT
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "support/device_backend.cuh"

using Backend = radixmlp_test::DeviceBackend;
using Fp32 = float;
using Fp16 = __half;
using HalfType = __half;
using BrainType = __nv_bfloat16;

#include "rows/row_lists_cases.hpp"

namespace {

std::size_t nodes_of(const std::function<void(cudaStream_t)>& calls) {
  cudaStream_t stream = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  calls(stream);
  cudaGraph_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream, &graph));
  std::size_t nodes = 0;
  check_cuda(cudaGraphGetNodes(graph, nullptr, &nodes));
  std::vector<cudaGraphNode_t> all(nodes);
  check_cuda(cudaGraphGetNodes(graph, all.data(), &nodes));
  for (const cudaGraphNode_t node : all) {
    cudaGraphNodeType type{};
    check_cuda(cudaGraphNodeGetType(node, &type));
    CHECK(type == cudaGraphNodeTypeKernel);
  }
  check_cuda(cudaGraphDestroy(graph));
  check_cuda(cudaStreamDestroy(stream));
  return nodes;
}

}  // namespace

TEST_CASE(
    "bug class 10: everything goes to the caller's stream; a captured graph holds one kernel a call, and no other "
    "node") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  const Backend::Index index(maps.host);
  const std::int64_t n = maps.ragged_rows, padded = maps.expected.padded_rows;
  Backend::Array<float> q(std::vector<float>(static_cast<std::size_t>(n * 96))),
      other(std::vector<float>(static_cast<std::size_t>(n * 96)));
  Backend::Array<std::int64_t> slots(std::vector<std::int64_t>(static_cast<std::size_t>(n), 0));
  Backend::Array<RowRun> runs(std::vector<RowRun>(1, RowRun{0, 0, 2}));
  const TestLists lists({3, 65, 0, 1});
  ListsThere there(lists);
  const auto copy = [&](std::int64_t source_rows, std::int64_t target_rows, std::int64_t width) {
    return RowCopy{RowView<const float>(q.data(), source_rows, width),
                   RowView<float>(other.data(), target_rows, width)};
  };
  CHECK(nodes_of([&](cudaStream_t stream) { gather_rows(stream, index.view(), copy(n, padded, 64)); }) == 1);
  CHECK(nodes_of([&](cudaStream_t stream) {
          scatter_rows(stream, index.view(), copy(padded, n, 64), copy(padded, n, 16), copy(padded, n, 5));
        }) == 1);
  CHECK(nodes_of([&](cudaStream_t stream) {
          scatter_to_slots(stream, index.view(),
                           std::span<const std::int64_t>(slots.data(), static_cast<std::size_t>(n)),
                           copy(padded, n, 64), copy(padded, n, 32));
        }) == 1);
  CHECK(nodes_of([&](cudaStream_t stream) {
          copy_runs(stream, RowRuns{{runs.data(), 1}, n, n}, copy(n, n, 64), copy(n, n, 2));
        }) == 1);
  CHECK(nodes_of([&](cudaStream_t stream) {
          multicast_rows(stream, there.view,
                         RowCopy{RowView<const float>(q.data(), 4, 8), RowView<float>(other.data(), 69, 8)});
        }) == 1);
  Backend::Array<float> workspace(std::vector<float>(64));
  const auto sum = [&](std::int64_t longest) {
    return nodes_of([&](cudaStream_t stream) {
      sum_duplicates(stream, there.view, RowView<const float>(q.data(), 69, 8), RowView<float>(other.data(), 4, 8),
                     std::span<float>(workspace.data(), 64), longest);
    });
  };
  CHECK(sum(64) == 1);
  CHECK(sum(65) == 2);
}

TEST_CASE("strides of 2 GiB and more are refused on the device, where offsets within a row are 32 bits") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr std::int64_t far = std::int64_t{1} << 29;  // floats
  Backend backend;
  Backend::Array<float> rows(std::vector<float>(8));
  Backend::Array<std::int32_t> map(std::vector<std::int32_t>{0});
  const auto call = [&](std::int64_t source_stride, std::int64_t target_stride) {
    const RowCopy copy{RowView<const float>(rows.data(), 1, 4, source_stride),
                       RowView<float>(rows.data() + 4, 1, 4, target_stride)};
    map_rows(backend.where(), RowMap{{map.data(), 1}, 1, 1}, copy);
    backend.synchronize();
  };
  check_refused<InvalidRows>("stride", 0, 4 * far, [&] { call(far, 4); });
  check_refused<InvalidRows>("stride", 0, 4 * far, [&] { call(4, far); });
  CHECK_NOTHROW(call(far - 1, far - 1));
}

TEST_CASE("a captured graph serves every count up to its capacity") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr std::int32_t capacity = 90;
  const auto source = random_values<float>(20 * 33, 1);
  std::vector<std::int32_t> map;
  for (std::int32_t i = 0; i < capacity; ++i) {
    map.push_back(i * 7 % 20);
  }
  Backend backend;
  Backend::Array<float> from(source), to(std::vector<float>(100 * 33));
  Backend::Array<std::int32_t> map_there(map), count(std::vector<std::int32_t>{0});
  check_cuda(cudaStreamBeginCapture(backend.where(), cudaStreamCaptureModeGlobal));
  map_rows(backend.where(), RowMap{{map_there.data(), map.size()}, 20, 100, count.data()},
           RowCopy{RowView<const float>(from.data(), 20, 33), RowView<float>(to.data(), 100, 33)});
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;
  check_cuda(cudaStreamEndCapture(backend.where(), &graph));
  check_cuda(cudaGraphInstantiate(&instance, graph, 0));
  for (const std::int32_t rows : {90, 0, 41, 1}) {
    check_cuda(cudaMemcpy(count.data(), &rows, sizeof rows, cudaMemcpyHostToDevice));
    check_cuda(cudaGraphLaunch(instance, backend.where()));
    backend.synchronize();
    std::vector<float> expected(100 * 33);
    for (std::int32_t i = 0; i < rows; ++i) {
      std::copy_n(source.begin() + map[static_cast<std::size_t>(i)] * 33, 33, expected.begin() + i * 33);
    }
    CHECK(same_bytes(to.download(), expected));
  }
  check_cuda(cudaGraphExecDestroy(instance));
  check_cuda(cudaGraphDestroy(graph));
}
