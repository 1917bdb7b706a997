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

# Damaged files, each one line and status 2.
folder=$said/folder
mkdir "$folder"
refused() {  # what the line has
  got=0
  python3 "$check" --folder "$folder" > "$said/out" 2> "$said/err" || got=$?
  [[ $got -eq 2 && $(wc -l < "$said/err") -eq 1 ]] && grep -q "$1" "$said/err" || fail "status $got: $1"
}
refused 'timing.json: No such file'
echo '[' > "$folder/timing.json"
refused 'timing.json: '
echo '{"timings": []}' > "$folder/timing.json"
refused "timing.json: 'arch' is missing"
echo '{"timings": [{"name": "gelu_forward"}]}' > "$folder/timing.json"
refused "timing.json: 'format' is missing"
cp "$1/notebooks_data/gpu/nvidia_h200/timing.json" "$folder"
head -c 1000 "$1/notebooks_data/gpu/nvidia_h200/tune_first_day.jsonl.gz" > "$folder/tune_first_day.jsonl.gz"
refused 'tune_first_day.jsonl.gz: '
