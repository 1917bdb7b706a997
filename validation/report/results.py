"""Reads report.json and the result files that it lists, through schemas; damage is refused with its place."""

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

from schema import (Read, Refusal, absent, amount, boolean, bound, count, every, finite, hex_bound, maybe,
                    members_of, quoted, real, refuse, shape, text)


class DamagedFile(Exception):
    """A refusal with the file before it: the one clear line that a reader of stderr gets."""


# ---- fits, sweeps and stores

PIECES = every(shape(certified=hex_bound, lower_bound=hex_bound))


def fit(value, place: str) -> SimpleNamespace:
    found = shape(name=text, kind=text, spec_sha256=text, class_=text)(value, place)
    if found.kind == "forward":
        part = shape(pieces=PIECES)
        parts = shape(core=part, tail=absent(part, SimpleNamespace(pieces=[])))(value, place)
        found.pieces = parts.core.pieces + parts.tail.pieces
    else:
        found.pieces = shape(pieces=PIECES)(value, place).pieces
    return found


SIDE = maybe(shape(x=text, value=real))
MAXIMUM = shape(max=real, bound=real, left=SIDE, right=SIDE)
UNDER = absent(every(shape(x=text, rms=real, bias=real, max=real, share_in_worst_codes=maybe(real))), [])
ULP = maybe(shape(bound=real))
COUNTS = shape(patterns=count, finite=count, oracle_decisions=count, misrounded=count, wrong_mask=count,
               wrong_special=count)
DOMAIN = shape(
    x_format=text, counts=COUNTS, T=MAXIMUM, T_dx=MAXIMUM, O=MAXIMUM, R=MAXIMUM, C=maybe(MAXIMUM),
    T_over_O=real, rms_T=real, under=UNDER, from_x=absent(shape(T=shape(bound=real))),
    forward=maybe(shape(max_ulp=shape(near_minimum=ULP, left_tail=ULP, subnormal=ULP, elsewhere=ULP))),
    foreign=every(shape(forward=text, T=shape(bound=real))),
    curve=shape(bin_width=real, rows=every(every(real, size=4))))
FOREIGN = shape(stored=text, source=shape(work=text))


def domain(value, place: str) -> SimpleNamespace:
    found = DOMAIN(value, place)
    middle = found.curve.bin_width / 2
    found.curve = [SimpleNamespace(x=x + middle, least=least, greatest=greatest, floor=floor)
                   for x, least, greatest, floor in found.curve.rows]
    return found


def named_by_subject(read: Read) -> Read:
    """The subject of a sweep is BACKWARD+FORWARD."""

    def read_named(value, place: str) -> SimpleNamespace:
        found = read(value, place)
        found.fit, _, found.forward = found.subject.partition("+")
        return found

    return read_named


SWEEP = named_by_subject(shape(activation=text, format=text, subject=text, foreign=absent(FOREIGN),
                               domains=every(domain, some=True)))
STORE = shape(store=text, counts=shape(patterns=count), T=MAXIMUM, under=UNDER,
              bias=absent(shape(bound=real)), proven=shape(T=real, bias=absent(real)))
STORE_SWEEP = named_by_subject(shape(activation=text, format=text, subject=text, domains=every(STORE)))
PRODUCT_SWEEP = shape(activation=text, format=text, subject=text, counts=shape(pairs=count),
                      claims=shape(T=real, O=real, relative=real), T=shape(max=real, bound=real),
                      relative=shape(bound=real), db=shape(bound=real))
RANGE = shape(
    min=real, max=real, T=maybe(shape(bound=real)), T_wrapped=maybe(shape(bound=real)), O=real,
    bias=shape(value=real), maximum_wraps=real, under=every(shape(x=text, mass=real, rms=real)))
QUANTISER = shape(
    foreign=shape(name=text, stored=text, source=shape(work=text)), activation=text, format=text,
    bits_per_element=real, ranges=every(RANGE, some=True), groups=every(shape(x=text, rms=real)),
    maximum_wraps=every(shape(mean=real, greatest=real)), running=maybe(shape(share_of_steps=real)))


