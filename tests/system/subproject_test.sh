#!/usr/bin/env bash
# The sources inside another project: as a subdirectory, also as for a processor without variants; beside a
# library of the project's own that it exports; and the tuner's side, which configures where none of the
# fitter's libraries is found.
# usage: subproject_test.sh REPOSITORY BUILD
set -euo pipefail
# shellcheck source=tests/system/attempt.sh
source "$1/tests/system/attempt.sh"

# The sources as a subdirectory: the kernels and the library, nothing else, and nothing of the project's own
# changes.
mkdir "$work/outer"
cp "$1/examples/cpp/train_step.cpp" "$1/tests/kernels/c_hash_main.c" "$work/outer"
cat >"$work/outer/CMakeLists.txt" <<TEXT
cmake_minimum_required(VERSION 3.25)
project(outer LANGUAGES C CXX)
if(PROCESSOR)
  set(CMAKE_SYSTEM_PROCESSOR \${PROCESSOR})
endif()
include(FetchContent)
macro(read_flags name)
  set(\${name} "\${CMAKE_CXX_FLAGS}|\${CMAKE_BUILD_TYPE}|\${CMAKE_CXX_STANDARD}|")
  string(APPEND \${name} "\${BUILD_SHARED_LIBS}|\${CMAKE_MODULE_PATH}")
endmacro()
read_flags(flags)
FetchContent_Declare(outgrad SOURCE_DIR "$1")
FetchContent_MakeAvailable(outgrad)
read_flags(after)
if(NOT flags STREQUAL after)
  message(FATAL_ERROR "outgrad changed the project's own flags")
endif()
get_property(targets DIRECTORY "\${outgrad_SOURCE_DIR}" PROPERTY BUILDSYSTEM_TARGETS)
foreach(target \${targets})
  if(NOT target MATCHES "^outgrad(_c(_.*)?|_static|_kernels)?\$")
    message(FATAL_ERROR "outgrad brings the target \${target}")
  endif()
endforeach()
get_property(tests DIRECTORY "\${outgrad_SOURCE_DIR}" PROPERTY TESTS)
if(tests)
  message(FATAL_ERROR "outgrad brings tests")
endif()
if(NOT TARGET outgrad::outgrad OR NOT TARGET outgrad::outgrad_static)
  message(FATAL_ERROR "outgrad brings no library")
endif()
add_executable(step train_step.cpp)
target_link_libraries(step PRIVATE outgrad::kernels)
add_executable(hashes c_hash_main.c)
target_link_libraries(hashes PRIVATE outgrad::outgrad_static)
TEXT
attempt "the sources as a subdirectory" cmake -S "$work/outer" -B "$work/outer/build"
# Built as for a processor without variants: the baseline's kernels alone, a third of the library's units.
attempt "the sources as a subdirectory, for another processor" cmake -S "$work/outer" -B "$work/outer/build" \
  -DPROCESSOR=other
attempt "a project around the sources does not build" cmake --build "$work/outer/build" -j2
attempt "its results" "$work/outer/build/step"
# Hashes of all functions' results, below the lines that say which library it is: code that is not optimised
# and without an instruction for fma.
for library in "$work/outer/build/hashes" "$2/tests/outgrad-c-hash"; do
  "$library" >"$work/${library##*/}"
done
grep -qx 'instruction_set baseline' "$work/hashes" ||
  { echo "FAILED: another processor has $(sed -n 2p "$work/hashes")"; exit 1; }
(($(wc -l <"$work/hashes") > 150)) ||
  { echo "FAILED: only $(wc -l <"$work/hashes") results are compared"; exit 1; }
attempt "another processor's results" diff <(tail -n +3 "$work/hashes") <(tail -n +3 "$work/outgrad-c-hash")
attempt "its installation" cmake --install "$work/outer/build" --prefix "$work/outer/prefix"
[[ ! -e $work/outer/prefix/include ]] ||
  { echo "FAILED: a project around the sources installs our headers"; exit 1; }

# A project without OpenMP and exceptions that exports a library of its own with ours: how, the configuration
# says where it cannot be.
mkdir "$work/bare"
cat >"$work/bare/CMakeLists.txt" <<TEXT
cmake_minimum_required(VERSION 3.25)
project(bare LANGUAGES CXX)
set(OUTGRAD_LIBRARY OFF)
set(CMAKE_DISABLE_FIND_PACKAGE_OpenMP ON)
add_subdirectory("$1" outgrad)
add_library(mine STATIC mine.cpp)
target_link_libraries(mine PUBLIC outgrad::kernels)
target_compile_options(mine PRIVATE -fno-exceptions)
add_executable(run run.cpp)
target_link_libraries(run PRIVATE mine)
install(TARGETS mine EXPORT mine)
install(EXPORT mine DESTINATION lib/cmake/mine)
TEXT
cat >"$work/bare/mine.cpp" <<'TEXT'
#include "kernels/host/layernorm.h"
float normed(long columns) {
  float x[] = {1, 3}, y[2] = {}, rstd = 0;
  outgrad::kernels::layernorm_forward<float>(
      {.x = x, .rows = 1, .n = columns, .eps = 0, .y = y, .rstd = &rstd});
  return y[1];
}
TEXT
cat >"$work/bare/run.cpp" <<'TEXT'
float normed(long);
int main(int count, char**) { return normed(count == 2 ? 2 : 0) != 1; }
TEXT
if cmake -S "$work/bare" -B "$work/bare/build" >"$work/log" 2>&1; then
  echo "a target that is not installed can be exported: this CMake needs no word of it"
else
  grep -q "set OUTGRAD_INSTALL=ON before an install(EXPORT)" "$work/log" ||
    { cat "$work/log"; echo "FAILED: no word of OUTGRAD_INSTALL"; exit 1; }
fi
attempt "a project that exports its library with ours" cmake -S "$work/bare" -B "$work/bare/build" \
  -DOUTGRAD_INSTALL=ON
attempt "a project without OpenMP and exceptions does not build" cmake --build "$work/bare/build"
attempt "its results" "$work/bare/build/run" second
status=0
"$work/bare/build/run" 2>"$work/log" || status=$?
((status == 134)) || { echo "FAILED: no columns, and no exception to throw: status $status"; exit 1; }
grep -q "^outgrad: layernorm_forward: n = 0: a row needs at least one element" "$work/log" ||
  { cat "$work/log"; echo "FAILED: no columns, and no message"; exit 1; }
attempt "its installation with ours" cmake --install "$work/bare/build" --prefix "$work/bare/prefix"
cat >"$work/bare/prefix/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
set(CMAKE_DISABLE_FIND_PACKAGE_OpenMP ON)
find_package(outgrad 0.2 REQUIRED COMPONENTS kernels)
include("${CMAKE_CURRENT_SOURCE_DIR}/lib/cmake/mine/mine.cmake")
add_executable(run ../run.cpp)
target_link_libraries(run PRIVATE mine)
TEXT
attempt "a project that uses both exports" cmake -S "$work/bare/prefix" -B "$work/bare/use" \
  -DCMAKE_PREFIX_PATH="$work/bare/prefix"
attempt "a project that uses both exports does not build" cmake --build "$work/bare/use"

# The tuner's side alone.
hidden=()
for package in Arb Boost Eigen3 fmt Libzip; do
  hidden+=("-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON")
done
attempt "OUTGRAD_FITTER=OFF needs one of the fitter's libraries" \
  cmake -S "$1" -B "$work/tuner" -DOUTGRAD_FITTER=OFF -DOUTGRAD_TESTS=OFF "${hidden[@]}"
