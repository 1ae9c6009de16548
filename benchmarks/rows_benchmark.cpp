// SPDX-License-Identifier: MIT

// Host row movement on one thread against per-element indexing, one memcpy a row (twice: how far a loop is from
// itself), and one plain memcpy of as many bytes (the roofline). One run, taking turns; results are compared before any
// timing.

#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>
#include <random>

#include "radixmlp/index/prefix_trie.hpp"
#include "radixmlp/rows/host_rows.hpp"
#include "support/interleave.hpp"
#include "support/report.hpp"
#include "support/workloads.hpp"

namespace radixmlp_bench {
namespace {

using radixmlp::PrefixIndexView;
using radixmlp::RowView;

constexpr std::size_t mib = std::size_t{1} << 20;

// Of the sample as much as it takes for ragged and compact rows to have about `bytes` in all.
Batch batch_of_bytes(const std::vector<std::vector<std::int32_t>>& sample, std::size_t row_bytes, std::size_t bytes) {
  constexpr double ragged_and_compact = 1.6;
  const auto rows = static_cast<std::size_t>(static_cast<double>(bytes) / ragged_and_compact) / row_bytes;
  return batch_of(sample, rows);
}

// Maps of the same size without any run: what a gather and a scatter of a general kind would get.
struct RandomMaps {
  std::vector<std::int32_t> gather, scatter;

  explicit RandomMaps(const PrefixIndexView& like)
      : gather(static_cast<std::size_t>(like.ragged_rows)), scatter(static_cast<std::size_t>(like.ragged_rows)) {
    std::mt19937_64 random(2026);
    std::iota(gather.begin(), gather.end(), 0);
    std::shuffle(gather.begin(), gather.end(), random);
    gather.resize(static_cast<std::size_t>(like.compact_rows));
    std::uniform_int_distribution<std::int32_t> row(0, like.compact_rows - 1);
    std::generate(scatter.begin(), scatter.end(), [&] { return row(random); });
  }

  [[nodiscard]] PrefixIndexView view(const PrefixIndexView& like) const {
    PrefixIndexView index = like;
    index.gather = gather;
    index.scatter = scatter;
    index.compact_cu = {};
    index.padded_rows = index.compact_rows;
    return index;
  }
};

// `offset` bytes behind the start of a page. What a copy costs depends on where its two ends lie in their pages: memcpy
// of some C libraries on some processors takes several times as long where the target lies a little further into its
// page than the source. With rows of whole pages that is all rows of a tensor, or none.
template <class T>
class PageBuffer {
 public:
  PageBuffer(std::size_t size, std::size_t offset) : storage_(size + 2 * page / sizeof(T)) {
    const auto into_page = reinterpret_cast<std::uintptr_t>(storage_.data()) % page;
    elements_ = {storage_.data() + (page - into_page + offset) / sizeof(T), size};
  }
  [[nodiscard]] std::span<T> elements() { return elements_; }
  [[nodiscard]] T* data() { return elements_.data(); }

 private:
  static constexpr std::size_t page = 4096;
  std::vector<T> storage_;
  std::span<T> elements_;
};

template <class T>
void index_elements(const T* source, T* target, std::span<const std::int32_t> map, std::size_t width) {
  for (std::size_t i = 0; i < map.size(); ++i) {
    for (std::size_t c = 0; c < width; ++c) {
      target[i * width + c] = source[static_cast<std::size_t>(map[i]) * width + c];
    }
  }
}

template <class T>
void copy_row_by_row(const T* source, T* target, std::span<const std::int32_t> map, std::size_t width) {
  for (std::size_t i = 0; i < map.size(); ++i) {
    std::memcpy(target + i * width, source + static_cast<std::size_t>(map[i]) * width, width * sizeof(T));
  }
}

class Comparison {
 public:
  Comparison(const Options& options, Report::Facts facts)
      : report_({"rows", "call", "map", "working set"},
                {"us", "GB/s", "elements us", "ratio", "row copy us", "row ratio", "again", "memcpy us", "to roof"},
                std::move(facts)) {
    timing_ = options.smoke ? InterleaveOptions{.seconds = 0.01, .min_rounds = 1}
                            : InterleaveOptions{.seconds = 1, .min_rounds = 9};
  }

  template <class T>
  void add(const std::vector<std::vector<std::int32_t>>& sample, std::int64_t width, std::size_t bytes,
           std::size_t target_offset = 0) {
    const std::string rows = (sizeof(T) == 4 ? "fp32 x " : "2 bytes x ") + std::to_string(width);
    const std::string set =
        (bytes < mib ? std::to_string(bytes >> 10) + " KiB" : std::to_string(bytes >> 20) + " MiB") +
        (target_offset == 0 ? "" : ", +" + std::to_string(target_offset) + " B");
    const Batch batch = batch_of_bytes(sample, static_cast<std::size_t>(width) * sizeof(T), bytes);
    const PrefixIndexView index = trie_.build(batch.view());
    const RandomMaps random(index);
    for (const auto& [map, view] : {std::pair{"trie", index}, std::pair{"random", random.view(index)}}) {
      add_call<T>({rows, "gather", map, set}, view.ragged_rows, view.gather, width, target_offset,
                  [&view = view](RowView<const T> source, RowView<T> target) {
                    gather_rows(radixmlp::serial, view, source, target);
                  });
      add_call<T>({rows, "scatter", map, set}, view.compact_rows, view.scatter, width, target_offset,
                  [&view = view](RowView<const T> source, RowView<T> target) {
                    scatter_rows(radixmlp::serial, view, source, target);
                  });
    }
  }

