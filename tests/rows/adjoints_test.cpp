// SPDX-License-Identifier: MIT

// The backward of moving rows and of the output head, against sums over the oracle's maps.

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "radixmlp/index/attention_plan.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "radixmlp/rows/host_adjoints.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/host_backend.hpp"

using namespace radixmlp_test;
using namespace radixmlp;

namespace {

constexpr std::int64_t width = 70;  // more than a block of columns
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

// Integers, so that sums are exact in any order.
std::vector<float> random_rows(std::int64_t rows, std::mt19937_64& random) {
  std::vector<float> values(static_cast<std::size_t>(rows * width));
  for (float& value : values) {
    value = static_cast<float>(random() % 2001) - 1000;
  }
  return values;
}

RowView<float> view(std::vector<float>& values) {
  return {values.data(), static_cast<std::int64_t>(values.size()) / width, width};
}

}  // namespace

TEST_CASE("adjoints of gather and scatter, by the index's maps and by a plan's") {
  RandomBatches batches(91);
  std::mt19937_64 random(92);
  for (int t = 0; t < 150; ++t) {
    CAPTURE(t);
    const BatchSpec spec = batches.next();
    const OracleIndex expected = oracle(spec);
    const TypedBatch<std::int32_t, std::int32_t, Key128> typed(spec);
    PrefixTrie trie;
    const PrefixIndexView index = trie.build(typed.batch(), {.pad_to = spec.pad_to});
    std::vector<float> d_compact = random_rows(expected.padded_rows, random),
                       d_ragged(random_rows(spec.rows(), random));

    std::vector<float> from_compact(d_ragged.size(), nan_value), wanted(d_ragged.size(), 0.0f);
    gather_rows_adjoint(TwoThreads(), index, RowCopy{view(d_compact), view(from_compact)});
    for (std::int32_t j = 0; j < expected.compact_rows; ++j) {
      std::copy_n(view(d_compact).row(j), width, view(wanted).row(expected.gather[static_cast<std::size_t>(j)]));
    }
    REQUIRE(from_compact == wanted);

    std::vector<std::int32_t> memory(row_lists_entries(index));
    std::vector<float> from_ragged(d_compact.size(), nan_value), sums(d_compact.size(), 0.0f);
    scatter_rows_adjoint(TwoThreads(), index, duplicates(index, memory), RowCopy{view(d_ragged), view(from_ragged)});
    for (std::int32_t i = 0; i < spec.rows(); ++i) {
      for (std::int64_t c = 0; c < width; ++c) {
        view(sums).row(expected.scatter[static_cast<std::size_t>(i)])[c] += view(d_ragged).row(i)[c];
      }
    }
    REQUIRE(from_ragged == sums);

    // K and V of compact_query: the map is the plan's.
    const AttentionPlanOptions options{.partition = t % 2 == 0 ? QueryPartition::sequences : QueryPartition::edges};
    std::vector<std::int32_t> plan_memory(attention_plan_entries(index, options));
    const AttentionPlan plan = attention_plan(index, plan_memory, options);
    std::vector<std::int32_t> inverse(static_cast<std::size_t>(plan.keys + index.compact_rows + 1));
    std::vector<float> d_keys = random_rows(plan.keys, random), from_keys(d_compact.size(), nan_value);
    sums.assign(d_compact.size(), 0.0f);
    scatter_rows_adjoint(serial, index, inverse_of(plan.key_slots, index.compact_rows, inverse),
                         RowCopy{view(d_keys), view(from_keys)});
    for (std::int32_t i = 0; i < plan.keys; ++i) {
      for (std::int64_t c = 0; c < width; ++c) {
        view(sums).row(plan.key_slots[static_cast<std::size_t>(i)])[c] += view(d_keys).row(i)[c];
      }
    }
    REQUIRE(from_keys == sums);
  }
}

TEST_CASE("weights of sequences and tokens are summed over duplicates") {
  const TypedBatch<std::int32_t> typed(spec_of({{1, 2, 3}, {1, 2, 4}, {}, {1, 2, 3}}));
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());
  const std::vector<double> of_sequences{1, 10, 1000, 100}, of_tokens{1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::vector<double> out(5, -1);
  row_weights<double>(index, of_sequences, {}, out);
  CHECK(out == std::vector<double>{111, 111, 101, 10, -1});
  row_weights<double>(index, of_sequences, of_tokens, out);
  CHECK(out == std::vector<double>{1 + 40 + 700, 2 + 50 + 800, 3 + 900, 60, -1});
  CHECK_THROWS_WITH(row_weights<double>(index, std::span(of_sequences).first(3), {}, out),
                    "radixmlp: sequence_weights = 3: its size must be at least 4");
}

