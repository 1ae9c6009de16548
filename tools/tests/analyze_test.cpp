// SPDX-License-Identifier: MIT

// radixmlp-analyze, run as a user runs it.

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

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
  std::ofstream(scratch("in.jsonl"), std::ios::binary) << text;
  return scratch("in.jsonl");
}

std::string compressed(const std::string& path) {
  REQUIRE(std::system(("gzip -nc " + path + " >" + scratch("in.gz")).c_str()) == 0);
  return scratch("in.gz");
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// Without what depends on the clock.
Json without_times(Json result) {
  for (Json& budget : result["budgets"]) {
    budget.erase("index_us_per_batch");
    for (Json& model : budget["predicted_speedup"]) {
      model.erase("index_share_of_layer");
      model.erase("index_share_of_layers");
    }
  }
  return result;
}

std::string svg_of(const std::string& arguments) {
  std::filesystem::remove(scratch("svg"));
  const Outcome outcome = analyze("--svg " + scratch("svg") + " " + arguments);
  INFO(outcome.errors);
  REQUIRE(outcome.exit_code == 0);
  return contents(scratch("svg"));
}

// Whether tags are closed in turn and text holds no bare markup: as much of XML as the pictures use.
bool is_well_formed(const std::string& xml) {
  std::vector<std::string> open;
  for (std::size_t i = 0; i < xml.size(); ++i) {
    const auto c = static_cast<unsigned char>(xml[i]);
    if (c < 0x20 && c != '\n') {
      return false;
    }
    if (c == '&') {
      const std::string entity = xml.substr(i, xml.find(';', i) - i);
      if (entity != "&amp" && entity != "&lt" && entity != "&gt" && entity != "&quot") {
        return false;
      }
    }
    if (c != '<') {
      continue;
    }
    const std::size_t end = xml.find('>', i);
    const std::string tag = xml.substr(i + 1, end - i - 1);
    if (end == std::string::npos || std::count(tag.begin(), tag.end(), '"') % 2 != 0 || contains(tag, "<")) {
      return false;
    }
    if (tag[0] == '/') {
      if (open.empty() || open.back() != tag.substr(1)) {
        return false;
      }
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
    i = end;
  }
  return open.empty() && xml.rfind("<svg ", 0) == 0;
}

std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t place = text.size(); place > 3; place -= 3) {
    text.insert(place - 3, 1, ',');
  }
  return text;
}

std::string three_places(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3f", value);
  return text;
}

// Every number that the picture shows is one of the JSON's.
void check_picture(const std::string& svg, const Json& result) {
  CHECK(is_well_formed(svg));
  CHECK(contains(svg, grouped(result["requests"]) + " requests, N = " + grouped(result["tokens"]) +
                          " tokens; one trie over all of it: N' = " + grouped(result["trie_rows"]) + ", gamma " +
                          three_places(result["trie_gamma"])));
  for (const Json& budget : result["budgets"]) {
    CHECK(contains(svg, budget["verdict"].get<std::string>().substr(0, 60)));
    for (const auto& [name, key] : {std::pair{"order of arrival", "arrival"}, std::pair{"planned", "planned"},
                                    std::pair{"planned, budget on N'", "planned_by_unique_rows"}}) {
      const Json& way = budget[key];
      CHECK(contains(svg, std::string(">").append(name) + ", " + grouped(budget["budget"]) +
                              " a batch: N' = " + grouped(way["unique_rows"]) + ", gamma " +
                              three_places(way["gamma"]) + ", " + grouped(way["batches"]) + " batches<"));
      // The bar is as high as gamma on an axis of 220, and has its number above.
      char height[40];
      std::snprintf(height, sizeof height, "height=\"%.1f\"", 220 * way["gamma"].get<double>());
      CHECK(contains(svg, height));
      CHECK(contains(svg, std::string(">") + three_places(way["gamma"]) + "</text>"));
    }
  }
  int number = 0;
  for (const Json& prefix : result["prefixes"]) {
    const std::string text = grouped(prefix["tokens"]) + (prefix["tokens"] == 1 ? " token" : " tokens") + " \u00d7 " +
                             grouped(prefix["requests"]);
    ++number;
    CHECK(contains(svg, std::string(">") + text + " requests</text>"));  // in the table
    CHECK(contains(svg, std::string(">") + grouped(prefix["rows_saved"]) + "</text>"));
    CHECK((contains(svg, std::string(">") + std::to_string(number) + ": " + text + "</text>") ||  // in its box or above
           contains(svg, std::string(">") + std::to_string(number) + "</text>")));
  }
}

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
        "worth it: at 100 tokens a batch it saves 41.7% of the rows in order of arrival, 41.7% planned; predicted 1.00 "
        "to 1.71 times as fast, planned 1.00 to 1.71");
  CHECK(result["prefixes"] == Json::parse(R"([
      {"rows_saved": 4, "tokens": 2, "own_tokens": 2, "requests": 3, "first": "a", "window": 1},
      {"rows_saved": 1, "tokens": 3, "own_tokens": 1, "requests": 2, "first": "a", "window": 1}])"));
  CHECK(result["skipped_lines"].empty());

  const Outcome text = analyze("--budget 8 --top 1 - < " + path);
  CHECK(text.exit_code == 0);
  CHECK(contains(text.output, "4 requests, N = 12 tokens"));
  CHECK(contains(text.output, "   8    0.833       (2)    0.750       (2)    0.583       (1) "));
  CHECK(text.errors.empty());
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
                                      {"{\"blocks\":[1],\"len\":\"3\"}", "len = \"3\" is not an integer"},
                                      {"{\"tokens\":[" + std::string(200'000, '[') + std::string(200'000, ']') + "]}",
                                       "tokens[0] = an array is not an integer"},
                                      {"{\"id\":\"\x01\"}", "not JSON at byte "}}) {
    CAPTURE(line.substr(0, 40));
    const std::string path = file_of(good + "\n" + line + "\n" + good);
    const Outcome refused = analyze(path);
    CHECK(refused.exit_code == 1);
    CHECK(refused.output.empty());
    CHECK(contains(refused.errors, "in.jsonl:3: " + message));
    const Json result = result_of("--skip-bad-lines " + path);
    CHECK(result["requests"] == 2);
    CHECK(result["skipped"] == 1);
    CHECK(result["skipped_lines"] == Json{3});
  }
}

