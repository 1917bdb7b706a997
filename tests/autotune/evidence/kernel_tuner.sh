#!/usr/bin/env bash
# kernel_tuner.sh DIR: prints a folder that, in PYTHONPATH, gives python3 the pinned Kernel Tuner; fetched
# into DIR at first use, checked by hashes. Exit status 77, and the reason on stderr, if it cannot be had here
# (no pip, no network, another Python or processor); 1 if what was fetched has another hash.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1/kernel_tuner
requirements=$here/kernel_tuner_requirements.txt
mkdir -p "$1"
wanted="cpython 3.11 x86_64"
found=$(python3 -c \
  'import platform, sys; print(sys.implementation.name, "%d.%d" % sys.version_info[:2], platform.machine())' \
  2>/dev/null || echo "no python3")
if [[ $found != "$wanted" ]]; then
  echo "Kernel Tuner: the pinned packages are for $wanted, here is $found" >&2
  exit 77
fi
exec 9>"$1/kernel_tuner.lock"
flock 9  # tests run side by side
if [[ ! $folder/requirements.txt -nt $requirements ]]; then
  rm -rf "$folder" "$folder.new"
  if ! timeout 300 python3 -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 \
    --no-deps --only-binary=:all: \
       --require-hashes -r "$requirements" --target "$folder.new" >"$1/kernel_tuner.log" 2>&1; then
    rm -rf "$folder.new"
    if grep -q 'DO NOT MATCH THE HASHES' "$1/kernel_tuner.log"; then
      echo "Kernel Tuner: what pip fetched is not the pinned release, see $1/kernel_tuner.log" >&2
      exit 1
    fi
    echo "Kernel Tuner: pip could not fetch it ($(grep . "$1/kernel_tuner.log" | tail -n 1))" >&2
    exit 77
  fi
  cp "$requirements" "$folder.new/requirements.txt"
  touch "$folder.new/requirements.txt"
  mv "$folder.new" "$folder"
fi
echo "$folder"
