// SPDX-License-Identifier: MIT

// The host half of the C ABI (include/radixmlp/c/radixmlp.h).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "c_abi.hpp"
#include "radixmlp/block/compaction_policy.hpp"
#include "radixmlp/executor.hpp"
#include "radixmlp/index/attention_plan.hpp"
#include "radixmlp/index/compact_inputs.hpp"
#include "radixmlp/index/index_stats.hpp"
#include "radixmlp/index/pooled_rows.hpp"
#include "radixmlp/index/prefix_trie.hpp"
#include "radixmlp/index/sequence_keys.hpp"
#include "radixmlp/rows/host_row_ops.hpp"
#include "radixmlp/rows/host_rows.hpp"

struct radixmlp_trie {
  radixmlp::PrefixTrie trie;
};
struct radixmlp_sequence_keys {
  radixmlp::SequenceKeys keys;
};

namespace radixmlp_c {
namespace {

using radixmlp::KeySpan;
using radixmlp::PositionSpan;
using radixmlp::RaggedBatch;

// The caller's executor, or the calling thread.
class Executor {
 public:
  explicit Executor(const radixmlp_executor* from) {
    if (from != nullptr) {
      executor_ = *required("executor", from);
      if (executor_.parallel_for == nullptr) {
        refuse("executor.parallel_for", 0, "must not be null");
      }
    }
  }

  [[nodiscard]] bool is_serial() const noexcept { return executor_.parallel_for == nullptr; }

  template <class F>
  void parallel_for(std::int64_t n, F&& f) const {
    if (is_serial()) {
      radixmlp::serial.parallel_for(n, f);
      return;
    }
    auto task = [&f](std::int64_t i) { f(i); };
    executor_.parallel_for(
        executor_.context, n, [](void* context, std::int64_t i) { (*static_cast<decltype(task)*>(context))(i); },
        &task);
  }

