#!/usr/bin/env bash
# pinned_tool.sh NAME BUILD: prints the path of the tool NAME (nvdisasm, clang-format), which it fetches into
# BUILD at first use: the release that NAME_requirements.txt pins, checked by its hash. Exit status 77, and
# the reason on stderr, if it cannot be fetched (no pip, no network, another processor) and no other serves; 1
# if what was fetched has another hash.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=$1 folder=$2/$1 log=$2/$1.log
requirements=$here/${name//-/_}_requirements.txt

# Where the tool lies in its wheel; which other one may stand in, for want of the pinned.
case $name in
  nvdisasm)
    inside=nvidia/cu13/bin/nvdisasm
    others=(nvdisasm "${CUDA_PATH:-}/bin/nvdisasm" "${CUDA_HOME:-}/bin/nvdisasm" /usr/local/cuda/bin/nvdisasm)
    ;;
  clang-format)
    inside=clang_format/data/bin/clang-format
    others=()  # another release breaks lines elsewhere
    ;;
  *) echo "pinned_tool.sh: $name is no tool of these tests" >&2; exit 1 ;;
esac

mkdir -p "$2"
exec 9>"$folder.lock"
flock 9  # tests run side by side
if [[ ! -x $folder/$inside || ! $folder/requirements.txt -nt $requirements ]]; then
  rm -rf "$folder" "$folder.new"
  mkdir -p "$folder.new"
  if timeout 120 python3 -m pip download --quiet --disable-pip-version-check --retries 1 --timeout 15 \
    --no-deps --only-binary=:all: \
       --require-hashes -r "$requirements" -d "$folder.new" >"$log" 2>&1 &&
     python3 -m zipfile -e "$folder.new"/*.whl "$folder.new" >>"$log" 2>&1; then
    rm "$folder.new"/*.whl
    chmod +x "$folder.new/$inside"
    cp "$requirements" "$folder.new/requirements.txt"
    mv "$folder.new" "$folder"
  else
    rm -rf "$folder.new"
    if grep -q 'DO NOT MATCH THE HASHES' "$log"; then
      echo "$name: what pip fetched is not the pinned release, see $log" >&2
      exit 1
    fi
    for other in "${others[@]}"; do
      if command -v "$other"; then exit 0; fi
    done
    echo "no $name: not installed, and pip could not fetch it ($(grep . "$log" | tail -n 1))" >&2
    exit 77
  fi
fi
echo "$folder/$inside"
