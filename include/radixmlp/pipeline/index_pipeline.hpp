// SPDX-License-Identifier: MIT
#pragma once

#include <concepts>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "radixmlp/error.hpp"
#include "radixmlp/executor.hpp"
#include "radixmlp/index/prefix_index.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "radixmlp/index/ragged_batch.hpp"

namespace radixmlp::inline v0 {

// Where finished indices lie: HostIndexAllocator, or e.g. pinned host memory. allocate(bytes) gives memory aligned to
// index_alignment, or nullptr where there is none left; neither function throws.
template <class A>
concept IndexAllocator = requires(A& allocator, void* memory, std::size_t bytes) {
  { allocator.allocate(bytes) }
  noexcept->std::convertible_to<void*>;
  { allocator.deallocate(memory, bytes) }
  noexcept;
};

struct PipelineOptions {
  std::int32_t slots = 3;      // batches in flight: submitted and not yet released. 2: double, 3: triple buffer; more
                               // where computes are short and uneven (docs/design.md)
  std::int32_t workers = 0;    // threads of the pipeline's own that build; 0: the engine's threads do
  std::size_t slot_bytes = 0;  // memory of each slot from the start: index_bytes() of the largest batch; it grows
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// Builds the index of the next batch while this one computes. Batches go in by submit() and come out by take(), in
// order. What lies between them is `slots` buffers; a batch has one from submit() until its lease is released, and
// where none is free submit() waits and try_submit() says so. Nobody spins: whoever waits sleeps.
//
// Who builds: `workers` threads of the pipeline; or any thread of the engine that calls build_next(), once for each
// batch or in its own loop; and take(), which builds its batch itself where nobody has begun it, so that it never waits
// for a task that does not run. The results do not depend on it.
//
// Threads: one at a time submits, one at a time takes (the same or another); build_next(), try_take() of the taker,
// close(), stop() and the release of a lease may come from any thread. A thread that submits and takes must not call
// submit() while it holds all slots: try_submit() is for it.
//
// Ownership: a batch's arrays stay the engine's; they must stay as they are until take() has returned the batch, or
// stop() has returned. The index lies in the slot and is valid until the lease is released. The allocator is called in
// the constructor, in submit() and in the destructor, on the thread that called those. Each builder that is at work has
// a trie, whose scratch memory is kept and only grows: batches of sizes that all slots have seen, and as many builders
// at once, allocate nothing. Leases and calls on other threads must have ended before the pipeline is destroyed.
//
// Errors: a malformed batch, or one for which memory ran out, takes its turn like any other, and its lease carries the
// status; other batches do not notice. Lease::view() of such a batch raises it, and the constructor raises InvalidBatch
// for its options and Error where the allocator has no slot_bytes; where exceptions are off that is a call of the error
// hook. What std::thread and operator new throw in the constructor is theirs.
template <TokenId Token = std::int32_t, IndexAllocator Allocator = HostIndexAllocator>
class IndexPipeline {
  enum class State : std::uint8_t { free, queued, done, leased };

  struct Slot {
    RaggedBatch<Token> batch;
    BuildOptions options;
    PrefixIndexView view;
    Status status;
    std::span<std::byte> memory;
    std::uint64_t number = 0;
    State state = State::free;
  };

 public:
  // A batch that was taken, and its slot until it is released or destroyed. False where there was none to take.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : pipeline_(std::exchange(other.pipeline_, nullptr)), slot_(std::exchange(other.slot_, nullptr)) {}
    Lease& operator=(Lease&& other) noexcept {
      if (this != &other) {
        release();
        pipeline_ = std::exchange(other.pipeline_, nullptr);
        slot_ = std::exchange(other.slot_, nullptr);
      }
      return *this;
    }
    ~Lease() { release(); }

    explicit operator bool() const noexcept { return slot_ != nullptr; }

    // Of a lease that is not empty.
    [[nodiscard]] const Status& status() const noexcept { return slot_->status; }
    [[nodiscard]] const PrefixIndexView& view() const {  // raises the status if it is not ok
      detail::raise_unless_ok(slot_->status);
      return slot_->view;
    }
    [[nodiscard]] const RaggedBatch<Token>& batch() const noexcept { return slot_->batch; }  // as it was submitted
    [[nodiscard]] std::uint64_t number() const noexcept { return slot_->number; }            // 0, 1, 2, ...

