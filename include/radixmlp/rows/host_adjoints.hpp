// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "radixmlp/executor.hpp"
#include "radixmlp/index/duplicates.hpp"
#include "radixmlp/index/prefix_index.hpp"
#include "radixmlp/rows/host_row_ops.hpp"
#include "radixmlp/rows/row_view.hpp"

// What a backward pass needs, on the host. Shared rows are computed once, so their gradient is the sum over all rows
// that they stand for, in one order and the same in every run.

namespace radixmlp::inline v0::inline RADIXMLP_MODE {

namespace detail {

// f(first, last) for chunks of rows, so that handing one out costs little.
template <HostExecutor Executor, class F>
void for_row_chunks(const Executor& executor, std::int64_t rows, F&& f) {
  constexpr std::int64_t chunk = 64;
  executor.parallel_for((rows + chunk - 1) / chunk,
                        [&](std::int64_t c) { f(c * chunk, std::min(rows, (c + 1) * chunk)); });
}

inline void check_values(const char* argument, std::size_t size, std::int64_t needed) {
  if (static_cast<std::int64_t>(size) < needed) {
    raise(invalid_rows(argument, -1, static_cast<std::int64_t>(size), "its size must be at least", needed));
  }
}

}  // namespace detail

// Adjoint of gather_rows, for every RowCopy{compact gradient, ragged gradient}: a row's gradient goes to the ragged row
// that it was taken from, all other ragged rows get zero. Throws InvalidRows before any row is written.
template <HostExecutor Executor, class... Sources, class... Targets>
void gather_rows_adjoint(const Executor& executor, const PrefixIndexView& index,
                         const RowCopy<Sources, Targets>&... copies) {
  detail::check_without_counts(index);
  static_cast<void>(detail::checked_bytes({index.compact_rows, index.ragged_rows}, copies...));
  const auto move = [&](const auto& copy) {
    detail::for_row_chunks(executor, index.ragged_rows, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t i = first; i < last; ++i) {
        const std::int32_t row = index.scatter[static_cast<std::size_t>(i)];
        auto* const to = copy.target.row(i);
        if (index.gather[static_cast<std::size_t>(row)] == i) {
          std::copy_n(copy.source.row(row), copy.target.width(), to);
        } else {
          std::fill_n(to, copy.target.width(), std::remove_reference_t<decltype(*to)>{});
        }
      }
    });
  };
  (..., move(copies));
}

// Adjoint of scatter_rows, for every RowCopy{ragged gradient, compact gradient}: each compact row gets the sum over the
// rows that copy it (`sum_duplicates`: float, Fp16, Bf16 or a type with a FloatFormatOf), padding rows zero.
// `copies_of` from duplicates(index, ...), or from inverse_of for another map (K and V in compact_query:
// inverse_of(plan.key_slots, ...)). Throws InvalidRows before any row is written.
template <HostExecutor Executor, class... Sources, class... Targets>
void scatter_rows_adjoint(const Executor& executor, const PrefixIndexView& index, const RowLists& copies_of,
                          const RowCopy<Sources, Targets>&... copies) {
  detail::check_without_counts(index);
  detail::check_values("copies_of.offsets", copies_of.offsets.size(), std::int64_t{index.compact_rows} + 1);
  const auto tensors =
      detail::checked_bytes({static_cast<std::int64_t>(copies_of.values.size()), index.padded_rows}, copies...);
  (..., sum_duplicates(executor, copies_of, copies.source, copies.target));
  for (const detail::ByteRows& rows : tensors) {
    detail::zero_rows(rows, index.compact_rows, index.padded_rows);
  }
}

// out[j] = sum over the ragged rows i that compact row j stands for of sequence_weights[sequence of i] *
// token_weights[i]: what a loss that is a weighted sum over tokens gives each compact row (sample weights, GRPO
// advantages, loss masks). sequence_weights [B], token_weights [N] or empty = 1. Entries of `out` behind N' are not
// touched. One thread, rising order, O(N). Throws InvalidRows before anything is written.
template <std::floating_point W>
void row_weights(const PrefixIndexView& index, std::span<const W> sequence_weights, std::span<const W> token_weights,
                 std::span<W> out) {
  detail::check_without_counts(index);
  detail::check_values("sequence_weights", sequence_weights.size(), index.sequences());
  detail::check_values("token_weights", token_weights.size(), token_weights.empty() ? 0 : index.ragged_rows);
  detail::check_values("out", out.size(), index.compact_rows);
  std::fill_n(out.begin(), index.compact_rows, W{0});
  for (std::size_t s = 0; s < static_cast<std::size_t>(index.sequences()); ++s) {
    for (std::int32_t i = index.ragged_cu[s]; i < index.ragged_cu[s + 1]; ++i) {
      const auto at = static_cast<std::size_t>(i);
      out[static_cast<std::size_t>(index.scatter[at])] +=
          sequence_weights[s] * (token_weights.empty() ? W{1} : token_weights[at]);
    }
  }
}

