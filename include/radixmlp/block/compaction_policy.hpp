// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "radixmlp/block/attention_call.hpp"
#include "radixmlp/index/index_stats.hpp"
#include "radixmlp/index/prefix_index.hpp"

namespace radixmlp::inline v0 {

// Why a batch is compacted or not.
enum class CompactionReason : std::uint8_t {
  nothing_shared,     // N' = N
  too_few_rows,       // N below min_rows
  ratio_too_high,     // gamma above max_ratio
  ratio_low_enough,   // gamma at most max_ratio
  predicted_gain,     // the cost model says that this layout is the fastest
  predicted_no_gain,  // the cost model says that compaction gains less than min_gain
  only_layout,        // the attention serves no ragged rows, so there is no other way
};
inline constexpr std::size_t compaction_reasons = 7;

// What was decided for a batch, to act on and to log.
struct CompactionDecision {
  std::int32_t ragged_rows = 0;   // N
  std::int32_t compact_rows = 0;  // N'
  bool compacts = false;
  AttentionLayout layout = AttentionLayout::ragged;
  CompactionReason reason = CompactionReason::nothing_shared;
  double speedup = 1.0;  // of a layer, as the cost model predicts it; 1 where no model was asked
};

// When compaction pays, by a threshold. A pure function of the batch's counts, so that all ranks of a tensor-parallel
// group decide alike.
struct CompactionPolicy {
  // Compact if gamma = N'/N is at most this. Moving the rows of Q, K, V and O costs a few percent of a layer, so the
  // last tenth is not worth it. 1 compacts whenever there is something to share, 0 never does.
  double max_ratio = 0.9;
  // Batches of fewer rows N are left alone: a decode step's GEMMs are bound by their weights, not by their rows.
  std::int32_t min_rows = 0;

  // The attention layout is the caller's choice, among those that its attention serves.
  [[nodiscard]] RADIXMLP_ALWAYS_INLINE CompactionDecision
  decide(const PrefixIndexView& index, AttentionLayout layout = AttentionLayout::ragged) const noexcept {
    using enum CompactionReason;
    CompactionDecision decision{index.ragged_rows, index.compact_rows};
    decision.reason = index.compact_rows >= index.ragged_rows ? nothing_shared
                      : index.ragged_rows < min_rows          ? too_few_rows
                      : index.ratio() > max_ratio             ? ratio_too_high
                                                              : ratio_low_enough;
    decision.compacts = decision.reason == ratio_low_enough;
    decision.layout = decision.compacts ? layout : AttentionLayout::ragged;
    return decision;
  }
  [[nodiscard]] RADIXMLP_ALWAYS_INLINE bool compacts(const PrefixIndexView& index) const noexcept {
    return decide(index).compacts;
  }
};

// What a layer costs, in any unit of time: five constants of a model on a machine. Measure them once, or derive them
// from the model's shape and the machine's rates (`layer_costs`).
struct LayerCosts {
  double row = 0;         // one row through norms, projections, residuals and MLP
  double pair = 0;        // one query that sees one key, all heads
  double paged_pair = 0;  // the same with the key read through key_slots
  double moved_byte = 0;  // one byte of a row, read and written
  double move = 0;        // fixed cost of a call that moves rows
};

// FLOPs of a layer: `row` is twice the number of its weights; `pair` is 2 (q + out) widths: a product with K and one
// with V for each query head.
struct LayerShape {
  double row_flops = 0;
  double pair_flops = 0;
};

// What a machine does in a unit of time.
struct MachineRates {
  double row_flops = 0;         // in the GEMMs
  double pair_flops = 0;        // in attention
  double paged_pair_flops = 0;  // in attention through a page table
  double bytes = 0;             // of rows moved: read and written
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

[[nodiscard]] constexpr const char* name(AttentionLayout layout) noexcept {
  return layout == AttentionLayout::ragged ? "ragged" : layout == AttentionLayout::paged ? "paged" : "compact_query";
}

[[nodiscard]] constexpr const char* name(CompactionReason reason) noexcept {
  constexpr std::array<const char*, compaction_reasons> names{"nothing_shared",   "too_few_rows",   "ratio_too_high",
                                                              "ratio_low_enough", "predicted_gain", "predicted_no_gain",
                                                              "only_layout"};
  return names[static_cast<std::size_t>(reason)];
}

[[nodiscard]] constexpr LayerCosts layer_costs(const LayerShape& shape, const MachineRates& rates,
                                               double move = 0) noexcept {
  return {shape.row_flops / rates.row_flops, shape.pair_flops / rates.pair_flops,
          shape.pair_flops / rates.paged_pair_flops, 1 / rates.bytes, move};
}

// Chooses compaction and layout by what a layer would cost. A pure function of the batch's counts and of constants,
// never of a timing. Hysteresis over batches is the engine's own.
struct CostModel {
  LayerCosts costs;
  AttentionWidths widths;
  std::int64_t element_bytes = 0;
  // Compact only if a layer gets faster by this factor: what the model does not know (the index, cold caches) costs
  // too.
  double min_gain = 1.02;
  std::int32_t min_rows = 0;  // as in CompactionPolicy

