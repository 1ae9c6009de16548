# SPDX-License-Identifier: MIT
#
# A C99 and a C++20 program that find the installed library with pkg-config alone. The prefix has moved since it was
# installed.
#   cmake -DPREFIX=... -DSOURCE=... -DWORK=... -DCC=... -DCXX=... -P pkg_config.cmake
file(REMOVE_RECURSE "${WORK}")
file(MAKE_DIRECTORY "${WORK}")
file(COPY "${PREFIX}/" DESTINATION "${WORK}/prefix")
file(GLOB folders "${WORK}/prefix/lib*/pkgconfig" "${WORK}/prefix/lib/*/pkgconfig" "${WORK}/prefix/share/pkgconfig")
list(JOIN folders ":" path)
set(ENV{PKG_CONFIG_PATH} "${path}")

# run(<out> <command ...>)
function(run out)
  execute_process(COMMAND ${ARGN} OUTPUT_VARIABLE text OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set(${out} "${text}" PARENT_SCOPE)
endfunction()
# flags(<out> <package>)
function(flags out package)
  run(text pkg-config --cflags --libs ${package})
  separate_arguments(text UNIX_COMMAND "${text}")
  set(${out} "${text}" PARENT_SCOPE)
endfunction()

flags(c_flags radixmlp-c)
run(ignored "${CC}" -std=c99 "${SOURCE}/examples/c/index_rows.c" -o "${WORK}/c99" ${c_flags})
run(said "${WORK}/c99" "${SOURCE}/examples/data/rerank.jsonl")
if(NOT said MATCHES "N' = 21874")
  message(FATAL_ERROR "${said}")
endif()

flags(cxx_flags radixmlp)
run(ignored "${CXX}" -std=c++20 "${SOURCE}/examples/index_in_ten_lines.cpp" -o "${WORK}/cxx20" ${cxx_flags})
run(said "${WORK}/cxx20")
if(NOT said MATCHES "N' = 7 of N = 14")
  message(FATAL_ERROR "${said}")
endif()
