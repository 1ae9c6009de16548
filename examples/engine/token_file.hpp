// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "radixmlp/index/ragged_batch.hpp"

namespace example {

// Requests laid end to end, with the position of each token in its request.
struct TokenBatch {
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> cu_seqlens{0};

  void append(const std::vector<std::int32_t>& request);
  [[nodiscard]] radixmlp::RaggedBatch<std::int32_t> ragged() const {
    return {.tokens = tokens, .cu_seqlens = cu_seqlens};  // positions count from 0, which is what absent ones mean
  }
};

// The message names the file and, where one is at fault, the line.
struct TokenFileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads {"id":"...","tokens":[1,2,3]}, one request a line; other members and blank lines are skipped. Requests stay in
// file order and fill batches of at most `batch_tokens` (a longer request is a batch of its own; 0 = no limit).
[[nodiscard]] std::vector<TokenBatch> read_token_file(const std::string& path, std::int64_t batch_tokens = 0);

}  // namespace example
