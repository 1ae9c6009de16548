// SPDX-License-Identifier: MIT
#include "report.hpp"

#include <algorithm>
#include <cinttypes>
#include <nlohmann/json.hpp>
#include <vector>

#include "print.hpp"

namespace radixmlp_tools {
namespace {

// Predicted speed-ups, over all models and layouts.
struct Range {
  double low = 0;
  double high = 0;
};

Range speedups(const Division& division) {
  Range range{1e300, 0};
  for (const LayerSeconds& seconds : division.seconds) {
    for (std::size_t l = 0; l < layouts.size(); ++l) {
      range.low = std::min(range.low, seconds.speedup(l));
      range.high = std::max(range.high, seconds.speedup(l));
    }
  }
  return range;
}

// Of the time that the layers take with compaction, what building the index takes on this machine.
double index_share(const ByBudget& by_budget, std::size_t model, std::int64_t layers) {
  return by_budget.index_seconds / (by_budget.arrival.seconds[model].with[0] * static_cast<double>(layers));
}

}  // namespace

std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      c = '?';
    }
  }
  return text;
}

std::string verdict(const Analysis& analysis, const ByBudget& by_budget) {
  constexpr double pays = 1.05;  // what the prediction does not know costs a few percent
  const Range arrival = speedups(by_budget.arrival);
  const Range planned = speedups(by_budget.planned);
  const double saved_arrival = 100 * (1 - analysis.gamma(by_budget.arrival.rows));
  const double saved_planned = 100 * (1 - analysis.gamma(by_budget.planned.rows));
  std::string text;
  if (std::max(arrival.high, planned.high) < pays) {
    print(text,
          "not worth it: at %" PRId64
          " tokens a batch at most %.1f%% of the rows are computed twice; predicted at most %.2f times as fast",
          by_budget.budget, std::max(saved_arrival, saved_planned), std::max(arrival.high, planned.high));
  } else if (arrival.high < pays) {
    print(text,
          "worth it with planning alone: at %" PRId64
          " tokens a batch it saves %.1f%% of the rows, in order of arrival %.1f%%; predicted %.2f to %.2f times as "
          "fast planned",
          by_budget.budget, saved_planned, saved_arrival, planned.low, planned.high);
  } else {
    print(text,
          "worth it: at %" PRId64
          " tokens a batch it saves %.1f%% of the rows in order of arrival, %.1f%% planned; predicted %.2f to %.2f "
          "times as fast, planned %.2f to %.2f",
          by_budget.budget, saved_arrival, saved_planned, arrival.low, arrival.high, planned.low, planned.high);
  }
  return text;
}

std::string json_report(const Analysis& analysis, const AnalysisOptions& options) {
  using Json = nlohmann::ordered_json;
  const auto division = [&](const Division& d) {
    return Json{{"batches", d.batches}, {"unique_rows", d.rows}, {"gamma", analysis.gamma(d.rows)}};
  };
  Json out{{"requests", analysis.requests},   {"tokens", analysis.tokens},
           {"longest", analysis.longest},     {"windows", analysis.windows},
           {"trie_rows", analysis.trie_rows}, {"trie_gamma", analysis.gamma(analysis.trie_rows)},
           {"skipped", analysis.skipped},     {"skipped_lines", analysis.skipped_lines},
           {"rates", options.machine.text()}};
  for (const ByBudget& b : analysis.budgets) {
    Json models = Json::array();
    for (std::size_t m = 0; m < options.models.size(); ++m) {
      const std::int64_t layers = options.models[m].dimensions.layers;
      Json model{{"model", options.models[m].name}, {"layers", layers}};
      for (const auto& [name, way] : {std::pair{"arrival", &b.arrival}, std::pair{"planned", &b.planned},
                                      std::pair{"planned_by_unique_rows", &b.planned_rows}}) {
        const LayerSeconds& seconds = way->seconds[m];
        model[name] = {{"layer_seconds_without", seconds.without}};
        for (std::size_t l = 0; l < layouts.size(); ++l) {
          model[name][radixmlp::name(layouts[l])] = seconds.speedup(l);
        }
      }
      model["index_share_of_layer"] = index_share(b, m, 1);
      model["index_share_of_layers"] = index_share(b, m, layers);
      models.push_back(std::move(model));
    }
    out["budgets"].push_back({{"budget", b.budget},
                              {"arrival", division(b.arrival)},
                              {"planned", division(b.planned)},
                              {"planned_by_unique_rows", division(b.planned_rows)},
                              {"index_us_per_batch", 1e6 * b.index_seconds / static_cast<double>(b.arrival.batches)},
                              {"predicted_speedup", std::move(models)},
                              {"verdict", verdict(analysis, b)}});
  }
  out["prefixes"] = Json::array();
  for (const SharedPrefix& p : analysis.prefixes) {
    out["prefixes"].push_back({{"rows_saved", p.saved()},
                               {"tokens", p.tokens},
                               {"own_tokens", p.own},
                               {"requests", p.requests},
                               {"first", p.first},
                               {"window", p.window}});
  }
  // Names come from the input and may hold anything.
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + '\n';
}

