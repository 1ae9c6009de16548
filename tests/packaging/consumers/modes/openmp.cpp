// SPDX-License-Identifier: MIT
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "radixmlp/executor_openmp.hpp"
#include "radixmlp/radixmlp.hpp"

static_assert(radixmlp::HostExecutor<radixmlp::OpenMpExecutor>);

int main() {
  constexpr radixmlp::OpenMpExecutor executor;

  // Every index once, and by all three threads: each waits for the others.
  std::array<std::atomic<int>, 3> calls{};
  std::atomic<int> threads = 0;
  executor.parallel_for(3, [&](std::int64_t i) {
    ++calls[static_cast<std::size_t>(i)];
    ++threads;
    while (omp_get_num_threads() == 3 && threads < 3) {
    }
  });
  if (threads != 3 || !std::all_of(calls.begin(), calls.end(), [](const auto& count) { return count == 1; })) {
    return 1;
  }
  executor.parallel_for(0, [&](std::int64_t) { ++threads; });
  if (threads != 3) {
    return 2;
  }

  // The index of the calling thread alone.
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> cu_seqlens{0};
  for (std::int32_t s = 0; s < 300; ++s) {
    for (std::int32_t i = 0; i < 700; ++i) {
      tokens.push_back(i < 100 * (s % 7) ? i : 1000 * s + i);
    }
    cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
  }
  const radixmlp::RaggedBatch<std::int32_t> batch{.tokens = tokens, .cu_seqlens = cu_seqlens};
  radixmlp::PrefixTrie trie;
  radixmlp::PrefixTrie parallel_trie;
  const radixmlp::PrefixIndexView expected = trie.build(batch);
  const radixmlp::PrefixIndexView index = parallel_trie.build(batch, {}, executor);
  return index.compact_rows == expected.compact_rows && index.compact_rows < index.ragged_rows &&
                 std::ranges::equal(index.block, expected.block)
             ? 0
             : 3;
}
