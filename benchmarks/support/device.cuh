// SPDX-License-Identifier: MIT
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/report.hpp"

namespace radixmlp_bench {

inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) {
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
  }
}

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t size) : size_(size) { check(cudaMalloc(&data_, bytes()), "cudaMalloc"); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) {
    check(cudaMemcpy(data_, values.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  DeviceArray(DeviceArray&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  DeviceArray& operator=(DeviceArray&&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  [[nodiscard]] T* data() const { return data_; }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] std::size_t bytes() const { return size_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

// False, with the reason printed, where nothing can be measured.
inline bool find_device(const Options& options, cudaDeviceProp& device) {
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess || devices == 0) {
    std::printf("skipped: no GPU (%s)\n", error == cudaSuccess ? "no device" : cudaGetErrorString(error));
    return false;
  }
  check(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  if (!options.check_only && std::string_view(device.name).starts_with("Emulated")) {
    std::printf("skipped: %s has no times; --check-only works\n", device.name);
    return false;
  }
  return true;
}

inline Report::Facts describe_device(int argc, char** argv, const cudaDeviceProp& device) {
  const auto version = [](int number) {
    return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
  };
  int driver = 0;
  int runtime = 0;
  check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  Report::Facts facts = describe_run(argc, argv);
  facts.push_back({"GPU", device.name});
  facts.push_back({"CUDA", "driver for " + version(driver) + ", runtime " + version(runtime)});
  return facts;
}

}  // namespace radixmlp_bench