SPEED = shape(median=finite)
FRONT_STORE = shape(
    name=text, origin=text, bits_beyond=real, bits_all=real, proven=absent(real),
    dominated_by=absent(text, ""), speed=absent(shape(forward=SPEED, backward=SPEED)),
    under=every(shape(x=text, greatest=real, rms=real, bias=real, shrinkage=real), some=True))


def front(value, place: str) -> SimpleNamespace:
    found = shape(activation=text, stores=every(FRONT_STORE, some=True))(value, place)
    for i, store in enumerate(found.stores):
        if len(store.under) != len(found.stores[0].under):
            refuse(f"stores[{i}].under", "has not the distributions of the first store")
        store.found = max(errors.greatest for errors in store.under)
    return found


POINT = shape(name=text, class_=text, work=count, depth=count, table_bytes=count, operations=count,
              a_plus_b=amount, total=amount, regret=amount, oracle=amount, spec=shape(name=text))


def pareto(value, place: str) -> SimpleNamespace:
    front_of_points = shape(activation=text, format=text, exact=boolean, tried=count,
                            points=every(POINT, some=True))
    found = front_of_points(value, place)
    for i, point in enumerate(found.points):
        if point.spec.name != point.name:
            refuse(f"points[{i}].spec.name", "is not the point's")
    return found


# ---- norms

CLASSES = ("stable", "degraded", "unstable", "zero_gamma")
WORST = shape(dx_rms_relative=shape(worst=bound))
NORM = shape(
    name=text, norm=text, columns=count, classes=shape(**dict.fromkeys(CLASSES, count)),
    rho=shape(q50=bound, max=bound), policy=shape(name=text, bytes_per_row=count),
    bounds=shape(from_output=WORST, recommended=WORST), estimates=shape(dgamma_relative_l2=bound))


def norm(value, place: str) -> SimpleNamespace:
    found = NORM(value, place)
    columns = dict(gamma=real, beta=real, rho=bound, bits_lost=bound, class_=text, x_hat_conditional=bound,
                   dgamma_conditional=bound)
    lists = shape(channels=shape(**{name: every(read, size=found.columns) for name, read in columns.items()}))
    by_name = vars(lists(value, place).channels)
    found.channels = [SimpleNamespace(layer=found.name, index=i, **dict(zip(by_name, values)))
                      for i, values in enumerate(zip(*by_name.values()))]
    for channel in found.channels:
        if channel.class_ not in CLASSES:
            refuse(f"{place}.channels.class[{channel.index}]", "is an unknown class")
    return found


STABILITY = shape(source=text, norms=every(norm), options=shape(
    format=text, mean_ratio=real, dy_max=real, eps=real, tau=real, x_hat_max=real))
PEERS = ("from_input", "clamped_gamma", "unguarded")
ATTACKED = shape(evaluations=amount, violations=amount, tightness=maybe(amount), worst_over_bound=bound,
                 peers_over_bound=absent(shape(**dict.fromkeys(PEERS, bound))))
CASE = shape(norm=text, format=text, parameters=text, x=text, policy=text, columns=count, gradients=shape(
    dx=absent(ATTACKED), dgamma=ATTACKED, dbeta=absent(ATTACKED), rstd=absent(ATTACKED)))
ATTACK = shape(
    evaluations=amount, violations=amount, median_tightness=amount, share_within_4=amount,
    median_tightness_by_gradient=shape(dx=amount, dgamma=amount, dbeta=amount),
    median_tightness_of_dx_by_format=members_of(amount), cases=every(CASE, some=True))
PROOF = shape(
    name=text, coq=text, cpu_s=finite, assumptions=shape(names=every(text), unlisted=every(text)),
    bounds=every(shape(bound=text, outcome=text, claim=absent(hex_bound, 0.0))))

# ---- studies

MODEL = shape(kept=amount, batch=members_of(count))


