// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "predict.hpp"
#include "radixmlp/index/batch_planner.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "radixmlp/index/sequence_order.hpp"

namespace radixmlp_tools {

struct AnalysisOptions {
  std::vector<std::int64_t> budgets{16'384, 65'536};
  std::int64_t window = std::int64_t{1} << 26;  // tokens
  std::int64_t top = 10;
  bool keeps_picture = false;
  std::vector<Model> models = preset_models();
  Machine machine = published_h100;
};

// At most so many requests are held at a time, so that short ones do not make the memory of a window of tokens larger.
inline constexpr std::int64_t window_requests = std::int64_t{1} << 20;

// A way to divide the requests into batches.
struct Division {
  std::int64_t batches = 0;
  std::int64_t rows = 0;              // N'
  std::vector<LayerSeconds> seconds;  // by model
};

struct ByBudget {
  std::int64_t budget = 0;
  Division arrival = {};       // file order, cut where the next request would pass the budget
  Division planned = {};       // BatchPlanner, budget on N
  Division planned_rows = {};  // BatchPlanner, budget on N'
  double index_seconds = 0;    // building the indices of the batches in order of arrival, on this machine
};

// A node of a window's trie: `requests` requests have their leading `tokens` tokens in common, of which `own` are
// shared by more requests than those of any longer prefix above it.
struct SharedPrefix {
  std::int64_t tokens = 0;
  std::int64_t own = 0;
  std::int64_t requests = 0;
  std::int64_t begin = 0;   // place of the first one, where requests are sorted by their tokens
  std::int64_t window = 0;  // from 1 on
  std::string first = {};   // the request that comes first in the file

  [[nodiscard]] std::int64_t saved() const { return own * (requests - 1); }  // rows
};

// The trie of the first window, for a picture: its requests sorted by their tokens, and the nodes that several share.
struct Picture {
  struct Request {
    std::int32_t tokens;
    std::int32_t shared;  // of them, with a neighbour
  };
  std::vector<Request> requests;
  std::vector<SharedPrefix> nodes;  // `first` is empty
};

struct Analysis {
  std::int64_t requests = 0;
  std::int64_t tokens = 0;
  std::int64_t longest = 0;
  std::int64_t windows = 0;
  std::int64_t trie_rows = 0;  // one trie over each window
  std::vector<ByBudget> budgets;
  std::vector<SharedPrefix> prefixes;  // most rows saved first
  Picture picture;
  std::int64_t skipped = 0;                 // malformed lines
  std::vector<std::int64_t> skipped_lines;  // numbers of the first of them

  [[nodiscard]] double gamma(std::int64_t rows) const {
    return tokens == 0 ? 1.0 : static_cast<double>(rows) / static_cast<double>(tokens);
  }
};

// Takes requests one by one, holds a window of them and one batch in order of arrival for each budget.
class Analyzer {
 public:
  // `plans` is called before each window is planned, which takes a while.
  explicit Analyzer(
      const AnalysisOptions& options, std::function<void()> plans = [] {});

  void add(const std::string& id, std::span<const std::int32_t> tokens);
  Analysis finish();

  [[nodiscard]] std::int64_t tokens() const noexcept { return result_.tokens; }

 private:
  // The batch in order of arrival that is not full yet; it may reach over windows.
  struct Open {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> cu_seqlens{0};
  };
  // Requests end to end.
  struct Window {
    std::vector<std::int32_t> tokens;
    std::vector<std::size_t> ends;  // in tokens
    std::string ids;
    std::vector<std::size_t> id_ends;   // in ids
    std::vector<std::int64_t> numbers;  // of the request in the file, from 1 on

    [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(ends.size()); }
    [[nodiscard]] std::span<const std::int32_t> request(std::size_t r) const {
      const std::size_t begin = r == 0 ? 0 : ends[r - 1];
      return std::span(tokens).subspan(begin, ends[r] - begin);
    }
    [[nodiscard]] std::string name(std::size_t r) const;
  };

  void close(std::size_t b);
  void finish_window();
  std::int64_t plan_window(const radixmlp::BatchBudget& budget, Division& division) const;
  void walk_trie();
  void keep(SharedPrefix prefix, std::size_t first);

  AnalysisOptions options_;
  std::function<void()> plans_;
  Predictor predictor_;
  Window window_;
  std::vector<Open> open_;
  radixmlp::PrefixTrie trie_;
  Analysis result_;
};

}  // namespace radixmlp_tools
