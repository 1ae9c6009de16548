// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "support/batch_spec.hpp"

namespace radixmlp_test {

// Number of random tries: `fallback`, or what the environment variable says.
inline int tries(const char* variable, int fallback) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? fallback : std::atoi(text);
}

// Q, K and V of a batch, of one head, as any engine would have them: equal rows have equal values, and sequences with
// the same key and past length the same past.
class AttentionValues {
 public:
  static constexpr std::size_t dim = 3;  // of q and k
  static constexpr std::size_t v_dim = 2;
  struct Row {
    double q[dim], k[dim], v[v_dim];
  };

  AttentionValues(const BatchSpec& spec, const OracleIndex& index, std::uint64_t seed) : random_(seed) {
    for (std::int32_t j = 0; j < index.compact_rows; ++j) {
      rows.push_back(row());
    }
    std::map<std::vector<std::uint64_t>, std::vector<Row>> known;
    for (std::size_t s = 0; s < spec.sequences(); ++s) {
      const auto length = static_cast<std::size_t>(spec.past_lengths.empty() ? 0 : spec.past_lengths[s]);
      std::vector<std::uint64_t> identity{length, spec.opt_out.empty() || spec.opt_out[s] == 0 ? 0 : s + 1};
      if (!spec.sequence_keys.empty()) {
        identity.push_back(spec.sequence_keys[s].lo);
        identity.push_back(spec.sequence_keys[s].hi);
      }
      std::vector<Row>& rows_before = known[identity];
      while (rows_before.size() < length) {
        rows_before.push_back(row());
      }
      past.push_back(rows_before);
    }
  }

  std::vector<Row> rows;               // of each compact row
  std::vector<std::vector<Row>> past;  // of each sequence

 private:
  Row row() {
    std::uniform_real_distribution<double> value(-1, 1);
    Row r{};
    for (double& x : r.q)
      x = value(random_);
    for (double& x : r.k)
      x = value(random_);
    for (double& x : r.v)
      x = value(random_);
    return r;
  }
  std::mt19937_64 random_;
};

using AttentionOut = std::vector<double>;  // [rows * AttentionValues::v_dim]

// Softmax attention of one query over keys first .. last (both included), in double precision.
template <class Key>
void attend_to(const AttentionValues::Row& query, std::int64_t first, std::int64_t last, Key key, double* out) {
  std::vector<double> weights;
  double sum = 0;
  for (std::int64_t k = first; k <= last; ++k) {
    double score = 0;
    for (std::size_t d = 0; d < AttentionValues::dim; ++d) {
      score += query.q[d] * key(k).k[d];
    }
    weights.push_back(std::exp(score));
    sum += weights.back();
  }
  for (std::size_t d = 0; d < AttentionValues::v_dim; ++d) {
    out[d] = 0;
    for (std::int64_t k = first; k <= last; ++k) {
      out[d] += weights[static_cast<std::size_t>(k - first)] / sum * key(k).v[d];
    }
  }
}

// The dense reference: every ragged row over its own past and sequence, nothing shared; window 0 = all keys.
inline AttentionOut reference_attention(const BatchSpec& spec, const OracleIndex& index, const AttentionValues& values,
                                        std::int32_t window) {
  AttentionOut out(static_cast<std::size_t>(spec.rows()) * AttentionValues::v_dim);
  for (std::size_t s = 0; s < spec.sequences(); ++s) {
    std::vector<AttentionValues::Row> keys = values.past[s];
    const auto past = static_cast<std::int64_t>(keys.size());
    for (std::int32_t i = spec.cu_seqlens[s]; i < spec.cu_seqlens[s + 1]; ++i) {
      keys.push_back(values.rows[static_cast<std::size_t>(index.scatter[static_cast<std::size_t>(i)])]);
    }
    for (std::int32_t i = spec.cu_seqlens[s]; i < spec.cu_seqlens[s + 1]; ++i) {
      const std::int64_t place = past + i - spec.cu_seqlens[s];
      attend_to(
          keys[static_cast<std::size_t>(place)], window == 0 ? 0 : std::max<std::int64_t>(place - window + 1, 0), place,
          [&](std::int64_t k) -> const AttentionValues::Row& { return keys[static_cast<std::size_t>(k)]; },
          &out[static_cast<std::size_t>(i) * AttentionValues::v_dim]);
    }
  }
  return out;
}

}  // namespace radixmlp_test
