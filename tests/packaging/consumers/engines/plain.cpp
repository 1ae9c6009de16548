// SPDX-License-Identifier: MIT
#include <cstdint>
#include <vector>

#include "radixmlp/radixmlp.hpp"
#include "toy.hpp"

// [plain]
// Position-wise work on N' rows instead of N, by a function that knows nothing of it.
template <class Work>
void on_distinct_rows(const radixmlp::PrefixIndexView& index, std::vector<float>& rows, std::int64_t width,
                      const Work& work) {
  const std::int64_t n = index.ragged_rows;
  std::vector<float> memory(static_cast<std::size_t>(index.padded_rows * width));
  const radixmlp::RowView<float> ragged(rows.data(), n, width);
  const radixmlp::RowView<float> compact(memory.data(), index.padded_rows, width);
  radixmlp::gather_rows(radixmlp::serial, index, ragged, compact);
  for (std::int64_t j = 0; j < index.compact_rows; ++j) {
    work(compact.row(j));
  }
  radixmlp::scatter_rows(radixmlp::serial, index, compact, ragged);
}
// [/plain]

int main() {
  radixmlp::PrefixTrie trie;
  const auto index =
      trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = toy::tokens, .cu_seqlens = toy::cu_seqlens});
  std::vector<float> rows = toy::embed(toy::tokens);
  std::vector<float> expected = rows;
  for (float& value : expected) {
    value = 2 * value + 1;
  }
  int calls = 0;
  on_distinct_rows(index, rows, toy::width, [&](float* row) {
    ++calls;
    for (std::int64_t c = 0; c < toy::width; ++c) {
      row[c] = 2 * row[c] + 1;
    }
  });
  return calls == 7 && rows == expected ? 0 : 1;
}
