#!/usr/bin/env bash
# Shards under Open MPI's mpirun: disjoint parts of a space from every rank, in one database.
# usage: mpi_test.sh REPOSITORY BUILD
set -euo pipefail
build=$2 ranks=3 evaluations=4
command -v mpirun > /dev/null || { echo "no mpirun (Debian: openmpi-bin)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMP_NUM_THREADS=1
export OUTGRAD_LIBCUDA=$build/tests/liboutgrad-stand-in-driver.so

# A GPU of the tests' own: no rank disturbs another's clock. Without a run-time compiler there is nothing to
# tune for it.
if ! mpirun --oversubscribe -n "$ranks" "$build/outgrad-tune" tune --device cuda:0 --kernel gelu_backward \
  --format bf16 --elements 4096 \
     --evaluations "$evaluations" --budget 300 --shard mpi --out "$work/out" > "$work/said" 2>&1; then
  if grep -q 'CUDA run-time compiler' "$work/said"; then cat "$work/said"; exit 77; fi
  cat "$work/said"
  exit 1
fi
python3 - "$work/out/tune_stand_in_gpu.jsonl" "$ranks" "$evaluations" << 'END'
import collections
import json
import sys

path, ranks, evaluations = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
runs = collections.Counter()
for line in open(path, encoding="utf-8"):
    record = json.loads(line)
    if record.get("state") == "timed" and not record["default"] and not record.get("finalist"):
        runs[record["variant"]] += 1
assert len(runs) == ranks * evaluations, f"{len(runs)} variants of {ranks} ranks with {evaluations} each"
assert set(runs.values()) == {1}, f"evaluated more than once: {runs.most_common(3)}"
print(f"{len(runs)} variants, each by one of {ranks} ranks")
END
for words in "-n 2 env -u OMPI_COMM_WORLD_RANK" "-n 1 env OMPI_COMM_WORLD_RANK=7"; do
  # shellcheck disable=SC2086  # words
  if mpirun --oversubscribe $words "$build/outgrad-tune" tune --device cuda:0 --shard mpi --out "$work/none" \
    > "$work/said" 2>&1; then
    echo "FAILED: $words: accepted"
    exit 1
  fi
  grep -qF -- "--shard: mpi: not started by Open MPI's mpirun" "$work/said" || { cat "$work/said"; exit 1; }
done
