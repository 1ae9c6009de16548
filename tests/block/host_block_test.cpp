// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <string>

#include "support/host_backend.hpp"

using Backend = radixmlp_test::HostBackend;

// What DeviceIndexBuilder does, by the trie.
class Builder {
 public:
  explicit Builder(const radixmlp::IndexCapacity& capacity) : capacity_(capacity) {}

  void build(const Backend&, radixmlp::RaggedBatch<std::int32_t> batch, std::span<std::byte> memory) {
    const radixmlp::PrefixIndexView index = radixmlp::capacity_index(capacity_, memory);
    auto* const counts = const_cast<radixmlp::IndexCounts*>(index.counts);
    const radixmlp::IndexCounts before = *counts;
    const std::int32_t rows = batch.cu_seqlens.back();
    radixmlp::PrefixIndexView built{.ragged_rows = rows};
    if (rows <= capacity_.ragged_rows) {
      batch.tokens = batch.tokens.first(static_cast<std::size_t>(rows));
      batch.token_keys =
          std::span(static_cast<const radixmlp::Key128*>(batch.token_keys.data()), static_cast<std::size_t>(rows));
      built = trie_.build(batch);
    }
    const radixmlp::Status status = radixmlp::fits(built, capacity_);
    if (status.ok()) {
      radixmlp::stage_index(built, capacity_, memory);
      counts->fault = before.fault;
      counts->fault_value = before.fault_value;
      return;
    }
    std::memset(memory.data(), 0, memory.size());
    *counts = {-1, -1, -1, 0, before.fault, -1, before.fault_value};
    if (before.fault == 0) {
      const std::array faults{"none", "ragged_rows", "compact_rows", "sequences", "max_seqlen"};
      counts->fault = static_cast<std::int32_t>(std::find(faults.begin(), faults.end(), std::string(status.argument)) -
                                                faults.begin());
      counts->fault_value = static_cast<std::int32_t>(status.value);
    }
  }

 private:
  radixmlp::IndexCapacity capacity_;
  radixmlp::PrefixTrie trie_;
};

#include "block/block_cases.hpp"
#include "block/capacity_cases.hpp"
