// SPDX-License-Identifier: MIT

// radixmlp-analyze: would compaction help this traffic? Reads requests as JSON lines and prints gamma = N'/N by batch
// budget, in order of arrival and as BatchPlanner would batch them, the prefixes that are shared most, and a verdict.
// `radixmlp-analyze --help` lists the options.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "radixmlp/index/batch_planner.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "request_lines.hpp"

namespace radixmlp_tools {
namespace {

constexpr const char* usage = R"(usage: radixmlp-analyze [options] FILE      (- reads standard input)

FILE has one JSON object a line: {"tokens":[ids]} or, for traces of block hashes, {"len":tokens,"blocks":[ids]} where
equal ids stand for equal blocks and all before them. "id" names a request. Compressed: zcat FILE | radixmlp-analyze -

  --budget N,N,...    tokens a batch (16384,65536)
  --window N          plan and search among so many tokens at a time (67108864: 256 MiB)
  --top N             shared prefixes to list (10)
  --block-tokens N    tokens of a block (512)
  --skip-bad-lines    leave malformed lines out and say which; otherwise the first one ends the run
  --json              print JSON
)";

struct Options {
  std::string file;
  std::vector<std::int64_t> budgets{16'384, 65'536};
  std::int64_t window = std::int64_t{1} << 26;
  std::int64_t top = 10;
  std::int64_t block_tokens = 512;
  bool skip_bad_lines = false;
  bool json = false;
};

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::int64_t positive_number(const std::string& option, const std::string& text) {
  std::size_t end = 0;
  std::int64_t number = 0;
  try {
    number = std::stoll(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  if (end != text.size() || text.empty() || number < 1 || number > radixmlp::max_rows) {
    throw UsageError(option + " = '" + text + "': must be an integer from 1 to " + std::to_string(radixmlp::max_rows));
  }
  return number;
}

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto value = [&]() -> const std::string& {
      if (++i == arguments.size()) {
        throw UsageError(argument + " needs a value");
      }
      return arguments[i];
    };
    if (argument == "--budget") {
      options.budgets.clear();
      std::string list = value() + ',';
      for (std::size_t comma = list.find(','); comma != std::string::npos; comma = list.find(',')) {
        options.budgets.push_back(positive_number(argument, list.substr(0, comma)));
        list.erase(0, comma + 1);
      }
    } else if (argument == "--window") {
      options.window = positive_number(argument, value());
    } else if (argument == "--top") {
      options.top = positive_number(argument, value());
    } else if (argument == "--block-tokens") {
      options.block_tokens = positive_number(argument, value());
    } else if (argument == "--skip-bad-lines") {
      options.skip_bad_lines = true;
    } else if (argument == "--json") {
      options.json = true;
    } else if (argument == "-" || argument.empty() || argument[0] != '-') {
      if (!options.file.empty()) {
        throw UsageError("more than one file: " + options.file + " and " + argument);
      }
      options.file = argument;
    } else {
      throw UsageError("unknown option " + argument);
    }
  }
  if (options.file.empty()) {
    throw UsageError("no file");
  }
  return options;
}

struct Division {
  std::int64_t batches = 0;
  std::int64_t rows = 0;  // N'
};

struct ByBudget {
  std::int64_t budget = 0;
  Division arrival = {};       // file order, cut where the next request would pass the budget
  Division planned = {};       // BatchPlanner, budget on N
  Division planned_rows = {};  // BatchPlanner, budget on N'
};

// A node of the trie: `requests` requests have its `tokens` leading tokens in common, of which `own` are shared by more
// requests than those of any longer prefix above it.
struct SharedPrefix {
  std::int64_t saved = 0;  // rows: own * (requests - 1)
  std::int64_t tokens = 0;
  std::int64_t own = 0;
  std::int64_t requests = 0;
  std::string first;  // request that comes first in the file
};

struct Analysis {
  std::int64_t requests = 0;
  std::int64_t tokens = 0;
  std::int64_t longest = 0;
  std::int64_t windows = 0;
  std::int64_t trie_rows = 0;  // one trie over each window
  std::vector<ByBudget> budgets;
  std::vector<SharedPrefix> prefixes;  // most rows saved first
  double index_seconds = 0;            // building the indices of the first budget's batches in order of arrival
  std::vector<std::int64_t> skipped;   // line numbers

  [[nodiscard]] double gamma(std::int64_t rows) const {
    return tokens == 0 ? 1.0 : static_cast<double>(rows) / static_cast<double>(tokens);
  }
};

// Takes requests one by one, holds a window of them.
class Analyzer {
 public:
  explicit Analyzer(const Options& options) : options_(options), open_(options.budgets.size()) {
    for (const std::int64_t budget : options.budgets) {
      result_.budgets.push_back({.budget = budget});
    }
  }

