// SPDX-License-Identifier: MIT
#include <cmath>
#include <cstdint>
#include <vector>

#include "radixmlp/radixmlp.hpp"
#include "toy.hpp"

namespace {

using Rows = radixmlp::RowView<float>;

// y = tanh(w x), column by column, and its backward.
float forward(float w, float x) { return std::tanh(w * x); }
float backward(float w, float x, float dy, float& dw) {
  const float y = std::tanh(w * x);
  dw += dy * (1 - y * y) * x;
  return dy * (1 - y * y) * w;
}

}  // namespace

int main() {
  const auto n = static_cast<std::int64_t>(toy::tokens.size());
  const std::vector<float> x = toy::embed(toy::tokens);
  std::vector<float> dy(x.size());  // of a loss in which every row counts, copies too
  for (std::size_t i = 0; i < dy.size(); ++i) {
    dy[i] = std::cos(0.1F * static_cast<float>(i));
  }
  const float w = 0.7F;
  float dw_without = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    backward(w, x[i], dy[i], dw_without);
  }

  radixmlp::PrefixTrie trie;
  const auto index =
      trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = toy::tokens, .cu_seqlens = toy::cu_seqlens});
  const std::int64_t compact_rows = index.compact_rows;
  const auto compact_size = static_cast<std::size_t>(compact_rows * toy::width);
  std::vector<float> cx(compact_size), cy(compact_size), cdy(compact_size), cdx(compact_size);
  std::vector<float> y(x.size()), dx(x.size());
  float dw = 0;

  // [training]
  const auto where = radixmlp::serial;
  radixmlp::gather_rows(where, index, radixmlp::RowView<const float>(x.data(), n, toy::width),
                        Rows(cx.data(), compact_rows, toy::width));
  for (std::size_t i = 0; i < cx.size(); ++i) {
    cy[i] = forward(w, cx[i]);  // the engine's layer, on N' rows
  }
  radixmlp::scatter_rows(where, index, Rows(cy.data(), compact_rows, toy::width), Rows(y.data(), n, toy::width));

  // Backward: a compact row gets the sum over its copies, in one order in every run.
  std::vector<std::int32_t> lists_memory(radixmlp::row_lists_entries(index));
  const radixmlp::RowLists copies = radixmlp::duplicates(index, lists_memory);
  radixmlp::scatter_rows_adjoint(
      where, index, copies,
      radixmlp::RowCopy{Rows(dy.data(), n, toy::width), Rows(cdy.data(), compact_rows, toy::width)});
  for (std::size_t i = 0; i < cdy.size(); ++i) {
    cdx[i] = backward(w, cx[i], cdy[i], dw);
  }
  radixmlp::gather_rows_adjoint(
      where, index, radixmlp::RowCopy{Rows(cdx.data(), compact_rows, toy::width), Rows(dx.data(), n, toy::width)});
  // [/training]

  for (std::size_t i = 0; i < y.size(); ++i) {
    if (y[i] != forward(w, x[i])) {
      return 1;
    }
  }
  float sum = 0, sum_compact = 0;  // what an embedding gets in all
  for (const float value : dx) {
    sum += value;
  }
  for (const float value : cdx) {
    sum_compact += value;
  }
  return std::abs(dw - dw_without) < 1e-5F * std::abs(dw_without) && std::abs(sum - sum_compact) < 1e-5F && dw != 0 ? 0
                                                                                                                    : 2;
}
