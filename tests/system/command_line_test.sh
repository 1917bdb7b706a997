#!/usr/bin/env bash
# The command line: bad usage and bad input end with status 2, one line on stderr, nothing on stdout and no
# output file.
# usage: command_line_test.sh REPOSITORY BUILD
set -euo pipefail
root=$1
export OUTGRAD_BUILD_DIR=$2
work=$(mktemp -d) few=$(mktemp -d)
trap 'rm -rf "$work" "$few"' EXIT
cd "$work"  # the wrapper works from any folder
failures=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

refuses() {  # refuses STATUS WORD...: the command ends so, within $cpu seconds of work
  local expected=$1 code=0
  shift
  (ulimit -t "${cpu:-unlimited}" && exec "$root/outgrad" "$@") >stdout 2>stderr </dev/null || code=$?
  ((code == expected)) || fail "$*: status $code instead of $expected"
  [[ $(wc -l <stderr) == 1 && $(wc -c <stderr) -lt 1600 && $(<stderr) == outgrad:* ]] ||
    fail "$*: stderr is not one line of outgrad's: $(head -c 400 stderr)"
  [[ ! -s stdout ]] || fail "$*: stdout says $(head -c 200 stdout)"
  local left
  left=$(find . -mindepth 1 -not -name stdout -not -name stderr -not -name 'input.*')
  [[ -z $left ]] || fail "$*: left $left"
}

"$root/outgrad" >table || fail "the table of commands"
"$root/outgrad" --help | cmp - table || fail "--help is not the table of commands"
for command in run test sanitize fit emit certify check validate front stability tune eval bench plot \
  report; do
  grep -q "^  $command " table || fail "$command is not in the table"
  "$root/outgrad" "$command" --help >help || fail "$command --help: status $?"
done
rm -f table help

