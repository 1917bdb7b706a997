#!/usr/bin/env bash
# Finds the fastest variant of GELU's backward kernel for a device, and measures it beside the default. Every
# variant gives the same bits before it is timed.
# usage: examples/tune_a_device.sh [DEVICE] [SECONDS]    (DEVICE: cpu, cuda:0, ...; default: cpu, 10 seconds)
set -euo pipefail
device=${1:-cpu} seconds=${2:-10}
outgrad=$(dirname "$(readlink -f "$0")")/../outgrad
problem=(--kernel gelu_backward --format bf16 --elements 262144)

"$outgrad" tune --device "$device" "${problem[@]}" --budget "$seconds" --out out/example
if [[ $device == cpu ]]; then
  "$outgrad" bench --tuned out/example/tuned_cpu.h "${problem[@]}" --rounds 10
fi
echo "out/example has the tuned header and the measurements; docs/tune_a_gpu.md says how to use them"
