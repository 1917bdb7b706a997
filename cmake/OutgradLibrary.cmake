# The compiled library: the same kernels for several instruction sets behind the C interface of
# kernels/c/outgrad.h.
include(CheckCXXCompilerFlag)
include(CheckLinkerFlag)

set(OUTGRAD_X86 OFF)
set(OUTGRAD_AVX512_BF16 OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(OUTGRAD_X86 ON)
  check_cxx_compiler_flag(-mavx512bf16 OUTGRAD_HAS_AVX512_BF16_FLAG)
  set(OUTGRAD_AVX512_BF16 ${OUTGRAD_HAS_AVX512_BF16_FLAG})
endif()

# What no variant and no dispatcher may take from this machine: the objects run on every machine of the
# architecture.
function(outgrad_c_flags target)
  outgrad_flags(${target} FALSE)
  target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}")
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_definitions(${target} PRIVATE
    $<$<BOOL:${OUTGRAD_X86}>:OUTGRAD_C_X86> $<$<BOOL:${OUTGRAD_AVX512_BF16}>:OUTGRAD_C_AVX512_BF16>)
endfunction()

# Objects of `sources`, one to a format, that define the constants of the instruction set `name`, compiled
# with its flags.
function(outgrad_variant target name sources)
  add_library(${target} OBJECT ${sources})
  outgrad_c_flags(${target})
  target_compile_definitions(${target} PRIVATE OUTGRAD_C_VARIANT=${name})
  if(OUTGRAD_TUNED AND OUTGRAD_TUNED_LIBRARY)
    target_compile_definitions(${target} PRIVATE "OUTGRAD_TUNED_HEADER=\"${outgrad_tuned_path}\"")
  endif()
  target_compile_options(${target} PRIVATE ${ARGN})
endfunction()

# Writes the source that holds the version and the digests of the coefficient headers; its path into the
# variable `result`.
function(outgrad_build_facts result)
  set(OUTGRAD_DIGESTS "")
  get_target_property(headers outgrad_kernels HEADER_SET)
  list(FILTER headers INCLUDE REGEX "kernels/generated/")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${headers})
  foreach(header ${headers})
    cmake_path(GET header STEM name)
    file(SHA256 "${header}" digest)
    string(APPEND OUTGRAD_DIGESTS "    {\"${name}\", \"${digest}\"},\n")
  endforeach()
  configure_file("${PROJECT_SOURCE_DIR}/cmake/outgrad-build.cpp.in" "${PROJECT_BINARY_DIR}/outgrad-build.cpp"
    @ONLY)
  set(${result} "${PROJECT_BINARY_DIR}/outgrad-build.cpp" PARENT_SCOPE)
endfunction()

# The objects as a library of one kind. The order matters: where several objects hold a copy of one inline
# function of the standard library, linkers keep the first, which has to be one that every machine can run.
function(outgrad_c_library target kind header)
  set(objects $<TARGET_OBJECTS:outgrad_c> $<TARGET_OBJECTS:outgrad_c_baseline>)
  foreach(variant avx2 avx512 avx512_bf16)
    if(TARGET outgrad_c_${variant})
      list(APPEND objects $<TARGET_OBJECTS:outgrad_c_${variant}>)
    endif()
  endforeach()
  add_library(${target} ${kind} ${objects})
  add_library(outgrad::${target} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    LINKER_LANGUAGE CXX OUTPUT_NAME outgrad
    ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}" LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}"
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
  target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX)
  target_sources(${target} PUBLIC FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}/kernels/c"
    FILES ${header})
  if(kind STREQUAL "SHARED")
    # OpenMP's threads outlive dlclose, and with them the code that they run.
    check_linker_flag(CXX "-Wl,-z,nodelete" OUTGRAD_HAS_NODELETE)
    target_link_options(${target} PRIVATE $<$<BOOL:${OUTGRAD_HAS_NODELETE}>:-Wl,-z,nodelete>)
    # -fvisibility=hidden leaves the standard library's templates visible; the version script does not.
    set(OUTGRAD_ABI_NODE OUTGRAD_${PROJECT_VERSION_MAJOR})
    configure_file("${PROJECT_SOURCE_DIR}/cmake/outgrad.map.in" "${PROJECT_BINARY_DIR}/outgrad.map" @ONLY)
    check_linker_flag(CXX "-Wl,--version-script=${PROJECT_BINARY_DIR}/outgrad.map" OUTGRAD_HAS_VERSION_SCRIPT)
    if(OUTGRAD_HAS_VERSION_SCRIPT)
      target_link_options(${target} PRIVATE "-Wl,--version-script=${PROJECT_BINARY_DIR}/outgrad.map")
      set_target_properties(${target} PROPERTIES LINK_DEPENDS "${PROJECT_BINARY_DIR}/outgrad.map")
    endif()
  endif()
endfunction()
