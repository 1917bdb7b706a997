#!/usr/bin/env bash
# Checks, times and tunes the CUDA kernels on a machine that has a GPU, CUDA, CMake and a compiler, and
# nothing else: no network, no packages.
#
#   tests/gpu/gpu_run.sh --pack DIR [WHEEL]  on the build machine: puts what the other one lacks, the headers
#                                            of nlohmann/json and CLI11, into DIR, and the package's wheel,
#                                            which `pip wheel --no-deps .` made of these sources and the GPU
#                                            machine then need not build
#   tests/gpu/gpu_run.sh STAGE... [--budget S]  on the GPU machine, each of these in 180 s, and all that are
#                                               named in 540; none named: all four
#     first   outgrad-gpu: times; a sample of the bits; streams and graphs; PyTorch beside it; then all bits
#             and the digests of all outputs
#     torch   the PyTorch package: its operators against the CPU's, streams, graphs, checkpoints; then the
#             speed of BERT-Large beside PyTorch's own, at three batches, in turn, and at each one's largest
#     tune    outgrad-tune: tunes all kernels
#     check   compute-sanitizer's memcheck and racecheck over a sample of the bits
#
# --budget S: tune searches for S seconds, and torch measures models for as many; from 600 on, three models in
# three types and all recipes. Of a stage that is named alone they are in the place of the 180 s. What the
# stages need is built first: side by side on eight cores or more, and a slow build delays what is measured.
#
# OUTGRAD_PACK_DIR names the pack's folder, OUTGRAD_GPU_BUILD the build's (build-gpu), $OUT the results'
# (out/gpu). Of several GPUs it is the first, or the first of CUDA_VISIBLE_DEVICES. A result is in $OUT as
# soon as it is there, and what grows is copied again every two seconds: a run that is killed leaves what it
# had. At most 8 files, each under 16 MiB: summary.txt; timing.json; checks.json (what was compared);
# torch.json; throughput.json; the tuner's database (compressed) and header; failure.log, of builds or
# sanitizers that failed.
# Exit status: 0 all equal, 1 a difference, a memory error or a race, 2 bad usage, 3 no GPU, no toolkit, a
# failed build, a step that did not end.
set -euo pipefail
export LC_ALL=C
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

fail() { echo "outgrad: gpu_run: $2" >&2; exit "$1"; }

pack_folder() {  # a folder that holds nlohmann/json.hpp and CLI/CLI.hpp
  local folder
  for folder in "${OUTGRAD_PACK_DIR:-}" "$root/out/pack" /usr/include /usr/local/include; do
    if [[ -n $folder && -f $folder/nlohmann/json.hpp && -f $folder/CLI/CLI.hpp ]]; then
      echo "$folder"; return
    fi
  done
  return 1
}

sources() {
  (cd "$root" && find CMakeLists.txt cmake kernels pyproject.toml -type f ! -name '*.pyc' -print0 | sort -z |
    xargs -0 sha256sum | sha256sum | cut -c 1-64)
}

