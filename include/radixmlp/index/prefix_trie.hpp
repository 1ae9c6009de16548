// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
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
  // Without it PrefixIndexView::parent is empty. Moving rows, CompactedBlock and attention plans do not need that map;
  // a build writes up to a third less, and so does the copy to a device.
  bool parent = true;
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

// Runs are most of what a build writes. Both functions go in blocks of 16 entries and may write to the end of the last
// block where `room`, the number of entries that may be overwritten, allows: short runs then take no branch that
// depends on their length.
inline constexpr std::int64_t run_block = 16;

// out[i] = first + i for i < count, where count is at least 8, on a processor with AVX2: twice as wide as fill_run, and
// no store crosses a cache line but the first and the last.
RADIXMLP_TARGET_AVX2 inline void fill_run_avx2(std::int32_t* out, std::int64_t count, std::int32_t first) noexcept {
  using Vector = std::uint32_t __attribute__((vector_size(32)));
  constexpr std::int64_t lanes = 8;
  constexpr std::int64_t block = 4 * lanes;
  const Vector from_first = Vector{0, 1, 2, 3, 4, 5, 6, 7} + static_cast<std::uint32_t>(first);
  std::memcpy(out, &from_first, sizeof from_first);
  std::int64_t i = lanes - static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) / sizeof *out % lanes);
  Vector next = from_first + static_cast<std::uint32_t>(i);
  for (; i + block <= count; i += block) {
    for (std::int64_t v = 0; v < block; v += lanes) {
      std::memcpy(out + i + v, &next, sizeof next);
      next += static_cast<std::uint32_t>(lanes);
    }
  }
  for (; i + lanes <= count; i += lanes) {
    std::memcpy(out + i, &next, sizeof next);
    next += static_cast<std::uint32_t>(lanes);
  }
  next = from_first + static_cast<std::uint32_t>(count - lanes);
  std::memcpy(out + count - lanes, &next, sizeof next);
}

// out[i] = first + i for i < count. In vectors of the compilers' own language because a plain loop stays scalar under
// g++ -O2 (4 times slower) and takes twice as long under g++ -O3; see docs/design.md.
inline void fill_run(std::int32_t* out, std::int64_t count, std::int32_t first, std::int64_t room) noexcept {
  constexpr std::int64_t long_run = 128;
  if (count >= long_run && RADIXMLP_HAS_AVX2()) {
    fill_run_avx2(out, count, first);
    return;
  }
  using Vector = std::uint32_t __attribute__((vector_size(16)));
  constexpr std::int64_t lanes = 4;
  Vector next = Vector{0, 1, 2, 3} + static_cast<std::uint32_t>(first);
  std::int64_t i = 0;
  for (; i < count && i + run_block <= room; i += run_block) {
    for (std::int64_t v = 0; v < run_block; v += lanes) {
      std::memcpy(out + i + v, &next, sizeof next);
      next += static_cast<std::uint32_t>(lanes);
    }
  }
  for (; i < count; ++i) {
    out[i] = first + static_cast<std::int32_t>(i);
  }
}

// out[i] = from[i] for i < count, where count is at least 8 and the two lie apart, on a processor with AVX2. A memcpy
// of 2 KB and more is a `rep movsb` in glibc, which AMD's processors are slow at.
RADIXMLP_TARGET_AVX2 inline void copy_run_avx2(std::int32_t* out, const std::int32_t* from,
                                               std::int64_t count) noexcept {
  using Vector = std::uint32_t __attribute__((vector_size(32)));
  constexpr std::int64_t lanes = 8;
  Vector a, b, c, d;
  std::memcpy(&a, from, sizeof a);
  std::memcpy(out, &a, sizeof a);
  std::int64_t i = lanes - static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(out) / sizeof *out % lanes);
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    std::memcpy(&a, from + i, sizeof a);
    std::memcpy(&b, from + i + lanes, sizeof b);
    std::memcpy(&c, from + i + 2 * lanes, sizeof c);
    std::memcpy(&d, from + i + 3 * lanes, sizeof d);
    std::memcpy(out + i, &a, sizeof a);
    std::memcpy(out + i + lanes, &b, sizeof b);
    std::memcpy(out + i + 2 * lanes, &c, sizeof c);
    std::memcpy(out + i + 3 * lanes, &d, sizeof d);
  }
  for (; i + lanes <= count; i += lanes) {
    std::memcpy(&a, from + i, sizeof a);
    std::memcpy(out + i, &a, sizeof a);
  }
  std::memcpy(&a, from + count - lanes, sizeof a);
  std::memcpy(out + count - lanes, &a, sizeof a);
}

