// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda_kernels.cuh"
#include "engine/model.hpp"
#include "radixmlp/cuda.cuh"

namespace example {

inline void check(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
  }
}

inline bool has_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) { check(cudaMalloc(&data_, std::max<std::size_t>(bytes(), 1))); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice));
  }
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return size_ * sizeof(T); }
  [[nodiscard]] std::span<T> span() const noexcept { return {data_, size_}; }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

// Weights of one layer on the device: matrices as T, norms as float.
template <class T>
struct DeviceLayer {
  DeviceArray<float> input_norm, q_norm, k_norm, mlp_norm;
  DeviceArray<T> q_proj, k_proj, v_proj, o_proj, gate_up_proj, down_proj;

  explicit DeviceLayer(const LayerWeights& w)
      : input_norm(w.input_norm),
        q_norm(w.q_norm),
        k_norm(w.k_norm),
        mlp_norm(w.mlp_norm),
        q_proj(converted(w.q_proj)),
        k_proj(converted(w.k_proj)),
        v_proj(converted(w.v_proj)),
        o_proj(converted(w.o_proj)),
        gate_up_proj(converted(w.gate_up_proj)),
        down_proj(converted(w.down_proj)) {}

 private:
  static std::vector<T> converted(const std::vector<float>& values) {
    std::vector<T> out;
    out.reserve(values.size());
    for (const float value : values) {
      out.push_back(T(value));
    }
    return out;
  }
};

// CpuEngine's twin on a stream. Every call enqueues and returns; nothing is allocated after construction.
// Gemm(x, weight, beta, y) enqueues y = x * weight^T + beta * y on the stream; weight is [y.width, x.width].
template <class T, class Gemm>
class CudaEngine {
 public:
  // Positions that occur are below max_positions.
  CudaEngine(const ModelConfig& config, cudaStream_t stream, Gemm gemm, std::int64_t max_positions)
      : config_(config),
        stream_(stream),
        gemm_(std::move(gemm)),
        rotations_(rope_rotations(config, max_positions)),
        normed_(static_cast<std::size_t>(chunk_rows * config.hidden)),
        gate_up_(static_cast<std::size_t>(chunk_rows * 2 * config.intermediate)) {
    if (config.head_dim > max_head_dim || config.head_dim % warp_lanes != 0) {
      throw std::invalid_argument("the attention kernel takes a head size that is a multiple of 32, up to 128");
    }
  }

  [[nodiscard]] std::size_t scratch_bytes() const noexcept {
    return rotations_.bytes() + normed_.bytes() + gate_up_.bytes();
  }

  void embed(const radixmlp::RowView<const std::int32_t>& tokens, const radixmlp::RowView<T>& hidden) const {
    launch(embed_kernel<T>, hidden.rows(), tokens.data(), hidden.rows(), hidden.width(), rows_of(hidden));
  }

  // Norm, projections, per-head norm and RoPE of q and k.
  void pre_attention(const DeviceLayer<T>& layer, const radixmlp::RowView<const std::int32_t>& positions,
                     const radixmlp::RowView<const T>& hidden, const radixmlp::RowView<T>& q,
                     const radixmlp::RowView<T>& k, const radixmlp::RowView<T>& v) const {
    for_each_chunk(hidden.rows(), [&](std::int64_t first, std::int64_t rows) {
      const radixmlp::RowView<T> normed(normed_.data(), rows, config_.hidden);
      const auto q_chunk = q.rows_from(first, rows);
      const auto k_chunk = k.rows_from(first, rows);
      norm(hidden.rows_from(first, rows), layer.input_norm, normed);
      gemm_(normed, layer.q_proj.data(), 0, q_chunk);
      gemm_(normed, layer.k_proj.data(), 0, k_chunk);
      gemm_(normed, layer.v_proj.data(), 0, v.rows_from(first, rows));
      norm_and_rotate(q_chunk, config_.q_heads, layer.q_norm, positions.row(first));
      norm_and_rotate(k_chunk, config_.kv_heads, layer.k_norm, positions.row(first));
    });
  }

  // Attention by the call's plan: any layout.
  void attention(const radixmlp::AttentionCall<T>& call) const {
    const AttentionSegments segments{call.plan.cu_seqlens_q.data(), call.plan.cu_seqlens_k.data(),
                                     call.plan.key_slots.data(), call.plan.segments()};
    launch(attention_kernel<T>, call.q.rows() * config_.q_heads, rows_of(call.q), rows_of(call.k), rows_of(call.v),
           rows_of(call.out), segments, call.q.rows(), config_.q_heads, config_.q_heads / config_.kv_heads,
           static_cast<int>(config_.head_dim));
  }

  // Output projection, residual, norm, SwiGLU MLP, residual.
  void post_attention(const DeviceLayer<T>& layer, const radixmlp::RowView<const T>& attention_out,
                      const radixmlp::RowView<T>& hidden) const {
    for_each_chunk(hidden.rows(), [&](std::int64_t first, std::int64_t rows) {
      const radixmlp::RowView<T> residual = hidden.rows_from(first, rows);
      const radixmlp::RowView<T> normed(normed_.data(), rows, config_.hidden);
      const radixmlp::RowView<T> gate_up(gate_up_.data(), rows, 2 * config_.intermediate);
      gemm_(attention_out.rows_from(first, rows), layer.o_proj.data(), 1, residual);
      norm(residual, layer.mlp_norm, normed);
      gemm_(normed, layer.gate_up_proj.data(), 0, gate_up);
      launch(swiglu_kernel<T>, rows, rows_of(gate_up), rows, config_.intermediate);
      gemm_(gate_up.columns(0, config_.intermediate), layer.down_proj.data(), 1, residual);
    });
  }

 private:
  static constexpr std::int64_t chunk_rows = 8192;  // enough to fill a large GPU, and the MLP's scratch stays small

  template <class U>
  [[nodiscard]] static DeviceRows<U> rows_of(const radixmlp::RowView<U>& view) noexcept {
    return {view.data(), view.stride()};
  }
  template <class F>
  static void for_each_chunk(std::int64_t rows, F&& f) {
    for (std::int64_t first = 0; first < rows; first += chunk_rows) {
      f(first, std::min(chunk_rows, rows - first));
    }
  }

  template <class... Parameters, class... Arguments>
  void launch(void (*kernel)(Parameters...), std::int64_t warps, const Arguments&... arguments) const {
    if (warps > 0) {
      const std::int64_t blocks = (warps + warps_per_block - 1) / warps_per_block;
      kernel<<<static_cast<unsigned>(blocks), warps_per_block * warp_lanes, 0, stream_>>>(arguments...);
      check(cudaGetLastError());
    }
  }

  void norm(const radixmlp::RowView<const T>& x, const DeviceArray<float>& weight,
            const radixmlp::RowView<T>& out) const {
    launch(rms_norm_kernel<T>, x.rows(), rows_of(x), weight.data(), x.rows(), x.width(), rows_of(out));
  }
  void norm_and_rotate(const radixmlp::RowView<T>& x, std::int64_t heads, const DeviceArray<float>& weight,
                       const std::int32_t* positions) const {
    launch(norm_and_rotate_kernel<T>, x.rows() * heads, rows_of(x), weight.data(), positions, rotations_.data(),
           x.rows(), heads, config_.head_dim);
  }

  ModelConfig config_;
  cudaStream_t stream_;
  Gemm gemm_;
  DeviceArray<float> rotations_;
  DeviceArray<T> normed_, gate_up_;
};

}  // namespace example
