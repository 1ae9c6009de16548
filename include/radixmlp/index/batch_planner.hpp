// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <list>
#include <numeric>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "radixmlp/index/batch_packing.hpp"
#include "radixmlp/index/ragged_batch.hpp"
#include "radixmlp/index/row_identity.hpp"
#include "radixmlp/index/sequence_order.hpp"

namespace radixmlp::inline v0 {

// A request that waits. The tokens are the caller's and stay as they are until the request has left the planner.
// Times are in any unit, the same everywhere.
template <TokenId Token>
struct QueuedRequest {
  std::span<const Token> tokens = {};
  std::int64_t arrival = 0;
  std::int64_t deadline = unlimited;  // the last time at which its batch may be taken
  std::int32_t priority = 0;          // higher goes first, as long as no bound is in danger
  // Requests with different tenants are never in one batch. Whatever else makes equal tokens different rows (an
  // adapter, a cache salt) belongs in here too: SequenceKeys gives such keys.
  Key128 tenant = {};
};

struct PlannerOptions {
  std::int64_t max_wait =
      unlimited;                // a request is due so long after its arrival, or at its deadline if that is sooner
  std::int64_t batch_time = 0;  // a tenant's batches are taken at most so far apart while it has requests
};

// A batch to run. The spans lie in the planner's memory and are valid until its next call.
struct PlannedBatch {
  Key128 tenant = {};
  std::span<const std::int64_t> requests = {};  // ids; neighbours share most
  BatchLoad load = {};

  [[nodiscard]] bool empty() const noexcept { return requests.empty(); }
};

// What would become of the whole queue if nothing more came. R requests wait, E batches take them.
struct BatchPlan {
  std::vector<std::int64_t> requests;    // [R] ids, rising
  std::vector<std::int32_t> order;       // [R] places in `requests`, batch by batch
  std::vector<std::int32_t> inverse;     // [R] order[inverse[r]] == r: undoes the permutation of outputs
  std::vector<std::int32_t> cu_batches;  // [E+1]: batch e is order[cu_batches[e]] .. order[cu_batches[e+1] - 1]
  std::vector<Key128> tenants;           // [E]
  std::vector<BatchLoad> loads;          // [E]
  std::int64_t tokens = 0;               // N of the queue
  std::int64_t unique_rows = 0;          // N' of all batches
  std::int64_t trie_rows = 0;            // N' of one trie a tenant over all that waits: no plan has fewer

  [[nodiscard]] std::int64_t batches() const noexcept { return static_cast<std::int64_t>(loads.size()); }
  // Rows that the plan saves, of those that one trie over the queue would save; 1 where there are none.
  [[nodiscard]] double saving() const noexcept {
    return tokens == trie_rows ? 1.0
                               : static_cast<double>(tokens - unique_rows) / static_cast<double>(tokens - trie_rows);
  }
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// Chooses which waiting requests go into a batch together, so that batches have few unique rows. Push requests as they
// come, take batches as the engine is ready for them. The same calls give the same batches. Host only, not thread-safe.
//
// Tenants. Each has a queue of its own, which is planned as if there were no other; they take turns.
//
// Waiting. A tenant's next batch is that of its foremost request: the one with the highest priority, of those the one
// due first, then the one that came first. So without priorities every batch takes the oldest request and those that
// share with it. Due times bound the wait: a batch behind which some request would be late, even if all later batches
// took what is due first, is not taken; in its place go the requests that are due first, filled up with what shares
// most with them. If a tenant's batches are taken at most batch_time apart, then
//  - with max_wait alone, no request waits longer than max_wait or, where more waits than can be done in that time,
//    longer than in batches filled in order of arrival;
//  - with deadlines too, none is late if at each arrival batches filled in order of due times could do all that waits.
// Where these compare with batches in order of arrival or of due times, a row counts for each token: what may be shared
// is not relied on.
//
// Cost. A push is O(1). The first batch after a push sorts what is new (each token is compared once), merges it into
// the queue and plans the queue anew: O(R log R) for R waiting requests. Batches taken without a push between them
// follow one plan; one that takes what is due first is followed by a new plan.
template <TokenId Token = std::int32_t>
class BatchPlanner {
 public:
  // Throws InvalidBatch where a budget is not positive or an option is negative.
  explicit BatchPlanner(const BatchBudget& budget, const PlannerOptions& options = {})
      : budget_(budget), options_(options) {
    require_at_least("budget.tokens", budget.tokens, 1);
    require_at_least("budget.unique_rows", budget.unique_rows, 1);
    require_at_least("budget.attention_pairs", budget.attention_pairs, 1);
    require_at_least("budget.sequences", budget.sequences, 1);
    require_at_least("options.max_wait", options.max_wait, 0);
    require_at_least("options.batch_time", options.batch_time, 0);
  }

