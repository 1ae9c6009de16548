// SPDX-License-Identifier: MIT
#pragma once

// The test body of maps, slots, runs, multicast and sums: host_row_ops_test.cpp and device_row_ops_test.cu define
// Backend and include it. Cases named "bug class" are what users of other kernels have reported.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "rows/rows_support.hpp"

namespace {

using radixmlp::Bounds;
using radixmlp::Caching;
using radixmlp::RowMap;
using radixmlp::RowOptions;

// Source row that a map entry means under a policy; -1 = zeros.
std::int64_t meant(Bounds bounds, std::int64_t entry, std::int64_t source_rows) {
  if (bounds == Bounds::clamp) {
    return entry < 0 ? std::min<std::int64_t>(source_rows - 1, 0) : std::min(entry, source_rows - 1);
  }
  return entry < 0 || entry >= source_rows ? -1 : entry;
}

// Moves random rows of `row_bytes` along a map with `options`, and compares the whole target allocation with a loop.
template <RowOptions options>
void check_map(const std::vector<std::int32_t>& map, std::int64_t count, std::int64_t source_rows,
               std::int64_t target_rows, std::int64_t row_bytes, bool with_count) {
  CAPTURE(map.size(), count, source_rows, target_rows, row_bytes, with_count);
  const auto source = random_values<std::int8_t>(static_cast<std::size_t>(source_rows * row_bytes), 1);
  auto expected = random_values<std::int8_t>(static_cast<std::size_t>((target_rows + 1) * row_bytes), 2);
  Backend backend;
  typename Backend::template Array<std::int8_t> source_there(source), target_there(expected);
  typename Backend::template Array<std::int32_t> map_there(map),
      count_there(std::vector{static_cast<std::int32_t>(count)});
  const bool fits = count >= 0 && count <= static_cast<std::int64_t>(map.size());
  for (std::int64_t i = 0; fits && i < target_rows; ++i) {
    const std::int64_t row = i < count ? meant(options.bounds, map[static_cast<std::size_t>(i)], source_rows) : -1;
    for (std::int64_t c = 0; c < row_bytes; ++c) {
      expected[static_cast<std::size_t>(i * row_bytes + c)] =
          row < 0 ? std::int8_t{0} : source[static_cast<std::size_t>(row * row_bytes + c)];
    }
  }
  map_rows<options>(backend.where(),
                    RowMap{.map = {map_there.data(), with_count ? map.size() : static_cast<std::size_t>(count)},
                           .source_rows = source_rows,
                           .target_rows = target_rows,
                           .count = with_count ? count_there.data() : nullptr},
                    RowCopy{RowView<const std::int8_t>(source_there.data(), source_rows, row_bytes),
                            RowView<std::int8_t>(target_there.data(), target_rows, row_bytes)});
  backend.synchronize();
  REQUIRE(same_bytes(target_there.download(), expected));
}

// Row widths of every vector and every share of threads.
inline std::vector<std::int64_t> row_widths() {
  return {1, 2, 3, 4, 12, 16, 24, 32, 40, 128, 200, 400, 416, 1152, 2049, 4096};
}

inline std::vector<std::int32_t> map_with(std::int64_t entries, std::int64_t source_rows,
                                          const std::vector<std::int32_t>& others) {
  std::vector<std::int32_t> map;
  for (std::int64_t i = 0; i < entries; ++i) {
    map.push_back(!others.empty() && i % 7 == 3 ? others[static_cast<std::size_t>(i / 7) % others.size()]
                                                : static_cast<std::int32_t>(i * 5 % source_rows));
  }
  return map;
}

}  // namespace

TEST_CASE("map_rows: every width, padding behind the map, a count that lies with the rows") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr RowOptions options{};
  constexpr std::int64_t source_rows = 23;
  const auto map = map_with(150, source_rows, {});
  for (const std::int64_t width : row_widths()) {
    check_map<options>(map, 150, source_rows, 150, width, false);
    check_map<options>(map, 150, source_rows, 163, width, true);
    check_map<options>(map, 67, source_rows, 150, width, true);
  }
  check_map<options>(map, 0, source_rows, 150, 64, true);
}

TEST_CASE("a count that does not fit its capacity: nothing is written") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr RowOptions options{};
  check_map<options>(map_with(40, 9, {}), 41, 9, 50, 96, true);
  check_map<options>(map_with(40, 9, {}), -1, 9, 50, 96, true);
  check_map<options>({}, 1, 9, 50, 96, true);
}

