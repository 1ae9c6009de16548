// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>

#include "radixmlp/config.hpp"

namespace radixmlp::inline v0 {

// Where host work runs: parallel_for(n, f) calls f(i) for every i in [0, n), in any order, possibly on several threads,
// and returns when all calls have, so that what they wrote can be read. f does not throw.
template <class E>
concept HostExecutor = requires(const E& executor, std::int64_t n, void (*f)(std::int64_t)) {
  executor.parallel_for(n, f);
};

// The calling thread.
struct SerialExecutor {
  template <class F>
  void parallel_for(std::int64_t n, F&& f) const {
    for (std::int64_t i = 0; i < n; ++i) {
      f(i);
    }
  }
};

inline constexpr SerialExecutor serial{};

}  // namespace radixmlp::inline v0