  void add(NamedRequest request) {
    const auto length = static_cast<std::int64_t>(request.tokens.size());
    if (window_tokens_ > 0 && window_tokens_ + length > options_.window) {
      finish_window();
    }
    ++result_.requests;
    result_.tokens += length;
    result_.longest = std::max(result_.longest, length);
    window_tokens_ += length;
    for (std::size_t b = 0; b < open_.size(); ++b) {
      Open& open = open_[b];
      if (open.cu_seqlens.size() > 1 && static_cast<std::int64_t>(open.tokens.size()) + length > options_.budgets[b]) {
        close(b);
      }
      open.tokens.insert(open.tokens.end(), request.tokens.begin(), request.tokens.end());
      open.cu_seqlens.push_back(static_cast<std::int32_t>(open.tokens.size()));
    }
    window_.push_back(std::move(request));
  }

  Analysis finish(std::vector<std::int64_t> skipped) {
    for (std::size_t b = 0; b < open_.size(); ++b) {
      if (open_[b].cu_seqlens.size() > 1) {
        close(b);
      }
    }
    if (!window_.empty()) {
      finish_window();
    }
    result_.skipped = std::move(skipped);
    return std::move(result_);
  }

 private:
  // The batch in order of arrival that is not full yet; it may reach over windows.
  struct Open {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> cu_seqlens{0};
  };

  void close(std::size_t b) {
    Open& open = open_[b];
    const auto start = std::chrono::steady_clock::now();
    const radixmlp::PrefixIndexView index =
        trie_.build(radixmlp::RaggedBatch<std::int32_t>{.tokens = open.tokens, .cu_seqlens = open.cu_seqlens});
    if (b == 0) {
      result_.index_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    ++result_.budgets[b].arrival.batches;
    result_.budgets[b].arrival.rows += index.compact_rows;
    open.tokens.clear();
    open.cu_seqlens.assign(1, 0);
  }

  void finish_window() {
    ++result_.windows;
    for (ByBudget& by_budget : result_.budgets) {
      const radixmlp::BatchPlan plan = plan_window({.tokens = by_budget.budget}, by_budget.planned);
      plan_window({.unique_rows = by_budget.budget}, by_budget.planned_rows);
      if (&by_budget == result_.budgets.data()) {
        result_.trie_rows += plan.trie_rows;
      }
    }
    list_prefixes();
    window_.clear();
    window_tokens_ = 0;
  }

  radixmlp::BatchPlan plan_window(const radixmlp::BatchBudget& budget, Division& division) const {
    radixmlp::BatchPlanner<std::int32_t> planner(budget);
    for (const NamedRequest& request : window_) {
      planner.push({.tokens = request.tokens});
    }
    radixmlp::BatchPlan plan = planner.plan();
    division.batches += plan.batches();
    division.rows += plan.unique_rows;
    return plan;
  }

  // The nodes of the window's trie that save most, from the requests in sorted order.
  void list_prefixes() {
    std::vector<std::size_t> order(window_.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      const int compared = window_[a].tokens < window_[b].tokens ? -1 : window_[b].tokens < window_[a].tokens ? 1 : 0;
      return compared != 0 ? compared < 0 : a < b;
    });
    struct Node {
      std::int64_t depth, requests;
      std::size_t first;
    };
    std::vector<Node> path{{0, 0, window_.size()}};
    const auto close_below = [&](std::int64_t depth) {
      while (path.back().depth > depth) {
        const Node node = path.back();
        path.pop_back();
        if (path.back().depth < depth) {
          path.push_back({depth, 0, node.first});
        }
        const std::int64_t own = node.depth - path.back().depth;
        if (node.requests > 1) {
          keep({own * (node.requests - 1), node.depth, own, node.requests, {}}, node.first);
        }
        path.back().requests += node.requests;
        path.back().first = std::min(path.back().first, node.first);
      }
    };
    for (std::size_t i = 0; i < order.size(); ++i) {
      const std::vector<std::int32_t>& tokens = window_[order[i]].tokens;
      if (i > 0) {
        const std::vector<std::int32_t>& before = window_[order[i - 1]].tokens;
        close_below(std::mismatch(before.begin(), before.end(), tokens.begin(), tokens.end()).first - before.begin());
      }
      if (static_cast<std::int64_t>(tokens.size()) > path.back().depth) {
        path.push_back({static_cast<std::int64_t>(tokens.size()), 0, order[i]});
      }
      ++path.back().requests;
      path.back().first = std::min(path.back().first, order[i]);
    }
    close_below(0);
  }

