#!/usr/bin/env bash
# An installed copy as strangers use it: the examples through find_package and through pkg-config, and a
# project of C alone.
# usage: package_test.sh REPOSITORY BUILD
set -euo pipefail
# shellcheck source=tests/system/attempt.sh
source "$1/tests/system/attempt.sh"

attempt "the installation" cmake --install "$2" --prefix "$work/first"
mv "$work/first" "$work/prefix"  # an installed copy may be moved
prefix=$work/prefix
libraries=$(dirname "$(find "$prefix" -name liboutgrad.so)")
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
[[ -f $prefix/include/outgrad.h ]] || { echo "FAILED: no include/outgrad.h"; exit 1; }
[[ ! -e $prefix/outgrad ]] || { echo "FAILED: the PyTorch package is beside include and lib"; exit 1; }
[[ $(readlink "$libraries/liboutgrad.so") == liboutgrad.so.0 ]] ||
  { echo "FAILED: liboutgrad.so does not lead to its soname"; exit 1; }

# C++, header-only, find_package.
attempt "the C++ example's configuration" \
  cmake -S "$1/examples/cpp" -B "$work/cpp" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix"
attempt "the C++ example does not build" cmake --build "$work/cpp"
attempt "the C++ example's gradients" "$work/cpp/train_step"

# Every kind of target in a C++ project, and a version that is not there.
mkdir "$work/targets"
cp "$1/examples/c/train_step.c" "$work/targets"
cat >"$work/targets/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.25)
project(targets LANGUAGES C CXX)
find_package(outgrad 0.2 REQUIRED COMPONENTS kernels outgrad static)
find_package(outgrad 99 QUIET)
if(outgrad_FOUND)
  message(FATAL_ERROR "version 99 was found")
endif()
find_package(outgrad 0.2 REQUIRED)
foreach(kind outgrad outgrad_static)
  add_executable(step_${kind} train_step.c)
  target_link_libraries(step_${kind} PRIVATE outgrad::${kind} m)
endforeach()
TEXT
attempt "a project that uses every target" cmake -S "$work/targets" -B "$work/targets/build" \
  -DCMAKE_PREFIX_PATH="$prefix"
attempt "a project that uses every target does not build" cmake --build "$work/targets/build"
attempt "the shared library's results" "$work/targets/build/step_outgrad"
attempt "the static library's results" "$work/targets/build/step_outgrad_static"

# A project of C alone.
mkdir "$work/c"
cp "$1/examples/c/train_step.c" "$work/c"
cat >"$work/c/CMakeLists.txt" <<'TEXT'
cmake_minimum_required(VERSION 3.25)
project(c LANGUAGES C)
find_package(outgrad 0.2 REQUIRED COMPONENTS outgrad)
add_executable(step train_step.c)
target_link_libraries(step PRIVATE outgrad::outgrad m)
TEXT
attempt "a project of C alone" cmake -S "$work/c" -B "$work/c/build" -DCMAKE_PREFIX_PATH="$prefix"
attempt "a project of C alone does not build" cmake --build "$work/c/build"
attempt "the C project's results" "$work/c/build/step"

# pkg-config: the C example, shared and static, and the header-only kernels.
if command -v pkg-config >/dev/null; then
  export PKG_CONFIG_PATH=$libraries/pkgconfig
  read -ra flags <<<"$(pkg-config --cflags --libs outgrad)"
  attempt "the C example through pkg-config" \
    cc -std=c99 -pedantic-errors -Wall -Wextra -Werror "$1/examples/c/train_step.c" -o "$work/step" \
    "${flags[@]}" -lm
  attempt "the C example's gradients" "$work/step"
  read -ra flags <<<"$(pkg-config --cflags --libs --static outgrad)"
  attempt "the C example linked statically" \
    cc -std=c99 "$1/examples/c/train_step.c" -o "$work/static_step" \
    "${flags[@]/-loutgrad/-l:liboutgrad.a}" -lm
  attempt "the statically linked example's gradients" "$work/static_step"
  read -ra flags <<<"$(pkg-config --cflags --libs outgrad-kernels)"
  attempt "the C++ example through pkg-config" c++ -std=c++20 "$1/examples/cpp/train_step.cpp" \
    -o "$work/cpp_step" "${flags[@]}"
  attempt "the C++ example's gradients without optimisation" "$work/cpp_step"
else
  echo "pkg-config is not installed: its files are not tested"
fi
