#!/usr/bin/env bash
# Points of a front are variants that the tuner can choose: emitted, checked, tuned among, and run through the
# tuned header that comes out. The front of stores has those that bench times.
# usage: front_test.sh REPOSITORY BUILD
set -euo pipefail
root=$1
export OUTGRAD_BUILD_DIR=$2 OUTGRAD_SOURCE_DIR=$root
[[ -x $2/outgrad-fit ]] || { echo "skipped: this build has no fitter"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# Two points of the committed front: whatever it holds, the rest takes a minute.
awk '
  /^  \{/ { point = ""; keep = 0 }
  /^  \{/, /^  \}/ {
    point = point $0 "\n"
    if (/"name": "gelu_bf16_(stored_d2_8|d3_8l)"/) keep = 1
    if (/^  \}/ && keep) points[++n] = point
    next
  }
  /^ \]/ {
    for (i = 1; i <= n; i++) { sub(/,\n$/, "\n", points[i]); printf "%s%s", points[i], i < n ? "," : "" }
    n = 0
  }
  !n' \
  "$root/notebooks_data/pareto/gelu_bf16.json" >front.json
"$root/outgrad" emit front.json --out headers || fail "emit of a front: status $?"
[[ $(ls headers) == $'gelu_bf16_d3_8l.h\ngelu_bf16_stored_d2_8.h' ]] || fail "emitted: $(ls headers)"
"$root/outgrad" check headers/*.h >check.txt || fail "check: $(cat check.txt)"

# Seven: the default and every other fit in its schedule, four committed ones and the two.
"$root/outgrad" tune --kernel gelu_backward --format bf16 --headers headers --accuracy any --evaluations 7 \
  --elements 1048576 --budget 1000 --out tuned >/dev/null ||
  fail "tune: status $?"
for name in gelu_bf16_d3_8l gelu_bf16_stored_d2_8; do
  sha=$(sha256sum "headers/$name.h" | cut -d' ' -f1)
  # No -q: a reader that leaves early would fail the pipeline, for a finalist has two lines.
  grep "\"sha256\":\"$sha\"" tuned/tune_cpu.jsonl | grep '"state":"timed"' >/dev/null ||
    fail "$name was not timed"
  cmp -s "headers/$name.h" "tuned/fits/$name.h" || fail "$name is not kept beside the tuned header"
done

# Whichever won, the tuned header compiles; and with a point of the front in it too.
sed -e 's|^#include "kernels/generated/tuned_default.h"|&\n#include "fits/gelu_bf16_d3_8l.h"|' \
  -e 's|generated::GeluBf16[A-Za-z0-9]*;|generated::GeluBf16D38l;|' tuned/tuned_cpu.h >tuned/point.h
for header in tuned_cpu point; do
  echo '#include "kernels/host/api.h"
        using namespace outgrad::kernels;
        void run(const BF16* dy, const u32* m, BF16* dx) { gelu_backward<BF16>(dy, dy, m, dx, 1); }' >use.cpp
  ${CXX:-c++} -std=c++20 -fopenmp -march=native -fsyntax-only -I"$root" \
    -DOUTGRAD_TUNED_HEADER="\"$work/tuned/$header.h\"" use.cpp || fail "$header.h"
done
grep -q GeluBf16D38l tuned/point.h || fail "no point in $(cat tuned/point.h)"

# Every store of GELU that has a time, which a busy machine may not give it, is one of the front of stores.
"$root/outgrad" bench --stores --format bf16 --elements 4096 --rounds 9 --json >stores.json ||
  fail "bench --stores: status $?"
"$root/outgrad" front --speed stores.json --json --out stores.front.json >/dev/null ||
  fail "front --speed: status $?"
sed -i '/"layer": "layernorm"/,$d' stores.json
grep -q '"status": "too noisy"' stores.json ||
  [[ $(grep -c '"store":' stores.json) == $(grep -c '"speed":' stores.front.json) ]] ||
  fail "front --speed knows $(grep -c '"speed":' stores.front.json) of the stores"

# Refusals leave nothing behind.
sed 's|outgrad.pareto/2|outgrad.pareto/9|' front.json >newer.json
echo '{"schema": "outgrad.pareto/2", "points": [{"name": "no_spec"}]}' >pointless.json
sed 's|"target": "abs:[^"]*"|"target": "abs:2^-30"|' front.json >unreachable.json  # its second point
for bad in newer.json pointless.json unreachable.json; do
  code=0
  "$root/outgrad" emit "$bad" --out nothing 2>err || code=$?
  [[ $code == 2 && $(wc -l <err) == 1 ]] || fail "$bad: status $code: $(cat err)"
  [[ ! -e nothing ]] || fail "$bad: something was written"
done
if "$root/outgrad" tune --kernel gelu_backward --format f16 --headers headers --out other 2>err; then
  fail "headers of another format: accepted"
else [[ $? == 2 && $(wc -l <err) == 1 ]] || fail "headers of another format: $(cat err)"; fi

((failures == 0)) && echo "a front's points are tuned among"
exit "$((failures > 0))"
