// SPDX-License-Identifier: MIT
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <span>

#include "radixmlp/index/prefix_index.hpp"
#include "radixmlp/index/ragged_batch.hpp"
#include "radixmlp/index/row_identity.hpp"

namespace radixmlp::inline v0 {

struct BuildOptions {
  std::int32_t pad_to = 1;  // padded_rows is N' rounded up to a multiple of this; at least 1
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

// out[i] = first + i. Runs are most of what a build writes. In vectors of the compilers' own language because a plain
// loop stays scalar under g++ -O2 (4 times slower) and takes twice as long under g++ -O3; see docs/design.md.
inline void fill_run(std::int32_t* out, std::int64_t count, std::int32_t first) noexcept {
  using Vector = std::uint32_t __attribute__((vector_size(16)));
  constexpr std::int64_t lanes = 4;
  if (count < lanes) {
    for (std::int64_t i = 0; i < count; ++i) {
      out[i] = first + static_cast<std::int32_t>(i);
    }
    return;
  }
  const Vector begin = Vector{0, 1, 2, 3} + static_cast<std::uint32_t>(first);
  const auto store = [&](std::int64_t i, Vector vector) { std::memcpy(out + i, &vector, sizeof vector); };
  Vector next = begin;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    store(i, next);
    store(i + lanes, next + 4);
    store(i + 2 * lanes, next + 8);
    store(i + 3 * lanes, next + 12);
    next += 16;
  }
  for (; i + lanes <= count; i += lanes) {
    store(i, next);
    next += 4;
  }
  store(count - lanes, begin + static_cast<std::uint32_t>(count - lanes));  // overlaps what is there already
}

}  // namespace detail

// Builds the index of a batch, O(N + B). Reusable, one batch at a time; memory is kept and only grows, so a batch of
// a size it has seen allocates nothing. Host only; no stream, no thread.
//
// The trie is a radix tree: an edge is a run of rows that one sequence brought, so whole runs are compared and
// numbered at once. A node is not stored: it is the last compact row of the edge above it, which no split changes.
class PrefixTrie {
 public:
  // The view lies in the trie's memory and is valid until the next build. Throws InvalidBatch before anything is
  // written, Error where memory runs out.
  template <TokenId Token>
  PrefixIndexView build(const RaggedBatch<Token>& batch, BuildOptions options = {}) {
    PrefixIndexView index;
    detail::raise_unless_ok(try_build(batch, options, index));
    return index;
  }

  // The same into the caller's memory (pinned, shared, ...), aligned to index_alignment and of at least
  // index_bytes(N, B, pad_to) bytes. The view lies there and does not depend on the trie.
  template <TokenId Token>
  PrefixIndexView build_into(std::span<std::byte> memory, const RaggedBatch<Token>& batch, BuildOptions options = {}) {
    PrefixIndexView index;
    detail::raise_unless_ok(try_build_into(memory, batch, options, index));
    return index;
  }

  // Without exceptions: `index` is written only if the status is ok.
  template <TokenId Token>
  [[nodiscard]] Status try_build(const RaggedBatch<Token>& batch, BuildOptions options,
                                 PrefixIndexView& index) noexcept {
    if (Status status = validate(batch, options); !status.ok()) {
      return status;
    }
    const std::size_t bytes = index_bytes(batch.rows(), batch.sequences(), options.pad_to);
    if (Status status = reserve(batch.sequences(), bytes); !status.ok()) {
      return status;
    }
    index = build_maps(detail::RowIdentity(batch), batch.cu_seqlens, options, maps_.data());
    return {};
  }

  template <TokenId Token>
  [[nodiscard]] Status try_build_into(std::span<std::byte> memory, const RaggedBatch<Token>& batch,
                                      BuildOptions options, PrefixIndexView& index) noexcept {
    if (Status status = validate(batch, options); !status.ok()) {
      return status;
    }
    const std::size_t bytes = index_bytes(batch.rows(), batch.sequences(), options.pad_to);
    if (memory.size() < bytes) {
      return detail::invalid_batch("memory", -1, static_cast<std::int64_t>(memory.size()), "its bytes must be at least",
                                   static_cast<std::int64_t>(bytes));
    }
    const auto misaligned = reinterpret_cast<std::uintptr_t>(memory.data()) % index_alignment;
    if (misaligned != 0) {
      return detail::invalid_batch("memory", -1, static_cast<std::int64_t>(misaligned),
                                   "its address must be a multiple of", index_alignment);
    }
    if (Status status = reserve(batch.sequences(), 0); !status.ok()) {
      return status;
    }
    index = build_maps(detail::RowIdentity(batch), batch.cu_seqlens, options, memory.data());
    return {};
  }

 private:
  static constexpr std::int32_t none = -1;
  static constexpr std::int32_t namespace_parent = std::numeric_limits<std::int32_t>::min();

  struct Edge {
    std::int32_t source;       // ragged row that its first row was taken from; the rest follow
    std::int32_t first_row;    // compact row of its first row; the rest follow
    std::int32_t length;       // rows; 0 for the root of a namespace
    std::int32_t parent;       // node that it hangs from
    std::int32_t first_child;  // edge, or none
    std::int32_t chained;      // next edge in its hash chain, or none
    bool branches;             // it has children beside the first: they are in the hash table