  void keep(SharedPrefix prefix, std::size_t first) {
    std::vector<SharedPrefix>& list = result_.prefixes;
    const auto place =
        std::find_if(list.begin(), list.end(), [&](const SharedPrefix& other) { return other.saved < prefix.saved; });
    if (place == list.end() && static_cast<std::int64_t>(list.size()) >= options_.top) {
      return;
    }
    prefix.first = window_[first].id;
    if (prefix.first.empty()) {
      prefix.first =
          "request " + std::to_string(result_.requests - static_cast<std::int64_t>(window_.size() - first) + 1);
    }
    list.insert(place, std::move(prefix));
    if (static_cast<std::int64_t>(list.size()) > options_.top) {
      list.pop_back();
    }
  }

  Options options_;
  std::vector<NamedRequest> window_;
  std::int64_t window_tokens_ = 0;
  std::vector<Open> open_;
  radixmlp::PrefixTrie trie_;
  Analysis result_;
};

Analysis read_and_analyze(std::istream& input, const Options& options) {
  Analyzer analyzer(options);
  std::vector<std::int64_t> skipped;
  const bool shows_progress = isatty(STDERR_FILENO) != 0;
  std::string text;
  std::int64_t number = 0;
  while (std::getline(input, text)) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    try {
      analyzer.add(parse_request_line(text, options.block_tokens));
    } catch (const std::invalid_argument& error) {
      const std::string message = options.file + ':' + std::to_string(number) + ": " + error.what();
      if (!options.skip_bad_lines) {
        throw std::runtime_error(message);
      }
      std::fprintf(stderr, "skipped: %s\n", message.c_str());
      skipped.push_back(number);
    }
    if (shows_progress && number % 10'000 == 0) {
      std::fprintf(stderr, "\r%" PRId64 " lines", number);
    }
  }
  if (shows_progress && number >= 10'000) {
    std::fprintf(stderr, "\n");
  }
  if (input.bad()) {
    throw std::runtime_error(options.file + ": cannot read");
  }
  return analyzer.finish(std::move(skipped));
}

// The position-wise share of a forward pass as published for the method: Qwen3, 32 sequences of 2048 and 256 tokens on
// an H100. Of that share gamma is left.
struct Model {
  const char* name;
  double position_wise;
};
constexpr Model models[] = {{"Qwen3-0.6B", .73}, {"Qwen3-4B", .88}, {"Qwen3-8B", .92}};

double predicted_speedup(const Model& model, double gamma) {
  return 1 / (1 - model.position_wise + model.position_wise * gamma);
}

std::string verdict(const Analysis& analysis, const ByBudget& by_budget) {
  // Moving rows costs a few percent of a layer: CompactionPolicy's default leaves a batch above .9 alone.
  constexpr double pays_below = .9;
  const double arrival = analysis.gamma(by_budget.arrival.rows);
  const double planned = analysis.gamma(by_budget.planned.rows);
  char text[300];
  const auto percent = [](double gamma) { return 100 * (1 - gamma); };
  if (std::min(arrival, planned) > pays_below) {
    std::snprintf(text, sizeof text,
                  "not worth it: at %" PRId64
                  " tokens a batch at most %.1f%% of the rows are computed twice, and moving "
                  "rows costs about as much",
                  by_budget.budget, percent(std::min(arrival, planned)));
  } else if (arrival > pays_below) {
    std::snprintf(text, sizeof text,
                  "worth it with planning alone: at %" PRId64
                  " tokens a batch it saves %.1f%% of the rows, in order of "
                  "arrival %.1f%%",
                  by_budget.budget, percent(planned), percent(arrival));
  } else {
    std::snprintf(text, sizeof text,
                  "worth it: at %" PRId64
                  " tokens a batch it saves %.1f%% of the rows in order of arrival, %.1f%% planned",
                  by_budget.budget, percent(arrival), percent(planned));
  }
  return text;
}