TEST_CASE("a line without an end is not read into memory, and empty requests are in no batch") {
  const std::string good = "{\"tokens\":[1,2]}\n";
  const std::string path = file_of(good + std::string((64 << 20) + 1, ' ') + "\n{\"tokens\":[]}\n" + good);
  CHECK(contains(analyze(path).errors, "in.jsonl:2: is longer than 64 MiB"));
  const Json result = result_of("--skip-bad-lines --budget 2 " + path);
  CHECK(result["skipped_lines"] == Json{2});
  CHECK(result["requests"] == 3);
  CHECK(result["budgets"][0]["arrival"] == Json{{"batches", 2}, {"unique_rows", 4}, {"gamma", 1.0}});
  CHECK(result_of(file_of("{\"tokens\":[1]}"))["tokens"] == 1);  // no newline at the end
}

TEST_CASE("gzip is recognised by its first bytes, in files and on standard input") {
  const std::string path = compressed(RADIXMLP_SAMPLE);
#ifdef RADIXMLP_HAS_ZLIB
  const Json plain = without_times(result_of(RADIXMLP_SAMPLE));
  CHECK(plain["budgets"][1]["arrival"]["unique_rows"] == 21874);
  CHECK(without_times(result_of(path)) == plain);
  CHECK(without_times(result_of("- < " + path)) == plain);
  CHECK(without_times(result_of("- < " RADIXMLP_SAMPLE)) == plain);

  const std::string bytes = contents(path);
  const Outcome cut = analyze(file_of(bytes.substr(0, bytes.size() / 2)));
  CHECK(cut.exit_code == 1);
  CHECK(cut.output.empty());
  CHECK(contains(cut.errors, "damaged gzip data: it ends too early"));
  std::string damaged = bytes;
  for (std::size_t i = damaged.size() / 2; i < damaged.size() / 2 + 64; ++i) {
    damaged[i] = static_cast<char>(~damaged[i]);
  }
  CHECK(contains(analyze(file_of(damaged)).errors, "damaged gzip data: "));
  CHECK(result_of(file_of(bytes + bytes))["requests"] == 320);  // two members
#else
  CHECK(contains(analyze(path).errors, "is compressed, and this program was built without zlib; zcat FILE"));
#endif
}

