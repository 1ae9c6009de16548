// SPDX-License-Identifier: MIT

// The index of a batch of three sequences: two share their first three tokens, the third is a copy of the first.
#include <array>
#include <cstdint>
#include <cstdio>

#include "radixmlp/radixmlp.hpp"

int main() {
  // [readme]
  const std::array<std::int32_t, 13> tokens{7, 8, 9, 1, 2, /**/ 7, 8, 9, /**/ 7, 8, 9, 1, 2};  // N = 13 rows
  const std::array<std::int32_t, 4> cu_seqlens{0, 5, 8, 13};                                   // B = 3 sequences

  radixmlp::PrefixTrie trie;
  const auto index = trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = tokens, .cu_seqlens = cu_seqlens});

  std::printf("N' = %d of N = %d rows, gamma = %.3f\n", index.compact_rows, index.ragged_rows, index.ratio());
  for (const std::int32_t row : index.scatter) {
    std::printf("%d ", row);  // the compact row that each ragged row reads
  }
  // [/readme]
  std::printf("\n");
}
