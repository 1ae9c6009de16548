// SPDX-License-Identifier: MIT
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "radixmlp/pipeline/index_pipeline.hpp"
#include "radixmlp/radixmlp.hpp"

int main(int argc, char** argv) {
  const std::string_view hook = argc == 1 ? "hook" : argv[1];
  const std::array<std::int32_t, 4> tokens{1, 2, 1, 3};
  const std::array<std::int32_t, 3> cu_seqlens{0, 2, 4};
  const std::array<std::int32_t, 3> too_long{0, 2, 5};

  radixmlp::PrefixTrie trie;
  radixmlp::RaggedBatch<std::int32_t> batch{.tokens = tokens, .cu_seqlens = cu_seqlens};
  radixmlp::PrefixIndexView index;
  if (!trie.try_build(batch, {}, index).ok() || index.compact_rows != 3) {
    return 1;
  }
  batch.cu_seqlens = too_long;
  const radixmlp::Status status = trie.try_build(batch, {}, index);
  if (status.code != radixmlp::StatusCode::invalid_batch || status.index != 2 || status.value != 5 ||
      index.compact_rows != 3) {
    return 2;
  }

  // A malformed batch between two good ones, built by a thread of the pipeline.
  radixmlp::IndexPipeline pipeline({.slots = 3, .workers = 1});
  const radixmlp::RaggedBatch<std::int32_t> good{.tokens = tokens, .cu_seqlens = cu_seqlens};
  if (!pipeline.submit(good) || !pipeline.submit(batch) || !pipeline.submit(good) ||
      pipeline.take().view().compact_rows != 3 || pipeline.take().status().index != 2 ||
      pipeline.take().view().compact_rows != 3) {
    return 5;
  }

  if (hook == "hook") {
    // [hook]
    radixmlp::set_error_hook([](const radixmlp::Error& error) {
      std::printf("hook: %s\n", error.what());
      std::exit(error.index() == 2 ? 0 : 3);  // or log, longjmp, ...: anything but return
    });
    // [/hook]
  } else if (hook == "returns") {
    radixmlp::set_error_hook([](const radixmlp::Error&) { std::puts("returns"); });
  }
  static_cast<void>(trie.build(batch));
  return 4;  // the hook, or an abort, has ended the process
}
