// SPDX-License-Identifier: MIT
#include "radixmlp/pipeline/index_pipeline.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/batch_spec.hpp"
#include "support/catch.hpp"

using namespace radixmlp_test;
using radixmlp::HostIndexAllocator;
using radixmlp::IndexPipeline;
using radixmlp::PipelineOptions;
using radixmlp::PrefixIndexView;
using radixmlp::RaggedBatch;
using radixmlp::StatusCode;

namespace {

using Pipeline = IndexPipeline<>;
constexpr auto a_moment = std::chrono::milliseconds(20);  // in which a thread that does not wait would have gone on

// Holds every build that runs on it until it is opened.
class Gate {
 public:
  template <class F>
  void parallel_for(std::int64_t n, F&& f) const {
    ++entered_;
    entered_.notify_all();
    open_.wait(false);
    radixmlp::serial.parallel_for(n, f);
  }
  void wait_until_entered() const { entered_.wait(0); }
  void open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  mutable std::atomic<int> entered_ = 0;
  std::atomic<bool> open_ = false;
};

// Counts what is out, and has nothing left when `until_failure` allocations have been made.
struct Ledger {
  std::atomic<std::int64_t> allocations = 0, bytes_out = 0;
  std::int64_t until_failure = -1;
};
struct CountingAllocator {
  Ledger* ledger;
  void* allocate(std::size_t bytes) noexcept {
    if (ledger->until_failure >= 0 && ledger->allocations >= ledger->until_failure) {
      return nullptr;
    }
    ++ledger->allocations;
    ledger->bytes_out += static_cast<std::int64_t>(bytes);
    return HostIndexAllocator{}.allocate(bytes);
  }
  void deallocate(void* memory, std::size_t bytes) noexcept {
    ledger->bytes_out -= static_cast<std::int64_t>(bytes);
    HostIndexAllocator{}.deallocate(memory, bytes);
  }
};

// A batch with what must come out for it.
struct Case {
  BatchSpec spec;
  TypedBatch<std::int32_t, std::int32_t, radixmlp::Key128> typed;
  RaggedBatch<std::int32_t> batch;
  OracleIndex expected;
  std::string error;  // of a malformed one

  explicit Case(BatchSpec from)
      : spec(std::move(from)), typed(spec, AxisOrder::axis_major), batch(typed.batch()), expected(oracle(spec)) {}

  void malform() {
    if (spec.pad_to == 1) {
      spec.pad_to = 0;
      error = "radixmlp: pad_to = 0: must be at least 1";
    } else {
      batch.cu_seqlens = {};
      error = "radixmlp: cu_seqlens = 0: its size must be the number of sequences plus one, at least 1";
    }
  }

