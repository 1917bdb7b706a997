#!/usr/bin/env bash
# A stranger's project finds the installed package, compiles against outgrad::kernels and runs; and the tuner's side
# configures where none of the fitter's libraries is found.
# usage: package_test.sh REPOSITORY BUILD
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$2" --prefix "$work/prefix" >/dev/null
mkdir "$work/consumer"
cd "$work/consumer"
cat >CMakeLists.txt <<'TEXT'
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
find_package(outgrad 0.1 REQUIRED)
add_executable(consumer main.cpp)
target_link_libraries(consumer PRIVATE outgrad::kernels)
TEXT
cat >main.cpp <<'TEXT'
#include "kernels/host/api.h"

// GELU(1) = 0.841344746, GELU'(1) = 1.083315471 (Abramowitz and Stegun, table 26.1), in fp32 and with room for its rounding.
int main() {
  namespace k = outgrad::kernels;
  const float x = 1.0f, dy = 1.0f;
  float y = 0, dx = 0;
  k::u32 mask = 0;
  k::gelu_forward(&x, &y, &mask, 1);
  k::gelu_backward(&dy, &y, &mask, &dx, 1);
  return mask == 1 && y > 0.84134f && y < 0.84135f && dx > 1.08331f && dx < 1.08332f ? 0 : 1;
}
TEXT
if ! { cmake -S . -B build -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" && cmake --build build; } >log 2>&1; then
  cat log
  echo "FAILED: a project that finds the installed package does not build"
  exit 1
fi
if ! ./build/consumer; then
  echo "FAILED: the installed kernels compute something else"
  exit 1
fi

hidden=()
for package in Arb Boost Eigen3 CLI11 fmt Libzip OpenSSL; do
  hidden+=("-DCMAKE_DISABLE_FIND_PACKAGE_$package=ON")
done
if ! cmake -S "$1" -B "$work/tuner" -DOUTGRAD_FITTER=OFF -DOUTGRAD_TESTS=OFF "${hidden[@]}" >log 2>&1; then
  cat log
  echo "FAILED: OUTGRAD_FITTER=OFF needs one of the fitter's libraries"
  exit 1
fi