def ledger(value, place: str) -> SimpleNamespace:
    """What recipes keep, by layer or model, recipe and mode; modes and memories are the same for all."""
    found = shape(command=text, length=count, layers=members_of(members_of(members_of(amount))),
                  models=members_of(members_of(members_of(MODEL))))(value, place)
    modes, memories = set(), set()
    for kind in ("layers", "models"):
        if not any(getattr(found, kind).values()):
            refuse(kind, "is empty")
        for name, recipes in getattr(found, kind).items():
            for recipe, figures in recipes.items():
                modes.add(tuple(figures))
                if len(modes) > 1 or not figures:
                    refuse(f"{kind}.{name}.{recipe}", "has other modes than the recipes before it, or none")
                for mode, figure in figures.items() if kind == "models" else ():
                    memories.add(tuple(figure.batch))
                    if len(memories) > 1 or not all(re.fullmatch("[1-9][0-9]*", gib) for gib in figure.batch):
                        refuse(f"{kind}.{name}.{recipe}.{mode}.batch",
                               "is for other memories than the ones before")
    found.modes, found.memories = list(modes.pop()), sorted(memories.pop(), key=int)
    return found




def llama_ledger(value, place: str) -> SimpleNamespace:
    """What a layer keeps, by recipe."""
    found = shape(command=text, length=count, MiB=members_of(amount))(value, place)
    if not found.MiB or not max(found.MiB.values()):
        refuse("MiB", "has no layer that keeps something")
    return found


SPEED_ROW = shape(kind=text, format=text, elements=count, what=text, times_as_fast=every(finite, size=3))
SPEEDS = shape(processor=text, threads=count, pytorch=text, rows=every(SPEED_ROW, some=True))
INTERVAL = shape(mean=maybe(finite), low=maybe(finite), high=maybe(finite), confidence=amount)
ENDED = shape(
    text=text, way=text, n=count, diverged=count, validation_loss=maybe(shape(mean=maybe(finite))),
    difference=maybe(INTERVAL), relative_l2=maybe(shape(median=maybe(finite), greatest=maybe(finite))))
TRAINING = shape(
    command=text, loss_steps=every(amount), summary=every(ENDED),
    probes=every(shape(other_batch=maybe(finite))),
    configuration=shape(model=shape(layers=count, width=count, parameters=count), steps=count,
                        seeds=every(count), texts=every(text), ways=every(text)))


def training(value, place: str) -> SimpleNamespace:
    found = TRAINING(value, place)
    run = shape(text=text, way=text, loss=every(maybe(finite), size=len(found.loss_steps)))
    found.runs = shape(runs=every(run))(value, place).runs
    for i, one in enumerate(found.runs):
        for key in ("text", "way"):
            if getattr(one, key) not in getattr(found.configuration, key + "s"):
                refuse(f"runs[{i}].{key}", "is not in the configuration")
    return found


RUN = shape(date=text, commit=text, processor=text, cores=count, seconds=count, passed=count,
            failed=every(text), skipped=every(text))

# ---- tuning


def tuning(problem: dict, warnings: list[str]) -> SimpleNamespace:
    """The latest run of the tuner on a problem. Its records are read by the tuner's own code, in C++."""
    records = problem["records"]
    last, device = records[-1], records[-1].get("device", {})
    machine = f"{device.get('model', '')}, {device.get('threads', 0)} threads"
    found = SimpleNamespace(
        file=problem["file"], origin=problem["origin"], size=problem["size"], kernel=last["kernel"],
        format=last.get("format", ""), compiler=last.get("compiler", ""),
        machine=device.get("name", "") if device.get("kind") == "cuda" else machine,
        rejected=[one for one in records if one["state"] == "rejected"],
        timed=[one for one in records if one["state"] == "timed"], winner=None, too_noisy=None)
    fastest = {}
    for one in found.timed:
        if one.get("fit", {}).get("name") and "speedup" in one:
            known = fastest.setdefault(one["fit"]["name"], one)
            if one["speedup"]["median"] > known["speedup"]["median"]:
                fastest[one["fit"]["name"]] = one
    found.fits = sorted(fastest.values(), key=lambda one: -one["speedup"]["median"])
    for one in (one for one in records if one.get("winner")):
        if one.get("too_noisy"):  # the default, kept for want of rounds: it has won nothing
            found.too_noisy = one
        elif "confidence" in one.get("speedup", {}) and "gb_per_s" in one and "share_of_ceiling" in one:
            found.winner = one
        else:
            why = f"{one['variant']} is called the winner without its figures, ignored"
            warnings.append(f"{found.file}: {why}")
    return found


# ---- files

