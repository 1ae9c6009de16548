# SPDX-License-Identifier: MIT

cmake_minimum_required(VERSION 3.24)

# No kernel, and nothing that launches one, is a symbol of both objects that the linker would merge.
foreach(object IN ITEMS FIRST SECOND)
  execute_process(COMMAND "${NM}" --defined-only "${${object}}" OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[WVTu] _Z[^\n]*(_kernel|launch_|enqueue_)[^\n]*" ${object}_symbols "${text}")
  list(LENGTH ${object}_symbols count)
  if(count LESS 4)
    message(FATAL_ERROR "${count} kernels and launches in ${${object}}: this test sees nothing")
  endif()
endforeach()
foreach(symbol IN LISTS FIRST_symbols)
  if(symbol IN_LIST SECOND_symbols)
    message(SEND_ERROR "one definition for two architectures: ${symbol}")
  endif()
endforeach()
