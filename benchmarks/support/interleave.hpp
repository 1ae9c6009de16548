// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace radixmlp_bench {

struct InterleaveOptions {
  double seconds = 0.5;        // for all callables together; min_rounds may take longer
  std::size_t min_rounds = 5;  // samples of each callable
  // Whether a round counts, by what each callable took in it; others are taken again, for up to ten times `seconds`.
  std::function<bool(const std::vector<double>&)> counts = [](const std::vector<double>&) { return true; };
};

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Microseconds a call.
struct Timing {
  std::vector<double> rounds;  // with caches and branch predictors that know the work
  double us;                   // their median
  double first_us;             // median of the calls right after another's turn
};

// The time of `one` over that of `other`, the median of their rounds: what slows a whole round down drops out.
inline double ratio(const Timing& one, const Timing& other) {
  std::vector<double> ratios(one.rounds.size());
  std::transform(one.rounds.begin(), one.rounds.end(), other.rounds.begin(), ratios.begin(), std::divides<>());
  return median(std::move(ratios));
}

// They take turns, so that a slow spell of the machine hits all of them and their ratios hold; in another order each
// round, since what one leaves in the caches is another's to find, but nobody follows himself. Before each sample a
// callable runs untimed for `warm_up_us`, at least once, so that it pays neither for the cache lines nor for the branch
// history of the one before it: a victim cache takes three or four passes to fill. A short call is repeated within a
// sample, so that the clock's own cost vanishes.
inline std::vector<Timing> interleave(const InterleaveOptions& options,
                                      const std::vector<std::function<void()>>& callables) {
  using Clock = std::chrono::steady_clock;
  constexpr double sample_us = 100;
  constexpr double warm_up_us = 3'000;
  constexpr double long_call_us = 50'000;  // goes without the warm-up
  struct Contestant {
    std::size_t calls_per_sample;
    std::size_t warm_up_calls;
    std::vector<double> samples, first;
  };
  const auto us_per_call = [](const std::function<void()>& callable, std::size_t calls) {
    const Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < calls; ++i) {
      callable();
    }
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / static_cast<double>(calls);
  };

  const Clock::time_point start = Clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  std::vector<Contestant> contestants;
  for (const std::function<void()>& callable : callables) {
    callable();
    const double us = us_per_call(callable, 1);
    contestants.push_back({1 + static_cast<std::size_t>(sample_us / us),
                           us < long_call_us ? 1 + static_cast<std::size_t>(warm_up_us / us) : 0,
                           {},
                           {}});
  }
  std::vector<std::size_t> order(callables.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::minstd_rand random;
  for (std::size_t rounds = 0; rounds < options.min_rounds || seconds() < options.seconds;) {
    const std::size_t last = order.back();
    std::shuffle(order.begin(), order.end(), random);
    if (order.front() == last) {
      std::swap(order.front(), order.back());
    }
    std::vector<double> round(callables.size());
    for (const std::size_t c : order) {
      Contestant& contestant = contestants[c];
      if (contestant.warm_up_calls > 0) {
        contestant.first.push_back(us_per_call(callables[c], 1));
        us_per_call(callables[c], contestant.warm_up_calls - 1);
      }
      round[c] = us_per_call(callables[c], contestant.calls_per_sample);
      if (contestant.warm_up_calls == 0) {
        contestant.first.push_back(round[c]);
      }
    }
    if (options.counts(round) || seconds() > 10 * options.seconds) {
      for (std::size_t c = 0; c < contestants.size(); ++c) {
        contestants[c].samples.push_back(round[c]);
      }
      ++rounds;
    }
  }
  std::vector<Timing> timings;
  for (Contestant& contestant : contestants) {
    const double us = median(contestant.samples);
    timings.push_back({std::move(contestant.samples), us, median(std::move(contestant.first))});
  }
  return timings;
}

}  // namespace radixmlp_bench
