// SPDX-License-Identifier: MIT

// A Qwen3-0.6B-shaped layer on the CPU (examples/engine, fp32, BLAS) without compaction and in each attention layout.
// All ways run the same GEMMs and the same attention code, and take turns.
//
//   radixmlp_bench_attention               16 sequences of 512 shared and 64 own tokens
//                            --full        32 sequences of 2048 and 256: 73,728 tokens; minutes, and 4 GB
//                            --long        2 sequences of 32,768 shared and 256 own tokens: attention takes over
//                            --workloads   the first 16,384 tokens of each workload, beside the cost model's prediction
//                            --smoke       tiny, for the test suite
//                            --threads N   default 1
//                            --cpu-time    seconds of this process's processor time, for one thread on a machine that
//                                          others use too; else what a clock on the wall says

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <filesystem>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cpu_engine.hpp"
#include "engine/model.hpp"
#include "engine/thread_pool.hpp"
#include "radixmlp/radixmlp.hpp"
#include "support/interleave.hpp"
#include "support/workloads.hpp"

namespace {

using radixmlp::AttentionLayout;
using radixmlp::IndexStats;
using radixmlp::PrefixIndexView;
using radixmlp::RowView;
using radixmlp_bench::Batch;
using Block = radixmlp::CompactedBlock<float>;

// Without compaction, and the layouts.
constexpr std::array<std::optional<AttentionLayout>, 4> ways{std::nullopt, AttentionLayout::ragged,
                                                             AttentionLayout::compact_query, AttentionLayout::paged};

const char* way_name(std::optional<AttentionLayout> way) { return way ? radixmlp::name(*way) : "uncompacted"; }

bool uses_cpu_time = false;

double seconds_now() {
  return uses_cpu_time ? static_cast<double>(std::clock()) / CLOCKS_PER_SEC
                       : std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of one layer, by what they went into.
struct LayerTime {
  double rows = 0;  // norms, projections, MLP
  double attention = 0;
  double moves = 0;  // of rows, into and out of the layout

  [[nodiscard]] double all() const { return rows + attention + moves; }
};

// The same of one run, in the pieces it came in.
struct LayerPieces {
  std::vector<double> rows, attention;
  double moves = 0;

  [[nodiscard]] double all() const {
    return std::accumulate(attention.begin(), attention.end(), std::accumulate(rows.begin(), rows.end(), moves));
  }
};

template <class T>
T* aligned(std::vector<T>& memory, std::size_t needed_bytes, std::size_t alignment) {
  memory.resize((needed_bytes + alignment) / sizeof(T) + 1);
  void* at = memory.data();
  std::size_t room = memory.size() * sizeof(T);
  return static_cast<T*>(std::align(alignment, needed_bytes, at, room));
}

class LayerBenchmark {
 public:
  LayerBenchmark(const example::ModelConfig& config, int threads, std::int64_t longest)
      : config_(config),
        pool_(threads),
        most_piece_rows_(std::int64_t{1024} * threads),
        engine_(config, pool_, longest),
        weights_(config, 0) {}

  [[nodiscard]] const example::ModelConfig& config() const { return config_; }

  // The ways take turns for some rounds, each as often as fits into `turn_seconds`, at least once; another one begins
  // each round, so that no rhythm of the machine's hits one of them alone. Sums over the layer's pieces of each one's
  // median: what slows the machine for less than a layer takes does not count.
  std::array<LayerTime, ways.size()> measure(const Batch& batch, int rounds, double turn_seconds = 0) {
    std::array<std::vector<LayerPieces>, ways.size()> samples;
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t turn = 0; turn < ways.size(); ++turn) {
        const std::size_t w = (turn + static_cast<std::size_t>(round)) % ways.size();
        double spent = 0;
        do {
          samples[w].push_back(run(batch, ways[w]));
          spent += samples[w].back().all();
        } while (spent + samples[w].back().all() <= turn_seconds);
      }
    }
    std::array<LayerTime, ways.size()> times;
    for (std::size_t w = 0; w < ways.size(); ++w) {
      const auto median_of = [&](const auto& value) {
        std::vector<double> values;
        for (const LayerPieces& sample : samples[w]) {
          values.push_back(value(sample));
        }
        return radixmlp_bench::median(values);
      };
      const auto sum_of = [&](std::vector<double> LayerPieces::*part) {
        double sum = 0;
        for (std::size_t i = 0; i < (samples[w][0].*part).size(); ++i) {
          sum += median_of([&](const LayerPieces& sample) { return (sample.*part)[i]; });
        }
        return sum;
      };
      times[w] = {sum_of(&LayerPieces::rows), sum_of(&LayerPieces::attention),
                  median_of([](const LayerPieces& sample) { return sample.moves; })};
    }
    return times;
  }

