// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "radixmlp/index/prefix_index.hpp"
#include "radixmlp/index/ragged_batch.hpp"

namespace radixmlp_test {

// A batch in the plainest form: what the random generator makes, the oracle reads, and TypedBatch turns into the spans
// of a RaggedBatch. Empty = absent, as there.
struct BatchSpec {
  std::vector<std::int64_t> tokens;                  // [N]
  std::vector<std::int32_t> cu_seqlens{0};           // [B+1]
  std::vector<std::vector<std::int64_t>> positions;  // [axes][N]
  std::vector<radixmlp::Key128> token_keys;          // [N]
  std::vector<radixmlp::Key128> sequence_keys;       // [B]
  std::vector<std::int32_t> past_lengths;            // [B]
  std::vector<std::uint8_t> opt_out;                 // [B]
  std::int32_t pad_to = 1;

  std::int32_t rows() const { return cu_seqlens.back(); }
  std::size_t sequences() const { return cu_seqlens.size() - 1; }
};

struct OracleIndex {
  std::vector<std::int32_t> gather, scatter, compact_cu, parent, last_rows;
  std::int32_t compact_rows = 0, padded_rows = 0, max_seqlen = 0;
};

// The definition, word for word: a row is known by everything from the start of its sequence up to it. One map from
// whole prefixes to rows; no trie, no run, no hash.
inline OracleIndex oracle(const BatchSpec& spec) {
  std::map<std::vector<std::int64_t>, std::int32_t> rows;
  std::vector<std::int64_t> prefix;  // as many numbers for every row, so that no two prefixes look alike
  const auto append = [&](const radixmlp::Key128& key) {
    prefix.push_back(static_cast<std::int64_t>(key.lo));
    prefix.push_back(static_cast<std::int64_t>(key.hi));
  };
  OracleIndex index;
  index.compact_cu.push_back(0);
  for (std::size_t s = 0; s < spec.sequences(); ++s) {
    const bool alone = !spec.opt_out.empty() && spec.opt_out[s] != 0;
    prefix.assign(1, alone ? static_cast<std::int64_t>(s) : -1);
    if (!spec.sequence_keys.empty()) {
      append(spec.sequence_keys[s]);
    }
    if (!spec.past_lengths.empty()) {
      prefix.push_back(spec.past_lengths[s]);
    }
    std::int32_t last = -1;
    for (std::int32_t i = spec.cu_seqlens[s]; i < spec.cu_seqlens[s + 1]; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (!spec.token_keys.empty()) {
        append(spec.token_keys[at]);
      }
      if (!spec.tokens.empty()) {
        prefix.push_back(spec.tokens[at]);
      }
      for (const auto& axis : spec.positions) {
        prefix.push_back(axis[at]);
      }
      const auto [found, is_new] = rows.try_emplace(prefix, static_cast<std::int32_t>(index.gather.size()));
      if (is_new) {
        index.gather.push_back(i);
        index.parent.push_back(last);
      }
      last = found->second;
      index.scatter.push_back(last);
    }
    index.last_rows.push_back(last);
    index.compact_cu.push_back(static_cast<std::int32_t>(index.gather.size()));
    index.max_seqlen = std::max(index.max_seqlen, spec.cu_seqlens[s + 1] - spec.cu_seqlens[s]);
  }
  index.compact_rows = static_cast<std::int32_t>(index.gather.size());
  while (index.gather.size() % static_cast<std::size_t>(spec.pad_to) != 0) {
    index.gather.push_back(0);
  }
  index.padded_rows = static_cast<std::int32_t>(index.gather.size());
  return index;
}

inline std::vector<std::int32_t> to_vector(std::span<const std::int32_t> values) {
  return {values.begin(), values.end()};
}

// The first field in which a view differs from the oracle; empty if there is none.
inline std::string difference(const radixmlp::PrefixIndexView& view, const OracleIndex& expected,
                              const BatchSpec& spec) {
  const auto differs = [](std::span<const std::int32_t> a, const std::vector<std::int32_t>& b) {
    return !std::equal(a.begin(), a.end(), b.begin(), b.end());
  };
  if (differs(view.scatter, expected.scatter))
    return "scatter";
  if (differs(view.gather, expected.gather))
    return "gather";
  if (differs(view.compact_cu, expected.compact_cu))
    return "compact_cu";
  if (differs(view.ragged_cu, spec.cu_seqlens))
    return "ragged_cu";
  if (differs(view.parent, expected.parent))
    return "parent";
  if (differs(view.last_rows, expected.last_rows))
    return "last_rows";
  if (view.ragged_rows != spec.rows())
    return "ragged_rows";
  if (view.compact_rows != expected.compact_rows)
    return "compact_rows";
  if (view.padded_rows != expected.padded_rows)
    return "padded_rows";
  if (view.max_seqlen != expected.max_seqlen)
    return "max_seqlen";
  if (view.sequences() != static_cast<std::int32_t>(spec.sequences()))
    return "sequences";
  return "";
}

enum class AxisOrder { one_axis, token_major, axis_major };

// Typed arrays of a spec, and the RaggedBatch over them. Values of the spec must fit the types.
template <class Token, class Position = std::int32_t, class Key = std::uint64_t>
class TypedBatch {
 public:
  explicit TypedBatch(const BatchSpec& spec, AxisOrder order = AxisOrder::one_axis)
      : cu_seqlens_(spec.cu_seqlens), past_lengths_(spec.past_lengths), opt_out_(spec.opt_out) {
    for (const std::int64_t token : spec.tokens) {
      tokens_.push_back(static_cast<Token>(token));
    }
    for (const radixmlp::Key128& key : spec.token_keys) {
      token_keys_.push_back(narrow(key));
    }
    for (const radixmlp::Key128& key : spec.sequence_keys) {
      sequence_keys_.push_back(narrow(key));
    }
    const auto axes = spec.positions.size();
    const auto rows = static_cast<std::size_t>(spec.rows());
    positions_.resize(axes * rows);
    const std::size_t token_stride = order == AxisOrder::token_major ? axes : 1;
    const std::size_t axis_stride = order == AxisOrder::token_major ? 1 : rows;
    for (std::size_t axis = 0; axis < axes; ++axis) {
      for (std::size_t i = 0; i < rows; ++i) {
        positions_[axis * axis_stride + i * token_stride] = static_cast<Position>(spec.positions[axis][i]);
      }
    }
    batch_.tokens = tokens_;
    batch_.cu_seqlens = cu_seqlens_;
    batch_.token_keys = token_keys_;
    batch_.sequence_keys = sequence_keys_;
    batch_.past_lengths = past_lengths_;
    batch_.opt_out = opt_out_;
    if (axes == 1 && order == AxisOrder::one_axis) {
      batch_.positions = positions_;
    } else if (axes > 0) {
      batch_.positions = {positions_, static_cast<std::int32_t>(axes), static_cast<std::int64_t>(token_stride),
                          static_cast<std::int64_t>(axis_stride)};
    }
  }
  TypedBatch(const TypedBatch&) = delete;
  TypedBatch& operator=(const TypedBatch&) = delete;

