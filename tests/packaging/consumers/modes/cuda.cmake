# SPDX-License-Identifier: MIT
#
# Two units compiled for other architectures: what launches kernels, and the kernels, are symbols of one of them only, so
# that neither launches what the other was compiled for.

enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
  # nvcc 13 gives each unit kernels of its own; here as it was before.
  add_compile_options("$<$<COMPILE_LANGUAGE:CUDA>:-static-global-template-stub=false>")
endif()

foreach(arch IN ITEMS 80 90)
  add_library(sm_${arch} OBJECT unit.cu)
  set_target_properties(sm_${arch} PROPERTIES CUDA_ARCHITECTURES ${arch}-real)
  target_compile_definitions(sm_${arch} PRIVATE UNIT=sm_${arch})
  target_link_libraries(sm_${arch} PRIVATE radixmlp::cuda)
endforeach()
add_library(main OBJECT cuda_main.cpp)
target_link_libraries(main PRIVATE radixmlp::cuda)
foreach(first IN ITEMS 80 90)
  math(EXPR second "170 - ${first}")
  add_executable(engine_${first} "$<TARGET_OBJECTS:sm_${first}>" "$<TARGET_OBJECTS:sm_${second}>" "$<TARGET_OBJECTS:main>")
  set_target_properties(engine_${first} PROPERTIES LINKER_LANGUAGE CUDA CUDA_ARCHITECTURES OFF)
  target_link_libraries(engine_${first} PRIVATE CUDA::cudart_static)
  add_test(NAME sm_${first}_first COMMAND engine_${first})
  set_tests_properties(sm_${first}_first PROPERTIES SKIP_RETURN_CODE 77)
endforeach()

seeded_headers("${CMAKE_BINARY_DIR}/seeded_headers" RADIXMLP_ARCHS)
foreach(arch IN ITEMS 80 90)
  add_library(seeded_${arch} OBJECT unit.cu)
  set_target_properties(seeded_${arch} PROPERTIES CUDA_ARCHITECTURES ${arch}-real)
  target_compile_definitions(seeded_${arch} PRIVATE UNIT=sm_${arch})
  target_compile_options(seeded_${arch} PRIVATE -std=c++20)
  target_include_directories(seeded_${arch} PRIVATE "${CMAKE_BINARY_DIR}/seeded_headers")
endforeach()
foreach(prefix IN ITEMS sm seeded)
  add_test(NAME ${prefix}_symbols COMMAND "${CMAKE_COMMAND}" "-DNM=${CMAKE_NM}" "-DFIRST=$<TARGET_OBJECTS:${prefix}_80>"
                                          "-DSECOND=$<TARGET_OBJECTS:${prefix}_90>" -P
                                          "${CMAKE_CURRENT_SOURCE_DIR}/check_launches.cmake")
endforeach()
set_tests_properties(seeded_symbols PROPERTIES PASS_REGULAR_EXPRESSION "one definition for two architectures:.*_kernel")
