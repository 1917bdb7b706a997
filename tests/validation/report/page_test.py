"""The report's page: figures have commands, names stay text, damage is refused, bounds are rounded up.

usage: page_test.py REPOSITORY BUILD. Exit status 77 (skipped) without jinja2 or matplotlib.
"""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from fractions import Fraction
from pathlib import Path

sys.dont_write_bytecode = True
REPOSITORY, BUILD = (Path(folder).resolve() for folder in sys.argv[1:3])
sys.path += [str(REPOSITORY / "validation/report"), str(Path(__file__).parent)]
try:
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
except ImportError as missing:
    other = shutil.which(os.environ.get("OUTGRAD_PYTHON") or "/usr/bin/python3")  # as the report takes it
    if other and other != sys.executable:
        os.execv(other, [other, *sys.argv])
    print("skipped:", missing)
    sys.exit(77)

import page  # noqa: E402
import results  # noqa: E402
import rounding  # noqa: E402
import samples  # noqa: E402
import sections  # noqa: E402
from results import DamagedFile, Results, read_file  # noqa: E402
from samples import HOSTILE  # noqa: E402
from sections import choice  # noqa: E402

ANSWER = ["Four pictures", "What is kept", "Speed", "What was made when"]
APPENDIX = ["Error curves", "T against O", "What to choose from", "Channel stability",
         "Norm bounds under attack", "Sweep coverage", "Errors as x have them", "Beside others",
         "Bits kept against the error of the gradient", "Bytes kept", "Training", "Requirements",
         "Errors, kept apart", "Forward", "Coefficients and cost", "Tuning",
         "Tests beside the suite", "Inputs"]
# Every key on the way to a figure that Python reads, by file.
KEYS = {
    "sweeps/gelu_f16.json": "schema activation format subject domains domains/0/x_format domains/1/counts "
    "domains/0/counts/patterns domains/0/T domains/0/T/bound domains/0/O/max domains/0/R/left domains/0/C "
    "domains/0/T_dx domains/0/T_over_O domains/0/forward/max_ulp domains/0/foreign/0/T "
    "domains/0/curve/bin_width domains/0/curve/rows",
    "sweeps/gelu_code_bf16.json": "domains/0/T domains/1/proven/T domains/9/bias/bound domains/0/under/0/rms",
    "sweeps/silu_bf16_product.json": "format subject counts/pairs claims/T claims/O claims/relative T/max "
    "T/bound relative/bound",
    "fits/gelu_f16.json": "schema name kind spec_sha256 class pieces pieces/3/certified pieces/3/lower_bound",
    "stability/checkpoint.json": "schema source options/tau norms norms/0/name norms/0/columns "
    "norms/0/classes/degraded norms/0/policy/name norms/0/bounds/recommended norms/0/channels/rho "
    "norms/0/channels/class",
    "pareto/gelu_bf16.json": "schema activation format tried points points/0/name points/1/class "
    "points/0/work points/0/depth points/0/table_bytes points/1/a_plus_b points/0/total points/0/regret "
    "points/0/oracle points/0/operations points/1/spec/name",
    "attack/norms.json": "schema evaluations violations median_tightness share_within_4 "
    "median_tightness_by_gradient/dx cases cases/0/norm cases/1/format cases/0/columns cases/0/gradients "
    "cases/0/gradients/dx/violations cases/0/gradients/dx/worst_over_bound "
    "cases/0/gradients/dgamma/peers_over_bound/unguarded",
    "proofs/gelu_bf16.json": "schema name coq cpu_s bounds bounds/0/bound bounds/1/outcome assumptions "
    "assumptions/names assumptions/unlisted",
    "studies/ledger.json": "schema command length layers layers/a~layer layers/a~layer/theirs/fp32 models "
    "models/a~model/ours/fp32/kept models/a~model/theirs/fp32/batch models/a~model/theirs/pure~bf16/batch/80",
    "studies/ledger_llama.json": "schema command length MiB",
    "studies/package_speed.json": "schema processor threads pytorch rows rows/0/kind rows/1/elements "
    "rows/0/what rows/1/times_as_fast rows/1/times_as_fast/2",
    "training/masked_lm.json": "schema command configuration/model/layers configuration/steps "
    "configuration/seeds configuration/texts configuration/ways loss_steps runs runs/0/text runs/0/way "
    "runs/0/loss probes probes/0/other_batch summary summary/0/n summary/1/difference "
    "summary/1/difference/low summary/1/relative_l2/median",
    "tests/nightly.json": "schema runs runs/nightly/date runs/nightly/cores runs/nightly/passed "
    "runs/nightly/failed runs/nightly/skipped",
    "foreign/sweeps/theirs_f16.json": "schema bits_per_element ranges groups maximum_wraps running foreign",
    "front/gelu.json": "schema activation stores stores/0/name stores/1/under stores/0/under/1/shrinkage"}
