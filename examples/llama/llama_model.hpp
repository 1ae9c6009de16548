// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/cpu_kernels.hpp"
#include "radixmlp/radixmlp.hpp"

namespace example {

struct LlamaLayer {
  std::vector<float> input_norm, q_proj, k_proj, v_proj, o_proj, mlp_norm, gate_up_proj, down_proj;
};

// Matrices are [out, in]; gate_up: the gate's rows, then as many of up. Gradients have the same form.
struct LlamaWeights {
  std::vector<float> embedding, final_norm;
  std::vector<float> classifier;  // empty: the embedding is
  std::vector<LlamaLayer> layers;

  // f(vector) for each of them, in one order.
  template <class F>
  void for_each(F&& f) {
    f(embedding);
    f(final_norm);
    f(classifier);
    for (LlamaLayer& layer : layers) {
      for (std::vector<float>* weight : {&layer.input_norm, &layer.q_proj, &layer.k_proj, &layer.v_proj, &layer.o_proj,
                                         &layer.mlp_norm, &layer.gate_up_proj, &layer.down_proj}) {
        f(*weight);
      }
    }
  }
};

// A Llama of a llama2.c checkpoint (version 0: seven int32, then fp32 weights), and its operations on rows. Knows
// nothing of compaction: every call works on the rows that it is given.
class LlamaModel {
 public:
  // Throws std::runtime_error where the file cannot be read, is too short or has a header that makes no sense.
  explicit LlamaModel(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::array<std::int32_t, 7> header{};
    if (!file.read(reinterpret_cast<char*>(header.data()), sizeof header)) {
      throw std::runtime_error(path + ": no checkpoint of llama2.c, or none that can be read");
    }
    hidden_ = header[0];
    intermediate_ = header[1];
    const std::int64_t layers = header[2];
    q_heads_ = header[3];
    kv_heads_ = header[4];
    vocabulary_ = std::abs(header[5]);
    positions_ = header[6];
    const bool shares_embedding = header[5] > 0;
    if (*std::min_element(header.begin(), header.end() - 2) < 1 || header[5] == 0 || positions_ < 1 ||
        hidden_ % (2 * q_heads_) != 0 || q_heads_ % kv_heads_ != 0) {
      throw std::runtime_error(path + ": the header is not that of a llama2.c checkpoint");
    }
    head_dim_ = hidden_ / q_heads_;
    const auto read = [&](std::int64_t rows, std::int64_t width) {
      std::vector<float> values(static_cast<std::size_t>(rows * width));
      if (!file.read(reinterpret_cast<char*>(values.data()),
                     static_cast<std::streamsize>(values.size() * sizeof(float)))) {
        throw std::runtime_error(path + ": ends before the last weight");
      }
      return values;
    };
    // By kind, and of each kind all layers.
    weights_.layers.resize(static_cast<std::size_t>(layers));
    const auto read_layers = [&](std::vector<float> LlamaLayer::*weight, std::int64_t rows, std::int64_t width) {
      for (LlamaLayer& layer : weights_.layers) {
        const std::vector<float> values = read(rows, width);
        (layer.*weight).insert((layer.*weight).end(), values.begin(), values.end());
      }
    };
    const std::int64_t kv_width = kv_heads_ * head_dim_;
    weights_.embedding = read(vocabulary_, hidden_);
    read_layers(&LlamaLayer::input_norm, 1, hidden_);
    read_layers(&LlamaLayer::q_proj, hidden_, hidden_);
    read_layers(&LlamaLayer::k_proj, kv_width, hidden_);
    read_layers(&LlamaLayer::v_proj, kv_width, hidden_);
    read_layers(&LlamaLayer::o_proj, hidden_, hidden_);
    read_layers(&LlamaLayer::mlp_norm, 1, hidden_);
    read_layers(&LlamaLayer::gate_up_proj, intermediate_, hidden_);
    read_layers(&LlamaLayer::down_proj, hidden_, intermediate_);
    read_layers(&LlamaLayer::gate_up_proj, intermediate_, hidden_);  // behind the gate's rows
    weights_.final_norm = read(1, hidden_);
    read(positions_, head_dim_);  // cosines and sines, which are computed here
    if (!shares_embedding) {
      weights_.classifier = read(vocabulary_, hidden_);
    }
  }

