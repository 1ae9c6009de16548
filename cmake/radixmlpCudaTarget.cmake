# SPDX-License-Identifier: MIT
#
# radixmlp::cuda, defined here for the build tree and for the installed package alike: what it needs depends on the CMake
# that reads it. Expects the target radixmlp::radixmlp, and CUDAToolkit to be found.

add_library(radixmlp::cuda INTERFACE IMPORTED GLOBAL)
# The runtime that nvcc links into the same target by itself: static, unless the target says Shared.
target_link_libraries(
  radixmlp::cuda
  INTERFACE radixmlp::radixmlp
            "$<IF:$<STREQUAL:$<UPPER_CASE:$<TARGET_PROPERTY:CUDA_RUNTIME_LIBRARY>>,SHARED>,CUDA::cudart,CUDA::cudart_static>")
if(CMAKE_VERSION VERSION_LESS 3.26)
  # These versions do not know cuda_std_20 of nvcc.
  target_compile_options(radixmlp::cuda INTERFACE "$<$<COMPILE_LANG_AND_ID:CUDA,NVIDIA>:-std=c++20>")
else()
  target_compile_features(radixmlp::cuda INTERFACE cuda_std_20)
endif()
