// SPDX-License-Identifier: MIT
#pragma once

// The test body of row movement. host_rows_test.cpp and device_rows_test.cu define Backend and include it.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "rows/rows_support.hpp"

namespace {

enum class Direction { gather, scatter };

// Moves random rows and compares the whole target allocation, so also what must not be touched, with a loop.
template <class T, std::int64_t Width = radixmlp::dynamic_width>
void check_move(const Maps& maps, Direction direction, Shape from, Shape to) {
  const bool gathers = direction == Direction::gather;
  const OracleIndex& index = maps.expected;
  const std::int64_t source_rows = gathers ? maps.ragged_rows : index.compact_rows;
  const std::int64_t target_rows = gathers ? index.padded_rows : maps.ragged_rows;
  const std::int64_t mapped_rows = gathers ? index.compact_rows : maps.ragged_rows;
  const std::vector<std::int32_t>& map = gathers ? index.gather : index.scatter;
  CAPTURE(sizeof(T), from.width, from.stride, from.offset, to.stride, to.offset, gathers);

  const auto source =
      random_values<T>(static_cast<std::size_t>(from.offset + source_rows * from.stride + from.width), 1);
  std::vector<T> expected =
      random_values<T>(static_cast<std::size_t>(to.offset + target_rows * to.stride + to.width), 2);
  Backend backend;
  typename Backend::template Array<T> source_array(source), target_array(expected);
  for (std::int64_t i = 0; i < target_rows; ++i) {
    for (std::int64_t c = 0; c < to.width; ++c) {
      const auto at = static_cast<std::size_t>(to.offset + i * to.stride + c);
      expected[at] = T{};
      if (i < mapped_rows) {
        expected[at] =
            source[static_cast<std::size_t>(from.offset + map[static_cast<std::size_t>(i)] * from.stride + c)];
      }
    }
  }
  const typename Backend::Index index_there(maps.host);
  const RowView<const T, Width> source_view(source_array.data() + from.offset, source_rows, from.width, from.stride);
  const RowView<T, Width> target_view(target_array.data() + to.offset, target_rows, to.width, to.stride);
  if (gathers) {
    gather_rows(backend.where(), index_there.view(), source_view, target_view);
  } else {
    scatter_rows(backend.where(), index_there.view(), source_view, target_view);
  }
  backend.synchronize();
  REQUIRE(same_bytes(target_array.download(), expected));
}

template <class T, std::int64_t Width = radixmlp::dynamic_width>
void check_both_ways(const Maps& maps, Shape from, Shape to) {
  check_move<T, Width>(maps, Direction::gather, from, to);
  check_move<T, Width>(maps, Direction::scatter, from, to);
}

template <class T>
void check_type(const Maps& maps) {
  for (const std::int64_t width : {1, 3, 8, 17, 64, 100, 576, 1024}) {
    check_both_ways<T>(maps, {width, width, 0}, {width, width, 0});
  }
  check_both_ways<T, 64>(maps, {64, 64, 0}, {64, 64, 0});
  check_both_ways<T, 100>(maps, {100, 100, 0}, {100, 100, 0});
  check_both_ways<T, 577>(maps, {577, 577, 0}, {577, 577, 0});
  check_both_ways<T, 1024>(maps, {1024, 1024, 0}, {1024, 1024, 0});
}

struct Elements24 {
  std::uint64_t words[3];
};

}  // namespace

TEST_CASE("rows of every element type, at static and run-time widths") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  check_type<Fp32>(maps);
  check_type<Fp16>(maps);
  check_type<Bf16>(maps);
  check_type<Fp64>(maps);
  check_type<std::int8_t>(maps);
  check_both_ways<Elements24>(maps, {5, 5, 0}, {5, 5, 0});
}

TEST_CASE("bug class 4: row strides, and bases at every alignment") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  for (const std::int64_t offset : {0, 1, 2, 4, 8, 16}) {
    check_both_ways<std::int8_t>(maps, {48, 64, offset}, {48, 48, 0});
    check_both_ways<std::int8_t>(maps, {48, 48, 0}, {48, 80, offset});
    check_both_ways<std::int8_t>(maps, {33, 64, offset}, {33, 35, offset});
  }
  // The last four vectors of a lane lack one: by 32 lanes, by 8.
  check_both_ways<std::int8_t>(maps, {3664, 3664, 0}, {3664, 3696, 0});
  check_both_ways<std::int8_t>(maps, {896, 896, 0}, {896, 928, 0});
  check_both_ways<Fp16>(maps, {128, 384, 128}, {128, 136, 8});
  check_both_ways<Fp32, 64>(maps, {64, 192, 64}, {64, 64, 0});
  check_both_ways<Fp64>(maps, {20, 21, 1}, {20, 23, 0});
}

