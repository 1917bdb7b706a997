#!/usr/bin/env bash
# nvdisasm.sh DIR: prints the path of an nvdisasm, which it fetches into DIR at first use: the pinned release, checked by its hash. Without
# that (no pip, no network, another processor) one that is installed serves. Exit status 77, and the reason on stderr, if there is none;
# 1 if what was fetched has another hash.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1/nvdisasm
binary=$folder/nvidia/cu13/bin/nvdisasm
requirements=$here/nvdisasm_requirements.txt
mkdir -p "$1"
exec 9>"$1/nvdisasm.lock"
flock 9  # tests run side by side
if [[ ! -x $binary || ! $folder/requirements.txt -nt $requirements ]]; then
  rm -rf "$folder" "$folder.new"
  mkdir -p "$folder.new"
  if timeout 120 python3 -m pip download --quiet --disable-pip-version-check --retries 1 --timeout 15 --no-deps --only-binary=:all: \
       --require-hashes -r "$requirements" -d "$folder.new" >"$1/nvdisasm.log" 2>&1 &&
     python3 -m zipfile -e "$folder.new"/*.whl "$folder.new" >>"$1/nvdisasm.log" 2>&1; then
    rm "$folder.new"/*.whl
    chmod +x "$folder.new/nvidia/cu13/bin/nvdisasm"
    cp "$requirements" "$folder.new/requirements.txt"
    mv "$folder.new" "$folder"
  else
    rm -rf "$folder.new"
    if grep -q 'DO NOT MATCH THE HASHES' "$1/nvdisasm.log"; then
      echo "nvdisasm: what pip fetched is not the pinned release, see $1/nvdisasm.log" >&2
      exit 1
    fi
    binary=$(command -v nvdisasm || true)
    for cuda in "${CUDA_PATH:-}" "${CUDA_HOME:-}" /usr/local/cuda; do
      if [[ -z $binary && -n $cuda && -x $cuda/bin/nvdisasm ]]; then binary=$cuda/bin/nvdisasm; fi
    done
    if [[ -z $binary ]]; then
      echo "no nvdisasm: not installed, and pip could not fetch it ($(grep . "$1/nvdisasm.log" | tail -n 1))" >&2
      exit 77
    fi
  fi
fi
echo "$binary"
