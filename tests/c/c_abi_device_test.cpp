// SPDX-License-Identifier: MIT

// The calls of the C ABI on a stream write what those of the host write. No .cu: a C++ program that knows the CUDA
// runtime and this ABI.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "c/c_batch.hpp"
#include "radixmlp/rows/float_format.hpp"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/skip.hpp"

using namespace radixmlp_test;

namespace {

bool has_device() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
}

// Bytes on the host, and their copy on the device.
class Bytes {
 public:
  explicit Bytes(std::vector<std::uint8_t> values) : host(std::move(values)) {
    REQUIRE(cudaMalloc(&device_, host.size() + 1) == cudaSuccess);
    REQUIRE(cudaMemcpy(device_, host.data(), host.size(), cudaMemcpyHostToDevice) == cudaSuccess);
  }
  template <class T>
  static Bytes of(const T* values, std::size_t count) {
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(values);
    return Bytes(std::vector<std::uint8_t>(bytes, bytes + count * sizeof(T)));
  }
  ~Bytes() { cudaFree(device_); }
  Bytes(const Bytes&) = delete;
  Bytes& operator=(const Bytes&) = delete;

  [[nodiscard]] std::uint8_t* device() const { return static_cast<std::uint8_t*>(device_); }
  template <class T>
  [[nodiscard]] const T* device_as() const {
    return reinterpret_cast<const T*>(device_);
  }
  // Whether the device has by now what the host has.
  [[nodiscard]] bool same() const {
    std::vector<std::uint8_t> got(host.size());
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(got.data(), device_, got.size(), cudaMemcpyDeviceToHost) == cudaSuccess);
    return got == host;
  }

  std::vector<std::uint8_t> host;

 private:
  void* device_ = nullptr;
};

std::vector<std::uint8_t> random_bytes(std::size_t count, RandomBatches& random) {
  std::vector<std::uint8_t> bytes(count);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::uint8_t>(random.below(256)); });
  return bytes;
}

#define CHECK_OK(call)          \
  do {                          \
    radixmlp_status status;     \
    const auto code = call;     \
    CAPTURE(status.message);    \
    CHECK(code == RADIXMLP_OK); \
  } while (false)

struct Tensor {
  std::int64_t width, stride;
  Bytes ragged, compact, cache;
};

radixmlp_row_copy copy_of(std::uint8_t* source, std::int64_t source_rows, std::uint8_t* target,
                          std::int64_t target_rows, const Tensor& tensor) {
  return {{source, source_rows, tensor.width, tensor.stride}, {target, target_rows, tensor.width, tensor.stride}};
}

void check_rows(const radixmlp_index& host, const radixmlp_index& device, cudaStream_t stream, RandomBatches& random) {
  const std::int64_t cache_rows = host.ragged_rows + 3;
  const std::int64_t shapes[][2] = {{16, 16}, {96, 128}, {5, 7}};
  std::vector<std::unique_ptr<Tensor>> tensors;
  std::vector<radixmlp_row_copy> calls[2][3];  // host, device: gather, scatter, slots
  for (const auto& [width, stride] : shapes) {
    const auto bytes = [stride = stride](std::int64_t rows) { return static_cast<std::size_t>(rows * stride); };
    Tensor& t = *tensors.emplace_back(new Tensor{width, stride, Bytes(random_bytes(bytes(host.ragged_rows), random)),
                                                 Bytes(random_bytes(bytes(host.padded_rows), random)),
                                                 Bytes(random_bytes(bytes(cache_rows), random))});
    for (const int side : {0, 1}) {
      const auto at = [side](Bytes& b) { return side == 0 ? b.host.data() : b.device(); };
      calls[side][0].push_back(copy_of(at(t.ragged), host.ragged_rows, at(t.compact), host.padded_rows, t));
      calls[side][1].push_back(copy_of(at(t.compact), host.padded_rows, at(t.ragged), host.ragged_rows, t));
      calls[side][2].push_back(copy_of(at(t.compact), host.padded_rows, at(t.cache), cache_rows, t));
    }
  }
  CHECK_OK(radixmlp_gather_rows(&host, calls[0][0].data(), 3, nullptr, &status));
  CHECK_OK(radixmlp_cuda_gather_rows(stream, &device, calls[1][0].data(), 3, &status));
  CHECK_OK(radixmlp_scatter_rows(&host, calls[0][1].data(), 3, nullptr, &status));
  CHECK_OK(radixmlp_cuda_scatter_rows(stream, &device, calls[1][1].data(), 3, &status));

  // On the stream a slot beyond the cache is left out, which the host has as one below 0.
  std::vector<std::int64_t> slots, beyond;
  for (std::int64_t i = 0; i < host.ragged_rows; ++i) {
    const std::size_t kind = random.below(5);
    slots.push_back(kind < 2 ? -1 : host.ragged_rows - i);
    beyond.push_back(kind == 1 ? cache_rows + static_cast<std::int64_t>(random.below(9)) : slots.back());
  }
  const Bytes on_device = Bytes::of(beyond.data(), beyond.size());
  CHECK_OK(radixmlp_scatter_to_slots(&host, {slots.data(), host.ragged_rows, RADIXMLP_INT64}, calls[0][2].data(), 3,
                                     nullptr, &status));
  CHECK_OK(radixmlp_cuda_scatter_to_slots(stream, &device, {on_device.device(), host.ragged_rows, RADIXMLP_INT64},
                                          calls[1][2].data(), 3, &status));
  for (const auto& tensor : tensors) {
    CAPTURE(tensor->width);
    CHECK(tensor->compact.same());
    CHECK(tensor->ragged.same());
    CHECK(tensor->cache.same());
  }
}

