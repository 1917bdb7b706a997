#!/usr/bin/env bash
# The tuner's model of a GPU, beside what an H200 measured: no row is further off than the limits of
# tests/gpu/model_error.py. usage: model_error_test.sh REPOSITORY BUILD
set -euo pipefail
check=$1/tests/gpu/model_error.py
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT
fail() { echo "FAILED: $*"; cat "$said"/*; exit 1; }

got=0
python3 "$check" --tune "$2/outgrad-tune" --rows > "$said/out" 2> "$said/err" || got=$?
if grep -q 'no CUDA run-time compiler' "$said/err"; then echo "SKIPPED: $(< "$said/err")"; exit 77; fi
[[ $got -eq 0 ]] || fail "status $got"
[[ $(grep -c 'us measured' "$said/out") -eq 168 ]] || fail "the rows"
tail -n 12 "$said/out"

got=0
python3 "$check" --folder "$said" > "$said/out" 2> "$said/err" || got=$?
[[ $got -eq 2 ]] && grep -q 'timing.json' "$said/err" || fail "status $got where there is no timing"
