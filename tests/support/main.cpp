// SPDX-License-Identifier: MIT
#define CATCH_CONFIG_RUNNER
#include "support/catch.hpp"

// Exit code 77, ctest's "skipped", where every test case asked for something that is not here: see support/skip.hpp.
#include "support/skip.hpp"

int main(int argc, char** argv) {
  const int failed = Catch::Session().run(argc, argv);
  if (failed == 0 && radixmlp_test::ran_cases() == 0 && radixmlp_test::skipped_cases() > 0) {
    return 77;
  }
  return failed;
}
