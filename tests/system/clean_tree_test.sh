#!/usr/bin/env bash
# The committed artefacts are what the tools make of the committed specifications, and making them leaves the
# tree as it was: fit + emit of the 16-bit formats (a few seconds each; f32 is fit_test's) inside a copy of
# the checkout, then git status.
# usage: clean_tree_test.sh REPOSITORY BUILD
set -euo pipefail
of_checkout() { git -c safe.directory='*' -C "$1" "${@:2}"; }  # also where it is another user's
if ! command -v git >/dev/null || ! of_checkout "$1" rev-parse HEAD >/dev/null 2>&1; then
  echo "skipped: this is no git checkout"
  exit 77
fi
if [[ ! -x $2/outgrad-fit ]]; then
  echo "skipped: a build without the fitter"
  exit 77
fi
export OUTGRAD_BUILD_DIR=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# What a commit of the tree as it stands would hold.
of_checkout "$1" ls-files -z --cached --others --exclude-standard |
  while IFS= read -r -d '' file; do [[ ! -e $1/$file ]] || printf '%s\0' "$file"; done |
  tar -C "$1" --null --files-from=- -cf - | tar -C "$work" -xf -
cd "$work"
git init -q . && git add . && git -c user.name=t -c user.email=t@t commit -qm t

for name in gelu_bf16 gelu_f16; do
  ./outgrad fit "approx/specs/$name.json" --out "out/fits/$name.json" --threads 1 --no-check >/dev/null
  cp "out/fits/$name.json" notebooks_data/fits/
  ./outgrad emit "notebooks_data/fits/$name.json" --out "out/generated/$name.h" >/dev/null
  cp "out/generated/$name.h" kernels/generated/
done
dirt=$(git status --porcelain)
if [[ -n $dirt ]]; then
  echo "FAILED: fit and emit do not give the committed files:"
  echo "$dirt"
  exit 1
fi