void print_json(const Analysis& analysis) {
  using Json = nlohmann::ordered_json;
  const auto division = [&](const Division& d) {
    return Json{{"batches", d.batches}, {"unique_rows", d.rows}, {"gamma", analysis.gamma(d.rows)}};
  };
  Json out{{"requests", analysis.requests}, {"tokens", analysis.tokens},       {"longest", analysis.longest},
           {"windows", analysis.windows},   {"trie_rows", analysis.trie_rows}, {"skipped_lines", analysis.skipped}};
  for (const ByBudget& b : analysis.budgets) {
    out["budgets"].push_back({{"budget", b.budget},
                              {"arrival", division(b.arrival)},
                              {"planned", division(b.planned)},
                              {"planned_by_unique_rows", division(b.planned_rows)},
                              {"verdict", verdict(analysis, b)}});
  }
  out["prefixes"] = Json::array();
  for (const SharedPrefix& p : analysis.prefixes) {
    out["prefixes"].push_back({{"rows_saved", p.saved},
                               {"tokens", p.tokens},
                               {"own_tokens", p.own},
                               {"requests", p.requests},
                               {"first", p.first}});
  }
  for (const Model& model : models) {
    const ByBudget& first = analysis.budgets.front();
    out["predicted_speedup"].push_back({{"model", model.name},
                                        {"arrival", predicted_speedup(model, analysis.gamma(first.arrival.rows))},
                                        {"planned", predicted_speedup(model, analysis.gamma(first.planned.rows))}});
  }
  out["index_seconds"] = analysis.index_seconds;
  // Ids come from the file and may hold anything.
  std::printf("%s\n", out.dump(1, ' ', false, Json::error_handler_t::replace).c_str());
}

void print_text(const Analysis& analysis, const Options& options) {
  const auto tokens = static_cast<double>(analysis.tokens);
  std::printf("%" PRId64 " requests, N = %" PRId64 " tokens, mean %.0f, longest %" PRId64, analysis.requests,
              analysis.tokens, tokens / static_cast<double>(analysis.requests), analysis.longest);
  if (!analysis.skipped.empty()) {
    std::printf(", %zu lines skipped", analysis.skipped.size());
  }
  std::printf("\n\ngamma = N'/N (batches)\n%10s %18s %18s %18s\n", "budget", "order of arrival", "planned",
              "planned, on N'");
  for (const ByBudget& b : analysis.budgets) {
    std::printf("%10" PRId64, b.budget);
    for (const Division* division : {&b.arrival, &b.planned, &b.planned_rows}) {
      std::printf(" %8.3f %9s", analysis.gamma(division->rows),
                  ('(' + std::to_string(division->batches) + ')').c_str());
    }
    std::printf("\n");
  }
  std::printf("one trie over all of it: %.3f\n", analysis.gamma(analysis.trie_rows));
  if (analysis.windows > 1) {
    std::printf("planned, and one trie, in %" PRId64 " windows of %" PRId64 " tokens\n", analysis.windows,
                options.window);
  }
  std::printf("\n%10s %8s %8s %9s  most shared prefixes\n", "rows saved", "tokens", "own", "requests");
  for (const SharedPrefix& p : analysis.prefixes) {
    std::printf("%10" PRId64 " %8" PRId64 " %8" PRId64 " %9" PRId64 "  first in %s\n", p.saved, p.tokens, p.own,
                p.requests, p.first.c_str());
  }
  if (analysis.prefixes.empty()) {
    std::printf("none\n");
  }
  const ByBudget& first = analysis.budgets.front();
  std::printf("\nforward pass at budget %" PRId64 ", from published position-wise shares: times as fast\n",
              first.budget);
  for (const Model& model : models) {
    std::printf("%12s %6.2f in order of arrival, %.2f planned\n", model.name,
                predicted_speedup(model, analysis.gamma(first.arrival.rows)),
                predicted_speedup(model, analysis.gamma(first.planned.rows)));
  }
  std::printf("index: %.1f us a batch on this machine\n\n",
              1e6 * analysis.index_seconds / static_cast<double>(first.arrival.batches));
  for (const ByBudget& b : analysis.budgets) {
    std::printf("%s\n", verdict(analysis, b).c_str());
  }
}

int run(const std::vector<std::string>& arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
    std::fputs(usage, stdout);
    return 0;
  }
  const Options options = parse_options(arguments);
  std::ios::sync_with_stdio(false);
  std::ifstream file;
  if (options.file != "-") {
    file.open(options.file);
    if (!file) {
      throw std::runtime_error(options.file + ": cannot open");
    }
  }
  const Analysis analysis = read_and_analyze(options.file == "-" ? std::cin : file, options);
  if (analysis.tokens == 0) {
    throw std::runtime_error(options.file + ": holds no tokens");
  }
  if (options.json) {
    print_json(analysis);
  } else {
    print_text(analysis, options);
  }
  return 0;
}

}  // namespace
}  // namespace radixmlp_tools

int main(int argc, char** argv) {
  try {
    return radixmlp_tools::run({argv + 1, argv + argc});
  } catch (const radixmlp_tools::UsageError& error) {
    std::fprintf(stderr, "radixmlp-analyze: %s\n%s", error.what(), radixmlp_tools::usage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "radixmlp-analyze: %s\n", error.what());
    return 1;
  }
}
