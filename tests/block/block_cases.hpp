// SPDX-License-Identifier: MIT
#pragma once

// The test body of CompactedBlock. host_block_test.cpp and device_block_test.cu define Backend and include it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/skip.hpp"

namespace {

using namespace radixmlp_test;
using radixmlp::AttentionCall;
using radixmlp::AttentionLayout;
using radixmlp::AttentionPlanOptions;
using radixmlp::AttentionWidths;
using radixmlp::CompactedBlock;
using radixmlp::CompactionPolicy;
using radixmlp::InvalidRows;
using radixmlp::PrefixIndexView;
using radixmlp::RowView;
using radixmlp::serving;
using enum radixmlp::AttentionLayout;

constexpr std::int64_t hidden_width = 7;
constexpr AttentionWidths widths{.q = 5, .k = 3, .v = 4, .out = 6};
constexpr CompactionPolicy always{.max_ratio = 1.0};
constexpr CompactionPolicy never{.max_ratio = 0.0};

// A toy engine in three row-wise functors. Every output depends on all of the row's inputs, its position included, and
// attention on all rows before it in its sequence and on nothing else.
struct Project {
  RowView<const float> hidden;
  RowView<const std::int32_t> positions;
  RowView<float> q, k, v;

  RADIXMLP_HOST_DEVICE void operator()(std::int64_t i) const {
    const float angle = 0.125f * static_cast<float>(*positions.row(i));
    for (std::int64_t c = 0; c < widths.q + widths.k + widths.v; ++c) {
      float sum = angle;
      for (std::int64_t h = 0; h < hidden_width; ++h) {
        sum += hidden.row(i)[h] * static_cast<float>((c * 3 + h * 5) % 7 - 3);
      }
      float* const to = c < widths.q              ? q.row(i) + c
                        : c < widths.q + widths.k ? k.row(i) + (c - widths.q)
                                                  : v.row(i) + (c - widths.q - widths.k);
      *to = sum * 0.0625f;
    }
  }
};

struct Attend {
  Attend(const AttentionCall<float>& attention, std::int64_t batch)
      : call(attention), cu(attention.cu_seqlens.data()), sequences(batch) {}

  AttentionCall<float> call;
  const std::int32_t* cu;
  std::int64_t sequences;

  RADIXMLP_HOST_DEVICE void operator()(std::int64_t i) const {
    std::int64_t s = 0;
    while (s + 1 < sequences && cu[s + 1] <= i) {
      ++s;
    }
    for (std::int64_t c = 0; c < widths.out; ++c) {
      float sum = 0;
      for (std::int64_t j = cu[s]; j <= i; ++j) {
        sum += call.q.row(i)[c % widths.q] * call.k.row(j)[c % widths.k] + 0.5f * call.v.row(j)[c % widths.v];
      }
      call.out.row(i)[c] = sum / static_cast<float>(i - cu[s] + 1);
    }
  }
};

// The same by the plan, which serves every layout.
struct AttendByPlan {
  explicit AttendByPlan(const AttentionCall<float>& attention)
      : call(attention),
        cu_q(attention.plan.cu_seqlens_q.data()),
        cu_k(attention.plan.cu_seqlens_k.data()),
        slots(attention.plan.key_slots.empty() ? nullptr : attention.plan.key_slots.data()),
        segments(attention.plan.segments()) {}

  AttentionCall<float> call;
  const std::int32_t* cu_q;
  const std::int32_t* cu_k;
  const std::int32_t* slots;
  std::int64_t segments;

  RADIXMLP_HOST_DEVICE void operator()(std::int64_t i) const {
    std::int64_t e = 0;
    while (e + 1 < segments && cu_q[e + 1] <= i) {
      ++e;
    }
    if (segments == 0 || i >= cu_q[e + 1]) {  // a capacity has more rows than its batch
      return;
    }
    const std::int64_t keys = (cu_k[e + 1] - cu_k[e]) - (cu_q[e + 1] - cu_q[e]) + (i - cu_q[e]) + 1;
    for (std::int64_t c = 0; c < widths.out; ++c) {
      float sum = 0;
      for (std::int64_t at = cu_k[e]; at < cu_k[e] + keys; ++at) {
        const std::int64_t j = slots == nullptr ? at : slots[at];
        sum += call.q.row(i)[c % widths.q] * call.k.row(j)[c % widths.k] + 0.5f * call.v.row(j)[c % widths.v];
      }
      call.out.row(i)[c] = sum / static_cast<float>(keys);
    }
  }
};

struct Update {
  RowView<const float> attention_out;
  RowView<float> hidden;

