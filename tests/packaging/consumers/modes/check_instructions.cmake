# No AVX instruction in the plain unit; and none in a function of the wide unit that the plain one may be given instead
# of its own: those of radixmlp whose name does not carry the mode.

# Functions of an object that use AVX: a register ymm or zmm, or a mnemonic that starts with v.
function(avx_functions object out)
  execute_process(COMMAND "${OBJDUMP}" -d --no-show-raw-insn "${object}" OUTPUT_VARIABLE text
                  COMMAND_ERROR_IS_FATAL ANY)
  string(REPLACE ";" "," text "${text}")
  string(REPLACE "\n\n" ";" functions "${text}")
  set(found "")
  foreach(function IN LISTS functions)
    if(function MATCHES "<([^>\n]*)>:\n" AND function MATCHES "%[yz]mm[0-9]|\tv[a-z0-9]+ ")
      string(REGEX MATCH "<[^>\n]*>:\n" name "${function}")
      string(STRIP "${name}" name)
      list(APPEND found "${name}")
    endif()
  endforeach()
  set(${out} "${found}" PARENT_SCOPE)
endfunction()

avx_functions("${PLAIN}" found)
foreach(name IN LISTS found)
  message(SEND_ERROR "AVX in the plain unit: ${name}")
endforeach()

avx_functions("${WIDE}" found)
if(NOT found MATCHES "mode_avx2_throws")
  message(SEND_ERROR "no AVX in the wide unit: this test sees nothing")
endif()
list(FILTER found INCLUDE REGEX "^<_ZNK?8radixmlp")
list(FILTER found EXCLUDE REGEX "mode_avx2_throws")
foreach(name IN LISTS found)
  message(SEND_ERROR "AVX in a function that the linker may give to the plain unit: ${name}")
endforeach()