  [[nodiscard]] constexpr double uncompacted(const IndexStats& batch) const noexcept {
    return costs.row * batch.ragged_rows + costs.pair * static_cast<double>(batch.attention_pairs);
  }

  // Time of a layer on compact rows. The keys that compact_query moves are taken to be N: a plan that leaves sequences
  // out moves fewer.
  [[nodiscard]] constexpr double compacted(const IndexStats& batch, AttentionLayout layout) const noexcept {
    const auto moved = [this](double rows, std::int64_t width) {
      return costs.move + costs.moved_byte * rows * static_cast<double>(width * element_bytes);
    };
    const double rows = costs.row * batch.compact_rows;
    const auto all_pairs = static_cast<double>(batch.attention_pairs);
    const auto pairs = static_cast<double>(batch.compact_attention_pairs);
    switch (layout) {
      case AttentionLayout::ragged:
        return rows + costs.pair * all_pairs + moved(batch.ragged_rows, widths.qkv()) +
               moved(batch.compact_rows, widths.out);
      case AttentionLayout::compact_query:
        return rows + costs.pair * pairs + moved(batch.ragged_rows, widths.k + widths.v);
      case AttentionLayout::paged:
        return rows + costs.paged_pair * pairs;
    }
    return rows;
  }

  // `batch` from index_stats, with its past; `served` from layouts_of<the engine's attention>.
  [[nodiscard]] constexpr CompactionDecision decide(const IndexStats& batch, AttentionLayouts served) const noexcept {
    using enum CompactionReason;
    CompactionDecision decision{batch.ragged_rows, batch.compact_rows};
    const bool may_stay = served.includes(AttentionLayout::ragged);
    if (may_stay && (batch.compact_rows >= batch.ragged_rows || batch.ragged_rows < min_rows)) {
      decision.reason = batch.compact_rows >= batch.ragged_rows ? nothing_shared : too_few_rows;
      return decision;
    }
    double best = 0;
    for (const AttentionLayout layout :
         {AttentionLayout::ragged, AttentionLayout::compact_query, AttentionLayout::paged}) {
      if (served.includes(layout)) {
        const double time = compacted(batch, layout);
        if (!decision.compacts || time < best) {
          decision.compacts = true;
          decision.layout = layout;
          best = time;
        }
      }
    }
    if (best > 0) {
      decision.speedup = uncompacted(batch) / best;
    }
    decision.reason = may_stay ? predicted_gain : only_layout;
    if (may_stay && decision.speedup < min_gain) {
      decision.compacts = false;
      decision.layout = AttentionLayout::ragged;
      decision.reason = predicted_no_gain;
    }
    return decision;
  }
};

// Decisions counted, for an operator's log.
struct CompactionLog {
  std::array<std::int64_t, compaction_reasons> by_reason{};  // index: CompactionReason
  std::array<std::int64_t, 3> by_layout{};                   // of the compacted batches; index: AttentionLayout
  std::int64_t batches = 0;
  std::int64_t ragged_rows = 0;    // sum of N
  std::int64_t computed_rows = 0;  // sum of N' where compacted, else N

  constexpr void add(const CompactionDecision& decision) noexcept {
    ++batches;
    ++by_reason[static_cast<std::size_t>(decision.reason)];
    by_layout[static_cast<std::size_t>(decision.layout)] += decision.compacts ? 1 : 0;
    ragged_rows += decision.ragged_rows;
    computed_rows += decision.compacts ? decision.compact_rows : decision.ragged_rows;
  }
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
