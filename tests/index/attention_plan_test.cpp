// SPDX-License-Identifier: MIT

// Plans against dense attention. What runs here does what the documents of the kernels say of each format, and knows
// nothing of tries.

#include "radixmlp/index/attention_plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "radixmlp/index/prefix_trie.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/reference_attention.hpp"

using namespace radixmlp_test;
using radixmlp::AttentionPlan;
using radixmlp::AttentionPlanOptions;
using radixmlp::PrefixIndexView;
using radixmlp::QueryPartition;

namespace {

using Row = AttentionValues::Row;
constexpr std::size_t v_dim = AttentionValues::v_dim;
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr Row poison{{nan_value, nan_value, nan_value}, {nan_value, nan_value, nan_value}, {nan_value, nan_value}};

// Exactly as much memory as the named function says, so that sanitizers see what goes beyond.
struct Planned {
  Planned(const PrefixIndexView& index, const AttentionPlanOptions& options)
      : memory(radixmlp::attention_plan_entries(index, options), -77),
        plan(radixmlp::attention_plan(index, memory, options)) {}
  std::vector<std::int32_t> memory;
  AttentionPlan plan;
};

// The attention of a plan's segments: causal from the bottom right, `key(e, k)` the k-th key of segment e. Gives the
// rows of queries that no segment has as NaN.
template <class Key>
AttentionOut run(const AttentionPlan& plan, const std::vector<Row>& queries, Key key) {
  AttentionOut out(queries.size() * v_dim, nan_value);
  for (std::int32_t e = 0; e < plan.segments(); ++e) {
    const auto at = static_cast<std::size_t>(e);
    const std::int32_t q_length = plan.cu_seqlens_q[at + 1] - plan.cu_seqlens_q[at];
    const std::int32_t k_length = plan.cu_seqlens_k[at + 1] - plan.cu_seqlens_k[at];
    for (std::int32_t i = 0; i < q_length; ++i) {
      const std::int64_t last = k_length - q_length + i;
      const std::int64_t first = plan.window == 0 ? 0 : std::max<std::int64_t>(last - plan.window + 1, 0);
      const auto query = static_cast<std::size_t>(plan.cu_seqlens_q[at] + i);
      attend_to(
          queries[query], first, last, [&](std::int64_t k) -> const Row& { return key(e, k); }, &out[query * v_dim]);
    }
  }
  return out;
}

double largest_difference(const AttentionOut& a, const AttentionOut& b) {
  double largest = a.size() == b.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    largest = std::isnan(difference) ? 1e9 : std::max(largest, difference);
  }
  return largest;
}

// What the kernels' documents demand; empty if all is met.
std::string broken_constraint(const AttentionPlan& plan, const AttentionPlanOptions& options,
                              const OracleIndex& index) {
  const auto segments = static_cast<std::size_t>(plan.segments());
  const auto edges = options.partition == QueryPartition::edges;
  const std::size_t sequences = index.last_rows.size();
  if (plan.cu_seqlens_q.size() != segments + 1 || plan.cu_seqlens_k.size() != segments + 1)
    return "sizes of cu_seqlens";
  if (segments > (edges ? std::max<std::size_t>(2 * sequences, 1) - 1 : sequences))
    return "number of segments";
  if (options.keep_empty && segments != (edges ? std::max<std::size_t>(2 * sequences, 1) - 1 : sequences))
    return "fixed number of segments";
  if (plan.cu_seqlens_q[0] != 0 || plan.cu_seqlens_k[0] != 0)
    return "first offsets";
  if (plan.cu_seqlens_q.back() != plan.queries || plan.cu_seqlens_k.back() != plan.keys)
    return "last offsets";
  if (static_cast<std::size_t>(plan.keys) != plan.key_slots.size())
    return "paged_kv_indptr ends at the size of paged_kv_indices";
  if (options.query_tile == 1 && plan.queries != index.compact_rows)
    return "qo_indptr ends at N'";
  if (plan.last_page_len.size() != segments ||
      std::count(plan.last_page_len.begin(), plan.last_page_len.end(), 1) != static_cast<std::ptrdiff_t>(segments))
    return "last_page_len";
  std::int32_t max_q = 0, max_k = 0;
  for (std::size_t e = 0; e < segments; ++e) {
    const std::int32_t q = plan.cu_seqlens_q[e + 1] - plan.cu_seqlens_q[e];
    const std::int32_t k = plan.cu_seqlens_k[e + 1] - plan.cu_seqlens_k[e];
    max_q = std::max(max_q, q);
    max_k = std::max(max_k, k);
    if (q < 0 || k < q)
      return "a segment has at least as many keys as queries";
    if (!options.keep_empty && q == 0)
      return "dropped form has no empty segment";
    if (plan.window > 0 && q > 0 && k >= q + plan.window)
      return "keys that nobody sees";
  }
  if (plan.max_seqlen_q != max_q || plan.max_seqlen_k != max_k)
    return "max lengths";
  return "";
}

