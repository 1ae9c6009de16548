# SPDX-License-Identifier: MIT
#
# No file that an umbrella includes, however far down, has a path that matches FORBIDDEN.
execute_process(COMMAND ${PREPROCESS} OUTPUT_VARIABLE files COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "${INCLUDE_DIR}/" "" files "${files}")  # where the sources lie says nothing
if(NOT files MATCHES "radixmlp/config\\.hpp")
  message(FATAL_ERROR "no list of included files:\n${files}")
endif()
string(REGEX MATCHALL "[^ \n]*(${FORBIDDEN})[^ \n]*" found "${files}")
foreach(file IN LISTS found)
  message(SEND_ERROR "included: ${file}")
endforeach()
