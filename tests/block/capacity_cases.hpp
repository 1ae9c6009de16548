// SPDX-License-Identifier: MIT
#pragma once

// A stack of layers that is recorded once for a capacity and replayed for other batches: a CUDA graph on the device,
// the same calls again on the host. Goes behind block_cases.hpp and a class Builder, which enqueues the build of an
// index for a capacity from arrays in the backend's memory.

#include <limits>

#include "radixmlp/index/index_capacity.hpp"

namespace {

using radixmlp::IndexCapacity;
using radixmlp::IndexCounts;

constexpr IndexCapacity capacity{.ragged_rows = 48, .compact_rows = 32, .sequences = 7, .max_seqlen = 24};
constexpr std::size_t ragged_floats = capacity.ragged_rows * hidden_width;
constexpr std::size_t compact_floats = capacity.compact_rows * hidden_width;
constexpr std::size_t pooled_floats = capacity.sequences * hidden_width;
constexpr std::size_t row_slots = capacity.ragged_rows, sequence_slots = capacity.sequences;
constexpr float untouched = 77.0F;

// Everything at addresses that stay, and the recording.
class Recorded {
 public:
  static constexpr int layers = Backend::on_device ? 1 : 2;

  Recorded(AttentionLayout layout, bool builds) : builds_(builds) {
    view_ = radixmlp::capacity_index(capacity, index_span());
    index_memory_.write(0, std::vector<std::byte>(radixmlp::index_bytes(capacity)));
    radixmlp::CompactionDecision decision = always.decide(view_, layout);
    std::vector<std::int32_t> plan_memory(radixmlp::attention_plan_entries(view_, {.keep_empty = true}));
    radixmlp::AttentionPlan plan = radixmlp::attention_plan(view_, plan_memory, {.keep_empty = true});
    plan_memory_ = std::make_unique<typename Backend::template Array<std::int32_t>>(
        std::vector<std::int32_t>(plan.block.begin(), plan.block.end()));
    plan = plan.relocated(plan_memory_->data(), view_, view_);
    workspace_ = std::make_unique<Workspace>(CompactedBlock<float>::workspace_bytes(widths, view_, decision, plan));
    block_ = std::make_unique<CompactedBlock<float>>(view_, widths, workspace_->span, decision, plan);
    graph_ = std::make_unique<typename Backend::Graph>(backend_, [this] { record(); });
  }

  const PrefixIndexView& view() const { return view_; }

  // The recording with the inputs of a batch. Outputs that it does not write stay `untouched`.
  void replay(const Case& batch) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> hidden = batch.hidden;
    hidden.resize(ragged_floats, nan);
    ragged_.write(0, hidden);
    positions_.write(0, batch.positions);
    expanded_.write(0, std::vector<float>(hidden.size(), untouched));
    pooled_.write(0, std::vector<float>(pooled_floats, untouched));
    if (builds_) {
      write_arrays(batch.spec);
    } else {
      std::vector<std::byte> staged(radixmlp::index_bytes(capacity) + radixmlp::index_alignment);
      const std::size_t skip =
          radixmlp::index_alignment - reinterpret_cast<std::uintptr_t>(staged.data()) % radixmlp::index_alignment;
      const PrefixIndexView index = radixmlp::stage_index(
          batch.host_index, capacity, std::span(staged).subspan(skip, radixmlp::index_bytes(capacity)));
      static_cast<void>(backend_.place(index, index_span()));
      backend_.synchronize();  // `staged` ends here
    }
    graph_->launch();
    backend_.synchronize();
  }

  IndexCounts query() const { return backend_.query(view_); }
  std::vector<float> expanded() { return expanded_.read(0, capacity.ragged_rows * hidden_width); }
  std::vector<float> pooled() { return pooled_.read(0, capacity.sequences * hidden_width); }
  std::vector<float> compact() { return compact_.read(0, capacity.compact_rows * hidden_width); }
  // Of a layout that moves K and V.
  std::vector<float> keys() {
    const std::vector<std::byte> workspace = workspace_->memory.download();
    std::vector<float> values(static_cast<std::size_t>(keys_.rows() * keys_.width()));
    if (!values.empty()) {
      std::memcpy(values.data(),
                  workspace.data() + (reinterpret_cast<const std::byte*>(keys_.data()) - workspace_->memory.data()),
                  values.size() * sizeof(float));
    }
    return values;
  }
  std::vector<std::byte> index_block() {
    return index_memory_.read(0, static_cast<std::int64_t>(radixmlp::index_bytes(capacity)));
  }

