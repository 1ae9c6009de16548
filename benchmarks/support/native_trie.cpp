// SPDX-License-Identifier: MIT
#include "support/native_trie.hpp"

#include <benchmark/benchmark.h>

#include "radixmlp/index/prefix_trie.hpp"

namespace radixmlp_bench {

struct NativeTrie::Impl {
  radixmlp::PrefixTrie trie;
};

NativeTrie::NativeTrie() : impl_(std::make_unique<Impl>()) {}
NativeTrie::~NativeTrie() = default;

void NativeTrie::build(const Batch& batch) { benchmark::DoNotOptimize(impl_->trie.build(batch.view()).scatter.data()); }

}  // namespace radixmlp_bench
