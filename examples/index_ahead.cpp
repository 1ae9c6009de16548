// SPDX-License-Identifier: MIT

// A serving loop whose next indices are built while it computes.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "radixmlp/pipeline/index_pipeline.hpp"

namespace {

struct Batch {
  std::vector<std::int32_t> tokens, cu_seqlens;
};

void compute(const Batch&, const radixmlp::PrefixIndexView& index) { std::printf("%d ", index.compact_rows); }

}  // namespace

int main() {
  const std::vector<Batch> batches{{{7, 8, 7, 8}, {0, 2, 4}}, {{1, 2, 3}, {0, 3}}, {{5, 5, 5}, {0, 1, 2, 3}}};
  // [loop]
  radixmlp::IndexPipeline pipeline({.slots = 3, .workers = 1});
  for (std::size_t submitted = 0, step = 0; step < batches.size(); ++step) {
    while (submitted < batches.size() &&
           pipeline.try_submit({.tokens = batches[submitted].tokens, .cu_seqlens = batches[submitted].cu_seqlens})) {
      ++submitted;  // its index is built while this thread computes
    }
    const auto lease = pipeline.take();    // the next batch, in order, and its slot until the scope ends
    compute(batches[step], lease.view());  // throws here if this batch was malformed
  }
  // [/loop]
  std::printf("\n");
}
