// SPDX-License-Identifier: MIT
#include <cstdint>
#include <span>
#include <vector>

#include "radixmlp/index/tagged_batch.hpp"
#include "radixmlp/radixmlp.hpp"
#include "toy.hpp"

namespace {

// The fields of a llama_batch that matter here: rows in any order, each with its sequence.
struct Batch {
  std::vector<std::int32_t> token, pos, seq_id;
};

// ggml_get_rows(a, b): the rows of `a` that the I32 tensor `b` names.
std::vector<float> get_rows(const std::vector<float>& a, std::span<const std::int32_t> b) {
  std::vector<float> rows;
  for (const std::int32_t row : b) {
    rows.insert(rows.end(), a.begin() + row * toy::width, a.begin() + (row + 1) * toy::width);
  }
  return rows;
}

}  // namespace

int main() {
  // The sequences of the toy, interleaved: every first token, every second, ...
  Batch batch;
  std::vector<std::int32_t> plain_row;  // of a row of the batch
  for (std::int32_t pos = 0; pos < 5; ++pos) {
    for (std::int32_t s = 0; s < 3; ++s) {
      const auto at = static_cast<std::size_t>(s);
      if (toy::cu_seqlens[at] + pos < toy::cu_seqlens[at + 1]) {
        plain_row.push_back(toy::cu_seqlens[at] + pos);
        batch.token.push_back(toy::tokens[static_cast<std::size_t>(plain_row.back())]);
        batch.pos.push_back(pos);
        batch.seq_id.push_back(40 + s);
      }
    }
  }
  std::vector<float> expected = toy::embed(toy::tokens);
  toy::layer(expected);

  // [ggml]
  // Once a batch. The sequence ids may be any numbers in any order; both objects keep their memory.
  radixmlp::TaggedBatch<std::int32_t> tagged;
  radixmlp::PrefixTrie trie;
  tagged.assign(batch.token, batch.pos, batch.seq_id);
  const radixmlp::PrefixIndexView index = trie.build(tagged.batch());

  // I32 inputs of the graph. Embed and run norms, projections and FFN on compact rows; get_rows by `expand` in front of
  // attention (Q, K, V), by `compact` behind it.
  std::vector<std::int32_t> compact(static_cast<std::size_t>(index.compact_rows));  // batch row of a compact row
  std::vector<std::int32_t> expand(batch.token.size());                             // compact row of a batch row
  for (std::size_t j = 0; j < compact.size(); ++j) {
    compact[j] = tagged.tagged_row()[static_cast<std::size_t>(index.gather[j])];
  }
  for (std::size_t i = 0; i < expand.size(); ++i) {
    expand[i] = index.scatter[static_cast<std::size_t>(tagged.ragged_row()[i])];
  }
  // [/ggml]

  std::vector<std::int32_t> ids;
  for (const std::int32_t row : compact) {
    ids.push_back(batch.token[static_cast<std::size_t>(row)]);
  }
  std::vector<float> h = toy::embed(ids);
  std::vector<float> q(h.size()), k(h.size()), v(h.size());
  for (std::size_t j = 0; j < h.size(); j += toy::width) {
    toy::project(&h[j], &q[j], &k[j], &v[j]);
  }
  const std::vector<float> all_q = get_rows(q, expand), all_k = get_rows(k, expand), all_v = get_rows(v, expand);
  std::vector<float> all_out(all_q.size());
  for (std::size_t i = 0; i < batch.token.size(); ++i) {
    std::vector<std::int64_t> keys;  // what llama.cpp's mask lets row i see
    for (std::size_t j = 0; j < batch.token.size(); ++j) {
      if (batch.seq_id[j] == batch.seq_id[i] && batch.pos[j] <= batch.pos[i]) {
        keys.push_back(static_cast<std::int64_t>(j));
      }
    }
    for (std::size_t c = 0; c < toy::width; c += toy::head_dim) {
      toy::attend(
          &all_q[i * toy::width + c], &all_k[c], &all_v[c], toy::width, static_cast<std::int64_t>(keys.size()),
          [&](std::int64_t key) { return keys[static_cast<std::size_t>(key)]; }, &all_out[i * toy::width + c]);
    }
  }
  const std::vector<float> out = get_rows(all_out, compact);
  for (std::size_t j = 0; j < h.size(); j += toy::width) {
    toy::update(&out[j], &h[j]);
  }
  return index.compact_rows == 7 && toy::equal(get_rows(h, expand), get_rows(expected, plain_row)) ? 0 : 1;
}
