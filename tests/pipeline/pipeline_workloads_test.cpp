// SPDX-License-Identifier: MIT

// Batches cut at random from real workloads: what the pipeline gives is what a direct build gives, in order.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/support/workloads.hpp"
#include "radixmlp/pipeline/index_pipeline.hpp"
#include "support/catch.hpp"
#include "support/skip.hpp"

using radixmlp::IndexPipeline;
using radixmlp::PrefixIndexView;
using radixmlp_bench::Batch;

namespace {

using Requests = std::vector<std::vector<std::int32_t>>;

std::vector<Requests> load_workloads(const std::filesystem::path& folder) {
  constexpr std::size_t max_tokens = 100'000;  // of each
  std::vector<Requests> workloads;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jsonl") {
      workloads.push_back(radixmlp_bench::load_requests(entry.path().string(), max_tokens));
    }
  }
  return workloads;
}

// Batch n: neighbours of one workload, from a random place up to a random budget. Always the same for an n.
Batch cut(const std::vector<Requests>& workloads, std::uint64_t n) {
  std::mt19937_64 random(n);
  const Requests& requests = workloads[random() % workloads.size()];
  const std::size_t budget = std::size_t{1} << (6 + random() % 11);
  Batch batch;
  for (std::size_t at = random() % requests.size(); at < requests.size() && batch.tokens.size() < budget; ++at) {
    batch.add(requests[at]);
  }
  return batch;
}

bool equal(const PrefixIndexView& a, const PrefixIndexView& b) {
  return std::ranges::equal(a.gather, b.gather) && std::ranges::equal(a.scatter, b.scatter) &&
         std::ranges::equal(a.compact_cu, b.compact_cu) && std::ranges::equal(a.ragged_cu, b.ragged_cu) &&
         std::ranges::equal(a.parent, b.parent) && std::ranges::equal(a.last_rows, b.last_rows) &&
         a.ragged_rows == b.ragged_rows && a.compact_rows == b.compact_rows && a.padded_rows == b.padded_rows &&
         a.max_seqlen == b.max_seqlen;
}

}  // namespace

TEST_CASE("batches of real workloads come out in order and equal to a direct build") {
  const std::filesystem::path folder = std::filesystem::path(RADIXMLP_SHARED_DIR) / "workloads";
  if (radixmlp_test::skip_without(std::filesystem::is_directory(folder), "workloads at " + folder.string()))
    return;
  const std::vector<Requests> workloads = load_workloads(folder);
  REQUIRE(workloads.size() >= 16);
  constexpr std::uint64_t batches = 5000;  // each way

  radixmlp::PrefixTrie direct;
  std::int64_t rows = 0, compact_rows = 0;
  for (const bool own_thread_submits : {false, true}) {
    constexpr std::int32_t slots = 3;
    IndexPipeline pipeline({.slots = slots, .workers = own_thread_submits ? 2 : 1});
    const std::uint64_t first = own_thread_submits ? batches : 0;
    // submit() of batch n - 1 has returned, so batch n - 1 - slots is released.
    std::vector<Batch> alive(slots + 1);
    const auto submit = [&](std::uint64_t n) {
      Batch& batch = alive[n % alive.size()] = cut(workloads, first + n);
      return pipeline.submit(batch.view(), {.pad_to = 16});
    };
    std::thread producer;
    if (own_thread_submits) {
      producer = std::thread([&] {
        for (std::uint64_t n = 0; n < batches && submit(n); ++n) {
        }
        pipeline.close();
      });
    } else {
      REQUIRE(submit(0));
      REQUIRE(submit(1));
    }
    std::uint64_t wrong = 0;
    for (std::uint64_t n = 0; n < batches; ++n) {
      if (!own_thread_submits && n + 2 < batches) {
        REQUIRE(submit(n + 2));
      }
      const auto lease = pipeline.take();
      REQUIRE(lease);
      const Batch expected = cut(workloads, first + n);
      wrong += lease.number() != n || !std::ranges::equal(lease.batch().tokens, expected.tokens) ||
               !equal(lease.view(), direct.build(expected.view(), {.pad_to = 16}));
      rows += lease.view().ragged_rows;
      compact_rows += lease.view().compact_rows;
    }
    CHECK(wrong == 0);
    if (producer.joinable()) {
      producer.join();
    }
  }
  CHECK(compact_rows < rows);  // they do share
  std::printf("%llu batches, %lld rows, %lld compact\n", static_cast<unsigned long long>(2 * batches),
              static_cast<long long>(rows), static_cast<long long>(compact_rows));
}
