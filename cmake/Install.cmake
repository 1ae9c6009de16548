# SPDX-License-Identifier: MIT

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# Nothing of the headers depends on the architecture, so the package lies in share/ and its version file says so. The
# compiled libraries and what describes them lie in lib/.
set(radixmlp_package_dir "${CMAKE_INSTALL_DATADIR}/cmake/radixmlp")

install(DIRECTORY include/radixmlp DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/radixmlp")

install(TARGETS radixmlp EXPORT radixmlp INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(EXPORT radixmlp NAMESPACE radixmlp:: FILE radixmlpTargets.cmake DESTINATION "${radixmlp_package_dir}")
install(FILES cmake/radixmlpCudaTarget.cmake DESTINATION "${radixmlp_package_dir}")

set(radixmlp_c_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/radixmlp-c")
if(radixmlp_c_libraries)
  install(TARGETS ${radixmlp_c_libraries} EXPORT radixmlp_c INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT radixmlp_c NAMESPACE radixmlp:: FILE radixmlpCTargets.cmake DESTINATION "${radixmlp_c_package_dir}")
endif()

# pkg-config: radixmlp for the headers, radixmlp-c for the C ABI. Where the .pc file lies says where the rest does.
function(radixmlp_install_pkg_config name dir)
  file(RELATIVE_PATH up "/${dir}/pkgconfig" "/")
  string(REGEX REPLACE "/$" "" prefix "\${pcfiledir}/${up}")
  configure_file(cmake/${name}.pc.in "${PROJECT_BINARY_DIR}/${name}.pc" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/${name}.pc" DESTINATION "${dir}/pkgconfig")
endfunction()
radixmlp_install_pkg_config(radixmlp "${CMAKE_INSTALL_DATADIR}")
if(TARGET radixmlp_c)
  list(TRANSFORM radixmlp_cxx_runtime PREPEND "-l" OUTPUT_VARIABLE runtime)
  list(JOIN runtime " " runtime)
  get_target_property(type radixmlp_c TYPE)
  if(type STREQUAL "SHARED_LIBRARY")
    set(runtime "")
  endif()
  radixmlp_install_pkg_config(radixmlp-c "${CMAKE_INSTALL_LIBDIR}")
endif()

configure_package_config_file(cmake/radixmlpConfig.cmake.in "${PROJECT_BINARY_DIR}/radixmlpConfig.cmake"
                              INSTALL_DESTINATION "${radixmlp_package_dir}"
                              PATH_VARS radixmlp_c_package_dir)
# Before 1.0 a minor version may change the API.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/radixmlpConfigVersion.cmake" COMPATIBILITY SameMinorVersion
                                 ARCH_INDEPENDENT)
install(FILES "${PROJECT_BINARY_DIR}/radixmlpConfig.cmake" "${PROJECT_BINARY_DIR}/radixmlpConfigVersion.cmake"
        DESTINATION "${radixmlp_package_dir}")