TEST_CASE("bug class 6: sentinels -1 and N, and entries far outside, are zero or clamped as asked") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr RowOptions zero{.bounds = Bounds::zero};
  constexpr RowOptions clamp{.bounds = Bounds::clamp};
  constexpr std::int64_t source_rows = 23;
  const std::vector<std::int32_t> outside{-1, source_rows, INT32_MAX, INT32_MIN};
  for (const std::int64_t width : {2, 16, 100, 128, 400, 1152, 2304}) {
    for (const std::int64_t entries : {0, 1, 33, 150}) {
      const auto map = map_with(entries, source_rows, outside);
      check_map<zero>(map, entries, source_rows, entries, width, false);
      check_map<clamp>(map, entries, source_rows, entries + 3, width, false);
      // Without any source row, every row is zero.
      check_map<zero>(std::vector<std::int32_t>(static_cast<std::size_t>(entries), 0), entries, 0, entries, width,
                      false);
      check_map<clamp>(std::vector<std::int32_t>(static_cast<std::size_t>(entries), 0), entries, 0, entries, width,
                       false);
    }
  }
}

TEST_CASE("streaming stores move the same bytes") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr RowOptions streaming{.caching = Caching::streaming};
  for (const std::int64_t width : row_widths()) {
    check_map<streaming>(map_with(70, 23, {}), 70, 23, 75, width, false);
  }
}

TEST_CASE("programmatic launches move the same bytes") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr RowOptions programmatic{.order = radixmlp::LaunchOrder::programmatic};
  for (const std::int64_t width : row_widths()) {
    check_map<programmatic>(map_with(70, 23, {}), 70, 23, 75, width, true);
  }
}

// What only a GPU can get wrong: each launch may start before the one whose rows it reads, or still reads, has ended.
TEST_CASE("programmatic launches wait for each other") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr RowOptions programmatic{.order = radixmlp::LaunchOrder::programmatic};
  constexpr std::int64_t rows = 2'000;
  constexpr std::int64_t width = 100;
  constexpr std::int64_t prime = 1'993;  // shares no factor with `rows`
  std::vector<std::int32_t> map(rows);
  for (std::int64_t i = 0; i < rows; ++i) {
    map[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * prime % rows);
  }
  auto expected = random_values<Fp32>(rows * width, 1);
  Backend backend;
  typename Backend::template Array<Fp32> here(expected), there(expected);
  typename Backend::template Array<std::int32_t> map_there(map);
  const RowMap moves{.map = {map_there.data(), map.size()}, .source_rows = rows, .target_rows = rows};
  for (int turn = 0; turn < 4; ++turn) {
    map_rows<programmatic>(
        backend.where(), moves,
        RowCopy{RowView<const Fp32>(here.data(), rows, width), RowView<Fp32>(there.data(), rows, width)});
    map_rows<programmatic>(
        backend.where(), moves,
        RowCopy{RowView<const Fp32>(there.data(), rows, width), RowView<Fp32>(here.data(), rows, width)});
  }
  backend.synchronize();
  for (int move = 0; move < 8; ++move) {
    const std::vector<Fp32> before = expected;
    for (std::size_t i = 0; i < map.size(); ++i) {
      std::copy_n(before.begin() + map[i] * width, width, expected.begin() + static_cast<std::ptrdiff_t>(i) * width);
    }
  }
  CHECK(same_bytes(here.download(), expected));
}

TEST_CASE("maps that do not fit are refused by name, number and value before any row is written") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  Backend backend;
  const auto values = random_values<Fp32>(64, 1);
  typename Backend::template Array<Fp32> source(values), target(values);
  typename Backend::template Array<std::int32_t> map(std::vector<std::int32_t>(8));
  const auto call = [&](std::int64_t source_rows, std::int64_t target_rows) {
    map_rows(backend.where(), RowMap{{map.data(), 8}, source_rows, target_rows},
             RowCopy{RowView<const Fp32>(source.data(), 8, 8), RowView<Fp32>(target.data(), 8, 8)});
  };
  check_refused<InvalidRows>("map.target_rows", -1, 7, [&] { call(8, 7); });
  check_refused<InvalidRows>("map.target_rows", -1, std::int64_t{1} << 31, [&] { call(8, std::int64_t{1} << 31); });
  check_refused<InvalidRows>("map.source_rows", -1, -1, [&] { call(-1, 8); });
  check_refused<InvalidRows>("source.rows", 0, 8, [&] { call(9, 8); });
  check_refused<InvalidRows>("target.rows", 0, 8, [&] { call(8, 9); });
  backend.synchronize();
  CHECK(same_bytes(target.download(), values));
}