  // Of the last run of a way.
  [[nodiscard]] std::size_t workspace_bytes(std::size_t way) const { return workspace_bytes_[way]; }
  // Whether attention on compact rows needs at most gamma times the uncompacted workspace, but for the alignment of its
  // tensors.
  [[nodiscard]] bool memory_shrinks() const {
    const double allowed = stats_.ratio * static_cast<double>(workspace_bytes_[0]) + 3 * radixmlp::workspace_alignment;
    return static_cast<double>(std::max(workspace_bytes_[2], workspace_bytes_[3])) <= allowed;
  }
  [[nodiscard]] const IndexStats& stats() const { return stats_; }
  // Index, counts and decision of the last batch; plan not included.
  [[nodiscard]] double decision_seconds(const Batch& batch, const radixmlp::CostModel& model) {
    return 1e-6 * radixmlp_bench::interleave(
                      {.seconds = 0.2}, {[&] {
                        const PrefixIndexView index = trie_.build(batch.view());
                        static_cast<void>(model.decide(radixmlp::index_stats(index),
                                                       radixmlp::AttentionLayouts{AttentionLayout::ragged}));
                      }})[0]
                      .us;
  }

 private:
  LayerPieces run(const Batch& batch, std::optional<AttentionLayout> way) {
    const PrefixIndexView index = trie_.build(batch.view());
    stats_ = radixmlp::index_stats(index);
    const radixmlp::CompactionDecision decision{index.ragged_rows, index.compact_rows, way.has_value(),
                                                way.value_or(AttentionLayout::ragged)};
    const radixmlp::AttentionPlanOptions options{.group_keys = std::max(index.compact_rows / 2, 1)};
    plan_memory_.resize(radixmlp::attention_plan_entries(index, options));
    const radixmlp::AttentionPlan plan = radixmlp::attention_plan(index, plan_memory_, options);
    const std::size_t bytes = Block::workspace_bytes(config_.widths(), index, decision, plan);
    workspace_bytes_[static_cast<std::size_t>(std::find(ways.begin(), ways.end(), way) - ways.begin())] = bytes;
    std::byte* const workspace = aligned(workspace_, bytes, radixmlp::workspace_alignment);
    std::memset(workspace, 0, bytes);  // no page is touched for the first time while the clock runs
    const Block block(index, config_.widths(), {workspace, bytes}, decision, plan);

    const std::int64_t n = index.ragged_rows;
    std::vector<std::int32_t> positions(static_cast<std::size_t>(n)), compact_tokens, compact_positions;
    for (std::size_t s = 0; s < batch.sequences(); ++s) {
      for (std::int32_t i = batch.cu_seqlens[s]; i < batch.cu_seqlens[s + 1]; ++i) {
        positions[static_cast<std::size_t>(i)] = i - batch.cu_seqlens[s];
      }
    }
    const auto select = [&](const std::vector<std::int32_t>& values, std::vector<std::int32_t>& storage) {
      storage.resize(static_cast<std::size_t>(block.rows()));
      return block.select(pool_, RowView<const std::int32_t>(values.data(), n, 1),
                          RowView<std::int32_t>(storage.data(), block.rows(), 1));
    };
    const auto t = select(batch.tokens, compact_tokens);
    const auto p = select(positions, compact_positions);
    hidden_.resize(static_cast<std::size_t>(block.rows() * config_.hidden));
    const RowView<float> hidden(hidden_.data(), block.rows(), config_.hidden);
    engine_.embed(t, hidden);

    LayerPieces pieces;
    const auto seconds = [](auto&& f) {
      const double start = seconds_now();
      f();
      return seconds_now() - start;
    };
    const auto in_pieces = [&](std::int64_t rows, auto&& f) {
      const std::int64_t count = (rows + most_piece_rows_ - 1) / most_piece_rows_;
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t first = rows * i / count;
        pieces.rows.push_back(seconds([&] { f(first, rows * (i + 1) / count - first); }));
      }
    };
    const double all = seconds([&] {
      block.forward(
          pool_, hidden,
          [&](const auto& x, const auto& q, const auto& k, const auto& v) {
            in_pieces(x.rows(), [&](std::int64_t first, std::int64_t rows) {
              engine_.pre_attention(weights_, p.rows_from(first, rows), x.rows_from(first, rows),
                                    q.rows_from(first, rows), k.rows_from(first, rows), v.rows_from(first, rows));
            });
          },
          radixmlp::serving<AttentionLayout::ragged, AttentionLayout::compact_query, AttentionLayout::paged>(
              [&](const radixmlp::AttentionCall<float>& call) {
                pieces.attention.push_back(seconds([&] { engine_.attention(call); }));
              }),
          [&](const auto& out, const auto& x) {
            in_pieces(x.rows(), [&](std::int64_t first, std::int64_t rows) {
              engine_.post_attention(weights_, out.rows_from(first, rows), x.rows_from(first, rows));
            });
          });
    });
    pieces.moves = all - pieces.all();
    return pieces;
  }

  example::ModelConfig config_;
  example::ThreadPool pool_;
  std::int64_t most_piece_rows_;
  example::CpuEngine engine_;
  example::LayerWeights weights_;
  radixmlp::PrefixTrie trie_;
  IndexStats stats_;
  std::array<std::size_t, ways.size()> workspace_bytes_{};
  std::vector<std::int32_t> plan_memory_;
  std::vector<std::byte> workspace_;
  std::vector<float> hidden_;
};

