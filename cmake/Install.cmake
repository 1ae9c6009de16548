# SPDX-License-Identifier: MIT

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Nothing installed depends on the architecture, so the package lies in share/ and its version file says so.
set(radixmlp_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/radixmlp")

install(DIRECTORY include/radixmlp DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/radixmlp")

install(TARGETS radixmlp EXPORT radixmlp INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT radixmlp NAMESPACE radixmlp:: FILE radixmlpTargets.cmake DESTINATION "${radixmlp_package_dir}")
install(FILES cmake/radixmlpCudaTarget.cmake DESTINATION "${radixmlp_package_dir}")

configure_package_config_file(cmake/radixmlpConfig.cmake.in "${PROJECT_BINARY_DIR}/radixmlpConfig.cmake"
                              INSTALL_DESTINATION "${radixmlp_package_dir}")
# Before 1.0 a minor version may change the API.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/radixmlpConfigVersion.cmake" COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/radixmlpConfig.cmake" "${PROJECT_BINARY_DIR}/radixmlpConfigVersion.cmake"
        DESTINATION "${radixmlp_package_dir}")
