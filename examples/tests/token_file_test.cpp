// SPDX-License-Identifier: MIT
#include "engine/token_file.hpp"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/catch.hpp"

namespace {

using example::read_token_file;

// A file that is gone with the test case.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text)
      : path_((std::filesystem::temp_directory_path() / ("radixmlp_token_file_" + std::to_string(++count_) + ".jsonl"))
                  .string()) {
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::remove(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  static inline int count_ = 0;
  std::string path_;
};

std::string error_of(const std::string& text) {
  const TemporaryFile file(text);
  try {
    static_cast<void>(read_token_file(file.path()));
  } catch (const example::TokenFileError& error) {
    const std::string message = error.what();
    return message.starts_with(file.path()) ? message.substr(file.path().size()) : message;
  }
  return "no error";
}

}  // namespace

TEST_CASE("requests are read in order; other members, blank lines and carriage returns do not matter") {
  const TemporaryFile file(
      "{\"id\":\"a\",\"tokens\":[1,2,3]}\r\n\n{\"tokens\": [2147483647], \"text\": \"[7] \\\" "
      "}\"}\n{\"id\":3,\"tokens\":[]}");
  const auto batches = read_token_file(file.path());
  REQUIRE(batches.size() == 1);
  CHECK(batches[0].tokens == std::vector<std::int32_t>{1, 2, 3, 2147483647});
  CHECK(batches[0].positions == std::vector<std::int32_t>{0, 1, 2, 0});
  CHECK(batches[0].cu_seqlens == std::vector<std::int32_t>{0, 3, 4, 4});
}

TEST_CASE("a budget closes a batch before it is passed; a longer request is a batch of its own") {
  const TemporaryFile file(
      "{\"tokens\":[1,2]}\n{\"tokens\":[3]}\n{\"tokens\":[4]}\n{\"tokens\":[5,6,7,8,9]}\n{\"tokens\":[10]}\n");
  const auto batches = read_token_file(file.path(), 3);
  REQUIRE(batches.size() == 4);
  CHECK(batches[0].cu_seqlens == std::vector<std::int32_t>{0, 2, 3});
  CHECK(batches[1].tokens == std::vector<std::int32_t>{4});
  CHECK(batches[2].tokens == std::vector<std::int32_t>{5, 6, 7, 8, 9});
  CHECK(batches[3].cu_seqlens == std::vector<std::int32_t>{0, 1});
}

TEST_CASE("errors name the file, the line and what is wrong") {
  const std::string good = "{\"tokens\":[1]}\n";
  const std::string not_request = " not an object with an array \"tokens\"";
  const std::string range = " is not an integer from 0 to 2147483647";
  CHECK(error_of("") == ": holds no tokens");
  CHECK(error_of("\n{\"tokens\":[]}\n") == ": holds no tokens");
  CHECK(error_of(good + "{\"tokens\":[1,2\n") == ":2: not JSON at byte 15");
  CHECK(error_of(good + "\nhello\n") == ":3: not JSON at byte 1");
  CHECK(error_of(good + "{\"tokens\":[1]} x\n") == ":2: not JSON at byte 16");
  CHECK(error_of("{\"ids\":[1]}\n") == ":1:" + not_request);
  CHECK(error_of("{\"tokens\":7}\n") == ":1:" + not_request);
  CHECK(error_of("[1,2]\n") == ":1:" + not_request);
  CHECK(error_of("{\"tokens\":[1,2.5]}\n") == ":1: tokens[1] = 2.5" + range);
  CHECK(error_of("{\"tokens\":[-1]}\n") == ":1: tokens[0] = -1" + range);
  CHECK(error_of("{\"tokens\":[2147483648]}\n") == ":1: tokens[0] = 2147483648" + range);
  CHECK(error_of("{\"tokens\":[\"1\"]}\n") == ":1: tokens[0] = \"1\"" + range);
  CHECK(error_of("{\"tokens\":[null]}\n") == ":1: tokens[0] = null" + range);
}

TEST_CASE("a file that cannot be read is an error") {
  CHECK_THROWS_WITH(read_token_file("/nonexistent/tokens.jsonl"), "/nonexistent/tokens.jsonl: cannot open");
  CHECK_THROWS_AS(read_token_file("/"), example::TokenFileError);
}