void check_sums(const radixmlp_index& host, cudaStream_t stream, RandomBatches& random) {
  std::vector<std::int32_t> memory(static_cast<std::size_t>(host.ragged_rows + host.compact_rows + 1));
  radixmlp_row_lists lists{};
  CHECK_OK(radixmlp_duplicates(&host, memory.data(), static_cast<std::int64_t>(memory.size()), &lists, &status));
  const Bytes lists_memory = Bytes::of(memory.data(), memory.size());
  radixmlp_row_lists on_device = lists;
  on_device.offsets = lists_memory.device_as<std::int32_t>();
  on_device.values = on_device.offsets + (lists.values - lists.offsets);
  std::int64_t workspace_bytes = 0;
  const std::int64_t elements = 9;
  CHECK_OK(radixmlp_sum_workspace_bytes(lists.value_count, host.sequences, elements, &workspace_bytes, &status));
  CHECK((workspace_bytes > 0) == (host.sequences > 64));
  const Bytes workspace(std::vector<std::uint8_t>(static_cast<std::size_t>(workspace_bytes)));
  float* const floats = workspace_bytes == 0 ? nullptr : reinterpret_cast<float*>(workspace.device());
  for (const std::int32_t format : {RADIXMLP_FP32, RADIXMLP_FP16, RADIXMLP_BF16}) {
    const std::int64_t element = format == RADIXMLP_FP32 ? 4 : 2;
    std::vector<std::uint8_t> values;
    for (std::int64_t i = 0; i < host.ragged_rows * elements; ++i) {
      const float number = static_cast<float>(random.below(900)) / 32 - 14;
      const std::uint16_t half =
          format == RADIXMLP_FP16 ? radixmlp::detail::float_to_fp16(number) : radixmlp::detail::float_to_bf16(number);
      const auto* const bytes =
          element == 4 ? reinterpret_cast<const std::uint8_t*>(&number) : reinterpret_cast<const std::uint8_t*>(&half);
      values.insert(values.end(), bytes, bytes + element);
    }
    Bytes ragged(values);
    Bytes compact(random_bytes(static_cast<std::size_t>(host.compact_rows * elements * element), random));
    const std::int64_t width = elements * element;
    const radixmlp_row_copy of_host{{ragged.host.data(), host.ragged_rows, width, width},
                                    {compact.host.data(), host.compact_rows, width, width}};
    const radixmlp_row_copy of_device{{ragged.device(), host.ragged_rows, width, width},
                                      {compact.device(), host.compact_rows, width, width}};
    CHECK_OK(radixmlp_sum_duplicates(&lists, format, &of_host, nullptr, &status));
    CHECK_OK(radixmlp_cuda_sum_duplicates(stream, &on_device, format, &of_device, floats, workspace_bytes,
                                          host.sequences, &status));
    CHECK(compact.same());
    radixmlp_status status;
    if (workspace_bytes > 0) {
      CHECK(radixmlp_cuda_sum_duplicates(stream, &on_device, format, &of_device, floats, workspace_bytes - 1,
                                         host.sequences, &status) == RADIXMLP_INVALID_ROWS);
      CHECK(std::string(status.argument) == "workspace");
    }
    CHECK(radixmlp_cuda_sum_duplicates(stream, &on_device, 7, &of_device, floats, workspace_bytes, 0, &status) ==
          RADIXMLP_INVALID_ARGUMENT);
    CHECK(radixmlp_cuda_sum_duplicates(stream, &on_device, format, &of_device, floats, -4, 0, &status) ==
          RADIXMLP_INVALID_ARGUMENT);
    CHECK(radixmlp_cuda_sum_duplicates(stream, &on_device, format, &of_device, floats, workspace_bytes, -1, &status) ==
          RADIXMLP_INVALID_ARGUMENT);
  }
}

}  // namespace

