#!/usr/bin/env bash
# Checks, times and tunes the CUDA kernels on a machine that has a GPU, CUDA, CMake and a compiler, and nothing else: no network, no packages.
#
#   autotune/gpu_run.sh --pack DIR         on the build machine: puts what the other one lacks, the headers of nlohmann/json and CLI11, into DIR
#   autotune/gpu_run.sh first              on the GPU machine: builds outgrad-gpu; times; a sample of the bits; streams and graphs; PyTorch beside
#                                          it; then all bits and the digests of all outputs. At most 300 s
#   autotune/gpu_run.sh tune [--budget S]  builds outgrad-tune and tunes all kernels for S seconds (180)
#   autotune/gpu_run.sh check              compute-sanitizer's memcheck and racecheck over a sample of the bits
#   autotune/gpu_run.sh torch [--budget S] the PyTorch package: its operators against the CPU's, streams, graphs, checkpoints; memory, largest batch and
#                                          speed of BERT-Large, GPT-2 and RoBERTa beside PyTorch's own, for S seconds (else until 540)
#   autotune/gpu_run.sh [--budget S]       the first three within 540 s: tune may measure until 450, and of that at most S seconds, and check has the rest
#
# OUTGRAD_PACK_DIR names the pack's folder, OUTGRAD_GPU_BUILD the build's (build-gpu), $OUT the results' (out/gpu). Of several GPUs it is the first, or the
# first of CUDA_VISIBLE_DEVICES. A result is in $OUT as soon as it is there, and what grows is copied again every two seconds: a run that is killed leaves
# what it had. At most 8 files, each under 16 MiB: summary.txt; timing.json; checks.json (what was compared); torch.json; throughput.json; the tuner's database
# (compressed) and header; failure.log, of a build or a sanitizer that failed.
# Exit status: 0 all equal, 1 a difference, a memory error or a race, 2 bad usage, 3 no GPU, no toolkit, a failed build, a step that did not end.
set -euo pipefail
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() { echo "outgrad: gpu_run: $2" >&2; exit "$1"; }

pack_folder() {  # a folder that holds nlohmann/json.hpp and CLI/CLI.hpp
  local folder
  for folder in "${OUTGRAD_PACK_DIR:-}" "$root/out/pack" /usr/include /usr/local/include; do
    if [[ -n $folder && -f $folder/nlohmann/json.hpp && -f $folder/CLI/CLI.hpp ]]; then echo "$folder"; return; fi
  done
  return 1
}

if [[ ${1:-} == --pack ]]; then
  [[ $# -eq 2 ]] || fail 2 "usage: gpu_run.sh --pack DIR"
  from=$(pack_folder) || fail 3 "nlohmann/json.hpp and CLI/CLI.hpp are not installed here (Debian: nlohmann-json3-dev, libcli11-dev)"
  mkdir -p "$2" || fail 2 "$2: cannot be created"
  for library in nlohmann CLI; do
    rm -rf "${2:?}/$library"
    cp -r "$from/$library" "$2/$library"
  done
  echo "$2: nlohmann/json and CLI11 from $from; carry it along and set OUTGRAD_PACK_DIR to it"
  exit 0
fi

stages=(first tune check)
case ${1:-} in
  first | tune | check | torch) stages=("$1"); shift ;;
  '' | -*) ;;
  *) fail 2 "unknown stage '$1' (first, tune, check, torch; --pack DIR)" ;;
esac
budget=
if [[ ${1:-} == --budget ]]; then
  [[ " ${stages[*]} " =~ " tune "|" torch " ]] || fail 2 "--budget is of tune and torch, and this is stage ${stages[0]}"
  [[ ${2:-} =~ ^[1-9][0-9]{0,4}$ ]] || fail 2 "--budget: '${2:-}' is not a number of seconds from 1 to 99999"
  budget=$2
  shift 2
