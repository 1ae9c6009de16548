// SPDX-License-Identifier: MIT
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <span>
#include <thread>
#include <utility>
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

  // Address space of which little is touched: for rows that are gigabytes apart.
  template <class T>
  class Sparse {
   public:
    explicit Sparse(std::size_t size) : bytes_(size * sizeof(T)) {
      data_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (data_ == MAP_FAILED) {
        throw std::bad_alloc();
      }
    }
    ~Sparse() { munmap(data_, bytes_); }
    Sparse(const Sparse&) = delete;
    Sparse& operator=(const Sparse&) = delete;
    T* data() { return static_cast<T*>(data_); }
    void write(std::int64_t at, const std::vector<T>& values) { std::copy(values.begin(), values.end(), data() + at); }
    std::vector<T> read(std::int64_t at, std::int64_t count) { return {data() + at, data() + at + count}; }

   private:
    std::size_t bytes_;
    void* data_;
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

  // What `record` enqueues, to be done again: a CUDA graph, or here a call.
  class Graph {
   public:
    Graph(const HostBackend&, std::function<void()> record) : record_(std::move(record)) {}
    void launch() { record_(); }

   private:
    std::function<void()> record_;
  };

  // Copies the block of an index to `memory`, in order with what is enqueued.
  radixmlp::PrefixIndexView place(const radixmlp::PrefixIndexView& index, std::span<std::byte> memory) const {
    std::copy(index.block.begin(), index.block.end(), memory.begin());
    return index.relocated(memory.data());
  }
  // query_counts, and waits for it.
  radixmlp::IndexCounts query(const radixmlp::PrefixIndexView& index) const {
    const radixmlp::IndexCounts counts = *index.counts;
    const_cast<radixmlp::IndexCounts*>(index.counts)->fault = 0;
    return counts;
  }
};

}  // namespace radixmlp_test
