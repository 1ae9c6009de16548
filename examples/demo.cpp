// SPDX-License-Identifier: MIT

// Runs decoder layers on the CPU with and without compaction. Everything that compaction takes is in `forward`; the
// engine (engine/cpu_engine.hpp) does not know of it.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/cpu_engine.hpp"
#include "engine/demo_report.hpp"

namespace {

using namespace example;
using radixmlp::RowView;
using Block = radixmlp::CompactedBlock<float>;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What one way of computing a batch keeps in memory.
class Activations {
 public:
  Activations(const ModelConfig& config, const radixmlp::PrefixIndexView& index, radixmlp::CompactionPolicy policy)
      : rows_(policy.compacts(index) ? index.padded_rows : index.ragged_rows),
        hidden_(size(rows_ * config.hidden)),
        workspace_(Block::workspace_bytes(config.widths(), index, policy) / sizeof(Chunk)) {
    if (policy.compacts(index)) {
      tokens_.resize(size(rows_));
      positions_.resize(size(rows_));
    }
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return hidden_.size() * sizeof(float) + workspace_.size() * sizeof(Chunk) +
           (tokens_.size() + positions_.size()) * sizeof(std::int32_t);
  }

  [[nodiscard]] RowView<float> hidden(std::int64_t width) noexcept { return {hidden_.data(), rows_, width}; }
  [[nodiscard]] RowView<std::int32_t> tokens() noexcept { return {tokens_.data(), rows_, 1}; }
  [[nodiscard]] RowView<std::int32_t> positions() noexcept { return {positions_.data(), rows_, 1}; }
  [[nodiscard]] std::span<std::byte> workspace() noexcept { return std::as_writable_bytes(std::span(workspace_)); }

 private:
  struct alignas(radixmlp::workspace_alignment) Chunk {
    std::byte bytes[radixmlp::workspace_alignment];
  };
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

  std::int64_t rows_;
  std::vector<float> hidden_;
  std::vector<Chunk> workspace_;
  std::vector<std::int32_t> tokens_, positions_;
};

class Demo {
 public:
  Demo(const ModelConfig& config, std::int64_t layers, const ThreadPool& pool, std::int64_t longest)
      : config_(config), pool_(pool), engine_(config, pool, longest) {
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      layers_.emplace_back(config, static_cast<std::uint32_t>(layer));
    }
  }

  [[nodiscard]] BatchResult run(const TokenBatch& batch, const DemoOptions& options) {
    const radixmlp::PrefixIndexView index = trie_.build(batch.ragged());
    const radixmlp::CompactionPolicy never{.max_ratio = 0};
    const radixmlp::CompactionPolicy policy{.max_ratio = options.max_ratio};
    check_memory(index, policy);
    Activations ragged(config_, index, never);
    Activations compact(config_, index, policy);
    const Block block_without(index, config_.widths(), ragged.workspace(), never);
    const Block block_with(index, config_.widths(), compact.workspace(), policy);
    std::fprintf(stderr, "batch of %d sequences, N = %d, N' = %d, activations %.1f GB and %.1f GB\n", index.sequences(),
                 index.ragged_rows, index.compact_rows, 1e-9 * static_cast<double>(ragged.bytes()),
                 1e-9 * static_cast<double>(compact.bytes()));

    BatchResult result;
    std::span<const float> expected, actual;
    // Nothing to warm up: all memory has been written when it was zeroed.
    measure_in_turn(
        0, options.repeat, [&] { return forward(block_without, batch, ragged, expected); },
        [&] { return forward(block_with, batch, compact, actual); }, result);
    result.sequences = index.sequences();
    result.ragged_rows = index.ragged_rows;
    result.compact_rows = index.compact_rows;
    result.compacts = block_with.compacts();
    result.index_seconds = measure_index_build(batch);
    result.without.activation_bytes = ragged.bytes() + engine_.scratch_bytes();
    result.with.activation_bytes = compact.bytes() + engine_.scratch_bytes();
    compare(expected, actual, result);
    return result;
  }

