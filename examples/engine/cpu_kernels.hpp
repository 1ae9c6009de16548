// SPDX-License-Identifier: MIT
#pragma once

// Operations on rows for the CPU engine. Matrix products are BLAS; the loops are plain, in a form that compilers
// vectorise without -ffast-math: sums and maxima run in independent lanes.

#include <cblas.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "radixmlp/rows/row_view.hpp"

// OpenBLAS's own; null where the program has another BLAS.
extern "C" __attribute__((weak)) void openblas_set_num_threads(int threads);

namespace example {

// The engine splits work into chunks of rows over its own threads, so BLAS must not start more. A BLAS other than
// OpenBLAS is told through its environment variable (MKL_NUM_THREADS=1, BLIS_NUM_THREADS=1).
inline void keep_blas_single_threaded() {
  if (openblas_set_num_threads != nullptr) {
    openblas_set_num_threads(1);
  }
}

// y = x * weight^T + beta * y; weight is [y.width, x.width].
inline void linear(const radixmlp::RowView<const float>& x, const std::vector<float>& weight, float beta,
                   const radixmlp::RowView<float>& y) {
  cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<int>(x.rows()), static_cast<int>(y.width()),
              static_cast<int>(x.width()), 1.0F, x.data(), static_cast<int>(x.stride()), weight.data(),
              static_cast<int>(x.width()), beta, y.data(), static_cast<int>(y.stride()));
}

// merge(... merge(merge(start, value(x[0])), value(x[1])) ...), in sixteen lanes that are merged at the end.
template <class Value, class Merge>
float reduce(const float* x, std::int64_t n, float start, Value value, Merge merge) {
  constexpr std::int64_t lanes = 16;
  float partial[lanes];
  for (float& p : partial) {
    p = start;
  }
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    for (std::int64_t lane = 0; lane < lanes; ++lane) {
      partial[lane] = merge(partial[lane], value(x[i + lane]));
    }
  }
  for (; i < n; ++i) {
    partial[0] = merge(partial[0], value(x[i]));
  }
  for (std::int64_t lane = 1; lane < lanes; ++lane) {
    partial[0] = merge(partial[0], partial[lane]);
  }
  return partial[0];
}

// out may be x.
inline void rms_norm(const float* x, const float* weight, float epsilon, std::int64_t width, float* out) {
  const float squares = reduce(
      x, width, 0, [](float v) { return v * v; }, std::plus<float>{});
  const float scale = 1 / std::sqrt(squares / static_cast<float>(width) + epsilon);
  for (std::int64_t i = 0; i < width; ++i) {
    out[i] = x[i] * scale * weight[i];
  }
}

// Rotates (x[i], x[i + half]) by the angle whose cosine is rotation[i] and whose sine is rotation[half + i].
inline void rotate_half(float* x, const float* rotation, std::int64_t half) {
  for (std::int64_t i = 0; i < half; ++i) {
    const float low = x[i];
    const float high = x[half + i];
    x[i] = low * rotation[i] - high * rotation[half + i];
    x[half + i] = high * rotation[i] + low * rotation[half + i];
  }
}

// e^x for x <= 0, to about 2 ulp; no less than e^-87. Compilers vectorise a loop of it, which they do not for std::exp.
inline float exp_of_nonpositive(float x) {
  constexpr float to_integer = 0x1.8p23F;  // adding it rounds to an integer, subtracting it leaves that
  x = x < -87.0F ? -87.0F : x;
  const float n = (x * 1.44269504F + to_integer) - to_integer;
  const float r = (x - n * 0.693359375F) - n * -2.12194440e-4F;  // x - n ln 2, in two steps
  float p = 1.9875691500e-4F;                                    // minimax polynomial of Cephes' expf
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

// gate = silu(gate) * up
inline void swiglu(float* gate, const float* up, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) {
    const float x = gate[i];
    const float e = exp_of_nonpositive(x < 0 ? x : -x);
    gate[i] = x * (x < 0 ? e : 1.0F) / (1.0F + e) * up[i];
  }
}

inline float maximum(const float* x, std::int64_t n) {
  return reduce(x, n, x[0], std::identity{}, [](float a, float b) { return a < b ? b : a; });
}

// x[i] = e^(x[i] - shift), where shift is at least the largest x; returns their sum.
inline float exponentiate(float* x, std::int64_t n, float shift) {
  for (std::int64_t i = 0; i < n; ++i) {
    x[i] = exp_of_nonpositive(x[i] - shift);
  }
  return reduce(x, n, 0, std::identity{}, std::plus<float>{});
}

}  // namespace example
