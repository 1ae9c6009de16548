// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

#include "radixmlp/index/ragged_batch.hpp"

namespace radixmlp::inline v0 {

// What besides its tokens a sequence's rows depend on. Empty or zero = none of that kind.
struct SequenceIdentity {
  std::string_view adapter = {};          // LoRA adapter by name, ...
  std::string_view adapter_version = {};  // ... and the version of its weights: the same name may be loaded again
  std::string_view tenant = {};           // or cache salt
  Key128 past = {};             // identity of the KV cache that it continues (beside RaggedBatch::past_lengths)
  std::string_view other = {};  // attention bias, window, anything else that changes its rows
};

}  // namespace radixmlp::inline v0

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

// Gives out the `sequence_keys` of a batch: two identities have the same key exactly if all their fields are equal.
// Every field is written down with its length in a fixed order, so nothing in one field can look like another (a tenant
// named like an adapter), and the keys are numbers given out in turn, so nothing can collide. Keys hold within one
// table; clear() it when it has grown (the keys of one batch must come from one table). Host only, not thread-safe.
class SequenceKeys {
 public:
  [[nodiscard]] std::uint64_t key(const SequenceIdentity& identity) {
    text_.clear();
    append(identity.adapter);
    append(identity.adapter_version);
    append(identity.tenant);
    append(identity.other);
    append_number(identity.past.lo);
    append_number(identity.past.hi);
    return keys_.try_emplace(text_, keys_.size()).first->second;
  }

  [[nodiscard]] std::size_t size() const noexcept { return keys_.size(); }
  void clear() noexcept { keys_.clear(); }

 private:
  void append(std::string_view field) {
    append_number(field.size());
    text_ += field;
  }
  void append_number(std::uint64_t number) { text_.append(reinterpret_cast<const char*>(&number), sizeof number); }

  std::unordered_map<std::string, std::uint64_t> keys_;
  std::string text_;
};

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
