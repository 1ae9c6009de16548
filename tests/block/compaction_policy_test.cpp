// SPDX-License-Identifier: MIT
#include "radixmlp/block/compaction_policy.hpp"

#include <string>
#include <vector>

#include "radixmlp/index/prefix_trie.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"

using namespace radixmlp;
using enum AttentionLayout;

namespace {

PrefixIndexView counts(std::int32_t compact, std::int32_t ragged) {
  PrefixIndexView view;
  view.compact_rows = compact;
  view.ragged_rows = ragged;
  return view;
}

IndexStats stats(std::int32_t ragged, std::int32_t compact, std::int64_t pairs, std::int64_t compact_pairs) {
  IndexStats batch;
  batch.ragged_rows = ragged;
  batch.compact_rows = compact;
  batch.attention_pairs = pairs;
  batch.compact_attention_pairs = compact_pairs;
  return batch;
}

constexpr AttentionLayouts all{ragged, compact_query, paged};
// A row costs 100, a pair 1, a paged one 1.25, a byte 0.5, a call 10; rows of 4 + 2 + 2 and 4 elements of 2 bytes.
constexpr CostModel model{.costs = {100, 1, 1.25, 0.5, 10}, .widths = {4, 2, 2, 4}, .element_bytes = 2};

}  // namespace

TEST_CASE("the threshold says why") {
  const CompactionPolicy policy{.max_ratio = 0.5, .min_rows = 50};
  const auto why = [&](std::int32_t compact, std::int32_t rows) {
    return std::string(name(policy.decide(counts(compact, rows)).reason));
  };
  CHECK(why(100, 100) == "nothing_shared");
  CHECK(why(0, 0) == "nothing_shared");
  CHECK(why(10, 49) == "too_few_rows");
  CHECK(why(25, 50) == "ratio_low_enough");
  CHECK(why(26, 50) == "ratio_too_high");
  const CompactionDecision yes = policy.decide(counts(25, 50), paged);
  CHECK((yes.compacts && yes.layout == paged && yes.ragged_rows == 50 && yes.compact_rows == 25 && yes.speedup == 1));
  const CompactionDecision no = policy.decide(counts(26, 50), paged);
  CHECK((!no.compacts && no.layout == ragged));
  CHECK(policy.compacts(counts(25, 50)));
  CHECK_FALSE(policy.compacts(counts(26, 50)));
}

TEST_CASE("the cost model adds up what a layer does") {
  const IndexStats batch = stats(100, 40, 5000, 3000);
  CHECK(model.uncompacted(batch) == 100 * 100 + 5000);
  CHECK(model.compacted(batch, ragged) == 40 * 100 + 5000 + 10 + 0.5 * 100 * 16 + 10 + 0.5 * 40 * 8);
  CHECK(model.compacted(batch, compact_query) == 40 * 100 + 3000 + 10 + 0.5 * 100 * 8);
  CHECK(model.compacted(batch, paged) == 40 * 100 + 3000 * 1.25);
  // 2 x 12 weights a row and 8 elements of Q and output a pair, on a machine of 4, 2, 1 FLOPs and 8 bytes a second.
  constexpr LayerCosts costs = layer_costs({24, 16}, {4, 2, 1, 8}, 3);
  CHECK((costs.row == 6 && costs.pair == 8 && costs.paged_pair == 16 && costs.moved_byte == 0.125 && costs.move == 3));
}

TEST_CASE("the cost model takes the fastest layout that the attention serves, and says why") {
  const auto decide = [](const IndexStats& batch, AttentionLayouts served, CostModel with = model) {
    const CompactionDecision decision = with.decide(batch, served);
    CHECK(decision.ragged_rows == batch.ragged_rows);
    CHECK(decision.compact_rows == batch.compact_rows);
    return (decision.compacts ? name(decision.layout) : "none") + std::string(" ") + name(decision.reason);
  };
  const IndexStats batch = stats(100, 40, 5000, 3000);  // 15000 plain; 9980, 7410 and 7750
  CHECK(decide(batch, all) == "compact_query predicted_gain");
  CHECK(decide(batch, {ragged}) == "ragged predicted_gain");
  CHECK(decide(batch, {paged}) == "paged only_layout");
  CHECK(model.decide(batch, all).speedup == Approx(15000.0 / 7410));
  CHECK(decide(stats(100, 40, 5000, 1500), all) == "paged predicted_gain");
  CHECK(decide(stats(100, 40, 5000, 1639), all) == "paged predicted_gain");  // 6048.75 against 6049
  CHECK(decide(stats(100, 40, 5000, 1641), all) == "compact_query predicted_gain");
  CHECK(decide(stats(100, 100, 5000, 5000), all) == "none nothing_shared");
  CHECK(decide(stats(100, 100, 5000, 5000), {paged}) == "paged only_layout");
  CHECK(decide(stats(100, 98, 5000, 4990), all) == "none predicted_no_gain");
  // 14800 of 15000 is a gain of 1.0135.
  CHECK(decide(stats(100, 98, 5000, 4000), {ragged, paged}) == "none predicted_no_gain");
  CostModel eager = model;
  eager.min_gain = 1.01;
  CHECK(decide(stats(100, 98, 5000, 4000), {ragged, paged}, eager) == "paged predicted_gain");
  CostModel large = model;
  large.min_rows = 101;
  CHECK(decide(batch, all, large) == "none too_few_rows");
  CHECK(decide(stats(0, 0, 0, 0), all) == "none nothing_shared");
}

TEST_CASE("the counts come from the index") {
  // Rows 0 1 2; 0 1 and one new; with pasts of 10.
  const radixmlp_test::TypedBatch<std::int32_t> typed(radixmlp_test::spec_of({{1, 2, 3}, {1, 2, 4}}));
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());
  const std::vector<std::int32_t> pasts{10, 10};
  const IndexStats batch = index_stats(index, pasts);
  CHECK(model.uncompacted(batch) == 6 * 100 + 2 * (11 + 12 + 13));
  CHECK(model.compacted(batch, paged) == 4 * 100 + 1.25 * (11 + 12 + 13 + 13));
}

TEST_CASE("decisions are counted") {
  CompactionLog log;
  log.add(model.decide(stats(100, 40, 5000, 3000), all));
  log.add(model.decide(stats(100, 40, 5000, 1500), all));
  log.add(model.decide(stats(100, 98, 5000, 4990), all));
  CHECK(log.batches == 3);
  CHECK(log.by_reason[static_cast<std::size_t>(CompactionReason::predicted_gain)] == 2);
  CHECK(log.by_reason[static_cast<std::size_t>(CompactionReason::predicted_no_gain)] == 1);
  CHECK(log.by_layout == std::array<std::int64_t, 3>{0, 1, 1});
  CHECK(log.ragged_rows == 300);
  CHECK(log.computed_rows == 180);
}
