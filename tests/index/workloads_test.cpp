// SPDX-License-Identifier: MIT

// Real request batches: N' against the published table, every map against the tokens, and what memory attention needs.

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/support/workloads.hpp"
#include "radixmlp/block/compacted_block.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "support/catch.hpp"
#include "support/skip.hpp"

using radixmlp::PrefixIndexView;
using radixmlp_bench::Batch;

namespace {

struct TableRow {
  std::string name;
  std::int64_t sequences, tokens, compact_16k, compact_64k;
};

// | workload | sequences | tokens N | mean | max | N' at 16,384 | N' at 65,536 | ...
std::vector<TableRow> read_table(const std::filesystem::path& folder) {
  std::vector<TableRow> rows;
  std::ifstream file(folder / "README.md");
  for (std::string line; std::getline(file, line);) {
    std::replace(line.begin(), line.end(), '|', ' ');
    std::istringstream fields(line);
    TableRow row;
    std::int64_t mean = 0, longest = 0;
    if (fields >> row.name >> row.sequences >> row.tokens >> mean >> longest >> row.compact_16k >> row.compact_64k) {
      rows.push_back(row);
    }
  }
  return rows;
}

// The maps prove themselves: equal rows are one row (tokens and positions come back), and rows of the index are
// different ones (no two have the same parent and token), so N' is the number of distinct prefixes.
void check_maps(const Batch& batch, const PrefixIndexView& index) {
  std::int64_t wrong = 0;
  std::vector<std::int32_t> position(batch.tokens.size());
  for (std::size_t s = 0; s < batch.sequences(); ++s) {
    std::int32_t before = -1;
    for (std::int32_t i = batch.cu_seqlens[s]; i < batch.cu_seqlens[s + 1]; ++i) {
      const auto at = static_cast<std::size_t>(i);
      position[at] = i - batch.cu_seqlens[s];
      const std::int32_t row = index.scatter[at];
      const auto source = static_cast<std::size_t>(index.gather[static_cast<std::size_t>(row)]);
      wrong += source > at;
      wrong += batch.tokens[source] != batch.tokens[at];
      wrong += position[source] != position[at];
      wrong += index.parent[static_cast<std::size_t>(row)] != before;
      before = row;
    }
    wrong += index.last_rows[s] != before;
  }
  CHECK(wrong == 0);
  std::vector<std::pair<std::int32_t, std::int32_t>> nodes;
  for (std::int32_t row = 0; row < index.compact_rows; ++row) {
    const auto at = static_cast<std::size_t>(row);
    nodes.emplace_back(index.parent[at], batch.tokens[static_cast<std::size_t>(index.gather[at])]);
  }
  std::sort(nodes.begin(), nodes.end());
  CHECK(std::adjacent_find(nodes.begin(), nodes.end()) == nodes.end());
}

// Activation memory of attention on compact rows, with the widths of Qwen3-0.6B: at most gamma times what it is without
// compaction, but for the alignment of the tensors.
void check_workspace(const PrefixIndexView& index) {
  using Block = radixmlp::CompactedBlock<std::uint16_t>;
  constexpr radixmlp::AttentionWidths widths{.q = 2048, .k = 1024, .v = 1024, .out = 2048};
  const radixmlp::AttentionPlanOptions options{.group_keys = std::max(index.compact_rows / 2, 1)};
  std::vector<std::int32_t> memory(radixmlp::attention_plan_entries(index, options));
  const radixmlp::AttentionPlan plan = radixmlp::attention_plan(index, memory, options);
  const auto without = static_cast<double>(Block::workspace_bytes(widths, index.ragged_rows, 0));
  for (const auto layout : {radixmlp::AttentionLayout::compact_query, radixmlp::AttentionLayout::paged}) {
    const radixmlp::CompactionDecision decision{index.ragged_rows, index.compact_rows, true, layout};
    CAPTURE(name(layout));
    CHECK(static_cast<double>(Block::workspace_bytes(widths, index, decision, plan)) <=
          index.ratio() * without + 3 * radixmlp::workspace_alignment);
  }
}

std::filesystem::path workload_file(const std::filesystem::path& folder, const std::string& name) {
  const std::filesystem::path tokens = folder / (name + ".jsonl");
  return std::filesystem::exists(tokens) ? tokens : folder / (name + ".blk512.jsonl");
}

}  // namespace

TEST_CASE("N' of every workload at both budgets") {
  const std::filesystem::path folder = std::filesystem::path(RADIXMLP_SHARED_DIR) / "workloads";
  if (radixmlp_test::skip_without(std::filesystem::exists(folder / "README.md"), "workloads at " + folder.string()))
    return;
  const std::vector<TableRow> table = read_table(folder);
  REQUIRE(table.size() >= 16);
  radixmlp::PrefixTrie trie;
  for (const TableRow& row : table) {
    CAPTURE(row.name);
    const auto requests = radixmlp_bench::load_requests(workload_file(folder, row.name).string());
    CHECK(static_cast<std::int64_t>(requests.size()) == row.sequences);
    for (const auto& [budget, expected] : {std::pair{16'384, row.compact_16k}, std::pair{65'536, row.compact_64k}}) {
      std::int64_t tokens = 0;
      std::int64_t compact = 0;
      for (const Batch& batch : radixmlp_bench::batches(requests, static_cast<std::size_t>(budget))) {
        const PrefixIndexView index = trie.build(batch.view());
        check_maps(batch, index);
        if (row.name.find("trace") == std::string::npos) {  // of blocks, some longer than all others in their batch
          check_workspace(index);
        }
        tokens += index.ragged_rows;
        compact += index.compact_rows;
      }
      CHECK(tokens == row.tokens);
      CHECK(compact == expected);
    }
  }
}
