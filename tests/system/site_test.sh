#!/usr/bin/env bash
# The site of the pages: MkDocs builds it without a warning, the public names of the Python package and of
# the headers are on its pages with what their comments say, and a link that leads nowhere stops it. Exit
# status 77 where pip cannot fetch MkDocs, or without doxygen.
# usage: site_test.sh REPOSITORY BUILD
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v doxygen >/dev/null || { echo "SKIPPED: no doxygen here"; exit 77; }
requirements=$1/docs/site_requirements.txt
python=$2/mkdocs/bin/python
if ! cmp -s "$requirements" "$2/mkdocs/requirements.txt"; then
  rm -rf "$2/mkdocs"
  if ! { python3 -m venv "$2/mkdocs" &&
    "$python" -m pip install --quiet --disable-pip-version-check --retries 1 -r "$requirements"; } \
    >"$work/log" 2>&1; then
    echo "SKIPPED: pip cannot fetch MkDocs: $(tail -n 1 "$work/log")"
    exit 77
  fi
  cp "$requirements" "$2/mkdocs/requirements.txt"
fi
# A copy: the site is built of what git would have, and a page of it is broken below.
mkdir "$work/copy"
(cd "$1" && tar -cf - --exclude=./build --exclude=./build-* --exclude=./out --exclude=./.git .) |
  tar -xf - -C "$work/copy"
"$python" "$work/copy/docs/site.py" "$work/site"
[[ -s $work/site/html/index.html && -s $work/site/html/docs/train_with_it/index.html ]] ||
  { echo "FAILED: pages are missing"; exit 1; }
api=$work/site/html/api/index.html
for name in patch gelu layer_norm CodedActivation; do
  grep -q "id=\"outgrad.*$name\"" "$api" || { echo "FAILED: the page of the interface has no $name"; exit 1; }
done
grep -q "Shapes: x" "$api" || { echo "FAILED: the page of the interface has no docstrings"; exit 1; }
headers=$work/site/html/headers
for page in "outgrad_8h What is kept for the backward pass in place of x" \
  "structoutgrad__call The arguments of a function" "api_8h The plain entry points on the CPU" \
  "api_8h outgrad::kernels::gelu_backward" "files norm_kernels.cuh"; do
  grep -q "${page#* }" "$headers/${page%% *}.html" ||
    { echo "FAILED: no \"${page#* }\" in ${page%% *}"; exit 1; }
done
for name in $(sed -nE 's/^OUTGRAD_API .*(outgrad_[a-z0-9_]+)\(.*/\1/p' "$1/kernels/c/outgrad.h"); do
  grep -q "$name()</h2>" "$headers/outgrad_8h.html" ||
    { echo "FAILED: the headers' pages have no $name"; exit 1; }
done

echo '[nowhere](nowhere.md)' >>"$work/copy/docs/build.md"
if "$python" "$work/copy/docs/site.py" "$work/site" >"$work/log" 2>&1; then
  echo "FAILED: a link that leads nowhere passes"
  exit 1
fi
grep -q 'nowhere.md' "$work/log" || { cat "$work/log"; echo "FAILED: the broken link is not named"; exit 1; }
