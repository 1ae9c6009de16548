// SPDX-License-Identifier: MIT
#pragma once

#include <cstdio>
#include <string>

namespace radixmlp_test {

inline int& ran_cases() {
  static int count = 0;
  return count;
}
inline int& skipped_cases() {
  static int count = 0;
  return count;
}

// First statement of a test case that needs something outside the project: `if (skip_without(present, "a GPU"))
// return;` A program all of whose cases skip exits with 77, which ctest reports as skipped; programs do not mix such
// cases with others.
inline bool skip_without(bool present, const std::string& what) {
  if (present) {
    ++ran_cases();
    return false;
  }
  ++skipped_cases();
  std::printf("skipped: no %s\n", what.c_str());
  return true;
}

}  // namespace radixmlp_test
