"""The figures that README.md and pages of docs/ claim, from the committed headers and results that they
come from.

Each claim is the very text that its page must have, with its figures put in by this file: bounds are rounded
up, what was found is rounded to nearest. Tables of how_few_bits.md are claimed row by row, and have no other
rows. What follows from the kernels alone is computed by the library of the build, where there is one.
"""

import ctypes
import json
import math
import re
import struct

CONSTANT = re.compile(r"constexpr (?:double|float|int) (k\w+) = (-?(?:0x[0-9a-f.]+p[+-]?\d+|\d+))f?;")
F32, BF16 = 0, 2  # OUTGRAD_F32, OUTGRAD_BF16
STORES = {"MXFP8": 3, "int8": 6, "MXFP4": 7, "NVFP4": 8}  # outgrad_store


class Call(ctypes.Structure):
    """outgrad_call of kernels/c/outgrad.h."""

    _fields_ = [(name, kind) for kind, names in (
        (ctypes.c_size_t, "size"),
        (ctypes.c_int32, "format activation store bits"),
        (ctypes.c_int64, "rows n"),
        (ctypes.c_float, "eps lo hi"),
        (ctypes.c_void_p, "scale seed x residual bias gamma beta y z mask rstd g dy dz_next dx dz"),
        (ctypes.c_void_p, "dgamma dbeta dbias codes scales parts"),
        (ctypes.c_size_t, "codes_bytes scales_bytes parts_bytes"),
        (ctypes.c_void_p, "side_channels"),
        (ctypes.c_int64, "side_count"),
        (ctypes.c_void_p, "side_x_hat workspace"),
        (ctypes.c_size_t, "workspace_bytes")) for name in names.split()]

    def __init__(self, **arguments):
        # They live as long as the call.
        self.arrays = {key: value for key, value in arguments.items() if isinstance(value, ctypes.Array)}
        addresses = {key: ctypes.addressof(value) for key, value in self.arrays.items()}
        super().__init__(size=ctypes.sizeof(Call), **{**arguments, **addresses})


def up(value, decimals):
    """Rounded up, as a bound has to be; what is a decimal already, but for binary64, stays."""
    scaled = value * 10**decimals
    whole = round(scaled) if abs(scaled - round(scaled)) <= 1e-9 * scaled else math.ceil(scaled)
    return f"{whole / 10**decimals:.{decimals}f}"


def digits_up(value):
    """Three significant digits."""
    return f"{float(up(value, 2 - math.floor(math.log10(value)))):.3g}".replace("e-0", "e-")


def power_up(value):
    return f"2^{up(math.log2(value), 2) if value >= 1 else '-' + down(-math.log2(value), 2)}"


def down(value, decimals):
    return f"{math.floor(value * 10**decimals + 1e-9) / 10**decimals:.{decimals}f}"


