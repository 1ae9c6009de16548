// SPDX-License-Identifier: MIT

// radixmlp-analyze: would compaction help this traffic? Reads requests as JSON lines and says how many rows compaction
// saves by batch budget, in order of arrival and as BatchPlanner would batch them, which prefixes are shared most, and
// how much faster a model should get. `radixmlp-analyze --help` lists the options; docs/analyze.md explains the output.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "analysis.hpp"
#include "input_lines.hpp"
#include "predict.hpp"
#include "report.hpp"
#include "request_lines.hpp"

namespace radixmlp_tools {
namespace {

constexpr const char* usage = R"(usage: radixmlp-analyze [options] FILE      (- reads standard input)

FILE has one JSON object a line: {"tokens":[ids]} or, for traces of block hashes, {"len":tokens,"blocks":[ids]} where
equal ids stand for equal blocks and all before them. "id" names a request. It may be compressed with gzip.

  --budget N,N,...    tokens a batch (16384,65536); predictions in the text are for the first
  --model M           predict for M alone; may be repeated. qwen3-0.6b, qwen3-1.7b, qwen3-4b, qwen3-8b, llama3-8b,
                      llama3-70b, or hidden=...,layers=...,heads=...,kv_heads=...,head_dim=...,intermediate=...[,name=...]
  --rates R           of your machine: gemm=...,attention=...,copy=...[,paged=...][,move=...][,bytes=...] in FLOP/s,
                      bytes/s, seconds a call and bytes an element; radixmlp_demo --calibrate prints the CPU example's
  --top N             shared prefixes to list (10)
  --svg FILE          draw the trie and gamma by budget
  --json              print JSON
  --skip-bad-lines    leave malformed lines out and say which; otherwise the first one ends the run
  --window N          plan and search among so many tokens at a time (67108864: 256 MiB)
  --block-tokens N    tokens of a block (512)
)";

constexpr std::size_t listed_skips = 1000;

struct Options {
  std::string file;
  std::string svg;
  std::int64_t block_tokens = 512;
  bool skip_bad_lines = false;
  bool json = false;
  AnalysisOptions analysis;
};

Options parse_options(const std::vector<std::string>& arguments) {
  Options options;
  AnalysisOptions& analysis = options.analysis;
  std::vector<Model> models;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto value = [&]() -> const std::string& {
      if (++i == arguments.size()) {
        throw UsageError(argument + " needs a value");
      }
      return arguments[i];
    };
    if (argument == "--budget") {
      analysis.budgets.clear();
      std::string list = value() + ',';
      for (std::size_t comma = list.find(','); comma != std::string::npos; comma = list.find(',')) {
        analysis.budgets.push_back(positive_number(argument, list.substr(0, comma)));
        list.erase(0, comma + 1);
      }
    } else if (argument == "--window") {
      analysis.window = positive_number(argument, value());
    } else if (argument == "--top") {
      analysis.top = positive_number(argument, value());
    } else if (argument == "--model") {
      models.push_back(parse_model(value()));
    } else if (argument == "--rates") {
      analysis.machine = parse_machine(value());
    } else if (argument == "--svg") {
      options.svg = value();
    } else if (argument == "--block-tokens") {
      options.block_tokens = positive_number(argument, value());
    } else if (argument == "--skip-bad-lines") {
      options.skip_bad_lines = true;
    } else if (argument == "--json") {
      options.json = true;
    } else if (argument == "-" || argument.empty() || argument[0] != '-') {
      if (!options.file.empty()) {
        throw UsageError("more than one file: " + options.file + " and " + argument);
      }
      options.file = argument;
    } else {
      throw UsageError("unknown option " + argument);
    }
  }
  if (options.file.empty()) {
    throw UsageError("no file");
  }
  if (!models.empty()) {
    analysis.models = models;
  }
  analysis.keeps_picture = !options.svg.empty();
  return options;
}

// A line on the terminal that says how far it is; nothing where standard error is none.
class Progress {
 public:
  ~Progress() {
    if (has_shown_) {
      std::fputs("\r\x1b[K", stderr);
    }
  }
  Progress() = default;
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(std::int64_t lines, std::int64_t tokens, const char* doing) {
    const auto now = std::chrono::steady_clock::now();
    if (shows_ && now >= next_) {
      std::fprintf(stderr, "\r%" PRId64 " lines, %.1f million tokens%s\x1b[K", lines,
                   1e-6 * static_cast<double>(tokens), doing);
      has_shown_ = true;
      next_ = now + std::chrono::milliseconds(200);
    }
  }

 private:
  bool shows_ = isatty(STDERR_FILENO) != 0;
  bool has_shown_ = false;
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + std::chrono::milliseconds(500);
};

Analysis read_and_analyze(const Options& options) {
  InputLines input(options.file);
  Progress progress;
  Analyzer analyzer(options.analysis, [&] { progress.show(input.number(), analyzer.tokens(), ": planning batches"); });
  std::int64_t skipped = 0;
  std::vector<std::int64_t> skipped_lines;
  std::string text;
  while (true) {
    try {
      if (!input.next(text)) {
        break;
      }
      if (text.find_first_not_of(" \t\r") == std::string::npos) {
        continue;
      }
      const NamedRequest request = parse_request_line(text, options.block_tokens);
      analyzer.add(request.id, request.tokens);
    } catch (const std::invalid_argument& error) {
      const std::string message = options.file + ':' + std::to_string(input.number()) + ": " + printable(error.what());
      if (!options.skip_bad_lines) {
        throw std::runtime_error(message);
      }
      std::fprintf(stderr, "skipped: %s\n", message.c_str());
      ++skipped;
      if (skipped_lines.size() < listed_skips) {
        skipped_lines.push_back(input.number());
      }
    }
    progress.show(input.number(), analyzer.tokens(), "");
  }
  Analysis analysis = analyzer.finish();
  analysis.skipped = skipped;
  analysis.skipped_lines = std::move(skipped_lines);
  return analysis;
}

int run(const std::vector<std::string>& arguments) {
  if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) {
    std::fputs(usage, stdout);
    return 0;
  }
  const Options options = parse_options(arguments);
  const Analysis analysis = read_and_analyze(options);
  if (analysis.tokens == 0) {
    throw std::runtime_error(options.file + ": holds no tokens");
  }
  if (!options.svg.empty()) {
    const std::string source = options.file.substr(options.file.find_last_of('/') + 1);
    std::ofstream file(options.svg);
    file << svg_picture(analysis, options.analysis, source == "-" ? "standard input" : source);
    if (!file.flush()) {
      throw std::runtime_error(options.svg + ": cannot write");
    }
  }
  const std::string report =
      options.json ? json_report(analysis, options.analysis) : text_report(analysis, options.analysis);
  std::fwrite(report.data(), 1, report.size(), stdout);
  if (std::fflush(stdout) != 0) {
    throw std::runtime_error("cannot write to standard output");
  }
  return 0;
}

}  // namespace
}  // namespace radixmlp_tools

int main(int argc, char** argv) {
  try {
    return radixmlp_tools::run({argv + 1, argv + argc});
  } catch (const radixmlp_tools::UsageError& error) {
    std::fprintf(stderr, "radixmlp-analyze: %s\n%s", error.what(), radixmlp_tools::usage);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "radixmlp-analyze: %s\n", error.what());
    return 1;
  }
}