if [[ ${1:-} == --pack ]]; then
  [[ $# -eq 2 || $# -eq 3 ]] || fail 2 "usage: gpu_run.sh --pack DIR [WHEEL]"
  [[ $# -eq 2 || ${3##*/} == outgrad-*.whl && -f $3 ]] || fail 2 "$3: is no wheel of outgrad"
  from=$(pack_folder) ||
    fail 3 "nlohmann/json.hpp and CLI/CLI.hpp are not here (Debian: nlohmann-json3-dev, libcli11-dev)"
  mkdir -p "$2" || fail 2 "$2: cannot be created"
  if [[ $(realpath "$from") != "$(realpath "$2")" ]]; then
    for library in nlohmann CLI; do
      rm -rf "${2:?}/$library"
      cp -r "$from/$library" "$2/$library"
    done
  fi
  rm -rf "${2:?}/wheel"
  if [[ $# -eq 3 ]]; then
    mkdir "$2/wheel"
    cp "$3" "$2/wheel"
    sources > "$2/wheel/sources"
  fi
  echo "$2: nlohmann/json and CLI11 from $from${3:+, and ${3##*/}};" \
    "carry it along and set OUTGRAD_PACK_DIR to it"
  exit 0
fi

stages=()
while [[ ${1:-} == [!-]* ]]; do
  case $1 in
    first | torch | tune | check) [[ " ${stages[*]} " != *" $1 "* ]] || fail 2 "stage $1 is named twice" ;;
    *) fail 2 "unknown stage '$1' (first, torch, tune, check; --pack DIR)" ;;
  esac
  stages+=("$1")
  shift
done
if [[ ${#stages[@]} -eq 0 ]]; then stages=(first torch tune check); fi
budget=
if [[ ${1:-} == --budget ]]; then
  [[ " ${stages[*]} " =~ " tune "|" torch " ]] ||
    fail 2 "--budget is of tune and torch, and this is stage ${stages[*]}"
  [[ ${2:-} =~ ^[1-9][0-9]{0,4}$ ]] || fail 2 "--budget: '${2:-}' is not a number of seconds from 1 to 99999"
  budget=$2
  shift 2
fi
[[ $# -eq 0 ]] || fail 2 "unknown option '$1' (first, torch, tune, check; --pack DIR, --budget SECONDS)"

# ---- The machine ---------------------------------------------------------------------------------

out=${OUT:-$root/out/gpu}
build=${OUTGRAD_GPU_BUILD:-$root/build-gpu}
if ! { mkdir -p "$out" && : > "$out/.part" && rm -f "$out/.part"; } 2> /dev/null; then
  fail 2 "$out: cannot be written"
fi
out=$(cd "$out" && pwd)
tuned=$build/tuned
work=$build/results  # where results are made; $OUT has their copies
mkdir -p "$work/parts" 2> /dev/null || fail 2 "$build: cannot be written"

nvcc=$(command -v nvcc || true)
for folder in "${CUDA_PATH:-}" "${CUDA_HOME:-}" /usr/local/cuda; do
  if [[ -z $nvcc && -n $folder && -x $folder/bin/nvcc ]]; then nvcc=$folder/bin/nvcc; fi
done
[[ -n $nvcc ]] || fail 3 "no nvcc (PATH, CUDA_PATH, CUDA_HOME, /usr/local/cuda)"
for tool in cmake nvidia-smi; do command -v "$tool" > /dev/null || fail 3 "no $tool in PATH"; done
[[ -n ${CXX:-} ]] || command -v c++ g++ clang++ > /dev/null ||
  fail 3 "no C++ compiler (c++, g++, clang++ in PATH, or CXX)"
command -v ninja make > /dev/null || fail 3 "neither ninja nor make in PATH"
make_one="make a pack with --pack on the build machine and set OUTGRAD_PACK_DIR"
pack=$(pack_folder) || fail 3 "nlohmann/json.hpp and CLI/CLI.hpp are not here: $make_one"

fields=index,uuid,compute_cap,mig.mode.current,compute_mode,name
fields+=,driver_version,clocks.sm,clocks.mem,temperature.gpu
# A driver that hangs is one that is not there.
listed=$(timeout 60 nvidia-smi --query-gpu="$fields" --format=csv,noheader 2>&1) ||
  fail 3 "no GPU (nvidia-smi: $(head -n 1 <<< "$listed"))"
wanted=${CUDA_VISIBLE_DEVICES-first}
wanted=${wanted%%,*}
gpus=0 uuid='' capability='' mig='' mode='' name='' rest=''
while IFS=, read -r row_index row_uuid row_capability row_mig row_mode row_name row_rest; do
  [[ $row_capability =~ ^' '*[0-9]+\.[0-9]+$ ]] || continue
  gpus=$((gpus + 1))
  row_uuid=${row_uuid# }
  # A MIG device belongs to the GPU that its container was given.
  if [[ -z $uuid && -n $wanted &&
      ($wanted == first || $wanted == MIG-* || $row_index == "$wanted" || $row_uuid == "$wanted"*) ]]; then
    if [[ $wanted == first ]]; then wanted=$row_index; fi
    uuid=$row_uuid capability=${row_capability//[ .]/} mig=${row_mig# } mode=${row_mode# }
    name=${row_name# } rest=$row_rest
  fi
done <<< "$listed"
[[ $gpus -gt 0 ]] || fail 3 "no GPU (nvidia-smi: $(head -n 1 <<< "$listed"))"
[[ -n $uuid ]] || fail 3 "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES names none of the $gpus GPUs here"
export CUDA_DEVICE_ORDER=PCI_BUS_ID  # nvidia-smi's
if [[ -n ${CUDA_VISIBLE_DEVICES:-} || $gpus -gt 1 ]]; then export CUDA_VISIBLE_DEVICES=$wanted; fi

toolkit=$("$nvcc" --version | sed -nE 's/.*release ([0-9]+\.[0-9]+).*/\1/p')
[[ -n $toolkit ]] || fail 3 "$nvcc does not say its release"
served=$(timeout 60 nvidia-smi 2> /dev/null | sed -nE 's/.*CUDA [A-Z ]*Version: *([0-9]+\.[0-9]+).*/\1/p' |
  head -n 1) || true
if [[ -n $served && ${served%.*} -lt ${toolkit%.*} ]]; then
  remedy="a newer driver, or an older toolkit first in PATH"
  fail 3 "the driver serves CUDA $served, too old for the toolkit's $toolkit ($nvcc): $remedy"
fi
known=$("$nvcc" --list-gpu-code | tr '\n' ' ') || true
[[ " $known" == *" sm_$capability "* ]] ||
  fail 3 "$name is an sm_$capability, which CUDA $toolkit does not compile for (${known% })"
others=$(timeout 60 nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name \
  --format=csv,noheader 2> /dev/null | grep -F "$uuid" | cut -d, -f2- | paste -sd';') || true
if [[ $mode == Prohibited ]]; then fail 3 "$name: its compute mode is Prohibited"; fi
if [[ $mode == Exclusive* && -n $others ]]; then
  fail 3 "$name is in exclusive mode, and another process has it:$others"
fi

# ---- Results -------------------------------------------------------------------------------------

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

declare -A lost=() building=()  # what is not in $OUT, and why; the processes of builds that go on
# a copy has the time that its original had when it was begun
same() { [[ -f $2 && ! $1 -nt $2 && ! $1 -ot $2 ]]; }
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
  for file in "$tuned"/tune_*.jsonl; do  # appended to; a line that is cut short costs itself
    packed=$work/${file##*/}.gz
    if [[ ! -s $file ]] || same "$file" "$packed"; then continue; fi
    if ! { cp -p "$file" "$work/database" && gzip -6 -n -c "$work/database" > "$work/database.new" &&
      touch -r "$work/database" "$work/database.new" &&
           mv "$work/database.new" "$packed"; }; then
      lost[${packed##*/}]=$whole
    fi 2> /dev/null
  done
  for file in "$work"/*.txt "$work"/*.json "$work"/*.gz "$work"/*.log "$tuned"/tuned_*.h; do
    copy "$file"
  done
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
trap 'kill "${building[@]}" 2> /dev/null || true; tell_lost' EXIT

# count_cpu FOLDER: what the programs of this shell so far have used, into `cpu`. `times` asks the shell that
# it runs in: not one of $( ).
cpu=0
count_cpu() {
  if ! times > "$1/times"; then return 0; fi 2> /dev/null
  cpu=$(awk 'NR == 2 { for (i = 1; i <= 2; ++i) { split($i, t, /[ms]/); s += 60 * t[1] + t[2] } }
    END { printf "%.0f", s }' "$1/times")
}
left() { echo $((deadline - SECONDS)); }

# step LIMIT COMMAND...: into the summary, with the copier beside it; no longer than LIMIT seconds and than
# the stage has. A failure is remembered.
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

# Each target has a folder of its own, so that it is built beside the others, whose failures do not cost it.
folder_of() {
  case $1 in
    outgrad-gpu) echo "$build" ;;
    outgrad-tune) echo "$build/tuner" ;;
    outgrad_torch) echo "$build/package" ;;
  esac
}
compile() (  # compile TARGET FOLDER: in a shell of its own, whose `times` are the build's
  limit=$((deadline - SECONDS)) options=(-DOUTGRAD_LIBRARY=OFF -DOUTGRAD_TORCH=OFF)
  # a slow machine gets the time of a whole run for it
  if [[ $limit -lt $((whole - SECONDS)) ]]; then limit=$((whole - SECONDS)); fi
  if [[ $1 == outgrad_torch ]]; then
    options=(-DOUTGRAD_LIBRARY=ON -DOUTGRAD_TORCH=ON -DOUTGRAD_TORCH_PYTHON="$python"
      -DOUTGRAD_TORCH_TUNED="$(tuned_header)")
  fi
  if [[ ! -f $2/CMakeCache.txt ]] && command -v ninja > /dev/null; then options+=(-G Ninja); fi
  trap 'kill "$running"; wait "$running"; exit 3' TERM
  limited() { timeout -k 10 "$limit" "$@" & running=$!; wait "$running"; }
  limited cmake -S "$root" -B "$2" -DCMAKE_BUILD_TYPE=Release -DOUTGRAD_FITTER=OFF -DOUTGRAD_TESTS=OFF \
    -DOUTGRAD_INSTALL=OFF -DOUTGRAD_WERROR=OFF -DOUTGRAD_NATIVE=ON -DOUTGRAD_CUDA=ON \
    -DOUTGRAD_PACK_DIR="$pack" -DCMAKE_CUDA_COMPILER="$nvcc" \
    -DCMAKE_CUDA_ARCHITECTURES="$capability-real" "${options[@]}"
  limited cmake --build "$2" --target "$1" -j "$(nproc)"
  count_cpu "$2"
  echo "$1 built: $((SECONDS - began)) s, $cpu s of CPU" > "$2/$1.built"
)
declare -A ready=()  # whether a target is built
begin_build() {
  local folder began=$SECONDS
  folder=$(folder_of "$1")
  mkdir -p "$folder"
  compile "$1" "$folder" > "$folder/$1.log" 2>&1 &
  building[$1]=$!
}
# built TARGET: when it is, begun here unless it was before.
built() {
  local log
  log=$(folder_of "$1")/$1.log
  if [[ ${ready[$1]:-} == no ]]; then say "NOT RUN: $1 is not built"; fi
  if [[ -z ${ready[$1]:-} ]]; then
    if [[ -z ${building[$1]:-} ]]; then begin_build "$1"; fi
    if wait "${building[$1]}"; then
      ready[$1]=yes
      say "$(< "${log%.log}.built")"
    else
      ready[$1]=no
      { echo "== $1"; tail -c 1000000 "$log"; } >> "$work/failure.log"
      grep -m 3 -iE 'error|fatal' "$log" >&2 || tail -n 5 "$log" >&2
      say "FAILED: the build of $1: failure.log"
      note 3
    fi
    unset "building[$1]"
    tell_lost
  fi
  [[ ${ready[$1]} == yes ]]
}
# ---- Stages --------------------------------------------------------------------------------------

python=$(command -v python3 || true)
has_torch() {
  if [[ -z ${torch_is:-} ]]; then
    torch_is=lacking
    if "${python:-false}" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())' \
      > /dev/null 2>&1; then
      torch_is=here
    fi
  fi
  [[ $torch_is == here ]]
}
tuned_header() { find "$tuned" -name 'tuned_*.h' -print -quit 2> /dev/null || true; }  # of stage tune

first_stage() {
  # the limits of the first four steps: a slow build delays them, and costs them nothing
  local ours=() measured=120
  built outgrad-gpu || return 0
  if [[ $(left) -lt $measured ]]; then deadline=$((SECONDS + measured)); fi
  say "== times, beside a device copy in the same run"
  step 45 "$build/outgrad-gpu" time --budget 35 --out "$work/timing.json"
  say "== equality with the host, a sample of the bits"
  step 20 "$build/outgrad-gpu" equality --reduced --out "$work/parts/equality_reduced.json"
  say "== equality on a stream of its own and in a graph"
  step 20 "$build/outgrad-gpu" streams --out "$work/parts/streams.json"
  say "== PyTorch beside it"
  if has_torch; then
    if [[ -s $work/timing.json ]]; then ours=(--ours "$work/timing.json"); fi
    step 35 "$python" "$root/tests/gpu/torch_peer.py" "${ours[@]}" --out "$work/torch.json" --budget 25
  else
    say "SKIPPED: PyTorch with CUDA is not importable"
  fi
  say "== equality with the host, all bit patterns"
  step "$(left)" "$build/outgrad-gpu" equality --out "$work/parts/equality.json"
  say "== SHA-256 of all outputs, beside the exhaustive sweeps'"
  step "$(left)" "$build/outgrad-gpu" digests --sweeps "$root/notebooks_data/sweeps" \
    --out "$work/parts/digests.json"
}

# searching ENDS: the seconds that a search of this stage has, if what it began last takes ENDS at most.
searching() {
  local seconds=$(($(left) - $1))
  if [[ -n $budget && ($budget -lt $seconds || ${#stages[@]} -eq 1) ]]; then seconds=$budget; fi
  echo "$seconds"
}

tune_stage() {
  built outgrad-tune || return 0
  local seconds ends=50  # what a last batch and the header may take: cut off before, there is no header
  seconds=$(searching "$ends")
  if [[ $seconds -lt 1 ]]; then say "NOT RUN: no time left for the tuner"; note 3; return 0; fi
  say "== tuner, all kernels, $seconds s"
  rm -rf "$tuned" "$work"/tune_*.gz
  step $((seconds + 120)) "$(folder_of outgrad-tune)/outgrad-tune" tune --device cuda:0 --budget "$seconds" \
    --out "$tuned"
}

# The package, as a folder to import it from, into `package`: the wheel that the pack carries, if it is of
# these sources and this machine can load it, and stage tune has left no header to compile the package with.
package=''
carried() {
  local wheel=("$pack"/wheel/outgrad-*.whl) why
  if [[ -n $package ]]; then return 0; fi
  if [[ ! -f ${wheel[0]} ]]; then return 1; fi
  if [[ $(cat "$pack/wheel/sources") != "$(sources)" ]]; then
    why="it was packed with other sources"
  elif [[ -n $(tuned_header) ]]; then
    why="stage tune left a header, which is compiled into the package"
  elif why=$({ rm -rf "$build/wheel" && "$python" -m zipfile -e "${wheel[0]}" "$build/wheel" &&
    PYTHONPATH="$build/wheel" "$python" -c 'import outgrad'; } 2>&1); then
    package=$build/wheel
    say "the package is ${wheel[0]}"
    return 0
  fi
  say "not used: ${wheel[0]}: $(tail -n 1 <<< "$why")"
  return 1
}

torch_stage() {
  # a row that is begun takes up to a minute
  local header seconds workers=() ends=60
  local few=(--models BERT-Large --modes "pure bf16")
  few+=(--recipes "eager + SDPA|ours|eager + SDPA, graph|ours, graph")
  if ! has_torch; then
    say "SKIPPED: PyTorch with CUDA is not importable"
    return 0
  fi
  if [[ -n ${ready[outgrad_torch]:-} ]] || ! carried; then
    built outgrad_torch || return 0
    package=$(folder_of outgrad_torch)/python
  fi
  header=$(tuned_header)
  say "== the package, ${header:-without a tuned header}"
  export PYTHONPATH="$package:$root/tests/kernels/torch:$root/notebooks_data/studies" \
    PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
  export OUTGRAD_CACHE="$build/torch-cache" OUTGRAD_SOURCE_DIR="$root" OUTGRAD_BINARY_DIR="$build"
  # A test waits for compilers of kernels most of its time.
  if [[ $(nproc) -ge 8 ]] && "$python" -c 'import xdist' > /dev/null 2>&1; then workers=(-n 6); fi
  step 90 "$python" -m pytest -q -p no:cacheprovider "${workers[@]}" --durations=5 \
    --rootdir "$root/tests/kernels/torch" "$root/tests/kernels/torch/gpu_test.py"
  say "== memory, largest batch and speed"
  seconds=$(searching "$ends")
  if [[ $seconds -lt 1 ]]; then seconds=1; fi
  if [[ ${budget:-0} -ge 600 ]]; then few=(); fi
  step $((seconds + 100)) "$python" "$root/notebooks_data/studies/throughput.py" "${few[@]}" \
    --out "$work/throughput.json" --seconds "$seconds"
}

# sanitized TOOL LIMIT
sanitized() {
  local log=$work/sanitizer.txt code=0 why began=$SECONDS
  say "== $1, a sample of the bits"
  timeout -k 10 "$2" "$sanitizer" --tool "$1" --error-exitcode 99 "$build/outgrad-gpu" \
    equality --reduced > "$log" 2>&1 || code=$?
  why=$(grep -v '^=* *$' "$log" | grep -m 1 -iE 'error|not supported|unable|outgrad' || head -n 1 "$log")
  # Its own words for a machine that does not let it: containers without the right to read counters, among
  # others.
  if [[ $code -eq 0 ]]; then
    say "no errors ($((SECONDS - began)) s)"
  elif [[ $code -eq 124 || $code -eq 137 ]]; then
    say "CUT after $2 s: $1"
    note 3
  elif [[ $code -eq 1 ]] || grep -q 'SUMMARY: .*[1-9]' "$log" &&
    ! grep -qi 'not supported\|unable to\|initialization error' "$log"; then
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
  if [[ -z $sanitizer && -x $(dirname "$nvcc")/compute-sanitizer ]]; then
    sanitizer=$(dirname "$nvcc")/compute-sanitizer
  fi
  if [[ -z $sanitizer ]]; then say "SKIPPED: no compute-sanitizer on this machine"; return 0; fi
  sanitized memcheck $((($(left) - 5) / 2))
  sanitized racecheck $(($(left) - 5))
}

say "$name, driver$rest, CUDA $toolkit${served:+, served $served}; stages: ${stages[*]}"
if [[ $gpus -gt 1 ]]; then
  say "$gpus GPUs: this is the one that CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES names ($uuid)"
fi
if [[ $mig == Enabled ]]; then
  say "WARNING: MIG is enabled: this is a part of a GPU, and times are not the GPU's"
fi
if [[ -n $others ]]; then
  say "WARNING: the GPU is busy, times are not to be trusted; other processes:$others"
fi

# A stage has 180 s, and leaves each that follows 60 of the whole run's 540. `torch` and `tune` alone take
# what their budget says.
stage_seconds=180 whole=540 leaves=60
deadline=$stage_seconds
if [[ $(nproc) -ge 8 ]]; then  # fewer cores build for one stage after another
  targets=()
  for stage in "${stages[@]}"; do
    case $stage in
      first | check) target=outgrad-gpu ;;
      tune) target=outgrad-tune ;;
      torch) if ! has_torch || carried; then continue; fi; target=outgrad_torch ;;
    esac
    if [[ -z ${building[$target]:-} ]]; then begin_build "$target"; targets+=("$target"); fi
  done
  for target in "${targets[@]}"; do built "$target" || true; done  # nothing is timed beside a compiler
fi
began=0 before=0
for ((i = 0; i < ${#stages[@]}; ++i)); do
  stage=${stages[i]}
  say "==== $stage"
  deadline=$((whole - leaves * (${#stages[@]} - 1 - i)))
  if [[ $deadline -gt $((began + stage_seconds)) ]]; then deadline=$((began + stage_seconds)); fi
  if [[ -n $budget && ${#stages[@]} -eq 1 ]]; then deadline=100000; fi
  case $stage in
    first) first_stage ;;
    torch) torch_stage ;;
    tune) tune_stage ;;
    check) check_stage ;;
  esac
  count_cpu "$build"
  say "==== $stage: $((SECONDS - began)) s, $((cpu - before)) s of CPU"
  began=$SECONDS before=$cpu
done
say "results in $out"
tell_lost
trap - EXIT
exit "$status"
