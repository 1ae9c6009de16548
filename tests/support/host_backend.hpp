// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "radixmlp/radixmlp.hpp"

namespace radixmlp_test {

// Two threads, whatever the machine has: enough for the thread sanitizer to see every race.
struct TwoThreads {
  template <class F>
  void parallel_for(std::int64_t n, F&& f) const {
    std::thread odd([&] {
      for (std::int64_t i = 1; i < n; i += 2) {
        f(i);
      }
    });
    for (std::int64_t i = 0; i < n; i += 2) {
      f(i);
    }
    odd.join();
  }
};

// Where the shared test bodies run: memory, the index in it, row-wise functors, and the `where` argument of the
// library.
struct HostBackend {
  static constexpr bool present() { return true; }
  static constexpr bool on_device = false;

  template <class T>
  class Array {
   public:
    explicit Array(const std::vector<T>& values) : values_(values) {}
    T* data() { return values_.data(); }
    std::vector<T> download() const { return values_; }

   private:
    std::vector<T> values_;
  };

  // Rows of the maps' block in the backend's memory.
  class Index {
   public:
    explicit Index(const radixmlp::PrefixIndexView& view) : index_(view) {}
    const radixmlp::PrefixIndexView& view() const { return index_.view(); }

   private:
    radixmlp::PrefixIndex index_;
  };

  TwoThreads where() const { return {}; }

  // f(i) for i in [0, n).
  template <class F>
  void for_each(std::int64_t n, const F& f) const {
    for (std::int64_t i = 0; i < n; ++i) {
      f(i);
    }
  }
  void synchronize() const {}
};

}  // namespace radixmlp_test
