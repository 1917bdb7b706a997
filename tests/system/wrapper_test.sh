#!/usr/bin/env bash
# The wrapper before anything is built: help, the version and completion at once, packages that are all there,
# a checkout that cannot be written, commands of its own that fail, and what the first build says. Stand-ins
# for apt-get, dpkg-query, cmake and ctest are on the PATH; a file of docs/help is what the program says, to
# the byte.
# usage: wrapper_test.sh REPOSITORY BUILD [--fix]
set -euo pipefail
root=$1 programs=$2
fixes=${3:-}
sandbox=$(mktemp -d)
trap 'chmod -R u+w "$sandbox"; rm -rf "$sandbox"' EXIT
chmod 755 "$sandbox"  # another user runs it, too
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# ---- docs/help -----------------------------------------------------------------------------------

commands=(tune eval bench)
[[ ! -x $programs/outgrad-fit ]] ||
  commands+=(fit emit pareto table reach certify check validate front stability attack plot report compare)
# Another version of CLI11 lays the same words out otherwise.
written_with=2.1.2
here=$(printf '#include <CLI/Version.hpp>\nCLI11_VERSION\n' | g++ -E -P -x c++ - 2>/dev/null |
  tail -n 1 | tr -d '"')
options() { grep -oE -- '--[a-z0-9-]+' "$1" | sort -u; }
for command in "${commands[@]}"; do
  OUTGRAD_BUILD_DIR=$programs "$root/outgrad" "$command" --help >"$sandbox/said" ||
    fail "$command --help: status $?"
  [[ $fixes != --fix ]] || cp "$sandbox/said" "$root/docs/help/$command.txt"
  if [[ $here == "$written_with" || $command =~ ^(tune|eval|bench)$ ]]; then
    cmp "$sandbox/said" "$root/docs/help/$command.txt" ||
      fail "docs/help/$command.txt is not what $command says; --fix writes it"
  else
    diff <(options "$sandbox/said") <(options "$root/docs/help/$command.txt") ||
      fail "docs/help/$command.txt has other options than $command"
  fi
done

# ---- A checkout with nothing built, and stand-ins for what the wrapper calls ---------------------

checkout=$sandbox/checkout stubs=$sandbox/stubs log=$sandbox/log
mkdir -p "$checkout/docs" "$stubs"
cp "$root/outgrad" "$root/CMakeLists.txt" "$checkout"
cp -r "$root/docs/help" "$checkout/docs"
stub() {  # stub NAME: a program on the PATH, from stdin
  { echo '#!/usr/bin/env bash' && cat; } >"$stubs/$1"
  chmod +x "$stubs/$1"
}
stub dpkg-query <<'END'
for package in "${@:4}"; do [[ $package == "${ABSENT:-}" ]] || echo "installed $package"; done
END
stub apt-get <<'END'
echo "apt-get $*" >>"$LOG"
END
stub sudo <<<'exit 1'
stub cmake <<'END'
echo "cmake $*" >>"$LOG"
if [[ $1 == --build ]]; then
  echo '[1/4] Building CXX object a.o'
  echo '[4/4] Linking outgrad-fit'
  printf '#!/bin/sh\necho "fit ran: $*"\n' >"$2/outgrad-fit"
  chmod +x "$2/outgrad-fit"
else
  touch "$4/CMakeCache.txt"
fi
END
stub ctest <<'END'
if [[ " $* " == *" -N "* ]]; then
  [[ "$*" != *'-L nightly'* ]] || echo "  Test #1: system.rare"
else
  echo "${OMP_NUM_THREADS:+of $OMP_NUM_THREADS threads, }ctest $*"
fi
END
chmod -R a+rX "$sandbox"

wrapper() {  # wrapper STATUS WORD...: what it says is in said and errors, what it called in log
  local expected=$1 status=0
  shift
  : >"$log"
  chmod a+w "$log"
  env -u OUTGRAD_BUILD_DIR -u OUTGRAD_GENERATED PATH="$stubs:$PATH" LOG="$log" OUTGRAD_TORCH=off \
    "${environment[@]}" "$checkout/outgrad" "$@" \
    >"$sandbox/said" 2>"$sandbox/errors" </dev/null || status=$?
  ((status == expected)) ||
    fail "$*: status $status instead of $expected: $(cat "$sandbox/said" "$sandbox/errors")"
}
environment=(ABSENT=)

one_line() {  # one_line TEXT: the errors are one line of the wrapper's that has this in it
  [[ $(wc -l <"$sandbox/errors") == 1 && $(<"$sandbox/errors") == outgrad:*"$1"* ]] ||
    fail "no line with '$1': $(<"$sandbox/errors")"
}

# ---- Help and version ----------------------------------------------------------------------------