  RADIXMLP_HOST_DEVICE void operator()(std::int64_t i) const {
    for (std::int64_t h = 0; h < hidden_width; ++h) {
      hidden.row(i)[h] = 0.75f * hidden.row(i)[h] + attention_out.row(i)[h % widths.out];
    }
  }
};

struct Workspace {
  // Full of NaN, which spreads from any row that is read before it is written.
  explicit Workspace(std::size_t bytes)
      : memory(std::vector<std::byte>(bytes + radixmlp::workspace_alignment, std::byte{0xff})) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::size_t skip =
        (radixmlp::workspace_alignment - address % radixmlp::workspace_alignment) % radixmlp::workspace_alignment;
    span = {memory.data() + skip, bytes};
  }
  typename Backend::template Array<std::byte> memory;
  std::span<std::byte> span;
};

// The plan of an index, in the backend's memory.
template <class B>
struct BackendPlan {
  BackendPlan(const PrefixIndexView& host, const typename B::Index& index, const AttentionPlanOptions& options)
      : host_memory(radixmlp::attention_plan_entries(host, options)),
        host_plan(radixmlp::attention_plan(host, host_memory, options)),
        memory(std::vector<std::int32_t>(host_plan.block.begin(), host_plan.block.end())),
        plan(host_plan.relocated(memory.data(), host, index.view())) {}
  std::vector<std::int32_t> host_memory;
  radixmlp::AttentionPlan host_plan;
  typename B::template Array<std::int32_t> memory;
  radixmlp::AttentionPlan plan;
};

// A batch with its inputs: equal rows have equal hidden states, as an embedding makes them.
struct Case {
  explicit Case(const BatchSpec& with) : spec(with), ragged_rows(with.rows()) {
    radixmlp::PrefixTrie trie;
    const TypedBatch<std::int32_t, std::int32_t, radixmlp::Key128> typed(spec);
    const PrefixIndexView view = trie.build(typed.batch(), {.pad_to = spec.pad_to});
    host_index = radixmlp::PrefixIndex(view);
    index = std::make_unique<typename Backend::Index>(view);
    std::mt19937 random(9);
    std::vector<float> unique(static_cast<std::size_t>(view.compact_rows * hidden_width));
    for (float& value : unique) {
      value = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
    }
    for (std::int64_t i = 0; i < ragged_rows; ++i) {
      const std::int64_t row = view.scatter[static_cast<std::size_t>(i)];
      for (std::int64_t c = 0; c < hidden_width; ++c) {
        hidden.push_back(unique[static_cast<std::size_t>(row * hidden_width + c)]);
      }
    }
    for (std::size_t s = 0; s + 1 < spec.cu_seqlens.size(); ++s) {
      for (std::int32_t i = spec.cu_seqlens[s]; i < spec.cu_seqlens[s + 1]; ++i) {
        positions.push_back(i - spec.cu_seqlens[s]);
      }
    }
  }

  // The engine on the ragged rows, without the library.
  std::vector<float> reference(int layers) const {
    const auto n = ragged_rows;
    const auto floats = [n](std::int64_t width) { return std::vector<float>(static_cast<std::size_t>(n * width)); };
    Backend backend;
    typename Backend::template Array<float> h(hidden), q(floats(widths.q)), k(floats(widths.k)), v(floats(widths.v)),
        out(floats(widths.out));
    typename Backend::template Array<std::int32_t> p(positions), cu(spec.cu_seqlens);
    const AttentionCall<float> call{{q.data(), n, widths.q},
                                    {k.data(), n, widths.k},
                                    {v.data(), n, widths.v},
                                    {out.data(), n, widths.out},
                                    {cu.data(), spec.cu_seqlens.size()},
                                    0};
    for (int layer = 0; layer < layers; ++layer) {
      backend.for_each(n, Project{{h.data(), n, hidden_width},
                                  {p.data(), n, 1},
                                  {q.data(), n, widths.q},
                                  {k.data(), n, widths.k},
                                  {v.data(), n, widths.v}});
      backend.for_each(n, Attend{call, static_cast<std::int64_t>(spec.sequences())});
      backend.for_each(n, Update{{out.data(), n, widths.out}, {h.data(), n, hidden_width}});
    }
    backend.synchronize();
    return h.download();
  }

