// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cpu_attention.hpp"
#include "engine/cpu_kernels.hpp"
#include "engine/model.hpp"
#include "engine/thread_pool.hpp"

namespace example {

// A Qwen3 decoder on the CPU. Knows nothing of compaction: every call works on the rows that it is given.
class CpuEngine {
 public:
  // Positions that occur are below max_positions.
  CpuEngine(const ModelConfig& config, const ThreadPool& pool, std::int64_t max_positions)
      : config_(config),
        pool_(pool),
        attention_tile_(config),
        rotations_(rope_rotations(config, max_positions)),
        scratch_floats_(std::max(max_chunk_rows * (config.hidden + 2 * config.intermediate),  //
                                 attention_tile_.scratch_floats())),
        scratch_(static_cast<std::size_t>(scratch_floats_ * pool.threads())) {
    keep_blas_single_threaded();
  }

  [[nodiscard]] std::size_t scratch_bytes() const noexcept {
    return (scratch_.size() + rotations_.size()) * sizeof(float);
  }

  void embed(const radixmlp::RowView<const std::int32_t>& tokens, const radixmlp::RowView<float>& hidden) {
    for_each_chunk(hidden.rows(), [&](std::int64_t first, std::int64_t rows, float*) {
      for (std::int64_t r = first; r < first + rows; ++r) {
        for (std::int64_t i = 0; i < config_.hidden; ++i) {
          hidden.row(r)[i] = embedding(*tokens.row(r), i);
        }
      }
    });
  }

  // Norm, projections, per-head norm and RoPE of q and k.
  void pre_attention(const LayerWeights& weights, const radixmlp::RowView<const std::int32_t>& positions,
                     const radixmlp::RowView<const float>& hidden, const radixmlp::RowView<float>& q,
                     const radixmlp::RowView<float>& k, const radixmlp::RowView<float>& v) {
    for_each_chunk(hidden.rows(), [&](std::int64_t first, std::int64_t rows, float* scratch) {
      const radixmlp::RowView<float> normed(scratch, rows, config_.hidden);
      norm_rows(hidden.rows_from(first, rows), weights.input_norm, normed);
      linear(normed, weights.q_proj, 0, q.rows_from(first, rows));
      linear(normed, weights.k_proj, 0, k.rows_from(first, rows));
      linear(normed, weights.v_proj, 0, v.rows_from(first, rows));
      for (std::int64_t r = first; r < first + rows; ++r) {
        const float* const rotation = rotations_.data() + *positions.row(r) * config_.head_dim;
        norm_and_rotate_heads(q.row(r), config_.q_heads, weights.q_norm, rotation);
        norm_and_rotate_heads(k.row(r), config_.kv_heads, weights.k_norm, rotation);
      }
    });
  }

  // Attention by the call's plan: any layout.
  void attention(const radixmlp::AttentionCall<float>& call) {
    constexpr std::int64_t tile = AttentionTile::query_rows;
    const std::span<const std::int32_t> cu = call.plan.cu_seqlens_q;
    std::vector<std::int64_t> first_tile{0};  // of each segment
    for (std::size_t e = 1; e < cu.size(); ++e) {
      first_tile.push_back(first_tile.back() + divided_up(cu[e] - cu[e - 1], tile));
    }
    for_each(first_tile.back() * config_.kv_heads, [&](std::int64_t task, float* scratch) {
      const std::int64_t t = task / config_.kv_heads;
      const auto next = std::ranges::upper_bound(first_tile, t) - first_tile.begin();
      const auto e = static_cast<std::size_t>(next - 1);
      attention_tile_.attend(call, e, (t - first_tile[e]) * tile, task % config_.kv_heads, scratch);
    });
  }

  // Output projection, residual, norm, SwiGLU MLP, residual.
  void post_attention(const LayerWeights& weights, const radixmlp::RowView<const float>& attention_out,
                      const radixmlp::RowView<float>& hidden) {
    for_each_chunk(hidden.rows(), [&](std::int64_t first, std::int64_t rows, float* scratch) {
      const radixmlp::RowView<float> residual = hidden.rows_from(first, rows);
      const radixmlp::RowView<float> normed(scratch, rows, config_.hidden);
      const radixmlp::RowView<float> gate_up(scratch + rows * config_.hidden, rows, 2 * config_.intermediate);
      const radixmlp::RowView<float> gate = gate_up.columns(0, config_.intermediate);
      linear(attention_out.rows_from(first, rows), weights.o_proj, 1, residual);
      norm_rows(residual, weights.mlp_norm, normed);
      linear(normed, weights.gate_up_proj, 0, gate_up);
      for (std::int64_t r = 0; r < rows; ++r) {
        swiglu(gate.row(r), gate.row(r) + config_.intermediate, config_.intermediate);
      }
      linear(gate, weights.down_proj, 1, residual);
    });
  }

 private:
  // Large enough that packing the weights costs a matrix product little, small enough to keep the scratch small.
  static constexpr std::int64_t max_chunk_rows = 512;

  [[nodiscard]] static std::int64_t divided_up(std::int64_t a, std::int64_t b) noexcept { return (a + b - 1) / b; }

  // f(task, scratch) for every task, with the scratch of the worker that runs it.
  template <class F>
  void for_each(std::int64_t tasks, F&& f) {
    std::atomic<std::int64_t> next = 0;
    pool_.parallel_for(pool_.threads(), [&](std::int64_t worker) {
      float* const scratch = scratch_.data() + worker * scratch_floats_;
      for (std::int64_t task = next++; task < tasks; task = next++) {
        f(task, scratch);
      }
    });
  }

  // f(first, rows, scratch) for chunks of equal size, as many for every thread.
  template <class F>
  void for_each_chunk(std::int64_t all_rows, F&& f) {
    const std::int64_t rounds = std::max<std::int64_t>(divided_up(all_rows, max_chunk_rows * pool_.threads()), 1);
    const std::int64_t chunk_rows = std::max<std::int64_t>(divided_up(all_rows, rounds * pool_.threads()), 1);
    for_each(divided_up(all_rows, chunk_rows), [&](std::int64_t task, float* scratch) {
      const std::int64_t first = task * chunk_rows;
      f(first, std::min(chunk_rows, all_rows - first), scratch);
    });
  }

  void norm_rows(const radixmlp::RowView<const float>& x, const std::vector<float>& weight,
                 const radixmlp::RowView<float>& out) const {
    for (std::int64_t r = 0; r < x.rows(); ++r) {
      rms_norm(x.row(r), weight.data(), ModelConfig::rms_epsilon, x.width(), out.row(r));
    }
  }

  void norm_and_rotate_heads(float* row, std::int64_t heads, const std::vector<float>& weight,
                             const float* rotation) const {
    for (std::int64_t h = 0; h < heads; ++h) {
      float* const head = row + h * config_.head_dim;
      rms_norm(head, weight.data(), ModelConfig::rms_epsilon, config_.head_dim, head);
      rotate_half(head, rotation, config_.head_dim / 2);
    }
  }

  ModelConfig config_;
  const ThreadPool& pool_;
  AttentionTile attention_tile_;
  std::vector<float> rotations_;
  std::int64_t scratch_floats_;  // of one worker
  std::vector<float> scratch_;
};

}  // namespace example
