// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "radixmlp/executor.hpp"
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

// Runs are most of what a build writes. Both functions go in blocks of 16 entries and may write to the end of the last
// block where `room`, the number of entries that may be overwritten, allows: short runs then take no branch that
// depends on their length.
inline constexpr std::int64_t run_block = 16;

// out[i] = first + i for i < count. In vectors of the compilers' own language because a plain loop stays scalar under
// g++ -O2 (4 times slower) and takes twice as long under g++ -O3; see docs/design.md.
inline void fill_run(std::int32_t* out, std::int64_t count, std::int32_t first, std::int64_t room) noexcept {
  using Vector = std::uint32_t __attribute__((vector_size(16)));
  constexpr std::int64_t lanes = 4;
  const Vector begin = Vector{0, 1, 2, 3} + static_cast<std::uint32_t>(first);
  Vector next[] = {begin, begin + 4, begin + 8, begin + 12};
  std::int64_t i = 0;
  for (; i < count && i + run_block <= room; i += run_block) {
    for (std::int64_t v = 0; v < run_block / lanes; ++v) {
      std::memcpy(out + i + v * lanes, &next[v], sizeof next[v]);
      next[v] += static_cast<std::uint32_t>(run_block);
    }
  }
  for (; i < count; ++i) {
    out[i] = first + static_cast<std::int32_t>(i);
  }
}

// out[i] = from[i] for i < count; `from` lies before `out`, at least `count` entries.
inline void copy_run(std::int32_t* out, const std::int32_t* from, std::int64_t count, std::int64_t room) noexcept {
  std::int64_t i = 0;
  for (; i < count && i + run_block <= room; i += run_block) {
    std::int32_t block[run_block];
    std::memcpy(block, from + i, sizeof block);
    std::memcpy(out + i, block, sizeof block);
  }
  for (; i < count; ++i) {
    out[i] = from[i];
  }
}

}  // namespace detail

// Builds the index of a batch, O(N + B). Reusable, one batch at a time; memory is kept and only grows, so a batch of
// a size it has seen allocates nothing. Host only, no stream. An executor with several threads gives the same index and
// pays on a million rows or more: two threads were 1.1 to 1.7 times as fast there (benchmarks/README.md).
//
// The trie is a radix tree: an edge is a run of rows that one sequence brought, so whole runs are compared and
// numbered at once. A node is not stored: it is the last compact row of the edge above it, which no split changes.
class PrefixTrie {
 public:
  // The view lies in the trie's memory and is valid until the next build. Throws InvalidBatch before anything is
  // written, Error where memory runs out.
  template <TokenId Token, HostExecutor Executor = SerialExecutor>
  PrefixIndexView build(const RaggedBatch<Token>& batch, BuildOptions options = {}, const Executor& executor = {}) {
    PrefixIndexView index;
    detail::raise_unless_ok(try_build(batch, options, index, executor));
    return index;
  }

  // The same into the caller's memory (pinned, shared, ...), aligned to index_alignment and of at least
  // index_bytes(N, B, pad_to) bytes. The view lies there and does not depend on the trie.
  template <TokenId Token, HostExecutor Executor = SerialExecutor>
  PrefixIndexView build_into(std::span<std::byte> memory, const RaggedBatch<Token>& batch, BuildOptions options = {},
                             const Executor& executor = {}) {
    PrefixIndexView index;
    detail::raise_unless_ok(try_build_into(memory, batch, options, index, executor));
    return index;
  }

  // Without exceptions: `index` is written only if the status is ok.
  template <TokenId Token, HostExecutor Executor = SerialExecutor>
  [[nodiscard]] Status try_build(const RaggedBatch<Token>& batch, BuildOptions options, PrefixIndexView& index,
                                 const Executor& executor = {}) noexcept {
    if (Status status = validate(batch, options); !status.ok()) {
      return status;
    }
    if (Status status = reserve(batch, index_bytes(batch.rows(), batch.sequences(), options.pad_to)); !status.ok()) {
      return status;
    }
    index = build_maps(batch, options, maps_.data(), executor);
    return {};
  }

  template <TokenId Token, HostExecutor Executor = SerialExecutor>
  [[nodiscard]] Status try_build_into(std::span<std::byte> memory, const RaggedBatch<Token>& batch,
                                      BuildOptions options, PrefixIndexView& index,
                                      const Executor& executor = {}) noexcept {
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
    if (Status status = reserve(batch, 0); !status.ok()) {
      return status;
    }
    index = build_maps(batch, options, memory.data(), executor);
    return {};
  }