# A place, what stands there instead, and what the refusal names.
FAULTS = [
    *(("fits/gelu_f32.json", "pieces/0/certified", bad, "pieces[0].certified")
      for bad in ("-0x1p-30", "0x1p-30x", "1e-9", "0x", "inf", "nan", "0x1p99999")),
    *(("pareto/gelu_bf16.json", "points/0/regret", bad, "points[0].regret")
      for bad in ("nan", "inf", "-inf")),
    ("pareto/gelu_bf16.json", "format", "f17", "format: is not one of f32, f16, bf16"),
    ("pareto/gelu_bf16.json", "points/0/work", -1, "points[0].work: is not a count"),
    ("pareto/gelu_bf16.json", "points", [], "points: is empty"),
    ("pareto/gelu_bf16.json", "exact", "yes", "exact"),
    ("attack/norms.json", "cases", [], "cases: is empty"),
    ("front/gelu.json", "stores", [], "stores: is empty"),
    ("studies/ledger.json", "layers/a~layer/ours/fp32", -1, "layers.a layer.ours.fp32"),
    ("studies/ledger.json", "models/a~model/ours/fp32/batch/eleven", 1, "batch"),
    ("studies/ledger.json", "layers", {}, "layers: is empty"),
    ("studies/ledger.json", "models/a~model", {}, "models: is empty"),
    ("studies/ledger_llama.json", "MiB", {}, "MiB: has no layer that keeps something"),
    ("studies/ledger_llama.json", "MiB/eager", -1, "MiB.eager"),
    ("studies/package_speed.json", "rows", [], "rows: is empty"),
    ("studies/package_speed.json", "rows/0/times_as_fast", [1.0], "has 1 elements where 3 are expected"),
    ("training/masked_lm.json", "runs/0/way", "of nobody", "runs[0].way"),
    ("training/masked_lm.json", "runs/0/loss", [1.0, 1.0, 1.0],
     "runs[0].loss: has 3 elements where 2 are expected"),
    ("training/masked_lm.json", "runs/1/loss/1", "2.5", "runs[1].loss[1]"),
    ("training/masked_lm.json", "loss_steps/0", "nan", "loss_steps[0]")]


def parent_of(value, pointer: str):
    """The object or list that has what a pointer such as domains/0/T is to, and its key; ~ is a blank."""
    *way, last = (int(key) if key.isdecimal() and len(key) < 2 else key.replace("~", " ")
                  for key in pointer.split("/"))
    for key in way:
        value = value[key]
    return value, last


def setUpModule():
    """A folder of samples, and report.json as the program makes it from them."""
    scratch = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(scratch.cleanup)
    Folder.path = Path(scratch.name) / "in"
    Folder.path.mkdir()
    samples.write(REPOSITORY, Folder.path)
    made = run_report()
    assert made.returncode == 0, made.stderr
    Folder.report = json.loads((Folder.path / "report/report.json").read_text())


def run_report() -> subprocess.CompletedProcess:
    return subprocess.run([BUILD / "outgrad-check", "report", "--in", Folder.path], capture_output=True,
                          text=True,
                          env=os.environ | {"OUTGRAD_PYTHON": sys.executable})


