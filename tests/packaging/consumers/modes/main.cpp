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
  std::vector<Unit> units;
#define UNIT(name, has_exceptions, runs_here)                                                    \
  if (runs_here) {                                                                               \
    units.push_back({name::build, name::is_right, name::refusal, name::throws, has_exceptions}); \
  }
#include "units.inc"
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
