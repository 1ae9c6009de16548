// SPDX-License-Identifier: MIT
#include "support/host_backend.hpp"

using Backend = radixmlp_test::HostBackend;
using Fp32 = float;
using Fp16 = std::uint16_t;
using HalfType = radixmlp::Fp16;
using BrainType = radixmlp::Bf16;

#include "rows/row_lists_cases.hpp"

TEST_CASE("16-bit conversions of the host agree with the formats' definition for every value") {
  skip_without(true, "");
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    if ((half & 0x7c00) != 0x7c00) {
      REQUIRE(double{radixmlp::detail::fp16_to_float(half)} == value_of(HalfType{half}));
      REQUIRE(radixmlp::detail::float_to_fp16(radixmlp::detail::fp16_to_float(half)) == half);
    }
    if ((half & 0x7f80) != 0x7f80) {
      REQUIRE(double{radixmlp::detail::bf16_to_float(half)} == value_of(BrainType{half}));
      REQUIRE(radixmlp::detail::float_to_bf16(radixmlp::detail::bf16_to_float(half)) == half);
    }
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto value = static_cast<float>(
        std::ldexp(static_cast<double>(random() % (1U << 24)) - (1U << 23), static_cast<int>(random() % 40) - 50));
    REQUIRE(double{radixmlp::detail::fp16_to_float(radixmlp::detail::float_to_fp16(value))} ==
            rounded(format_of<HalfType>, value));
    REQUIRE(double{radixmlp::detail::bf16_to_float(radixmlp::detail::float_to_bf16(value))} ==
            rounded(format_of<BrainType>, value));
  }
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(radixmlp::detail::float_to_fp16(65519.99F) == 0x7bff);
  CHECK(radixmlp::detail::float_to_fp16(65520.0F) == 0x7c00);
  CHECK(radixmlp::detail::float_to_fp16(-infinity) == 0xfc00);
  CHECK(radixmlp::detail::float_to_bf16(infinity) == 0x7f80);
  CHECK(std::isnan(radixmlp::detail::fp16_to_float(radixmlp::detail::float_to_fp16(std::nanf("")))));
  CHECK(std::isnan(radixmlp::detail::bf16_to_float(radixmlp::detail::float_to_bf16(std::nanf("")))));
}
