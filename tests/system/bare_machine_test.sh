#!/usr/bin/env bash
# What a GPU machine does with the committed files, on a machine of its own: a Debian of compilers, CMake,
# ninja and Python alone, with the CUDA toolkit outside the loader's cache, no network and no development
# libraries; all stages of tests/gpu/gpu_run.sh to their end, the tuner over the stand-in for the driver.
# Nothing but the GPU may be missing there. The root is kept in BUILD/bare-machine, 1 GB.
# usage: bare_machine_test.sh REPOSITORY BUILD
set -euo pipefail
root=$1 build=$2
skip() { echo "SKIPPED: $*"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }

[[ $EUID -eq 0 ]] || skip "a bare root takes root"
nvcc=$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
[[ -x $nvcc ]] || skip "no CUDA toolkit"
toolkit=${nvcc%/bin/nvcc}
driver=$(find "$build" -path "$build/bare-machine" -prune -o -name liboutgrad-stand-in-driver.so -print -quit)
stand_in=$(find "$build" -path "$build/bare-machine" -prune -o -type f -name outgrad-gpu-stand-in \
  -print -quit)
[[ -n $driver && -n $stand_in ]] || skip "no stand-ins for the driver and the runtime in this build"
command -v debootstrap > /dev/null || skip "no debootstrap"
unshare -mn true 2> /dev/null || skip "no namespaces of its own"

# ---- The root: what the first GPU machine had, Debian 13's g++ 13. From where this machine's own packages
# come.
suite=trixie packages=g++-13,cmake,ninja-build,python3
bare=$build/bare-machine
if [[ $(cat "$bare/made-of" 2> /dev/null) != "$suite $packages" ]]; then
  # shellcheck source=/dev/null
  release=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  # shellcheck disable=SC2016  # apt-get's own
  mirror=$(apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Created-By: Packages' 2> /dev/null |
    awk -v r="$release" '$1 == r { print $2; exit }')
  [[ -n $mirror ]] || skip "apt has no Debian mirror here"
  rm -rf "$bare"
  mkdir -p "$bare"
  debootstrap --variant=minbase --include="$packages" "$suite" "$bare/root" "$mirror" \
    > "$bare/debootstrap.log" 2>&1 ||
    skip "debootstrap $suite: $(tail -n 1 "$bare/debootstrap.log")"
  rm -rf "$bare/root/var/cache/apt/archives"
  echo "$suite $packages" > "$bare/made-of"
fi
bare=$bare/root
for name in c++:g++ g++:g++ cc:gcc gcc:gcc; do
  ln -sf "/usr/bin/${name#*:}-13" "$bare/usr/local/bin/${name%:*}"
done

# ---- What is carried there: the committed and the changed files, the pack, and what stands in for a GPU.
rm -rf "$bare/srv" "$bare/opt"
mkdir -p "$bare"/srv/{outgrad,pack,out} "$bare/opt/cuda"
(cd "$root" && git ls-files -z --cached --others --exclude-standard | xargs -0 ls -d 2> /dev/null |
  tar -cf - -T -) | tar -xf - -C "$bare/srv/outgrad"
"$root/tests/gpu/gpu_run.sh" --pack "$bare/srv/pack" > /dev/null || skip "no headers to pack here"
cp "$driver" "$bare/srv/libcuda.so"
cat > "$bare/usr/local/bin/nvidia-smi" << 'END'
#!/usr/bin/env bash
case $* in
  *query-gpu*) echo "0, GPU-stand-in, 9.0, Disabled, Default, Stand-in GPU, 580.1, 1 MHz, 2 MHz, 3" ;;
  *query-compute-apps*) ;;
  *) echo "| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: 13.0 |" ;;
esac
END
chmod +x "$bare/usr/local/bin/nvidia-smi"

# a command there: no network, an environment that says where the toolkit is only by PATH; a device of 16 MiB,
# whose arrays a host computes in no time
there() {
  # shellcheck disable=SC2016  # for the shell in the namespace
  unshare -mn bash -c '
    mount --bind -o ro "$1" "$0/opt/cuda" && mount -t proc proc "$0/proc" &&
      mount --rbind /dev "$0/dev" || exit 99
    shift && exec chroot "$0" /usr/bin/env -i PATH=/opt/cuda/bin:/usr/local/bin:/usr/bin:/bin HOME=/root \
      OUT=/srv/out OUTGRAD_GPU_BUILD=/srv/build OUTGRAD_PACK_DIR=/srv/pack \
      OUTGRAD_LIBCUDA=/srv/libcuda.so OUTGRAD_STAND_IN_MEMORY=$((16 << 20)) "$@"' "$bare" "$toolkit" "$@"
}
! there /sbin/ldconfig -p | grep -q libnvrtc || fail "the toolkit is in the loader's cache"

