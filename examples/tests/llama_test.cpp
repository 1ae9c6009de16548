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
#include "llama/llama_training.hpp"
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

TEST_CASE("one step of training: loss and gradients equal those of the uncompacted model") {
  const std::string workload = (shared / "workloads" / "stories260k_rollouts_g16.jsonl").string();
  if (radixmlp_test::skip_without(std::filesystem::exists(workload), workload))
    return;
  LlamaModel model(checkpoint);
  // RADIXMLP_LLAMA_ROWS: so many rows of rollouts; else a few short ones, with a copy and a prefix.
  const char* const rows = std::getenv("RADIXMLP_LLAMA_ROWS");
  std::vector<std::vector<std::int32_t>> requests =
      requests_of(example::read_token_file(workload, rows == nullptr ? 2048 : std::atoll(rows))[0]);
  if (rows == nullptr) {
    requests.resize(5);
    for (auto& request : requests) {
      request.resize(100);
    }
    requests.push_back(requests[1]);
    requests.emplace_back(requests[2].begin(), requests[2].begin() + 90);
    requests.emplace_back();
  }
  std::vector<std::int32_t> tokens, cu_seqlens{0};
  std::vector<float> weights;
  for (const auto& request : requests) {
    tokens.insert(tokens.end(), request.begin(), request.end());
    cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
  }
  for (std::size_t s = 0; s < requests.size(); ++s) {  // a mean over all tokens, some sequences counting more
    weights.push_back((s % 3 == 0 ? 1.5F : 1.0F) / static_cast<float>(tokens.size()));
  }

  // The loss by another way: scores of every row in a session that shares nothing.
  LlamaSession session(model, requests.size(), {.layout = {}, .all_rows = true});
  const auto logits = session.append(requests);
  double loss = 0;
  for (std::size_t s = 0; s < requests.size(); ++s) {
    for (std::int32_t i = cu_seqlens[s] + 1; i < cu_seqlens[s + 1]; ++i) {
      const float* const row = logits.row(i - 1);
      double sum = 0;
      for (std::int64_t v = 0; v < logits.width(); ++v) {
        sum += std::exp(static_cast<double>(row[v] - row[tokens[static_cast<std::size_t>(i)]]));
      }
      loss += static_cast<double>(weights[s]) * std::log(sum);
    }
  }

  auto expected = example::LlamaTrainer(model, {.layout = {}}).gradients(tokens, cu_seqlens, weights);
  CHECK(expected.loss == Approx(loss).epsilon(1e-5));
  CHECK(expected.rows == static_cast<std::int64_t>(tokens.size()));
  double largest = 0, squares = 0;
  expected.gradients.for_each([&](std::vector<float>& weight) {
    for (const float value : weight) {
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
  });
  for (const Layout layout : layouts) {
    CAPTURE(layout_name(layout));
    auto actual = example::LlamaTrainer(model, {.layout = layout}).gradients(tokens, cu_seqlens, weights);
    CHECK(actual.loss == Approx(expected.loss).epsilon(1e-5));
    CHECK(actual.rows < expected.rows);
    std::vector<std::vector<float>*> all;
    expected.gradients.for_each([&](std::vector<float>& weight) { all.push_back(&weight); });
    std::size_t next = 0;
    double difference = 0;
    actual.gradients.for_each([&](std::vector<float>& weight) {
      const std::vector<float>& other = *all[next++];
      REQUIRE(weight.size() == other.size());
      for (std::size_t i = 0; i < weight.size(); ++i) {
        const double d = std::abs(static_cast<double>(weight[i]) - static_cast<double>(other[i]));
        difference = std::isnan(d) ? 1e9 : std::max(difference, d);
      }
    });
    CHECK(difference <= 2e-5);
    largest = std::max(largest, difference);
  }
  // And they are gradients: a small step against them lowers the loss by as much as they say.
  const double step = 1e-3 / std::sqrt(squares);
  const auto moved_loss = [&](double by) {
    LlamaModel moved = model;
    std::vector<std::vector<float>*> all;
    expected.gradients.for_each([&](std::vector<float>& weight) { all.push_back(&weight); });
    std::size_t next = 0;
    moved.weights().for_each([&](std::vector<float>& weight) {
      const std::vector<float>& gradient = *all[next++];
      for (std::size_t i = 0; i < weight.size(); ++i) {
        weight[i] -= static_cast<float>(by) * gradient[i];
      }
    });
    return example::LlamaTrainer(moved, {.layout = AttentionLayout::paged}).gradients(tokens, cu_seqlens, weights).loss;
  };
  CHECK(moved_loss(-step) - moved_loss(step) == Approx(2 * step * squares).epsilon(0.02));
  CHECK(moved_loss(step) < expected.loss);
  if (rows != nullptr) {
    WARN(tokens.size() << " rows: largest difference of a gradient " << largest << ", norm " << std::sqrt(squares));
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
