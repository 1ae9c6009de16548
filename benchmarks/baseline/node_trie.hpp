// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace radixmlp_bench {

// The method as published with RadixMLP (arXiv 2601.15013), written again in C++ as the baseline of this project's
// benchmarks: one trie node a token, in one vector; a node holds its children in a growable array with room for one
// from the start, searched linearly by (token, position); everything is allocated anew in each call.
//
// On purpose no better and no worse than that method: node size, reservations and the order of work follow it.
struct NodeTrieIndex {
  std::vector<std::int32_t> compact_ids;
  std::vector<std::int32_t> compact_positions;
  std::vector<std::int32_t> scatter;
  std::vector<std::int32_t> gather;
};

inline NodeTrieIndex build_node_trie(std::span<const std::int32_t> ids, std::span<const std::int32_t> positions,
                                     std::span<const std::int32_t> cu_seqlens) {
  struct Child {
    std::uint64_t key;  // position and token
    std::size_t node;
  };
  struct Node {
    std::int32_t compact_row;
    std::vector<Child> children;
  };

  const std::size_t rows = ids.size();
  NodeTrieIndex index;
  index.compact_ids.reserve(rows);
  index.compact_positions.reserve(rows);
  index.scatter.reserve(rows);
  index.gather.reserve(rows);
  std::vector<Node> nodes;
  nodes.reserve(rows + 1);
  nodes.push_back({-1, {}});
  nodes.front().children.reserve(8);

  for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    std::size_t parent = 0;
    for (std::int32_t row = cu_seqlens[s]; row < cu_seqlens[s + 1]; ++row) {
      const auto i = static_cast<std::size_t>(row);
      const std::uint64_t key =
          (std::uint64_t{static_cast<std::uint32_t>(positions[i])} << 32) | static_cast<std::uint32_t>(ids[i]);
      std::size_t child = 0;  // the root is nobody's child
      for (const Child& candidate : nodes[parent].children) {
        if (candidate.key == key) {
          child = candidate.node;
          break;
        }
      }
      if (child == 0) {
        child = nodes.size();
        nodes.push_back({static_cast<std::int32_t>(index.gather.size()), {}});
        nodes.back().children.reserve(1);
        nodes[parent].children.push_back({key, child});
        index.compact_ids.push_back(ids[i]);
        index.compact_positions.push_back(positions[i]);
        index.gather.push_back(row);
      }
      index.scatter.push_back(nodes[child].compact_row);
      parent = child;
    }
  }
  return index;
}

}  // namespace radixmlp_bench
