include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

install(DIRECTORY include/radixmlp DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES LICENSE DESTINATION "${CMAKE_INSTALL_DATADIR}/licenses/radixmlp")