    // Gives the slot back; the view ends. A copy to a device that still reads it must have finished.
    void release() noexcept {
      if (slot_ != nullptr) {
        std::exchange(pipeline_, nullptr)->set_free(*std::exchange(slot_, nullptr));
      }
    }

   private:
    friend IndexPipeline;
    Lease(IndexPipeline* pipeline, Slot* slot) noexcept : pipeline_(pipeline), slot_(slot) {}

    IndexPipeline* pipeline_ = nullptr;
    Slot* slot_ = nullptr;
  };

  explicit IndexPipeline(PipelineOptions options = {}, Allocator allocator = {})
      : IndexPipeline(std::move(allocator), options.slots) {
    // From here on a raise runs the destructor.
    if (options.workers < 0) {
      detail::raise(detail::invalid_batch("workers", -1, options.workers, "must not be negative"));
    }
    for (std::size_t s = 0; s < slot_count_; ++s) {
      detail::raise_unless_ok(reserve(slots_[s], options.slot_bytes));
    }
    threads_.reserve(static_cast<std::size_t>(options.workers));
    for (std::int32_t w = 0; w < options.workers; ++w) {
      threads_.emplace_back([this] { work(); });
    }
  }
  IndexPipeline(const IndexPipeline&) = delete;
  IndexPipeline& operator=(const IndexPipeline&) = delete;
  ~IndexPipeline() {
    stop();
    for (std::thread& thread : threads_) {
      thread.join();
    }
    for (std::size_t s = 0; s < slot_count_; ++s) {
      give_back(slots_[s]);
    }
  }

  // --- The producer's side ---