wrapper 0
cp "$sandbox/said" "$sandbox/table"
while read -r command; do
  for option in --help -h; do
    wrapper 0 "$command" --json $option
    [[ -s $sandbox/said && ! -s $sandbox/errors ]] || fail "$command $option says nothing"
    grep -qi "outgrad $command" "$sandbox/said" || fail "$command $option is about another command"
  done
done < <(sed -nE 's/^  ([a-z]+)  .*/\1/p' "$sandbox/table")
# As wide as the terminal, where it is shown on one; no word is lost.
for columns in 100 40; do
  for words in "--help" "fit --help" "tune --help" "run --help"; do
    # shellcheck disable=SC2086  # words
    wrapper 0 $words
    tr -s ' \n' '\n' <"$sandbox/said" >"$sandbox/words"
    python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])' bash -c \
      "stty -onlcr cols $columns && '$checkout/outgrad' $words" >"$sandbox/said" </dev/null
    awk -v most=$columns 'length > most { exit 1 }' "$sandbox/said" ||
      fail "$words is wider than $columns columns"
    tr -s ' \n' '\n' <"$sandbox/said" | cmp -s - "$sandbox/words" ||
      fail "$words loses words at $columns columns"
  done
done
wrapper 0 --version
version=$(sed -nE 's/^project\(outgrad VERSION ([0-9.]+) .*/\1/p' "$root/CMakeLists.txt")
[[ $(<"$sandbox/said") == "outgrad $version" ]] || fail "--version: $(<"$sandbox/said")"
[[ ! -s $log && ! -e $checkout/build && ! -e $checkout/out ]] ||
  fail "help and the version built something: $(<"$log")"

# ---- Completion ----------------------------------------------------------------------------------

