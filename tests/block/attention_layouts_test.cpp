// SPDX-License-Identifier: MIT

// A layer in fp32 through CompactedBlock, in every layout, against dense attention in double precision: pasts, windows,
// decode beside prefill, empty sequences, copies, prefixes, padding.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include "radixmlp/block/compacted_block.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/reference_attention.hpp"

using namespace radixmlp_test;
using namespace radixmlp;

namespace {

using Row = AttentionValues::Row;
constexpr AttentionWidths widths{
    .q = AttentionValues::dim, .k = AttentionValues::dim, .v = AttentionValues::v_dim, .out = AttentionValues::v_dim};
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

// Softmax over keys first .. last; k(j) and v(j) are their rows.
template <class K, class V>
void attend(const float* q, std::int64_t first, std::int64_t last, K k, V v, float* out) {
  std::vector<float> weights;
  float sum = 0;
  for (std::int64_t j = first; j <= last; ++j) {
    float score = 0;
    for (std::int64_t d = 0; d < widths.q; ++d) {
      score += q[d] * k(j)[d];
    }
    weights.push_back(std::exp(score));
    sum += weights.back();
  }
  for (std::int64_t d = 0; d < widths.out; ++d) {
    float value = 0;
    for (std::int64_t j = first; j <= last; ++j) {
      value += weights[static_cast<std::size_t>(j - first)] * v(j)[d];
    }
    out[d] = value / sum;
  }
}

// An engine's rows of K and V side by side.
struct KeyValues {
  std::vector<float> rows;
  explicit KeyValues(std::size_t count) : rows(count * (widths.k + widths.v), nan_value) {}
  float* k(std::int64_t row) { return rows.data() + row * (widths.k + widths.v); }
  float* v(std::int64_t row) { return k(row) + widths.k; }
  void set(std::int64_t row, const Row& from) {
    std::copy(std::begin(from.k), std::end(from.k), k(row));
    std::copy(std::begin(from.v), std::end(from.v), v(row));
  }
};

struct Engine {
  const BatchSpec& spec;
  const AttentionValues& values;
  std::int32_t window;
  std::vector<std::int32_t> slots;  // paged: where compact rows go
  KeyValues cache;                  // paged: the past is there

  std::int64_t first_key(std::int64_t last) const {
    return window == 0 ? 0 : std::max<std::int64_t>(last - window + 1, 0);
  }

  // Knows no plan.
  void ragged_attention(const AttentionCall<float>& call) const {
    for (std::size_t s = 0; s + 1 < call.cu_seqlens.size(); ++s) {
      const std::int32_t begin = call.cu_seqlens[s];
      const auto past = static_cast<std::int64_t>(values.past[s].size());
      KeyValues keys(static_cast<std::size_t>(past + call.cu_seqlens[s + 1] - begin));
      for (std::int64_t r = 0; r < past; ++r) {
        keys.set(r, values.past[s][static_cast<std::size_t>(r)]);
      }
      for (std::int32_t i = begin; i < call.cu_seqlens[s + 1]; ++i) {
        const std::int64_t place = past + i - begin;
        std::copy_n(call.k.row(i), widths.k, keys.k(place));
        std::copy_n(call.v.row(i), widths.v, keys.v(place));
        attend(
            call.q.row(i), first_key(place), place, [&](auto j) { return keys.k(j); },
            [&](auto j) { return keys.v(j); }, call.out.row(i));
      }
    }
  }

  template <class K, class V>
  void by_plan(const AttentionCall<float>& call, K k, V v) const {
    const AttentionPlan& plan = call.plan;
    for (std::size_t e = 0; e < plan.sequences.size(); ++e) {
      const std::int32_t queries = plan.cu_seqlens_q[e + 1] - plan.cu_seqlens_q[e];
      const std::int32_t keys = plan.cu_seqlens_k[e + 1] - plan.cu_seqlens_k[e];
      for (std::int32_t i = 0; i < queries; ++i) {
        const std::int64_t last = keys - queries + i;
        attend(
            call.q.row(plan.cu_seqlens_q[e] + i), first_key(last), last,
            [&](auto j) { return k(plan.cu_seqlens_k[e] + j); }, [&](auto j) { return v(plan.cu_seqlens_k[e] + j); },
            call.out.row(plan.cu_seqlens_q[e] + i));
      }
    }
  }

