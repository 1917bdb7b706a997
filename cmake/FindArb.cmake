# MPFR::mpfr: MPFR with GMP. Arb::arb: ball arithmetic with FLINT, and these. Debian 12 ships Arb apart as
# libflint-arb; FLINT 3 contains it.
find_path(ARB_INCLUDE_DIR arb.h PATH_SUFFIXES flint)
find_path(FLINT_INCLUDE_DIR flint/flint.h)
find_path(MPFR_INCLUDE_DIR mpfr.h)
find_library(FLINT_LIBRARY flint)
find_library(ARB_LIBRARY NAMES flint-arb arb flint)
find_library(MPFR_LIBRARY mpfr)
find_library(GMP_LIBRARY gmp)
mark_as_advanced(ARB_INCLUDE_DIR FLINT_INCLUDE_DIR MPFR_INCLUDE_DIR FLINT_LIBRARY ARB_LIBRARY MPFR_LIBRARY
  GMP_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Arb
  REQUIRED_VARS ARB_LIBRARY FLINT_LIBRARY MPFR_LIBRARY GMP_LIBRARY ARB_INCLUDE_DIR FLINT_INCLUDE_DIR
  MPFR_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "Debian: libflint-arb-dev libflint-dev libmpfr-dev libgmp-dev. \
Or build kernels/ and autotune/ alone with -DOUTGRAD_FITTER=OFF")

if(Arb_FOUND AND NOT TARGET Arb::arb)
  add_library(MPFR::mpfr INTERFACE IMPORTED)
  target_include_directories(MPFR::mpfr INTERFACE "${MPFR_INCLUDE_DIR}")
  target_link_libraries(MPFR::mpfr INTERFACE "${MPFR_LIBRARY}" "${GMP_LIBRARY}")
  add_library(Arb::arb INTERFACE IMPORTED)
  target_include_directories(Arb::arb INTERFACE "${ARB_INCLUDE_DIR}" "${FLINT_INCLUDE_DIR}")
  target_link_libraries(Arb::arb INTERFACE "${ARB_LIBRARY}" "${FLINT_LIBRARY}" MPFR::mpfr)
endif()