  // Returns the request's id: 0, 1, 2, ... in order of the calls. Throws InvalidBatch, whose index is that id, where
  // the deadline lies before the arrival or there are too many tokens; nothing has changed then.
  std::int64_t push(const QueuedRequest<Token>& request) {
    const auto length = static_cast<std::int64_t>(request.tokens.size());
    if (length > max_rows) {
      detail::raise(detail::invalid_batch("tokens", next_id_, length, "their number must not exceed", max_rows));
    }
    if (request.deadline < request.arrival) {
      detail::raise(detail::invalid_batch("deadline", next_id_, request.deadline, "must not be before the arrival,",
                                          request.arrival));
    }
    if (waiting_ == max_rows) {
      detail::raise(
          detail::invalid_batch("requests", next_id_, waiting_ + 1, "those that wait must not exceed", max_rows));
    }
    auto found = queue_of_.find(request.tenant);
    if (found == queue_of_.end()) {
      queues_.emplace_back().tenant = request.tenant;
      found = queue_of_.emplace(request.tenant, std::prev(queues_.end())).first;
    }
    Queue& queue = *found->second;
    queue.requests.push_back({request.tokens, next_id_, request.arrival,
                              std::min(request.deadline, later(request.arrival, options_.max_wait)), request.priority,
                              false});
    queue.is_planned = false;
    ++queue.waiting;
    ++waiting_;
    return next_id_++;
  }

  // Takes a request back, so that its tokens may go; false if it does not wait. The next batch is planned anew.
  bool cancel(std::int64_t id) {
    for (auto queue = queues_.begin(); queue != queues_.end(); ++queue) {
      const auto found =
          std::lower_bound(queue->requests.begin(), queue->requests.end(), id,
                           [](const Request& request, std::int64_t value) { return request.id < value; });
      if (found != queue->requests.end() && found->id == id && !found->is_gone) {
        remove(*queue, static_cast<std::int32_t>(found - queue->requests.begin()));
        queue->is_planned = false;
        drop_if_empty(queue);
        return true;
      }
    }
    return false;
  }

  // The next batch of the tenant whose turn it is; empty if nothing waits. `now` is the time at which it is taken.
  PlannedBatch pop(std::int64_t now) {
    if (queues_.empty()) {
      return {};
    }
    queues_.splice(queues_.end(), queues_, queues_.begin());
    return take(std::prev(queues_.end()), now);
  }

  // The next batch of one tenant, whose turn it need not be; empty if it has no requests.
  PlannedBatch pop(std::int64_t now, const Key128& tenant) {
    const auto found = queue_of_.find(tenant);
    return found == queue_of_.end() ? PlannedBatch{} : take(found->second, now);
  }

