// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "radixmlp/block/attention_call.hpp"
#include "radixmlp/block/compaction_policy.hpp"
#include "radixmlp/index/attention_plan.hpp"
#include "radixmlp/index/prefix_index.hpp"
#include "radixmlp/rows/host_rows.hpp"
#include "radixmlp/rows/row_map.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0 {

// Alignment of a block's workspace and of each tensor in it, in bytes.
inline constexpr std::size_t workspace_alignment = 256;

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// Runs transformer layers on the unique rows of a batch. One object a batch: it lays out the workspace once, and every
// layer reuses it; the state between layers stays compact. It owns nothing; index, plan and workspace must outlive it.
//
// With an index for a capacity (index_capacity.hpp) rows(), GEMM shapes and tensors are those of the capacity, and what
// moves is the batch that is in the index when it runs: captured once in a graph, a layer serves every batch that fits.
//
// `where` is a HostExecutor, or a cudaStream_t with index, workspace and rows in device memory (include cuda.cuh). On a
// stream every call enqueues and returns: no allocation, no synchronisation, capturable in a graph.
//
// The engine's row-wise work must be independent from row to row (norms, linear layers, RoPE by each row's own
// position, activations); dropout, MoE capacity limits and scales computed over all rows are not.
template <class T>
class CompactedBlock {
  static_assert(std::is_trivially_copyable_v<T> && !std::is_const_v<T>,
                "radixmlp: CompactedBlock<T> needs a trivially copyable, non-const element type");

 public:
  // Bytes of workspace for this index and policy, at most workspace_bytes(widths, N, N rounded up to pad_to).
  [[nodiscard]] static std::size_t workspace_bytes(const AttentionWidths& widths, const PrefixIndexView& index,
                                                   CompactionPolicy policy = {}) noexcept {
    return workspace_bytes(widths, index, policy.decide(index));
  }
  // For a decision, and the plan where its layout takes one.
  [[nodiscard]] static std::size_t workspace_bytes(const AttentionWidths& widths, const PrefixIndexView& index,
                                                   const CompactionDecision& decision,
                                                   const AttentionPlan& plan = {}) noexcept {
    if (decision.compacts && decision.layout == AttentionLayout::compact_query && !plan.groups.empty()) {
      return static_cast<std::size_t>(Layout::grouped(widths, index.padded_rows, plan).end);
    }
    return decision.compacts ? workspace_bytes(widths, index.ragged_rows, index.padded_rows, decision.layout, plan.keys,
                                               plan.query_rows.empty() ? 0 : plan.queries)
                             : workspace_bytes(widths, index.ragged_rows, 0);
  }
  // By counts: N ragged rows, and N' padded (0 = not compacted). For compact_query the keys of the plan as well, and
  // for a plan with query_rows its queries.
  [[nodiscard]] static std::size_t workspace_bytes(const AttentionWidths& widths, std::int64_t ragged_rows,
                                                   std::int64_t padded_rows,
                                                   AttentionLayout layout = AttentionLayout::ragged,
                                                   std::int64_t keys = 0, std::int64_t moved_queries = 0) noexcept {
    return static_cast<std::size_t>(
        layout == AttentionLayout::ragged
            ? Layout(widths, ragged_rows, padded_rows).end
            : Layout(widths, padded_rows, layout == AttentionLayout::compact_query ? keys : 0, moved_queries).end);
  }

  // Compacts by the policy's threshold, with attention on ragged rows. The workspace is the block's from here to the
  // end of the last `forward`; then the engine may use it again, as the `storage` of `expand` for one. Throws
  // InvalidRows if the workspace is too small or not aligned to workspace_alignment, or a width is negative.
  CompactedBlock(const PrefixIndexView& index, const AttentionWidths& widths, std::span<std::byte> workspace,
                 CompactionPolicy policy = {})
      : CompactedBlock(index, widths, workspace, policy.decide(index)) {}

