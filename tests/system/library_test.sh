#!/usr/bin/env bash
# The compiled library and the headers at the linker: what is exported, that no copy of an inline function
# from the objects of a larger instruction set can take the place of one that every machine runs, that units
# with different -m flags share a program, what every thread of a program sets aside for the library, and that
# it works beside threads and in forked children.
# usage: library_test.sh REPOSITORY BUILD
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

# --- Exports: the functions that outgrad.h declares, all of them, and nothing else ----------------
library=$2/liboutgrad.so
[[ -f $library ]] || { echo "FAILED: $library was not built"; exit 1; }
nm -D --defined-only "$library" | awk '$2 != "A" {sub(/@.*/, "", $3); print $3}' | sort -u >"$work/exported"
[[ $(wc -l <"$work/exported") -ge 26 ]] ||
  fail "only $(wc -l <"$work/exported") exported functions were found"
while read -r name; do
  grep -qE "OUTGRAD_API .*\b$name\(" "$1/kernels/c/outgrad.h" ||
    fail "$name is exported, but outgrad.h does not declare it"
done <"$work/exported"
for name in $(grep -E '^OUTGRAD_API ' "$1/kernels/c/outgrad.h" | grep -oE 'outgrad_[a-z0-9_]+\(' |
  tr -d '('); do
  grep -qx "$name" "$work/exported" || fail "outgrad.h declares $name, which is not exported"
  grep -q "\b$name(" "$1/tests/kernels/c_hash_main.c" ||
    fail "tests/kernels/c_hash_main.c, the program of all functions, does not call $name"
done
readelf -d "$library" | grep -q 'SONAME.*\[liboutgrad\.so\.0\]' || fail "the soname is not liboutgrad.so.0"
readelf -d "$library" | grep -q NODELETE || fail "dlclose would take the code of OpenMP's waiting threads"

# --- Threads and processes ------------------------------------------------------------------------
# glibc takes a library's thread-local storage from each thread's stack: the message of the last error and a
# few words more.
storage=$(readelf -lW "$library" | awk '$1 == "TLS" {print $6}')
((${storage:-0} <= 1024)) || fail "each thread of a program sets aside $((storage)) bytes for the library"
cc -std=c11 -O1 -Wall -Wextra -I"$1/kernels/c" "$1/tests/kernels/c_threads_main.c" -o "$work/threads" \
  -L"$2" -loutgrad -Wl,-rpath,"$2" -pthread
for stack in 4M 64k; do
  OMP_STACKSIZE=$stack "$work/threads" || fail "tests/kernels/c_threads_main.c with OMP_STACKSIZE=$stack"
done

# --- Copies of inline functions -------------------------------------------------------------------
# Weak symbols of an object that the inline namespace does not keep apart.
shared_weak() { nm "$@" | awk '$2 ~ /^[WVu]$/ {print $3}' | grep -v 'v0_' | sort -u; }
mapfile -t baseline < <(find "$2/kernels/c/CMakeFiles/outgrad_c_baseline.dir" -name '*.o')
shared_weak "${baseline[@]}" >"$work/baseline_weak"
while read -r object; do
  shared_weak "$object" >"$work/weak"
  extra=$(comm -23 "$work/weak" "$work/baseline_weak")
  [[ -z $extra ]] ||
    fail "${object#"$2"/}: inline functions that the baseline's object does not hold too: $extra"
done < <(find "$2"/kernels/c/CMakeFiles/outgrad_c_avx*.dir -name '*.o')
# Linkers keep the first of several copies: the baseline's objects come first in the archive.
mapfile -t order \
  < <(nm --defined-only "$2/liboutgrad.a" | grep -oE 'k(F32|F16|Bf16)(Baseline|Avx2|Avx512|Avx512Bf16)E$')
