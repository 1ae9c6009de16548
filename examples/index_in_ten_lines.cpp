// SPDX-License-Identifier: MIT

// The index of the batch in the README's picture.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "radixmlp/radixmlp.hpp"

int main() {
  // [readme]
  const std::vector<std::int32_t> tokens{7, 8, 9, 1, 2, /**/ 7, 8, 9, 4, /**/ 7, 8, 9, 4, 5};  // N = 14 rows
  const std::vector<std::int32_t> cu_seqlens{0, 5, 9, 14};                                     // B = 3 sequences

  radixmlp::PrefixTrie trie;
  const auto index = trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = tokens, .cu_seqlens = cu_seqlens});

  std::printf("N' = %d of N = %d rows, gamma = %.3f\n", index.compact_rows, index.ragged_rows, index.ratio());
  for (const std::int32_t row : index.scatter) {
    std::printf("%d ", row);  // the compact row that each ragged row reads
  }
  // [/readme]
  std::printf("\n");
}
