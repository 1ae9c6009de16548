// SPDX-License-Identifier: MIT
// Does not link the library and must compile as before: with the parent's standard.
static_assert(STANDARD == 17   ? __cplusplus == 201703L
              : STANDARD == 20 ? __cplusplus == 202002L
                               : __cplusplus > 202002L);

int main() {}
