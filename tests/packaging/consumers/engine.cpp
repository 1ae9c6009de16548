// SPDX-License-Identifier: MIT
#include "shared_prefix.hpp"

int main() { return shared_prefix_works(5) ? 0 : 1; }