// out[i] = from[i] for i < count; `from` lies before `out`, at least `count` entries.
inline void copy_run(std::int32_t* out, const std::int32_t* from, std::int64_t count, std::int64_t room) noexcept {
  constexpr std::int64_t long_run = 96;
  if (count >= long_run) {
    if (RADIXMLP_HAS_AVX2()) {
      copy_run_avx2(out, from, count);
    } else {  // memcpy may have wider vectors than the build's target
      std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof *out);
    }
    return;
  }
  using Vector = std::uint32_t __attribute__((vector_size(16)));
  std::int64_t i = 0;
  for (; i < count && i + run_block <= room; i += run_block) {
    // Into registers first: `out` may overlap `from` behind the run. An array of four becomes memory under g++ 12.
    Vector a, b, c, d;
    std::memcpy(&a, from + i, sizeof a);
    std::memcpy(&b, from + i + 4, sizeof b);
    std::memcpy(&c, from + i + 8, sizeof c);
    std::memcpy(&d, from + i + 12, sizeof d);
    std::memcpy(out + i, &a, sizeof a);
    std::memcpy(out + i + 4, &b, sizeof b);
    std::memcpy(out + i + 8, &c, sizeof c);
    std::memcpy(out + i + 12, &d, sizeof d);
  }
  for (; i < count; ++i) {
    out[i] = from[i];
  }
}

}  // namespace detail

// Builds the index of a batch, O(N + B). Reusable, one batch at a time; memory is kept and only grows, so a batch of
// a size it has seen allocates nothing. Host only, no stream. An executor with several threads gives the same index and
// pays on a million rows or more (benchmarks/README.md).
//
// The trie is a radix tree: an edge is a run of rows that one sequence brought, so whole runs are compared and
// numbered at once. A node is not stored: it is the ragged row that ends the edge above it, which no split changes.
class PrefixTrie {
  template <class Rows>
  class Walk;

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
    if (Status status = reserve<Executor>(batch, index_bytes(batch.rows(), batch.sequences(), options.pad_to));
        !status.ok()) {
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
    if (Status status = reserve<Executor>(batch, 0); !status.ok()) {
      return status;
    }
    index = build_maps(batch, options, memory.data(), executor);
    return {};
  }

 private:
  static constexpr std::int32_t no_row = -1;
  static constexpr std::int32_t none = 0;  // an edge that stands for no edge: its key is nobody's
  static constexpr std::int32_t unknown = -1;
  static constexpr std::int32_t namespace_parent = std::numeric_limits<std::int32_t>::min();

  struct Edge {
    std::uint64_t key;      // the node that it hangs from, and the tag of its first row: equal rows have equal tags
    std::int32_t source;    // ragged row that its first row was taken from; the rest follow
    std::int32_t sequence;  // where that row lies; for the root of a namespace, a sequence of it
    std::int32_t length;    // rows; 0 for the root of a namespace
    std::int32_t child;     // first edge below it, or none; the others are in the hash table
    std::int32_t chained;   // next edge in its hash chain, or none

    [[nodiscard]] std::int32_t node() const noexcept { return source + length - 1; }
  };

  // An edge on the way to the end of the last sequence, and how many rows of the sequence lie above it.
  struct Step {
    std::int32_t edge;
    std::int32_t depth;
  };

  // The maps while they are written. ragged_cu is complete from the start.
  struct Maps {
    std::int32_t *scatter, *ragged_cu, *compact_cu, *last_rows, *gather;
    std::int64_t sequences;
    std::int32_t ragged_rows;
  };