  // False, and the batch was not taken in, where no slot is free or the pipeline is closed.
  [[nodiscard]] bool try_submit(const RaggedBatch<Token>& batch, BuildOptions options = {}) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || next_slot().state != State::free) {
        return false;
      }
    }
    return enqueue(batch, options);
  }

  // Waits for a free slot. False where the pipeline is closed, or was while it waited.
  [[nodiscard]] bool submit(const RaggedBatch<Token>& batch, BuildOptions options = {}) {
    {
      std::unique_lock lock(mutex_);
      producer_.wait(lock, [&] { return closed_ || next_slot().state == State::free; });
      if (closed_) {
        return false;
      }
    }
    return enqueue(batch, options);
  }

  // The last batch has been submitted: what is in flight can be taken, then take() returns an empty lease.
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    close_locked();
  }

  // --- Building ---

  // Builds, on this thread, the oldest batch that nobody has begun; false where there is none. `executor` may spread
  // the build over threads, as in PrefixTrie::build.
  template <HostExecutor Executor = SerialExecutor>
  bool build_next(const Executor& executor = {}) {
    std::unique_lock lock(mutex_);
    if (stopped_ || begun_ == submitted_) {
      return false;
    }
    build(lock, executor);
    return true;
  }

  // --- The consumer's side ---

  // The next batch if it is finished, else an empty lease. Never waits and never builds.
  [[nodiscard]] Lease try_take() {
    const std::lock_guard lock(mutex_);
    return can_take() ? lease() : Lease();
  }

  // Waits for the next batch; builds it here where nobody has begun it. An empty lease where the pipeline is stopped,
  // or is closed and has none left.
  template <HostExecutor Executor = SerialExecutor>
  [[nodiscard]] Lease take(const Executor& executor = {}) {
    std::unique_lock lock(mutex_);
    while (!can_take()) {
      if (stopped_ || (closed_ && taken_ == submitted_)) {
        return {};
      }
      if (taken_ < submitted_ && begun_ == taken_) {
        build(lock, executor);
      } else {
        consumer_.wait(lock);
      }
    }
    return lease();
  }

  // Drops the batches that nobody has taken, wakes all who wait, and returns when no build is running any more: from
  // then on no submitted array is read. Leases stay valid.
  void stop() noexcept {
    std::unique_lock lock(mutex_);
    stopped_ = true;
    close_locked();
    consumer_.wait(lock, [&] { return building_ == 0; });
  }

  [[nodiscard]] bool closed() const noexcept {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  IndexPipeline(Allocator&& allocator, std::int32_t slots) : allocator_(std::move(allocator)) {
    if (slots < 1) {
      detail::raise(detail::invalid_batch("slots", -1, slots, "must be at least", 1));
    }
    slot_count_ = static_cast<std::size_t>(slots);
    slots_ = std::make_unique<Slot[]>(slot_count_);
    tries_ = std::make_unique<PrefixTrie[]>(slot_count_);  // no more can build at once
  }

  // Batch n lies in slot n % slots, so the counters are the queue: taken_ <= begun_ <= submitted_.
  [[nodiscard]] Slot& slot_of(std::uint64_t number) noexcept { return slots_[number % slot_count_]; }
  [[nodiscard]] Slot& next_slot() noexcept { return slot_of(submitted_); }

  // The next slot is free, so it is the producer's alone until it is queued. Memory is taken without the lock.
  [[nodiscard]] bool enqueue(const RaggedBatch<Token>& batch, BuildOptions options) {
    Slot& slot = next_slot();
    Status status = validate(batch);
    if (status.ok()) {
      status = reserve(slot, index_bytes(batch.rows(), batch.sequences(), options.pad_to));
    }
    {
      const std::lock_guard lock(mutex_);
      if (closed_) {
        return false;
      }
      slot.batch = batch;
      slot.options = options;
      slot.view = {};
      slot.status = status;
      slot.number = submitted_++;
      slot.state = State::queued;
    }
    if (threads_.empty()) {
      consumer_.notify_all();  // it may build
    } else {
      worker_.notify_one();
    }
    return true;
  }

  template <class Executor>
  void build(std::unique_lock<std::mutex>& lock, const Executor& executor) {
    Slot& slot = slot_of(begun_++);
    PrefixTrie trie = std::move(tries_[building_++]);
    lock.unlock();
    if (slot.status.ok()) {
      slot.status = trie.try_build_into(slot.memory, slot.batch, slot.options, slot.view, executor);
    }
    lock.lock();
    tries_[--building_] = std::move(trie);
    slot.state = State::done;
    consumer_.notify_all();  // under the lock: stop() may return behind it
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      worker_.wait(lock, [&] { return closed_ || begun_ < submitted_; });
      if (stopped_ || begun_ == submitted_) {
        return;
      }
      build(lock, serial);
    }
  }

  [[nodiscard]] bool can_take() noexcept {
    return !stopped_ && taken_ < submitted_ && slot_of(taken_).state == State::done;
  }

  [[nodiscard]] Lease lease() noexcept {
    Slot& slot = slot_of(taken_++);
    slot.state = State::leased;
    return {this, &slot};
  }

  void set_free(Slot& slot) noexcept {
    const std::lock_guard lock(mutex_);
    slot.state = State::free;
    producer_.notify_one();
  }

  void close_locked() noexcept {
    closed_ = true;
    producer_.notify_all();
    worker_.notify_all();
    consumer_.notify_all();
  }

  [[nodiscard]] Status reserve(Slot& slot, std::size_t bytes) noexcept {
    if (bytes > slot.memory.size()) {
      give_back(slot);
      void* const memory = allocator_.allocate(bytes);
      if (memory == nullptr) {
        return detail::out_of_memory(bytes);
      }
      slot.memory = {static_cast<std::byte*>(memory), bytes};
    }
    return {};
  }

  void give_back(Slot& slot) noexcept {
    if (!slot.memory.empty()) {
      allocator_.deallocate(slot.memory.data(), slot.memory.size());
      slot.memory = {};
    }
  }

  Allocator allocator_;
  std::size_t slot_count_ = 0;
  std::unique_ptr<Slot[]> slots_;
  std::unique_ptr<PrefixTrie[]> tries_;  // a stack: those from building_ on lie idle, the last used first
  mutable std::mutex mutex_;
  std::condition_variable producer_, worker_, consumer_;  // who waits on it
  std::uint64_t submitted_ = 0;
  std::uint64_t begun_ = 0;
  std::uint64_t taken_ = 0;
  std::size_t building_ = 0;
  bool closed_ = false;
  bool stopped_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
