// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <numeric>
#include <span>

#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/index/prefix_index.hpp"

namespace radixmlp::inline v0 {

// How the compact rows are cut into segments of queries. Every row is a query of one segment; a segment's keys are the
// path from the start of its sequence to its last row, and the mask is causal, aligned bottom-right.
enum class QueryPartition : std::uint8_t {
  sequences,  // the new rows of each sequence: at most B segments, N keys
  edges,      // the same, cut where other sequences branch off: at most 2B - 1 segments, 2N keys
};

struct AttentionPlanOptions {
  QueryPartition partition = QueryPartition::sequences;

  // false: segments without queries are left out, for kernels that fail on them. true: always B segments (2B - 1 by
  // edges), for graphs; some have no queries.
  bool keep_empty = false;

  // A segment's first query is rounded down to a multiple of this along its path, for a kernel whose tiles must lie as
  // they do without compaction: up to query_tile - 1 rows are computed again, and Q and the output have to be moved.
  std::int32_t query_tile = 1;

  // Keys that a row sees, itself included, counted along its path and its past; 0: all. Keys that no query of a segment
  // sees are left out of it.
  std::int32_t window = 0;

  // Rows in the engine's cache before each sequence, as in the batch. [B] or empty.
  std::span<const std::int32_t> past_lengths = {};

  // Where the rows of K and V lie in the engine's cache, in rows. Compact row j is at slots[j] ([N'], empty: at j); row
  // r of the past of sequence s is at past_pages[past_page_indptr[s] + r / past_page_size] * past_page_size +
  // r % past_page_size. Without past_pages its slot is 0, which any index_select can read, and the engine writes the
  // past over what was read.
  std::span<const std::int32_t> slots = {};
  std::span<const std::int32_t> past_page_indptr = {};  // [B+1]
  std::span<const std::int32_t> past_pages = {};
  std::int32_t past_page_size = 1;

  // Above 0: the plan also comes in groups of segments that have at most so many keys together (a segment with more is
  // a group of its own), so that compact_query expands K and V of one group at a time. Needs query_tile 1, and slots
  // and past_pages empty. With N' / 2 the workspace is at most gamma times the one without compaction, where k + v is
  // at most out, out at most q, and no sequence is longer than that.
  std::int32_t group_keys = 0;
};

// Segments of a plan that attention takes at a time.
struct AttentionGroup {
  std::int32_t first_segment = 0;
  std::int32_t segments = 0;
  std::int32_t first_query = 0;
  std::int32_t queries = 0;
  std::int32_t first_key = 0;
  std::int32_t keys = 0;
  std::int32_t max_seqlen_q = 0;
  std::int32_t max_seqlen_k = 0;
  std::int32_t first_row = -1;  // of the compact rows, where they are the keys as they lie; -1: they are not
};

// Which queries see which keys, for E segments, in the int32 arrays that attention kernels take:
//
//                    FlashAttention varlen          FlashInfer paged prefill, page size 1
//   cu_seqlens_q     cu_seqlens_q                   qo_indptr
//   cu_seqlens_k     cu_seqlens_k                   paged_kv_indptr
//   key_slots        K = compact K[key_slots]       paged_kv_indices
//   last_page_len    -                              paged_kv_last_page_len
//
// A segment has at least as many keys as queries. For FlashAttention 3 see `page_table`. Nothing is owned: the arrays
// lie in the caller's memory, or in the index where they are equal to its maps.
struct AttentionPlan {
  std::span<const std::int32_t> cu_seqlens_q = {};   // [E+1]: offsets in the queries; ends at `queries`
  std::span<const std::int32_t> cu_seqlens_k = {};   // [E+1]: offsets in the keys, past included; ends at `keys`
  std::span<const std::int32_t> key_slots = {};      // [keys]: where each key lies; by segment, past first
  std::span<const std::int32_t> last_page_len = {};  // [E]: all 1
  std::span<const std::int32_t> sequences = {};      // [E]: a sequence that has the segment's path; -1: no segment
  std::span<const std::int32_t> past_k = {};         // [E]: first keys that are of the past: the last rows of it

  // Only with query_tile above 1, else empty and query i is compact row i. Query i is compact row query_rows[i], and
  // the output of compact row j is that of query output_rows[j].
  std::span<const std::int32_t> query_rows = {};   // [queries]
  std::span<const std::int32_t> output_rows = {};  // [N']