  const radixmlp::RaggedBatch<Token>& batch() const { return batch_; }

 private:
  static Key narrow(const radixmlp::Key128& key) {
    if constexpr (sizeof(Key) == sizeof(radixmlp::Key128)) {
      return key;
    } else {
      return key.lo;
    }
  }

  std::vector<Token> tokens_;
  std::vector<std::int32_t> cu_seqlens_;
  std::vector<Position> positions_;
  std::vector<Key> token_keys_, sequence_keys_;
  std::vector<std::int32_t> past_lengths_;
  std::vector<std::uint8_t> opt_out_;
  radixmlp::RaggedBatch<Token> batch_;
};

// A spec of token sequences alone.
inline BatchSpec spec_of(const std::vector<std::vector<std::int32_t>>& sequences) {
  BatchSpec spec;
  for (const auto& sequence : sequences) {
    spec.tokens.insert(spec.tokens.end(), sequence.begin(), sequence.end());
    spec.cu_seqlens.push_back(static_cast<std::int32_t>(spec.tokens.size()));
  }
  return spec;
}

// Random batches that share a lot and in every way: sequences are empty, new, copies, prefixes or branches of earlier
// ones; alphabets from 1 to all tokens; each attribute present or absent, with few distinct values so that they matter.
class RandomBatches {
 public:
  explicit RandomBatches(std::uint64_t seed) : random_(seed) {}

