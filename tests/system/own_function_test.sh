#!/usr/bin/env bash
# A user's own function through the whole chain: fit, emit, check, and dx of raw arrays by the freshly emitted
# header, for every finite bf16 x of its domain; and functions that cannot be served are refused with the
# interval and the reason. own_functions_test.sh has more of them.
# usage: own_function_test.sh REPOSITORY BUILD
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

says() {  # says LINE COMMAND...: the command's last line
  local said
  said=$("$root/outgrad" "${@:2}") || fail "$2: status $?"
  [[ ${said##*$'\n'} == "$1" ]] || fail "$2 ends with: ${said##*$'\n'}"
}
says "written: fit.json; next: ./outgrad emit fit.json" fit "$spec" --out fit.json
says "written: own.h; next: ./outgrad check own.h" emit fit.json --out own.h
# The banner's command, as it stands there, makes the header again, and names no folder of this machine.
[[ $(sed -n 2p own.h) == "// command: ./outgrad emit fit.json" ]] || fail "the banner: $(sed -n 2p own.h)"
mkdir mine && cp fit.json mine/
"$root/outgrad" emit "$work/mine/fit.json" --out again.h >/dev/null && cmp own.h again.h ||
  fail "another folder gives another header"
"$root/outgrad" check own.h >check.txt || fail "check: status $?: $(cat check.txt)"
for bound in A K B T O R; do
  grep -q "own.h: $bound holds" check.txt || fail "check proves no $bound: $(cat check.txt)"
done

# For each bf16 x with |x| <= 64: y = f(x) correctly rounded, the mask, a dy that is a power of two, and
# f'(x), by tanh(log(1 + e)) = n/(n + 2), n = e (e + 2), e = exp(x). Bytes as octal escapes: not every awk
# prints a zero byte.
LC_ALL=C awk '
  function value(bits,  e, f) {
    e = int(bits / 128) % 256; f = bits % 128
    return (bits >= 32768 ? -1 : 1) * (e == 0 ? f * 2 ^ -133 : (128 + f) * 2 ^ (e - 134))
  }
  # to nearest, ties to even; subnormals have the exponent of the least normal number
  function bf16(v, negative,  a, e, q) {
    a = v < 0 ? -v : v; e = -126
    while (a >= 2 ^ (e + 1)) e++
    q = int(a / 2 ^ (e - 7)); a = a / 2 ^ (e - 7) - q
    if (a > 0.5 || (a == 0.5 && q % 2 == 1)) q++
    # a carry into the exponent is the next binade; q < 128 is subnormal
    return (negative ? 32768 : 0) + (e + 126) * 128 + q
  }
  function half(bits) { return sprintf("\\%04o\\%04o", bits % 256, int(bits / 256)) }
  function store(word) { printf "%s%s", half(word % 65536), half(int(word / 65536)) >"mask.txt" }
  BEGIN {
    split("1 -2 0.5 -0.25", scale, " ")
    for (bits = 0; bits < 65536; bits++) {
      x = value(bits)
      if (x < -64 || x > 64) continue
      e = exp(x); n = e * (e + 2); m = x >= -1.1924312145154952
      dy = scale[count % 4 + 1]
      printf "%s", half(bf16(x * n / (n + 2), bits >= 32768)) >"y.txt"
      printf "%s", half(bf16(dy, dy < 0)) >"dy.txt"
      printf "%.17g %.17g %.17g\n", x, dy, n / (n + 2) + x * 4 * e * (e + 1) / (n + 2) ^ 2 >"expected.txt"
      word += m * 2 ^ (count % 32)
      if (++count % 32 == 0) { store(word); word = 0 }
    }
    if (count % 32) store(word)
  }'
for array in y dy mask; do printf '%b' "$(<$array.txt)" >$array.bin; done
elements=$(wc -l <expected.txt)
# +-: 134 binades from 2^-126 below 64 with 64 itself, 127 subnormals, 0; exhaustive means counted.
((elements == 2 * (132 * 128 + 1 + 127 + 1))) || fail "$elements values of x"
(($(wc -c <y.bin) == 2 * elements && $(wc -c <dy.bin) == 2 * elements)) ||
  fail "the arrays have $(wc -c <y.bin) and $(wc -c <dy.bin) bytes"

"$root/outgrad" eval --op backward --header own.h --dy dy.bin --y y.bin --mask mask.bin --dx dx.bin \
  >/dev/null || fail "eval: status $?"
total=$(LC_ALL=C printf '%.17g' "$(sed -n 's/.* kT = \(0x[^;]*\);.*/\1/p' own.h)")
# dx = RN(dy g): |dx/dy - f'(x)| <= T + 2^-9 |g|, half a unit in the last of bf16's eight bits.
od -An -v -w2 -tu2 dx.bin | LC_ALL=C paste -d' ' - expected.txt | LC_ALL=C awk -v total="$total" '
  {
    e = int($1 / 128) % 256; f = $1 % 128
    g = ($1 >= 32768 ? -1 : 1) * (e == 0 ? f * 2 ^ -133 : (128 + f) * 2 ^ (e - 134)) / $3
    error = g - $4; if (error < 0) error = -error
    if (e == 255 || error > total + 2 ^ -9 * (g < 0 ? -g : g) + 2 ^ -133) {
      bad++
      if (bad < 4) print "x = " $2 ", dy = " $3 ": dx/dy = " g ", f(x)'"'"' = " $4
    }
    if (error > worst) { worst = error; at = $2 }
  }
  END {
    printf "%d values of x; largest |dx/dy - f(x)'"'"'| %.6f at x = %s, ", NR, worst, at
    printf "T <= %.6f and the rounding of dx\n", total
    exit bad > 0 || NR == 0
  }
' || fail "dx is not dy f'(x)"
[[ $(wc -c <dx.bin) == $((2 * elements)) ]] || fail "dx has $(wc -c <dx.bin) bytes"

# All of f rounds to 20, whose range of gradients is (0, 1]: no answer errs by less than 1/2. The fitter has
# the second witness prove that.
echo '{"schema": "outgrad.spec/2", "name": "lifted", "kind": "backward", "expression": "tanh(x)+20",
  "format": "e4m3", "target": "oracle", "entries": "f16"}' >lifted.spec.json
"$root/outgrad" fit lifted.spec.json --out lifted.json >lifted.txt 2>&1 ||
  fail "fit of one number: status $?: $(<lifted.txt)"
grep -q '^lifted: T 0.5, O 0.5, ' lifted.txt || fail "fit of one number: $(<lifted.txt)"

# What the second witness does not accept is neither printed nor written; one that is missing is named.
mkdir alone
cp "$2/outgrad-fit" alone/
# witness STATUS REASON: fits beside a witness that says what is in alone/outgrad-check, if it is there
witness() {
  local code=0
  alone/outgrad-fit fit lifted.spec.json --out unproven.json >stdout 2>stderr </dev/null || code=$?
  ((code == $1)) || fail "a witness that says $2: status $code"
  [[ $(wc -l <stderr) == 1 && $(<stderr) == "outgrad: "*"$2"* ]] || fail "a witness that says $2: $(<stderr)"
  [[ ! -s stdout && ! -e unproven.json ]] || fail "a witness that says $2: the fit was printed or written"
}
witness 3 'alone/outgrad-check cannot be started'
cat >alone/outgrad-check <<'END'
#!/bin/sh
echo "$2: T holds: proven"
echo "$2: R violated: R = 2 at y = 20"
exit 1
END
chmod +x alone/outgrad-check
witness 1 \
  'lifted: the second witness does not confirm the fit, and nothing is written: R violated: R = 2 at y = 20'
printf '%s\n' '#!/bin/sh' 'echo "outgrad: out of memory" >&2; exit 3' >alone/outgrad-check
witness 3 'out of memory'
alone/outgrad-fit fit lifted.spec.json --no-check --out unproven.json >/dev/null ||
  fail "fit without a witness: status $?"
[[ -s unproven.json ]] || fail "fit without a witness wrote nothing"

refuses() {  # refuses EXPRESSION REASON: status 2, one line with the interval and the reason, no file
  local code=0
  sed "s|\"expression\": \"[^\"]*\"|\"expression\": \"$1\"|" "$spec" >refused.json
  grep -qF "\"$1\"" refused.json || fail "$1: not in the specification"
  "$root/outgrad" fit refused.json --out refused.out >stdout 2>stderr </dev/null || code=$?
  ((code == 2)) || fail "$1: status $code"
  [[ $(wc -l <stderr) == 1 ]] || fail "$1: stderr is not one line: $(<stderr)"
  [[ $(<stderr) =~ ^outgrad:\ .*\[-?[0-9.e+-]+,\ -?[0-9.e+-]+\]:\ (.*)$ && ${BASH_REMATCH[1]} == "$2"* ]] ||
    fail "$1: $(<stderr)"
  [[ ! -s stdout ]] || fail "$1: stdout says $(head -c 200 stdout)"
  [[ -z $(find . -name 'refused.out*') ]] || fail "$1: left $(find . -name 'refused.out*')"
}

refuses 'sin(x)' 'several stationary points: a maximum in ['
refuses '1/x' 'a pole: '
refuses '-softplus(-x)' "f' is 1 on the left and 0 on the right; fit its mirror image, \
\"expression\": \"-(-softplus(-(-x)))\", and store -f(x) in place of f(x)"
refuses 'abs(x)' 'a kink: '

# What is refused names a key and a value that works.
says() {  # says WHAT SPECIFICATION: status 2 and this line
  local code=0
  echo "$2" >refused.json
  "$root/outgrad" fit refused.json --out refused.out >stdout 2>stderr </dev/null || code=$?
  [[ "$code: $(<stderr)" == "2: outgrad: refused.json: $1" ]] || fail "status $code, not '$1': $(<stderr)"
}
head='"schema": "outgrad.spec/2", "kind": "backward", "format": "bf16"'
says "name: 'table' gives the type Table, which every header uses" \
  "{$head, \"name\": \"table\", \"expression\": \"softplus(x)\", \"target\": \"abs:2^-8\"}"
try='try "degree": 2, "cells": 16 without "left_segment"'
says "left_segment.edge_log2: -2^-3 is not above the minimum -0.0850; -4 is; $try" \
  "{$head, "'"name": "t", "expression": "x*normal_cdf(2*x)", "target": "abs:2^-8", "degree": 3, "cells": 12,
  "left_segment": {"edge_log2": -3, "half_octaves": 0, "merge_log2": -6}}'
# check, too, says which names do not compile.
sed -e 's/"own_function"/"table"/' -e 's/struct OwnFunction/struct Table/' own.h >named.h
code=0
"$root/outgrad" check named.h >named.txt 2>&1 || code=$?
[[ "$code: $(<named.txt)" == "2: "*'a struct Table hides what the header itself uses' ]] ||
  fail "check takes the name table: status $code: $(<named.txt)"

echo "own function: $failures failures"
exit $((failures > 0))