  std::int32_t queries = 0;
  std::int32_t keys = 0;
  std::int32_t max_seqlen_q = 0;
  std::int32_t max_seqlen_k = 0;
  std::int32_t window = 0;                   // as asked for
  std::int32_t past_keys = 0;                // keys of the past without a page: their slots are 0
  bool in_cache = false;                     // slots or past_pages were given: key_slots are rows of the engine's cache
  std::span<const std::int32_t> block = {};  // the part of the memory that is in use

  // Only with group_keys, else empty.
  std::span<const AttentionGroup> groups = {};            // in host memory, also of a plan that was relocated
  std::span<const std::int32_t> group_cu_seqlens_q = {};  // [E + groups]: of each group in turn, from 0
  std::span<const std::int32_t> group_cu_seqlens_k = {};  // [E + groups]
  std::span<const std::int32_t> group_rows = {};          // 0, 1, 2, ... up to the queries of the largest group

  [[nodiscard]] std::int32_t segments() const noexcept {
    return static_cast<std::int32_t>(cu_seqlens_q.empty() ? 0 : cu_seqlens_q.size() - 1);
  }

  // The plan of group g alone, without slots: its query i is query groups[g].first_query + i, its keys alike.
  [[nodiscard]] AttentionPlan group(std::size_t g) const noexcept {
    const AttentionGroup& of = groups[g];
    const auto part = [](std::span<const std::int32_t> array, std::int32_t first, std::int32_t count) {
      return array.subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
    };
    AttentionPlan plan;
    const std::int32_t first_entry = of.first_segment + static_cast<std::int32_t>(g);
    plan.cu_seqlens_q = part(group_cu_seqlens_q, first_entry, of.segments + 1);
    plan.cu_seqlens_k = part(group_cu_seqlens_k, first_entry, of.segments + 1);
    plan.last_page_len = part(last_page_len, of.first_segment, of.segments);
    plan.sequences = part(sequences, of.first_segment, of.segments);
    plan.past_k = part(past_k, of.first_segment, of.segments);
    plan.queries = of.queries;
    plan.keys = of.keys;
    plan.max_seqlen_q = of.max_seqlen_q;
    plan.max_seqlen_k = of.max_seqlen_k;
    plan.window = window;
    return plan;
  }

  // The same plan after `block` has been copied to `base`, and the index it was made from to where `moved` is.
  [[nodiscard]] RADIXMLP_ALWAYS_INLINE AttentionPlan relocated(const std::int32_t* base, const PrefixIndexView& index,
                                                               const PrefixIndexView& moved) const noexcept {
    const auto move = [&](std::span<const std::int32_t> array) {
      if (array.empty()) {
        return array;
      }
      const auto offset = reinterpret_cast<std::uintptr_t>(array.data()) -
                          reinterpret_cast<std::uintptr_t>(index.block.data());  // beyond its size if not in the block
      if (offset < index.block.size()) {
        return std::span(reinterpret_cast<const std::int32_t*>(moved.block.data() + offset), array.size());
      }
      return std::span(base + (array.data() - block.data()), array.size());
    };
    AttentionPlan plan = *this;
    plan.cu_seqlens_q = move(cu_seqlens_q);
    plan.cu_seqlens_k = move(cu_seqlens_k);
    plan.key_slots = move(key_slots);
    plan.last_page_len = move(last_page_len);
    plan.sequences = move(sequences);
    plan.past_k = move(past_k);
    plan.query_rows = move(query_rows);
    plan.output_rows = move(output_rows);
    plan.group_cu_seqlens_q = move(group_cu_seqlens_q);
    plan.group_cu_seqlens_k = move(group_cu_seqlens_k);
    plan.group_rows = move(group_rows);
    plan.block = {base, block.size()};
    return plan;
  }
};

// The keys of a plan as a dense table, for FlashAttention 3 (`page_table`, `seqused_k`, a cache of page size 1).
struct PageTable {
  std::span<const std::int32_t> pages = {};      // [E, width]: key k of segment e is at pages[e * width + k]; 0 behind
  std::span<const std::int32_t> seqused_k = {};  // [E]: keys of each segment
  std::int32_t width = 0;                        // of a row: the plan's max_seqlen_k
};

// The trie as intervals, for masks that are functions of two rows (FlexAttention): row q sees row k exactly if
// pre[k] <= pre[q] < pre_end[k], and within a window of w rows if also depth[q] - depth[k] < w. Compact rows are not in
// this order. Padding rows see themselves and nothing else.
struct TreeMask {
  std::span<const std::int32_t> pre = {};      // [padded N']: number in a walk that visits parents before children
  std::span<const std::int32_t> pre_end = {};  // [padded N']: one behind the last number below the row
  std::span<const std::int32_t> depth = {};    // [padded N']: rows above it
};

// Entries above which `page_table` refuses: 256 MiB.
inline constexpr std::int64_t max_page_table_entries = std::int64_t{1} << 26;

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

[[nodiscard]] inline std::int64_t past_length(const AttentionPlanOptions& options, std::size_t sequence) noexcept {
  return options.past_lengths.empty() ? 0 : options.past_lengths[sequence];
}

// What the arrays of a plan can come to, whatever the batch shares. An edge that ends in a branch lies on the path of
// the sequence that leaves there, which is at least as long; hence twice the keys.
struct PlanBounds {
  std::int64_t segments;
  std::int64_t starts;  // scratch: where edges may start
  std::int64_t keys;
  std::int64_t queries;  // of query_rows
  std::int64_t outputs;  // of output_rows
  std::int64_t groups;
  std::int64_t group_rows;

