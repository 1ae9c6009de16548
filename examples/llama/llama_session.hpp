// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "llama/llama_model.hpp"
#include "radixmlp/radixmlp.hpp"

namespace example {

// Sequences that grow together, with a KV cache of one row a slot. Two sequences with the same tokens so far share
// their slots, and every call computes what they still have in common once: prefill, decoding, and both in one batch.
class LlamaSession {
 public:
  struct Options {
    std::optional<radixmlp::AttentionLayout> layout;  // none: not compacted
    bool all_rows = false;                            // logits of every new row, not of the last ones alone
  };

  LlamaSession(const LlamaModel& model, std::size_t sequences, Options options)
      : model_(model), options_(options), slots_(sequences), cache_(model.layers().size()) {}

  // Appends new tokens to each sequence ([sequences], some or all may be empty) and returns their logits: all rows end
  // to end, or one row a sequence, which means nothing where the sequence got no token. Valid until the next call.
  radixmlp::RowView<const float> append(const std::vector<std::vector<std::int32_t>>& new_tokens) {
    const std::size_t sequences = slots_.size();
    if (new_tokens.size() != sequences) {
      throw std::invalid_argument("append: as many token lists as sequences, please");
    }
    // The batch. The last slot of a past says which past it is; positions count on from it.
    std::vector<std::int32_t> tokens, positions, cu_seqlens{0}, past_lengths, past_slots, past_indptr{0};
    std::vector<std::uint64_t> pasts;
    for (std::size_t s = 0; s < sequences; ++s) {
      const auto past = static_cast<std::int32_t>(slots_[s].size());
      if (past + static_cast<std::int64_t>(new_tokens[s].size()) > model_.max_positions()) {
        throw std::invalid_argument("append: a sequence gets longer than the model's positions");
      }
      for (const std::int32_t token : new_tokens[s]) {
        positions.push_back(past + static_cast<std::int32_t>(tokens.size()) - cu_seqlens.back());
        tokens.push_back(token);
      }
      cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
      past_lengths.push_back(past);
      past_slots.insert(past_slots.end(), slots_[s].begin(), slots_[s].end());
      past_indptr.push_back(static_cast<std::int32_t>(past_slots.size()));
      pasts.push_back(past == 0 ? 0 : 1 + static_cast<std::uint64_t>(slots_[s].back()));
    }
    const radixmlp::PrefixIndexView index = trie_.build(radixmlp::RaggedBatch<std::int32_t>{
        .tokens = tokens, .cu_seqlens = cu_seqlens, .sequence_keys = pasts, .past_lengths = past_lengths});

    // What to do with it, and how attention reads it.
    const auto layout = options_.layout.value_or(radixmlp::AttentionLayout::ragged);
    const radixmlp::CompactionPolicy policy{.max_ratio = options_.layout ? 1.0 : 0.0};
    const radixmlp::CompactionDecision decision = policy.decide(index, layout);
    const bool paged = decision.layout == radixmlp::AttentionLayout::paged;
    std::vector<std::int32_t> new_slots(
        static_cast<std::size_t>(decision.compacts ? index.compact_rows : index.ragged_rows));
    for (std::int32_t& slot : new_slots) {
      slot = used_slots_++;
    }
    const radixmlp::AttentionPlanOptions plan_options =
        paged ? radixmlp::AttentionPlanOptions{.past_lengths = past_lengths,
                                               .slots = new_slots,
                                               .past_page_indptr = past_indptr,
                                               .past_pages = past_slots}
              : radixmlp::AttentionPlanOptions{.past_lengths = past_lengths};
    plan_memory_.resize(radixmlp::attention_plan_entries(index, plan_options));
    const radixmlp::AttentionPlan plan = radixmlp::attention_plan(index, plan_memory_, plan_options);
    const std::size_t bytes = radixmlp::CompactedBlock<float>::workspace_bytes(model_.widths(), index, decision, plan);
    workspace_.resize(bytes + radixmlp::workspace_alignment);
    void* aligned = workspace_.data();
    std::size_t room = workspace_.size();
    std::align(radixmlp::workspace_alignment, bytes, aligned, room);
    const radixmlp::CompactedBlock<float> block(index, model_.widths(), {static_cast<std::byte*>(aligned), bytes},
                                                decision, plan);

    // The layers.
    const std::int64_t n = index.ragged_rows;
    const auto row_numbers = [&](const std::vector<std::int32_t>& values, std::vector<std::int32_t>& storage) {
      storage.resize(static_cast<std::size_t>(block.rows()));
      return block.select(radixmlp::serial, radixmlp::RowView<const std::int32_t>(values.data(), n, 1),
                          radixmlp::RowView<std::int32_t>(storage.data(), block.rows(), 1));
    };
    std::vector<std::int32_t> compact_tokens, compact_positions;
    const auto t = row_numbers(tokens, compact_tokens);
    const auto p = row_numbers(positions, compact_positions);
    hidden_.resize(static_cast<std::size_t>(block.rows() * model_.hidden()));
    const radixmlp::RowView<float> h(hidden_.data(), block.rows(), model_.hidden());
    model_.embed(t, h);
    for (std::size_t l = 0; l < cache_.size(); ++l) {
      KeyValues& cache = cache_[l];
      cache.grow(used_slots_, model_.widths());
      block.forward(
          radixmlp::serial, h,
          [&](auto rows, auto q, auto k, auto v) {
            model_.pre_attention(model_.layers()[l], p, rows, q, k, v);
            for (std::size_t j = 0; j < new_slots.size(); ++j) {
              const auto row = static_cast<std::int64_t>(j);
              std::copy_n(k.row(row), k.width(), cache.k_row(new_slots[j]));
              std::copy_n(v.row(row), v.width(), cache.v_row(new_slots[j]));
            }
          },
          radixmlp::serving<radixmlp::AttentionLayout::ragged, radixmlp::AttentionLayout::compact_query,
                            radixmlp::AttentionLayout::paged>(
              [&](const radixmlp::AttentionCall<float>& call) { attend(call, cache); }),
          [&](auto out, auto rows) { model_.post_attention(model_.layers()[l], out, rows); });
    }

    // Logits: from the block's rows, whatever they are; expanded only if all rows are asked for.
    const auto space = block.compacts() ? radixmlp::RowSpace::compact : radixmlp::RowSpace::ragged;
    const auto logit_rows = [&](std::vector<float>& storage, std::int64_t rows) {
      storage.resize(static_cast<std::size_t>(rows * model_.vocabulary()));
      return radixmlp::RowView<float>(storage.data(), rows, model_.vocabulary());
    };
    radixmlp::RowView<const float> result;
    if (options_.all_rows) {
      const radixmlp::RowView<float> compact = logit_rows(compact_logits_, block.rows());
      model_.logits(h, compact);
      result = block.expand(radixmlp::serial, radixmlp::RowView<const float>(compact), logit_rows(logits_, n));
    } else if (n > 0) {
      std::vector<std::int32_t> last(sequences);
      radixmlp::pooled_rows(index, radixmlp::PooledRow::last, space, last);
      std::vector<float> pooled_rows(sequences * static_cast<std::size_t>(model_.hidden()));
      const radixmlp::RowView<float> pooled(pooled_rows.data(), static_cast<std::int64_t>(sequences), model_.hidden());
      block.take(radixmlp::serial, last, h, pooled);
      const radixmlp::RowView<float> logits = logit_rows(logits_, pooled.rows());
      model_.logits(pooled, logits);
      result = logits;
    }

    for (std::size_t s = 0; s < sequences; ++s) {
      for (std::int32_t i = cu_seqlens[s]; i < cu_seqlens[s + 1]; ++i) {
        const auto at = static_cast<std::size_t>(i);
        slots_[s].push_back(new_slots[block.compacts() ? static_cast<std::size_t>(index.scatter[at]) : at]);
      }
    }
    rows_computed_ += block.rows();
    return result;
  }

