// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <span>
#include <utility>

#include "radixmlp/index/ragged_batch.hpp"

namespace radixmlp::inline v0 {

// What a batch fills of an index that is laid out for a capacity, in the memory of its maps (see index_capacity.hpp).
// Written by `stage_index` on the host, or by a builder on the device.
struct IndexCounts {
  std::int32_t compact_rows = 0;  // N'; -1 in the first three: there is no index of the batch, `fault` says why
  std::int32_t ragged_rows = 0;   // N
  std::int32_t sequences = 0;     // B
  std::int32_t max_seqlen = 0;

  // The first fault since the counts were queried: an IndexFault, and the value that was wrong. A batch that fits does
  // not clear it.
  std::int32_t fault = 0;
  std::int32_t fault_index = -1;  // of the value in its array; -1: it is a number
  std::int32_t fault_value = 0;
};

// The maps of a batch between N ragged rows and N' compact rows. Nothing is owned: PrefixTrie's memory, the
// caller's, or a copy of it on a device (see `relocated`). The counts are host values in either case.
//
// Compact rows are numbered in order of first appearance, so the rows that a sequence brings anew are one run in
// both layouts: compact_cu[s] .. compact_cu[s+1] are the last rows of sequence s. Maps that were not made by the trie
// can be moved along too if compact_cu is left empty.
struct PrefixIndexView {
  std::span<const std::int32_t> gather = {};   // [padded_rows]: compact[j] = ragged[gather[j]]; 0 from compact_rows on
  std::span<const std::int32_t> scatter = {};  // [N]: ragged[i] = compact[scatter[i]]
  std::span<const std::int32_t> compact_cu = {};  // [B+1]: offsets of each sequence's new rows in compact space
  std::span<const std::int32_t> ragged_cu = {};   // [B+1]: the batch's cu_seqlens
  // [N']: compact row before this one in its sequences; -1 at a first row. Empty without BuildOptions::parent.
  std::span<const std::int32_t> parent = {};
  std::span<const std::int32_t> last_rows = {};  // [B]: compact row of a sequence's last token; -1 if it is empty
  std::int32_t ragged_rows = 0;                  // N
  std::int32_t compact_rows = 0;                 // N'
  std::int32_t padded_rows = 0;                  // N' rounded up to a multiple of BuildOptions::pad_to
  std::int32_t max_seqlen = 0;                   // longest sequence
  std::span<const std::byte> block = {};         // the memory that all maps lie in

  // Not null: an index for whatever batch is put into its memory, as a CUDA graph needs it. Then the counts above and
  // the sizes of the maps are a capacity, *counts is what of it the batch fills, and it lies where the maps do. Row
  // moves and CompactedBlock read it when they run; other functions of an index refuse it (see `filled_index`).
  const IndexCounts* counts = nullptr;

  [[nodiscard]] std::int32_t sequences() const noexcept { return static_cast<std::int32_t>(last_rows.size()); }

  // gamma = N'/N before padding, the share of position-wise work that is left; 1 for a batch without rows.
  [[nodiscard]] double ratio() const noexcept { return ragged_rows == 0 ? 1.0 : double(compact_rows) / ragged_rows; }

  // Rows of sequence s that an earlier sequence has too; they come first.
  [[nodiscard]] std::int32_t shared_rows(std::int32_t s) const noexcept {
    const auto at = static_cast<std::size_t>(s);
    return ragged_cu[at + 1] - ragged_cu[at] - (compact_cu[at + 1] - compact_cu[at]);
  }

