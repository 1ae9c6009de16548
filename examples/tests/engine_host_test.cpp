// SPDX-License-Identifier: MIT
#include "engine/cpu_engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/token_file.hpp"
#include "support/catch.hpp"
#include "tests/reference_model.hpp"

namespace {

using namespace example;
using radixmlp::RowView;

static_assert(radixmlp::HostExecutor<ThreadPool>);

constexpr radixmlp::CompactionPolicy never{.max_ratio = 0};
constexpr radixmlp::CompactionPolicy always{.max_ratio = 1};

struct alignas(radixmlp::workspace_alignment) Chunk {
  std::byte bytes[radixmlp::workspace_alignment];
};

std::vector<LayerWeights> random_layers(const ModelConfig& config, std::uint32_t count) {
  std::vector<LayerWeights> layers;
  for (std::uint32_t layer = 0; layer < count; ++layer) {
    layers.emplace_back(config, layer);
  }
  return layers;
}

TokenBatch batch_of(const std::vector<std::vector<std::int32_t>>& requests) {
  TokenBatch batch;
  for (const auto& request : requests) {
    batch.append(request);
  }
  return batch;
}

// Shared prefixes, a whole duplicate, a prefix of another, empty sequences, and one that shares nothing.
TokenBatch sharing_batch() {
  std::vector<std::int32_t> prefix;
  for (std::int32_t t = 0; t < 40; ++t) {
    prefix.push_back(1000 + t % 7);
  }
  const auto with_tail = [&](std::int32_t token, int count) {
    std::vector<std::int32_t> request = prefix;
    request.insert(request.end(), static_cast<std::size_t>(count), token);
    return request;
  };
  return batch_of(
      {{}, with_tail(1, 30), with_tail(2, 31), with_tail(1, 30), prefix, {}, {5, 6, 7}, with_tail(1, 90), {}});
}

// The hidden states of all rows, as the demo computes them.
std::vector<float> run_engine(const ModelConfig& config, const std::vector<LayerWeights>& layers,
                              const TokenBatch& batch, radixmlp::CompactionPolicy policy, std::int32_t pad_to = 1,
                              int threads = 2, radixmlp::AttentionLayout layout = radixmlp::AttentionLayout::ragged,
                              std::int32_t group_keys = 0) {
  const ThreadPool pool(threads);
  CpuEngine engine(config, pool, 512);
  radixmlp::PrefixTrie trie;
  const radixmlp::PrefixIndexView index = trie.build(batch.ragged(), {.pad_to = pad_to});
  const radixmlp::CompactionDecision decision = policy.decide(index, layout);
  const radixmlp::AttentionPlanOptions options{.group_keys = group_keys};
  std::vector<std::int32_t> plan_memory(radixmlp::attention_plan_entries(index, options));
  const radixmlp::AttentionPlan plan = radixmlp::attention_plan(index, plan_memory, options);
  std::vector<Chunk> workspace(
      radixmlp::CompactedBlock<float>::workspace_bytes(config.widths(), index, decision, plan) / sizeof(Chunk));
  const radixmlp::CompactedBlock<float> block(index, config.widths(), std::as_writable_bytes(std::span(workspace)),
                                              decision, plan);
  const auto rows = static_cast<std::int64_t>(batch.tokens.size());
  const auto all_rows = static_cast<std::size_t>(std::max(rows, block.rows()));
  std::vector<std::int32_t> token_storage(all_rows), position_storage(all_rows);
  const auto select = [&](const std::vector<std::int32_t>& values, std::vector<std::int32_t>& storage) {
    return block.select(pool, RowView<const std::int32_t>(values.data(), rows, 1),
                        RowView<std::int32_t>(storage.data(), block.rows(), 1));
  };
  const auto tokens = select(batch.tokens, token_storage);
  const auto positions = select(batch.positions, position_storage);

  std::vector<float> hidden_storage(all_rows * static_cast<std::size_t>(config.hidden));
  std::vector<float> output(static_cast<std::size_t>(rows * config.hidden));
  const RowView<float> hidden(hidden_storage.data(), block.rows(), config.hidden);
  engine.embed(tokens, hidden);
  for (const LayerWeights& layer : layers) {
    block.forward(
        pool, hidden,
        [&](const auto& x, const auto& q, const auto& k, const auto& v) {
          engine.pre_attention(layer, positions, x, q, k, v);
        },
        radixmlp::serving<radixmlp::AttentionLayout::ragged, radixmlp::AttentionLayout::compact_query,
                          radixmlp::AttentionLayout::paged>(
            [&](const radixmlp::AttentionCall<float>& call) { engine.attention(call); }),
        [&](const auto& out, const auto& x) { engine.post_attention(layer, out, x); });
  }
  const RowView<float> expanded = block.expand(pool, hidden, RowView<float>(output.data(), rows, config.hidden));
  return {expanded.data(), expanded.data() + output.size()};
}

}  // namespace

