// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "radixmlp/error.hpp"
#include "radixmlp/index/prefix_index.hpp"
#include "radixmlp/rows/row_view.hpp"

namespace radixmlp::inline v0 {

// What becomes of an index outside the source (below 0, or at source_rows and above). Chosen at compile time.
enum class Bounds : std::uint8_t {
  trust,  // there is none; not looked at
  trap,   // host: InvalidRows before anything is written; device: the kernel traps, and the context with it
  clamp,  // the nearest row of the source
  zero,   // a row of zeros: for maps with a sentinel such as -1
};

// Which cache lines a call leaves behind.
enum class Caching : std::uint8_t {
  normal,
  streaming,  // device: lines that are written leave first; for a footprint beyond the L2. The host decides by itself
};

// When a kernel may start. The host knows in_order alone.
enum class LaunchOrder : std::uint8_t {
  in_order,  // when all before it in the stream has ended
  // Programmatic dependent launch (compute capability 9.0; elsewhere in_order): while the kernel before it in the
  // stream ends, or from where that one allows it (griddepcontrol.launch_dependents). It waits for that kernel before
  // it reads or writes any memory, and lets the next one start as early: if that is launched so too, it must wait
  // likewise.
  programmatic,
};

// Template argument of map_rows and scatter_to_slots: map_rows<RowOptions{.bounds = Bounds::zero}>(...).
struct RowOptions {
  Bounds bounds = Bounds::trust;
  Caching caching = Caching::normal;
  LaunchOrder order = LaunchOrder::in_order;
};

// Target row i is source row map[i] for i < map.size(), and zeros from there to target_rows. Nothing is owned; `map`
// and `count` lie where the rows do.
//
// `count`, where it is not null, is how many entries of the map there are now: read when the rows move, so that a graph
// captured for a capacity of map.size() and target_rows serves every batch that fits. Entries behind it are not read,
// their rows become zero. A count below 0 or above map.size() says that the batch did not fit: nothing is written.
struct RowMap {
  std::span<const std::int32_t> map = {};
  std::int64_t source_rows = 0;
  std::int64_t target_rows = 0;
  const std::int32_t* count = nullptr;
};

// Where engines keep the rows of a paged cache: cache row slots[i] for ragged row i, negative where it has none. int32
// or int64; not owned.
class Slots {
 public:
  Slots() = default;
  template <class Range>
  requires(std::convertible_to<const Range&, std::span<const std::int32_t>>) Slots(const Range& slots)
  noexcept  // NOLINT(google-explicit-constructor): takes what engines have
      : Slots(std::span<const std::int32_t>(slots).data(), std::span<const std::int32_t>(slots).size(), 4) {}
  template <class Range>
  requires(std::convertible_to<const Range&, std::span<const std::int64_t>>) Slots(const Range& slots)
  noexcept  // NOLINT(google-explicit-constructor)
      : Slots(std::span<const std::int64_t>(slots).data(), std::span<const std::int64_t>(slots).size(), 8) {}

  [[nodiscard]] const void* data() const noexcept { return data_; }
  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  [[nodiscard]] int entry_bytes() const noexcept { return entry_bytes_; }
  [[nodiscard]] std::int64_t operator[](std::int64_t i) const noexcept {
    return entry_bytes_ == 8 ? static_cast<const std::int64_t*>(data_)[i] : static_cast<const std::int32_t*>(data_)[i];
  }

 private:
  Slots(const void* data, std::size_t size, int entry_bytes) noexcept
      : data_(data), size_(static_cast<std::int64_t>(size)), entry_bytes_(entry_bytes) {}

  const void* data_ = nullptr;
  std::int64_t size_ = 0;
  int entry_bytes_ = 4;
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// The maps of an index: ragged rows to compact ones, with zeros up to padded_rows, and back.
[[nodiscard]] inline RowMap gather_map(const PrefixIndexView& index) noexcept {
  return {index.gather.first(static_cast<std::size_t>(index.compact_rows)), index.ragged_rows, index.padded_rows,
          index.counts == nullptr ? nullptr : &index.counts->compact_rows};
}
[[nodiscard]] inline RowMap scatter_map(const PrefixIndexView& index) noexcept {
  return {index.scatter, index.compact_rows, index.ragged_rows,
          index.counts == nullptr ? nullptr : &index.counts->ragged_rows};
}

namespace detail {

// Source row that stands for a row of zeros.
inline constexpr std::int32_t zero_row = -1;

[[nodiscard]] RADIXMLP_HOST_DEVICE constexpr bool in_rows(std::int64_t row, std::int64_t rows) noexcept {
  return row >= 0 && row < rows;
}

// Entries of a map in host memory; -1 where its batch did not fit.
[[nodiscard]] inline std::int64_t mapped_rows(const RowMap& map) noexcept {
  const auto entries = static_cast<std::int64_t>(map.map.size());
  const std::int64_t count = map.count == nullptr ? entries : *map.count;
  return in_rows(count, entries + 1) ? count : -1;
}

inline void check_map(const RowMap& map) {
  const auto entries = static_cast<std::int64_t>(map.map.size());
  if (entries > max_rows) {
    raise(invalid_rows("map.map", -1, entries, "its size must not exceed", max_rows));
  }
  if (!in_rows(map.source_rows, max_rows + 1)) {
    raise(invalid_rows("map.source_rows", -1, map.source_rows, "must be from 0 to", max_rows));
  }
  if (map.target_rows < entries || map.target_rows > max_rows) {
    raise(invalid_rows("map.target_rows", -1, map.target_rows, "must hold the map's entries,", entries));
  }
}

inline void check_slots_size(const PrefixIndexView& index, const Slots& slots) {
  if (slots.size() < index.ragged_rows) {
    raise(invalid_rows("slots", -1, slots.size(), "its size must be at least", index.ragged_rows));
  }
}

// A cache is all of its rows: which of them the slots name is not known here.
template <class... Sources, class... Targets>
[[nodiscard]] RowExtents slot_extents(const PrefixIndexView& index,
                                      const RowCopy<Sources, Targets>&... copies) noexcept {
  return {index.compact_rows, std::max<std::int64_t>(std::min({copies.target.rows()...}), 0)};
}

}  // namespace detail
}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
