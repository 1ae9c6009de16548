// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "radixmlp/index/ragged_batch.hpp"

namespace radixmlp_bench {

struct Batch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> cu_seqlens{0};

  [[nodiscard]] radixmlp::RaggedBatch<std::int32_t> view() const {
    return {.tokens = tokens, .cu_seqlens = cu_seqlens};
  }
  [[nodiscard]] std::size_t sequences() const { return cu_seqlens.size() - 1; }

  void add(const std::vector<std::int32_t>& request) {
    tokens.insert(tokens.end(), request.begin(), request.end());
    cu_seqlens.push_back(static_cast<std::int32_t>(tokens.size()));
  }
};

// The numbers of the array named `key` in a line of JSON; false if the line has none.
inline bool parse_array(std::string_view line, std::string_view key, std::vector<std::int32_t>& numbers) {
  const std::size_t at = line.find(key);
  const std::size_t open = at == std::string_view::npos ? at : line.find('[', at);
  const std::size_t close = open == std::string_view::npos ? open : line.find(']', open);
  if (close == std::string_view::npos) {
    return false;
  }
  numbers.clear();
  const char* const end = line.data() + close;
  for (const char* at_number = line.data() + open + 1; at_number < end; ++at_number) {
    if (*at_number == ',' || *at_number == ' ') {
      continue;
    }
    std::int32_t number = 0;
    const std::from_chars_result result = std::from_chars(at_number, end, number);
    if (result.ec != std::errc{}) {
      return false;
    }
    numbers.push_back(number);
    at_number = result.ptr - 1;
  }
  return true;
}

inline std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Requests of a JSON-lines file, in file order: lines with "tokens":[...], or with "len":n and "blocks":[...], where a
// block id stands for 512 tokens (the last block of a request may be cut short) and equal ids for equal tokens. Stops
// once the requests have `max_tokens`.
inline std::vector<std::vector<std::int32_t>> load_requests(const std::string& path,
                                                            std::size_t max_tokens = std::size_t(-1)) {
  constexpr std::uint64_t block_tokens = 512;
  constexpr std::uint64_t vocabulary = 151'642;
  std::ifstream file(path);
  if (!file) {
    throw std::runtime_error("cannot read " + path);
  }
  std::vector<std::vector<std::int32_t>> requests;
  std::size_t tokens = 0;
  std::string line;
  while (tokens < max_tokens && std::getline(file, line)) {
    std::vector<std::int32_t> request;
    if (std::vector<std::int32_t> blocks; parse_array(line, "\"blocks\"", blocks)) {
      const std::size_t at = line.find("\"len\":");
      const std::uint64_t length = at == std::string::npos ? 0 : std::stoull(line.substr(at + 6));
      for (std::uint64_t i = 0; i < length && i / block_tokens < blocks.size(); ++i) {
        const auto block = static_cast<std::uint64_t>(blocks[i / block_tokens]);
        request.push_back(
            static_cast<std::int32_t>(1 + splitmix64(block * block_tokens + i % block_tokens) % vocabulary));
      }
    } else if (!parse_array(line, "\"tokens\"", request)) {
      throw std::runtime_error(path + ": line " + std::to_string(requests.size() + 1) +
                               " has neither \"tokens\" nor \"blocks\"");
    }
    tokens += request.size();
    requests.push_back(std::move(request));
  }
  return requests;
}

// As many of the requests as it takes for at least so many rows, in rounds that share nothing.
inline Batch batch_of(const std::vector<std::vector<std::int32_t>>& requests, std::size_t rows) {
  constexpr std::int32_t vocabulary = 151'936;
  Batch batch;
  for (std::size_t i = 0; batch.tokens.size() < rows; ++i) {
    std::vector<std::int32_t> request = requests[i % requests.size()];
    for (std::int32_t& token : request) {
      token += static_cast<std::int32_t>(i / requests.size()) * vocabulary;
    }
    batch.add(request);
  }
  return batch;
}

// File order: a request opens a new batch where the tokens would pass the budget; a longer one is a batch of its own.
inline std::vector<Batch> batches(const std::vector<std::vector<std::int32_t>>& requests, std::size_t budget) {
  std::vector<Batch> all;
  for (const std::vector<std::int32_t>& request : requests) {
    if (all.empty() || all.back().tokens.size() + request.size() > budget) {
      all.emplace_back();
    }
    all.back().add(request);
  }
  return all;
}

}  // namespace radixmlp_bench