    [[nodiscard]] std::int32_t node() const noexcept { return first_row + length - 1; }
  };

  template <TokenId Token>
  [[nodiscard]] static Status validate(const RaggedBatch<Token>& batch, BuildOptions options) noexcept {
    if (Status status = radixmlp::validate(batch); !status.ok()) {
      return status;
    }
    if (options.pad_to < 1) {
      return detail::invalid_batch("pad_to", -1, options.pad_to, "must be at least", 1);
    }
    if (detail::round_up(batch.rows(), options.pad_to) > max_rows) {
      return detail::invalid_batch("pad_to", -1, options.pad_to, "rows rounded up to it must not exceed", max_rows);
    }
    return {};
  }

  // A sequence adds at most a root, its own edge and the lower half of an edge that it splits; two of them are hashed.
  [[nodiscard]] Status reserve(std::int64_t sequences, std::size_t map_bytes) noexcept {
    const std::size_t edges = (3 * static_cast<std::size_t>(sequences) + 1) * sizeof(Edge);
    chain_count_ = std::bit_ceil(2 * static_cast<std::size_t>(sequences) + 1);
    const std::size_t chains = chain_count_ * sizeof(std::int32_t);
    if (!maps_.grow_to(map_bytes) || !edge_memory_.grow_to(edges) || !chain_memory_.grow_to(chains)) {
      return detail::out_of_memory(map_bytes + edges + chains);
    }
    edges_ = reinterpret_cast<Edge*>(edge_memory_.data());
    chains_ = reinterpret_cast<std::int32_t*>(chain_memory_.data());
    return {};
  }

  [[nodiscard]] PrefixIndexView build_maps(const detail::RowIdentity& rows, std::span<const std::int32_t> cu_seqlens,
                                           BuildOptions options, std::byte* memory) noexcept {
    const std::int64_t sequences = static_cast<std::int64_t>(cu_seqlens.size()) - 1;
    const detail::IndexLayout layout(cu_seqlens.back(), sequences);
    const auto map = [memory](std::int64_t offset) { return reinterpret_cast<std::int32_t*>(memory + offset); };
    std::int32_t* const scatter = map(layout.scatter);
    std::int32_t* const ragged_cu = map(layout.ragged_cu);
    std::int32_t* const compact_cu = map(layout.compact_cu);
    std::int32_t* const last_rows = map(layout.last_rows);

    std::memcpy(ragged_cu, cu_seqlens.data(), cu_seqlens.size_bytes());
    std::memset(chains_, 0xff, chain_count_ * sizeof(std::int32_t));  // none
    edge_count_ = 0;
    root_count_ = 0;
    const std::int32_t only_root = rows.one_namespace() ? add_root(0) : none;
    std::int32_t compact_rows = 0;
    std::int32_t max_seqlen = 0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int32_t begin = ragged_cu[s];
      const std::int32_t end = ragged_cu[s + 1];
      compact_cu[s] = compact_rows;
      if (begin < end) {
        std::int32_t first_new = begin;
        if (!rows.opted_out(s)) {
          const std::int32_t root = only_root != none ? only_root : find_root(rows, s);
          first_new = walk(rows, root, begin, end, compact_rows, scatter);
        }
        detail::fill_run(scatter + first_new, end - first_new, compact_rows);
        compact_rows += end - first_new;
        max_seqlen = max_seqlen < end - begin ? end - begin : max_seqlen;
      }
      last_rows[s] = begin < end ? scatter[end - 1] : none;
    }
    compact_cu[sequences] = compact_rows;

