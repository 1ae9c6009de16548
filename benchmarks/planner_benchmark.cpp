// SPDX-License-Identifier: MIT

// BatchPlanner on every workload in shuffled order, against batches cut from the order of arrival and from depth-first
// (lexicographic) order, and against a bound that no plan can beat; then how long planning takes.
//
//   radixmlp_bench_planner            all of it; --markdown FILE writes the table
//                          --smoke    synthetic queues alone, small, for the test suite

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "radixmlp/index/batch_planner.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "support/interleave.hpp"
#include "support/report.hpp"
#include "support/workloads.hpp"

namespace radixmlp_bench {
namespace {

using radixmlp::BatchBudget;
using radixmlp::BatchPlan;
using Planner = radixmlp::BatchPlanner<std::int32_t>;
using Requests = std::vector<std::vector<std::int32_t>>;

constexpr std::int64_t budget_rows = 16'384;
constexpr std::uint64_t shuffle_seed = 20;

enum class Counted { tokens, unique_rows };

BatchBudget budget_of(Counted counted) {
  return counted == Counted::tokens ? BatchBudget{.tokens = budget_rows} : BatchBudget{.unique_rows = budget_rows};
}

// A trie with a node a token. Knows how many nodes a request would add.
class NodeCounter {
 public:
  std::int64_t add(const std::vector<std::int32_t>& request, bool only_count = false) {
    std::int64_t added = 0;
    std::uint64_t node = 0;
    for (const std::int32_t token : request) {
      const std::uint64_t key = node << 32 | static_cast<std::uint32_t>(token);
      if (added == 0) {
        if (const auto found = nodes_.find(key); found != nodes_.end()) {
          node = found->second;
          continue;
        }
      }
      ++added;
      if (!only_count) {
        node = nodes_.size() + 1;
        nodes_.emplace(key, node);
      }
    }
    return added;
  }
  void clear() { nodes_.clear(); }

