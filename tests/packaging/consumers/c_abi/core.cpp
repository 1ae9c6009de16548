// SPDX-License-Identifier: MIT

// The one file of a C++17 engine that knows of the library.
#include "core.hpp"

#include <radixmlp/c/radixmlp.h>

#include "token_lines.h"

static_assert(__cplusplus == 201703L, "linking radixmlp::c must leave the standard alone");

int compact_rows_of(const char* path) {
  token_lines lines;
  if (read_token_lines(path, &lines) == 0) {
    return -1;
  }
  radixmlp_trie* trie = nullptr;
  radixmlp_index index{};
  index.size = sizeof index;
  radixmlp_batch batch{};
  batch.size = sizeof batch;
  batch.tokens = {lines.tokens, lines.cu_seqlens[lines.sequences], RADIXMLP_INT32};
  batch.cu_seqlens = {lines.cu_seqlens, lines.sequences + 1};
  radixmlp_status status;
  const bool built = radixmlp_trie_create(&trie, &status) == RADIXMLP_OK &&
                     radixmlp_build(trie, &batch, nullptr, &index, &status) == RADIXMLP_OK;
  radixmlp_trie_destroy(trie);
  free_token_lines(&lines);
  return built ? index.compact_rows : -1;
}
