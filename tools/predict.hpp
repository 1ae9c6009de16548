// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model.hpp"
#include "radixmlp/block/compaction_policy.hpp"
#include "radixmlp/index/index_stats.hpp"

namespace radixmlp_tools {

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// An integer from 1 to radixmlp::max_rows; UsageError that names the option.
std::int64_t positive_number(const std::string& option, const std::string& text);

struct Model {
  std::string name;
  example::ModelConfig dimensions;
};

// All presets but the one for tests.
std::vector<Model> preset_models();

// A preset's name, or "hidden=...,layers=...,heads=...,kv_heads=...,head_dim=...,intermediate=...[,name=...]".
Model parse_model(const std::string& text);

struct Machine {
  std::string name;
  radixmlp::MachineRates rates;  // FLOP/s and bytes/s
  double move = 0;               // seconds of a call that moves rows, beside its bytes
  std::int64_t element_bytes = 0;

  [[nodiscard]] std::string text() const;  // as parse_machine takes it
};

// GEMMs and attention: between what the published times of the method come to on an H100 (arXiv 2601.15013: Qwen3 0.6B,
// 4B and 8B, fp16, 32 sequences of 2,304 tokens: 230 to 390 and 180 to 250 TFLOP/s). Copies: 85% of the 3.35 TB/s of
// its data sheet, half of them reads. Assumed: attention through pages is as fast, and a launch takes 5 us.
inline const Machine published_h100{
    "H100 as published",
    {.row_flops = 3e14, .pair_flops = 2.2e14, .paged_pair_flops = 2.2e14, .bytes = 1.4e12},
    5e-6,
    2};

// "gemm=...,attention=...,copy=...[,paged=...][,move=...][,bytes=...]": FLOP/s of GEMMs and of attention, on pages too;
// bytes/s that move (each read and written); seconds of a call that moves; bytes of an element.
Machine parse_machine(const std::string& text);

inline constexpr std::array<radixmlp::AttentionLayout, 3> layouts{
    radixmlp::AttentionLayout::ragged, radixmlp::AttentionLayout::compact_query, radixmlp::AttentionLayout::paged};

// Predicted seconds of one layer over some batches: without compaction, and with it in an engine whose attention serves
// ragged rows and that layout, and that asks the cost model about each batch.
struct LayerSeconds {
  double without = 0;
  std::array<double, layouts.size()> with{};

  [[nodiscard]] double speedup(std::size_t layout) const { return with[layout] > 0 ? without / with[layout] : 1.0; }
};

class Predictor {
 public:
  Predictor(const std::vector<Model>& models, const Machine& machine);

  // Adds a batch's seconds to each model's.
  void add(const radixmlp::IndexStats& batch, std::vector<LayerSeconds>& by_model) const;

 private:
  std::vector<radixmlp::CostModel> models_;
};

}  // namespace radixmlp_tools