  std::vector<float> through_block(CompactionPolicy policy, int layers) const {
    Backend backend;
    Workspace workspace(CompactedBlock<float>::workspace_bytes(widths, index->view(), policy));
    const CompactedBlock<float> block(index->view(), widths, workspace.span, policy);
    return run(backend, block, layers, [&](const AttentionCall<float>& call) {
      CHECK(call.q.rows() == ragged_rows);
      CHECK(call.max_seqlen == index->view().max_seqlen);
      backend.for_each(ragged_rows, Attend{call, static_cast<std::int64_t>(spec.sequences())});
    });
  }

  std::vector<float> through_block(AttentionLayout layout, const AttentionPlanOptions& options, int layers) const {
    Backend backend;
    const BackendPlan<Backend> planned(host_index, *index, options);
    const radixmlp::CompactionDecision decision = always.decide(index->view(), layout);
    Workspace workspace(CompactedBlock<float>::workspace_bytes(widths, index->view(), decision, planned.plan));
    const CompactedBlock<float> block(index->view(), widths, workspace.span, decision, planned.plan);
    CHECK(block.layout() == decision.layout);
    return run(backend, block, layers, serving<ragged, compact_query, paged>([&](const AttentionCall<float>& call) {
                 CHECK(call.layout == block.layout());
                 if (call.layout == ragged) {
                   CHECK(call.plan.queries == ragged_rows);
                   CHECK(call.plan.keys == ragged_rows);
                   CHECK(call.plan.max_seqlen_q == index->view().max_seqlen);
                   CHECK(call.plan.max_seqlen_k == index->view().max_seqlen);
                 }
                 backend.for_each(call.q.rows(), AttendByPlan(call));
               }));
  }

  template <class Attention>
  std::vector<float> run(Backend& backend, const CompactedBlock<float>& block, int layers, Attention attention) const {
    const auto n = ragged_rows;
    typename Backend::template Array<float> ragged(hidden),
        compact(std::vector<float>(hidden.size() + 64 * hidden_width)), expanded(std::vector<float>(hidden.size()));
    typename Backend::template Array<std::int32_t> p(positions),
        compact_p(std::vector<std::int32_t>(positions.size() + 64));
    const RowView<float> state = block.select(backend.where(), RowView<float>(ragged.data(), n, hidden_width),
                                              RowView<float>(compact.data(), block.rows(), hidden_width));
    const RowView<const std::int32_t> state_positions =
        block.select(backend.where(), RowView<const std::int32_t>(p.data(), n, 1),
                     RowView<std::int32_t>(compact_p.data(), block.rows(), 1));
    for (int layer = 0; layer < layers; ++layer) {
      block.forward(
          backend.where(), state,
          [&](RowView<const float> h, RowView<float> q, RowView<float> k, RowView<float> v) {
            backend.for_each(h.rows(), Project{h, state_positions, q, k, v});
          },
          attention,
          [&](RowView<const float> out, RowView<float> h) {
            backend.for_each(h.rows(), Update{out, h});
          });
    }
    const RowView<const float> result =
        block.expand(backend.where(), RowView<const float>(state), RowView<float>(expanded.data(), n, hidden_width));
    backend.synchronize();
    CHECK(result.rows() == n);
    CHECK(result.data() == (block.compacts() ? expanded.data() : ragged.data()));
    if (block.compacts()) {  // padding stays zero through all layers
      const std::vector<float> rows = compact.download();
      const auto first = rows.begin() + index->view().compact_rows * hidden_width;
      CHECK(std::count(first, rows.begin() + block.rows() * hidden_width, 0.0f) ==
            (block.rows() - index->view().compact_rows) * hidden_width);
    }
    return block.compacts() ? expanded.download() : ragged.download();
  }

  BatchSpec spec;
  std::int64_t ragged_rows;
  radixmlp::PrefixIndex host_index;
  std::unique_ptr<typename Backend::Index> index;
  std::vector<float> hidden;
  std::vector<std::int32_t> positions;
};

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

inline BatchSpec with_padding(BatchSpec spec, std::int32_t pad_to) {
  spec.pad_to = pad_to;
  return spec;
}

// gamma = 5 / 10
inline BatchSpec half_shared() { return spec_of({{1, 2, 3}, {1, 2, 3}, {1, 2, 4, 5}}); }

}  // namespace

TEST_CASE("a stack of layers gives the same bits compacted, not compacted, and without the library") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  for (const std::int32_t pad_to : {1, 8}) {
    const Case batch(with_padding(half_shared(), pad_to));
    const std::vector<float> expected = batch.reference(3);
    CHECK(same_bits(batch.through_block(never, 3), expected));
    CHECK(same_bits(batch.through_block(always, 3), expected));
    CHECK_FALSE(same_bits(batch.hidden, expected));
  }
}