 private:
  static constexpr std::int32_t none = -1;
  static constexpr std::int32_t unknown = -1;
  static constexpr std::int32_t namespace_parent = std::numeric_limits<std::int32_t>::min();

  struct Edge {
    std::int32_t source;       // ragged row that its first row was taken from; the rest follow
    std::int32_t first_row;    // compact row of its first row; the rest follow
    std::int32_t length;       // rows; 0 for the root of a namespace
    std::int32_t parent;       // node that it hangs from
    std::int32_t first_child;  // edge, or none
    std::int32_t chained;      // next edge in its hash chain, or none
    std::uint32_t tag;         // of its first row: two rows that differ in it are not equal
    bool branches;             // it has children beside the first: they are in the hash table

    [[nodiscard]] std::int32_t node() const noexcept { return first_row + length - 1; }
  };

  // An edge on the way to the end of the last sequence, and how many rows of the sequence lie above it.
  struct Step {
    std::int32_t edge;
    std::int32_t depth;
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

  // A sequence adds at most its own edge and the lower half of one that it splits, and the root of its namespace; its
  // own edge and the root can be hashed; the way down has no more steps than there are edges with rows.
  template <TokenId Token>
  [[nodiscard]] Status reserve(const RaggedBatch<Token>& batch, std::size_t map_bytes) noexcept {
    const auto sequences = static_cast<std::size_t>(batch.sequences());
    const bool one_namespace = detail::RowIdentity(batch).one_namespace();
    const std::size_t roots = one_namespace ? 1 : sequences;
    const std::size_t edges = (2 * sequences + roots) * sizeof(Edge);
    const std::size_t steps = 2 * sequences * sizeof(Step);
    chain_count_ = std::bit_ceil(one_namespace ? sequences + 2 : 2 * sequences + 2);
    chain_shift_ = 64 - std::countr_zero(chain_count_);
    const std::size_t chains = chain_count_ * sizeof(std::int32_t);
    if (!maps_.grow_to(map_bytes) || !edge_memory_.grow_to(edges) || !step_memory_.grow_to(steps) ||
        !chain_memory_.grow_to(chains)) {
      return detail::out_of_memory(map_bytes + edges + steps + chains);
    }
    edges_ = reinterpret_cast<Edge*>(edge_memory_.data());
    steps_ = reinterpret_cast<Step*>(step_memory_.data());
    chains_ = reinterpret_cast<std::int32_t*>(chain_memory_.data());
    return {};
  }

  template <TokenId Token, class Executor>
  [[nodiscard]] PrefixIndexView build_maps(const RaggedBatch<Token>& batch, BuildOptions options, std::byte* memory,
                                           const Executor& executor) noexcept {
    const detail::RowIdentity identity(batch);
    if (identity.tokens_only()) {
      return build_maps(detail::TokenRows<Token>(batch.tokens.data()), identity, batch.cu_seqlens, options, memory,
                        executor);
    }
    return build_maps(identity, identity, batch.cu_seqlens, options, memory, executor);
  }

