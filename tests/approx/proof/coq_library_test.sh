#!/usr/bin/env bash
# Coq accepts the hand-written library of approx/proof/coq for each activation, in the order of its
# _CoqProject, its files have the digests that are listed, and its theorems rest on no axiom that the list
# approx/proof/coq/assumptions lacks, or has with another statement. usage: coq_library_test.sh REPOSITORY
# BUILD
set -euo pipefail
command -v coqc >/dev/null ||
  { echo "skipped: coqc is not installed (Debian packages coq, libcoq-interval, libcoq-gappa)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$1"/approx/proof/coq/* "$work"
cd "$work"
mapfile -t files < <(grep '\.v$' _CoqProject)
[[ $(printf '%s\n' "${files[@]}" | sort) == "$(ls -- *.v)" ]] ||
  { echo "_CoqProject does not list the files that are there"; exit 1; }
sha256sum --quiet -c library.sha256 ||
  { echo "FAILED: approx/proof/coq/library.sha256 is not of these files"; exit 1; }
[[ $(wc -l <library.sha256) == "${#files[@]}" ]] ||
  { echo "FAILED: approx/proof/coq/library.sha256 does not list every file"; exit 1; }

compile() {
  ulimit -v 3000000  # kilobytes: a proof that needs more is not one that a laptop checks
  timeout 900 coqc -q -w -ambiguous-paths -Q . Outgrad "$1"
}

# An axiom and its statement in one line each.
statements() {
  awk '/^#/ || /^Axioms:/ || /^$/ { next } { gsub(/ +/, " "); sub(/ $/, "") }
    !/^ / && seen++ { print "" } { printf "%s", $0 } END { print "" }' "$1" | sort -u
}

# The files for one activation, without those of the others.
accept() {
  local activation=$1 others=$2 theorems used allowed beyond files
  sed -i "s/Export .*\./Export $activation./" Activation.v
  mapfile -t files < <(grep '\.v$' _CoqProject | grep -vE "^($others)")
  for file in "${files[@]}"; do
    compile "$file" || { echo "FAILED: coqc does not accept $file"; exit 1; }
  done
  # Every theorem of the library at once, because each printing walks through all that coq-interval rests on;
  # an Admitted one would be printed as an axiom by its name.
  theorems=$(for file in "${files[@]}"; do
    sed -nE "s/^(Theorem|Lemma|Corollary) ([A-Za-z_0-9']+).*/@${file%.v}.\2/p" "$file"
  done | paste -sd,)
  {
    # Names in full, so that statements are printed as `certify --coq` has them printed.
    echo "From Outgrad Require ${files[*]%.v}."
    echo "Definition all_theorems := ($theorems)."
    echo 'Print Assumptions all_theorems.'
  } >Trust.v
  compile Trust.v >printed || { echo "FAILED: the assumptions cannot be printed"; exit 1; }
  used=$(statements printed)
  # What may be used; an empty list would mean that the printing was not understood.
  allowed=$(statements assumptions)
  [[ $used == *sig_forall_dec* ]] ||
    { echo "FAILED: the axioms of the real numbers are not printed:"; head -n 20 printed; exit 1; }
  beyond=$(comm -23 <(echo "$used") <(echo "$allowed"))
  [[ -z $beyond ]] || { echo "FAILED: assumptions that are not in the list:"; echo "$beyond"; exit 1; }
  echo "$activation: $(tr , '\n' <<<"$theorems" | wc -l) theorems, $(wc -l <<<"$used") assumptions"
}

accept Gelu 'Swish|TanhGelu'
accept Swish 'Gelu|TanhGelu'
accept TanhGelu 'Gelu|Swish'
