// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "radixmlp/index/prefix_index.hpp"

namespace radixmlp::inline v0 {

// What an operator wants to log of a batch.
struct IndexStats {
  std::int32_t sequences = 0;
  std::int32_t ragged_rows = 0;   // N
  std::int32_t compact_rows = 0;  // N'
  double ratio = 1.0;             // gamma = N'/N
  // Sequences by rows shared with an earlier one: [0] none, [b] 2^(b-1) to 2^b - 1.
  std::array<std::int32_t, 33> shared_rows{};
  std::int64_t attention_pairs = 0;          // query-key pairs of causal attention over the ragged rows, past included
  std::int64_t compact_attention_pairs = 0;  // of the compact rows' queries alone
  std::size_t map_bytes = 0;                 // of the block of all maps
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// O(B), no allocation. `past_lengths` as in the batch: empty, or one a sequence.
[[nodiscard]] inline IndexStats index_stats(const PrefixIndexView& index,
                                            std::span<const std::int32_t> past_lengths = {}) {
  detail::check_without_counts(index);
  if (!past_lengths.empty()) {
    detail::raise_unless_ok(detail::validate_size("past_lengths", past_lengths.size(), index.sequences()));
  }
  IndexStats stats;
  stats.sequences = index.sequences();
  stats.ragged_rows = index.ragged_rows;
  stats.compact_rows = index.compact_rows;
  stats.ratio = index.ratio();
  stats.map_bytes = index.block.size();
  for (std::int32_t s = 0; s < index.sequences(); ++s) {
    const auto at = static_cast<std::size_t>(s);
    const std::int64_t past = past_lengths.empty() ? 0 : past_lengths[at];
    const std::int64_t shared = index.shared_rows(s);
    const std::int64_t length = index.ragged_cu[at + 1] - index.ragged_cu[at];
    // Row i sees itself, the i rows before it and the past.
    const auto pairs = [past](std::int64_t rows) { return rows * (rows + 1) / 2 + rows * past; };
    ++stats.shared_rows[static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(shared)))];
    stats.attention_pairs += pairs(length);
    stats.compact_attention_pairs += pairs(length) - pairs(shared);
  }
  return stats;
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