  // The batches in which all that waits would be taken if no due time came near: tenants in order of their turns,
  // each one's foremost batch first. Takes nothing.
  [[nodiscard]] BatchPlan plan() {
    BatchPlan plan;
    std::vector<std::pair<std::int64_t, std::int32_t>> places;  // ids and their places in `order`
    plan.cu_batches.push_back(0);
    for (Queue& queue : queues_) {
      refresh(queue);
      plan.trie_rows += trie_rows(queue);
      place_of_.resize(queue.requests.size());
      std::int32_t place = plan.cu_batches.back();
      for (std::size_t b = queue.next_batch; b < queue.loads.size(); ++b) {
        for (const std::int32_t member : queue.members_of(b)) {
          place_of_[at(member)] = place++;
        }
        plan.cu_batches.push_back(place);
        plan.tenants.push_back(queue.tenant);
        plan.loads.push_back(queue.loads[b]);
        plan.tokens += queue.loads[b].tokens;
        plan.unique_rows += queue.loads[b].unique_rows;
      }
      for (std::size_t r = 0; r < queue.requests.size(); ++r) {
        if (!queue.requests[r].is_gone) {
          places.emplace_back(queue.requests[r].id, place_of_[r]);
        }
      }
    }
    if (!std::is_sorted(places.begin(), places.end())) {
      std::sort(places.begin(), places.end());
    }
    plan.order.resize(places.size());
    for (std::size_t r = 0; r < places.size(); ++r) {
      plan.requests.push_back(places[r].first);
      plan.inverse.push_back(places[r].second);
      plan.order[at(places[r].second)] = static_cast<std::int32_t>(r);
    }
    return plan;
  }

  [[nodiscard]] std::int64_t waiting() const noexcept { return waiting_; }  // requests

 private:
  using SortedSequence = detail::SortedSequence;

  struct Request {
    std::span<const Token> tokens;
    std::int64_t id;
    std::int64_t arrival;
    std::int64_t due;
    std::int32_t priority;
    bool is_gone;
  };

  // One tenant's. Numbers of requests are places in `requests`.
  struct Queue {
    Key128 tenant;
    std::vector<Request> requests;       // in order of the pushes; those that are gone stay until the next plan
    std::int64_t waiting = 0;            // requests that are not gone
    std::vector<SortedSequence> sorted;  // all but those pushed since the last plan
    bool is_planned = false;             // nothing was pushed, cancelled or taken out of turn since the last plan

    std::vector<std::int32_t> by_due;   // what is due first, first
    std::int64_t due_batches = 0;       // that the requests with a due time make in that order
    std::vector<std::int32_t> members;  // batch after batch, foremost first, each in sorted order
    std::vector<std::int32_t> begins;   // [batches + 1] in members
    std::vector<BatchLoad> loads;       // [batches]
    std::size_t next_batch = 0;         // those before it are taken

    [[nodiscard]] std::span<const std::int32_t> members_of(std::size_t batch) const noexcept {
      return std::span(members).subspan(at(begins[batch]), at(begins[batch + 1] - begins[batch]));
    }
  };
  using QueuePlace = typename std::list<Queue>::iterator;

  struct HashKey {
    [[nodiscard]] std::size_t operator()(const Key128& key) const noexcept {
      return detail::hash_value(key.hi, detail::hash_value(key.lo, 0));
    }
  };
  [[nodiscard]] static constexpr std::size_t at(std::int32_t place) noexcept { return static_cast<std::size_t>(place); }

  static void require_at_least(const char* argument, std::int64_t value, std::int64_t least) {
    if (value < least) {
      detail::raise(detail::invalid_batch(argument, -1, value, "must be at least", least));
    }
  }

  // time + steps * step, or unlimited.
  [[nodiscard]] static std::int64_t later(std::int64_t time, std::int64_t step, std::int64_t steps = 1) noexcept {
    std::int64_t wait = 0;
    std::int64_t result = 0;
    const bool overflow = __builtin_mul_overflow(step, steps, &wait) || __builtin_add_overflow(time, wait, &result);
    return overflow ? unlimited : result;
  }

  [[nodiscard]] static std::int32_t length_of(const Request& request) noexcept {
    return static_cast<std::int32_t>(request.tokens.size());
  }

  // --- Planning a queue ---

