# SPDX-License-Identifier: MIT
#
# The object exports what the header declares, without the calls on a stream, and nothing else.
execute_process(COMMAND "${NM}" -D --defined-only "${OBJECT}" OUTPUT_VARIABLE exported COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "[0-9a-f]+ [A-Za-z] ([^\n]+)\n" "\\1;" exported "${exported}")
list(REMOVE_ITEM exported "")
file(READ "${HEADER}" header)
string(REGEX MATCHALL "\n(int32_t|void|const char\\*) radixmlp_[a-z0-9_]+\\(" declared "${header}")
list(TRANSFORM declared REPLACE "^[^r]*(const char\\*)? ?(radixmlp_[a-z0-9_]+)\\($" "\\2")
list(FILTER declared EXCLUDE REGEX "^radixmlp_(cuda_.*|sum_workspace_bytes)$")
list(SORT exported)
list(SORT declared)
list(LENGTH declared count)
if(count LESS 30 OR NOT exported STREQUAL declared)
  message(FATAL_ERROR "exported: ${exported}\ndeclared: ${declared}")
endif()
