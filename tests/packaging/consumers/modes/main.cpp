// SPDX-License-Identifier: MIT
#include <array>
#include <cstddef>
#include <vector>

#include "unit.hpp"

namespace {

struct Unit {
  radixmlp::PrefixIndexView (*build)(std::span<std::byte>);
  bool (*is_right)(const radixmlp::PrefixIndexView&, radixmlp::RowView<const float>, radixmlp::RowView<float>);
  radixmlp::Status (*refusal)();
  bool (*throws)();
  bool has_exceptions;
};

}  // namespace

int main() {
  std::vector<Unit> units{{plain::build, plain::is_right, plain::refusal, plain::throws, true},
                          {quiet::build, quiet::is_right, quiet::refusal, quiet::throws, false}};
#if defined(WITH_WIDE)
  if (__builtin_cpu_supports("avx2")) {
    units.push_back({wide::build, wide::is_right, wide::refusal, wide::throws, true});
  }
#endif
  alignas(radixmlp::index_alignment) std::array<std::byte, 4096> memory;
  std::array<float, 8> ragged{0, 1, 2, 3, 4, 5, 6, 7};
  for (const Unit& builder : units) {
    for (const Unit& reader : units) {
      std::array<float, 8> compact{};
      if (!reader.is_right(builder.build(memory), {ragged.data(), 8, 1}, {compact.data(), 8, 1})) {
        return 1;
      }
    }
    const radixmlp::Status status = builder.refusal();
    if (status.code != radixmlp::StatusCode::invalid_batch || status.value != 9 ||
        builder.throws() != builder.has_exceptions) {
      return 2;
    }
  }
  return 0;
}
