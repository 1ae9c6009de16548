// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/rows/row_map.hpp"
#include "radixmlp/rows/row_runs.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0 {

// Ways to move rows along one map.
enum class RowKernel : std::uint8_t {
  indexed,    // map_rows: any map, zeros behind it
  runs,       // copy_runs: one block for rows that follow each other on both sides
  multicast,  // multicast_rows: a row is read once for all rows it becomes
};

// What a plan looks at. Counts of rows, bytes of all tensors of the call together.
struct RowWork {
  std::int64_t mapped_rows = 0;    // entries of the map
  std::int64_t target_rows = 0;    // with padding
  std::int64_t distinct_rows = 0;  // source rows that the map names
  std::int64_t runs = 0;           // stretches of the map that count up by one; 0 = not counted
  std::int64_t row_bytes = 0;
  std::int64_t alignment = 1;    // bytes that every row starts and ends on a multiple of, up to 32; of the worst tensor
  bool contiguous = false;       // rows follow each other without a gap on both sides, in every tensor
  std::int64_t cache_bytes = 0;  // last-level cache of the device
};

struct RowPlan {
  RowKernel kernel = RowKernel::indexed;
  Caching caching = Caching::normal;
  const char* reason = "";  // a literal
  RowWork work = {};

  // One line: the kernel, why, and the counts that say so.
  [[nodiscard]] std::string explain() const {
    const char* const names[] = {"indexed", "runs", "multicast"};
    std::string text = names[static_cast<std::size_t>(kernel)];
    text += std::string(": ") + reason + " (";
    const auto count = [&text](std::int64_t value, const char* of) { text += std::to_string(value) + of; };
    count(work.mapped_rows, " rows of ");
    count(work.row_bytes, " bytes from ");
    count(work.distinct_rows, " distinct, ");
    count(work.runs, " runs, aligned to ");
    count(work.alignment, work.contiguous ? ", contiguous, cache of " : ", with gaps, cache of ");
    count(work.cache_bytes, " bytes); ");
    return text + (caching == Caching::streaming ? "streaming stores" : "plain stores");
  }
};

// The forms of one map that a plan chooses from; those that are not there are left empty.
struct RowMoves {
  RowMap map = {};
  RowRuns runs = {};
  RowLists lists = {};
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// The work of a call: the map's entries may lie anywhere, only their number is looked at. Throws InvalidRows as the
// call would.
template <class... Sources, class... Targets>
[[nodiscard]] RowWork row_work(const RowMap& map, std::int64_t distinct_rows, std::int64_t runs,
                               std::int64_t cache_bytes, const RowCopy<Sources, Targets>&... copies) {
  detail::check_map(map);
  RowWork work{
      static_cast<std::int64_t>(map.map.size()), map.target_rows, distinct_rows, runs, 0, 32, true, cache_bytes};
  for (const detail::ByteRows& rows : detail::checked_bytes({map.source_rows, map.target_rows}, copies...)) {
    work.row_bytes += rows.row_bytes;
    work.contiguous = work.contiguous && rows.source_stride == rows.row_bytes && rows.target_stride == rows.row_bytes;
    const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(rows.source) |
                               reinterpret_cast<std::uintptr_t>(rows.target) |
                               static_cast<std::uint64_t>(rows.source_stride | rows.target_stride | rows.row_bytes);
    while (bits % static_cast<std::uint64_t>(work.alignment) != 0) {
      work.alignment /= 2;
    }
  }
  return work;
}

// Chooses from what the counts say the kernels read and write; a pure function of its arguments. `forced` is taken as
// it is.
//
// - multicast where rows are read several times and the source does not stay in the cache: every reading of a row
//   beyond the first is saved. It stores in no order, so rows must be longer than a few sectors.
// - runs where rows are narrow or aligned to less than 16 bytes, but long blocks of them are not: fewer and wider
//   accesses. On wide aligned rows the indexed kernel already has the widest.
// - indexed for all else, and wherever there is padding to be zeroed.
[[nodiscard]] inline RowPlan plan_rows(const RowWork& work, std::optional<RowKernel> forced = {}) noexcept {
  constexpr std::int64_t sectors_of_store = 16;  // in multicast, of 32 bytes
  constexpr std::int64_t narrow = 128;           // bytes, a cache line
  constexpr std::int64_t block = 2048;           // bytes of a mean run
  RowPlan plan{RowKernel::indexed, Caching::normal, "any map", work};
  if ((work.distinct_rows + work.target_rows) * work.row_bytes > work.cache_bytes) {
    plan.caching = Caching::streaming;
  }
  const auto choose = [&plan](RowKernel kernel, const char* reason) {
    plan.kernel = kernel;
    plan.reason = reason;
    return plan;
  };
  if (forced) {
    return choose(*forced, "forced");
  }
  if (work.target_rows > work.mapped_rows) {
    return choose(RowKernel::indexed, "rows behind the map become zero");
  }
  if (work.row_bytes >= 32 * sectors_of_store && work.distinct_rows * work.row_bytes > work.cache_bytes &&
      5 * work.distinct_rows <= 4 * work.mapped_rows) {
    return choose(RowKernel::multicast, "rows repeat and the source is beyond the cache");
  }
  if (work.runs > 0 && work.contiguous && (work.alignment < 16 || work.row_bytes < narrow) &&
      work.mapped_rows * work.row_bytes >= block * work.runs) {
    return choose(RowKernel::runs, "narrow or unaligned rows in long runs");
  }
  return plan;
}

namespace detail {

inline void check_form(const char* form, std::size_t entries, const RowMap& map) {
  if (entries == 0 && !map.map.empty()) {
    raise(invalid_rows(form, -1, 0, "is planned for; rows to move,", static_cast<std::int64_t>(map.map.size())));
  }
}

}  // namespace detail

// Moves rows as planned: map_rows, copy_runs or multicast_rows with that form of the map, which must be there. `where`
// is a HostExecutor or a stream, and errors are those of that call; InvalidRows where the form is missing.
template <class Where, class... Sources, class... Targets>
RADIXMLP_ALWAYS_INLINE inline void move_rows(const Where& where, const RowPlan& plan, const RowMoves& moves,
                                             const RowCopy<Sources, Targets>&... copies) {
  if (plan.kernel == RowKernel::runs) {
    detail::check_form("moves.runs", moves.runs.runs.size(), moves.map);
    copy_runs(where, moves.runs, copies...);
  } else if (plan.kernel == RowKernel::multicast) {
    detail::check_form("moves.lists", moves.lists.values.size(), moves.map);
    multicast_rows(where, moves.lists, copies...);
  } else if (plan.caching == Caching::streaming) {
    map_rows<RowOptions{.caching = Caching::streaming}>(where, moves.map, copies...);
  } else {
    map_rows<RowOptions{}>(where, moves.map, copies...);
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