class Sources:
    def __init__(self, repository, build):
        self.repository, self.data = repository, repository / "notebooks_data"
        library = build / "liboutgrad.so"
        self.library = ctypes.CDLL(str(library)) if library.exists() else None

    def header(self, name):
        """Its constants, by name."""
        text = (self.repository / f"kernels/generated/{name}.h").read_text()
        return {key: float.fromhex(value) if "x" in value else float(value)
                for key, value in CONSTANT.findall(text)}

    def json(self, path):
        return json.loads((self.data / path).read_text())

    def sweep(self, name, x):
        return next(domain for domain in self.json(f"sweeps/{name}.json")["domains"]
                    if domain["x_format"] == x)

    def error(self, store, scale, amax, bits):
        """The library's proven bound for tensors (int8) or blocks whose largest |y| is below amax."""
        error = ctypes.c_double()
        call = Call(store=STORES[store], bits=bits, scale=(ctypes.c_float * 1)(scale))
        below = ctypes.c_float(amax * (1 - 2**-24))
        status = self.library.outgrad_store_error(ctypes.byref(call), below, ctypes.byref(error))
        assert status == 0, (store, scale, amax, bits, status)
        return error.value


    def mxfp8_error(self, exponent):
        """The largest error over every x of bf16 below 64 in blocks of MXFP8 whose largest |y| is 2^exponent,
        as the library runs them."""
        x = [bits for bits in range(0x10000) if abs(of_bf16(bits)) < 64]
        # the first: 2^exponent
        block = [bits for begin in range(0, len(x), 31)
                 for bits in [127 + exponent << 7, *(x[begin:begin + 31] + 31 * [0])[:31]]]
        count = len(block)
        dx = (ctypes.c_float * count)()
        call = Call(format=BF16, store=STORES["MXFP8"], n=count, x=(ctypes.c_uint16 * count)(*block),
                    dy=(ctypes.c_float * count)(*[1] * count), dx=dx,
                    mask=(ctypes.c_uint32 * (count // 32))(), codes=(ctypes.c_uint8 * count)(),
                    codes_bytes=count, scales=(ctypes.c_uint8 * (count // 32))(), scales_bytes=count // 32)
        assert self.library.outgrad_activation_forward(ctypes.byref(call)) == 0
        call.format = F32
        assert self.library.outgrad_activation_backward(ctypes.byref(call)) == 0
        return max(abs(g - slope(of_bf16(bits))) for i, (g, bits) in enumerate(zip(dx, block)) if i % 32)


def of_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def slope(x):
    return math.erfc(-x / math.sqrt(2)) / 2 + x * math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def row(*cells):
    return "| " + " | ".join(cells) + " |"


def readme(of):
    """README.md, the table of its first screen."""
    bert, llama = of.json("studies/ledger.json"), of.json("studies/ledger_llama.json")
    layers = {name: modes["pure bf16"] for name, modes in bert["layers"]["BERT-Large, RoBERTa-Large"].items()}
    flag = "compile + flash, ban_recompute_materialized_backward=False"
    yield (f"| a layer of BERT-Large keeps, {bert['length']} tokens, bf16 | eager {layers['eager']:.1f} MiB, "
           f"flash attention {layers['eager + flash']:.1f}, `torch.compile` "
           f"{layers['compile + flash']:.1f} (with a private flag {layers[flag]:.1f}) | "
           f"**{layers['ours + flash']:.1f} MiB** |")
    mib = {name: f"{value:.0f}" for name, value in llama["MiB"].items()}
    again = mib["compile, ban_recompute_materialized_backward=False"]
    yield (f"| a layer of Llama-3-8B keeps, {llama['length']:,} tokens, bf16 | eager {mib['eager']} MiB, "
           f"`torch.compile` {mib['compile']} (with the flag {again}), Liger {mib['Liger']} | "
           f"**{mib['ours']} MiB** |")
    yield f"a checkpointed layer of Llama-3-8B keeps {mib['eager, the layer checkpointed']} MiB"
    yield f"(`ban_recompute_materialized_backward=False`) also reaches {again} MiB"
    yield from readme_of_h200(of.json("gpu/nvidia_h200/throughput.json"))
    yield from readme_of_first_commands(of.json("studies/first_commands.json")["commands"])
    cpu = of.json("studies/package_speed.json")
    assert (cpu["cores"], cpu["processor"]) == (2, "AMD EPYC")
    speeds = [f"{row['times_as_fast'][0]:.1f}" for row in cpu["rows"] if row["what"] == "through autograd"
              and (row["kind"], row["elements"]) == ("gelu", 2**24)]
    yield f"on two CPU cores: fp32; fp16; bf16 | 1; 1; 1 | **{'; '.join(speeds)}** |"
    counted = [digits_up(of.sweep(f"gelu_{name}", name)["T"]["bound"]) for name in ("f32", "bf16")]
    from_x = digits_up(of.sweep("gelu_f32", "f32")["from_x"]["T"]["bound"])
    yield f"derivative: fp32; bf16 | {from_x}, counted | {'; '.join(counted)}, counted |"


def readme_of_first_commands(rows):
    """How long the commands took that README.md begins with."""
    def took(name):
        seconds = rows[name]["seconds"]
        return f"{seconds} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"

    for row in rows.values():
        assert (row["status"], row["processor"], row["cores"]) == (0, rows["test"]["processor"], 2), row
    yield f"pip install . # {took('pip')}: compiles the kernels, {rows['pip']['MiB']:.0f} MiB"
    yield (f"./outgrad check kernels/generated/gelu_bf16.h # {took('check')} the first time, for it builds "
           f"{rows['check']['MiB']:.0f} MiB")
    yield f"./outgrad run # {took('run')}: the whole chain on this machine"
    yield f"./outgrad test # {took('test')}: the test suite"


def readme_of_h200(found):
    rows = {row["recipe"]: row for row in found["rows"]}
    theirs, ours = rows["eager + SDPA"], rows["ours"]
    yield (f"a sequence; largest batch | {theirs['mib_per_sequence']:.0f} MiB; {theirs['largest_batch']} | "
           f"**{ours['mib_per_sequence']:.0f} MiB; {ours['largest_batch']}** |")
    training = (ours["at_largest_batch"]["sequences_per_s"] / theirs["at_largest_batch"]["sequences_per_s"])
    passes = {turn["batch"]: turn["times_as_fast"][1] for turn in found["in_turn"]
              if turn["what"] == "forward and backward"}
    yield (f"largest batch; forward and backward of 64; of 16 | 1; 1; 1 | "
           f"**{training:.2f}; {passes[64]:.2f}**; {passes[16]:.2f} |")


def reached(of):
    """accuracy_report.md, "What is reached"."""
    formats = ("f32", "f16", "bf16")
    fits = [of.header(f"gelu_{name}") for name in formats]
    own = [of.sweep(f"gelu_{name}", name) for name in formats]
    wide = [of.sweep(f"gelu_{name}", "f32") for name in formats]
    from_x = digits_up(wide[0]["from_x"]["T"]["bound"])
    yield row("**T, the whole gradient**, x of the format", *(digits_up(d["T"]["bound"]) for d in own),
              "counted; Coq in 16 bits")
    yield row("**T**, every f32 x", "", *(digits_up(d["T"]["bound"]) for d in wide[1:]),
              "counted; over all real x `check`, Coq").replace("|  |", "| |")
    yield row("PyTorch's gradient, which keeps x, in fp32", from_x, from_x, from_x, "counted")
    yield row("A, fit", *(power_up(h["kA"]) for h in fits), "`check`, Sollya, Coq")
    yield row("A + B, fit and evaluation", *(power_up(h.get("kAB", h["kA"] + h["kB"])) for h in fits),
              "`check`, Gappa, Coq")
    yield row("max T / max O, x of the format", *(up(d["T_over_O"], 3) for d in own), "counted; T: Coq")
    yield row("max T / max O, every f32 x", "", *(up(d["T_over_O"], 3) for d in wide[1:]),
              "counted; over all real x `check`").replace("|  |", "| |")
    yield row("R, x of the format", *(power_up(d["R"]["bound"]) for d in own), "counted")
    ulp = own[0]["forward"]["max_ulp"]
    elsewhere = max(ulp[place]["bound"] for place in ("left_tail", "subnormal", "elsewhere"))
    assert all(d["forward"]["misrounded"] == 0 for d in own[1:])
    yield row("forward y, x of the format",
              f"{up(ulp['near_minimum']['bound'], 2)} ulp near x*, {up(elsewhere, 2)} ulp elsewhere",
              "correctly rounded", "correctly rounded", "counted, Coq")
    f16, bf16 = (d["forward"] for d in wide[1:])
    yield (f"| forward y, f32 x not correctly rounded, of 2^32 | | {f16['misrounded']:,} | "
           f"{bf16['misrounded']:,} (by up to "
           f"{bf16['max_ulp']['left_tail']['value']:.1f} ulp in the far left tail) | counted |")
    yield row("operations per element, backward", *(f"{h['kOperations']:.0f}" for h in fits),
              "").replace("|  |", "| |")


def few_bits_in_short(of):
    """how_few_bits.md, before its first heading."""
    fp8, code = of.header("gelu_fp8"), of.header("gelu_code")
    softmax = next(r for r in of.json("softmax/front.json")["rows"] if r["length"] == 4096
                   and r["store"] == "log2, 8 bits")
    yield f"within {up(of.header('gelu_bf16_parity')['kT'], 5)} for every x"
    yield f"In MXFP8 with the bit it is within {up(of.header('gelu_mxfp8')['kT'], 5)}."
    yield (f"it is within {up(fp8['kE4m3T1'], 5)} with one bit and within {up(fp8['kE4m3T2'], 5)} with two, "
           "for all scales between 448/2^12 and 448")
    assert (fp8["kE4m3Least"], fp8["kE4m3Most"]) == (448 / 2**12, 448)
    yield (f"it is within {up(fp8['kSignT1'], 5)} with one bit and within {up(fp8['kSignT2'], 5)} with two, "
           "in every block")
    yield (f"has an error of at most {up(code['kT4'], 5)}; the least possible with 4 bits is "
           f"{down(width_of(of) / 2**5, 4)}")
    kernel, smallest = softmax_bound(of)
    assert softmax["relative_sum_proven"] <= kernel
    yield f"within {100 * kernel:.2f}% of the row's sum of magnitudes plus {smallest} n (max dp - min dp)"


def width_of(of):
    """From below: a code's range is wider than f' by no more than its kG on either side."""
    code = of.header("gelu_code")
    return code["kHi"] - code["kLo"] - 2 * code["kG"] - 2**-20


def softmax_bound(of):
    """As the interface of C states it."""
    comments = re.sub(r"\n \* ?", " ", (of.repository / "kernels/c/outgrad.h").read_text())
    relative, smallest = re.search(r"sum \|dx - ds\| is at most ([\d.]+) sum \|ds\| \+ ([\d.e-]+) n",
                                   comments).groups()
    mantissa, exponent = smallest.split("e")
    return float(relative), f"{mantissa} 10^{exponent}"


def front_rows(of):
    for store in of.json("front/gelu.json")["stores"]:
        normal = next(under for under in store["under"] if under["x"] == "N(0, 1^2)")
        greatest = max(under["greatest"] for under in store["under"])
        yield row(store["name"], f"{store['bits_beyond']:.4g}", f"{store['bits_all']:.4g}",
                  up(store["proven"], 5) if "proven" in store else "-", f"{greatest:.4f}",
                  f"{normal['rms']:.4f}", f"{normal['bias']:+.4f}", f"{normal['shrinkage']:.4f}")


def softmax_rows(of):
    rows = [r for r in of.json("softmax/front.json")["rows"] if r["length"] == 4096]
    for flat in (r for r in rows if r["spread"] == 1):
        peaked = next(r for r in rows if r["spread"] == 4 and r["store"] == flat["store"])
        proven = up(flat["e1_proven"], 4) if flat["e1_proven"] is not None else "-"
        yield row(flat["store"], f"{flat['bits']:.4g}", proven,
                  *(f"{r[key]:.4f}" for key in ("e1_mean", "relative_error") for r in (flat, peaked)),
                  f"{peaked['relative_sum_most']:.4f}")


def small_number_rows(of):
    for store in ("int8", "MXFP4", "NVFP4"):
        for bits in (1, 2):
            errors = [of.error(store, {"int8": 127 / amax, "MXFP4": 1, "NVFP4": 6 * 448 / amax}[store], amax,
                               bits) for amax in (1 / 4, 1, 4, 16, 64, 1024)]
            yield row(f"{store}, {bits} bit{'s' * (bits > 1)}", *(up(error, 4) for error in errors))


def speed_rows(of):
    groups = {group["format"]: group["stores"] for group in of.json("bench/stores.json")["groups"]
              if group["layer"] == "gelu"}
    for store in groups["bf16"]:
        name = store["store"].removeprefix("bf16 ")
        speeds = []
        for format in ("bf16", "f16", "f32"):
            found = next((s for s in groups[format] if s["store"].removeprefix(f"{format} ") == name), None)
            speeds += ([f"{found[way]['median']:.2f}" for way in ("forward", "backward")] if found
                       else ["-", "-"])
        yield row(name, *(f"{store[way]:.4g}" for way in ("forward_bytes", "backward_bytes")), *speeds)


def norm_speeds(of):
    """Of LayerNorm's kernels with codes beside the plain ones: the range over the stores."""
    groups = [group for group in of.json("bench/stores.json")["groups"] if group["layer"] == "layernorm"]

    def over(way, formats):
        speeds = [f"{store[way]['median']:.2f}" for group in groups if group["format"] in formats
                  for store in group["stores"] if store["store"] != "y"]
        return f"{min(speeds)} to {max(speeds)}"

    yield (f"runs at {over('forward', ('bf16', 'f16'))} of the speed of the plain one in 16 bits, and at "
           f"{over('forward', ('f32',))} in fp32; the backward from the codes at "
           f"{over('backward', ('bf16', 'f16'))} and at {over('backward', ('f32',))}.")


def how_few_bits(of):
    yield from few_bits_in_short(of)
    yield from norm_speeds(of)
    fp8, code = of.header("gelu_fp8"), of.header("gelu_code")
    yield "The code of 4 bits is within 0.001% of that"
    assert width_of(of) / 2**5 < code["kT4"] < (code["kHi"] - code["kLo"]) / 2**5 * 1.00001
    yield f"W = {code['kHi'] - code['kLo']:.4f} is the width"
    yield f"within {up(fp8['kNvfp4T1'], 4)} with one bit and {up(fp8['kNvfp4T2'], 4)} with two"
    yield f"they give {up(fp8['kSignT1'], 4)} and {up(fp8['kSignT2'], 4)} in every block"
    proven = max(r["relative_sum_proven"] for r in of.json("softmax/front.json")["rows"]
                 if r["relative_sum_proven"] is not None)
    kernel, smallest = softmax_bound(of)
    assert proven <= 0.06497 < kernel
    yield f"sum |ds' - ds| <= 0.06497 sum |ds| + {smallest.replace(' 10^', 'e')} S (max dp - min dp)"
    if of.library:
        # The worst of 128 scales by which a value from 1 to 2 becomes the largest number, as the front takes
        # them for e4m3 and e5m2.
        worst = [max(of.error("int8", 127 * 128 / (128 + k), math.inf, bits) for k in range(128))
                 for bits in (1, 2)]
        beyond = [f"{of.mxfp8_error(exponent):.3f}" for exponent in (12, 16, 18, 19, 24)]
        assert beyond[3] == beyond[4]
        yield (f"is found with an error of {beyond[0]} in blocks just beyond 2^12, {beyond[1]} beyond 2^16, "
               f"{beyond[2]} beyond 2^18, and {beyond[3]} from "
               "2^19 on.")
        yield f"from 1 to 2 its errors are within {up(worst[0], 4)} and {up(worst[1], 4)}"


def proof_rows(of):
    """proofs.md: what Coq took for T, the library and the printing of assumptions included."""
    fits = [f"{activation}_{form}" for activation in ("gelu", "gelu_tanh", "silu")
            for form in ("bf16", "f16")]
    records = ("_total", "T"), ("_reals", "T_reals"), ("_product", "product_T")
    rows = [(*names, fit) for names in records for fit in fits]
    rows += [("_reals", "T_reals", f"quick_gelu_{form}") for form in ("bf16", "f16")]
    rows += [("", "bound", f"{activation}_f32") for activation in ("gelu", "gelu_tanh", "silu")]
    for record, end, fit in rows:
        found, theorem = of.json(f"proofs/{fit}{record}.json"), f"{fit}_{end}"
        assert found["holds"] and found["bounds"][-1]["theorems"][0] == theorem
        trust = found["assumptions"]
        files = [*found["library"], *found["bounds"], trust]
        yield row(f"`{theorem}`", f"{found['cpu_s']:.0f}", f"{max(f['peak_mib'] for f in files):,}",
                  f"{len(trust['names'])}, {len(trust['unlisted'])} beyond the list")


def spans(of):
    """proofs.md: the theorem about every number of fp32. Its k is held to by a test of CoqSpans."""
    bounds = of.json("fits/gelu_f32.json")["certificate"]
    yield (f"where the header's AB is {power_up(float.fromhex(bounds['AB']))}, its K "
           f"{power_up(float.fromhex(bounds['K']))}, and k 2^-28.67")
    files = [one["file"] for one in of.json("proofs/gelu_f32.json")["bounds"]]
    yield f"so {sum('_span_' in file for file in files)} spans of GELU hold all numbers"


# The kinds of package_speed.py, as train_with_it.md names them.
FEW = {
    "mlp_dropout_add_layer_norm": "Linear, GELU, Linear, dropout, add and LayerNorm as one node",
    "linear_dropout_add_layer_norm": "Linear, dropout, add and LayerNorm as one node",
    "dropout_add_layer_norm": "dropout, add and LayerNorm as one node",
    "linear_gelu": "Linear and GELU as one node",
    "linear_silu": "Linear and SiLU as one node",
    "layer_norm": "LayerNorm",
    "rms_norm": "RMSNorm",
    "gelu": "GELU",
    "silu": "SiLU",
    "dropout": "dropout",
    "silu, bare node": "a node of SiLU's operators that checks nothing",
    "layer_norm, bare node": "a node of LayerNorm's operators that checks nothing",
}


def speeds_of_few(of, kind):
    rows = {row["format"]: row for row in of.json("studies/package_speed_few.json")["rows"]
            if (row["kind"], row["what"]) == (kind, "through autograd")}
    return [f"{rows[form]['times_as_fast'][0]:.2f}" for form in ("f32", "f16", "bf16")]


def few_rows(of):
    for kind, name in FEW.items():
        yield row(name, *speeds_of_few(of, kind))


# The kinds of gated pairs there, and on how many elements.
PAIRS = {
    "gated silu": "SiLU, `recompute`",
    "gated silu, output": "SiLU, `output`",
    "gated silu, e4m3": "SiLU, `e4m3`",
    "gated silu, mxfp8": "SiLU, `mxfp8`",
    "gated gelu_tanh": "tanh-GELU, `recompute`",
}
MANY = 2**24


def speeds_of_pair(of, kind, is_many):
    rows = of.json("studies/package_speed_pairs.json")["rows"]
    return {row["format"]: row["times_as_fast"][0] for row in rows
            if row["kind"] == kind and (row["elements"] == MANY) == is_many}


def pair_rows(of):
    for kind, name in PAIRS.items():
        found = speeds_of_pair(of, kind, True)
        yield row(name, *(f"{found[form]:.2f}" if form in found else "" for form in ("f32", "f16", "bf16")))


def training(of):
    """train_with_it.md: calls on few elements."""
    plain, codes = ([one for kind in kinds for one in speeds_of_pair(of, kind, False).values()]
                    for kinds in (("gated silu", "gated gelu_tanh"),
                                  ("gated silu, e4m3", "gated silu, mxfp8")))
    yield f"A pair of 64 elements has {min(plain):.2f} to {max(plain):.2f} of PyTorch's speed by default"
    yield f"{min(codes):.2f} to {max(codes):.2f} in 8 bits, which is its overhead."
    slowest, *_, fastest = sorted(speeds_of_few(of, "bert"))
    yield f"run at {slowest} to {fastest} of PyTorch's speed (`package_speed_few.json` beside the others)"


# Each page's claims, and its tables by the heading of their first columns, whose rows are all claimed.
PAGES = {
    "README.md": (readme, {}),
    "docs/accuracy_report.md": (reached, {}),
    "docs/how_few_bits.md": (how_few_bits,
                             {"| store | beyond | all |": front_rows, "| store of p | bits |": softmax_rows,
                              "| y | 1/4 | 1 |": small_number_rows,
                                            "| store | bytes forward, bf16 |": speed_rows}),
    "docs/proofs.md": (spans, {"| theorem | processor": proof_rows}),
    "docs/train_with_it.md": (training, {"  | | fp32 | fp16 | bf16 |": few_rows,
                                         "| gate, store | float32 |": pair_rows}),
}


def rows_of(text, heading):
    """The rows of the table that begins so, without its head."""
    lines = [line.lstrip() for line in text[text.index("\n" + heading) + 1:].splitlines()]
    return lines[2:next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines))]


def wrong_figures(repository, build):
    """A line for each claim that its page does not have as it is computed, and for each row of a table that
    nothing claims."""
    of = Sources(repository, build)
    wrong, count = [], 0
    for name, (claims, tables) in PAGES.items():
        text = (repository / name).read_text()
        flowing = " ".join(text.split())
        for claim in claims(of):
            count += 1
            if " ".join(claim.split()) not in flowing:
                wrong.append(f"{name}: should say: {claim}")
        for heading, expected in tables.items():
            if expected is small_number_rows and not of.library:
                continue
            have, want = rows_of(text, heading), list(expected(of))
            count += len(want)
            wrong += ([f"{name}: no such row: {line}" for line in want if line not in have]
                      + [f"{name}: nothing claims: {line}" for line in have if line not in want])
    print(f"figures: {count} claims, {len(wrong)} wrong")
    return wrong