// An engine's cache: the pasts in pages in any order, then the compact rows; nothing else may be read.
struct Cache {
  Cache(const BatchSpec& spec, const AttentionValues& values, std::int32_t page, std::mt19937_64& random) {
    std::int32_t pages = 0;
    indptr.push_back(0);
    for (std::size_t s = 0; s < spec.sequences(); ++s) {
      pages += (static_cast<std::int32_t>(values.past[s].size()) + page - 1) / page + static_cast<int>(random() % 2);
      indptr.push_back(pages);
    }
    past_pages.resize(static_cast<std::size_t>(pages));
    std::iota(past_pages.begin(), past_pages.end(), 0);
    std::shuffle(past_pages.begin(), past_pages.end(), random);
    slots.resize(values.rows.size());
    std::iota(slots.begin(), slots.end(), pages * page);
    std::shuffle(slots.begin(), slots.end(), random);
    rows.assign(static_cast<std::size_t>(pages * page) + slots.size(), poison);
    for (std::size_t s = 0; s < spec.sequences(); ++s) {
      for (std::size_t r = 0; r < values.past[s].size(); ++r) {
        const auto size = static_cast<std::size_t>(page);
        const auto p = static_cast<std::size_t>(past_pages[static_cast<std::size_t>(indptr[s]) + r / size]);
        rows[p * size + r % size] = values.past[s][r];
      }
    }
    for (std::size_t j = 0; j < slots.size(); ++j) {
      rows[static_cast<std::size_t>(slots[j])] = values.rows[j];
    }
  }
  std::vector<std::int32_t> indptr, past_pages, slots;
  std::vector<Row> rows;
};

}  // namespace

