// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "llama/llama_model.hpp"
#include "radixmlp/radixmlp.hpp"

namespace example {

// One step of training on a batch of sequences: the loss is the sum over sequences of their weight times the negative
// log-probability of their tokens (SFT; with advantages as weights the policy gradient of GRPO). Forward, output head
// and backward run on compact rows; the gradients are those of the whole batch.
class LlamaTrainer {
 public:
  struct Options {
    std::optional<radixmlp::AttentionLayout> layout;  // none: no row is shared
  };
  struct Result {
    double loss = 0;
    LlamaWeights gradients;
    std::int64_t rows = 0;  // that the layers worked on
  };

  LlamaTrainer(const LlamaModel& model, Options options) : model_(model), options_(options) {}

  Result gradients(const std::vector<std::int32_t>& tokens, const std::vector<std::int32_t>& cu_seqlens,
                   const std::vector<float>& sequence_weights) {
    // Forward, as in scoring; what the backward needs of each layer is kept in compact rows.
    const std::vector<std::uint8_t> opt_out(options_.layout ? 0 : cu_seqlens.size() - 1, std::uint8_t{1});
    const radixmlp::RaggedBatch<std::int32_t> batch{.tokens = tokens, .cu_seqlens = cu_seqlens, .opt_out = opt_out};
    index_ = trie_.build(batch);
    rows_ = index_.compact_rows;
    const radixmlp::CompactionDecision decision{index_.ragged_rows, index_.compact_rows, true,
                                                options_.layout.value_or(radixmlp::AttentionLayout::ragged)};
    plan_memory_.resize(radixmlp::attention_plan_entries(index_));
    plan_ = radixmlp::attention_plan(index_, plan_memory_);
    const std::size_t bytes = Block::workspace_bytes(model_.widths(), index_, decision, plan_);
    workspace_.resize(bytes + radixmlp::workspace_alignment);
    void* aligned = workspace_.data();
    std::size_t room = workspace_.size();
    std::align(radixmlp::workspace_alignment, bytes, aligned, room);
    const Block block(index_, model_.widths(), {static_cast<std::byte*>(aligned), bytes}, decision, plan_);

    std::vector<std::int32_t> row_tokens(static_cast<std::size_t>(rows_)), positions(row_tokens.size());
    radixmlp::compact_tokens(batch, index_, std::span(row_tokens));
    radixmlp::compact_positions(batch, index_, std::span(positions));
    const radixmlp::RowView<const std::int32_t> position_rows(positions.data(), rows_, 1);
    Rows hidden(rows_, model_.hidden());
    model_.embed({row_tokens.data(), rows_, 1}, hidden.view());
    std::vector<Saved> saved;
    for (const LlamaLayer& layer : model_.layers()) {
      Saved& keep = saved.emplace_back();
      keep.input = hidden;
      block.forward(
          radixmlp::serial, hidden.view(),
          [&](auto h, auto q, auto k, auto v) {
            model_.pre_attention(layer, position_rows, h, q, k, v);
            keep.q = Rows(q);
            keep.k = Rows(k);
            keep.v = Rows(v);
          },
          radixmlp::serving<radixmlp::AttentionLayout::ragged, radixmlp::AttentionLayout::compact_query,
                            radixmlp::AttentionLayout::paged>(
              [&](const radixmlp::AttentionCall<float>& call) { attend(call); }),
          [&](auto out, auto h) {
            keep.out = Rows(out);
            model_.post_attention(layer, out, h);
          });
    }

    // The head, on the edges of the trie.
    Result result;
    result.rows = rows_;
    result.gradients = model_.weights();
    result.gradients.for_each([](std::vector<float>& weight) { std::fill(weight.begin(), weight.end(), 0.0F); });
    LlamaWeights& gradients = result.gradients;
    const auto n = static_cast<std::size_t>(rows_);
    Rows logits(rows_, model_.vocabulary());
    model_.logits(hidden.view(), logits.view());
    std::vector<float> log_sums(n), log_probabilities(n), d_log_probabilities(n), scratch(n);
    radixmlp::edge_log_probabilities(radixmlp::serial, index_, logits.view(), row_tokens, log_sums, log_probabilities);
    radixmlp::row_weights<float>(index_, sequence_weights, {}, d_log_probabilities);
    for (std::size_t j = 0; j < n; ++j) {
      d_log_probabilities[j] = -d_log_probabilities[j];
      result.loss += static_cast<double>(d_log_probabilities[j]) * static_cast<double>(log_probabilities[j]);
    }
    radixmlp::edge_log_probabilities_adjoint(radixmlp::serial, index_, logits.view(), row_tokens, log_sums,
                                             d_log_probabilities, scratch, logits.view());
    const Rows normed = norm(hidden, model_.weights().final_norm);
    std::vector<float>& d_classifier = gradients.classifier.empty() ? gradients.embedding : gradients.classifier;
    Rows d_normed(rows_, model_.hidden());
    linear_backward(normed.view(), model_.classifier(), logits.view(), d_normed, d_classifier);
    Rows d_hidden(rows_, model_.hidden());
    norm_backward(hidden, model_.weights().final_norm, d_normed, d_hidden, gradients.final_norm);

    for (std::size_t l = saved.size(); l-- > 0;) {
      layer_backward(model_.layers()[l], saved[l], positions, d_hidden, gradients.layers[l]);
    }
    for (std::int64_t j = 0; j < rows_; ++j) {
      const std::int64_t token = row_tokens[static_cast<std::size_t>(j)];
      float* const to = gradients.embedding.data() + token * model_.hidden();
      for (std::int64_t i = 0; i < model_.hidden(); ++i) {
        to[i] += d_hidden.view().row(j)[i];
      }
    }
    return result;
  }