  // As decided. The layouts compact_query and paged need the index's attention plan, in the memory that the index is
  // in; else the plan is not looked at. Throws InvalidRows also if the plan is not one of this index, or not one that
  // the layout can use: compact_query moves rows, so it takes no slots of a cache; paged moves none, so it must know
  // where the past is.
  CompactedBlock(const PrefixIndexView& index, const AttentionWidths& widths, std::span<std::byte> workspace,
                 const CompactionDecision& decision, const AttentionPlan& plan = {})
      : index_(index),
        widths_(widths),
        workspace_(workspace),
        compacts_(decision.compacts),
        attention_layout_(decision.compacts ? decision.layout : AttentionLayout::ragged) {
    check(widths.q >= 0, "widths.q", widths.q, "must be at least", 0);
    check(widths.k >= 0, "widths.k", widths.k, "must be at least", 0);
    check(widths.v >= 0, "widths.v", widths.v, "must be at least", 0);
    check(widths.out >= 0, "widths.out", widths.out, "must be at least", 0);
    if (attention_layout_ == AttentionLayout::ragged) {
      layout_ = Layout(widths, index.ragged_rows, compacts_ ? index.padded_rows : 0);
      plan_.cu_seqlens_q = index.ragged_cu;
      plan_.cu_seqlens_k = index.ragged_cu;
      plan_.queries = index.ragged_rows;
      plan_.keys = index.ragged_rows;
      plan_.max_seqlen_q = index.max_seqlen;
      plan_.max_seqlen_k = index.max_seqlen;
    } else {
      plan_ = plan;
      const bool moves_keys = attention_layout_ == AttentionLayout::compact_query;
      check(!plan.cu_seqlens_q.empty(), "plan.cu_seqlens_q", 0, "its size must be at least", 1);
      check(static_cast<std::int64_t>(plan.key_slots.size()) == plan.keys, "plan.key_slots",
            static_cast<std::int64_t>(plan.key_slots.size()), "its size must be", plan.keys);
      const std::int64_t outputs =
          moves_queries() ? static_cast<std::int64_t>(plan.output_rows.size()) : std::int64_t{plan.queries};
      check(outputs == index.compact_rows, "plan.queries", outputs, "must be those of the index's compact rows,",
            index.compact_rows);
      check(!moves_keys || !plan.in_cache, "plan.in_cache", 1,
            "compact_query takes a plan without slots and past_pages");
      check(moves_keys || plan.past_keys == 0, "plan.past_keys", plan.past_keys, "paged needs past_pages in the plan");
      check(index.counts == nullptr || plan.key_slots.data() == index.scatter.data(), "plan.key_slots", 0,
            "must be the scatter of an index for a capacity");
      layout_ = in_groups()
                    ? Layout::grouped(widths, index.padded_rows, plan)
                    : Layout(widths, index.padded_rows, moves_keys ? plan.keys : 0, moves_queries() ? plan.queries : 0);
      if (moves_keys) {
        plan_.key_slots = {};
        key_rows_ = plan.key_slots;
      }
    }
    check(static_cast<std::int64_t>(workspace.size()) >= layout_.end, "workspace",
          static_cast<std::int64_t>(workspace.size()), "its bytes must be at least", layout_.end);
    const auto off = reinterpret_cast<std::uintptr_t>(workspace.data()) % workspace_alignment;
    check(off == 0, "workspace", static_cast<std::int64_t>(off), "its address must be a multiple of",
          workspace_alignment);
  }

  [[nodiscard]] bool compacts() const noexcept { return compacts_; }
  [[nodiscard]] AttentionLayout layout() const noexcept { return attention_layout_; }

  // Rows that the engine's row-wise work runs on: padded N', or N if not compacted.
  [[nodiscard]] std::int64_t rows() const noexcept { return compacts_ ? index_.padded_rows : index_.ragged_rows; }

  // A per-row input in the order of the block's rows: hidden states, positions for RoPE, adapter ids. Gathers into
  // `storage` (at least rows() rows) and returns that; not compacted, returns `ragged` itself and copies nothing.
  template <class Where, class U>
  RADIXMLP_ALWAYS_INLINE RowView<U> select(const Where& where, const RowView<U>& ragged,
                                           const RowView<std::remove_const_t<U>>& storage) const {
    if (!compacts_) {
      return ragged;
    }
    gather_rows(where, index_, ragged, storage);
    return storage.first_rows(rows());
  }

  // The way back, once, after the last layer: scatters into `storage` (at least N rows) and returns that; not
  // compacted, returns `rows` itself and copies nothing.
  template <class Where, class U>
  RADIXMLP_ALWAYS_INLINE RowView<U> expand(const Where& where, const RowView<U>& rows,
                                           const RowView<std::remove_const_t<U>>& storage) const {
    if (!compacts_) {
      return rows;
    }
    scatter_rows(where, index_, rows, storage);
    return storage.first_rows(index_.ragged_rows);
  }

