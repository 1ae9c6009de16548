// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace radixmlp_tools {

struct NamedRequest {
  std::string id;  // empty if the line has none
  std::vector<std::int32_t> tokens;
};

namespace detail {

using Json = nlohmann::json;

// For messages and names; what is nested may be too deep to print.
inline std::string shown(const Json& value) {
  return value.is_structured() ? std::string("an ") + value.type_name() : value.dump();
}

inline std::int64_t integer(const Json& value, const std::string& what, std::int64_t most) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
    throw std::invalid_argument(what + " = " + shown(value).substr(0, 40) + " is not an integer from 0 to " +
                                std::to_string(most));
  }
  return value.get<std::int64_t>();
}

inline const Json& array(const Json& line, const char* name) {
  const Json& values = line[name];
  if (!values.is_array()) {
    throw std::invalid_argument(std::string(name) + " is not an array");
  }
  return values;
}

// At most 64 bytes of UTF-8.
inline std::string cut(std::string text) {
  std::size_t bytes = std::min<std::size_t>(text.size(), 64);
  while (bytes < text.size() && bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xc0U) == 0x80) {
    --bytes;  // inside of a character
  }
  text.resize(bytes);
  return text;
}

inline std::uint64_t splitmix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace detail

// A request from a line of JSON: an object with "tokens": [ids], or with "blocks": [ids] and "len": tokens, where equal
// blocks stand for `block_tokens` equal tokens each and the last may be cut short; such tokens are made up from the
// block's id. "id" names it, with its first 64 bytes. Throws std::invalid_argument that says what is wrong.
inline NamedRequest parse_request_line(const std::string& text, std::int64_t block_tokens) {
  using detail::Json;
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  constexpr std::uint64_t vocabulary = 151'642;
  Json line;
  try {
    line = Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw std::invalid_argument("not JSON at byte " + std::to_string(error.byte));
  }
  if (!line.is_object()) {
    throw std::invalid_argument("not a JSON object");
  }
  NamedRequest request;
  if (const auto id = line.find("id"); id != line.end()) {
    request.id = detail::cut(id->is_string() ? id->get<std::string>() : detail::shown(*id));
  }
  if (line.contains("tokens")) {
    for (const Json& token : detail::array(line, "tokens")) {
      const std::string what = "tokens[" + std::to_string(request.tokens.size()) + "]";
      request.tokens.push_back(static_cast<std::int32_t>(detail::integer(token, what, most)));
    }
    return request;
  }
  if (!line.contains("blocks") || !line.contains("len")) {
    throw std::invalid_argument("has neither \"tokens\" nor \"blocks\" and \"len\"");
  }
  const Json& blocks = detail::array(line, "blocks");
  const std::int64_t length = detail::integer(line["len"], "len", most);
  const auto count = static_cast<std::int64_t>(blocks.size());
  if (length > count * block_tokens || length <= (count - 1) * block_tokens) {
    throw std::invalid_argument("len = " + std::to_string(length) + " does not end in the last of " +
                                std::to_string(count) + " blocks of " + std::to_string(block_tokens));
  }
  request.tokens.reserve(static_cast<std::size_t>(length));
  for (std::int64_t b = 0; b < count; ++b) {
    const auto block = static_cast<std::uint64_t>(
        detail::integer(blocks[static_cast<std::size_t>(b)], "blocks[" + std::to_string(b) + "]",
                        std::numeric_limits<std::int64_t>::max() / (block_tokens + 1)));
    const std::int64_t end = std::min(block_tokens, length - b * block_tokens);
    for (std::int64_t i = 0; i < end; ++i) {
      const std::uint64_t place = block * static_cast<std::uint64_t>(block_tokens) + static_cast<std::uint64_t>(i);
      request.tokens.push_back(static_cast<std::int32_t>(1 + detail::splitmix64(place) % vocabulary));
    }
  }
  return request;
}

}  // namespace radixmlp_tools
