# SPDX-License-Identifier: MIT

# [subdirectory]
add_subdirectory(third_party/radixmlp)
target_link_libraries(engine PRIVATE radixmlp::radixmlp)      # host
target_link_libraries(engine_cuda PRIVATE radixmlp::cuda)     # .cu files: adds the CUDA runtime, not CUB
# [/subdirectory]
