// SPDX-License-Identifier: MIT
#include "engine/token_file.hpp"

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace example {
namespace {

using Json = nlohmann::json;

std::vector<std::int32_t> parse_request(const std::string& line) {
  Json request;
  try {
    request = Json::parse(line);
  } catch (const Json::parse_error& error) {
    throw std::invalid_argument("not JSON at byte " + std::to_string(error.byte));
  }
  if (!request.is_object() || !request.contains("tokens") || !request["tokens"].is_array()) {
    throw std::invalid_argument("not an object with an array \"tokens\"");
  }
  std::vector<std::int32_t> tokens;
  for (const Json& token : request["tokens"]) {
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
      throw std::invalid_argument("tokens[" + std::to_string(tokens.size()) + "] = " + token.dump() +
                                  " is not an integer from 0 to 2147483647");
    }
    tokens.push_back(token.get<std::int32_t>());
  }
  return tokens;
}

}  // namespace

void TokenBatch::append(const std::vector<std::int32_t>& request) {
  tokens.insert(tokens.end(), request.begin(), request.end());
  for (std::int32_t position = 0; position < static_cast<std::int32_t>(request.size()); ++position) {
    positions.push_back(position);
  }
  cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
}

std::vector<TokenBatch> read_token_file(const std::string& path, std::int64_t batch_tokens) {
  std::ifstream file(path);
  if (!file) {
    throw TokenFileError(path + ": cannot open");
  }
  const auto limit = static_cast<std::size_t>(batch_tokens > 0 ? batch_tokens : radixmlp::max_rows);
  std::vector<TokenBatch> batches(1);
  std::string line;
  std::size_t tokens = 0;
  for (std::int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    try {
      const std::vector<std::int32_t> request = parse_request(line);
      if (!batches.back().tokens.empty() && batches.back().tokens.size() + request.size() > limit) {
        batches.emplace_back();
      }
      batches.back().append(request);
      tokens += request.size();
    } catch (const std::invalid_argument& error) {
      throw TokenFileError(path + ':' + std::to_string(number) + ": " + error.what());
    }
  }
  if (file.bad()) {
    throw TokenFileError(path + ": cannot read");
  }
  if (tokens == 0) {
    throw TokenFileError(path + ": holds no tokens");
  }
  return batches;
}

}  // namespace example