refuses 2 frobnicate
# suggests WORD COMMAND...: the line ends in it
suggests() {
  "$root/outgrad" "${@:2}" >stdout 2>stderr </dev/null || true
  [[ $(<stderr) == *"; did you mean '$1'?"* ]] || fail "${*:2} does not suggest $1: $(<stderr)"
  rm -f stdout stderr
}
suggests tune tnue
suggests validate vaildate
suggests --publish run --pubish
refuses 2 --frobnicate
refuses 2 run --frobnicate
refuses 2 run --format f8
refuses 2 run --format
refuses 2 run --budget never
refuses 2 run --budget 1000001  # more than the tuner takes, at the end of the chain
refuses 2 run --budget 99999999999999999999
refuses 2 run --format bf16 --format f16
refuses 2 sanitize --frobnicate
refuses 2 sanitize  # OUTGRAD_BUILD_DIR is set
executables=(tune)
if [[ -x $2/outgrad-fit ]]; then
  executables+=(fit check)
  echo '{"schema": "outgrad.spec/1", "name": "x"' >input.json
  printf 'not a header\n' >input.h
  head -c 8 /dev/zero | tr '\0' '\377' >input.safetensors
  for command in fit emit check validate front stability plot report; do
    refuses 2 "$command" --frobnicate
  done
  OUTGRAD_ISA=avx9 refuses 2 validate --activation gelu_tanh --format bf16 --x own --out sweep.json
  refuses 2 certify "$root/notebooks_data/fits/mish_bf16.json" --coq --out certify.out
  refuses 2 certify "$root/notebooks_data/fits/gelu_bf16.json" --coq --rows 16 --out certify.out
  for rows in 1,,3 ,1 1, 1,x; do
    refuses 2 certify "$root/notebooks_data/fits/gelu_f32.json" --rows "$rows" --out certify.out
  done
  refuses 2 certify "$root/notebooks_data/fits/gelu_bf16.json" --json --out certify.out
  refuses 2 certify "$root/notebooks_data/fits/gelu_bf16.json" --bound T --out certify.out
  refuses 2 certify "$root/notebooks_data/fits/gelu_f32.json" --coq --bound T --out certify.out
  refuses 2 certify "$root/notebooks_data/fits/gelu_bf16.json" \
    --forward "$root/notebooks_data/fits/gelu_forward_bf16.json" --out certify.out
  for forward in gelu_forward_f16 gelu_bf16 silu_forward_bf16; do
    refuses 2 certify "$root/notebooks_data/fits/gelu_bf16.json" \
      --coq --forward "$root/notebooks_data/fits/$forward.json" --out certify.out
  done
  for words in "--bound T --rows 1" "--bound A --forward $root/notebooks_data/fits/gelu_forward_bf16.json"; do
    # shellcheck disable=SC2086  # words
    refuses 2 certify "$root/notebooks_data/fits/gelu_bf16.json" --coq $words --out certify.out
  done
  for words in --coq --run --rows=1 --bound=A --threads=2; do
    refuses 2 certify --beside "$root/approx/specs/gelu_bf16.json" "$words" --out certify.out
  done
  refuses 2 report --header "$root/kernels/generated/silu_bf16.h" --headers absent --out report.out
  # A PATH with what the wrapper and this test need, but neither coqc nor gappa.
  for program in bash env dirname readlink wc find head; do ln -s "$(command -v "$program")" "$few/"; done
  PATH=$few refuses 3 certify "$root/notebooks_data/fits/gelu_bf16.json" --coq --run --out certify.out
  suggests --expression fit --expresion 'tanh(x)'
  suggests bf16 fit --expression 'tanh(x)' --format bf61
  suggests silu validate --activation sliu --format bf16
  refuses 2 fit
  # What has no meaning beside the other words is refused, not passed over.
  spec=$root/approx/specs/gelu_bf16_fast.json
  for option in --oracle --name=mine --error=0.1 --beta=2 --alpha=2 --format=bf16; do
    refuses 2 fit "$spec" "$option" --out fit.out
  done
  refuses 2 fit --activation gelu --beta 2 --format bf16 --out fit.out
  refuses 2 fit --activation swish --alpha 2 --format bf16 --out fit.out
  refuses 2 pareto --expression 'tanh(x)' --beta 2 --format bf16 --out pareto.out
  refuses 2 reach "$spec" --boxes -1
  refuses 2 stability --gamma ""
  model=$root/notebooks_data/checkpoints/all-MiniLM-L6-v2.layernorm.safetensors
  for values in 1,,1 1,1, ,1 '1, 1' 0x1 1e400 1..2; do refuses 2 stability --gamma "$values"; done
  refuses 2 stability --gamma 1,1 --beta 0,,0
  refuses 2 stability "$model" --beta 1,1
  refuses 2 stability --gamma 1,1 --gamma-name ln.weight
  refuses 2 stability --gamma 1,1 --metadata a=b
  refuses 2 stability --gamma 1,1 --norm ms_layernorm --beta 1,1
  refuses 2 stability "$model" --norm ms_rmsnorm --weight-offset 1
  refuses 2 stability "$model" --extract --json --out stability.out
  refuses 2 table "$root/notebooks_data/fits/gelu_bf16.json" absent.json
  # What would replace what it was made of, or the other output; and a folder that is not there.
  cp "$spec" input.spec.json && cp "$root/notebooks_data/fits/gelu_bf16.json" input.svg
  refuses 2 fit input.spec.json --out ./input.spec.json
  refuses 2 emit input.svg --out input.svg
  refuses 2 plot input.svg
  cmp input.spec.json "$spec" && cmp input.svg "$root/notebooks_data/fits/gelu_bf16.json" ||
    fail "an input was replaced"
  refuses 2 fit --expression 'tanh(x)' --format bf16 --out own.h
  refuses 2 fit --expression 'tanh(x)' --format bf16 --out .
  refuses 2 emit "$root/notebooks_data/fits/gelu_bf16.json" --out absent/
  # That nothing can be written is told before the work, which is far more than this.
  for words in "fit --activation gelu --format f32" "fit $root/approx/specs/gelu_f32.json" \
    "pareto --activation gelu --format bf16" "front --activation gelu" "front --softmax" \
    "validate --fit gelu_bf16_product --format bf16"; do
    # shellcheck disable=SC2086  # words
    cpu=5 refuses 2 $words --out input.json/out
  done
  TMPDIR=$work/absent refuses 3 plot "$root/kernels/generated/silu_bf16.h" --out plot.svg
  refuses 2 fit --expression 'tanh(x)'
  refuses 2 fit input.json --expression 'tanh(x)' --format bf16
  refuses 2 plot absent.h
  refuses 2 plot input.h --out plot.svg
  refuses 2 plot input.json --out plot.svg
  refuses 2 plot "$root/kernels/generated/gelu_code.h" --out plot.svg
  refuses 2 report --header absent.h
  refuses 2 report --header "$root/docs"
  refuses 2 validate --header "$root/kernels/generated/gelu_f32.h"
  refuses 2 validate --header absent.h --format bf16
  refuses 2 front --header absent.h
  refuses 2 fit absent.json --out fit.out
  refuses 2 fit input.json --out fit.out
  refuses 2 emit absent.json --out emit.out
  refuses 2 emit input.json --out emit.out
  echo '{"schema": 1e999}' >input.number.json
  { printf '{"schema": "' && head -c 100000 /dev/zero | tr '\0' a && printf '"}'; } >input.long.json
  # Two documents for two readers, and one that no reader's stack has room for.
  sed 's/"degree"/"degree": 2, &/' "$root/approx/specs/gelu_bf16_fast.json" >input.twice.json
  printf '{"schema": %s%s}' "$(printf '[%.0s' {1..200000})" "$(printf ']%.0s' {1..200000})" >input.deep.json
  refuses 2 compare input.deep.json input.deep.json
  for file in input.number.json input.long.json input.twice.json input.deep.json; do
    refuses 2 fit "$file" --out fit.out
    refuses 2 emit "$file" --out emit.out
    refuses 2 validate --foreign "$file" --format f32 --out validate.out
  done
  # On a terminal no line is wider than it, but one word may be; what programs read stays whole.
  on_terminal() {  # on_terminal COLUMNS WORD...: what the command prints on stdout there
    # shellcheck disable=SC2016  # the shell's own
    NO_COLOR=1 python3 -c 'import pty, sys; pty.spawn(sys.argv[1:])' bash -c \
      'stty -onlcr cols "$1" && shift && "$@" 2>/dev/null' bash "$1" "$root/outgrad" "${@:2}" </dev/null
  }
  header=$root/kernels/generated/silu_bf16.h
  for columns in 100 40; do
    for words in "fit --help" "check $header" "stability --gamma 1 0.5 2 --beta 0.1 3 0"; do
      # shellcheck disable=SC2086  # words
      on_terminal $columns $words >stdout || true  # exit status 1 of channels that are not stable
      awk -v most=$columns 'length > most && NF > 1 { exit 1 }' stdout ||
        fail "$words is wider than $columns columns: $(<stdout)"
      [[ $(wc -l <stdout) -gt 3 ]] || fail "$words shows $(<stdout)"
    done
  done
  "$root/outgrad" check --json "$header" >stdout || fail "check --json: status $?"
  on_terminal 40 check --json "$header" | cmp - stdout || fail "check --json is folded on a terminal"
  rm stdout
  # Fits without a row are named, not passed over.
  "$root/outgrad" table "$root"/notebooks_data/fits/{gelu_code,gelu_mxfp8,gelu_forward}.json \
    >stdout 2>stderr || fail "table: status $?"
  [[ $(wc -l <stdout) == 3 &&
    $(<stderr) == "table: no rows for forwards and codes: gelu_code, gelu_forward" ]] ||
    fail "table: $(cat stdout stderr)"
  # The committed results are a report, published tunings and audits of others' coefficients among them.
  "$root/outgrad" report --in "$root/notebooks_data" --out report >stdout 2>stderr ||
    fail "report --in notebooks_data: $(head -c 400 stderr)"
  grep -q '^| regelu2 | ' report/report.md || fail "the committed results lack others' coefficients"
  rm -rf report
  refuses 2 stability --attack --gamma 1,2
  refuses 2 stability --attack --format f8
  refuses 2 stability --attack --out input.json/attack.out
  refuses 2 attack --specifications 0 --out input.json/attack.out
  refuses 2 validate --foreign input.json --format f32 --out sweep.out
  refuses 2 validate --activation gelu --format bf16 --activations input.json --out sweep.out
  refuses 2 validate --foreign "$root/notebooks_data/foreign/regelu2.json" --activation silu --format bf16 \
    --x own --out sweep.out
  "$root/outgrad" validate --format bf16 --x own --shard 1/2 --json --out input.part >/dev/null ||
    fail "validate --shard: status $?"
  for option in --activation=silu --fit=silu_bf16 --x=own; do
    refuses 2 validate --merge input.part "$option" --out sweep.out
    [[ $(<stderr) == *" ${option%=*}"* ]] || fail "validate --merge $option: is passed over: $(<stderr)"
  done
  refuses 2 check absent.h
  refuses 2 check input.h
  refuses 2 validate --activation frob --format f32 --out sweep.out
  refuses 2 validate --activation gelu --format f8 --out sweep.out
  refuses 2 validate --activation gelu --format bf16 --shard 3/2 --out sweep.out
  refuses 2 validate --activation gelu --format bf16 --shard 1/2 --csv --out sweep.out
  refuses 2 front --activation frob --out front.out
  refuses 2 front --foreign input.json --out front.out
  refuses 2 front --foreign "$root/notebooks_data/foreign/tempo_gelu.json" --out front.out
  refuses 2 front --softmax --foreign "$root/notebooks_data/foreign/regelu2.json" --out front.out
  refuses 2 front --softmax --activation gelu --out front.out
  for words in --json --csv --softmax; do refuses 2 front --markdown $words --out front.out; done
  refuses 2 stability absent.npz
  refuses 2 stability input.safetensors --out stability.out
  header='{"ln.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
    "ln.bias":{"dtype":"F32","shape":[0],"data_offsets":[8,8]}}'
  { printf "\\x$(printf '%02x' ${#header})\\0\\0\\0\\0\\0\\0\\0%s" "$header"; head -c 8 /dev/zero; } \
    >input.beta.safetensors
  refuses 2 stability input.beta.safetensors --out stability.out
  refuses 2 stability --gamma 1,nan --beta 0,0
  for scale in 0 -1 1e-40 inf nan; do refuses 2 stability --gamma 1,1 --format e4m3 --scale=$scale; done
  refuses 2 stability --gamma 1,1 --format mxfp8
  refuses 2 stability --gamma 1,1 --format int8_row --scale 1
  refuses 2 report --in absent --out report.out
  # What a command reads it does not write over.
  cp "$root/notebooks_data/checkpoints/all-MiniLM-L6-v2.layernorm.safetensors" input.model.safetensors
  cp "$root/kernels/generated/silu_bf16.h" input.silu.h
  cp "$root/notebooks_data/foreign/regelu2.json" input.regelu2.json
  cp "$root/notebooks_data/foreign/actnn_4bit.json" input.actnn.json
  while read -r file words; do
    before=$(sha256sum "$file")
    # shellcheck disable=SC2086
    refuses 2 $words --out "$file"
    [[ $(sha256sum "$file") == "$before" ]] || fail "$words --out $file: wrote over it"
  done <<'TEXT'