TEST_CASE("random batches: empty sequences, duplicates, prefixes, branches") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  RandomBatches random(31);
  for (int i = 0; i < (Backend::on_device ? 15 : 40); ++i) {
    BatchSpec spec = random.next();
    spec.positions.clear();  // the toy engine takes a row's place in its sequence
    const Case batch(spec);
    CAPTURE(i);
    REQUIRE(same_bits(batch.through_block(always, 2), batch.reference(2)));
  }
}

TEST_CASE("every attention layout gives the same bits") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  RandomBatches random(32);
  for (int i = 0; i < (Backend::on_device ? 4 : 60); ++i) {
    BatchSpec spec = random.next();
    spec.positions.clear();
    spec.past_lengths.clear();
    const Case batch(spec);
    CAPTURE(i);
    const AttentionPlanOptions options{
        .partition = i % 2 == 0 ? radixmlp::QueryPartition::sequences : radixmlp::QueryPartition::edges,
        .keep_empty = i % 4 < 2,
        .query_tile = i % 3 == 0 ? 4 : 1,
        .group_keys = i % 3 == 1 ? 1 + i * i % std::max(spec.rows(), 1) : 0};
    const std::vector<float> expected = batch.reference(2);
    for (const AttentionLayout layout : {ragged, compact_query, paged}) {
      CAPTURE(name(layout));
      REQUIRE(same_bits(batch.through_block(layout, options, 2), expected));
    }
  }
}

TEST_CASE("pooling takes last, first and chosen rows from the block's rows") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  using Ints = std::vector<std::int32_t>;
  const Case batch(spec_of({{1, 2, 3}, {1, 2, 3}, {}, {1, 2, 4, 5}}));
  Backend backend;
  for (const bool compacts : {true, false}) {
    Workspace workspace(CompactedBlock<float>::workspace_bytes(widths, batch.index->view(), compacts ? always : never));
    const CompactedBlock<float> block(batch.index->view(), widths, workspace.span, compacts ? always : never);
    const auto space = block.compacts() ? radixmlp::RowSpace::compact : radixmlp::RowSpace::ragged;
    Ints last(4), first(4), chosen(2);
    radixmlp::pooled_rows(batch.host_index, radixmlp::PooledRow::last, space, last);
    radixmlp::pooled_rows(batch.host_index, radixmlp::PooledRow::first, space, first);
    radixmlp::compact_rows_of(batch.host_index, Ints{9, 4}, chosen);
    CHECK(last == (compacts ? Ints{2, 2, 0, 4} : Ints{2, 5, 0, 9}));
    CHECK(first == (compacts ? Ints{0, 0, 0, 0} : Ints{0, 3, 0, 6}));
    CHECK(chosen == Ints{4, 1});
    std::vector<float> values;
    for (int i = 0; i < 10; ++i) {
      values.push_back(static_cast<float>(i));
      values.push_back(static_cast<float>(100 + i));
    }
    typename Backend::template Array<float> rows(values), out(std::vector<float>(8));
    typename Backend::template Array<std::int32_t> numbers(last);
    block.take(backend.where(), {numbers.data(), 4}, RowView<const float>(rows.data(), block.rows(), 2),
               RowView<float>(out.data(), 4, 2));
    backend.synchronize();
    CHECK(out.download() == (compacts ? std::vector<float>{2, 102, 2, 102, 0, 100, 4, 104}
                                      : std::vector<float>{2, 102, 5, 105, 0, 100, 9, 109}));
  }
  // Where there is no row at all, row 0 is not there either.
  const Case nothing(spec_of({{}, {}}));
  const CompactedBlock<float> block(nothing.index->view(), widths, {});
  typename Backend::template Array<float> out(std::vector<float>(4));
  typename Backend::template Array<std::int32_t> numbers(Ints{0, 0});
  CHECK_THROWS_AS(block.take(backend.where(), {numbers.data(), 2}, RowView<const float>(out.data(), 0, 2),
                             RowView<float>(out.data(), 2, 2)),
                  InvalidRows);
  CHECK_NOTHROW(block.take(backend.where(), {numbers.data(), 0}, RowView<const float>(out.data(), 0, 2),
                           RowView<float>(out.data(), 2, 2)));
}

