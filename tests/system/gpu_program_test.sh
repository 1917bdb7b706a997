#!/usr/bin/env bash
# outgrad-gpu over stand-ins for the device and for CUDA's runtime: what each command computes, writes, finds
# and refuses. The kernels are the real ones.
# usage: gpu_program_test.sh REPOSITORY BUILD
set -euo pipefail
root=$1 build=$2
program=$build/tests/outgrad-gpu-stand-in
[[ -x $program ]] || { echo "SKIPPED: no outgrad-gpu-stand-in in this build"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
sweeps=$root/notebooks_data/sweeps
fail() {
  echo "FAILED: $*"
  tail -n 20 "$work/said"
  exit 1
}
expect() {  # status, text that stdout or stderr has, command
  local want=$1 text=$2 got=0
  shift 2
  "$@" >"$work/said" 2>&1 || got=$?
  [[ $got == "$want" ]] || fail "$*: status $got instead of $want"
  grep -qF -- "$text" "$work/said" || fail "$*: no '$text'"
}
refused() {  # the same in one line, and no file
  expect "$@"
  [[ $(grep -c '^outgrad: ' "$work/said") == 1 && $(grep -vc '^Stand-in GPU' "$work/said") == 1 ]] ||
    fail "${*:3}: more than one line"
  [[ ! -e $work/out.json ]] || fail "${*:3}: left a file"
}
has() { grep -qE -- "$2" "$work/$1" || fail "$1: no '$2'"; }

expect 0 "as the sweep" "$program" digests --sweeps "$sweeps" --reduced --out "$work/digests.json"
[[ $(grep -c 'as the sweep$' "$work/said") == 6 ]] || fail "digests"
has digests.json '"schema": "outgrad.gpu_digests/1".*"complete": true'
mkdir "$work/other"
cp "$sweeps"/gelu_{f32,f16,bf16}.json "$work/other"
sed -i '0,/"dx": "[0-9a-f]*"/s//"dx": "00"/' "$work/other/gelu_bf16.json"
expect 1 "DIFFERS from 00" "$program" digests --sweeps "$work/other" --reduced
grep -q '^bf16 dx .* DIFFERS from 00$' "$work/said" || fail "names neither format nor array"
for damage in '{"domains": []}' '{' '[]'; do
  echo "$damage" >"$work/other/gelu_f16.json"
  refused 2 "gelu_f16.json: sha256" "$program" digests --sweeps "$work/other" --reduced --out "$work/out.json"
done
rm "$work/other/gelu_f16.json"
refused 2 "gelu_f16.json" "$program" digests --sweeps "$work/other" --out "$work/out.json"

expect 0 "equal" "$program" equality --reduced --out "$work/equality.json"
! grep -q 'device 0x\|differ' "$work/said" || fail "equality"
has equality.json '"complete": true'
for what in 'mish forward' 'elu forward' dropout; do
  for format in f32 f16 bf16; do has equality.json "\"what\": \"$what\", \"format\": \"$format\""; done
done
expect 0 "graph" "$program" streams --reduced --out "$work/streams.json"
has streams.json '"what": "layernorm 333 x 77, graph", "format": "f32"'
has streams.json '"what": "residual layernorm 333 x 77, graph", "format": "bf16"'

expect 0 "of the ceiling" "$program" time --reduced --budget 1 --out "$work/time.json"
has time.json '"schema": "outgrad.gpu_time/5".*"complete": true'
# Every row, with the bytes of an element for 4 and for 2 bytes of T, of a run over 2^12 elements: x, y, dy
# and dx are T, a mask is a bit, a code its bits, MXFP8 8 bits and those of a scale for 32. Norms have a
# vector of the rows and those of the columns beside their matrices.
rows() {
  python3 - "$work/time.json" << 'END'
import json, sys
columns = 1024
bits = {"code_2": 2, "code_2_dithered": 2, "code_4": 4, "code_8": 8, "e4m3_1": 9, "e4m3_2": 10}
want = {}
for format, size in (("f32", 4), ("f16", 2), ("bf16", 2)):
    row = {"copy": 2 * size, "scale": 2 * size, "dropout": 2 * size, "encode_gradients_4": size + 4 / 8,
           "gelu_backward": 3 * size + 1 / 8,
           "bias_gelu_forward": 2 * size + 1 / 8, "bias_gelu_backward": 3 * size + 1 / 8,
           "gelu_forward_mxfp8": size + 1 + 1 / 32 + 1 / 8,
           "gelu_backward_mxfp8": 2 * size + 1 + 1 / 32 + 1 / 8,
           "softmax_forward_code": 2 * size + 1, "softmax_backward_code": 2 * size + 1,
           "gated_silu_forward": 3 * size, "gated_silu_backward": 5 * size}
    for store, kept in (("e4m3", 1), ("mxfp8", 1 + 1 / 32)):
        row.update({"encode_" + store: size + kept, "decode_" + store: size + kept,
                    "gated_silu_forward_" + store: 3 * size + 2 * kept,
                    "gated_silu_backward_" + store: 3 * size + 2 * kept})
    for name in ("gelu", "gelu_tanh", "quick_gelu", "silu", "swish", "mish"):
        row[name + "_forward"] = 2 * size + 1 / 8
    for name in ("tanh", "sigmoid", "softplus", "elu"):
        row[name + "_forward"] = 2 * size
    for store, kept in bits.items():
        row["gelu_forward_" + store] = (2 if "code" in store else 1) * size + kept / 8
        row["gelu_backward_" + store] = 2 * size + kept / 8
    if size == 2:
        row.update(gelu_forward_parity=2 * size, gelu_backward_parity=3 * size,
                   gated_silu_forward_output=4 * size + 1 / 8, gated_silu_backward_output=5 * size + 1 / 8)
    want.update({(name, format, 1): bytes * 4096 for name, bytes in row.items()})
    for norm, vectors in (("layernorm", 2), ("rmsnorm", 1)):
        for name, matrices, sums in (("forward", 2, 0), ("backward", 3, 1)):
            for residual in (0, 1):
                of_rows = 4 * 4
                key = ("residual_" * residual + norm + "_" + name, format, 4)
                moved = (4 if residual else matrices) * size * 4 * columns
                want[key] = moved + of_rows + (1 + sums) * vectors * 4 * columns
    want.update({(name, format, 4): 2 * size * 4 * columns for name in ("copy", "scale")})
got = {(row["name"], row["format"], row["rows"]): row["bytes"]
       for row in json.load(open(sys.argv[1]))["timings"] if row["columns"] in (4096, columns)}
for key in sorted(want.keys() | got.keys()):
    if want.get(key) != got.get(key):
        print(key, "bytes:", got.get(key), "expected:", want.get(key))
END
}
[[ -z $(rows) ]] || fail "$(rows)"
expect 0 "0 answered wrongly" "$program" arguments

refused 2 "expected 'equality'" "$program"
refused 2 "expected 'equality'" "$program" bench
refused 2 "unknown option" "$program" equality --budget 5 --out "$work/out.json"
refused 2 "no value" "$program" streams --out
refused 2 "--sweeps: is missing" "$program" digests
for budget in 0 -1 x 100000 ''; do
  refused 2 "--budget: '$budget' is not" "$program" time --budget "$budget" --out "$work/out.json"
done
planted() { refused 3 "$2" env "OUTGRAD_STAND_IN_RUNTIME=$1" "$program" time --out "$work/out.json"; }
planted cudaGetDeviceCount:35 "the driver is of CUDA 12.4, too old for this program's toolkit, 13.0"
planted cudaGetDeviceCount:100 "no CUDA device"
planted cudaSetDevice:46 "the device is busy"
planted cudaMalloc:2 "out of memory"
planted launch:209 "architecture that this program was not built for"
refused 3 "times of a part of a device" env OUTGRAD_STAND_IN_NAME="Stand-in GPU MIG 1g.10gb" "$program" time \
  --out "$work/out.json"
refused 2 "Not a directory" "$program" equality --reduced --out "$program/out.json"
