#!/usr/bin/env bash
# Sourced by the tests of the chain: a throw-away checkout with the wrapper, four specifications and stand-in
# executables.

sandbox=$(mktemp -d)
trap 'rm -rf "$sandbox"' EXIT
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

make_sandbox() {  # make_sandbox REPOSITORY
  mkdir -p "$sandbox"/{build,approx/specs,kernels/generated,autotune/commands,validation/report/sections} \
    "$sandbox"/notebooks_data/{activations,checkpoints}
  cp "$1/outgrad" "$1/.gitignore" "$sandbox"
  cp "$1"/validation/report/*.{py,css,j2} "$sandbox/validation/report"
  cp "$1"/validation/report/sections/*.py "$sandbox/validation/report/sections"
  local name
  for name in fit check tune; do
    cp "$1/tests/system/stand_in.sh" "$sandbox/build/outgrad-$name"
  done
  for name in gelu_f32 gelu_f16 gelu_bf16 gelu_forward; do
    echo "{\"name\": \"$name\"}" >"$sandbox/approx/specs/$name.json"
  done
  echo '#pragma once' >"$sandbox/kernels/eval.h"
  echo 'int main() {}' >"$sandbox/autotune/commands/tune_main.cpp"
  echo weights >"$sandbox/notebooks_data/checkpoints/model.npz"
  echo histogram >"$sandbox/notebooks_data/activations/all-MiniLM-L6-v2.json"
  export OUTGRAD_BUILD_DIR=$sandbox/build STAND_IN_LOG=$sandbox/build/log
  : >"$STAND_IN_LOG"
}
