// SPDX-License-Identifier: MIT
#include <cstdio>

#include "core.hpp"

#if __has_include(<radixmlp/c/radixmlp.h>)
#error "a private link must not pass the library's headers on"
#endif
static_assert(__cplusplus == 201703L);

int main(int, char** argv) { std::printf("N' = %d\n", compact_rows_of(argv[1])); }