namespace {

// Scatters into a cache of K and of V, and compares both caches, also the rows that no slot names, with a loop.
template <RowOptions options, class Slot>
void check_slots_call(const std::vector<Slot>& slots, std::int64_t cache_rows, std::int64_t k_width,
                      std::int64_t v_width) {
  const Maps maps(sharing_spec());
  const typename Backend::Index index(maps.host);
  const std::int64_t n = maps.ragged_rows, compact = maps.expected.compact_rows;
  CAPTURE(cache_rows, k_width, v_width);
  REQUIRE(static_cast<std::int64_t>(slots.size()) == n);
  const auto k = random_values<Fp16>(static_cast<std::size_t>(compact * k_width), 1);
  const auto v = random_values<std::int8_t>(static_cast<std::size_t>(compact * v_width), 2);
  // Row strides of the caches are larger than their rows.
  auto k_cache = random_values<Fp16>(static_cast<std::size_t>(cache_rows * (k_width + 8)), 3);
  auto v_cache = random_values<std::int8_t>(static_cast<std::size_t>(cache_rows * (v_width + 1)), 4);
  Backend backend;
  typename Backend::template Array<Fp16> k_there(k), k_cache_there(k_cache);
  typename Backend::template Array<std::int8_t> v_there(v), v_cache_there(v_cache);
  typename Backend::template Array<Slot> slots_there(slots);
  scatter_to_slots<options>(backend.where(), index.view(), std::span<const Slot>(slots_there.data(), slots.size()),
                            RowCopy{RowView<const Fp16>(k_there.data(), compact, k_width),
                                    RowView<Fp16>(k_cache_there.data(), cache_rows, k_width, k_width + 8)},
                            RowCopy{RowView<const std::int8_t>(v_there.data(), compact, v_width),
                                    RowView<std::int8_t>(v_cache_there.data(), cache_rows, v_width, v_width + 1)});
  backend.synchronize();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const auto slot = static_cast<std::int64_t>(slots[i]);
    if (slot >= 0 && slot < cache_rows) {
      const std::int64_t row = maps.expected.scatter[i];
      std::copy_n(k.begin() + row * k_width, k_width, k_cache.begin() + slot * (k_width + 8));
      std::copy_n(v.begin() + row * v_width, v_width, v_cache.begin() + slot * (v_width + 1));
    }
  }
  CHECK(same_bytes(k_cache_there.download(), k_cache));
  CHECK(same_bytes(v_cache_there.download(), v_cache));
}

// A slot for every row, in no order; every `skip`-th row has none.
template <class Slot>
std::vector<Slot> some_slots(std::int64_t rows, std::int64_t cache_rows, std::int64_t skip) {
  std::vector<Slot> slots;
  for (std::int64_t i = 0; i < rows; ++i) {
    slots.push_back(static_cast<Slot>(i % skip == skip - 1 ? -1 - i : i * 37 % cache_rows));
  }
  return slots;
}

}  // namespace

TEST_CASE("scatter_to_slots: K and V of different widths, int32 and int64 slots, negative slots skipped") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr RowOptions options{};
  const std::int64_t n = Maps(sharing_spec()).ragged_rows;
  for (const std::int64_t skip : {1, 2, 5, 1000}) {
    check_slots_call<options>(some_slots<std::int32_t>(n, 101, skip), 101, 64, 64);
    check_slots_call<options>(some_slots<std::int64_t>(n, 101, skip), 101, 1024, 33);
  }
  check_slots_call<options>(some_slots<std::int64_t>(n, 101, 3), 101, 8, 4096);
}

