// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "radixmlp/radixmlp.hpp"
#include "toy.hpp"

namespace {

// What rank 0 sends and every rank receives: one head of the view's counts, and the block of its maps.
struct Message {
  radixmlp::PrefixIndexView head;
  std::vector<std::byte> block;
};

// A rank's share of the layer: one head, on compact rows. The sum over the ranks is what an all-reduce gives.
void half_layer(const radixmlp::PrefixIndexView& index, std::int64_t rank, const std::vector<float>& h,
                std::vector<float>& attention) {
  const auto rows = static_cast<std::size_t>(index.compact_rows);
  const std::int64_t first = rank * toy::head_dim;
  std::vector<float> q(rows * toy::head_dim), k(q.size()), v(q.size());
  for (std::size_t j = 0; j < rows; ++j) {
    toy::project(&h[j * toy::width], &q[j * toy::head_dim], &k[j * toy::head_dim], &v[j * toy::head_dim], first,
                 toy::head_dim);
  }
  for (std::size_t j = 0; j < rows; ++j) {
    std::vector<std::int64_t> keys;  // the path that ends in row j
    for (std::int32_t row = static_cast<std::int32_t>(j); row >= 0; row = index.parent[static_cast<std::size_t>(row)]) {
      keys.push_back(row);
    }
    toy::attend(
        &q[j * toy::head_dim], k.data(), v.data(), toy::head_dim, static_cast<std::int64_t>(keys.size()),
        [&](std::int64_t key) { return keys[static_cast<std::size_t>(key)]; },
        &attention[j * toy::width + static_cast<std::size_t>(first)]);
  }
}

}  // namespace

int main() {
  std::vector<float> expected = toy::embed(toy::tokens);
  toy::layer(expected);
  const radixmlp::CompactionPolicy policy;
  Message message;
  {
    // [rank_0]
    // Rank 0 builds. The head is a value without ownership, the block all maps in one piece: 64-byte aligned, no holes.
    radixmlp::PrefixTrie trie;
    const radixmlp::PrefixIndexView index =
        trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = toy::tokens, .cu_seqlens = toy::cu_seqlens});
    static_assert(std::is_trivially_copyable_v<radixmlp::PrefixIndexView>);
    message = {index, {index.block.begin(), index.block.end()}};  // one broadcast: sizeof head + block.size() bytes
    // [/rank_0]
  }
  std::vector<float> attention;
  std::vector<float> h;
  radixmlp::PrefixIndexView last;
  std::vector<radixmlp::PrefixIndex> received(2);
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const Message copy = message;  // in other memory
    // [every_rank]
    // The same maps at this rank's address, in host or device memory. The policy looks at counts, not at a clock, so
    // that all ranks decide alike.
    const radixmlp::PrefixIndexView index = copy.head.relocated(copy.block.data());
    const bool compacts = policy.decide(index).compacts;
    // [/every_rank]
    if (!compacts || index.gather.data() == message.head.gather.data()) {
      return 1;
    }
    std::vector<std::int32_t> ids(static_cast<std::size_t>(index.padded_rows));
    radixmlp::compact_tokens(radixmlp::RaggedBatch<std::int32_t>{.tokens = toy::tokens, .cu_seqlens = toy::cu_seqlens},
                             index, std::span(ids));
    h = toy::embed(ids);
    attention.resize(h.size());
    half_layer(index, rank, h, attention);
    received[static_cast<std::size_t>(rank)] = radixmlp::PrefixIndex(index);
  }
  for (std::size_t j = 0; j < h.size(); j += toy::width) {
    toy::update(&attention[j], &h[j]);
  }
  const auto n = static_cast<std::int64_t>(toy::tokens.size());
  std::vector<float> rows(expected.size());
  radixmlp::scatter_rows(radixmlp::serial, received[1].view(), radixmlp::RowView<float>(h.data(), 7, toy::width),
                         radixmlp::RowView<float>(rows.data(), n, toy::width));
  return toy::equal(rows, expected) ? 0 : 2;
}
