#!/usr/bin/env bash
# Users' own functions of many kinds, each fitted, emitted and proven again: a slow tail, codes, functions
# that rise, a left segment.
# usage: own_functions_test.sh REPOSITORY BUILD
set -euo pipefail
root=$1
# a compiler cache may have made the built-in path relative
export OUTGRAD_BUILD_DIR=$2 OUTGRAD_SOURCE_DIR=$root
[[ -x $2/outgrad-fit ]] || { echo "skipped: this build has no fitter"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
spec=$root/tests/system/own_function.json
cd "$work"
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# A finding of the gate: at x = -64 the f' of this one is still -1.5e-18, which is not 0, and a true header
# was refused.
echo '{"schema": "outgrad.spec/2", "name": "slow", "kind": "backward", "expression": "x*sigmoid(0.7*x)",
  "format": "bf16", "target": "abs:2^-8", "degree": 3, "cells": 16}' >slow.spec.json
"$root/outgrad" fit slow.spec.json --out slow.json >/dev/null || fail "fit of a slow tail: status $?"
"$root/outgrad" emit slow.json --out slow.h >/dev/null || fail "emit of a slow tail: status $?"
"$root/outgrad" check slow.h >slow.txt || fail "check of a slow tail: status $?: $(cat slow.txt)"

# Codes of the same function, whose f'(x) the caller computes: its promise is named, everything else is proven
# again.
sed -e '/"format"/,/"cells"/d' -e 's/"backward"/"code"/' -e 's/own_function/own_code/' "$spec" |
  sed -e '/"left_segment"/d' -e 's/"storage".*/"target": "abs:2^-20"/' >code.spec.json
"$root/outgrad" fit code.spec.json --out code.json >/dev/null || fail "fit of codes: status $?"
"$root/outgrad" emit code.json --out code.h >/dev/null || fail "emit of codes: status $?"
"$root/outgrad" check code.h >code.txt || fail "check of codes: status $?: $(cat code.txt)"
for bound in range given T1 T4 T8 'dithered 2' 'dithered 3' bias; do
  grep -q "code.h: $bound holds" code.txt || fail "check proves no $bound of codes: $(cat code.txt)"
done
# T4, the range, the promise, the limit of x, the name: a header with any of them changed is refused.
for change in 's/kT4 = 0x1.3/kT4 = 0x1.2/' 's/kHi = 0x1.1/kHi = 0x1.0/' 's/kG = 0x1p-20/kG = 0x1p-12/' \
  '/kXLimit/d' 's/expression/mish/'; do
  sed -e "$change" code.h >changed.h
  cmp -s code.h changed.h && fail "$change changes nothing in: $(cat code.h)"
  code=0
  "$root/outgrad" check changed.h >changed.txt 2>&1 || code=$?
  ((code == 1 || code == 2)) || fail "check takes a header of codes after $change: $(cat changed.txt)"
done

# Functions that rise, each by a layout that is found, and by the cells of a specification where their range
# is as long on both sides of 0.
serves() {  # serves EXPRESSION FORMAT TARGET REST
  local head='"schema": "outgrad.spec/2", "name": "rising", "kind": "backward"'
  echo "{$head, \"expression\": \"$1\", \"format\": \"$2\", \"target\": \"$3\"$4}" >rising.spec.json
  { "$root/outgrad" fit rising.spec.json --out rising.json &&
    "$root/outgrad" emit rising.json --out rising.h && "$root/outgrad" check rising.h; } >rising.txt 2>&1 ||
    fail "$1 in $2, $3$4: $(grep -vE ' holds' rising.txt | head -n 3)"
}
serves 'tanh(x)' bf16 abs:2^-6 ', "degree": 3, "cells": 16'
serves 'tanh(0.8*x)' f16 abs:2^-10 ', "degree": 3, "cells": 8'
serves 'erf(x)' bf16 abs:2^-6 ', "degree": 3, "cells": 32'
serves 'tanh(0.8*x)' bf16 abs:2^-8 ''
serves 'erf(x)' f32 abs:2^-12 ''
serves 'log(1+exp(x))' bf16 abs:2^-8 ''
serves 'log(1+exp(x))' f16 abs:2^-10 ''
serves 'x/sqrt(1+x*x)' bf16 abs:2^-7 ''
serves 'x/sqrt(1+x*x)' f32 abs:2^-10 ''
serves '-(-softplus(-(-x)))' bf16 abs:2^-8 ''
# And one with a minimum, whose left segment is found.
serves 'x*normal_cdf(2*x)' bf16 abs:2^-7 ''

# A fit whose rows have no centres, those of a left segment included: what it claims holds.
cat >plain.json <<'END'
{"schema": "outgrad.spec/2", "name": "gelu_f16_plain", "kind": "backward", "activation": "gelu",
 "format": "f16", "target": "abs:2^-12", "degree": 4, "cells": 11, "centred": false,
 "left_segment": {"edge_log2": -3, "half_octaves": 0, "merge_log2": -7},
 "storage": {"ratio": 1.1, "regret": "2^-10"}}
END
{ "$root/outgrad" fit plain.json --out plain.fit && "$root/outgrad" emit plain.fit --out plain.h &&
  "$root/outgrad" check plain.h; } >plain.log 2>&1 ||
  fail "a left segment without centres: $(grep -E 'violated|outgrad:' plain.log)"

echo "own functions: $failures failures"
exit $((failures > 0))