TEST_CASE("plans in every format agree with dense attention") {
  RandomBatches batches(71);
  std::mt19937_64 random(72);
  const int count = tries("RADIXMLP_PLAN_TRIES", 300);
  int dropped = 0, rounded = 0, windows = 0, decodes = 0;
  for (int t = 0; t < count; ++t) {
    CAPTURE(t);
    const BatchSpec spec = batches.next();
    const OracleIndex expected = oracle(spec);
    const AttentionValues values(spec, expected, static_cast<std::uint64_t>(t));
    const TypedBatch<std::int32_t, std::int32_t, radixmlp::Key128> typed(spec);
    radixmlp::PrefixTrie trie;
    const PrefixIndexView index = trie.build(typed.batch(), {.pad_to = spec.pad_to, .parent = false});

    const std::int32_t page = std::vector{1, 3, 16}[random() % 3];
    const Cache cache(spec, values, page, random);
    AttentionPlanOptions options;
    options.partition = random() % 2 == 0 ? QueryPartition::sequences : QueryPartition::edges;
    options.keep_empty = random() % 2 == 0;
    options.query_tile = std::vector{1, 1, 4, 64}[random() % 4];
    options.window = std::vector{0, 0, 1, 5, 40}[random() % 5];
    options.past_lengths = spec.past_lengths;
    const AttentionOut dense = reference_attention(spec, expected, values, options.window);
    for (std::size_t s = 0; s < spec.past_lengths.size(); ++s) {
      decodes += spec.past_lengths[s] > 0 && spec.cu_seqlens[s + 1] - spec.cu_seqlens[s] == 1;
    }

    // Output of every ragged row, by its compact row, from that of the queries.
    const auto expanded = [&](const AttentionPlan& plan, const AttentionOut& of_queries) {
      AttentionOut out;
      for (const std::int32_t row : expected.scatter) {
        const auto query =
            static_cast<std::size_t>(plan.output_rows.empty() ? row : plan.output_rows[static_cast<std::size_t>(row)]);
        out.insert(out.end(), &of_queries[query * v_dim], &of_queries[query * v_dim] + v_dim);
      }
      return out;
    };
    const auto queries_of = [&](const AttentionPlan& plan) {
      std::vector<Row> queries;
      for (std::int32_t i = 0; i < plan.queries; ++i) {
        const auto at = static_cast<std::size_t>(i);
        queries.push_back(values.rows[plan.query_rows.empty() ? at : static_cast<std::size_t>(plan.query_rows[at])]);
      }
      return queries;
    };

    {  // FlashAttention varlen: K and V are contiguous; the engine writes its past over the rows for it.
      const Planned planned(index, options);
      const AttentionPlan& plan = planned.plan;
      REQUIRE(broken_constraint(plan, options, expected) == "");
      std::vector<Row> dense_keys;
      for (const std::int32_t slot : plan.key_slots) {
        REQUIRE((slot >= 0 && slot < expected.compact_rows + (spec.past_lengths.empty() ? 0 : 1)));
        dense_keys.push_back(values.rows.empty() ? poison : values.rows[static_cast<std::size_t>(slot)]);
      }
      for (std::size_t e = 0; e < plan.sequences.size(); ++e) {
        for (std::int32_t r = plan.past_k[e]; r > 0; --r) {
          const std::vector<Row>& past = values.past[static_cast<std::size_t>(plan.sequences[e])];
          dense_keys[static_cast<std::size_t>(plan.cu_seqlens_k[e] + plan.past_k[e] - r)] =
              past[past.size() - static_cast<std::size_t>(r)];
        }
      }
      const auto out = run(plan, queries_of(plan), [&](std::int32_t e, std::int64_t k) -> const Row& {
        return dense_keys[static_cast<std::size_t>(plan.cu_seqlens_k[static_cast<std::size_t>(e)] + k)];
      });
      REQUIRE(largest_difference(expanded(plan, out), dense) < 1e-12);
      dropped += !options.keep_empty && options.partition == QueryPartition::sequences &&
                 plan.sequences.size() < spec.sequences();
      rounded += plan.queries > expected.compact_rows;
      windows += options.window > 0 && plan.keys < spec.rows();
    }

    options.slots = cache.slots;
    options.past_page_indptr = cache.indptr;
    options.past_pages = cache.past_pages;
    options.past_page_size = page;
    const Planned planned(index, options);
    const AttentionPlan& plan = planned.plan;
    REQUIRE(broken_constraint(plan, options, expected) == "");
    {  // FlashInfer paged prefill
      const auto out = run(plan, queries_of(plan), [&](std::int32_t e, std::int64_t k) -> const Row& {
        const auto at = static_cast<std::size_t>(plan.cu_seqlens_k[static_cast<std::size_t>(e)] + k);
        return cache.rows[static_cast<std::size_t>(plan.key_slots[at])];
      });
      REQUIRE(largest_difference(expanded(plan, out), dense) < 1e-12);
    }
    {  // FlashAttention 3 page table
      std::vector<std::int32_t> memory(static_cast<std::size_t>(radixmlp::page_table_entries(plan)), -77);
      const radixmlp::PageTable table = radixmlp::page_table(plan, memory);
      REQUIRE(table.width == plan.max_seqlen_k);
      REQUIRE(table.seqused_k.size() == plan.sequences.size());
      REQUIRE(table.pages.size() == plan.sequences.size() * static_cast<std::size_t>(table.width));
      for (std::size_t e = 0; e < plan.sequences.size(); ++e) {
        REQUIRE(table.seqused_k[e] == plan.cu_seqlens_k[e + 1] - plan.cu_seqlens_k[e]);
        for (std::int32_t k = table.seqused_k[e]; k < table.width; ++k) {
          REQUIRE(table.pages[e * static_cast<std::size_t>(table.width) + static_cast<std::size_t>(k)] == 0);
        }
      }
      const auto out = run(plan, queries_of(plan), [&](std::int32_t e, std::int64_t k) -> const Row& {
        return cache.rows[static_cast<std::size_t>(table.pages[static_cast<std::size_t>(e * table.width + k)])];
      });
      REQUIRE(largest_difference(expanded(plan, out), dense) < 1e-12);
    }
  }
  // The tries have met what they are for.
  CHECK(dropped > count / 20);
  CHECK(rounded > count / 20);
  CHECK(windows > count / 20);
  CHECK(decodes > count / 20);
}

