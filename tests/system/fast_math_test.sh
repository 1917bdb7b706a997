#!/usr/bin/env bash
# Flags that let a compiler compute something else than what is written: the headers refuse each part of
# -ffast-math by a line of their own, where g++, clang or nvcc would act on it; under every other flag a
# program (tests/kernels/fast_math_main.cpp) gives the plain build's bits. A compiler that is not here is said
# to be missing. usage: fast_math_test.sh REPOSITORY BUILD
set -euo pipefail
root=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; exit 1; }

echo '#include "kernels/portable.h"' >"$work/unit.cpp"
cp "$work/unit.cpp" "$work/unit.cu"
{
  echo '#pragma GCC optimize("associative-math", "no-signed-zeros", "no-trapping-math")'
  cat "$work/unit.cpp"
} >"$work/pragma.cpp"
said="error:.*outgrad: fast-math flags change results"

# refuses COMPILER SOURCE FLAGS...
refuses() {
  ! "$1" -std=c++20 "${@:3}" -I"$root" -c "$work/$2" -o "$work/unit.o" 2>"$work/log" ||
    fail "${*:1} is not refused"
  grep -q "$said" "$work/log" || { cat "$work/log"; fail "${*:1} has no line of ours"; }
}
# same COMPILER FLAGS...: the bits of the first such build.
same() {
  "$1" -std=c++20 "${@:2}" -w -I"$root" "$root/tests/kernels/fast_math_main.cpp" -o "$work/program" ||
    fail "$*"
  "$work/program" >"$work/hash"
  [[ -e $work/plain ]] || cp "$work/hash" "$work/plain"
  cmp -s "$work/hash" "$work/plain" ||
    fail "$*: $(cat "$work/hash") where the plain build has $(cat "$work/plain")"
}

recip=()  # a flag of this name approximates nothing elsewhere
[[ $(uname -m) != x86_64 ]] || recip=(-mrecip)
for compiler in g++ clang++; do
  command -v "$compiler" >/dev/null || { echo "$compiler is not here: its flags are not tested"; continue; }
  # Each of these changes at least one operation that the kernels use.
  for level in -O1 -O3; do
    for flags in \
      -ffast-math -funsafe-math-optimizations "-fassociative-math -fno-signed-zeros -fno-trapping-math" \
      -freciprocal-math -fno-signed-zeros -ffinite-math-only; do
      read -ra each <<<"$flags"
      refuses "$compiler" unit.cpp "$level" "${each[@]}"
    done
  done
  refuses "$compiler" unit.cpp -Ofast
  refuses "$compiler" unit.cpp -Ofast -fno-finite-math-only
  same "$compiler" -O2
  if [[ $compiler == g++ ]]; then
    refuses "$compiler" pragma.cpp -O2
    same "$compiler" -O3 -march=native -ffp-contract=fast \
      -fno-trapping-math -frounding-math -fno-math-errno "${recip[@]}"
  else
    refuses "$compiler" unit.cpp -O2 -fno-honor-nans
    refuses "$compiler" unit.cpp -O2 -fno-honor-infinities
    same "$compiler" -O3 -march=native -ffp-contract=fast \
      -fno-trapping-math -fno-math-errno -fapprox-func "${recip[@]/%/=all}" -fdenormal-fp-math=preserve-sign
    # Not optimised, and so not asked: as written.
    same "$compiler" -O0 -march=native -ffp-contract=fast \
      -funsafe-math-optimizations -fno-honor-nans -fno-math-errno
  fi
done

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [[ -x $nvcc ]]; then
  device=(-std=c++20 -arch=sm_90 -I"$root")
  for flags in -ftz=true -use_fast_math "-rdc=true -ftz=true"; do
    read -ra each <<<"$flags"
    ! "$nvcc" "${device[@]}" "${each[@]}" -c "$work/unit.cu" -o "$work/unit.o" >"$work/log" 2>&1 ||
      fail "nvcc $flags is not refused"
    grep -q "outgrad_cannot_be_built_with_ftz_or_use_fast_math" "$work/log" ||
      { cat "$work/log"; fail "nvcc $flags has no line of ours"; }
  done
  "$nvcc" "${device[@]}" -Xcompiler -Wall,-Wextra,-Werror -c "$work/unit.cu" -o "$work/unit.o" || fail "nvcc"
  # The other parts of -use_fast_math, and fusing, change no instruction of a kernel.
  cat >"$work/kernel.cu" <<'TEXT'
#include "kernels/cuda/elementwise.cuh"
#include "kernels/fits.h"
using namespace outgrad::kernels;
template __global__ void cuda::gelu_forward<ForwardFit<float>::Type, float>(const float*, float*, u32*, i64);
template __global__ void cuda::activation_backward<DefaultFit<float>::Type, float>(
    const float*, Stored<float>, const u32*, float*, i64);
TEXT
  for flags in "" "-prec-div=false -prec-sqrt=false -fmad=true" -fmad=false; do
    read -ra each <<<"$flags"
    "$nvcc" "${device[@]}" "${each[@]}" -ptx "$work/kernel.cu" -o "$work/kernel.all" || fail "nvcc $flags"
    # whose name has a number of the call
    grep -vE '^//|outgrad_ask_for_fast_math' "$work/kernel.all" >"$work/kernel.ptx"
    [[ -e $work/plain.ptx ]] || cp "$work/kernel.ptx" "$work/plain.ptx"
    cmp -s "$work/kernel.ptx" "$work/plain.ptx" || fail "nvcc $flags gives other instructions"
  done
else
  echo "nvcc is not here: its flags are not tested"
fi
