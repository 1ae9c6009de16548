// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "radixmlp/cuda.cuh"

namespace radixmlp_test {

inline void check_cuda(cudaError_t error) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
  }
}

template <class F>
__global__ void for_each_kernel(std::int64_t n, F f) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < n) {
    f(i);
  }
}

// HostBackend's twin on a CUDA device, on a stream of its own.
class DeviceBackend {
 public:
  static bool present() {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
  }
  static constexpr bool on_device = true;

  template <class T>
  class Array {
   public:
    explicit Array(const std::vector<T>& values) : size_(values.size()) {
      check_cuda(cudaMalloc(&data_, size_ * sizeof(T) + 1));
      check_cuda(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~Array() { cudaFree(data_); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    T* data() { return static_cast<T*>(data_); }
    std::vector<T> download() const {
      std::vector<T> values(size_);
      check_cuda(cudaDeviceSynchronize());
      check_cuda(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
      return values;
    }

   private:
    void* data_ = nullptr;
    std::size_t size_;
  };

  // HostBackend::Sparse's twin; not initialised.
  template <class T>
  class Sparse {
   public:
    explicit Sparse(std::size_t size) { check_cuda(cudaMalloc(&data_, size * sizeof(T))); }
    ~Sparse() { cudaFree(data_); }
    Sparse(const Sparse&) = delete;
    Sparse& operator=(const Sparse&) = delete;
    T* data() { return static_cast<T*>(data_); }
    void write(std::int64_t at, const std::vector<T>& values) {
      check_cuda(cudaMemcpy(data() + at, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> read(std::int64_t at, std::int64_t count) {
      std::vector<T> values(static_cast<std::size_t>(count));
      check_cuda(cudaDeviceSynchronize());
      check_cuda(cudaMemcpy(values.data(), data() + at, values.size() * sizeof(T), cudaMemcpyDeviceToHost));
      return values;
    }

   private:
    void* data_ = nullptr;
  };

  class Index {
   public:
    explicit Index(const radixmlp::PrefixIndexView& view) : memory_(std::vector<std::byte>(view.block.size())) {
      view_ = radixmlp::copy_to_device(nullptr, view, {memory_.data(), view.block.size()});
      check_cuda(cudaDeviceSynchronize());
    }
    const radixmlp::PrefixIndexView& view() const { return view_; }

   private:
    Array<std::byte> memory_;
    radixmlp::PrefixIndexView view_;
  };

  DeviceBackend() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~DeviceBackend() { cudaStreamDestroy(stream_); }
  DeviceBackend(const DeviceBackend&) = delete;
  DeviceBackend& operator=(const DeviceBackend&) = delete;

  cudaStream_t where() const { return stream_; }

  template <class F>
  void for_each(std::int64_t n, const F& f) const {
    if (n > 0) {
      for_each_kernel<<<static_cast<unsigned>((n + 127) / 128), 128, 0, stream_>>>(n, f);
    }
  }
  void synchronize() const { check_cuda(cudaStreamSynchronize(stream_)); }

  class Graph {
   public:
    template <class F>
    Graph(const DeviceBackend& backend, const F& record) : stream_(backend.where()) {
      check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
      record();
      check_cuda(cudaStreamEndCapture(stream_, &graph_));
      check_cuda(cudaGraphInstantiate(&executable_, graph_, 0));
    }
    ~Graph() {
      cudaGraphExecDestroy(executable_);
      cudaGraphDestroy(graph_);
    }
    Graph(const Graph&) = delete;
    Graph& operator=(const Graph&) = delete;
    void launch() { check_cuda(cudaGraphLaunch(executable_, stream_)); }

   private:
    cudaStream_t stream_;
    cudaGraph_t graph_ = nullptr;
    cudaGraphExec_t executable_ = nullptr;
  };

  radixmlp::PrefixIndexView place(const radixmlp::PrefixIndexView& index, std::span<std::byte> memory) const {
    return radixmlp::copy_to_device(stream_, index, memory);
  }
  radixmlp::IndexCounts query(const radixmlp::PrefixIndexView& index) const {
    radixmlp::IndexCounts counts;
    radixmlp::query_counts(stream_, index, &counts);
    synchronize();
    return counts;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace radixmlp_test