// The output head on compact rows. A token is predicted by the row before it, so the predictions of a batch are its
// compact rows that have a parent: edges of the trie, as many as there are distinct (history, next token). Row j's
// log-probability is logits[parent[j]][tokens[j]] - log_sums[parent[j]]; a sequence's is the sum over its rows.
//
// (exp and log are the compiler's builtins: <cmath> has the special functions too, and takes longer to read than this.)
//
// logits [N' rows, vocabulary]; tokens [N'] from compact_tokens; log_sums [N'] and out [N'] are written, out with 0 for
// first rows. Throws InvalidRows, and InvalidBatch where the index has no `parent`, before anything is written.
template <HostExecutor Executor, class T, std::int64_t Width>
void edge_log_probabilities(const Executor& executor, const PrefixIndexView& index, const RowView<T, Width>& logits,
                            std::span<const std::int32_t> tokens, std::span<float> log_sums, std::span<float> out) {
  detail::check_without_counts(index);
  detail::check_with_parent(index);
  const std::int64_t rows = index.compact_rows;
  detail::check_values("tokens", tokens.size(), rows);
  detail::check_values("log_sums", log_sums.size(), rows);
  detail::check_values("out", out.size(), rows);
  if (logits.rows() < rows) {
    detail::raise(detail::invalid_rows("logits.rows", -1, logits.rows(), "must be at least", rows));
  }
  for (std::int64_t j = 0; j < rows; ++j) {
    const std::int32_t token = tokens[static_cast<std::size_t>(j)];
    if (token < 0 || token >= logits.width()) {
      detail::raise(detail::invalid_rows("tokens", j, token, "must be from 0 to below", logits.width()));
    }
  }
  detail::for_row_chunks(executor, rows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t j = first; j < last; ++j) {
      const T* const row = logits.row(j);
      const auto largest = static_cast<double>(*std::max_element(row, row + logits.width()));
      double sum = 0;
      for (std::int64_t c = 0; c < logits.width(); ++c) {
        sum += __builtin_exp(static_cast<double>(row[c]) - largest);
      }
      log_sums[static_cast<std::size_t>(j)] = static_cast<float>(largest + __builtin_log(sum));
    }
  });
  for (std::size_t j = 0; j < static_cast<std::size_t>(rows); ++j) {
    const std::int32_t parent = index.parent[j];
    out[j] = parent < 0
                 ? 0.0F
                 : static_cast<float>(logits.row(parent)[tokens[j]]) - log_sums[static_cast<std::size_t>(parent)];
  }
}

// Its adjoint: from d_log_probabilities [N'] (for a weighted sum of negative log-probabilities, minus row_weights) to
// d_logits, which may be `logits` itself. `scratch` has N' floats. Throws as edge_log_probabilities does.
template <HostExecutor Executor, class T, std::int64_t Width, class D, std::int64_t DWidth>
void edge_log_probabilities_adjoint(const Executor& executor, const PrefixIndexView& index,
                                    const RowView<T, Width>& logits, std::span<const std::int32_t> tokens,
                                    std::span<const float> log_sums, std::span<const float> d_log_probabilities,
                                    std::span<float> scratch, const RowView<D, DWidth>& d_logits) {
  detail::check_without_counts(index);
  detail::check_with_parent(index);
  const auto rows = static_cast<std::size_t>(index.compact_rows);
  detail::check_values("tokens", tokens.size(), index.compact_rows);
  detail::check_values("log_sums", log_sums.size(), index.compact_rows);
  detail::check_values("d_log_probabilities", d_log_probabilities.size(), index.compact_rows);
  detail::check_values("scratch", scratch.size(), index.compact_rows);
  if (d_logits.rows() < index.compact_rows || d_logits.width() != logits.width()) {
    detail::raise(detail::invalid_rows("d_logits.rows", -1, d_logits.rows(),
                                       "must be at least N', of the logits' width; N' is", index.compact_rows));
  }
  std::fill_n(scratch.begin(), rows, 0.0F);
  for (std::size_t j = 0; j < rows; ++j) {
    if (index.parent[j] >= 0) {
      scratch[static_cast<std::size_t>(index.parent[j])] += d_log_probabilities[j];
    }
  }
  detail::for_row_chunks(executor, index.compact_rows, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t j = first; j < last; ++j) {
      const auto at = static_cast<std::size_t>(j);
      for (std::int64_t c = 0; c < logits.width(); ++c) {
        d_logits.row(j)[c] =
            static_cast<D>(-scratch[at] * __builtin_expf(static_cast<float>(logits.row(j)[c]) - log_sums[at]));
      }
    }
  });
  for (std::size_t j = 0; j < rows; ++j) {
    if (index.parent[j] >= 0) {
      d_logits.row(index.parent[j])[tokens[j]] += static_cast<D>(d_log_probabilities[j]);
    }
  }
}

}  // namespace radixmlp::inline v0::inline RADIXMLP_MODE
