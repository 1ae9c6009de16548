// SPDX-License-Identifier: MIT

// Greedy decoding with a llama2.c checkpoint: four copies of one request in one batch, computed once. Prints the ids,
// and how many rows the layers worked on.
//   radixmlp_llama CHECKPOINT [LAYOUT] [TOKENS]      layout: none, ragged, compact_query or paged (default)

#include "llama/llama_model.hpp"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "llama/llama_session.hpp"

int main(int argc, char** argv) try {
  if (argc < 2) {
    std::fprintf(stderr, "usage: radixmlp_llama CHECKPOINT [none|ragged|compact_query|paged] [TOKENS]\n");
    return 2;
  }
  const std::string layout_name = argc > 2 ? argv[2] : "paged";
  const int steps = argc > 3 ? std::stoi(argv[3]) : 64;
  example::LlamaSession::Options options;
  for (const auto layout : {radixmlp::AttentionLayout::ragged, radixmlp::AttentionLayout::compact_query,
                            radixmlp::AttentionLayout::paged}) {
    if (layout_name == radixmlp::name(layout)) {
      options.layout = layout;
    }
  }
  if (!options.layout && layout_name != "none") {
    std::fprintf(stderr, "unknown layout \"%s\"\n", layout_name.c_str());
    return 2;
  }
  constexpr std::int32_t bos = 1;
  const example::LlamaModel model(argv[1]);
  example::LlamaSession session(model, 4, options);
  std::vector<std::vector<std::int32_t>> next(4, {bos});
  for (int step = 0; step < steps; ++step) {
    const auto logits = session.append(next);
    for (std::size_t s = 0; s < next.size(); ++s) {
      next[s] = {example::most_likely(logits, static_cast<std::int64_t>(s))};
    }
    std::printf("%d ", next[0][0]);
  }
  std::printf("\n%lld rows computed for %d\n", static_cast<long long>(session.rows_computed()), 4 * steps);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "radixmlp_llama: %s\n", error.what());
  return 1;
}