  // Sequences from `begin` to `end`, of about as many rows as the other chunks of a batch.
  struct Chunk {
    std::int64_t begin, end;
  };
  static constexpr std::int64_t chunk_rows = 16384;
  static constexpr std::int64_t most_chunks = 256;
  static constexpr std::int64_t most_workers = 16;

  [[nodiscard]] static Chunk chunk_of(const Maps& maps, std::int64_t chunk, std::int64_t chunks) noexcept {
    const auto begin = [&](std::int64_t c) -> std::int64_t {
      return c == chunks
                 ? maps.sequences
                 : std::lower_bound(maps.ragged_cu, maps.ragged_cu + maps.sequences, maps.ragged_rows * c / chunks) -
                       maps.ragged_cu;
    };
    return {begin(chunk), begin(chunk + 1)};
  }

  // Whether the caller is the first. Looks before it writes, so that a core keeps the line of what others have taken.
  [[nodiscard]] static bool take(std::atomic<bool>& taken) noexcept {
    return !taken.load(std::memory_order_relaxed) && !taken.exchange(true);
  }

  // Looks for some microseconds before it sleeps: waking up takes longer than the other worker needs for a chunk.
  template <class T, class Condition>
  static void wait_until(const std::atomic<T>& value, Condition condition) noexcept {
    constexpr int looks = 20'000;
    T now = value.load();
    for (int i = 0; i < looks && !condition(now); ++i) {
      now = value.load();
    }
    while (!condition(now)) {
      value.wait(now);
      now = value.load();
    }
  }

