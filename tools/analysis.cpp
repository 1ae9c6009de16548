// SPDX-License-Identifier: MIT
#include "analysis.hpp"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "radixmlp/index/index_stats.hpp"

namespace radixmlp_tools {

std::string Analyzer::Window::name(std::size_t r) const {
  const std::size_t begin = r == 0 ? 0 : id_ends[r - 1];
  return begin == id_ends[r] ? "request " + std::to_string(numbers[r]) : ids.substr(begin, id_ends[r] - begin);
}

Analyzer::Analyzer(const AnalysisOptions& options, std::function<void()> plans)
    : options_(options),
      plans_(std::move(plans)),
      predictor_(options.models, options.machine),
      open_(options.budgets.size()) {
  for (const std::int64_t budget : options.budgets) {
    result_.budgets.push_back({.budget = budget});
  }
  window_.tokens.reserve(static_cast<std::size_t>(options.window));  // growing would take twice as much for a moment
}

void Analyzer::add(const std::string& id, std::span<const std::int32_t> tokens) {
  ++result_.requests;
  if (tokens.empty()) {
    return;  // a row in no batch
  }
  const auto length = static_cast<std::int64_t>(tokens.size());
  const auto held = static_cast<std::int64_t>(window_.tokens.size());
  if (held > 0 && (held + length > options_.window || window_.size() == window_requests)) {
    finish_window();
  }
  result_.tokens += length;
  result_.longest = std::max(result_.longest, length);
  for (std::size_t b = 0; b < open_.size(); ++b) {
    Open& open = open_[b];
    if (open.cu_seqlens.size() > 1 && static_cast<std::int64_t>(open.tokens.size()) + length > options_.budgets[b]) {
      close(b);
    }
    open.tokens.insert(open.tokens.end(), tokens.begin(), tokens.end());
    open.cu_seqlens.push_back(static_cast<std::int32_t>(open.tokens.size()));
  }
  window_.tokens.insert(window_.tokens.end(), tokens.begin(), tokens.end());
  window_.ends.push_back(window_.tokens.size());
  window_.ids += id;
  window_.id_ends.push_back(window_.ids.size());
  window_.numbers.push_back(result_.requests);
}

Analysis Analyzer::finish() {
  for (std::size_t b = 0; b < open_.size(); ++b) {
    if (open_[b].cu_seqlens.size() > 1) {
      close(b);
    }
  }
  if (window_.size() > 0) {
    finish_window();
  }
  return std::move(result_);
}

void Analyzer::close(std::size_t b) {
  Open& open = open_[b];
  ByBudget& by_budget = result_.budgets[b];
  // The quicker of two builds: other programs of the machine hold up one of them, if any.
  radixmlp::PrefixIndexView index;
  double seconds = std::numeric_limits<double>::infinity();
  for (int build = 0; build < 2; ++build) {
    const auto start = std::chrono::steady_clock::now();
    index = trie_.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = open.tokens, .cu_seqlens = open.cu_seqlens});
    seconds = std::min(seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  by_budget.index_seconds += seconds;
  ++by_budget.arrival.batches;
  by_budget.arrival.rows += index.compact_rows;
  predictor_.add(radixmlp::index_stats(index), by_budget.arrival.seconds);
  open.tokens.clear();
  open.cu_seqlens.assign(1, 0);
}

void Analyzer::finish_window() {
  plans_();
  ++result_.windows;
  std::int64_t trie_rows = 0;
  for (ByBudget& by_budget : result_.budgets) {
    trie_rows = plan_window({.tokens = by_budget.budget}, by_budget.planned);
    plan_window({.unique_rows = by_budget.budget}, by_budget.planned_rows);
  }
  result_.trie_rows += trie_rows;
  walk_trie();
  window_.tokens.clear();
  window_.ends.clear();
  window_.ids.clear();
  window_.id_ends.clear();
  window_.numbers.clear();
}

// Returns the rows of one trie over the window.
std::int64_t Analyzer::plan_window(const radixmlp::BatchBudget& budget, Division& division) const {
  radixmlp::BatchPlanner<std::int32_t> planner(budget);
  for (std::size_t r = 0; r < window_.ends.size(); ++r) {
    planner.push({.tokens = window_.request(r)});
  }
  const radixmlp::BatchPlan plan = planner.plan();
  division.batches += plan.batches();
  division.rows += plan.unique_rows;
  for (std::size_t e = 0; e < plan.loads.size(); ++e) {
    const radixmlp::BatchLoad& load = plan.loads[e];
    radixmlp::IndexStats stats;
    stats.ragged_rows = static_cast<std::int32_t>(load.tokens);
    stats.compact_rows = static_cast<std::int32_t>(load.unique_rows);
    stats.attention_pairs = load.attention_pairs;
    stats.compact_attention_pairs = load.attention_pairs;
    // Members are in sorted order, so what a request shares with the one before it is all that it shares.
    std::span<const std::int32_t> before;
    for (std::int32_t i = plan.cu_batches[e]; i < plan.cu_batches[e + 1]; ++i) {
      const std::span<const std::int32_t> tokens =
          window_.request(static_cast<std::size_t>(plan.order[static_cast<std::size_t>(i)]));
      const std::int64_t shared =
          std::mismatch(before.begin(), before.end(), tokens.begin(), tokens.end()).first - before.begin();
      stats.compact_attention_pairs -= shared * (shared + 1) / 2;
      before = tokens;
    }
    predictor_.add(stats, division.seconds);
  }
  return plan.trie_rows;
}

// The nodes of the window's trie that several requests share, from the requests in sorted order.
void Analyzer::walk_trie() {
  const auto request = [this](std::int32_t r) { return window_.request(static_cast<std::size_t>(r)); };
  const radixmlp::detail::SequenceSorter<std::int32_t, decltype(request)> sorter(request);
  std::vector<radixmlp::detail::SortedSequence> sorted;
  for (std::int32_t r = 0; r < static_cast<std::int32_t>(window_.size()); ++r) {
    sorted.push_back(sorter.entry(r, 0));
  }
  std::vector<radixmlp::detail::SortedSequence> room(sorted);
  sorter.sort(sorted, room);

  const bool keeps_picture = options_.keeps_picture && result_.windows == 1;
  Picture& picture = result_.picture;
  struct Node {
    std::int64_t depth, requests, begin;
    std::size_t first;
  };
  std::vector<Node> path{{0, 0, 0, sorted.size()}};
  const auto close_below = [&](std::int64_t depth) {
    while (path.back().depth > depth) {
      const Node node = path.back();
      path.pop_back();
      if (path.back().depth < depth) {
        path.push_back({depth, 0, node.begin, node.first});
      }
      if (node.requests > 1) {
        const SharedPrefix prefix{node.depth, node.depth - path.back().depth, node.requests, node.begin,
                                  result_.windows};
        keep(prefix, node.first);
        if (keeps_picture) {
          picture.nodes.push_back(prefix);
        }
      }
      path.back().requests += node.requests;
      path.back().first = std::min(path.back().first, node.first);
    }
  };
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const auto r = static_cast<std::size_t>(sorted[i].sequence);
    const auto length = static_cast<std::int64_t>(window_.request(r).size());
    close_below(sorted[i].shared);
    if (length > path.back().depth) {
      path.push_back({length, 0, static_cast<std::int64_t>(i), r});
    }
    ++path.back().requests;
    path.back().first = std::min(path.back().first, r);
    if (keeps_picture) {
      const std::int32_t behind = i + 1 < sorted.size() ? sorted[i + 1].shared : 0;
      picture.requests.push_back({static_cast<std::int32_t>(length), std::max(sorted[i].shared, behind)});
    }
  }
  close_below(0);
}

void Analyzer::keep(SharedPrefix prefix, std::size_t first) {
  std::vector<SharedPrefix>& list = result_.prefixes;
  const auto place =
      std::find_if(list.begin(), list.end(), [&](const SharedPrefix& other) { return other.saved() < prefix.saved(); });
  if (place == list.end() && static_cast<std::int64_t>(list.size()) >= options_.top) {
    return;
  }
  prefix.first = window_.name(first);
  list.insert(place, std::move(prefix));
  if (static_cast<std::int64_t>(list.size()) > options_.top) {
    list.pop_back();
  }
}

}  // namespace radixmlp_tools