  // Some rows of `rows` (rows() of them) by number: out[i] = rows[chosen[i]], zeros for -1, as last_rows has it for an
  // empty sequence; `chosen` is in the memory that the index is in (see `pooled_rows`). Nothing is expanded for it.
  // With an index for a capacity `chosen` has one entry a sequence, and rows of sequences that are not there become
  // zero.
  template <class Where, class U>
  RADIXMLP_ALWAYS_INLINE void take(const Where& where, std::span<const std::int32_t> chosen, const RowView<U>& rows,
                                   const RowView<std::remove_const_t<U>>& out) const {
    RowMap map{chosen, std::max<std::int64_t>(this->rows(), chosen.empty() ? 0 : 1),
               static_cast<std::int64_t>(chosen.size())};
    if (index_.counts != nullptr) {
      check(map.target_rows == index_.sequences(), "chosen", map.target_rows,
            "its size must be the sequences of the index's capacity,", index_.sequences());
      map.count = &index_.counts->sequences;
    }
    map_rows<RowOptions{.bounds = Bounds::zero}>(where, map, RowCopy{rows, out});
  }

  // out[s] = mean of the rows of sequence s, taken from `rows` (rows() of them) in double precision; zero for an empty
  // sequence. [B] rows. Index and rows in host memory.
  template <HostExecutor Executor, class U>
  void mean(const Executor& executor, const RowView<U>& rows, const RowView<std::remove_const_t<U>>& out) const {
    detail::check_without_counts(index_);
    check(rows.rows() >= this->rows(), "rows.rows", rows.rows(), "must be at least", this->rows());
    check(out.rows() >= index_.sequences(), "out.rows", out.rows(), "must be at least", index_.sequences());
    check(out.width() == rows.width(), "out.width", out.width(), "must equal the rows' width,", rows.width());
    executor.parallel_for(index_.sequences(), [&](std::int64_t s) {
      constexpr std::int64_t block = 64;  // columns whose sums stay in the first-level cache
      const std::int32_t* const cu = index_.ragged_cu.data() + s;
      for (std::int64_t c = 0; c < rows.width(); c += block) {
        const std::int64_t columns = std::min(block, rows.width() - c);
        double sums[block] = {};
        for (std::int64_t i = cu[0]; i < cu[1]; ++i) {
          const U* const row = rows.row(compacts_ ? index_.scatter[static_cast<std::size_t>(i)] : i) + c;
          for (std::int64_t x = 0; x < columns; ++x) {
            sums[x] += static_cast<double>(row[x]);
          }
        }
        for (std::int64_t x = 0; x < columns; ++x) {
          out.row(s)[c + x] = static_cast<std::remove_const_t<U>>(sums[x] / std::max(cu[1] - cu[0], 1));
        }
      }
    });
  }

  // The same on a stream, for types with a FloatFormatOf: see `mean_rows` for the order of the sums. `workspace` is
  // device memory of sum_workspace_floats(N, index.max_seqlen, width) floats.
  template <class Where, class U>
  requires(!HostExecutor<Where>) RADIXMLP_ALWAYS_INLINE
      void mean(const Where& where, const RowView<U>& rows, const RowView<std::remove_const_t<U>>& out,
                std::span<float> workspace) const {
    mean_rows(where, index_, compacts_, rows, out, workspace);
  }

