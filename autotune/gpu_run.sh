#!/usr/bin/env bash
# Checks and times the CUDA kernels on a machine that has a GPU, CUDA, CMake and a compiler, and nothing else: no network, no packages.
#
#   autotune/gpu_run.sh --pack DIR   on the build machine: puts what the other one lacks (nlohmann/json's headers) into DIR
#   autotune/gpu_run.sh [--budget SECONDS]
#                                    on the GPU machine: OUTGRAD_JSON_DIR names that folder; results go to $OUT (default out/gpu). The
#                                    budget is the tuner's (default 180); all else takes about five minutes on 16 cores
#
# Leaves at most 8 files in $OUT: summary.txt, equality.json, timing.json, torch.json, bench.json, the tuner's database (compressed) and
# header, and sanitizer.log where the memory checker found something; of a build that failed, summary.txt and build.log.
# Exit status: 0 all equal, 1 a difference, a memory error or a tuner that failed, 2 bad usage, 3 no GPU, no nvcc or a failed build.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() { echo "outgrad: gpu_run: $2" >&2; exit "$1"; }

json_folder() {  # a folder that holds nlohmann/json.hpp
  local folder
  for folder in "${OUTGRAD_JSON_DIR:-}" "$root/out/pack" /usr/include /usr/local/include; do
    if [[ -n $folder && -f $folder/nlohmann/json.hpp ]]; then echo "$folder"; return; fi
  done
  return 1
}