 private:
  std::unordered_map<std::uint64_t, std::uint64_t> nodes_;
};

struct Division {
  std::int64_t batches = 0;
  std::int64_t rows = 0;
};

// In the order given; a request that would pass the budget opens a new batch.
Division cut_when_full(const Requests& requests, Counted counted) {
  Division division;
  NodeCounter nodes;
  std::int64_t load = 0;
  for (const std::vector<std::int32_t>& request : requests) {
    const auto length = static_cast<std::int64_t>(request.size());
    const std::int64_t more = counted == Counted::tokens ? length : nodes.add(request, true);
    if (division.batches == 0 || load + more > budget_rows) {
      nodes.clear();
      load = 0;
      ++division.batches;
    }
    const std::int64_t added = nodes.add(request);
    load += counted == Counted::tokens ? length : added;
    division.rows += added;
  }
  return division;
}

// Sum over the nodes of the trie of the fewest batches that can hold the subtree, by its tokens or by its own nodes.
std::int64_t bound_rows(const Requests& sorted, Counted counted) {
  struct Node {
    std::int64_t depth, load;
  };
  std::vector<Node> path{{0, 0}};
  std::int64_t bound = 0;
  const auto close = [&](std::int64_t depth) {
    while (path.back().depth > depth) {
      const Node node = path.back();
      path.pop_back();
      if (path.back().depth < depth) {
        path.push_back({depth, 0});
      }
      // A row's subtree has all rows below it; by tokens, all rows of the edge have the same.
      std::int64_t load = node.load;
      for (std::int64_t row = node.depth; row > path.back().depth; --row) {
        load += counted == Counted::tokens ? 0 : 1;
        bound += (load + budget_rows - 1) / budget_rows;
      }
      path.back().load += load;
    }
  };
  const std::vector<std::int32_t>* before = nullptr;
  for (const std::vector<std::int32_t>& request : sorted) {
    const auto length = static_cast<std::int64_t>(request.size());
    if (before != nullptr) {
      close(std::mismatch(before->begin(), before->end(), request.begin(), request.end()).first - before->begin());
    }
    if (length > path.back().depth) {
      path.push_back({length, 0});
    }
    path.back().load += counted == Counted::tokens ? length : 0;
    before = &request;
  }
  close(0);
  return bound;
}

BatchPlan plan_all(const Requests& requests, const BatchBudget& budget) {
  Planner planner(budget);
  for (const std::vector<std::int32_t>& request : requests) {
    planner.push({.tokens = request});
  }
  return planner.plan();
}

// The plan's loads are what PrefixTrie finds in its batches.
void check(const BatchPlan& plan, const Requests& requests, const BatchBudget& budget) {
  radixmlp::PrefixTrie trie;
  std::vector<bool> seen(requests.size(), false);
  for (std::size_t b = 0; b < plan.loads.size(); ++b) {
    Batch batch;
    for (std::int32_t k = plan.cu_batches[b]; k < plan.cu_batches[b + 1]; ++k) {
      const auto r = static_cast<std::size_t>(plan.order[static_cast<std::size_t>(k)]);
      if (seen[r]) {
        throw std::runtime_error("the plan has a request twice");
      }
      seen[r] = true;
      batch.add(requests[r]);
    }
    const radixmlp::PrefixIndexView index = trie.build(batch.view());
    const radixmlp::BatchLoad& load = plan.loads[b];
    if (index.compact_rows != load.unique_rows || index.ragged_rows != load.tokens ||
        (load.sequences > 1 && (load.tokens > budget.tokens || load.unique_rows > budget.unique_rows))) {
      throw std::runtime_error("a batch of the plan has other rows than its load says, or too many");
    }
  }
  if (std::find(seen.begin(), seen.end(), false) != seen.end()) {
    throw std::runtime_error("the plan lacks a request");
  }
}

double milliseconds(const InterleaveOptions& timing, const Requests& requests, const BatchBudget& budget) {
  return interleave(timing, {[&] { benchmark::DoNotOptimize(plan_all(requests, budget).unique_rows); }})[0].us / 1e3;
}

// Requests of a few templates: `shared` tokens of one of them, and own ones.
Requests synthetic(std::size_t count, std::size_t templates, std::size_t shared, std::size_t own) {
  std::mt19937_64 random(7);
  Requests requests(count);
  for (std::vector<std::int32_t>& request : requests) {
    const auto which = static_cast<std::int32_t>(random() % templates);
    request.assign(shared, which);
    for (std::size_t more = random() % (2 * own); more > 0; --more) {
      request.push_back(static_cast<std::int32_t>(random() % 1000));
    }
  }
  return requests;
}

void report_savings(const std::vector<std::filesystem::path>& files, const InterleaveOptions& timing, Report& report) {
  for (const Counted counted : {Counted::tokens, Counted::unique_rows}) {
    for (const std::filesystem::path& file : files) {
      Requests requests = load_requests(file.string());
      std::mt19937_64 random(shuffle_seed);
      std::shuffle(requests.begin(), requests.end(), random);
      const BatchBudget budget = budget_of(counted);
      const BatchPlan plan = plan_all(requests, budget);
      check(plan, requests, budget);
      const Division arrival = cut_when_full(requests, counted);
      const double ms = milliseconds(timing, requests, budget);
      std::sort(requests.begin(), requests.end());
      const Division depth_first = cut_when_full(requests, counted);
      const auto number = [](std::int64_t n) { return static_cast<double>(n); };
      const auto saved = [&](std::int64_t rows) { return 100 * (1 - number(rows) / number(plan.tokens)); };
      report.add({file.stem().string() + (counted == Counted::tokens ? ", N" : ", N'")},
                 {number(plan.tokens), saved(arrival.rows), saved(depth_first.rows), saved(plan.unique_rows),
                  saved(bound_rows(requests, counted)), saved(plan.trie_rows), number(arrival.batches),
                  number(depth_first.batches), number(plan.batches()), number(plan.unique_rows),
                  100 * (1 - number(plan.unique_rows) / number(depth_first.rows)), 100 * plan.saving(), ms});
    }
  }
}

void report_times(bool smoke, const InterleaveOptions& timing, Report& report) {
  const auto add = [&](const std::string& name, const Requests& requests) {
    std::size_t tokens = 0;
    for (const std::vector<std::int32_t>& request : requests) {
      tokens += request.size();
    }
    const BatchBudget budget = budget_of(Counted::tokens);
    check(plan_all(requests, budget), requests, budget);
    const double ms = milliseconds(timing, requests, budget);
    report.add({name}, {static_cast<double>(requests.size()), static_cast<double>(tokens), ms,
                        1e6 * ms / static_cast<double>(tokens)});
  };
  const std::size_t few = smoke ? 400 : 4000;
  add("templates of 60 tokens, mean 125", synthetic(few, 40, 60, 65));
  add("nothing shared, mean 125", synthetic(few, 1, 0, 125));
  add("all equal, 125 tokens", Requests(few, std::vector<std::int32_t>(125, 3)));
  Requests growing;
  for (std::size_t n = 1; n <= 1000; ++n) {
    growing.emplace_back(n, 3);
  }
  add("growing prefixes to 1000", growing);
  const std::size_t many = smoke ? 4000 : 1'000'000;
  for (const std::size_t count : {many / 4, many / 2, many}) {
    add("short prompts, mean 24", synthetic(count, 40, 12, 12));
  }

  // A server: so many wait, some come, a batch goes.
  const Requests arrivals = synthetic(smoke ? 2000 : 40'000, 40, 60, 65);
  Planner planner({.tokens = budget_rows}, {.max_wait = 1000, .batch_time = 1});
  std::size_t next = 0, batches = 0;
  const auto refill = [&] {
    while (planner.waiting() < static_cast<std::int64_t>(few) && next < arrivals.size()) {
      planner.push({.tokens = arrivals[next++], .arrival = static_cast<std::int64_t>(batches)});
    }
  };
  refill();
  benchmark::DoNotOptimize(planner.pop(0).requests.data());
  const auto start = std::chrono::steady_clock::now();
  while (next < arrivals.size()) {
    refill();
    benchmark::DoNotOptimize(planner.pop(static_cast<std::int64_t>(batches)).requests.data());
    ++batches;
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  report.add({"a batch goes, as many come: each batch"},
             {static_cast<double>(few), no_figure, took.count() / static_cast<double>(batches), no_figure});
}

int run(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  const InterleaveOptions timing{.seconds = options.smoke ? 0.0 : 0.3, .min_rounds = options.smoke ? 1U : 5U};
  std::vector<std::filesystem::path> files;
  const std::filesystem::path folder = std::filesystem::path(RADIXMLP_SHARED_DIR) / "workloads";
  if (!options.smoke && std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".jsonl" && entry.path().stem().extension().empty()) {
        files.push_back(entry.path());
      }
    }
    std::sort(files.begin(), files.end());
  }
  if (!options.data.empty()) {
    files.assign(1, options.data);
  }
  // Saved shares of N in percent; batches and rows. a: order of arrival, d: depth-first order, p: planned.
  Report savings({"workload, budget on"},
                 {"N", "saved a %", "saved d %", "saved p %", "bound %", "one trie %", "batches a", "batches d",
                  "batches p", "rows p", "below d %", "of trie %", "ms"},
                 describe_run(argc, argv));
  report_savings(files, timing, savings);
  if (options.check_only) {
    savings.write(options);
    return 0;
  }
  Report times({"queue"}, {"requests", "tokens", "ms", "ns a token"}, {});
  report_times(options.smoke, timing, times);
  savings.write(options, {times});
  return 0;
}

}  // namespace
}  // namespace radixmlp_bench

int main(int argc, char** argv) { return radixmlp_bench::report_errors(argc, argv, radixmlp_bench::run); }
