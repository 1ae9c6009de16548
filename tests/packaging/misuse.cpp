// SPDX-License-Identifier: MIT
// One misuse a case; misuse.cmake compiles them, CMakeLists.txt lists what the compiler must say.
#include "radixmlp/radixmlp.hpp"

#if defined(CASE_cxx17)

// -std=c++17: the include above has failed, and nothing else may.

#else

#include <cstdint>
#include <span>
#include <string>

#include "radixmlp/executor_openmp.hpp"

using radixmlp::AttentionCall;
using radixmlp::CompactedBlock;
using radixmlp::RowCopy;
using radixmlp::RowView;

using Source = RowView<const float>;
using Target = RowView<float>;

// A correct use, so that a case fails for its own reason only.
inline void correct(const CompactedBlock<float>& block, const radixmlp::PrefixIndexView& index) {
  const Target hidden(nullptr, 0, 8);
  radixmlp::gather_rows(radixmlp::serial, index, RowCopy{Source(hidden), hidden});
  block.forward(
      radixmlp::serial, hidden, [](const Source&, const Target&, const Target&, const Target&) {},
      [](const AttentionCall<float>&) {}, [](const Source&, const Target&) {});
}

#if defined(CASE_element_not_trivially_copyable)
RowView<std::string> rows;
#elif defined(CASE_width_zero)
RowView<float, 0> rows;
#elif defined(CASE_width_negative)
RowView<float, -2> rows;
#elif defined(CASE_const_target)
RowCopy copy{Source(nullptr, 0, 8), Source(nullptr, 0, 8)};
#elif defined(CASE_mismatched_elements)
RowCopy copy{RowView<const double>(nullptr, 0, 8), Target(nullptr, 0, 8)};
#elif defined(CASE_mismatched_widths)
RowCopy copy{RowView<const float, 8>(nullptr, 0), RowView<float, 16>(nullptr, 0)};
#elif defined(CASE_row_copy_of_spans)
RowCopy copy{std::span<const float>(), std::span<float>()};
#elif defined(CASE_block_of_const)
void use(const CompactedBlock<const float>& block) { static_cast<void>(block.rows()); }
#elif defined(CASE_attention)
void use(const CompactedBlock<float>& block, const Target& hidden) {
  block.forward(
      radixmlp::serial, hidden, [](const Source&, const Target&, const Target&, const Target&) {},
      [](const Source&, const Source&, const Source&, const Target&) {}, [](const Source&, const Target&) {});
}
#elif defined(CASE_attention_layouts)
struct Attention {
  static constexpr int layouts = 1;
  void operator()(const AttentionCall<float>&) const {}
};
void use(const CompactedBlock<float>& block, const Target& hidden) {
  block.forward(
      radixmlp::serial, hidden, [](const Source&, const Target&, const Target&, const Target&) {}, Attention(),
      [](const Source&, const Target&) {});
}
#elif defined(CASE_serving)
void use(const CompactedBlock<float>& block, const Target& hidden) {
  block.forward(
      radixmlp::serial, hidden, [](const Source&, const Target&, const Target&, const Target&) {},
      radixmlp::serving<radixmlp::AttentionLayout::paged>([](const Source&) {}), [](const Source&, const Target&) {});
}
#elif defined(CASE_pre_attention)
void use(const CompactedBlock<float>& block, const Target& hidden) {
  block.forward(
      radixmlp::serial, hidden, [](const Source&, const Target&) {}, [](const AttentionCall<float>&) {},
      [](const Source&, const Target&) {});
}
#elif defined(CASE_post_attention)
void use(const CompactedBlock<float>& block, const Target& hidden) {
  block.forward(
      radixmlp::serial, hidden, [](const Source&, const Target&, const Target&, const Target&) {},
      [](const AttentionCall<float>&) {}, [](const Target&, const Target&, int) {});
}
#elif defined(CASE_openmp_is_off)
void use() {
  radixmlp::OpenMpExecutor().parallel_for(3, [](std::int64_t) {});
}
#elif defined(CASE_floating_tokens)
radixmlp::RaggedBatch<double> batch;
#endif

#endif