 private:
  radixmlp_executor executor_{};
};

template <class T>
std::span<const T> values_of(const char* name, const radixmlp_array& array) {
  return span_of(name, static_cast<const T*>(array.data), array.count);
}

KeySpan keys_of(const char* name, const radixmlp_array& array) {
  if (array.count == 0) {
    return {};
  }
  switch (array.type) {
    case RADIXMLP_UINT64:
      return values_of<std::uint64_t>(name, array);
    case RADIXMLP_KEY128:
      return values_of<radixmlp::Key128>(name, array);
    default:
      refuse(name, array.type, "its type must be RADIXMLP_UINT64 or RADIXMLP_KEY128");
  }
}

template <class T>
PositionSpan positions_as(const radixmlp_batch& batch) {
  const std::span<const T> values = values_of<T>("positions", batch.positions);
  if (batch.position_axes == 0 && batch.position_token_stride == 0 && batch.position_axis_stride == 0) {
    return values;
  }
  return {values, batch.position_axes, batch.position_token_stride, batch.position_axis_stride};
}

PositionSpan positions_of(const radixmlp_batch& batch) {
  if (batch.positions.count == 0) {
    return {};
  }
  switch (batch.positions.type) {
    case RADIXMLP_INT8:
      return positions_as<std::int8_t>(batch);
    case RADIXMLP_UINT8:
      return positions_as<std::uint8_t>(batch);
    case RADIXMLP_INT16:
      return positions_as<std::int16_t>(batch);
    case RADIXMLP_UINT16:
      return positions_as<std::uint16_t>(batch);
    case RADIXMLP_INT32:
      return positions_as<std::int32_t>(batch);
    case RADIXMLP_UINT32:
      return positions_as<std::uint32_t>(batch);
    case RADIXMLP_INT64:
      return positions_as<std::int64_t>(batch);
    case RADIXMLP_UINT64:
      return positions_as<std::uint64_t>(batch);
    default:
      refuse("positions", batch.positions.type,
             "its type must be that of an integer, RADIXMLP_INT8 to RADIXMLP_UINT64");
  }
}

template <class Token>
RaggedBatch<Token> batch_as(const radixmlp_batch& from) {
  RaggedBatch<Token> batch;
  batch.tokens = values_of<Token>("tokens", from.tokens);
  batch.cu_seqlens = span_of("cu_seqlens", from.cu_seqlens);
  batch.positions = positions_of(from);
  batch.token_keys = keys_of("token_keys", from.token_keys);
  batch.sequence_keys = keys_of("sequence_keys", from.sequence_keys);
  batch.past_lengths = span_of("past_lengths", from.past_lengths);
  batch.opt_out = span_of("opt_out", static_cast<const std::uint8_t*>(from.opt_out.data), from.opt_out.count);
  return batch;
}

// use(RaggedBatch) with the type that the tokens have.
template <class Use>
void with_batch(const radixmlp_batch* from, const Use& use) {
  const radixmlp_batch batch = read_struct("batch", from);
  switch (batch.tokens.count == 0 ? std::int32_t{RADIXMLP_INT32} : batch.tokens.type) {
    case RADIXMLP_INT32:
    case RADIXMLP_UINT32:  // equal exactly where their bits are, and may be read as each other
      return use(batch_as<std::int32_t>(batch));
    case RADIXMLP_INT64:
      return use(batch_as<std::int64_t>(batch));
    default:
      refuse("tokens", batch.tokens.type, "its type must be RADIXMLP_INT32, RADIXMLP_UINT32 or RADIXMLP_INT64");
  }
}

radixmlp::AttentionPlanOptions options_of(const radixmlp_plan_options* from) {
  const auto given = read_optional("options", from);
  radixmlp::AttentionPlanOptions options;
  if (given.partition != RADIXMLP_BY_SEQUENCES && given.partition != RADIXMLP_BY_EDGES) {
    refuse("partition", given.partition, "must be RADIXMLP_BY_SEQUENCES or RADIXMLP_BY_EDGES");
  }
  options.partition = static_cast<radixmlp::QueryPartition>(given.partition);
  options.keep_empty = given.keep_empty != 0;
  options.query_tile = at_least_one(given.query_tile);
  options.window = given.window;
  options.past_lengths = span_of("past_lengths", given.past_lengths);
  options.slots = span_of("slots", given.slots);
  options.past_page_indptr = span_of("past_page_indptr", given.past_page_indptr);
  options.past_pages = span_of("past_pages", given.past_pages);
  options.past_page_size = at_least_one(given.past_page_size);
  return options;
}

radixmlp::AttentionPlan plan_of(const radixmlp_plan* from) {
  const radixmlp_plan given = read_struct("plan", from);
  if (given.segments < 0) {
    refuse("plan.segments", given.segments, "must be at least", 0);
  }
  if (given.max_seqlen_k < 0) {
    refuse("plan.max_seqlen_k", given.max_seqlen_k, "must be at least", 0);
  }
  radixmlp::AttentionPlan plan;
  plan.cu_seqlens_q = span_of("plan.cu_seqlens_q", given.cu_seqlens_q, std::int64_t{given.segments} + 1);
  plan.cu_seqlens_k = span_of("plan.cu_seqlens_k", given.cu_seqlens_k, std::int64_t{given.segments} + 1);
  plan.key_slots = span_of("plan.key_slots", given.key_slots, given.keys);
  plan.last_page_len = span_of("plan.last_page_len", given.last_page_len, given.segments);
  plan.sequences = span_of("plan.sequences", given.sequences, given.segments);
  plan.past_k = span_of("plan.past_k", given.past_k, given.segments);
  if (given.query_rows != nullptr) {
    plan.query_rows = span_of("plan.query_rows", given.query_rows, given.queries);
    // As many as compact rows, which the plan does not say; where they start is all that is asked of it here.
    plan.output_rows = span_of("plan.output_rows", given.output_rows, 1);
  }
  plan.block = span_of("plan.block", given.block, given.block_entries);
  plan.queries = given.queries;
  plan.keys = given.keys;
  plan.max_seqlen_q = given.max_seqlen_q;
  plan.max_seqlen_k = given.max_seqlen_k;
  plan.window = given.window;
  plan.past_keys = given.past_keys;
  plan.in_cache = given.in_cache != 0;
  return plan;
}

radixmlp_plan to_c(const radixmlp::AttentionPlan& plan) noexcept {
  const auto data = [](std::span<const std::int32_t> array) { return array.empty() ? nullptr : array.data(); };
  radixmlp_plan out{};
  out.cu_seqlens_q = plan.cu_seqlens_q.data();
  out.cu_seqlens_k = plan.cu_seqlens_k.data();
  out.key_slots = data(plan.key_slots);
  out.last_page_len = data(plan.last_page_len);
  out.sequences = data(plan.sequences);
  out.past_k = data(plan.past_k);
  out.query_rows = data(plan.query_rows);
  out.output_rows = data(plan.output_rows);
  out.block = data(plan.block);
  out.block_entries = static_cast<std::int64_t>(plan.block.size());
  out.segments = plan.segments();
  out.queries = plan.queries;
  out.keys = plan.keys;
  out.max_seqlen_q = plan.max_seqlen_q;
  out.max_seqlen_k = plan.max_seqlen_k;
  out.window = plan.window;
  out.past_keys = plan.past_keys;
  out.in_cache = plan.in_cache ? 1 : 0;
  return out;
}

radixmlp_row_lists to_c(const radixmlp::RowLists& lists) noexcept {
  return {lists.offsets.data(), lists.values.data(), static_cast<std::int64_t>(lists.offsets.size()) - 1,
          static_cast<std::int64_t>(lists.values.size())};
}

std::string_view text_of(const char* name, const radixmlp_bytes& bytes) {
  const std::span<const char> text = span_of(name, static_cast<const char*>(bytes.data), bytes.count);
  return {text.data(), text.size()};
}

// A call that computes one number from an index.
template <class Count>
std::int32_t counted(const radixmlp_index* index, Needs needs, std::int64_t* entries, radixmlp_status* status,
                     const Count& count) noexcept {
  return guarded(status, [&] {
    required("entries", entries);
    *entries = static_cast<std::int64_t>(count(index_of("index", index, needs)));
  });
}

// A call that makes lists in the caller's memory.
template <class Make>
std::int32_t made_lists(std::int32_t* memory, std::int64_t entries, radixmlp_row_lists* lists, radixmlp_status* status,
                        const Make& make) noexcept {
  return guarded(status, [&] {
    required("lists", lists);
    *lists = to_c(make(span_of("memory", memory, entries)));
  });
}

}  // namespace
}  // namespace radixmlp_c

