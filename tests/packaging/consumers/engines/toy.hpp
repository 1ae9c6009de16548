// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <vector>

// A layer that the engines of this folder share: two heads of eight, everything before and after attention row by row.
namespace toy {

constexpr std::int64_t heads = 2, head_dim = 8, width = heads * head_dim;

// Three sequences that share a beginning, one after the other.
inline const std::vector<std::int32_t> tokens{7, 8, 9, 1, 2, /**/ 7, 8, 9, 4, /**/ 7, 8, 9, 4, 5};
inline const std::vector<std::int32_t> cu_seqlens{0, 5, 9, 14};

inline std::vector<float> embed(std::span<const std::int32_t> ids) {
  std::vector<float> rows;
  for (const std::int32_t id : ids) {
    for (std::int64_t c = 0; c < width; ++c) {
      rows.push_back(std::sin(static_cast<float>(id) + 0.37F * static_cast<float>(c)));
    }
  }
  return rows;
}

// Before attention: columns first .. first + columns of Q, K and V.
inline void project(const float* h, float* q, float* k, float* v, std::int64_t first = 0,
                    std::int64_t columns = width) {
  for (std::int64_t c = 0; c < columns; ++c) {
    const float x = h[first + c];
    q[c] = 0.5F * x + 0.25F * h[(first + c + 1) % width];
    k[c] = x - 0.5F * h[(first + c + 3) % width];
    v[c] = 1.5F * x * x - 0.25F;
  }
}

// After it.
inline void update(const float* attention, float* h, std::int64_t columns = width) {
  for (std::int64_t c = 0; c < columns; ++c) {
    h[c] = std::tanh(h[c] + 0.5F * attention[c]);
  }
}

// One query of one head over `keys` keys, the i-th of which is row row_of(i) of k and v.
template <class RowOf>
void attend(const float* q, const float* k, const float* v, std::int64_t stride, std::int64_t keys, RowOf row_of,
            float* out) {
  float sum = 0;
  std::vector<float> mean(head_dim);
  for (std::int64_t i = 0; i < keys; ++i) {
    float score = 0;
    for (std::int64_t c = 0; c < head_dim; ++c) {
      score += q[c] * k[row_of(i) * stride + c];
    }
    const float weight = std::exp(score);
    sum += weight;
    for (std::int64_t c = 0; c < head_dim; ++c) {
      mean[static_cast<std::size_t>(c)] += weight * v[row_of(i) * stride + c];
    }
  }
  for (std::int64_t c = 0; c < head_dim; ++c) {
    out[c] = mean[static_cast<std::size_t>(c)] / sum;
  }
}

// The layer without this library, on N rows in place.
inline void layer(std::vector<float>& h) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  std::vector<float> q(h.size()), k(h.size()), v(h.size()), out(h.size());
  for (std::int64_t i = 0; i < n; ++i) {
    project(&h[i * width], &q[i * width], &k[i * width], &v[i * width]);
  }
  for (std::size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    for (std::int64_t i = cu_seqlens[s]; i < cu_seqlens[s + 1]; ++i) {
      for (std::int64_t c = 0; c < width; c += head_dim) {
        attend(
            &q[i * width + c], &k[c], &v[c], width, i - cu_seqlens[s] + 1,
            [&](std::int64_t key) { return cu_seqlens[s] + key; }, &out[i * width + c]);
      }
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    update(&out[i * width], &h[i * width]);
  }
}

// Whether rows are equal within 1e-6, or says where they differ.
inline bool equal(std::span<const float> a, std::span<const float> b) {
  for (std::size_t i = 0; i < a.size() && a.size() == b.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= 1e-6F)) {
      std::printf("[%zu]: %g and %g\n", i, static_cast<double>(a[i]), static_cast<double>(b[i]));
      return false;
    }
  }
  return a.size() == b.size();
}

}  // namespace toy
