# SPDX-License-Identifier: MIT

cmake_minimum_required(VERSION 3.24)

# The functions that an object without AVX brings are free of it in the program too, whose linker may have taken them from
# another object. But for functions whose name ends with _avx2: they are called where the processor has been asked.

# Functions of a file, and those of them that use AVX: a register ymm or zmm, or a mnemonic that starts with v.
function(functions_of file out_all out_avx)
  execute_process(COMMAND "${OBJDUMP}" -d --no-show-raw-insn "${file}" OUTPUT_VARIABLE text
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "[][;]" "," text "${text}")
  string(REPLACE "\n\n" ";" functions "${text}")
  set(all "")
  set(avx "")
  foreach(function IN LISTS functions)
    if(function MATCHES "<([^>\n]*)>:\n")
      set(name "${CMAKE_MATCH_1}")
      if(name MATCHES "_avx2E")  # mangled: the parameters follow
        continue()
      endif()
      list(APPEND all "${name}")
      if(function MATCHES "%[yz]mm[0-9]|\tv[a-z0-9]+ ")
        list(APPEND avx "${name}")
      endif()
    endif()
  endforeach()
  set(${out_all} "${all}" PARENT_SCOPE)
  set(${out_avx} "${avx}" PARENT_SCOPE)
endfunction()

functions_of("${PLAIN}" plain plain_avx)
functions_of("${PROGRAM}" all avx)
list(LENGTH plain plain_count)
list(LENGTH avx avx_count)
if(plain_count LESS 20 OR avx_count LESS 5)
  message(FATAL_ERROR "${plain_count} functions of the plain unit, ${avx_count} with AVX in the program: this test sees nothing")
endif()
foreach(name IN LISTS plain_avx)
  message(SEND_ERROR "AVX in the plain unit: ${name}")
endforeach()
foreach(name IN LISTS avx)
  if(name IN_LIST plain)
    message(SEND_ERROR "AVX in a function of the plain unit: ${name}")
  endif()
endforeach()
message("${plain_count} functions of the plain unit; ${avx_count} others of the program use AVX")