TEST_CASE("the policy: off above gamma = 0.9, and off means no copy") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const auto gamma = [](std::int32_t compact, std::int32_t ragged) {
    PrefixIndexView view;
    view.compact_rows = compact;
    view.ragged_rows = ragged;
    return view;
  };
  CHECK(CompactionPolicy{}.compacts(gamma(89, 100)));
  CHECK(CompactionPolicy{}.compacts(gamma(90, 100)));
  CHECK_FALSE(CompactionPolicy{}.compacts(gamma(91, 100)));
  CHECK_FALSE(CompactionPolicy{}.compacts(gamma(0, 0)));
  CHECK(CompactionPolicy{.max_ratio = 1.0}.compacts(gamma(99, 100)));
  CHECK_FALSE(CompactionPolicy{.max_ratio = 1.0}.compacts(gamma(100, 100)));

  const Case batch(half_shared());
  const std::int64_t n = batch.ragged_rows;
  Backend backend;
  Workspace workspace(CompactedBlock<float>::workspace_bytes(widths, n, 0));
  const CompactedBlock<float> block(batch.index->view(), widths, workspace.span, never);
  CHECK_FALSE(block.compacts());
  CHECK(block.rows() == n);
  typename Backend::template Array<float> hidden(batch.hidden);
  const RowView<float> ragged(hidden.data(), n, hidden_width);
  // Storage that cannot hold a row: nothing may be copied there.
  const RowView<float> no_storage(nullptr, 0, hidden_width);
  CHECK(block.select(backend.where(), ragged, no_storage).data() == ragged.data());
  CHECK(block.expand(backend.where(), ragged, no_storage).data() == ragged.data());
  float* q_written = nullptr;
  float* out_written = nullptr;
  block.forward(
      backend.where(), ragged,
      [&](RowView<const float> h, RowView<float> q, RowView<float> k, RowView<float> v) {
        CHECK(h.data() == ragged.data());
        CHECK(h.rows() == n);
        CHECK(k.data() == q.data() + widths.q);
        CHECK(v.data() == k.data() + widths.k);
        CHECK(q.stride() == widths.qkv());
        q_written = q.data();
      },
      [&](const AttentionCall<float>& call) {
        CHECK(call.q.data() == q_written);
        out_written = call.out.data();
      },
      [&](RowView<const float> out, RowView<float> h) {
        CHECK(out.data() == out_written);
        CHECK(h.data() == ragged.data());
      });
  backend.synchronize();
}

TEST_CASE("compacted, the engine's row-wise work sees padded N' rows and its attention N") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Case batch(with_padding(half_shared(), 8));
  Backend backend;
  Workspace workspace(CompactedBlock<float>::workspace_bytes(widths, batch.index->view()));
  const CompactedBlock<float> block(batch.index->view(), widths, workspace.span);
  REQUIRE(block.compacts());
  CHECK(block.rows() == 8);
  typename Backend::template Array<float> hidden(std::vector<float>(10 * hidden_width));
  typename Backend::template Array<std::int32_t> positions(batch.positions);
  int calls = 0;
  block.forward(
      backend.where(), RowView<float>(hidden.data(), 10, hidden_width),
      [&](RowView<const float> h, RowView<float> q, RowView<float>, RowView<float>) {
        CHECK(h.rows() == 8);
        CHECK(q.rows() == 8);
        ++calls;
        backend.for_each(8, Project{h, RowView<const std::int32_t>(positions.data(), 8, 1), q, q, q});
      },
      [&](const AttentionCall<float>& call) {
        CHECK(call.q.rows() == 10);
        CHECK(call.out.rows() == 10);
        CHECK(call.cu_seqlens.size() == 4);
        CHECK(call.max_seqlen == 4);
        ++calls;
        backend.for_each(10, Attend{call, 3});
      },
      [&](RowView<const float> out, RowView<float> h) {
        CHECK(out.rows() == 8);
        CHECK(h.rows() == 8);
        ++calls;
      });
  backend.synchronize();
  CHECK(calls == 3);
}

