// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "radixmlp/error.hpp"
#include "radixmlp/index/prefix_index.hpp"

namespace radixmlp::inline v0 {

// The most that the batches of a CUDA graph may have. A graph is captured for a capacity, with the view of
// `capacity_index`, and replayed for every batch that fits: its maps and counts replace those in the captured memory.
struct IndexCapacity {
  std::int32_t ragged_rows = 0;   // N
  std::int32_t compact_rows = 0;  // N', which the row-wise work is captured for
  std::int32_t sequences = 0;     // B
  std::int32_t max_seqlen = 0;    // of the longest sequence; 0: ragged_rows
};

// Why a batch has no index in a capacity: IndexCounts::fault.
enum class IndexFault : std::int32_t {
  none,
  ragged_rows,  // each: more of them than the capacity; `fault_value` is how many
  compact_rows,
  sequences,
  max_seqlen,
  cu_seqlens,    // decreases at `fault_index`, or does not start at 0, or does not end at the rows
  past_lengths,  // negative at `fault_index`
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

// Byte offsets of the maps in a block for a capacity; the counts stand behind them.
struct CapacityLayout {
  IndexLayout maps;
  std::int64_t parent, counts, bytes;

  constexpr explicit CapacityLayout(const IndexCapacity& capacity) noexcept
      : maps(capacity.ragged_rows, capacity.sequences),
        parent(maps.parent(capacity.compact_rows)),
        counts(maps.bytes(capacity.compact_rows, capacity.compact_rows)),
        bytes(round_up(counts + std::int64_t{sizeof(IndexCounts)}, std::int64_t{index_alignment})) {}
};

[[nodiscard]] constexpr std::int32_t longest_sequence(const IndexCapacity& capacity) noexcept {
  return capacity.max_seqlen == 0 ? capacity.ragged_rows : capacity.max_seqlen;
}

}  // namespace detail

// Bytes of the block of an index for a capacity.
[[nodiscard]] constexpr std::size_t index_bytes(const IndexCapacity& capacity) noexcept {
  return static_cast<std::size_t>(detail::CapacityLayout(capacity).bytes);
}

// The view of an index for a capacity in `memory`, on the host or on a device: at least index_bytes(capacity), aligned
// to index_alignment. Reads and writes nothing. padded_rows is compact_rows.
//
// What is in the memory of such an index, for a batch of N, N' and B that fits:
//   counts      N', N, B and the longest sequence; the fault stays as it was
//   gather      as the batch's, 0 behind N'
//   scatter     as the batch's, 0 behind N
//   ragged_cu   as the batch's; behind B the last again, so that the sequences that are not there are empty
//   compact_cu  the same
//   parent      as the batch's, -1 behind N'
//   last_rows   as the batch's, -1 behind B
// For a batch that does not: the first three counts are -1, ragged_cu and compact_cu are 0, other entries are 0 or -1
// or rows of the capacity, and a fault is there. So kernels that know nothing of counts read nothing out of bounds.
//
// Raises InvalidBatch.
[[nodiscard]] inline PrefixIndexView capacity_index(const IndexCapacity& capacity, std::span<std::byte> memory) {
  const auto check = [](std::int32_t value, const char* argument) {
    if (value < 0) {
      detail::raise(detail::invalid_batch(argument, -1, value, "must not be negative"));
    }
  };
  check(capacity.ragged_rows, "capacity.ragged_rows");
  check(capacity.compact_rows, "capacity.compact_rows");
  check(capacity.sequences, "capacity.sequences");
  check(capacity.max_seqlen, "capacity.max_seqlen");
  detail::check_index_memory(memory, index_bytes(capacity));

  const detail::CapacityLayout layout(capacity);
  const auto map = [&](std::int64_t offset, std::int64_t entries) {
    return std::span(reinterpret_cast<const std::int32_t*>(memory.data() + offset), static_cast<std::size_t>(entries));
  };
  PrefixIndexView index;
  index.gather = map(layout.maps.gather, capacity.compact_rows);
  index.scatter = map(layout.maps.scatter, capacity.ragged_rows);
  index.compact_cu = map(layout.maps.compact_cu, std::int64_t{capacity.sequences} + 1);
  index.ragged_cu = map(layout.maps.ragged_cu, std::int64_t{capacity.sequences} + 1);
  index.parent = map(layout.parent, capacity.compact_rows);
  index.last_rows = map(layout.maps.last_rows, capacity.sequences);
  index.ragged_rows = capacity.ragged_rows;
  index.compact_rows = capacity.compact_rows;
  index.padded_rows = capacity.compact_rows;
  index.max_seqlen = detail::longest_sequence(capacity);
  index.block = std::span<const std::byte>(memory).first(index_bytes(capacity));
  index.counts = reinterpret_cast<const IndexCounts*>(memory.data() + layout.counts);
  return index;
}

// Whether a batch's index fits a capacity: a status that names the first count that does not, and by how much.
[[nodiscard]] inline Status fits(const PrefixIndexView& index, const IndexCapacity& capacity) noexcept {
  struct Count {
    const char* argument;
    std::int32_t value, most;
  };
  for (const auto& [argument, value, most] :
       {Count{"ragged_rows", index.ragged_rows, capacity.ragged_rows},
        Count{"compact_rows", index.compact_rows, capacity.compact_rows},
        Count{"sequences", index.sequences(), capacity.sequences},
        Count{"max_seqlen", index.max_seqlen, detail::longest_sequence(capacity)}}) {
    if (value > most) {
      return detail::invalid_batch(argument, -1, value, "must fit the capacity,", most);
    }
  }
  return {};
}

// The number of the capacity that fits an index and has the fewest compact rows, of those the fewest ragged rows, then
// sequences; capacities.size() where none fits. The compact rows are what a captured graph computes.
[[nodiscard]] inline std::size_t smallest_fit(const PrefixIndexView& index,
                                              std::span<const IndexCapacity> capacities) noexcept {
  const auto order = [](const IndexCapacity& c) { return std::array{c.compact_rows, c.ragged_rows, c.sequences}; };
  std::size_t best = capacities.size();
  for (std::size_t c = 0; c < capacities.size(); ++c) {
    if (fits(index, capacities[c]).ok() &&
        (best == capacities.size() || order(capacities[c]) < order(capacities[best]))) {
      best = c;
    }
  }
  return best;
}

// Writes the index of a batch, which the trie made, into host memory as that of a capacity; `copy_to_device` brings it
// to where a graph was captured. One pass over the maps, no allocation. Raises InvalidBatch, before anything is
// written, where the batch does not fit, where it has no `parent`, or as `capacity_index` does.
inline PrefixIndexView stage_index(const PrefixIndexView& index, const IndexCapacity& capacity,
                                   std::span<std::byte> memory) {
  detail::check_without_counts(index);
  detail::check_with_parent(index);
  const PrefixIndexView staged = capacity_index(capacity, memory);
  detail::raise_unless_ok(fits(index, capacity));
  const detail::CapacityLayout layout(capacity);
  const auto fill = [&](std::int64_t offset, std::size_t entries, std::span<const std::int32_t> map,
                        std::int32_t rest) {
    auto* const out = reinterpret_cast<std::int32_t*>(memory.data() + offset);
    std::fill(std::copy(map.begin(), map.end(), out), out + entries, rest);
  };
  fill(layout.maps.gather, staged.gather.size(), index.gather.first(static_cast<std::size_t>(index.compact_rows)), 0);
  fill(layout.maps.scatter, staged.scatter.size(), index.scatter, 0);
  fill(layout.maps.compact_cu, staged.compact_cu.size(), index.compact_cu, index.compact_rows);
  fill(layout.maps.ragged_cu, staged.ragged_cu.size(), index.ragged_cu, index.ragged_rows);
  fill(layout.parent, staged.parent.size(), index.parent, -1);
  fill(layout.maps.last_rows, staged.last_rows.size(), index.last_rows, -1);
  const IndexCounts counts{index.compact_rows, index.ragged_rows, index.sequences(), index.max_seqlen};
  std::memcpy(memory.data() + layout.counts, &counts, sizeof counts);
  return staged;
}

// What the counts of an index for a capacity say of its batch: ok, or the fault.
[[nodiscard]] inline Status index_status(const IndexCounts& counts, const PrefixIndexView& index) noexcept {
  const auto overflow = [&](const char* argument, std::int32_t most) {
    return detail::invalid_batch(argument, -1, counts.fault_value, "must fit the capacity,", most);
  };
  switch (static_cast<IndexFault>(counts.fault)) {
    case IndexFault::none:
      if (counts.compact_rows >= 0) {
        return {};
      }
      return {StatusCode::invalid_batch,
              "compact_rows",
              "there is no index; the query before this one said why",
              -1,
              counts.compact_rows,
              0,
              false};
    case IndexFault::ragged_rows:
      return overflow("ragged_rows", index.ragged_rows);
    case IndexFault::compact_rows:
      return overflow("compact_rows", index.compact_rows);
    case IndexFault::sequences:
      return overflow("sequences", index.sequences());
    case IndexFault::max_seqlen:
      return overflow("max_seqlen", index.max_seqlen);
    case IndexFault::past_lengths:
      return detail::invalid_batch("past_lengths", counts.fault_index, counts.fault_value, "must not be negative");
    case IndexFault::cu_seqlens:
      break;
  }
  return {StatusCode::invalid_batch,
          "cu_seqlens",
          "must start at 0, never decrease, and end at the rows",
          counts.fault_index,
          counts.fault_value,
          0,
          false};
}

// The index of the batch alone, in the same memory: of an index for a capacity and its counts, which the host has. With
// padded_rows rounded up to pad_to where the capacity has room for that. Raises the status of the counts.
[[nodiscard]] inline PrefixIndexView filled_index(const PrefixIndexView& index, const IndexCounts& counts,
                                                  std::int32_t pad_to = 1) {
  detail::raise_unless_ok(index_status(counts, index));
  const auto rows = static_cast<std::size_t>(counts.compact_rows);
  const auto sequences = static_cast<std::size_t>(counts.sequences);
  PrefixIndexView filled = index;
  filled.counts = nullptr;
  filled.ragged_rows = counts.ragged_rows;
  filled.compact_rows = counts.compact_rows;
  filled.padded_rows = static_cast<std::int32_t>(
      std::min<std::int64_t>(detail::round_up(counts.compact_rows, std::max(pad_to, 1)), index.padded_rows));
  filled.max_seqlen = counts.max_seqlen;
  filled.gather = index.gather.first(static_cast<std::size_t>(filled.padded_rows));
  filled.scatter = index.scatter.first(static_cast<std::size_t>(counts.ragged_rows));
  filled.compact_cu = index.compact_cu.first(sequences + 1);
  filled.ragged_cu = index.ragged_cu.first(sequences + 1);
  filled.parent = index.parent.first(rows);
  filled.last_rows = index.last_rows.first(sequences);
  return filled;
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
