// SPDX-License-Identifier: MIT

// The C ABI from C99: the index of a file of token lines, and rows moved along it and back.
//   index_rows examples/data/rerank.jsonl

#include <radixmlp/c/radixmlp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "token_lines.h"

enum { WIDTH = 8 };  // floats of a row

static int fail(const radixmlp_status* status) {
  fprintf(stderr, "%s\n", status->message);
  return 1;
}

static int run(const struct token_lines* lines, radixmlp_trie* trie) {
  const int32_t rows = lines->cu_seqlens[lines->sequences];

  // [index]
  radixmlp_batch batch = {.size = sizeof batch};  // everything else is absent
  batch.tokens.data = lines->tokens;              // [N]
  batch.tokens.count = rows;
  batch.tokens.type = RADIXMLP_INT32;
  batch.cu_seqlens.data = lines->cu_seqlens;  // [B+1]
  batch.cu_seqlens.count = lines->sequences + 1;

  radixmlp_build_options options = {.size = sizeof options};
  options.pad_to = 64;

  radixmlp_status status;
  radixmlp_index index = {.size = sizeof index};
  if (radixmlp_build(trie, &batch, &options, &index, &status) != RADIXMLP_OK) {
    return fail(&status);
  }
  printf("N = %d, N' = %d, gamma = %.4f\n", index.ragged_rows, index.compact_rows, index.ratio);
  // [/index]

  // Two tensors: floats that are a function of the token, as an embedding is, and the token ids themselves.
  float* const ragged = malloc((size_t)rows * WIDTH * sizeof *ragged);
  float* const compact = malloc((size_t)index.padded_rows * WIDTH * sizeof *compact);
  float* const back = calloc((size_t)rows * WIDTH, sizeof *back);
  int32_t* const compact_tokens = malloc((size_t)index.padded_rows * sizeof *compact_tokens);
  int failed = ragged == NULL || compact == NULL || back == NULL || compact_tokens == NULL;
  for (int64_t i = 0; !failed && i < (int64_t)rows * WIDTH; ++i) {
    ragged[i] = (float)lines->tokens[i / WIDTH] + (float)(i % WIDTH) / WIDTH;
  }
  if (!failed) {
    // [rows]
    // {source}, {target}: data, rows, bytes of a row, bytes from one row to the next.
    const int64_t bytes = WIDTH * sizeof(float);
    const radixmlp_row_copy gathered[] = {
        {{ragged, rows, bytes, bytes}, {compact, index.padded_rows, bytes, bytes}},
        {{lines->tokens, rows, 4, 4}, {compact_tokens, index.padded_rows, 4, 4}},
    };
    failed = radixmlp_gather_rows(&index, gathered, 2, NULL, &status) != RADIXMLP_OK;

    // ... norms, projections and MLP on index.padded_rows rows of `compact` ...

    const radixmlp_row_copy scattered = {{compact, index.padded_rows, bytes, bytes}, {back, rows, bytes, bytes}};
    failed = failed || radixmlp_scatter_rows(&index, &scattered, 1, NULL, &status) != RADIXMLP_OK;
    // [/rows]
    if (failed) {
      fail(&status);
    }
  }
  for (int64_t j = 0; !failed && j < index.compact_rows; ++j) {
    failed = compact_tokens[j] != lines->tokens[index.gather[j]];
  }
  if (!failed && memcmp(back, ragged, (size_t)rows * WIDTH * sizeof *back) == 0) {
    printf("rows gathered and scattered are the same\n");
  } else {
    failed = 1;
  }
  free(ragged);
  free(compact);
  free(back);
  free(compact_tokens);
  return failed;
}

int main(int argc, char** argv) {
  struct token_lines lines;
  if (argc != 2 || !read_token_lines(argv[1], &lines)) {
    fprintf(stderr, "usage: index_rows FILE, with a request {\"tokens\":[1,2,3]} a line\n");
    return 2;
  }
  radixmlp_status status;
  radixmlp_trie* trie = NULL;  // keep one; it reuses its memory
  const int failed = radixmlp_trie_create(&trie, &status) == RADIXMLP_OK ? run(&lines, trie) : fail(&status);
  radixmlp_trie_destroy(trie);
  free_token_lines(&lines);
  return failed;
}