  // `rows` compares rows, `identity` the sequences. The walks down the trie are one thread's work. On several threads
  // the rest, comparing neighbours and writing the maps, is divided by chunks of sequences.
  template <class Rows, class Executor>
  [[nodiscard]] PrefixIndexView build_maps(const Rows& rows, const detail::RowIdentity& identity,
                                           std::span<const std::int32_t> cu_seqlens, BuildOptions options,
                                           std::byte* memory, const Executor& executor) noexcept {
    constexpr bool is_parallel = !std::is_same_v<Executor, SerialExecutor>;
    const std::int64_t sequences = static_cast<std::int64_t>(cu_seqlens.size()) - 1;
    const std::int32_t ragged_rows = cu_seqlens.back();
    const detail::IndexLayout layout(ragged_rows, sequences);
    const auto map = [memory](std::int64_t offset) { return reinterpret_cast<std::int32_t*>(memory + offset); };
    std::int32_t* const scatter = map(layout.scatter);
    std::int32_t* const ragged_cu = map(layout.ragged_cu);
    std::int32_t* const compact_cu = map(layout.compact_cu);
    std::int32_t* const last_rows = map(layout.last_rows);
    std::memcpy(ragged_cu, cu_seqlens.data(), cu_seqlens.size_bytes());

    constexpr std::int64_t chunk_rows = 16384;
    const std::int64_t chunks = is_parallel ? std::clamp<std::int64_t>(ragged_rows / chunk_rows, 1, 256) : 1;
    const auto chunk_begin = [&](std::int64_t chunk) -> std::int64_t {
      return chunk == chunks
                 ? sequences
                 : std::lower_bound(ragged_cu, ragged_cu + sequences, ragged_rows * chunk / chunks) - ragged_cu;
    };
    const auto for_each_sequence = [&](auto f) {
      executor.parallel_for(chunks, [&](std::int64_t chunk) {
        const std::int64_t end = chunk_begin(chunk + 1);
        for (std::int64_t s = chunk_begin(chunk); s < end; ++s) {
          f(s);
        }
      });
    };
    if constexpr (is_parallel) {
      // Until it gets its own value, last_rows[s] holds how many rows s shares with the sequence before it.
      for_each_sequence([&](std::int64_t s) {
        last_rows[s] = s == 0 ? 0
                              : static_cast<std::int32_t>(rows.match(
                                    ragged_cu[s - 1], ragged_cu[s],
                                    std::min(ragged_cu[s] - ragged_cu[s - 1], ragged_cu[s + 1] - ragged_cu[s])));
      });
    }

    std::memset(chains_, 0xff, chain_count_ * sizeof(std::int32_t));  // none
    edge_count_ = 0;
    root_count_ = 0;
    last_ = {};
    const std::int32_t only_root = identity.one_namespace() ? add_root(0, 0) : none;
    std::int32_t compact_rows = 0;
    std::int32_t max_seqlen = 0;
    std::int64_t chunks_begun = 0;
    std::int64_t next_chunk = 0;
    for (std::int64_t s = 0; s < sequences; ++s) {
      const std::int32_t begin = ragged_cu[s];
      const std::int32_t end = ragged_cu[s + 1];
      const bool starts_chunk = s == next_chunk;
      while (s == next_chunk) {
        next_chunk = chunk_begin(++chunks_begun);
      }
      compact_cu[s] = compact_rows;
      std::int32_t first_new = begin;
      if (begin < end && !identity.opted_out(s)) {
        const std::int32_t root = only_root != none ? only_root : find_root(identity, s);
        if constexpr (is_parallel) {
          const bool follows = last_.root == root && s > 0 && last_.begin == ragged_cu[s - 1] && last_.end == begin;
          const std::int32_t shared = follow_last(rows, root, begin, end, follows ? last_rows[s] : unknown);
          // The last sequence's rows may not be written yet: they are copied later, within the chunk.
          last_rows[s] = follows && !starts_chunk ? shared : 0;
          if (last_rows[s] == 0) {
            write_steps(scatter + begin, shared);
          }
          first_new = walk(rows, root, begin, begin + shared, end, compact_rows, scatter, end);
        } else {
          const std::int32_t from = last_.begin;
          const std::int32_t shared = follow_last(rows, root, begin, end, unknown);
          detail::copy_run(scatter + begin, scatter + from, shared, ragged_rows - begin);
          first_new = walk(rows, root, begin, begin + shared, end, compact_rows, scatter, ragged_rows);
        }
      } else if constexpr (is_parallel) {
        last_rows[s] = 0;
      }
      if constexpr (!is_parallel) {
        detail::fill_run(scatter + first_new, end - first_new, compact_rows, ragged_rows - first_new);
        last_rows[s] = begin < end ? scatter[end - 1] : none;
      }
      compact_rows += end - first_new;
      max_seqlen = std::max(max_seqlen, end - begin);
    }
    compact_cu[sequences] = compact_rows;

    if constexpr (is_parallel) {
      for_each_sequence([&](std::int64_t s) {
        const std::int32_t begin = ragged_cu[s];
        const std::int32_t end = ragged_cu[s + 1];
        const std::int32_t count = compact_cu[s + 1] - compact_cu[s];
        // Rows between the two were written by the walk.
        if (last_rows[s] > 0) {
          detail::copy_run(scatter + begin, scatter + ragged_cu[s - 1], last_rows[s], last_rows[s]);
        }
        detail::fill_run(scatter + end - count, count, compact_cu[s], count);
        last_rows[s] = begin < end ? scatter[end - 1] : none;
      });
    }
    const auto padded_rows = static_cast<std::int32_t>(detail::round_up(compact_rows, options.pad_to));
    std::int32_t* const gather = map(layout.gather);
    std::int32_t* const parent = map(layout.parent(padded_rows));
    executor.parallel_for(chunks, [&](std::int64_t chunk) {
      const std::int64_t chunk_end = chunk_begin(chunk + 1);
      for (std::int64_t s = chunk_begin(chunk); s < chunk_end; ++s) {
        const std::int32_t first = compact_cu[s];
        const std::int32_t count = compact_cu[s + 1] - first;
        if (count > 0) {
          const std::int32_t source = ragged_cu[s + 1] - count;
          const std::int64_t room = compact_cu[chunk_end] - first;
          detail::fill_run(gather + first, count, source, room);
          detail::fill_run(parent + first, count, first - 1, room);
          parent[first] = source == ragged_cu[s] ? none : scatter[source - 1];
        }
      }
    });
    std::memset(gather + compact_rows, 0, static_cast<std::size_t>(padded_rows - compact_rows) * sizeof(std::int32_t));

    const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    return {.gather = {gather, count(padded_rows)},
            .scatter = {scatter, count(ragged_rows)},
            .compact_cu = {compact_cu, count(sequences + 1)},
            .ragged_cu = {ragged_cu, count(sequences + 1)},
            .parent = {parent, count(compact_rows)},
            .last_rows = {last_rows, count(sequences)},
            .ragged_rows = ragged_rows,
            .compact_rows = compact_rows,
            .padded_rows = padded_rows,
            .max_seqlen = max_seqlen,
            .block = {memory, count(layout.bytes(padded_rows, compact_rows))}};
  }