// `sequences` of a shared prefix and a suffix of their own.
Batch shared_prefix(std::int32_t sequences, std::int32_t prefix, std::int32_t suffix) {
  Batch batch;
  for (std::int32_t s = 0; s < sequences; ++s) {
    std::vector<std::int32_t> request;
    for (std::int32_t i = 0; i < prefix + suffix; ++i) {
      request.push_back(i < prefix ? i : prefix + s * suffix + i);
    }
    batch.add(request);
  }
  return batch;
}

// Prints the table of a batch; false where memory is not what it should be.
bool report(LayerBenchmark& benchmark, const Batch& batch, int rounds) {
  const auto times = benchmark.measure(batch, rounds);
  const IndexStats& stats = benchmark.stats();
  const auto pairs = static_cast<double>(stats.attention_pairs);
  const auto compact_pairs = static_cast<double>(stats.compact_attention_pairs);
  const double f = times[0].rows / times[0].all();
  const radixmlp::LayerShape shape = benchmark.config().layer_shape();
  const double row_rate = shape.row_flops * stats.ragged_rows / times[0].rows;
  const double pair_rate = shape.pair_flops * pairs / times[0].attention;
  std::printf("N = %d, N' = %d: %.2f times fewer rows, %.2f times fewer pairs; medians of %d\n", stats.ragged_rows,
              stats.compact_rows, 1 / stats.ratio, pairs / compact_pairs, rounds);
  std::printf("uncompacted: position-wise share f = %.3f; GEMMs %.1f GFLOP/s, attention %.1f (%.0f%%)\n", f,
              1e-9 * row_rate, 1e-9 * pair_rate, 100 * pair_rate / row_rate);
  std::printf("| way | layer s | rows s | attention s | moves s | workspace MB | speed-up | of ceiling |\n");
  std::printf("|---|--:|--:|--:|--:|--:|--:|--:|\n");
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const double left =
        ways[w] == AttentionLayout::compact_query || ways[w] == AttentionLayout::paged ? compact_pairs / pairs : 1.0;
    const double ceiling = ways[w] ? 1 / ((1 - f) * left + f * stats.ratio) : 1.0;
    const double speedup = times[0].all() / times[w].all();
    std::printf("| %s | %.3f | %.3f | %.3f | %.3f | %.1f | %.2f | %.0f%% of %.2f |\n", way_name(ways[w]),
                times[w].all(), times[w].rows, times[w].attention, times[w].moves,
                1e-6 * static_cast<double>(benchmark.workspace_bytes(w)), speedup, 100 * speedup / ceiling, ceiling);
  }
  if (!benchmark.memory_shrinks()) {
    std::printf("a layout on compact rows needs more than gamma times the uncompacted workspace\n");
  }
  return benchmark.memory_shrinks();
}

// The cost model's constants on this machine, from one synthetic shape.
radixmlp::CostModel calibrate(LayerBenchmark& benchmark) {
  const auto times = benchmark.measure(shared_prefix(16, 384, 128), 5);
  const IndexStats& stats = benchmark.stats();
  const radixmlp::AttentionWidths widths = benchmark.config().widths();
  radixmlp::CostModel model;
  model.widths = widths;
  model.element_bytes = sizeof(float);
  model.costs.row = times[0].rows / stats.ragged_rows;
  model.costs.pair = times[0].attention / static_cast<double>(stats.attention_pairs);
  model.costs.paged_pair = times[3].attention / static_cast<double>(stats.compact_attention_pairs);
  const double moved = 4.0 * static_cast<double>(std::int64_t{stats.ragged_rows} * widths.qkv() +
                                                 std::int64_t{stats.compact_rows} * widths.out);
  model.costs.moved_byte = times[1].moves / moved;
  std::printf("calibrated on 16 x (384 + 128): row %.1f us, pair %.2f ns, paged pair %.2f ns, moved %.2f GB/s\n",
              1e6 * model.costs.row, 1e9 * model.costs.pair, 1e9 * model.costs.paged_pair,
              1e-9 / model.costs.moved_byte);
  return model;
}

