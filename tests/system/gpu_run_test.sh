#!/usr/bin/env bash
# tests/gpu/gpu_run.sh on a machine without a GPU: what it refuses, and, with stand-ins for the build, for
# nvidia-smi, for the CUDA programs and for the driver, what its stages do and leave, also when they are
# killed or the disk is full. The tuner in it is the real one, but for the kill.
# usage: gpu_run_test.sh REPOSITORY BUILD
set -euo pipefail
root=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
wrong() { echo "FAILED: $*"; failed=1; }
expect() {  # status, text that stdout or stderr has, command
  local want=$1 text=$2 got=0
  shift 2
  "$@" > "$work/said" 2>&1 || got=$?
  if [[ $got != "$want" ]] || ! grep -qF -- "$text" "$work/said"; then
    wrong "$*: status $got instead of $want, or no '$text' in:"
    tail -n 15 "$work/said"
  fi
}
refused() {  # status, text, command: with one line
  expect "$@"
  [[ $(wc -l < "$work/said") == 1 ]] || { wrong "more than a line:"; cat "$work/said"; }
}
left() {  # what is in $OUT, sorted, in one line
  find "$work/out" -type f -printf '%f\n' | LC_ALL=C sort | paste -sd' '
}
has() { [[ " $(left) " == *" $1 "* ]] || wrong "no $1 among: $(left)"; }
run=$root/tests/gpu/gpu_run.sh

refused 2 "unknown option '--nonsense'" "$run" --nonsense
refused 2 "unknown option '--nonsense'" "$run" first --nonsense
refused 2 "unknown stage 'second'" "$run" second
refused 2 "--budget: '0'" "$run" --budget 0
refused 2 "--budget: ''" "$run" --budget
refused 2 "--budget: '9m'" "$run" tune --budget 9m
refused 2 "--budget is of tune and torch, and this is stage first check" "$run" first check --budget 60
refused 2 "unknown stage 'second'" "$run" first second
refused 2 "stage tune is named twice" "$run" tune first tune
refused 2 "usage" "$run" --pack
refused 2 "is no wheel of outgrad" "$run" --pack "$work/none" "$run"

