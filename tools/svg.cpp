// SPDX-License-Identifier: MIT

// The picture of an analysis, as a document of its own: no script, no font, nothing to load.

#include <algorithm>
#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "print.hpp"
#include "report.hpp"

namespace radixmlp_tools {
namespace {

constexpr const char* head =
    R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 %d" width="1200" height="%d" role="img">
<style>
text { font: 13px sans-serif; fill: #222 }
.big { font: bold 19px sans-serif } .small { font-size: 11px } .head { font-weight: bold }
.end { text-anchor: end } .mid { text-anchor: middle } .on-dark { fill: #fff } .axis { stroke: #666; fill: none }
.grid { stroke: #ddd } .alone { fill: #d9d9d9 } .shared { fill: #9ecae1 } .edge { stroke: #fff; stroke-width: .6 }
.lead { stroke: #d9480f; stroke-width: .8; fill: none } .dot { fill: #d9480f }
.arrival { fill: #9aa5b1 } .planned { fill: #2171b5 } .planned_rows { fill: #6baed6 }
.bound { stroke: #222; stroke-dasharray: 5 4 }
</style>
<rect width="100%%" height="100%%" fill="#fff"/>
)";

struct Box {
  double x, y, width, height;
};
constexpr Box trie_box{80, 134, 1090, 380};
constexpr Box chart_box{80, 616, 470, 220};
constexpr double table_x = 620;
constexpr std::size_t most_nodes = 600;  // drawn one by one
constexpr std::size_t most_labels = 10;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : printable(text)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

// A file's name may be anything; what comes from JSON is UTF-8 already.
std::string ascii(std::string text) {
  for (char& c : text) {
    c = static_cast<unsigned char>(c) < 0x80 ? c : '?';
  }
  return text;
}

// The first characters of UTF-8 text that fit into a width of so many narrow ones.
std::string shortened(const std::string& text, int width) {
  int taken = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t bytes = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    taken += bytes < 3 ? 1 : 2;
    if (taken > width) {
      return text.substr(0, i) + "\u2026";
    }
    i += bytes;
  }
  return text;
}

std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (auto place = static_cast<std::int64_t>(text.size()) - 3; place > 0; place -= 3) {
    text.insert(static_cast<std::size_t>(place), 1, ',');
  }
  return text;
}

// 1, 2 or 5 times a power of ten, so that at most `most` steps make `range`; at least 1.
std::int64_t tick_step(double range, int most) {
  for (std::int64_t power = 1;; power *= 10) {
    for (const std::int64_t step : {power, 2 * power, 5 * power}) {
      if (range <= static_cast<double>(step * most)) {
        return step;
      }
    }
  }
}

std::string label_of(const SharedPrefix& prefix) {
  return grouped(prefix.tokens) + (prefix.tokens == 1 ? " token" : " tokens") + " \u00d7 " + grouped(prefix.requests);
}

// Of 13 px letters, on the wide side.
double text_width(const std::string& text) {
  const auto letters = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
  return 7.6 * static_cast<double>(letters);
}

// The trie as icicles: a request is a column, as deep as it is long; what requests share are boxes over all of them.
class Icicles {
 public:
  explicit Icicles(const Analysis& analysis)
      : picture_(analysis.picture),
        prefixes_(analysis.prefixes),
        count_(static_cast<double>(picture_.requests.size())),
        column_count_(std::min(picture_.requests.size(), static_cast<std::size_t>(trie_box.width))) {
    for (std::size_t c = 0; c < column_count_; ++c) {
      // Columns narrower than a pixel are drawn as their mean, which leaves areas as they are.
      const std::size_t from = c * picture_.requests.size() / column_count_;
      const std::size_t to = (c + 1) * picture_.requests.size() / column_count_;
      Column column;
      for (std::size_t r = from; r < to; ++r) {
        column.tokens += picture_.requests[r].tokens;
        column.shared += picture_.requests[r].shared;
      }
      column.tokens /= static_cast<double>(to - from);
      column.shared /= static_cast<double>(to - from);
      columns_.push_back(column);
    }
    std::vector<double> depths;
    for (const Column& column : columns_) {
      depths.push_back(column.tokens);
    }
    std::sort(depths.begin(), depths.end());
    const double common = 1.05 * depths[depths.size() * 19 / 20];
    is_cut_ = depths.back() > 2 * common;
    deepest_ = is_cut_ ? common : depths.back();
  }

  std::string draw() {
    draw_axes();
    draw_profile("alone", [](const Column& c) { return c.tokens; });
    draw_profile("shared", [](const Column& c) { return c.shared; });
    draw_nodes();
    draw_labels();
    draw_legend();
    return std::move(out_);
  }

 private:
  struct Column {
    double tokens = 0;
    double shared = 0;
  };

  [[nodiscard]] double x_of(double request) const { return trie_box.x + trie_box.width * request / count_; }
  [[nodiscard]] double y_of(double depth) const {
    return trie_box.y + trie_box.height * std::min(depth, deepest_) / deepest_;
  }
  [[nodiscard]] Box box_of(const SharedPrefix& node) const {
    const double x = x_of(static_cast<double>(node.begin));
    const double y = y_of(static_cast<double>(node.tokens - node.own));
    return {x, y, x_of(static_cast<double>(node.begin + node.requests)) - x,
            y_of(static_cast<double>(node.tokens)) - y};
  }

  void draw_axes() {
    const std::int64_t step = tick_step(deepest_, 8);
    for (std::int64_t depth = 0; static_cast<double>(depth) <= deepest_; depth += step) {
      const double y = y_of(static_cast<double>(depth));
      print(out_,
            "<path class=\"grid\" d=\"M%.1f %.1fh%.1f\"/><text class=\"small end\" x=\"%.1f\" y=\"%.1f\">%s</text>\n",
            trie_box.x, y, trie_box.width, trie_box.x - 6, y + 4, grouped(depth).c_str());
    }
    print(out_, "<text class=\"small mid\" transform=\"translate(%d %.1f) rotate(-90)\">depth in tokens%s</text>\n",
          deepest_ < 10'000 ? 36 : 30, trie_box.y + trie_box.height / 2, is_cut_ ? " (the deepest are cut off)" : "");
    print(out_, "<text x=\"%.1f\" y=\"%.1f\">%s requests, sorted by their tokens</text>\n", trie_box.x,
          trie_box.y + trie_box.height + 20, grouped(static_cast<std::int64_t>(picture_.requests.size())).c_str());
  }

  template <class Depth>
  void draw_profile(const char* style, Depth depth) {
    print(out_, "<path class=\"%s\" d=\"M%.1f %.1f", style, trie_box.x, trie_box.y);
    const double per_column = count_ / static_cast<double>(column_count_);
    double y = trie_box.y;
    for (std::size_t c = 0; c < column_count_; ++c) {
      const double below = y_of(depth(columns_[c]));
      if (c == 0 || std::abs(below - y) >= 0.05) {
        print(out_, "H%.1fV%.1f", x_of(static_cast<double>(c) * per_column), below);
        y = below;
      }
    }
    print(out_, "H%.1fV%.1fz\"/>\n", trie_box.x + trie_box.width, trie_box.y);
  }

  void draw_nodes() {
    std::vector<std::pair<double, const SharedPrefix*>> visible;  // area
    for (const SharedPrefix& node : picture_.nodes) {
      const Box box = box_of(node);
      most_requests_ = std::max(most_requests_, node.requests);
      if (box.width >= 1.5 && box.height >= 0.5) {
        visible.emplace_back(box.width * box.height, &node);
      }
    }
    std::stable_sort(visible.begin(), visible.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    visible.resize(std::min(visible.size(), most_nodes));
    for (const auto& [area, node] : visible) {
      const Box box = box_of(*node);
      print(
          out_,
          "<rect%s x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"><title>%s requests, %s more tokens "
          "in common</title></rect>\n",
          box.width >= 4 && box.height >= 4 ? " class=\"edge\"" : "", box.x, box.y, box.width, box.height,
          colour(node->requests).c_str(), label_of(*node).c_str(), grouped(node->own).c_str());
    }
  }

  // Light to dark with the logarithm of the number of requests.
  [[nodiscard]] double darkness(std::int64_t requests) const {
    return most_requests_ <= 2
               ? 0.5
               : std::log(static_cast<double>(requests) / 2) / std::log(static_cast<double>(most_requests_) / 2);
  }
  [[nodiscard]] std::string colour(std::int64_t requests) const {
    const double t = std::clamp(darkness(requests), 0.0, 1.0);
    std::string text;
    print(text, "#%02x%02x%02x", static_cast<unsigned>(158 - 150 * t), static_cast<unsigned>(202 - 154 * t),
          static_cast<unsigned>(225 - 118 * t));
    return text;
  }

  // In their boxes where there is room, else as numbers above, with lines to the boxes.
  void draw_labels() {
    struct Flag {
      std::size_t number;
      double x;
      Box box;
    };
    std::vector<Flag> flags;
    std::string labels;
    for (std::size_t p = 0; p < std::min(prefixes_.size(), most_labels); ++p) {
      if (prefixes_[p].window != 1) {
        continue;
      }
      const Box box = box_of(prefixes_[p]);
      const std::string label = std::to_string(p + 1) + ": " + label_of(prefixes_[p]);
      const double width = text_width(label);
      const double x = box.x + box.width / 2;
      const double y = box.y + box.height / 2;
      const bool lies = box.height >= 18 && box.width >= width;
      if (lies || (box.width >= 18 && box.height >= width)) {
        print(labels,
              "<g transform=\"translate(%.1f %.1f)%s\"><rect x=\"%.1f\" y=\"-8\" width=\"%.1f\" height=\"16\" "
              "fill=\"%s\"/><text class=\"mid%s\" y=\"4.5\">%s</text></g>\n",
              x, y, lies ? "" : " rotate(-90)", -width / 2, width, colour(prefixes_[p].requests).c_str(),
              darkness(prefixes_[p].requests) > 0.35 ? " on-dark" : "", label.c_str());
      } else {
        flags.push_back({p + 1, x, box});
      }
    }
    // Side by side, each as near to its box as the others leave room.
    constexpr double spacing = 22;
    std::stable_sort(flags.begin(), flags.end(), [](const Flag& a, const Flag& b) { return a.x < b.x; });
    std::vector<double> at;
    for (const Flag& flag : flags) {
      at.push_back(std::max(flag.x, at.empty() ? trie_box.x : at.back() + spacing));
    }
    double limit = trie_box.x + trie_box.width;
    for (std::size_t i = at.size(); i-- > 0; limit = at[i] - spacing) {
      at[i] = std::min(at[i], limit);
    }
    for (std::size_t i = 0; i < flags.size(); ++i) {
      const Box& box = flags[i].box;
      const double x = std::clamp(at[i], box.x, box.x + box.width);
      const double y = box.y + std::min(box.height / 2, 12.0);
      print(out_,
            "<path class=\"lead\" d=\"M%.1f %.1fL%.1f %.1f\"/><circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"2\"/>",
            at[i], trie_box.y - 12, x, y, x, y);
      print(out_,
            "<circle class=\"dot\" cx=\"%.1f\" cy=\"%.1f\" r=\"9\"/><text class=\"small mid on-dark\" x=\"%.1f\" "
            "y=\"%.1f\">%zu</text>\n",
            at[i], trie_box.y - 20, at[i], trie_box.y - 16, flags[i].number);
    }
    out_ += labels;
  }

  void draw_legend() {
    std::vector<std::pair<std::string, std::string>> entries{{"#d9d9d9", "one request alone"}};
    if (most_requests_ > 1) {
      std::vector<std::int64_t> requests{2};
      for (const double part : {1.0 / 3, 2.0 / 3, 1.0}) {
        const auto next =
            static_cast<std::int64_t>(std::llround(2 * std::pow(static_cast<double>(most_requests_) / 2, part)));
        if (next > requests.back()) {
          requests.push_back(next);
        }
      }
      for (const std::int64_t r : requests) {
        entries.emplace_back(colour(r), "shared by " + grouped(r));
      }
    }
    double x = trie_box.x + trie_box.width;
    const double y = trie_box.y + trie_box.height + 10;
    for (std::size_t i = entries.size(); i-- > 0;) {
      x -= text_width(entries[i].second) + 30;
      print(
          out_,
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"14\" height=\"12\" fill=\"%s\"/><text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
          x, y, entries[i].first.c_str(), x + 19, y + 11, entries[i].second.c_str());
    }
  }

  const Picture& picture_;
  const std::vector<SharedPrefix>& prefixes_;
  double count_;
  std::size_t column_count_;
  std::vector<Column> columns_;
  double deepest_ = 0;
  bool is_cut_ = false;
  std::int64_t most_requests_ = 0;  // of a node
  std::string out_;
};

// Bars of gamma, grouped by budget.
std::string chart(const Analysis& analysis) {
  constexpr std::array<const char*, 3> names{"order of arrival", "planned", "planned, budget on N'"};
  constexpr std::array<const char*, 3> styles{"arrival", "planned", "planned_rows"};
  const auto y_of = [](double gamma) { return chart_box.y + chart_box.height * (1 - gamma); };
  std::string out;
  double legend_x = chart_box.x;
  for (std::size_t way = 0; way < names.size(); ++way) {
    print(
        out,
        "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\"/><text x=\"%.1f\" y=\"%.1f\">%s</text>\n",
        styles[way], legend_x, chart_box.y - 34, legend_x + 17, chart_box.y - 23, names[way]);
    legend_x += text_width(names[way]) + 40;
  }
  print(out, "<text class=\"head\" x=\"%.1f\" y=\"%.1f\">gamma = N'/N by batch budget</text>\n", chart_box.x,
        chart_box.y - 46);
  for (int tenth = 0; tenth <= 10; tenth += 2) {
    print(out,
          "<path class=\"grid\" d=\"M%.1f %.1fh%.1f\"/><text class=\"small end\" x=\"%.1f\" y=\"%.1f\">%.1f</text>\n",
          chart_box.x, y_of(0.1 * tenth), chart_box.width, chart_box.x - 6, y_of(0.1 * tenth) + 4, 0.1 * tenth);
  }

  std::vector<const ByBudget*> sorted;
  for (const ByBudget& b : analysis.budgets) {
    sorted.push_back(&b);
  }
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->budget < b->budget; });
  const double group = chart_box.width / static_cast<double>(sorted.size());
  const double bar = std::min(46.0, 0.86 * group / 3);
  for (std::size_t g = 0; g < sorted.size(); ++g) {
    const double middle = chart_box.x + group * (static_cast<double>(g) + 0.5);
    const std::array<const Division*, 3> ways{&sorted[g]->arrival, &sorted[g]->planned, &sorted[g]->planned_rows};
    for (std::size_t way = 0; way < ways.size(); ++way) {
      const double gamma = analysis.gamma(ways[way]->rows);
      const double x = middle + bar * (static_cast<double>(way) - 1.5);
      print(out,
            "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>%s, %s a batch: N' = %s, "
            "gamma "
            "%.3f, %s batches</title></rect>\n",
            styles[way], x, y_of(gamma), bar * 0.92, chart_box.height * gamma, names[way],
            grouped(sorted[g]->budget).c_str(), grouped(ways[way]->rows).c_str(), gamma,
            grouped(ways[way]->batches).c_str());
      if (bar >= 32) {
        print(out, "<text class=\"small mid\" x=\"%.1f\" y=\"%.1f\">%.3f</text>\n", x + 0.46 * bar, y_of(gamma) - 4,
              gamma);
      } else if (bar >= 11) {
        print(out, "<text class=\"small\" transform=\"translate(%.1f %.1f) rotate(-90)\">%.3f</text>\n",
              x + 0.46 * bar + 4, y_of(gamma) - 4, gamma);
      }
    }
    const std::string name = grouped(sorted[g]->budget);
    if (text_width(name) <= group || g % 2 == 0) {
      print(out, "<text class=\"small mid\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", middle,
            chart_box.y + chart_box.height + 16, name.c_str());
    }
  }
  const double bound = analysis.gamma(analysis.trie_rows);
  print(out, "<path class=\"axis\" d=\"M%.1f %.1fv%.1fh%.1f\"/><path class=\"bound\" d=\"M%.1f %.1fh%.1f\"/>\n",
        chart_box.x, chart_box.y, chart_box.height, chart_box.width, chart_box.x, y_of(bound), chart_box.width);
  print(out,
        "<text class=\"small mid\" x=\"%.1f\" y=\"%.1f\">tokens a batch; dashed: one trie over all of it, gamma "
        "%.3f</text>\n",
        chart_box.x + chart_box.width / 2, chart_box.y + chart_box.height + 34, bound);
  return out;
}

std::string table(const Analysis& analysis) {
  std::string out;
  double y = chart_box.y - 46;
  print(out,
        "<text class=\"head\" x=\"%.1f\" y=\"%.1f\">most shared prefixes</text><text class=\"head end\" x=\"%.1f\" "
        "y=\"%.1f\">rows saved</text><text class=\"head\" x=\"%.1f\" y=\"%.1f\">first in</text>\n",
        table_x, y, table_x + 325, y, table_x + 345, y);
  if (analysis.prefixes.empty()) {
    print(out, "<text x=\"%.1f\" y=\"%.1f\">none</text>\n", table_x, y + 24);
  }
  for (std::size_t p = 0; p < std::min(analysis.prefixes.size(), most_labels); ++p) {
    const SharedPrefix& prefix = analysis.prefixes[p];
    y += 24;
    std::string name = escaped(shortened(prefix.first, 24));
    if (analysis.windows > 1) {
      name += " (window " + std::to_string(prefix.window) + ')';
    }
    print(out,
          "<text class=\"end\" x=\"%.1f\" y=\"%.1f\">%zu:</text><text x=\"%.1f\" y=\"%.1f\">%s requests</text><text "
          "class=\"end\" x=\"%.1f\" y=\"%.1f\">%s</text><text x=\"%.1f\" y=\"%.1f\">",
          table_x + 18, y, p + 1, table_x + 24, y, label_of(prefix).c_str(), table_x + 325, y,
          grouped(prefix.saved()).c_str(), table_x + 345, y);
    out += name + "</text>\n";
  }
  return out;
}

// In lines of at most `width` characters, broken at spaces.
std::vector<std::string> wrapped(const std::string& text, std::size_t width) {
  std::vector<std::string> lines;
  for (std::size_t from = 0; from < text.size();) {
    std::size_t to = text.size();
    if (to - from > width) {
      to = text.rfind(' ', from + width);
      to = to == std::string::npos || to <= from ? from + width : to;
    }
    lines.push_back(text.substr(from, to - from));
    from = to + (to < text.size() && text[to] == ' ' ? 1 : 0);
  }
  return lines;
}

}  // namespace

std::string svg_picture(const Analysis& analysis, const AnalysisOptions& options, const std::string& source) {
  std::vector<std::string> verdicts;
  for (const ByBudget& b : analysis.budgets) {
    if (verdicts.size() < 12) {
      const std::vector<std::string> lines = wrapped(verdict(analysis, b), 160);
      verdicts.insert(verdicts.end(), lines.begin(), lines.end());
    }
  }
  const int height = 900 + 19 * static_cast<int>(verdicts.size());
  std::string out;
  char buffer[2000];
  std::snprintf(buffer, sizeof buffer, head, height, height);
  out += buffer;
  const std::string title = escaped(shortened(ascii(source), 90));
  out += "<title>" + title + "</title>\n<text class=\"big\" x=\"80\" y=\"34\">" + title + "</text>\n";
  print(out,
        "<text x=\"80\" y=\"58\">%s requests, N = %s tokens; one trie over all of it: N' = %s, gamma %.3f%s</text>\n",
        grouped(analysis.requests).c_str(), grouped(analysis.tokens).c_str(), grouped(analysis.trie_rows).c_str(),
        analysis.gamma(analysis.trie_rows),
        analysis.windows > 1 ? (" (in " + grouped(analysis.windows) + " windows of at most " + grouped(options.window) +
                                " tokens; the trie drawn is the first)")
                                   .c_str()
                             : "");
  out +=
      "<text x=\"80\" y=\"80\">A column is a request, as deep as it is long. Blue: tokens that requests share, "
      "computed "
      "once for all of them (lightest where too narrow for a box).</text>\n";
  if (!analysis.picture.requests.empty()) {
    out += Icicles(analysis).draw();
  }
  out += chart(analysis);
  out += table(analysis);
  double y = chart_box.y + chart_box.height + 66;
  for (const std::string& line : verdicts) {
    print(out, "<text x=\"80\" y=\"%.1f\">%s</text>\n", y, escaped(line).c_str());
    y += 19;
  }
  return out + "</svg>\n";
}

}  // namespace radixmlp_tools
