// SPDX-License-Identifier: MIT

// What DeviceIndexPipeline may rely on is the order that events give it, and nothing else: streams run beside each
// other. So here the CUDA runtime is a double that does every call at once and keeps, in vector clocks, what has to
// have happened before it. Needs the toolkit's headers, no GPU and no library.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "radixmlp/pipeline/device_index_pipeline.cuh"
#include "support/catch.hpp"

namespace {

using Clock = std::map<const void*, int>;  // of each stream, how many of its operations are before

void join(Clock& clock, const Clock& other) {
  for (const auto& [stream, count] : other) {
    clock[stream] = std::max(clock[stream], count);
  }
}

struct Operation {
  const void* stream = nullptr;
  int number = 0;
  Clock before;
};

bool is_before(const Operation& a, const Clock& clock) {
  const auto found = clock.find(a.stream);
  return found != clock.end() && found->second >= a.number;
}

struct Upload : Operation {
  const void* to = nullptr;
  const void* from = nullptr;
};

struct Double {
  std::map<const void*, Clock> streams, events;
  Clock host;
  std::vector<Upload> uploads;

  Operation operate(const void* stream) {
    Clock& clock = streams[stream];
    join(clock, host);
    const int number = ++clock[stream];
    return {stream, number, clock};
  }
} cuda;

}  // namespace

// Handles are addresses of their own.
extern "C" {
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = static_cast<cudaStream_t>(std::malloc(1));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  std::free(stream);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = static_cast<cudaEvent_t>(std::malloc(1));
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  std::free(event);
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  cuda.events[event] = cuda.streams[stream];
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  join(cuda.host, cuda.events[event]);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  join(cuda.streams[stream], cuda.events[event]);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** memory, std::size_t bytes) { return cudaMalloc(memory, bytes); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  std::memcpy(to, from, bytes);
  cuda.uploads.push_back({cuda.operate(stream), to, from});
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t) { return "an error"; }
}

namespace {

using Pipeline = radixmlp::DeviceIndexPipeline<>;

// Work of the engine that reads an index, on any stream.
struct Read : Operation {
  std::size_t batch;
};

}  // namespace

TEST_CASE("uploads, the work that reads them and the host's builds are in order by events, and in no more than that") {
  constexpr std::size_t batches = 13;
  const std::vector<std::int32_t> tokens{7, 8, 9, 7, 8, 5}, cu_seqlens{0, 3, 6};
  const std::size_t bytes = radixmlp::index_bytes(6, 2);
  for (const std::int32_t slots : {1, 2, 3}) {
    CAPTURE(slots);
    cuda = {};
    int first_stream = 0, second_stream = 0;
    const cudaStream_t engine[] = {reinterpret_cast<cudaStream_t>(&first_stream),
                                   reinterpret_cast<cudaStream_t>(&second_stream)};
    std::vector<Read> reads;
    Pipeline pipeline({.slots = slots, .slot_bytes = bytes});
    std::size_t submitted = 0;
    std::vector<Pipeline::Lease> held;
    for (std::size_t batch = 0; batch < batches; ++batch) {
      while (submitted < batches && pipeline.try_submit({.tokens = tokens, .cu_seqlens = cu_seqlens})) {
        // From here on the batch may be built where that of `slots` before it lay.
        for (std::size_t earlier = 0; earlier + static_cast<std::size_t>(slots) <= submitted; ++earlier) {
          CHECK(is_before(cuda.uploads[earlier], cuda.host));
        }
        ++submitted;
      }
      const cudaStream_t stream = engine[batch % 2];
      held.push_back(batch % 3 == 0 ? pipeline.take(stream) : (pipeline.build_next(), pipeline.try_take(stream)));
      REQUIRE(held.back());
      REQUIRE(cuda.uploads.size() == batch + 1);
      CHECK(held.back().view().block.data() == cuda.uploads[batch].to);
      CHECK(held.back().host_view().block.data() == cuda.uploads[batch].from);
      CHECK(std::memcmp(cuda.uploads[batch].to, cuda.uploads[batch].from, held.back().view().block.size()) == 0);
      reads.push_back({cuda.operate(stream), batch});
      reads.push_back({cuda.operate(stream), batch});
      if (batch % 4 == 1) {  // on another stream too, which waits for the upload, and is waited for
        const cudaStream_t other = engine[(batch + 1) % 2];
        int event = 0;
        cudaStreamWaitEvent(other, held.back().uploaded(), 0);
        reads.push_back({cuda.operate(other), batch});
        cudaEventRecord(reinterpret_cast<cudaEvent_t>(&event), other);
        cudaStreamWaitEvent(stream, reinterpret_cast<cudaEvent_t>(&event), 0);
      }
      if (held.size() == static_cast<std::size_t>(slots)) {
        const std::uint64_t ending = held.front().number();
        held.erase(held.begin());
        for (const Read& read : reads) {  // the host has not waited for it
          CHECK((read.batch < ending || !is_before(read, cuda.host)));
        }
      }
    }
    bool beside = false;  // an upload runs beside the work on an earlier batch
    for (const Read& read : reads) {
      CAPTURE(read.batch);
      CHECK(is_before(cuda.uploads[read.batch], read.before));
      for (std::size_t later = read.batch + 1; later < batches; ++later) {
        const Upload& upload = cuda.uploads[later];
        if (upload.to == cuda.uploads[read.batch].to) {
          CHECK(is_before(read, upload.before));
        }
        beside = beside || !is_before(read, upload.before);
      }
    }
    CHECK(beside == (slots > 1));
    pipeline.stop();
  }
}