TEST_CASE("workspace and rows that do not fit are refused before the engine is called") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Case batch(half_shared());
  const PrefixIndexView& index = batch.index->view();
  const std::size_t bytes = CompactedBlock<float>::workspace_bytes(widths, index);
  CHECK(bytes == CompactedBlock<float>::workspace_bytes(widths, 10, 5));
  // max(1000 * 12, 900 * 6) and max(1000 * 6, 900 * 12) floats, each rounded up to 256 bytes; without compaction
  // 1000 * 12 and 1000 * 6.
  CHECK(CompactedBlock<float>::workspace_bytes(widths, 1000, 900) == 48128 + 43264);
  CHECK(CompactedBlock<float>::workspace_bytes(widths, 1000, 0) == 48128 + 24064);
  CHECK(CompactedBlock<float>::workspace_bytes(widths, index, never) ==
        CompactedBlock<float>::workspace_bytes(widths, 10, 0));
  Workspace workspace(bytes);
  const auto refusal = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const InvalidRows& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(refusal([&] { CompactedBlock<float>(index, widths, workspace.span); }) == "accepted");
  CHECK(refusal([&] { CompactedBlock<float>(index, widths, workspace.span.first(bytes - 1)); }) ==
        "radixmlp: workspace = " + std::to_string(bytes - 1) + ": its bytes must be at least " + std::to_string(bytes));
  CHECK(refusal([&] {
          CompactedBlock<float>(index, widths, {workspace.span.data() + 4, bytes});
        }) == "radixmlp: workspace = 4: its address must be a multiple of 256");
  CHECK(refusal([&] { CompactedBlock<float>(index, {.q = 5, .k = -3, .v = 4, .out = 6}, workspace.span); }) ==
        "radixmlp: widths.k = -3: must be at least 0");

  using radixmlp::CompactionDecision;
  const CompactionDecision by_pages = always.decide(index, paged), by_keys = always.decide(index, compact_query);
  CHECK(refusal([&] { CompactedBlock<float>(index, widths, workspace.span, by_pages); }) ==
        "radixmlp: plan.cu_seqlens_q = 0: its size must be at least 1");
  const std::vector<std::int32_t> pasts{3, 3, 3}, slots{0, 1, 2, 3, 4};
  const BackendPlan<Backend> with_past(batch.host_index, *batch.index, {.past_lengths = pasts}),
      with_slots(batch.host_index, *batch.index, {.slots = slots}), plain(batch.host_index, *batch.index, {}),
      tiles(batch.host_index, *batch.index, {.query_tile = 2});
  CHECK(refusal([&] { CompactedBlock<float>(index, widths, workspace.span, by_pages, with_past.plan); }) ==
        "radixmlp: plan.past_keys = 6: paged needs past_pages in the plan");
  CHECK(refusal([&] { CompactedBlock<float>(index, widths, workspace.span, by_keys, with_slots.plan); }) ==
        "radixmlp: plan.in_cache = 1: compact_query takes a plan without slots and past_pages");
  PrefixIndexView longer = index;
  longer.compact_rows = 6;
  longer.ragged_rows = 11;
  CHECK(refusal([&] { CompactedBlock<float>(longer, widths, workspace.span, by_pages, plain.plan); }) ==
        "radixmlp: plan.queries = 5: must be those of the index's compact rows, 6");
  // 5 x 12 and 5 x 6 floats; and 7 keys of 7, for the copy is left out; and 6 queries of 5 and of 6.
  CHECK(CompactedBlock<float>::workspace_bytes(widths, index, by_pages, plain.plan) == 256 + 256);
  CHECK(CompactedBlock<float>::workspace_bytes(widths, index, by_keys, plain.plan) == 256 + 256 + 256);
  CHECK(CompactedBlock<float>::workspace_bytes(widths, index, by_pages, tiles.plan) == 256 + 256 + 256 + 256);
  CHECK(CompactedBlock<float>::workspace_bytes(widths, 2000, 1000, compact_query, 3000, 500) ==
        48128 + 24064 + 84224 + 10240 + 12032);

  Backend backend;
  typename Backend::template Array<float> hidden(batch.hidden);
  const CompactedBlock<float> block(index, widths, workspace.span);
  bool called = false;
  const CompactedBlock<float> paged_block(index, widths, workspace.span, by_pages, plain.plan);
  CHECK(refusal([&] {
          paged_block.forward(
              backend.where(), RowView<float>(hidden.data(), 10, hidden_width),
              [&](auto, auto, auto, auto) { called = true; },
              serving<ragged, compact_query>([&](const auto&) { called = true; }), [&](auto, auto) { called = true; });
        }) == "radixmlp: layout = 2: is not among the `layouts` of the attention's type");
  CHECK_FALSE(called);
  CHECK(refusal([&] {
          block.forward(
              backend.where(), RowView<float>(hidden.data(), 4, hidden_width),
              [&](auto, auto, auto, auto) { called = true; }, [&](const auto&) { called = true; },
              [&](auto, auto) { called = true; });
        }) == "radixmlp: hidden.rows = 4: must be at least 5");
  CHECK_FALSE(called);
}