  void refresh(Queue& queue) {
    if (queue.is_planned) {
      return;
    }
    forget_gone(queue);
    sort_new(queue);
    const std::size_t n = queue.requests.size();
    lengths_.resize(n);
    shared_.resize(n);
    place_of_.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      const SortedSequence& entry = queue.sorted[i];
      lengths_[i] = length_of(queue.requests[at(entry.sequence)]);
      shared_[i] = entry.shared;
      place_of_[at(entry.sequence)] = static_cast<std::int32_t>(i);
    }
    packing_.pack(lengths_, shared_, place_of_, budget_);
    order_by_due(queue);
    line_up_batches(queue);
    queue.is_planned = true;
  }

  void forget_gone(Queue& queue) {
    if (queue.waiting == static_cast<std::int64_t>(queue.requests.size())) {
      return;
    }
    place_of_.assign(queue.requests.size(), -1);
    std::size_t kept = 0;
    for (std::size_t r = 0; r < queue.requests.size(); ++r) {
      if (!queue.requests[r].is_gone) {
        place_of_[r] = static_cast<std::int32_t>(kept);
        queue.requests[kept++] = queue.requests[r];
      }
    }
    queue.requests.resize(kept);
    // What is left shares with what was before it the least that any between the two shared.
    const auto sorter = sorter_of(queue);
    std::size_t written = 0;
    std::int32_t least = 0;
    for (const SortedSequence& entry : queue.sorted) {
      least = std::min(least, entry.shared);
      if (const std::int32_t place = place_of_[at(entry.sequence)]; place >= 0) {
        queue.sorted[written++] = sorter.entry(place, least);
        least = std::numeric_limits<std::int32_t>::max();
      }
    }
    queue.sorted.resize(written);
  }

  void sort_new(Queue& queue) {
    const std::size_t old = queue.sorted.size();
    const std::size_t all = queue.requests.size();
    if (old == all) {
      return;
    }
    const auto sorter = sorter_of(queue);
    for (std::size_t r = old; r < all; ++r) {
      queue.sorted.push_back(sorter.entry(static_cast<std::int32_t>(r), 0));
    }
    room_.resize(all);
    const std::span list(queue.sorted);
    sorter.sort(list.subspan(old), std::span(room_).subspan(old));
    if (old > 0) {
      sorter.merge(list.first(old), list.subspan(old), room_);
      queue.sorted.swap(room_);
    }
  }

  [[nodiscard]] static auto sorter_of(const Queue& queue) {
    const Request* const requests = queue.requests.data();
    const auto tokens = [requests](std::int32_t r) { return requests[r].tokens; };
    return detail::SequenceSorter<Token, decltype(tokens)>(tokens);
  }

  void order_by_due(Queue& queue) {
    queue.by_due.resize(queue.requests.size());
    std::iota(queue.by_due.begin(), queue.by_due.end(), 0);
    const auto is_before = [&](std::int32_t a, std::int32_t b) {
      const Request& x = queue.requests[at(a)];
      const Request& y = queue.requests[at(b)];
      return std::tie(x.due, x.arrival, a) < std::tie(y.due, y.arrival, b);
    };
    if (!std::is_sorted(queue.by_due.begin(), queue.by_due.end(), is_before)) {
      std::sort(queue.by_due.begin(), queue.by_due.end(), is_before);
    }
    queue.due_batches = 0;
    walk_by_due(queue, false, [&](std::int64_t batch, std::int32_t) {
      queue.due_batches = batch + 1;
      return true;
    });
  }

  // The requests with a due time, first due first, and the number of the batch that each is in if they are batched in
  // that order; without those in chosen_ if so asked; until `visit` returns false. Rows are counted as tokens: taking
  // requests out then never makes another one's number larger, whatever they share.
  template <class Visit>
  void walk_by_due(const Queue& queue, bool without_chosen, Visit&& visit) const {
    std::int64_t batch = 0;
    BatchLoad load;
    for (const std::int32_t r : queue.by_due) {
      const Request& request = queue.requests[at(r)];
      if (request.is_gone || (without_chosen && is_chosen_[at(r)])) {
        continue;
      }
      const BatchLoad more = detail::load_of(length_of(request));
      load = detail::together(load, more, 0);
      if (load.sequences > 1 && !detail::fits(load, budget_)) {
        ++batch;
        load = more;
      }
      if (request.due == unlimited || !visit(batch, r)) {
        return;
      }
    }
  }

