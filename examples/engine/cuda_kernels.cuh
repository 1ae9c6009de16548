// SPDX-License-Identifier: MIT
#pragma once

// Kernels of the CUDA engine, written to be read: one warp works on one row, or on one head of one row. Arithmetic is
// in float whatever the element type T is.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "engine/model.hpp"

namespace example {

inline constexpr int warp_lanes = 32;
inline constexpr int warps_per_block = 8;
inline constexpr int max_head_dim = 128;

// A matrix of rows on the device.
template <class T>
struct DeviceRows {
  T* data;
  std::int64_t stride;

  __device__ T* row(std::int64_t i) const { return data + i * stride; }
};

__device__ inline std::int64_t warp_index() {
  return std::int64_t{blockIdx.x} * warps_per_block + threadIdx.x / warp_lanes;
}
__device__ inline int lane_index() { return static_cast<int>(threadIdx.x) % warp_lanes; }

__device__ inline float warp_sum(float value) {
  for (int offset = warp_lanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffU, value, offset);
  }
  return value;
}

template <class T>
__global__ void embed_kernel(const std::int32_t* tokens, std::int64_t rows, std::int64_t width, DeviceRows<T> hidden) {
  const std::int64_t r = warp_index();
  if (r < rows) {
    for (std::int64_t i = lane_index(); i < width; i += warp_lanes) {
      hidden.row(r)[i] = T(embedding(tokens[r], i));
    }
  }
}

template <class T>
__global__ void rms_norm_kernel(DeviceRows<const T> x, const float* weight, std::int64_t rows, std::int64_t width,
                                DeviceRows<T> out) {
  const std::int64_t r = warp_index();
  if (r >= rows) {
    return;
  }
  const T* const source = x.row(r);
  float squares = 0;
  for (std::int64_t i = lane_index(); i < width; i += warp_lanes) {
    const float value = float(source[i]);
    squares += value * value;
  }
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(width) + ModelConfig::rms_epsilon);
  for (std::int64_t i = lane_index(); i < width; i += warp_lanes) {
    out.row(r)[i] = T(float(source[i]) * scale * weight[i]);
  }
}

// RMS norm and RoPE of every head of q or k, in place. A lane holds both halves of the pairs that RoPE rotates.
template <class T>
__global__ void norm_and_rotate_kernel(DeviceRows<T> x, const float* weight, const std::int32_t* positions,
                                       const float* rotations, std::int64_t rows, std::int64_t heads,
                                       std::int64_t head_dim) {
  const std::int64_t r = warp_index() / heads;
  if (r >= rows) {
    return;
  }
  T* const head = x.row(r) + warp_index() % heads * head_dim;
  const float* const rotation = rotations + positions[r] * head_dim;
  const std::int64_t half = head_dim / 2;
  float squares = 0;
  for (std::int64_t i = lane_index(); i < head_dim; i += warp_lanes) {
    squares += float(head[i]) * float(head[i]);
  }
  const float scale = rsqrtf(warp_sum(squares) / static_cast<float>(head_dim) + ModelConfig::rms_epsilon);
  for (std::int64_t i = lane_index(); i < half; i += warp_lanes) {
    const float low = float(head[i]) * scale * weight[i];
    const float high = float(head[half + i]) * scale * weight[half + i];
    head[i] = T(low * rotation[i] - high * rotation[half + i]);
    head[half + i] = T(high * rotation[i] + low * rotation[half + i]);
  }
}

// The arrays of a radixmlp::AttentionPlan, on the device. Key i of all is row key_slots[i], or row i without slots.
struct AttentionSegments {
  const std::int32_t* cu_seqlens_q;
  const std::int32_t* cu_seqlens_k;
  const std::int32_t* key_slots;
  std::int64_t count;
};

// Causal attention with an online softmax, aligned bottom-right in each segment: one warp for one query of one head,
// one key after the other.
template <class T>
__global__ void attention_kernel(DeviceRows<const T> q, DeviceRows<const T> k, DeviceRows<const T> v, DeviceRows<T> out,
                                 AttentionSegments segments, std::int64_t rows, std::int64_t q_heads,
                                 std::int64_t group, int head_dim) {
  constexpr int max_per_lane = max_head_dim / warp_lanes;
  const std::int64_t row = warp_index() / q_heads;
  if (row >= rows) {
    return;
  }
  const std::int64_t head = warp_index() % q_heads;
  const std::int64_t q_column = head * head_dim + lane_index();
  const std::int64_t kv_column = head / group * head_dim + lane_index();

  std::int64_t segment = 0;  // the last one that starts at or before the row
  for (std::int64_t beyond = segments.count; beyond - segment > 1;) {
    const std::int64_t middle = (segment + beyond) / 2;
    (segments.cu_seqlens_q[middle] <= row ? segment : beyond) = middle;
  }
  const std::int64_t last_key = segments.cu_seqlens_k[segment + 1] - (segments.cu_seqlens_q[segment + 1] - row);

  float query[max_per_lane];
  float sum_of_values[max_per_lane] = {};
  const int per_lane = head_dim / warp_lanes;
#pragma unroll
  for (int i = 0; i < max_per_lane; ++i) {
    query[i] = i < per_lane ? float(q.row(row)[q_column + i * warp_lanes]) * rsqrtf(static_cast<float>(head_dim)) : 0;
  }
  float maximum = -INFINITY;
  float sum_of_weights = 0;
  for (std::int64_t at = segments.cu_seqlens_k[segment]; at <= last_key; ++at) {
    const std::int64_t key = segments.key_slots != nullptr ? segments.key_slots[at] : at;
    float product = 0;
#pragma unroll
    for (int i = 0; i < max_per_lane; ++i) {
      product += i < per_lane ? query[i] * float(k.row(key)[kv_column + i * warp_lanes]) : 0;
    }
    const float score = warp_sum(product);
    const float new_maximum = fmaxf(maximum, score);
    const float rescale = expf(maximum - new_maximum);
    const float weight = expf(score - new_maximum);
    maximum = new_maximum;
    sum_of_weights = sum_of_weights * rescale + weight;
#pragma unroll
    for (int i = 0; i < max_per_lane; ++i) {
      const float value = i < per_lane ? float(v.row(key)[kv_column + i * warp_lanes]) : 0;
      sum_of_values[i] = sum_of_values[i] * rescale + weight * value;
    }
  }
#pragma unroll
  for (int i = 0; i < max_per_lane; ++i) {
    if (i < per_lane) {
      out.row(row)[q_column + i * warp_lanes] = T(sum_of_values[i] / sum_of_weights);
    }
  }
}

// Of each row [gate, up]: gate = silu(gate) * up
template <class T>
__global__ void swiglu_kernel(DeviceRows<T> gate_up, std::int64_t rows, std::int64_t width) {
  const std::int64_t r = warp_index();
  if (r < rows) {
    T* const gate = gate_up.row(r);
    for (std::int64_t i = lane_index(); i < width; i += warp_lanes) {
      const float x = float(gate[i]);
      gate[i] = T(x / (1 + expf(-x)) * float(gate[width + i]));
    }
  }
}

}  // namespace example