  [[nodiscard]] static std::uint64_t key_of(std::int32_t node, std::uint32_t tag) noexcept {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(node)) << 32 | tag;
  }

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

  // A sequence adds at most its own edge, and the lower half of one that it splits or the root of its namespace; it
  // makes no way down longer by more than one edge. Its own edge and the root can be hashed; twice as many chains keep
  // most of them empty. All in all some 88 bytes a sequence; 4 more with several threads.
  template <class Executor, TokenId Token>
  [[nodiscard]] Status reserve(const RaggedBatch<Token>& batch, std::size_t map_bytes) noexcept {
    const auto sequences = static_cast<std::size_t>(batch.sequences());
    const std::size_t edges = (2 * sequences + 2) * sizeof(Edge);  // with `none`, and the only root of an empty batch
    const std::size_t steps = (sequences + 1) * sizeof(Step);
    chain_count_ = std::bit_ceil(2 * std::max<std::size_t>(sequences, 1));
    const std::size_t chains = chain_count_ * sizeof(std::int32_t);
    const std::size_t owners = std::is_same_v<Executor, SerialExecutor> ? 0 : sequences * sizeof(std::int32_t);
    if (!maps_.grow_to(map_bytes) || !edge_memory_.grow_to(edges) || !step_memory_.grow_to(steps) ||
        !chain_memory_.grow_to(chains) || !owner_memory_.grow_to(owners)) {
      return detail::out_of_memory(map_bytes + edges + steps + chains + owners);
    }
    return {};
  }

  template <TokenId Token, class Executor>
  [[nodiscard]] PrefixIndexView build_maps(const RaggedBatch<Token>& batch, BuildOptions options, std::byte* memory,
                                           const Executor& executor) noexcept {
    const detail::RowIdentity identity(batch);
    if (identity.tokens_only()) {
      return build_maps(detail::TokenRows<Token>(batch.tokens), identity, batch.cu_seqlens, options, memory, executor);
    }
    return build_maps(identity, identity, batch.cu_seqlens, options, memory, executor);
  }

  // `rows` compares rows, `identity` the sequences.
  template <class Rows, class Executor>
  [[nodiscard]] PrefixIndexView build_maps(const Rows& rows, const detail::RowIdentity& identity,
                                           std::span<const std::int32_t> cu_seqlens, BuildOptions options,
                                           std::byte* memory, const Executor& executor) noexcept {
    const std::int64_t sequences = static_cast<std::int64_t>(cu_seqlens.size()) - 1;
    const std::int32_t ragged_rows = cu_seqlens.back();
    const detail::IndexLayout layout(ragged_rows, sequences);
    const auto map = [memory](std::int64_t offset) { return reinterpret_cast<std::int32_t*>(memory + offset); };
    const Maps maps{.scatter = map(layout.scatter),
                    .ragged_cu = map(layout.ragged_cu),
                    .compact_cu = map(layout.compact_cu),
                    .last_rows = map(layout.last_rows),
                    .gather = map(layout.gather),
                    .sequences = sequences,
                    .ragged_rows = ragged_rows};
    std::memcpy(maps.ragged_cu, cu_seqlens.data(), cu_seqlens.size_bytes());

    const Walk<Rows> walk(*this, rows, identity);
    const auto parent_map = [&] {  // where it lies depends on how many compact rows there are
      return map(layout.parent(detail::round_up(maps.compact_cu[sequences], options.pad_to)));
    };
    const auto write_parents = [&](Chunk chunk) {
      if (options.parent) {
        write_parent(maps, parent_map(), chunk);
      }
    };
    std::int32_t max_seqlen = 0;
    if constexpr (std::is_same_v<Executor, SerialExecutor>) {
      max_seqlen = number_rows(walk, maps);
      write_gather(maps, {0, sequences});
      write_parents({0, sequences});
    } else {
      auto* const owners = reinterpret_cast<std::int32_t*>(owner_memory_.data());
      max_seqlen = build_chunks(walk, maps, owners, write_parents, executor);
    }
    const std::int32_t compact_rows = maps.compact_cu[sequences];
    const auto padded_rows = static_cast<std::int32_t>(detail::round_up(compact_rows, options.pad_to));
    const std::int32_t parents = options.parent ? compact_rows : 0;
    std::memset(maps.gather + compact_rows, 0,
                static_cast<std::size_t>(padded_rows - compact_rows) * sizeof(std::int32_t));

    const auto count = [](std::int64_t n) { return static_cast<std::size_t>(n); };
    return {.gather = {maps.gather, count(padded_rows)},
            .scatter = {maps.scatter, count(ragged_rows)},
            .compact_cu = {maps.compact_cu, count(sequences + 1)},
            .ragged_cu = {maps.ragged_cu, count(sequences + 1)},
            .parent = {parent_map(), count(parents)},
            .last_rows = {maps.last_rows, count(sequences)},
            .ragged_rows = ragged_rows,
            .compact_rows = compact_rows,
            .padded_rows = padded_rows,
            .max_seqlen = max_seqlen,
            .block = {memory, count(layout.bytes(padded_rows, parents))}};
  }

  // Puts all sequences into the trie and writes compact_cu, scatter and last_rows. Returns the longest sequence. The
  // arguments are copies, so that a compiler knows that writing a map does not change them: 5% of a build.
  template <class Rows>
  static std::int32_t number_rows(Walk<Rows> walk, Maps maps) noexcept {
    std::int32_t compact_rows = 0;
    for (std::int64_t s = 0; s < maps.sequences; ++s) {
      const std::int32_t begin = maps.ragged_cu[s];
      const std::int32_t end = maps.ragged_cu[s + 1];
      const std::int32_t first_new = walk.insert(s, begin, end, unknown);
      maps.compact_cu[s] = compact_rows;
      detail::copy_run(maps.scatter + begin, maps.scatter + walk.source(), first_new - begin, maps.ragged_rows - begin);
      detail::fill_run(maps.scatter + first_new, end - first_new, compact_rows, maps.ragged_rows - first_new);
      maps.last_rows[s] = begin < end ? maps.scatter[end - 1] : no_row;
      compact_rows += end - first_new;
    }
    maps.compact_cu[maps.sequences] = compact_rows;
    return walk.max_seqlen();
  }

  // All maps on several threads. The first worker to come puts the sequences into the trie, in order. The others
  // compare each sequence with the one before, which is most of what the walk needs to know, from the last chunk on
  // until they meet it; then they write behind it. Nobody waits for a worker that has not come yet, so any executor
  // will do.
  template <class Rows, class WriteParents, class Executor>
  static std::int32_t build_chunks(const Walk<Rows>& empty, Maps maps, std::int32_t* owners,
                                   const WriteParents& write_parents, const Executor& executor) noexcept {
    const std::int64_t chunks = std::clamp<std::int64_t>(maps.ragged_rows / chunk_rows, 1, most_chunks);
    std::atomic<bool> has_walker = false;
    std::atomic<bool> claimed[most_chunks] = {};
    std::atomic<bool> compared[most_chunks] = {};
    std::atomic<std::int64_t> walked = 0;
    std::atomic<bool> written[most_chunks] = {};
    std::atomic<std::int64_t> written_count = 0;
    std::atomic<bool> has_parent[most_chunks] = {};
    std::int32_t max_seqlen = 0;
    // Until it gets its own value, last_rows[s] holds how many rows s has in common with the sequence before it; from
    // the walk on, how many of them are to be copied from there.
    executor.parallel_for(std::min(chunks, most_workers), [&](std::int64_t) {
      const bool walks = take(has_walker);
      if (walks) {
        Walk<Rows> walk = empty;
        std::int32_t compact_rows = 0;
        maps.compact_cu[0] = 0;
        for (std::int64_t c = 0; c < chunks; ++c) {
          const bool is_compared = !take(claimed[c]);
          if (is_compared) {
            wait_until(compared[c], [](bool done) { return done; });
          }
          const Chunk chunk = chunk_of(maps, c, chunks);
          for (std::int64_t s = chunk.begin; s < chunk.end; ++s) {
            const std::int32_t begin = maps.ragged_cu[s];
            const std::int32_t end = maps.ragged_cu[s + 1];
            const bool follows = s > 0 && walk.last_was(maps.ragged_cu[s - 1], begin);
            const std::int32_t first_new =
                walk.insert(s, begin, end, is_compared && follows ? maps.last_rows[s] : unknown);
            // The sequence before may lie in a chunk that somebody else will write.
            maps.last_rows[s] = follows && s > chunk.begin ? walk.shared() : 0;
            owners[s] = walk.owner();
            compact_rows += end - first_new;
            maps.compact_cu[s + 1] = compact_rows;
          }
          walked.store(c + 1);
          walked.notify_all();
        }
        max_seqlen = walk.max_seqlen();
      } else {
        for (std::int64_t c = chunks - 1; c > 0; --c) {
          if (take(claimed[c])) {
            const Chunk chunk = chunk_of(maps, c, chunks);
            for (std::int64_t s = std::max<std::int64_t>(chunk.begin, 1); s < chunk.end; ++s) {
              const std::int32_t begin = maps.ragged_cu[s];
              maps.last_rows[s] = empty.compare(maps.ragged_cu[s - 1], begin, begin, maps.ragged_cu[s + 1]);
            }
            compared[c].store(true);
            compared[c].notify_one();
          }
        }
      }
      // The walker from the end back: a core then writes what it wrote in the last build.
      const auto from_own_end = [&](std::int64_t i) { return walks ? chunks - 1 - i : i; };
      for (std::int64_t i = 0; i < chunks; ++i) {
        const std::int64_t c = from_own_end(i);
        if (!take(written[c])) {
          continue;
        }
        wait_until(walked, [c](std::int64_t done) { return done > c; });
        const Chunk chunk = chunk_of(maps, c, chunks);
        write_scatter(maps, owners, chunk);
        write_gather(maps, chunk);
        ++written_count;
        written_count.notify_all();
      }
      wait_until(written_count, [chunks](std::int64_t done) { return done == chunks; });
      for (std::int64_t i = 0; i < chunks; ++i) {
        const std::int64_t c = from_own_end(i);
        if (take(has_parent[c])) {
          write_parents(chunk_of(maps, c, chunks));
        }
      }
    });
    return max_seqlen;
  }

  // Writes scatter and last_rows. The first last_rows[s] rows of s are copied from the sequence before; the others that
  // are not new are runs of new rows of its owner, of that one's owner, and so on. Where all are the owner's, they are
  // filled: a copy would wait for the stores of the sequence before.
  static void write_scatter(Maps maps, const std::int32_t* owners, Chunk chunk) noexcept {
    const std::int32_t rows_end = maps.ragged_cu[chunk.end];
    const auto new_rows = [&](std::int64_t s) { return maps.compact_cu[s + 1] - maps.compact_cu[s]; };
    const auto known_rows = [&](std::int64_t s) { return maps.ragged_cu[s + 1] - maps.ragged_cu[s] - new_rows(s); };
    for (std::int64_t s = chunk.begin; s < chunk.end; ++s) {
      const std::int32_t begin = maps.ragged_cu[s];
      const std::int32_t end = maps.ragged_cu[s + 1];
      const std::int32_t first_new = known_rows(s);
      const std::int32_t copied = known_rows(owners[s]) == 0 ? 0 : std::min(maps.last_rows[s], first_new);
      if (copied > 0) {
        detail::copy_run(maps.scatter + begin, maps.scatter + maps.ragged_cu[s - 1], copied, rows_end - begin);
      }
      std::int32_t known = first_new;
      for (std::int64_t owner = s; known > copied;) {
        owner = owners[owner];
        const std::int32_t first = std::max(known_rows(owner), copied);
        if (first < known) {
          detail::fill_run(maps.scatter + begin + first, known - first,
                           maps.compact_cu[owner] + first - known_rows(owner), known - first);
          known = first;
        }
      }
      detail::fill_run(maps.scatter + begin + first_new, new_rows(s), maps.compact_cu[s], rows_end - begin - first_new);
      maps.last_rows[s] = begin < end ? maps.scatter[end - 1] : no_row;
    }
  }

  // The new rows of these sequences are one run of gather, and of parent (which needs their scatter).
  static void write_gather(Maps maps, Chunk chunk) noexcept {
    const std::int32_t end = maps.compact_cu[chunk.end];
    for (std::int64_t s = chunk.begin; s < chunk.end; ++s) {
      const std::int32_t first = maps.compact_cu[s];
      const std::int32_t count = maps.compact_cu[s + 1] - first;
      detail::fill_run(maps.gather + first, count, maps.ragged_cu[s + 1] - count, end - first);
    }
  }

  static void write_parent(Maps maps, std::int32_t* parent, Chunk chunk) noexcept {
    const std::int32_t begin = maps.compact_cu[chunk.begin];
    const std::int32_t end = maps.compact_cu[chunk.end];
    detail::fill_run(parent + begin, end - begin, begin - 1, end - begin);
    for (std::int64_t s = chunk.begin; s < chunk.end; ++s) {
      const std::int32_t first = maps.compact_cu[s];
      const std::int32_t count = maps.compact_cu[s + 1] - first;
      if (count > 0) {
        const std::int32_t source = maps.ragged_cu[s + 1] - count;
        parent[first] = source == maps.ragged_cu[s] ? no_row : maps.scatter[source - 1];
      }
    }
  }

  // The trie of one build, in the memory of a PrefixTrie, and the way down to the end of the sequence that was put in
  // last.
  template <class Rows>
  class Walk {
   public:
    Walk(PrefixTrie& trie, const Rows& rows, const detail::RowIdentity& identity) noexcept
        : rows_(rows),
          identity_(identity),
          edges_(reinterpret_cast<Edge*>(trie.edge_memory_.data())),
          steps_(reinterpret_cast<Step*>(trie.step_memory_.data())),
          chains_(reinterpret_cast<std::int32_t*>(trie.chain_memory_.data())),
          seed_(trie.seed_),
          chain_shift_(64 - std::countr_zero(trie.chain_count_)) {
      std::memset(chains_, 0, trie.chain_count_ * sizeof(std::int32_t));  // none
      add_edge(key_of(namespace_parent, 0), 0, 0, 0);                     // none
      if (identity.one_namespace()) {
        only_root_ = add_root(0, 0);
      }
    }

    // Hangs a sequence into the trie: its first row that the trie does not have, and all after it, become an edge.
    // Returns that row, or `end`. `shared` is how many rows it has in common with the sequence that was put in last,
    // where that is known.
    RADIXMLP_ALWAYS_INLINE std::int32_t insert(std::int64_t sequence, std::int32_t begin, std::int32_t end,
                                               std::int32_t shared) noexcept {
      max_seqlen_ = std::max(max_seqlen_, end - begin);
      rows_.fetch(end);  // where the next sequence begins
      if (begin == end || identity_.opted_out(sequence)) [[unlikely]] {
        return begin;
      }
      const std::int32_t root = only_root_ != none ? only_root_ : find_root(sequence);
      // Neighbours in a batch share most of their way down.
      if (root != last_root_) [[unlikely]] {
        shared = 0;
        last_root_ = root;
        steps_[0] = {root, -1};  // above any row, so that no walk back passes it
        step_count_ = 1;
      } else {
        if (shared == unknown) {
          shared = compare(last_begin_, last_end_, begin, end);
        }
        while (steps_[step_count_ - 1].depth >= shared) {
          --step_count_;
        }
      }
      shared_ = shared;
      source_ = last_begin_;
      owner_ = edges_[steps_[step_count_ - 1].edge].sequence;
      last_begin_ = begin;
      last_end_ = end;

      std::int32_t row = begin + shared;
      if (row == end) [[unlikely]] {
        return row;
      }
      const Step& last_step = steps_[step_count_ - 1];
      Edge* above = edges_ + last_step.edge;
      std::int32_t passed = shared - last_step.depth;
      if (passed < above->length) {
        // The last sequence and this one part within an edge, or the last one ended there.
        const std::int32_t matched = match(*above, passed, row, end);
        source_ = matched > 0 ? above->source - last_step.depth : source_;
        row += matched;
        passed += matched;
      }
      while (row < end) {
        const std::uint32_t tag = rows_.tag(row, seed_);
        if (passed < above->length) {
          split(*above, passed);
        }
        const std::uint64_t key = key_of(above->node(), tag);
        // The first child is in no chain. `none` is compared like the others: less for a processor to guess.
        const std::int32_t child = above->child;
        std::int32_t& chain = chain_of(key);
        std::int32_t below = edges_[child].key == key ? child : chain;
        std::int32_t matched = 0;
        do {
          if (edges_[below].key == key) {
            matched = match_tagged(edges_[below], row, end);
            if (Rows::tag_is_row || matched > 0) {
              break;
            }
          }
          below = !Rows::tag_is_row && below == child ? chain : edges_[below].chained;
        } while (below != none);
        if (matched == 0) {
          below = add_edge(key, row, static_cast<std::int32_t>(sequence), end - row);
          std::int32_t& first = child == none ? above->child : chain;
          edges_[below].chained = std::exchange(first, below);
        }
        const std::int32_t depth = row - begin;
        steps_[step_count_++] = {below, depth};
        if (matched == 0) {
          break;
        }
        above = edges_ + below;
        source_ = above->source - depth;
        owner_ = above->sequence;
        row += matched;
        passed = matched;
      }
      return row;
    }

    // First ragged row of a sequence that has all rows of the last one that are not new.
    [[nodiscard]] std::int32_t source() const noexcept { return source_; }
    // The sequence that brought the last of these rows.
    [[nodiscard]] std::int32_t owner() const noexcept { return owner_; }
    // How many rows the last sequence has in common with the one before it.
    [[nodiscard]] std::int32_t shared() const noexcept { return shared_; }
    [[nodiscard]] bool last_was(std::int32_t begin, std::int32_t end) const noexcept {
      return last_begin_ == begin && last_end_ == end;
    }
    [[nodiscard]] std::int32_t max_seqlen() const noexcept { return max_seqlen_; }

    // How many rows a sequence has in common with one before it.
    [[nodiscard]] RADIXMLP_ALWAYS_INLINE std::int32_t compare(std::int32_t first, std::int32_t first_end,
                                                              std::int32_t begin, std::int32_t end) const noexcept {
      const std::int32_t rows = end - begin;
      return static_cast<std::int32_t>(rows_.match(first, begin, std::min(first_end - first, rows), rows));
    }

   private:
    // How many rows of the edge, behind its first `passed`, equal those from `row` on.
    [[nodiscard]] std::int32_t match(const Edge& edge, std::int32_t passed, std::int32_t row,
                                     std::int32_t end) const noexcept {
      return static_cast<std::int32_t>(
          rows_.match(edge.source + passed, row, std::min(edge.length - passed, end - row)));
    }

    // The same for the whole edge, whose first row has the tag of `row`.
    [[nodiscard]] std::int32_t match_tagged(const Edge& edge, std::int32_t row, std::int32_t end) const noexcept {
      if constexpr (Rows::tag_is_row) {
        return edge.length == 1 ? 1 : 1 + match(edge, 1, row + 1, end);
      } else {
        return match(edge, 0, row, end);
      }
    }

    // The edge keeps its first `length` rows, and with them its place in the parent; a new edge takes the rest and the
    // children. Those hang from the last row, which is the same node as before.
    void split(Edge& upper, std::int32_t length) noexcept {
      const std::int32_t source = upper.source + length;
      const std::int32_t lower =
          add_edge(key_of(source - 1, rows_.tag(source, seed_)), source, upper.sequence, upper.length - length);
      edges_[lower].child = upper.child;
      upper.length = length;
      upper.child = lower;
    }

    std::int32_t add_edge(std::uint64_t key, std::int32_t source, std::int32_t sequence, std::int32_t length) noexcept {
      edges_[edge_count_] = {key, source, sequence, length, none, none};
      return edge_count_++;
    }

    // Roots are edges without rows; their nodes are -1, -2, ..., apart from all rows.
    std::int32_t add_root(std::int32_t sequence, std::uint32_t tag) noexcept {
      return add_edge(key_of(namespace_parent, tag), -root_count_++, sequence, 0);
    }

    [[nodiscard]] std::int32_t find_root(std::int64_t sequence) noexcept {
      const std::uint32_t tag = identity_.namespace_tag(sequence, seed_);
      const std::uint64_t key = key_of(namespace_parent, tag);
      std::int32_t& chain = chain_of(key);
      for (std::int32_t e = chain; e != none; e = edges_[e].chained) {
        if (edges_[e].key == key && identity_.same_namespace(edges_[e].sequence, sequence)) {
          return e;
        }
      }
      const std::int32_t root = add_root(static_cast<std::int32_t>(sequence), tag);
      edges_[root].chained = std::exchange(chain, root);
      return root;
    }

    // Multiply-shift hashing (Dietzfelbinger et al. 1997): with a secret odd multiplier any two different keys share a
    // chain with a chance of at most 2 in the number of chains, so no input makes chains long.
    [[nodiscard]] std::int32_t& chain_of(std::uint64_t key) const noexcept {
      return chains_[(key * (seed_ | 1)) >> chain_shift_];
    }

    const Rows rows_;
    const detail::RowIdentity& identity_;
    Edge* const edges_;
    Step* const steps_;
    std::int32_t* const chains_;
    const std::uint64_t seed_;
    const int chain_shift_;
    std::int32_t edge_count_ = 0;
    std::int32_t root_count_ = 0;
    std::int32_t only_root_ = none;
    std::int32_t max_seqlen_ = 0;
    std::int32_t step_count_ = 1;
    std::int32_t shared_ = 0;
    std::int32_t source_ = 0;
    std::int32_t owner_ = 0;
    std::int32_t last_root_ = none;
    std::int32_t last_begin_ = 0;
    std::int32_t last_end_ = 0;
  };

  detail::IndexMemory maps_;
  detail::IndexMemory edge_memory_;
  detail::IndexMemory step_memory_;
  detail::IndexMemory chain_memory_;
  detail::IndexMemory owner_memory_;
  std::size_t chain_count_ = 0;
  std::uint64_t seed_ = detail::fresh_seed(this);
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
