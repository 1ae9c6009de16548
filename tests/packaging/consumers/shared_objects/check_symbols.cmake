# SPDX-License-Identifier: MIT
#
# The object has the row kernels (else this test sees nothing) and exports neither them nor what launches them: a
# process with two copies of the library, built for other architectures, would run one's kernels for the other.
execute_process(COMMAND "${NM}" "${OBJECT}" OUTPUT_VARIABLE all COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${NM}" -D --defined-only "${OBJECT}" OUTPUT_VARIABLE exported COMMAND_ERROR_IS_FATAL ANY)
if(NOT all MATCHES "copy_mapped_rows_kernel")
  message(FATAL_ERROR "no kernel in ${OBJECT}")
endif()
# Functions of the library, and their static variables, that are kernels, launch one, or take a stream.
string(REGEX MATCHALL "_ZZ?NK?8radixmlp[^\n]*(_kernel|launch_|CUstream)[^\n]*" leaked "${exported}")
foreach(symbol IN LISTS leaked)
  message(SEND_ERROR "exported: ${symbol}")
endforeach()