  // What is wrong with the lease; empty if nothing is.
  template <class Lease>
  std::string check(const Lease& lease) const {
    if (lease.batch().tokens.data() != batch.tokens.data() ||
        lease.batch().cu_seqlens.data() != batch.cu_seqlens.data())
      return "another batch";
    if (!error.empty())
      return lease.status().message() == error ? "" : "another status: " + lease.status().message();
    return lease.status().ok() ? difference(lease.view(), expected, spec) : lease.status().message();
  }
};

std::vector<std::unique_ptr<Case>> random_cases(int count) {
  std::vector<std::unique_ptr<Case>> cases;
  RandomBatches random(6);
  for (int i = 0; i < count; ++i) {
    cases.push_back(std::make_unique<Case>(random.next()));
    if (random.below(8) == 0) {
      cases.back()->malform();
    }
  }
  return cases;
}

RaggedBatch<std::int32_t> small_batch() {
  static const std::vector<std::int32_t> tokens{7, 8, 9, 7, 8, 5}, cu_seqlens{0, 3, 6};
  return {.tokens = tokens, .cu_seqlens = cu_seqlens};
}

double cpu_seconds() {
  std::timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

TEST_CASE("every batch comes out in order, equal to the oracle, whoever builds") {
  const auto cases = random_cases(250);
  Ledger ledger;
  for (const std::int32_t slots : {1, 2, 3, 5}) {
    for (const std::int32_t workers : {0, 1, 3}) {
      for (const int engine_builders : {0, 2}) {
        CAPTURE(slots, workers, engine_builders);
        IndexPipeline<std::int32_t, CountingAllocator> pipeline({.slots = slots, .workers = workers}, {&ledger});
        std::thread producer([&] {
          for (const auto& c : cases) {
            static_cast<void>(pipeline.submit(c->batch, {.pad_to = c->spec.pad_to}));
          }
          pipeline.close();
        });
        std::vector<std::thread> builders;
        for (int b = 0; b < engine_builders; ++b) {
          builders.emplace_back([&] {
            while (!pipeline.closed()) {
              pipeline.build_next();
              std::this_thread::yield();
            }
          });
        }
        std::size_t taken = 0;
        std::string wrong;
        while (auto lease = pipeline.take()) {
          if (lease.number() != taken) {
            wrong += "number ";
          }
          wrong += cases.at(taken)->check(lease);
          ++taken;
        }
        CHECK(wrong == "");
        CHECK(taken == cases.size());
        producer.join();
        for (std::thread& builder : builders) {
          builder.join();
        }
      }
    }
  }
  CHECK(ledger.bytes_out == 0);
}

TEST_CASE("a loop of one thread polls: nothing waits and nothing builds unless told to") {
  const auto cases = random_cases(100);
  Pipeline pipeline({.slots = 3});
  CHECK_FALSE(pipeline.build_next());
  CHECK_FALSE(pipeline.try_take());
  std::size_t submitted = 0, taken = 0;
  for (; taken < cases.size(); ++taken) {
    while (submitted < cases.size() &&
           pipeline.try_submit(cases[submitted]->batch, {.pad_to = cases[submitted]->spec.pad_to})) {
      ++submitted;
    }
    CHECK(submitted == std::min(taken + 3, cases.size()));
    if (taken == 0) {
      CHECK_FALSE(pipeline.try_take());
    }
    if (taken % 2 == 0) {
      CHECK(pipeline.build_next());
    }
    const auto lease = pipeline.take();  // builds what was not
    REQUIRE(lease);
    CHECK(cases[taken]->check(lease) == "");
    CHECK(lease.number() == taken);
  }
  CHECK_FALSE(pipeline.build_next());
}

TEST_CASE("a malformed batch raises where it is taken, and no other does") {
  const RaggedBatch<std::int32_t> good = small_batch();
  RaggedBatch<std::int32_t> bad = good;
  bad.tokens = good.tokens.first(5);
  Pipeline pipeline({.slots = 3, .workers = 1});
  REQUIRE(pipeline.submit(good));
  REQUIRE(pipeline.submit(bad));
  REQUIRE(pipeline.submit(good));
  auto first = pipeline.take();
  auto second = pipeline.take();
  auto third = pipeline.take();
  CHECK(first.view().compact_rows == 4);
  CHECK(second.status().code == StatusCode::invalid_batch);
  CHECK_THROWS_AS(second.view(), radixmlp::InvalidBatch);
  CHECK_THROWS_WITH(second.view(), "radixmlp: cu_seqlens[2] = 6: must be the number of rows, 5");
  CHECK(third.view().compact_rows == 4);
  first.release();
  second.release();
  third.release();
  for (int i = 0; i < 3; ++i) {  // an error does not stay in its slot
    REQUIRE(pipeline.submit(good));
    CHECK(pipeline.take().view().compact_rows == 4);
  }
}

TEST_CASE("a slot is in use until its lease is released, and its index stays as it is") {
  const auto cases = random_cases(1);
  Pipeline pipeline({.slots = 2});
  REQUIRE(pipeline.try_submit(small_batch()));
  REQUIRE(pipeline.try_submit(cases[0]->batch));
  CHECK_FALSE(pipeline.try_submit(small_batch()));
  auto first = pipeline.take();
  CHECK(to_vector(first.view().scatter) == std::vector<std::int32_t>{0, 1, 2, 0, 1, 3});
  CHECK_FALSE(pipeline.try_submit(small_batch()));  // taken, not released

  Pipeline::Lease moved;
  moved = std::move(first);
  CHECK_FALSE(first);
  Pipeline::Lease last(std::move(moved));
  CHECK_FALSE(moved);
  first.release();
  CHECK_FALSE(pipeline.try_submit(small_batch()));  // what was moved from releases nothing
  { const auto second = pipeline.take(); }
  CHECK_FALSE(pipeline.try_submit(small_batch()));  // slots are used in turn
  CHECK(to_vector(last.view().scatter) == std::vector<std::int32_t>{0, 1, 2, 0, 1, 3});
  last.release();
  last.release();  // once is enough
  CHECK(pipeline.try_submit(small_batch()));
  CHECK(pipeline.try_submit(small_batch()));
  CHECK_FALSE(pipeline.try_submit(small_batch()));
  last = pipeline.take();
  last = pipeline.take();  // the assignment releases the one before
  CHECK(last.number() == 3);
  CHECK(pipeline.try_submit(small_batch()));
}

TEST_CASE("a full pipeline holds the producer until a lease is released") {
  Pipeline pipeline({.slots = 2, .workers = 1});
  REQUIRE(pipeline.submit(small_batch()));
  REQUIRE(pipeline.submit(small_batch()));
  std::future<bool> third = std::async(std::launch::async, [&] { return pipeline.submit(small_batch()); });
  auto lease = pipeline.take();
  CHECK(third.wait_for(a_moment) == std::future_status::timeout);
  lease.release();
  CHECK(third.get());
}

TEST_CASE("stop while full, the consumer gone: the producer is let go, and nothing is delivered") {
  for (const std::int32_t workers : {0, 1}) {
    Pipeline pipeline({.slots = 2, .workers = workers});
    REQUIRE(pipeline.submit(small_batch()));
    REQUIRE(pipeline.submit(small_batch()));
    std::future<bool> third = std::async(std::launch::async, [&] { return pipeline.submit(small_batch()); });
    CHECK(third.wait_for(a_moment) == std::future_status::timeout);
    pipeline.stop();
    CHECK_FALSE(third.get());
    CHECK(pipeline.closed());
    CHECK_FALSE(pipeline.try_take());
    CHECK_FALSE(pipeline.take());
    CHECK_FALSE(pipeline.build_next());
    CHECK_FALSE(pipeline.try_submit(small_batch()));
    pipeline.stop();
  }
}

TEST_CASE("stop while the only slot is leased: the lease keeps its memory, though a larger batch waits for it") {
  const std::vector<std::int32_t> tokens(100'000, 1), cu_seqlens{0, 100'000};
  Pipeline pipeline({.slots = 1});
  REQUIRE(pipeline.submit(small_batch()));
  const auto lease = pipeline.take();
  std::future<bool> larger =
      std::async(std::launch::async, [&] { return pipeline.submit({.tokens = tokens, .cu_seqlens = cu_seqlens}); });
  CHECK(larger.wait_for(a_moment) == std::future_status::timeout);
  pipeline.stop();
  CHECK_FALSE(larger.get());
  CHECK(to_vector(lease.view().scatter) == std::vector<std::int32_t>{0, 1, 2, 0, 1, 3});
}

TEST_CASE("the producer gone: what was submitted comes out, then an empty lease") {
  for (const std::int32_t workers : {0, 1}) {
    Pipeline pipeline({.slots = 3, .workers = workers});
    REQUIRE(pipeline.submit(small_batch()));
    REQUIRE(pipeline.submit(small_batch()));
    pipeline.close();
    CHECK_FALSE(pipeline.submit(small_batch()));
    CHECK(pipeline.take().view().compact_rows == 4);
    CHECK(pipeline.take().view().compact_rows == 4);
    CHECK_FALSE(pipeline.take());
    CHECK_FALSE(pipeline.try_take());
  }
}

TEST_CASE("a consumer that waits is woken by a batch, by close and by stop") {
  for (const std::int32_t workers : {0, 1}) {
    for (const bool stops : {false, true}) {
      Pipeline pipeline({.slots = 2, .workers = workers});
      std::future<int> taken = std::async(std::launch::async, [&] {
        int count = 0;
        while (const auto lease = pipeline.take()) {
          ++count;
        }
        return count;
      });
      CHECK(taken.wait_for(a_moment) == std::future_status::timeout);
      REQUIRE(pipeline.submit(small_batch()));
      REQUIRE(pipeline.submit(small_batch()));
      REQUIRE(pipeline.submit(small_batch()));  // the first has been taken and released
      CHECK(taken.wait_for(a_moment) == std::future_status::timeout);
      stops ? pipeline.stop() : pipeline.close();
      CHECK(taken.get() == 3);
    }
  }
}

TEST_CASE("a build that is under way is waited for, not done twice, and not overtaken") {
  Gate gate;
  Pipeline pipeline({.slots = 3});
  REQUIRE(pipeline.submit(small_batch()));
  REQUIRE(pipeline.submit(small_batch(), {.pad_to = 8}));
  std::future<bool> built = std::async(std::launch::async, [&] { return pipeline.build_next(gate); });
  gate.wait_until_entered();
  CHECK(pipeline.build_next());  // the second, to its end
  CHECK_FALSE(pipeline.build_next());
  CHECK_FALSE(pipeline.try_take());
  std::future<std::int32_t> padded = std::async(std::launch::async, [&] { return pipeline.take().view().padded_rows; });
  CHECK(padded.wait_for(a_moment) == std::future_status::timeout);
  gate.open();
  CHECK(built.get());
  CHECK(padded.get() == 4);
  CHECK(pipeline.take().view().padded_rows == 8);
}

TEST_CASE("builders that are at work together do not share a trie, in whatever order they begin and end") {
  const auto cases = random_cases(120);
  Pipeline pipeline({.slots = 4});
  for (std::size_t first = 0; first < cases.size(); first += 4) {
    for (std::size_t c = first; c < first + 4; ++c) {
      REQUIRE(pipeline.submit(cases[c]->batch, {.pad_to = cases[c]->spec.pad_to}));
    }
    Gate gates[2];
    std::future<bool> built[2];
    for (const std::size_t b : {std::size_t{0}, std::size_t{1}}) {
      built[b] = std::async(std::launch::async, [&, b] { return pipeline.build_next(gates[b]); });
      if (cases[first + b]->error.empty()) {
        gates[b].wait_until_entered();
      } else {  // it enters no gate
        built[b].wait();
      }
    }
    CHECK(pipeline.build_next());
    const std::size_t ends_first = first / 4 % 2;
    for (const std::size_t b : {ends_first, 1 - ends_first}) {
      gates[b].open();
      CHECK(built[b].get());
      CHECK(pipeline.build_next() == (b == ends_first));  // beside the other one
    }
    for (std::size_t c = first; c < first + 4; ++c) {
      const auto lease = pipeline.try_take();
      REQUIRE(lease);
      CHECK(cases[c]->check(lease) == "");
    }
  }
}

TEST_CASE("a pipeline's thread builds all that is queued, without anyone in take") {
  const auto cases = random_cases(64);
  Pipeline pipeline({.slots = 16, .workers = 1});
  for (std::size_t taken = 0, submitted = 0; taken < cases.size(); ++taken) {
    while (submitted < cases.size() &&
           pipeline.try_submit(cases[submitted]->batch, {.pad_to = cases[submitted]->spec.pad_to})) {
      ++submitted;
    }
    auto lease = pipeline.try_take();
    for (; !lease; lease = pipeline.try_take()) {
      std::this_thread::yield();
    }
    CHECK(cases[taken]->check(lease) == "");
  }
}

TEST_CASE("stop returns when no build reads a batch any more") {
  Gate gate;
  Pipeline pipeline;
  REQUIRE(pipeline.submit(small_batch()));
  std::future<bool> built = std::async(std::launch::async, [&] { return pipeline.build_next(gate); });
  gate.wait_until_entered();
  std::future<bool> taken = std::async(std::launch::async, [&] { return bool(pipeline.take()); });
  CHECK(taken.wait_for(a_moment) == std::future_status::timeout);
  std::future<void> stopped = std::async(std::launch::async, [&] { pipeline.stop(); });
  CHECK(stopped.wait_for(a_moment) == std::future_status::timeout);
  CHECK_FALSE(taken.get());  // it needs no build to know
  gate.open();
  stopped.get();
  CHECK(built.get());
}

TEST_CASE("take spreads its build over the executor that it is given") {
  Gate gate;
  gate.open();
  Pipeline pipeline;
  REQUIRE(pipeline.submit(small_batch()));
  CHECK(pipeline.take(gate).view().compact_rows == 4);
  gate.wait_until_entered();  // else hangs
}

TEST_CASE("where memory runs out the batch's lease says so, and the next batch is built") {
  const std::vector<std::int32_t> tokens(1000, 1), cu_seqlens{0, 1000};
  const RaggedBatch<std::int32_t> large{.tokens = tokens, .cu_seqlens = cu_seqlens};
  Ledger ledger;
  {
    IndexPipeline<std::int32_t, CountingAllocator> pipeline({.slots = 2}, {&ledger});
    REQUIRE(pipeline.submit(small_batch()));
    ledger.until_failure = ledger.allocations;
    REQUIRE(pipeline.submit(large));
    CHECK(pipeline.take().view().compact_rows == 4);
    {
      const auto lease = pipeline.take();
      CHECK(lease.status().code == StatusCode::out_of_memory);
      CHECK(lease.status().value == static_cast<std::int64_t>(radixmlp::index_bytes(1000, 1)));
      CHECK_THROWS_AS(lease.view(), radixmlp::Error);
    }
    REQUIRE(pipeline.submit(small_batch()));  // in the first slot, which has memory
    CHECK(pipeline.take().view().compact_rows == 4);
    ledger.until_failure = -1;
    REQUIRE(pipeline.submit(large));  // in the second, which has memory again
    CHECK(pipeline.take().view().compact_rows == 1000);
  }
  CHECK(ledger.bytes_out == 0);
}

TEST_CASE("closed while submit takes memory: the batch is not taken in") {
  struct SlowAllocator {
    const Gate* gate;
    void* allocate(std::size_t bytes) noexcept {
      gate->parallel_for(0, [](std::int64_t) {});
      return HostIndexAllocator{}.allocate(bytes);
    }
    void deallocate(void* memory, std::size_t bytes) noexcept { HostIndexAllocator{}.deallocate(memory, bytes); }
  };
  Gate gate;
  IndexPipeline<std::int32_t, SlowAllocator> pipeline({}, {&gate});
  std::future<bool> submitted = std::async(std::launch::async, [&] { return pipeline.submit(small_batch()); });
  gate.wait_until_entered();
  pipeline.close();
  CHECK_FALSE(pipeline.take());
  gate.open();
  CHECK_FALSE(submitted.get());
  CHECK_FALSE(pipeline.take());
}

TEST_CASE("a malformed batch takes no memory") {
  const std::vector<std::int32_t> tokens(1000), cu_seqlens{0, 999};
  Ledger ledger;
  IndexPipeline<std::int32_t, CountingAllocator> pipeline({}, {&ledger});
  REQUIRE(pipeline.submit({.tokens = tokens, .cu_seqlens = cu_seqlens}));
  CHECK(pipeline.take().status().code == StatusCode::invalid_batch);
  CHECK(ledger.allocations == 0);
}

TEST_CASE("slot_bytes is taken at the start, for every slot, or the constructor raises and leaks nothing") {
  Ledger ledger;
  const PipelineOptions options{.slots = 3, .workers = 1, .slot_bytes = radixmlp::index_bytes(6, 2)};
  {
    IndexPipeline<std::int32_t, CountingAllocator> pipeline(options, {&ledger});
    CHECK(ledger.allocations == 3);
    for (int i = 0; i < 6; ++i) {
      REQUIRE(pipeline.submit(small_batch()));
      CHECK(pipeline.take().view().block.size() <= options.slot_bytes);
    }
    CHECK(ledger.allocations == 3);
  }
  CHECK(ledger.bytes_out == 0);
  ledger.until_failure = 5;
  CHECK_THROWS_WITH((IndexPipeline<std::int32_t, CountingAllocator>(options, {&ledger})),
                    Catch::Contains("not enough memory for the index"));
  CHECK(ledger.bytes_out == 0);
}

TEST_CASE("options that make no pipeline are refused by name") {
  CHECK_THROWS_WITH(Pipeline({.slots = 0}), "radixmlp: slots = 0: must be at least 1");
  CHECK_THROWS_WITH(Pipeline({.workers = -1}), "radixmlp: workers = -1: must not be negative");
}

TEST_CASE("destroyed with work in flight, at any moment") {
  const auto cases = random_cases(40);
  std::mt19937_64 random(3);
  Ledger ledger;
  for (int round = 0; round < 60; ++round) {
    IndexPipeline<std::int32_t, CountingAllocator> pipeline(
        {.slots = static_cast<std::int32_t>(1 + random() % 4), .workers = static_cast<std::int32_t>(random() % 3)},
        {&ledger});
    const std::size_t takes = random() % cases.size();
    std::thread producer([&] {
      for (const auto& c : cases) {
        if (!pipeline.submit(c->batch, {.pad_to = c->spec.pad_to})) {
          return;
        }
      }
    });
    std::thread consumer([&] {
      for (std::size_t i = 0; i < takes && pipeline.take(); ++i) {
      }
    });
    if (random() % 2 == 0) {
      consumer.join();
      pipeline.stop();
      producer.join();
    } else {
      pipeline.stop();
      producer.join();
      consumer.join();
    }
  }
  CHECK(ledger.bytes_out == 0);
  for (const std::int32_t workers : {0, 1}) {  // nobody calls stop
    Pipeline pipeline({.slots = 3, .workers = workers});
    REQUIRE(pipeline.submit(small_batch()));
    REQUIRE(pipeline.submit(small_batch()));
  }
}

TEST_CASE("who waits sleeps") {
  Pipeline full({.slots = 1, .workers = 1}), empty({.workers = 2});
  REQUIRE(full.submit(small_batch()));
  std::thread producer([&] { static_cast<void>(full.submit(small_batch())); });
  std::thread consumer([&] { static_cast<void>(empty.take()); });
  std::this_thread::sleep_for(a_moment);
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(cpu_seconds() - before < 0.03);  // five threads wait; one that spins takes 0.1 s
  full.stop();
  empty.stop();
  producer.join();
  consumer.join();
}

TEST_CASE("tokens of 64 bits, and an allocator whose memory is not aligned") {
  struct Misaligned {
    void* allocate(std::size_t bytes) noexcept {
      return static_cast<std::byte*>(HostIndexAllocator{}.allocate(bytes + radixmlp::index_alignment)) + 4;
    }
    void deallocate(void* memory, std::size_t) noexcept {
      HostIndexAllocator{}.deallocate(static_cast<std::byte*>(memory) - 4, 0);
    }
  };
  const std::vector<std::int64_t> tokens{std::int64_t{1} << 40, 1, 1};
  const std::vector<std::int32_t> cu_seqlens{0, 1, 2, 3};
  const RaggedBatch<std::int64_t> batch{.tokens = tokens, .cu_seqlens = cu_seqlens};
  IndexPipeline<std::int64_t> pipeline;
  REQUIRE(pipeline.submit(batch));
  CHECK(pipeline.take().view().compact_rows == 2);
  IndexPipeline<std::int64_t, Misaligned> misaligned;
  REQUIRE(misaligned.submit(batch));
  CHECK(misaligned.take().status().message() == "radixmlp: memory = 4: its address must be a multiple of 64");
}
