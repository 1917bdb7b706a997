#!/usr/bin/env bash
# autotune/gpu_run.sh on a machine without a GPU: what it refuses, and, with stand-ins for the build, for nvidia-smi, for the CUDA programs and
# for the driver, what it does and leaves. The tuner in it is the real one. usage: gpu_run_test.sh REPOSITORY BUILD
set -euo pipefail
root=$1 build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
expect() {  # status, text that stdout or stderr has, command
  local want=$1 text=$2 got=0
  shift 2
  "$@" > "$work/said" 2>&1 || got=$?
  if [[ $got != "$want" ]] || ! grep -qF -- "$text" "$work/said"; then
    echo "FAILED: $*: status $got instead of $want, or no '$text' in:"
    tail -n 15 "$work/said"
    failed=1
  fi
}
run=$root/autotune/gpu_run.sh

expect 2 "unknown option '--nonsense'" "$run" --nonsense
expect 2 "--budget: '0'" "$run" --budget 0
expect 2 "--budget: ''" "$run" --budget
expect 2 "usage" "$run" --pack

mkdir -p "$work/bin" "$work/json/nlohmann" "$work/gpu-build" "$work/out"
touch "$work/json/nlohmann/json.hpp"
say() { printf '#!/usr/bin/env bash\n%s\n' "$2" > "$work/bin/$1"; chmod +x "$work/bin/$1"; }
say nvcc 'echo "Build stand-in"'
say nvidia-smi 'if [[ $* == *compute_cap* ]]; then echo 9.0; else echo "Stand-in GPU, 1, 2, 3, 4"; fi'
# shellcheck disable=SC2016  # for the stand-ins to expand
say cmake 'exit ${STAND_IN_BUILD:-0}'
# shellcheck disable=SC2016
say compute-sanitizer 'echo "ERROR SUMMARY: ${STAND_IN_ERRORS:-0} errors"; if [[ ${STAND_IN_ERRORS:-0} != 0 ]]; then exit 99; fi'
say python3 'exit 1'
cat > "$work/gpu-build/outgrad-gpu" << 'END'
#!/usr/bin/env bash
echo "stand-in $*"
while (($#)); do if [[ $1 == --out ]]; then echo '{}' > "$2"; fi; shift; done
exit ${STAND_IN_EQUALITY:-0}
END
cat > "$work/gpu-build/outgrad-tune" << END
#!/usr/bin/env bash
if [[ \$1 == bench ]]; then echo '{}'; exit 0; fi
exec "$build/outgrad-tune" "\$@" --kernel gelu_backward --format bf16 --evaluations 3 --elements 65536
END
chmod +x "$work"/gpu-build/*
driver=$(find "$build" -name 'liboutgrad-stand-in-driver.so' | head -n 1)
[[ -n $driver ]] || { echo "SKIPPED: no stand-in for the driver in this build"; exit 77; }
here=(env "PATH=$work/bin:$PATH" "OUT=$work/out" "OUTGRAD_GPU_BUILD=$work/gpu-build" "OUTGRAD_JSON_DIR=$work/json" "OUTGRAD_LIBCUDA=$driver")

expect 3 "the build failed" "${here[@]}" STAND_IN_BUILD=1 "$run"
rm -rf "$work/out"
tuner=0
"$build/outgrad-tune" tune --device sm_90 --kernel gelu_forward --format f32 --evaluations 1 --out "$work/nvrtc" > /dev/null 2>&1 || tuner=$?
if [[ $tuner == 3 ]]; then
  expect 1 "no CUDA run-time compiler" "${here[@]}" "$run" --budget 20
else
  expect 0 "results in" "${here[@]}" "$run" --budget 20
  for file in summary.txt equality.json timing.json bench.json tuned_stand_in_gpu.h tune_stand_in_gpu.jsonl.gz; do
    [[ -s $work/out/$file ]] || { echo "FAILED: no $file"; failed=1; }
  done
  [[ $(find "$work/out" -type f | wc -l) -le 8 ]] || { echo "FAILED: more than 8 files"; failed=1; }
  gzip -dc "$work/out/tune_stand_in_gpu.jsonl.gz" | grep -q '"winner":true' || { echo "FAILED: no winner in the database"; failed=1; }
fi
expect 1 "FAILED with status 1" "${here[@]}" STAND_IN_EQUALITY=1 "$run" --budget 20
expect 1 "ERROR SUMMARY: 3" "${here[@]}" STAND_IN_ERRORS=3 "$run" --budget 20
exit $failed