  void operator()(const AttentionCall<float>& call) {
    if (call.layout == AttentionLayout::ragged) {
      ragged_attention(call);
    } else if (call.layout == AttentionLayout::compact_query) {
      for (std::size_t e = 0; e < call.plan.sequences.size(); ++e) {
        for (std::int32_t r = 0; r < call.plan.past_k[e]; ++r) {
          const std::vector<Row>& past = values.past[static_cast<std::size_t>(call.plan.sequences[e])];
          const Row& row = past[past.size() - static_cast<std::size_t>(call.plan.past_k[e] - r)];
          float* const target = call.kv.row(call.plan.cu_seqlens_k[e] + r);
          std::copy(std::begin(row.v), std::end(row.v), std::copy(std::begin(row.k), std::end(row.k), target));
        }
      }
      by_plan(
          call, [&](std::int64_t i) { return call.k.row(i); }, [&](std::int64_t i) { return call.v.row(i); });
    } else {
      for (std::int64_t j = 0; j < call.k.rows(); ++j) {
        std::copy_n(call.k.row(j), widths.k, cache.k(slots[static_cast<std::size_t>(j)]));
        std::copy_n(call.v.row(j), widths.v, cache.v(slots[static_cast<std::size_t>(j)]));
      }
      const auto slot = [&](std::int64_t i) { return call.plan.key_slots[static_cast<std::size_t>(i)]; };
      by_plan(
          call, [&](std::int64_t i) { return cache.k(slot(i)); }, [&](std::int64_t i) { return cache.v(slot(i)); });
    }
  }

  static constexpr AttentionLayouts layouts{AttentionLayout::ragged, AttentionLayout::compact_query,
                                            AttentionLayout::paged};
};

}  // namespace

