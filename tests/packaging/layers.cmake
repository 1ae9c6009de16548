# SPDX-License-Identifier: MIT
#
# cmake -DINCLUDE_DIR=<dir> -DSCRATCH_DIR=<dir> -P layers.cmake
# What the headers may include and define (docs/design.md, "Layers"). Then the check is shown files that break each of
# its rules, and must object.

# Low to high. A header includes its own layer or lower ones; the first pattern that matches a path is its layer.
# The C header stands alone.
set(layers
    "^radixmlp/c/radixmlp\\.h$"
    "^radixmlp/version\\.hpp$"
    "^radixmlp/config\\.hpp$"
    "^radixmlp/(executor(_openmp)?|(cuda_)?error)\\.(hpp|cuh)$"
    "^radixmlp/index/"
    "^radixmlp/rows/"
    "^radixmlp/block/"
    "^radixmlp/pipeline/"
    "^radixmlp/(radixmlp\\.hpp|cuda\\.cuh)$")

function(layer_of header out)
  set(number 0)
  foreach(pattern IN LISTS layers)
    if(header MATCHES "${pattern}")
      set(${out} ${number} PARENT_SCOPE)
      return()
    endif()
    math(EXPR number "${number} + 1")
  endforeach()
  set(${out} -1 PARENT_SCOPE)
endfunction()

# Lists what is wrong below include_dir.
function(check_headers include_dir out)
  set(wrong "")
  file(GLOB_RECURSE headers RELATIVE "${include_dir}" "${include_dir}/*")
  if(NOT headers)
    list(APPEND wrong "no headers in ${include_dir}")
  endif()
  foreach(header IN LISTS headers)
    layer_of("${header}" layer)
    if(layer EQUAL -1)
      list(APPEND wrong "${header}: is in no layer")
    endif()
    file(READ "${include_dir}/${header}" text)
    file(STRINGS "${include_dir}/${header}" includes REGEX "^[ \t]*#[ \t]*include")
    foreach(line IN LISTS includes)
      string(REGEX REPLACE "^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"]*)[>\"].*" "\\1" included "${line}")
      if(included MATCHES "^radixmlp/")
        layer_of("${included}" included_layer)
        if(included_layer GREATER layer OR included_layer EQUAL -1)
          list(APPEND wrong "${header}: includes ${included}, which is not in its layer or a lower one")
        endif()
      elseif(line MATCHES "\"")
        list(APPEND wrong "${header}: includes \"${included}\", but our own headers start with radixmlp/")
      endif()
      if(header MATCHES "\\.hpp$" AND included MATCHES "\\.cuh$|^(cuda|cub/|thrust/|nv|cooperative_groups)")
        list(APPEND wrong "${header}: a .hpp includes ${included}, which needs CUDA")
      endif()
    endforeach()
    if(text MATCHES "__global__|cudaLaunchKernel" AND NOT text MATCHES "inline RADIXMLP_ARCHS {")
      list(APPEND wrong "${header}: kernels and their launches belong into RADIXMLP_ARCHS")
    endif()
    if(NOT header MATCHES "^radixmlp/(config\\.hpp|radixmlp\\.hpp|cuda\\.cuh|c/radixmlp\\.h)$")
      file(STRINGS "${include_dir}/${header}" conditionals REGEX "^[ \t]*#[ \t]*(if|elif)")
      foreach(line IN LISTS conditionals)
        list(APPEND wrong "${header}: '${line}' belongs in config.hpp")
      endforeach()
    endif()
    file(STRINGS "${include_dir}/${header}" macros REGEX "^[ \t]*#[ \t]*(define|undef)")
    foreach(line IN LISTS macros)
      if(NOT line MATCHES "^[ \t]*#[ \t]*(define|undef)[ \t]+RADIXMLP_")
        list(APPEND wrong "${header}: '${line}' does not start with RADIXMLP_")
      endif()
    endforeach()
  endforeach()
  set(${out} "${wrong}" PARENT_SCOPE)
endfunction()

# expect_objection(<header> <its text> <what the check must say>)
function(expect_objection header text expected)
  file(REMOVE_RECURSE "${SCRATCH_DIR}")
  file(WRITE "${SCRATCH_DIR}/radixmlp/rows/fine.hpp" "#include <span>\n#include \"radixmlp/index/any.hpp\"\n")
  file(WRITE "${SCRATCH_DIR}/${header}" "${text}\n")
  check_headers("${SCRATCH_DIR}" wrong)
  list(LENGTH wrong count)
  if(NOT count EQUAL 1 OR NOT wrong MATCHES "^${header}: .*${expected}")
    message(SEND_ERROR "the check should object to '${text}' in ${header}, and to nothing else, but says: '${wrong}'")
  endif()
endfunction()

expect_objection(radixmlp/index/bad.hpp "#include \"radixmlp/rows/row_view.hpp\"" "not in its layer")
expect_objection(radixmlp/rows/bad.hpp "  #  include <radixmlp/radixmlp.hpp>" "not in its layer")
expect_objection(radixmlp/rows/bad.cuh "#include \"radixmlp/unknown.hpp\"" "not in its layer")
expect_objection(radixmlp/rows/bad.cuh "#include \"row_view.hpp\"" "start with radixmlp/")
expect_objection(radixmlp/extra/bad.hpp "" "is in no layer")
expect_objection(radixmlp/rows/bad.hpp "#include \"radixmlp/rows/device_rows.cuh\"" "needs CUDA")
expect_objection(radixmlp/rows/bad.hpp "#include <cuda_fp16.h>" "needs CUDA")
expect_objection(radixmlp/rows/bad.hpp "#include <cub/cub.cuh>" "needs CUDA")
expect_objection(radixmlp/rows/bad.hpp "#ifdef NDEBUG" "belongs in config.hpp")
expect_objection(radixmlp/rows/bad.cuh "# if defined(__AVX2__)" "belongs in config.hpp")
expect_objection(radixmlp/rows/bad.cuh "template <int> __global__ void kernel() {}" "into RADIXMLP_ARCHS")
expect_objection(radixmlp/config.hpp "#define HIDDEN" "does not start with RADIXMLP_")
file(REMOVE_RECURSE "${SCRATCH_DIR}")

check_headers("${INCLUDE_DIR}" wrong)
foreach(line IN LISTS wrong)
  message(SEND_ERROR "${line}")
endforeach()