TEST_CASE("bug class 13: rows wider than any shared memory, at any alignment; no stage has to hold them") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(spec_of({{1, 2, 3}, {1, 2}, {1, 4}}));
  check_both_ways<Fp32>(maps, {16384, 16384, 0}, {16384, 16384, 0});
  check_both_ways<Fp16, 16384>(maps, {16384, 16384, 0}, {16384, 16384, 0});
  check_both_ways<std::int8_t>(maps, {100003, 100003, 0}, {100003, 100003, 0});
  check_both_ways<std::int8_t>(maps, {300001, 300004, 1}, {300001, 300001, 2});
  check_both_ways<std::int8_t>(maps, {300032, 300032, 16}, {300032, 300064, 16});
}

TEST_CASE("bug class 2: no rows, no sequences, no width: nothing is written") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  check_both_ways<Fp32>(Maps(spec_of({})), {64, 64, 0}, {64, 64, 0});
  check_both_ways<Fp32>(Maps(spec_of({{}, {}})), {64, 64, 0}, {64, 64, 0});
  const Maps maps(sharing_spec());
  check_both_ways<Fp32>(maps, {0, 0, 0}, {0, 8, 0});
  const typename Backend::Index index(Maps(spec_of({})).host);
  Backend backend;
  gather_rows(backend.where(), index.view(), RowView<const Fp32>(), RowView<Fp32>());
  scatter_rows(backend.where(), index.view(), RowView<const Fp32>(), RowView<Fp32>());
  backend.synchronize();
}

TEST_CASE("rows behind N' are zero up to the padded count, whatever was there") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  for (const std::int32_t pad_to : {1, 2, 16, 128}) {
    check_move<Fp16>(Maps(sharing_spec(pad_to)), Direction::gather, {40, 40, 0}, {40, 48, 0});
  }
}

TEST_CASE("bug class 11: a source of stride 0 is one row for all") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  check_both_ways<Fp32>(maps, {32, 0, 0}, {32, 32, 0});
}

TEST_CASE("several tensors of different widths and types in one call") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  const typename Backend::Index index(maps.host);
  const std::int64_t n = maps.ragged_rows;
  const std::int64_t compact = index.view().padded_rows;
  const auto q = random_values<Fp16>(static_cast<std::size_t>(compact * 96), 1);
  const auto k = random_values<Fp16>(static_cast<std::size_t>(compact * 33), 2);
  const auto v = random_values<Fp64>(static_cast<std::size_t>(compact * 16), 3);
  const auto positions = random_values<std::int32_t>(static_cast<std::size_t>(compact), 4);
  Backend backend;
  typename Backend::template Array<Fp16> q_compact(q), k_compact(k);
  typename Backend::template Array<Fp64> v_compact(v);
  typename Backend::template Array<std::int32_t> p_compact(positions);
  const auto zeros = [n](auto type, std::int64_t width) {
    return std::vector<decltype(type)>(static_cast<std::size_t>(n * width));
  };
  typename Backend::template Array<Fp16> q_ragged(zeros(Fp16{}, 96)), k_ragged(zeros(Fp16{}, 33));
  typename Backend::template Array<Fp64> v_ragged(zeros(Fp64{}, 16));
  typename Backend::template Array<std::int32_t> p_ragged(zeros(std::int32_t{}, 1));
  const RowView<const Fp16> k_view(k_compact.data(), compact, 33);
  scatter_rows(
      backend.where(), index.view(),
      RowCopy{RowView<const Fp16, 96>(q_compact.data(), compact), RowView<Fp16, 96>(q_ragged.data(), n)},
      RowCopy{k_view, RowView<Fp16>(k_ragged.data(), n, 33)},
      RowCopy{RowView<const Fp64, 16>(v_compact.data(), compact), RowView<Fp64>(v_ragged.data(), n, 16)},
      RowCopy{RowView<std::int32_t>(p_compact.data(), compact, 1), RowView<std::int32_t>(p_ragged.data(), n, 1)});
  backend.synchronize();
  const auto expected = [&](const auto& from, std::int64_t width) {
    auto rows = zeros(from[0], width);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t j = maps.expected.scatter[static_cast<std::size_t>(i)];
      std::copy_n(from.begin() + j * width, width, rows.begin() + i * width);
    }
    return rows;
  };
  CHECK(same_bytes(q_ragged.download(), expected(q, 96)));
  CHECK(same_bytes(k_ragged.download(), expected(k, 33)));
  CHECK(same_bytes(v_ragged.download(), expected(v, 16)));
  CHECK(same_bytes(p_ragged.download(), expected(positions, 1)));
}

