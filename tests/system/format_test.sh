#!/usr/bin/env bash
# C++ and CUDA have the layout of .clang-format, which --fix gives them. No line of a source has more than 110
# columns, and no line of a page's prose more than 120. What is generated or data is left out: headers and
# schedules that programs wrote, what programs say of their options, JSON, pictures, hashes and corpora.
# usage: format_test.sh REPOSITORY BUILD [--fix]
set -euo pipefail
formatter=$("$BASH" "$1/tests/system/pinned_tool.sh" clang-format "$2") || exit $?
cd "$1"
mode=(--dry-run -Werror)
[[ ${3:-} != --fix ]] || mode=(-i)
folders=(approx autotune examples kernels tests validation)
find "${folders[@]}" \( -name '*.h' -o -name '*.c' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
  -not -path 'kernels/generated/*' -print0 | xargs -0 "$formatter" "${mode[@]}" 2>&1 | grep -A 2 'error:' |
  head -n 30 && exit 1
[[ ${PIPESTATUS[1]} == 0 ]]
long=$(
  find . \( -name 'build*' -o -name out -o -name .git \) -prune -o -name '*.md' -exec awk '
    FNR == 1 { code = 0 }
    /^```/ { code = !code }
    !code && length > 120 && !/^(\||    )/ { print FILENAME ":" FNR ": " length " columns" }' {} +
  find CMakeLists.txt outgrad .ci .clang-* cmake docs notebooks_data/*/*.py "${folders[@]}" \
    \( -path kernels/generated -o -path docs/help -o -name spec_corpus -o -name '*cache*' \) -prune -o \
    -type f -not \( -name '*.md' -o -name '*.json' -o -name '*.svg' -o -name '*requirements.txt' \) \
    -exec awk 'length > 110 { print FILENAME ":" FNR ": " length " columns" }' {} +
)
[[ -z $long ]] || { echo "$long"; exit 1; }
