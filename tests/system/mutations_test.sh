#!/usr/bin/env bash
# Seeded mistakes in the kernels' sources, each caught by a test of the kernels' suite, by name.
#
# Every mistake below is put into one copy of kernels/, switched on at run time (the schemata of Untch, Offutt
# and Harrold, 1993), and the suite's own test files are compiled once against that copy:
# outgrad-mutation-tests. With no mistake switched on the named tests pass; with one switched on its test
# fails. A mistake whose text is not found exactly once in its file fails too, so the list cannot rot.
# Mistakes in the generated headers are those of tests/validation/certificate/mutation_test.cpp.
#
# usage: mutations_test.sh REPOSITORY BUILD; mutations_test.sh --seed REPOSITORY FOLDER writes the copy
set -euo pipefail

# mutation NAME FILE TEXT MISTAKE TEST: in kernels/FILE, what stands between the two @ of TEXT becomes
# MISTAKE; TEST notices. SUITE<TYPE>.CASE is that of a type, whatever its number.
mutations() {
  # The left branch evaluated at +s.
  mutation sign eval.h 'v = @ops.select(m, r, ops.negate(r))@;' 'ops.select(m, r, r)' \
    'Backward<generated::GeluF32>.BranchIsChosenByTheMaskAlone'
  # Horner's coefficients taken from the wrong end.
  mutation coefficient eval.h \
    'for (int word = degree; word >= 1; --word) p = @ops.fma(p, u, ops.lookup(table, row, word))@;' \
    'ops.fma(p, u, ops.lookup(table, row, degree + 1 - word))' Forwards/2.FollowsItsDefinition
  # The neighbour's row.
  mutation table_index eval.h 'u32 row_index(float q, int rows) const { return @bits_of(q)@ &' \
    'bits_of(q) + 1' \
    'Backward<generated::GeluF32>.FollowsItsDefinition'
  # A floor that loses a NaN.
  mutation clamp eval.h 'return @a < lo ? lo : a@;' 'a > lo ? a : lo' Activation/0.NanGivesNan
  # The bits of a mask byte in reverse, as written and as read.
  mutation mask_order_written host/elementwise.h 'byte |= static_cast<u32>(element.m) << @(k - i)@;' \
    '7 - (k - i)' Bf16/Elementwise/0.EveryLengthAndAlignmentForward
  mutation mask_order_read host/elementwise.h '(mask[i / 8] >> @(i % 8)@ & 1)' '7 - i % 8' \
    Bf16/Elementwise/0.EveryLengthAndAlignmentBackward
  # Ties away from zero.
  mutation rounding formats.h '@(bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16@;' '(bits + 0x8000u) >> 16' \
    Formats16/1.NarrowRoundsEveryMidpoint
  # The forward's left tail from where it underflows on; a 16-bit forward without what decides its ties, and
  # with another quartic.
  mutation tail_threshold eval.h 'y = ops.where(@ops.less(x, ops.constant(fit.kTailX))@, y' \
    'ops.less(x, ops.constant(fit.kXMin))' Forwards/2.FollowsItsDefinition
  mutation forward_tie eval.h 'return ops.fma(ops.mul(w, u), t, @ops.fma(x, c0, ops.constant(tie))@);' \
    'ops.mul(x, c0)' Gelu/1.TinyTiesRoundAsTheExactValue
  mutation forward_quartic eval.h 'Value t = ops.fma(@ops.shifted(c3, fit.kQuarticShift)@, u, c3);' 'c3' \
    RoundedForwards/2.FollowItsDefinition
  # The pull towards the other side, and an f that does not level off.
  mutation forward_pull eval.h 'return ops.fma(@ops.constant(-fit.kPull)@, ops.signed_as(' \
    'ops.constant(fit.kPull)' RoundedForwards/5.FollowItsDefinition
  mutation forward_end eval.h 'enters = @ops.at_most(v, ops.constant(fit.kEnd))@;' 'v' \
    RoundedForwards/6.FollowItsDefinition
  # The mask's threshold itself on the wrong side.
  mutation mask_threshold eval.h 'return @ops.less_equal(ops.constant(fit.kXStar), x)@;' \
    'ops.less(ops.constant(fit.kXStar), x)' Forwards/2.FollowsItsDefinition
  # Break points, and the start of the right segment, on the wrong side.
  mutation row_threshold eval.h \
    'row = ops.next_row(row, @ops.less_equal(ops.constant(fit.break_at(k)), v)@);' \
    'ops.less(ops.constant(fit.break_at(k)), v)' \
    'Backward<synthetic::WithBreaks<5, 4, 0>>.FollowsItsDefinition'
  mutation right_threshold eval.h 'v = ops.select(@ops.less(distance, ops.constant(fit.kRightS))@, v, y);' \
    'ops.less_equal(distance, ops.constant(fit.kRightS))' 'Backward<generated::GeluF32>.FollowsItsDefinition'
  # The scale of the next block for the last element of one.
  mutation block_scale stored.h 'view.scales[@static_cast<u64>(view.first) / BlockScaled<Y>::kBlock@]' \
    '(static_cast<u64>(view.first) + 1) / BlockScaled<Y>::kBlock' Stored.BackwardTakesMxfp8
  # Sums one after the other in place of by halving.
  mutation summation_order reduce.h \
    'return @add_rn(fold<Count, 2 * Stride>(values), fold<Count, 2 * Stride>(values + Stride))@;' \
    '[&] { V s = *values; for (int k = Stride; k < Count; k += Stride) s = add_rn(s, values[k]);
      return s; }()' \
    RowTree.SumIsTheDefinitionsAtEveryLengthAndWidth
  # eps outside the root.
  mutation rstd layernorm.h 'return @div_rn(1.0f, sqrt_rn(add_rn(mean_of(squares, n), eps)))@;' \
    'div_rn(1.0f, add_rn(sqrt_rn(mean_of(squares, n)), eps))' \
    F32/NormTest/0.ForwardIsTheExactOutputWithinItsRoundings
  # x^ of a side channel from y, which does not hold it.
  mutation side_buffer host/layernorm.h 'const float x_hat = @a.side.x_hat[row * a.side.count + s]@;' \
    'staged.c[channel]' F32/NormTest/0.BackwardIsTheExactGradientWithinItsRoundings
}

