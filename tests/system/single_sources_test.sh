#!/usr/bin/env bash
# Every source compiles by itself, without a warning, as it does together with the others of its folder
# (OUTGRAD_UNITY).
# usage: single_sources_test.sh REPOSITORY BUILD
set -euo pipefail
root=$1 folder=$2/single
fail() { echo "FAILED: $*"; exit 1; }
cmake -S "$root" -B "$folder" -DCMAKE_BUILD_TYPE=Release -DOUTGRAD_UNITY=OFF -DOUTGRAD_WERROR=ON \
  -DOUTGRAD_CUDA=OFF > "$folder.log" 2>&1 || fail "$folder.log"
# A line for each source of these folders: where it is compiled and the command, which only checks. The seeded
# copies of the kernels are not made here.
python3 - "$root" "$folder" > "$folder/commands" <<'PYTHON'
import json, shlex, sys
root, folder = sys.argv[1:]
places = tuple(f"{root}/{place}/" for place in ("approx", "autotune", "validation", "tests"))
for entry in json.load(open(f"{folder}/compile_commands.json")):
    if entry["file"].startswith(places) and "/mutants/" not in entry["command"]:
        print(f"cd {shlex.quote(entry['directory'])} && {entry['command']} -fsyntax-only")
PYTHON
count=$(wc -l < "$folder/commands")
((count > 200)) || fail "only $count sources"
tr '\n' '\0' < "$folder/commands" | xargs -0 -P "$(nproc)" -n 1 bash -c > "$folder/errors" 2>&1 ||
  { head -n 20 "$folder/errors"; fail "$folder/errors"; }
echo "$count sources"