 private:
  void record() {
    if (builds_) {
      builder_.build(backend_,
                     {.tokens = {tokens_.data(), row_slots},
                      .cu_seqlens = {cu_seqlens_.data(), sequence_slots + 1},
                      .token_keys = std::span<const radixmlp::Key128>(token_keys_.data(), row_slots),
                      .sequence_keys = std::span<const radixmlp::Key128>(sequence_keys_.data(), sequence_slots),
                      .opt_out = {opt_out_.data(), sequence_slots}},
                     index_span());
    }
    const auto where = backend_.where();
    const RowView<float> state =
        block_->select(where, RowView<float>(ragged_.data(), capacity.ragged_rows, hidden_width),
                       RowView<float>(compact_.data(), capacity.compact_rows, hidden_width));
    const RowView<const std::int32_t> positions =
        block_->select(where, RowView<const std::int32_t>(positions_.data(), capacity.ragged_rows, 1),
                       RowView<std::int32_t>(compact_positions_.data(), capacity.compact_rows, 1));
    for (int layer = 0; layer < layers; ++layer) {
      block_->forward(
          where, state,
          [&](RowView<const float> h, RowView<float> q, RowView<float> k, RowView<float> v) {
            backend_.for_each(h.rows(), Project{h, positions, q, k, v});
          },
          serving<ragged, compact_query, paged>([&](const AttentionCall<float>& call) {
            keys_ = call.kv;
            backend_.for_each(call.q.rows(), AttendByPlan(call));
          }),
          [&](RowView<const float> out, RowView<float> h) {
            backend_.for_each(h.rows(), Update{out, h});
          });
    }
    block_->expand(where, state, RowView<float>(expanded_.data(), capacity.ragged_rows, hidden_width));
    block_->take(where, view_.last_rows, RowView<const float>(state),
                 RowView<float>(pooled_.data(), capacity.sequences, hidden_width));
  }

  // The batch's arrays where the recording reads them: as many entries as the capacity has, sequences behind the last
  // empty, attributes that the batch has not 0.
  void write_arrays(const BatchSpec& spec) {
    const auto write = [](auto& memory, auto values, std::size_t size, auto rest) {
      values.resize(size, rest);
      memory.write(0, values);
    };
    write(tokens_, std::vector<std::int32_t>(spec.tokens.begin(), spec.tokens.end()), row_slots, 0);
    write(cu_seqlens_, spec.cu_seqlens, sequence_slots + 1, spec.rows());
    write(token_keys_, spec.token_keys, row_slots, radixmlp::Key128{});
    write(sequence_keys_, spec.sequence_keys, sequence_slots, radixmlp::Key128{});
    write(opt_out_, spec.opt_out, sequence_slots, std::uint8_t{0});
  }

  std::span<std::byte> index_span() { return {index_memory_.data(), radixmlp::index_bytes(capacity)}; }

  template <class T>
  using Memory = typename Backend::template Sparse<T>;

  bool builds_;
  Backend backend_;
  Memory<std::byte> index_memory_{radixmlp::index_bytes(capacity)};
  Memory<std::int32_t> tokens_{row_slots}, cu_seqlens_{sequence_slots + 1};
  Memory<radixmlp::Key128> token_keys_{row_slots}, sequence_keys_{sequence_slots};
  Memory<std::uint8_t> opt_out_{sequence_slots};
  Builder builder_{capacity};
  Memory<float> ragged_{ragged_floats}, compact_{compact_floats}, expanded_{ragged_floats}, pooled_{pooled_floats};
  Memory<std::int32_t> positions_{ragged_floats}, compact_positions_{compact_floats};  // more than enough
  std::unique_ptr<typename Backend::template Array<std::int32_t>> plan_memory_;
  std::unique_ptr<Workspace> workspace_;
  PrefixIndexView view_;
  RowView<float> keys_;
  std::unique_ptr<CompactedBlock<float>> block_;
  std::unique_ptr<typename Backend::Graph> graph_;
};

// `count` batches that fit: none at all, one that fills the capacity, and random ones.
inline std::vector<std::unique_ptr<Case>> fitting_batches(std::size_t count) {
  std::vector<std::unique_ptr<Case>> batches;
  batches.push_back(std::make_unique<Case>(spec_of({})));
  std::vector<std::vector<std::int32_t>> full(7);
  for (std::int32_t i = 0; i < 24; ++i) {
    full[1].push_back(i);
  }
  full[2] = std::vector(full[1].begin(), full[1].begin() + 12);
  full[4] = std::vector(full[1].begin(), full[1].begin() + 4);
  for (std::int32_t i = 0; i < 8; ++i) {
    full[6].push_back(100 + i);
  }
  batches.push_back(std::make_unique<Case>(spec_of(full)));
  const PrefixIndexView& filled = batches.back()->host_index;
  CHECK(filled.ragged_rows == capacity.ragged_rows);
  CHECK(filled.compact_rows == capacity.compact_rows);
  CHECK(filled.max_seqlen == capacity.max_seqlen);
  for (RandomBatches random(61); batches.size() < count;) {
    BatchSpec spec = random.next();
    spec.positions.clear();
    spec.past_lengths.clear();
    auto batch = std::make_unique<Case>(spec);
    if (batch->ragged_rows > 10 && radixmlp::fits(batch->host_index, capacity).ok()) {
      batches.push_back(std::move(batch));
    }
  }
  return batches;
}

