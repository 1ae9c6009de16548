// SPDX-License-Identifier: MIT
#pragma once

// The test body of CompactedBlock. host_block_test.cpp and device_block_test.cu define Backend and include it.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/skip.hpp"

namespace {

using namespace radixmlp_test;
using radixmlp::AttentionCall;
using radixmlp::AttentionWidths;
using radixmlp::CompactedBlock;
using radixmlp::CompactionPolicy;
using radixmlp::InvalidRows;
using radixmlp::PrefixIndexView;
using radixmlp::RowView;

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
  explicit Workspace(std::size_t bytes) : memory(std::vector<std::byte>(bytes + radixmlp::workspace_alignment)) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
    const std::size_t skip =
        (radixmlp::workspace_alignment - address % radixmlp::workspace_alignment) % radixmlp::workspace_alignment;
    span = {memory.data() + skip, bytes};
  }
  typename Backend::template Array<std::byte> memory;
  std::span<std::byte> span;
};

// A batch with its inputs: equal rows have equal hidden states, as an embedding makes them.
struct Case {
  explicit Case(const BatchSpec& with) : spec(with), ragged_rows(with.rows()) {
    radixmlp::PrefixTrie trie;
    const TypedBatch<std::int32_t, std::int32_t, radixmlp::Key128> typed(spec);
    const PrefixIndexView view = trie.build(typed.batch(), {.pad_to = spec.pad_to});
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
    const auto n = ragged_rows;
    const PrefixIndexView& view = index->view();
    Backend backend;
    Workspace workspace(CompactedBlock<float>::workspace_bytes(widths, view, policy));
    const CompactedBlock<float> block(view, widths, workspace.span, policy);
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
          [&](const AttentionCall<float>& call) {
            CHECK(call.q.rows() == n);
            CHECK(call.max_seqlen == view.max_seqlen);
            backend.for_each(n, Attend{call, static_cast<std::int64_t>(spec.sequences())});
          },
          [&](RowView<const float> out, RowView<float> h) {
            backend.for_each(h.rows(), Update{out, h});
          });
    }
    const RowView<const float> result =
        block.expand(backend.where(), RowView<const float>(state), RowView<float>(expanded.data(), n, hidden_width));
    backend.synchronize();
    CHECK(result.rows() == n);
    CHECK(result.data() == (block.compacts() ? expanded.data() : ragged.data()));
    return block.compacts() ? expanded.download() : ragged.download();
  }

  BatchSpec spec;
  std::int64_t ragged_rows;
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
  for (int i = 0; i < 40; ++i) {
    BatchSpec spec = random.next();
    spec.positions.clear();  // the toy engine takes a row's place in its sequence
    const Case batch(spec);
    CAPTURE(i);
    REQUIRE(same_bits(batch.through_block(always, 2), batch.reference(2)));
  }
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

  Backend backend;
  typename Backend::template Array<float> hidden(batch.hidden);
  const CompactedBlock<float> block(index, widths, workspace.span);
  bool called = false;
  CHECK(refusal([&] {
          block.forward(
              backend.where(), RowView<float>(hidden.data(), 4, hidden_width),
              [&](auto, auto, auto, auto) { called = true; }, [&](const auto&) { called = true; },
              [&](auto, auto) { called = true; });
        }) == "radixmlp: hidden.rows = 4: must be at least 5");
  CHECK_FALSE(called);
}