TEST_CASE("decoder layers equal the reference in double, with and without compaction") {
  const ModelConfig config = find_preset("tiny");
  const std::vector<LayerWeights> layers = random_layers(config, 3);
  const TokenBatch batch = sharing_batch();
  const reference::Rows expected = reference::forward(config, layers, batch);

  CHECK(reference::relative_difference(run_engine(config, layers, batch, never), expected) <= 1e-5);
  CHECK(reference::relative_difference(run_engine(config, layers, batch, always), expected) <= 1e-5);
  CHECK(reference::relative_difference(run_engine(config, layers, batch, always, 8), expected) <= 1e-5);
  CHECK(reference::relative_difference(run_engine(config, layers, batch, always, 8, 1), expected) <= 1e-5);
  for (const auto layout : {radixmlp::AttentionLayout::compact_query, radixmlp::AttentionLayout::paged}) {
    CHECK(reference::relative_difference(run_engine(config, layers, batch, always, 8, 2, layout), expected) <= 1e-5);
  }
  const auto in_groups = run_engine(config, layers, batch, always, 8, 2, radixmlp::AttentionLayout::compact_query, 200);
  CHECK(reference::relative_difference(in_groups, expected) <= 1e-5);
}

TEST_CASE("branches anywhere in a tile of queries or keys, in every layout") {
  const ModelConfig config = find_preset("tiny");
  const std::vector<LayerWeights> layers = random_layers(config, 1);
  std::vector<std::vector<std::int32_t>> requests(1);
  for (std::int32_t i = 0; i < 400; ++i) {
    requests[0].push_back(i % 97);
  }
  for (const std::size_t shared : {1U, 63U, 255U, 256U, 257U, 300U, 400U}) {
    requests.emplace_back(requests[0].begin(), requests[0].begin() + static_cast<std::ptrdiff_t>(shared));
    requests.back().insert(requests.back().end(), 70, 500 + static_cast<std::int32_t>(shared));
  }
  const TokenBatch batch = batch_of(requests);
  const reference::Rows expected = reference::forward(config, layers, batch);
  for (const auto layout : {radixmlp::AttentionLayout::ragged, radixmlp::AttentionLayout::compact_query,
                            radixmlp::AttentionLayout::paged}) {
    CHECK(reference::relative_difference(run_engine(config, layers, batch, always, 1, 2, layout), expected) <= 1e-5);
  }
}

TEST_CASE("a batch of empty sequences passes through the engine") {
  const ModelConfig config = find_preset("tiny");
  CHECK(run_engine(config, random_layers(config, 1), batch_of({{}, {}}), always).empty());
}

