// SPDX-License-Identifier: MIT
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "kernels.hpp"
#include "radixmlp/radixmlp.hpp"

namespace {

using radixmlp::AttentionCall;
using radixmlp::AttentionLayout;
using radixmlp::CompactedBlock;
using radixmlp::RowView;

constexpr radixmlp::AttentionWidths widths{.q = toy::width, .k = toy::width, .v = toy::width, .out = toy::width};

// [flash_attention]
// K and V are scattered, Q and the output stay compact: query and key lengths differ.
struct FlashAttention {
  static constexpr radixmlp::AttentionLayouts layouts{AttentionLayout::ragged, AttentionLayout::compact_query};

  void operator()(const AttentionCall<float>& call) const {
    flash_attn_varlen({.q = call.q.data(),
                       .k = call.k.data(),
                       .v = call.v.data(),
                       .out = call.out.data(),
                       .q_row_stride = call.q.stride(),
                       .k_row_stride = call.k.stride(),
                       .v_row_stride = call.v.stride(),
                       .o_row_stride = call.out.stride(),
                       .total_q = call.plan.queries,
                       .total_k = call.plan.keys,
                       .cu_seqlens_q = call.plan.cu_seqlens_q,
                       .cu_seqlens_k = call.plan.cu_seqlens_k,
                       .max_seqlen_q = call.plan.max_seqlen_q,
                       .max_seqlen_k = call.plan.max_seqlen_k,
                       .causal = true});
  }
};
// [/flash_attention]

// [flashinfer]
// Nothing moves: compact K and V are a cache of pages of one row, and the plan's key_slots are the page table.
struct FlashInfer {
  static constexpr radixmlp::AttentionLayouts layouts{AttentionLayout::paged};

  explicit FlashInfer(const radixmlp::AttentionPlan& host_plan) {  // once a batch, not once a layer
    prefill.plan(host_plan.cu_seqlens_q, host_plan.cu_seqlens_k, host_plan.key_slots, host_plan.last_page_len,
                 /*page_size=*/1, /*causal=*/true);
  }

  void operator()(const AttentionCall<float>& call) const {
    prefill.run(call.q.data(), call.q.stride(), call.k.data(), call.k.stride(), call.v.data(), call.v.stride(),
                call.out.data(), call.out.stride());
  }

  BatchPrefillWithPagedKVCache prefill;
};
// [/flashinfer]

// One layer on compact rows by an attention that declares its layouts.
template <class Attention>
std::vector<float> compacted(const radixmlp::PrefixIndexView& index, const radixmlp::AttentionPlan& plan,
                             AttentionLayout layout, const Attention& attention) {
  const auto n = static_cast<std::int64_t>(toy::tokens.size());
  std::vector<float> rows = toy::embed(toy::tokens);
  std::vector<float> compact_rows(rows.size());
  const RowView<float> ragged(rows.data(), n, toy::width);
  const RowView<float> compact(compact_rows.data(), n, toy::width);
  const radixmlp::CompactionDecision decision = radixmlp::CompactionPolicy().decide(index, layout);
  const std::size_t bytes = CompactedBlock<float>::workspace_bytes(widths, index, decision, plan);
  auto* const memory = static_cast<std::byte*>(std::aligned_alloc(radixmlp::workspace_alignment, bytes));
  const CompactedBlock<float> block(index, widths, {memory, bytes}, decision, plan);
  const auto h = block.select(radixmlp::serial, ragged, compact);
  block.forward(
      radixmlp::serial, h,
      [](auto in, auto q, auto k, auto v) {
        for (std::int64_t i = 0; i < in.rows(); ++i) {
          toy::project(in.row(i), q.row(i), k.row(i), v.row(i));
        }
      },
      attention,
      [](auto out, auto state) {
        for (std::int64_t i = 0; i < state.rows(); ++i) {
          toy::update(out.row(i), state.row(i));
        }
      });
  block.expand(radixmlp::serial, h, ragged);
  std::free(memory);
  return rows;
}

}  // namespace

int main() {
  std::vector<float> expected = toy::embed(toy::tokens);
  toy::layer(expected);
  radixmlp::PrefixTrie trie;
  const auto index =
      trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = toy::tokens, .cu_seqlens = toy::cu_seqlens});

  // [plan]
  std::vector<std::int32_t> plan_memory(radixmlp::attention_plan_entries(index));
  const radixmlp::AttentionPlan plan = radixmlp::attention_plan(index, plan_memory);
  // [/plan]
  const bool right = plan.queries == index.compact_rows && plan.queries == 7 && plan.keys == 14 &&
                     toy::equal(compacted(index, plan, AttentionLayout::ragged, FlashAttention()), expected) &&
                     toy::equal(compacted(index, plan, AttentionLayout::compact_query, FlashAttention()), expected) &&
                     toy::equal(compacted(index, plan, AttentionLayout::paged, FlashInfer(plan)), expected);
  return right ? 0 : 1;
}
