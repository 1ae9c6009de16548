// SPDX-License-Identifier: MIT
#include "predict.hpp"

#include <cmath>
#include <cstdio>
#include <map>
#include <set>
#include <utility>

namespace radixmlp_tools {
namespace {

// "name=value,name=value" as a map; UsageError for a name that is not known, is there twice or is missing.
std::map<std::string, std::string> parse_pairs(const std::string& option, const std::string& text,
                                               const std::set<std::string>& needed,
                                               const std::set<std::string>& optional) {
  std::map<std::string, std::string> pairs;
  std::string list = text + ',';
  for (std::size_t comma = list.find(','); comma != std::string::npos; comma = list.find(',')) {
    const std::string pair = list.substr(0, comma);
    list.erase(0, comma + 1);
    const std::size_t equals = pair.find('=');
    const std::string name = pair.substr(0, equals);
    if (equals == std::string::npos || needed.count(name) + optional.count(name) == 0) {
      std::string known;
      for (const std::set<std::string>& names : {needed, optional}) {
        for (const std::string& one : names) {
          known += ' ' + one;
        }
      }
      throw UsageError(option + ": '" + pair + "' is not name=value with a name out of:" + known);
    }
    if (!pairs.emplace(name, pair.substr(equals + 1)).second) {
      throw UsageError(option + ": " + name + " is there twice");
    }
  }
  for (const std::string& name : needed) {
    if (pairs.count(name) == 0) {
      throw UsageError(option + ": " + name + "= is missing");
    }
  }
  return pairs;
}

double positive_real(const std::string& what, const std::string& text) {
  std::size_t end = 0;
  double number = 0;
  try {
    number = std::stod(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  if (text.empty() || end != text.size() || !(number > 0) || !std::isfinite(number)) {
    throw UsageError(what + " = '" + text + "': must be a number above 0");
  }
  return number;
}

}  // namespace

std::int64_t positive_number(const std::string& option, const std::string& text) {
  std::size_t end = 0;
  std::int64_t number = 0;
  try {
    number = std::stoll(text, &end);
  } catch (const std::exception&) {
    end = 0;
  }
  if (end != text.size() || text.empty() || number < 1 || number > radixmlp::max_rows) {
    throw UsageError(option + " = '" + text + "': must be an integer from 1 to " + std::to_string(radixmlp::max_rows));
  }
  return number;
}

std::vector<Model> preset_models() {
  std::vector<Model> models;
  for (const example::ModelConfig& preset : example::presets) {
    if (preset.name != "tiny") {
      models.push_back({std::string(preset.name), preset});
    }
  }
  return models;
}

Model parse_model(const std::string& text) {
  if (text.find('=') == std::string::npos) {
    try {
      return {text, example::find_preset(text)};
    } catch (const std::invalid_argument& error) {
      throw UsageError(std::string("--model: ") + error.what() + ", or own dimensions hidden=...,layers=...");
    }
  }
  auto pairs =
      parse_pairs("--model", text, {"hidden", "layers", "heads", "kv_heads", "head_dim", "intermediate"}, {"name"});
  const auto number = [&](const std::string& name) {
    const std::int64_t value = positive_number("--model: " + name, pairs[name]);
    if (value > 1'000'000) {
      throw UsageError("--model: " + name + " = " + pairs[name] + ": must be at most 1000000");
    }
    return value;
  };
  const example::ModelConfig dimensions{{},
                                        number("hidden"),
                                        number("heads"),
                                        number("kv_heads"),
                                        number("head_dim"),
                                        number("intermediate"),
                                        number("layers")};
  if (dimensions.q_heads % dimensions.kv_heads != 0) {
    throw UsageError("--model: heads = " + pairs["heads"] + ": must be a multiple of kv_heads = " + pairs["kv_heads"]);
  }
  return {pairs.count("name") != 0 ? pairs["name"] : "own", dimensions};
}

std::string Machine::text() const {
  std::array<char, 200> text{};
  std::snprintf(text.data(), text.size(), "gemm=%.4g,attention=%.4g,paged=%.4g,copy=%.4g,move=%.4g,bytes=%lld",
                rates.row_flops, rates.pair_flops, rates.paged_pair_flops, rates.bytes, move,
                static_cast<long long>(element_bytes));
  return text.data();
}

Machine parse_machine(const std::string& text) {
  auto pairs = parse_pairs("--rates", text, {"gemm", "attention", "copy"}, {"paged", "move", "bytes"});
  const auto number = [&](const std::string& name) { return positive_real("--rates: " + name, pairs[name]); };
  Machine machine{"as given", {}, 0, 2};
  machine.rates.row_flops = number("gemm");
  machine.rates.pair_flops = number("attention");
  machine.rates.paged_pair_flops = number(pairs.count("paged") != 0 ? "paged" : "attention");
  machine.rates.bytes = number("copy");
  if (pairs.count("move") != 0 && pairs["move"] != "0") {
    machine.move = number("move");
  }
  if (pairs.count("bytes") != 0) {
    machine.element_bytes = positive_number("--rates: bytes", pairs["bytes"]);
  }
  return machine;
}

Predictor::Predictor(const std::vector<Model>& models, const Machine& machine) {
  for (const Model& model : models) {
    radixmlp::CostModel& cost = models_.emplace_back();
    cost.costs = radixmlp::layer_costs(model.dimensions.layer_shape(), machine.rates, machine.move);
    cost.widths = model.dimensions.widths();
    cost.element_bytes = machine.element_bytes;
  }
}

void Predictor::add(const radixmlp::IndexStats& batch, std::vector<LayerSeconds>& by_model) const {
  by_model.resize(models_.size());
  for (std::size_t m = 0; m < models_.size(); ++m) {
    const double without = models_[m].uncompacted(batch);
    by_model[m].without += without;
    for (std::size_t l = 0; l < layouts.size(); ++l) {
      const radixmlp::CompactionDecision decision =
          models_[m].decide(batch, {radixmlp::AttentionLayout::ragged, layouts[l]});
      by_model[m].with[l] += decision.compacts ? models_[m].compacted(batch, decision.layout) : without;
    }
  }
}

}  // namespace radixmlp_tools