TEST_CASE("the tree mask lets a row see its path and nothing else") {
  RandomBatches batches(73);
  const int count = tries("RADIXMLP_PLAN_TRIES", 300);
  int out_of_order = 0;
  for (int t = 0; t < count; ++t) {
    CAPTURE(t);
    const BatchSpec spec = batches.next();
    const OracleIndex expected = oracle(spec);
    const TypedBatch<std::int32_t, std::int32_t, radixmlp::Key128> typed(spec);
    radixmlp::PrefixTrie trie;
    const PrefixIndexView index = trie.build(typed.batch(), {.pad_to = spec.pad_to});
    std::vector<std::int32_t> memory(radixmlp::tree_mask_entries(index), -77);
    const radixmlp::TreeMask mask = radixmlp::tree_mask(index, memory);
    const auto padded = static_cast<std::size_t>(expected.padded_rows);
    REQUIRE(mask.pre.size() == padded);
    REQUIRE(mask.pre_end.size() == padded);
    REQUIRE(mask.depth.size() == padded);
    const std::set<std::int32_t> numbers(mask.pre.begin(), mask.pre.end());
    REQUIRE(numbers.size() == padded);
    if (padded > 0) {
      REQUIRE(*numbers.begin() == 0);
      REQUIRE(*numbers.rbegin() == expected.padded_rows - 1);
    }
    out_of_order += !std::is_sorted(mask.pre.begin(), mask.pre.end());
    std::int64_t wrong = 0;
    for (std::size_t q = 0; q < padded; ++q) {
      std::vector<bool> seen(padded);
      std::int32_t depth = -1;
      seen[q] = true;
      if (q < static_cast<std::size_t>(expected.compact_rows)) {
        for (auto row = static_cast<std::int32_t>(q); row >= 0; row = expected.parent[static_cast<std::size_t>(row)]) {
          seen[static_cast<std::size_t>(row)] = true;
          ++depth;
        }
        wrong += mask.depth[q] != depth;
      }
      for (std::size_t k = 0; k < padded; ++k) {
        wrong += seen[k] != (mask.pre[k] <= mask.pre[q] && mask.pre[q] < mask.pre_end[k]);
      }
    }
    REQUIRE(wrong == 0);
  }
  CHECK(out_of_order > count / 50);
}

