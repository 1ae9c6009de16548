// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/rows/row_map.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0 {

// `rows` source rows from `source` on become target rows from `target` on.
struct RowRun {
  std::int32_t source;
  std::int32_t target;
  std::int32_t rows;
};

// Runs in rising order of their target rows, which do not overlap; target rows between them are left alone. Not owned;
// they lie where the rows do.
struct RowRuns {
  std::span<const RowRun> runs = {};
  std::int64_t source_rows = 0;
  std::int64_t target_rows = 0;
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// Stretches of a map that count up by one.
[[nodiscard]] inline std::int64_t count_runs(std::span<const std::int32_t> map) noexcept {
  std::int64_t runs = map.empty() ? 0 : 1;
  for (std::size_t i = 1; i < map.size(); ++i) {
    runs += map[i] != map[i - 1] + 1 ? 1 : 0;
  }
  return runs;
}

// The runs of a map in host memory, written to `memory` of count_runs(map.map) entries or more. Copying them is what
// map_rows does with the mapped rows; padding is left alone. O(entries), no allocation. Throws InvalidBatch where
// `memory` is too small.
[[nodiscard]] inline RowRuns make_runs(const RowMap& map, std::span<RowRun> memory) {
  detail::check_entries("memory", memory.size(), static_cast<std::size_t>(count_runs(map.map)));
  std::size_t count = 0;
  for (std::size_t i = 0; i < map.map.size(); ++i) {
    if (i > 0 && map.map[i] == map.map[i - 1] + 1) {
      ++memory[count - 1].rows;
    } else {
      memory[count++] = {map.map[i], static_cast<std::int32_t>(i), 1};
    }
  }
  return {memory.first(count), map.source_rows, map.target_rows};
}

// Throws InvalidRows for the first of the runs, in host memory, that is not within the rows or not behind the one
// before it. The calls that copy runs trust them.
inline void check_runs(const RowRuns& runs) {
  std::int64_t behind = 0;
  for (std::size_t i = 0; i < runs.runs.size(); ++i) {
    const RowRun& run = runs.runs[i];
    const auto at = static_cast<std::int64_t>(i);
    if (run.rows < 0) {
      detail::raise(detail::invalid_rows("runs.rows", at, run.rows, "must be at least", 0));
    }
    if (run.source < 0 || std::int64_t{run.source} + run.rows > runs.source_rows) {
      detail::raise(
          detail::invalid_rows("runs.source", at, run.source, "with its rows must be within", runs.source_rows));
    }
    if (run.target < behind) {
      detail::raise(
          detail::invalid_rows("runs.target", at, run.target, "must not be before the end of the run before,", behind));
    }
    behind = std::int64_t{run.target} + run.rows;
    if (behind > runs.target_rows) {
      detail::raise(
          detail::invalid_rows("runs.target", at, run.target, "with its rows must be within", runs.target_rows));
    }
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