input.model.safetensors stability input.model.safetensors
input.model.safetensors stability input.model.safetensors --extract
input.silu.h validate --header input.silu.h
input.silu.h front --header input.silu.h
input.regelu2.json validate --foreign input.regelu2.json --format bf16
input.regelu2.json front --foreign input.regelu2.json
input.actnn.json validate --foreign input.actnn.json --format bf16
input.actnn.json front --softmax --foreign input.actnn.json
TEXT
fi
for command in tune eval bench; do
  refuses 2 "$command" --frobnicate
  "$root/outgrad" "$command" --help >input.help
  [[ $(grep -o 'outgrad [a-z]*' input.help | sort -u) == "outgrad $command" ]] ||
    fail "$command --help is about another command"
done
refuses 2 bench --format bf16,f8
refuses 2 bench --format bf16,bf16
refuses 2 bench --stores --kernel gelu_forward
refuses 2 bench --stores --elements 1
"$root/outgrad" bench --stores --format bf16 --elements 4096 --rounds 9 --json >stores.json ||
  fail "bench --stores: status $?"
grep -q '"store": "bf16 y with its branch"' stores.json ||
  fail "bench --stores does not time a y with its branch"
grep -q '"store": "int8 y beside y"' stores.json || fail "bench --stores does not time a norm's y in int8"
OMP_NUM_THREADS=3 "$root/outgrad" bench --stores --format bf16 --elements 4096 --rounds 9 --json >stores.json
grep -q '"threads": 3' stores.json || fail "bench does not say on how many threads it ran"
rm stores.json
refuses 2 eval
refuses 2 eval --op frob
refuses 2 eval --op backward --activation gelu --format bf16 --dy absent --y absent --mask absent --dx dx.out
refuses 2 tune --kernel frob
refuses 2 tune --device sm_90 --kernel gelu_forward_code,gelu_backward_code
refuses 2 tune --budget never
printf '{}\n' >input.jsonl
refuses 2 tune --defaults input.jsonl --out input.jsonl
grep -q 'of this name already' stderr || fail "tune --defaults writes over what it reads: $(<stderr)"
echo '{"schema": ' >input.json
refuses 2 tune --device replay:input.json --ranking sm_90

# Each executable alone speaks the same way.
for name in "${executables[@]}"; do
  code=0
  "$2/outgrad-$name" frobnicate >stdout 2>stderr || code=$?
  ((code == 2)) || fail "outgrad-$name frobnicate: status $code"
done

echo "command line: $failures failures"
exit $((failures > 0))
