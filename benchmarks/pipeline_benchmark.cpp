// SPDX-License-Identifier: MIT

// Indices built ahead by a thread of an IndexPipeline against building and computing in turn. "Compute" is a spin of
// 1.5 times what the batch's build takes, or of 1 ms where that is more. Results are compared before any timing.
// Passes in which another program took a processor away are left out: `passes` says how many are left.

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
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

// What a pass over some batches took, its first batch left out; microseconds.
struct Pass {
  double total = 0, waiting = 0, submitting = 0;
  std::vector<double> takes;  // of batches that were finished
};

struct Effort {
  std::size_t passes = 20;  // undisturbed ones
  std::size_t most_passes = 400;
};

class Workload {
 public:
  Workload(std::vector<Batch> batches, Effort effort, double least_compute_us)
      : batches_(std::move(batches)), effort_(effort) {
    // In turn, as they are built later: with caches that know the batches before.
    std::vector<std::vector<double>> samples(batches_.size());
    for (int round = 0; round < 7; ++round) {
      for (std::size_t b = 0; b < batches_.size(); ++b) {
        const Clock::time_point start = Clock::now();
        trie_.build(batches_[b].view());
        samples[b].push_back(us_since(start));
      }
    }
    for (std::vector<double>& of_batch : samples) {
      build_us_.push_back(median(std::move(of_batch)));
      compute_us_.push_back(std::max(1.5 * build_us_.back(), least_compute_us));
    }
    // Short, so that some are left alone on a busy machine; long enough to submit within the timed part.
    pass_batches_ =
        std::clamp(static_cast<std::size_t>(3'000 / (build_us() + compute_us())), std::size_t{6}, batches_.size());
  }

  [[nodiscard]] double build_us() const { return mean(build_us_); }
  [[nodiscard]] double compute_us() const { return mean(compute_us_); }

  // Medians of the undisturbed passes, a batch.
  struct Figures {
    double us = no_figure, waiting_percent = no_figure, take_us = no_figure, submit_us = no_figure;
    std::size_t passes = 0;
  };

  // Build, compute, build, compute.
  [[nodiscard]] Figures serial() {
    return measure([this](std::size_t first) {
      Pass pass;
      Clock::time_point start;
      for (std::size_t b = first; b < first + pass_batches_; ++b) {
        if (b == first + 1) {
          start = Clock::now();
        }
        trie_.build(batches_[b].view());
        spin(compute_us_[b]);
      }
      pass.total = us_since(start);
      return pass;
    });
  }

  // Compute while the pipeline's thread builds `slots - 1` batches ahead.
  [[nodiscard]] Figures overlapped(std::int32_t slots) {
    keep_to_processor(1);
    Pipeline pipeline({.slots = slots, .workers = 1});
    keep_to_processor(0);
    for (const Batch& batch : batches_) {
      if (!pipeline.submit(batch.view())) {
        throw std::runtime_error("the pipeline is closed");
      }
      require_equal(pipeline.take().view(), trie_.build(batch.view()));
    }
    return measure([&](std::size_t first) { return run_pass(pipeline, first, static_cast<std::size_t>(slots) - 1); });
  }

 private:
  template <class F>
  [[nodiscard]] Figures measure(const F& run) {
    std::vector<double> totals, shares, takes, submits;
    for (std::size_t pass = 0; pass < effort_.most_passes && totals.size() < effort_.passes; ++pass) {
      const double delay_before = delay_us();
      const Pass result = run(pass * pass_batches_ % (batches_.size() - pass_batches_ + 1));
      if (delay_us() - delay_before > 0.001 * result.total) {
        continue;
      }
      totals.push_back(result.total);
      shares.push_back(result.waiting / result.total * 100);
      submits.push_back(result.submitting);
      takes.insert(takes.end(), result.takes.begin(), result.takes.end());
    }
    Figures figures;
    if (figures.passes = totals.size(); figures.passes > 0) {
      const auto batches = static_cast<double>(pass_batches_ - 1);
      figures.us = median(std::move(totals)) / batches;
      figures.waiting_percent = median(std::move(shares));
      figures.submit_us = median(std::move(submits)) / batches;
      figures.take_us = takes.empty() ? no_figure : median(std::move(takes));
    }
    return figures;
  }

  [[nodiscard]] Pass run_pass(Pipeline& pipeline, std::size_t first, std::size_t ahead) {
    Pass pass;
    const std::size_t end = first + pass_batches_;
    std::size_t submitted = first;
    Clock::time_point start;
    for (std::size_t b = first; b < end; ++b) {
      if (b == first + 1) {
        start = Clock::now();
        pass = {};
      }
      const Clock::time_point submitting = Clock::now();
      for (; submitted < std::min(b + 1 + ahead, end); ++submitted) {
        if (!pipeline.try_submit(batches_[submitted].view())) {
          throw std::runtime_error("a slot is missing");
        }
      }
      const Clock::time_point taking = Clock::now();
      auto lease = pipeline.try_take();
      if (lease) {
        pass.takes.push_back(us_since(taking));
      } else {
        lease = pipeline.take();
      }
      const Clock::time_point taken = Clock::now();
      pass.submitting += std::chrono::duration<double, std::micro>(taking - submitting).count();
      pass.waiting += std::chrono::duration<double, std::micro>(taken - taking).count();
      spin(compute_us_[b]);
    }
    pass.total = us_since(start);
    // A delay is counted when it ends: let the pipeline's thread come to a build before the count is read.
    if (!pipeline.try_submit(batches_.front().view())) {
      throw std::runtime_error("a slot is missing");
    }
    while (!pipeline.try_take()) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return pass;
  }

  [[nodiscard]] static double mean(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }

  std::vector<Batch> batches_;
  Effort effort_;
  std::size_t pass_batches_ = 0;
  std::vector<double> build_us_, compute_us_;
  radixmlp::PrefixTrie trie_;
};

void add(Report& report, const std::string& name, Workload workload) {
  std::vector<double> figures{workload.build_us(), workload.compute_us(), workload.serial().us};
  for (const std::int32_t slots : {2, 3}) {
    const Workload::Figures run = workload.overlapped(slots);
    figures.insert(figures.end(),
                   {run.us, run.waiting_percent, run.take_us, run.submit_us, static_cast<double>(run.passes)});
  }
  report.add({name}, figures);
}

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
  const Options options = parse_options(argc, argv);
  Report report({"batches"},
                {"build us", "compute us", "serial us", "2 slots us", "waiting %", "take us", "submit us", "passes",
                 "3 slots us", "waiting %", "take us", "submit us", "passes"},
                describe_run(argc, argv));
  const Effort effort = options.smoke ? Effort{2, 2} : Effort{};
  keep_to_processor(0);
  const auto sample = load_requests(options.data.empty() ? RADIXMLP_SAMPLE : options.data);
  for (const std::size_t budget :
       {std::size_t{1} << 14, std::size_t{1} << 16, std::size_t{1} << 18, std::size_t{1} << 20}) {
    if (!options.smoke || budget < 1 << 18) {
      add(report, "sample " + std::to_string(budget), Workload(rounds(sample, budget, options.smoke), effort, 0));
    }
  }
  const std::filesystem::path folder = std::filesystem::path(RADIXMLP_SHARED_DIR) / "workloads";
  if (!options.smoke && std::filesystem::is_directory(folder)) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".jsonl") {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
    for (const double least_compute_us : {0.0, 1000.0}) {
      for (const std::filesystem::path& file : files) {
        add(report, file.stem().string().substr(0, 27) + " 65536",
            Workload(rounds(load_requests(file.string(), 1 << 22), 1 << 16, false), effort, least_compute_us));
      }
    }
  } else if (!options.smoke) {
    std::printf("skipped: no workloads in %s\n", folder.c_str());
  }
  report.write(options);
  return 0;
}

}  // namespace
}  // namespace radixmlp_bench

int main(int argc, char** argv) { return radixmlp_bench::report_errors(argc, argv, radixmlp_bench::run); }
