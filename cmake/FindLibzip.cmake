# Libzip::zip. Debian 12's own package file of libzip-dev fails unless three unrelated command-line tools are
# installed too.
find_path(LIBZIP_INCLUDE_DIR zip.h)
find_library(LIBZIP_LIBRARY zip)
mark_as_advanced(LIBZIP_INCLUDE_DIR LIBZIP_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libzip REQUIRED_VARS LIBZIP_LIBRARY LIBZIP_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Debian: libzip-dev")

if(Libzip_FOUND AND NOT TARGET Libzip::zip)
  add_library(Libzip::zip INTERFACE IMPORTED)
  target_include_directories(Libzip::zip INTERFACE "${LIBZIP_INCLUDE_DIR}")
  target_link_libraries(Libzip::zip INTERFACE "${LIBZIP_LIBRARY}")
endif()
