#!/usr/bin/env bash
# `fit` of a function and a format, without a specification: it chooses the rest, has its fit proven, and
# writes what the page says. The functions are in own_expressions.txt; with "all" those of the nightly run,
# too. Then its picture, its page, the sweep of its header and its front.
# usage: own_expressions_test.sh REPOSITORY BUILD [all]
set -euo pipefail
root=$1
# a compiler cache may have made the built-in path relative
export OUTGRAD_BUILD_DIR=$2 OUTGRAD_SOURCE_DIR=$root
[[ -x $2/outgrad-fit ]] || { echo "skipped: this build has no fitter"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
failures=0 fitted=0 refused=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# The bound that a header claims, as a decimal.
claim() { LC_ALL=C printf '%.17g' "$(sed -n "s/.* $1 = \(0x[^;]*\);.*/\1/p" own.h)"; }

serves() {  # serves FORMAT FUNCTION
  local format=$1 function=$2 how=--expression t printed
  [[ ! $function =~ ^[a-z_]+$ ]] || how=--activation
  rm -f own.*
  if ! "$root/outgrad" fit "$how" "$function" --format "$format" --out own.json >said 2>&1; then
    fail "$function in $format: $(<said)"
    return 0
  fi
  fitted=$((fitted + 1))
  [[ -s own.json && -s own.spec.json && -s own.h ]] || fail "$function in $format: a file is missing"
  # A header of f32 does not state T, which check cannot prove then.
  local proven='by the fitter, and again by check'
  [[ $format != f32 ]] || ! grep -q '^  T, ' said ||
    proven='A, B and K by the fitter, and again by check; T and O by the fitter'
  grep -q "^  proven *$proven\$" said || fail "$function in $format: $(<said)"
  # What is printed of T is the header's claim, rounded up in the fourth digit.
  if [[ $format != f32 ]]; then
    t=$(claim kT) printed=$(sed -n "s/^  T, .* at most \([^ ]*\) .*/\1/p" said)
    LC_ALL=C awk -v t="$t" -v p="$printed" 'BEGIN { exit !(p >= t && p <= t * 1.0011) }' ||
      fail "$function in $format: T is $t, and '$printed' is printed"
    # What the kernel adds holds K, which the minimum costs.
    if grep -q ' kK = ' own.h; then
      printed=$(sed -n 's/^  A + B + K, kernel *at most \([^ ]*\) .*/\1/p' said)
      LC_ALL=C awk -v k="$(claim kK)" -v p="${printed:-0}" 'BEGIN { exit !(p > k) }' ||
        fail "$function in $format: K is $(claim kK), and A + B + K '$printed'"
    fi
    LC_ALL=C awk -F 'T/O ' '/T\/O/ { exit !($2 < 2) }' said || fail "$function in $format: $(<said)"
  fi
}

refuses() {  # refuses FORMAT FUNCTION REASON
  local code=0
  "$root/outgrad" fit --expression "$2" --format "$1" --out no.json >said 2>stderr </dev/null || code=$?
  [[ $code == 2 && ! -s said && $(wc -l <stderr) == 1 && $(<stderr) == outgrad:*"$3"* ]] ||
    fail "$2: status $code: $(cat said stderr)"
  [[ -z $(find . -name 'no.*') ]] || fail "$2: left $(find . -name 'no.*')"
  refused=$((refused + 1))
}

while read -r when format function reason; do
  case $when in
    day) serves "$format" "$function" ;;
    night) [[ ${3:-} != all ]] || serves "$format" "$function" ;;
    refused) refuses "$format" "$function" "$reason" ;;
    late) [[ ${3:-} != all ]] || refuses "$format" "$function" "$reason" ;;
  esac
done <"$root/tests/system/own_expressions.txt"
((fitted == $([[ ${3:-} == all ]] && echo 41 || echo 2))) || fail "$fitted functions were fitted"
((refused == $([[ ${3:-} == all ]] && echo 14 || echo 13))) || fail "$refused functions were refused"

# Where f exceeds the format, the worst input is the infinity that is stored there: in words, in a header that
# check accepts, and on the page.
"$root/outgrad" fit --expression '1e5*sigmoid(x)' --format f16 --out own.json >said 2>&1 &&
  grep -q '^  worst input  *y = inf: what f16 stores for f(x) from 65520 on$' said &&
  grep -q ' kT = .*; found 2^14.46 at y = inf$' own.h ||
  fail "an infinity is no worst input: $(cat said; grep found own.h)"
{ "$root/outgrad" report --header own.h --out page && grep -q 'y = inf' page/index.html; } >said 2>&1 ||
  fail "a page of an infinity: $(<said)"
# Neither B's input nor an x may be one.
for bound in kB kA; do
  sed "/ $bound = /s/ at \\([xy]\\) = .*/ at \\1 = inf/" own.h >changed.h
  ! "$root/outgrad" check changed.h >said 2>&1 || fail "an infinite input of $bound is accepted: $(<said)"
done

