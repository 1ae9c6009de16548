// SPDX-License-Identifier: MIT
// [pytorch]
#include <torch/extension.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "radixmlp/radixmlp.hpp"

// prefix_maps(tokens, cu_seqlens) -> (gather, scatter): int32 on the CPU, for index_select on any device.
std::pair<torch::Tensor, torch::Tensor> prefix_maps(const torch::Tensor& tokens, const torch::Tensor& cu_seqlens) {
  const auto span_of = [](const torch::Tensor& tensor) {
    TORCH_CHECK(tensor.device().is_cpu() && tensor.scalar_type() == torch::kInt32 && tensor.is_contiguous(),
                "radixmlp: a contiguous int32 tensor on the CPU");
    return std::span<const std::int32_t>(tensor.data_ptr<std::int32_t>(), static_cast<std::size_t>(tensor.numel()));
  };
  thread_local radixmlp::PrefixTrie trie;
  const radixmlp::PrefixIndexView maps =
      trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = span_of(tokens), .cu_seqlens = span_of(cu_seqlens)});
  const auto tensor_of = [](std::span<const std::int32_t> map) {  // a copy: the trie's memory is the next batch's
    torch::Tensor tensor = torch::empty(static_cast<std::int64_t>(map.size()), torch::kInt32);
    std::copy(map.begin(), map.end(), tensor.data_ptr<std::int32_t>());
    return tensor;
  };
  return {tensor_of(maps.gather), tensor_of(maps.scatter)};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) { module.def("prefix_maps", &prefix_maps); }
// [/pytorch]

#include "toy.hpp"

int main() {
  const auto [gather, scatter] = prefix_maps(torch::Tensor(toy::tokens), torch::Tensor(toy::cu_seqlens));
  const std::int32_t expected_gather[]{0, 1, 2, 3, 4, 8, 13};
  const std::int32_t expected_scatter[]{0, 1, 2, 3, 4, 0, 1, 2, 5, 0, 1, 2, 5, 6};
  bool refused = false;
  try {
    static_cast<void>(prefix_maps(torch::Tensor(toy::tokens), torch::Tensor(std::vector<std::int32_t>{0, 99})));
  } catch (const radixmlp::InvalidBatch& error) {
    refused = error.index() == 1;
  }
  return std::equal(std::begin(expected_gather), std::end(expected_gather), gather.data_ptr<std::int32_t>()) &&
                 std::equal(std::begin(expected_scatter), std::end(expected_scatter),
                            scatter.data_ptr<std::int32_t>()) &&
                 gather.numel() == 7 && scatter.numel() == 14 && refused
             ? 0
             : 1;
}