TEST_CASE("more tensors than one launch takes") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  const typename Backend::Index index(maps.host);
  constexpr std::int64_t tensors = 19;
  const std::int64_t n = maps.ragged_rows, compact = index.view().padded_rows;
  const auto values = random_values<Fp32>(static_cast<std::size_t>(tensors * compact), 5);
  Backend backend;
  typename Backend::template Array<Fp32> source(values);
  typename Backend::template Array<Fp32> target(std::vector<Fp32>(static_cast<std::size_t>(tensors * n)));
  const auto copy = [&](std::size_t t) {
    return RowCopy{RowView<const Fp32>(source.data() + static_cast<std::int64_t>(t) * compact, compact, 1),
                   RowView<Fp32>(target.data() + static_cast<std::int64_t>(t) * n, n, 1)};
  };
  [&]<std::size_t... T>(std::index_sequence<T...>) { scatter_rows(backend.where(), index.view(), copy(T)...); }
  (std::make_index_sequence<tensors>());
  backend.synchronize();
  const auto moved = target.download();
  for (std::int64_t t = 0; t < tensors; ++t) {
    for (std::int64_t i = 0; i < n; ++i) {
      const auto j = maps.expected.scatter[static_cast<std::size_t>(i)];
      REQUIRE(std::memcmp(&moved[static_cast<std::size_t>(t * n + i)],
                          &values[static_cast<std::size_t>(t * compact + j)], sizeof(Fp32)) == 0);
    }
  }
}

TEST_CASE("scatter after gather of trie rows gives back every row of a real tensor") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  RandomBatches random(7);
  for (int i = 0; i < 30; ++i) {
    BatchSpec spec = random.next();
    const bool has_tokens = !spec.tokens.empty() || spec.rows() == 0;
    if (!has_tokens) {
      continue;
    }
    check_both_ways<Fp16>(Maps(spec), {24, 24, 0}, {24, 24, 0});
  }
}

TEST_CASE("maps that no trie made: any order, any repetition") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr std::int32_t ragged = 9, compact = 6;
  typename Backend::template Array<std::int32_t> gather(std::vector<std::int32_t>{8, 0, 3, 3, 1, 2});
  typename Backend::template Array<std::int32_t> scatter(std::vector<std::int32_t>{5, 5, 0, 1, 2, 4, 3, 3, 0});
  PrefixIndexView index;
  index.gather = {gather.data(), compact};
  index.scatter = {scatter.data(), ragged};
  index.ragged_rows = ragged;
  index.compact_rows = index.padded_rows = compact;
  const auto values = random_values<Fp32>(ragged * 5, 3);
  Backend backend;
  typename Backend::template Array<Fp32> source(values), gathered(values), scattered(values);
  gather_rows(backend.where(), index, RowView<const Fp32>(source.data(), ragged, 5),
              RowView<Fp32>(gathered.data(), ragged, 5));
  scatter_rows(backend.where(), index, RowView<const Fp32>(source.data(), ragged, 5),
               RowView<Fp32>(scattered.data(), ragged, 5));
  backend.synchronize();
  const auto check = [&](const std::vector<Fp32>& moved, const std::vector<std::int32_t>& map) {
    for (std::size_t i = 0; i < map.size(); ++i) {
      CHECK(std::memcmp(&moved[i * 5], &values[static_cast<std::size_t>(map[i]) * 5], 5 * sizeof(Fp32)) == 0);
    }
  };
  check(gathered.download(), gather.download());
  check(scattered.download(), scatter.download());
}

