# SPDX-License-Identifier: MIT
#
# What only this project's own tests, benchmarks and examples need. A consumer never gets here.

include(FetchContent)

set(CMAKE_CXX_EXTENSIONS OFF)

# Flags of our own targets: warnings, errors where we are the top level.
add_library(radixmlp_development INTERFACE)
target_link_libraries(radixmlp_development INTERFACE radixmlp)
target_compile_options(
  radixmlp_development
  INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wsign-conversion>"
            "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>")
if(PROJECT_IS_TOP_LEVEL)
  target_compile_options(radixmlp_development INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-Werror>"
                                                        "$<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>")
endif()
foreach(target IN LISTS radixmlp_c_libraries)
  target_compile_options(${target} PRIVATE "$<TARGET_PROPERTY:radixmlp_development,INTERFACE_COMPILE_OPTIONS>")
endforeach()

# Real inputs that are not part of the project; what uses them skips without.
set(RADIXMLP_SHARED_DIR "${PROJECT_SOURCE_DIR}/../shared" CACHE PATH "Folder with workloads/ and models/")

# Emulator for device tests on a machine without a GPU (built by scripts/test.sh).
set(radixmlp_ptxemu_lib "${PROJECT_SOURCE_DIR}/build/ptxemu-lib")
if(DEFINED ENV{RADIXMLP_PTXEMU_LIB})
  set(radixmlp_ptxemu_lib "$ENV{RADIXMLP_PTXEMU_LIB}")
endif()
set(RADIXMLP_PTXEMU_DIR "" CACHE PATH "Folder with ptxemu-run; empty = device tests run on a GPU")
set(RADIXMLP_PTXEMU_LIB "${radixmlp_ptxemu_lib}" CACHE PATH "Folder with its libcudart.so.13")

# All that is compiled for the device, to build it alone.
add_custom_target(radixmlp_device)

# radixmlp_use_catch2() makes the target radixmlp_catch2: Catch2 2.13 or 3.
macro(radixmlp_use_catch2)
  if(NOT TARGET radixmlp_catch2)
    find_package(Catch2 QUIET)
    if(NOT Catch2_FOUND)
      FetchContent_Declare(Catch2 GIT_REPOSITORY https://github.com/catchorg/Catch2.git GIT_TAG v3.5.2)
      FetchContent_MakeAvailable(Catch2)
    endif()
    add_library(radixmlp_catch2 INTERFACE)
    target_link_libraries(radixmlp_catch2 INTERFACE Catch2::Catch2)
  endif()
endmacro()

macro(radixmlp_use_benchmark)
  if(NOT TARGET benchmark::benchmark)
    find_package(benchmark QUIET)
    if(NOT benchmark_FOUND)
      set(BENCHMARK_ENABLE_TESTING OFF)
      FetchContent_Declare(benchmark GIT_REPOSITORY https://github.com/google/benchmark.git GIT_TAG v1.8.3)
      FetchContent_MakeAvailable(benchmark)
    endif()
  endif()
endmacro()

# radixmlp_use_json() makes the target nlohmann_json::nlohmann_json.
macro(radixmlp_use_json)
  if(NOT TARGET nlohmann_json::nlohmann_json)
    find_package(nlohmann_json QUIET)
    if(NOT nlohmann_json_FOUND)
      set(JSON_SystemInclude ON)
      FetchContent_Declare(nlohmann_json URL https://github.com/nlohmann/json/releases/download/v3.11.3/json.tar.xz)
      FetchContent_MakeAvailable(nlohmann_json)
    endif()
  endif()
endmacro()

# radixmlp_add_test(NAME <name> COMMAND ...  [DEVICE]): a ctest test; exit code 77 means skipped. DEVICE tests run in the
# emulator where one is given, with several schedules, else on a GPU.
function(radixmlp_add_test)
  cmake_parse_arguments(arg "DEVICE" "NAME;TIMEOUT" "COMMAND" ${ARGN})
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  list(POP_FRONT arg_COMMAND program)
  if(TARGET "${program}")
    if(arg_DEVICE)
      add_dependencies(radixmlp_device "${program}")
    endif()
    set(program ${CMAKE_CROSSCOMPILING_EMULATOR} "$<TARGET_FILE:${program}>")
  endif()
  list(PREPEND arg_COMMAND ${program})
  if(arg_DEVICE AND RADIXMLP_PTXEMU_DIR)
    foreach(schedule IN ITEMS "1;0" "2;1" "3;3")
      list(GET schedule 0 seed)
      list(GET schedule 1 quantum)
      set(name "${arg_NAME}.seed${seed}.quantum${quantum}")
      add_test(NAME "${name}" COMMAND "${RADIXMLP_PTXEMU_DIR}/ptxemu-run" --seed ${seed} --quantum ${quantum} --racecheck
                                      --initcheck --leakcheck --error-exit 9 -- ${arg_COMMAND})
      set_tests_properties("${name}" PROPERTIES ENVIRONMENT "PTXEMU_LIB=${RADIXMLP_PTXEMU_LIB}" LABELS "device;emulator")
      list(APPEND names "${name}")
    endforeach()
  else()
    set(names "${arg_NAME}")
    add_test(NAME "${arg_NAME}" COMMAND ${arg_COMMAND})
    if(arg_DEVICE)
      set_tests_properties("${arg_NAME}" PROPERTIES LABELS "device")
    else()
      set_tests_properties("${arg_NAME}" PROPERTIES LABELS "host")
    endif()
  endif()
  set_tests_properties(${names} PROPERTIES SKIP_RETURN_CODE 77 TIMEOUT ${arg_TIMEOUT})
endfunction()

# radixmlp_add_catch_test(<name> [DEVICE] [TIMEOUT s] SOURCES ... [LIBRARIES ...]): an executable of Catch2 test cases and
# the test that runs it. tests/support is on its include path.
function(radixmlp_add_catch_test name)
  cmake_parse_arguments(arg "DEVICE" "TIMEOUT" "SOURCES;LIBRARIES" ${ARGN})
  radixmlp_use_catch2()
  if(NOT TARGET radixmlp_test_main)
    add_library(radixmlp_test_main OBJECT "${PROJECT_SOURCE_DIR}/tests/support/main.cpp")
    target_link_libraries(radixmlp_test_main PUBLIC radixmlp_development radixmlp_catch2)
    target_include_directories(radixmlp_test_main PUBLIC "${PROJECT_SOURCE_DIR}/tests")
    target_compile_options(radixmlp_test_main PRIVATE -w -O1 -fno-sanitize=all)  # this file is Catch2's code
    target_compile_definitions(radixmlp_test_main PUBLIC "RADIXMLP_SHARED_DIR=\"${RADIXMLP_SHARED_DIR}\""
                                                         "RADIXMLP_SOURCE_DIR=\"${PROJECT_SOURCE_DIR}\"")
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE radixmlp_test_main ${arg_LIBRARIES})
  # The tidy preset looks at the library, the examples and the benchmarks: Catch2's macros are not ours to tidy.
  set_target_properties(${name} radixmlp_test_main PROPERTIES CXX_CLANG_TIDY "")
  if(arg_DEVICE)
    target_link_libraries(${name} PRIVATE radixmlp::cuda)
    radixmlp_add_test(NAME ${name} COMMAND ${name} DEVICE TIMEOUT ${arg_TIMEOUT})
  else()
    radixmlp_add_test(NAME ${name} COMMAND ${name} TIMEOUT ${arg_TIMEOUT})
  endif()
endfunction()
