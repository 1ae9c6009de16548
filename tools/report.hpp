// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <string>

#include "analysis.hpp"

namespace radixmlp_tools {

// For people.
std::string text_report(const Analysis& analysis, const AnalysisOptions& options);

// The same and more, for machines.
std::string json_report(const Analysis& analysis, const AnalysisOptions& options);

// A sentence on whether compaction pays with batches of that budget.
std::string verdict(const Analysis& analysis, const ByBudget& by_budget);

// An SVG document: the trie of the first window, gamma by budget, the most shared prefixes and the verdict.
std::string svg_picture(const Analysis& analysis, const AnalysisOptions& options, const std::string& source);

// Text from the input as it may be shown: without control characters.
std::string printable(std::string text);

}  // namespace radixmlp_tools