  // Rows that went through the layers so far.
  [[nodiscard]] std::int64_t rows_computed() const noexcept { return rows_computed_; }

 private:
  // Of one layer: K and V of every slot.
  struct KeyValues {
    std::vector<float> k, v;
    std::int64_t k_width = 0, v_width = 0;

    void grow(std::int32_t slots, const radixmlp::AttentionWidths& widths) {
      k_width = widths.k;
      v_width = widths.v;
      k.resize(static_cast<std::size_t>(slots * k_width));
      v.resize(static_cast<std::size_t>(slots * v_width));
    }
    [[nodiscard]] float* k_row(std::int32_t slot) noexcept { return k.data() + slot * k_width; }
    [[nodiscard]] float* v_row(std::int32_t slot) noexcept { return v.data() + slot * v_width; }
  };

  // By the plan. Where it knows no slots, the rows of k and v follow each other, and the past is in the cache: `ragged`
  // knows nothing of it, and `compact_query` has left its place in k and v free.
  void attend(const radixmlp::AttentionCall<float>& call, KeyValues& cache) {
    const radixmlp::AttentionPlan& plan = call.plan;
    std::vector<const float*> k, v;
    for (std::int32_t e = 0; e < plan.segments(); ++e) {
      const auto at = static_cast<std::size_t>(e);
      const std::int32_t begin = plan.cu_seqlens_k[at];
      const std::int32_t end = plan.cu_seqlens_k[at + 1];
      k.clear();
      v.clear();
      if (call.layout == radixmlp::AttentionLayout::paged) {
        for (const std::int32_t slot :
             plan.key_slots.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin))) {
          k.push_back(cache.k_row(slot));
          v.push_back(cache.v_row(slot));
        }
      } else {
        const bool is_ragged = call.layout == radixmlp::AttentionLayout::ragged;
        const std::size_t sequence = is_ragged ? at : static_cast<std::size_t>(plan.sequences[at]);
        for (const std::int32_t slot : slots_[sequence]) {
          k.push_back(cache.k_row(slot));
          v.push_back(cache.v_row(slot));
        }
        for (std::int32_t row = begin + (is_ragged ? 0 : plan.past_k[at]); row < end; ++row) {
          k.push_back(call.k.row(row));
          v.push_back(call.v.row(row));
        }
      }
      const std::int32_t queries = plan.cu_seqlens_q[at + 1] - plan.cu_seqlens_q[at];
      for (std::int32_t i = 0; i < queries; ++i) {
        const std::int32_t row = plan.cu_seqlens_q[at] + i;
        attend(call.q.row(row), std::span(k).first(k.size() - static_cast<std::size_t>(queries - 1 - i)), v,
               call.out.row(row));
      }
    }
  }

  // One query, all heads.
  void attend(const float* q, std::span<const float* const> k, std::span<const float* const> v, float* out) {
    const std::int64_t dim = model_.head_dim();
    const std::int64_t group = model_.q_heads() / model_.kv_heads();
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    scores_.resize(k.size());
    for (std::int64_t head = 0; head < model_.q_heads(); ++head) {
      const float* const query = q + head * dim;
      const std::int64_t column = head / group * dim;
      for (std::size_t t = 0; t < k.size(); ++t) {
        float score = 0;
        for (std::int64_t d = 0; d < dim; ++d) {
          score += query[d] * k[t][column + d];
        }
        scores_[t] = score * scale;
      }
      const auto keys = static_cast<std::int64_t>(k.size());
      const float sum = exponentiate(scores_.data(), keys, maximum(scores_.data(), keys));
      float* const target = out + head * dim;
      std::fill_n(target, dim, 0.0F);
      for (std::size_t t = 0; t < k.size(); ++t) {
        const float weight = scores_[t] / sum;
        for (std::int64_t d = 0; d < dim; ++d) {
          target[d] += weight * v[t][column + d];
        }
      }
    }
  }

  const LlamaModel& model_;
  Options options_;
  radixmlp::PrefixTrie trie_;
  std::vector<std::vector<std::int32_t>> slots_;  // of each sequence so far
  std::vector<KeyValues> cache_;                  // of each layer
  std::int32_t used_slots_ = 0;
  std::int64_t rows_computed_ = 0;
  std::vector<std::int32_t> plan_memory_;
  std::vector<std::byte> workspace_;
  std::vector<float> hidden_, compact_logits_, logits_, scores_;
};

// The most likely token of a row of logits.
[[nodiscard]] inline std::int32_t most_likely(radixmlp::RowView<const float> logits, std::int64_t row) {
  return static_cast<std::int32_t>(std::max_element(logits.row(row), logits.row(row) + logits.width()) -
                                   logits.row(row));
}

}  // namespace example