namespace {

// Moves rows whose scatter names rows outside, and compares the cache with what the policy means.
template <RowOptions options>
void check_outside_slots() {
  constexpr std::int64_t width = 20, cache_rows = 101;
  const Maps maps(sharing_spec());
  const PrefixIndexView& named = maps.host.view();
  const std::span<std::int32_t> scatter(const_cast<std::int32_t*>(named.scatter.data()), named.scatter.size());
  const std::vector<std::int32_t> outside{-1, named.compact_rows, INT32_MAX, INT32_MIN};
  for (std::size_t i = 1; i < scatter.size(); i += 3) {
    scatter[i] = outside[i % outside.size()];
  }
  const typename Backend::Index index(named);
  const auto slots = some_slots<std::int32_t>(named.ragged_rows, cache_rows, 5);
  const auto compact = random_values<Fp32>(static_cast<std::size_t>(named.compact_rows * width), 1);
  auto expected = random_values<Fp32>(static_cast<std::size_t>(cache_rows * width), 2);
  Backend backend;
  typename Backend::template Array<Fp32> compact_there(compact), cache_there(expected);
  typename Backend::template Array<std::int32_t> slots_there(slots);
  scatter_to_slots<options>(backend.where(), index.view(),
                            std::span<const std::int32_t>(slots_there.data(), slots.size()),
                            RowCopy{RowView<const Fp32>(compact_there.data(), named.compact_rows, width),
                                    RowView<Fp32>(cache_there.data(), cache_rows, width)});
  backend.synchronize();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::int64_t row = meant(options.bounds, scatter[i], named.compact_rows);
    for (std::int64_t c = 0; slots[i] >= 0 && c < width; ++c) {
      expected[static_cast<std::size_t>(slots[i] * width + c)] =
          row < 0 ? Fp32{0} : compact[static_cast<std::size_t>(row * width + c)];
    }
  }
  CHECK(same_bytes(cache_there.download(), expected));
}

}  // namespace

TEST_CASE("scatter_to_slots: rows outside are zero or clamped as asked") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  check_outside_slots<RowOptions{.bounds = Bounds::zero}>();
  check_outside_slots<RowOptions{.bounds = Bounds::clamp}>();
}

TEST_CASE("scatter_to_slots of an index for a capacity writes the rows of its batch, or nothing") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr std::int64_t width = 24, cache_rows = 101;
  const Maps maps(sharing_spec());
  const PrefixIndexView& built = maps.host.view();
  const radixmlp::IndexCapacity capacity{built.ragged_rows + 9, built.compact_rows + 5, built.sequences() + 1};
  struct alignas(radixmlp::index_alignment) Chunk {
    std::byte bytes[radixmlp::index_alignment];
  };
  std::vector<Chunk> memory(radixmlp::index_bytes(capacity) / sizeof(Chunk));
  const PrefixIndexView staged = radixmlp::stage_index(
      built, capacity, {reinterpret_cast<std::byte*>(memory.data()), memory.size() * sizeof(Chunk)});
  const auto slots = some_slots<std::int32_t>(capacity.ragged_rows, cache_rows, 4);
  const auto compact = random_values<float>(static_cast<std::size_t>(capacity.compact_rows * width), 1);
  const auto cache = random_values<float>(static_cast<std::size_t>(cache_rows * width), 2);
  auto expected = cache;
  for (std::int64_t i = 0; i < built.ragged_rows; ++i) {
    const std::int32_t slot = slots[static_cast<std::size_t>(i)];
    if (slot >= 0) {
      std::copy_n(compact.begin() + built.scatter[static_cast<std::size_t>(i)] * width, width,
                  expected.begin() + slot * width);
    }
  }
  for (const bool fitted : {true, false}) {
    if (!fitted) {
      const_cast<radixmlp::IndexCounts*>(staged.counts)->ragged_rows = -1;
    }
    const typename Backend::Index index(staged);
    Backend backend;
    typename Backend::template Array<float> compact_there(compact), cache_there(cache);
    typename Backend::template Array<std::int32_t> slots_there(slots);
    scatter_to_slots(backend.where(), index.view(), std::span<const std::int32_t>(slots_there.data(), slots.size()),
                     RowCopy{RowView<const float>(compact_there.data(), capacity.compact_rows, width),
                             RowView<float>(cache_there.data(), cache_rows, width)});
    backend.synchronize();
    CHECK(same_bytes(cache_there.download(), fitted ? expected : cache));
  }
}

