#!/usr/bin/env bash
# Sourced by tests that build projects: a folder that is removed at the end, and commands that have to
# succeed.

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# attempt WHAT COMMAND...: the command's output is shown if it fails.
attempt() {
  local what=$1 log=$work/log
  shift
  if ! "$@" >"$log" 2>&1; then
    cat "$log"
    echo "FAILED: $what"
    exit 1
  fi
}
