// SPDX-License-Identifier: MIT
#pragma once

// What the test bodies of row movement share; Backend is defined by who includes them.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/skip.hpp"

namespace {

using namespace radixmlp_test;
using radixmlp::InvalidRows;
using radixmlp::PrefixIndexView;
using radixmlp::RowCopy;
using radixmlp::RowView;

// A batch whose maps have runs of every length, a comb, duplicates and empty sequences; N = rows, padded.
struct Maps {
  explicit Maps(const BatchSpec& spec) : expected(oracle(spec)), ragged_rows(spec.rows()) {
    const TypedBatch<std::int32_t, std::int32_t, radixmlp::Key128> typed(spec);
    host = radixmlp::PrefixIndex(trie.build(typed.batch(), {.pad_to = spec.pad_to}));
  }
  radixmlp::PrefixTrie trie;
  radixmlp::PrefixIndex host;
  OracleIndex expected;
  std::int64_t ragged_rows;
};

inline BatchSpec sharing_spec(std::int32_t pad_to = 8) {
  BatchSpec spec = spec_of({{1, 2, 3, 4, 5, 6, 7, 8, 9},
                            {1, 2, 3, 4, 5, 6, 7, 8, 9},
                            {1, 2, 3, 9},
                            {},
                            {1, 2},
                            {1, 9, 3},
                            {1, 2, 3, 9, 9, 9, 9},
                            {8},
                            {8, 1},
                            {8, 2},
                            {8, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}});
  spec.pad_to = pad_to;
  return spec;
}

template <class T>
std::vector<T> random_values(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(count);
  for (T& value : values) {
    const std::uint64_t bits = random();
    std::memcpy(static_cast<void*>(&value), &bits, sizeof(T) < 8 ? sizeof(T) : 8);
  }
  return values;
}

template <class T>
bool same_bytes(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

// Element layout of one side: rows of `width` at `stride`, the first `offset` elements into the allocation.
struct Shape {
  std::int64_t width, stride, offset;
};

// `call` throws E with that argument, index and value.
template <class E>
void check_refused(const std::string& argument, std::int64_t index, std::int64_t value,
                   const std::function<void()>& call) {
  CAPTURE(argument, value);
  bool refused = false;
  try {
    call();
  } catch (const E& error) {
    refused = true;
    CHECK(error.argument() == argument);
    CHECK(error.index() == index);
    CHECK(error.value() == value);
    CHECK(std::string(error.what()).find(argument) != std::string::npos);
  }
  CHECK(refused);
}

}  // namespace
