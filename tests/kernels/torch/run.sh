#!/usr/bin/env bash
# run.sh SOURCES BUILD PYTHON FILE [OPTION...]: one file of tests of the PyTorch package; 77, a visible skip, where there is no PyTorch. Options are
# pytest's: `-m exhaustive` runs the tests that take minutes, and no others.
set -euo pipefail
if [[ -z $3 ]]; then
  echo "no PyTorch: the build is without OUTGRAD_TORCH"
  exit 77
fi
export PYTHONPATH=$2/python:$1/notebooks_data/studies PYTHONDONTWRITEBYTECODE=1 OUTGRAD_SOURCE_DIR=$1 OUTGRAD_BINARY_DIR=$2 OMP_NUM_THREADS=2 HF_HUB_OFFLINE=1
"$3" -m pytest -q -p no:cacheprovider -o "markers=exhaustive: takes minutes" -m "not exhaustive" --durations=5 --rootdir "$1/tests/kernels/torch" "$1/tests/kernels/torch/$4" "${@:5}" || status=$?
# pytest's 5: no test ran, as where a file is skipped as a whole.
if [[ ${status:-0} -eq 5 ]]; then exit 77; fi
exit "${status:-0}"
