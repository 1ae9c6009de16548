// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <vector>

namespace radixmlp_bench {

struct InterleaveOptions {
  double seconds = 0.5;        // for all callables together; min_rounds may take longer
  std::size_t min_rounds = 5;  // samples of each callable
};

inline double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Median microseconds a call of each callable. They take turns, so that a slow spell of the machine hits all of them
// and their ratios hold. A short call is repeated within a sample, so that the clock's own cost vanishes; an untimed
// call comes before each sample, so that none pays for the cache lines of the one before it.
inline std::vector<double> interleave(const InterleaveOptions& options,
                                      const std::vector<std::function<void()>>& callables) {
  using Clock = std::chrono::steady_clock;
  constexpr double sample_us = 100;
  constexpr double long_call_us = 50'000;  // goes without the untimed call
  struct Contestant {
    std::size_t calls_per_sample;
    bool warm_up;
    std::vector<double> samples;
  };
  const auto us_per_call = [](const std::function<void()>& callable, std::size_t calls) {
    const Clock::time_point start = Clock::now();
    for (std::size_t i = 0; i < calls; ++i) {
      callable();
    }
    return std::chrono::duration<double, std::micro>(Clock::now() - start).count() / static_cast<double>(calls);
  };

  const Clock::time_point start = Clock::now();
  std::vector<Contestant> contestants;
  for (const std::function<void()>& callable : callables) {
    callable();
    const double us = us_per_call(callable, 1);
    contestants.push_back({1 + static_cast<std::size_t>(sample_us / us), us < long_call_us, {}});
  }
  for (std::size_t round = 0;
       round < options.min_rounds || std::chrono::duration<double>(Clock::now() - start).count() < options.seconds;
       ++round) {
    for (std::size_t c = 0; c < callables.size(); ++c) {
      if (contestants[c].warm_up) {
        callables[c]();
      }
      contestants[c].samples.push_back(us_per_call(callables[c], contestants[c].calls_per_sample));
    }
  }
  std::vector<double> medians;
  for (Contestant& contestant : contestants) {
    medians.push_back(median(std::move(contestant.samples)));
  }
  return medians;
}

}  // namespace radixmlp_bench