TEST_CASE("log-probabilities of edges, and their gradient, equal those of every row on its own") {
  RandomBatches batches(93);
  std::mt19937_64 random(94);
  constexpr std::int64_t vocabulary = 11;
  for (int t = 0; t < 100; ++t) {
    CAPTURE(t);
    BatchSpec spec = batches.next();
    for (std::int64_t& token : spec.tokens) {
      token %= vocabulary;
    }
    if (spec.tokens.empty() && spec.rows() > 0) {
      continue;  // known by keys alone: there is nothing to predict
    }
    const OracleIndex expected = oracle(spec);
    const TypedBatch<std::int32_t, std::int32_t, Key128> typed(spec);
    PrefixTrie trie;
    const PrefixIndexView index = trie.build(typed.batch());
    const auto n = static_cast<std::size_t>(expected.compact_rows);
    std::vector<float> logits(n * vocabulary), log_sums(n), out(n), scratch(n), d_out(n), d_logits(logits.size());
    for (float& value : logits) {
      value = static_cast<float>(random() % 1000) * 0.01f;
    }
    std::vector<std::int32_t> tokens;
    for (std::size_t j = 0; j < n; ++j) {
      tokens.push_back(static_cast<std::int32_t>(spec.tokens[static_cast<std::size_t>(expected.gather[j])]));
    }
    const auto logit = [&](std::int32_t row, std::int64_t v) {
      return static_cast<double>(logits[static_cast<std::size_t>(row * vocabulary + v)]);
    };
    const auto probability = [&](std::int32_t row, std::int64_t v) {
      double sum = 0;
      for (std::int64_t u = 0; u < vocabulary; ++u) {
        sum += std::exp(logit(row, u) - logit(row, v));
      }
      return 1 / sum;
    };
    edge_log_probabilities(TwoThreads(), index, RowView<const float>(logits.data(), expected.compact_rows, vocabulary),
                           tokens, log_sums, out);
    // The loss: every token of every sequence, weighted by its sequence.
    std::vector<float> weights;
    double loss = 0;
    std::vector<double> gradient(logits.size(), 0.0);
    for (std::size_t s = 0; s < spec.sequences(); ++s) {
      weights.push_back(0.25f * static_cast<float>(s + 1));
      for (std::int32_t i = spec.cu_seqlens[s] + 1; i < spec.cu_seqlens[s + 1]; ++i) {
        const std::int32_t before = expected.scatter[static_cast<std::size_t>(i - 1)];
        const std::int64_t token = spec.tokens[static_cast<std::size_t>(i)];
        loss -= static_cast<double>(weights[s]) * std::log(probability(before, token));
        for (std::int64_t v = 0; v < vocabulary; ++v) {
          gradient[static_cast<std::size_t>(before * vocabulary + v)] +=
              static_cast<double>(weights[s]) * (probability(before, v) - (v == token ? 1 : 0));
        }
      }
    }
    row_weights<float>(index, weights, {}, d_out);
    double by_edges = 0;
    for (std::size_t j = 0; j < n; ++j) {
      d_out[j] = -d_out[j];
      by_edges += static_cast<double>(d_out[j]) * static_cast<double>(out[j]);
    }
    REQUIRE(by_edges == Approx(loss).epsilon(1e-5));
    const RowView<float> in_place(logits.data(), expected.compact_rows, vocabulary);
    edge_log_probabilities_adjoint(TwoThreads(), index, in_place, tokens, log_sums, d_out, scratch,
                                   RowView<float>(d_logits.data(), expected.compact_rows, vocabulary));
    edge_log_probabilities_adjoint(TwoThreads(), index, in_place, tokens, log_sums, d_out, scratch, in_place);
    double largest = 0;
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      largest =
          std::max(largest, std::abs(static_cast<double>(d_logits[i]) - gradient[i]) / (1 + std::abs(gradient[i])));
    }
    REQUIRE(largest < 1e-5);
    REQUIRE(logits == d_logits);
  }
}

TEST_CASE("what does not fit a backward call is refused") {
  const TypedBatch<std::int32_t> typed(spec_of({{1, 2, 3}, {1, 2, 4}}));
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());
  std::vector<float> compact(4 * width), ragged(6 * width), logits(4 * 9), values(4);
  std::vector<std::int32_t> memory(row_lists_entries(index)), tokens{1, 2, 3, 9};
  const RowLists lists = duplicates(index, memory);
  CHECK_THROWS_WITH(gather_rows_adjoint(serial, index, RowCopy{view(compact), RowView<float>(ragged.data(), 5, width)}),
                    "radixmlp: target.rows[0] = 5: must be at least 6");
  CHECK_THROWS_WITH(
      scatter_rows_adjoint(serial, index, lists, RowCopy{RowView<float>(ragged.data(), 5, width), view(compact)}),
      "radixmlp: source.rows[0] = 5: must be at least 6");
  CHECK_THROWS_WITH(
      scatter_rows_adjoint(serial, index, {lists.offsets.first(4), lists.values}, RowCopy{view(ragged), view(compact)}),
      "radixmlp: copies_of.offsets = 4: its size must be at least 5");
  CHECK_THROWS_WITH(
      edge_log_probabilities(serial, index, RowView<const float>(logits.data(), 4, 9), tokens, values, values),
      "radixmlp: tokens[3] = 9: must be from 0 to below 9");
  PrefixIndexView no_parent = index;
  no_parent.parent = {};
  CHECK_THROWS_WITH(
      edge_log_probabilities(serial, no_parent, RowView<const float>(logits.data(), 4, 9), tokens, values, values),
      "radixmlp: index.parent = 0: must have an entry for each compact row (BuildOptions::parent), 4");
  CHECK_THROWS_WITH(edge_log_probabilities_adjoint(serial, no_parent, RowView<const float>(logits.data(), 4, 9), tokens,
                                                   values, values, values, RowView<float>(logits.data(), 4, 9)),
                    "radixmlp: index.parent = 0: must have an entry for each compact row (BuildOptions::parent), 4");
  CHECK_THROWS_WITH(inverse_of(index.scatter, 4, std::span(memory).first(10)),
                    "radixmlp: memory = 10: its size must be at least 11");
}
