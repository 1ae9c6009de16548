# SPDX-License-Identifier: MIT
#
# Every source file says its license in its first lines.
#   cmake -DROOT=... -P licenses.cmake
cmake_minimum_required(VERSION 3.24)

set(sources "${ROOT}/CMakeLists.txt" "${ROOT}/.ci/run")
foreach(folder IN ITEMS benchmarks c cmake examples include scripts tests tools)
  file(GLOB_RECURSE found "${ROOT}/${folder}/*.c" "${ROOT}/${folder}/*.h" "${ROOT}/${folder}/*.cpp" "${ROOT}/${folder}/*.hpp"
       "${ROOT}/${folder}/*.cu" "${ROOT}/${folder}/*.cuh" "${ROOT}/${folder}/*.rs" "${ROOT}/${folder}/*.py" "${ROOT}/${folder}/*.sh"
       "${ROOT}/${folder}/*.cmake" "${ROOT}/${folder}/*.in" "${ROOT}/${folder}/CMakeLists.txt")
  list(APPEND sources ${found})
endforeach()
set(count 0)
foreach(source IN LISTS sources)
  if(EXISTS "${source}")
    file(READ "${source}" begin LIMIT 200)
    if(NOT begin MATCHES "^(#![^\n]*\n)?(//|#|/\\*) SPDX-License-Identifier: MIT( \\*/)?\n")
      message(SEND_ERROR "no SPDX line: ${source}")
    endif()
    math(EXPR count "${count} + 1")
  endif()
endforeach()
if(count LESS 100)
  message(FATAL_ERROR "only ${count} sources below ${ROOT}")
endif()
message(STATUS "${count} sources say their license")