TEST_CASE("a layer in every layout agrees with dense attention in double precision") {
  RandomBatches batches(81);
  std::mt19937_64 random(82);
  const int count = tries("RADIXMLP_LAYOUT_TRIES", 300);
  double largest = 0;
  int compacted = 0, with_past = 0, in_groups = 0;
  for (int t = 0; t < count; ++t) {
    CAPTURE(t);
    const BatchSpec spec = batches.next();
    const OracleIndex expected = oracle(spec);
    const AttentionValues values(spec, expected, static_cast<std::uint64_t>(t));
    const TypedBatch<std::int32_t, std::int32_t, Key128> typed(spec);
    PrefixTrie trie;
    const PrefixIndexView index = trie.build(typed.batch(), {.pad_to = spec.pad_to, .parent = t % 2 == 0});

    Engine engine{spec, values, std::vector{0, 0, 1, 5, 40}[random() % 5], {}, KeyValues(0)};
    AttentionPlanOptions options;
    options.partition = random() % 2 == 0 ? QueryPartition::sequences : QueryPartition::edges;
    options.keep_empty = random() % 2 == 0;
    options.query_tile = random() % 4 == 0 ? 4 : 1;
    options.window = engine.window;
    options.past_lengths = spec.past_lengths;
    const auto group_keys = static_cast<std::int32_t>(1 + random() % 100);
    const AttentionOut dense = reference_attention(spec, expected, values, engine.window);

    for (const AttentionLayout layout :
         {AttentionLayout::ragged, AttentionLayout::compact_query, AttentionLayout::paged}) {
      CAPTURE(name(layout));
      const bool groups = layout == AttentionLayout::compact_query && options.query_tile == 1 && t % 4 != 0;
      options.group_keys = groups ? group_keys : 0;
      std::vector<std::int32_t> pages, indptr{0};
      if (layout == AttentionLayout::paged) {  // one row a page; the past first, in any order, then the compact rows
        for (const auto& past : values.past) {
          indptr.push_back(indptr.back() + static_cast<std::int32_t>(past.size()));
        }
        pages.resize(static_cast<std::size_t>(indptr.back()));
        std::iota(pages.begin(), pages.end(), 0);
        std::shuffle(pages.begin(), pages.end(), random);
        engine.slots.resize(static_cast<std::size_t>(expected.compact_rows));
        std::iota(engine.slots.begin(), engine.slots.end(), indptr.back());
        std::shuffle(engine.slots.begin(), engine.slots.end(), random);
        engine.cache = KeyValues(pages.size() + engine.slots.size());
        for (std::size_t s = 0; s < values.past.size(); ++s) {
          for (std::size_t r = 0; r < values.past[s].size(); ++r) {
            engine.cache.set(pages[static_cast<std::size_t>(indptr[s]) + r], values.past[s][r]);
          }
        }
        options.slots = engine.slots;
        options.past_pages = pages;
        options.past_page_indptr = indptr;
      }
      std::vector<std::int32_t> plan_memory(attention_plan_entries(index, options));
      const AttentionPlan plan = attention_plan(index, plan_memory, options);
      const CompactionDecision decision = CompactionPolicy{.max_ratio = 1}.decide(index, layout);
      const std::size_t bytes = CompactedBlock<float>::workspace_bytes(widths, index, decision, plan);
      std::vector<std::byte> memory(bytes + workspace_alignment, std::byte{0xff});
      const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
      const auto skip = (workspace_alignment - address % workspace_alignment) % workspace_alignment;
      const CompactedBlock<float> block(index, widths, std::span(memory).subspan(skip, bytes), decision, plan);
      in_groups += plan.groups.size() > 1 && block.compacts();
      compacted += block.layout() == layout && block.compacts();
      with_past += block.layout() == layout && block.compacts() && !spec.past_lengths.empty();

      // The hidden state is the row's Q, K and V, and then its output. Padding is poisoned.
      std::vector<float> hidden(static_cast<std::size_t>(block.rows() * widths.qkv()), nan_value);
      const RowView<float> state(hidden.data(), block.rows(), widths.qkv());
      const auto compact_row = [&](std::int64_t i) {
        return static_cast<std::size_t>(block.compacts() ? i : expected.scatter[static_cast<std::size_t>(i)]);
      };
      for (std::int64_t i = 0; i < (block.compacts() ? expected.compact_rows : spec.rows()); ++i) {
        const Row& row = values.rows[compact_row(i)];
        float* const to = state.row(i);
        std::copy(std::begin(row.q), std::end(row.q), to);
        std::copy(std::begin(row.k), std::end(row.k), to + widths.q);
        std::copy(std::begin(row.v), std::end(row.v), to + widths.q + widths.k);
      }
      block.forward(
          serial, state,
          [&](RowView<const float> h, RowView<float> q, RowView<float> k, RowView<float> v) {
            for (std::int64_t i = 0; i < h.rows(); ++i) {
              std::copy_n(h.row(i), widths.q, q.row(i));
              std::copy_n(h.row(i) + widths.q, widths.k, k.row(i));
              std::copy_n(h.row(i) + widths.q + widths.k, widths.v, v.row(i));
            }
          },
          engine,
          [&](RowView<const float> out, RowView<float> h) {
            for (std::int64_t i = 0; i < h.rows(); ++i) {
              std::copy_n(out.row(i), widths.out, h.row(i));
            }
          });
      double error = 0, scale = 1e-30;
      for (std::int64_t i = 0; i < spec.rows(); ++i) {
        const float* const row =
            state.row(block.compacts() ? expected.scatter[static_cast<std::size_t>(i)] : static_cast<std::int32_t>(i));
        for (std::int64_t d = 0; d < widths.out; ++d) {
          const double reference = dense[static_cast<std::size_t>(i * widths.out + d)];
          const double difference = std::abs(row[d] - reference);
          error = std::isnan(difference) ? 1e9 : std::max(error, difference);
          scale = std::max(scale, std::abs(reference));
        }
      }
      REQUIRE(error / scale <= 1e-5);
      largest = std::max(largest, error / scale);
    }
  }
  CHECK(compacted > count);
  CHECK(with_past > count / 5);
  CHECK(in_groups > count / 10);
  if (count > 1000) {
    WARN("largest relative error of " << count << " tries in 3 layouts: " << largest);
  }
}