[[ ${#order[@]} -ge 3 && ${order[*]:0:3} == 'kF32BaselineE kF16BaselineE kBf16BaselineE' ]] ||
  fail "the archive's first variants are ${order[*]:0:3}, not the baseline's"

# --- Headers that are installed: what has code is in the inline namespace; data types, exceptions, catalogues
# and coefficients alone are outside it
data_alone='accuracy|formats|kernels|ladder|layernorm|norm_store|params|side_policy|stored|table'
data_alone+='|catalogue/stores|stores/parts|host/call|host/errors|host/forked'
untagged=$(cd "$1" &&
  grep -rl '^namespace outgrad::kernels\(::[a-z_]*\)\? {' kernels --include='*.h' --include='*.cuh' |
  grep -vxE "kernels/($data_alone)\\.h|kernels/(generated|support)/.*\\.h" || true)
[[ -z $untagged ]] ||
  fail "outside the inline namespace (namespace outgrad::kernels::inline OUTGRAD_ABI): $untagged"
grep -q 'inline OUTGRAD_ABI::tuned {' "$1/kernels/generated/tuned_default.h" ||
  fail "tuned_default.h is outside the inline namespace"

# --- Units with different flags in one program ----------------------------------------------------
cat >"$work/unit.cpp" <<'TEXT'
#include "kernels/host/api.h"
using namespace outgrad::kernels;
// Types of data and exceptions cross; the functions are this unit's own.
u32 NAME(const BF16* y, SideBuffer<float> side) {
  const BF16 dy = narrow<BF16>(1.0f);
  const u32 mask = 1;
  BF16 dx{};
  gelu_backward<BF16>(&dy, y, &mask, &dx, 1);
  float rstd = 0;
  layernorm_forward<BF16>({.x = y, .rows = 1, .n = side.count, .eps = 0.0f, .y = &dx, .rstd = &rstd});
  return dx.bits;
}
TEXT
cat >"$work/main.cpp" <<'TEXT'
#include "kernels/host/errors.h"
#include "kernels/layernorm.h"
using namespace outgrad::kernels;
u32 base(const BF16*, SideBuffer<float>);
u32 avx2(const BF16*, SideBuffer<float>);
u32 avx512(const BF16*, SideBuffer<float>);
int main(int count, char**) {
  const BF16 y = narrow<BF16>(0.5f);
  const SideBuffer<float> one{nullptr, 1, nullptr};
  const u32 expected = base(&y, one);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && avx2(&y, one) != expected) return 1;
  const bool has_avx512 = __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                          __builtin_cpu_supports("avx512vl");
  if (has_avx512 && avx512(&y, one) != expected) return 1;
  try {
    base(&y, {nullptr, count - 1, nullptr});  // no columns
  } catch (const SpecError&) {
    return 0;
  }
  return 2;
}
TEXT
if [[ $(uname -m) == x86_64 ]]; then
  compile() {  # compile NAME FLAGS...
    local name=$1
    shift
    c++ -std=c++20 -O1 -fopenmp -I"$1" -DNAME="$name" "${@:2}" -c "$work/unit.cpp" -o "$work/$name.o"
  }
  vectors=(-mavx2 -mfma -mf16c)
  compile base "$1" &
  compile avx2 "$1" "${vectors[@]}" &
  wait
  compile avx512 "$1" "${vectors[@]}" -mavx512f -mavx512bw -mavx512dq -mavx512vl
  c++ -std=c++20 -I"$1" "$work/main.cpp" "$work"/{avx512,avx2,base}.o -fopenmp -o "$work/program"
  "$work/program" || fail "units with different flags disagree, status $?"
  # A child knows that its parent's threads stayed behind, whatever instruction set either calls.
  cat >"$work/fork.cpp" <<'TEXT'
#include "kernels/host/parallel.h"
using namespace outgrad::kernels;
void NAME(long* sums) { parallel_for(2, 2, [&](i64 task) { sums[task] = task; }); }
TEXT
  cat >"$work/fork_main.cpp" <<'TEXT'
#include <sys/wait.h>
#include <unistd.h>
void base(long*);
void avx2(long*);
int main() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
  long sums[2];
  base(sums);
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // one that waits for threads that it has not dies
    avx2(sums);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status != 0;
}
TEXT
  c++ -std=c++20 -O1 -fopenmp -I"$1" -DNAME=base -c "$work/fork.cpp" -o "$work/fork_base.o"
  c++ -std=c++20 -O1 -fopenmp -I"$1" -DNAME=avx2 "${vectors[@]}" -c "$work/fork.cpp" -o "$work/fork_avx2.o"
  c++ -std=c++20 -fopenmp "$work/fork_main.cpp" "$work"/fork_{base,avx2}.o -o "$work/forks"
  "$work/forks" ||
    fail "a child that calls another instruction set's kernels than its parent did does not end"

  # A unit without exceptions, before or behind one with them, changes nothing there.
  cat >"$work/without.cpp" <<'TEXT'
#include "kernels/host/refusal.h"
void without(bool b) { if (b) outgrad::kernels::detail::refuse("a refusal that ends the program"); }
TEXT
  cat >"$work/with.cpp" <<'TEXT'
#include "kernels/host/refusal.h"
void without(bool);
int main(int count, char**) {
  without(count > 1);
  try {
    outgrad::kernels::detail::refuse("one that is caught");
  } catch (const outgrad::kernels::SpecError&) {
    return 0;
  }
}
TEXT
  c++ -std=c++20 -I"$1" -fno-exceptions -c "$work/without.cpp" -o "$work/without.o"
  c++ -std=c++20 -I"$1" -c "$work/with.cpp" -o "$work/with.o"
  for order in "without with" "with without"; do
    read -r one other <<<"$order"
    c++ "$work/$one.o" "$work/$other.o" -o "$work/exceptions"
    "$work/exceptions" || fail "$one.o before $other.o: a refusal is not caught"
  done

  # What two units hold under one name, the linker takes from either: no function of ours may be among it.
  ours() {
    nm "$work/$1.o" | awk '$2 == "W" {print $3}' | grep -E '7outgrad7kernels' |
      grep -vE '^_ZN7outgrad7kernels9SpecError' | sort -u
  }
  for pair in "base avx2" "base avx512" "avx2 avx512"; do
    read -r one other <<<"$pair"
    ours "$one" >"$work/one"
    ours "$other" >"$work/other"
    [[ -s $work/one && -s $work/other ]] || fail "$pair: no inline functions were found"
    both=$(comm -12 "$work/one" "$work/other")
    [[ -z $both ]] || fail "$pair: both define $both"
  done
else
  echo "not x86-64: there is one instruction set"
fi
exit $((failures > 0))
