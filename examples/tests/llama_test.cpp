// SPDX-License-Identifier: MIT

// A trained model through CompactedBlock: the tokens it is known to give, and logits equal to the uncompacted run's.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "engine/token_file.hpp"
#include "llama/llama_model.hpp"
#include "llama/llama_session.hpp"
#include "support/catch.hpp"
#include "support/skip.hpp"

using example::LlamaModel;
using example::LlamaSession;
using radixmlp::AttentionLayout;
using Layout = std::optional<AttentionLayout>;

namespace {

const std::filesystem::path shared = RADIXMLP_SHARED_DIR;
const std::string checkpoint = (shared / "models" / "stories260K.bin").string();
const Layout layouts[] = {AttentionLayout::ragged, AttentionLayout::compact_query, AttentionLayout::paged};

std::string layout_name(Layout layout) { return layout ? radixmlp::name(*layout) : "not compacted"; }

std::vector<std::vector<std::int32_t>> requests_of(const example::TokenBatch& batch) {
  std::vector<std::vector<std::int32_t>> requests;
  for (std::size_t s = 1; s < batch.cu_seqlens.size(); ++s) {
    requests.emplace_back(batch.tokens.begin() + batch.cu_seqlens[s - 1], batch.tokens.begin() + batch.cu_seqlens[s]);
  }
  return requests;
}

double largest_difference(radixmlp::RowView<const float> a, radixmlp::RowView<const float> b) {
  double largest = a.rows() == b.rows() && a.width() == b.width() ? 0 : 1e9;
  for (std::int64_t i = 0; largest < 1e9 && i < a.rows(); ++i) {
    for (std::int64_t c = 0; c < a.width(); ++c) {
      const double difference = std::abs(static_cast<double>(a.row(i)[c]) - static_cast<double>(b.row(i)[c]));
      largest = std::isnan(difference) ? 1e9 : std::max(largest, difference);
    }
  }
  return largest;
}

}  // namespace

TEST_CASE("greedy decoding gives the reference's 256 tokens in every layout") {
  if (radixmlp_test::skip_without(std::filesystem::exists(checkpoint), checkpoint))
    return;
  std::ifstream file(shared / "models" / "stories260K_greedy256.ids.txt");
  std::vector<std::int32_t> expected;
  for (std::int32_t id = 0; file >> id;) {
    expected.push_back(id);
  }
  REQUIRE(expected.size() == 257);
  REQUIRE(expected[0] == 1);
  const LlamaModel model(checkpoint);
  for (const Layout layout : {Layout(), layouts[0], layouts[1], layouts[2]}) {
    CAPTURE(layout_name(layout));
    // Two copies from the first token on; one that has read 40 tokens and joins late, while the others decode; and one
    // that stays empty.
    LlamaSession session(model, 4, {.layout = layout});
    std::vector<std::vector<std::int32_t>> next{{1}, {1}, {}, {}};
    std::vector<std::vector<std::int32_t>> tokens = next;
    for (int step = 0; step < 256; ++step) {
      if (step == 20) {
        next[2].assign(expected.begin(), expected.begin() + 40);
        tokens[2] = next[2];
      }
      const auto logits = session.append(next);
      for (std::size_t s = 0; s < 3; ++s) {
        if (!tokens[s].empty()) {
          next[s] = {example::most_likely(logits, static_cast<std::int64_t>(s))};
          tokens[s].push_back(next[s][0]);
        }
      }
    }
    CHECK(tokens[0] == expected);
    CHECK(tokens[1] == expected);
    tokens[2].resize(257);
    CHECK(tokens[2] == expected);
    // Rows of the copies are one.
    CHECK(session.rows_computed() == (layout ? 256 : 512) + 40 + 235);
  }
}

TEST_CASE("logits of all rows and of last rows equal those of the uncompacted run within 1e-4") {
  const std::string workload = (shared / "workloads" / "stories260k_rollouts_g16.jsonl").string();
  if (radixmlp_test::skip_without(std::filesystem::exists(workload), workload))
    return;
  const LlamaModel model(checkpoint);
  // RADIXMLP_LLAMA_ROWS: rows a batch, all batches; else the first few requests alone.
  const char* const rows = std::getenv("RADIXMLP_LLAMA_ROWS");
  std::vector<example::TokenBatch> batches =
      example::read_token_file(workload, rows == nullptr ? 2048 : std::atoll(rows));
  if (rows == nullptr) {
    batches.resize(1);
  }
  double largest = 0;
  std::int64_t all_rows = 0, computed_rows = 0;
  for (const example::TokenBatch& batch : batches) {
    const auto requests = requests_of(batch);
    LlamaSession plain(model, requests.size(), {.layout = {}, .all_rows = true});
    LlamaSession plain_last(model, requests.size(), {.layout = {}});
    const auto expected = plain.append(requests);
    const auto expected_last = plain_last.append(requests);
    all_rows += plain.rows_computed();
    for (const Layout layout : layouts) {
      CAPTURE(layout_name(layout));
      LlamaSession session(model, requests.size(), {.layout = layout, .all_rows = true});
      LlamaSession last(model, requests.size(), {.layout = layout});
      const double difference = std::max(largest_difference(session.append(requests), expected),
                                         largest_difference(last.append(requests), expected_last));
      CHECK(difference <= 1e-4);
      CHECK(session.rows_computed() < plain.rows_computed());
      largest = std::max(largest, difference);
      computed_rows += layout == layouts[2] ? session.rows_computed() : 0;
    }
  }
  if (rows != nullptr) {
    WARN(all_rows << " rows, " << computed_rows << " computed; largest difference of a logit " << largest);
  }
}

TEST_CASE("files that are no checkpoint are refused") {
  if (radixmlp_test::skip_without(std::filesystem::exists(checkpoint), checkpoint))
    return;
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "radixmlp_llama_test";
  std::filesystem::create_directories(folder);
  const std::string path = (folder / "model.bin").string();
  CHECK_THROWS_WITH(LlamaModel(path + ".none"), path + ".none: no checkpoint of llama2.c, or none that can be read");
  std::filesystem::copy_file(checkpoint, path, std::filesystem::copy_options::overwrite_existing);
  std::filesystem::resize_file(path, 100'000);
  CHECK_THROWS_WITH(LlamaModel(path), path + ": ends before the last weight");
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).write("\0\0\0\0", 4);
  CHECK_THROWS_WITH(LlamaModel(path), path + ": the header is not that of a llama2.c checkpoint");
  std::filesystem::remove_all(folder);
}