TEST_CASE("a plan by hand") {
  // Rows:          0 1 2     (0 1) 3 4    (0 1 2)    (0 1 2) 5    none
  const TypedBatch<std::int32_t> typed(spec_of({{1, 2, 3}, {1, 2, 4, 5}, {1, 2, 3}, {1, 2, 3, 6}, {}}));
  radixmlp::PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());
  using Ints = std::vector<std::int32_t>;

  const Planned dropped(index, {});
  CHECK(to_vector(dropped.plan.sequences) == Ints{0, 1, 3});
  CHECK(to_vector(dropped.plan.cu_seqlens_q) == Ints{0, 3, 5, 6});
  CHECK(to_vector(dropped.plan.cu_seqlens_k) == Ints{0, 3, 7, 11});
  CHECK(to_vector(dropped.plan.key_slots) == Ints{0, 1, 2, 0, 1, 3, 4, 0, 1, 2, 5});
  CHECK(dropped.plan.max_seqlen_q == 3);
  CHECK(dropped.plan.max_seqlen_k == 4);

  const Planned fixed(index, {.keep_empty = true});
  CHECK(to_vector(fixed.plan.sequences) == Ints{0, 1, 2, 3, 4});
  CHECK(to_vector(fixed.plan.cu_seqlens_q) == Ints{0, 3, 5, 5, 6, 6});
  CHECK(to_vector(fixed.plan.cu_seqlens_k) == Ints{0, 3, 7, 10, 14, 14});
  CHECK(fixed.plan.key_slots.data() == index.scatter.data());  // the index's own map serves

  const Planned edges(index, {.partition = QueryPartition::edges});
  CHECK(to_vector(edges.plan.cu_seqlens_q) == Ints{0, 2, 3, 5, 6});
  CHECK(to_vector(edges.plan.cu_seqlens_k) == Ints{0, 2, 5, 9, 13});
  CHECK(to_vector(edges.plan.key_slots) == Ints{0, 1, 0, 1, 2, 0, 1, 3, 4, 0, 1, 2, 5});
  radixmlp::PrefixTrie other;
  const TypedBatch<std::int32_t> first_row_shared(spec_of({{1, 2, 3}, {1, 4}, {5}}));
  const Planned short_edge(other.build(first_row_shared.batch()), {.partition = QueryPartition::edges});
  CHECK(to_vector(short_edge.plan.cu_seqlens_q) == Ints{0, 1, 3, 4, 5});

  const Planned tiles(index, {.query_tile = 2});
  CHECK(to_vector(tiles.plan.cu_seqlens_q) == Ints{0, 3, 5, 7});
  CHECK(to_vector(tiles.plan.query_rows) == Ints{0, 1, 2, 3, 4, 2, 5});
  CHECK(to_vector(tiles.plan.output_rows) == Ints{0, 1, 2, 3, 4, 6});
  const Planned fixed_tiles(index, {.keep_empty = true, .query_tile = 2});
  CHECK(to_vector(fixed_tiles.plan.cu_seqlens_q) == Ints{0, 3, 5, 5, 7, 7});  // a copy computes nothing again

  const Ints pasts{4, 4, 4, 4, 0}, pages{9, 8, 7, 6, 5}, indptr{0, 1, 2, 3, 4, 5}, slots{50, 51, 52, 53, 54, 55};
  const Planned past(index, {.window = 3, .past_lengths = pasts});
  CHECK(to_vector(past.plan.cu_seqlens_k) == Ints{0, 5, 9, 12});
  CHECK(to_vector(past.plan.key_slots) == Ints{0, 0, 0, 1, 2, 0, 1, 3, 4, 1, 2, 5});
  CHECK(past.plan.past_keys == 2);
  CHECK(to_vector(past.plan.past_k) == Ints{2, 0, 0});
  CHECK_FALSE(past.plan.in_cache);
  const Planned paged(index, {.window = 3,
                              .past_lengths = pasts,
                              .slots = slots,
                              .past_page_indptr = indptr,
                              .past_pages = pages,
                              .past_page_size = 5});
  CHECK(to_vector(paged.plan.key_slots) == Ints{47, 48, 50, 51, 52, 50, 51, 53, 54, 51, 52, 55});
  CHECK(paged.plan.past_keys == 0);
  CHECK(paged.plan.in_cache);
}

TEST_CASE("groups by hand") {
  // Rows:          0 1 2     3 4     (0 1) 5     (0 1 2)    (0 1 2) 6    none
  const TypedBatch<std::int32_t> typed(spec_of({{1, 2, 3}, {7, 8}, {1, 2, 5}, {1, 2, 3}, {1, 2, 3, 6}, {}}));
  radixmlp::PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());
  using Ints = std::vector<std::int32_t>;
  const Planned planned(index, {.group_keys = 5});
  const AttentionPlan& plan = planned.plan;
  REQUIRE(plan.groups.size() == 3);
  CHECK(to_vector(plan.cu_seqlens_k) == Ints{0, 3, 5, 8, 12});  // the whole is as it is without groups
  CHECK(to_vector(plan.group_cu_seqlens_q) == Ints{0, 3, 5, 0, 1, 0, 1});
  CHECK(to_vector(plan.group_cu_seqlens_k) == Ints{0, 3, 5, 0, 3, 0, 4});
  CHECK(to_vector(plan.group_rows) == Ints{0, 1, 2, 3, 4});
  CHECK(plan.groups[0].first_row == 0);   // rows 0 to 4 as they lie
  CHECK(plan.groups[1].first_row == -1);  // rows 0 1 5
  CHECK(plan.groups[2].first_row == -1);  // rows 0 1 2 6
  CHECK(plan.groups[2].first_query == 6);
  CHECK(plan.groups[2].first_key == 8);
  const AttentionPlan last = plan.group(2);
  CHECK(to_vector(last.sequences) == Ints{4});
  CHECK(to_vector(last.cu_seqlens_k) == Ints{0, 4});
  CHECK(last.queries == 1);
  CHECK(last.keys == 4);
  CHECK(last.max_seqlen_q == 1);
  CHECK(last.max_seqlen_k == 4);
  CHECK(last.segments() == 1);
}

