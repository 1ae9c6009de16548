// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "radixmlp/block/compaction_policy.hpp"
#include "radixmlp/index/prefix_index.hpp"
#include "radixmlp/rows/host_rows.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0 {

// Elements of a row of Q, K, V and of the attention's output (heads times head size).
struct AttentionWidths {
  std::int64_t q = 0;
  std::int64_t k = 0;
  std::int64_t v = 0;
  std::int64_t out = 0;

  [[nodiscard]] constexpr std::int64_t qkv() const noexcept { return q + k + v; }
};

// What the engine's attention gets: causal self-attention within each sequence of a ragged batch.
template <class T>
struct AttentionCall {
  RowView<const T> q;                        // [N, widths.q]; q, k and v are columns of one packed row, in this order
  RowView<const T> k;                        // [N, widths.k]
  RowView<const T> v;                        // [N, widths.v]
  RowView<T> out;                            // [N, widths.out], to be written
  std::span<const std::int32_t> cu_seqlens;  // [B+1], in the memory that the index is in
  std::int32_t max_seqlen = 0;
};

// Alignment of a block's workspace and of each tensor in it, in bytes.
inline constexpr std::size_t workspace_alignment = 256;

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// Runs transformer layers on the unique rows of a batch. One object a batch: it decides by the policy whether to
// compact, lays out the workspace once, and every layer reuses it. It owns nothing; index and workspace must outlive
// it.
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
    return workspace_bytes(widths, index.ragged_rows, policy.compacts(index) ? index.padded_rows : 0);
  }
  // By counts: N ragged rows, and N' padded (0 = not compacted).
  [[nodiscard]] static std::size_t workspace_bytes(const AttentionWidths& widths, std::int64_t ragged_rows,
                                                   std::int64_t padded_rows) noexcept {
    return static_cast<std::size_t>(Layout(widths, ragged_rows, padded_rows).end);
  }

  // The workspace is the block's from here to the end of the last `forward`; then the engine may use it again, as the
  // `storage` of `expand` for one. Throws InvalidRows if the workspace is too small or not aligned to
  // workspace_alignment, or a width is negative.
  CompactedBlock(const PrefixIndexView& index, const AttentionWidths& widths, std::span<std::byte> workspace,
                 CompactionPolicy policy = {})
      : index_(index), widths_(widths), workspace_(workspace), compacts_(policy.compacts(index)) {
    check_width("widths.q", widths.q);
    check_width("widths.k", widths.k);
    check_width("widths.v", widths.v);
    check_width("widths.out", widths.out);
    layout_ = Layout(widths, index.ragged_rows, compacts_ ? index.padded_rows : 0);
    if (static_cast<std::int64_t>(workspace.size()) < layout_.end) {
      detail::raise(detail::invalid_rows("workspace", -1, static_cast<std::int64_t>(workspace.size()),
                                         "its bytes must be at least", layout_.end));
    }
    if (const auto off = reinterpret_cast<std::uintptr_t>(workspace.data()) % workspace_alignment; off != 0) {
      detail::raise(detail::invalid_rows("workspace", -1, static_cast<std::int64_t>(off),
                                         "its address must be a multiple of", workspace_alignment));
    }
  }

  [[nodiscard]] bool compacts() const noexcept { return compacts_; }

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

  // One layer, in place on `hidden`, which has rows() rows or more (from `select`, or embedded from compact tokens):
  //   pre_attention(RowView<const T> hidden, RowView<T> q, RowView<T> k, RowView<T> v)   norm, projections, RoPE
  //   attention(const AttentionCall<T>&)                                                 the engine's own kernel
  //   post_attention(RowView<const T> attention_out, RowView<T> hidden)                  projection, residual, MLP
  // pre_attention and post_attention see rows() rows, attention sees all N. Padding rows are zero when they come from
  // the library and never reach attention. Throws InvalidRows before anything is called, and what the callables throw.
  template <class Where, class PreAttention, class Attention, class PostAttention>
  RADIXMLP_ALWAYS_INLINE void forward(const Where& where, const RowView<T>& hidden, PreAttention&& pre_attention,
                                      Attention&& attention, PostAttention&& post_attention) const {
    static_assert(std::invocable<PreAttention&, RowView<const T>, RowView<T>, RowView<T>, RowView<T>>,
                  "radixmlp: pre_attention must be callable as "
                  "void(RowView<const T> hidden, RowView<T> q, RowView<T> k, RowView<T> v)");
    static_assert(std::invocable<Attention&, const AttentionCall<T>&>,
                  "radixmlp: attention must be callable as void(const AttentionCall<T>&)");
    static_assert(std::invocable<PostAttention&, RowView<const T>, RowView<T>>,
                  "radixmlp: post_attention must be callable as "
                  "void(RowView<const T> attention_out, RowView<T> hidden)");
    if (hidden.rows() < rows()) {
      detail::raise(detail::invalid_rows("hidden.rows", -1, hidden.rows(), "must be at least", rows()));
    }
    const RowView<T> state = hidden.first_rows(rows());
    const RowView<T> qkv = tensor(layout_.qkv, index_.ragged_rows, widths_.qkv());
    const RowView<T> out = tensor(layout_.out, index_.ragged_rows, widths_.out);
    const RowView<T> compact_qkv = compacts_ ? tensor(layout_.out, rows(), widths_.qkv()) : qkv;
    const RowView<T> compact_out = compacts_ ? tensor(layout_.qkv, rows(), widths_.out) : out;

    pre_attention(RowView<const T>(state), q(compact_qkv), k(compact_qkv), v(compact_qkv));
    if (compacts_) {
      scatter_rows(where, index_, compact_qkv, qkv);
    }
    const AttentionCall<T> call{q(qkv), k(qkv), v(qkv), out, index_.ragged_cu, index_.max_seqlen};
    attention(call);
    if (compacts_) {
      gather_rows(where, index_, out, compact_out);
    }
    post_attention(RowView<const T>(compact_out), state);
  }

 private:
  // Byte offsets of packed QKV and of the attention output, N rows each. Compact rows take the place of what is not
  // alive beside them: compact QKV that of the output, which attention has not written yet when QKV is scattered, and
  // the compact output that of QKV, which attention has read when its output is gathered. So compaction adds next to no
  // memory.
  struct Layout {
    std::int64_t qkv = 0;
    std::int64_t out = 0;
    std::int64_t end = 0;

    Layout() = default;
    Layout(const AttentionWidths& widths, std::int64_t ragged_rows, std::int64_t padded_rows) noexcept
        : out(bytes(std::max(ragged_rows * widths.qkv(), padded_rows * widths.out))),
          end(out + bytes(std::max(ragged_rows * widths.out, padded_rows * widths.qkv()))) {}

    static std::int64_t bytes(std::int64_t elements) noexcept {
      return detail::round_up(elements * std::int64_t{sizeof(T)}, std::int64_t{workspace_alignment});
    }
  };

  static void check_width(const char* argument, std::int64_t width) {
    if (width < 0) {
      detail::raise(detail::invalid_rows(argument, -1, width, "must be at least", 0));
    }
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
  Layout layout_;
  bool compacts_;
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
