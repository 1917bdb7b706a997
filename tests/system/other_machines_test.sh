#!/usr/bin/env bash
# The suite on machines that this one is not: tests that read what the machine is run under each pretence, and
# pass or are skipped.
#
#   foreign   the three below that it can be at once; which of them a failure is of, each alone tells
#     cores_64  64 cores, as far as programs ask for their number
#     locale    German, where numbers have commas, and India's time
#     user      not root, the checkout on a read-only file system, the build outside it
#   cores_1   one core; this process and what it starts are bound to it
#   load      eight processes that are busy all the time
#   avx2      no AVX-512, in what is compiled for this machine and in the C library's choice: a build of its
#             own
#   baseline  no AVX2: likewise
#
# usage: other_machines_test.sh REPOSITORY BUILD [MACHINE...]; TESTS is ctest's expression for the tests to
# run in place of a machine's own
set -euo pipefail
root=$(readlink -f "$1") build=$(readlink -f "$2")
shift 2
(($#)) || set -- foreign cores_1 load avx2 baseline
scratch=$(mktemp -d)
trap 'kill "${busy[@]}" 2>/dev/null || true; rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
busy=() failures=0 lacks=0

lack() {
  echo "SKIPPED: $machine: $*"
  lacks=$((lacks + 1))
}

# suite BUILD TESTS COMMAND...: ctest under the command, on as many cores as there are for it. What is long or
# other machines' is left out.
suite() {
  local folder=$1 tests=${TESTS:-$2} status=0
  shift 2
  # In a folder of its own: another ctest may be at work in the build, and has called this.
  mkdir -p "$scratch/suite"
  echo "subdirs(\"$folder\")" >"$scratch/suite/CTestTestfile.cmake"
  chmod -R a+rwX "$scratch/suite"
  # shellcheck disable=SC2016  # nproc under the command, which would answer with OMP_NUM_THREADS
  "$@" bash -c 'exec ctest -j "$(env -u OMP_NUM_THREADS nproc)" "$@"' ctest --test-dir "$scratch/suite" \
    --output-on-failure --no-tests=error -LE 'exhaustive|nightly|gpu' -R "$tests" \
    >"$scratch/$machine.log" 2>&1 || status=$?
  printf '%-9s %s\n' "$machine" \
    "$(grep -E '% tests passed' "$scratch/$machine.log" || tail -n 1 "$scratch/$machine.log")"
  ((status == 0)) || { cat "$scratch/$machine.log"; failures=$((failures + 1)); }
}

# A compiler that takes this machine for another: what is compiled for it is compiled for the level given.
compiler_of() {
  cat >"$scratch/c++-$1" <<END
#!/usr/bin/env bash
exec ${CXX:-c++} "\${@/#-march=native/-march=$1}"
END
  chmod +x "$scratch/c++-$1"
  echo "$scratch/c++-$1"
}

# lowered LEVEL ISA: a build without more than this level of x86-64, and its tests with the C library's choice
# lowered, too.
lowered() {
  [[ $(uname -m) == x86_64 ]] || { lack "no x86-64"; return; }
  local level=$1 isa=$2 folder=$build/machine-$machine compiler
  local targets=(outgrad-{kernels,forwards,autotune,gpu-stand-in}-tests outgrad-eval)
  compiler=$(compiler_of "$level")
  # The path of the compiler stays, so that a second run builds what changed and no more.
  mkdir -p "$folder"
  mv -f "$compiler" "$folder/c++"
  { cmake -S "$root" -B "$folder" -G Ninja -DCMAKE_CXX_COMPILER="$folder/c++" -DOUTGRAD_TESTS=ON \
    -DOUTGRAD_TORCH=OFF -DOUTGRAD_CUDA=OFF &&
    cmake --build "$folder" -j "$(nproc)" --target "${targets[@]}"; } >"$scratch/build.log" 2>&1 ||
    { tail -n 30 "$scratch/build.log"; failures=$((failures + 1)); return; }
  suite "$folder" '^(kernels|forwards|autotune|gpu-stand-in)\.' env OUTGRAD_ISA="$isa" CXX="$folder/c++"
}

# Tests that read the number of cores, or text that programs write.
readers='^(kernels|kernels_fuzz|autotune|validation|attack|approx|system)\.'
# Tests that go by how long something takes.
timed='^(autotune|attack)\.|^system\.(command_line|interrupt|own_function|wrapper)_test'

# What a command is put behind, by the machine it is to see: the array of that name. Each function says what
# it lacks.
see_cores_64() {
  # What C++ and OpenMP go by. Threads that wait give way: there are not as many cores as they take for
  # granted.
  cc -shared -fPIC -O1 -o "$scratch/cores.so" -x c - <<'END'
int get_nprocs(void) { return 64; }
int get_nprocs_conf(void) { return 64; }
int omp_get_num_procs(void) { return 64; }
END
  cores_64=(env LD_PRELOAD="$scratch/cores.so" OMP_NUM_THREADS=64 OMP_WAIT_POLICY=passive)
}

see_locale() {
  localedef -i de_DE -f UTF-8 "$scratch/de_DE.UTF-8" 2>"$scratch/localedef" ||
    { lack "$(tail -n 1 "$scratch/localedef")"; return 1; }
  locale=(env LOCPATH="$scratch" LC_ALL=de_DE.UTF-8 TZ=Asia/Kolkata)
}

see_user() {
  mkdir -p "$scratch"/{lower,upper,over,joined}
  # shellcheck disable=SC2016  # for the shell in the namespace
  if ((EUID != 0)) ||
    ! unshare -m bash -c 'mount -t tmpfs none "$1/over" && mkdir "$1/over/work" "$1/over/upper" &&
      mount -t overlay overlay -o "lowerdir=$1/lower,upperdir=$1/over/upper,workdir=$1/over/work" \
        "$1/joined"' lower "$scratch" 2>/dev/null; then
    lack "another user and file system take root, and a kernel with overlays"
    return 1
  fi
  # The build is written in a layer over it, which is anybody's.
  mkdir -p "$scratch/work"
  # shellcheck disable=SC2016  # for the shell in the namespace
  user=(unshare -m bash -c '
    set -e
    mount -t tmpfs none "$3"
    mkdir "$3"/{layer,work,home}
    mount -t overlay overlay -o "lowerdir=$2,upperdir=$3/layer,workdir=$3/work" "$3/home"
    mount --bind "$1" "$1"
    mount -o remount,ro,bind "$1"
    mount --bind "$3/home" "$2"
    find "$2" -xdev \( -type d -o -type f -size -64k \) -not -path "$2/torch/*" -exec chmod a+rwX {} +
    cd /
    shift 3
    exec setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp USER=nobody "$@"' \
    user "$root" "$build" "$scratch/work")
}

for machine in "$@"; do
  case $machine in
    foreign)
      if see_cores_64 && see_locale && see_user; then
        suite "$build" "$readers" "${user[@]}" "${cores_64[@]}" "${locale[@]}"
      fi
      ;;
    cores_1)
      core=$(taskset -cp $$ | sed -E 's/.*: ([0-9]+).*/\1/')  # one that this process may run on
      suite "$build" "$readers" taskset -c "$core"
      ;;
    cores_64) see_cores_64 && suite "$build" "$readers" "${cores_64[@]}" ;;
    locale) if see_locale; then suite "$build" "$readers" "${locale[@]}"; fi ;;
    user) if see_user; then suite "$build" "$readers" "${user[@]}"; fi ;;
    load)
      for ((i = 0; i < 8; ++i)); do
        bash -c 'while :; do :; done' &
        busy+=($!)
      done
      suite "$build" "$timed"
      kill "${busy[@]}"
      busy=()
      ;;
    avx2) lowered x86-64-v3 avx2 ;;
    baseline) lowered x86-64 baseline ;;
    *) echo "$machine: none of the machines of this test" >&2; exit 2 ;;
  esac
done
((failures == 0)) || exit 1
((lacks < $#)) || exit 77