TEST_CASE("groups are the plan in pieces") {
  RandomBatches batches(77);
  std::mt19937_64 random(78);
  const int count = tries("RADIXMLP_PLAN_TRIES", 300);
  int several = 0, runs = 0, long_segments = 0;
  for (int t = 0; t < count; ++t) {
    CAPTURE(t);
    const BatchSpec spec = batches.next();
    const TypedBatch<std::int32_t, std::int32_t, radixmlp::Key128> typed(spec);
    radixmlp::PrefixTrie trie;
    const PrefixIndexView index = trie.build(typed.batch(), {.pad_to = spec.pad_to});
    AttentionPlanOptions options;
    options.partition = random() % 2 == 0 ? QueryPartition::sequences : QueryPartition::edges;
    options.keep_empty = random() % 2 == 0;
    options.window = random() % 3 == 0 ? 1 + static_cast<std::int32_t>(random() % 20) : 0;
    options.past_lengths = spec.past_lengths;
    const Planned whole(index, options);
    options.group_keys = static_cast<std::int32_t>(1 + random() % static_cast<std::uint64_t>(2 * spec.rows() + 1));
    const Planned planned(index, options);
    const AttentionPlan& plan = planned.plan;
    REQUIRE(to_vector(plan.cu_seqlens_q) == to_vector(whole.plan.cu_seqlens_q));
    REQUIRE(to_vector(plan.cu_seqlens_k) == to_vector(whole.plan.cu_seqlens_k));
    REQUIRE(to_vector(plan.key_slots) == to_vector(whole.plan.key_slots));
    REQUIRE(whole.plan.groups.empty());

    std::int32_t segment = 0, most_queries = 0;
    for (std::size_t g = 0; g < plan.groups.size(); ++g) {
      const radixmlp::AttentionGroup& group = plan.groups[g];
      const AttentionPlan part = plan.group(g);
      REQUIRE(group.first_segment == segment);
      REQUIRE(part.segments() == group.segments);
      REQUIRE(group.segments > 0);
      REQUIRE((part.keys <= options.group_keys || part.segments() == 1));
      long_segments += part.keys > options.group_keys;
      std::int32_t max_q = 0, max_k = 0;
      bool is_run = true;
      for (std::int32_t e = 0; e < part.segments(); ++e, ++segment) {
        const auto at = static_cast<std::size_t>(segment);
        const auto in_part = static_cast<std::size_t>(e);
        REQUIRE(part.cu_seqlens_q[in_part] + group.first_query == plan.cu_seqlens_q[at]);
        REQUIRE(part.cu_seqlens_k[in_part] + group.first_key == plan.cu_seqlens_k[at]);
        REQUIRE(part.sequences[in_part] == plan.sequences[at]);
        REQUIRE(part.past_k[in_part] == plan.past_k[at]);
        REQUIRE(part.last_page_len[in_part] == 1);
        max_q = std::max(max_q, plan.cu_seqlens_q[at + 1] - plan.cu_seqlens_q[at]);
        max_k = std::max(max_k, plan.cu_seqlens_k[at + 1] - plan.cu_seqlens_k[at]);
        is_run = is_run && plan.past_k[at] == 0;
      }
      REQUIRE(part.queries == part.cu_seqlens_q.back());
      REQUIRE(part.keys == part.cu_seqlens_k.back());
      REQUIRE(group.queries == part.queries);
      REQUIRE(group.keys == part.keys);
      REQUIRE(part.max_seqlen_q == max_q);
      REQUIRE(part.max_seqlen_k == max_k);
      const auto slots =
          plan.key_slots.subspan(static_cast<std::size_t>(group.first_key), static_cast<std::size_t>(part.keys));
      for (std::size_t k = 0; k < slots.size(); ++k) {
        is_run = is_run && slots[k] == slots[0] + static_cast<std::int32_t>(k);
      }
      if (part.keys > 0) {
        REQUIRE(group.first_row == (is_run ? slots[0] : -1));
        runs += is_run;
      }
      most_queries = std::max(most_queries, part.queries);
      if (segment < plan.segments()) {  // the next segment did not fit
        const auto at = static_cast<std::size_t>(segment);
        REQUIRE(part.keys + plan.cu_seqlens_k[at + 1] - plan.cu_seqlens_k[at] > options.group_keys);
      }
    }
    REQUIRE(segment == plan.segments());
    REQUIRE(plan.group_rows.size() == static_cast<std::size_t>(most_queries));
    for (std::int32_t i = 0; i < most_queries; ++i) {
      REQUIRE(plan.group_rows[static_cast<std::size_t>(i)] == i);
    }
    several += plan.groups.size() > 1;
  }
  CHECK(several > count / 5);
  CHECK(runs > count / 5);
  CHECK(long_segments > count / 5);
}