 private:
  using Block = radixmlp::CompactedBlock<float>;
  using View = radixmlp::RowView<float>;
  using ConstView = radixmlp::RowView<const float>;

  // Rows of their own, packed; zero at first.
  class Rows {
   public:
    Rows() = default;
    Rows(std::int64_t rows, std::int64_t width)
        : values_(static_cast<std::size_t>(rows * width)), rows_(rows), width_(width) {}
    explicit Rows(const ConstView& from) : Rows(from.rows(), from.width()) {
      for (std::int64_t r = 0; r < rows_; ++r) {
        std::copy_n(from.row(r), width_, values_.data() + r * width_);
      }
    }
    [[nodiscard]] View view() noexcept { return {values_.data(), rows_, width_}; }
    [[nodiscard]] ConstView view() const noexcept { return {values_.data(), rows_, width_}; }

   private:
    std::vector<float> values_;
    std::int64_t rows_ = 0, width_ = 0;
  };

  // Of one layer: hidden states before it, Q, K and V behind RoPE, and the attention's output.
  struct Saved {
    Rows input, q, k, v, out;
  };

  static Rows norm(const Rows& x, const std::vector<float>& weight) {
    Rows normed(x.view().rows(), x.view().width());
    for (std::int64_t r = 0; r < x.view().rows(); ++r) {
      rms_norm(x.view().row(r), weight.data(), LlamaModel::rms_epsilon, x.view().width(), normed.view().row(r));
    }
    return normed;
  }

  // d_x += gradient through the norm.
  static void norm_backward(const Rows& x_rows, const std::vector<float>& weight, const Rows& d_normed, Rows& d_x,
                            std::vector<float>& d_weight) {
    const std::int64_t width = x_rows.view().width();
    for (std::int64_t r = 0; r < x_rows.view().rows(); ++r) {
      const float* const x = x_rows.view().row(r);
      const float* const d = d_normed.view().row(r);
      double squares = 0, along = 0;
      for (std::int64_t i = 0; i < width; ++i) {
        squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        along += static_cast<double>(d[i]) * static_cast<double>(weight[static_cast<std::size_t>(i)] * x[i]);
      }
      const double scale = 1 / std::sqrt(squares / static_cast<double>(width) + double{LlamaModel::rms_epsilon});
      const auto back = static_cast<float>(along * scale * scale * scale / static_cast<double>(width));
      for (std::int64_t i = 0; i < width; ++i) {
        const auto at = static_cast<std::size_t>(i);
        d_x.view().row(r)[i] += static_cast<float>(scale) * weight[at] * d[i] - back * x[i];
        d_weight[at] += d[i] * x[i] * static_cast<float>(scale);
      }
    }
  }

