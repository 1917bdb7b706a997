#!/usr/bin/env bash
# `run` redoes what changed and nothing else, passes exit statuses on, and touches committed files only with
# --publish.
# usage: chain_test.sh REPOSITORY
set -euo pipefail
# shellcheck source=tests/system/sandbox.sh
source "$1/tests/system/sandbox.sh"
make_sandbox "$1"

calls_of() {  # calls_of ARGUMENT...: what a run calls
  : >"$STAND_IN_LOG"
  "$sandbox/outgrad" run "$@" >"$sandbox/build/stdout" 2>"$sandbox/build/stderr" || fail "run $*: status $?"
  xargs <"$STAND_IN_LOG"
}

expect() {  # expect WHAT EXPECTED FOUND
  [[ $2 == "$3" ]] || fail "$1: expected '$2', found '$3'"
}

everything=$(calls_of)
# Each stage says which of how many it is, and ends with what it came to and the files that it wrote.
mapfile -t stages < <(sed -nE 's/^stage +([0-9]+) of ([0-9]+): .*, about [0-9]+:[0-9]{2} left$/\1 \2/p' \
  "$sandbox/build/stdout")
expect "numbers of stages" "$(seq -f "%g ${#stages[@]}" "${#stages[@]}")" "$(printf '%s\n' "${stages[@]}")"
while read -r file; do
  grep -q "^  *$sandbox/out/$file$" "$sandbox/build/stdout" || fail "no stage says that it wrote $file"
done < <(cd "$sandbox/out" && find fits sweeps stability tuned report -type f -not -name inputs.sha256)
expect "the last line" 1 "$(tail -n 1 "$sandbox/build/stdout" |
  grep -c "s: every bound that was measured holds; $sandbox/out/report/index.html$")"
expect "unchanged" "" "$(calls_of)"
touch "$sandbox"/approx/specs/*.json
expect "new file times, old content" "" "$(calls_of)"
echo '{"name": "gelu_f16", "degree": 5}' >"$sandbox/approx/specs/gelu_f16.json"
expect "a changed spec with an unchanged fit" "fit gelu_f16.json" "$(calls_of)"
echo '// changed' >>"$sandbox/kernels/eval.h"
# the other executables are compiled: their own bytes would change
expect "a changed kernel" "tune --device" "$(calls_of)"
echo '# changed' >>"$sandbox/build/outgrad-check"
expect "a changed checker" \
  "check gelu_bf16.h validate f32 validate f16 validate bf16 stability f32 stability f16 stability bf16 \
report --in" "$(calls_of)"
echo '/* changed */' >>"$sandbox/validation/report/page.css"
expect "another look of the page" "report --in" "$(calls_of)"
rm "$sandbox/out/report/report.md"
expect "a missing output" "report --in" "$(calls_of)"
mkdir "$sandbox/out/front"
echo '{}' >"$sandbox/out/front/gelu.json"
expect "a result of another command that the report shows" "report --in" "$(calls_of)"
rm -r "$sandbox/out/front"
expect "without that result" "report --in" "$(calls_of)"
echo damaged >"$sandbox/out/run/check.log"
expect "a log whose verdict is shown" "check gelu_bf16.h" "$(calls_of)"
for seconds in '' 'a b' 09; do
  echo "$seconds" | tee "$sandbox/out/run/stability-model_f32.seconds" >"$sandbox/out/run/report.seconds"
  echo '{}' >"$sandbox/out/stability/model_f32.json"
  expect "a time that is none" "stability f32" "$(calls_of)"
  expect "the time left beside one" 1 "$(grep -c 'f32, about 0:[0-9][0-9] left$' "$sandbox/build/stdout")"
done
expect "--fresh" "$everything" "$(OMP_NUM_THREADS=1 calls_of --fresh)"
[[ "$(calls_of --fresh --format bf16)" != *f32* ]] || fail "--format bf16 ran another format"

for case in "check 1:1" "validate 1:1" "stability 1:1" "fit 2:2" "fit 137:3" "emit 2:2" "tune 3:3" \
  "report 2:2"; do
  code=0
  STAND_IN_STATUS=${case%:*} "$sandbox/outgrad" run --fresh --publish >"$sandbox/build/stdout" 2>/dev/null ||
    code=$?
  expect "exit status of run when ${case%:*}" "${case#*:}" "$code"
  if ((code == 1)); then
    [[ -f $sandbox/out/report/index.html ]] || fail "$case: no report shows the violation"
  fi
  expect "published although $case" "" "$(ls "$sandbox/kernels/generated")"
done
calls_of >/dev/null