    const auto padded_rows = static_cast<std::int32_t>(detail::round_up(compact_rows, options.pad_to));
    std::int32_t* const gather = map(layout.gather);
    std::int32_t* const parent = map(layout.parent(padded_rows));
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int32_t first = compact_cu[s];
      const std::int32_t count = compact_cu[s + 1] - first;
      if (count > 0) {
        const std::int32_t source = ragged_cu[s + 1] - count;
        detail::fill_run(gather + first, count, source);
        detail::fill_run(parent + first, count, first - 1);
        parent[first] = source == ragged_cu[s] ? none : scatter[source - 1];
      }
    }
    std::memset(gather + compact_rows, 0, static_cast<std::size_t>(padded_rows - compact_rows) * sizeof(std::int32_t));

    const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    return {.gather = {gather, count(padded_rows)},
            .scatter = {scatter, count(cu_seqlens.back())},
            .compact_cu = {compact_cu, count(sequences + 1)},
            .ragged_cu = {ragged_cu, count(sequences + 1)},
            .parent = {parent, count(compact_rows)},
            .last_rows = {last_rows, count(sequences)},
            .ragged_rows = cu_seqlens.back(),
            .compact_rows = compact_rows,
            .padded_rows = padded_rows,
            .max_seqlen = max_seqlen,
            .block = {memory, count(layout.bytes(padded_rows, compact_rows))}};
  }

  // Follows rows begin .. end from the root and writes the compact rows of those that the trie has. Hangs the first row
  // that it does not have, and all after it, into the trie as one edge that starts at `next_row`; returns that row.
  std::int32_t walk(const detail::RowIdentity& rows, std::int32_t root, std::int32_t begin, std::int32_t end,
                    std::int32_t next_row, std::int32_t* scatter) noexcept {
    std::int32_t above = root;
    std::int32_t row = begin;
    while (row < end) {
      const std::int32_t first_child = edges_[above].first_child;
      if (first_child == none) {
        edges_[above].first_child = add_edge(row, next_row, end - row, edges_[above].node());
        return row;
      }
      std::int32_t below = first_child;
      std::int64_t matched = match(rows, below, row, end);
      if (matched == 0) {
        const std::uint64_t hash = rows.hash(row, hash_of_node(edges_[above].node()));
        below = edges_[above].branches ? find_child(rows, edges_[above].node(), hash, row) : none;
        if (below == none) {
          edges_[above].branches = true;
          chain(add_edge(row, next_row, end - row, edges_[above].node()), hash);
          return row;
        }
        matched = match(rows, below, row, end);
      }
      detail::fill_run(scatter + row, matched, edges_[below].first_row);
      row += static_cast<std::int32_t>(matched);
      if (row < end && matched < edges_[below].length) {
        split(below, static_cast<std::int32_t>(matched));
      }
      above = below;
    }
    return end;
  }

  [[nodiscard]] std::int64_t match(const detail::RowIdentity& rows, std::int32_t edge, std::int32_t row,
                                   std::int32_t end) const noexcept {
    const std::int32_t length = edges_[edge].length;
    return rows.match(edges_[edge].source, row, length < end - row ? length : end - row);
  }

  // The edge keeps its first `length` rows, and with them its place in the parent; a new edge takes the rest and the
  // children. Those hang from the last row, which is the same node as before.
  void split(std::int32_t edge, std::int32_t length) noexcept {
    Edge& upper = edges_[edge];
    const std::int32_t lower =
        add_edge(upper.source + length, upper.first_row + length, upper.length - length, upper.first_row + length - 1);
    edges_[lower].first_child = upper.first_child;
    edges_[lower].branches = upper.branches;
    upper.length = length;
    upper.first_child = lower;
    upper.branches = false;
  }

  std::int32_t add_edge(std::int32_t source, std::int32_t first_row, std::int32_t length,
                        std::int32_t parent) noexcept {
    edges_[edge_count_] = {source, first_row, length, parent, none, none, false};
    return edge_count_++;
  }

  // Roots are edges without rows; their nodes are -1, -2, ..., apart from all rows.
  std::int32_t add_root(std::int32_t sequence) noexcept {
    return add_edge(sequence, -root_count_++, 0, namespace_parent);
  }

  [[nodiscard]] std::int32_t find_root(const detail::RowIdentity& rows, std::int64_t sequence) noexcept {
    const std::uint64_t hash = rows.hash_namespace(sequence, hash_of_node(namespace_parent));
    for (std::int32_t e = chains_[hash & (chain_count_ - 1)]; e != none; e = edges_[e].chained) {
      if (edges_[e].parent == namespace_parent && rows.same_namespace(edges_[e].source, sequence)) {
        return e;
      }
    }
    const std::int32_t root = add_root(static_cast<std::int32_t>(sequence));
    chain(root, hash);
    return root;
  }

  [[nodiscard]] std::int32_t find_child(const detail::RowIdentity& rows, std::int32_t node, std::uint64_t hash,
                                        std::int32_t row) const noexcept {
    for (std::int32_t e = chains_[hash & (chain_count_ - 1)]; e != none; e = edges_[e].chained) {
      if (edges_[e].parent == node && rows.match(edges_[e].source, row, 1) == 1) {
        return e;
      }
    }
    return none;
  }

  void chain(std::int32_t edge, std::uint64_t hash) noexcept {
    std::int32_t& head = chains_[hash & (chain_count_ - 1)];
    edges_[edge].chained = head;
    head = edge;
  }

  [[nodiscard]] std::uint64_t hash_of_node(std::int32_t node) const noexcept {
    return detail::mix(seed_ ^ static_cast<std::uint32_t>(node), 0xd6e8feb86659fd93);
  }

  // Secret, so that no input can be made that collides; the index does not depend on it.
  [[nodiscard]] static std::uint64_t fresh_seed(const void* salt) noexcept {
    std::timespec now{};
    static_cast<void>(std::timespec_get(&now, TIME_UTC));
    return detail::mix(static_cast<std::uint64_t>(now.tv_nsec) ^ reinterpret_cast<std::uintptr_t>(salt),
                       0xa0761d6478bd642f + (static_cast<std::uint64_t>(now.tv_sec) << 20));
  }

  detail::IndexMemory maps_;
  detail::IndexMemory edge_memory_;
  detail::IndexMemory chain_memory_;
  Edge* edges_ = nullptr;
  std::int32_t* chains_ = nullptr;
  std::size_t chain_count_ = 0;
  std::int32_t edge_count_ = 0;
  std::int32_t root_count_ = 0;
  std::uint64_t seed_ = fresh_seed(this);
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