  PlanBounds(const PrefixIndexView& index, const AttentionPlanOptions& options) noexcept {
    const std::int64_t sequences = index.sequences();
    const bool edges = options.partition == QueryPartition::edges;
    const bool rounds = options.query_tile > 1;
    const std::int64_t times = edges ? 2 : 1;
    std::int64_t past = 0;
    for (const std::int32_t length : options.past_lengths) {
      past += length;
    }
    segments = edges ? std::max<std::int64_t>(2 * sequences - 1, 0) : sequences;
    starts = edges ? 2 * sequences : 0;
    keys = times * (index.ragged_rows + past);
    outputs = rounds ? index.compact_rows : 0;
    groups = options.group_keys > 0 ? segments : 0;
    group_rows = options.group_keys > 0 ? index.compact_rows : 0;
    queries = rounds ? std::min(times * index.ragged_rows,
                                index.compact_rows + segments * (std::int64_t{options.query_tile} - 1))
                     : 0;
  }

  [[nodiscard]] std::int64_t entries() const noexcept {
    return 2 * (segments + 1) + 3 * segments + starts + outputs + queries + keys + 2 * group_offsets() +
           groups * group_size + group_rows;
  }
  [[nodiscard]] std::int64_t group_offsets() const noexcept { return groups == 0 ? 0 : segments + groups; }