occurrences() {  # occurrences TEXT IN
  local rest=${2//"$1"/}
  echo $(((${#2} - ${#rest}) / ${#1}))
}

if [[ $1 == --seed ]]; then
  root=$2 copy=$3
  rm -rf "$copy"
  mkdir -p "$copy"
  cp -r "$root/kernels" "$copy/kernels"
  mutation() {
    local file=$copy/kernels/$2 content before=${3%%@*} rest=${3#*@} original after
    original=${rest%@*} after=${rest##*@}
    content=$(<"$file")
    local text=$before$original$after
    (($(occurrences "$text" "$content") == 1)) || return 0  # the test says so
    local seeded="$before(outgrad_mutant(\"$1\") ? ($4) : ($original))$after"
    printf '%s\n' "${content%%"$text"*}$seeded${content#*"$text"}" >"$file"
  }
  mutations
  cat >"$copy/mutant.h" <<'END'
// Included before everything else: which mistake is switched on.
#pragma once
#include <cstdlib>
#include <cstring>
inline const char* const outgrad_mutant_on = std::getenv("OUTGRAD_MUTANT");
inline bool outgrad_mutant(const char* name) {
  return outgrad_mutant_on != nullptr && std::strcmp(outgrad_mutant_on, name) == 0;
}
END
  exit 0
fi

root=$1 build=$2
tests=$build/tests/outgrad-mutation-tests
[[ -x $tests ]] || { echo "skipped: this build has no outgrad-mutation-tests"; exit 77; }
cd "$root"
failures=0 count=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

listed=$("$tests" --gtest_list_tests)

numbered() {  # numbered SUITE<TYPE>.CASE
  local suite=${1%%<*} type=${1#*<}
  type=${type%>.*}
  sed -n "s|^\($suite/[0-9]*\)[.]  # TypeParam = .*::$type\$|\1.${1##*.}|p" <<<"$listed"
}

mutation() {
  local content output status=0 started=$SECONDS
  [[ $5 != *'<'* ]] || set -- "${@:1:4}" "$(numbered "$5")"
  content=$(<"$root/kernels/$2")
  count=$((count + 1))
  if (($(occurrences "${3//@/}" "$content") != 1)); then
    fail "$1: kernels/$2 does not hold this text exactly once: ${3//@/}"
    return
  fi
  output=$("$tests" --gtest_brief=1 --gtest_filter="$5" 2>&1) || fail "$5 fails without any mistake: $output"
  grep -q '\[  PASSED  \] 1 test' <<<"$output" || fail "$1: $5 is not one test"
  output=$(OUTGRAD_MUTANT=$1 "$tests" --gtest_brief=1 --gtest_filter="$5" 2>&1) || status=$?
  if ((status == 1)) && grep -qF "[  FAILED  ] $5" <<<"$output"; then
    printf '%-20s kernels/%-20s caught by %s, %d s\n' "$1" "$2" "$5" $((SECONDS - started))
  else
    fail "$1: survives $5 (status $status)"
  fi
}

mutations
echo "$count mistakes, $failures failures"
exit $((failures > 0))
