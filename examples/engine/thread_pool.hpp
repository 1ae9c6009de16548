// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace example {

// A radixmlp::HostExecutor on threads that stay. The caller works too, so a pool of one starts no thread. Callers take
// turns; f must not call parallel_for on the same pool. Who waits looks for some 50 microseconds before it sleeps:
// waking a thread takes as long, and the next job is often that near.
class ThreadPool {
 public:
  explicit ThreadPool(int threads) {
    for (int i = 1; i < threads; ++i) {
      workers_.emplace_back([this] { serve(); });
    }
  }
  ~ThreadPool() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) {
      worker.join();
    }
  }
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] int threads() const noexcept { return static_cast<int>(workers_.size()) + 1; }

  // Calls f(i) for every i in [0, n), in any order, and returns when all calls have. f must not throw.
  template <class F>
  void parallel_for(std::int64_t n, F&& f) const {
    const std::lock_guard turn(turn_);
    const std::function<void(std::int64_t)> call(std::ref(f));
    {
      const std::lock_guard lock(mutex_);
      call_ = &call;
      size_ = n;
      next_ = 0;
      busy_ = workers_.size();
      ++job_;
    }
    wake_.notify_all();
    work();
    look([this] { return busy_ == 0; });
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void serve() {
    for (std::uint64_t seen = 0;;) {
      look([&] { return job_ != seen; });
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [&] { return stopping_ || job_ != seen; });
      if (stopping_) {
        return;
      }
      seen = job_;
      lock.unlock();
      work();
      lock.lock();
      if (--busy_ == 0) {
        done_.notify_one();
      }
    }
  }

  template <class Condition>
  static void look(Condition condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(50);
    while (!condition() && std::chrono::steady_clock::now() < until) {
    }
  }

  void work() const {
    for (std::int64_t i = next_++; i < size_; i = next_++) {
      (*call_)(i);
    }
  }

  std::vector<std::thread> workers_;
  mutable std::mutex turn_;   // held by the caller whose job runs
  mutable std::mutex mutex_;  // guards what follows; the job itself changes only while no worker is busy
  mutable std::condition_variable wake_, done_;
  mutable const std::function<void(std::int64_t)>* call_ = nullptr;
  mutable std::int64_t size_ = 0;
  mutable std::atomic<std::int64_t> next_ = 0;
  mutable std::atomic<std::size_t> busy_ = 0;
  mutable std::atomic<std::uint64_t> job_ = 0;
  bool stopping_ = false;
};

}  // namespace example
