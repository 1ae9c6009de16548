// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/cpu_kernels.hpp"
#include "engine/model.hpp"

namespace example {

// Causal grouped-query attention in tiles with an online softmax: memory does not depend on the sequence's length.
// The query heads that share a K/V head are stacked into one tile, so each product has group * query_rows rows.
class AttentionTile {
 public:
  static constexpr std::int64_t query_rows = 64;
  static constexpr std::int64_t key_rows = 256;  // a multiple of query_rows: then every query sees some key of a tile

  explicit AttentionTile(const ModelConfig& config) noexcept
      : group_(config.q_heads / config.kv_heads), head_dim_(config.head_dim) {}

  [[nodiscard]] std::int64_t scratch_floats() const noexcept {
    return group_ * query_rows * (2 * head_dim_ + key_rows + 2);
  }

  // Queries first .. first + query_rows (or the end) of the sequence that starts at row `begin` and ends before `end`,
  // for the query heads of one K/V head.
  void attend(const radixmlp::AttentionCall<float>& call, std::int64_t begin, std::int64_t end, std::int64_t first,
              std::int64_t kv_head, float* scratch) const {
    const std::int64_t queries = std::min(query_rows, end - begin - first);
    const std::int64_t rows = group_ * queries;
    float* const q = scratch;
    float* const out = q + rows * head_dim_;
    float* const scores = out + rows * head_dim_;
    float* const maxima = scores + rows * key_rows;
    float* const sums = maxima + rows;

    const float scale = 1 / std::sqrt(static_cast<float>(head_dim_));
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* const source = call.q.row(begin + first + r % queries) + query_head(kv_head, r / queries);
      for (std::int64_t i = 0; i < head_dim_; ++i) {
        q[r * head_dim_ + i] = source[i] * scale;
      }
    }
    std::fill_n(out, rows * head_dim_, 0.0F);
    std::fill_n(maxima, rows, -std::numeric_limits<float>::infinity());
    std::fill_n(sums, rows, 0.0F);

    for (std::int64_t key = 0; key < first + queries; key += key_rows) {
      const std::int64_t keys = std::min(key_rows, first + queries - key);
      multiply(CblasTrans, rows, keys, head_dim_, q, head_dim_, call.k, begin + key, kv_head, 0, scores, key_rows);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t visible = std::min(keys, first + r % queries + 1 - key);
        float* const score = scores + r * key_rows;
        const float shift = std::max(maxima[r], maximum(score, visible));
        const float rescale = exp_of_nonpositive(maxima[r] - shift);
        maxima[r] = shift;
        sums[r] = sums[r] * rescale + exponentiate(score, visible, shift);
        std::fill(score + visible, score + keys, 0.0F);
        for (std::int64_t i = 0; i < head_dim_; ++i) {
          out[r * head_dim_ + i] *= rescale;
        }
      }
      multiply(CblasNoTrans, rows, head_dim_, keys, scores, key_rows, call.v, begin + key, kv_head, 1, out, head_dim_);
    }

    for (std::int64_t r = 0; r < rows; ++r) {
      float* const target = call.out.row(begin + first + r % queries) + query_head(kv_head, r / queries);
      for (std::int64_t i = 0; i < head_dim_; ++i) {
        target[i] = out[r * head_dim_ + i] / sums[r];
      }
    }
  }

 private:
  // Column where a query head of the group starts.
  [[nodiscard]] std::int64_t query_head(std::int64_t kv_head, std::int64_t member) const noexcept {
    return (kv_head * group_ + member) * head_dim_;
  }

  // c [m, n] = a [m, k] * (one head of K or V, from row `row` on, transposed or not) + beta * c
  void multiply(CBLAS_TRANSPOSE transpose, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                std::int64_t a_stride, const radixmlp::RowView<const float>& b, std::int64_t row, std::int64_t kv_head,
                float beta, float* c, std::int64_t c_stride) const {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, transpose, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
                1.0F, a, static_cast<int>(a_stride), b.row(row) + kv_head * head_dim_, static_cast<int>(b.stride()),
                beta, c, static_cast<int>(c_stride));
  }

  std::int64_t group_;
  std::int64_t head_dim_;
};

}  // namespace example
