// SPDX-License-Identifier: MIT

// The sample that ships with the project, as one batch.

#include "benchmarks/support/workloads.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "support/catch.hpp"

TEST_CASE("the shipped sample: N = 36,108, N' = 21,874") {
  const auto requests = radixmlp_bench::load_requests(RADIXMLP_SOURCE_DIR "/examples/data/rerank.jsonl");
  REQUIRE(requests.size() == 160);
  const auto batches = radixmlp_bench::batches(requests, 1'000'000);
  REQUIRE(batches.size() == 1);
  radixmlp::PrefixTrie trie;
  const radixmlp::PrefixIndexView index = trie.build(batches[0].view());
  CHECK(index.ragged_rows == 36'108);
  CHECK(index.compact_rows == 21'874);
  CHECK(index.max_seqlen == 327);
  CHECK(index.sequences() == 160);
}
