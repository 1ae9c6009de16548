// SPDX-License-Identifier: MIT

// Indices built ahead by a thread of an IndexPipeline against building and computing in turn. Results are compared
// before any timing. "Compute" is a spin, one of
// - 1.5 builds: 1.5 times what the batch's build takes in turn, always into the same memory;
// - 1.5 ahead: 1.5 times what it takes on the pipeline's processor, round as many outputs as there are slots
//   ("ahead us"). What it writes has left the nearest cache then, as for any engine that keeps an index while it builds
//   the next;
// - 1 ms.
// Waiting is the time in take() for batches that were not finished when they were asked for; "take us" is what finished
// ones take. In rows of one workload, passes in which another program took a processor away are left out: `passes` says
// how many are left. The rows of all workloads are runs over 10,000 random batches: whole, and without the stretches of
// 100 batches in which another program took a processor away; "ideal" is computed. --only=TEXT runs the rows whose
// names have it in them.

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "radixmlp/index/prefix_trie.hpp"
#include "radixmlp/pipeline/index_pipeline.hpp"
#include "support/interleave.hpp"
#include "support/report.hpp"
#include "support/workloads.hpp"

namespace radixmlp_bench {
namespace {

using Clock = std::chrono::steady_clock;
using Pipeline = radixmlp::IndexPipeline<>;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

void spin(double us) {
  for (const Clock::time_point start = Clock::now(); us_since(start) < us;) {
  }
}

// The calling thread, and the threads that it starts from then on, keep to the n-th of the program's processors. Where
// another program keeps a processor busy, a scheduler may else run the pipeline's thread in the place of the one that
// wakes it, and the two take turns.
void keep_to_processor(int n) {
  static const cpu_set_t allowed = [] {
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    return set;
  }();
  n %= CPU_COUNT(&allowed);
  for (std::size_t processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &allowed) && n-- == 0) {
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(processor, &one);
      sched_setaffinity(0, sizeof one, &one);
    }
  }
}

// Microseconds in which threads of this program were ready to run and another program had their processor, where the
// system tells (Linux, schedstat); else 0.
double delay_us() {
  double sum = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "schedstat");
    double ran_ns = 0, delayed_ns = 0;
    if (file >> ran_ns >> delayed_ns) {
      sum += delayed_ns / 1000;
    }
  }
  return sum;
}

void require_equal(const radixmlp::PrefixIndexView& index, const radixmlp::PrefixIndexView& expected) {
  if (!std::ranges::equal(index.scatter, expected.scatter) || !std::ranges::equal(index.gather, expected.gather) ||
      !std::ranges::equal(index.parent, expected.parent)) {
    throw std::runtime_error("the pipeline and a direct build disagree");
  }
}

constexpr std::int32_t all_slots[] = {3, 8, 16};

// Outputs to build into in turn, as a pipeline does.
class Outputs {
 public:
  explicit Outputs(std::size_t bytes) : bytes_(bytes) {
    for (auto& block : blocks_) {
      block = std::make_unique<Chunk[]>(bytes / sizeof(Chunk) + 1);
    }
  }
  [[nodiscard]] std::span<std::byte> operator[](std::size_t n) const {
    return {reinterpret_cast<std::byte*>(blocks_[n].get()), bytes_};
  }

 private:
  struct alignas(radixmlp::index_alignment) Chunk {
    std::byte bytes[radixmlp::index_alignment];
  };
  std::size_t bytes_;
  std::unique_ptr<Chunk[]> blocks_[16];
};

using Views = std::vector<radixmlp::RaggedBatch<std::int32_t>>;

std::size_t largest_index(const Views& batches) {
  std::size_t bytes = 0;
  for (const auto& batch : batches) {
    bytes = std::max(bytes, radixmlp::index_bytes(batch.rows(), batch.sequences()));
  }
  return bytes;
}

