// SPDX-License-Identifier: MIT

// Runs decoder layers on the CPU with and without compaction. Everything that compaction takes is in `forward`; the
// engine (engine/cpu_engine.hpp) does not know of it.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/cpu_engine.hpp"
#include "engine/demo_report.hpp"

// Only where the BLAS is OpenBLAS.
extern "C" __attribute__((weak)) char* openblas_get_corename();

namespace {

using namespace example;
using radixmlp::AttentionLayout;
using radixmlp::RowView;
using Block = radixmlp::CompactedBlock<float>;

bool uses_cpu_time = false;

double seconds_now() {
  return uses_cpu_time ? static_cast<double>(std::clock()) / CLOCKS_PER_SEC
                       : std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// What one way of computing a batch keeps in memory.
class Activations {
 public:
  Activations(const ModelConfig& config, const radixmlp::PrefixIndexView& index,
              const radixmlp::CompactionDecision& decision, const radixmlp::AttentionPlan& plan)
      : rows_(decision.compacts ? index.padded_rows : index.ragged_rows),
        hidden_(size(rows_ * config.hidden)),
        workspace_(workspace_bytes(config, index, decision, plan) / sizeof(Chunk)) {
    if (decision.compacts) {
      tokens_.resize(size(rows_));
      positions_.resize(size(rows_));
    }
  }

  // The block's workspace, which at the end has to hold the hidden states of all N rows.
  [[nodiscard]] static std::size_t workspace_bytes(const ModelConfig& config, const radixmlp::PrefixIndexView& index,
                                                   const radixmlp::CompactionDecision& decision,
                                                   const radixmlp::AttentionPlan& plan) {
    const std::size_t all_rows = size(index.ragged_rows * config.hidden) * sizeof(float);
    const std::size_t bytes =
        std::max(Block::workspace_bytes(config.widths(), index, decision, plan), decision.compacts ? all_rows : 0);
    return (bytes + sizeof(Chunk) - 1) / sizeof(Chunk) * sizeof(Chunk);
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
    const radixmlp::CompactionDecision never = radixmlp::CompactionPolicy{.max_ratio = 0}.decide(index);
    const radixmlp::CompactionDecision decision =
        radixmlp::CompactionPolicy{.max_ratio = options.max_ratio}.decide(index, options.layout);
    const radixmlp::AttentionPlanOptions plan_options{.group_keys = std::max(index.compact_rows / 2, 1)};
    plan_memory_.resize(radixmlp::attention_plan_entries(index, plan_options));
    const radixmlp::AttentionPlan plan = radixmlp::attention_plan(index, plan_memory_, plan_options);
    check_memory(index, Activations::workspace_bytes(config_, index, never, plan) +
                            Activations::workspace_bytes(config_, index, decision, plan));
    Activations ragged(config_, index, never, plan);
    Activations compact(config_, index, decision, plan);
    const Block block_without(index, config_.widths(), ragged.workspace(), never);
    const Block block_with(index, config_.widths(), compact.workspace(), decision, plan);
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
    const radixmlp::IndexStats stats = radixmlp::index_stats(index);
    result.attention_pairs = stats.attention_pairs;
    result.computed_pairs = block_with.layout() == radixmlp::AttentionLayout::ragged ? stats.attention_pairs
                                                                                     : stats.compact_attention_pairs;
    result.index_seconds = measure_index_build(batch);
    result.without.activation_bytes = ragged.bytes() + engine_.scratch_bytes();
    result.with.activation_bytes = compact.bytes() + engine_.scratch_bytes();
    compare(expected, actual, result);
    return result;
  }

 private:
  // A batch that does not fit ends with advice, not with the system's out-of-memory killer.
  void check_memory(const radixmlp::PrefixIndexView& index, std::size_t workspaces) const {
    const std::size_t hidden = static_cast<std::size_t>(index.ragged_rows * config_.hidden) * sizeof(float);
    const std::size_t needed = 2 * hidden + workspaces;
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
    const double start = seconds_now();
    PassTime time;

    const auto rows = static_cast<std::int64_t>(batch.tokens.size());
    const RowView<const std::int32_t> all_tokens(batch.tokens.data(), rows, 1);
    const RowView<const std::int32_t> all_positions(batch.positions.data(), rows, 1);
    const RowView<const std::int32_t> tokens = block.select(pool_, all_tokens, memory.tokens());
    const RowView<const std::int32_t> positions = block.select(pool_, all_positions, memory.positions());
    const RowView<float> hidden = memory.hidden(config_.hidden);
    engine_.embed(tokens, hidden);
    const auto timed = [](double& seconds, auto&& f) {
      const double f_start = seconds_now();
      f();
      seconds += seconds_now() - f_start;
    };
    double layers = 0;
    for (const LayerWeights& layer : layers_) {
      timed(layers, [&] {
        block.forward(
            pool_, hidden,
            [&](const auto& x, const auto& q, const auto& k, const auto& v) {
              timed(time.rows, [&] { engine_.pre_attention(layer, positions, x, q, k, v); });
            },
            radixmlp::serving<AttentionLayout::ragged, AttentionLayout::compact_query, AttentionLayout::paged>(
                [&](const radixmlp::AttentionCall<float>& call) {
                  timed(time.attention, [&] { engine_.attention(call); });
                }),
            [&](const auto& attention_out, const auto& x) {
              timed(time.rows, [&] { engine_.post_attention(layer, attention_out, x); });
            });
      });
    }
    time.moves = layers - time.rows - time.attention;
    // After the last layer the workspace is free, so the rows of all tokens go there.
    const RowView<float> storage(reinterpret_cast<float*>(memory.workspace().data()), rows, config_.hidden);
    const RowView<float> expanded = block.expand(pool_, hidden, storage);
    output = {expanded.data(), static_cast<std::size_t>(rows * config_.hidden)};

    time.total = seconds_now() - start;
    return time;
  }

  ModelConfig config_;
  const ThreadPool& pool_;
  CpuEngine engine_;
  std::vector<LayerWeights> layers_;
  radixmlp::PrefixTrie trie_;
  std::vector<std::int32_t> plan_memory_;
};

// Prints the rates of this engine on this machine, measured on a batch of its own, as `radixmlp-analyze --rates` takes
// them.
int calibrate(Demo& demo, const ModelConfig& config, DemoOptions options) {
  TokenBatch batch;
  for (std::int32_t s = 0; s < 8; ++s) {  // 384 shared tokens and 128 of its own
    std::vector<std::int32_t> request(512);
    for (std::int32_t i = 0; i < 512; ++i) {
      request[static_cast<std::size_t>(i)] = i < 384 ? i : 384 + 128 * s + i;
    }
    batch.append(request);
  }
  options.max_ratio = 1;
  options.layout = AttentionLayout::ragged;
  const BatchResult ragged = demo.run(batch, options);
  options.layout = AttentionLayout::paged;
  const BatchResult paged = demo.run(batch, options);

  const radixmlp::LayerShape shape = config.layer_shape();
  const radixmlp::AttentionWidths widths = config.widths();
  const auto layers = static_cast<double>(options.layers);
  const auto rate = [&](double per_layer, double seconds) { return layers * per_layer / seconds; };
  const auto moved = static_cast<double>(ragged.ragged_rows * widths.qkv() + ragged.compact_rows * widths.out);
  std::printf("gemm=%.4g,attention=%.4g,paged=%.4g,copy=%.4g,bytes=%zu\n",
              rate(shape.row_flops * static_cast<double>(ragged.ragged_rows), ragged.without.time.rows),
              rate(shape.pair_flops * static_cast<double>(ragged.attention_pairs), ragged.without.time.attention),
              rate(shape.pair_flops * static_cast<double>(paged.computed_pairs), paged.with.time.attention),
              rate(moved * sizeof(float), ragged.with.time.moves), sizeof(float));
  return 0;
}

void note_old_kernels() {
  if (openblas_get_corename != nullptr && std::string_view(openblas_get_corename()) == "Prescott") {
    std::fprintf(stderr,
                 "note: this OpenBLAS does not know the processor and takes its oldest kernels; with "
                 "OPENBLAS_CORETYPE=Haswell in the environment it is several times faster\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const DemoOptions options = parse_options(argc, argv, 3);
    uses_cpu_time = options.cpu_time;
    const ModelConfig& config = find_preset(options.preset);
    const std::vector<TokenBatch> batches =
        options.calibrate ? std::vector<TokenBatch>{} : read_token_file(options.file, options.batch_tokens);
    const auto cores = static_cast<std::int64_t>(std::thread::hardware_concurrency());
    const ThreadPool pool(static_cast<int>(std::max<std::int64_t>(options.threads > 0 ? options.threads : cores, 1)));
    std::int32_t longest = 512;
    for (const TokenBatch& batch : batches) {
      longest = std::max(longest, *std::ranges::max_element(batch.positions) + 1);
    }
    note_old_kernels();
    std::fprintf(stderr, "making random weights: %lld layer%s of %s\n", static_cast<long long>(options.layers),
                 options.layers == 1 ? "" : "s", options.preset.c_str());
    Demo demo(config, options.layers, pool, longest);
    if (options.calibrate) {
      return calibrate(demo, config, options);
    }
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