TEST_CASE("bug class 7: views that do not fit are refused by name, number and value before any row is written") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  const typename Backend::Index index_there(maps.host);
  const PrefixIndexView& index = index_there.view();
  const std::int64_t n = maps.ragged_rows;
  const auto values = random_values<Fp32>(static_cast<std::size_t>(n * 8), 1);
  Backend backend;
  typename Backend::template Array<Fp32> ragged(values), compact(values);
  Fp32* const r = ragged.data();
  Fp32* const c = compact.data();
  const auto refuses = [&](const std::string& argument, std::int64_t tensor, std::int64_t value,
                           const std::function<void()>& call) {
    check_refused<InvalidRows>(argument, tensor, value, call);
    backend.synchronize();
    CHECK(same_bytes(ragged.download(), values));
    CHECK(same_bytes(compact.download(), values));
  };
  const auto gather = [&](RowView<const Fp32> from, RowView<Fp32> to) {
    return [&, from, to] { gather_rows(backend.where(), index, from, to); };
  };
  const auto scatter = [&](RowView<const Fp32> from, RowView<Fp32> to) {
    return [&, from, to] { scatter_rows(backend.where(), index, from, to); };
  };
  const std::int64_t padded = index.padded_rows;
  refuses("source.rows", 0, n - 1, gather({r, n - 1, 8}, {c, padded, 8}));
  refuses("target.rows", 0, padded - 1, gather({r, n, 8}, {c, padded - 1, 8}));
  refuses("source.rows", 0, index.compact_rows - 1, scatter({c, index.compact_rows - 1, 8}, {r, n, 8}));
  refuses("target.rows", 0, n - 1, scatter({c, padded, 8}, {r, n - 1, 8}));
  refuses("target.rows", 0, -1, scatter({c, padded, 8}, {r, -1, 8}));
  refuses("target.width", 0, 7, gather({r, n, 8}, {c, padded, 7}));
  refuses("source.width", 0, -1, gather({r, n, -1, 8}, {c, padded, -1, 8}));
  refuses("source.stride", 0, 7, gather({r, n, 8, 7}, {c, padded, 8}));
  refuses("source.stride", 0, -8, gather({r, n, 8, -8}, {c, padded, 8}));
  refuses("target.stride", 0, 0, gather({r, n, 8}, {c, padded, 8, 0}));
  refuses("stride", 0, std::int64_t{1} << 60, gather({r, n, 8}, {c, padded, 8, std::int64_t{1} << 60}));
  refuses("source.data", 0, 0, gather({nullptr, n, 8}, {c, padded, 8}));
  refuses("target.data", 0, 0, gather({r, n, 8}, {nullptr, padded, 8}));
  refuses("target.data", 0, reinterpret_cast<std::intptr_t>(r + 8), gather({r, n, 8}, {r + 8, padded, 8}));
  refuses("source.width", 0, 9, [&] {
    gather_rows(backend.where(), index, RowView<const Fp32, 8>(r, n, 9, 9), RowView<Fp32>(c, padded, 9));
  });
  refuses("target.rows", 1, padded - 1, [&] {
    gather_rows(backend.where(), index, RowCopy{RowView<const Fp32>(r, n, 8), RowView<Fp32>(c, padded, 8)},
                RowCopy{RowView<const Fp32>(r, n, 8), RowView<Fp32>(c, padded - 1, 8)});
  });
}

TEST_CASE("bug class 14: columns of one packed buffer may be source and target, overlapping columns may not") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(spec_of({{1, 2, 3}, {1, 2, 4}}));
  const typename Backend::Index index(maps.host);
  const std::int64_t n = maps.ragged_rows;
  const auto values = random_values<Fp32>(static_cast<std::size_t>(n * 16), 1);
  Backend backend;
  typename Backend::template Array<Fp32> packed(values);
  const RowView<Fp32> all(packed.data(), n, 16);
  gather_rows(backend.where(), index.view(), all.columns(0, 8), all.columns(8, 8));
  CHECK(RowView<float>(nullptr, 0, 16).columns(8, 8).data() == nullptr);  // not null + 8, which is undefined
  backend.synchronize();
  const auto moved = packed.download();
  for (std::size_t j = 0; j < static_cast<std::size_t>(maps.expected.compact_rows); ++j) {
    const auto from = static_cast<std::size_t>(maps.expected.gather[j]);
    CHECK(std::memcmp(&moved[j * 16 + 8], &values[from * 16], 8 * sizeof(Fp32)) == 0);
  }
  CHECK_THROWS_AS(gather_rows(backend.where(), index.view(), all.columns(0, 8), all.columns(7, 8)), InvalidRows);
}

TEST_CASE("bug class 5: the widest vectors are taken for bytes that allow it, not for elements or rows that seem to") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  const Maps maps(sharing_spec());
  // 16 elements but not 16 bytes; 16 bytes but not at such an address; rows that fit and a stride that does not.
  check_both_ways<Fp16>(maps, {16, 17, 0}, {16, 16, 0});
  check_both_ways<Fp16>(maps, {8, 8, 4}, {8, 8, 1});
  check_both_ways<Fp32>(maps, {4, 6, 0}, {4, 5, 1});
  check_both_ways<std::int8_t>(maps, {32, 40, 0}, {32, 36, 0});
  check_both_ways<std::int8_t>(maps, {17, 32, 0}, {17, 32, 0});
  // One row: its stride says nothing of where it starts. One column: it does.
  const Maps one(spec_of({{1}}));
  check_both_ways<Fp16>(one, {64, 67, 8}, {64, 65, 8});
  check_both_ways<Fp32>(maps, {1, 16, 0}, {1, 32, 3});
}

