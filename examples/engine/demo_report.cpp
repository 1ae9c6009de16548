// SPDX-License-Identifier: MIT
#include "engine/demo_report.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

namespace example {
namespace {

constexpr const char* usage = R"(usage: %s [FILE.jsonl] [options]

Runs decoder layers of a Qwen3 model (random weights) on a file of token ids, {"id":"...","tokens":[...]} a line, with
and without compaction, and compares time and results. Without FILE: the sample in examples/data.

  --preset NAME       dimensions: tiny, qwen3-0.6b, -1.7b, -4b or -8b, llama3-8b or -70b (default qwen3-0.6b)
  --layers N          decoder layers (default 1)
  --repeat N          measured rounds, of which medians are shown (default %lld)
  --max-ratio R       policy: compact a batch if N'/N is at most R; 0 = never, 1 = always (default %g)
  --batch-tokens N    split the file, in order, into batches of at most N tokens (default: one batch)
  --threads N         threads of the CPU engine (default: one a core)
  --layout NAME       of a compacted batch's attention: ragged, compact_query or paged (default ragged)
  --cpu-time          CPU engine: seconds of processor time, all threads together, where others use the machine too
  --calibrate         only print the CPU engine's rates on this machine, for radixmlp-analyze --rates
  --precision P       on a GPU: fp16 or fp32 (default fp16)
  --json FILE         write the result as JSON, too
)";

template <class T>
T parse_number(std::string_view option, std::string_view text, T least) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || !(value >= least)) {
    throw std::invalid_argument(std::string(option) + " takes a number from " + std::to_string(least) + " on, not \"" +
                                std::string(text) + '"');
  }
  return value;
}

radixmlp::AttentionLayout parse_layout(std::string_view text) {
  using enum radixmlp::AttentionLayout;
  for (const radixmlp::AttentionLayout layout : {ragged, compact_query, paged}) {
    if (text == radixmlp::name(layout)) {
      return layout;
    }
  }
  throw std::invalid_argument("--layout takes ragged, compact_query or paged, not \"" + std::string(text) + '"');
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t n = values.size();
  return (values[(n - 1) / 2] + values[n / 2]) / 2;
}

PassTime median(const std::vector<PassTime>& times) {
  const auto of = [&](double PassTime::*part) {
    std::vector<double> values;
    for (const PassTime& time : times) {
      values.push_back(time.*part);
    }
    return median(values);
  };
  return {of(&PassTime::total), of(&PassTime::attention), of(&PassTime::rows), of(&PassTime::moves)};
}

void add(PassResult& sum, const PassResult& batch) {
  sum.time.total += batch.time.total;
  sum.time.attention += batch.time.attention;
  sum.activation_bytes = std::max(sum.activation_bytes, batch.activation_bytes);
}

}  // namespace

DemoOptions parse_options(int argc, char** argv, std::int64_t repeat) {
  DemoOptions options;
  options.repeat = repeat;
  bool has_file = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--help" || option == "-h") {
      std::printf(usage, argv[0], static_cast<long long>(options.repeat), options.max_ratio);
      std::exit(0);
    }
    if (option == "--calibrate" || option == "--cpu-time") {
      (option == "--calibrate" ? options.calibrate : options.cpu_time) = true;
      continue;
    }
    if (!option.starts_with("-")) {
      if (has_file) {
        throw std::invalid_argument("one file at a time: " + options.file + ", " + std::string(option));
      }
      options.file = option;
      has_file = true;
      continue;
    }
    if (i + 1 == argc) {
      throw std::invalid_argument(std::string(option) + " needs a value; see --help");
    }
    const std::string_view value = argv[++i];
    if (option == "--preset") {
      options.preset = value;
    } else if (option == "--layers") {
      options.layers = parse_number<std::int64_t>(option, value, 1);
    } else if (option == "--repeat") {
      options.repeat = parse_number<std::int64_t>(option, value, 1);
    } else if (option == "--max-ratio") {
      options.max_ratio = parse_number<double>(option, value, 0);
    } else if (option == "--batch-tokens") {
      options.batch_tokens = parse_number<std::int64_t>(option, value, 0);
    } else if (option == "--threads") {
      options.threads = parse_number<std::int64_t>(option, value, 0);
    } else if (option == "--precision" && (value == "fp16" || value == "fp32")) {
      options.precision = value;
    } else if (option == "--layout") {
      options.layout = parse_layout(value);
    } else if (option == "--json") {
      options.json = value;
    } else {
      throw std::invalid_argument("unknown: " + std::string(option) + ' ' + std::string(value) + "; see --help");
    }
  }
  return options;
}

