#!/usr/bin/env bash
# The examples that need the tools beside the library: an activation of one's own, whose project fits and
# proves its header, and the tuner. package_test.sh has those in C and C++, cuda_example_test.sh the one in
# CUDA, kernels/torch/example_test.py the one in PyTorch.
# usage: examples_test.sh REPOSITORY BUILD
set -euo pipefail
[[ -x $2/outgrad-fit && -x $2/outgrad-tune ]] ||
  { echo "skipped: this build lacks the fitter or the tuner"; exit 77; }
export OUTGRAD_BUILD_DIR=$2 OUTGRAD_SOURCE_DIR=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# attempt WHAT COMMAND...: the command's output is shown if it fails.
attempt() {
  local what=$1
  shift
  if ! "$@" >"$work/log" 2>&1; then
    cat "$work/log"
    echo "FAILED: $what"
    exit 1
  fi
}

attempt "the installation" cmake --install "$2" --prefix "$work/prefix"
attempt "the own activation's configuration" cmake -S "$1/examples/own_activation" -B "$work/own" \
  -DCMAKE_PREFIX_PATH="$work/prefix"
attempt "the own activation does not build" cmake --build "$work/own"
attempt "the own activation's gradients" "$work/own/own_activation"
cat "$work/log"

# With few measurements: what is tested is that the example runs.
cd "$work"
attempt "the tuner" "$1/examples/tune_a_device.sh" cpu 1
[[ -s out/example/tuned_cpu.h ]] || { echo "FAILED: the tuner left no header"; exit 1; }

# Whatever is in examples/ stands in its README.
for path in "$1"/examples/*; do
  name=${path##*/}
  [[ $name == README.md ]] || grep -q "($name" "$1/examples/README.md" ||
    { echo "FAILED: examples/README.md does not name $name"; exit 1; }
done