namespace {

// Rows `stride` apart, from far into far memory, both ways.
constexpr std::int64_t far_rows = 6;

template <class T, class Memory>
void check_far(Memory& far, std::int64_t width, std::int64_t stride) {
  CAPTURE(sizeof(T), width, stride);
  const std::vector<std::int32_t> map{5, 0, 3, 5, 1, 2, 4};
  const auto near_rows = static_cast<std::int64_t>(map.size());
  Backend backend;
  typename Backend::template Array<T> near(std::vector<T>(static_cast<std::size_t>(near_rows * width)));
  typename Backend::template Array<std::int32_t> there(map);
  std::vector<std::vector<T>> rows;
  for (std::int64_t i = 0; i < far_rows; ++i) {
    rows.push_back(random_values<T>(static_cast<std::size_t>(width), static_cast<std::uint64_t>(i)));
    far.write(i * stride, rows.back());
  }
  map_rows(backend.where(), radixmlp::RowMap{{there.data(), map.size()}, far_rows, near_rows},
           RowCopy{RowView<const T>(far.data(), far_rows, width, stride), RowView<T>(near.data(), near_rows, width)});
  backend.synchronize();
  const auto moved = near.download();
  for (std::size_t i = 0; i < map.size(); ++i) {
    REQUIRE(std::memcmp(&moved[i * static_cast<std::size_t>(width)], rows[static_cast<std::size_t>(map[i])].data(),
                        static_cast<std::size_t>(width) * sizeof(T)) == 0);
  }
  map_rows(backend.where(), radixmlp::RowMap{{there.data(), map.size()}, near_rows, near_rows},
           RowCopy{RowView<const T>(near.data(), near_rows, width), RowView<T>(far.data(), near_rows, width, stride)});
  backend.synchronize();
  for (std::size_t i = 0; i < map.size(); ++i) {
    const auto row = far.read(static_cast<std::int64_t>(i) * stride, width);
    REQUIRE(std::memcmp(row.data(), &moved[static_cast<std::size_t>(map[i]) * static_cast<std::size_t>(width)],
                        static_cast<std::size_t>(width) * sizeof(T)) == 0);
  }
}

}  // namespace

TEST_CASE("bug class 1: rows beyond 2^31 elements from the first, at every vector width") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr std::int64_t stride = (std::int64_t{1} << 29) + 64;  // the last row 3 GiB away
  typename Backend::template Sparse<std::int8_t> far(static_cast<std::size_t>((far_rows + 1) * stride));
  for (const std::int64_t width : {1, 3, 64, 1154, 4096}) {
    check_far<std::int8_t>(far, width, stride);
  }
  check_far<std::int8_t>(far, 96, stride - 62);
  if constexpr (!Backend::on_device) {
    constexpr std::int64_t farther = (std::int64_t{1} << 30) + 1;
    typename Backend::template Sparse<Fp32> elements(static_cast<std::size_t>((far_rows + 1) * farther));
    check_far<Fp32>(elements, 577, farther);
  }
}

TEST_CASE("bug class 3: more rows than a grid has blocks in y or z") {
  if (skip_without(Backend::present(), "CUDA device"))
    return;
  constexpr std::int64_t rows = 70'000;
  std::vector<std::int32_t> map(rows);
  for (std::int64_t i = 0; i < rows; ++i) {
    map[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i * 31 % 1000);
  }
  const auto source = random_values<std::int8_t>(1000, 1);
  Backend backend;
  typename Backend::template Array<std::int8_t> from(source),
      to(std::vector<std::int8_t>(static_cast<std::size_t>(rows)));
  typename Backend::template Array<std::int32_t> there(map);
  map_rows(backend.where(), radixmlp::RowMap{{there.data(), map.size()}, 1000, rows},
           RowCopy{RowView<const std::int8_t>(from.data(), 1000, 1), RowView<std::int8_t>(to.data(), rows, 1)});
  backend.synchronize();
  const auto moved = to.download();
  std::int64_t wrong = 0;
  for (std::size_t i = 0; i < map.size(); ++i) {
    wrong += moved[i] != source[static_cast<std::size_t>(map[i])] ? 1 : 0;
  }
  CHECK(wrong == 0);
}