out=$bare/srv/out
said=$bare/srv/said
run() {  # status, words of gpu_run.sh: what it says is in $said
  local want=$1 got=0
  shift
  there bash /srv/outgrad/tests/gpu/gpu_run.sh "$@" > "$said" 2>&1 || got=$?
  if [[ $got != "$want" ]]; then
    tail -n 40 "$said"
    cat "$out/failure.log" 2> /dev/null || true
    fail "gpu_run.sh $*: status $got instead of $want"
  fi
}
# What failed, but for the lack of a device, which outgrad-gpu says in a line.
others() {
  grep -E '^FAILED|^CUT|^NOT RUN|NOT COPIED' "$said" |
    grep -vE '^FAILED with status 3: outgrad-gpu (time|equality|streams|digests)$' || true
}

# ---- first
run 3 first
cat "$said"
grep -q '^outgrad-gpu built: ' "$said" || fail "outgrad-gpu was not built"
[[ -z $(others) ]] || fail "$(others)"
for command in time equality streams digests; do
  grep -qx "FAILED with status 3: outgrad-gpu $command" "$said" ||
    fail "outgrad-gpu $command ran without a device"
done
[[ $(grep -c 'outgrad-gpu: device: no NVIDIA driver' "$said") == 5 ]] ||
  fail "something else than the device is missing"
there /srv/build/outgrad-gpu arguments > /dev/null || fail "outgrad-gpu does not run there"

# What the build costs 16 cores, half of which wait for the longest units: stage first has 60 s for it. It is
# printed for who changes the units, and judged by nobody: these are seconds of this machine, with whatever
# else it does.
cpu=$(sed -nE 's/^outgrad-gpu built: [0-9]+ s, ([0-9]+) s of CPU$/\1/p' "$said")
longest=$(awk 'NR > 1 { t = ($2 - $1) / 1000; if (t > most) { most = t; unit = $4 } }
  END { printf "%.0f s, %s", most, unit }' "$bare/srv/build/.ninja_log")
echo "outgrad-gpu: $cpu s of CPU, $((cpu / 8)) s on 8 of 16 cores; the longest unit here: $longest"

# ---- tune, over the stand-in for the driver and the real NVRTC
run 0 tune --budget 40
[[ -z $(others) ]] || fail "$(others)"
grep -E ' built: ' "$said" | tail -n 1
gzip -dc "$out/tune_stand_in_gpu.jsonl.gz" > "$bare/srv/database"
grep -q '"state":"timed"' "$bare/srv/database" || fail "nothing was timed"
! grep -o '"reason":"compiler[^"]*","stage":"compile"' "$bare/srv/database" | sort | uniq -c | grep . ||
  fail "a variant did not compile there"
[[ -s $out/tuned_stand_in_gpu.h ]] || fail "no tuned header"

# ---- check, which the toolkit here may not have
run 0 check
grep -q '^SKIPPED: no compute-sanitizer' "$said" || grep -q 'does not run here' "$said" || fail "$(< "$said")"

# ---- All to their end, torch without PyTorch, with the digests over the stand-in for the runtime: what was
# built is up to date, whatever lies in its place.
cp "$stand_in" "$bare/srv/outgrad-gpu-stand-in"
mv "$bare/srv/build/outgrad-gpu" "$bare/srv/outgrad-gpu-built"
cat > "$bare/srv/build/outgrad-gpu" << 'END'
#!/usr/bin/env bash
if [[ $1 == digests ]]; then exec /srv/outgrad-gpu-stand-in "$@" --reduced; fi
exec /srv/outgrad-gpu-built "$@"
END
chmod +x "$bare/srv/build/outgrad-gpu"
# a newer one ninja would link again, as the linker has told it what that depends on
touch -r "$bare/srv/outgrad-gpu-built" "$bare/srv/build/outgrad-gpu"
rm -rf "${out:?}"/*
run 3 --budget 10
cat "$said"
[[ -z $(others) ]] || fail "$(others)"
[[ $(grep -c 'as the sweep$' "$said") == 6 ]] || fail "the digests there are not the sweeps'"
[[ $(grep -cE '^==== (first|torch|tune|check):' "$said") == 4 ]] || fail "not all stages came to their end"
for file in summary.txt checks.json tune_stand_in_gpu.jsonl.gz tuned_stand_in_gpu.h; do
  [[ -s $out/$file ]] || fail "no $file: $(ls "$out")"
done
[[ $(find "$out" -type f | wc -l) -le 8 ]] || fail "more than 8 files: $(ls "$out")"
echo "all stages to their end; missing was the GPU alone"