TEST_CASE("activations stay of order one over many layers") {
  const ModelConfig config = find_preset("tiny");
  const std::vector<float> hidden = run_engine(config, random_layers(config, 12), sharing_batch(), always);
  const float squares = reduce(
      hidden.data(), static_cast<std::int64_t>(hidden.size()), 0, [](float v) { return v * v; }, std::plus<float>{});
  const double rms = std::sqrt(squares / static_cast<float>(hidden.size()));
  CHECK(rms > 0.5);
  CHECK(rms < 20);
}

TEST_CASE("attention equals a full softmax in double at the edges of its tiles") {
  const std::vector<std::int64_t> q_heads_of_two{2, 4, 8};  // groups of 1, 2 and 4
  const std::vector<std::int32_t> lengths{1, 63, 64, 65, 0, 128, 255, 256, 257, 321, 513};
  for (const std::int64_t q_heads : q_heads_of_two) {
    ModelConfig config = find_preset("tiny");
    config.q_heads = q_heads;
    const radixmlp::AttentionWidths widths = config.widths();
    std::vector<std::int32_t> cu_seqlens{0};
    for (const std::int32_t length : lengths) {
      cu_seqlens.push_back(cu_seqlens.back() + length);
    }
    const std::int64_t rows = cu_seqlens.back();
    std::vector<float> qkv(static_cast<std::size_t>(rows * widths.qkv()));
    for (std::size_t i = 0; i < qkv.size(); ++i) {
      qkv[i] =
          4 * noise(7, static_cast<std::uint32_t>(i));  // scores up to tens: a softmax without shift overflows sums
    }
    const RowView<const float> packed(qkv.data(), rows, widths.qkv());
    const auto in_double = [&](std::int64_t first, std::int64_t width) {
      reference::Rows out;
      for (std::int64_t r = 0; r < rows; ++r) {
        const float* const row = packed.columns(first, width).row(r);
        out.emplace_back(row, row + width);
      }
      return out;
    };
    const reference::Rows expected = reference::attention(config, in_double(0, widths.q), in_double(widths.q, widths.k),
                                                          in_double(widths.q + widths.k, widths.v), cu_seqlens);

    std::vector<float> out(static_cast<std::size_t>(rows * widths.out), NAN);
    const ThreadPool pool(2);
    CpuEngine(config, pool, 1)
        .attention({.q = packed.columns(0, widths.q),
                    .k = packed.columns(widths.q, widths.k),
                    .v = packed.columns(widths.q + widths.k, widths.v),
                    .out = RowView<float>(out.data(), rows, widths.out),
                    .cu_seqlens = cu_seqlens,
                    .max_seqlen = 513,
                    .plan = {.cu_seqlens_q = cu_seqlens, .cu_seqlens_k = cu_seqlens}});
    CHECK(reference::relative_difference(out, expected) <= 1e-5);
  }
}

TEST_CASE("the exponential is exact to 2 ulp and never negative or NaN") {
  double error = 0;
  for (float x = 0; x > -86; x -= 0.00137F) {
    error = std::max(error, std::abs(double{exp_of_nonpositive(x)} / std::exp(double{x}) - 1));
  }
  CHECK(error <= 0x1p-22);
  CHECK(exp_of_nonpositive(0) == 1.0F);
  CHECK(exp_of_nonpositive(-1e30F) < 1e-37F);
  CHECK(exp_of_nonpositive(-HUGE_VALF) >= 0);
}

TEST_CASE("the thread pool calls every index once, job after job, from any thread") {
  for (const int threads : {1, 2, 5}) {
    const ThreadPool pool(threads);
    CHECK(pool.threads() == threads);
    const auto jobs = [&pool] {
      bool once = true;
      for (std::int64_t n = 0; n < 200; ++n) {
        std::vector<int> calls(static_cast<std::size_t>(n), 0);
        pool.parallel_for(n, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
        once = once && calls == std::vector<int>(static_cast<std::size_t>(n), 1);
      }
      return once;
    };
    bool other_once = false;
    std::thread other([&] { other_once = jobs(); });
    CHECK(jobs());
    other.join();
    CHECK(other_once);
  }
}