mkdir -p "$work/bin" "$work"/pack/{nlohmann,CLI} "$work/gpu-build/tuner" "$work/meet"
touch "$work/pack/nlohmann/json.hpp" "$work/pack/CLI/CLI.hpp"
say() { printf '#!/usr/bin/env bash\n%s\n' "$2" > "$work/bin/$1"; chmod +x "$work/bin/$1"; }
# shellcheck disable=SC2016  # for the stand-ins to expand
{
  say nvcc 'case $1 in
    --version) echo "Cuda compilation tools, release ${STAND_IN_TOOLKIT-13.0}, V13.0.88" ;;
    --list-gpu-code) echo sm_80; echo sm_90 ;;
  esac'
  say nvidia-smi 'case $* in
    *query-gpu*)
      if [[ -n ${STAND_IN_NO_DRIVER:-} ]]; then echo "NVIDIA-SMI has failed"; exit 9; fi
      echo "${STAND_IN_GPUS-0, GPU-aa, 9.0, Disabled, Default, Stand-in GPU, 580.1, 1 MHz, 2 MHz, 3}" ;;
    *query-compute-apps*) echo "${STAND_IN_APPS:-}" ;;
    *) echo "| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: ${STAND_IN_SERVED:-13.0} |" ;;
  esac'
  # Fails where a target is built that is named; configures else. Builds of STAND_IN_MEET targets each wait
  # for the others.
  say cmake 'if [[ -n ${STAND_IN_BUILD:-} && $* == *"--target $STAND_IN_BUILD"* ]]; then
      echo "some.cpp:1: error: planted"; exit 1
    fi
    echo "$*" >> "$0.log"
    if [[ -n ${STAND_IN_MEET:-} && $1 == --build ]]; then
      touch "${0%/bin/cmake}/meet/$4"
      for ((i = 0; i < 600; ++i)); do
        if [[ $(ls "${0%/bin/cmake}/meet" | wc -l) == "$STAND_IN_MEET" ]]; then exit 0; fi
        sleep 0.1
      done
      echo "error: $4 is built alone"; exit 1
    fi'
  say nproc 'echo "${STAND_IN_CORES:-16}"'
  say timeout 'echo "$*" >> "$0.log"; exec '"$(command -v timeout)"' "$@"'
  say compute-sanitizer \
    'if [[ $2 == "${STAND_IN_FINDS:-}" ]]; then echo "ERROR SUMMARY: 3 errors"; exit 99; fi
    if [[ $2 == "${STAND_IN_CANNOT:-}" ]]; then
      echo "Error: Target application is not supported"; exit 255
    fi
    echo "ERROR SUMMARY: 0 errors"'
}
say python3 'exit 1'
say ninja 'exit 1'
cat > "$work/gpu-build/outgrad-gpu" << 'END'
#!/usr/bin/env bash
echo "stand-in $*"
words=$*
while (($#)); do if [[ $1 == --out ]]; then echo '{"of": 1}' > "$2"; fi; shift; done
if [[ -n ${STAND_IN_FILL:-} && $words == equality\ --reduced* ]]; then
  cat /dev/zero > "$STAND_IN_FILL/filler" 2> /dev/null
fi
if [[ -n ${STAND_IN_FAILS:-} && $words == "${STAND_IN_FAILS% *}"* ]]; then exit "${STAND_IN_FAILS##* }"; fi
exit 0
END
cat > "$work/gpu-build/tuner/outgrad-tune" << END
#!/usr/bin/env bash
exec "$build/outgrad-tune" "\$@" --kernel gelu_backward --format bf16 --evaluations 3 --elements 65536
END
chmod +x "$work"/gpu-build/{outgrad-gpu,tuner/outgrad-tune}
driver=$(find "$build" -path "$build/bare-machine" -prune -o -name liboutgrad-stand-in-driver.so -print -quit)
[[ -n $driver ]] || { echo "SKIPPED: no stand-in for the driver in this build"; exit 77; }
here=(env -u CUDA_VISIBLE_DEVICES "PATH=$work/bin:$PATH" "OUT=$work/out" "OUTGRAD_GPU_BUILD=$work/gpu-build"
  "OUTGRAD_PACK_DIR=$work/pack" "OUTGRAD_LIBCUDA=$driver")

# ---- Machines that it does not run on: a line each, before anything is built or removed.
mkdir -p "$work/out"
echo '{"earlier": 1}' > "$work/out/timing.json"
refused 3 "no GPU (nvidia-smi: NVIDIA-SMI has failed)" "${here[@]}" STAND_IN_NO_DRIVER=1 "$run"
refused 3 "no GPU (nvidia-smi: No devices were found)" "${here[@]}" \
  "STAND_IN_GPUS=No devices were found" "$run"
refused 3 "the driver serves CUDA 12.4, too old for the toolkit's 13.0" "${here[@]}" STAND_IN_SERVED=12.4 \
  "$run" first
refused 3 "does not say its release" "${here[@]}" STAND_IN_TOOLKIT= "$run" first
refused 3 "is an sm_131, which CUDA 13.0 does not compile for (sm_80 sm_90)" "${here[@]}" \
  "STAND_IN_GPUS=0, GPU-aa, 13.1, [N/A], Default, Next, 1, 1, 1, 1" "$run" first
refused 3 "its compute mode is Prohibited" "${here[@]}" \
  "STAND_IN_GPUS=0, GPU-aa, 9.0, [N/A], Prohibited, Shy, 1, 1, 1, 1" "$run" tune
refused 3 "is in exclusive mode, and another process has it: 77, python" "${here[@]}" \
  "STAND_IN_GPUS=0, GPU-aa, 9.0, [N/A], Exclusive_Process, Taken, 1, 1, 1, 1" \
  "STAND_IN_APPS=GPU-aa, 77, python" "$run" tune
refused 3 "CUDA_VISIBLE_DEVICES=7 names none of the 1 GPUs here" "${here[@]}" CUDA_VISIBLE_DEVICES=7 \
  "$run" first
refused 3 "CUDA_VISIBLE_DEVICES= names none" "${here[@]}" CUDA_VISIBLE_DEVICES= "$run" first
refused 2 "cannot be written" "${here[@]}" "OUT=$work/pack/nlohmann/json.hpp" "$run" first
mkdir "$work/few"
for tool in bash env dirname mkdir rm cat cut paste head; do ln -s "$(command -v "$tool")" "$work/few"; done
ln -s "$work/bin/nvcc" "$work/few"
refused 3 "no cmake in PATH" "${here[@]}" "PATH=$work/few" "$run"
ln -s "$work/bin/cmake" "$work/few"
refused 3 "no nvidia-smi in PATH" "${here[@]}" "PATH=$work/few" "$run"
ln -s "$work/bin/nvidia-smi" "$work/few"
refused 3 "no C++ compiler" env -u CXX "${here[@]}" "PATH=$work/few" "$run"
refused 3 "neither ninja nor make" "${here[@]}" CXX=g++ "PATH=$work/few" "$run"
rm "$work/few/nvcc"
[[ -x /usr/local/cuda/bin/nvcc ]] ||
  refused 3 "no nvcc" env -u CUDA_PATH -u CUDA_HOME "${here[@]}" "PATH=$work/few" "$run"
[[ $(left) == timing.json && $(< "$work/out/timing.json") == '{"earlier": 1}' ]] ||
  wrong "an earlier result is gone: $(left)"

# ---- Stage first.
rm -rf "$work/out"
expect 3 "the build of outgrad-gpu: failure.log" "${here[@]}" STAND_IN_BUILD=outgrad-gpu "$run" first
[[ $(left) == "failure.log summary.txt" ]] || wrong "after a build that failed: $(left)"
grep -q planted "$work/out/failure.log" || wrong "failure.log has not the compiler's words"
rm -rf "$work/out"
: > "$work/bin/cmake.log"
expect 0 "results in" "${here[@]}" "$run" first
[[ $(left) == "checks.json summary.txt timing.json" ]] || wrong "stage first left $(left)"
grep -q 'OUTGRAD_WERROR=OFF.*CMAKE_CUDA_ARCHITECTURES=90-real' "$work/bin/cmake.log" ||
  wrong "configured as $(< "$work/bin/cmake.log")"
order=$(grep -oE '^stand-in [a-z]+( --reduced)?' "$work/out/summary.txt" | cut -d' ' -f2- | paste -sd,)
[[ $order == "time,equality --reduced,streams,equality,digests" ]] || wrong "the order is $order"
grep -qE '^stand-in digests --sweeps .*/notebooks_data/sweeps --out' "$work/out/summary.txt" ||
  wrong "the digests are not compared with the sweeps"
for part in equality_reduced streams equality digests; do
  grep -q "\"$part\": {\"of\": 1}" "$work/out/checks.json" ||
    wrong "checks.json has no $part: $(< "$work/out/checks.json")"
done
expect 1 "FAILED with status 1: outgrad-gpu digests" "${here[@]}" "STAND_IN_FAILS=digests 1" "$run" first
expect 3 "FAILED with status 3: outgrad-gpu time" "${here[@]}" "STAND_IN_FAILS=time 3" "$run" first
grep -q '^stand-in digests' "$work/out/summary.txt" || wrong "a step that failed ended the stage"
expect 0 "WARNING: MIG is enabled" "${here[@]}" \
  "STAND_IN_GPUS=0, GPU-aa, 9.0, Enabled, Default, Stand-in GPU, 1, 1, 1, 1" "$run" first
expect 0 "the GPU is busy, times are not to be trusted; other processes: 77, python" "${here[@]}" \
  "STAND_IN_APPS=GPU-aa, 77, python" "$run" first
two='0, GPU-aa, 8.0, Disabled, Default, First, 1, 1, 1, 1
1, GPU-bb, 9.0, Disabled, Default, Second, 1, 1, 1, 1'
expect 0 "2 GPUs: this is the one that CUDA_VISIBLE_DEVICES=0 names (GPU-aa)" "${here[@]}" \
  "STAND_IN_GPUS=$two" "$run" first
expect 0 "2 GPUs: this is the one that CUDA_VISIBLE_DEVICES=1 names (GPU-bb)" "${here[@]}" \
  "STAND_IN_GPUS=$two" CUDA_VISIBLE_DEVICES=1,0 "$run" first
grep -q '^Second' "$work/out/summary.txt" || wrong "not the GPU that CUDA_VISIBLE_DEVICES names first"
expect 0 "CUDA_VISIBLE_DEVICES=GPU-b names (GPU-bb)" "${here[@]}" \
  "STAND_IN_GPUS=$two" CUDA_VISIBLE_DEVICES=GPU-b "$run" first

# ---- Stage torch.
rm -rf "$work/out" "$work/gpu-build/results"
expect 0 "SKIPPED: PyTorch with CUDA is not importable" "${here[@]}" "$run" torch
cat > "$work/bin/python3" << END
#!/usr/bin/env bash
if [[ \$* == "-m zipfile"* || \$* == "-c import outgrad" ]]; then exec "$(command -v python3)" "\$@"; fi
echo "python \$*; PYTHONPATH=\${PYTHONPATH:-}"
while ((\$#)); do if [[ \$1 == --out ]]; then echo '{"of": 2}' > "\$2"; fi; shift; done
END
: > "$work/bin/cmake.log"
: > "$work/bin/timeout.log"
expect 0 "results in" "${here[@]}" "$run" torch
[[ $(left) == "summary.txt throughput.json" ]] || wrong "stage torch left $(left)"
grep -q 'DOUTGRAD_TORCH_PYTHON=.*/python3 -DOUTGRAD_TORCH_TUNED=\( \|$\)' "$work/bin/cmake.log" ||
  wrong "configured as $(< "$work/bin/cmake.log")"
grep -q 'python -m pytest .*gpu_test.py; PYTHONPATH=.*/package/python:' "$work/out/summary.txt" ||
  wrong "the package's tests did not run"
recipes='eager \+ SDPA\|ours\|eager \+ SDPA, graph\|ours, graph'
study="throughput.py --models BERT-Large --modes pure bf16 --recipes $recipes"
few=$(sed -nE "s/.*$study --out .* --seconds ([0-9]+);.*/\1/p" "$work/out/summary.txt")
[[ $few -ge 100 && $few -le 120 ]] ||
  wrong "the study has '$few' s, of 180 without the 60 that a last row may take: $(< "$work/out/summary.txt")"
expect 0 "results in" "${here[@]}" "$run" torch --budget 777
grep -q 'throughput.py --out .*/throughput.json --seconds 777;' "$work/out/summary.txt" ||
  wrong "the study did not run for its budget"
expect 3 "the build of outgrad_torch: failure.log" "${here[@]}" STAND_IN_BUILD=outgrad_torch "$run" torch

# A wheel that the pack carries, in place of a build: of these sources, loadable here, and with no header of
# the tuner that it does not know.
wheel() {
  (cd "$work" && mkdir -p outgrad && echo "$1" > outgrad/__init__.py &&
    python3 -m zipfile -c outgrad-0-py3-none-any.whl outgrad/ && rm -r outgrad)
}
torch() {  # text, whether the package is built
  : > "$work/bin/cmake.log"
  rm -rf "$work/gpu-build/results"
  expect 0 "$1" "${here[@]}" "OUTGRAD_PACK_DIR=$work/carried" "$run" torch
  [[ $(grep -c -- '--target outgrad_torch' "$work/bin/cmake.log") == "$2" ]] ||
    wrong "$1: $(< "$work/bin/cmake.log")"
}
wheel ''
expect 0 "and outgrad-0-py3-none-any.whl; carry it along" env "OUTGRAD_PACK_DIR=$work/pack" "$run" \
  --pack "$work/carried" "$work/outgrad-0-py3-none-any.whl"
torch "the package is $work/carried/wheel/outgrad-0-py3-none-any.whl" 0
grep -q 'python -m pytest .*; PYTHONPATH=.*/gpu-build/wheel:' "$work/out/summary.txt" ||
  wrong "not the wheel's package: $(< "$work/out/summary.txt")"
mkdir "$work/gpu-build/tuned"
touch "$work/gpu-build/tuned/tuned_here.h"
torch "stage tune left a header" 1
rm -r "$work/gpu-build/tuned"
echo 00 > "$work/carried/wheel/sources"
torch "it was packed with other sources" 1
wheel 'raise ImportError("no such symbol")'
# the same pack, anew
env "OUTGRAD_PACK_DIR=$work/carried" "$run" --pack "$work/carried" "$work/outgrad-0-py3-none-any.whl" \
  > /dev/null
torch "not used: $work/carried/wheel/outgrad-0-py3-none-any.whl: ImportError: no such symbol" 1

# ---- Several stages: the builds side by side and before the first stage, each failure its own; on few cores
# a build where its stage begins.
rm -rf "$work/out" "$work/gpu-build/results"
cp "$work/gpu-build/tuner/outgrad-tune" "$work/real-tune"
say outgrad-tune 'echo "stand-in tuner $*"'
cp "$work/bin/outgrad-tune" "$work/gpu-build/tuner/outgrad-tune"
happened() {
  grep -oE '^(outgrad[-_][a-z]+ built|stand-in time|stand-in tuner|python -m pytest|== memcheck)' \
    "$work/out/summary.txt" | paste -sd,
}
expect 0 "results in" "${here[@]}" STAND_IN_MEET=3 "$run"
[[ $(happened) == "outgrad-gpu built,outgrad_torch built,outgrad-tune built,\
stand-in time,python -m pytest,stand-in tuner,== memcheck" ]] || wrong "$(happened)"
[[ $(grep -oE '^==== [a-z]+$' "$work/out/summary.txt" | xargs) == \
  "==== first ==== torch ==== tune ==== check" ]] || wrong "the stages: $(< "$work/out/summary.txt")"
rm -rf "$work/out" "$work/gpu-build/results"
expect 0 "results in" "${here[@]}" STAND_IN_CORES=4 "$run" first torch tune
[[ $(happened) == "outgrad-gpu built,stand-in time,outgrad_torch built,python -m pytest,\
outgrad-tune built,stand-in tuner" ]] || wrong "$(happened)"
rm -rf "$work/out" "$work/gpu-build/results"
expect 3 "NOT RUN: outgrad-tune is not built" "${here[@]}" STAND_IN_BUILD=outgrad-tune "$run" tune first
[[ $(happened) == "outgrad-gpu built,stand-in time" ]] || wrong "$(happened)"
grep -q '^stand-in digests' "$work/out/summary.txt" || wrong "the tuner's failure cost stage first something"
grep -q '^== outgrad-tune' "$work/out/failure.log" || wrong "failure.log does not say whose it is"
awk '!/cmake/ && $1 == "-k" && $3 > 180' "$work/bin/timeout.log" | grep -v -e '--seconds 777' &&
  wrong "a step may take longer than a stage"
mv "$work/real-tune" "$work/gpu-build/tuner/outgrad-tune"
say python3 'exit 1'

# The digests by the real program, over the stand-in for the runtime: those of the 16-bit formats, beside the
# committed sweeps.
stand_in=$(find "$build" -path "$build/bare-machine" -prune -o -type f -name outgrad-gpu-stand-in \
  -print -quit)
if [[ -n $stand_in ]]; then
  cp -r "$work/gpu-build" "$work/runtime-build"
  cat > "$work/runtime-build/outgrad-gpu" << END
#!/usr/bin/env bash
if [[ \$1 == digests ]]; then exec "$stand_in" "\$@" --reduced; fi
exec "$work/gpu-build/outgrad-gpu" "\$@"
END
  rm -rf "$work/out"
  expect 0 "results in" "${here[@]}" "OUTGRAD_GPU_BUILD=$work/runtime-build" "$run" first
  [[ $(grep -c 'as the sweep$' "$work/said") == 6 ]] ||
    wrong "y, mask and dx of two formats are not all as the sweep: $(< "$work/said")"
  grep -q '"digests": {.*outgrad.gpu_digests' "$work/out/checks.json" || wrong "checks.json has no digests"
else
  echo "SKIPPED: the digests (no outgrad-gpu over the stand-in for the runtime in this build)"
fi

# A disk that is full from the second step on, $OUT's and then the build's too: what was copied stays whole,
# what was not is named, and no step is left out. A mount of its own takes a namespace.
mkdir "$work/small"
if unshare -m mount -t tmpfs -o size=64k tmpfs "$work/small" 2> /dev/null; then
  # shellcheck disable=SC2016  # for the shell in the namespace
  full=(unshare -m bash -c
    'mount -t tmpfs -o size=128k tmpfs "$0" && cp -r "$1" "$0/build" && shift || exit 99
    status=0; "$@" || status=$?; cat "$OUT/timing.json"; exit $status' "$work/small" "$work/gpu-build")
  for folder in "$work/gpu-build" "$work/small/build"; do
    expect 3 "NOT COPIED to $work/small/out: checks.json:" "${here[@]}" "STAND_IN_FILL=$work/small" \
      "OUT=$work/small/out" "OUTGRAD_GPU_BUILD=$folder" "${full[@]}" "$run" first
    grep -q 'NOT COPIED.*No space left on device' "$work/said" ||
      wrong "the reason is not said: $(< "$work/said")"
    grep -qx '{"of": 1}' "$work/said" || wrong "timing.json is gone: $(< "$work/said")"
    grep -q '^stand-in digests' "$work/said" || wrong "a full disk ended the stage: $(< "$work/said")"
    grep -q 'FAILED with status 1' "$work/said" &&
      wrong "a full disk is taken for a difference: $(< "$work/said")"
  done
else
  echo "SKIPPED: a full disk (no right to mount one)"
fi

# ---- Stage tune.
tuner=0
"$build/outgrad-tune" tune --device sm_90 --kernel gelu_forward --format f32 --evaluations 1 \
  --out "$work/nvrtc" > /dev/null 2>&1 || tuner=$?
if [[ $tuner == 3 ]]; then
  expect 3 "no CUDA run-time compiler" "${here[@]}" "$run" tune --budget 20
else
  rm -rf "$work/out" "$work/gpu-build/results"  # those of other stages, of which a machine may skip some
  # three evaluations need a few seconds, beside other programs more
  expect 0 "results in" "${here[@]}" "$run" tune --budget 200
  [[ $(left) == "summary.txt tune_stand_in_gpu.jsonl.gz tuned_stand_in_gpu.h" ]] ||
    wrong "stage tune left $(left)"
  gzip -dc "$work/out/tune_stand_in_gpu.jsonl.gz" | grep -q '"winner":true' ||
    wrong "no winner in the database"
fi

# A tuner that appends a batch a second, and everything about it killed: the last copy of the database stays,
# and is whole.
mv "$work/gpu-build/tuner/outgrad-tune" "$work/gpu-build/tuner/real-tune"
cat > "$work/gpu-build/tuner/outgrad-tune" << 'END'
#!/usr/bin/env bash
while (($#)); do if [[ $1 == --out ]]; then mkdir -p "$2"; database=$2/tune_slow.jsonl; fi; shift; done
for ((batch = 0; batch < 600; ++batch)); do echo "{\"batch\": $batch}" >> "$database"; sleep 1; done
END
chmod +x "$work/gpu-build/tuner/outgrad-tune"
rm -rf "$work/out"
setsid "${here[@]}" "$run" tune --budget 60 > "$work/said" 2>&1 &
stage=$!
for ((i = 0; i < 6000; ++i)); do
  if [[ -f $work/out/tune_slow.jsonl.gz && $(gzip -dc "$work/out/tune_slow.jsonl.gz" | wc -l) -ge 2 ]]; then
    break
  fi
  sleep 0.1
done
{ kill -9 -- "-$stage" && wait "$stage"; } 2> /dev/null || true
has tune_slow.jsonl.gz
has summary.txt
[[ $(gzip -dc "$work/out/tune_slow.jsonl.gz" | wc -l) -ge 2 ]] || wrong "no two batches after the kill"
gzip -dc "$work/out/tune_slow.jsonl.gz" | grep -vqxE '\{"batch": [0-9]+\}' &&
  wrong "a damaged database: $(gzip -dc "$work/out/tune_slow.jsonl.gz")"
mv "$work/gpu-build/tuner/real-tune" "$work/gpu-build/tuner/outgrad-tune"

# ---- Stage check.
expect 0 "== racecheck" "${here[@]}" "$run" check
expect 1 "FAILED with status 99: memcheck: ERROR SUMMARY: 3 errors" "${here[@]}" STAND_IN_FINDS=memcheck \
  "$run" check
grep -q '3 errors' "$work/out/failure.log" || wrong "failure.log has not the sanitizer's words"
expect 1 "FAILED with status 99: racecheck: ERROR SUMMARY: 3 errors" "${here[@]}" STAND_IN_FINDS=racecheck \
  "$run" check
expect 0 "SKIPPED: racecheck does not run here (status 255): Error: Target application is not supported" \
  "${here[@]}" STAND_IN_CANNOT=racecheck "$run" check

# ---- All of them.
rm -rf "$work/out"
expect "$tuner" "==== check" "${here[@]}" "$run" --budget 200
expect 1 "3 errors" "${here[@]}" STAND_IN_FINDS=racecheck "$run" --budget 5
[[ $(find "$work/out" -type f | wc -l) -le 8 ]] || wrong "more than 8 files: $(left)"
[[ $(left) =~ ^[A-Za-z0-9._\ -]+$ ]] || wrong "names: $(left)"
exit $failed