# The specification that it leaves gives the same fit; its name is that of the function.
"$root/outgrad" fit --expression 'tanh(0.8*x)' --format bf16 >said || fail "a name of its own: status $?"
"$root/outgrad" fit out/own/own_tanh_0_8_x_bf16.spec.json --no-check --out again.json >/dev/null &&
  cmp again.json out/own/own_tanh_0_8_x_bf16.json || fail "its specification gives another fit: $(<said)"
# No two functions share a name, which the default of --out is made of.
for function in x*sigmoid\({1.2,1.3}*x\); do
  "$root/outgrad" pareto --expression "$function" --format e4m3 >said || fail "a front: status $?"
done
for beta in 2 3; do
  "$root/outgrad" pareto --activation swish --beta $beta --format e4m3 >said || fail "a front: status $?"
done
for end in 1.2 1.3; do
  "$root/outgrad" fit --expression "tanh(x+0*x+0*x+0*x+0*x+0*x+0*x+0*x+0*x+x*$end)" --format e4m3 --no-check \
    >said || fail "a long name: status $?"
done
files=$(cd out && echo pareto/* own/*_e4m3.json)
((4 + 2 == $(wc -w <<<"$files"))) || fail "functions share names: $files"
# A target is kept, or refused; an 8-bit format has a table.
if [[ ${3:-} == all ]]; then
  "$root/outgrad" fit --expression 'tanh(x)' --format e4m3 --name own --out own.json >said ||
    fail "e4m3: status $?"
  grep -q 'T/O 1.0000' said || fail "a table of e4m3: $(<said)"
  "$root/outgrad" fit --activation elu --format bf16 --error 0.002 --out own.json >said ||
    fail "an error: status $?"
  grep -q '"class": "abs:2^-8.966"' own.json || fail "an error of 0.002 is $(grep '"class"' own.json)"
fi
for wrong in "--error 2^9" "--error x" "--error 2^-9 --oracle" "--name table" "--format f64"; do
  # shellcheck disable=SC2086  # options and values
  if "$root/outgrad" fit --expression 'tanh(x)' $([[ $wrong == *--format* ]] || echo "--format bf16") $wrong \
    --out no.json >said 2>stderr; then
    fail "$wrong is taken"
  fi
  [[ $(wc -l <stderr) == 1 && ! -e no.json ]] || fail "$wrong: $(<stderr)"
done

own=out/own/own_tanh_0_8_x_bf16
for from in h json; do
  "$root/outgrad" plot $own.$from --out $from.svg >said 2>&1 || fail "plot of $from: $(<said)"
done
if [[ $(<said) != *"matplotlib"* ]]; then
  cmp h.svg json.svg || fail "the pictures of header and fit differ"
  for words in 'the error over y' 'what the stored y next to the worst stand for' 'a row begins|g</text>'; do
    grep -qE "$words" h.svg || fail "the picture has no '$words'"
  done
  "$root/outgrad" report --header $own.h --out page >said 2>&1 || fail "report --header: $(<said)"
  t=$(sed -n 's/.*T <= \([0-9.]*\) .*/\1/p' said)
  [[ -n $t ]] && grep -q "T &lt;= $t" page/index.html || fail "the page does not open with T = $t"
  grep -q 'Taylor models' page/index.html || fail "the page does not say who proves what"
  # Of f32 a page opens with all of the kernel's error, K with it, and in the class rel says what A is of.
  for of in 'gelu_f32: every claim holds; A + B + K <= ' 'tanh_f32: every claim holds; A + B <= ' \
    'gelu_f32_rel: every claim holds; A, relative to g <= '; do
    "$root/outgrad" report --header "$root/kernels/generated/${of%%:*}.h" --out page >said 2>&1
    [[ $(<said) == "$of"* ]] || fail "report of ${of%%:*}: $(<said)"
    of=${of#*; }
    grep -qF "${of% <=*} &lt;= " page/index.html || fail "the page of f32 does not open with ${of% <=*}"
  done
  "$root/outgrad" report --header out/own >said 2>&1 || fail "report of a folder: $(<said)"
  [[ -s out/own/report/index.html ]] || fail "report of a folder wrote no page"
fi
mkdir twice && cp $own.h twice/a.h && cp $own.h twice/b.h
if "$root/outgrad" report --header twice >said 2>stderr || [[ $? != 2 ]]; then
  fail "a report of two headers of one struct"
fi
[[ $(<stderr) == *'twice/b.h: struct: twice/a.h has a struct of this name, too' && ! -e twice/report ]] ||
  fail "two headers of one struct: $(cat said stderr)"
"$root/outgrad" validate --header $own.h >said || fail "validate --header: $(<said)"
grep -q 'all 34050 x' said || fail "validate --header counts $(head -n 1 said)"
mesa=$root/notebooks_data/foreign/mesa_gelu.json
"$root/outgrad" front --header $own.h --foreign "$mesa" --out front.json >said ||
  fail "front --header: $(<said)"
grep -q '^| bf16 y | 0 | 16 | ' said || fail "front --header: $(<said)"

echo "own expressions: $fitted fitted, $refused refused, $failures failures"
exit $((failures > 0))