TEST_CASE("on a stream, rows move and sum as on the host") {
  if (skip_without(has_device(), "GPU")) {
    return;
  }
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  radixmlp_trie* trie = nullptr;
  CHECK_OK(radixmlp_trie_create(&trie, &status));
  RandomBatches random(84);
  std::vector<std::vector<std::int32_t>> copies(70, {1, 2, 3});  // lists longer than 64
  for (int round = 0; round < 4; ++round) {
    BatchSpec spec = round == 0 ? spec_of(copies) : random.next();
    const TypedBatch<std::int32_t, std::int32_t, radixmlp::Key128> typed(spec);
    const radixmlp_batch batch = to_c(typed.batch());
    auto options = sized<radixmlp_build_options>();
    options.pad_to = 8;
    auto host = sized<radixmlp_index>();
    CHECK_OK(radixmlp_build(trie, &batch, &options, &host, &status));

    Bytes memory(std::vector<std::uint8_t>(static_cast<std::size_t>(host.block_bytes)));
    auto device = sized<radixmlp_index>();
    CHECK_OK(radixmlp_cuda_copy_index(stream, &host, memory.device(), host.block_bytes, &device, &status));
    CHECK(device.block == memory.device());
    CHECK(device.compact_rows == host.compact_rows);
    CHECK(reinterpret_cast<const std::uint8_t*>(device.last_rows) - memory.device() ==
          reinterpret_cast<const std::byte*>(host.last_rows) - static_cast<const std::byte*>(host.block));
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    check_rows(host, device, stream, random);
    check_sums(host, stream, random);

    // Refused before anything is enqueued.
    radixmlp_status status;
    const auto copy_to = [&](void* to, std::int64_t bytes) {
      return radixmlp_cuda_copy_index(stream, &host, to, bytes, &device, &status);
    };
    CHECK(copy_to(memory.device(), host.block_bytes - 1) == RADIXMLP_INVALID_BATCH);
    CHECK(status.value == host.block_bytes - 1);
    CHECK(copy_to(memory.device() + 4, host.block_bytes) == RADIXMLP_INVALID_BATCH);
    CHECK(copy_to(nullptr, host.block_bytes) == RADIXMLP_INVALID_ARGUMENT);
    CHECK(radixmlp_cuda_gather_rows(stream, nullptr, nullptr, 0, &status) == RADIXMLP_INVALID_ARGUMENT);
    CHECK(radixmlp_cuda_scatter_rows(stream, &device, nullptr, 9, &status) == RADIXMLP_INVALID_ARGUMENT);
    CHECK(radixmlp_cuda_scatter_to_slots(stream, &device, {nullptr, 5, 1}, nullptr, 0, &status) ==
          RADIXMLP_INVALID_ARGUMENT);
    const radixmlp_row_copy too_short{{memory.device(), host.ragged_rows - 1, 4, 4}, {nullptr, 1 << 20, 4, 4}};
    CHECK(radixmlp_cuda_gather_rows(stream, &device, &too_short, 1, &status) == RADIXMLP_INVALID_ROWS);
    CHECK(std::string(status.argument) == "source.rows");
  }
  radixmlp_trie_destroy(trie);
  cudaStreamDestroy(stream);
}
