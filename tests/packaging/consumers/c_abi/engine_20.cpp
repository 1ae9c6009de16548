// SPDX-License-Identifier: MIT

// The headers and the C ABI in one program: an index built by one moves rows in the other.
#include <radixmlp/c/radixmlp.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "radixmlp/radixmlp.hpp"
#include "token_lines.h"

int main(int, char** argv) {
  token_lines lines;
  if (read_token_lines(argv[1], &lines) == 0) {
    return 1;
  }
  const auto rows = static_cast<std::size_t>(lines.cu_seqlens[lines.sequences]);
  radixmlp::PrefixTrie trie;
  const auto index = trie.build(radixmlp::RaggedBatch<std::int32_t>{
      .tokens = {lines.tokens, rows}, .cu_seqlens = {lines.cu_seqlens, static_cast<std::size_t>(lines.sequences) + 1}});
  radixmlp_index c{};
  c.size = sizeof c;
  c.gather = index.gather.data();
  c.scatter = index.scatter.data();
  c.ragged_rows = index.ragged_rows;
  c.compact_rows = index.compact_rows;
  c.padded_rows = index.padded_rows;
  std::vector<std::int32_t> compact(index.gather.size());
  const radixmlp_row_copy copy{{lines.tokens, index.ragged_rows, 4, 4}, {compact.data(), index.padded_rows, 4, 4}};
  radixmlp_status status;
  bool same = radixmlp_gather_rows(&c, &copy, 1, nullptr, &status) == RADIXMLP_OK;
  for (std::size_t i = 0; i < rows; ++i) {
    same = same && compact[static_cast<std::size_t>(index.scatter[i])] == lines.tokens[i];
  }
  free_token_lines(&lines);
  std::printf(same ? "N' = %d\n" : "rows differ, N is %d\n", index.compact_rows);
}