  // Follows the rows from `row` on, where `follow_last` has ended, and writes the compact rows of those that the trie
  // has. Hangs the first row that it does not have, and all after it, into the trie as one edge that starts at
  // `next_row`; returns that row.
  template <class Rows>
  std::int32_t walk(const Rows& rows, std::int32_t root, std::int32_t begin, std::int32_t row, std::int32_t end,
                    std::int32_t next_row, std::int32_t* scatter, std::int32_t room_end) noexcept {
    // Members that the stores below might change, for all that a compiler knows.
    Edge* const edges = edges_;
    const std::uint64_t seed = seed_;
    Step* step = steps_ + last_.steps;

    Edge* above = edges + (last_.steps == 0 ? root : step[-1].edge);
    if (last_.steps > 0 && row < end) {
      // The last sequence and this one part within an edge, or the last one ended there.
      const std::int32_t passed = row - begin - step[-1].depth;
      if (passed < above->length) {
        const std::int32_t matched = match(rows, *above, passed, row, end);
        detail::fill_run(scatter + row, matched, above->first_row + passed, room_end - row);
        row += matched;
        if (row < end && passed + matched < above->length) {
          split(rows, *above, passed + matched);
        }
      }
    }
    while (row < end) {
      const std::int32_t node = above->node();
      const std::uint32_t tag = rows.tag(row, seed);
      std::int32_t below = above->first_child;
      std::int32_t matched = 0;
      if (below == none) {
        below = above->first_child = add_edge(row, next_row, end - row, node, tag);
      } else {
        if (edges[below].tag == tag) {
          matched = match_tagged(rows, edges[below], row, end);
        }
        if (matched == 0) {
          std::int32_t& chain = chain_of(node, tag);
          for (below = above->branches ? chain : none; below != none; below = edges[below].chained) {
            if (edges[below].tag == tag && edges[below].parent == node) {
              matched = match_tagged(rows, edges[below], row, end);
              if (matched > 0) {
                break;
              }
            }
          }
          if (below == none) {
            above->branches = true;
            below = add_edge(row, next_row, end - row, node, tag);
            edges[below].chained = std::exchange(chain, below);
          }
        }
      }
      *step++ = {below, row - begin};
      if (matched == 0) {
        break;
      }
      above = edges + below;
      if (matched == 1) {  // most edges where short sequences branch: 8% of their build
        scatter[row] = above->first_row;
      } else {
        detail::fill_run(scatter + row, matched, above->first_row, room_end - row);
      }
      row += matched;
      if (matched < above->length && row < end) {
        split(rows, *above, matched);
      }
    }
    last_.steps = static_cast<std::int32_t>(step - steps_);
    return row;
  }

  // Neighbours in a batch share most of their way down: keeps the steps that this sequence has in common with the one
  // before and returns the number of rows that both have, `shared` where it is known.
  template <class Rows>
  [[nodiscard]] std::int32_t follow_last(const Rows& rows, std::int32_t root, std::int32_t begin, std::int32_t end,
                                         std::int32_t shared) noexcept {
    if (last_.root != root) {
      shared = 0;
    } else if (shared == unknown) {
      shared =
          static_cast<std::int32_t>(rows.match(last_.begin, begin, std::min(last_.end - last_.begin, end - begin)));
    }
    while (last_.steps > 0 && steps_[last_.steps - 1].depth >= shared) {
      --last_.steps;
    }
    last_.root = root;
    last_.begin = begin;
    last_.end = end;
    return shared;
  }

