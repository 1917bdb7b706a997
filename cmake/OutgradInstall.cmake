# What an installed copy has: the headers, the libraries, a CMake package and two pkg-config files.
set(outgrad_package "${CMAKE_INSTALL_LIBDIR}/cmake/outgrad")

install(TARGETS outgrad_kernels EXPORT outgrad-kernels-targets
        FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/outgrad"
        FILE_SET cuda_headers DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/outgrad")
install(EXPORT outgrad-kernels-targets NAMESPACE outgrad:: DESTINATION "${outgrad_package}")
# Relative to the file's own folder: an installed copy may be moved as a whole.
file(RELATIVE_PATH OUTGRAD_PC_TO_PREFIX "/prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/prefix")
configure_file(cmake/outgrad-kernels.pc.in outgrad-kernels.pc @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/outgrad-kernels.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

if(OUTGRAD_LIBRARY)
  install(TARGETS outgrad EXPORT outgrad-targets
          LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(TARGETS outgrad_static EXPORT outgrad-static-targets
          ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}"
          FILE_SET HEADERS DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT outgrad-targets NAMESPACE outgrad:: DESTINATION "${outgrad_package}")
  install(EXPORT outgrad-static-targets NAMESPACE outgrad:: DESTINATION "${outgrad_package}")
  configure_file(cmake/outgrad.pc.in outgrad.pc @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/outgrad.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endif()

configure_package_config_file(cmake/outgrad-config.cmake.in outgrad-config.cmake
  INSTALL_DESTINATION "${outgrad_package}")
# Headers change with the minor version, as the inline namespace says; so do coefficients.
write_basic_package_version_file(outgrad-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/outgrad-config.cmake"
  "${PROJECT_BINARY_DIR}/outgrad-config-version.cmake"
        DESTINATION "${outgrad_package}")
