// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace radixmlp_bench {

// What every benchmark program takes.
struct Options {
  bool smoke = false;       // equality checks and one tiny timing
  bool check_only = false;  // equality checks alone
  std::string json, markdown, data;
};

// Arguments that start with `passed_on` belong to somebody else.
inline Options parse_options(int argc, char** argv, std::string_view passed_on = "") {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto value = [&]() -> std::string {
      if (++i == argc) {
        throw std::runtime_error(std::string(argument) + " needs a value");
      }
      return argv[i];
    };
    if (argument == "--smoke") {
      options.smoke = true;
    } else if (argument == "--check-only") {
      options.check_only = true;
    } else if (argument == "--json") {
      options.json = value();
    } else if (argument == "--markdown") {
      options.markdown = value();
    } else if (argument == "--data") {
      options.data = value();
    } else if (passed_on.empty() || !argument.starts_with(passed_on)) {
      throw std::runtime_error("unknown argument " + std::string(argument) +
                               "; known: --smoke --check-only --json FILE --markdown FILE --data FILE");
    }
  }
  return options;
}

// What every program's main does: run, and say in one line what went wrong.
inline int report_errors(int argc, char** argv, int (*run)(int, char**)) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

constexpr double no_figure = std::numeric_limits<double>::quiet_NaN();

// A figure with so many decimals that it has at least three digits.
inline std::string figure(double value) {
  const int decimals = value >= 100 ? 0 : value >= 10 ? 1 : 2;
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

inline double geometric_mean(const std::vector<double>& values) {
  double logs = 0;
  for (const double value : values) {
    logs += std::log(value);
  }
  return std::exp(logs / static_cast<double>(values.size()));
}

// Rows of names and figures, printed as they come and written as JSON and Markdown at the end.
class Report {
 public:
  // What was measured, on what, with which command: lines above the table, members of the JSON object.
  using Facts = std::vector<std::pair<std::string, std::string>>;

  Report(std::vector<std::string> names, std::vector<std::string> figures, Facts facts)
      : names_(std::move(names)), figures_(std::move(figures)), facts_(std::move(facts)) {
    for (const auto& [key, value] : facts_) {
      std::printf("%s: %s\n", key.c_str(), value.c_str());
    }
    print(names_, figures_);
  }

  void add(std::vector<std::string> names, const std::vector<double>& figures) {
    std::vector<std::string> texts(figures.size());
    std::transform(figures.begin(), figures.end(), texts.begin(),
                   [](double value) { return std::isnan(value) ? std::string("-") : figure(value); });
    print(names, texts);
    rows_.push_back({std::move(names), std::move(texts)});
  }

  // To the files that were asked for, and what the other reports have behind it.
  void write(const Options& options, const std::vector<Report>& others = {}) const {
    std::string json = "{";
    std::string markdown;
    for (const auto& [key, value] : facts_) {
      json += quoted(key) + ": " + quoted(value) + ",\n ";
      markdown += "- " + key + ": " + value + "\n";
    }
    json += "\"rows\": [";
    append_rows(json);
    append_table(markdown);
    for (const Report& other : others) {
      other.append_rows(json);
      other.append_table(markdown);
    }
    json += "\n]}\n";
    if (!options.json.empty()) {
      write_file(options.json, json);
    }
    if (!options.markdown.empty()) {
      write_file(options.markdown, markdown);
    }
  }

 private:
  struct Row {
    std::vector<std::string> names, figures;
  };

  void append_rows(std::string& text) const {
    for (const Row& row : rows_) {
      text += text.back() == '[' ? "\n  {" : ",\n  {";
      for (std::size_t n = 0; n < names_.size(); ++n) {
        text += quoted(names_[n]) + ": " + quoted(row.names[n]) + ", ";
      }
      for (std::size_t f = 0; f < figures_.size(); ++f) {
        text += quoted(figures_[f]) + ": " + (row.figures[f] == "-" ? "null" : row.figures[f]);
        text += f + 1 < figures_.size() ? ", " : "}";
      }
    }
  }

  void append_table(std::string& text) const {
    text += "\n";
    append_markdown(text, names_, figures_);
    for (std::size_t n = 0; n < names_.size(); ++n) {
      text += "|---";
    }
    for (std::size_t f = 0; f < figures_.size(); ++f) {
      text += "|--:";
    }
    text += "|\n";
    for (const Row& row : rows_) {
      append_markdown(text, row.names, row.figures);
    }
  }

  void print(const std::vector<std::string>& names, const std::vector<std::string>& figures) const {
    for (std::size_t n = 0; n < names.size(); ++n) {
      std::printf("%-*s ", names.size() == 1 ? 44 : 16, names[n].c_str());
    }
    for (std::size_t f = 0; f < figures.size(); ++f) {
      std::printf("%*s", static_cast<int>(std::max<std::size_t>(12, figures_[f].size() + 2)), figures[f].c_str());
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  static void append_markdown(std::string& text, const std::vector<std::string>& names,
                              const std::vector<std::string>& figures) {
    for (const std::vector<std::string>* cells : {&names, &figures}) {
      for (const std::string& cell : *cells) {
        text += "| " + cell + " ";
      }
    }
    text += "|\n";
  }

  static std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (const char c : text) {
      if (c == '"' || c == '\\') {
        result += '\\';
      }
      result += c;
    }
    return result + '"';
  }

  static void write_file(const std::string& path, const std::string& text) {
    std::ofstream file(path);
    if (!(file << text)) {
      throw std::runtime_error("cannot write " + path);
    }
  }

  std::vector<std::string> names_, figures_;
  Facts facts_;
  std::vector<Row> rows_;
};

// The facts that each program states.
inline Report::Facts describe_run(int argc, char** argv) {
  std::string command = argv[0];
  for (int i = 1; i < argc; ++i) {
    command.append(" ").append(argv[i]);
  }
  std::string processor = "unknown";
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.starts_with("model name")) {
      processor = line.substr(line.find(':') + 2);
      break;
    }
  }
  return {{"command", command}, {"processor", processor}, {"compiler", __VERSION__}};
}

}  // namespace radixmlp_bench
