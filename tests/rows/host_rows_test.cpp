// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "support/host_backend.hpp"

using Backend = radixmlp_test::HostBackend;

// The host has no 16-bit floating types of its own; rows move as bytes.
using Fp32 = float;
using Fp64 = double;
using Fp16 = std::uint16_t;
using Bf16 = std::uint16_t;

#include "rows/rows_cases.hpp"

namespace {

// How many pairs of alignments of both ends a copy of so many bytes fails for: not equal, or a neighbour overwritten.
template <class Copy>
int failures(std::int64_t bytes, Copy&& copy) {
  const auto size = static_cast<std::size_t>(bytes);
  const auto source = random_values<std::uint8_t>(size + 16, 11);
  std::vector<std::uint8_t> target(size + 66);
  int failed = 0;
  for (std::size_t from = 0; from < 16; from += 3) {
    for (std::size_t to = 1; to <= 64; ++to) {
      std::fill(target.begin(), target.end(), std::uint8_t{0xee});
      copy(reinterpret_cast<std::byte*>(target.data() + to), reinterpret_cast<const std::byte*>(source.data() + from),
           bytes);
      const bool equal = std::equal(target.data() + to, target.data() + to + size, source.data() + from);
      const bool untouched = target[to - 1] == 0xee && target[to + size] == 0xee;
      failed += equal && untouched ? 0 : 1;
    }
  }
  return failed;
}

}  // namespace

TEST_CASE("copies of every length between all alignments, through the caches and past them") {
  for (std::int64_t bytes = 0; bytes <= 300; ++bytes) {
    CAPTURE(bytes);
    REQUIRE(failures(bytes, radixmlp::detail::copy_bytes) == 0);
    REQUIRE(failures(bytes, radixmlp::detail::stream_bytes) == 0);
  }
  // From 32 KiB on in four streams.
  for (const std::int64_t bytes : {32 * 1024 - 1, 32 * 1024, 32 * 1024 + 63, 32 * 1024 + 255, 33 * 1024 + 321}) {
    CAPTURE(bytes);
    REQUIRE(failures(bytes, radixmlp::detail::stream_bytes) == 0);
  }
  // What rows of 4 KiB and more take on AMD.
  for (const std::int64_t bytes : {3071, 3072, 3073, 4096, 6143, 6144, 6145, 16384, 20001}) {
    CAPTURE(bytes);
    REQUIRE(failures(bytes, radixmlp::detail::copy_in_pieces) == 0);
    REQUIRE(failures(bytes, radixmlp::detail::copy_bytes) == 0);
  }
}

TEST_CASE("rows of every length, without gaps and with, whatever the caches hold") {
  using radixmlp::detail::Footprint;
  constexpr std::int64_t source_rows = 31;
  const std::vector<std::int32_t> map{3, 4, 5, 30, 0, 1, 17, 17, 9, 8, 7, 29, 30, 2, 11, 12, 13, 14, 15, 16, 28};
  const auto rows = static_cast<std::int64_t>(map.size());
  std::vector<std::int64_t> lengths;
  for (std::int64_t bytes = 1; bytes <= 200; ++bytes) {
    lengths.push_back(bytes);
  }
  for (const std::int64_t bytes : {255, 256, 300, 639, 640, 641, 1023, 1024, 1025, 2048, 2049, 3073, 6145}) {
    lengths.push_back(bytes);
  }
  for (const std::int64_t bytes : lengths) {
    for (const std::int64_t gap : {0, 3, 64}) {
      for (const std::int64_t offset : {0, 1, 16}) {  // of the target in its cache line, more or less
        const std::int64_t stride = bytes + gap;
        const auto source = random_values<std::uint8_t>(static_cast<std::size_t>(source_rows * stride), 5);
        std::vector<std::uint8_t> expected(static_cast<std::size_t>(rows * stride + 32), 0xee);
        for (std::int64_t i = 0; i < rows; ++i) {
          std::copy_n(source.begin() + map[static_cast<std::size_t>(i)] * stride, bytes,
                      expected.begin() + 16 + offset + i * stride);
        }
        for (const Footprint footprint : {Footprint::core, Footprint::cache, Footprint::memory}) {
          std::vector<std::uint8_t> target(expected.size(), 0xee);
          const radixmlp::detail::ByteRows both{reinterpret_cast<const std::byte*>(source.data()),
                                                reinterpret_cast<std::byte*>(target.data() + 16 + offset), stride,
                                                stride, bytes};
          radixmlp::detail::copy_mapped_rows<radixmlp::Bounds::trust>(both, map, source_rows, 0, 9, footprint);
          radixmlp::detail::copy_mapped_rows<radixmlp::Bounds::zero>(both, map, source_rows, 9, rows, footprint);
          CAPTURE(bytes, gap, offset, static_cast<int>(footprint));
          REQUIRE(same_bytes(target, expected));
        }
      }
    }
  }
}

