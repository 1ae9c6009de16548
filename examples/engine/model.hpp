// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "radixmlp/radixmlp.hpp"

namespace example {

// Dimensions of a decoder with grouped-query attention and a gated MLP.
struct ModelConfig {
  std::string_view name;
  std::int64_t hidden;
  std::int64_t q_heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t intermediate;
  std::int64_t layers = 1;  // of the whole model

  static constexpr float rms_epsilon = 1e-6F;
  static constexpr double rope_theta = 1e6;

  [[nodiscard]] constexpr radixmlp::AttentionWidths widths() const noexcept {
    return {.q = q_heads * head_dim, .k = kv_heads * head_dim, .v = kv_heads * head_dim, .out = q_heads * head_dim};
  }

  // What the cost model wants to know of a layer.
  [[nodiscard]] constexpr radixmlp::LayerShape layer_shape() const noexcept {
    const std::int64_t weights = hidden * (widths().qkv() + widths().out + 3 * intermediate);
    return {.row_flops = 2.0 * static_cast<double>(weights),
            .pair_flops = 2.0 * static_cast<double>(widths().q + widths().out)};
  }
};

// As published with the models; "tiny" is for tests.
inline constexpr std::array<ModelConfig, 7> presets{{
    {"tiny", 64, 4, 2, 32, 192, 2},
    {"qwen3-0.6b", 1024, 16, 8, 128, 3072, 28},
    {"qwen3-1.7b", 2048, 16, 8, 128, 6144, 28},
    {"qwen3-4b", 2560, 32, 8, 128, 9728, 36},
    {"qwen3-8b", 4096, 32, 8, 128, 12288, 36},
    {"llama3-8b", 4096, 32, 8, 128, 14336, 32},
    {"llama3-70b", 8192, 64, 8, 128, 28672, 80},
}};

inline const ModelConfig& find_preset(std::string_view name) {
  std::string known;
  for (const ModelConfig& preset : presets) {
    if (preset.name == name) {
      return preset;
    }
    known += ' ' + std::string(preset.name);
  }
  throw std::invalid_argument("unknown preset \"" + std::string(name) + "\"; known:" + known);
}

// RoPE: for each position below max_positions, the cosines and then the sines of its head_dim / 2 angles.
inline std::vector<float> rope_rotations(const ModelConfig& config, std::int64_t max_positions) {
  const std::int64_t half = config.head_dim / 2;
  std::vector<float> rotations(static_cast<std::size_t>(max_positions * config.head_dim));
  for (std::int64_t p = 0; p < max_positions; ++p) {
    float* const rotation = rotations.data() + p * config.head_dim;
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) /
                           std::pow(ModelConfig::rope_theta, static_cast<double>(i) / static_cast<double>(half));
      rotation[i] = static_cast<float>(std::cos(angle));
      rotation[half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return rotations;
}

// Reproducible noise, uniform in [-1, 1): a function of its place, so that CPU and GPU agree without a table.
RADIXMLP_HOST_DEVICE constexpr float noise(std::uint32_t stream, std::uint32_t i) noexcept {
  std::uint32_t x = i * 0x9e3779b9U + stream * 0x85ebca6bU + 1;
  x = (x ^ (x >> 16)) * 0x21f0aaadU;
  x = (x ^ (x >> 15)) * 0x735a2d97U;
  x ^= x >> 15;
  return static_cast<float>(static_cast<std::int32_t>(x)) * 0x1p-31F;
}

// Element `column` of a token's embedding; unit variance.
RADIXMLP_HOST_DEVICE constexpr float embedding(std::int32_t token, std::int64_t column) noexcept {
  return 1.7320508F * noise(static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(column));
}

// Weights of one layer; matrices are [out, in]. Random, scaled so that activations keep the size of their input.
struct LayerWeights {
  std::vector<float> input_norm, q_proj, k_proj, v_proj, q_norm, k_norm, o_proj;
  std::vector<float> mlp_norm, gate_up_proj, down_proj;  // gate_up: the gate's rows, then as many of up

  LayerWeights(const ModelConfig& c, std::uint32_t layer) {
    const radixmlp::AttentionWidths widths = c.widths();
    std::uint32_t stream = 16 * layer;
    const auto matrix = [&](std::int64_t out, std::int64_t in) {
      return random(++stream, out * in, 0, std::sqrt(3.0F / static_cast<float>(in)));
    };
    const auto norm = [&](std::int64_t width) { return random(++stream, width, 1, 0.5F); };
    input_norm = norm(c.hidden);
    q_proj = matrix(widths.q, c.hidden);
    k_proj = matrix(widths.k, c.hidden);
    v_proj = matrix(widths.v, c.hidden);
    q_norm = norm(c.head_dim);
    k_norm = norm(c.head_dim);
    o_proj = matrix(c.hidden, widths.out);
    mlp_norm = norm(c.hidden);
    gate_up_proj = matrix(2 * c.intermediate, c.hidden);
    down_proj = matrix(c.hidden, c.intermediate);
  }

 private:
  static std::vector<float> random(std::uint32_t stream, std::int64_t size, float mean, float spread) {
    std::vector<float> values(static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = mean + spread * noise(stream, static_cast<std::uint32_t>(i));
    }
    return values;
  }
};

}  // namespace example
