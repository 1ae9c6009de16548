// SPDX-License-Identifier: MIT

// libFuzzer target: any bytes are a batch; its index must equal the oracle's in every field, or be refused where a rule
// is broken. A batch that the library refuses must not have been valid.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "radixmlp/index/prefix_trie.hpp"
#include "support/batch_spec.hpp"

namespace {

using namespace radixmlp_test;

class Bytes {
 public:
  explicit Bytes(std::span<const std::uint8_t> bytes) : bytes_(bytes) {}
  [[nodiscard]] bool empty() const { return at_ == bytes_.size(); }
  std::uint8_t next() { return empty() ? std::uint8_t{0} : bytes_[at_++]; }

 private:
  std::span<const std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

// The first byte says which attributes there are, the second the padding and the types; then, for each sequence: how
// much of which earlier sequence it repeats, its own tokens, and its attributes.
BatchSpec read_spec(Bytes& bytes, std::uint8_t attributes, std::int32_t pad_to) {
  BatchSpec spec;
  spec.pad_to = pad_to;
  spec.positions.resize((attributes & 1) != 0 ? 1 : (attributes & 2) != 0 ? 3 : 0);
  while (!bytes.empty() && spec.sequences() < 64 && spec.rows() < 2000) {
    std::size_t source = 0, repeated = 0;
    const std::uint8_t how = bytes.next();
    if (const std::size_t earlier = spec.sequences(); earlier > 0 && (how & 3) != 0) {
      const std::size_t s = bytes.next() % earlier;
      source = static_cast<std::size_t>(spec.cu_seqlens[s]);
      const auto length = static_cast<std::size_t>(spec.cu_seqlens[s + 1]) - source;
      repeated = (how & 3) == 1 ? length : bytes.next() % (length + 1);
    }
    const std::size_t fresh = how >> 4;
    for (std::size_t i = 0; i < repeated + fresh; ++i) {
      const bool repeats = i < repeated;
      spec.tokens.push_back(repeats ? spec.tokens[source + i] : bytes.next() & 7);
      if ((attributes & 4) != 0) {
        const std::uint64_t key = bytes.next() % 17 == 0 ? 1 : 0;
        spec.token_keys.push_back(repeats ? spec.token_keys[source + i] : radixmlp::Key128{key, 0});
      }
      for (auto& axis : spec.positions) {
        axis.push_back(repeats ? axis[source + i] : bytes.next() & 127);
      }
    }
    spec.cu_seqlens.push_back(static_cast<std::int32_t>(spec.tokens.size()));
    if ((attributes & 8) != 0) {
      spec.sequence_keys.push_back({bytes.next() & 1U, 0});
    }
    if ((attributes & 16) != 0) {
      spec.past_lengths.push_back(bytes.next() & 1);
    }
    if ((attributes & 32) != 0) {
      spec.opt_out.push_back(bytes.next() % 5 == 0 ? 1 : 0);
    }
  }
  if ((attributes & 64) != 0 && !spec.token_keys.empty()) {
    spec.tokens.clear();
  }
  return spec;
}

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  std::abort();
}

template <class Token, class Position>
void check(const BatchSpec& spec, const OracleIndex& expected) {
  static radixmlp::PrefixTrie trie;  // what an earlier batch left must not show
  const AxisOrder order = spec.positions.size() == 1 ? AxisOrder::one_axis : AxisOrder::token_major;
  const TypedBatch<Token, Position> typed(spec, order);
  radixmlp::PrefixIndexView view;
  const radixmlp::Status status = trie.try_build(typed.batch(), {.pad_to = spec.pad_to}, view);
  if (!status.ok()) {
    fail("a valid batch was refused: " + status.message());
  }
  if (const std::string field = difference(view, expected, spec); !field.empty()) {
    fail(field + " differs from the oracle");
  }
}

// The same batch with one entry of cu_seqlens changed: refused, or still valid.
void check_broken(BatchSpec spec, Bytes& bytes) {
  const std::size_t at = bytes.next() % spec.cu_seqlens.size();
  spec.cu_seqlens[at] += static_cast<std::int32_t>(static_cast<std::int8_t>(bytes.next()));
  bool valid = spec.cu_seqlens.front() == 0 && spec.cu_seqlens.back() == static_cast<std::int32_t>(spec.tokens.size());
  for (std::size_t s = 1; s < spec.cu_seqlens.size(); ++s) {
    valid = valid && spec.cu_seqlens[s - 1] <= spec.cu_seqlens[s];
  }
  std::vector<std::int32_t> tokens(spec.tokens.begin(), spec.tokens.end());
  radixmlp::RaggedBatch<std::int32_t> batch;
  batch.tokens = tokens;
  batch.cu_seqlens = spec.cu_seqlens;
  radixmlp::PrefixTrie trie;
  radixmlp::PrefixIndexView view;
  if (trie.try_build(batch, {}, view).ok() != valid) {
    fail(valid ? "a valid batch was refused" : "a broken batch was accepted");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes({data, size});
  const std::uint8_t attributes = bytes.next();
  const std::uint8_t types = bytes.next();
  const BatchSpec spec = read_spec(bytes, attributes, 1 + types % 16);
  const OracleIndex expected = oracle(spec);
  check<std::int32_t, std::int32_t>(spec, expected);
  if ((types & 64) != 0) {
    check<std::int64_t, std::uint8_t>(spec, expected);
  } else {
    check<std::uint32_t, std::int16_t>(spec, expected);
  }
  if (spec.token_keys.empty()) {
    Bytes again({data, size});
    check_broken(spec, again);
  }
  return 0;
}