READERS = {  # by their kinds in report.json; certificates are judged, and only the requirements show them
    "fits": ("outgrad.fit/3", fit), "sweeps": ("outgrad.sweep/1", SWEEP),
    "store_sweeps": ("outgrad.sweep/1", STORE_SWEEP), "foreign": ("outgrad.sweep/1", SWEEP),
    "product_sweeps": ("outgrad.product_sweep/1", PRODUCT_SWEEP),
    "quantisers": ("outgrad.quantiser/1", QUANTISER), "fronts": ("outgrad.front/1", front),
    "stability": ("outgrad.stability/1", STABILITY), "attacks": ("outgrad.norm_attack/1", ATTACK),
    "certificates": ("outgrad.certificate_attack/1", shape()), "proofs": ("outgrad.proofs/1", PROOF),
    "pareto": ("outgrad.pareto/2", pareto), "ledgers": ("outgrad.ledger/1", ledger),
    "llama_ledgers": ("outgrad.ledger_llama/1", llama_ledger), "speeds": ("outgrad.package_speed/2", SPEEDS),
    "training": ("outgrad.training/2", training), "tests": ("outgrad.tests/1", shape(runs=members_of(RUN)))}


def no_constant(name: str) -> NoReturn:
    refuse("JSON", f"{name} is no number of JSON")


def fraction(literal: str) -> float:
    if math.isinf(value := float(literal)):
        refuse("JSON", "a number is beyond double's range")
    return value


def integer(literal: str) -> int | float:
    return int(literal) if len(literal) < 20 else fraction(literal)


def read_json(file: str):
    try:
        written = Path(file).read_bytes().decode("utf-8")
        return json.loads(written, parse_constant=no_constant, parse_float=fraction, parse_int=integer)
    except OSError as error:
        refuse("read", error.strerror)
    except json.JSONDecodeError as error:
        refuse(f"line {error.lineno}, column {error.colno}", "is not JSON")
    except UnicodeDecodeError as error:
        refuse(f"byte {error.start + 1}", "is not JSON")
    except RecursionError:
        refuse("JSON", "is nested too deeply")


def read_file(kind: str, entry: dict, stored_formats: list[str]) -> SimpleNamespace:
    schema, read = READERS[kind]
    try:
        value = read_json(entry["file"])
        if shape(schema=text)(value, "").schema != schema:
            refuse("schema", f"is not {schema}")
        result = read(value, "")
        if kind == "pareto" and result.format not in stored_formats:
            refuse("format", f"is not one of {', '.join(stored_formats)}")
    except Refusal as refusal:
        raise DamagedFile(f"{entry['file']}: {refusal}") from None
    result.file, result.origin = entry["file"], entry["origin"]
    return result


def clean(value):
    """Texts without marks, but for the paths of files."""
    if isinstance(value, dict):
        return {key: one if key == "file" else clean(one) for key, one in value.items()}
    if isinstance(value, list):
        return [clean(one) for one in value]
    return quoted(value) if isinstance(value, str) else value


class Results:
    """All that the page shows: the requirements and facts of report.json, and lists of results by kind."""

    def __init__(self, report: dict):
        facts, self.requirements = clean(report["facts"]), clean(report["requirements"])
        self.made_by, self.warnings, self.commands = facts["made_by"], facts["warnings"], facts["commands"]
        self.formats, self.run = facts["formats"], facts["run"]
        self.headers = {kind: [SimpleNamespace(**one) for one in headers]
                        for kind, headers in facts["headers"].items()}
        self.of_kind = {kind: [read_file(kind, entry, facts["stored_formats"])
                               for entry in facts["files"].get(kind, ())] for kind in READERS}
        self.of_kind["tuned"] = [tuning(problem, self.warnings) for problem in facts["tuned"]]

    def __getattr__(self, kind: str) -> list[SimpleNamespace]:
        try:
            return self.of_kind[kind]
        except KeyError:
            raise AttributeError(kind) from None

    def sweep_of(self, format_: str) -> SimpleNamespace | None:
        """The sweep of the deployed fit of erf-GELU."""
        wanted = ("gelu", f"gelu_{format_}")
        return next((one for one in self.sweeps if (one.activation, one.fit) == wanted), None)

    def sweep_of_fit(self, name: str) -> SimpleNamespace | None:
        return next((one for one in self.sweeps if one.fit == name), None)