  // From the packing: each batch's foremost request gives it its place.
  void line_up_batches(Queue& queue) {
    const std::size_t n = queue.requests.size();
    foremost_ = queue.by_due;
    const auto is_before = [&](std::int32_t a, std::int32_t b) {
      return queue.requests[at(a)].priority > queue.requests[at(b)].priority;
    };
    if (!std::is_sorted(foremost_.begin(), foremost_.end(), is_before)) {
      std::stable_sort(foremost_.begin(), foremost_.end(), is_before);
    }
    const auto batches = static_cast<std::size_t>(packing_.batches());
    number_.assign(batches, -1);
    std::int32_t named = 0;
    for (const std::int32_t r : foremost_) {
      std::int32_t& number = number_[at(packing_.batch_of()[at(place_of_[at(r)])])];
      if (number < 0) {
        number = named++;
      }
    }
    queue.loads.assign(batches, {});
    for (std::size_t i = 0; i < n; ++i) {
      BatchLoad& load = queue.loads[at(number_[at(packing_.batch_of()[i])])];
      load = detail::together(load, detail::load_of(lengths_[i]), packing_.links()[i]);
    }
    queue.begins.assign(1, 0);
    for (const BatchLoad& load : queue.loads) {
      queue.begins.push_back(queue.begins.back() + static_cast<std::int32_t>(load.sequences));
    }
    queue.members.resize(n);
    ends_.assign(queue.begins.begin(), queue.begins.end() - 1);
    for (std::size_t i = 0; i < n; ++i) {
      std::int32_t& end = ends_[at(number_[at(packing_.batch_of()[i])])];
      queue.members[at(end++)] = queue.sorted[i].sequence;
    }
    queue.next_batch = 0;
  }

  // Rows of one trie over what waits.
  [[nodiscard]] static std::int64_t trie_rows(const Queue& queue) noexcept {
    std::int64_t rows = 0;
    std::int32_t least = 0;
    for (const SortedSequence& entry : queue.sorted) {
      least = std::min(least, entry.shared);
      if (const Request& request = queue.requests[at(entry.sequence)]; !request.is_gone) {
        rows += length_of(request) - least;
        least = std::numeric_limits<std::int32_t>::max();
      }
    }
    return rows;
  }

  // --- Taking batches ---

  PlannedBatch take(QueuePlace place, std::int64_t now) {
    Queue& queue = *place;
    refresh(queue);
    PlannedBatch batch{.tenant = queue.tenant};
    const std::span<const std::int32_t> foremost = queue.members_of(queue.next_batch);
    if (makes_late(queue, foremost, now)) {
      batch.load = choose_by_due(queue, later(now, options_.batch_time));
      if (is_late_behind(queue, true, now)) {
        batch.load = choose_by_due(queue, unlimited);
      }
      queue.is_planned = false;
    } else {
      chosen_.assign(foremost.begin(), foremost.end());
      batch.load = queue.loads[queue.next_batch++];
    }
    ids_.clear();
    for (const std::int32_t r : chosen_) {
      ids_.push_back(queue.requests[at(r)].id);
      remove(queue, r);
    }
    batch.requests = ids_;
    drop_if_empty(place);
    return batch;
  }

  // Whether some request will be late if `batch` is taken now and what is left in order of due times.
  [[nodiscard]] bool makes_late(const Queue& queue, std::span<const std::int32_t> batch, std::int64_t now) {
    if (!is_late_behind(queue, false, now)) {  // not even if the batch took none of those due
      return false;
    }
    is_chosen_.assign(queue.requests.size(), false);
    for (const std::int32_t r : batch) {
      is_chosen_[at(r)] = true;
    }
    return is_late_behind(queue, true, now);
  }