  // One layer, in place on `hidden`, which has rows() rows or more (from `select`, or embedded from compact tokens):
  //   pre_attention(RowView<const T> hidden, RowView<T> q, RowView<T> k, RowView<T> v)   norm, projections, RoPE
  //   attention(const AttentionCall<T>&)                                                 the engine's own kernel
  //   post_attention(RowView<const T> attention_out, RowView<T> hidden)                  projection, residual, MLP
  // pre_attention and post_attention see rows() rows, attention what the layout says; its type must serve the layout
  // (layouts_of). Padding rows are zero when they come from the library and never reach attention. Throws InvalidRows
  // before anything is called, and what the callables throw.
  template <class Where, class PreAttention, class Attention, class PostAttention>
  RADIXMLP_ALWAYS_INLINE void forward(const Where& where, const RowView<T>& hidden, PreAttention&& pre_attention,
                                      Attention&& attention, PostAttention&& post_attention) const {
    static_assert(std::invocable<PreAttention&, RowView<const T>, RowView<T>, RowView<T>, RowView<T>>,
                  "radixmlp: pre_attention must be callable as "
                  "void(RowView<const T> hidden, RowView<T> q, RowView<T> k, RowView<T> v)");
    static_assert(AttentionCallable<Attention, T>,
                  "radixmlp: attention must be callable as void(const AttentionCall<T>&)");
    static_assert(
        DeclaresLayouts<Attention> || !requires { std::remove_cvref_t<Attention>::layouts; },
        "radixmlp: the attention's member `layouts` must be a static constexpr AttentionLayouts");
    static_assert(std::invocable<PostAttention&, RowView<const T>, RowView<T>>,
                  "radixmlp: post_attention must be callable as "
                  "void(RowView<const T> attention_out, RowView<T> hidden)");
    check(hidden.rows() >= rows(), "hidden.rows", hidden.rows(), "must be at least", rows());
    check(layouts_of<Attention>.includes(attention_layout_), "layout", static_cast<std::int64_t>(attention_layout_),
          "is not among the `layouts` of the attention's type");
    const RowView<T> state = hidden.first_rows(rows());
    if (attention_layout_ == AttentionLayout::ragged) {
      forward_ragged(where, state, pre_attention, attention, post_attention);
    } else if (in_groups()) {
      forward_groups(where, state, pre_attention, attention, post_attention);
    } else {
      forward_compact(where, state, pre_attention, attention, post_attention);
    }
  }

 private:
  template <class Where, class PreAttention, class Attention, class PostAttention>
  RADIXMLP_ALWAYS_INLINE void forward_ragged(const Where& where, const RowView<T>& state, PreAttention& pre_attention,
                                             Attention& attention, PostAttention& post_attention) const {
    const RowView<T> qkv = tensor(layout_.qkv, index_.ragged_rows, widths_.qkv());
    const RowView<T> out = tensor(layout_.out, index_.ragged_rows, widths_.out);
    const RowView<T> compact_qkv = compacts_ ? tensor(layout_.out, rows(), widths_.qkv()) : qkv;
    const RowView<T> compact_out = compacts_ ? tensor(layout_.qkv, rows(), widths_.out) : out;

    pre_attention(RowView<const T>(state), q(compact_qkv), k(compact_qkv), v(compact_qkv));
    if (compacts_) {
      scatter_rows(where, index_, compact_qkv, qkv);
    }
    const AttentionCall<T> call{q(qkv), k(qkv), v(qkv), out, index_.ragged_cu, index_.max_seqlen, attention_layout_,
                                plan_};
    attention(call);
    if (compacts_) {
      gather_rows(where, index_, out, compact_out);
    }
    post_attention(RowView<const T>(compact_out), state);
  }

  template <class Where, class PreAttention, class Attention, class PostAttention>
  RADIXMLP_ALWAYS_INLINE void forward_compact(const Where& where, const RowView<T>& state, PreAttention& pre_attention,
                                              Attention& attention, PostAttention& post_attention) const {
    const std::int32_t compact_rows = index_.compact_rows;
    const RowView<T> qkv = tensor(layout_.qkv, rows(), widths_.qkv());
    const RowView<T> out = tensor(layout_.out, rows(), widths_.out);
    const RowView<T> kv = tensor(layout_.keys, plan_.keys, widths_.k + widths_.v);
    const RowView<T> moved_q = tensor(layout_.moved_q, plan_.queries, widths_.q);
    const RowView<T> moved_out = tensor(layout_.moved_out, plan_.queries, widths_.out);

    pre_attention(RowView<const T>(state), q(qkv), k(qkv), v(qkv));
    AttentionCall<T> call{q(qkv).first_rows(compact_rows),
                          k(qkv).first_rows(compact_rows),
                          v(qkv).first_rows(compact_rows),
                          out.first_rows(compact_rows),
                          index_.ragged_cu,
                          index_.max_seqlen,
                          attention_layout_,
                          plan_};
    if (moves_queries()) {
      scatter_rows(where, scattered_by(plan_.query_rows), q(qkv), moved_q);
      call.q = moved_q;
      call.out = moved_out;
    }
    if (attention_layout_ == AttentionLayout::compact_query) {
      scatter_rows(where, scattered_by(key_rows_), qkv.columns(widths_.q, widths_.k + widths_.v), kv);
      call.k = kv.columns(0, widths_.k);
      call.v = kv.columns(widths_.k, widths_.v);
      call.kv = kv;
    }
    attention(static_cast<const AttentionCall<T>&>(call));
    if (moves_queries()) {
      const PrefixIndexView outputs{.gather = plan_.output_rows,
                                    .ragged_rows = plan_.queries,
                                    .compact_rows = index_.compact_rows,
                                    .padded_rows = index_.padded_rows};
      gather_rows(where, outputs, moved_out, out);
    } else if (index_.counts != nullptr) {
      zero_rows_behind(where, &index_.counts->compact_rows, out);
    } else {
      zero_padding(where, out);
    }
    post_attention(RowView<const T>(out), state);
  }

