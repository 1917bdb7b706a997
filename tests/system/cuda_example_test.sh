#!/usr/bin/env bash
# The CUDA example, compiled against an installed copy; run where there is a GPU. Exit status 77 without nvcc
# or without a GPU.
# usage: cuda_example_test.sh REPOSITORY BUILD
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvcc=$(PATH=$PATH:${CUDA_PATH:-/usr/local/cuda}/bin:/usr/local/cuda/bin command -v nvcc) ||
  { echo "SKIPPED: no nvcc here"; exit 77; }
if ! { cmake --install "$2" --prefix "$work/prefix" &&
  CUDACXX=$nvcc cmake -S "$1/examples/cuda" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" \
  -DCMAKE_CUDA_ARCHITECTURES="80;90" &&
  cmake --build "$work/build"; } >"$work/log" 2>&1; then
  cat "$work/log"
  echo "FAILED: the CUDA example does not build"
  exit 1
fi
status=0
"$work/build/train_step" || status=$?
[[ $status == 77 ]] && echo "SKIPPED: the CUDA example was compiled, not run"
exit $status
