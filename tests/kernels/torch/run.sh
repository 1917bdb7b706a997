#!/usr/bin/env bash
# run.sh SOURCES BUILD PYTHON MARK FILE... [OPTION...]: files of tests of the PyTorch package; 77, a visible
# skip, where there is no PyTorch. MARK says which of the tests: those that are marked `exhaustive` (minutes
# each) or `nightly` (long beside the rare things that they guard), or `unit`, all others.
set -euo pipefail
if [[ -z $3 ]]; then
  echo "no PyTorch: the build is without OUTGRAD_TORCH"
  exit 77
fi
if [[ ! -x $3 ]]; then  # as where it is in the home of another user
  echo "SKIPPED: $3 cannot be executed by $(id -un)"
  exit 77
fi
export PYTHONPATH=$2/python:$1/notebooks_data/studies PYTHONDONTWRITEBYTECODE=1
export OUTGRAD_SOURCE_DIR=$1 OUTGRAD_BINARY_DIR=$2 OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1
python=$3 mark=$4 folder=$1/tests/kernels/torch
[[ $mark != unit ]] || mark="not exhaustive and not nightly"
[[ $mark != nightly ]] || mark="nightly and not exhaustive"
shift 4
files=()
while (($#)) && [[ $1 == *_test.py ]]; do
  files+=("$folder/$1")
  shift
done
markers=$'exhaustive: takes minutes\nnightly: takes long'
"$python" -m pytest -q -p no:cacheprovider -o "markers=$markers" -m "$mark" --durations=5 \
  --rootdir "$folder" "${files[@]}" "$@" || status=$?
# pytest's 5: no test ran, as where a file is skipped as a whole.
if [[ ${status:-0} -eq 5 ]]; then exit 77; fi
exit "${status:-0}"