  // compact_query, a group at a time: K and V of its keys are expanded, and its output takes the place of its queries,
  // which no other group reads; an output wider than them has rows of its own. Keys that lie as they are needed, as
  // those of a sequence that shares nothing do, are not expanded.
  template <class Where, class PreAttention, class Attention, class PostAttention>
  RADIXMLP_ALWAYS_INLINE void forward_groups(const Where& where, const RowView<T>& state, PreAttention& pre_attention,
                                             Attention& attention, PostAttention& post_attention) const {
    const RowView<T> qkv = tensor(layout_.qkv, rows(), widths_.qkv());
    const bool in_place = Layout::keeps_output_in_place(widths_);
    const RowView<T> out = in_place ? qkv.columns(0, widths_.out) : tensor(layout_.out, rows(), widths_.out);
    const RowView<T> compact_kv = qkv.columns(widths_.q, widths_.k + widths_.v);

    pre_attention(RowView<const T>(state), q(qkv), k(qkv), v(qkv));
    for (std::size_t g = 0; g < plan_.groups.size(); ++g) {
      const AttentionGroup& group = plan_.groups[g];
      if (group.queries == 0) {
        continue;
      }
      const RowView<T> target = out.rows_from(group.first_query, group.queries);
      const RowView<T> group_out = in_place ? tensor(layout_.out, group.queries, widths_.out) : target;
      RowView<T> kv;
      if (group.first_row >= 0) {
        kv = compact_kv.rows_from(group.first_row, group.keys);
      } else {
        kv = tensor(layout_.group_keys(widths_, rows(), group), group.keys, widths_.k + widths_.v);
        scatter_rows(where,
                     scattered_by(key_rows_.subspan(static_cast<std::size_t>(group.first_key),
                                                    static_cast<std::size_t>(group.keys))),
                     compact_kv, kv);
      }
      const AttentionCall<T> call{q(qkv).rows_from(group.first_query, group.queries),
                                  kv.columns(0, widths_.k),
                                  kv.columns(widths_.k, widths_.v),
                                  group_out,
                                  index_.ragged_cu,
                                  index_.max_seqlen,
                                  attention_layout_,
                                  plan_.group(g),
                                  kv};
      attention(call);
      if (in_place) {
        map_rows(where,
                 RowMap{plan_.group_rows.first(static_cast<std::size_t>(group.queries)), group.queries, group.queries},
                 RowCopy{group_out, target});
      }
    }
    zero_padding(where, out);
    post_attention(RowView<const T>(out), state);
  }

  // Padding rows become zero, as those of a gather are.
  template <class Where>
  RADIXMLP_ALWAYS_INLINE void zero_padding(const Where& where, const RowView<T>& out) const {
    if (const std::int32_t padding = index_.padded_rows - index_.compact_rows; padding > 0) {
      gather_rows(where, PrefixIndexView{.padded_rows = padding}, out, out.rows_from(index_.compact_rows, padding));
    }
  }

  // Byte offsets of the tensors.
  struct Layout {
    std::int64_t qkv = 0;
    std::int64_t out = 0;
    std::int64_t keys = 0;
    std::int64_t moved_q = 0;
    std::int64_t moved_out = 0;
    std::int64_t end = 0;

