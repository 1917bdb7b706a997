#!/usr/bin/env bash
# Every source has the layout of .clang-format, what `emit` and the tuner wrote apart; with --fix they are
# laid out so. Lines of prose have at most 120 columns: those of pages, but for tables and code.
# usage: format_test.sh REPOSITORY BUILD [--fix]
set -euo pipefail
formatter=$("$BASH" "$1/tests/system/pinned_tool.sh" clang-format "$2") || exit $?
cd "$1"
mode=(--dry-run -Werror)
[[ ${3:-} != --fix ]] || mode=(-i)
long=$(find . \( -name 'build*' -o -name out -o -name .git \) -prune -o -name '*.md' -exec awk '
  FNR == 1 { code = 0 }
  /^```/ { code = !code }
  !code && length > 120 && !/^(\||    )/ { print FILENAME ":" FNR ": " length " columns" }' {} +)
[[ -z $long ]] || { echo "$long"; exit 1; }
find approx autotune kernels tests validation \( -name '*.h' -o -name '*.c' -o -name '*.cpp' -o -name '*.cu' \
  -o -name '*.cuh' \) \
  -not -path 'kernels/generated/*' -print0 | xargs -0 "$formatter" "${mode[@]}" 2>&1 | grep -A 2 'error:' |
  head -n 30 && exit 1
[[ ${PIPESTATUS[1]} == 0 ]]
