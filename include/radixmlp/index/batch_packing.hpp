// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <vector>

#include "radixmlp/config.hpp"

namespace radixmlp::inline v0 {

inline constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

// What a batch may have of each kind; at least 1. A request that is over a budget by itself is a batch of its own.
struct BatchBudget {
  std::int64_t tokens = unlimited;           // N
  std::int64_t unique_rows = unlimited;      // N', rows after compaction
  std::int64_t attention_pairs = unlimited;  // query-key pairs of causal attention over all rows, n(n+1)/2 a request
  std::int64_t sequences = unlimited;        // requests
};

// What a batch has of each kind.
struct BatchLoad {
  std::int64_t tokens = 0;
  std::int64_t unique_rows = 0;
  std::int64_t attention_pairs = 0;
  std::int64_t sequences = 0;
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail {

[[nodiscard]] inline BatchLoad load_of(std::int64_t length) noexcept {
  return {length, length, length * (length + 1) / 2, 1};
}

// Two groups of sequences that have `shared` rows in common.
[[nodiscard]] inline BatchLoad together(const BatchLoad& a, const BatchLoad& b, std::int64_t shared) noexcept {
  return {a.tokens + b.tokens, a.unique_rows + b.unique_rows - shared, a.attention_pairs + b.attention_pairs,
          a.sequences + b.sequences};
}

[[nodiscard]] inline bool fits(const BatchLoad& load, const BatchBudget& budget) noexcept {
  return load.tokens <= budget.tokens && load.unique_rows <= budget.unique_rows &&
         load.attention_pairs <= budget.attention_pairs && load.sequences <= budget.sequences;
}

// Divides sequences, given in the depth-first order of their trie, into batches with few unique rows in all. Choosing
// the best division contains bin packing, so it takes the best of four:
//  - the depth-first order, cut where the budget is full; no other may have more than a twentieth more batches;
//  - the order of arrival, cut likewise;
//  - the depth-first order, cut where neighbours share least: the optimum over all cuts of this order, by dynamic
//    programming;
//  - a packing of the trie from the leaves to the root (pack_trie), its batches laid end to end and cut once more.
// Time O(n log n) for n sequences and no token is looked at. Memory is kept between calls.
class BatchPacking {
 public:
  // lengths[i] tokens; shared[i] leading tokens in common with i - 1; arrivals: all i in order of arrival.
  void pack(std::span<const std::int32_t> lengths, std::span<const std::int32_t> shared,
            std::span<const std::int32_t> arrivals, const BatchBudget& budget) {
    lengths_ = lengths;
    shared_ = shared;
    budget_ = budget;
    batch_of_.clear();
    links_.clear();
    batches_ = 0;
    unique_rows_ = 0;
    if (lengths.empty()) {
      return;
    }
    order_.resize(lengths.size());
    std::iota(order_.begin(), order_.end(), 0);
    joint_.assign(shared.begin(), shared.end());
    joint_[0] = 0;
    find_windows();
    cut_when_full();
    most_batches_ = unlimited;
    consider();
    most_batches_ = batches_ + batches_ / 20;
    if (batches_ == 1) {
      return;  // links_ are those of the batch
    }
    cut_between_strangers();

    pack_trie();
    chain();
    lay_end_to_end();
    find_windows();
    cut_between_strangers();

    std::copy(arrivals.begin(), arrivals.end(), order_.begin());
    std::fill(joint_.begin(), joint_.end(), 0);
    find_windows();
    cut_when_full();
    consider();

    trial_ = batch_of_;
    trial_batches_ = batches_;
    chain();
  }

  [[nodiscard]] std::span<const std::int32_t> batch_of() const noexcept { return batch_of_; }  // [n]
  // [n]: leading tokens in common with the sequence before it in its batch, 0 for the first.
  [[nodiscard]] std::span<const std::int32_t> links() const noexcept { return links_; }
  [[nodiscard]] std::int64_t batches() const noexcept { return batches_; }
  [[nodiscard]] std::int64_t unique_rows() const noexcept { return unique_rows_; }  // of all batches

 private:
  // Sequences that stay together, a linked list through next_.
  struct Group {
    BatchLoad load;
    double size;  // the largest share of a budget that it takes
    std::int32_t first, last;
  };

  // --- A line of sequences (order_), neighbours sharing at least joint_ rows, and where to cut it ---

  // windows_[j]: the first i so that places i to j - 1 of the line fit into a batch. Rows are counted by neighbours,
  // which never finds fewer than there are.
  void find_windows() {
    const std::size_t n = order_.size();
    windows_.resize(n + 1);
    BatchLoad load;
    std::size_t begin = 0;
    for (std::size_t j = 0; j < n; ++j) {
      load = together(load, load_of(length(j)), begin == j ? 0 : joint_[j]);
      while (begin < j && !fits(load, budget_)) {
        const BatchLoad out = load_of(length(begin));
        ++begin;
        load = {load.tokens - out.tokens, load.unique_rows - out.unique_rows + joint_[begin],
                load.attention_pairs - out.attention_pairs, load.sequences - 1};
      }
      windows_[j + 1] = static_cast<std::int32_t>(begin);
    }
  }

  void cut_when_full() {
    trial_.resize(order_.size());
    trial_batches_ = 0;
    std::size_t begin = 0;
    for (std::size_t j = 0; j < order_.size(); ++j) {
      if (static_cast<std::size_t>(windows_[j + 1]) > begin) {
        begin = j;
        ++trial_batches_;
      }
      trial_[static_cast<std::size_t>(order_[j])] = static_cast<std::int32_t>(trial_batches_);
    }
    ++trial_batches_;
  }

  // The cuts with the fewest rows and not too many batches. A cut costs the rows that its neighbours share, and a price
  // that rises until the batches are few enough; bisection then lowers it again.
  void cut_between_strangers() {
    std::int64_t too_low = -1;
    std::int64_t price = 0;
    cut_at_price(price);
    const std::int64_t highest = *std::max_element(joint_.begin(), joint_.end()) * trial_batches_ + 1;
    while (trial_batches_ > most_batches_) {
      if (price > highest) {
        return;
      }
      too_low = price;
      price = 4 * price + 1;
      cut_at_price(price);
    }
    consider();
    for (int trial = 0; trial < price_trials && too_low + 1 < price; ++trial) {
      const std::int64_t middle = too_low + (price - too_low) / 2;
      cut_at_price(middle);
      if (trial_batches_ > most_batches_) {
        too_low = middle;
      } else {
        price = middle;
        consider();
      }
    }
  }

  void cut_at_price(std::int64_t price) {
    const std::size_t n = order_.size();
    costs_.resize(n + 1);
    cuts_.resize(n + 1);
    queue_.resize(n);
    costs_[0] = 0;
    std::size_t front = 0;
    std::size_t back = 0;
    const auto cost_from = [&](std::int32_t i) {
      return costs_[static_cast<std::size_t>(i)] + joint_[static_cast<std::size_t>(i)];
    };
    // The candidates for the last cut, cheapest first; the earlier of equals, so that batches are few.
    for (std::size_t j = 1; j <= n; ++j) {
      const auto newest = static_cast<std::int32_t>(j - 1);
      while (front < back && cost_from(queue_[back - 1]) > cost_from(newest)) {
        --back;
      }
      queue_[back++] = newest;
      while (queue_[front] < windows_[j]) {
        ++front;
      }
      costs_[j] = cost_from(queue_[front]) + price;
      cuts_[j] = queue_[front];
    }
    trial_.resize(n);
    trial_batches_ = 0;
    for (std::size_t end = n; end > 0; ++trial_batches_) {
      const auto begin = static_cast<std::size_t>(cuts_[end]);
      for (std::size_t j = begin; j < end; ++j) {
        trial_[static_cast<std::size_t>(order_[j])] = static_cast<std::int32_t>(trial_batches_);
      }
      end = begin;
    }
  }

  // Keeps the trial if it is the best so far.
  void consider() {
    if (trial_batches_ > most_batches_) {
      return;
    }
    const std::int64_t rows = chain();
    if (batch_of_.empty() || rows < unique_rows_ || (rows == unique_rows_ && trial_batches_ < batches_)) {
      batch_of_ = trial_;
      batches_ = trial_batches_;
      unique_rows_ = rows;
    }
  }

  // --- What a division costs ---

  // links_[i]: rows that i shares with the sequence before it in its batch of the trial, the least entry of shared_
  // between the two. Returns the unique rows of all batches.
  std::int64_t chain() {
    const std::size_t n = trial_.size();
    links_.resize(n);
    before_.assign(static_cast<std::size_t>(trial_batches_), -1);
    falling_.clear();  // where shared_ was last as small: each entry is larger than the one before it
    std::int64_t rows = 0;
    for (std::size_t i = 0; i < n; ++i) {
      while (!falling_.empty() && shared_[static_cast<std::size_t>(falling_.back())] >= shared_[i]) {
        falling_.pop_back();
      }
      falling_.push_back(static_cast<std::int32_t>(i));
      std::int32_t& before = before_[static_cast<std::size_t>(trial_[i])];
      links_[i] = 0;
      if (before >= 0) {
        const auto least = std::upper_bound(falling_.begin(), falling_.end(), before);
        links_[i] = shared_[static_cast<std::size_t>(*least)];
      }
      before = static_cast<std::int32_t>(i);
      rows += lengths_[i] - links_[i];
    }
    return rows;
  }

  // Lines up the trial's batches by their first sequences. chain() has run.
  void lay_end_to_end() {
    const std::size_t n = trial_.size();
    const auto batches = static_cast<std::size_t>(trial_batches_);
    // Number the batches by their first sequences, then count them out.
    before_.assign(batches, -1);
    ends_.assign(batches + 1, 0);
    std::int32_t named = 0;
    for (std::size_t i = 0; i < n; ++i) {
      std::int32_t& name = before_[static_cast<std::size_t>(trial_[i])];
      if (name < 0) {
        name = named++;
      }
      trial_[i] = name;
      ++ends_[static_cast<std::size_t>(name) + 1];
    }
    std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
    for (std::size_t i = 0; i < n; ++i) {
      order_[static_cast<std::size_t>(ends_[static_cast<std::size_t>(trial_[i])]++)] = static_cast<std::int32_t>(i);
    }
    // Two batches share what their first sequences do, or what the upper one's sequences do if that is less.
    std::int32_t within = 0;
    for (std::size_t j = 0; j < n; ++j) {
      const auto i = static_cast<std::size_t>(order_[j]);
      const bool opens = j == 0 || trial_[i] != trial_[static_cast<std::size_t>(order_[j - 1])];
      if (!opens) {
        joint_[j] = links_[i];
        within = std::min(within, links_[i]);
        continue;
      }
      std::int32_t across = 0;
      if (j > 0) {
        across = *std::min_element(shared_.begin() + opened_ + 1, shared_.begin() + order_[j] + 1);
      }
      joint_[j] = std::min(across, within);
      opened_ = order_[j];
      within = std::numeric_limits<std::int32_t>::max();
    }
  }

  // --- Packing the trie ---

  // From the leaves to the root. The groups that come up to a node all share its path, so joining two there saves its
  // depth once more. If all fit into one batch they become one group, else each goes, largest first, where it leaves
  // least room (best fit). What has room left goes on to the node above.
  void pack_trie() {
    const std::size_t n = lengths_.size();
    next_.assign(n, -1);
    groups_.clear();
    nodes_.assign(1, {0, 0});
    full_.clear();
    for (std::size_t i = 0; i < n; ++i) {
      close_nodes(i == 0 ? 0 : shared_[i]);
      if (lengths_[i] > nodes_.back().depth) {
        nodes_.push_back({lengths_[i], groups_.size()});
      }
      const auto self = static_cast<std::int32_t>(i);
      groups_.push_back({load_of(lengths_[i]), 0, self, self});
    }
    close_nodes(0);
    pack_node(0, 0);
    full_.insert(full_.end(), groups_.begin(), groups_.end());
    trial_batches_ = static_cast<std::int64_t>(full_.size());
    for (std::size_t b = 0; b < full_.size(); ++b) {
      for (std::int32_t i = full_[b].first; i >= 0; i = next_[static_cast<std::size_t>(i)]) {
        trial_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(b);
      }
    }
  }

  // Packs the nodes on the way down that lie deeper than `depth`.
  void close_nodes(std::int32_t depth) {
    while (nodes_.back().depth > depth) {
      const Node node = nodes_.back();
      nodes_.pop_back();
      pack_node(node.first_group, node.depth);
      if (nodes_.back().depth < depth) {
        nodes_.push_back({depth, node.first_group});
      }
    }
  }

  void pack_node(std::size_t first, std::int32_t depth) {
    const std::size_t count = groups_.size() - first;
    if (count < 2) {
      return;
    }
    const auto groups = groups_.begin() + static_cast<std::ptrdiff_t>(first);
    BatchLoad all = groups->load;
    for (std::size_t g = 1; g < count; ++g) {
      all = together(all, groups[static_cast<std::ptrdiff_t>(g)].load, depth);
    }
    if (fits(all, budget_)) {
      for (std::size_t g = 1; g < count; ++g) {
        join(*groups, groups[static_cast<std::ptrdiff_t>(g)], depth);
      }
      groups_.resize(first + 1);
      return;
    }
    for (std::size_t g = first; g < groups_.size(); ++g) {
      groups_[g].size = size_of(groups_[g].load, depth);
    }
    std::sort(groups, groups_.end(),
              [](const Group& a, const Group& b) { return a.size != b.size ? a.size > b.size : a.first < b.first; });
    rooms_.clear();
    bins_.clear();
    for (std::size_t g = first; g < groups_.size(); ++g) {
      const Group& group = groups_[g];
      auto room = rooms_.lower_bound(group.size - rounding);
      for (int tries = 0; room != rooms_.end() && tries < most_tries &&
                          !fits(together(bins_[room->second].load, group.load, depth), budget_);
           ++tries) {
        ++room;
      }
      if (room == rooms_.end() || !fits(together(bins_[room->second].load, group.load, depth), budget_)) {
        rooms_.emplace(1 - group.size, bins_.size());
        bins_.push_back(group);
        continue;
      }
      Group& bin = bins_[room->second];
      join(bin, group, depth);
      auto handle = rooms_.extract(room);
      handle.key() = 1 - size_of(bin.load, depth);
      rooms_.insert(std::move(handle));
    }
    // Those with least room are done; the others go on, the roomiest first, but not so many that time is lost on them.
    groups_.resize(first);
    for (auto room = rooms_.rbegin(); room != rooms_.rend(); ++room) {
      const bool goes_on = room->first > least_room && groups_.size() < first + most_open;
      (goes_on ? groups_ : full_).push_back(bins_[room->second]);
    }
  }

  void join(Group& group, const Group& other, std::int32_t depth) {
    group.load = together(group.load, other.load, depth);
    next_[static_cast<std::size_t>(group.last)] = other.first;
    group.last = other.last;
  }

  // The largest share of a budget: what fits by this measure fits. The path to the node is there once in any case.
  [[nodiscard]] double size_of(const BatchLoad& load, std::int32_t depth) const noexcept {
    const auto share = [](std::int64_t part, std::int64_t whole) {
      return static_cast<double>(part) / static_cast<double>(whole);
    };
    return std::max({share(load.tokens, budget_.tokens),
                     share(load.unique_rows - depth, std::max<std::int64_t>(budget_.unique_rows - depth, 1)),
                     share(load.attention_pairs, budget_.attention_pairs), share(load.sequences, budget_.sequences)});
  }

  [[nodiscard]] std::int32_t length(std::size_t place) const noexcept {
    return lengths_[static_cast<std::size_t>(order_[place])];
  }

  static constexpr int price_trials = 10;
  static constexpr double rounding = 1e-12;
  static constexpr double least_room = 1.0 / 64;
  static constexpr std::size_t most_open = 64;
  static constexpr int most_tries = 4;

  // A node on the way from the root to the last sequence; its groups are those from first_group on.
  struct Node {
    std::int32_t depth;
    std::size_t first_group;
  };

  std::span<const std::int32_t> lengths_, shared_;
  BatchBudget budget_;
  std::vector<std::int32_t> batch_of_, trial_, order_, joint_, windows_, cuts_, queue_, links_, before_, falling_,
      ends_, next_;
  std::vector<std::int64_t> costs_;
  std::vector<Group> groups_, bins_, full_;
  std::vector<Node> nodes_;
  std::multimap<double, std::size_t> rooms_;
  std::int64_t most_batches_ = unlimited;
  std::int64_t batches_ = 0;
  std::int64_t unique_rows_ = 0;
  std::int64_t trial_batches_ = 0;
  std::int32_t opened_ = 0;
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE::detail
