// SPDX-License-Identifier: MIT
#pragma once

// What both halves of the C ABI share: errors as a status, and C structs as the library's types, checked.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <tuple>

#include "radixmlp/error.hpp"
#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/index/prefix_index.hpp"
#include "radixmlp/index/ragged_batch.hpp"
#include "radixmlp/rows/float_format.hpp"
#include "radixmlp/rows/row_map.hpp"
#include "radixmlp/rows/row_sums.hpp"
#include "radixmlp/rows/row_view.hpp"

// In a shared library, what the header declares is exported, and nothing else. In a static one nothing is, so that it
// does not show from the shared object that it is linked into.
#if defined(RADIXMLP_C_SHARED)
#pragma GCC visibility push(default)
#endif
#include "radixmlp/c/radixmlp.h"
#if defined(RADIXMLP_C_SHARED)
#pragma GCC visibility pop
#endif

namespace radixmlp_c {

using radixmlp::PrefixIndexView;
using radixmlp::Status;

// --- Errors ---

// What this ABI refuses by itself, before the library sees it.
struct InvalidArgument {
  Status status;
};

[[noreturn]] inline void refuse(const char* argument, std::int64_t value, const char* requirement) {
  throw InvalidArgument{{radixmlp::StatusCode::ok, argument, requirement, -1, value, 0, false}};
}
[[noreturn]] inline void refuse(const char* argument, std::int64_t value, const char* requirement, std::int64_t bound,
                                std::int64_t index = -1) {
  throw InvalidArgument{{radixmlp::StatusCode::ok, argument, requirement, index, value, bound, true}};
}

// Writes without allocating: there may be no memory left.
inline std::int32_t report(radixmlp_status* out, std::int32_t code, const char* argument, std::int64_t index,
                           std::int64_t value, const char* message) noexcept {
  if (out != nullptr) {
    *out = radixmlp_status{};
    out->code = code;
    out->index = index;
    out->value = value;
    std::snprintf(out->argument, sizeof out->argument, "%s", argument);
    std::snprintf(out->message, sizeof out->message, "%s", message);
  }
  return code;
}

inline std::int32_t report(radixmlp_status* out, const InvalidArgument& error) noexcept {
  const Status& status = error.status;
  char place[32] = "";
  char bound[32] = "";
  if (status.index >= 0) {
    std::snprintf(place, sizeof place, "[%lld]", static_cast<long long>(status.index));
  }
  if (status.has_bound) {
    std::snprintf(bound, sizeof bound, " %lld", static_cast<long long>(status.bound));
  }
  char message[sizeof out->message];
  std::snprintf(message, sizeof message, "radixmlp: %s%s = %lld: %s%s", status.argument, place,
                static_cast<long long>(status.value), status.requirement, bound);
  return report(out, RADIXMLP_INVALID_ARGUMENT, status.argument, status.index, status.value, message);
}

inline std::int32_t code_of(radixmlp::StatusCode code) noexcept {
  static_assert(RADIXMLP_INVALID_BATCH == static_cast<int>(radixmlp::StatusCode::invalid_batch));
  static_assert(RADIXMLP_INVALID_ROWS == static_cast<int>(radixmlp::StatusCode::invalid_rows));
  static_assert(RADIXMLP_OUT_OF_MEMORY == static_cast<int>(radixmlp::StatusCode::out_of_memory));
  static_assert(RADIXMLP_CUDA_ERROR == static_cast<int>(radixmlp::StatusCode::cuda_error));
  return static_cast<std::int32_t>(code);
}

// The body of every call: what it throws becomes a status.
template <class Body>
std::int32_t guarded(radixmlp_status* out, const Body& body) noexcept {
  try {
    body();
    return report(out, RADIXMLP_OK, "", -1, 0, "radixmlp: ok");
  } catch (const InvalidArgument& error) {
    return report(out, error);
  } catch (const radixmlp::Error& error) {
    return report(out, code_of(error.status().code), error.argument(), error.index(), error.value(), error.what());
  } catch (const std::bad_alloc&) {
    return report(out, RADIXMLP_OUT_OF_MEMORY, "", -1, 0, "radixmlp: out of memory");
  } catch (const std::length_error&) {
    return report(out, RADIXMLP_OUT_OF_MEMORY, "", -1, 0, "radixmlp: larger than any memory");
  } catch (const std::exception& error) {
    return report(out, RADIXMLP_INTERNAL_ERROR, "", -1, 0, error.what());
  } catch (...) {
    return report(out, RADIXMLP_INTERNAL_ERROR, "", -1, 0, "radixmlp: unknown exception");
  }
}

// --- Pointers and sizes ---

template <class T>
T* required(const char* name, T* pointer, std::size_t alignment = alignof(T)) {
  if (pointer == nullptr) {
    refuse(name, 0, "must not be null");
  }
  if (const auto off = reinterpret_cast<std::uintptr_t>(pointer) % alignment; off != 0) {
    refuse(name, static_cast<std::int64_t>(off), "its address must be a multiple of",
           static_cast<std::int64_t>(alignment));
  }
  return pointer;
}

// count elements at data; none where count is 0.
template <class T>
std::span<T> span_of(const char* name, T* data, std::int64_t count) {
  if (count < 0) {
    refuse(name, count, "its count must not be negative");
  }
  if (count == 0) {
    return {};
  }
  return {required(name, data), static_cast<std::size_t>(count)};
}

inline std::span<const std::int32_t> span_of(const char* name, const radixmlp_int32s& array) {
  return span_of(name, array.data, array.count);
}

// 0 stands for 1.
inline std::int32_t at_least_one(std::int32_t value) noexcept { return value == 0 ? 1 : value; }

// --- Structs that may grow ---

// The size of a struct in ABI 1, which the oldest callers have. Where one grows, by members behind its last and not in
// the padding there, its old size goes here.
template <class T>
inline constexpr std::size_t first_size = sizeof(T);

inline constexpr std::size_t largest_struct = 4096;  // more is not a size but a struct that nobody filled

template <class T>
std::size_t checked_size(const char* name, const T* from) {
  const std::size_t size = required(name, from)->size;
  if (size < first_size<T> || size > largest_struct) {
    refuse(name, static_cast<std::int64_t>(size), "its member size must be that of the struct,",
           static_cast<std::int64_t>(sizeof(T)));
  }
  return size;
}

// A caller compiled with an earlier header has fewer members; zeros, the defaults, stand for the others. One compiled
// with a later header may have more; they must be zeros.
template <class T>
T read_struct(const char* name, const T* from) {
  const std::size_t size = checked_size(name, from);
  const auto* const bytes = reinterpret_cast<const unsigned char*>(from);
  for (std::size_t i = sizeof(T); i < size; ++i) {
    if (bytes[i] != 0) {
      refuse(name, static_cast<std::int64_t>(size), "has members that this library does not know, behind its bytes",
             static_cast<std::int64_t>(sizeof(T)));
    }
  }
  T known{};
  std::memcpy(&known, from, std::min(size, sizeof(T)));
  return known;
}

template <class T>
T read_optional(const char* name, const T* from) {
  return from == nullptr ? T{} : read_struct(name, from);
}

// A struct to fill: checked when this is made, written by `set`; members that the library does not know become zeros.
template <class T>
class Output {
 public:
  Output(const char* name, T* out) : out_(out), size_(checked_size(name, out)) {}

