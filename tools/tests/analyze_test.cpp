// SPDX-License-Identifier: MIT

// radixmlp-analyze, run as a user runs it.

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "support/catch.hpp"
#include "support/skip.hpp"

namespace {

using Json = nlohmann::json;

std::string scratch(const std::string& name) {
  return (std::filesystem::temp_directory_path() / ("radixmlp_analyze_test_" + name)).string();
}

struct Outcome {
  int exit_code;
  std::string output, errors;
};

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

Outcome analyze(const std::string& arguments) {
  const int status =
      std::system((RADIXMLP_ANALYZE " " + arguments + " >" + scratch("out") + " 2>" + scratch("err")).c_str());
  return {WEXITSTATUS(status), contents(scratch("out")), contents(scratch("err"))};
}

Json result_of(const std::string& arguments) {
  const Outcome outcome = analyze("--json " + arguments);
  INFO(outcome.errors);
  REQUIRE(outcome.exit_code == 0);
  return Json::parse(outcome.output);
}

std::string file_of(const std::string& text) {
  std::ofstream(scratch("in.jsonl")) << text;
  return scratch("in.jsonl");
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("counts, batches and prefixes of a small file") {
  const std::string path = file_of(
      "{\"id\":\"a\",\"tokens\":[1,2,3,4]}\n\n{\"id\":\"b\",\"tokens\":[9,9]}\n{\"id\":\"c\",\"tokens\":[1,2,3,5]}\n"
      "{\"tokens\":[1,2]}\n");
  const Json result = result_of("--budget 8,100 " + path);
  CHECK(result["requests"] == 4);
  CHECK(result["tokens"] == 12);
  CHECK(result["longest"] == 4);
  CHECK(result["trie_rows"] == 7);
  CHECK(result["budgets"][0]["arrival"] == Json{{"batches", 2}, {"unique_rows", 10}, {"gamma", 10.0 / 12}});
  CHECK(result["budgets"][0]["planned"] == Json{{"batches", 2}, {"unique_rows", 9}, {"gamma", 9.0 / 12}});
  CHECK(result["budgets"][0]["planned_by_unique_rows"] ==
        Json{{"batches", 1}, {"unique_rows", 7}, {"gamma", 7.0 / 12}});
  CHECK(result["budgets"][1]["arrival"]["unique_rows"] == 7);
  CHECK(result["budgets"][1]["verdict"] ==
        "worth it: at 100 tokens a batch it saves 41.7% of the rows in order of arrival, 41.7% planned");
  CHECK(result["prefixes"] == Json::parse(R"([
      {"rows_saved": 4, "tokens": 2, "own_tokens": 2, "requests": 3, "first": "a"},
      {"rows_saved": 1, "tokens": 3, "own_tokens": 1, "requests": 2, "first": "a"}])"));
  CHECK(result["skipped_lines"].empty());

  const Outcome text = analyze("--budget 8 --top 1 - < " + path);
  CHECK(text.exit_code == 0);
  CHECK(contains(text.output, "4 requests, N = 12 tokens"));
  CHECK(contains(text.output, "   8    0.833       (2)    0.750       (2)    0.583       (1)\n"));
  CHECK(contains(text.output, "         4        2        2         3  first in a\n"));
  CHECK(!contains(text.output, "         1        3"));
  CHECK(contains(text.output,
                 "worth it: at 8 tokens a batch it saves 16.7% of the rows in order of arrival, 25.0% "
                 "planned"));
}

TEST_CASE("windows: batches in order of arrival reach over them, plans do not") {
  const std::string path =
      file_of("{\"tokens\":[1,2,3]}\n{\"tokens\":[7,7,7]}\n{\"tokens\":[1,2,4]}\n{\"tokens\":[7,7,8]}\n");
  const Json whole = result_of("--budget 6 " + path);
  const Json halves = result_of("--budget 6 --window 6 " + path);
  CHECK(whole["windows"] == 1);
  CHECK(whole["budgets"][0]["planned"]["unique_rows"] == 8);
  CHECK(halves["windows"] == 2);
  CHECK(halves["budgets"][0]["planned"]["unique_rows"] == 12);
  CHECK(halves["trie_rows"] == 12);
  const Json wide = result_of("--budget 100 --window 6 " + path);
  CHECK(wide["budgets"][0]["arrival"] == Json{{"batches", 1}, {"unique_rows", 8}, {"gamma", 8.0 / 12}});
}

TEST_CASE("blocks stand for their tokens and all before them") {
  const std::string path = file_of("{\"len\":7,\"blocks\":[0,1]}\n{\"len\":6,\"blocks\":[0,2]}\n");
  const Json result = result_of("--block-tokens 4 " + path);
  CHECK(result["tokens"] == 13);
  CHECK(result["trie_rows"] == 9);
  const Outcome wrong = analyze(path);
  CHECK(wrong.exit_code == 1);
  CHECK(contains(wrong.errors, "in.jsonl:1: len = 7 does not end in the last of 2 blocks of 512"));
}

TEST_CASE("malformed lines are named by number, and refused or skipped") {
  const std::string good = "{\"tokens\":[1,2]}\n";
  for (const auto& [line, message] : {std::pair<std::string, std::string>{"{\"tokens\":[1,", "not JSON at byte "},
                                      {"[1,2]", "not a JSON object"},
                                      {"{\"tokens\":7}", "tokens is not an array"},
                                      {"{\"tokens\":[1,-2]}", "tokens[1] = -2 is not an integer from 0 to 2147483647"},
                                      {"{\"tokens\":[1.5]}", "tokens[0] = 1.5 is not an integer"},
                                      {"{\"tokens\":[2147483648]}", "tokens[0] = 2147483648 is not an integer"},
                                      {"{\"blocks\":[1]}", "has neither \"tokens\" nor \"blocks\" and \"len\""},
                                      {"{\"blocks\":[-1],\"len\":3}", "blocks[0] = -1 is not an integer"},
                                      {"{\"blocks\":[1],\"len\":\"3\"}", "len = \"3\" is not an integer"}}) {
    CAPTURE(line);
    const std::string path = file_of(good + "\n" + line + "\n" + good);
    const Outcome refused = analyze(path);
    CHECK(refused.exit_code == 1);
    CHECK(refused.output.empty());
    CHECK(contains(refused.errors, "in.jsonl:3: " + message));
    const Json result = result_of("--skip-bad-lines " + path);
    CHECK(result["requests"] == 2);
    CHECK(result["skipped_lines"] == Json{3});
  }
}

TEST_CASE("options and files that are wrong") {
  for (const auto& [arguments, message] : {std::pair<std::string, std::string>{"", "no file"},
                                           {"--budget 0 x", "--budget = '0': must be an integer from 1 to"},
                                           {"--budget 5,x y", "--budget = 'x': must be"},
                                           {"--window 1e9 x", "--window = '1e9': must be"},
                                           {"x --top", "--top needs a value"},
                                           {"--colour x", "unknown option --colour"},
                                           {"x y", "more than one file: x and y"}}) {
    CAPTURE(arguments);
    const Outcome outcome = analyze(arguments);
    CHECK(outcome.exit_code == 2);
    CHECK(contains(outcome.errors, message));
    CHECK(contains(outcome.errors, "usage: radixmlp-analyze"));
  }
  CHECK(contains(analyze("/nowhere").errors, "/nowhere: cannot open"));
  CHECK(contains(analyze(file_of("\n")).errors, "holds no tokens"));
  CHECK(contains(analyze("--help").output, "--skip-bad-lines"));
}

TEST_CASE("the verdict says so where nothing is shared, and where planning alone helps") {
  CHECK(contains(analyze(file_of("{\"tokens\":[1,2]}\n{\"tokens\":[3,4]}\n")).output, "\nnot worth it: at 16384"));
  const std::string interleaved =
      file_of("{\"tokens\":[1,2]}\n{\"tokens\":[3,4]}\n{\"tokens\":[1,2]}\n{\"tokens\":[3,4]}\n");
  CHECK(contains(
      analyze("--budget 4 " + interleaved).output,
      "\nworth it with planning alone: at 4 tokens a batch it saves 50.0% of the rows, in order of arrival 0.0%"));
}

TEST_CASE("gamma of every workload in order of arrival is the published one") {
  const std::filesystem::path folder = std::filesystem::path(RADIXMLP_SHARED_DIR) / "workloads";
  if (radixmlp_test::skip_without(std::filesystem::exists(folder / "README.md"), "workloads at " + folder.string()))
    return;
  int seen = 0;
  std::ifstream table(folder / "README.md");
  for (std::string line; std::getline(table, line);) {
    std::replace(line.begin(), line.end(), '|', ' ');
    std::istringstream fields(line);
    std::string name;
    std::int64_t sequences = 0, tokens = 0, mean = 0, longest = 0, compact_16k = 0, compact_64k = 0;
    if (!(fields >> name >> sequences >> tokens >> mean >> longest >> compact_16k >> compact_64k) ||
        tokens > 10'000'000) {  // the trace takes a minute under a sanitizer
      continue;
    }
    CAPTURE(name);
    const Json result = result_of((folder / (name + ".jsonl")).string());
    CHECK(result["requests"] == sequences);
    CHECK(result["tokens"] == tokens);
    CHECK(result["longest"] == longest);
    CHECK(result["budgets"][0]["arrival"]["unique_rows"] == compact_16k);
    CHECK(result["budgets"][1]["arrival"]["unique_rows"] == compact_64k);
    CHECK(result["budgets"][0]["planned"]["unique_rows"] <= result["budgets"][0]["arrival"]["unique_rows"]);
    ++seen;
  }
  CHECK(seen == 15);
}