void measure_in_turn(std::int64_t warm_up, std::int64_t repeat, const std::function<PassTime()>& without,
                     const std::function<PassTime()>& with, BatchResult& result) {
  std::vector<PassTime> times_without, times_with;
  std::vector<double> ratios;
  for (std::int64_t round = 1 - warm_up; round <= repeat; ++round) {
    const PassTime time_without = without();
    const PassTime time_with = with();
    const bool measured = round >= 1;
    if (measured) {
      times_without.push_back(time_without);
      times_with.push_back(time_with);
      ratios.push_back(time_without.total / time_with.total);
    }
    std::fprintf(stderr, "  %s %lld of %lld: %.4g s without, %.4g s with compaction\n", measured ? "round" : "warm-up",
                 static_cast<long long>(measured ? round : round + warm_up),
                 static_cast<long long>(measured ? repeat : warm_up), time_without.total, time_with.total);
  }
  result.without.time = median(times_without);
  result.with.time = median(times_with);
  result.speedup = median(ratios);
}

double measure_index_build(const TokenBatch& batch) {
  using Clock = std::chrono::steady_clock;
  radixmlp::PrefixTrie trie;
  std::vector<double> seconds;
  for (int build = 0; build < 10; ++build) {
    const auto start = Clock::now();
    static_cast<void>(trie.build(batch.ragged()));
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return median(seconds);
}

void compare(std::span<const float> without, std::span<const float> with, BatchResult& result) {
  for (std::size_t i = 0; i < without.size(); ++i) {
    const double difference = std::abs(double{with[i]} - double{without[i]});
    result.max_value = std::max(result.max_value, std::abs(double{without[i]}));
    result.max_difference =
        std::max(result.max_difference, std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference);
  }
}

int report(const DemoOptions& options, const std::string& device, const std::vector<BatchResult>& batches,
           double tolerance) {
  BatchResult sum;
  double seconds_with = 0;         // as the speed-ups say, not the medians of times
  std::int64_t computed_rows = 0;  // of position-wise work, as the policy decided
  std::int64_t compacted_batches = 0;
  for (const BatchResult& batch : batches) {
    sum.sequences += batch.sequences;
    sum.ragged_rows += batch.ragged_rows;
    sum.compact_rows += batch.compact_rows;
    sum.index_seconds += batch.index_seconds;
    add(sum.without, batch.without);
    add(sum.with, batch.with);
    seconds_with += batch.without.time.total / batch.speedup;
    sum.max_difference = std::max(sum.max_difference, batch.max_difference);
    sum.max_value = std::max(sum.max_value, batch.max_value);
    sum.attention_pairs += batch.attention_pairs;
    sum.computed_pairs += batch.computed_pairs;
    computed_rows += batch.compacts ? batch.compact_rows : batch.ragged_rows;
    compacted_batches += batch.compacts;
  }
  const auto rows = static_cast<double>(sum.ragged_rows);
  const double gamma = static_cast<double>(sum.compact_rows) / rows;
  const double speedup = sum.without.time.total / seconds_with;
  const double position_wise = 1 - sum.without.time.attention / sum.without.time.total;
  const double pairs_left = sum.attention_pairs == 0
                                ? 1.0
                                : static_cast<double>(sum.computed_pairs) / static_cast<double>(sum.attention_pairs);
  const double predicted =
      1 / ((1 - position_wise) * pairs_left + position_wise * static_cast<double>(computed_rows) / rows);
  const double relative = sum.max_difference / sum.max_value;
  const bool equal = relative <= tolerance;  // false for NaN
  const auto megabytes = [](std::size_t bytes) { return static_cast<double>(bytes) / 1e6; };

  std::printf("%s: %lld sequences in %zu batch%s, %lld layer%s of %s, %s\n\n", options.file.c_str(),
              static_cast<long long>(sum.sequences), batches.size(), batches.size() == 1 ? "" : "es",
              static_cast<long long>(options.layers), options.layers == 1 ? "" : "s", options.preset.c_str(),
              device.c_str());
  std::printf("N  = %lld rows\nN' = %lld rows\ngamma = N'/N = %.4f\n", static_cast<long long>(sum.ragged_rows),
              static_cast<long long>(sum.compact_rows), gamma);
  std::printf("compacted: %lld of %zu batches (policy: N'/N at most %g), attention %s\n\n",
              static_cast<long long>(compacted_batches), batches.size(), options.max_ratio,
              radixmlp::name(options.layout));
  std::printf("                             without        with compaction\n");
  std::printf("time                   %11.4f s    %11.4f s\n", sum.without.time.total, sum.with.time.total);
  std::printf("  of it attention      %11.4f s    %11.4f s\n", sum.without.time.attention, sum.with.time.attention);
  std::printf("activation memory      %11.1f MB   %11.1f MB\n\n", megabytes(sum.without.activation_bytes),
              megabytes(sum.with.activation_bytes));
  std::printf("speed-up             %.3f (median over rounds)\n", speedup);
  std::printf("  predicted          %.3f = 1 / ((1 - f) p + f gamma), position-wise share of time f = %.3f,\n",
              predicted, position_wise);
  std::printf("                     share of query-key pairs left p = %.3f\n", pairs_left);
  std::printf("  of the prediction  %.1f %%\n", 100 * speedup / predicted);
  std::printf("index build          %.3f ms (median of ten, memory reused)\n", 1e3 * sum.index_seconds);
  std::printf("largest difference   %.3g, %.3g of the largest value: %s (limit %g)\n", sum.max_difference, relative,
              equal ? "equal" : "NOT EQUAL", tolerance);

  if (!options.json.empty()) {
    const nlohmann::ordered_json json = {
        {"file", options.file},
        {"device", device},
        {"preset", options.preset},
        {"layers", options.layers},
        {"repeat", options.repeat},
        {"max_ratio", options.max_ratio},
        {"layout", radixmlp::name(options.layout)},
        {"batches", batches.size()},
        {"compacted_batches", compacted_batches},
        {"sequences", sum.sequences},
        {"N", sum.ragged_rows},
        {"N_prime", sum.compact_rows},
        {"gamma", gamma},
        {"seconds_without", sum.without.time.total},
        {"seconds_with", sum.with.time.total},
        {"attention_seconds_without", sum.without.time.attention},
        {"attention_seconds_with", sum.with.time.attention},
        {"speedup", speedup},
        {"position_wise_share", position_wise},
        {"attention_pairs_left", pairs_left},
        {"predicted_speedup", predicted},
        {"speedup_over_predicted", speedup / predicted},
        {"activation_bytes_without", sum.without.activation_bytes},
        {"activation_bytes_with", sum.with.activation_bytes},
        {"index_seconds", sum.index_seconds},
        {"max_abs_difference", sum.max_difference},
        {"max_abs_value", sum.max_value},
        {"max_relative_difference", relative},
        {"tolerance", tolerance},
        {"equal", equal},
    };
    std::ofstream file(options.json);
    file << json.dump(2) << '\n';
    if (!file.flush()) {
      throw std::runtime_error(options.json + ": cannot write");
    }
  }
  return equal ? 0 : 1;
}

}  // namespace example
