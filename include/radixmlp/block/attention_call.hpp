// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>

#include "radixmlp/index/attention_plan.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0 {

// What attention works on when the rest of a layer runs on compact rows.
enum class AttentionLayout : std::uint8_t {
  ragged,         // Q, K and V are scattered to N rows and the output is gathered: any attention serves it
  compact_query,  // Q and the output stay compact, K and V are scattered: query and key lengths differ
  paged,          // nothing moves: K and V are read through the plan's key_slots
};

// A set of layouts.
class AttentionLayouts {
 public:
  constexpr AttentionLayouts(std::initializer_list<AttentionLayout> layouts) noexcept {
    for (const AttentionLayout layout : layouts) {
      bits_ |= 1U << static_cast<unsigned>(layout);
    }
  }
  [[nodiscard]] constexpr bool includes(AttentionLayout layout) const noexcept {
    return (bits_ >> static_cast<unsigned>(layout) & 1U) != 0;
  }
  friend constexpr bool operator==(AttentionLayouts, AttentionLayouts) = default;

 private:
  unsigned bits_ = 0;
};

// Elements of a row of Q, K, V and of the attention's output (heads times head size).
struct AttentionWidths {
  std::int64_t q = 0;
  std::int64_t k = 0;
  std::int64_t v = 0;
  std::int64_t out = 0;

  [[nodiscard]] constexpr std::int64_t qkv() const noexcept { return q + k + v; }
};

// What the engine's attention gets. Spans and rows are in the memory that index and plan were given in.
//
//   layout          rows of q and out    rows of k and v    plan
//   ragged          N                    N                  cu_seqlens_q = cu_seqlens_k = cu_seqlens, no key_slots
//   compact_query   plan.queries         plan.keys          as given, without key_slots: key i is row i of k and v
//   paged           plan.queries         N'                 as given: key i is row key_slots[i] of k and v, or of the
//                                                           engine's cache (plan.in_cache)
//
// With groups in the plan, compact_query calls the attention once for each of them, and rows and plan are the group's.
//
// In segment e, query i of nq sees keys 0 .. nk - nq + i of nk. An attention that reads the plan so serves all three;
// one that reads q, k, v, out and cu_seqlens alone serves `ragged`. The past: in `ragged` the engine's own business; in
// `compact_query` rows of k and v that the attention fills through `kv` before it reads; in `paged` pages of the cache.
template <class T>
struct AttentionCall {
  RowView<const T> q;  // q, k and v are columns of one packed row, in this order;
  RowView<const T> k;  // in compact_query k and v are one of their own
  RowView<const T> v;
  RowView<T> out;                            // to be written
  std::span<const std::int32_t> cu_seqlens;  // [B+1]: of the ragged rows
  std::int32_t max_seqlen = 0;               // of the ragged rows
  AttentionLayout layout = AttentionLayout::ragged;
  AttentionPlan plan = {};
  RowView<T> kv = {};  // compact_query: k and v as one row, to fill in the past
};

// The layouts that an attention serves: its type's constant `layouts`, or else `ragged` alone.
template <class Attention>
concept DeclaresLayouts = requires {
  requires std::same_as<std::remove_cv_t<decltype(std::remove_cvref_t<Attention>::layouts)>, AttentionLayouts>;
};
template <class Attention>
inline constexpr AttentionLayouts layouts_of{AttentionLayout::ragged};
template <DeclaresLayouts Attention>
inline constexpr AttentionLayouts layouts_of<Attention> = std::remove_cvref_t<Attention>::layouts;

// What CompactedBlock<T>::forward takes as attention.
template <class Attention, class T>
concept AttentionCallable = requires(Attention& attention, const AttentionCall<T>& call) {
  attention(call);
};

template <class Attention, AttentionLayout... Layouts>
struct ServingAttention {
  static constexpr AttentionLayouts layouts{Layouts...};

  template <class T>
  requires AttentionCallable<Attention, T> RADIXMLP_ALWAYS_INLINE void operator()(const AttentionCall<T>& call) {
    attention(call);
  }

  Attention attention;
};

// Says of a lambda which layouts it serves: serving<AttentionLayout::ragged, AttentionLayout::paged>([&](...) {...}).
template <AttentionLayout... Layouts, class Attention>
[[nodiscard]] RADIXMLP_ALWAYS_INLINE constexpr ServingAttention<Attention, Layouts...> serving(Attention attention) {
  return {std::move(attention)};
}

}  // namespace radixmlp::inline v0
