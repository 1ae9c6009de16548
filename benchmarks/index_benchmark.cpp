// SPDX-License-Identifier: MIT

// PrefixTrie against the published node-per-token trie, in one run, taking turns; maps are compared before any timing.
// With --benchmark_... arguments it runs single synthetic shapes under Google Benchmark instead (for a profiler).

#include <benchmark/benchmark.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <tuple>

#include "baseline/node_trie.hpp"
#include "examples/engine/thread_pool.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "radixmlp/rows/host_rows.hpp"
#include "support/interleave.hpp"
#include "support/native_trie.hpp"
#include "support/report.hpp"
#include "support/workloads.hpp"

namespace radixmlp_bench {
namespace {

std::vector<std::int32_t> random_tokens(std::size_t count, std::mt19937_64& random) {
  std::uniform_int_distribution<std::int32_t> token(1, 151'642);
  std::vector<std::int32_t> tokens(count);
  std::generate(tokens.begin(), tokens.end(), [&] { return token(random); });
  return tokens;
}

Batch shared_prefix(std::size_t sequences, std::size_t length, double shared) {
  std::mt19937_64 random(2026);
  const std::vector<std::int32_t> prefix =
      random_tokens(static_cast<std::size_t>(shared * static_cast<double>(length)), random);
  Batch batch;
  for (std::size_t s = 0; s < sequences; ++s) {
    std::vector<std::int32_t> request = prefix;
    const std::vector<std::int32_t> own = random_tokens(length - prefix.size(), random);
    request.insert(request.end(), own.begin(), own.end());
    batch.add(request);
  }
  return batch;
}

// Different tokens in random order: the root has a child a sequence.
Batch one_token_sequences(std::size_t sequences) {
  std::vector<std::int32_t> tokens(sequences);
  for (std::size_t s = 0; s < sequences; ++s) {
    tokens[s] = static_cast<std::int32_t>(s + 1);
  }
  std::shuffle(tokens.begin(), tokens.end(), std::mt19937_64(2026));
  Batch batch;
  for (const std::int32_t token : tokens) {
    batch.add({token});
  }
  return batch;
}

// Each sequence is one token longer than the one before, so every edge is one row. As a comb, a sequence that leaves
// the others at its last token comes before each, so that every row of the longest one is a second child as well.
Batch growing_prefixes(std::size_t length, bool comb) {
  std::mt19937_64 random(2026);
  const std::vector<std::int32_t> spine = random_tokens(length, random);
  Batch batch;
  for (std::size_t n = 1; n <= length; ++n) {
    std::vector<std::int32_t> request(spine.begin(), spine.begin() + static_cast<std::ptrdiff_t>(n));
    if (comb) {
      request.back() += 200'000;
      batch.add(request);
      request.back() -= 200'000;
    }
    batch.add(request);
  }
  return batch;
}

// Batches as the published method takes them.
struct Workload {
  std::vector<Batch> batches;
  std::vector<std::vector<std::int32_t>> positions;

  explicit Workload(std::vector<Batch> all) : batches(std::move(all)) {
    for (const Batch& batch : batches) {
      std::vector<std::int32_t>& of_batch = positions.emplace_back();
      for (std::size_t s = 0; s < batch.sequences(); ++s) {
        for (std::int32_t p = 0; p < batch.cu_seqlens[s + 1] - batch.cu_seqlens[s]; ++p) {
          of_batch.push_back(p);
        }
      }
    }
  }
  explicit Workload(Batch batch) : Workload(std::vector<Batch>{std::move(batch)}) {}
};

// Both number rows by first appearance, so the maps must be the same to the last entry. Returns N' / N.
double check_equal(radixmlp::PrefixTrie& trie, const Workload& workload) {
  double rows = 0;
  double compact_rows = 0;
  for (std::size_t b = 0; b < workload.batches.size(); ++b) {
    const Batch& batch = workload.batches[b];
    const radixmlp::PrefixIndexView index = trie.build(batch.view());
    const NodeTrieIndex expected = build_node_trie(batch.tokens, workload.positions[b], batch.cu_seqlens);
    if (!std::ranges::equal(index.scatter, expected.scatter) || !std::ranges::equal(index.gather, expected.gather)) {
      throw std::runtime_error("PrefixTrie and the node trie disagree in batch " + std::to_string(b));
    }
    rows += index.ragged_rows;
    compact_rows += index.compact_rows;
  }
  return compact_rows / rows;
}

// The least that any method does: read the tokens once and write the maps, at the speed of memset.
void touch(const Batch& batch, std::size_t index_bytes, std::vector<std::int32_t>& tokens,
           std::vector<std::byte>& memory) {
  std::memcpy(tokens.data(), batch.tokens.data(), batch.tokens.size() * sizeof(std::int32_t));
  std::memset(memory.data(), 1, index_bytes);
  benchmark::ClobberMemory();
}

class Comparison {
 public:
  Comparison(const Options& options, Report::Facts facts)
      : report_({"shape"},
                {"gamma", "us", "us first", "us native", "us no parent", "baseline us", "ratio", "ratio first",
                 "ratio native", "ratio no parent", "roof us", "to roof"},
                std::move(facts)) {
    if (options.smoke) {
      timing_ = {.seconds = 0.02, .min_rounds = 1};
    }
  }

  // The baseline's time over ours: with all maps, and without the one that the baseline does not make either.
  struct Ratios {
    double all, no_parent;
  };

  // With a roofline: a single batch.
  Ratios add(const std::string& name, const Workload& workload, bool with_roofline = false) {
    const double gamma = check_equal(trie_, workload);
    std::vector<std::function<void()>> callables{[&] { build_all(workload, {}); }, [&] { build_all_nodes(workload); },
                                                 [&] { build_all_native(workload); },
                                                 [&] { build_all(workload, {.parent = false}); }};
    std::vector<std::int32_t> tokens;
    std::vector<std::byte> memory;
    if (with_roofline) {
      const Batch& batch = workload.batches.front();
      tokens.resize(batch.tokens.size());
      memory.resize(trie_.build(batch.view()).block.size());
      callables.emplace_back([&] { touch(batch, memory.size(), tokens, memory); });
    }
    const std::vector<Timing> timings = interleave(timing_, callables);
    const auto& [ours, baseline, native, no_parent] = std::tie(timings[0], timings[1], timings[2], timings[3]);
    const Ratios ratios{ratio(baseline, ours), ratio(baseline, no_parent)};
    report_.add({name},
                {gamma, ours.us, ours.first_us, native.us, no_parent.us, baseline.us, ratios.all,
                 baseline.first_us / ours.first_us, ratio(baseline, native), ratios.no_parent,
                 with_roofline ? timings[4].us : no_figure, with_roofline ? ratio(ours, timings[4]) : no_figure});
    return ratios;
  }

  // The same shape with what the defaults leave out: a trie that has to allocate, and the published method's inputs and
  // outputs (explicit positions in; compact ids and positions out as well).
  void add_variants(const std::string& name, const Workload& workload) {
    const double gamma = check_equal(trie_, workload);
    const Batch& batch = workload.batches.front();
    radixmlp::RaggedBatch<std::int32_t> with_positions = batch.view();
    with_positions.positions = workload.positions.front();
    std::vector<std::int32_t> ids(batch.tokens.size());
    std::vector<std::int32_t> positions(batch.tokens.size());
    const std::vector<Timing> timings = interleave(
        timing_, {[&] { build_all_nodes(workload); },
                  [&] {
                    radixmlp::PrefixTrie fresh;
                    benchmark::DoNotOptimize(fresh.build(batch.view()).scatter.data());
                  },
                  [&] {
                    const radixmlp::PrefixIndexView index = trie_.build(with_positions);
                    using Column = radixmlp::RowView<const std::int32_t, 1>;
                    const auto rows = std::int64_t{index.ragged_rows};
                    gather_rows(radixmlp::serial, index,
                                radixmlp::RowCopy{Column(batch.tokens.data(), rows),
                                                  radixmlp::RowView<std::int32_t, 1>(ids.data(), rows)},
                                radixmlp::RowCopy{Column(workload.positions.front().data(), rows),
                                                  radixmlp::RowView<std::int32_t, 1>(positions.data(), rows)});
                    benchmark::ClobberMemory();
                  }});
    const auto report = [&](const std::string& variant, const Timing& ours) {
      report_.add({name + variant},
                  {gamma, ours.us, ours.first_us, no_figure, no_figure, timings[0].us, ratio(timings[0], ours),
                   timings[0].first_us / ours.first_us, no_figure, no_figure, no_figure, no_figure});
    };
    report(", new trie each call", timings[1]);
    report(", same inputs, outputs", timings[2]);
  }

  void add_mean(const std::string& name, const std::vector<Ratios>& ratios) {
    std::vector<double> all, no_parent;
    for (const Ratios& of_one : ratios) {
      all.push_back(of_one.all);
      no_parent.push_back(of_one.no_parent);
    }
    std::vector<double> figures(12, no_figure);
    figures[6] = geometric_mean(all);
    figures[9] = geometric_mean(no_parent);
    report_.add({name}, figures);
  }

  [[nodiscard]] const Report& result() const { return report_; }

 private:
  void build_all(const Workload& workload, radixmlp::BuildOptions options) {
    for (const Batch& batch : workload.batches) {
      benchmark::DoNotOptimize(trie_.build(batch.view(), options).scatter.data());
    }
  }
  void build_all_native(const Workload& workload) {
    for (const Batch& batch : workload.batches) {
      native_.build(batch);
    }
  }
  static void build_all_nodes(const Workload& workload) {
    for (std::size_t b = 0; b < workload.batches.size(); ++b) {
      const Batch& batch = workload.batches[b];
      benchmark::DoNotOptimize(build_node_trie(batch.tokens, workload.positions[b], batch.cu_seqlens).scatter.data());
    }
  }
  InterleaveOptions timing_;
  radixmlp::PrefixTrie trie_;
  NativeTrie native_;
  Report report_;
};

std::string shape_name(std::size_t sequences, double shared) {
  return std::to_string(sequences) + "x512 shared " + figure(shared);
}

void compare_synthetic(Comparison& comparison, const std::vector<std::size_t>& sizes) {
  for (const std::size_t sequences : sizes) {
    for (const double shared : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      comparison.add(shape_name(sequences, shared), Workload(shared_prefix(sequences, 512, shared)), true);
    }
    comparison.add_variants(shape_name(sequences, 0.25), Workload(shared_prefix(sequences, 512, 0.25)));
  }
}

void compare_adversarial(Comparison& comparison, std::size_t scale) {
  comparison.add(std::to_string(128 * scale) + " one-token sequences", Workload(one_token_sequences(128 * scale)),
                 true);
  comparison.add("comb of " + std::to_string(scale), Workload(growing_prefixes(scale, true)), true);
  comparison.add("growing prefixes to " + std::to_string(2 * scale), Workload(growing_prefixes(2 * scale, false)),
                 true);
  comparison.add(std::to_string(8 * scale) + "x128 all equal", Workload(shared_prefix(8 * scale, 128, 1)), true);
}

constexpr std::size_t max_tokens = 1'000'000;  // of a workload: all of a file but for the production trace

// None, with a message, where there are no workloads.
std::vector<std::filesystem::path> workload_files() {
  const char* const override_dir = std::getenv("RADIXMLP_SHARED_DIR");
  const std::filesystem::path folder =
      std::filesystem::path(override_dir != nullptr ? override_dir : RADIXMLP_SHARED_DIR) / "workloads";
  std::vector<std::filesystem::path> files;
  if (!std::filesystem::is_directory(folder)) {
    std::printf("skipped: no workloads in %s (set RADIXMLP_SHARED_DIR)\n", folder.c_str());
    return files;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".jsonl") {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::string workload_name(const std::filesystem::path& file) { return file.stem().string().substr(0, 27); }

void compare_workloads(Comparison& comparison, const std::vector<std::filesystem::path>& files) {
  if (files.empty()) {
    return;
  }
  for (const std::size_t budget : {std::size_t{16'384}, std::size_t{65'536}}) {
    std::vector<Comparison::Ratios> ratios;
    for (const std::filesystem::path& file : files) {
      const Workload workload(batches(load_requests(file.string(), max_tokens), budget));
      ratios.push_back(comparison.add(workload_name(file) + " " + std::to_string(budget), workload));
    }
    comparison.add_mean("geometric mean at " + std::to_string(budget), ratios);
  }
}

// Hostile inputs at a size and at twice as many rows: linear is 2, in the build and in the roofline of its buffers.
Report compare_doubling(const Options& options) {
  Report report({"hostile input"}, {"rows", "us", "us at 2x", "ratio", "roofline's ratio"}, {});
  const InterleaveOptions timing{.seconds = options.smoke ? 0.02 : 1, .min_rounds = options.smoke ? 1U : 9U};
  const auto scale = static_cast<std::size_t>(options.smoke ? 16 : 512);
  const auto longer = static_cast<std::size_t>(1.4142 * static_cast<double>(scale));  // rows grow with the square
  radixmlp::PrefixTrie trie;
  const auto add = [&](const std::string& name, const Batch& once, const Batch& twice) {
    const auto build = [&](const Batch& batch) { benchmark::DoNotOptimize(trie.build(batch.view()).scatter.data()); };
    std::vector<std::int32_t> tokens(twice.tokens.size());
    std::vector<std::byte> memory(trie.build(twice.view()).block.size());
    const std::size_t bytes_once = trie.build(once.view()).block.size();
    const std::vector<Timing> timings = interleave(
        timing, {[&] { build(once); }, [&] { build(twice); }, [&] { touch(once, bytes_once, tokens, memory); },
                 [&] { touch(twice, memory.size(), tokens, memory); }});
    const double rows_ratio = static_cast<double>(twice.tokens.size()) / static_cast<double>(once.tokens.size());
    report.add({name},
               {static_cast<double>(once.tokens.size()), timings[0].us, timings[1].us,
                ratio(timings[1], timings[0]) * 2 / rows_ratio, ratio(timings[3], timings[2]) * 2 / rows_ratio});
  };
  add("one-token sequences", one_token_sequences(128 * scale), one_token_sequences(256 * scale));
  add("comb", growing_prefixes(scale, true), growing_prefixes(longer, true));
  add("growing prefixes", growing_prefixes(2 * scale, false), growing_prefixes(2 * longer, false));
  add("all equal", shared_prefix(8 * scale, 128, 1), shared_prefix(16 * scale, 128, 1));
  add("all different", shared_prefix(2 * scale, 512, 0), shared_prefix(4 * scale, 512, 0));
  return report;
}

// Additions that depend on nothing: twice as many a second on two cores, hardly more on two threads of one.
void add_up() {
  std::array<std::uint64_t, 8> sums{};
  for (std::uint64_t i = 0; i < 40'000; ++i) {
    for (std::uint64_t& sum : sums) {
      sum += i;
      asm volatile("" : "+r"(sum));
    }
  }
}

// The same batch on one thread and on two, what two threads gain on the roofline of the same buffers, and on plain
// arithmetic. Rounds in which arithmetic gains little are left out: somebody else had the second processor.
Report compare_threads(const Options& options, const std::vector<std::filesystem::path>& files) {
  Report report({"build on two threads"},
                {"rows", "us on one", "us on two", "ratio", "roofline's ratio", "arithmetic's ratio"}, {});
  constexpr double two_processors = 1.7;
  const InterleaveOptions timing{
      .seconds = options.smoke ? 0.02 : 1,
      .min_rounds = options.smoke ? 1U : 25U,
      .counts = [](const std::vector<double>& us) { return us[0] > two_processors * us[1]; }};
  const example::ThreadPool pool(2);
  const std::function<void(std::int64_t)> work = [](std::int64_t) { add_up(); };
  radixmlp::PrefixTrie one;
  radixmlp::PrefixTrie two;
  const auto add = [&](const std::string& name, const Batch& batch) {
    const radixmlp::PrefixIndexView expected = one.build(batch.view());
    const radixmlp::PrefixIndexView index = two.build(batch.view(), {}, pool);
    if (!std::ranges::equal(index.scatter, expected.scatter) || !std::ranges::equal(index.gather, expected.gather) ||
        !std::ranges::equal(index.parent, expected.parent)) {
      throw std::runtime_error("one thread and two disagree");
    }
    std::vector<std::int32_t> tokens(batch.tokens.size());
    std::vector<std::byte> memory(index.block.size());
    const std::function<void(std::int64_t)> touch_half = [&](std::int64_t half) {
      const std::size_t rows = tokens.size() / 2;
      const std::size_t bytes = memory.size() / 2;
      const auto h = static_cast<std::size_t>(half);
      std::memcpy(tokens.data() + h * rows, batch.tokens.data() + h * rows, rows * sizeof(std::int32_t));
      std::memset(memory.data() + h * bytes, 1, bytes);
      benchmark::ClobberMemory();
    };
    const std::vector<Timing> timings = interleave(
        timing, {[&] { radixmlp::serial.parallel_for(2, work); }, [&] { pool.parallel_for(2, work); },
                 [&] { benchmark::DoNotOptimize(one.build(batch.view()).scatter.data()); },
                 [&] { benchmark::DoNotOptimize(two.build(batch.view(), {}, pool).scatter.data()); },
                 [&] { radixmlp::serial.parallel_for(2, touch_half); }, [&] { pool.parallel_for(2, touch_half); }});
    report.add({name}, {static_cast<double>(batch.tokens.size()), timings[2].us, timings[3].us,
                        ratio(timings[2], timings[3]), ratio(timings[4], timings[5]), ratio(timings[0], timings[1])});
  };
  for (const std::size_t sequences :
       options.smoke ? std::vector<std::size_t>{64} : std::vector<std::size_t>{2048, 8192}) {
    for (const double shared : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      add(shape_name(sequences, shared), shared_prefix(sequences, 512, shared));
    }
  }
  for (const std::filesystem::path& file : files) {
    add(workload_name(file), batch_of(load_requests(file.string(), max_tokens), std::size_t{1} << 20));
  }
  return report;
}

void register_single_shapes() {
  for (const std::size_t sequences : {std::size_t{32}, std::size_t{2048}}) {
    const std::string name = shape_name(sequences, 0.25);
    benchmark::RegisterBenchmark(("PrefixTrie/" + name).c_str(), [sequences](benchmark::State& state) {
      const Batch batch = shared_prefix(sequences, 512, 0.25);
      radixmlp::PrefixTrie trie;
      for (auto _ : state) {
        benchmark::DoNotOptimize(trie.build(batch.view()).scatter.data());
      }
      state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(batch.tokens.size()));
    });
    benchmark::RegisterBenchmark(("node_trie/" + name).c_str(), [sequences](benchmark::State& state) {
      const Workload workload(shared_prefix(sequences, 512, 0.25));
      const Batch& batch = workload.batches.front();
      for (auto _ : state) {
        benchmark::DoNotOptimize(
            build_node_trie(batch.tokens, workload.positions.front(), batch.cu_seqlens).scatter.data());
      }
      state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(batch.tokens.size()));
    });
  }
}

int run(int argc, char** argv) {
  constexpr std::string_view google = "--benchmark_";
  const Options options = parse_options(argc, argv, google);
  if (std::any_of(argv + 1, argv + argc, [&](const char* a) { return std::string_view(a).starts_with(google); })) {
    register_single_shapes();
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  }
  Comparison comparison(options, describe_run(argc, argv));
  compare_synthetic(comparison, options.smoke ? std::vector<std::size_t>{32} : std::vector<std::size_t>{32, 2048});
  compare_adversarial(comparison, options.smoke ? 16 : 512);
  const std::vector<std::filesystem::path> files =
      options.smoke ? std::vector<std::filesystem::path>{} : workload_files();
  compare_workloads(comparison, files);
  comparison.result().write(options, {compare_doubling(options), compare_threads(options, files)});
  return 0;
}

}  // namespace
}  // namespace radixmlp_bench

int main(int argc, char** argv) { return radixmlp_bench::report_errors(argc, argv, radixmlp_bench::run); }