// What each batch's build takes, microseconds: the median of some rounds over all batches, with caches that know the
// batches before, on the pipeline's processor.
std::vector<double> build_times(const Views& batches, const Outputs& outputs, std::size_t output_count, int rounds) {
  radixmlp::PrefixTrie trie;
  std::vector<std::vector<double>> samples(batches.size());
  keep_to_processor(1);
  for (int round = 0; round <= rounds; ++round) {
    for (std::size_t b = 0; b < batches.size(); ++b) {
      const Clock::time_point start = Clock::now();
      trie.build_into(outputs[b % output_count], batches[b]);
      if (round > 0) {
        samples[b].push_back(us_since(start));
      }
    }
  }
  keep_to_processor(0);
  std::vector<double> times;
  times.reserve(batches.size());
  for (std::vector<double>& of_batch : samples) {
    times.push_back(median(std::move(of_batch)));
  }
  return times;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::unique_ptr<Pipeline> start_pipeline(std::int32_t slots, std::size_t bytes) {
  keep_to_processor(1);
  auto pipeline =
      std::make_unique<Pipeline>(radixmlp::PipelineOptions{.slots = slots, .workers = 1, .slot_bytes = bytes});
  keep_to_processor(0);
  return pipeline;
}

void compare(Pipeline& pipeline, const Views& batches) {
  radixmlp::PrefixTrie trie;
  for (const auto& batch : batches) {
    if (!pipeline.submit(batch)) {
      throw std::runtime_error("the pipeline is closed");
    }
    require_equal(pipeline.take().view(), trie.build(batch));
  }
}

// What a pass over some batches took, its first batch left out; microseconds.
struct Pass {
  double total = 0, waiting = 0, submitting = 0;
  std::vector<double> takes;  // of batches that were finished
};

// Computes while the pipeline's thread builds `slots - 1` batches ahead. `after(b, pass)` comes behind each compute.
template <class After>
Pass run_ahead(Pipeline& pipeline, std::int32_t slots, const Views& batches, const std::vector<double>& compute_us,
               std::size_t first, std::size_t end, const After& after) {
  Pass pass;
  std::size_t submitted = first;
  Clock::time_point start;
  for (std::size_t b = first; b < end; ++b) {
    if (b == first + 1) {
      start = Clock::now();
      pass = {};
    }
    const Clock::time_point submitting = Clock::now();
    for (; submitted < std::min(b + static_cast<std::size_t>(slots), end); ++submitted) {
      if (!pipeline.try_submit(batches[submitted])) {
        throw std::runtime_error("a slot is missing");
      }
    }
    const Clock::time_point taking = Clock::now();
    auto lease = pipeline.try_take();
    if (lease) {
      pass.takes.push_back(us_since(taking));
    } else {
      lease = pipeline.take();
      pass.waiting += us_since(taking);
    }
    pass.submitting += std::chrono::duration<double, std::micro>(taking - submitting).count();
    spin(compute_us[b]);
    pass.total = us_since(start);
    after(b, pass);
  }
  return pass;
}

struct Effort {
  std::size_t passes = 20;  // undisturbed ones
  std::size_t most_passes = 400;
};

// The share of the time in which the consumer of an ideal pipeline waits, whose thread begins at once and builds as
// fast ahead as in turn: what no more than the length of the queue and the batches' unevenness cost.
double ideal_waiting_percent(const std::vector<double>& build_us, const std::vector<double>& compute_us,
                             std::size_t slots) {
  std::vector<double> released;
  double now = 0, built = 0, waiting = 0;
  for (std::size_t b = 0; b < build_us.size(); ++b) {
    const double submitted = b < slots ? 0 : released[b - slots];
    built = std::max(built, submitted) + build_us[b];
    waiting += b == 0 ? 0 : std::max(built - now, 0.0);
    now = std::max(now, built) + compute_us[b];
    released.push_back(now);
  }
  return waiting / now * 100;
}

enum class Compute : std::uint8_t { builds, builds_ahead, millisecond };

const char* name_of(Compute compute) {
  return compute == Compute::builds ? "1.5 builds" : compute == Compute::builds_ahead ? "1.5 ahead" : "1 ms";
}

class Workload {
 public:
  Workload(std::vector<Batch> batches, Effort effort) : batches_(std::move(batches)), effort_(effort) {
    for (const Batch& batch : batches_) {
      views_.push_back(batch.view());
    }
    outputs_ = std::make_unique<Outputs>(largest_index(views_));
    build_us_ = build_times(views_, *outputs_, 1, 7);
    // Short, so that some are left alone on a busy machine; long enough to submit within the timed part.
    pass_batches_ = std::clamp(static_cast<std::size_t>(3'000 / (2.5 * mean(build_us_))),
                               std::min(std::size_t{12}, batches_.size()), batches_.size());
  }

  void add_to(Report& report, const std::string& name, Compute compute) {
    std::vector<double> compute_us = build_us_;
    for (double& us : compute_us) {
      us = compute == Compute::millisecond ? 1000 : 1.5 * us;
    }
    std::vector<double> figures{mean(build_us_), mean(compute_us), serial(compute_us).us};
    for (const std::int32_t slots : all_slots) {
      if (slots > 8) {  // passes are too short
        figures.insert(figures.end(), 6, no_figure);
        continue;
      }
      const std::vector<double> ahead_us = build_times(views_, *outputs_, static_cast<std::size_t>(slots), 7);
      if (compute == Compute::builds_ahead) {
        for (std::size_t b = 0; b < compute_us.size(); ++b) {
          compute_us[b] = 1.5 * ahead_us[b];
        }
      }
      const Figures run = overlapped(slots, compute_us);
      figures.insert(figures.end(), {mean(ahead_us), run.us, run.waiting_percent, run.take_us, run.submit_us,
                                     static_cast<double>(run.passes)});
    }
    report.add({name}, figures);
  }

 private:
  // Of the undisturbed passes: medians, a batch, and the share of all their time.
  struct Figures {
    double us = no_figure, waiting_percent = no_figure, take_us = no_figure, submit_us = no_figure;
    std::size_t passes = 0;
  };

  // Build, compute, build, compute.
  [[nodiscard]] Figures serial(const std::vector<double>& compute_us) {
    return measure([&](std::size_t first) {
      Pass pass;
      Clock::time_point start;
      for (std::size_t b = first; b < first + pass_batches_; ++b) {
        if (b == first + 1) {
          start = Clock::now();
        }
        trie_.build(views_[b]);
        spin(compute_us[b]);
      }
      pass.total = us_since(start);
      return pass;
    });
  }

  [[nodiscard]] Figures overlapped(std::int32_t slots, const std::vector<double>& compute_us) {
    const auto pipeline = start_pipeline(slots, largest_index(views_));
    compare(*pipeline, views_);
    return measure([&](std::size_t first) {
      Pass pass = run_ahead(*pipeline, slots, views_, compute_us, first, first + pass_batches_,
                            [](std::size_t, const Pass&) {});
      // A delay is counted when it ends: let the pipeline's thread come to a build before the count is read.
      if (!pipeline->try_submit(views_.front())) {
        throw std::runtime_error("a slot is missing");
      }
      while (!pipeline->try_take()) {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      return pass;
    });
  }

  template <class F>
  [[nodiscard]] Figures measure(const F& run) {
    std::vector<double> totals, takes, submits;
    double waiting = 0;
    for (std::size_t pass = 0; pass < effort_.most_passes && totals.size() < effort_.passes; ++pass) {
      const double delay_before = delay_us();
      const Pass result = run(pass * pass_batches_ % (batches_.size() - pass_batches_ + 1));
      if (delay_us() - delay_before > 0.001 * result.total) {
        continue;
      }
      totals.push_back(result.total);
      waiting += result.waiting;
      submits.push_back(result.submitting);
      takes.insert(takes.end(), result.takes.begin(), result.takes.end());
    }
    Figures figures;
    if (figures.passes = totals.size(); figures.passes > 0) {
      const auto batches = static_cast<double>(pass_batches_ - 1);
      figures.waiting_percent = waiting / std::accumulate(totals.begin(), totals.end(), 0.0) * 100;
      figures.us = median(std::move(totals)) / batches;
      figures.submit_us = median(std::move(submits)) / batches;
      figures.take_us = takes.empty() ? no_figure : median(std::move(takes));
    }
    return figures;
  }

  std::vector<Batch> batches_;
  Views views_;
  Effort effort_;
  std::unique_ptr<Outputs> outputs_;
  std::size_t pass_batches_ = 0;
  std::vector<double> build_us_;
  radixmlp::PrefixTrie trie_;
};

// Random batches of all workloads: neighbours of one, from a random request up to a budget, either 16,384 or 65,536
// tokens, or up to its end; at least one request.
class Mix {
 public:
  Mix(const std::vector<std::filesystem::path>& files, std::size_t count, int runs) : runs_(runs) {
    std::vector<std::vector<std::int32_t>> ends;  // of requests in the tokens of a workload
    for (const std::filesystem::path& file : files) {
      tokens_.emplace_back();
      ends.push_back({0});
      for (const auto& request : load_requests(file.string(), 1 << 20)) {
        tokens_.back().insert(tokens_.back().end(), request.begin(), request.end());
        ends.back().push_back(static_cast<std::int32_t>(tokens_.back().size()));
      }
    }
    std::mt19937_64 random(5);
    for (std::size_t n = 0; n < count; ++n) {
      const std::size_t w = random() % ends.size();
      const std::int32_t budget = random() % 2 == 0 ? 1 << 14 : 1 << 16;
      const std::size_t first = random() % (ends[w].size() - 1);
      const std::int32_t begin = ends[w][first];
      std::vector<std::int32_t>& cu_seqlens = cu_seqlens_.emplace_back(1, 0);
      for (std::size_t r = first + 1; r < ends[w].size() && (r == first + 1 || ends[w][r] - begin <= budget); ++r) {
        cu_seqlens.push_back(ends[w][r] - begin);
      }
      views_.push_back(
          {.tokens = std::span(tokens_[w])
                         .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(cu_seqlens.back())),
           .cu_seqlens = cu_seqlens});
    }
  }

  // Each run right behind the builds that its compute is measured by: the speed of shared machines drifts.
  void add_to(Report& report, const std::string& name, Compute compute) {
    const std::size_t bytes = largest_index(views_);
    const Outputs outputs(bytes);
    std::vector<double> builds, computes;
    std::vector<double> whole, undisturbed, ideal;
    for (const std::int32_t slots : all_slots) {
      const auto pipeline = start_pipeline(slots, bytes);
      compare(*pipeline, {views_.begin(), views_.begin() + 100});
      std::vector<double> ahead, us, waits, left_waits, ideal_waits, takes, submits;
      for (int run = 0; run < runs_; ++run) {
        const std::vector<double> build_us = build_times(views_, outputs, 1, 3);
        const std::vector<double> ahead_us = build_times(views_, outputs, static_cast<std::size_t>(slots), 3);
        std::vector<double> compute_us = compute == Compute::builds ? build_us : ahead_us;
        for (double& of_batch : compute_us) {
          of_batch *= 1.5;
        }
        Stretches stretches;
        const Pass pass = run_ahead(*pipeline, slots, views_, compute_us, 0, views_.size(), std::ref(stretches));
        const auto batches = static_cast<double>(views_.size() - 1);
        builds.push_back(mean(build_us));
        computes.push_back(mean(compute_us));
        ahead.push_back(mean(ahead_us));
        us.push_back(pass.total / batches);
        waits.push_back(pass.waiting / pass.total * 100);
        left_waits.push_back(stretches.waiting_percent());
        ideal_waits.push_back(ideal_waiting_percent(compute == Compute::builds ? build_us : ahead_us, compute_us,
                                                    static_cast<std::size_t>(slots)));
        submits.push_back(pass.submitting / batches);
        takes.insert(takes.end(), pass.takes.begin(), pass.takes.end());
        std::printf("%d slots: waiting %.3f%%, %.3f%% in the %.0f%% left alone; build %.2f, ahead %.2f us\n", slots,
                    waits.back(), left_waits.back(), stretches.left_percent(), builds.back(), ahead.back());
      }
      const std::vector<double> rest{takes.empty() ? no_figure : median(takes), median(submits),
                                     static_cast<double>(runs_)};
      for (auto [row, waiting] : {std::pair{&whole, &waits}, std::pair{&undisturbed, &left_waits}}) {
        row->insert(row->end(), {median(ahead), median(us), median(*waiting)});
        row->insert(row->end(), rest.begin(), rest.end());
      }
      ideal.insert(ideal.end(), {no_figure, no_figure, median(ideal_waits), no_figure, no_figure, no_figure});
    }
    for (auto [row, suffix] :
         {std::pair{&whole, ""}, std::pair{&undisturbed, ", left alone"}, std::pair{&ideal, ", ideal"}}) {
      row->insert(row->begin(), {median(builds), median(computes), no_figure});
      report.add({name + suffix}, *row);
    }
  }

 private:
  // Of 100 batches; those in which no thread of this program lost its processor to another.
  class Stretches {
   public:
    void operator()(std::size_t b, const Pass& pass) {
      if (b % 100 == 0) {
        rusage usage{};
        getrusage(RUSAGE_SELF, &usage);
        if (b > 0 && usage.ru_nivcsw == switches_) {
          total_ += pass.total - last_total_;
          waiting_ += pass.waiting - last_waiting_;
        }
        switches_ = usage.ru_nivcsw;
        last_total_ = b == 0 ? 0 : pass.total;
        last_waiting_ = b == 0 ? 0 : pass.waiting;
        all_ = pass.total;
      }
    }
    [[nodiscard]] double waiting_percent() const { return total_ > 0 ? waiting_ / total_ * 100 : no_figure; }
    [[nodiscard]] double left_percent() const { return total_ / all_ * 100; }

   private:
    long switches_ = 0;
    double total_ = 0, waiting_ = 0, last_total_ = 0, last_waiting_ = 0, all_ = 0;
  };

  int runs_;
  std::vector<std::vector<std::int32_t>> tokens_;  // of each workload, one request behind the other
  std::vector<std::vector<std::int32_t>> cu_seqlens_;
  Views views_;
};

// Full batches of a budget, about 2^24 tokens in all: the requests again and again, each round with other tokens.
std::vector<Batch> rounds(const std::vector<std::vector<std::int32_t>>& requests, std::size_t budget, bool smoke) {
  constexpr std::int32_t vocabulary = 151'936;
  const std::size_t count = smoke ? 6 : std::clamp((std::size_t{1} << 24) / budget, std::size_t{8}, std::size_t{60});
  std::vector<Batch> all(1);
  for (std::int32_t round = 0; all.size() <= count; ++round) {
    for (std::vector<std::int32_t> request : requests) {
      for (std::int32_t& token : request) {
        token += round * vocabulary;
      }
      if (!all.back().tokens.empty() && all.back().tokens.size() + request.size() > budget) {
        all.emplace_back();
      }
      all.back().add(request);
    }
  }
  all.resize(count);
  return all;
}

int run(int argc, char** argv) {
  constexpr std::string_view only_argument = "--only=";  // rows whose name has this in it
  const Options options = parse_options(argc, argv, only_argument);
  std::string_view only;
  for (const std::string_view argument : std::span(argv, static_cast<std::size_t>(argc))) {
    if (argument.starts_with(only_argument)) {
      only = argument.substr(only_argument.size());
    }
  }
  std::vector<std::string> columns{"build us", "compute us", "serial us"};
  for (const std::int32_t slots : all_slots) {
    const std::string name = std::to_string(slots) + " slots ";
    for (const char* column : {"ahead us", "us", "waiting %", "take us", "submit us", "passes"}) {
      columns.push_back(name + column);
    }
  }
  Report report({"batches"}, columns, describe_run(argc, argv));
  keep_to_processor(0);
  const Effort effort = options.smoke ? Effort{2, 2} : Effort{};
  // A workload is loaded where one of its rows is wanted.
  const auto add = [&](const std::string& name, std::initializer_list<Compute> computes, const auto& load) {
    std::optional<std::invoke_result_t<decltype(load)>> workload;
    for (const Compute compute : computes) {
      if (const std::string row = name + ", " + name_of(compute); row.find(only) != std::string::npos) {
        (workload ? *workload : workload.emplace(load())).add_to(report, row, compute);
      }
    }
  };
  const std::string sample_file = options.data.empty() ? RADIXMLP_SAMPLE : options.data;
  const auto sample = load_requests(sample_file);
  for (const std::size_t budget :
       {std::size_t{1} << 14, std::size_t{1} << 16, std::size_t{1} << 18, std::size_t{1} << 20}) {
    if (!options.smoke || budget < 1 << 18) {
      add("sample " + std::to_string(budget), {Compute::builds},
          [&] { return Workload(rounds(sample, budget, options.smoke), effort); });
    }
  }
  const std::filesystem::path folder = std::filesystem::path(RADIXMLP_SHARED_DIR) / "workloads";
  if (options.smoke) {
    add("200 random", {Compute::builds_ahead}, [&] { return Mix({sample_file}, 200, 1); });
  } else if (std::filesystem::is_directory(folder)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".jsonl") {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    add("10000 random", {Compute::builds, Compute::builds_ahead}, [&] { return Mix(files, 10'000, 5); });
    for (const std::filesystem::path& file : files) {
      add(file.stem().string().substr(0, 27) + " 65536", {Compute::builds, Compute::builds_ahead, Compute::millisecond},
          [&] { return Workload(rounds(load_requests(file.string(), 1 << 22), 1 << 16, false), effort); });
    }
  } else {
    std::printf("skipped: no workloads in %s\n", folder.c_str());
  }
  report.write(options);
  return 0;
}

}  // namespace
}  // namespace radixmlp_bench

int main(int argc, char** argv) { return radixmlp_bench::report_errors(argc, argv, radixmlp_bench::run); }