if [[ ${1:-} == --pack ]]; then
  [[ $# -eq 2 ]] || fail 2 "usage: gpu_run.sh --pack DIR"
  from=$(json_folder) || fail 3 "nlohmann/json.hpp is not installed here (Debian: nlohmann-json3-dev)"
  mkdir -p "$2" || fail 2 "$2: cannot be created"
  rm -rf "$2/nlohmann"
  cp -r "$from/nlohmann" "$2/nlohmann"
  echo "$2: nlohmann/json from $from; carry it along and set OUTGRAD_JSON_DIR to it"
  exit 0
fi
budget=180
if [[ ${1:-} == --budget ]]; then
  [[ ${2:-} =~ ^[1-9][0-9]{0,4}$ ]] || fail 2 "--budget: '${2:-}' is not a number of seconds from 1 to 99999"
  budget=$2
  shift 2
fi
[[ $# -eq 0 ]] || fail 2 "unknown option '$1' (--pack DIR, --budget SECONDS)"

out=${OUT:-$root/out/gpu}
build=${OUTGRAD_GPU_BUILD:-$root/build-gpu}
mkdir -p "$out" || fail 2 "$out: cannot be created"
out=$(cd "$out" && pwd)
nvcc=$(command -v nvcc || true)
for folder in "${CUDA_PATH:-}" "${CUDA_HOME:-}" /usr/local/cuda; do
  if [[ -z $nvcc && -n $folder && -x $folder/bin/nvcc ]]; then nvcc=$folder/bin/nvcc; fi
done
[[ -n $nvcc ]] || fail 3 "no nvcc (PATH, CUDA_PATH, CUDA_HOME, /usr/local/cuda)"
for tool in cmake nvidia-smi; do command -v "$tool" > /dev/null || fail 3 "no $tool in PATH"; done
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -n 1 | tr -d '. ') || true
[[ $capability =~ ^[0-9]+$ ]] || fail 3 "no GPU (nvidia-smi lists none)"
json=$(json_folder) || fail 3 "nlohmann/json.hpp is not here: make a pack with --pack on the build machine and set OUTGRAD_JSON_DIR"

summary=$out/summary.txt
say() { echo "$*" | tee -a "$summary"; }
: > "$summary"
say "$(nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,temperature.gpu --format=csv,noheader | head -n 1)"
say "$("$nvcc" --version | tail -n 1)"

generator=()
if command -v ninja > /dev/null; then generator=(-G Ninja); fi
if ! { cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DOUTGRAD_FITTER=OFF -DOUTGRAD_TESTS=OFF -DOUTGRAD_CUDA=ON \
         -DOUTGRAD_JSON_DIR="$json" -DCMAKE_CUDA_COMPILER="$nvcc" -DCMAKE_CUDA_ARCHITECTURES="$capability" \
       && cmake --build "$build" --target outgrad-gpu outgrad-tune -j "$(nproc)"; } > "$out/build.log" 2>&1; then
  tail -n 5 "$out/build.log" >&2
  fail 3 "the build failed: $out/build.log"
fi
rm -f "$out/build.log"

status=0
step() {  # runs a command into the summary and remembers a failure
  local code=0
  "$@" 2>&1 | tee -a "$summary" || code=$?
  if [[ $code -ne 0 ]]; then
    say "FAILED with status $code: $1 ${2:-}"
    status=1
  fi
}

say "== equality with the host, all bit patterns"
step "$build/outgrad-gpu" equality --out "$out/equality.json"

say "== SHA-256 of all outputs, beside the exhaustive sweeps'"
if python3 -c 'import numpy' > /dev/null 2>&1; then
  step python3 "$root/autotune/gpu/sweep_digests.py" "$build/outgrad-tune" "$root/notebooks_data/sweeps"
else
  say "SKIPPED: no numpy"
fi

say "== equality on a stream of its own and in a graph"
step "$build/outgrad-gpu" streams

say "== memory checker, reduced set"
sanitizer=$(command -v compute-sanitizer || true)
if [[ -z $sanitizer && -x $(dirname "$nvcc")/compute-sanitizer ]]; then sanitizer=$(dirname "$nvcc")/compute-sanitizer; fi
if [[ -z $sanitizer ]]; then
  say "SKIPPED: no compute-sanitizer on this machine"
else
  kernels_status=0
  timeout 300 "$sanitizer" --error-exitcode 99 "$build/outgrad-gpu" equality --reduced > "$out/sanitizer.log" 2>&1 || kernels_status=$?
  case $kernels_status in
    0) say "no errors"; rm -f "$out/sanitizer.log" ;;
    99 | 1) if grep -q 'ERROR SUMMARY: [1-9]' "$out/sanitizer.log" && ! grep -qi 'not supported\|unable to\|initialization error' "$out/sanitizer.log"; then
              say "FAILED: $(grep 'ERROR SUMMARY' "$out/sanitizer.log" | tail -n 1)"
              status=1
            else
              say "SKIPPED: compute-sanitizer does not run here: $(grep -v '^=* *$' "$out/sanitizer.log" | head -n 1)"
            fi ;;
    *) say "SKIPPED: compute-sanitizer ended with status $kernels_status: $(grep -v '^=* *$' "$out/sanitizer.log" | head -n 1)" ;;
  esac
fi

say "== times, against a device copy in the same run"
step "$build/outgrad-gpu" time --out "$out/timing.json"

say "== tuner, all kernels, $budget s"
step "$build/outgrad-tune" tune --device cuda:0 --budget "$budget" --out "$build/tuned"
for database in "$build"/tuned/tune_*.jsonl; do
  if [[ -f $database ]]; then gzip -9 -n -c "$database" > "$out/$(basename -- "$database").gz"; fi
done
for header in "$build"/tuned/tuned_*.h; do
  if [[ -f $header ]]; then cp "$header" "$out/"; fi
done

say "== PyTorch's GELU beside it"
if python3 -c 'import torch; assert torch.cuda.is_available()' > /dev/null 2>&1; then
  step python3 "$root/autotune/gpu/torch_gelu.py" "$out/torch.json"
else
  say "SKIPPED: PyTorch with CUDA is not importable"
fi

say "== this machine's CPU"
if "$build/outgrad-tune" bench --json > "$out/bench.json" 2>> "$summary"; then say "bench.json"; else say "FAILED: outgrad-tune bench"; status=1; fi

say "results in $out"
exit "$status"
