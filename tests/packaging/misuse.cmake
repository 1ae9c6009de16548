# SPDX-License-Identifier: MIT
#
# cmake -DCASE=<name> -DEXPECTED=<text> -DCOMPILER=<c++> -DSTANDARD=<20> -DINCLUDE_DIR=<dir> -P misuse.cmake
# misuse.cpp with CASE_<name> must not compile and the compiler must say EXPECTED; an empty EXPECTED: it must compile.
# Without C++20 there must be one error and no other.

execute_process(COMMAND "${COMPILER}" -std=c++${STANDARD} -fsyntax-only "-DCASE_${CASE}" "-I${INCLUDE_DIR}"
                        "${CMAKE_CURRENT_LIST_DIR}/misuse.cpp"
                RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
message(NOTICE "${output}")
if(EXPECTED STREQUAL "")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "must compile, but does not")
  endif()
  return()
endif()

file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/misuse.cpp" lines)
if(NOT lines MATCHES "defined\\(CASE_${CASE}\\)" AND NOT CASE STREQUAL "cxx17")
  message(FATAL_ERROR "misuse.cpp has no case ${CASE}")
endif()
if(result EQUAL 0)
  message(FATAL_ERROR "compiles, but must not: ${CASE}")
endif()
string(FIND "${output}" "${EXPECTED}" at)
if(at EQUAL -1)
  message(FATAL_ERROR "the compiler does not say '${EXPECTED}'")
endif()
if(CASE STREQUAL "cxx17")
  string(REGEX MATCHALL "error:" errors "${output}")
  list(LENGTH errors count)
  if(NOT count EQUAL 1)
    message(FATAL_ERROR "${count} errors instead of one")
  endif()
endif()
