// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

// The few names of torch/extension.h that pytorch.cpp uses, for machines without PyTorch: what is compiled and run here
// is our side of the call.
#define TORCH_CHECK(condition, message) \
  if (!(condition))                     \
  throw std::runtime_error(message)

#define TORCH_EXTENSION_NAME radixmlp_index
#define PYBIND11_MODULE(name, module) [[maybe_unused]] static void register_module(torch::Module& module)

namespace torch {

struct Module {
  template <class F>
  void def(const char*, F*) {}
};

enum Dtype { kInt32, kInt64 };
struct Device {
  bool cpu = true;
  [[nodiscard]] bool is_cpu() const { return cpu; }
};

class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(std::vector<std::int32_t> values)
      : values_(std::make_shared<std::vector<std::int32_t>>(std::move(values))) {}
  template <class T>
  [[nodiscard]] T* data_ptr() const {
    return values_->data();
  }
  [[nodiscard]] std::int64_t numel() const { return static_cast<std::int64_t>(values_->size()); }
  [[nodiscard]] Dtype scalar_type() const { return kInt32; }
  [[nodiscard]] Device device() const { return {}; }
  [[nodiscard]] bool is_contiguous() const { return true; }

 private:
  std::shared_ptr<std::vector<std::int32_t>> values_;
};

inline Tensor empty(std::int64_t size, Dtype) {
  return Tensor(std::vector<std::int32_t>(static_cast<std::size_t>(size)));
}

}  // namespace torch