  [[nodiscard]] const std::vector<LlamaLayer>& layers() const noexcept { return weights_.layers; }
  [[nodiscard]] const LlamaWeights& weights() const noexcept { return weights_; }
  [[nodiscard]] LlamaWeights& weights() noexcept { return weights_; }
  [[nodiscard]] const std::vector<float>& classifier() const noexcept {
    return weights_.classifier.empty() ? weights_.embedding : weights_.classifier;
  }
  [[nodiscard]] std::int64_t hidden() const noexcept { return hidden_; }
  [[nodiscard]] std::int64_t vocabulary() const noexcept { return vocabulary_; }
  [[nodiscard]] std::int64_t max_positions() const noexcept { return positions_; }
  [[nodiscard]] std::int64_t q_heads() const noexcept { return q_heads_; }
  [[nodiscard]] std::int64_t kv_heads() const noexcept { return kv_heads_; }
  [[nodiscard]] std::int64_t head_dim() const noexcept { return head_dim_; }
  [[nodiscard]] std::int64_t intermediate() const noexcept { return intermediate_; }
  [[nodiscard]] radixmlp::AttentionWidths widths() const noexcept {
    return {.q = hidden_, .k = kv_heads_ * head_dim_, .v = kv_heads_ * head_dim_, .out = hidden_};
  }

  void embed(radixmlp::RowView<const std::int32_t> tokens, radixmlp::RowView<float> hidden) const {
    for (std::int64_t r = 0; r < hidden.rows(); ++r) {
      std::copy_n(weights_.embedding.data() + *tokens.row(r) * hidden_, hidden_, hidden.row(r));
    }
  }

  void pre_attention(const LlamaLayer& layer, radixmlp::RowView<const std::int32_t> positions,
                     radixmlp::RowView<const float> hidden, radixmlp::RowView<float> q, radixmlp::RowView<float> k,
                     radixmlp::RowView<float> v) const {
    const std::vector<float> normed_rows = norm_rows(hidden, layer.input_norm);
    const radixmlp::RowView<const float> normed(normed_rows.data(), hidden.rows(), hidden_);
    linear(normed, layer.q_proj, 0, q);
    linear(normed, layer.k_proj, 0, k);
    linear(normed, layer.v_proj, 0, v);
    for (std::int64_t r = 0; r < hidden.rows(); ++r) {
      rotate_heads(q.row(r), q_heads_, *positions.row(r));
      rotate_heads(k.row(r), kv_heads_, *positions.row(r));
    }
  }

  void post_attention(const LlamaLayer& layer, radixmlp::RowView<const float> attention_out,
                      radixmlp::RowView<float> hidden) const {
    linear(attention_out, layer.o_proj, 1, hidden);
    const std::vector<float> normed = norm_rows(hidden, layer.mlp_norm);
    std::vector<float> gate_up_rows(static_cast<std::size_t>(hidden.rows() * 2 * intermediate_));
    const radixmlp::RowView<float> gate_up(gate_up_rows.data(), hidden.rows(), 2 * intermediate_);
    linear({normed.data(), hidden.rows(), hidden_}, layer.gate_up_proj, 0, gate_up);
    for (std::int64_t r = 0; r < hidden.rows(); ++r) {
      swiglu(gate_up.row(r), gate_up.row(r) + intermediate_, intermediate_);
    }
    linear(gate_up.columns(0, intermediate_), layer.down_proj, 1, hidden);
  }

  // logits [rows, vocabulary]
  void logits(radixmlp::RowView<const float> hidden, radixmlp::RowView<float> logits) const {
    const std::vector<float> normed = norm_rows(hidden, weights_.final_norm);
    linear({normed.data(), hidden.rows(), hidden_}, classifier(), 0, logits);
  }

  static constexpr float rms_epsilon = 1e-5F;

  [[nodiscard]] std::vector<float> norm_rows(radixmlp::RowView<const float> x, const std::vector<float>& weight) const {
    std::vector<float> normed(static_cast<std::size_t>(x.rows() * hidden_));
    for (std::int64_t r = 0; r < x.rows(); ++r) {
      rms_norm(x.row(r), weight.data(), rms_epsilon, hidden_, normed.data() + r * hidden_);
    }
    return normed;
  }

  // RoPE; neighbours are a pair, as in llama2.c. A negative position rotates back.
  void rotate_heads(float* row, std::int64_t heads, std::int32_t position) const {
    for (std::int64_t i = 0; i < heads * head_dim_; i += 2) {
      const auto exponent = static_cast<float>(i % head_dim_) / static_cast<float>(head_dim_);
      const float angle = static_cast<float>(position) / std::pow(10000.0F, exponent);
      const float cosine = std::cos(angle);
      const float sine = std::sin(angle);
      const float x = row[i];
      const float y = row[i + 1];
      row[i] = x * cosine - y * sine;
      row[i + 1] = x * sine + y * cosine;
    }
  }

 private:
  std::int64_t hidden_ = 0, intermediate_ = 0, q_heads_ = 0, kv_heads_ = 0, head_dim_ = 0, vocabulary_ = 0,
               positions_ = 0;
  LlamaWeights weights_;
};

}  // namespace example
