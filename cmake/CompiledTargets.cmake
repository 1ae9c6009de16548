# SPDX-License-Identifier: MIT
#
# What targets of ours that are compiled need, the C ABI and the development targets alike.

include(CheckLanguage)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

# CUDA as a language, for device code: radixmlp_can_build_cuda tells whether there is any.
set(radixmlp_can_build_cuda OFF)
if(radixmlp_has_cuda)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    enable_language(CUDA)
    set(radixmlp_can_build_cuda ON)
  elseif(RADIXMLP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "RADIXMLP_CUDA=ON, but no CUDA compiler works here (set CMAKE_CUDA_COMPILER)")
  endif()
endif()