  void set(T value) const noexcept {
    value.size = size_;
    std::memset(out_, 0, size_);
    std::memcpy(out_, &value, std::min(size_, sizeof(T)));
  }

 private:
  T* out_;
  std::size_t size_;
};

// --- Index ---

enum class Needs { rows, all };  // gather and scatter alone, or every map

inline PrefixIndexView index_of(const char* name, const radixmlp_index* from, Needs needs) {
  const radixmlp_index index = read_struct(name, from);
  const auto check = [](bool ok, const char* argument, std::int64_t value, const char* requirement,
                        std::int64_t bound) {
    if (!ok) {
      refuse(argument, value, requirement, bound);
    }
  };
  check(index.ragged_rows >= 0, "ragged_rows", index.ragged_rows, "must be at least", 0);
  check(index.compact_rows >= 0 && index.compact_rows <= index.ragged_rows, "compact_rows", index.compact_rows,
        "must be from 0 to", index.ragged_rows);
  check(index.padded_rows >= index.compact_rows, "padded_rows", index.padded_rows, "must be at least",
        index.compact_rows);
  check(index.sequences >= 0, "sequences", index.sequences, "must be at least", 0);
  PrefixIndexView view;
  view.gather = span_of("gather", index.gather, index.padded_rows);
  view.scatter = span_of("scatter", index.scatter, index.ragged_rows);
  if (needs == Needs::all || index.compact_cu != nullptr) {
    view.compact_cu = span_of("compact_cu", index.compact_cu, std::int64_t{index.sequences} + 1);
    view.ragged_cu = span_of("ragged_cu", index.ragged_cu, std::int64_t{index.sequences} + 1);
    view.parent = span_of("parent", index.parent, index.compact_rows);
    view.last_rows = span_of("last_rows", index.last_rows, index.sequences);
  }
  view.block = span_of("block", static_cast<const std::byte*>(index.block), index.block_bytes);
  view.ragged_rows = index.ragged_rows;
  view.compact_rows = index.compact_rows;
  view.padded_rows = index.padded_rows;
  view.max_seqlen = index.max_seqlen;
  return view;
}

inline radixmlp_index to_c(const PrefixIndexView& view) noexcept {
  radixmlp_index index{};
  index.gather = view.gather.data();
  index.scatter = view.scatter.data();
  index.compact_cu = view.compact_cu.data();
  index.ragged_cu = view.ragged_cu.data();
  index.parent = view.parent.data();
  index.last_rows = view.last_rows.data();
  index.block = view.block.data();
  index.block_bytes = static_cast<std::int64_t>(view.block.size());
  index.ratio = view.ratio();
  index.ragged_rows = view.ragged_rows;
  index.compact_rows = view.compact_rows;
  index.padded_rows = view.padded_rows;
  index.sequences = view.sequences();
  index.max_seqlen = view.max_seqlen;
  return index;
}

// An index whose maps all lie in its block, as those of a trie do. Empty maps lie at its start.
inline PrefixIndexView index_in_block(const char* name, const radixmlp_index* from) {
  PrefixIndexView view = index_of(name, from, Needs::all);
  const auto begin = reinterpret_cast<std::uintptr_t>(view.block.data());
  const auto place = [&](const char* map, std::span<const std::int32_t>& entries) {
    const auto at = reinterpret_cast<std::uintptr_t>(entries.data());
    if (entries.empty()) {
      entries = {reinterpret_cast<const std::int32_t*>(view.block.data()), 0};
    } else if (at - begin > view.block.size() || entries.size_bytes() > view.block.size() - (at - begin)) {
      refuse(map, static_cast<std::int64_t>(at), "must lie in the index's block, which starts at",
             static_cast<std::int64_t>(begin));
    }
  };
  place("gather", view.gather);
  place("scatter", view.scatter);
  place("compact_cu", view.compact_cu);
  place("ragged_cu", view.ragged_cu);
  place("parent", view.parent);
  place("last_rows", view.last_rows);
  return view;
}

// --- Rows ---

using ByteCopy = radixmlp::RowCopy<radixmlp::RowView<const std::byte>, radixmlp::RowView<std::byte>>;

inline ByteCopy byte_copy(const radixmlp_row_copy& copy) noexcept {
  return {{static_cast<const std::byte*>(copy.source.data), copy.source.rows, copy.source.width, copy.source.stride},
          {static_cast<std::byte*>(copy.target.data), copy.target.rows, copy.target.width, copy.target.stride}};
}

// move(copy...) with as many as a call may have. Those behind `count` have no width, so no row of theirs moves.
template <class Move>
void with_copies(const radixmlp_row_copy* copies, std::int32_t count, const Move& move) {
  if (count < 0 || count > RADIXMLP_MAX_TENSORS) {
    refuse("count", count, "must be from 0 to", RADIXMLP_MAX_TENSORS);
  }
  constexpr std::int64_t any = std::numeric_limits<std::int64_t>::max();
  std::array<ByteCopy, RADIXMLP_MAX_TENSORS> all;
  all.fill({{nullptr, any, 0, 0}, {nullptr, any, 0, 0}});
  std::size_t t = 0;
  for (const radixmlp_row_copy& copy : span_of("copies", copies, count)) {
    all[t++] = byte_copy(copy);
  }
  std::apply(move, all);
}

inline radixmlp::Slots slots_of(const radixmlp_array& slots) {
  switch (slots.type) {
    case RADIXMLP_INT32:
      return span_of("slots", static_cast<const std::int32_t*>(slots.data), slots.count);
    case RADIXMLP_INT64:
      return span_of("slots", static_cast<const std::int64_t*>(slots.data), slots.count);
    default:
      refuse("slots.type", slots.type, "must be RADIXMLP_INT32 or RADIXMLP_INT64");
  }
}

inline radixmlp::RowLists lists_of(const radixmlp_row_lists* from) {
  const radixmlp_row_lists& lists = *required("lists", from);
  if (lists.rows < 0 || lists.rows > radixmlp::max_rows) {
    refuse("lists.rows", lists.rows, "must be from 0 to", radixmlp::max_rows);
  }
  return {span_of("lists.offsets", lists.offsets, lists.rows + 1),
          span_of("lists.values", lists.values, lists.value_count)};
}

// sum(ragged, compact) with views of T.
template <class T, class Sum>
void sum_as(const radixmlp_row_copy& copy, const Sum& sum) {
  constexpr std::int64_t element = sizeof(T);
  const auto whole = [](const char* argument, std::int64_t value) {
    if (value % element != 0) {
      refuse(argument, value, "must be a multiple of the element's bytes,", element, 0);
    }
  };
  whole("source.data", static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(copy.source.data)));
  whole("target.data", static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(copy.target.data)));
  whole("source.width", copy.source.width);
  whole("source.stride", copy.source.stride);
  whole("target.stride", copy.target.stride);
  const radixmlp_source_rows& s = copy.source;
  const radixmlp_target_rows& t = copy.target;
  sum(radixmlp::RowView<const T>(static_cast<const T*>(s.data), s.rows, s.width / element, s.stride / element),
      radixmlp::RowView<T>(static_cast<T*>(t.data), t.rows, t.width / element, t.stride / element));
}

// The same for the type of a format. Bounds are checked in bytes first, as the caller gave them.
template <class Sum>
void with_format(std::int32_t format, const radixmlp::RowLists& lists, const radixmlp_row_copy* rows, const Sum& sum) {
  const radixmlp_row_copy& copy = *required("rows", rows);
  static_cast<void>(radixmlp::detail::checked_sum(lists, byte_copy(copy)));
  switch (format) {
    case RADIXMLP_FP32:
      return sum_as<float>(copy, sum);
    case RADIXMLP_FP16:
      return sum_as<radixmlp::Fp16>(copy, sum);
    case RADIXMLP_BF16:
      return sum_as<radixmlp::Bf16>(copy, sum);
    default:
      refuse("format", format, "must be RADIXMLP_FP32, RADIXMLP_FP16 or RADIXMLP_BF16");
  }
}

}  // namespace radixmlp_c
