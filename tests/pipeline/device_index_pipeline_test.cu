// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "radixmlp/pipeline/device_index_pipeline.cuh"
#include "support/batch_spec.hpp"
#include "support/catch.hpp"
#include "support/device_backend.cuh"
#include "support/skip.hpp"

using namespace radixmlp_test;
using radixmlp::DeviceIndexPipeline;
using radixmlp::PrefixIndexView;
using radixmlp::RaggedBatch;

namespace {

using Typed = TypedBatch<std::int32_t, std::int32_t, radixmlp::Key128>;

class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// In which field the maps on the device differ from the oracle, as work on the stream sees them.
std::string device_difference(cudaStream_t stream, const PrefixIndexView& view, const BatchSpec& spec) {
  std::vector<std::byte> block(view.block.size());
  check_cuda(cudaMemcpyAsync(block.data(), view.block.data(), block.size(), cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaStreamSynchronize(stream));
  return difference(view.relocated(block.data()), oracle(spec), spec);
}

RaggedBatch<std::int32_t> small_batch() {
  static const std::vector<std::int32_t> tokens{7, 8, 9, 7, 8, 5}, cu_seqlens{0, 3, 6};
  return {.tokens = tokens, .cu_seqlens = cu_seqlens};
}
BatchSpec small_spec() { return spec_of({{7, 8, 9}, {7, 8, 5}}); }

}  // namespace

TEST_CASE("indices are on the device, in order, when the stream comes to use them") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  std::vector<BatchSpec> specs;
  std::vector<std::unique_ptr<Typed>> batches;
  RandomBatches random(8);
  std::size_t bytes = 0;
  for (int i = 0; i < 40; ++i) {
    const BatchSpec& spec = specs.emplace_back(random.next());
    batches.push_back(std::make_unique<Typed>(spec, AxisOrder::axis_major));
    bytes =
        std::max(bytes, radixmlp::index_bytes(spec.rows(), static_cast<std::int64_t>(spec.sequences()), spec.pad_to));
  }
  const Stream stream;
  for (const std::int32_t slots : {1, 3}) {
    for (const std::int32_t workers : {0, 1}) {
      CAPTURE(slots, workers);
      DeviceIndexPipeline<> pipeline({.slots = slots, .workers = workers, .slot_bytes = bytes});
      std::size_t submitted = 0;
      std::string wrong;
      for (std::size_t taken = 0; taken < specs.size(); ++taken) {
        while (submitted < specs.size() &&
               pipeline.try_submit(batches[submitted]->batch(), {.pad_to = specs[submitted].pad_to})) {
          ++submitted;
        }
        const auto lease = pipeline.take(stream);
        REQUIRE(lease);
        wrong += device_difference(stream, lease.view(), specs[taken]);
        wrong += difference(lease.host_view(), oracle(specs[taken]), specs[taken]);
        wrong += lease.number() == taken ? "" : "number";
        wrong += lease.batch().cu_seqlens.data() == batches[taken]->batch().cu_seqlens.data() ? "" : "batch";
        check_cuda(cudaEventQuery(lease.uploaded()));  // the stream has waited for it
      }
      CHECK(wrong == "");
      pipeline.close();
      CHECK_FALSE(pipeline.take(stream));
    }
  }
}

TEST_CASE("an index stays on the device while it is leased, and errors come in their place") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  const std::vector<std::int32_t> tokens(1000, 1), cu_seqlens{0, 1000};
  const RaggedBatch<std::int32_t> large{.tokens = tokens, .cu_seqlens = cu_seqlens};
  RaggedBatch<std::int32_t> malformed = small_batch();
  malformed.tokens = malformed.tokens.first(5);
  const Stream stream, other;
  DeviceIndexPipeline<> pipeline({.slots = 4, .slot_bytes = radixmlp::index_bytes(6, 2)});
  CHECK_FALSE(pipeline.try_take(stream));
  REQUIRE(pipeline.submit(small_batch()));
  REQUIRE(pipeline.submit(malformed));
  REQUIRE(pipeline.submit(large));
  REQUIRE(pipeline.submit(small_batch()));
  auto first = pipeline.take(stream);
  {
    const auto second = pipeline.take(stream);
    CHECK_THROWS_WITH(second.view(), "radixmlp: cu_seqlens[2] = 6: must be the number of rows, 5");
    const auto third = pipeline.take(stream);
    CHECK(third.host_view().compact_rows == 1000);
    CHECK_THROWS_WITH(third.view(), Catch::Contains("the bytes of its index must not exceed slot_bytes, " +
                                                    std::to_string(radixmlp::index_bytes(6, 2))));
  }
  CHECK(pipeline.build_next());
  auto last = pipeline.try_take(other);
  check_cuda(cudaStreamWaitEvent(stream, last.uploaded(), 0));
  CHECK(device_difference(stream, last.view(), small_spec()) == "");
  CHECK(device_difference(stream, first.view(), small_spec()) == "");
  CHECK(first.view().block.data() != last.view().block.data());
  CHECK_FALSE(pipeline.try_submit(small_batch()));
  DeviceIndexPipeline<>::Lease moved(std::move(first));
  first.release();
  CHECK_FALSE(pipeline.try_submit(small_batch()));
  last = std::move(moved);  // releases the last
  last.release();
  CHECK(pipeline.try_submit(small_batch()));
  CHECK(pipeline.try_submit(small_batch()));
  CHECK(pipeline.try_submit(small_batch()));
  CHECK(pipeline.try_submit(small_batch()));
  CHECK_FALSE(pipeline.try_submit(small_batch()));
  pipeline.stop();
  CHECK_FALSE(pipeline.take(stream));
}

TEST_CASE("a device pipeline needs to know its slots' size") {
  if (skip_without(DeviceBackend::present(), "a GPU"))
    return;
  CHECK_THROWS_WITH(DeviceIndexPipeline<>({.slots = 2}), "radixmlp: slot_bytes = 0: must be at least 1");
}
