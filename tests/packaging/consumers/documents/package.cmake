# SPDX-License-Identifier: MIT

# [package]
find_package(radixmlp 0.1 REQUIRED)                           # radixmlp::radixmlp; looks for no CUDA
find_package(radixmlp 0.1 REQUIRED COMPONENTS cuda)           # radixmlp::cuda too; needs the CUDA Toolkit
# [/package]
