#!/usr/bin/env bash
# Sweeps under Open MPI's mpirun: the same bytes whatever the number of ranks, also after SIGKILL in the
# middle; what is foreign is refused.
# usage: sweep_ranks_test.sh REPOSITORY BUILD
set -euo pipefail
check=$2/outgrad-check
[[ -x $check ]] || { echo "no outgrad-check in this build"; exit 77; }
command -v mpirun >/dev/null || { echo "no mpirun (Debian: openmpi-bin)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fail() {
  echo "FAILED: $*"
  exit 1
}

shard=(validate --format f32 --shard 33/128)  # 8 chunks
"$check" "${shard[@]}" --out alone.json >said 2>&1 || fail "alone: $(<said)"
for ranks in 2 5; do
  mpirun --oversubscribe -n "$ranks" "$check" "${shard[@]}" --out "ranks$ranks.json" >said 2>&1 ||
    fail "$ranks ranks: $(<said)"
  cmp alone.json "ranks$ranks.json" || fail "$ranks ranks: other bytes"
  [[ ! -e ranks$ranks.json.chunks ]] || fail "$ranks ranks: the log of chunks is left"
done

# SIGKILL of one rank, and of mpirun, while chunks are being stored; each time some of them are there, and the
# next job continues.
for victim in rank mpirun; do
  rm -f killed.json*
  mpirun --oversubscribe -n 3 "$check" "${shard[@]}" --threads 1 --out killed.json >said 2>&1 &
  job=$!
  for ((ms = 0; ms < 60000; ms += 10)); do
    [[ ! -f killed.json.chunks ]] || (($(wc -l <killed.json.chunks) < 3)) || break
    sleep 0.01
  done
  case $victim in
    rank) kill -KILL "$(pgrep -P "$job" -f outgrad-check | tail -n 1)" ;;
    mpirun) kill -KILL "$job" ;;
  esac
  wait "$job" 2>/dev/null && fail "$victim killed: the job ended well"
  for ((ms = 0; ms < 20000; ms += 10)); do  # mpirun, or each rank that lost it, takes its time to end
    pgrep -f "$check.*killed.json" >/dev/null || break
    sleep 0.01
  done
  # Ranks that outlive mpirun may have come to the end: then the result is the whole one.
  if [[ $victim == mpirun && -e killed.json ]]; then
    cmp alone.json killed.json || fail "mpirun killed: a result with other bytes"
    continue
  fi
  [[ ! -e killed.json ]] || fail "$victim killed: a result is there"
  stored=$(($(wc -l <killed.json.chunks) - 1))
  ((stored >= 2 && stored < 8)) || fail "$victim killed: $stored chunks are stored"
  mpirun --oversubscribe -n 2 "$check" "${shard[@]}" --out killed.json >said 2>&1 || fail "resumed: $(<said)"
  cmp alone.json killed.json || fail "$victim killed: other bytes after it"
done

# Ranks that sweep different things; bad usage: one status.
status=0
mpirun --oversubscribe -n 2 bash -c "format=f32; [[ \$OMPI_COMM_WORLD_RANK != 1 ]] || format=f16
  exec '$check' validate --format \$format --shard 1/64 --out mixed.json" >said 2>&1 || status=$?
((status == 2)) || fail "mixed formats: status $status"
grep -q 'outgrad: validate: rank 1: sweeps' said || fail "mixed formats: $(<said)"
[[ ! -e mixed.json ]] || fail "mixed formats: a result is there"
status=0
mpirun --oversubscribe -n 2 "$check" validate --format f99 >said 2>&1 || status=$?
((status == 2)) || fail "an unknown format: status $status"
echo "the same bytes by 1, 2 and 5 ranks, and after SIGKILL of a rank and of mpirun"
