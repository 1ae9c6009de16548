// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "radixmlp/index/ragged_batch.hpp"

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// A ragged batch made from interleaved rows that each carry a sequence id, as llama.cpp's batches do. It owns its
// arrays; memory is kept between calls of `assign`. Sequences are numbered in order of first appearance, the rows of a
// sequence keep their order.
template <TokenId Token>
class TaggedBatch {
 public:
  // tokens, positions and sequence_ids [N]; positions may be empty. Any ids, in any order. O(N), host only. Throws
  // InvalidBatch before anything is changed.
  void assign(std::span<const Token> tokens, std::span<const std::int32_t> positions,
              std::span<const std::int32_t> sequence_ids) {
    const auto rows = static_cast<std::int64_t>(tokens.size());
    if (rows > max_rows) {
      detail::raise(detail::invalid_batch("tokens", -1, rows, "its size must not exceed", max_rows));
    }
    detail::raise_unless_ok(detail::validate_size("positions", positions.size(), rows));
    if (sequence_ids.size() != tokens.size()) {
      detail::raise(detail::invalid_batch("sequence_ids", -1, static_cast<std::int64_t>(sequence_ids.size()),
                                          "its size must be", rows));
    }

    // A counting sort by sequence, stable within each.
    sequence_of_id_.clear();
    sequence_ids_.clear();
    cu_seqlens_.assign(1, 0);
    sequence_.resize(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto [found, is_new] =
          sequence_of_id_.try_emplace(sequence_ids[i], static_cast<std::int32_t>(sequence_ids_.size()));
      if (is_new) {
        sequence_ids_.push_back(sequence_ids[i]);
        cu_seqlens_.push_back(0);
      }
      sequence_[i] = found->second;
      ++cu_seqlens_[static_cast<std::size_t>(found->second) + 1];
    }
    for (std::size_t s = 1; s < cu_seqlens_.size(); ++s) {
      cu_seqlens_[s] += cu_seqlens_[s - 1];
    }
    next_.assign(cu_seqlens_.begin(), cu_seqlens_.end() - 1);
    tokens_.resize(tokens.size());
    positions_.resize(positions.size());
    tagged_row_.resize(tokens.size());
    ragged_row_.resize(tokens.size());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto row = static_cast<std::size_t>(next_[static_cast<std::size_t>(sequence_[i])]++);
      tokens_[row] = tokens[i];
      if (!positions.empty()) {
        positions_[row] = positions[i];
      }
      tagged_row_[row] = static_cast<std::int32_t>(i);
      ragged_row_[i] = static_cast<std::int32_t>(row);
    }
  }

  // Valid until the next `assign`; keys, pasts and opt-outs can be added to the copy, one a sequence in sequence_ids'
  // order.
  [[nodiscard]] RaggedBatch<Token> batch() const noexcept {
    RaggedBatch<Token> batch;
    batch.tokens = tokens_;
    batch.cu_seqlens = cu_seqlens_;
    batch.positions = positions_;
    return batch;
  }

  [[nodiscard]] std::span<const std::int32_t> sequence_ids() const noexcept { return sequence_ids_; }  // [B]
  [[nodiscard]] std::span<const std::int32_t> tagged_row() const noexcept {
    return tagged_row_;
  }  // [N]: of a ragged row
  [[nodiscard]] std::span<const std::int32_t> ragged_row() const noexcept {
    return ragged_row_;
  }  // [N]: of a tagged row

 private:
  std::vector<Token> tokens_;
  std::vector<std::int32_t> positions_, cu_seqlens_{0}, sequence_ids_, tagged_row_, ragged_row_, sequence_, next_;
  std::unordered_map<std::int32_t, std::int32_t> sequence_of_id_;
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