  void add_means() {
    report_.add({"geometric mean", "", "", ""},
                {no_figure, no_figure, no_figure, geometric_mean(over_elements_), no_figure, geometric_mean(over_rows_),
                 geometric_mean(again_), no_figure, geometric_mean(to_roof_)});
  }

  [[nodiscard]] const Report& result() const { return report_; }

 private:
  template <class T, class Call>
  void add_call(std::vector<std::string> names, std::int64_t source_rows, std::span<const std::int32_t> map,
                std::int64_t width, std::size_t target_offset, Call&& call) {
    const auto row_elements = static_cast<std::size_t>(width);
    const std::size_t elements = map.size() * row_elements;
    // The roofline copies as many different bytes as are written, so the source has that many too.
    PageBuffer<T> source(std::max(elements, static_cast<std::size_t>(source_rows) * row_elements), 0);
    for (std::size_t i = 0; i < source.elements().size(); ++i) {
      source.data()[i] = static_cast<T>(i * 0x9e3779b9 >> 16);
    }
    PageBuffer<T> target(elements, target_offset);
    std::ranges::fill(target.elements(), T{1});
    PageBuffer<T> expected(elements, 0);
    const auto ours = [&] {
      call(RowView<const T>(source.data(), source_rows, width),
           RowView<T>(target.data(), static_cast<std::int64_t>(map.size()), width));
      benchmark::ClobberMemory();
    };
    index_elements(source.data(), expected.data(), map, row_elements);
    ours();
    if (!std::ranges::equal(target.elements(), expected.elements())) {
      throw std::runtime_error(names[1] + "_rows differs from per-element indexing: " + names[0] + ", " + names[2]);
    }
    // All write to the same target.
    const auto row_copies = [&] {
      copy_row_by_row(source.data(), target.data(), map, row_elements);
      benchmark::ClobberMemory();
    };
    const std::vector<Timing> timings =
        interleave(timing_, {ours,
                             [&] {
                               index_elements(source.data(), target.data(), map, row_elements);
                               benchmark::ClobberMemory();
                             },
                             row_copies, row_copies,
                             [&] {
                               std::memcpy(target.data(), source.data(), elements * sizeof(T));
                               benchmark::ClobberMemory();
                             }});
    const Timing &call_time = timings[0], &element_time = timings[1], &row_time = timings[2], &roof_time = timings[4];
    const double bytes_moved = 2 * static_cast<double>(elements * sizeof(T));
    over_elements_.push_back(ratio(element_time, call_time));
    over_rows_.push_back(ratio(row_time, call_time));
    again_.push_back(ratio(row_time, timings[3]));
    to_roof_.push_back(ratio(call_time, roof_time));
    report_.add(std::move(names),
                {call_time.us, bytes_moved / call_time.us / 1e3, element_time.us, over_elements_.back(), row_time.us,
                 over_rows_.back(), again_.back(), roof_time.us, to_roof_.back()});
  }

  InterleaveOptions timing_;
  radixmlp::PrefixTrie trie_;
  Report report_;
  std::vector<double> over_elements_, over_rows_, again_, to_roof_;
};

int run(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  const std::vector<std::vector<std::int32_t>> sample =
      load_requests(options.data.empty() ? RADIXMLP_SAMPLE : options.data);
  Comparison comparison(options, describe_run(argc, argv));
  if (!options.smoke) {  // in the core's own cache; 300 and 804 bytes start anywhere in a cache line
    for (const std::int64_t width : {1, 5, 16, 75, 201, 256, 1024}) {
      comparison.add<float>(sample, width, mib / 2);
    }
  }
  const std::vector<std::size_t> sets = options.smoke ? std::vector{2 * mib} : std::vector{16 * mib, 96 * mib};
  for (const std::size_t bytes : sets) {
    for (const std::int64_t width : {64, 1024, 4096}) {
      comparison.add<float>(sample, width, bytes);
      comparison.add<std::uint16_t>(sample, width, bytes);
    }
    comparison.add<float>(sample, 4096, bytes, 16);
  }
  if (!options.smoke) {  // beyond the caches of large servers too
    for (const std::int64_t width : {1024, 4096}) {
      comparison.add<float>(sample, width, 384 * mib);
      comparison.add<std::uint16_t>(sample, width, 384 * mib);
    }
  }
  comparison.add_means();
  comparison.result().write(options);
  return 0;
}

}  // namespace
}  // namespace radixmlp_bench

int main(int argc, char** argv) { return radixmlp_bench::report_errors(argc, argv, radixmlp_bench::run); }
