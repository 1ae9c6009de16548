// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "radixmlp/cuda_error.cuh"
#include "radixmlp/index/device_index.cuh"
#include "radixmlp/pipeline/index_pipeline.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// Pinned host memory, from which a copy to the device does not hold up the host.
struct RADIXMLP_HIDDEN PinnedIndexAllocator {
  [[nodiscard]] void* allocate(std::size_t bytes) const noexcept {
    void* memory = nullptr;
    return cudaMallocHost(&memory, bytes) == cudaSuccess ? memory : nullptr;
  }
  void deallocate(void* memory, std::size_t) const noexcept { cudaFreeHost(memory); }
};

// An IndexPipeline whose indices are on the device when they are used: take(stream) uploads the index on a stream of
// the pipeline's own, beside what the engine's stream is doing, and lets `stream` wait for it by an event. The host
// waits for neither.
//
// Each slot has options.slot_bytes of pinned memory and as many on the device that is current in the constructor: at
// least index_bytes() of the largest batch. A batch whose index is larger is an error of its lease. submit(), take()
// and the release of leases need the same device current; build_next() needs none. Not for streams that are being
// captured.
//
// What is said of IndexPipeline holds here too. Raises CudaError where a call fails.
template <TokenId Token = std::int32_t>
class RADIXMLP_HIDDEN DeviceIndexPipeline : IndexPipeline<Token, PinnedIndexAllocator> {
  using Host = IndexPipeline<Token, PinnedIndexAllocator>;

  struct DeviceSlot {
    void* memory = nullptr;
    cudaEvent_t uploaded = nullptr;
    cudaEvent_t consumed = nullptr;

    DeviceSlot() = default;
    DeviceSlot(const DeviceSlot&) = delete;
    DeviceSlot& operator=(const DeviceSlot&) = delete;
    ~DeviceSlot() {
      if (uploaded != nullptr) {
        cudaEventDestroy(uploaded);
      }
      if (consumed != nullptr) {
        cudaEventDestroy(consumed);
      }
      cudaFree(memory);  // waits for what still reads it
    }
  };

  struct UploadStream {
    cudaStream_t handle = nullptr;

