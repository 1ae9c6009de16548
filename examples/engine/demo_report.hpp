// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/token_file.hpp"
#include "radixmlp/radixmlp.hpp"

// What the demo on the CPU and the one on a GPU share: options, the order of the measurements, and the report.
namespace example {

struct DemoOptions {
  std::string file = RADIXMLP_EXAMPLE_DATA "/rerank.jsonl";
  std::string preset = "qwen3-0.6b";
  std::string precision = "fp16";  // on a GPU: fp16 or fp32; the CPU computes in fp32
  std::string json;                // file to write
  std::int64_t layers = 1;
  std::int64_t repeat = 0;
  std::int64_t threads = 0;       // of the CPU engine; 0 = as many as there are cores
  std::int64_t batch_tokens = 0;  // 0 = the whole file is one batch
  radixmlp::AttentionLayout layout = radixmlp::AttentionLayout::ragged;
  bool cpu_time = false;   // the CPU engine: count processor time
  bool calibrate = false;  // the CPU engine: print rates, read no file
  double max_ratio = radixmlp::CompactionPolicy{}.max_ratio;
};

// Reads the command line; `repeat` is the default. Prints the usage and exits for --help; throws std::invalid_argument.
[[nodiscard]] DemoOptions parse_options(int argc, char** argv, std::int64_t repeat);

// Seconds of one pass over the layers, from token ids to the hidden states of all N rows.
struct PassTime {
  double total = 0;
  double attention = 0;  // of it, in the engine's attention
  double rows = 0;       // in norms, projections and MLP (measured on the CPU)
  double moves = 0;      // in the layers, but in neither (on the CPU)
};

// A batch computed one way.
struct PassResult {
  PassTime time;                     // medians
  std::size_t activation_bytes = 0;  // hidden states, workspace, engine scratch
};

struct BatchResult {
  std::int64_t sequences = 0;
  std::int64_t ragged_rows = 0;      // N
  std::int64_t compact_rows = 0;     // N'
  std::int64_t attention_pairs = 0;  // of queries and keys, without compaction
  std::int64_t computed_pairs = 0;   // with compaction
  bool compacts = false;             // the policy's decision
  double index_seconds = 0;
  PassResult without, with;
  double speedup = 1;  // median over rounds of the ratio within a round, which a machine that slows down leaves alone
  double max_difference = 0;  // between the hidden states of both ways
  double max_value = 0;
};

// Runs both ways in turn, `warm_up` rounds unmeasured and then `repeat` rounds, and stores medians and speed-up in
// `result`.
void measure_in_turn(std::int64_t warm_up, std::int64_t repeat, const std::function<PassTime()>& without,
                     const std::function<PassTime()>& with, BatchResult& result);

// Seconds to build a batch's index: the median of several builds with one trie, the way an engine uses it.
[[nodiscard]] double measure_index_build(const TokenBatch& batch);

// Sets max_value and max_difference; a NaN counts as an infinite difference.
void compare(std::span<const float> without, std::span<const float> with, BatchResult& result);

// Prints the table and writes the JSON. Returns the program's exit code: 1 where results differ by more than
// `tolerance` times the largest value.
[[nodiscard]] int report(const DemoOptions& options, const std::string& device, const std::vector<BatchResult>& batches,
                         double tolerance);

}  // namespace example
