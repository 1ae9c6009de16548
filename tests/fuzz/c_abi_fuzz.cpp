// SPDX-License-Identifier: MIT

// libFuzzer target: calls of the C ABI with arguments made of any bytes. Arrays are as long as their counts say, or
// absent; everything else may be anything: pointers null or misaligned, counts that do not fit each other, types,
// strides, struct sizes, choices. Every call must return a code and a message that go together, and an index that was
// built must be sound.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "radixmlp/c/radixmlp.h"

namespace {

[[noreturn]] void fail(const char* what, const radixmlp_status& status) {
  std::fprintf(stderr, "%s: code %d, argument '%s', message '%s'\n", what, status.code, status.argument,
               status.message);
  std::abort();
}

class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  std::uint8_t next() { return at_ == bytes_.size() ? std::uint8_t{0} : bytes_[at_++]; }
  bool one_in(int n) { return next() % n == n - 1; }

  // Small as a rule, and now and then any.
  std::int64_t number() {
    const std::uint8_t kind = next();
    if (kind < 240) {
      return kind % 16;
    }
    std::uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) {
      bits = bits << 8 | next();
    }
    return static_cast<std::int64_t>(bits >> (kind % 4 * 16));
  }

  // Memory of exactly so many bytes, from the input, at an odd address now and then: a sanitizer sees who leaves it.
  std::uint8_t* memory(std::size_t bytes) {
    const std::size_t off = one_in(16) ? 1 : 0;
    kept_.emplace_back(new std::uint8_t[bytes + off]);
    std::uint8_t* const begin = kept_.back().get() + off;
    std::generate(begin, begin + bytes, [this] { return static_cast<std::uint8_t>(next() % 8); });
    return begin;
  }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
  std::vector<std::unique_ptr<std::uint8_t[]>> kept_;
};

// A count around `expected`, and memory for as many elements, or a count that no memory goes with.
std::int64_t take(Bytes& bytes, std::int64_t expected, std::int64_t element, const void*& data) {
  const std::uint8_t kind = bytes.next() % 16;
  std::int64_t count = kind == 15 ? bytes.number() : kind == 14 ? expected + 1 : expected;
  data = nullptr;
  if (kind == 13) {
    count = 0;
  } else if (kind == 12) {
    return count;  // null
  } else if (count > 4096) {
    count = -count;  // nobody may read it
  }
  if (count > 0) {
    data = bytes.memory(static_cast<std::size_t>(count * element));
  }
  return count;
}

std::int64_t element_bytes(std::int32_t type) {
  constexpr std::int64_t bytes[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 16};
  return type >= 0 && type < 10 ? bytes[type] : 1;
}

// An array of one of two types, or of any type.
radixmlp_array array(Bytes& bytes, std::int64_t expected, std::int32_t type, std::int32_t other) {
  radixmlp_array array{};
  const std::uint8_t kind = bytes.next() % 16;
  array.type = kind == 15 ? static_cast<std::int32_t>(bytes.number()) : kind < 8 ? type : other;
  array.count = take(bytes, expected, element_bytes(array.type), array.data);
  return array;
}

radixmlp_int32s int32s(Bytes& bytes, std::int64_t expected) {
  const void* data = nullptr;
  const std::int64_t count = take(bytes, expected, 4, data);
  return {static_cast<const std::int32_t*>(data), count};
}

template <class T>
void set_size(Bytes& bytes, T& value) {
  value.size = bytes.one_in(64) ? static_cast<std::size_t>(bytes.number()) : sizeof value;
  value.size = value.size > sizeof value ? sizeof value + 5000 : value.size;  // what lies behind is not ours
}

// Code and status go together.
std::int32_t check(const char* call, std::int32_t code, const radixmlp_status& status) {
  const std::string message(status.message, strnlen(status.message, sizeof status.message));
  const bool ended = message.size() < sizeof status.message &&
                     strnlen(status.argument, sizeof status.argument) < sizeof status.argument;
  const bool known = code >= RADIXMLP_OK && code <= RADIXMLP_INVALID_ARGUMENT && code != RADIXMLP_CUDA_ERROR;
  const bool agrees = code == RADIXMLP_OK ? message == "radixmlp: ok"
                                          : message.rfind("radixmlp: ", 0) == 0 && message != "radixmlp: ok" &&
                                                message.find(status.argument) != std::string::npos &&
                                                message.find(std::to_string(status.value)) != std::string::npos;
  if (code != status.code || !ended || !known || !agrees) {
    fail(call, status);
  }
  return code;
}

