// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "radixmlp/index/ragged_batch.hpp"
#include "radixmlp/index/row_identity.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail {

inline constexpr std::int64_t no_token = std::numeric_limits<std::int64_t>::min();  // behind the end of a sequence

// A sequence in a list that is sorted by tokens: the depth-first order of the trie.
struct SortedSequence {
  std::int32_t sequence;
  std::int32_t shared;  // leading tokens that it has in common with the one before it in the list; 0 for the first
  std::int64_t next;    // its token behind those, or no_token
};

// What sorts sequences: `sequences` is called with a number and returns a std::span of tokens. Merging two sorted lists
// compares no token twice (Ng and Kakehi, "Merging string sequences by longest common prefixes", 2008): in all, a sort
// of n sequences compares O(N + n log n) tokens and numbers. Equal sequences keep their order.
template <TokenId Token, class Sequences>
class SequenceSorter {
 public:
  explicit SequenceSorter(Sequences sequences) : sequences_(std::move(sequences)) {}

  [[nodiscard]] SortedSequence entry(std::int32_t sequence, std::int32_t shared) const {
    const std::span<const Token> tokens = sequences_(sequence);
    const auto at = static_cast<std::size_t>(shared);
    return {sequence, shared, at < tokens.size() ? static_cast<std::int64_t>(tokens[at]) : no_token};
  }

  // Entries made by entry(s, 0). `room` is overwritten and has as many.
  void sort(std::span<SortedSequence> list, std::span<SortedSequence> room) const {
    if (list.size() < 2) {
      return;
    }
    const std::size_t half = list.size() / 2;
    sort(list.first(half), room.first(half));
    sort(list.subspan(half), room.subspan(half));
    merge(list.first(half), list.subspan(half), room);
    std::copy(room.begin(), room.end(), list.begin());
  }

  // Both lists are sorted; of equal sequences those of `a` come first. `out` has room for all and overlaps neither.
  void merge(std::span<const SortedSequence> a, std::span<const SortedSequence> b,
             std::span<SortedSequence> out) const {
    std::size_t i = 0;
    std::size_t j = 0;
    std::size_t written = 0;
    if (!a.empty() && !b.empty()) {
      // `shared` of both heads counts what they share with the last entry written.
      SortedSequence x = a[0];
      SortedSequence y = b[0];
      while (true) {
        bool x_first = x.shared > y.shared;
        if (x.shared == y.shared) {
          if (x.next == y.next && x.next != no_token) {
            x_first = compare_behind(x, y);
          } else if (x.next <= y.next) {
            x_first = true;  // y shares as much with x as with the last entry
          }
        }
        out[written++] = x_first ? x : y;
        if (x_first) {
          if (++i == a.size()) {
            out[written++] = y;
            ++j;
            break;
          }
          x = a[i];
        } else {
          if (++j == b.size()) {
            out[written++] = x;
            ++i;
            break;
          }
          y = b[j];
        }
      }
    }
    const auto rest = std::copy(a.begin() + static_cast<std::ptrdiff_t>(i), a.end(),
                                out.begin() + static_cast<std::ptrdiff_t>(written));
    std::copy(b.begin() + static_cast<std::ptrdiff_t>(j), b.end(), rest);
  }

 private:
  // Two heads that agree up to and with their next token: finds where they part, says whether x comes first, and lets
  // the other say what it shares with the first.
  [[nodiscard]] bool compare_behind(SortedSequence& x, SortedSequence& y) const {
    const std::span<const Token> p = sequences_(x.sequence);
    const std::span<const Token> q = sequences_(y.sequence);
    const std::int64_t from = std::int64_t{x.shared} + 1;
    const std::int64_t most = static_cast<std::int64_t>(std::min(p.size(), q.size())) - from;
    const auto shared = static_cast<std::int32_t>(
        from + equal_values<Token>(reinterpret_cast<const std::byte*>(p.data() + from),
                                   reinterpret_cast<const std::byte*>(q.data() + from), most, most));
    const SortedSequence x_there = entry(x.sequence, shared);
    const SortedSequence y_there = entry(y.sequence, shared);
    const bool x_first = x_there.next <= y_there.next;
    (x_first ? y : x) = x_first ? y_there : x_there;
    return x_first;
  }

  Sequences sequences_;
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail
