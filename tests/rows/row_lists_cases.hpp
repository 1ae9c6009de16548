// SPDX-License-Identifier: MIT
#pragma once

// The test body of runs, multicast and sums: host_row_lists_test.cpp and device_row_lists_test.cu define Backend and
// include it.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "rows/rows_support.hpp"

namespace {

using radixmlp::RowLists;
using radixmlp::RowMap;
using radixmlp::RowRun;
using radixmlp::RowRuns;

// Copies a map's runs, of rows at any stride and offset, and compares the whole target with a loop over the map.
void check_runs_of(const RowMap& map, Shape from, Shape to) {
  CAPTURE(from.width, from.stride, from.offset, to.stride, to.offset);
  const auto entries = static_cast<std::int64_t>(map.map.size());
  std::vector<RowRun> runs(static_cast<std::size_t>(radixmlp::count_runs(map.map)));
  REQUIRE(radixmlp::make_runs(map, runs).runs.size() == runs.size());
  const auto source =
      random_values<std::int8_t>(static_cast<std::size_t>(from.offset + map.source_rows * from.stride + from.width), 1);
  auto expected =
      random_values<std::int8_t>(static_cast<std::size_t>(to.offset + map.target_rows * to.stride + to.width), 2);
  Backend backend;
  typename Backend::template Array<std::int8_t> source_there(source), target_there(expected);
  typename Backend::template Array<RowRun> runs_there(runs);
  copy_runs(
      backend.where(), RowRuns{{runs_there.data(), runs.size()}, map.source_rows, map.target_rows},
      RowCopy{RowView<const std::int8_t>(source_there.data() + from.offset, map.source_rows, from.width, from.stride),
              RowView<std::int8_t>(target_there.data() + to.offset, map.target_rows, to.width, to.stride)});
  backend.synchronize();
  for (std::int64_t i = 0; i < entries; ++i) {
    std::copy_n(source.begin() + from.offset + map.map[static_cast<std::size_t>(i)] * from.stride, from.width,
                expected.begin() + to.offset + i * to.stride);
  }
  REQUIRE(same_bytes(target_there.download(), expected));
}

// Lists in which each of the values' rows is once, in no order.
struct TestLists {
  explicit TestLists(const std::vector<std::int32_t>& sizes) {
    offsets.push_back(0);
    for (const std::int32_t size : sizes) {
      offsets.push_back(offsets.back() + size);
    }
    values.resize(static_cast<std::size_t>(offsets.back()));
    std::iota(values.begin(), values.end(), 0);
    std::shuffle(values.begin(), values.end(), std::mt19937_64(3));
  }
  std::vector<std::int32_t> offsets, values;
};

struct ListsThere {
  explicit ListsThere(const TestLists& lists)
      : offsets(lists.offsets),
        values(lists.values),
        view{{offsets.data(), lists.offsets.size()}, {values.data(), lists.values.size()}} {}
  typename Backend::template Array<std::int32_t> offsets, values;
  RowLists view;
};

void check_multicast(const TestLists& lists, std::int64_t row_bytes, std::int64_t offset) {
  const std::size_t rows = lists.offsets.size() - 1;
  CAPTURE(rows, lists.values.size(), row_bytes, offset);
  const auto bytes = static_cast<std::size_t>(row_bytes);
  const auto source = random_values<std::int8_t>(rows * bytes + 16, 1);
  auto expected = random_values<std::int8_t>(lists.values.size() * (bytes + 32) + 16, 2);
  Backend backend;
  const auto targets = static_cast<std::int64_t>(lists.values.size());
  typename Backend::template Array<std::int8_t> source_there(source), target_there(expected);
  ListsThere there(lists);
  multicast_rows(
      backend.where(), there.view,
      RowCopy{RowView<const std::int8_t>(source_there.data() + offset, static_cast<std::int64_t>(rows), row_bytes),
              RowView<std::int8_t>(target_there.data(), targets, row_bytes, row_bytes + 32)});
  backend.synchronize();
  for (std::size_t j = 0; j < rows; ++j) {
    for (std::int32_t v = lists.offsets[j]; v < lists.offsets[j + 1]; ++v) {
      std::copy_n(source.begin() + offset + static_cast<std::int64_t>(j) * row_bytes, row_bytes,
                  expected.begin() + lists.values[static_cast<std::size_t>(v)] * (row_bytes + 32));
    }
  }
  REQUIRE(same_bytes(target_there.download(), expected));
}

const std::vector<std::int32_t>& mixed_sizes() {
  static const std::vector<std::int32_t> sizes{1, 0, 3, 63, 64, 65, 0, 0, 200, 1, 128, 129, 2, 64, 64, 1, 0};
  return sizes;
}

}  // namespace

TEST_CASE("copy_runs: trie maps, at any width and alignment, is what the map says") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  const RowMap gather = radixmlp::gather_map(maps.host.view());
  const RowMap scatter = radixmlp::scatter_map(maps.host.view());
  for (const std::int64_t width : {1, 15, 16, 64, 1154}) {
    for (const std::int64_t offset : {0, 1, 2, 4}) {
      check_runs_of(gather, {width, width, 0}, {width, width, offset});
      check_runs_of(scatter, {width, width, offset}, {width, width, 0});
    }
  }
  check_runs_of(scatter, {48, 64, 3}, {48, 80, 5});
  check_runs_of(scatter, {40000, 40000, 0}, {40000, 40000, 0});  // beyond a tile
}

TEST_CASE("copy_runs leaves rows between runs alone, and takes runs of many tiles") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const std::vector<RowRun> runs{{5, 2, 0},     {9, 4, 30},   {0, 40, 1},
                                 {1, 100, 900}, {3, 1500, 7}, {6, 1602, 1}};  // the last below a vector
  const auto source = random_values<Fp32>(2000, 1);
  auto expected = random_values<Fp32>(2000, 2);
  Backend backend;
  typename Backend::template Array<Fp32> source_there(source), target_there(expected);
  typename Backend::template Array<RowRun> runs_there(runs);
  const RowRuns there{{runs_there.data(), runs.size()}, 2000, 2000};
  CHECK_NOTHROW(radixmlp::check_runs({runs, 2000, 2000}));
  copy_runs(backend.where(), there,
            RowCopy{RowView<const Fp32>(source_there.data(), 2000, 1), RowView<Fp32>(target_there.data(), 2000, 1)});
  copy_runs(backend.where(), RowRuns{{}, 2000, 2000},
            RowCopy{RowView<const Fp32>(source_there.data(), 2000, 1), RowView<Fp32>(target_there.data(), 2000, 1)});
  backend.synchronize();
  for (const RowRun& run : runs) {
    std::copy_n(source.begin() + run.source, run.rows, expected.begin() + run.target);
  }
  CHECK(same_bytes(target_there.download(), expected));
}

TEST_CASE("runs that do not fit are named") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const auto check = [](const std::vector<RowRun>& runs) { radixmlp::check_runs({runs, 10, 20}); };
  check_refused<InvalidRows>("runs.source", 1, 8, [&] { check({{0, 0, 2}, {8, 2, 3}}); });
  check_refused<InvalidRows>("runs.source", 0, -1, [&] { check({{-1, 0, 2}}); });
  check_refused<InvalidRows>("runs.target", 1, 1, [&] { check({{0, 0, 2}, {8, 1, 1}}); });
  check_refused<InvalidRows>("runs.target", 0, 18, [&] { check({{0, 18, 3}}); });
  check_refused<InvalidRows>("runs.rows", 0, -1, [&] { check({{0, 0, -1}}); });
  const std::vector<std::int32_t> map{4, 5, 6, 0, 1, 1};
  std::vector<RowRun> memory(2);
  CHECK(radixmlp::count_runs(map) == 3);
  check_refused<radixmlp::InvalidBatch>("memory", -1, 2, [&] {
    static_cast<void>(radixmlp::make_runs({map, 7, 6}, memory));
  });
}

TEST_CASE("multicast_rows: lists of every length, rows of every width") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  for (const std::int64_t row_bytes : {1, 12, 24, 32, 160, 2064}) {
    check_multicast(TestLists(mixed_sizes()), row_bytes, 0);
  }
  for (const std::int64_t offset : {1, 2, 4, 8}) {
    check_multicast(TestLists({3, 65, 0, 1}), 160, offset);
  }
  check_multicast(TestLists({}), 64, 0);
  check_multicast(TestLists({0, 0, 0}), 64, 0);
  check_multicast(TestLists({0, 65536, 0, 5}), 4, 0);
}

TEST_CASE("multicast_rows along the duplicates of an index is scatter_rows") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  const radixmlp::PrefixIndexView index = maps.host.view();
  std::vector<std::int32_t> memory(radixmlp::row_lists_entries(index));
  const RowLists host = radixmlp::duplicates(index, memory);
  typename Backend::template Array<std::int32_t> there(memory);
  const RowLists lists{{there.data(), host.offsets.size()}, {there.data() + host.offsets.size(), host.values.size()}};
  const std::int64_t n = maps.ragged_rows, compact = maps.expected.compact_rows;
  const auto k = random_values<Fp16>(static_cast<std::size_t>(compact * 24), 1);
  const auto v = random_values<Fp32>(static_cast<std::size_t>(compact * 64), 1);
  Backend backend;
  typename Backend::template Array<Fp16> k_compact(k), k_ragged(std::vector<Fp16>(static_cast<std::size_t>(n * 24)));
  typename Backend::template Array<Fp32> v_compact(v), v_ragged(std::vector<Fp32>(static_cast<std::size_t>(n * 64)));
  multicast_rows(backend.where(), lists,
                 RowCopy{RowView<const Fp16>(k_compact.data(), compact, 24), RowView<Fp16>(k_ragged.data(), n, 24)},
                 RowCopy{RowView<const Fp32>(v_compact.data(), compact, 64), RowView<Fp32>(v_ragged.data(), n, 64)});
  backend.synchronize();
  std::vector<Fp16> k_expected;
  std::vector<Fp32> v_expected;
  for (const std::int32_t j : maps.expected.scatter) {
    k_expected.insert(k_expected.end(), k.begin() + j * 24, k.begin() + (j + 1) * 24);
    v_expected.insert(v_expected.end(), v.begin() + j * 64, v.begin() + (j + 1) * 64);
  }
  CHECK(same_bytes(k_ragged.download(), k_expected));
  CHECK(same_bytes(v_ragged.download(), v_expected));
}

TEST_CASE("work items cover every entry once, at most 64 of one list, and read a row of m at most ceil(m/64) times") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  std::mt19937_64 random(11);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::int32_t> sizes;
    const std::size_t lists = random() % 40;
    for (std::size_t j = 0; j < lists; ++j) {
      sizes.push_back(static_cast<std::int32_t>(random() % std::vector<std::uint64_t>{2, 70, 300, 9000}[random() % 4]));
    }
    if (round == 0) {
      sizes = {1, 65536, 64, 65, 0, 4096, 4097};
    }
    const TestLists test(sizes);
    const auto values = static_cast<std::int64_t>(test.values.size());
    const auto rows = static_cast<std::int32_t>(sizes.size());
    for (int level = 0; level <= 2; ++level) {
      const std::int64_t leaf = radixmlp::detail::leaf_of(level);
      std::vector<int> covered(test.values.size());
      std::vector<std::int64_t> reads(sizes.size());
      std::vector<int> partials(static_cast<std::size_t>(radixmlp::detail::partial_rows(values, level + 1)));
      for (std::int64_t u = 0; u < radixmlp::detail::row_unit_count(rows, values, level); ++u) {
        const auto unit = radixmlp::detail::row_unit(test.offsets.data(), rows, values, level, u);
        if (unit.row < 0) {
          continue;
        }
        const auto j = static_cast<std::size_t>(unit.row);
        REQUIRE(unit.entries <= 64 * leaf);
        REQUIRE((unit.first - test.offsets[j]) % (64 * leaf) == 0);
        REQUIRE(unit.leads == (unit.first == test.offsets[j]));
        REQUIRE(unit.first + unit.entries <= test.offsets[j + 1]);
        reads[j] += unit.entries > 0 ? 1 : 0;
        for (std::int64_t i = 0; i < unit.entries; ++i) {
          ++covered[static_cast<std::size_t>(unit.first + i)];
        }
        if (sizes[j] > 64 * leaf) {
          ++partials.at(static_cast<std::size_t>(radixmlp::detail::partial_row(unit.first, unit.leads, level + 1)));
        }
      }
      for (std::size_t j = 0; j < sizes.size(); ++j) {
        const bool taken = leaf == 1 || sizes[j] > leaf;
        REQUIRE(reads[j] == (taken ? (sizes[j] + 64 * leaf - 1) / (64 * leaf) : 0));
        for (std::int32_t v = test.offsets[j]; v < test.offsets[j + 1]; ++v) {
          REQUIRE(covered[static_cast<std::size_t>(v)] == (taken ? 1 : 0));
        }
      }
      REQUIRE(std::all_of(partials.begin(), partials.end(), [](int uses) { return uses <= 1; }));
    }
  }
}

namespace {

// The formats, by their definition.
struct Format {
  int fraction_bits;
  int least_exponent;  // of a normal number
};
template <class T>
constexpr Format format_of = {23, -126};
template <>
inline constexpr Format format_of<HalfType> = {10, -14};
template <>
inline constexpr Format format_of<BrainType> = {7, -126};

// Unit in the last place at `value`.
double ulp(Format format, double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  return std::ldexp(1.0, std::max(exponent - 1, format.least_exponent) - format.fraction_bits);
}
// Nearest number of the format; finite values only.
double rounded(Format format, double value) {
  return value == 0 ? value : std::nearbyint(value / ulp(format, value)) * ulp(format, value);
}

template <class T>
double value_of(const T& element) {
  if constexpr (sizeof(T) == 4) {
    float value;
    std::memcpy(&value, &element, 4);
    return value;
  } else {
    std::uint16_t bits;
    std::memcpy(&bits, &element, 2);
    const Format format = format_of<T>;
    const int exponent_bits = 15 - format.fraction_bits;
    const int exponent = bits >> format.fraction_bits & ((1 << exponent_bits) - 1);
    const int fraction = bits & ((1 << format.fraction_bits) - 1);
    const double magnitude = exponent == 0 ? std::ldexp(fraction, format.least_exponent - format.fraction_bits)
                                           : std::ldexp(fraction + (1 << format.fraction_bits),
                                                        exponent - 1 + format.least_exponent - format.fraction_bits);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }
}
template <class T>
T element_of(double value) {
  T element{};
  if constexpr (sizeof(T) == 4) {
    const auto single = static_cast<float>(value);
    std::memcpy(static_cast<void*>(&element), &single, 4);
  } else {
    const Format format = format_of<T>;
    const double unit = ulp(format, value);
    const auto multiple = static_cast<int>(std::fabs(rounded(format, value)) / unit);  // with the leading one
    int exponent = static_cast<int>(std::lround(std::log2(unit))) + format.fraction_bits - format.least_exponent + 1;
    int bits = multiple;
    if (multiple >> format.fraction_bits != 0) {
      bits = multiple - (1 << format.fraction_bits) + (exponent << format.fraction_bits);
    }
    const auto half = static_cast<std::uint16_t>(bits | (std::signbit(value) ? 0x8000 : 0));
    std::memcpy(static_cast<void*>(&element), &half, 2);
  }
  return element;
}

// The sum in fp32 along the tree whose left half is the largest power of two.
float tree_sum(const std::vector<float>& values, std::size_t first, std::size_t count) {
  if (count == 1) {
    return values[first];
  }
  std::size_t left = 1;
  while (2 * left < count) {
    left *= 2;
  }
  return tree_sum(values, first, left) + tree_sum(values, first + left, count - left);
}

// The call of the backend: on the device it takes memory as well.
template <class B, class T>
void sum_there(B& backend, const RowLists& lists, RowView<const T> from, RowView<T> to, std::size_t floats,
               std::int64_t longest) {
  if constexpr (B::on_device) {
    typename B::template Array<float> workspace((std::vector<float>(floats)));
    sum_duplicates(backend.where(), lists, from, to, std::span<float>(workspace.data(), floats), longest);
    backend.synchronize();
  } else {
    sum_duplicates(backend.where(), lists, from, to);
  }
}

// `longest` 0: as it comes. Every element is compared with the tree, to the bit, and with the error bound.
template <class T>
void check_sums(const TestLists& lists, std::int64_t width, std::int64_t offset, std::int64_t longest,
                const std::vector<T>& source) {
  const auto rows = static_cast<std::int64_t>(lists.offsets.size()) - 1;
  const auto values = static_cast<std::int64_t>(lists.values.size());
  CAPTURE(sizeof(T), rows, values, width, offset, longest);
  auto expected = random_values<T>(static_cast<std::size_t>(rows * width + width), 9);
  Backend backend;
  typename Backend::template Array<T> source_there(source), target_there(expected);
  ListsThere there(lists);
  const RowView<const T> from(source_there.data() + offset, values, width);
  const RowView<T> to(target_there.data(), rows, width);
  sum_there(backend, there.view, from, to,
            radixmlp::sum_workspace_floats(values, longest == 0 ? values : longest, width), longest);
  for (std::int64_t j = 0; j < rows; ++j) {
    const auto begin = static_cast<std::size_t>(lists.offsets[static_cast<std::size_t>(j)]);
    const auto end = static_cast<std::size_t>(lists.offsets[static_cast<std::size_t>(j + 1)]);
    for (std::int64_t c = 0; c < width; ++c) {
      std::vector<float> terms;
      double exact = 0, absolute = 0;
      for (std::size_t v = begin; v < end; ++v) {
        const double term = value_of(source[static_cast<std::size_t>(offset + lists.values[v] * width + c)]);
        terms.push_back(static_cast<float>(term));
        exact += term;
        absolute += std::fabs(term);
      }
      const double sum = terms.empty() ? 0.0 : double{tree_sum(terms, 0, terms.size())};
      const T element = element_of<T>(sum);
      const double depth = terms.size() < 2 ? 0 : std::ceil(std::log2(static_cast<double>(terms.size())));
      REQUIRE(std::fabs(value_of(element) - exact) <=
              (depth + 1) * 0x1p-24 * absolute + ulp(format_of<T>, sum) / 2 + 1e-12 * absolute);
      expected[static_cast<std::size_t>(j * width + c)] = element;
    }
  }
  REQUIRE(same_bytes(target_there.download(), expected));
}

template <class T>
std::vector<T> random_floats(std::size_t count) {
  std::mt19937_64 random(17);
  std::vector<T> values;
  for (std::size_t i = 0; i < count; ++i) {
    // Of both signs and many sizes, some below the smallest normal fp16.
    const double value =
        (static_cast<double>(random() % 4097) - 2048) * std::ldexp(1.0, -static_cast<int>(random() % 20) - 8);
    values.push_back(element_of<T>(value));
  }
  return values;
}

template <class T>
void check_sums_of_type() {
  const TestLists lists(mixed_sizes());
  for (const std::int64_t width : {4, 7}) {
    const auto source = random_floats<T>(lists.values.size() * static_cast<std::size_t>(width) + 8);
    check_sums<T>(lists, width, 0, 200, source);
    check_sums<T>(lists, width, 1, 0, source);  // unaligned, and a launch more
  }
}

}  // namespace

TEST_CASE("sum_duplicates: the fixed tree to the bit, within its error bound, at every launch and alignment") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  check_sums_of_type<float>();
  check_sums_of_type<HalfType>();
  check_sums_of_type<BrainType>();
  check_sums<float>(TestLists({5, 70, 1}), 132, 0, 0,
                    random_floats<float>(76 * 132));  // more columns than a warp takes
  check_sums<float>(TestLists({}), 4, 0, 0, std::vector<float>(8));
  check_sums<float>(TestLists({0, 0}), 4, 0, 0, std::vector<float>(8));
}

TEST_CASE("sum_duplicates of 65,536 rows") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const TestLists lists({3, 65536, 4097, 1});
  check_sums<float>(lists, 4, 0, 0, random_floats<float>(lists.values.size() * 4));
  check_sums<HalfType>(lists, 1, 0, 0, random_floats<HalfType>(lists.values.size()));
  check_sums<BrainType>(lists, 1, 0, 0, random_floats<BrainType>(lists.values.size()));
}

TEST_CASE("bug class 9: sums of 16-bit rows neither stall nor overflow on the way") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const TestLists lists({1000, 4096, 300});
  check_sums<BrainType>(lists, 1, 0, 0, std::vector<BrainType>(lists.values.size(), element_of<BrainType>(1.0)));
  std::vector<HalfType> large;  // 60,000 and -60,000: any two of one sign overflow fp16
  for (std::size_t i = 0; i < lists.values.size(); ++i) {
    large.push_back(element_of<HalfType>(lists.values[i] % 2 == 0 ? 60000.0 : -60000.0));
  }
  std::vector<HalfType> source(large.size());
  for (std::size_t i = 0; i < large.size(); ++i) {
    source[static_cast<std::size_t>(lists.values[i])] = element_of<HalfType>(i % 2 == 0 ? 60000.0 : -60000.0);
  }
  check_sums<HalfType>(lists, 1, 0, 0, source);
}

TEST_CASE("sums that do not fit are refused") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  Backend backend;
  ListsThere there{TestLists({3, 100})};
  typename Backend::template Array<float> source(std::vector<float>(103 * 4)), target(std::vector<float>(8));
  const auto call = [&](std::int64_t source_rows, std::int64_t target_rows) {
    const RowView<const float> from(source.data(), source_rows, 4);
    const RowView<float> to(target.data(), target_rows, 4);
    sum_there(backend, there.view, from, to, 0, 0);
  };
  check_refused<InvalidRows>("source.rows", 0, 102, [&] { call(102, 2); });
  check_refused<InvalidRows>("target.rows", 0, 1, [&] { call(103, 1); });
  if constexpr (Backend::on_device) {
    check_refused<InvalidRows>("workspace", -1, 0, [&] { call(103, 2); });
  }
  check_refused<radixmlp::InvalidBatch>("lists.offsets", -1, 0, [&] {
    multicast_rows(backend.where(), RowLists{}, RowCopy{RowView<const float>(), RowView<float>()});
  });
}

TEST_CASE("every kernel of a plan moves the same rows, and a plan says what it is") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  using radixmlp::RowKernel;
  const Maps maps(sharing_spec());
  const radixmlp::PrefixIndexView index = maps.host.view();
  const std::int64_t n = maps.ragged_rows, compact = maps.expected.compact_rows;
  std::vector<std::int32_t> memory(radixmlp::row_lists_entries(index));
  const RowLists lists = radixmlp::duplicates(index, memory);
  const RowMap map = radixmlp::scatter_map(index);
  std::vector<RowRun> runs(static_cast<std::size_t>(radixmlp::count_runs(map.map)));
  static_cast<void>(radixmlp::make_runs(map, runs));
  typename Backend::template Array<std::int32_t> lists_there(memory), map_there(maps.expected.scatter);
  typename Backend::template Array<RowRun> runs_there(runs);
  radixmlp::RowMoves moves{
      {{map_there.data(), map.map.size()}, compact, n},
      {{runs_there.data(), runs.size()}, compact, n},
      {{lists_there.data(), lists.offsets.size()}, {lists_there.data() + lists.offsets.size(), lists.values.size()}}};
  const auto source = random_values<Fp32>(static_cast<std::size_t>(compact * 12), 1);
  std::vector<Fp32> expected;
  for (const std::int32_t j : maps.expected.scatter) {
    expected.insert(expected.end(), source.begin() + j * 12, source.begin() + (j + 1) * 12);
  }
  Backend backend;
  typename Backend::template Array<Fp32> source_there(source);
  for (const RowKernel kernel : {RowKernel::indexed, RowKernel::runs, RowKernel::multicast}) {
    for (const std::int64_t cache : {0, 1 << 20}) {
      typename Backend::template Array<Fp32> target_there((std::vector<Fp32>(expected.size())));
      const RowCopy copy{RowView<const Fp32>(source_there.data(), compact, 12),
                         RowView<Fp32>(target_there.data(), n, 12)};
      const radixmlp::RowPlan plan =
          plan_rows(row_work(moves.map, compact, static_cast<std::int64_t>(runs.size()), cache, copy), kernel);
      CHECK(plan.kernel == kernel);
      CHECK((plan.caching == radixmlp::Caching::streaming) == (cache == 0));
      CHECK(plan.work.row_bytes == 48);
      CHECK(plan.work.contiguous);
      CHECK(plan.work.alignment == 16);
      move_rows(backend.where(), plan, moves, copy);
      backend.synchronize();
      CHECK(same_bytes(target_there.download(), expected));
      radixmlp::RowMoves none;
      none.map = moves.map;
      if (kernel != RowKernel::indexed) {
        check_refused<InvalidRows>(kernel == RowKernel::runs ? "moves.runs" : "moves.lists", -1, 0,
                                   [&] { move_rows(backend.where(), plan, none, copy); });
      }
    }
  }
}

TEST_CASE("plans: what the counts choose") {
  skip_without(Backend::present(), "CUDA device");
  using radixmlp::RowKernel;
  radixmlp::RowWork work{70'000, 70'000, 16'000, 70'000, 2048, 32, true, std::int64_t{50} << 20};
  const auto kernel = [&] { return plan_rows(work).kernel; };
  CHECK(kernel() == RowKernel::indexed);  // the source stays in the cache
  work.distinct_rows = 32'000;
  CHECK(kernel() == RowKernel::multicast);
  CHECK(plan_rows(work).caching == radixmlp::Caching::streaming);
  CHECK(
      plan_rows(work).explain() ==
      "multicast: rows repeat and the source is beyond the cache (70000 rows of 2048 bytes from 32000 distinct, 70000 "
      "runs, aligned to 32, contiguous, cache of 52428800 bytes); streaming stores");
  work.target_rows = 70'016;
  CHECK(kernel() == RowKernel::indexed);  // padding
  work.target_rows = 70'000;
  work.distinct_rows = 60'000;
  CHECK(kernel() == RowKernel::indexed);  // hardly any repetition
  work.row_bytes = 1154;
  work.alignment = 2;
  CHECK(kernel() == RowKernel::indexed);  // runs of one row
  work.runs = 20'000;
  CHECK(kernel() == RowKernel::runs);
  work.contiguous = false;
  CHECK(kernel() == RowKernel::indexed);
  CHECK(plan_rows(work, RowKernel::runs).kernel == RowKernel::runs);
}