  BatchSpec next() {
    BatchSpec spec;
    const int alphabet = std::vector{1, 2, 3, 20, 50000}[below(5)];
    const std::size_t sequences = below(4) == 0 ? below(40) : below(8);
    const std::size_t longest = std::vector<std::size_t>{1, 4, 20, 90}[below(4)];
    std::vector<std::vector<std::int64_t>> earlier;
    for (std::size_t s = 0; s < sequences; ++s) {
      std::vector<std::int64_t> sequence;
      const std::size_t kind = below(8);
      if (kind > 0 && kind < 6 && !earlier.empty()) {
        sequence = earlier[below(earlier.size())];
        if (kind > 1) {
          sequence.resize(below(sequence.size() + 1));
        }
      }
      if (kind > 2) {
        for (std::size_t more = below(longest + 1); more > 0; --more) {
          sequence.push_back(static_cast<std::int64_t>(below(static_cast<std::size_t>(alphabet))));
        }
      }
      earlier.push_back(sequence);
      spec.tokens.insert(spec.tokens.end(), sequence.begin(), sequence.end());
      spec.cu_seqlens.push_back(static_cast<std::int32_t>(spec.tokens.size()));
    }
    spec.pad_to = std::vector{1, 1, 2, 8, 64}[below(5)];
    add_attributes(spec);
    return spec;
  }

  std::size_t below(std::size_t bound) { return std::uniform_int_distribution<std::size_t>(0, bound - 1)(random_); }

 private:
  void add_attributes(BatchSpec& spec) {
    const auto rows = static_cast<std::size_t>(spec.rows());
    const std::size_t axes = std::vector<std::size_t>{0, 0, 1, 3}[below(4)];
    for (std::size_t axis = 0; axis < axes; ++axis) {
      auto& positions = spec.positions.emplace_back();
      for (std::size_t s = 0; s < spec.sequences(); ++s) {
        // Some start elsewhere, some stand still, some jump back.
        std::int64_t position = below(3) == 0 ? static_cast<std::int64_t>(below(3)) : 0;
        const bool steady = below(2) == 0;
        for (std::int32_t i = spec.cu_seqlens[s]; i < spec.cu_seqlens[s + 1]; ++i) {
          positions.push_back(position);
          position = steady || below(12) != 0 ? std::min<std::int64_t>(position + 1, 120) : 0;
        }
      }
    }
    if (below(3) == 0) {
      for (std::size_t i = 0; i < rows; ++i) {
        spec.token_keys.push_back(below(10) == 0 ? random_key() : radixmlp::Key128{});
      }
      if (below(2) == 0) {
        spec.tokens.clear();
      }
    }
    for (std::size_t s = 0, with = below(3); with == 0 && s < spec.sequences(); ++s) {
      spec.sequence_keys.push_back(random_key());
    }
    for (std::size_t s = 0, with = below(3); with == 0 && s < spec.sequences(); ++s) {
      spec.past_lengths.push_back(static_cast<std::int32_t>(below(2) * 7));
    }
    for (std::size_t s = 0, with = below(3); with == 0 && s < spec.sequences(); ++s) {
      spec.opt_out.push_back(below(4) == 0 ? static_cast<std::uint8_t>(1 + below(255)) : std::uint8_t{0});
    }
  }

  // Differs in the low word or, for 128-bit keys, in the high word alone.
  radixmlp::Key128 random_key() { return {below(2) * 0x8000000000000000, below(2)}; }

  std::mt19937_64 random_;
};

}  // namespace radixmlp_test
