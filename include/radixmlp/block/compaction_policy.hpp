// SPDX-License-Identifier: MIT
#pragma once

#include "radixmlp/index/prefix_index.hpp"

namespace radixmlp::inline v0 {

// When compaction pays. A pure function of the batch's counts, so that all ranks of a tensor-parallel group decide
// alike.
struct CompactionPolicy {
  // Compact if gamma = N'/N is at most this. Moving the rows of Q, K, V and O costs a few percent of a layer, so the
  // last tenth is not worth it. 1 compacts whenever there is something to share, 0 never does.
  double max_ratio = 0.9;

  [[nodiscard]] bool compacts(const PrefixIndexView& index) const noexcept {
    return index.compact_rows < index.ragged_rows && index.ratio() <= max_ratio;
  }
};

}  // namespace radixmlp::inline v0
