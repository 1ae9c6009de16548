// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model.hpp"
#include "engine/token_file.hpp"

// The decoder layer written down once more, in double, one row and one head at a time: what the engines must equal.
namespace reference {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

inline std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

inline Row linear(const Row& x, const std::vector<float>& weight) {
  Row y(weight.size() / x.size(), 0.0);
  for (std::size_t o = 0; o < y.size(); ++o) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      y[o] += x[i] * double{weight[o * x.size() + i]};
    }
  }
  return y;
}

inline Row rms_norm(std::span<const double> x, const std::vector<float>& weight) {
  double squares = 0;
  for (const double v : x) {
    squares += v * v;
  }
  Row y(x.begin(), x.end());
  for (std::size_t i = 0; i < y.size(); ++i) {
    y[i] *= double{weight[i]} / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6);
  }
  return y;
}

// Norm and RoPE of each head of a row of q or k.
inline Row norm_and_rotate(const Row& row, const std::vector<float>& weight, std::int32_t position) {
  const std::size_t dim = weight.size();
  const std::size_t half = dim / 2;
  Row out;
  for (std::size_t first = 0; first < row.size(); first += dim) {
    const Row head = rms_norm(std::span(row).subspan(first, dim), weight);
    Row rotated(dim);
    for (std::size_t i = 0; i < half; ++i) {
      const double angle = position * std::pow(1e6, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      rotated[i] = head[i] * std::cos(angle) - head[half + i] * std::sin(angle);
      rotated[half + i] = head[half + i] * std::cos(angle) + head[i] * std::sin(angle);
    }
    out.insert(out.end(), rotated.begin(), rotated.end());
  }
  return out;
}

// Causal attention within each sequence.
inline Rows attention(const example::ModelConfig& config, const Rows& q, const Rows& k, const Rows& v,
                      std::span<const std::int32_t> cu_seqlens) {
  const std::size_t dim = size(config.head_dim);
  const std::size_t group = size(config.q_heads / config.kv_heads);
  Rows out(q.size(), Row(size(config.q_heads) * dim, 0.0));
  for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    for (std::size_t row = size(cu_seqlens[s]); row < size(cu_seqlens[s + 1]); ++row) {
      for (std::size_t head = 0; head < size(config.q_heads); ++head) {
        const std::size_t kv = head / group * dim;
        Row weights;
        double sum = 0;
        for (std::size_t key = size(cu_seqlens[s]); key <= row; ++key) {
          double score = 0;
          for (std::size_t i = 0; i < dim; ++i) {
            score += q[row][head * dim + i] * k[key][kv + i];
          }
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(dim))));
          sum += weights.back();
        }
        for (std::size_t key = 0; key < weights.size(); ++key) {
          for (std::size_t i = 0; i < dim; ++i) {
            out[row][head * dim + i] += weights[key] / sum * v[size(cu_seqlens[s]) + key][kv + i];
          }
        }
      }
    }
  }
  return out;
}

inline Row mlp(const Row& x, const example::LayerWeights& weights) {
  const Row gate_up = linear(x, weights.gate_up_proj);
  Row activated(gate_up.size() / 2);
  for (std::size_t i = 0; i < activated.size(); ++i) {
    activated[i] = gate_up[i] / (1 + std::exp(-gate_up[i])) * gate_up[activated.size() + i];
  }
  return linear(activated, weights.down_proj);
}

inline void add(Row& x, const Row& y) {
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] += y[i];
  }
}

// The hidden states of all rows after the layers.
inline Rows forward(const example::ModelConfig& config, const std::vector<example::LayerWeights>& layers,
                    const example::TokenBatch& batch) {
  Rows hidden;
  for (const std::int32_t token : batch.tokens) {
    Row row;
    for (std::int64_t i = 0; i < config.hidden; ++i) {
      row.push_back(double{example::embedding(token, i)});
    }
    hidden.push_back(row);
  }
  for (const example::LayerWeights& weights : layers) {
    Rows q, k, v;
    for (std::size_t r = 0; r < hidden.size(); ++r) {
      const Row x = rms_norm(hidden[r], weights.input_norm);
      q.push_back(norm_and_rotate(linear(x, weights.q_proj), weights.q_norm, batch.positions[r]));
      k.push_back(norm_and_rotate(linear(x, weights.k_proj), weights.k_norm, batch.positions[r]));
      v.push_back(linear(x, weights.v_proj));
    }
    const Rows out = attention(config, q, k, v, batch.cu_seqlens);
    for (std::size_t r = 0; r < hidden.size(); ++r) {
      add(hidden[r], linear(out[r], weights.o_proj));
      add(hidden[r], mlp(rms_norm(hidden[r], weights.mlp_norm), weights));
    }
  }
  return hidden;
}

// Largest difference as a share of the largest value; infinite where the sizes differ or something is NaN.
inline double relative_difference(std::span<const float> actual, const Rows& expected) {
  double largest = 0;
  double difference = 0;
  std::size_t i = 0;
  for (const Row& row : expected) {
    for (const double value : row) {
      if (i == actual.size() || std::isnan(actual[i])) {
        return HUGE_VAL;
      }
      largest = std::max(largest, std::abs(value));
      difference = std::max(difference, std::abs(actual[i++] - value));
    }
  }
  return i == actual.size() ? difference / largest : HUGE_VAL;
}

}  // namespace reference
