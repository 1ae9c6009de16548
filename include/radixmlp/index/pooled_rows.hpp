// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/index/prefix_index.hpp"

namespace radixmlp::inline v0 {

// The order of the rows that a number counts in.
enum class RowSpace : std::uint8_t { ragged, compact };

enum class PooledRow : std::uint8_t { first, last };

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// out[s] = the row of each sequence's first or last token, so that pooling and logits read B rows and not N. [B] or
// longer. An empty sequence has none: its entry is 0, which any gather can read, and the result means nothing. Host
// memory, O(B). Throws InvalidBatch where `out` is too short.
inline void pooled_rows(const PrefixIndexView& index, PooledRow which, RowSpace space, std::span<std::int32_t> out) {
  detail::check_without_counts(index);
  const auto sequences = static_cast<std::size_t>(index.sequences());
  detail::check_entries("out", out.size(), sequences);
  for (std::size_t s = 0; s < sequences; ++s) {
    const std::int32_t begin = index.ragged_cu[s];
    const std::int32_t end = index.ragged_cu[s + 1];
    const std::int32_t row = begin == end ? 0 : which == PooledRow::first ? begin : end - 1;
    out[s] = space == RowSpace::ragged || begin == end ? row : index.scatter[static_cast<std::size_t>(row)];
  }
}

// out[i] = the compact row of ragged row rows[i]: to take any rows (a label's token, every position of one sequence)
// from compact space. Host memory, O(rows). Throws InvalidBatch before anything is written.
inline void compact_rows_of(const PrefixIndexView& index, std::span<const std::int32_t> rows,
                            std::span<std::int32_t> out) {
  detail::check_without_counts(index);
  detail::check_entries("out", out.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] < 0 || rows[i] >= index.ragged_rows) {
      detail::raise(detail::invalid_batch("rows", static_cast<std::int64_t>(i), rows[i],
                                          "must be a row of the batch, whose number of rows is", index.ragged_rows));
    }
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    out[i] = index.scatter[static_cast<std::size_t>(rows[i])];
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