  static constexpr std::int64_t group_size = sizeof(AttentionGroup) / sizeof(std::int32_t);
};

inline void check_plan_options(const PrefixIndexView& index, const AttentionPlanOptions& options) {
  const auto check = [](bool ok, const char* argument, std::int64_t at, std::int64_t value, const char* requirement,
                        std::int64_t bound) {
    if (!ok) {
      raise(invalid_batch(argument, at, value, requirement, bound));
    }
  };
  const std::int64_t sequences = index.sequences();
  check(options.query_tile >= 1, "query_tile", -1, options.query_tile, "must be at least", 1);
  check(options.window >= 0, "window", -1, options.window, "must be at least", 0);
  check(options.past_page_size >= 1, "past_page_size", -1, options.past_page_size, "must be at least", 1);
  check(options.group_keys >= 0, "group_keys", -1, options.group_keys, "must be at least", 0);
  if (options.group_keys > 0) {
    const auto check_absent = [&](const char* argument, std::size_t size) {
      check(size == 0, argument, -1, static_cast<std::int64_t>(size), "with group_keys its size must be", 0);
    };
    check(options.query_tile == 1, "query_tile", -1, options.query_tile, "with group_keys it must be", 1);
    check_absent("slots", options.slots.size());
    check_absent("past_pages", options.past_pages.size());
  }
  raise_unless_ok(validate_size("past_lengths", options.past_lengths.size(), sequences));
  raise_unless_ok(validate_size("slots", options.slots.size(), index.compact_rows));
  raise_unless_ok(validate_size("past_page_indptr", options.past_page_indptr.size(), sequences + 1));
  for (std::size_t s = 0; s < options.past_lengths.size(); ++s) {
    check(options.past_lengths[s] >= 0, "past_lengths", static_cast<std::int64_t>(s), options.past_lengths[s],
          "must be at least", 0);
  }
  for (std::size_t j = 0; j < options.slots.size(); ++j) {
    check(options.slots[j] >= 0, "slots", static_cast<std::int64_t>(j), options.slots[j], "must be at least", 0);
  }
  const std::int64_t keys = PlanBounds(index, options).keys;
  check(keys <= max_rows, "past_lengths", -1, keys, "the keys of a plan may come to at most", max_rows);
  check(options.past_pages.empty() || !options.past_page_indptr.empty(), "past_page_indptr", -1, 0, "its size must be",
        sequences + 1);
  for (std::size_t s = 0; s + 1 < options.past_page_indptr.size(); ++s) {
    const std::int64_t begin = options.past_page_indptr[s];
    const std::int64_t pages = (past_length(options, s) + options.past_page_size - 1) / options.past_page_size;
    const auto size = static_cast<std::int64_t>(options.past_pages.size());
    check(begin >= 0 && begin <= size, "past_page_indptr", static_cast<std::int64_t>(s), begin, "must be from 0 to",
          size);
    const std::int64_t end = options.past_page_indptr[s + 1];
    check(end >= begin + pages && end <= size, "past_page_indptr", static_cast<std::int64_t>(s) + 1, end,
          "must leave the sequence a page for every past_page_size rows of its past, and be at most", size);
  }
  const std::int64_t last_page = (max_rows + 1) / options.past_page_size - 1;
  for (std::size_t p = 0; p < options.past_pages.size(); ++p) {
    check(options.past_pages[p] >= 0 && options.past_pages[p] <= last_page, "past_pages", static_cast<std::int64_t>(p),
          options.past_pages[p], "must be from 0 to", last_page);
  }
}

// New rows that become queries together: `rows` compact rows from `first` on, at places position .. of `sequence`.
struct QuerySegment {
  std::int32_t sequence;
  std::int32_t first;
  std::int32_t rows;
  std::int32_t position;
};

// f(segment) in the order of the compact rows. An edge starts where a sequence's new rows do, and behind a row that
// another sequence branches off from; `starts` has room for 2B of these.
template <class F>
void for_each_query_segment(const PrefixIndexView& index, const AttentionPlanOptions& options,
                            std::span<std::int32_t> starts, F f) {
  const std::span<const std::int32_t> cu = index.compact_cu;
  const auto sequences = static_cast<std::size_t>(index.sequences());
  if (options.partition == QueryPartition::sequences) {
    for (std::size_t s = 0; s < sequences; ++s) {
      if (cu[s + 1] > cu[s] || options.keep_empty) {
        f(QuerySegment{static_cast<std::int32_t>(s), cu[s], cu[s + 1] - cu[s],
                       index.shared_rows(static_cast<std::int32_t>(s))});
      }
    }
    return;
  }
  std::size_t count = 0;
  for (std::size_t s = 0; s < sequences; ++s) {
    if (cu[s + 1] > cu[s]) {
      const std::int32_t shared = index.shared_rows(static_cast<std::int32_t>(s));
      starts[count++] = cu[s];
      starts[count++] =
          shared > 0 ? index.scatter[static_cast<std::size_t>(index.ragged_cu[s] + shared) - 1] + 1 : cu[s];
    }
  }
  std::sort(starts.begin(), starts.begin() + static_cast<std::ptrdiff_t>(count));
  std::size_t s = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t end = i + 1 < count ? starts[i + 1] : index.compact_rows;
    if (starts[i] < end) {
      while (cu[s + 1] <= starts[i]) {
        ++s;
      }
      f(QuerySegment{static_cast<std::int32_t>(s), starts[i], end - starts[i],
                     index.shared_rows(static_cast<std::int32_t>(s)) + starts[i] - cu[s]});
    }
  }
}

// Slots of the past rows first .. last of a sequence.
inline void write_past_slots(const AttentionPlanOptions& options, std::size_t sequence, std::int64_t first,
                             std::int64_t last, std::int32_t* out) noexcept {
  for (std::int64_t row = first; row < last; ++row) {
    std::int64_t slot = 0;
    if (!options.past_pages.empty()) {
      const std::int64_t page = options.past_page_indptr[sequence] + row / options.past_page_size;
      slot = std::int64_t{options.past_pages[static_cast<std::size_t>(page)]} * options.past_page_size +
             row % options.past_page_size;
    }
    *out++ = static_cast<std::int32_t>(slot);
  }
}

