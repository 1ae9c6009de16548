// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <vector>

#include "toy.hpp"

// Stand-ins for two attention libraries: their arguments by name, what they demand of them, and none of their code.

inline void demand(bool holds, const char* what) {
  if (!holds) {
    throw std::invalid_argument(what);
  }
}

struct FlashAttentionArguments {
  const float *q, *k, *v;
  float* out;
  std::int64_t q_row_stride, k_row_stride, v_row_stride, o_row_stride;  // elements
  std::int64_t total_q, total_k;
  std::span<const std::int32_t> cu_seqlens_q, cu_seqlens_k;
  std::int32_t max_seqlen_q, max_seqlen_k;
  bool causal;
};

// flash_attn_varlen_func: causal from the bottom right where lengths of queries and keys differ.
inline void flash_attn_varlen(const FlashAttentionArguments& a) {
  demand(a.causal && toy::head_dim % 8 == 0, "head size");
  demand(a.cu_seqlens_q.size() == a.cu_seqlens_k.size() && a.cu_seqlens_q[0] == 0 && a.cu_seqlens_k[0] == 0, "sizes");
  demand(a.cu_seqlens_q.back() == a.total_q && a.cu_seqlens_k.back() == a.total_k, "totals");
  demand(a.k_row_stride == a.v_row_stride, "a test's simplification");
  for (std::size_t e = 0; e + 1 < a.cu_seqlens_q.size(); ++e) {
    const std::int32_t queries = a.cu_seqlens_q[e + 1] - a.cu_seqlens_q[e];
    const std::int32_t keys = a.cu_seqlens_k[e + 1] - a.cu_seqlens_k[e];
    demand(queries > 0, "some versions fail on sequences without queries");
    demand(queries <= keys && queries <= a.max_seqlen_q && keys <= a.max_seqlen_k, "lengths");
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::int64_t row = a.cu_seqlens_q[e] + i;
      for (std::int64_t c = 0; c < toy::width; c += toy::head_dim) {
        toy::attend(
            a.q + row * a.q_row_stride + c, a.k + c, a.v + c, a.k_row_stride, keys - queries + i + 1,
            [&](std::int64_t key) { return a.cu_seqlens_k[e] + key; }, a.out + row * a.o_row_stride + c);
      }
    }
  }
}

// BatchPrefillWithPagedKVCacheWrapper: plan() reads its arrays on the host and keeps copies, run() takes a page table.
class BatchPrefillWithPagedKVCache {
 public:
  void plan(std::span<const std::int32_t> qo_indptr, std::span<const std::int32_t> paged_kv_indptr,
            std::span<const std::int32_t> paged_kv_indices, std::span<const std::int32_t> paged_kv_last_page_len,
            std::int64_t page_size, bool causal) {
    const std::size_t batch = paged_kv_last_page_len.size();
    demand(qo_indptr.size() == batch + 1 && paged_kv_indptr.size() == batch + 1 && causal, "sizes");
    demand(static_cast<std::int64_t>(paged_kv_indices.size()) == paged_kv_indptr.back(), "indices");
    demand(std::all_of(paged_kv_last_page_len.begin(), paged_kv_last_page_len.end(),
                       [&](std::int32_t length) { return length >= 1 && length <= page_size; }),
           "last page");
    demand(page_size == 1, "a test's simplification");
    qo_indptr_.assign(qo_indptr.begin(), qo_indptr.end());
    kv_indptr_.assign(paged_kv_indptr.begin(), paged_kv_indptr.end());
    kv_indices_.assign(paged_kv_indices.begin(), paged_kv_indices.end());
  }

  void run(const float* q, std::int64_t q_stride, const float* k_cache, std::int64_t k_stride, const float* v_cache,
           std::int64_t v_stride, float* out, std::int64_t out_stride) const {
    demand(k_stride == v_stride, "K and V must have equal strides");
    for (std::size_t e = 0; e + 1 < qo_indptr_.size(); ++e) {
      for (std::int64_t i = qo_indptr_[e]; i < qo_indptr_[e + 1]; ++i) {
        const std::int64_t keys = kv_indptr_[e + 1] - kv_indptr_[e] - (qo_indptr_[e + 1] - 1 - i);
        for (std::int64_t c = 0; c < toy::width; c += toy::head_dim) {
          toy::attend(
              q + i * q_stride + c, k_cache + c, v_cache + c, k_stride, keys,
              [&](std::int64_t key) { return kv_indices_[static_cast<std::size_t>(kv_indptr_[e] + key)]; },
              out + i * out_stride + c);
        }
      }
    }
  }

 private:
  std::vector<std::int32_t> qo_indptr_, kv_indptr_, kv_indices_;
};
