# SPDX-License-Identifier: MIT
#
# The compile commands of bystander and engine may differ in the include path and, below C++20, the standard.
file(READ "${COMMANDS}" commands)
string(JSON count LENGTH "${commands}")
math(EXPR last "${count} - 1")
foreach(i RANGE ${last})
  string(JSON command GET "${commands}" ${i} command)
  string(JSON file GET "${commands}" ${i} file)
  get_filename_component(name "${file}" NAME_WE)
  string(REGEX MATCH " -std=[^ ]*" ${name}_standard "${command}")
  string(REGEX REPLACE " (-I|-isystem |-o |-c )[^ ]*| -std=[^ ]*" "" ${name}_rest "${command}")
endforeach()
if(STANDARD LESS 20)  # bystander.cpp asserts that it kept the parent's
  set(bystander_standard " -std=gnu++20")
endif()
if(NOT engine_standard STREQUAL bystander_standard)
  message(SEND_ERROR "the engine's standard is '${engine_standard}' instead of '${bystander_standard}'")
endif()
if(NOT engine_rest STREQUAL bystander_rest OR NOT engine_rest MATCHES "-Wold-style-cast .*-Werror")
  message(SEND_ERROR "flags:\n  ${engine_rest}\ninstead of\n  ${bystander_rest}")
endif()