  // For y = x * weight^T: d_x += d_y * weight, d_weight += d_y^T * x.
  static void linear_backward(const ConstView& x, const std::vector<float>& weight, const ConstView& d_y, Rows& d_x,
                              std::vector<float>& d_weight) {
    const auto rows = static_cast<int>(x.rows());
    const auto in = static_cast<int>(x.width());
    const auto out = static_cast<int>(d_y.width());
    const View to = d_x.view();
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, in, out, 1.0F, d_y.data(),
                static_cast<int>(d_y.stride()), weight.data(), in, 1.0F, to.data(), static_cast<int>(to.stride()));
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, out, in, rows, 1.0F, d_y.data(),
                static_cast<int>(d_y.stride()), x.data(), static_cast<int>(x.stride()), 1.0F, d_weight.data(), in);
  }

  // d: gradient of the layer's output, and then of its input.
  void layer_backward(const LlamaLayer& layer, const Saved& saved, const std::vector<std::int32_t>& positions, Rows& d,
                      LlamaLayer& gradients) {
    const std::int64_t hidden = model_.hidden();
    const std::int64_t intermediate = model_.intermediate();
    // The MLP, whose inputs are computed again.
    Rows middle = saved.input;
    linear(saved.out.view(), layer.o_proj, 1, middle.view());
    const Rows mlp_in = norm(middle, layer.mlp_norm);
    Rows gate_up(rows_, 2 * intermediate), active(rows_, intermediate), d_active(rows_, intermediate);
    linear(mlp_in.view(), layer.gate_up_proj, 0, gate_up.view());
    for (std::int64_t r = 0; r < rows_; ++r) {
      std::copy_n(gate_up.view().row(r), intermediate, active.view().row(r));
      swiglu(active.view().row(r), gate_up.view().row(r) + intermediate, intermediate);
    }
    linear_backward(active.view(), layer.down_proj, d.view(), d_active, gradients.down_proj);
    for (std::int64_t r = 0; r < rows_; ++r) {  // gate_up becomes its gradient
      float* const gate = gate_up.view().row(r);
      for (std::int64_t i = 0; i < intermediate; ++i) {
        const float x = gate[i];
        const float up = gate[intermediate + i];
        const float sigmoid = 1 / (1 + std::exp(-x));
        const float from = d_active.view().row(r)[i];
        gate[i] = from * up * sigmoid * (1 + x * (1 - sigmoid));
        gate[intermediate + i] = from * x * sigmoid;
      }
    }
    Rows d_mlp_in(rows_, hidden);
    linear_backward(mlp_in.view(), layer.gate_up_proj, gate_up.view(), d_mlp_in, gradients.gate_up_proj);
    norm_backward(middle, layer.mlp_norm, d_mlp_in, d, gradients.mlp_norm);

    // Attention.
    Rows d_out(rows_, model_.widths().out), d_q(rows_, model_.widths().q), d_k(rows_, model_.widths().k),
        d_v(rows_, model_.widths().v);
    linear_backward(saved.out.view(), layer.o_proj, d.view(), d_out, gradients.o_proj);
    attention_backward(saved, d_out, d_q, d_k, d_v);

    // The projections.
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int32_t position = positions[static_cast<std::size_t>(r)];
      model_.rotate_heads(d_q.view().row(r), model_.q_heads(), -position);
      model_.rotate_heads(d_k.view().row(r), model_.kv_heads(), -position);
    }
    const Rows normed = norm(saved.input, layer.input_norm);
    Rows d_normed(rows_, hidden);
    linear_backward(normed.view(), layer.q_proj, d_q.view(), d_normed, gradients.q_proj);
    linear_backward(normed.view(), layer.k_proj, d_k.view(), d_normed, gradients.k_proj);
    linear_backward(normed.view(), layer.v_proj, d_v.view(), d_normed, gradients.v_proj);
    norm_backward(saved.input, layer.input_norm, d_normed, d, gradients.input_norm);
  }

  // From the compact d_out to the compact d_q, d_k and d_v, by way of the rows that attention worked on.
  void attention_backward(const Saved& saved, const Rows& d_out, Rows& d_q, Rows& d_k, Rows& d_v) {
    using radixmlp::AttentionLayout;
    using radixmlp::RowCopy;
    const auto& where = radixmlp::serial;
    const radixmlp::AttentionWidths widths = model_.widths();
    const AttentionLayout layout = options_.layout.value_or(AttentionLayout::ragged);
    if (layout == AttentionLayout::paged) {  // nothing moved: attention's backward adds up at the slots that it read
      attend_backward(plan_, saved.q.view(), saved.k.view(), saved.v.view(), d_out.view(), d_q.view(), d_k.view(),
                      d_v.view());
      return;
    }
    const std::int64_t keys = layout == AttentionLayout::ragged ? index_.ragged_rows : plan_.keys;
    Rows k(keys, widths.k), v(keys, widths.v), d_keys(keys, widths.k), d_values(keys, widths.v);
    radixmlp::AttentionPlan plan = plan_;
    plan.key_slots = {};
    if (layout == AttentionLayout::compact_query) {
      const radixmlp::PrefixIndexView key_map{
          .scatter = plan_.key_slots, .ragged_rows = plan_.keys, .compact_rows = index_.compact_rows};
      radixmlp::scatter_rows(where, key_map, RowCopy{saved.k.view(), k.view()}, RowCopy{saved.v.view(), v.view()});
      attend_backward(plan, saved.q.view(), k.view(), v.view(), d_out.view(), d_q.view(), d_keys.view(),
                      d_values.view());
      inverse_.resize(static_cast<std::size_t>(plan_.keys + rows_ + 1));
      const radixmlp::RowLists copies = radixmlp::inverse_of(plan_.key_slots, index_.compact_rows, inverse_);
      radixmlp::scatter_rows_adjoint(where, index_, copies, RowCopy{d_keys.view(), d_k.view()},
                                     RowCopy{d_values.view(), d_v.view()});
      return;
    }
    plan.cu_seqlens_q = index_.ragged_cu;
    plan.cu_seqlens_k = index_.ragged_cu;
    Rows q(keys, widths.q), d_queries(keys, widths.q), d_ragged_out(keys, widths.out);
    radixmlp::scatter_rows(where, index_, RowCopy{saved.q.view(), q.view()}, RowCopy{saved.k.view(), k.view()},
                           RowCopy{saved.v.view(), v.view()});
    radixmlp::gather_rows_adjoint(where, index_, RowCopy{d_out.view(), d_ragged_out.view()});
    attend_backward(plan, q.view(), k.view(), v.view(), d_ragged_out.view(), d_queries.view(), d_keys.view(),
                    d_values.view());
    inverse_.resize(radixmlp::row_lists_entries(index_));
    radixmlp::scatter_rows_adjoint(where, index_, radixmlp::duplicates(index_, inverse_),
                                   RowCopy{d_queries.view(), d_q.view()}, RowCopy{d_keys.view(), d_k.view()},
                                   RowCopy{d_values.view(), d_v.view()});
  }

  // f(row of q, keys as rows of k and v) for every query of a plan.
  template <class F>
  static void for_each_query(const radixmlp::AttentionPlan& plan, F&& f) {
    std::vector<std::int32_t> keys;
    for (std::size_t e = 0; e + 1 < plan.cu_seqlens_q.size(); ++e) {
      keys.clear();
      for (std::int32_t at = plan.cu_seqlens_k[e]; at < plan.cu_seqlens_k[e + 1]; ++at) {
        keys.push_back(plan.key_slots.empty() ? at : plan.key_slots[static_cast<std::size_t>(at)]);
      }
      for (std::int32_t i = plan.cu_seqlens_q[e]; i < plan.cu_seqlens_q[e + 1]; ++i) {
        f(i, std::span<const std::int32_t>(keys).first(keys.size() -
                                                       static_cast<std::size_t>(plan.cu_seqlens_q[e + 1] - 1 - i)));
      }
    }
  }

  // Softmax weights of one head of a query.
  void weigh(const float* q, const ConstView& k, std::span<const std::int32_t> keys, std::int64_t column) {
    const std::int64_t dim = model_.head_dim();
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    weights_.resize(keys.size());
    for (std::size_t t = 0; t < keys.size(); ++t) {
      float score = 0;
      for (std::int64_t d = 0; d < dim; ++d) {
        score += q[d] * k.row(keys[t])[column + d];
      }
      weights_[t] = score * scale;
    }
    const auto count = static_cast<std::int64_t>(keys.size());
    const float sum = exponentiate(weights_.data(), count, maximum(weights_.data(), count));
    for (float& weight : weights_) {
      weight /= sum;
    }
  }

  void attend(const radixmlp::AttentionCall<float>& call) {
    const std::int64_t dim = model_.head_dim();
    const std::int64_t group = model_.q_heads() / model_.kv_heads();
    for_each_query(call.plan, [&](std::int32_t i, std::span<const std::int32_t> keys) {
      for (std::int64_t head = 0; head < model_.q_heads(); ++head) {
        weigh(call.q.row(i) + head * dim, call.k, keys, head / group * dim);
        float* const out = call.out.row(i) + head * dim;
        std::fill_n(out, dim, 0.0F);
        for (std::size_t t = 0; t < keys.size(); ++t) {
          for (std::int64_t d = 0; d < dim; ++d) {
            out[d] += weights_[t] * call.v.row(keys[t])[head / group * dim + d];
          }
        }
      }
    });
  }

  void attend_backward(const radixmlp::AttentionPlan& plan, const ConstView& q, const ConstView& k, const ConstView& v,
                       const ConstView& d_out, const View& d_q, const View& d_k, const View& d_v) {
    const std::int64_t dim = model_.head_dim();
    const std::int64_t group = model_.q_heads() / model_.kv_heads();
    const float scale = 1 / std::sqrt(static_cast<float>(dim));
    std::vector<float> d_weights;
    for_each_query(plan, [&](std::int32_t i, std::span<const std::int32_t> keys) {
      for (std::int64_t head = 0; head < model_.q_heads(); ++head) {
        const std::int64_t column = head / group * dim;
        const float* const query = q.row(i) + head * dim;
        const float* const d_o = d_out.row(i) + head * dim;
        weigh(query, k, keys, column);
        d_weights.assign(keys.size(), 0.0F);
        float mean = 0;
        for (std::size_t t = 0; t < keys.size(); ++t) {
          for (std::int64_t d = 0; d < dim; ++d) {
            d_weights[t] += d_o[d] * v.row(keys[t])[column + d];
            d_v.row(keys[t])[column + d] += weights_[t] * d_o[d];
          }
          mean += weights_[t] * d_weights[t];
        }
        for (std::size_t t = 0; t < keys.size(); ++t) {
          const float d_score = weights_[t] * (d_weights[t] - mean) * scale;
          for (std::int64_t d = 0; d < dim; ++d) {
            d_q.row(i)[head * dim + d] += d_score * k.row(keys[t])[column + d];
            d_k.row(keys[t])[column + d] += d_score * query[d];
          }
        }
      }
    });
  }

  const LlamaModel& model_;
  Options options_;
  radixmlp::PrefixTrie trie_;
  radixmlp::PrefixIndexView index_;
  radixmlp::AttentionPlan plan_;
  std::int64_t rows_ = 0;
  std::vector<std::int32_t> plan_memory_, inverse_;
  std::vector<std::byte> workspace_;
  std::vector<float> weights_;
};

}  // namespace example
