#!/usr/bin/env bash
# SIGKILL at each stage of `run`: nothing is half-written, no child lives on, the next run continues with what
# is done. Whatever stops `fit`, `tune`, `eval` or `report`, what they started ends, too, and their temporary
# folder is empty.
# usage: interrupt_test.sh REPOSITORY BUILD
set -euo pipefail
# shellcheck source=tests/system/sandbox.sh
source "$1/tests/system/sandbox.sh"
make_sandbox "$1"

# A process that is dead but not yet waited for by whoever inherits it, which may take seconds, does not live
# on.
lives() {
  local status
  status=$(cat "/proc/$1/status" 2>/dev/null) && [[ ! $status =~ State:[[:space:]]+Z ]]
}

# Every result in out/ is whole: the stand-ins end each file with the line `end`, the wrapper its own JSON
# with `}}`. Scratch, logs and temporary names are no results.
assert_whole() {
  local file last
  while IFS= read -r file; do
    last=$(tail -n 1 "$file")
    [[ $file == */provenance.json && $last == *'}}' || $file != */provenance.json && $last == end ]] ||
      fail "$1: $file is half-written"
  done < <(find "$sandbox/out" -type f -not -path '*/run/*' -not -name run.lock -not -name inputs.sha256 \
    -not -name '*.new')
}

"$sandbox/outgrad" run >/dev/null
mapfile -t calls <"$STAND_IN_LOG"
((${#calls[@]} >= 16)) || fail "the chain made ${#calls[@]} calls only"

# Each run is killed at its next stage; the one after it redoes that stage, gets one further and is killed
# there.
rm -rf "$sandbox/out"
for ((k = 0; k < ${#calls[@]}; k++)); do
  rm -f "$STAND_IN_LOG.stopped"
  : >"$STAND_IN_LOG"
  STAND_IN_STOP=${calls[k]} "$sandbox/outgrad" run >/dev/null 2>&1 &
  run=$!
  for ((wait_ms = 0; wait_ms < 120000; wait_ms += 20)); do
    [[ ! -s $STAND_IN_LOG.stopped ]] || break
    sleep 0.02
  done
  [[ -s $STAND_IN_LOG.stopped ]] || fail "${calls[k]}: the stage was not reached"
  kill -KILL "$run"
  wait "$run" 2>/dev/null || true
  # the kernel delivers the parent-death signal in its own time
  for ((wait_ms = 0; wait_ms < 60000; wait_ms += 20)); do
    lives "$(<"$STAND_IN_LOG.stopped")" || break
    sleep 0.02
  done
  ((wait_ms < 60000)) || fail "${calls[k]}: the stage outlives the run"
  assert_whole "${calls[k]}"
  redone=$((k > 0 ? k - 1 : 0))
  [[ $(<"$STAND_IN_LOG") == "$(printf '%s\n' "${calls[@]:redone:k - redone + 1}")" ]] ||
    fail "${calls[k]}: the run did not continue where the last one died, it called: $(xargs <"$STAND_IN_LOG")"
done
: >"$STAND_IN_LOG"
"$sandbox/outgrad" run >/dev/null 2>&1 || fail "the last run failed"
[[ $(<"$STAND_IN_LOG") == "${calls[-1]}" ]] || fail "the last run called: $(xargs <"$STAND_IN_LOG")"
assert_whole "at the end"

# Damage after the fact is noticed too: a result that was cut short is made again.
: >"$STAND_IN_LOG"
echo begin >"$sandbox/out/sweeps/gelu_f16.json"
"$sandbox/outgrad" run >/dev/null || fail "run after damage"
[[ $(<"$STAND_IN_LOG") == "validate f16" ]] ||
  fail "a damaged sweep was not made again: $(xargs <"$STAND_IN_LOG")"

# stopped COMMAND...: stops it by each signal, to it alone, while what it started is at work.
stopped() {
  local signal job
  for signal in INT TERM KILL; do
    rm -f "$sandbox/started"
    # a shell's job in the background ignores SIGINT otherwise
    TMPDIR=$sandbox/tmp env --default-signal=INT "$@" >/dev/null 2>&1 &
    job=$!
    until [[ -s $sandbox/started ]]; do
      kill -0 "$job" 2>/dev/null || { fail "$1: ended by itself"; return 0; }
      sleep 0.02
    done
    kill -"$signal" "$job"
    wait "$job" 2>/dev/null || true
    for ((wait_ms = 0; wait_ms < 10000; wait_ms += 20)); do
      lives "$(<"$sandbox/started")" || [[ -n $(ls -A "$sandbox/tmp") ]] || break
      sleep 0.02
    done
    ((wait_ms < 10000)) || {
      fail "$1: SIG$signal leaves what it started, or $(ls "$sandbox/tmp") in TMPDIR"
      kill "$(<"$sandbox/started")" 2>/dev/null || true
      rm -rf "$sandbox/tmp"/*
    }
  done
}

mkdir "$sandbox"/{tmp,alone}
if [[ -x $2/outgrad-fit ]]; then
  cp "$2/outgrad-fit" "$sandbox/alone"
  printf '#!/bin/sh\necho $$ >"%s/started"\nexec sleep 600\n' "$sandbox" >"$sandbox/alone/outgrad-check"
  chmod +x "$sandbox/alone/outgrad-check"
  stopped "$sandbox/alone/outgrad-fit" fit --activation silu --format e4m3 --out "$sandbox/alone/own.json"
fi
if [[ -x $2/outgrad-check ]]; then
  printf '#!/bin/sh\necho $$ >"%s/started"\nexec sleep 600\n' "$sandbox" >"$sandbox/python"
  chmod +x "$sandbox/python"
  OUTGRAD_PYTHON=$sandbox/python stopped "$2/outgrad-check" report --out "$sandbox/own" \
    --header "$1/kernels/generated/gelu_e4m3_oracle.h"
fi
if [[ -x $2/outgrad-tune ]]; then
  # as a compiler's driver has it, the work is a process of its own
  cat >"$sandbox/compiler" <<END
#!/bin/sh
[ "\$1" != --version ] || exec echo 1
sleep 600 &
echo \$! >"$sandbox/started"
wait
END
  chmod +x "$sandbox/compiler"
  CXX=$sandbox/compiler OUTGRAD_SOURCE_DIR=$1 stopped "$2/outgrad-tune" tune --device cpu --format bf16 \
    --kernel gelu_backward --fresh --out "$sandbox/tuned"
  head -c 64 /dev/zero >"$sandbox/zeros"
  head -c 4 /dev/zero >"$sandbox/mask"
  CXX=$sandbox/compiler OUTGRAD_SOURCE_DIR=$1 stopped "$2/outgrad-eval" eval --op backward --format f32 \
    --header "$1/kernels/generated/gelu_f32.h" --dy "$sandbox/zeros" --y "$sandbox/zeros" \
    --mask "$sandbox/mask" --dx "$sandbox/dx"
fi

echo "${#calls[@]} interruptions, $failures failures"
exit $((failures > 0))