  [[nodiscard]] bool is_late_behind(const Queue& queue, bool without_chosen, std::int64_t now) const {
    const std::int64_t all_taken = later(now, options_.batch_time, queue.due_batches);
    bool is_late = false;
    walk_by_due(queue, without_chosen, [&](std::int64_t number, std::int32_t r) {
      const std::int64_t due = queue.requests[at(r)].due;
      is_late = due < later(now, options_.batch_time, number + 1);
      return !is_late && due < all_taken;
    });
    return is_late;
  }

  // Into chosen_, in sorted order: of the first batch in order of due times the requests due before `end`, and, in the
  // room that is left, what shares most with them.
  BatchLoad choose_by_due(const Queue& queue, std::int64_t end) {
    is_chosen_.assign(queue.requests.size(), false);
    walk_by_due(queue, false, [&](std::int64_t batch, std::int32_t r) {
      is_chosen_[at(r)] = batch == 0 && queue.requests[at(r)].due < end;
      return is_chosen_[at(r)];
    });
    BatchLoad load = list_chosen(queue);

    // nearest_[r]: rows that r shares with one of them, the one before or behind it in sorted order.
    nearest_.assign(queue.requests.size(), 0);
    const auto note = [&](std::int32_t r, std::int32_t& shared) {
      if (is_chosen_[at(r)]) {
        shared = std::numeric_limits<std::int32_t>::max();
      } else {
        nearest_[at(r)] = std::max(nearest_[at(r)], shared);
      }
    };
    std::int32_t shared = 0;
    for (const SortedSequence& entry : queue.sorted) {
      shared = std::min(shared, entry.shared);
      note(entry.sequence, shared);
    }
    shared = 0;
    for (std::size_t i = queue.sorted.size(); i-- > 0;) {
      note(queue.sorted[i].sequence, shared);
      shared = std::min(shared, queue.sorted[i].shared);
    }
    foremost_.clear();
    for (const std::int32_t r : queue.by_due) {
      if (!queue.requests[at(r)].is_gone && !is_chosen_[at(r)]) {
        foremost_.push_back(r);
      }
    }
    std::stable_sort(foremost_.begin(), foremost_.end(),
                     [&](std::int32_t a, std::int32_t b) { return nearest_[at(a)] > nearest_[at(b)]; });
    for (const std::int32_t r : foremost_) {
      const BatchLoad more = detail::together(load, detail::load_of(length_of(queue.requests[at(r)])), nearest_[at(r)]);
      if (detail::fits(more, budget_)) {
        load = more;
        is_chosen_[at(r)] = true;
      }
    }
    return list_chosen(queue);
  }

  BatchLoad list_chosen(const Queue& queue) {
    chosen_.clear();
    BatchLoad load;
    std::int32_t least = 0;
    for (const SortedSequence& entry : queue.sorted) {
      least = std::min(least, entry.shared);
      if (is_chosen_[at(entry.sequence)]) {
        chosen_.push_back(entry.sequence);
        load = detail::together(load, detail::load_of(length_of(queue.requests[at(entry.sequence)])), least);
        least = std::numeric_limits<std::int32_t>::max();
      }
    }
    return load;
  }

  void remove(Queue& queue, std::int32_t request) noexcept {
    queue.requests[at(request)].is_gone = true;
    --queue.waiting;
    --waiting_;
  }

  void drop_if_empty(QueuePlace queue) {
    if (queue->waiting == 0) {
      queue_of_.erase(queue->tenant);
      queues_.erase(queue);
    }
  }

  BatchBudget budget_;
  PlannerOptions options_;
  std::list<Queue> queues_;  // with requests, in order of their turns
  std::unordered_map<Key128, QueuePlace, HashKey> queue_of_;
  std::int64_t next_id_ = 0;
  std::int64_t waiting_ = 0;

  // While a queue is planned or a batch taken.
  detail::BatchPacking packing_;
  std::vector<SortedSequence> room_;
  std::vector<std::int32_t> lengths_, shared_, place_of_, foremost_, number_, ends_, chosen_, nearest_;
  std::vector<bool> is_chosen_;
  std::vector<std::int64_t> ids_;
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
