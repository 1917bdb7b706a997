#!/usr/bin/env bash
# The outputs of `eval` over every 16-bit pattern have the SHA-256 that the committed sweeps have, by a program that shares nothing with the sweep but the
# order of the patterns; and what it refuses. usage: sweep_digests_test.sh REPOSITORY BUILD
set -euo pipefail
root=$1 build=$2
for python in python3 /usr/bin/python3 ''; do
  [[ -n $python ]] || { echo "no numpy (Debian: python3-numpy)"; exit 77; }
  ! "$python" -c 'import numpy' 2>/dev/null || break
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  echo "FAILED: $*"
  exit 1
}
digests() {
  "$python" "$root/autotune/gpu/sweep_digests.py" "$build/outgrad-tune" "$1" --device cpu --formats "${2:-bf16,f16}" --folder "$work"
}

digests "$root/notebooks_data/sweeps" >"$work/said" 2>&1 || fail "$(<"$work/said")"
[[ $(grep -c 'as the sweep$' "$work/said") == 6 ]] || fail "$(<"$work/said")"

cp "$root"/notebooks_data/sweeps/gelu_bf16.json "$work"
sed -i '0,/"dx": "[0-9a-f]*"/s//"dx": "00"/' "$work/gelu_bf16.json"
status=0
digests "$work" bf16 >"$work/said" 2>&1 || status=$?
((status == 1)) || fail "another digest: status $status"
grep -q '^bf16 dx .* DIFFERS from 00$' "$work/said" || fail "$(<"$work/said")"
refused() {  # refused WHAT COMMAND...: one line and status 2
  local what=$1 status=0
  shift
  "$@" >"$work/said" 2>&1 || status=$?
  ((status == 2)) && [[ $(wc -l <"$work/said") == 1 ]] || fail "$what: status $status: $(<"$work/said")"
}
for damage in '{"domains": []}' '{' '[]'; do
  echo "$damage" >"$work/gelu_bf16.json"
  refused "$damage" digests "$work" bf16
done
refused "an unknown format" digests "$work" f99
script=$root/autotune/gpu/sweep_digests.py sweeps=$root/notebooks_data/sweeps
refused "no folder of sweeps" "$python" "$script" "$build/outgrad-tune"
refused "an unknown option" "$python" "$script" "$build/outgrad-tune" "$sweeps" --devices cpu
refused "no executable" "$python" "$script" "$work/outgrad-tune" "$sweeps" --device cpu
refused "no scratch folder" "$python" "$script" "$build/outgrad-tune" "$sweeps" --device cpu --folder "$work/absent"
echo "y, mask and dx of both formats as swept"