TEST_CASE("more rows than the last-level cache holds") {
  // 36 MiB and more in all, so that long rows and runs are streamed: whole lines, odd widths, rows with a gap between.
  for (const auto& [width, gap] : {std::pair<std::int64_t, std::int64_t>{4096, 0}, {4099, 0}, {2051, 5}, {96, 0}}) {
    const std::int64_t copies = std::int64_t{36} * 1024 * 1024 / width / 63 + 1;
    BatchSpec spec;
    for (std::int64_t copy = 0; copy < copies; ++copy) {  // 63 rows each, of which the first 21 are shared by all
      for (std::int32_t i = 0; i < 63; ++i) {
        spec.tokens.push_back(i < 21 ? i : i + 100 * (1 + copy % (copies - 1)));
      }
      spec.cu_seqlens.push_back(static_cast<std::int32_t>(spec.tokens.size()));
    }
    const TypedBatch<std::int32_t> typed(spec);
    radixmlp::PrefixTrie trie;
    const PrefixIndexView index = trie.build(typed.batch());
    const std::int64_t stride = width + gap;
    const auto ragged = random_values<std::uint8_t>(static_cast<std::size_t>(index.ragged_rows * stride), 7);
    std::vector<std::uint8_t> compact(static_cast<std::size_t>(index.compact_rows * stride), 0xee);
    std::vector<std::uint8_t> back(ragged.size(), 0xee);
    CAPTURE(width, gap);
    gather_rows(TwoThreads{}, index, RowView<const std::uint8_t>(ragged.data(), index.ragged_rows, width, stride),
                RowView<std::uint8_t>(compact.data(), index.compact_rows, width, stride));
    scatter_rows(TwoThreads{}, index, RowView<const std::uint8_t>(compact.data(), index.compact_rows, width, stride),
                 RowView<std::uint8_t>(back.data(), index.ragged_rows, width, stride));
    std::int64_t differing = 0;
    for (std::int64_t i = 0; i < index.ragged_rows; ++i) {
      const std::int64_t row = index.gather[static_cast<std::size_t>(index.scatter[static_cast<std::size_t>(i)])];
      differing +=
          std::memcmp(back.data() + i * stride, ragged.data() + row * stride, static_cast<std::size_t>(width)) != 0;
      for (std::int64_t at = width; at < stride; ++at) {
        differing += back[static_cast<std::size_t>(i * stride + at)] != 0xee;
      }
    }
    CHECK(differing == 0);
  }
}

TEST_CASE("rows that leave a run and come back to it are not taken for one") {
  constexpr std::int64_t width = 512;  // four rows are streamed
  const auto source = random_values<std::uint8_t>(64 * width, 3);
  const std::vector<std::int32_t> map{0, 9, 7, 3, 4, 5, 6, 7, 20, 22, 22, 23, 24, 25, 40, 1};
  std::vector<std::uint8_t> target(map.size() * width);
  const radixmlp::detail::ByteRows rows{reinterpret_cast<const std::byte*>(source.data()),
                                        reinterpret_cast<std::byte*>(target.data()), width, width, width};
  radixmlp::detail::copy_mapped_rows<radixmlp::Bounds::trust>(rows, map, 64, 0, static_cast<std::int64_t>(map.size()),
                                                              radixmlp::detail::Footprint::memory);
  for (std::size_t i = 0; i < map.size(); ++i) {
    CHECK(std::memcmp(target.data() + i * width, source.data() + static_cast<std::size_t>(map[i]) * width, width) == 0);
  }
}
