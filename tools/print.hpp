// SPDX-License-Identifier: MIT
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace radixmlp_tools {

// Appends what printf would print, cut off behind 999 characters.
[[gnu::format(printf, 2, 3)]] inline void print(std::string& out, const char* format, ...) {
  char text[1000];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  out += text;
}

}  // namespace radixmlp_tools