// Slots of compact rows, in the order of a map.
inline void write_row_slots(const AttentionPlanOptions& options, std::span<const std::int32_t> rows,
                            std::int32_t* out) noexcept {
  if (options.slots.empty()) {
    std::copy(rows.begin(), rows.end(), out);
  } else {
    std::transform(rows.begin(), rows.end(), out,
                   [&](std::int32_t row) { return options.slots[static_cast<std::size_t>(row)]; });
  }
}

// Cuts a plan into groups, in memory for its bounds.
inline void cut_groups(AttentionPlan& plan, std::int32_t group_keys, std::span<AttentionGroup> groups,
                       std::span<std::int32_t> cu_q, std::span<std::int32_t> cu_k) noexcept {
  std::size_t count = 0;
  std::size_t entries = 0;
  for (std::int32_t e = 0; e < plan.segments(); ++e) {
    const auto at = static_cast<std::size_t>(e);
    const std::int32_t first_key = plan.cu_seqlens_k[at];
    const std::int32_t queries = plan.cu_seqlens_q[at + 1] - plan.cu_seqlens_q[at];
    const std::int32_t keys = plan.cu_seqlens_k[at + 1] - first_key;
    if (count == 0 || groups[count - 1].keys + keys > group_keys) {
      ::new (&groups[count++])
          AttentionGroup{.first_segment = e, .first_query = plan.cu_seqlens_q[at], .first_key = first_key};
      cu_q[entries] = 0;
      cu_k[entries++] = 0;
    }
    AttentionGroup& group = groups[count - 1];
    if (keys > 0) {
      // Rows rise along a path, so first and last tell whether it is a run.
      const std::int32_t first_row = plan.key_slots[static_cast<std::size_t>(first_key)];
      const std::int32_t last_row = plan.key_slots[static_cast<std::size_t>(first_key + keys - 1)];
      const bool is_run = plan.past_k[at] == 0 && last_row - first_row == keys - 1;
      const bool follows = group.keys == 0 || (group.first_row >= 0 && group.first_row + group.keys == first_row);
      group.first_row = is_run && follows ? first_row - group.keys : -1;
    }
    ++group.segments;
    group.queries += queries;
    group.keys += keys;
    group.max_seqlen_q = std::max(group.max_seqlen_q, queries);
    group.max_seqlen_k = std::max(group.max_seqlen_k, keys);
    cu_q[entries] = group.queries;
    cu_k[entries++] = group.keys;
  }
  plan.groups = groups.first(count);
  plan.group_cu_seqlens_q = cu_q.first(entries);
  plan.group_cu_seqlens_k = cu_k.first(entries);
}

// The plan of an index for a capacity. What changes from batch to batch are maps of the index, and the rest depends on
// the number of sequences alone; hence always B segments, no past, and keys that a window hides are not left out.
inline void check_capacity_plan(const AttentionPlanOptions& options) {
  const auto check = [](bool ok, const char* argument, std::int64_t value, const char* requirement) {
    if (!ok) {
      raise({StatusCode::invalid_batch, argument, requirement, -1, value, 0, false});
    }
  };
  check(options.keep_empty, "keep_empty", 0, "must be true with an index for a capacity");
  check(options.partition == QueryPartition::sequences, "partition", static_cast<std::int64_t>(options.partition),
        "must be `sequences` with an index for a capacity");
  check(options.query_tile == 1, "query_tile", options.query_tile, "must be 1 with an index for a capacity");
  check(options.group_keys == 0, "group_keys", options.group_keys, "must be 0 with an index for a capacity");
  const auto check_absent = [&](const char* argument, std::size_t size) {
    check(size == 0, argument, static_cast<std::int64_t>(size), "must be empty with an index for a capacity");
  };
  check_absent("past_lengths", options.past_lengths.size());
  check_absent("slots", options.slots.size());
  check_absent("past_pages", options.past_pages.size());
}

