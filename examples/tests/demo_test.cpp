// SPDX-License-Identifier: MIT

// The demo program, run as a user runs it.

#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/catch.hpp"

namespace {

const std::string sample = RADIXMLP_EXAMPLE_DATA "/rerank.jsonl";

struct Outcome {
  int exit_code;
  std::string output;
};

Outcome run_demo(const std::string& arguments) {
  const std::string output = (std::filesystem::temp_directory_path() / "radixmlp_demo_test.txt").string();
  const int status = std::system((RADIXMLP_DEMO " " + arguments + " >" + output + " 2>&1").c_str());
  std::ifstream file(output);
  return {WEXITSTATUS(status), {std::istreambuf_iterator<char>(file), {}}};
}

nlohmann::json result_of(const std::string& arguments) {
  const std::string json = (std::filesystem::temp_directory_path() / "radixmlp_demo_test.json").string();
  std::filesystem::remove(json);
  const Outcome outcome = run_demo("--preset tiny --repeat 1 --json " + json + ' ' + arguments);
  INFO(outcome.output);
  REQUIRE(outcome.exit_code == 0);
  return nlohmann::json::parse(std::ifstream(json));
}

}  // namespace

TEST_CASE("the demo finds the sample's counts and equal results") {
  const nlohmann::json result = result_of("--layers 2");
  CHECK(result["sequences"] == 160);
  CHECK(result["N"] == 36108);
  CHECK(result["N_prime"] == 21874);
  CHECK(std::abs(result["gamma"].get<double>() - 21874.0 / 36108.0) < 1e-12);
  CHECK(result["batches"] == 1);
  CHECK(result["compacted_batches"] == 1);
  CHECK(result["max_relative_difference"].get<double>() <= 1e-5);
  CHECK(result["max_abs_value"].get<double>() > 1);
  CHECK(result["equal"] == true);
  CHECK(result["speedup"].get<double>() > 0);
}

TEST_CASE("a batch that the policy leaves alone is computed as it is") {
  const nlohmann::json result = result_of("--max-ratio 0.5 --batch-tokens 16384 " + sample);
  CHECK(result["batches"] == 3);
  CHECK(result["compacted_batches"] == 0);
  CHECK(result["max_abs_difference"] == 0.0);
  CHECK(result["predicted_speedup"] == 1.0);
  CHECK(result["activation_bytes_with"] == result["activation_bytes_without"]);
}

TEST_CASE("every attention layout gives the same results, on compact queries where it says so") {
  const std::string part = (std::filesystem::temp_directory_path() / "radixmlp_demo_test.jsonl").string();
  std::ifstream all(sample);
  std::ofstream some(part);
  std::string line;
  for (int i = 0; i < 16 && std::getline(all, line); ++i) {
    some << line << '\n';
  }
  some.close();
  for (const std::string layout : {"ragged", "compact_query", "paged"}) {
    CAPTURE(layout);
    const nlohmann::json result = result_of("--layers 2 --cpu-time --layout " + layout + ' ' + part);
    CHECK(result["layout"] == layout);
    CHECK(result["sequences"] == 16);
    CHECK(result["equal"] == true);
    CHECK((result["attention_pairs_left"].get<double>() < 0.9) == (layout != "ragged"));
  }
}

TEST_CASE("rates of the engine, as radixmlp-analyze takes them") {
  const Outcome outcome = run_demo("--preset tiny --repeat 1 --calibrate");
  REQUIRE(outcome.exit_code == 0);
  const std::string line = outcome.output.substr(outcome.output.rfind("gemm="));
  double gemm = 0, attention = 0, paged = 0, copy = 0;
  int bytes = 0;
  REQUIRE(std::sscanf(line.c_str(), "gemm=%lf,attention=%lf,paged=%lf,copy=%lf,bytes=%d", &gemm, &attention, &paged,
                      &copy, &bytes) == 5);
  CHECK(bytes == 4);
  for (const double rate : {gemm, attention, paged, copy}) {
    CHECK((rate > 1e6 && rate < 1e13));
  }
}

TEST_CASE("what the demo cannot do ends with a message and exit code 2") {
  const auto message = [](const std::string& arguments) {
    const Outcome outcome = run_demo(arguments);
    CHECK(outcome.exit_code == 2);
    return outcome.output;
  };
  CHECK(message("/nonexistent.jsonl") == "radixmlp_demo: /nonexistent.jsonl: cannot open\n");
  CHECK(message("--preset gpt").find("unknown preset \"gpt\"; known: tiny qwen3-0.6b") != std::string::npos);
  CHECK(message("--layers x").find("--layers takes a number from 1 on, not \"x\"") != std::string::npos);
  CHECK(message("--layers").find("--layers needs a value") != std::string::npos);
  CHECK(message("--layout round").find("--layout takes ragged, compact_query or paged") != std::string::npos);
  CHECK(message("--wrong 1").find("unknown: --wrong 1") != std::string::npos);
  CHECK(message("a b").find("one file at a time: a, b") != std::string::npos);
  CHECK(message("--preset tiny --repeat 1 --json /nonexistent/x.json").find("cannot write") != std::string::npos);
  CHECK(run_demo("--help").exit_code == 0);
}
