# Our flags and warnings, given to our own targets only: a consumer of outgrad::kernels keeps its own.

# The code may depend on neither of these two for its bits: a product that feeds a sum is an explicit fma.
# -fno-math-errno lets g++ vectorise sqrt; -ffp-contract=off saves it from fusing what we then would have to
# defend.
set(OUTGRAD_CODEGEN_FLAGS -fno-math-errno -ffp-contract=off)
set(OUTGRAD_WARNING_FLAGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # false alarms in std::string's own operator+ (GCC bug 105651)
  list(APPEND OUTGRAD_WARNING_FLAGS -Wno-restrict)
endif()
# By default, g++ searches its memory for what is unused from 256 MB on, at the cost of time.
set(OUTGRAD_COMPILER_FLAGS)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(OUTGRAD_COMPILER_FLAGS --param=ggc-min-heapsize=400000)
endif()
# Another compiler's new warning is no reason not to build there. AUTO, because programs and tests share one
# build: with an option that only `test` sets, it would compile again what `run` has compiled.
set(OUTGRAD_WARNING_STOPS "${OUTGRAD_WERROR}")
if(OUTGRAD_WERROR STREQUAL "AUTO")
  set(OUTGRAD_WARNING_STOPS OFF)
  if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU"
    AND CMAKE_CXX_COMPILER_VERSION MATCHES "^12\\.")
    set(OUTGRAD_WARNING_STOPS ON)
  endif()
endif()
if(OUTGRAD_WARNING_STOPS)
  list(APPEND OUTGRAD_WARNING_FLAGS -Werror)
endif()

# Machine-independent by default: the fitter must give the same bytes on every x86-64 machine, and the order
# of Eigen's sums follows the vector width. Native are the kernels and those who run them: their bits are the
# same by design.
function(outgrad_flags target native)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  set(flags ${OUTGRAD_CODEGEN_FLAGS} ${OUTGRAD_WARNING_FLAGS} ${OUTGRAD_COMPILER_FLAGS})
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
  if(native AND OUTGRAD_NATIVE)
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-march=native>")
  endif()
endfunction()

# The sources of each folder of a target as one unit: most of the time of each by itself goes into the same
# headers and the same templates. Not for the kernels and their tests, whose templates differ; nor beside the
# fuzzers, which compile some of a library's sources anew and link the rest. A type of a source's own in a
# class of its header (an implementation behind a pointer) is no mistake. The rooms of approx/ are small and
# share the heaviest headers: together they take two thirds of the time of one unit a room.
function(outgrad_together target)
  if(NOT OUTGRAD_UNITY OR OUTGRAD_FUZZ)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    cmake_path(ABSOLUTE_PATH source OUTPUT_VARIABLE folder)
    cmake_path(RELATIVE_PATH folder BASE_DIRECTORY "${PROJECT_SOURCE_DIR}")
    cmake_path(GET folder PARENT_PATH folder)
    string(REGEX REPLACE "^(tests/)?approx/.*" "approx" folder "${folder}")
    string(MAKE_C_IDENTIFIER "${folder}" group)
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endfunction()

# COLD: no command spends its time here, so that the compiler spends less of its own. WARM: what spends its
# time in the libraries below it; at -Og the fitter's and the checker's tests take a tenth longer.
function(outgrad_level target warm cold)
  if(warm OR cold)
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:$<IF:$<BOOL:${cold}>,-Og,-O1>>)
  endif()
endfunction()

# A static library in the root of the build folder; includes are rooted at the repository.
function(outgrad_library target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NATIVE;WARM;COLD" "" "")
  add_library(${target} STATIC ${arg_UNPARSED_ARGUMENTS})
  set_target_properties(${target} PROPERTIES ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
  outgrad_flags(${target} ${arg_NATIVE})
  outgrad_level(${target} ${arg_WARM} ${arg_COLD})
  outgrad_together(${target})
  target_include_directories(${target} PUBLIC ${OUTGRAD_GENERATED} "${PROJECT_SOURCE_DIR}")
endfunction()

# An executable in the root of the build folder, where the wrapper looks for it.
function(outgrad_executable target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "NATIVE;WARM;COLD" "" "")
  add_executable(${target} ${arg_UNPARSED_ARGUMENTS})
  outgrad_flags(${target} ${arg_NATIVE})
  outgrad_level(${target} ${arg_WARM} ${arg_COLD})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
endfunction()

# The public headers of an interface library: each is compiled alone in a build with tests (CMake's own
# header-set verification), and installed. What only our own targets include is in no list.
function(outgrad_headers target)
  target_sources(${target} INTERFACE FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ARGN})
  set_target_properties(${target} PROPERTIES
    VERIFY_INTERFACE_HEADER_SETS ${OUTGRAD_TESTS}
    INTERFACE_HEADER_SETS_TO_VERIFY HEADERS)
endfunction()

# CUDA headers: installed with the others, compiled by nvcc (outgrad_cuda) and NVRTC (nvrtc_test), not by the
# host compiler.
function(outgrad_cuda_headers target)
  target_sources(${target} INTERFACE
    FILE_SET cuda_headers TYPE HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${ARGN})
endfunction()
