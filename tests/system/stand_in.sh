#!/usr/bin/env bash
# Stands in for outgrad-fit, outgrad-check and outgrad-tune in tests of the chain: writes its outputs in two
# halves with a pause between them, so that a kill finds it in the middle. The wrapper is what is under test.
#
#   STAND_IN_LOG     one line per call: the subcommand and its input or format
#   STAND_IN_STOP    "validate bf16": the call that waits in the middle until it is killed
#   STAND_IN_STATUS  "check 1": the subcommand that ends with this status
set -euo pipefail
command=$1
input=$(basename -- "${2:-}")
shift
out=
while (($#)); do
  case $1 in
    --format) input=$2 ;;
    --out) out=$2 ;;
  esac
  shift
done
case $command in
  report) outputs=("$out/index.html" "$out/report.md" "$out/report.json") ;;
  # works in place, as the tuner does: each file by one rename
  tune) outputs=("$out/tune_cpu.jsonl" "$out/tuned_cpu.h") ;;
  check) outputs=() ;;
  *) outputs=("$out") ;;
esac
# the tuner refuses it
[[ $command != tune || -z ${OMP_NUM_THREADS:-} ]] || exit 2
echo "$command $input" >>"$STAND_IN_LOG"
[[ $command == tune ]] && suffix=.new || suffix=
for output in "${outputs[@]}"; do
  mkdir -p "$(dirname "$output")"
  echo "begin $command $input" >"$output$suffix"
done
if [[ ${STAND_IN_STOP:-} == "$command $input" ]]; then
  echo $$ >"$STAND_IN_LOG.stopped"
  exec sleep 600
fi
for output in "${outputs[@]}"; do
  echo "end" >>"$output$suffix"
  [[ -z $suffix ]] || mv -f "$output$suffix" "$output"
done
[[ ${STAND_IN_STATUS:-} != "$command "* ]] || exit "${STAND_IN_STATUS##* }"