TEST_CASE("in groups a workspace is at most gamma times the one without compaction") {
  constexpr AttentionWidths wide{.q = 64, .k = 32, .v = 32, .out = 64};
  const auto sequence = [](std::int32_t prefix, std::int32_t own, std::int32_t first) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(prefix + own), 1);
    std::iota(tokens.begin() + prefix, tokens.end(), first);
    return tokens;
  };
  std::vector<std::vector<std::int32_t>> many, few{sequence(900, 10, 1000), sequence(900, 10, 2000)};
  for (std::int32_t s = 0; s < 20; ++s) {
    many.push_back(sequence(100, 10 + s, 1000 * s));
  }
  for (const auto& sequences : {many, few}) {
    const TypedBatch<std::int32_t> typed(spec_of(sequences));
    PrefixTrie trie;
    const PrefixIndexView index = trie.build(typed.batch());
    const AttentionPlanOptions options{.group_keys = index.compact_rows / 2};
    std::vector<std::int32_t> memory(attention_plan_entries(index, options));
    const AttentionPlan plan = attention_plan(index, memory, options);
    const auto bytes = [&](const CompactionDecision& decision) {
      return CompactedBlock<float>::workspace_bytes(wide, index, decision, plan);
    };
    const CompactionPolicy always{.max_ratio = 1}, never{.max_ratio = 0};
    const double allowed = index.ratio() * static_cast<double>(bytes(never.decide(index)));
    const auto alignment = static_cast<double>(3 * workspace_alignment);
    CHECK(static_cast<double>(bytes(always.decide(index, AttentionLayout::compact_query))) <= allowed + alignment);
    CHECK(static_cast<double>(bytes(always.decide(index, AttentionLayout::paged))) <= allowed + alignment);
  }
}

TEST_CASE("the mean of a sequence's rows, from compact space and from ragged rows") {
  const TypedBatch<std::int32_t> typed(spec_of({{1, 2, 3}, {}, {1, 2, 4, 5}}));
  PrefixTrie trie;
  const PrefixIndexView index = trie.build(typed.batch());
  for (const double max_ratio : {1.0, 0.0}) {
    std::vector<std::byte> memory(CompactedBlock<float>::workspace_bytes({}, index));
    const CompactedBlock<float> block(index, {}, memory, {.max_ratio = max_ratio});
    std::vector<float> rows(static_cast<std::size_t>(block.rows() * 70));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::size_t row = i / 70;
      const std::size_t compact = block.compacts() ? row : static_cast<std::size_t>(index.scatter[row]);
      rows[i] = static_cast<float>(compact * compact) + 0.5f * static_cast<float>(i % 70);
    }
    std::vector<float> out(3 * 70, nan_value);
    block.mean(serial, RowView<const float>(rows.data(), block.rows(), 70), RowView<float>(out.data(), 3, 70));
    for (std::size_t c = 0; c < 70; ++c) {
      const float column = 0.5f * static_cast<float>(c);
      CHECK(out[c] == Approx(column + 5.0f / 3));         // rows 0, 1, 2
      CHECK(out[70 + c] == 0);                            // none
      CHECK(out[140 + c] == Approx(column + 26.0f / 4));  // rows 0, 1, 3, 4
    }
    CHECK_THROWS_WITH(
        block.mean(serial, RowView<const float>(rows.data(), block.rows(), 70), RowView<float>(out.data(), 2, 70)),
        "radixmlp: out.rows = 2: must be at least 3");
    CHECK_THROWS_WITH(
        block.mean(serial, RowView<const float>(rows.data(), block.rows(), 70), RowView<float>(out.data(), 3, 60)),
        "radixmlp: out.width = 60: must equal the rows' width, 70");
  }
}