  // The compact rows of the first `shared` rows of a sequence, from the steps down to there.
  void write_steps(std::int32_t* scatter, std::int32_t shared) const noexcept {
    for (std::int32_t i = 0; i < last_.steps; ++i) {
      const std::int32_t next = i + 1 < last_.steps ? steps_[i + 1].depth : shared;
      const std::int32_t rows = next - steps_[i].depth;
      detail::fill_run(scatter + steps_[i].depth, rows, edges_[steps_[i].edge].first_row, rows);
    }
  }

  // How many rows of the edge, behind its first `passed`, equal those from `row` on.
  template <class Rows>
  [[nodiscard]] static std::int32_t match(const Rows& rows, const Edge& edge, std::int32_t passed, std::int32_t row,
                                          std::int32_t end) noexcept {
    return static_cast<std::int32_t>(rows.match(edge.source + passed, row, std::min(edge.length - passed, end - row)));
  }

  // The same for the whole edge, whose first row has the tag of `row`.
  template <class Rows>
  [[nodiscard]] static std::int32_t match_tagged(const Rows& rows, const Edge& edge, std::int32_t row,
                                                 std::int32_t end) noexcept {
    if constexpr (Rows::tag_is_row) {
      return edge.length == 1 ? 1 : 1 + match(rows, edge, 1, row + 1, end);
    } else {
      return match(rows, edge, 0, row, end);
    }
  }

  // The edge keeps its first `length` rows, and with them its place in the parent; a new edge takes the rest and the
  // children. Those hang from the last row, which is the same node as before.
  template <class Rows>
  void split(const Rows& rows, Edge& upper, std::int32_t length) noexcept {
    const std::int32_t source = upper.source + length;
    const std::int32_t lower = add_edge(source, upper.first_row + length, upper.length - length,
                                        upper.first_row + length - 1, rows.tag(source, seed_));
    edges_[lower].first_child = upper.first_child;
    edges_[lower].branches = upper.branches;
    upper.length = length;
    upper.first_child = lower;
    upper.branches = false;
  }

  std::int32_t add_edge(std::int32_t source, std::int32_t first_row, std::int32_t length, std::int32_t parent,
                        std::uint32_t tag) noexcept {
    edges_[edge_count_] = {source, first_row, length, parent, none, none, tag, false};
    return edge_count_++;
  }

  // Roots are edges without rows; their nodes are -1, -2, ..., apart from all rows.
  std::int32_t add_root(std::int32_t sequence, std::uint32_t tag) noexcept {
    return add_edge(sequence, -root_count_++, 0, namespace_parent, tag);
  }

  [[nodiscard]] std::int32_t find_root(const detail::RowIdentity& identity, std::int64_t sequence) noexcept {
    const std::uint32_t tag = identity.namespace_tag(sequence, seed_);
    std::int32_t& chain = chain_of(namespace_parent, tag);
    for (std::int32_t e = chain; e != none; e = edges_[e].chained) {
      if (edges_[e].tag == tag && edges_[e].parent == namespace_parent &&
          identity.same_namespace(edges_[e].source, sequence)) {
        return e;
      }
    }
    const std::int32_t root = add_root(static_cast<std::int32_t>(sequence), tag);
    edges_[root].chained = std::exchange(chain, root);
    return root;
  }

  // Multiply-shift hashing (Dietzfelbinger et al. 1997): with a secret odd multiplier any two different keys share a
  // chain with a chance of at most 2 in the number of chains, so no input makes chains long.
  [[nodiscard]] std::int32_t& chain_of(std::int32_t node, std::uint32_t tag) noexcept {
    const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(node)) << 32 | tag;
    return chains_[(key * (seed_ | 1)) >> chain_shift_];
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
  detail::IndexMemory step_memory_;
  detail::IndexMemory chain_memory_;
  Edge* edges_ = nullptr;
  Step* steps_ = nullptr;
  std::int32_t* chains_ = nullptr;
  std::size_t chain_count_ = 0;
  int chain_shift_ = 0;
  std::int32_t edge_count_ = 0;
  std::int32_t root_count_ = 0;
  struct {
    std::int32_t root = none;
    std::int32_t begin = 0;
    std::int32_t end = 0;
    std::int32_t steps = 0;
  } last_;  // the sequence before: its ragged rows, and the steps down to its end
  std::uint64_t seed_ = fresh_seed(this);
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
