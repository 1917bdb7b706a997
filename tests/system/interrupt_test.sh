#!/usr/bin/env bash
# SIGKILL at each stage of `run`: nothing is half-written, no child lives on, the next run continues with what
# is done.
# usage: interrupt_test.sh REPOSITORY
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

echo "${#calls[@]} interruptions, $failures failures"
exit $((failures > 0))
