// SPDX-License-Identifier: MIT
#pragma once

#include <memory>

#include "support/workloads.hpp"

namespace radixmlp_bench {

// PrefixTrie as a compiler makes it for this machine's processor (-march=native), beside the portable one.
class NativeTrie {
 public:
  NativeTrie();
  ~NativeTrie();
  void build(const Batch& batch);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace radixmlp_bench
