// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "engine/cpu_kernels.hpp"
#include "engine/model.hpp"

namespace example {

// Causal grouped-query attention in tiles with an online softmax: memory does not depend on the sequence's length.
// The query heads that share a K/V head are stacked into one tile, so each product has group * query_rows rows. Works
// by the call's plan, so it serves every layout; keys that do not follow each other are packed, a tile at a time.
class AttentionTile {
 public:
  static constexpr std::int64_t query_rows = 64;
  static constexpr std::int64_t key_rows = 256;

  explicit AttentionTile(const ModelConfig& config) noexcept
      : group_(config.q_heads / config.kv_heads), head_dim_(config.head_dim) {}

  [[nodiscard]] std::int64_t scratch_floats() const noexcept {
    return group_ * query_rows * (2 * head_dim_ + key_rows + 2) + key_rows * head_dim_;
  }

  // Queries first .. first + query_rows (or the end) of segment e of the plan, for the query heads of one K/V head.
  void attend(const radixmlp::AttentionCall<float>& call, std::size_t e, std::int64_t first, std::int64_t kv_head,
              float* scratch) const {
    const radixmlp::AttentionPlan& plan = call.plan;
    const std::int64_t begin = plan.cu_seqlens_q[e];
    const std::int64_t segment_queries = plan.cu_seqlens_q[e + 1] - begin;
    const std::int64_t first_key = plan.cu_seqlens_k[e];
    const std::int64_t segment_keys = plan.cu_seqlens_k[e + 1] - first_key;
    const std::int64_t queries = std::min(query_rows, segment_queries - first);
    const std::int64_t seen = segment_keys - segment_queries + first + 1;  // by the first of these queries
    const std::int64_t rows = group_ * queries;
    float* const q = scratch;
    float* const out = q + rows * head_dim_;
    float* const scores = out + rows * head_dim_;
    float* const maxima = scores + rows * key_rows;
    float* const sums = maxima + rows;
    float* const packed = sums + rows;

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

    for (std::int64_t key = 0; key < seen + queries - 1; key += key_rows) {
      const std::int64_t keys = std::min(key_rows, seen + queries - 1 - key);
      const Head k = head(call.k, plan.key_slots, first_key + key, keys, kv_head, packed);
      multiply(CblasTrans, rows, keys, head_dim_, q, head_dim_, k, 0, scores, key_rows);
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t visible = std::clamp<std::int64_t>(seen + r % queries - key, 0, keys);
        float* const score = scores + r * key_rows;
        std::fill(score + visible, score + keys, 0.0F);
        if (visible == 0) {
          continue;
        }
        const float shift = std::max(maxima[r], maximum(score, visible));
        const float rescale = exp_of_nonpositive(maxima[r] - shift);
        maxima[r] = shift;
        sums[r] = sums[r] * rescale + exponentiate(score, visible, shift);
        for (std::int64_t i = 0; i < head_dim_; ++i) {
          out[r * head_dim_ + i] *= rescale;
        }
      }
      const Head v = head(call.v, plan.key_slots, first_key + key, keys, kv_head, packed);
      multiply(CblasNoTrans, rows, head_dim_, keys, scores, key_rows, v, 1, out, head_dim_);
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

  // One head of some rows of K or V.
  struct Head {
    const float* data;
    std::int64_t stride;
  };

  // Keys first .. first + count. Slots that count up are rows that follow each other; else they are packed.
  [[nodiscard]] Head head(const radixmlp::RowView<const float>& rows, std::span<const std::int32_t> slots,
                          std::int64_t first, std::int64_t count, std::int64_t kv_head, float* packed) const {
    if (slots.empty()) {
      return {rows.row(first) + kv_head * head_dim_, rows.stride()};
    }
    const std::int32_t* const slot = slots.data() + first;
    std::int64_t run = 1;
    while (run < count && slot[run] == slot[0] + run) {
      ++run;
    }
    if (run == count) {
      return {rows.row(slot[0]) + kv_head * head_dim_, rows.stride()};
    }
    for (std::int64_t i = 0; i < count; ++i) {
      std::copy_n(rows.row(slot[i]) + kv_head * head_dim_, head_dim_, packed + i * head_dim_);
    }
    return {packed, head_dim_};
  }

  // c [m, n] = a [m, k] * (b, transposed or not) + beta * c
  static void multiply(CBLAS_TRANSPOSE transpose, std::int64_t m, std::int64_t n, std::int64_t k, const float* a,
                       std::int64_t a_stride, const Head& b, float beta, float* c, std::int64_t c_stride) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, transpose, static_cast<int>(m), static_cast<int>(n), static_cast<int>(k),
                1.0F, a, static_cast<int>(a_stride), b.data, static_cast<int>(b.stride), beta, c,
                static_cast<int>(c_stride));
  }

  std::int64_t group_;
  std::int64_t head_dim_;
};

}  // namespace example