fi
[[ $# -eq 0 ]] || fail 2 "unknown option '$1' (first, tune, check, torch; --pack DIR, --budget SECONDS)"

# ---- The machine ------------------------------------------------------------------------------------------------------

out=${OUT:-$root/out/gpu}
build=${OUTGRAD_GPU_BUILD:-$root/build-gpu}
if ! { mkdir -p "$out" && : > "$out/.part" && rm -f "$out/.part"; } 2> /dev/null; then fail 2 "$out: cannot be written"; fi
out=$(cd "$out" && pwd)
work=$build/results  # where results are made; $OUT has their copies
mkdir -p "$work/parts" 2> /dev/null || fail 2 "$build: cannot be written"

nvcc=$(command -v nvcc || true)
for folder in "${CUDA_PATH:-}" "${CUDA_HOME:-}" /usr/local/cuda; do
  if [[ -z $nvcc && -n $folder && -x $folder/bin/nvcc ]]; then nvcc=$folder/bin/nvcc; fi
done
[[ -n $nvcc ]] || fail 3 "no nvcc (PATH, CUDA_PATH, CUDA_HOME, /usr/local/cuda)"
for tool in cmake nvidia-smi; do command -v "$tool" > /dev/null || fail 3 "no $tool in PATH"; done
[[ -n ${CXX:-} ]] || command -v c++ g++ clang++ > /dev/null || fail 3 "no C++ compiler (c++, g++, clang++ in PATH, or CXX)"
command -v ninja make > /dev/null || fail 3 "neither ninja nor make in PATH"
pack=$(pack_folder) || fail 3 "nlohmann/json.hpp and CLI/CLI.hpp are not here: make a pack with --pack on the build machine and set OUTGRAD_PACK_DIR"

fields=index,uuid,compute_cap,mig.mode.current,compute_mode,name,driver_version,clocks.sm,clocks.mem,temperature.gpu
# A driver that hangs is one that is not there.
listed=$(timeout 60 nvidia-smi --query-gpu="$fields" --format=csv,noheader 2>&1) || fail 3 "no GPU (nvidia-smi: $(head -n 1 <<< "$listed"))"
wanted=${CUDA_VISIBLE_DEVICES-first}
wanted=${wanted%%,*}
gpus=0 uuid='' capability='' mig='' mode='' name='' rest=''
while IFS=, read -r row_index row_uuid row_capability row_mig row_mode row_name row_rest; do
  [[ $row_capability =~ ^' '*[0-9]+\.[0-9]+$ ]] || continue
  gpus=$((gpus + 1))
  row_uuid=${row_uuid# }
  # A MIG device belongs to the GPU that its container was given.
  if [[ -z $uuid && -n $wanted && ($wanted == first || $wanted == MIG-* || $row_index == "$wanted" || $row_uuid == "$wanted"*) ]]; then
    if [[ $wanted == first ]]; then wanted=$row_index; fi
    uuid=$row_uuid capability=${row_capability//[ .]/} mig=${row_mig# } mode=${row_mode# } name=${row_name# } rest=$row_rest
  fi
done <<< "$listed"
[[ $gpus -gt 0 ]] || fail 3 "no GPU (nvidia-smi: $(head -n 1 <<< "$listed"))"
[[ -n $uuid ]] || fail 3 "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES names none of the $gpus GPUs here"
export CUDA_DEVICE_ORDER=PCI_BUS_ID  # nvidia-smi's
if [[ -n ${CUDA_VISIBLE_DEVICES:-} || $gpus -gt 1 ]]; then export CUDA_VISIBLE_DEVICES=$wanted; fi

toolkit=$("$nvcc" --version | sed -nE 's/.*release ([0-9]+\.[0-9]+).*/\1/p')
[[ -n $toolkit ]] || fail 3 "$nvcc does not say its release"
served=$(timeout 60 nvidia-smi 2> /dev/null | sed -nE 's/.*CUDA [A-Z ]*Version: *([0-9]+\.[0-9]+).*/\1/p' | head -n 1) || true
if [[ -n $served && ${served%.*} -lt ${toolkit%.*} ]]; then
  fail 3 "the driver serves CUDA $served, too old for the toolkit's $toolkit ($nvcc): a newer driver, or an older toolkit first in PATH"
fi
known=$("$nvcc" --list-gpu-code | tr '\n' ' ') || true
[[ " $known" == *" sm_$capability "* ]] || fail 3 "$name is an sm_$capability, which CUDA $toolkit does not compile for (${known% })"
others=$(timeout 60 nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name --format=csv,noheader 2> /dev/null | grep -F "$uuid" | cut -d, -f2- | paste -sd';') || true
if [[ $mode == Prohibited ]]; then fail 3 "$name: its compute mode is Prohibited"; fi
if [[ $mode == Exclusive* && -n $others ]]; then fail 3 "$name is in exclusive mode, and another process has it:$others"; fi

# ---- Results ----------------------------------------------------------------------------------------------------------

# Results of the stages before stay, those of `first` only until it is run again.
if [[ ${stages[0]} == first ]]; then rm -rf "$work"; fi
mkdir -p "$work/parts"
rm -f "$work/failure.log" "$out/failure.log"
summary=$work/summary.txt
unwritten=''  # why a line is not in the summary: this disk may be full too
say() {
  echo "$*"
  unwritten+=$({ echo "$*" >> "$summary"; } 2>&1) || true
}
status=0
note() { if [[ $status -ne 1 ]]; then status=$1; fi; }  # a difference is worse than what is lacking

declare -A lost=()
same() { [[ -f $2 && ! $1 -nt $2 && ! $1 -ot $2 ]]; }  # a copy has the time that its original had when it was begun
copy() {  # copy FILE: to $OUT, whole or not at all
  local file=$1 name=${1##*/} why
  if [[ ! -f $file ]] || same "$file" "$out/$name"; then return 0; fi
  if [[ $(stat -c %s "$file") -ge $((16 << 20)) ]]; then
    why="16 MiB or more"
  elif why=$({ cp -p "$file" "$out/.part" && mv -f "$out/.part" "$out/$name"; } 2>&1); then
    return 0
  fi
  rm -f "$out/.part"
  lost[$name]=$(tail -n 1 <<< "$why")
}
joined() {  # the parts as one object
  local part mark='{'
  for part in "$work"/parts/*.json; do
    if [[ ! -s $part ]]; then continue; fi
    printf '%s"%s": ' "$mark" "$(basename "$part" .json)" && cat "$part" || return 1
    mark=','
  done
  if [[ $mark == ',' ]]; then echo '}'; fi
}
copy_all() {
  local file packed whole="its disk is full, or it is gone"
  if ! joined > "$work/checks.new"; then
    lost[checks.json]=$whole
  elif [[ -s $work/checks.new ]] && ! cmp -s "$work/checks.new" "$work/checks.json"; then
    mv "$work/checks.new" "$work/checks.json"
  fi 2> /dev/null
  for file in "$build"/tuned/tune_*.jsonl; do  # appended to; a line that is cut short costs itself
    packed=$work/${file##*/}.gz
    if [[ ! -s $file ]] || same "$file" "$packed"; then continue; fi
    if ! { cp -p "$file" "$work/database" && gzip -6 -n -c "$work/database" > "$work/database.new" && touch -r "$work/database" "$work/database.new" &&
           mv "$work/database.new" "$packed"; }; then
      lost[${packed##*/}]=$whole
    fi 2> /dev/null
  done
  for file in "$work"/*.txt "$work"/*.json "$work"/*.gz "$work"/*.log "$build"/tuned/tuned_*.h; do copy "$file"; done
}
copier() {  # until it is told to stop, or its parent is gone
  local stopped=''
  trap 'stopped=1' TERM
  while [[ -z $stopped ]] && kill -0 $$; do
    copy_all || true
    if [[ -z $stopped ]]; then sleep 2 & wait $! || true; fi
  done
}
tell_lost() {  # what is not in $OUT for sure
  local name
  copy_all || true
  for name in "${!lost[@]}"; do
    echo "outgrad: gpu_run: NOT COPIED to $out: $name: ${lost[$name]} (it is in $work)" >&2
    note 3
  done
  lost=()
  if [[ -n $unwritten ]]; then
    echo "outgrad: gpu_run: NOT WRITTEN: $summary: ${unwritten##*: }" >&2
    note 3
    unwritten=''
  fi
}
trap tell_lost EXIT

# What the programs so far have used, into `cpu`. `times` asks the shell that it runs in: not one of $( ).
cpu=0
count_cpu() {
  if ! times > "$build/times"; then return 0; fi 2> /dev/null
  cpu=$(awk 'NR == 2 { for (i = 1; i <= 2; ++i) { split($i, t, /[ms]/); s += 60 * t[1] + t[2] } } END { printf "%.0f", s }' "$build/times")
}
left() { echo $((deadline - SECONDS)); }

# step LIMIT COMMAND...: into the summary, with the copier beside it; no longer than LIMIT seconds and than the stage has. A failure is remembered.
step() {
  local code limit=$1 began=$SECONDS
  shift
  if [[ $limit -gt $(left) ]]; then limit=$(left); fi
  if [[ $limit -lt 1 ]]; then
    say "NOT RUN: no time left for it: ${1##*/} ${2:-}"
    note 3
    return 0
  fi
  copier > /dev/null 2>&1 &
  local copying=$!
  set +e
  timeout -k 10 "$limit" "$@" 2>&1 | tee -a "$summary"
  code=${PIPESTATUS[0]}  # not tee's, which a full disk stops
  set -e
  { kill "$copying" && wait "$copying"; } 2> /dev/null || true
  case $code in
    0) say "($((SECONDS - began)) s)" ;;
    1) say "FAILED with status 1: ${1##*/} ${2:-}"; status=1 ;;
    124 | 137) say "CUT after $limit s: ${1##*/} ${2:-}"; note 3 ;;
    *) say "FAILED with status $code: ${1##*/} ${2:-}"; note 3 ;;
  esac
  tell_lost
  return 0
}

# built TARGET OPTION...: configures and builds it alone, so that another's failure does not cost it. A slow machine gets the time of a whole run for it.
built() {
  local target=$1 began=$SECONDS before generator=() limit=$((deadline - SECONDS))
  shift
  if [[ $limit -lt $((540 - SECONDS)) ]]; then limit=$((540 - SECONDS)); fi
  count_cpu
  before=$cpu
  if [[ ! -f $build/CMakeCache.txt ]] && command -v ninja > /dev/null; then generator=(-G Ninja); fi
  if ! { timeout -k 10 "$limit" cmake -S "$root" -B "$build" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DOUTGRAD_FITTER=OFF -DOUTGRAD_TESTS=OFF -DOUTGRAD_LIBRARY=OFF \
           -DOUTGRAD_INSTALL=OFF -DOUTGRAD_WERROR=OFF -DOUTGRAD_NATIVE=ON -DOUTGRAD_CUDA=ON -DOUTGRAD_PACK_DIR="$pack" -DCMAKE_CUDA_COMPILER="$nvcc" \
           -DCMAKE_CUDA_ARCHITECTURES="$capability-real" -DOUTGRAD_TORCH=OFF "$@" \
         && timeout -k 10 "$limit" cmake --build "$build" --target "$target" -j "$(nproc)"; } > "$build/$target.log" 2>&1; then
    tail -c 1000000 "$build/$target.log" > "$work/failure.log"
    grep -m 3 -iE 'error|fatal' "$build/$target.log" >&2 || tail -n 5 "$build/$target.log" >&2
    say "FAILED: the build of $target: failure.log"
    note 3
    tell_lost
    return 1
  fi
  count_cpu
  say "$target built: $((SECONDS - began)) s, $((cpu - before)) s of CPU"
  tell_lost
}

# ---- Stages -----------------------------------------------------------------------------------------------------------

first_stage() {
  local ours=() measured=210  # the limits of the first four steps: a slow build delays them, and costs them nothing
  built outgrad-gpu || return 0
  if [[ $(left) -lt $measured ]]; then deadline=$((SECONDS + measured)); fi
  say "== times, beside a device copy in the same run"
  step 70 "$build/outgrad-gpu" time --budget 60 --out "$work/timing.json"
  say "== equality with the host, a sample of the bits"
  step 40 "$build/outgrad-gpu" equality --reduced --out "$work/parts/equality_reduced.json"
  say "== equality on a stream of its own and in a graph"
  step 40 "$build/outgrad-gpu" streams --out "$work/parts/streams.json"
  say "== PyTorch beside it"
  if python3 -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' > /dev/null 2>&1; then
    if [[ -s $work/timing.json ]]; then ours=(--ours "$work/timing.json"); fi
    step 60 python3 "$root/autotune/gpu/torch_peer.py" "${ours[@]}" --out "$work/torch.json" --budget 45
  else
    say "SKIPPED: PyTorch with CUDA is not importable"
  fi
  say "== equality with the host, all bit patterns"
  step 300 "$build/outgrad-gpu" equality --out "$work/parts/equality.json"
  say "== SHA-256 of all outputs, beside the exhaustive sweeps'"
  step 300 "$build/outgrad-gpu" digests --sweeps "$root/notebooks_data/sweeps" --out "$work/parts/digests.json"
}

tune_stage() {
  built outgrad-tune || return 0
  local seconds=${budget:-180} ends=50  # what a last batch and the header may take: cut off before, there is no header
  if [[ ${#stages[@]} -gt 1 ]]; then
    [[ -n $budget && $budget -lt $(($(left) - ends)) ]] || seconds=$(($(left) - ends))
    if [[ $seconds -lt 1 ]]; then say "NOT RUN: no time left for the tuner"; note 3; return 0; fi
  fi
  say "== tuner, all kernels, $seconds s"
  rm -rf "$build/tuned" "$work"/tune_*.gz
  step $((seconds + 120)) "$build/outgrad-tune" tune --device cuda:0 --budget "$seconds" --out "$build/tuned"
}

torch_stage() {
  local python tuned seconds
  python=$(command -v python3 || true)
  if [[ -z $python ]] || ! "$python" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' > /dev/null 2>&1; then
    say "SKIPPED: PyTorch with CUDA is not importable"
    return 0
  fi
  tuned=$(find "$build/tuned" -name 'tuned_*.h' -print -quit 2> /dev/null || true)  # of stage tune
  say "== the package, ${tuned:-without a tuned header}"
  built outgrad_torch -DOUTGRAD_LIBRARY=ON -DOUTGRAD_TORCH=ON -DOUTGRAD_TORCH_PYTHON="$python" -DOUTGRAD_TORCH_TUNED="$tuned" || return 0
  export PYTHONPATH="$build/python:$root/tests/kernels/torch:$root/notebooks_data/studies" PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
  export OUTGRAD_CACHE="$build/torch-cache" OUTGRAD_SOURCE_DIR="$root" OUTGRAD_BINARY_DIR="$build"
  step 300 "$python" -m pytest -q -p no:cacheprovider --durations=5 --rootdir "$root/tests/kernels/torch" "$root/tests/kernels/torch/gpu_test.py"
  say "== memory, largest batch and speed"
  seconds=${budget:-$(($(left) > 90 ? $(left) - 60 : 30))}  # a row that is begun takes up to a minute
  step $((seconds + 100)) "$python" "$root/notebooks_data/studies/throughput.py" --out "$work/throughput.json" --seconds "$seconds"
}

# sanitized TOOL LIMIT
sanitized() {
  local log=$work/sanitizer.txt code=0 why began=$SECONDS
  say "== $1, a sample of the bits"
  timeout -k 10 "$2" "$sanitizer" --tool "$1" --error-exitcode 99 "$build/outgrad-gpu" equality --reduced > "$log" 2>&1 || code=$?
  why=$(grep -v '^=* *$' "$log" | grep -m 1 -iE 'error|not supported|unable|outgrad' || head -n 1 "$log")
  # Its own words for a machine that does not let it: containers without the right to read counters, among others.
  if [[ $code -eq 0 ]]; then
    say "no errors ($((SECONDS - began)) s)"
  elif [[ $code -eq 124 || $code -eq 137 ]]; then
    say "CUT after $2 s: $1"
    note 3
  elif [[ $code -eq 1 ]] || grep -q 'SUMMARY: .*[1-9]' "$log" && ! grep -qi 'not supported\|unable to\|initialization error' "$log"; then
    say "FAILED with status $code: $1: $(grep 'SUMMARY' "$log" | tail -n 1 || tail -n 1 "$log")"
    { echo "== $1"; tail -c 1000000 "$log"; } >> "$work/failure.log"
    status=1
  else
    say "SKIPPED: $1 does not run here (status $code): $why"
  fi
  rm -f "$log"
  tell_lost
}

check_stage() {
  built outgrad-gpu || return 0
  local sanitizer
  sanitizer=$(command -v compute-sanitizer || true)
  if [[ -z $sanitizer && -x $(dirname "$nvcc")/compute-sanitizer ]]; then sanitizer=$(dirname "$nvcc")/compute-sanitizer; fi
  if [[ -z $sanitizer ]]; then say "SKIPPED: no compute-sanitizer on this machine"; return 0; fi
  sanitized memcheck $((($(left) - 5) / 2))
  sanitized racecheck $(($(left) - 5))
}

say "$name, driver$rest, CUDA $toolkit${served:+, served $served}; stages: ${stages[*]}"
if [[ $gpus -gt 1 ]]; then say "$gpus GPUs: this is the one that CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES names ($uuid)"; fi
if [[ $mig == Enabled ]]; then say "WARNING: MIG is enabled: this is a part of a GPU, and times are not the GPU's"; fi
if [[ -n $others ]]; then say "WARNING: the GPU is busy, times are not to be trusted; other processes:$others"; fi

# Whole runs have 540 s; of a stage alone, `first` and `check` have their own, and `tune` takes what its budget says.
for stage in "${stages[@]}"; do
  say "==== $stage"
  began=$SECONDS
  count_cpu
  before=$cpu
  case $stage in
    first) deadline=300 ;;
    tune) deadline=$(if [[ ${#stages[@]} -gt 1 ]]; then echo 500; else echo 100000; fi) ;;
    check) deadline=540 ;;
    torch) deadline=$(if [[ -n $budget ]]; then echo 100000; else echo 540; fi) ;;
  esac
  case $stage in
    first) first_stage ;;
    tune) tune_stage ;;
    check) check_stage ;;
    torch) torch_stage ;;
  esac
  count_cpu
  say "==== $stage: $((SECONDS - began)) s, $((cpu - before)) s of CPU"
done
say "results in $out"
tell_lost
trap - EXIT
exit "$status"