offers() {  # offers WORDS WORD...: what the shell offers for the last word is these words
  local expected=$1 offered shell
  shift
  for shell in bash zsh; do
    command -v $shell >/dev/null || continue
    # shellcheck disable=SC2016  # the shell's own
    offered=$($shell -c '[ -z "${ZSH_VERSION-}" ] || emulate sh -o ksharrays
      complete() { complete="$*"; }
      . "$1"
      shift
      COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
      _outgrad
      echo "$complete: ${COMPREPLY[*]}"' "$shell" "$sandbox/$shell.completion" ./outgrad "$@") || true
    [[ $offered == "-o default -F _outgrad outgrad: $expected" ]] || fail "$shell completes $*: $offered"
  done
}
for shell in bash zsh; do
  wrapper 0 completion $shell
  # zsh's own, which makes `complete` known, is another's to test
  grep -v '^autoload' "$sandbox/said" >"$sandbox/$shell.completion" || true
done
wrapper 2 completion csh
one_line "for which shell? bash or zsh"
offers "fit" "fi"
offers "--expression --error" fit --e
offers "--json" check a.h --j
offers "--device --defaults" tune --de
offers "--json" bench --j
offers "--fresh --format" run --f
offers "--help" sanitize --
offers "bf16 bf16_parity" fit --expression x --format bf
offers "gelu gelu_tanh" front --activation ge
offers "f32 f16" bench --format f
offers "f16,f32 f16,f16" validate --format f16,f
offers "bf16" validate --format = b
offers "default any" tune --accuracy ""
offers "" emit out/fi
offers "" reach --boxes ""
[[ ! -s $log && ! -e $checkout/build ]] || fail "completion built something: $(<"$log")"

# ---- Packages ------------------------------------------------------------------------------------

environment=(ABSENT= OMP_NUM_THREADS=1 OUTGRAD_WORK_DIR="$sandbox/packages")
wrapper 0 test -R name
! grep '^apt-get' "$log" || fail "packages that are all there are installed again"
grep -q "^ctest --test-dir $sandbox/packages/build .* -R name$" "$sandbox/said" ||
  fail "test: $(<"$sandbox/said")"
wrapper 0 test
grep -q -- "-LE exhaustive|nightly$" "$sandbox/said" || fail "test leaves out: $(<"$sandbox/said")"
environment=(ABSENT=gappa OUTGRAD_WORK_DIR="$sandbox/packages")
if ((EUID == 0)); then
  wrapper 0 test
  [[ $(grep -c ' install .* gappa$' "$log") == 1 ]] || fail "one package is missing: $(<"$log")"
  # What only the tests of the night need is installed for these.
  environment=(ABSENT=coq OUTGRAD_WORK_DIR="$sandbox/packages")
  wrapper 0 test
  ! grep '^apt-get' "$log" || fail "a package of the night is installed by day"
  wrapper 0 test -L nightly
  [[ $(grep -c ' install .* coq$' "$log") == 1 ]] || fail "a package of the night is missing: $(<"$log")"
else
  wrapper 3 test
  one_line "install: gappa"
fi

# ---- PyTorch -------------------------------------------------------------------------------------

# Beside the build where all tests are run, and not at all where none of its own is.
mkdir -p "$checkout/tests/kernels/torch"
echo torch >"$checkout/tests/kernels/torch/requirements.txt"
stub python3 <<'END'
echo "python3 $*" >>"$LOG"
[[ ${FAILS:-} != yes ]] || exit 1
mkdir -p "$3/bin" && printf '#!/bin/sh\necho "pip $*" >>"$LOG"\n' >"$3/bin/python" && chmod +x "$3/bin/python"
END
environment=(ABSENT= OUTGRAD_TORCH= OUTGRAD_WORK_DIR="$sandbox/torch")
wrapper 0 test -R name
! grep -q 'python3 -m venv' "$log" || fail "PyTorch is installed for tests that do not need it"
wrapper 0 test
[[ $(grep -c '^python3 -m venv' "$log") == 1 && $(grep -c 'DOUTGRAD_TORCH=ON' "$log") == 1 ]] ||
  fail "PyTorch beside the build: $(<"$log")"
wrapper 0 test
! grep -q 'python3 -m venv' "$log" || fail "PyTorch is installed again"
environment=(ABSENT= FAILS=yes OUTGRAD_TORCH= OUTGRAD_WORK_DIR="$sandbox/no_torch")
wrapper 3 test
grep -q 'outgrad: PyTorch could not be installed' "$sandbox/errors" ||
  fail "without PyPI: $(<"$sandbox/errors")"
rm "$stubs/python3"

# ---- A checkout that cannot be written -----------------------------------------------------------

environment=(ABSENT=)
touch "$checkout/build" "$checkout/out"  # a file stands where the folder would: not even root can make it
for words in "fit x.json" test sanitize run "certify x.json --run"; do
  # shellcheck disable=SC2086  # words
  wrapper 3 $words
  one_line "cannot be written; OUTGRAD_WORK_DIR=DIR"
done
rm "$checkout/build" "$checkout/out"
chmod -R a-w "$checkout"
plain_user=()
# root writes wherever the file system lets it
((EUID != 0)) || plain_user=(setpriv --reuid=65534 --regid=65534 --clear-groups --)
if "${plain_user[@]}" true 2>/dev/null; then
  environment=("${plain_user[@]}" env ABSENT=)
  wrapper 3 fit x.json
  one_line "$checkout/build: cannot be written"
  mkdir "$sandbox/elsewhere"
  chmod a+w "$sandbox/elsewhere"
  environment+=(OUTGRAD_WORK_DIR="$sandbox/elsewhere")
  wrapper 0 fit x.json
  [[ $(<"$sandbox/said") == "fit ran: fit x.json" ]] || fail "in a build elsewhere: $(<"$sandbox/said")"
  wrapper 0 test
  grep -q "^ctest --test-dir $sandbox/elsewhere/build" "$sandbox/said" ||
    fail "test in a build elsewhere: $(<"$sandbox/said")"
else
  echo "not tested: another user, as whom nothing can be run here"
fi
chmod -R u+w "$checkout"

# ---- A command of the wrapper's own that fails: 1 would say that a bound is violated -------------

environment=(ABSENT= OUTGRAD_WORK_DIR="$sandbox/fails")
for status in 1 2 127; do
  stub flock <<<"exit $status"
  wrapper 3 fit x.json
  one_line "failed with exit status $status: flock 9"
done
rm "$stubs/flock"

# ---- What the first build says -------------------------------------------------------------------

environment=(ABSENT= OUTGRAD_WORK_DIR="$sandbox/first")
wrapper 0 fit x.json
one_line "building outgrad-fit outgrad-check in $sandbox/first/build on "
wrapper 0 fit x.json
[[ ! -s $sandbox/errors ]] || fail "the second build says $(<"$sandbox/errors")"
rm -r "$sandbox/first"
env PATH="$stubs:$PATH" LOG="$log" "${environment[@]}" python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])' \
  "$checkout/outgrad" fit x.json >"$sandbox/said" </dev/null
for bar in 'configuring \[  *##########\|configuring \[##########' 'building \[  *\]'; do
  grep -q "outgrad: $bar" "$sandbox/said" || fail "no '$bar' before the first step: $(cat -v "$sandbox/said")"
done
for bar in '\[#######  *\] 1/4, [0-9]*:[0-9][0-9] left' \
  '\[##############################\] 4/4, 0:00 left'; do
  grep -q "outgrad: building $bar" "$sandbox/said" ||
    fail "on a terminal the first build shows no '$bar': $(cat -v "$sandbox/said")"
done

echo "wrapper: $failures failures"
exit $((failures > 0))
