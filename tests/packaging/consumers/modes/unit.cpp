// SPDX-License-Identifier: MIT
#include "unit.hpp"

#include <cstdint>

#include "shared_prefix.hpp"

#if defined(WITH_OPENMP)
#include "radixmlp/executor_openmp.hpp"
#endif

namespace {

#if defined(WITH_OPENMP)
constexpr radixmlp::OpenMpExecutor executor;
#else
constexpr radixmlp::SerialExecutor executor;
#endif

constexpr std::int32_t tokens[]{1, 2, 3, 4, 1, 2, 3, 5};
constexpr std::int32_t cu_seqlens[]{0, 4, 8};
constexpr std::int32_t bad_cu_seqlens[]{0, 4, 9};

}  // namespace

namespace UNIT {

radixmlp::PrefixIndexView build(std::span<std::byte> memory) {
  radixmlp::PrefixTrie trie;
  return trie.build_into(memory, radixmlp::RaggedBatch<std::int32_t>{.tokens = tokens, .cu_seqlens = cu_seqlens}, {},
                         executor);
}

bool is_right(const radixmlp::PrefixIndexView& index, radixmlp::RowView<const float> ragged,
              radixmlp::RowView<float> compact) {
  radixmlp::gather_rows(executor, index, ragged, compact);
  for (std::int64_t j = 0; j < index.compact_rows; ++j) {
    if (*compact.row(j) != *ragged.row(index.gather[static_cast<std::size_t>(j)])) {
      return false;
    }
  }
  const radixmlp::PrefixIndex copy(index);
  return index.compact_rows == 5 && copy.view().scatter[4] == 0 && shared_prefix_works(7);
}

radixmlp::Status refusal() {
  radixmlp::PrefixTrie trie;
  radixmlp::PrefixIndexView index;
  return trie.try_build(radixmlp::RaggedBatch<std::int32_t>{.tokens = tokens, .cu_seqlens = bad_cu_seqlens}, {}, index);
}

// Whether a malformed batch is thrown here, and caught by its type.
bool throws() {
#if defined(__cpp_exceptions)
  try {
    radixmlp::PrefixTrie trie;
    static_cast<void>(trie.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = tokens, .cu_seqlens = bad_cu_seqlens}));
  } catch (const radixmlp::InvalidBatch& error) {
    return error.index() == 2;
  }
#endif
  return false;
}

}  // namespace UNIT