    UploadStream() {
      detail::raise_unless_success(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking),
                                   "cudaStreamCreateWithFlags");
    }
    UploadStream(const UploadStream&) = delete;
    UploadStream& operator=(const UploadStream&) = delete;
    ~UploadStream() { cudaStreamDestroy(handle); }
  };

 public:
  // As IndexPipeline's lease. When it ends, the slot is free for uploads that come behind what `stream` holds by then:
  // enqueue all work that reads the index on that stream, or let it wait for the others.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : host_(std::move(other.host_)),
          slot_(std::exchange(other.slot_, nullptr)),
          stream_(other.stream_),
          status_(other.status_),
          view_(other.view_) {}
    Lease& operator=(Lease&& other) noexcept {
      if (this != &other) {
        release();
        host_ = std::move(other.host_);
        slot_ = std::exchange(other.slot_, nullptr);
        stream_ = other.stream_;
        status_ = other.status_;
        view_ = other.view_;
      }
      return *this;
    }
    ~Lease() { release(); }

    explicit operator bool() const noexcept { return static_cast<bool>(host_); }

    [[nodiscard]] const Status& status() const noexcept { return status_; }
    // The maps on the device, for work on the stream. Raises the status if it is not ok.
    [[nodiscard]] const PrefixIndexView& view() const {
      detail::raise_unless_ok(status_);
      return view_;
    }
    // The maps on the host, for plans and policies.
    [[nodiscard]] const PrefixIndexView& host_view() const { return host_.view(); }
    [[nodiscard]] const RaggedBatch<Token>& batch() const noexcept { return host_.batch(); }
    [[nodiscard]] std::uint64_t number() const noexcept { return host_.number(); }
    // For other streams to wait for; of a lease whose status is ok.
    [[nodiscard]] cudaEvent_t uploaded() const noexcept { return slot_->uploaded; }

    // Sleeps until the upload has read the pinned block, which it mostly has long since; never for the work behind it.
    void release() noexcept {
      if (DeviceSlot* const slot = std::exchange(slot_, nullptr); slot != nullptr) {
        static_cast<void>(cudaEventRecord(slot->consumed, stream_));
        static_cast<void>(cudaEventSynchronize(slot->uploaded));
      }
      host_.release();
    }

   private:
    friend DeviceIndexPipeline;
    Lease(typename Host::Lease&& host, Status status, DeviceSlot* slot, cudaStream_t stream) noexcept
        : host_(std::move(host)), slot_(slot), stream_(stream), status_(status) {}

    typename Host::Lease host_;
    DeviceSlot* slot_ = nullptr;
    cudaStream_t stream_ = nullptr;
    Status status_;
    PrefixIndexView view_;
  };

  explicit DeviceIndexPipeline(PipelineOptions options)
      : Host(options), slot_count_(static_cast<std::size_t>(options.slots)), slot_bytes_(options.slot_bytes) {
    if (slot_bytes_ == 0) {
      detail::raise(detail::invalid_batch("slot_bytes", -1, 0, "must be at least", 1));
    }
    slots_ = std::make_unique<DeviceSlot[]>(slot_count_);
    for (std::size_t s = 0; s < slot_count_; ++s) {
      detail::raise_unless_success(cudaMalloc(&slots_[s].memory, slot_bytes_), "cudaMalloc");
      detail::raise_unless_success(
          cudaEventCreateWithFlags(&slots_[s].uploaded, cudaEventDisableTiming | cudaEventBlockingSync),
          "cudaEventCreateWithFlags");
      detail::raise_unless_success(cudaEventCreateWithFlags(&slots_[s].consumed, cudaEventDisableTiming),
                                   "cudaEventCreateWithFlags");
    }
  }

  using Host::build_next;
  using Host::close;
  using Host::closed;
  using Host::stop;
  using Host::submit;
  using Host::try_submit;

  // Work that is enqueued on `stream` from here on may read the lease's view.
  [[nodiscard]] Lease try_take(cudaStream_t stream) { return upload(Host::try_take(), stream); }
  template <HostExecutor Executor = SerialExecutor>
  [[nodiscard]] Lease take(cudaStream_t stream, const Executor& executor = {}) {
    return upload(Host::take(executor), stream);
  }

 private:
  [[nodiscard]] Lease upload(typename Host::Lease&& host, cudaStream_t stream) {
    if (!host) {
      return {};
    }
    Status status = host.status();
    if (status.ok() && host.view().block.size() > slot_bytes_) {
      status = detail::invalid_batch("batch", -1, static_cast<std::int64_t>(host.view().block.size()),
                                     "the bytes of its index must not exceed slot_bytes,",
                                     static_cast<std::int64_t>(slot_bytes_));
    }
    if (!status.ok()) {
      return {std::move(host), status, nullptr, nullptr};
    }
    // The lease of the batch that was here before has ended, since its host slot was free.
    DeviceSlot& slot = slots_[host.number() % slot_count_];
    Lease lease(std::move(host), status, &slot, stream);
    detail::raise_unless_success(cudaStreamWaitEvent(upload_.handle, slot.consumed, 0), "cudaStreamWaitEvent");
    lease.view_ =
        copy_to_device(upload_.handle, lease.host_view(), {static_cast<std::byte*>(slot.memory), slot_bytes_});
    detail::raise_unless_success(cudaEventRecord(slot.uploaded, upload_.handle), "cudaEventRecord");
    detail::raise_unless_success(cudaStreamWaitEvent(stream, slot.uploaded, 0), "cudaStreamWaitEvent");
    return lease;
  }

  std::size_t slot_count_;
  std::size_t slot_bytes_;
  std::unique_ptr<DeviceSlot[]> slots_;
  UploadStream upload_;
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