class Folder(unittest.TestCase):
    path: Path
    report: dict

    def page(self, report: dict | None = None) -> dict:
        return sections.page(Results(report or self.report))

    def read(self, name: str) -> str:
        """What the reader says to a file."""
        kind, entry = next((kind, entry) for kind,
                           entries in self.report["facts"]["files"].items() for entry in entries
                           if entry["file"] == str(self.path / name))
        try:
            read_file(kind, entry, self.report["facts"]["stored_formats"])
        except DamagedFile as damaged:
            return str(damaged)
        return "accepted"

    def changed(self, name: str, change) -> str:
        """What the reader says to a file whose JSON was changed; the file is as before then."""
        file = self.path / name
        before = file.read_text()
        value = json.loads(before)
        change(value)
        file.write_text(json.dumps(value))
        try:
            return self.read(name)
        finally:
            file.write_text(before)


def blocks_of(document: dict, kind: str) -> list[dict]:
    blocks = document["summary"] + document["remarks"]
    blocks += [block for section in sections_of(document) for block in section["blocks"]]
    blocks += [inner for block in blocks if block["kind"] == "columns" for inner in block["blocks"]]
    return [block for block in blocks if block["kind"] == kind]


def sections_of(document: dict) -> list[dict]:
    return document["sections"] + document["appendix"]


def rows_of(document: dict) -> str:
    """The rows of all tables, a line each."""
    return "\n".join("| " + " | ".join(cell.text for cell in row) + " |"
                     for table in blocks_of(document, "table")
                     for row in table["rows"])


def texts_of(document: dict) -> str:
    return "\n".join(block["text"] for block in blocks_of(document, "paragraph"))


class Rounding(Folder):
    def test_figures_are_those_of_the_program(self):
        for one in json.loads((Path(__file__).parent / "rounded.json").read_text()):
            bound = one["bound"]
            self.assertEqual(rounding.power_of_two(bound), one["power_of_two"])
            self.assertEqual(rounding.rounded_up(bound, 4), one["rounded_up_4"])
            self.assertEqual(rounding.rounded_up(bound, 0), one["rounded_up_0"])
            self.assertEqual(rounding.three_digits_up(bound), one["three_digits_up"])
        shown = {"error": rounding.power_of_two, "number": rounding.three_digits_up,
                 "count": lambda v: rounding.rounded_up(v, 0),
                 "ratio": lambda v: rounding.rounded_up(v, 4), "ulp": lambda v: rounding.rounded_up(v, 4)}
        for row in self.report["requirements"]:
            for key in ("found", "at_most"):
                if row[key] is not None:
                    self.assertEqual(shown[row["kind"]](row[key]), row["shown"][key])

    def test_what_is_shown_is_a_bound(self):
        for i in range(4000):
            value = 2.0 ** (-60 + 63 * ((i * 0.6180339887498949) % 1))
            exponent = Fraction(rounding.power_of_two(value)[2:])
            self.assertGreaterEqual(Fraction(2) ** int(100 * exponent), Fraction(value) ** 100)
            self.assertLess(Fraction(2) ** int(100 * exponent - 1), Fraction(value) ** 100)
            self.assertGreaterEqual(Fraction(rounding.rounded_up(value, 4)),
                                    Fraction(value) * (1 - rounding.NEAR))
            three = Fraction(rounding.three_digits_up(value))
            self.assertGreaterEqual(three, Fraction(value) * (1 - rounding.NEAR_THREE_DIGITS))
            self.assertLess(three, Fraction(value) * Fraction(10101, 10000))
        self.assertEqual([rounding.rounded_up(float(word), 2) for word in ("inf", "-inf", "nan")],
                         ["inf", "-inf", "nan"])