int workload_table(LayerBenchmark& benchmark) {
  const std::filesystem::path folder = std::filesystem::path(RADIXMLP_SHARED_DIR) / "workloads";
  if (!std::filesystem::exists(folder)) {
    std::printf("skipped: no workloads at %s\n", folder.c_str());
    return 77;
  }
  const radixmlp::CostModel model = calibrate(benchmark);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jsonl" && entry.path().stem().extension().empty()) {  // no traces of blocks
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  constexpr radixmlp::AttentionLayouts all{AttentionLayout::ragged, AttentionLayout::compact_query,
                                           AttentionLayout::paged};
  std::printf("| workload | gamma | layer s | ragged | compact_query | paged | policy takes | index and policy us |\n");
  std::printf("|---|--:|--:|--:|--:|--:|---|--:|\n");
  int close = 0, good_choices = 0, shrinks = 0;
  for (const std::filesystem::path& file : files) {
    const auto requests = radixmlp_bench::load_requests(file.string(), 20'000);
    const Batch batch = radixmlp_bench::batches(requests, 16'384).front();
    const auto times = benchmark.measure(batch, 7, 1.5);
    const IndexStats stats = benchmark.stats();
    const radixmlp::CompactionDecision decision = model.decide(stats, all);
    std::string cells;
    double worst = 0, fastest = times[0].all(), chosen = times[0].all();
    for (std::size_t w = 1; w < ways.size(); ++w) {
      const double predicted = model.uncompacted(stats) / model.compacted(stats, *ways[w]);
      const double measured = times[0].all() / times[w].all();
      worst = std::max(worst, std::abs(measured / predicted - 1));
      fastest = std::min(fastest, times[w].all());
      chosen = decision.compacts && decision.layout == *ways[w] ? times[w].all() : chosen;
      std::array<char, 64> cell{};
      std::snprintf(cell.data(), cell.size(), " %.2f (%.2f) |", measured, predicted);
      cells += cell.data();
    }
    close += worst <= 0.15;
    good_choices += chosen <= 1.05 * fastest;
    shrinks += benchmark.memory_shrinks();
    std::printf("| %s | %.3f | %.2f |%s %s%s | %.0f |\n", file.stem().c_str(), stats.ratio, times[0].all(),
                cells.c_str(), decision.compacts ? radixmlp::name(decision.layout) : "none",
                chosen <= 1.05 * fastest ? "" : " (not fastest)", 1e6 * benchmark.decision_seconds(batch, model));
    std::fflush(stdout);
  }
  std::printf(
      "speed-ups measured (predicted); all layouts within 15%% on %d of %zu, choice within 5%% of the fastest on %d; "
      "workspace on compact rows at most gamma times the uncompacted one on %d\n",
      close, files.size(), good_choices, shrinks);
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  std::string mode;
  int threads = 1;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
      threads = std::atoi(argv[++i]);
    } else if (std::strcmp(argv[i], "--cpu-time") == 0) {
      uses_cpu_time = true;
    } else {
      mode = argv[i];
    }
  }
  if (threads < 1 ||
      (!mode.empty() && mode != "--full" && mode != "--long" && mode != "--workloads" && mode != "--smoke")) {
    std::fprintf(
        stderr,
        "usage: radixmlp_bench_attention [--full | --long | --workloads | --smoke] [--threads N | --cpu-time]\n");
    return 2;
  }
  LayerBenchmark benchmark(example::find_preset(mode == "--smoke" ? "tiny" : "qwen3-0.6b"), threads, 40'000);
  if (mode == "--workloads") {
    return workload_table(benchmark);
  }
  const bool fits = mode == "--full"    ? report(benchmark, shared_prefix(32, 2048, 256), 1)
                    : mode == "--long"  ? report(benchmark, shared_prefix(2, 32'768, 256), 1)
                    : mode == "--smoke" ? report(benchmark, shared_prefix(4, 40, 8), 1)
                                        : report(benchmark, shared_prefix(16, 512, 64), 3);
  return fits ? EXIT_SUCCESS : EXIT_FAILURE;
} catch (const std::exception& error) {
  std::fprintf(stderr, "radixmlp_bench_attention: %s\n", error.what());
  return 1;
}
