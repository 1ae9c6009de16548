// SPDX-License-Identifier: MIT

// How an engine wraps a layer: three callables of its own, and the library between them. The engine here is a toy; a
// real one is in engine/cpu_engine.hpp.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

#include "radixmlp/radixmlp.hpp"

namespace {

using radixmlp::AttentionCall;
using radixmlp::AttentionWidths;
using radixmlp::CompactedBlock;
using radixmlp::RowView;

struct ToyEngine {
  static constexpr std::int64_t hidden = 4;
  static constexpr AttentionWidths widths{.q = 4, .k = 4, .v = 4, .out = 4};

  // Row-wise: row i of q, k and v depends on row i of the hidden states and on its position.
  void project(RowView<const float> h, RowView<const std::int32_t> positions, RowView<float> q, RowView<float> k,
               RowView<float> v) const {
    for (std::int64_t i = 0; i < h.rows(); ++i) {
      for (std::int64_t c = 0; c < hidden; ++c) {
        q.row(i)[c] = 0.5f * h.row(i)[c] + 0.25f * static_cast<float>(*positions.row(i));
        k.row(i)[c] = 0.25f * h.row(i)[c];
        v.row(i)[c] = -h.row(i)[c];
      }
    }
  }

  // Causal within each sequence of the ragged batch.
  void attend(const AttentionCall<float>& call) const {
    for (std::size_t s = 0; s + 1 < call.cu_seqlens.size(); ++s) {
      for (std::int64_t i = call.cu_seqlens[s]; i < call.cu_seqlens[s + 1]; ++i) {
        for (std::int64_t c = 0; c < hidden; ++c) {
          float sum = 0;
          for (std::int64_t j = call.cu_seqlens[s]; j <= i; ++j) {
            sum += call.q.row(i)[c] * call.k.row(j)[c] + call.v.row(j)[c];
          }
          call.out.row(i)[c] = sum;
        }
      }
    }
  }

  // Segment e: its queries are rows of q; its keys follow each other in k and v, or are found through key_slots.
  void attend_by_plan(const AttentionCall<float>& call) const {
    const std::span<const std::int32_t> cu_q = call.plan.cu_seqlens_q, cu_k = call.plan.cu_seqlens_k;
    const std::span<const std::int32_t> slots = call.plan.key_slots;
    for (std::size_t e = 0; e + 1 < cu_q.size(); ++e) {
      for (std::int64_t i = cu_q[e]; i < cu_q[e + 1]; ++i) {
        const std::int64_t unseen = cu_q[e + 1] - 1 - i;  // causal, from the bottom right
        for (std::int64_t c = 0; c < hidden; ++c) {
          float sum = 0;
          for (std::int64_t at = cu_k[e]; at < cu_k[e + 1] - unseen; ++at) {
            const std::int64_t j = slots.empty() ? at : slots[static_cast<std::size_t>(at)];
            sum += call.q.row(i)[c] * call.k.row(j)[c] + call.v.row(j)[c];
          }
          call.out.row(i)[c] = sum;
        }
      }
    }
  }

  // Row-wise again.
  void update(RowView<const float> attention_out, RowView<float> h) const {
    for (std::int64_t i = 0; i < h.rows(); ++i) {
      for (std::int64_t c = 0; c < hidden; ++c) {
        h.row(i)[c] += 0.125f * attention_out.row(i)[c];
      }
    }
  }
};

// Two layers on `hidden` [N, 4] in place.
void run(const ToyEngine& engine, std::span<const std::int32_t> tokens, std::span<const std::int32_t> cu_seqlens,
         std::vector<float>& hidden, radixmlp::CompactionPolicy policy) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  std::vector<std::int32_t> positions(tokens.size()), compact_positions(tokens.size());
  for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    for (std::int32_t i = cu_seqlens[s]; i < cu_seqlens[s + 1]; ++i) {
      positions[static_cast<std::size_t>(i)] = i - cu_seqlens[s];
    }
  }
  std::vector<float> compact(hidden.size());

  // [wrap]
  // Once a batch: the index, and a block over a workspace of the engine's.
  radixmlp::PrefixTrie trie;  // keep one; it reuses its memory
  const auto index = trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = tokens, .cu_seqlens = cu_seqlens});
  const std::size_t bytes = CompactedBlock<float>::workspace_bytes(ToyEngine::widths, index, policy);
  std::byte* const workspace = static_cast<std::byte*>(std::aligned_alloc(radixmlp::workspace_alignment, bytes));
  const CompactedBlock<float> block(index, ToyEngine::widths, {workspace, bytes}, policy);

  // Per-row inputs in the block's order: gathered, or the engine's own rows where compaction does not pay.
  const auto where = radixmlp::serial;  // or an executor of the engine's, or a cudaStream_t
  const auto h = block.select(where, RowView<float>(hidden.data(), n, ToyEngine::hidden),
                              RowView<float>(compact.data(), n, ToyEngine::hidden));
  const auto p = block.select(where, RowView<const std::int32_t>(positions.data(), n, 1),
                              RowView<std::int32_t>(compact_positions.data(), n, 1));

  for (int layer = 0; layer < 2; ++layer) {
    block.forward(
        where, h, [&](auto rows, auto q, auto k, auto v) { engine.project(rows, p, q, k, v); },
        [&](const AttentionCall<float>& call) { engine.attend(call); },
        [&](auto attention_out, auto rows) { engine.update(attention_out, rows); });
  }

  // Once, at the end, and only if all N rows are wanted: pooling and logits read index.last_rows instead.
  block.expand(where, h, RowView<float>(hidden.data(), n, ToyEngine::hidden));
  // [/wrap]
  std::free(workspace);
}

