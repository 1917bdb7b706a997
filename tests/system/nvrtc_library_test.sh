#!/usr/bin/env bash
# The CUDA run-time compiler in folders that the loader does not know: without its builtins it is said to be
# half a compiler, as an environment error; with them beside it, named by a variable or found by nvcc's place,
# it compiles. usage: nvrtc_library_test.sh REPOSITORY BUILD
set -euo pipefail
build=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*"; cat "$work/said"; exit 1; }

nvcc=$(readlink -f "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")
toolkit=${nvcc%/bin/nvcc}
target=targets/x86_64-linux/lib
[[ $(uname -m) != aarch64 ]] || target=targets/sbsa-linux/lib
compiler='' builtins=''
for folder in lib64 lib "$target"; do
  if [[ -z $compiler && -e $toolkit/$folder/libnvrtc.so ]]; then
    compiler=$toolkit/$folder/libnvrtc.so
    builtins=$(find "$toolkit/$folder/" -name 'libnvrtc-builtins.so.*.*' | sort | tail -n 1)
  fi
done
[[ -n $compiler && -n $builtins ]] || { echo "SKIPPED: no libnvrtc beside nvcc"; exit 77; }
# The loader started by hand can leave out its cache, which has what is installed here.
loader=$(readelf -l "$build/outgrad-tune" | sed -nE 's/.*interpreter: ([^]]*)\]/\1/p')
"$loader" --inhibit-cache "$build/outgrad-tune" --help > "$work/said" 2>&1 ||
  { echo "SKIPPED: $loader cannot leave out its cache"; exit 77; }

compile() {  # status, VARIABLE=VALUE...: of compiling one variant
  local want=$1 got=0
  shift
  rm -rf "$work/tuned"
  env -u CUDA_PATH -u CUDA_HOME -u LD_LIBRARY_PATH PATH=/usr/bin:/bin "$@" "$loader" \
    --inhibit-cache "$build/outgrad-tune" tune --device sm_90 --kernel gelu_forward --format f32 \
    --evaluations 1 --out "$work/tuned" > "$work/said" 2>&1 || got=$?
  [[ $got == "$want" ]] || fail "$*: status $got instead of $want"
}
# found LIBRARY VARIABLE=VALUE...: this library, without its builtins and with them.
found() {
  local library=$1
  shift
  compile 3 "$@"
  local why="NVRTC_ERROR_BUILTIN_OPERATION_FAILURE (status 7): $library works with ${builtins##*/}"
  grep -q "^outgrad: .*$why" "$work/said" || fail "$*: status 7 is not named"
  [[ ! -s $work/tuned/tune_sm_90.jsonl ]] || fail "$*: a variant is blamed for it"
  cp "$builtins" "$(dirname "$(readlink -f "$library")")"
  compile 0 "$@"
  grep -q '1 compiled, 1 ranked' "$work/said" || fail "$*: not compiled"
}

mkdir -p "$work"/toolkit/{bin,lib64,lib,"$target"} "$work"/{linked/lib,bin}
cp -L "$compiler" "$work/toolkit/lib64/libnvrtc.so"
found "$work/toolkit/lib64/libnvrtc.so" "CUDA_PATH=$work/toolkit"
rm "$work"/toolkit/lib64/*builtins*
mv "$work/toolkit/lib64/libnvrtc.so" "$work/toolkit/lib/libnvrtc.so"
found "$work/toolkit/lib/libnvrtc.so" "CUDA_HOME=$work/toolkit"
rm "$work"/toolkit/lib/*builtins*
# By nvcc's place alone: a link to it in PATH, the run-time's own file name, the third of the folders.
name=libnvrtc.so.$(basename "$builtins" | sed -E 's/.*so\.([0-9]+)\..*/\1/')
mv "$work/toolkit/lib/libnvrtc.so" "$work/toolkit/$target/$name"
cp /bin/true "$work/toolkit/bin/nvcc"
ln -s "$work/toolkit/bin/nvcc" "$work/bin/nvcc"
found "$work/toolkit/$target/$name" "PATH=$work/bin:/usr/bin:/bin"
rm "$work/toolkit/$target"/*builtins*
# A link to the library: the builtins are beside what it leads to.
ln -s "$work/toolkit/$target/$name" "$work/linked/lib/libnvrtc.so"
found "$work/linked/lib/libnvrtc.so" "CUDA_PATH=$work/linked"
echo "found by CUDA_PATH, CUDA_HOME, nvcc and a link; without its builtins said so"