TEST_CASE("predictions are those of the cost model") {
  // N = 8, N' = 5; 20 query-key pairs, 14 of compact queries; a row is 1 s, a pair 1 s or 0.5 s through pages.
  const std::string path = file_of("{\"tokens\":[1,2,3,4]}\n{\"tokens\":[1,2,3,5]}\n");
  const std::string model = " --model hidden=1,layers=10,heads=1,kv_heads=1,head_dim=1,intermediate=1,name=mine ";
  const auto predicted = [&](const std::string& rates) {
    const Json models = result_of("--rates " + rates + model + path)["budgets"][0]["predicted_speedup"];
    REQUIRE(models.size() == 1);
    CHECK(models[0]["model"] == "mine");
    CHECK(models[0]["layers"] == 10);
    CHECK(models[0]["arrival"] == models[0]["planned"]);
    CHECK(models[0]["arrival"] == models[0]["planned_by_unique_rows"]);
    return models[0];
  };
  const auto check = [](const Json& value, double expected) { CHECK(std::abs(value.get<double>() - expected) < 1e-9); };
  Json model_result = predicted("gemm=14,attention=4,paged=8,copy=100,bytes=1");
  Json way = model_result["arrival"];
  check(way["layer_seconds_without"], 28);
  check(way["ragged"], 28 / (5 + 20 + (8 * 3 + 5) / 100.0));
  check(way["compact_query"], 28 / (5 + 14 + 8 * 2 / 100.0));
  check(way["paged"], 28 / (5 + 7.0));
  check(model_result["index_share_of_layer"].get<double>() / model_result["index_share_of_layers"].get<double>(), 10);
  // Two calls that move, 4 bytes an element; then moving costs too much, and ragged rows stay.
  way = predicted("gemm=14,attention=4,copy=1000,move=0.25,bytes=4")["arrival"];
  check(way["ragged"], 28 / (5 + 20 + 4 * (8 * 3 + 5) / 1000.0 + 0.5));
  check(way["compact_query"], 28 / (5 + 14 + 4 * 8 * 2 / 1000.0 + 0.25));
  check(way["paged"], 28 / (5 + 14.0));
  way = predicted("gemm=14,attention=4,copy=1,bytes=4")["arrival"];
  check(way["ragged"], 1);
  check(way["compact_query"], 1);
}

