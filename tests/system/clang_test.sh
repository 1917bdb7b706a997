#!/usr/bin/env bash
# The tuner's side, kernels/ and autotune/ alone, builds with clang, without a warning, and runs: what it
# compiled answers as what this build's compiler did.
# usage: clang_test.sh REPOSITORY BUILD
set -euo pipefail
root=$1 build=$2
fail() { echo "FAILED: $*"; exit 1; }
command -v clang++ > /dev/null || { echo "SKIPPED: no clang++"; exit 77; }
printf '#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n' |
  clang++ -fopenmp -x c++ - -o "$build/clang-openmp" 2> /dev/null ||
  { echo "SKIPPED: clang++ has no OpenMP (Debian: libomp-dev)"; exit 77; }
folder=$build/clang log=$build/clang.log
{ cmake -S "$root" -B "$folder" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=clang++ -DOUTGRAD_FITTER=OFF \
  -DOUTGRAD_TESTS=OFF -DOUTGRAD_LIBRARY=OFF \
    -DOUTGRAD_INSTALL=OFF -DOUTGRAD_CUDA=OFF -DOUTGRAD_WERROR=OFF &&
  cmake --build "$folder" --target outgrad-tune outgrad-eval -j "$(nproc)"; } > "$log" 2>&1 ||
  { grep -m 5 -E 'error' "$log" || tail -n 5 "$log"; fail "clang does not build the tuner: $log"; }
! grep -m 5 'warning:' "$log" || fail "clang warns"
# 4096 elements, of bytes that are no pattern of numbers.
head -c 8192 "$root/CMakeLists.txt" > "$folder/x"
for compiler in clang ours; do
  evaluator=$build/outgrad-eval
  [[ $compiler != clang ]] || evaluator=$folder/outgrad-eval
  "$evaluator" eval --op forward --activation gelu --format bf16 --x "$folder/x" --y "$folder/y.$compiler" \
    --mask "$folder/mask.$compiler" > /dev/null
  "$evaluator" eval --op backward --activation gelu --format bf16 --dy "$folder/x" --y "$folder/y.$compiler" \
    --mask "$folder/mask.$compiler" --dx "$folder/dx.$compiler" > /dev/null
done
for array in y mask dx; do
  cmp "$folder/$array.clang" "$folder/$array.ours" || fail "clang's $array differs"
done
echo "$(clang++ --version | head -n 1): no warning, equal bits"