[[nodiscard]] inline AttentionPlan capacity_plan(const PrefixIndexView& index, std::span<std::int32_t> memory,
                                                 const AttentionPlanOptions& options) {
  const std::size_t segments = index.last_rows.size();
  const std::span<std::int32_t> last_page_len = memory.first(segments);
  const std::span<std::int32_t> sequences = memory.subspan(segments, segments);
  const std::span<std::int32_t> past_k = memory.subspan(2 * segments, segments);
  std::fill(last_page_len.begin(), last_page_len.end(), 1);
  std::iota(sequences.begin(), sequences.end(), 0);
  std::fill(past_k.begin(), past_k.end(), 0);
  AttentionPlan plan;
  plan.cu_seqlens_q = index.compact_cu;
  plan.cu_seqlens_k = index.ragged_cu;
  plan.key_slots = index.scatter;
  plan.last_page_len = last_page_len;
  plan.sequences = sequences;
  plan.past_k = past_k;
  plan.queries = index.compact_rows;
  plan.keys = index.ragged_rows;
  plan.max_seqlen_q = index.max_seqlen;
  plan.max_seqlen_k = index.max_seqlen;
  plan.window = options.window;
  plan.block = memory.first(3 * segments);
  return plan;
}

}  // namespace detail

// int32 entries of memory that suffice for the plan of an index. O(B).
[[nodiscard]] inline std::size_t attention_plan_entries(const PrefixIndexView& index,
                                                        const AttentionPlanOptions& options = {}) {
  detail::check_plan_options(index, options);
  if (index.counts != nullptr) {
    detail::check_capacity_plan(options);
    return 3 * index.last_rows.size();
  }
  return static_cast<std::size_t>(detail::PlanBounds(index, options).entries());
}