TEST_CASE("zero_rows_behind: rows from a count on, at any width, stride and alignment") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  struct Shape {
    std::int64_t offset, width, stride;
  };
  for (const auto& [offset, width, stride] :
       {Shape{0, 16, 16}, Shape{0, 1040, 1056}, Shape{16, 32, 40}, Shape{4, 16, 16}, Shape{0, 7, 9}, Shape{0, 0, 3}}) {
    for (const std::int32_t count : {-1, 0, 5, 13, 14}) {
      CAPTURE(offset, width, stride, count);
      auto expected = random_values<std::int8_t>(static_cast<std::size_t>(offset + 14 * stride), 1);
      Backend backend;
      typename Backend::template Array<std::int8_t> rows(expected);
      typename Backend::template Array<std::int32_t> count_there(std::vector{count});
      zero_rows_behind(backend.where(), count_there.data(),
                       RowView<std::int8_t>(rows.data() + offset, 13, width, stride));
      backend.synchronize();
      for (std::int64_t i = count; count >= 0 && i < 13; ++i) {
        std::fill_n(expected.begin() + offset + i * stride, width, std::int8_t{0});
      }
      CHECK(same_bytes(rows.download(), expected));
    }
  }
}

TEST_CASE("bug class 6: slots at and beyond the end of the cache are left out where bounds are asked for") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr RowOptions options{.bounds = Bounds::zero};
  const std::int64_t n = Maps(sharing_spec()).ragged_rows;
  auto slots = some_slots<std::int64_t>(n, 101, 4);
  slots[0] = 101;
  slots[1] = std::int64_t{1} << 40;
  slots[9] = INT64_MIN;
  check_slots_call<options>(slots, 101, 64, 16);
}

TEST_CASE("bug class 8: two rows in one slot are copies of one compact row, or check_slots names them") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  std::vector<std::int64_t> slots(maps.expected.scatter.begin(), maps.expected.scatter.end());
  constexpr RowOptions options{};
  check_slots_call<options>(slots, maps.expected.compact_rows, 64, 5);  // every duplicate in its compact row's slot
  std::vector<std::int32_t> memory(200);
  const radixmlp::PrefixIndexView index = maps.host.view();
  CHECK_NOTHROW(radixmlp::check_slots(index, slots, maps.expected.compact_rows, memory));
  const auto last = static_cast<std::int64_t>(slots.size()) - 1;
  slots.back() = slots.front();
  check_refused<InvalidRows>("slots", last, slots.front(), [&] { radixmlp::check_slots(index, slots, 200, memory); });
  slots.back() = 200;
  check_refused<InvalidRows>("slots", last, 200, [&] { radixmlp::check_slots(index, slots, 200, memory); });
  slots.back() = -5;
  CHECK_NOTHROW(radixmlp::check_slots(index, slots, 200, memory));
  check_refused<InvalidRows>("memory", -1, 200, [&] { radixmlp::check_slots(index, slots, 201, memory); });
}

TEST_CASE("slots and caches that do not fit are refused") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  const typename Backend::Index index(maps.host);
  const std::int64_t n = maps.ragged_rows, compact = maps.expected.compact_rows;
  Backend backend;
  typename Backend::template Array<Fp32> rows(std::vector<Fp32>(static_cast<std::size_t>(n * 8)));
  typename Backend::template Array<Fp32> cache(std::vector<Fp32>(static_cast<std::size_t>(n * 8)));
  typename Backend::template Array<std::int32_t> slots(std::vector<std::int32_t>(static_cast<std::size_t>(n), -1));
  const auto call = [&](std::int64_t slot_count, std::int64_t source_rows, std::int64_t cache_rows, Fp32* to) {
    scatter_to_slots(backend.where(), index.view(),
                     std::span<const std::int32_t>(slots.data(), static_cast<std::size_t>(slot_count)),
                     RowCopy{RowView<const Fp32>(rows.data(), source_rows, 8), RowView<Fp32>(to, cache_rows, 8)});
  };
  check_refused<InvalidRows>("slots", -1, n - 1, [&] { call(n - 1, compact, n, cache.data()); });
  check_refused<InvalidRows>("source.rows", 0, compact - 1, [&] { call(n, compact - 1, n, cache.data()); });
  check_refused<InvalidRows>("target.rows", 0, -1, [&] { call(n, compact, -1, cache.data()); });
  check_refused<InvalidRows>("target.data", 0, reinterpret_cast<std::intptr_t>(rows.data() + 8),
                             [&] { call(n, compact, n, rows.data() + 8); });
  call(n, compact, n, cache.data());  // all negative
  backend.synchronize();
}