std::string text_report(const Analysis& analysis, const AnalysisOptions& options) {
  std::string out;
  print(out, "%" PRId64 " requests, N = %" PRId64 " tokens, mean %.0f, longest %" PRId64, analysis.requests,
        analysis.tokens, static_cast<double>(analysis.tokens) / static_cast<double>(analysis.requests),
        analysis.longest);
  if (analysis.skipped > 0) {
    print(out, ", %" PRId64 " lines skipped", analysis.skipped);
  }
  print(out, "\n\ngamma = N'/N (batches)\n%10s %18s %18s %18s %16s\n", "budget", "order of arrival", "planned",
        "planned, on N'", "index, us/batch");
  for (const ByBudget& b : analysis.budgets) {
    print(out, "%10" PRId64, b.budget);
    for (const Division* division : {&b.arrival, &b.planned, &b.planned_rows}) {
      print(out, " %8.3f %9s", analysis.gamma(division->rows), ('(' + std::to_string(division->batches) + ')').c_str());
    }
    print(out, " %16.1f\n", 1e6 * b.index_seconds / static_cast<double>(b.arrival.batches));
  }
  print(out, "one trie over all of it: %.3f\n", analysis.gamma(analysis.trie_rows));
  if (analysis.windows > 1) {
    print(out,
          "planned, one trie and shared prefixes in %" PRId64 " windows of %" PRId64 " tokens and %" PRId64
          " requests at most\n",
          analysis.windows, options.window, window_requests);
  }

  print(out, "\n%10s %8s %8s %9s  most shared prefixes\n", "rows saved", "tokens", "own", "requests");
  for (const SharedPrefix& p : analysis.prefixes) {
    print(out, "%10" PRId64 " %8" PRId64 " %8" PRId64 " %9" PRId64 "  first in ", p.saved(), p.tokens, p.own,
          p.requests);
    out += printable(p.first);
    if (analysis.windows > 1) {
      print(out, " (window %" PRId64 ")", p.window);
    }
    out += '\n';
  }
  if (analysis.prefixes.empty()) {
    print(out, "none\n");
  }

  const ByBudget& first = analysis.budgets.front();
  print(out, "\npredicted speed-up at %" PRId64 " tokens a batch: order of arrival / planned\n", first.budget);
  print(out, "rates: %s: %s\n%16s", options.machine.name.c_str(), options.machine.text().c_str(), "");
  for (const radixmlp::AttentionLayout layout : layouts) {
    print(out, " %15s", radixmlp::name(layout));
  }
  print(out, "   index, of a layer, of all\n");
  for (std::size_t m = 0; m < options.models.size(); ++m) {
    print(out, "%16s", printable(options.models[m].name).substr(0, 16).c_str());
    for (std::size_t l = 0; l < layouts.size(); ++l) {
      print(out, "    %5.2f / %4.2f", first.arrival.seconds[m].speedup(l), first.planned.seconds[m].speedup(l));
    }
    print(out, "   %16.2f%% %7.3f%%\n", 100 * index_share(first, m, 1),
          100 * index_share(first, m, options.models[m].dimensions.layers));
  }
  out += '\n';
  for (const ByBudget& b : analysis.budgets) {
    out += verdict(analysis, b) + '\n';
  }
  return out;
}

}  // namespace radixmlp_tools