// The plan of an index that the trie made, in host memory. O(B) where the index's own maps serve (by sequences, nothing
// left out, no past, slots, window or tile), else O(B + keys), and O(B log B) more by edges. No allocation. Throws
// InvalidBatch before anything is written; `memory` must have attention_plan_entries(index, options).
//
// Of an index for a capacity (index_capacity.hpp), which may be in device memory, no map is read: the plan is good for
// every batch that is put there. Only `memory` has to be copied to the device, once. Its options are keep_empty = true
// and a window, which the kernel has to mask by itself; queries, keys and longest segments are those of the capacity.
[[nodiscard]] inline AttentionPlan attention_plan(const PrefixIndexView& index, std::span<std::int32_t> memory,
                                                  const AttentionPlanOptions& options = {}) {
  const std::size_t needed = attention_plan_entries(index, options);
  detail::check_entries("memory", memory.size(), needed);
  if (index.counts != nullptr) {
    return detail::capacity_plan(index, memory, options);
  }
  const detail::PlanBounds bounds(index, options);
  std::size_t taken = 0;
  const auto take = [&](std::int64_t entries) {
    const auto count = static_cast<std::size_t>(entries);
    taken += count;
    return memory.subspan(taken - count, count);
  };
  const std::span<std::int32_t> last_page_len = take(bounds.segments);
  const std::span<std::int32_t> sequences = take(bounds.segments);
  const std::span<std::int32_t> past_k = take(bounds.segments);
  const std::span<std::int32_t> group_cu_seqlens_q = take(bounds.group_offsets());
  const std::span<std::int32_t> group_cu_seqlens_k = take(bounds.group_offsets());
  const std::span<std::int32_t> group_rows = take(bounds.group_rows);
  const std::span<std::int32_t> groups = take(bounds.groups * detail::PlanBounds::group_size);
  const std::span<std::int32_t> cu_seqlens_q = take(bounds.segments + 1);
  const std::span<std::int32_t> cu_seqlens_k = take(bounds.segments + 1);
  const std::span<std::int32_t> output_rows = take(bounds.outputs);
  const std::span<std::int32_t> query_rows = take(bounds.queries);
  const std::span<std::int32_t> starts = take(bounds.starts);
  const std::span<std::int32_t> key_slots = take(bounds.keys);

  const bool as_in_index = options.partition == QueryPartition::sequences && options.past_lengths.empty() &&
                           options.slots.empty() && options.window == 0 && options.query_tile == 1 &&
                           (options.keep_empty || std::adjacent_find(index.compact_cu.begin(),
                                                                     index.compact_cu.end()) == index.compact_cu.end());
  AttentionPlan plan;
  plan.window = options.window;
  plan.in_cache = !options.slots.empty() || !options.past_pages.empty();
  std::size_t segments = 0;
  std::int64_t keys = 0;
  std::int64_t queries = 0;
  cu_seqlens_q[0] = 0;
  cu_seqlens_k[0] = 0;
  detail::for_each_query_segment(index, options, starts, [&](const detail::QuerySegment& segment) {
    const auto s = static_cast<std::size_t>(segment.sequence);
    const auto path = static_cast<std::size_t>(index.ragged_cu[s]);  // row of the sequence's first token
    const std::int32_t start =
        segment.rows == 0 ? segment.position : segment.position / options.query_tile * options.query_tile;
    const std::int32_t end = segment.position + segment.rows;
    const std::int64_t past = detail::past_length(options, s);
    const std::int64_t first_key =
        options.window == 0 ? 0 : std::max<std::int64_t>(past + start - options.window + 1, 0);
    if (options.query_tile > 1) {
      for (std::int32_t at = start; at < end; ++at) {
        const std::int32_t row = index.scatter[path + static_cast<std::size_t>(at)];
        query_rows[static_cast<std::size_t>(queries + at - start)] = row;
        if (at >= segment.position) {
          output_rows[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(queries + at - start);
        }
      }
    }
    const std::int64_t past_keys = std::max<std::int64_t>(past - first_key, 0);
    if (!as_in_index) {
      std::int32_t* const out = key_slots.data() + keys;
      const std::int64_t first_row = std::max<std::int64_t>(first_key - past, 0);
      plan.past_keys += options.past_pages.empty() ? static_cast<std::int32_t>(past_keys) : 0;
      detail::write_past_slots(options, s, first_key, first_key + past_keys, out);
      detail::write_row_slots(
          options,
          index.scatter.subspan(path + static_cast<std::size_t>(first_row), static_cast<std::size_t>(end - first_row)),
          out + past_keys);
    }
    queries += end - start;
    keys += past + end - first_key;
    plan.max_seqlen_q = std::max(plan.max_seqlen_q, end - start);
    plan.max_seqlen_k = std::max(plan.max_seqlen_k, static_cast<std::int32_t>(past + end - first_key));
    last_page_len[segments] = 1;
    past_k[segments] = static_cast<std::int32_t>(past_keys);
    sequences[segments++] = segment.sequence;
    cu_seqlens_q[segments] = static_cast<std::int32_t>(queries);
    cu_seqlens_k[segments] = static_cast<std::int32_t>(keys);
  });
  while (options.keep_empty && segments < sequences.size()) {  // by edges, of which there are fewer
    last_page_len[segments] = 1;
    past_k[segments] = 0;
    sequences[segments++] = -1;
    cu_seqlens_q[segments] = cu_seqlens_q[segments - 1];
    cu_seqlens_k[segments] = cu_seqlens_k[segments - 1];
  }

  plan.queries = static_cast<std::int32_t>(queries);
  plan.keys = static_cast<std::int32_t>(keys);
  plan.last_page_len = last_page_len.first(segments);
  plan.sequences = sequences.first(segments);
  plan.past_k = past_k.first(segments);
  if (as_in_index) {
    plan.cu_seqlens_q = index.compact_cu;
    plan.cu_seqlens_k = index.ragged_cu;
    plan.key_slots = index.scatter;
    plan.block = memory.first(static_cast<std::size_t>(cu_seqlens_q.data() - memory.data()));
  } else {
    plan.cu_seqlens_q = cu_seqlens_q.first(segments + 1);
    plan.cu_seqlens_k = cu_seqlens_k.first(segments + 1);
    plan.key_slots = key_slots.first(static_cast<std::size_t>(keys));
    plan.block = memory.first(taken - key_slots.size() + plan.key_slots.size());
  }
  if (options.query_tile > 1) {
    plan.query_rows = query_rows.first(static_cast<std::size_t>(queries));
    plan.output_rows = output_rows;
  }
  if (options.group_keys > 0) {
    const std::span<AttentionGroup> all(reinterpret_cast<AttentionGroup*>(groups.data()),
                                        static_cast<std::size_t>(bounds.groups));
    detail::cut_groups(plan, options.group_keys, all, group_cu_seqlens_q, group_cu_seqlens_k);
    std::int32_t most = 0;
    for (const AttentionGroup& group : plan.groups) {
      most = std::max(most, group.queries);
    }
    plan.group_rows = group_rows.first(static_cast<std::size_t>(most));
    std::iota(group_rows.begin(), group_rows.begin() + most, 0);
  }
  return plan;
}

// int32 entries of memory that a plan's page table needs: a dense one, of E times the longest segment.
[[nodiscard]] inline std::int64_t page_table_entries(const AttentionPlan& plan) noexcept {
  return std::int64_t{plan.segments()} * (std::int64_t{plan.max_seqlen_k} + 1);
}

// The plan's keys as a dense table, from host memory into host memory. O(entries), no allocation. Throws InvalidBatch
// where it would have more than `max_entries` or more than `memory` has.
[[nodiscard]] inline PageTable page_table(const AttentionPlan& plan, std::span<std::int32_t> memory,
                                          std::int64_t max_entries = max_page_table_entries) {
  const std::int64_t needed = page_table_entries(plan);
  if (needed > max_entries) {
    detail::raise(detail::invalid_batch("page_table", -1, needed, "its entries must not exceed", max_entries));
  }
  detail::check_entries("memory", memory.size(), static_cast<std::size_t>(needed));
  const std::span<std::int32_t> seqused = memory.first(plan.sequences.size());
  const std::span<std::int32_t> pages =
      memory.subspan(seqused.size(), static_cast<std::size_t>(needed) - seqused.size());
  const auto width = static_cast<std::size_t>(plan.max_seqlen_k);
  for (std::size_t e = 0; e < seqused.size(); ++e) {
    const auto begin = static_cast<std::size_t>(plan.cu_seqlens_k[e]);
    seqused[e] = plan.cu_seqlens_k[e + 1] - plan.cu_seqlens_k[e];
    const std::span<const std::int32_t> keys = plan.key_slots.subspan(begin, static_cast<std::size_t>(seqused[e]));
    const auto row = pages.subspan(e * width, width);
    std::fill(std::copy(keys.begin(), keys.end(), row.begin()), row.end(), 0);
  }
  return {pages, seqused, plan.max_seqlen_k};
}

// int32 entries of memory that a tree mask needs.
[[nodiscard]] inline std::size_t tree_mask_entries(const PrefixIndexView& index) noexcept {
  return 3 * static_cast<std::size_t>(index.padded_rows);
}

// The mask of an index that the trie made, in host memory. Covers the batch's rows, not a past. O(N'), no allocation.
// Throws InvalidBatch where `memory` is below tree_mask_entries(index), or the index has no `parent`.
[[nodiscard]] inline TreeMask tree_mask(const PrefixIndexView& index, std::span<std::int32_t> memory) {
  detail::check_without_counts(index);
  detail::check_with_parent(index);
  detail::check_entries("memory", memory.size(), tree_mask_entries(index));
  const auto rows = static_cast<std::size_t>(index.compact_rows);
  const auto padded = static_cast<std::size_t>(index.padded_rows);
  const std::span<std::int32_t> pre = memory.first(padded);
  const std::span<std::int32_t> pre_end = memory.subspan(padded, padded);
  const std::span<std::int32_t> depth = memory.subspan(2 * padded, padded);
  // A parent comes before its children. First the sizes of the subtrees, in pre_end.
  std::fill(pre_end.begin(), pre_end.end(), 1);
  for (std::size_t j = rows; j-- > 0;) {
    if (index.parent[j] >= 0) {
      pre_end[static_cast<std::size_t>(index.parent[j])] += pre_end[j];
    }
  }
  // Then pre_end of a row is the next number to give below it, which ends as the end.
  std::int32_t next_root = 0;
  for (std::size_t j = 0; j < rows; ++j) {
    const bool is_root = index.parent[j] < 0;
    const auto parent = static_cast<std::size_t>(is_root ? 0 : index.parent[j]);
    std::int32_t& next = is_root ? next_root : pre_end[parent];
    const std::int32_t size = pre_end[j];
    pre[j] = next;
    next += size;
    pre_end[j] = pre[j] + 1;
    depth[j] = is_root ? 0 : depth[parent] + 1;
  }
  for (std::size_t j = rows; j < padded; ++j) {
    pre[j] = static_cast<std::int32_t>(j);
    pre_end[j] = pre[j] + 1;
    depth[j] = 0;
  }
  return {pre, pre_end, depth};
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