class Damage(Folder):
    def test_every_key_is_refused_with_its_file(self):
        for name, pointers in KEYS.items():
            for pointer in pointers.split():
                def without(value):
                    holder, key = parent_of(value, pointer)
                    del holder[key]

                def wrong(value):
                    holder, key = parent_of(value, pointer)
                    holder[key] = True

                for change in (without, wrong):
                    said = self.changed(name, change)
                    self.assertTrue(said.startswith(f"{self.path / name}: "), f"{name} {pointer}: {said}")

    def test_faults_are_refused_with_their_place(self):
        for name, pointer, instead, place in FAULTS:
            def change(value):
                holder, key = parent_of(value, pointer)
                holder[key] = instead

            self.assertIn(place, self.changed(name, change))

        def shorter(value):
            del value["stores"][1]["under"][1]

        self.assertIn("stores[1].under: has not the distributions", self.changed("front/gelu.json", shorter))

    def test_what_is_no_json_is_refused_with_its_byte(self):
        for name in KEYS:
            file = self.path / name
            whole = file.read_bytes()
            try:
                for part in range(20):
                    file.write_bytes(whole[:len(whole) * part // 20])
                    self.assertRegex(self.read(name),
                                     f"^{re.escape(str(file))}: line [0-9]+, column [0-9]+: is not JSON$")
                for bad in (b"\xff", b"NaN", b"1e999", b"[" * 100000):
                    file.write_bytes(bad)
                    self.assertTrue(self.read(name).startswith(f"{file}: "), bad[:9])
            finally:
                file.write_bytes(whole)

    def test_the_program_says_it_in_a_line_and_writes_nothing(self):
        file, pages = self.path / "front/gelu.json", self.path / "report"
        before, stamp = file.read_text(), (pages / "index.html").stat().st_mtime_ns
        file.write_text(before.replace('"origin"', '"origins"', 1))
        made = run_report()
        file.write_text(before)
        said = f"outgrad: {file}: stores[0]: 'origin' is missing\n"
        self.assertEqual((made.returncode, made.stderr), (2, said))
        self.assertEqual((pages / "index.html").stat().st_mtime_ns, stamp)


class Page(Folder):
    def test_every_figure_has_its_command(self):
        def check(document: dict):
            for block in blocks_of(document, "table") + blocks_of(document, "figure"):
                # The studies are programs in Python; everything else is a command of the wrapper.
                ours = block["command"].startswith(("./outgrad ", "python notebooks_data/studies/"))
                self.assertTrue(ours, block["caption"])
            for table in blocks_of(document, "table"):
                for row in table["rows"]:
                    self.assertEqual(len(row), len(table["columns"]), table["caption"])
            for figure in blocks_of(document, "figure"):
                self.assertTrue(figure["plots"])
                self.assertTrue(all(plot["title"] for plot in figure["plots"]))
            self.assertEqual([section["title"] for section in document["sections"]], ANSWER)
            self.assertEqual([section["title"] for section in document["appendix"]], APPENDIX)
            self.assertTrue(all(section["blocks"] for section in sections_of(document)))

        check(self.page())
        nothing = copy.deepcopy(self.report)
        nothing["requirements"] = []
        facts = nothing["facts"]
        facts.update(files={}, tuned=[], warnings=[], headers=dict.fromkeys(facts["headers"], []))
        none = self.page(nothing)
        check(none)  # with nothing at all every section says what would make it, and nothing claims to hold
        self.assertEqual((none["verdict"]["headline"], none["verdict"]["tone"]),
                         ("Nothing was measured", "muted"))

    def test_a_plot_reads_without_its_colours(self):
        """Every colour of a plot is in its legend, with a look of its own, and both axes have a name."""
        for figure in blocks_of(self.page(), "figure"):
            for plot in figure["plots"]:
                shown = [one for one in plot["series"] if one["x"]]
                named = {one["colour"] for one in plot["series"] if one["label"]}
                self.assertLessEqual({one["colour"] for one in shown}, named, plot["title"])
                looks = [(one["colour"], one["mark"]) for one in plot["series"] if one["label"]]
                self.assertEqual(len(looks), len(set(looks)), plot["title"])
                for axis in ("x", "y"):
                    self.assertTrue(plot[axis].get("label") or plot[axis].get("ticks"), plot["title"])

    def test_the_picture_of_stores_says_where_those_without_a_name_are(self):
        pictures, *_ = blocks_of(self.page(), "figure")
        tables = blocks_of(self.page(), "table")
        (stores,) = [one for one in tables if one["caption"].startswith("Stores of ")]
        self.assertIn(f"the appendix names all {len(stores['rows'])}", pictures["caption"])

    def test_opens_with_the_verdict(self):
        document = self.page()
        self.assertRegex(document["verdict"]["headline"],
                         "^T ≤ 3.93e-05 in f32, 0.00505 in f16, 0.0113 in bf16: all [0-9]+ "
                         "requirements that were measured hold; 3 are not measured$")
        self.assertTrue(document["verdict"]["detail"].startswith("T is the largest error"))
        self.assertEqual(document["verdict"]["tone"], "muted")
        letters = [symbol for symbol, _ in blocks_of(document, "definitions")[0]["items"]]
        self.assertEqual(sorted(letters), list("ABCKORT"))
        tiles = document["key_figures"]["tiles"]
        self.assertEqual(len(tiles), 5, "T, T / O, patterns, others, attack: no way is called ours")
        self.assertEqual((tiles[0]["figure"], tiles[0]["note"]),
                         ("3.93e-05", "in f16 0.00505, bf16 0.0113; PyTorch's from x 1.44e-07"))
        filled = [cell for table in document["summary"] for row in table["rows"]
                  for cell in row[1:] if cell.text]
        self.assertEqual(len(filled), len(self.report["requirements"]),
                         "each has its cell on the first screen")

    def test_says_what_fails(self):
        report = copy.deepcopy(self.report)
        failing = next(row for row in report["requirements"]
                       if row["requirement"] == "max T / max O, all bf16 x")
        failing.update(verdict="FAIL", shown={"found": "2.0000", "at_most": "1.0200"})
        document = self.page(report)
        self.assertEqual(document["verdict"]["tone"], "bad")
        self.assertRegex(document["verdict"]["headline"],
                         ": 1 of [0-9]+ requirements does not hold; 3 are not measured$")
        self.assertIn("bf16 max T / max O, all bf16 x 2.0000, not 1.0200", texts_of(document))
        for row in report["requirements"]:
            row["verdict"] = "reported"
        self.assertIn("figures are reported; nothing here has a limit",
                      self.page(report)["verdict"]["headline"])

    def test_shows_what_the_files_have(self):
        rows = rows_of(self.page())
        hostile = HOSTILE.replace("`", "'")
        for shown in (
                "| gelu | bf16 | 2.50 [2.25, 2.75] | 0.50 [0.25, 0.75] |", "| eager | 800.0 (100%) |",
            f"| {hostile} | 200.5 (25%) |", "| theirs | 69.0 (100%) | 37.0 (100%) |",
            "| a processor, 2 threads | gelu_backward | 20, 75% | - | - |",
            "| 0.125 | -0.0625 | inf | 3.3% |", "| theirs | gelu | y and one bit | f32 | f32 | 2.75 |",
                "| theirs | 8.25 | f16 | -4, 4 | 0.0251 | 1.13 | 0.025 | -0.00625 | 0.125 | 0.00673 |",
                "| mean 0.019, most 0.127 | 0.0321 |", "| 38% of steps |", "4,294,967,296",
                "| code of 4 bits | 4 | 20 | 0.0393 | 0.039 |", "| 0.046 | 0.023 | +0 | 1.00000 |",
                "| gelu_code_bf16 | code of 4 bits | bf16 | 65,536 | 0.0394 | 0.0393 | 0.9999",
                "| 30 / 440 |", "1.23e+05", "| +0.013 | [-0.25, +0.5] |", f"| {hostile} |",
                "| gelu_bf16 | 16 of 16 | 2^-10.80 | 20 of 20 | 2^-23.20 | - | - | - | - | 93 |",
                "| a processor, 2 threads | gelu_backward | f32 |  | `best` | 20.0 | 75% | triad |"):
            self.assertIn(shown, rows)
        self.assertLess(rows.index("69.008"), rows.index("20.285"), "what keeps most comes first")
        self.assertNotIn("0.0777", rows, "half of that distribution lies beyond the x")

    def test_a_run_that_did_not_finish_says_what_is_missing(self):
        report = copy.deepcopy(self.report)
        report["facts"]["run"] = {"date": "2026-11-28", "finished": False,
                                  "missing": ["sweeps/gelu_f32.json"]}
        document = self.page(report)
        self.assertTrue(document["verdict"]["detail"].startswith("The run of 2026-11-28 did not finish."))
        self.assertEqual(document["verdict"]["tone"], "muted")
        self.assertIn("It has not made: sweeps/gelu_f32.json.", texts_of(document))

    def test_says_of_which_run_a_file_is(self):
        self.assertIn("sweeps/gelu_bf16.json | not stated |", rows_of(self.page()))
        report = copy.deepcopy(self.report)
        facts = report["facts"]
        facts["made_by"] = "outgrad 1.2.3, on a processor"
        facts["run"] = {"date": "2026-11-28", "finished": True, "missing": []}
        for entries in [*facts["files"].values(), *facts["headers"].values()]:
            for entry in entries:
                entry["origin"] = "committed 2026-11-01 1234567" if "attack" in entry["file"] else "this run"
        document = self.page(report)
        self.assertTrue(document["lead"].endswith(" By outgrad 1.2.3, on a processor."))
        self.assertIn("| sweep | 5 | - |  | - |", rows_of(document))
        self.assertIn("| attack | - | 1 | 2026-11-01 | - |", rows_of(document))
        self.assertIn("attack/norms.json | committed 2026-11-01 1234567 |", rows_of(document))
        self.assertIn("This section was made from: committed 2026-11-01 1234567 (1 file).",
                      texts_of(document))
        notes = [tile["note"] for tile in document["key_figures"]["tiles"]]
        self.assertTrue(all("this run" in note for note in notes[:3]), notes)
        self.assertIn("found 2.50; committed 2026-11-01 1234567", notes[-1])


class Tuning(Folder):
    def page_of(self, *records: dict) -> dict:
        report = copy.deepcopy(self.report)
        report["facts"]["tuned"] = [{"file": "tune.jsonl", "size": "", "origin": "", "records": [record]}
                                    for record in records]
        return self.page(report)

    def test_says_of_a_timing_whose_it_is(self):
        on_a_gpu = samples.tuning_record("", "best", "timed", device={"kind": "cuda", "name": "a GPU"},
                                         compiler="NVRTC")
        document = self.page_of(samples.tuning_record("", "best", "timed"), on_a_gpu)
        self.assertIn("a processor, 2 threads; a compiler. a GPU; NVRTC. Timings", texts_of(document))
        for machine in ("a processor, 2 threads", "a GPU"):
            self.assertIn(f"| {machine} | gelu_backward | f32 |", rows_of(document))

    def test_a_winner_without_figures_is_none(self):
        for figure in ("speedup", "confidence", "gb_per_s", "share_of_ceiling"):
            record = samples.tuning_record("", "best", "timed")
            del (record["speedup"] if figure == "confidence" else record)[figure]
            document = self.page_of(record)
            self.assertIn("| none | - |", rows_of(document))
            self.assertIn("best is called the winner without its figures, ignored", texts_of(document))

    def test_a_default_kept_for_noise_has_no_figures(self):
        record = samples.tuning_record("", "usual", "timed", winner=True, too_noisy=True)
        for figures in (record, {key: value for key, value in record.items()
                                 if key not in ("gb_per_s", "share_of_ceiling")}):
            document = self.page_of(figures)
            self.assertIn("| `usual` | - | - | - | kept the default: too noisy |", rows_of(document))
            self.assertNotIn("20, 75%", rows_of(document))
            self.assertNotIn("without its figures", texts_of(document))

    def test_a_table_on_a_front_has_no_a_and_b(self):
        """Its file has R in their place, which is no bound of the kernel's error at the stored y."""
        front = samples.pareto()
        for mixed, shown in ((True, "2^-7"), (False, "-")):
            front["points"][1]["class"] = "oracle"
            front["points"][0]["class"] = "abs:2^-10" if mixed else "oracle"
            read = results.pareto(front, "front")
            self.assertEqual(choice.ends_of(read)[6], shown)
            self.assertNotIn("2^-10", str(choice.ends_of(read)[:7]))

    def test_says_what_an_accuracy_class_costs(self):
        """The fastest variant of a fit counts, and the sentence on the class follows from its interval."""
        for low, high, sentence in ((0.27, 0.33, "the class abs stays it"),
                                    (0.95, 0.97, "it can be the default here"),
                                    (0.85, 0.97, "is undecided")):
            report = copy.deepcopy(self.report)
            fit, records = {"name": "gelu_bf16_ulp", "class": "ulp:1"}, []
            for slower in (1.0, 0.5):
                speedup = {"median": slower * (low + high) / 2, "low": slower * low, "high": slower * high,
                           "confidence": 0.99}
                records.append(samples.tuning_record("", f"tails{slower}", "timed", format="bf16", fit=fit,
                                                     speedup=speedup))
            report["facts"]["tuned"] = [{"file": "tune.jsonl", "size": "", "origin": "", "records": records}]
            texts = texts_of(self.page(report))
            self.assertIn(f"(`gelu_bf16_ulp`) runs at {(low + high) / 2:.3f} ", texts)
            self.assertIn(sentence, texts)


class Rendered(Folder):
    def rendered(self) -> tuple[dict, str, str]:
        document = self.page()
        page.render(document, self.path)
        return document, *((self.path / name).read_text("utf-8") for name in ("index.html", "report.md"))

    def test_stands_alone_and_names_stay_text(self):
        file = self.path / "training/masked_lm.json"
        before = file.read_text()
        self.addCleanup(file.write_text, before)
        value = json.loads(before)
        value["summary"][1]["way"] += 500 * "w"  # wider than the picture
        file.write_text(json.dumps(value))
        document, html, markdown = self.rendered()
        for outside in ("<script", "<link", "src=", "@import", "url(http", 'href="http', "<img"):
            self.assertNotIn(outside, html)
        plots = [plot for figure in blocks_of(document, "figure") for plot in figure["plots"]]
        self.assertEqual(html.count("<svg"), len(plots))
        self.assertEqual(len(re.findall('<title id="plot[0-9]+-title">[^<]{20}', html)), len(plots))
        self.assertFalse(re.search("(fill|stroke): (#|rgb)", html), "a colour that stays in the dark")
        self.assertNotIn("atplotlib", html, "plots are named by what they show")
        self.assertRegex(html, "&lt;script&gt;[^<]*</text>")
        for tag in ("svg", "table", "tr", "td", "th", "figure", "code", "sup", "p", "div", "g"):
            self.assertEqual(len(re.findall(f"<{tag}(?=[ >])(?![^>]*/>)", html)), html.count(f"</{tag}>"),
                             tag)
        ids = re.findall(r"""\bid=['"]([^'"]*)['"]""", html)
        self.assertEqual(len(ids), len(set(ids)))
        self.assertEqual(self.rendered()[1], html, "the same results give the same bytes")
        self.check_figures(document, html)
        self.check_markdown(markdown)

    def check_figures(self, document: dict, html: str):
        """Every plot stands in its own figure: names come in order, each before its figure's caption."""
        at = 0
        for figure in blocks_of(document, "figure"):
            for plot in figure["plots"]:
                at = html.index('-title">' + re.split("[<>&]", plot["title"])[0], at) + 1
            following = html.find("<svg", at)
            self.assertTrue(following < 0 or html.index("<figcaption>", at) < following, figure["caption"])

    def check_markdown(self, markdown: str):
        """A row of a table has as many cells as its head, whatever the names in it."""
        self.assertFalse(re.search(r"[^\\`]<script", markdown), "neither escaped nor within a code span")
        cells = 0
        for line in markdown.splitlines():
            bars = len(re.findall(r"(?:^|[^\\])\|", line))
            if line.startswith("|") and cells:
                self.assertEqual(bars, cells, line)
            cells = bars if line.startswith("|") else 0


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + sys.argv[3:])