TEST_CASE("presets have the models' dimensions, and repeat what was published") {
  const std::vector<std::pair<std::string, std::string>> presets{
      {"qwen3-0.6b", "hidden=1024,layers=28,heads=16,kv_heads=8,head_dim=128,intermediate=3072"},
      {"qwen3-1.7b", "hidden=2048,layers=28,heads=16,kv_heads=8,head_dim=128,intermediate=6144"},
      {"qwen3-4b", "hidden=2560,layers=36,heads=32,kv_heads=8,head_dim=128,intermediate=9728"},
      {"qwen3-8b", "hidden=4096,layers=36,heads=32,kv_heads=8,head_dim=128,intermediate=12288"},
      {"llama3-8b", "hidden=4096,layers=32,heads=32,kv_heads=8,head_dim=128,intermediate=14336"},
      {"llama3-70b", "hidden=8192,layers=80,heads=64,kv_heads=8,head_dim=128,intermediate=28672"}};
  // The published batch: 32 sequences of 2048 shared and 256 own tokens.
  std::string text;
  for (int s = 0; s < 32; ++s) {
    Json tokens = Json::array();
    for (int i = 0; i < 2304; ++i) {
      tokens.push_back(i < 2048 ? i : 10'000 + 256 * s + i);
    }
    text += Json{{"tokens", tokens}}.dump() + "\n";
  }
  const std::string path = file_of(text);
  std::string own;
  for (const auto& [name, dimensions] : presets) {
    own += "--model " + dimensions + ",name=" + name + " ";
  }
  const Json result = without_times(result_of("--budget 100000 " + path));
  CHECK(without_times(result_of("--budget 100000 " + own + path)) == result);
  const Json& models = result["budgets"][0]["predicted_speedup"];
  REQUIRE(models.size() == presets.size());
  for (const auto& [name, published] : {std::pair{"qwen3-0.6b", 394 / 144.0}, std::pair{"qwen3-4b", 1656 / 400.0},
                                        std::pair{"qwen3-8b", 2866 / 576.0}}) {
    CAPTURE(name);
    const auto model = std::find_if(models.begin(), models.end(),
                                    [wanted = std::string(name)](const Json& m) { return m["model"] == wanted; });
    REQUIRE(model != models.end());
    CHECK(std::abs((*model)["arrival"]["ragged"].get<double>() / published - 1) < 0.2);
    CHECK((*model)["arrival"]["compact_query"] > (*model)["arrival"]["ragged"]);
    CHECK((*model)["arrival"]["paged"] > (*model)["arrival"]["compact_query"]);
  }
}

TEST_CASE("the picture of a small trie") {
  const std::string path = file_of(
      "{\"id\":\"a<&\\\"\\u0007\\u00e9\",\"tokens\":[1,2,3,4]}\n{\"tokens\":[9,9]}\n{\"tokens\":[1,2,3,5]}\n"
      "{\"tokens\":[1,2]}\n");
  const std::string svg = svg_of("--budget 8,100 " + path);
  check_picture(svg, result_of("--budget 8,100 " + path));
  CHECK(contains(svg, "a&lt;&amp;&quot;?\u00e9"));
  // 1090 wide for 4 requests, 380 high for 4 tokens; sorted: [1,2] [1,2,3,4] [1,2,3,5] [9,9].
  CHECK(contains(svg, "x=\"80.0\" y=\"134.0\" width=\"817.5\" height=\"190.0\""));
  CHECK(contains(svg, "<title>2 tokens \u00d7 3 requests, 2 more tokens in common</title>"));
  CHECK(contains(svg, "x=\"352.5\" y=\"324.0\" width=\"545.0\" height=\"95.0\""));
  CHECK(contains(svg, "<title>3 tokens \u00d7 2 requests, 1 more tokens in common</title>"));
  CHECK(contains(svg, "d=\"M80.0 134.0H80.0V324.0H352.5V514.0H897.5V324.0H1170.0V134.0z\""));  // lengths 2 4 4 2
  CHECK(contains(svg, "d=\"M80.0 134.0H80.0V324.0H352.5V419.0H897.5V134.0H1170.0V134.0z\""));  // shared 2 3 3 0

  CHECK(contains(analyze("--svg /nowhere/x.svg " + path).errors, "/nowhere/x.svg: cannot write"));
}

TEST_CASE("the picture in the documents is of what the program says now") {
  check_picture(contents(RADIXMLP_SOURCE_DIR "/docs/analyze.svg"),
                result_of("--budget 1024,4096,16384 " RADIXMLP_SAMPLE));
}

TEST_CASE("pictures of windows, of many budgets and of nothing shared") {
  const std::string path =
      file_of("{\"tokens\":[1,2,3]}\n{\"tokens\":[1,2,4]}\n{\"tokens\":[7,7]}\n{\"tokens\":[7,8]}\n");
  const std::string windows = svg_of("--budget 6 --window 6 " + path);
  CHECK(is_well_formed(windows));
  CHECK(contains(windows, "(in 2 windows of at most 6 tokens; the trie drawn is the first)"));
  CHECK(contains(windows, ">2 requests, sorted by their tokens<"));
  CHECK(contains(windows, "(window 2)"));
  const std::string budgets = "--budget 10,1,2,3,4,5,6,7,8,9 " + path;
  const std::string many = svg_of(budgets);
  CHECK(is_well_formed(many));
  CHECK(many.find(">9</text>") < many.rfind(">10</text>"));  // sorted
  const std::string nothing = file_of("{\"tokens\":[1]}\n{\"tokens\":[2]}\n");
  check_picture(svg_of("--budget 2 " + nothing), result_of("--budget 2 " + nothing));
}

TEST_CASE("options and files that are wrong") {
  for (const auto& [arguments, message] : {std::pair<std::string, std::string>{"", "no file"},
                                           {"--budget 0 x", "--budget = '0': must be an integer from 1 to"},
                                           {"--budget 5,x y", "--budget = 'x': must be"},
                                           {"--window 1e9 x", "--window = '1e9': must be"},
                                           {"x --top", "--top needs a value"},
                                           {"--colour x", "unknown option --colour"},
                                           {"x y", "more than one file: x and y"},
                                           {"--model gpt x", "unknown preset \"gpt\"; known: tiny qwen3-0.6b"},
                                           {"--model hidden=1 x", "--model: head_dim= is missing"},
                                           {"--model hidden=1,hidden=2 x", "--model: hidden is there twice"},
                                           {"--rates gemm=1,speed=2 x", "--rates: 'speed=2' is not name=value with"},
                                           {"--rates gemm=0,attention=1,copy=1 x", "--rates: gemm = '0': must be a"},
                                           {"--rates gemm=nan,attention=1,copy=1 x", "gemm = 'nan': must be a number"},
                                           {"--rates gemm=1,attention=1 x", "--rates: copy= is missing"}}) {
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
  const std::set<std::string> compressible{"bbh_3shot_cot", "embed_query_banking77", "stories260k_rollouts_g16"};
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
    if (compressible.count(name) != 0) {
#ifdef RADIXMLP_HAS_ZLIB
      CHECK(without_times(result_of("- < " + compressed((folder / (name + ".jsonl")).string()))) ==
            without_times(result));
#endif
      check_picture(svg_of((folder / (name + ".jsonl")).string()), result);
    }
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