using namespace radixmlp_c;

extern "C" {

std::int32_t radixmlp_abi_version(void) { return RADIXMLP_ABI_VERSION; }

#define RADIXMLP_TEXT(number) #number
#define RADIXMLP_VERSION_TEXT(major, minor, patch) \
  RADIXMLP_TEXT(major) "." RADIXMLP_TEXT(minor) "." RADIXMLP_TEXT(patch)
const char* radixmlp_version(void) {
  return RADIXMLP_VERSION_TEXT(RADIXMLP_VERSION_MAJOR, RADIXMLP_VERSION_MINOR, RADIXMLP_VERSION_PATCH);
}

// --- Index ---

std::int32_t radixmlp_trie_create(radixmlp_trie** trie, radixmlp_status* status) {
  return guarded(status, [&] {
    required("trie", trie);  // before anything is there to lose
    *trie = new radixmlp_trie;
  });
}

void radixmlp_trie_destroy(radixmlp_trie* trie) { delete trie; }

std::int32_t radixmlp_index_bytes(std::int64_t rows, std::int64_t sequences, std::int32_t pad_to, std::int64_t* bytes,
                                  radixmlp_status* status) {
  return guarded(status, [&] {
    required("bytes", bytes);
    const auto check = [](const char* name, std::int64_t value, std::int64_t least) {
      if (value < least || value > radixmlp::max_rows) {
        refuse(name, value, "must not be negative, and at most", radixmlp::max_rows);
      }
    };
    check("rows", rows, 0);
    check("sequences", sequences, 0);
    check("pad_to", pad_to, 0);
    *bytes = static_cast<std::int64_t>(radixmlp::index_bytes(rows, sequences, at_least_one(pad_to)));
  });
}

std::int32_t radixmlp_build(radixmlp_trie* trie, const radixmlp_batch* batch, const radixmlp_build_options* options,
                            radixmlp_index* index, radixmlp_status* status) {
  return guarded(status, [&] {
    radixmlp::PrefixTrie& builder = required("trie", trie)->trie;
    const auto given = read_optional("options", options);
    const Executor executor(given.executor);
    const Output<radixmlp_index> out("index", index);
    const radixmlp::BuildOptions build_options{.pad_to = at_least_one(given.pad_to)};
    with_batch(batch, [&](const auto& ragged) {
      const auto build = [&](const auto& where) {
        if (given.memory == nullptr) {
          return builder.build(ragged, build_options, where);
        }
        const auto memory = span_of("memory", static_cast<std::byte*>(given.memory), given.memory_bytes);
        return builder.build_into(memory, ragged, build_options, where);
      };
      out.set(to_c(executor.is_serial() ? build(radixmlp::serial) : build(executor)));
    });
  });
}

std::int32_t radixmlp_index_relocated(const radixmlp_index* index, const void* base, radixmlp_index* moved,
                                      radixmlp_status* status) {
  return guarded(status, [&] {
    const PrefixIndexView view = index_in_block("index", index);
    const Output<radixmlp_index> out("moved", moved);
    required("base", static_cast<const std::byte*>(base), radixmlp::index_alignment);
    out.set(to_c(view.relocated(base)));
  });
}

// --- What follows from an index ---

std::int32_t radixmlp_compact_tokens(const radixmlp_batch* batch, const radixmlp_index* index, void* out,
                                     std::int64_t out_count, radixmlp_status* status) {
  return guarded(status, [&] {
    const PrefixIndexView view = index_of("index", index, Needs::all);
    with_batch(batch, [&]<class Token>(const RaggedBatch<Token>& ragged) {
      radixmlp::detail::raise_unless_ok(validate(ragged));
      compact_tokens(ragged, view, span_of("out", static_cast<Token*>(out), out_count));
    });
  });
}

std::int32_t radixmlp_compact_positions(const radixmlp_batch* batch, const radixmlp_index* index, std::int32_t* out,
                                        std::int64_t out_count, radixmlp_status* status) {
  return guarded(status, [&] {
    const PrefixIndexView view = index_of("index", index, Needs::all);
    with_batch(batch, [&](const auto& ragged) {
      radixmlp::detail::raise_unless_ok(validate(ragged));
      compact_positions(ragged, view, span_of("out", out, out_count));
    });
  });
}

std::int32_t radixmlp_row_lists_entries(const radixmlp_index* index, std::int64_t* entries, radixmlp_status* status) {
  return counted(index, Needs::rows, entries, status,
                 [](const PrefixIndexView& view) { return row_lists_entries(view); });
}

std::int32_t radixmlp_duplicates(const radixmlp_index* index, std::int32_t* memory, std::int64_t entries,
                                 radixmlp_row_lists* lists, radixmlp_status* status) {
  return made_lists(memory, entries, lists, status, [&](std::span<std::int32_t> room) {
    return duplicates(index_of("index", index, Needs::rows), room);
  });
}

std::int32_t radixmlp_row_sequences(const radixmlp_index* index, std::int32_t* memory, std::int64_t entries,
                                    radixmlp_row_lists* lists, radixmlp_status* status) {
  return made_lists(memory, entries, lists, status, [&](std::span<std::int32_t> room) {
    return row_sequences(index_of("index", index, Needs::all), room);
  });
}

std::int32_t radixmlp_inverse_of(radixmlp_int32s map, std::int32_t rows, std::int32_t* memory, std::int64_t entries,
                                 radixmlp_row_lists* lists, radixmlp_status* status) {
  return made_lists(memory, entries, lists, status, [&](std::span<std::int32_t> room) {
    if (rows < 0) {
      refuse("rows", rows, "must be at least", 0);
    }
    const std::span<const std::int32_t> row_of = span_of("map", map);
    for (std::size_t i = 0; i < row_of.size(); ++i) {
      if (row_of[i] < 0 || row_of[i] >= rows) {
        refuse("map", row_of[i], "must not be negative, and below", rows, static_cast<std::int64_t>(i));
      }
    }
    return radixmlp::inverse_of(row_of, rows, room);
  });
}

std::int32_t radixmlp_multiplicities(const radixmlp_index* index, std::int32_t* out, std::int64_t out_count,
                                     radixmlp_status* status) {
  return guarded(status,
                 [&] { multiplicities(index_of("index", index, Needs::rows), span_of("out", out, out_count)); });
}

std::int32_t radixmlp_pooled_rows(const radixmlp_index* index, std::int32_t pooled_row, std::int32_t row_space,
                                  std::int32_t* out, std::int64_t out_count, radixmlp_status* status) {
  return guarded(status, [&] {
    if (pooled_row != RADIXMLP_FIRST_ROW && pooled_row != RADIXMLP_LAST_ROW) {
      refuse("pooled_row", pooled_row, "must be RADIXMLP_FIRST_ROW or RADIXMLP_LAST_ROW");
    }
    if (row_space != RADIXMLP_RAGGED_SPACE && row_space != RADIXMLP_COMPACT_SPACE) {
      refuse("row_space", row_space, "must be RADIXMLP_RAGGED_SPACE or RADIXMLP_COMPACT_SPACE");
    }
    pooled_rows(index_of("index", index, Needs::all), static_cast<radixmlp::PooledRow>(pooled_row),
                static_cast<radixmlp::RowSpace>(row_space), span_of("out", out, out_count));
  });
}

std::int32_t radixmlp_compact_rows_of(const radixmlp_index* index, radixmlp_int32s rows, std::int32_t* out,
                                      std::int64_t out_count, radixmlp_status* status) {
  return guarded(status, [&] {
    compact_rows_of(index_of("index", index, Needs::rows), span_of("rows", rows), span_of("out", out, out_count));
  });
}

std::int32_t radixmlp_index_stats(const radixmlp_index* index, radixmlp_int32s past_lengths, radixmlp_stats* stats,
                                  radixmlp_status* status) {
  return guarded(status, [&] {
    const Output<radixmlp_stats> out("stats", stats);
    const radixmlp::IndexStats of_index =
        index_stats(index_of("index", index, Needs::all), span_of("past_lengths", past_lengths));
    radixmlp_stats filled{};
    filled.attention_pairs = of_index.attention_pairs;
    filled.compact_attention_pairs = of_index.compact_attention_pairs;
    static_assert(sizeof filled.shared_rows == sizeof of_index.shared_rows);
    std::copy(of_index.shared_rows.begin(), of_index.shared_rows.end(), filled.shared_rows);
    out.set(filled);
  });
}

std::int32_t radixmlp_decide(const radixmlp_index* index, double max_ratio, std::int32_t min_rows, std::int32_t layout,
                             radixmlp_decision* decision, radixmlp_status* status) {
  return guarded(status, [&] {
    required("decision", decision);
    if (std::isnan(max_ratio)) {
      refuse("max_ratio", 0, "must be a number");
    }
    if (layout < RADIXMLP_LAYOUT_RAGGED || layout > RADIXMLP_LAYOUT_PAGED) {
      refuse("layout", layout, "must be a radixmlp_layout, at most", RADIXMLP_LAYOUT_PAGED);
    }
    const radixmlp::CompactionPolicy policy{.max_ratio = max_ratio, .min_rows = min_rows};
    const radixmlp::CompactionDecision made =
        policy.decide(index_of("index", index, Needs::rows), static_cast<radixmlp::AttentionLayout>(layout));
    static_assert(RADIXMLP_RATIO_LOW_ENOUGH == static_cast<int>(radixmlp::CompactionReason::ratio_low_enough));
    *decision = {made.compacts ? 1 : 0, static_cast<std::int32_t>(made.layout), static_cast<std::int32_t>(made.reason)};
  });
}

// --- Keys of sequences ---

std::int32_t radixmlp_sequence_keys_create(radixmlp_sequence_keys** keys, radixmlp_status* status) {
  return guarded(status, [&] {
    required("keys", keys);
    *keys = new radixmlp_sequence_keys;
  });
}

void radixmlp_sequence_keys_destroy(radixmlp_sequence_keys* keys) { delete keys; }

std::int32_t radixmlp_sequence_key(radixmlp_sequence_keys* keys, const radixmlp_identity* identity, std::uint64_t* key,
                                   radixmlp_status* status) {
  return guarded(status, [&] {
    required("keys", keys);
    required("key", key);
    const radixmlp_identity given = read_struct("identity", identity);
    *key = keys->keys.key({.adapter = text_of("adapter", given.adapter),
                           .adapter_version = text_of("adapter_version", given.adapter_version),
                           .tenant = text_of("tenant", given.tenant),
                           .past = {given.past[0], given.past[1]},
                           .other = text_of("other", given.other)});
  });
}

std::int32_t radixmlp_sequence_keys_clear(radixmlp_sequence_keys* keys, radixmlp_status* status) {
  return guarded(status, [&] { required("keys", keys)->keys.clear(); });
}

// --- Attention plans ---

std::int32_t radixmlp_plan_entries(const radixmlp_index* index, const radixmlp_plan_options* options,
                                   std::int64_t* entries, radixmlp_status* status) {
  return counted(index, Needs::all, entries, status,
                 [&](const PrefixIndexView& view) { return attention_plan_entries(view, options_of(options)); });
}

std::int32_t radixmlp_make_plan(const radixmlp_index* index, const radixmlp_plan_options* options, std::int32_t* memory,
                                std::int64_t entries, radixmlp_plan* plan, radixmlp_status* status) {
  return guarded(status, [&] {
    const Output<radixmlp_plan> out("plan", plan);
    out.set(to_c(
        attention_plan(index_of("index", index, Needs::all), span_of("memory", memory, entries), options_of(options))));
  });
}

std::int32_t radixmlp_plan_relocated(const radixmlp_plan* plan, const std::int32_t* base, const radixmlp_index* index,
                                     const radixmlp_index* moved_index, radixmlp_plan* moved, radixmlp_status* status) {
  return guarded(status, [&] {
    const radixmlp::AttentionPlan from = plan_of(plan);
    const Output<radixmlp_plan> out("moved", moved);
    out.set(to_c(from.relocated(required("base", base), index_of("index", index, Needs::all),
                                index_of("moved_index", moved_index, Needs::all))));
  });
}

std::int32_t radixmlp_page_table_entries(const radixmlp_plan* plan, std::int64_t* entries, radixmlp_status* status) {
  return guarded(status, [&] { *required("entries", entries) = page_table_entries(plan_of(plan)); });
}

std::int32_t radixmlp_make_page_table(const radixmlp_plan* plan, std::int64_t max_entries, std::int32_t* memory,
                                      std::int64_t entries, radixmlp_page_table* table, radixmlp_status* status) {
  return guarded(status, [&] {
    required("table", table);
    const radixmlp::PageTable made = page_table(plan_of(plan), span_of("memory", memory, entries),
                                                max_entries == 0 ? radixmlp::max_page_table_entries : max_entries);
    *table = {made.pages.data(), made.seqused_k.data(), made.width};
  });
}

std::int32_t radixmlp_tree_mask_entries(const radixmlp_index* index, std::int64_t* entries, radixmlp_status* status) {
  return counted(index, Needs::rows, entries, status,
                 [](const PrefixIndexView& view) { return tree_mask_entries(view); });
}

std::int32_t radixmlp_make_tree_mask(const radixmlp_index* index, std::int32_t* memory, std::int64_t entries,
                                     radixmlp_tree_mask* mask, radixmlp_status* status) {
  return guarded(status, [&] {
    required("mask", mask);
    const radixmlp::TreeMask made = tree_mask(index_of("index", index, Needs::all), span_of("memory", memory, entries));
    *mask = {made.pre.data(), made.pre_end.data(), made.depth.data()};
  });
}

// --- Rows ---

std::int32_t radixmlp_gather_rows(const radixmlp_index* index, const radixmlp_row_copy* copies, std::int32_t count,
                                  const radixmlp_executor* executor, radixmlp_status* status) {
  return guarded(status, [&] {
    const PrefixIndexView view = index_of("index", index, Needs::rows);
    with_copies(copies, count, [&](const auto&... all) { gather_rows(Executor(executor), view, all...); });
  });
}

std::int32_t radixmlp_scatter_rows(const radixmlp_index* index, const radixmlp_row_copy* copies, std::int32_t count,
                                   const radixmlp_executor* executor, radixmlp_status* status) {
  return guarded(status, [&] {
    const PrefixIndexView view = index_of("index", index, Needs::rows);
    with_copies(copies, count, [&](const auto&... all) { scatter_rows(Executor(executor), view, all...); });
  });
}

std::int32_t radixmlp_scatter_to_slots(const radixmlp_index* index, radixmlp_array slots,
                                       const radixmlp_row_copy* copies, std::int32_t count,
                                       const radixmlp_executor* executor, radixmlp_status* status) {
  return guarded(status, [&] {
    constexpr radixmlp::RowOptions checked{.bounds = radixmlp::Bounds::trap};
    const PrefixIndexView view = index_of("index", index, Needs::rows);
    const radixmlp::Slots cache_rows = slots_of(slots);
    with_copies(copies, count,
                [&](const auto&... all) { scatter_to_slots<checked>(Executor(executor), view, cache_rows, all...); });
  });
}

std::int32_t radixmlp_check_slots(const radixmlp_index* index, radixmlp_array slots, std::int64_t cache_rows,
                                  std::int32_t* memory, std::int64_t entries, radixmlp_status* status) {
  return guarded(status, [&] {
    check_slots(index_of("index", index, Needs::rows), slots_of(slots), cache_rows, span_of("memory", memory, entries));
  });
}

std::int32_t radixmlp_sum_duplicates(const radixmlp_row_lists* lists, std::int32_t format,
                                     const radixmlp_row_copy* rows, const radixmlp_executor* executor,
                                     radixmlp_status* status) {
  return guarded(status, [&] {
    const radixmlp::RowLists of_rows = lists_of(lists);
    with_format(format, of_rows, rows, [&](const auto& ragged, const auto& compact) {
      sum_duplicates(Executor(executor), of_rows, ragged, compact);
    });
  });
}

}  // extern "C"
