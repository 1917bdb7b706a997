"""Bounds that the commands show with few digits are rounded up, and what nothing goes below is rounded down:
beside the figures of the same run's JSON and of the committed headers.

usage: shown_bounds_test.py REPOSITORY BUILD
"""

import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile

CHECKPOINT = "notebooks_data/checkpoints/all-MiniLM-L6-v2.layernorm.safetensors"


def main(repository, build):
    faults = []

    def run(program, *words):
        return subprocess.run([build / program, *map(str, words)], check=True, capture_output=True,
                              text=True).stdout

    def expect(what, shown, bound, up=True):
        """A shown number, or "2^-10.80", of a bound."""
        value = float(shown[2:]) if shown.startswith("2^") else float(shown)
        exact = math.log2(bound) if shown.startswith("2^") else bound
        unseen = 1e-9 * abs(exact)  # kernels/support/bounds.h
        if not (value >= exact - unseen if up else value <= exact + unseen):
            faults.append(f"{what}: {shown} is shown of {bound!r}")

    def certificate(path):
        return {key: float.fromhex(value) for key, value in
                json.loads(path.read_text())["certificate"].items() if isinstance(value, str)}

    # stability: of each norm dx from y and by the policy; of its worst channels x^ and dgamma.
    words = ["stability", repository / CHECKPOINT]
    text = run("outgrad-check", *words)
    norms = json.loads(run("outgrad-check", *words, "--json"))["norms"]
    lines = re.findall(r"^(\S+) +\d+ .* (\S+) +(\S+) +\S+ +\d+$", text, re.MULTILINE)
    for (name, from_y, by_policy), norm in zip(lines, norms, strict=True):
        for shown, way in ((from_y, "from_output"), (by_policy, "recommended")):
            expect(f"stability {name} {way}", shown, norm["bounds"][way]["dx_rms_relative"]["worst"])
    # check: what it has proven of each claim.
    header = repository / "kernels/generated/gelu_bf16.h"
    shown = re.findall(r": (\S+) holds: proven (\S+), claimed (\S+):", run("outgrad-check", "check", header))
    findings = [each for each in json.loads(run("outgrad-check", "check", header, "--json"))["files"][0]
                ["findings"] if "claim" in each]
    for (name, proven, claimed), finding in zip(shown, findings, strict=True):
        expect(f"check {name}", proven, finding["proven"])
        expect(f"check {name}", claimed, finding["claim"])
    # emit: the comment of each claim, of codes as a decimal, too.
    claims = 0
    for header in sorted((repository / "kernels/generated").glob("*.h")):
        for name, value, power, decimal in re.findall(
                r"^  static constexpr double (\w+) = (\S+);  // (2\^\S+): ([0-9.]+$)?", header.read_text(),
                re.MULTILINE):
            claims += 1
            for shown in filter(None, (power, decimal)):
                expect(f"{header.name} {name}", shown, float.fromhex(value))
    if claims < 600:
        faults.append(f"only {claims} claims of committed headers were found")
    # table: A + B, T / O, R and A + B in ulp of every fit that has them.
    rows = 0
    fits = sorted((repository / "notebooks_data/fits").glob("*.json"))
    for row in run("outgrad-fit", "table", *fits).splitlines()[2:]:
        name, _, _, _, a_plus_b, ratio, regret, near, *_ = (cell.strip() for cell in row.split("|")[1:])
        of = certificate(repository / f"notebooks_data/fits/{name}.json")
        rows += 1
        if a_plus_b.startswith("2^"):
            expect(f"table {name} A + B", a_plus_b, of["AB"])
        if ratio:
            expect(f"table {name} T/O", ratio, of["T"] / of["O"])
        if regret:
            expect(f"table {name} R", regret, of["R"])
        for ulp in re.findall(r"A \+ B <= (\S+) ulp", near):
            expect(f"table {name} ulp", ulp, of["ulp"])
    # fit: its summaries, of a sequence, of a pair's quotient and of a table.
    with tempfile.TemporaryDirectory() as folder:
        fit = pathlib.Path(folder) / "fit.json"
        for spec in ("gelu_bf16", "silu_bf16_product", "gelu_e4m3_oracle"):
            text = run("outgrad-fit", "fit", repository / f"approx/specs/{spec}.json", "--no-check",
                       "--out", fit)
            of = certificate(fit)
            for letter, bound in re.findall(r"(?<!/)\b([ABKTOR])(?: [<>]=)? ([0-9]\S*?)[,; ]", text):
                if letter in of:
                    expect(f"fit {spec} {letter}", bound, of[letter], up=letter != "O")
            for ratio in re.findall(r"T/O (\S+?)[,;]", text):
                expect(f"fit {spec} T/O", ratio, of["T"] / of["O"])
        # T of a y in blocks says in which.
        text = run("outgrad-fit", "fit", "--activation", "gelu", "--format", "mxfp8", "--no-check",
                   "--out", fit)
        if "storing y, in blocks whose largest |y| is below 2^12\n" not in text:
            faults.append(f"fit of mxfp8: {text}")
    if rows < 50 or not norms or not findings:
        faults.append("too little was compared")
    print(*faults, f"shown bounds: {len(faults)} faults", sep="\n")
    return len(faults) > 0


sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
