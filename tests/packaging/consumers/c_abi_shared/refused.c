// SPDX-License-Identifier: MIT
#include <radixmlp/c/radixmlp.h>
#include <stdio.h>

int main(void) {
  const int32_t tokens[] = {1, 2, 1, 3};
  const int32_t cu_seqlens[] = {0, 2, 5};
  radixmlp_batch batch = {.size = sizeof batch};
  batch.tokens = (radixmlp_array){tokens, 4, RADIXMLP_INT32};
  batch.cu_seqlens = (radixmlp_int32s){cu_seqlens, 3};
  radixmlp_trie* trie = NULL;
  radixmlp_index index = {.size = sizeof index};
  radixmlp_status status;
  if (radixmlp_trie_create(&trie, &status) == RADIXMLP_OK) {
    radixmlp_build(trie, &batch, NULL, &index, &status);
  }
  printf("%s\n", status.message);
  radixmlp_trie_destroy(trie);
  return 0;
}