# Two runs at once: the second says so and leaves the first alone.
rm -f "$STAND_IN_LOG.stopped"
STAND_IN_STOP="fit gelu_f32.json" "$sandbox/outgrad" run --fresh >/dev/null 2>&1 &
first=$!
until [[ -s $STAND_IN_LOG.stopped ]]; do sleep 0.02; done
code=0
"$sandbox/outgrad" run >/dev/null 2>&1 || code=$?
expect "a second run beside the first" 3 "$code"
kill -KILL "$first"
wait "$first" 2>/dev/null || true
expect "what a run that did not finish leaves" "True True" "$(python3 -c 'import json, sys
p = json.load(open(sys.argv[1]))
print(p["run"] == [], "sweeps/gelu_bf16.json" in p["pending"])' "$sandbox/out/provenance.json")"

# Committed files change with --publish alone.
cd "$sandbox"
git init -q . && git add . && git -c user.name=t -c user.email=t@t commit -qm t
calls_of >/dev/null
expect "git status after run" "" "$(git status --porcelain)"
calls_of --publish >/dev/null
expect "what --publish adds" "kernels/generated/ notebooks_data/fits/ notebooks_data/sweeps/" \
  "$(git status --porcelain | sed 's/^?? //' | xargs)"
cmp out/fits/gelu_f32.json notebooks_data/fits/gelu_f32.json ||
  fail "the published fit is not the one of this run"
expect "after --publish" "" "$(calls_of)"

# What is built is of this run's headers: those of other formats may be of coefficients that are gone.
emitted=out/generated/kernels/generated
says_other_headers() { grep -c '^the emitted headers differ' build/stdout || true; }
built_with() { ls out/run/include/kernels/generated 2>/dev/null | xargs; }
expect "headers that are the committed ones" "0:" "$(says_other_headers):$(built_with)"
echo '// changed' >>$emitted/gelu_f32.h
calls_of --format bf16 >/dev/null
expect "a stale header of another format" "0:" "$(says_other_headers):$(built_with)"
echo '// other' >>kernels/generated/gelu_bf16.h
calls_of --format bf16 >/dev/null
expect "a header of this run beside a stale one" "1:gelu_bf16.h" "$(says_other_headers):$(built_with)"
cmp out/run/include/kernels/generated/gelu_bf16.h $emitted/gelu_bf16.h || fail "another header is built with"
cp $emitted/gelu_bf16.h kernels/generated
calls_of >/dev/null
expect "the committed headers again" "0:" "$(says_other_headers):$(built_with)"

# What the report is told: which files are this run's, and of what date and commit the others are.
mkdir -p notebooks_data/attack notebooks_data/pareto
echo '{}' | tee notebooks_data/attack/norms.json >notebooks_data/pareto/gelu_bf16.json
git add . && GIT_COMMITTER_DATE=2001-02-03T04:05:06Z git -c user.name=t -c user.email=t@t commit -qm older
echo '{"a": 1}' >notebooks_data/pareto/gelu_bf16.json
calls_of --format bf16 >/dev/null
told() {  # told EXPRESSION: of the provenance p
  python3 -c 'import json, sys; p = json.load(open("out/provenance.json")); print(eval(sys.argv[1]))' "$1"
}
expect "files of this run" \
  "fits/gelu_bf16.json fits/gelu_forward.json generated/kernels/generated/gelu_bf16.h \
generated/kernels/generated/gelu_forward.h stability/model_bf16.json sweeps/gelu_bf16.json \
tuned/tune_cpu.jsonl" "$(told '" ".join(sorted(p["run"]))')"
expect "committed files" "attack/norms.json pareto/gelu_bf16.json" \
  "$(told '" ".join(sorted(p["committed"]))')"
expect "a committed file's date and commit" "2001-02-03 $(git rev-parse --short HEAD)" \
  "$(told '"{date} {commit}".format(**p["committed"]["attack/norms.json"])')"
expect "a file that was changed since" "$(git rev-parse --short HEAD), changed since" \
  "$(told 'p["committed"]["pareto/gelu_bf16.json"]["commit"]')"
expect "commit" "$(git rev-parse --short HEAD) with changes" "$(told 'p["commit"]')"
git add . && git -c user.name=t -c user.email=t@t commit -qm newer
expect "a page that names an older commit" "report --in" "$(calls_of --format bf16)"
expect "the commit is the same" "" "$(calls_of --format bf16)"
mkdir bin
printf '#!/bin/sh\necho "NVIDIA-SMI has failed because it could not communicate with the driver"\nexit 9\n' \
  >bin/nvidia-smi
chmod +x bin/nvidia-smi
PATH=$PWD/bin:$PATH calls_of --format bf16 >/dev/null
expect "no GPU of a broken driver" "" "$(told 'p["machine"]["gpu"]')"
rm -r bin
expect "cores" "$(nproc)" "$(told 'p["machine"]["cores"]')"
cmp notebooks_data/attack/norms.json out/committed/attack/norms.json ||
  fail "the committed file is not beside this run's"
[[ ! -e out/attack ]] || fail "a committed file stands among this run's"
rm -rf .git
calls_of --format bf16 >/dev/null
expect "without git" '{"date": "", "commit": ""}' "$(told 'json.dumps(p["committed"]["attack/norms.json"])')"

echo "chain: $failures failures"
exit $((failures > 0))