TEST_CASE("a plan moves with its block and its index") {
  const TypedBatch<std::int32_t> typed(spec_of({{1, 2, 3}, {1, 2, 4, 5}, {1, 2, 3}, {1, 2, 3, 6}, {}}));
  radixmlp::PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());
  const radixmlp::PrefixIndex copy(index);
  for (const AttentionPlanOptions& options :
       {AttentionPlanOptions{}, AttentionPlanOptions{.keep_empty = true}, AttentionPlanOptions{.query_tile = 2},
        AttentionPlanOptions{.group_keys = 7}, AttentionPlanOptions{.keep_empty = true, .group_keys = 7}}) {
    Planned planned(index, options);
    const AttentionPlan before = planned.plan;
    const std::vector<std::int32_t> block = to_vector(before.block);
    const AttentionPlan moved = before.relocated(block.data(), index, copy);
    const std::vector<std::vector<std::int32_t>> expected{
        to_vector(before.cu_seqlens_q),       to_vector(before.cu_seqlens_k), to_vector(before.key_slots),
        to_vector(before.last_page_len),      to_vector(before.sequences),    to_vector(before.query_rows),
        to_vector(before.output_rows),        to_vector(before.past_k),       to_vector(before.group_cu_seqlens_q),
        to_vector(before.group_cu_seqlens_k), to_vector(before.group_rows)};
    CHECK(moved.groups.data() == before.groups.data());
    std::fill(planned.memory.begin(), planned.memory.end(), -1);  // the moved plan does not look back
    CHECK(std::vector<std::vector<std::int32_t>>{
              to_vector(moved.cu_seqlens_q), to_vector(moved.cu_seqlens_k), to_vector(moved.key_slots),
              to_vector(moved.last_page_len), to_vector(moved.sequences), to_vector(moved.query_rows),
              to_vector(moved.output_rows), to_vector(moved.past_k), to_vector(moved.group_cu_seqlens_q),
              to_vector(moved.group_cu_seqlens_k), to_vector(moved.group_rows)} == expected);
    if (options.keep_empty) {
      CHECK(moved.key_slots.data() == copy.view().scatter.data());
    }
  }
}

