// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "radixmlp/radixmlp.hpp"

// Not inline: consumers compile this with flags that differ, and each must run its own.
namespace {

// Whether the index of two sequences of `length` tokens is right that differ in the last one, and rows move by it.
[[maybe_unused]] bool shared_prefix_works(std::int32_t length) {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> scatter;
  for (std::int32_t s = 0; s < 2; ++s) {
    for (std::int32_t i = 0; i < length; ++i) {
      tokens.push_back(i + 1 < length ? i : 1000 + s);
      scatter.push_back(i + 1 < length ? i : length - 1 + s);
    }
  }
  const std::vector<std::int32_t> cu_seqlens{0, length, 2 * length};
  radixmlp::PrefixTrie trie;
  const radixmlp::PrefixIndexView index =
      trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = tokens, .cu_seqlens = cu_seqlens});
  std::vector<std::int32_t> compact(static_cast<std::size_t>(index.padded_rows));
  std::vector<std::int32_t> ragged(tokens.size());
  using Rows = radixmlp::RowView<std::int32_t, 1>;
  radixmlp::gather_rows(radixmlp::serial, index, Rows(tokens.data(), 2 * length),
                        Rows(compact.data(), index.padded_rows));
  radixmlp::scatter_rows(radixmlp::serial, index, Rows(compact.data(), index.padded_rows),
                         Rows(ragged.data(), 2 * length));
  return index.compact_rows == length + 1 && std::vector(index.scatter.begin(), index.scatter.end()) == scatter &&
         ragged == tokens;
}

}  // namespace
