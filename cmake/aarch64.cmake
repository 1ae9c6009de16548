# SPDX-License-Identifier: MIT
#
# Toolchain of the preset aarch64: Debian's cross compiler (g++-aarch64-linux-gnu), tests under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L /usr/aarch64-linux-gnu)
# Catch2 and nlohmann_json are headers of the build machine.
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