  // The same view after its block has been copied to `base` (on a device, or on another rank).
  [[nodiscard]] PrefixIndexView relocated(const void* base) const noexcept {
    const auto moved = [&](std::span<const std::int32_t> map) {
      const auto offset = reinterpret_cast<const std::byte*>(map.data()) - block.data();
      return std::span(reinterpret_cast<const std::int32_t*>(static_cast<const std::byte*>(base) + offset), map.size());
    };
    PrefixIndexView view = *this;
    view.gather = moved(gather);
    view.scatter = moved(scatter);
    view.compact_cu = moved(compact_cu);
    view.ragged_cu = moved(ragged_cu);
    view.parent = moved(parent);
    view.last_rows = moved(last_rows);
    if (counts != nullptr) {
      const auto offset = reinterpret_cast<const std::byte*>(counts) - block.data();
      view.counts = reinterpret_cast<const IndexCounts*>(static_cast<const std::byte*>(base) + offset);
    }
    view.block = {static_cast<const std::byte*>(base), block.size()};
    return view;
  }
};

// Alignment of the block and of every map in it, in bytes: a cache line, and a multiple of any vector load.
inline constexpr std::size_t index_alignment = 64;

// Memory of the host for an index, uninitialised. Where it spans huge pages and the kernel gives them on request, it
// asks for them: maps of some megabytes need more pages of 4 KiB than a processor keeps.
struct HostIndexAllocator {
  // nullptr where there is none.
  [[nodiscard]] void* allocate(std::size_t bytes) const noexcept {
    void* const memory = ::operator new (bytes, std::align_val_t{index_alignment}, std::nothrow);
    constexpr std::size_t page = std::size_t{2} << 20;
    const std::size_t before = (page - reinterpret_cast<std::uintptr_t>(memory) % page) % page;
    if (memory != nullptr && bytes >= before + page) {
      RADIXMLP_ASK_FOR_HUGE_PAGES(static_cast<std::byte*>(memory) + before, (bytes - before) / page * page);
    }
    return memory;
  }
  void deallocate(void* memory, std::size_t) const noexcept {
    ::operator delete (memory, std::align_val_t{index_alignment});
  }
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

[[nodiscard]] constexpr std::int64_t round_up(std::int64_t value, std::int64_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

// Byte offsets of the maps in a block. Maps whose size is known before the build come first; gather and parent
// follow with their final sizes, so the block has no hole and its copy moves no byte in vain.
struct IndexLayout {
  std::int64_t scatter = 0, ragged_cu = 0, compact_cu = 0, last_rows = 0, gather = 0;

  constexpr IndexLayout(std::int64_t rows, std::int64_t sequences) noexcept {
    ragged_cu = after(scatter, rows);
    compact_cu = after(ragged_cu, sequences + 1);
    last_rows = after(compact_cu, sequences + 1);
    gather = after(last_rows, sequences);
  }

  [[nodiscard]] constexpr std::int64_t parent(std::int64_t padded_rows) const noexcept {
    return after(gather, padded_rows);
  }
  [[nodiscard]] constexpr std::int64_t bytes(std::int64_t padded_rows, std::int64_t parents) const noexcept {
    return after(parent(padded_rows), parents);
  }

 private:
  [[nodiscard]] static constexpr std::int64_t after(std::int64_t offset, std::int64_t entries) noexcept {
    return round_up(offset + entries * std::int64_t{sizeof(std::int32_t)}, std::int64_t{index_alignment});
  }
};

// Memory that grows and never shrinks. Owns it by hand: with std::unique_ptr comes all of <memory>, and with it
// iostreams, into every file that includes this one.
class IndexMemory {
 public:
  IndexMemory() = default;
  IndexMemory(IndexMemory&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  IndexMemory& operator=(IndexMemory&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~IndexMemory() { HostIndexAllocator{}.deallocate(memory_, bytes_); }

  [[nodiscard]] std::byte* data() noexcept { return static_cast<std::byte*>(memory_); }

  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

  // False where there is no memory. The contents are lost when it grows.
  [[nodiscard]] bool grow_to(std::size_t bytes) noexcept {
    if (bytes > bytes_) {
      HostIndexAllocator{}.deallocate(memory_, std::exchange(bytes_, 0));
      memory_ = HostIndexAllocator{}.allocate(bytes);
      if (memory_ == nullptr) {
        return false;
      }
      bytes_ = bytes;
    }
    return true;
  }

 private:
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

// For functions that read the maps of one batch on the host.
inline void check_without_counts(const PrefixIndexView& index) {
  if (index.counts != nullptr) {
    raise({StatusCode::invalid_batch, "index.counts",
           "must be null here: pass filled_index(index, counts), which is of one batch", -1, 1, 0, false});
  }
}

// For functions that read `parent`.
inline void check_with_parent(const PrefixIndexView& index) {
  if (index.parent.size() < static_cast<std::size_t>(index.compact_rows)) {
    raise(invalid_batch("index.parent", -1, static_cast<std::int64_t>(index.parent.size()),
                        "must have an entry for each compact row (BuildOptions::parent),", index.compact_rows));
  }
}

inline void check_index_memory(std::span<const std::byte> memory, std::size_t bytes, const char* argument = "memory") {
  if (memory.size() < bytes) {
    raise(invalid_batch(argument, -1, static_cast<std::int64_t>(memory.size()), "its bytes must be at least",
                        static_cast<std::int64_t>(bytes)));
  }
  if (const auto off = reinterpret_cast<std::uintptr_t>(memory.data()) % index_alignment; off != 0) {
    raise(invalid_batch(argument, -1, static_cast<std::int64_t>(off), "its address must be a multiple of",
                        index_alignment));
  }
}

[[nodiscard]] inline Status out_of_memory(std::size_t bytes) noexcept {
  return {StatusCode::out_of_memory, "bytes", "not enough memory for the index", -1, static_cast<std::int64_t>(bytes)};
}

}  // namespace detail

// Bytes that hold the index of any batch of that shape, whatever it shares: N rows, B sequences.
[[nodiscard]] constexpr std::size_t index_bytes(std::int64_t rows, std::int64_t sequences,
                                                std::int32_t pad_to = 1) noexcept {
  return static_cast<std::size_t>(
      detail::IndexLayout(rows, sequences).bytes(detail::round_up(rows, pad_to < 1 ? 1 : pad_to), rows));
}

// An index that owns its maps: a copy that outlives the trie's next build. Host memory; throws Error where there is
// none left.
class PrefixIndex {
 public:
  PrefixIndex() = default;
  explicit PrefixIndex(const PrefixIndexView& source) {
    if (!memory_.grow_to(source.block.size())) {
      detail::raise(detail::out_of_memory(source.block.size()));
    }
    if (!source.block.empty()) {
      std::memcpy(memory_.data(), source.block.data(), source.block.size());
    }
    view_ = source.relocated(memory_.data());
  }

  [[nodiscard]] const PrefixIndexView& view() const noexcept { return view_; }
  operator const PrefixIndexView&() const noexcept { return view_; }

 private:
  detail::IndexMemory memory_;
  PrefixIndexView view_;
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