// What a replay has to leave: the rows of the batch, zeros behind them, and each sequence's last row or zeros.
inline std::string difference(Recorded& recorded, const Case& batch, const std::vector<float>& expected) {
  std::vector<float> expanded = expected;
  expanded.resize(ragged_floats);
  std::vector<float> pooled(pooled_floats);
  for (std::size_t s = 0; s < batch.spec.sequences(); ++s) {
    const std::int64_t last = batch.spec.cu_seqlens[s + 1] - 1;
    for (std::size_t c = 0; last >= batch.spec.cu_seqlens[s] && c < hidden_width; ++c) {
      pooled[s * hidden_width + c] = expected[static_cast<std::size_t>(last * hidden_width) + c];
    }
  }
  const auto zeros = [](const std::vector<float>& values, std::int64_t from) {
    return std::all_of(values.begin() + std::min<std::int64_t>(from, static_cast<std::int64_t>(values.size())),
                       values.end(), [](float value) { return value == 0; });
  };
  return std::string(same_bits(recorded.expanded(), expanded) ? "" : "expanded ") +
         (same_bits(recorded.pooled(), pooled) ? "" : "pooled ") +
         (zeros(recorded.compact(), batch.host_index.view().compact_rows * hidden_width) ? "" : "padding ") +
         (zeros(recorded.keys(), batch.ragged_rows * (widths.k + widths.v)) ? "" : "keys");
}

inline std::string fault_of(const IndexCounts& counts, const PrefixIndexView& view) {
  const radixmlp::Status status = radixmlp::index_status(counts, view);
  return status.ok() ? "" : status.message();
}

inline std::string refusal_of(Recorded& recorded, const Case& batch) {
  try {
    recorded.replay(batch);
  } catch (const radixmlp::InvalidBatch& error) {
    return error.what();
  }
  return "none";
}

struct Oversized {
  BatchSpec spec;
  std::string refusal;
  bool in_arrays = true;  // the arrays of the capacity can hold it, so that the device can come to know
};
inline std::vector<Oversized> oversized() {
  const std::vector<std::int32_t> five{1, 2, 3, 4, 5};
  std::vector<std::vector<std::int32_t>> rows(7, std::vector<std::int32_t>(7, 1)), compact(7, five), sequences(8);
  for (std::size_t s = 0; s < 7; ++s) {
    compact[s][0] = static_cast<std::int32_t>(s);
  }
  sequences[7] = five;
  return {{spec_of(compact), "radixmlp: compact_rows = 35: must fit the capacity, 32"},
          {spec_of(rows), "radixmlp: ragged_rows = 49: must fit the capacity, 48"},
          {spec_of({std::vector<std::int32_t>(25, 5)}), "radixmlp: max_seqlen = 25: must fit the capacity, 24"},
          {spec_of(sequences), "radixmlp: sequences = 8: must fit the capacity, 7", false}};
}

}  // namespace

TEST_CASE("what is recorded for a capacity is right for every batch that fits, and refuses or flags the others") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const std::vector<std::unique_ptr<Case>> batches = fitting_batches(20);
  std::vector<std::vector<float>> expected;
  for (const auto& batch : batches) {
    expected.push_back(batch->reference(Recorded::layers));
  }
  for (const AttentionLayout layout : {ragged, compact_query, paged}) {
    for (const bool builds : {false, true}) {
      CAPTURE(name(layout), builds);
      Recorded recorded(layout, builds);
      for (std::size_t i = 0; i < batches.size(); ++i) {
        CAPTURE(i);
        recorded.replay(*batches[i]);
        REQUIRE(difference(recorded, *batches[i], expected[i]) == "");
      }
      CHECK(fault_of(recorded.query(), recorded.view()) == "");
      auto refused = oversized();
      refused.resize(layout == ragged ? refused.size() : 1);
      for (const auto& [spec, message, in_arrays] : refused) {
        if (builds && !in_arrays) {
          continue;
        }
        const Case batch(spec);
        const std::vector<std::byte> before = recorded.index_block();
        if (!builds) {  // the host knows: nothing is enqueued
          CHECK(refusal_of(recorded, batch) == message);
          CHECK(recorded.index_block() == before);
        } else {  // the device knows: nothing is written, until somebody asks
          recorded.replay(batch);
        }
        const std::vector<float> all_untouched(recorded.expanded().size(), untouched);
        CHECK(recorded.expanded() == all_untouched);
        CHECK(recorded.pooled() == std::vector<float>(recorded.pooled().size(), untouched));
        recorded.replay(*batches[5]);  // is not disturbed by it
        CHECK(difference(recorded, *batches[5], expected[5]) == "");
        const IndexCounts counts = recorded.query();
        CHECK(fault_of(counts, recorded.view()) == (builds ? message : ""));
        const IndexCounts again = recorded.query();
        CHECK(fault_of(again, recorded.view()) == "");
        CHECK(again.compact_rows == batches[5]->host_index.view().compact_rows);
      }
    }
  }
}