TEST_CASE("plan options that do not fit are refused, and nothing is written") {
  const TypedBatch<std::int32_t> typed(spec_of({{1, 2, 3}, {1, 2, 4}}));
  radixmlp::PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());
  const std::vector<std::int32_t> pasts{2, 5}, pages{1, 2, 3}, indptr{0, 1, 3};
  const auto refusal = [&](const std::function<void(AttentionPlanOptions&)>& change, std::size_t entries = 1000) {
    AttentionPlanOptions options;
    change(options);
    std::vector<std::int32_t> memory(entries, -77);
    try {
      static_cast<void>(radixmlp::attention_plan(index, memory, options));
    } catch (const radixmlp::InvalidBatch& error) {
      CHECK(std::count(memory.begin(), memory.end(), -77) == static_cast<std::ptrdiff_t>(entries));
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  std::vector<std::int32_t> bad;
  CHECK(refusal([](auto&) {}) == "accepted");
  CHECK(refusal([](auto& o) { o.query_tile = 0; }) == "radixmlp: query_tile = 0: must be at least 1");
  CHECK(refusal([](auto& o) { o.group_keys = -1; }) == "radixmlp: group_keys = -1: must be at least 0");
  CHECK(refusal([](auto& o) { o.group_keys = 1; }) == "accepted");
  CHECK(refusal([](auto& o) {
          o.group_keys = 1;
          o.query_tile = 2;
        }) == "radixmlp: query_tile = 2: with group_keys it must be 1");
  CHECK(refusal([&](auto& o) {
          o.group_keys = 1;
          o.slots = bad = {0, 1, 2, 3};
        }) == "radixmlp: slots = 4: with group_keys its size must be 0");
  CHECK(refusal([](auto& o) { o.window = -1; }) == "radixmlp: window = -1: must be at least 0");
  CHECK(refusal([](auto& o) { o.past_page_size = 0; }) == "radixmlp: past_page_size = 0: must be at least 1");
  CHECK(refusal([&](auto& o) { o.past_lengths = pages; }) == "radixmlp: past_lengths = 3: its size must be 2");
  CHECK(refusal([&](auto& o) {
          o.past_lengths = bad = {0, -4};
        }) == "radixmlp: past_lengths[1] = -4: must be at least 0");
  CHECK(refusal([&](auto& o) {
          o.past_lengths = bad = {0, 2147483642};
        }) == "radixmlp: past_lengths = 2147483648: the keys of a plan may come to at most 2147483647");
  CHECK(refusal([&](auto& o) { o.slots = pages; }) == "radixmlp: slots = 3: its size must be 4");
  CHECK(refusal([&](auto& o) { o.slots = bad = {0, 1, -2, 3}; }) == "radixmlp: slots[2] = -2: must be at least 0");
  CHECK(refusal([&](auto& o) { o.past_pages = pages; }) == "radixmlp: past_page_indptr = 0: its size must be 3");
  const auto paged = [&](AttentionPlanOptions& o) {
    o.past_lengths = pasts;
    o.past_pages = pages;
    o.past_page_indptr = indptr;
    o.past_page_size = 4;
  };
  CHECK(refusal(paged) == "accepted");
  CHECK(refusal([&](auto& o) { paged(o), o.past_page_indptr = pasts; }) ==
        "radixmlp: past_page_indptr = 2: its size must be 3");
  CHECK(refusal([&](auto& o) {
          paged(o), o.past_page_indptr = bad = {-1, 1, 3};
        }) == "radixmlp: past_page_indptr[0] = -1: must be from 0 to 3");
  CHECK(refusal([&](auto& o) { paged(o), o.past_page_size = 2; }) ==
        "radixmlp: past_page_indptr[2] = 3: must leave the sequence a page for every past_page_size rows of its past, "
        "and be at most 3");
  CHECK(refusal([&](auto& o) {
          paged(o), o.past_pages = bad = {1, -3, 2};
        }) == "radixmlp: past_pages[1] = -3: must be from 0 to 536870911");
  CHECK(refusal([&](auto& o) {
          paged(o), o.past_pages = bad = {1, 3, 536870912};
        }) == "radixmlp: past_pages[2] = 536870912: must be from 0 to 536870911");

  const std::size_t needed = radixmlp::attention_plan_entries(index);
  CHECK(refusal([](auto&) {}, needed) == "accepted");
  CHECK(refusal([](auto&) {}, needed - 1) ==
        "radixmlp: memory = " + std::to_string(needed - 1) + ": its size must be at least " + std::to_string(needed));
  const Planned planned(index, {});
  std::vector<std::int32_t> table(8);
  CHECK(radixmlp::page_table_entries(planned.plan) == 8);  // two rows of 3, and two lengths
  CHECK_THROWS_WITH(radixmlp::page_table(planned.plan, table, 7),
                    "radixmlp: page_table = 8: its entries must not exceed 7");
  CHECK_THROWS_WITH(radixmlp::page_table(planned.plan, std::span(table).first(7)),
                    "radixmlp: memory = 7: its size must be at least 8");
  CHECK_THROWS_WITH(radixmlp::tree_mask(index, std::span(table).first(7)),
                    "radixmlp: memory = 7: its size must be at least 12");
  std::vector<std::int32_t> mask_memory(12);
  CHECK_THROWS_WITH(radixmlp::tree_mask(trie.build(typed.batch(), {.parent = false}), mask_memory),
                    "radixmlp: index.parent = 0: must have an entry for each compact row (BuildOptions::parent), 4");
}