 private:
  // A batch that does not fit ends with advice, not with the system's out-of-memory killer.
  void check_memory(const radixmlp::PrefixIndexView& index, radixmlp::CompactionPolicy policy) const {
    const std::size_t hidden = static_cast<std::size_t>(index.ragged_rows * config_.hidden) * sizeof(float);
    const std::size_t needed = 2 * hidden + Block::workspace_bytes(config_.widths(), index, {.max_ratio = 0}) +
                               Block::workspace_bytes(config_.widths(), index, policy);
    const auto present =
        static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGE_SIZE));
    if (needed > present) {
      throw std::runtime_error("a batch of " + std::to_string(index.ragged_rows) + " tokens needs " +
                               std::to_string(needed >> 30) +
                               " GiB, more than this machine has; split the file with --batch-tokens N");
    }
  }

  // Token ids in, the hidden states of all N rows out, in `output`.
  PassTime forward(const Block& block, const TokenBatch& batch, Activations& memory, std::span<const float>& output) {
    const auto start = std::chrono::steady_clock::now();
    PassTime time;

    const auto rows = static_cast<std::int64_t>(batch.tokens.size());
    const RowView<const std::int32_t> all_tokens(batch.tokens.data(), rows, 1);
    const RowView<const std::int32_t> all_positions(batch.positions.data(), rows, 1);
    const RowView<const std::int32_t> tokens = block.select(pool_, all_tokens, memory.tokens());
    const RowView<const std::int32_t> positions = block.select(pool_, all_positions, memory.positions());
    const RowView<float> hidden = memory.hidden(config_.hidden);
    engine_.embed(tokens, hidden);
    for (const LayerWeights& layer : layers_) {
      block.forward(
          pool_, hidden,
          [&](const auto& x, const auto& q, const auto& k, const auto& v) {
            engine_.pre_attention(layer, positions, x, q, k, v);
          },
          [&](const radixmlp::AttentionCall<float>& call) {
            const auto attention_start = std::chrono::steady_clock::now();
            engine_.attention(call);
            time.attention += seconds_since(attention_start);
          },
          [&](const auto& attention_out, const auto& x) { engine_.post_attention(layer, attention_out, x); });
    }
    // After the last layer the workspace is free, so the rows of all tokens go there.
    const RowView<float> storage(reinterpret_cast<float*>(memory.workspace().data()), rows, config_.hidden);
    const RowView<float> expanded = block.expand(pool_, hidden, storage);
    output = {expanded.data(), static_cast<std::size_t>(rows * config_.hidden)};

    time.total = seconds_since(start);
    return time;
  }

  ModelConfig config_;
  const ThreadPool& pool_;
  CpuEngine engine_;
  std::vector<LayerWeights> layers_;
  radixmlp::PrefixTrie trie_;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    const DemoOptions options = parse_options(argc, argv, 3);
    const ModelConfig& config = find_preset(options.preset);
    const std::vector<TokenBatch> batches = read_token_file(options.file, options.batch_tokens);
    const auto cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());
    const ThreadPool pool(static_cast<int>(std::max<std::int64_t>(options.threads > 0 ? options.threads : cores, 1)));
    std::int32_t longest = 0;
    for (const TokenBatch& batch : batches) {
      longest = std::max(longest, *std::ranges::max_element(batch.positions) + 1);
    }
    std::fprintf(stderr, "making random weights: %lld layer%s of %s\n", static_cast<long long>(options.layers),
                 options.layers == 1 ? "" : "s", options.preset.c_str());
    Demo demo(config, options.layers, pool, longest);
    std::vector<BatchResult> results;
    for (const TokenBatch& batch : batches) {
      results.push_back(demo.run(batch, options));
    }
    return report(options, "CPU, " + std::to_string(pool.threads()) + " threads", results, 1e-5);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "radixmlp_demo: %s\n", error.what());
    return 2;
  }
}