// The radixmlp_status of a call is its last argument.
#define CALL(function, ...)                                          \
  [&] {                                                              \
    radixmlp_status status;                                          \
    std::memset(&status, 0x55, sizeof status);                       \
    return check(#function, function(__VA_ARGS__, &status), status); \
  }()

radixmlp_batch read_batch(Bytes& bytes) {
  radixmlp_batch batch{};
  set_size(bytes, batch);
  const std::int64_t sequences = bytes.next() % 12;
  std::vector<std::int32_t> cu{0};
  for (std::int64_t s = 0; s < sequences; ++s) {
    cu.push_back(cu.back() + bytes.next() % 9);
  }
  const std::int64_t rows = cu.back();
  if (bytes.one_in(8)) {
    cu[bytes.next() % cu.size()] += static_cast<std::int8_t>(bytes.next());
  }
  batch.cu_seqlens = int32s(bytes, sequences + 1);
  if (batch.cu_seqlens.count == sequences + 1 && batch.cu_seqlens.data != nullptr) {
    std::memcpy(const_cast<std::int32_t*>(batch.cu_seqlens.data), cu.data(), cu.size() * sizeof cu[0]);
  }
  const std::uint8_t attributes = bytes.next();
  batch.tokens = array(bytes, rows, RADIXMLP_INT32, RADIXMLP_INT64);
  if ((attributes & 1) != 0) {
    const std::int32_t axes = 1 + bytes.next() % 3;
    batch.positions = array(bytes, rows * axes, RADIXMLP_INT32, 1 + bytes.next() % 8);
    batch.position_axes = axes;
    batch.position_token_stride = axes;
    batch.position_axis_stride = 1;
    if (bytes.one_in(8)) {
      batch.position_axes = static_cast<std::int32_t>(bytes.number());
      batch.position_token_stride = bytes.number();
      batch.position_axis_stride = bytes.number();
    }
  }
  if ((attributes & 2) != 0) {
    batch.token_keys = array(bytes, rows, RADIXMLP_UINT64, RADIXMLP_KEY128);
  }
  if ((attributes & 4) != 0) {
    batch.sequence_keys = array(bytes, sequences, RADIXMLP_UINT64, RADIXMLP_KEY128);
  }
  if ((attributes & 8) != 0) {
    batch.past_lengths = int32s(bytes, sequences);
    for (std::int64_t s = 0; s < batch.past_lengths.count && batch.past_lengths.data != nullptr; ++s) {
      std::int32_t past = 0;
      std::memcpy(&past, batch.past_lengths.data + s, sizeof past);
      past = past % 16 - (bytes.one_in(32) ? 20 : 0);
      std::memcpy(const_cast<std::int32_t*>(batch.past_lengths.data + s), &past, sizeof past);
    }
  }
  if ((attributes & 16) != 0) {
    batch.opt_out.count = take(bytes, sequences, 1, batch.opt_out.data);
  }
  return batch;
}

// What every index must be, whatever the batch.
bool sound(const radixmlp_index& index) {
  if (index.compact_rows > index.ragged_rows || index.padded_rows < index.compact_rows ||
      index.compact_cu[index.sequences] != index.compact_rows ||
      index.ragged_cu[index.sequences] != index.ragged_rows) {
    return false;
  }
  for (std::int32_t j = 0; j < index.compact_rows; ++j) {
    if (index.scatter[index.gather[j]] != j || index.parent[j] >= j || index.parent[j] < -1) {
      return false;
    }
  }
  return true;
}

void use_index(Bytes& bytes, const radixmlp_batch& batch, const radixmlp_index& index) {
  const std::int64_t rows = index.ragged_rows;
  const std::int64_t room = bytes.one_in(4) ? bytes.next() : 4 * rows + 4 * index.padded_rows + 64;
  auto* const memory = reinterpret_cast<std::int32_t*>(bytes.memory(static_cast<std::size_t>(room) * 4));
  std::int64_t entries = 0;
  radixmlp_row_lists lists{};
  CALL(radixmlp_compact_tokens, &batch, &index, memory, batch.tokens.type == RADIXMLP_INT64 ? room / 2 : room);
  CALL(radixmlp_compact_positions, &batch, &index, memory, room);
  CALL(radixmlp_row_lists_entries, &index, &entries);
  CALL(radixmlp_row_sequences, &index, memory, room, &lists);
  CALL(radixmlp_multiplicities, &index, memory, room);
  CALL(radixmlp_pooled_rows, &index, static_cast<std::int32_t>(bytes.number()), bytes.next() % 3, memory, room);
  CALL(radixmlp_compact_rows_of, &index, int32s(bytes, rows), memory, room);
  radixmlp_stats stats{};
  set_size(bytes, stats);
  CALL(radixmlp_index_stats, &index, batch.past_lengths, &stats);
  radixmlp_decision decision{};
  CALL(radixmlp_decide, &index, static_cast<double>(bytes.number()) / 8, static_cast<std::int32_t>(bytes.number()),
       bytes.next() % 4 - 1, &decision);
  radixmlp_tree_mask mask{};
  CALL(radixmlp_make_tree_mask, &index, memory, room, &mask);
  CALL(radixmlp_inverse_of, int32s(bytes, rows), static_cast<std::int32_t>(bytes.number() % 4096), memory, room,
       &lists);

  // Plans: every option, with caches that fit or do not.
  radixmlp_plan_options options{};
  set_size(bytes, options);
  const std::uint8_t given = bytes.next();
  options.partition = given % 2 + (bytes.one_in(32) ? 2 : 0);
  options.keep_empty = given & 2;
  options.query_tile = static_cast<std::int32_t>(bytes.number());
  options.window = static_cast<std::int32_t>(bytes.number());
  options.past_page_size = static_cast<std::int32_t>(bytes.number());
  if ((given & 4) != 0) {
    options.past_lengths = batch.past_lengths;
  }
  if ((given & 8) != 0) {
    options.slots = int32s(bytes, index.compact_rows);
  }
  if ((given & 16) != 0) {
    options.past_page_indptr = int32s(bytes, index.sequences + 1);
    options.past_pages = int32s(bytes, bytes.next() % 32);
  }
  radixmlp_plan plan{};
  set_size(bytes, plan);
  if (CALL(radixmlp_plan_entries, &index, &options, &entries) == RADIXMLP_OK && entries < (1 << 20)) {
    const std::int64_t short_by = bytes.one_in(8) ? 1 : 0;
    auto* const plan_memory = reinterpret_cast<std::int32_t*>(bytes.memory(static_cast<std::size_t>(entries) * 4));
    if (CALL(radixmlp_make_plan, &index, &options, plan_memory, entries - short_by, &plan) == RADIXMLP_OK) {
      CALL(radixmlp_page_table_entries, &plan, &entries);
      radixmlp_page_table table{};
      CALL(radixmlp_make_page_table, &plan, bytes.number(), memory, room, &table);
      radixmlp_plan moved{};
      set_size(bytes, moved);
      CALL(radixmlp_plan_relocated, &plan, plan.block == nullptr ? memory : plan.block, &index, &index, &moved);
    }
  }

  // Rows: shapes around those that fit.
  std::array<radixmlp_row_copy, RADIXMLP_MAX_TENSORS> copies{};
  const auto count = static_cast<std::int32_t>(bytes.next() % 10);
  const auto shape = [&](std::int64_t fitting, std::int64_t width) {
    radixmlp_target_rows view{};
    view.rows = bytes.one_in(16) ? bytes.number() : fitting;
    view.width = bytes.one_in(16) ? bytes.number() : width;
    view.stride = bytes.one_in(16) ? bytes.number() : view.width + bytes.next() % 3;
    // As large as the shape says, or absent: counts that lie, lie below what is there.
    const bool huge =
        view.rows < 0 || view.rows > 4096 || view.width < 0 || view.width > 64 || view.stride < 0 || view.stride > 80;
    view.data = huge || bytes.one_in(16) ? nullptr
                                         : bytes.memory(static_cast<std::size_t>(view.rows * view.stride + view.width));
    return view;
  };
  for (radixmlp_row_copy& copy : copies) {
    const std::int64_t width = bytes.next() % 24;
    const radixmlp_target_rows source = shape(std::max<std::int64_t>(rows, index.padded_rows), width);
    copy = {{source.data, source.rows, source.width, source.stride},
            shape(std::max<std::int64_t>(rows, index.padded_rows), width)};
  }
  CALL(radixmlp_gather_rows, &index, copies.data(), count, nullptr);
  CALL(radixmlp_scatter_rows, &index, copies.data(), count, nullptr);
  const radixmlp_array slots = array(bytes, rows, RADIXMLP_INT32, RADIXMLP_INT64);
  CALL(radixmlp_scatter_to_slots, &index, slots, copies.data(), count, nullptr);
  CALL(radixmlp_check_slots, &index, slots, bytes.number(), memory, room);
  const radixmlp_executor executor{nullptr,
                                   [](void*, std::int64_t n, void (*task)(void*, std::int64_t), void* context) {
                                     for (std::int64_t i = n; i-- > 0;) {
                                       task(context, i);
                                     }
                                   }};
  if (CALL(radixmlp_duplicates, &index, memory, room, &lists) == RADIXMLP_OK) {
    CALL(radixmlp_sum_duplicates, &lists, bytes.next() % 4, copies.data(), bytes.one_in(2) ? &executor : nullptr);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static radixmlp_trie* trie = nullptr;  // what an earlier batch left must not show
  static radixmlp_sequence_keys* keys = nullptr;
  if (trie == nullptr && (radixmlp_trie_create(&trie, nullptr) != RADIXMLP_OK ||
                          radixmlp_sequence_keys_create(&keys, nullptr) != RADIXMLP_OK)) {
    std::abort();
  }
  Bytes bytes({data, size});
  const radixmlp_batch batch = read_batch(bytes);
  radixmlp_build_options options{};
  set_size(bytes, options);
  options.pad_to = static_cast<std::int32_t>(bytes.number());
  if (options.pad_to > 4096) {
    options.pad_to = 4096;  // more is allowed, and is gigabytes
  }
  alignas(RADIXMLP_INDEX_ALIGNMENT) static std::byte memory[65536];
  if (bytes.one_in(2)) {
    options.memory = memory + (bytes.one_in(8) ? bytes.next() : 0);
    options.memory_bytes = std::min<std::int64_t>(bytes.one_in(4) ? bytes.number() : 65536, 65536 - 256);
  }
  std::int64_t entries = 0;
  CALL(radixmlp_index_bytes, bytes.number(), bytes.number(), static_cast<std::int32_t>(bytes.number()), &entries);
  radixmlp_identity identity{};
  set_size(bytes, identity);
  for (radixmlp_bytes* field : {&identity.adapter, &identity.adapter_version, &identity.tenant, &identity.other}) {
    field->count = take(bytes, bytes.next() % 8, 1, field->data);
  }
  std::uint64_t key = 0;
  CALL(radixmlp_sequence_key, keys, &identity, &key);
  if (bytes.one_in(64)) {
    CALL(radixmlp_sequence_keys_clear, keys);
  }

  radixmlp_index index{};
  set_size(bytes, index);
  if (CALL(radixmlp_build, bytes.one_in(64) ? nullptr : trie, &batch, bytes.one_in(4) ? nullptr : &options, &index) ==
      RADIXMLP_OK) {
    if (!sound(index)) {
      std::fprintf(stderr, "an index is not sound\n");
      std::abort();
    }
    use_index(bytes, batch, index);
    // The same with one count of the index changed: sizes and pointers are checked, whatever the contents.
    radixmlp_index broken = index;
    std::int32_t* const counts[] = {&broken.ragged_rows, &broken.compact_rows, &broken.padded_rows, &broken.sequences};
    *counts[bytes.next() % 4] = -1 - bytes.next();
    CALL(radixmlp_row_lists_entries, &broken, &entries);
    broken = index;
    const std::int32_t** const maps[] = {&broken.gather, &broken.scatter, &broken.compact_cu, &broken.ragged_cu};
    *maps[bytes.next() % 4] =
        bytes.one_in(2)
            ? nullptr
            : reinterpret_cast<const std::int32_t*>(reinterpret_cast<const std::uint8_t*>(index.gather) + 2);
    radixmlp_index moved{};
    set_size(bytes, moved);
    CALL(radixmlp_index_relocated, &broken, memory, &moved);
    CALL(radixmlp_plan_entries, &broken, nullptr, &entries);
    CALL(radixmlp_gather_rows, &broken, nullptr, 0, nullptr);
  }
  return 0;
}