// One layer whose attention reads compact rows: in `paged` nothing moves at all.
void run_by_plan(const ToyEngine& engine, const radixmlp::PrefixIndexView& index, RowView<float> h,
                 RowView<const std::int32_t> p, radixmlp::AttentionLayout layout) {
  const radixmlp::CompactionPolicy policy;
  // [layouts]
  using enum radixmlp::AttentionLayout;
  const radixmlp::CompactionDecision decision = policy.decide(index, layout);  // layout: what the attention does best
  std::vector<std::int32_t> plan_memory(radixmlp::attention_plan_entries(index));
  const radixmlp::AttentionPlan plan = radixmlp::attention_plan(index, plan_memory);
  const std::size_t bytes = CompactedBlock<float>::workspace_bytes(ToyEngine::widths, index, decision, plan);
  std::byte* const workspace = static_cast<std::byte*>(std::aligned_alloc(radixmlp::workspace_alignment, bytes));
  const CompactedBlock<float> block(index, ToyEngine::widths, {workspace, bytes}, decision, plan);

  block.forward(
      radixmlp::serial, h, [&](auto rows, auto q, auto k, auto v) { engine.project(rows, p, q, k, v); },
      radixmlp::serving<ragged, compact_query, paged>(
          [&](const AttentionCall<float>& call) { engine.attend_by_plan(call); }),
      [&](auto attention_out, auto rows) { engine.update(attention_out, rows); });
  // [/layouts]
  std::free(workspace);
}

}  // namespace

int main() {
  const std::vector<std::int32_t> tokens{7, 8, 9, 1, 2, /**/ 7, 8, 9, 4, /**/ 7, 8, 9, 4, 5};
  const std::vector<std::int32_t> cu_seqlens{0, 5, 9, 14};
  std::vector<float> embedded;
  for (const std::int32_t token : tokens) {
    for (std::int64_t c = 0; c < ToyEngine::hidden; ++c) {
      embedded.push_back(0.1f * static_cast<float>(token - c));
    }
  }
  std::vector<float> plain = embedded, compacted = embedded;
  run(ToyEngine{}, tokens, cu_seqlens, plain, {.max_ratio = 0});
  run(ToyEngine{}, tokens, cu_seqlens, compacted, {});
  bool equal = plain == compacted && plain != embedded;

  // The same two layers on compact rows, attention included.
  radixmlp::PrefixTrie trie;
  const radixmlp::RaggedBatch<std::int32_t> batch{.tokens = tokens, .cu_seqlens = cu_seqlens};
  const auto index = trie.build(batch);
  const auto n = static_cast<std::int64_t>(tokens.size());
  for (const auto layout : {radixmlp::AttentionLayout::ragged, radixmlp::AttentionLayout::compact_query,
                            radixmlp::AttentionLayout::paged}) {
    std::vector<float> compact(embedded.size()), expanded(embedded.size());
    std::vector<std::int32_t> positions(static_cast<std::size_t>(index.compact_rows));
    radixmlp::compact_positions(batch, index, std::span(positions));
    const RowView<float> h(compact.data(), index.compact_rows, ToyEngine::hidden);
    radixmlp::gather_rows(radixmlp::serial, index, RowView<float>(embedded.data(), n, ToyEngine::hidden), h);
    for (int layer = 0; layer < 2; ++layer) {
      run_by_plan(ToyEngine{}, index, h, {positions.data(), index.compact_rows, 1}, layout);
    }
    radixmlp::scatter_rows(radixmlp::serial, index, h, RowView<float>(expanded.data(), n, ToyEngine::hidden));
    equal = equal && expanded == plain;
  }
  std::printf("%s, last value %.6f\n", equal ? "bit-equal" : "DIFFERENT", static_cast<double>(plain.back()));
  return equal ? EXIT_SUCCESS : EXIT_FAILURE;
}
