#!/usr/bin/env bash
# Every source has the layout of .clang-format, what `emit` and the tuner wrote apart. To format them: format_test.sh REPOSITORY BUILD --fix.
# usage: format_test.sh REPOSITORY BUILD [--fix]
set -euo pipefail
formatter=$("$BASH" "$1/tests/system/pinned_tool.sh" clang-format "$2") || exit $?
cd "$1"
mode=(--dry-run -Werror)
[[ ${3:-} != --fix ]] || mode=(-i)
find approx autotune kernels tests validation \( -name '*.h' -o -name '*.c' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) \
  -not -path 'kernels/generated/*' -print0 | xargs -0 "$formatter" "${mode[@]}" 2>&1 | grep -A 2 'error:' | head -n 30 && exit 1
[[ ${PIPESTATUS[1]} == 0 ]]