    Layout() = default;
    // Attention on ragged rows: packed QKV and the output, N rows each. Compact rows take the place of what is not
    // alive beside them: compact QKV that of the output, which attention has not written yet when QKV is scattered, and
    // the compact output that of QKV, which attention has read when its output is gathered. So compaction adds next to
    // no memory.
    Layout(const AttentionWidths& widths, std::int64_t ragged_rows, std::int64_t padded_rows) noexcept
        : out(bytes(std::max(ragged_rows * widths.qkv(), padded_rows * widths.out))),
          end(out + bytes(std::max(ragged_rows * widths.out, padded_rows * widths.qkv()))) {}
    // On compact rows: packed QKV and the output, padded N' rows each, and whatever moves in rows of its own.
    Layout(const AttentionWidths& widths, std::int64_t padded_rows, std::int64_t moved_keys,
           std::int64_t moved_queries) noexcept
        : out(bytes(padded_rows * widths.qkv())),
          keys(out + bytes(padded_rows * widths.out)),
          moved_q(keys + bytes(moved_keys * (widths.k + widths.v))),
          moved_out(moved_q + bytes(moved_queries * widths.q)),
          end(moved_out + bytes(moved_queries * widths.out)) {}

    // The same in groups: the output of a group, and behind it K and V where they are expanded.
    static Layout grouped(const AttentionWidths& widths, std::int64_t padded_rows, const AttentionPlan& plan) noexcept {
      Layout layout;
      layout.out = bytes(padded_rows * widths.qkv());
      for (const AttentionGroup& group : plan.groups) {
        const std::int64_t keys = group.first_row < 0 ? group.keys : 0;
        layout.end =
            std::max(layout.end, layout.group_keys(widths, padded_rows, group) + bytes(keys * (widths.k + widths.v)));
      }
      return layout;
    }
    [[nodiscard]] std::int64_t group_keys(const AttentionWidths& widths, std::int64_t padded_rows,
                                          const AttentionGroup& group) const noexcept {
      return out + bytes((keeps_output_in_place(widths) ? group.queries : padded_rows) * widths.out);
    }
    static bool keeps_output_in_place(const AttentionWidths& widths) noexcept { return widths.out <= widths.q; }

    static std::int64_t bytes(std::int64_t elements) noexcept {
      return detail::round_up(elements * std::int64_t{sizeof(T)}, std::int64_t{workspace_alignment});
    }
  };

  static void check(bool ok, const char* argument, std::int64_t value, const char* requirement, std::int64_t bound) {
    if (!ok) {
      detail::raise(detail::invalid_rows(argument, -1, value, requirement, bound));
    }
  }
  static void check(bool ok, const char* argument, std::int64_t value, const char* requirement) {
    if (!ok) {
      detail::raise({StatusCode::invalid_rows, argument, requirement, -1, value, 0, false});
    }
  }

  // Maps of any number of rows that each copy a compact row.
  [[nodiscard]] PrefixIndexView scattered_by(std::span<const std::int32_t> rows) const noexcept {
    return {.scatter = rows,
            .ragged_rows = static_cast<std::int32_t>(rows.size()),
            .compact_rows = index_.compact_rows,
            .counts = index_.counts};
  }

  // Whether queries start at tiles, so that Q and the output have rows of their own.
  [[nodiscard]] bool moves_queries() const noexcept { return !plan_.query_rows.empty(); }

  // Whether attention runs on a group of segments at a time.
  [[nodiscard]] bool in_groups() const noexcept {
    return attention_layout_ == AttentionLayout::compact_query && !plan_.groups.empty();
  }

  [[nodiscard]] RowView<T> tensor(std::int64_t offset, std::int64_t rows, std::int64_t width) const noexcept {
    return {reinterpret_cast<T*>(workspace_.data() + offset), rows, width};
  }
  [[nodiscard]] RowView<T> q(const RowView<T>& qkv) const noexcept { return qkv.columns(0, widths_.q); }
  [[nodiscard]] RowView<T> k(const RowView<T>& qkv) const noexcept { return qkv.columns(widths_.q, widths_.k); }
  [[nodiscard]] RowView<T> v(const RowView<T>& qkv) const noexcept {
    return qkv.columns(widths_.q + widths_.k, widths_.v);
  }

  PrefixIndexView index_;
  AttentionWidths widths_;
  std::span<std::byte> workspace_;
  bool compacts_;
  AttentionLayout attention_layout_;
  AttentionPlan plan_;                        // as attention gets it
  std::span<const std::int32_t> key_rows_{};  // compact_query: the compact row of each key
  Layout layout_;
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
