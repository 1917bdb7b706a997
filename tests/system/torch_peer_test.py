#!/usr/bin/env python3
"""tests/gpu/torch_peer.py without PyTorch: its arithmetic, its rows and its table over a stand-in for the
module, on both of its devices; and what it refuses. Where PyTorch is importable, a look whether all of it
runs. usage: torch_peer_test.py REPOSITORY BUILD"""
import contextlib
import importlib.util
import io
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

SCRIPT = pathlib.Path(sys.argv[1]) / "tests/gpu/torch_peer.py"
spec = importlib.util.spec_from_file_location("torch_peer", SCRIPT)
peer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer)


class Tensor:
    """It has a length and nothing else; a slice beyond it is an error."""

    def __init__(self, length):
        self.length = length

    def numel(self):
        return self.length

    def __getitem__(self, where):
        if not 0 <= where.start < where.stop <= self.length:
            raise IndexError("a set that the pool has not")
        return Tensor(where.stop - where.start)

    def view(self, rows, columns):
        if rows * columns != self.length:
            raise ValueError("shape")
        return self

    def __getattr__(self, name):
        return lambda *args, **kwargs: self


class Aten:
    """Every operation, with calls counted; `broken` ones fail, `absent` ones are not there."""

    def __init__(self, broken=(), absent=()):
        self.calls, self.broken, self.absent = {}, broken, absent

    def __getattr__(self, name):
        if name in self.absent:
            raise AttributeError(name)

        def call(*args, **kwargs):
            if name in self.broken:
                raise RuntimeError(f"{name} is not to be had\nsecond line")
            self.calls[name] = self.calls.get(name, 0) + 1
            return Tensor(1), Tensor(1), Tensor(1)

        call.out = call.grad_input = call
        if name == "_fused_rms_norm":
            return lambda *args: call(*args)[:2]
        return call


def torch_of(aten):
    torch = types.SimpleNamespace(__version__="0", bfloat16="bfloat16", float16="float16", float32="float32")
    torch.ops = types.SimpleNamespace(aten=aten)
    torch.empty = lambda n, dtype, device: Tensor(n)
    torch.full = lambda shape, value, dtype, device: Tensor(shape[0])
    torch.compile = lambda function, dynamic, fullgraph: function
    torch.compiler = types.SimpleNamespace(reset=lambda: None)
    torch.nn = types.SimpleNamespace(functional=types.SimpleNamespace(rms_norm=lambda *args: Tensor(1)))
    torch.autograd = types.SimpleNamespace(grad=lambda *args, **kwargs: (Tensor(1), Tensor(1)))
    replayed = []

    class Graph:
        def replay(self):
            replayed.append(self)

    nothing = lambda *args, **kwargs: contextlib.nullcontext()
    torch.cuda = types.SimpleNamespace(
        is_available=lambda: True, mem_get_info=lambda: (1 << 28, 1 << 28), empty_cache=lambda: None,
        current_stream=lambda: None, CUDAGraph=Graph, graph=nothing, stream=nothing,
        get_device_properties=lambda device: types.SimpleNamespace(name="Made-up GPU", L2_cache_size=1 << 16),
        Stream=lambda: types.SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None),
        Event=lambda enable_timing: types.SimpleNamespace(record=lambda: None, synchronize=lambda: None,
                                                          elapsed_time=lambda stop: 2.0))
    torch.replayed = replayed
    return torch


def peers():
    """QuACK and Liger-Kernel as modules: the signatures and results of 0.6.5 and 0.8.5. QuACK's package hides
    the module behind a function."""
    quack, norms = types.ModuleType("quack"), types.ModuleType("quack.rmsnorm")
    quack.rmsnorm = lambda x, weight: None
    norms.layernorm_fwd = lambda x, weight, bias=None, eps=1e-6, return_rstd=False, return_mean=False: (
        Tensor(1),) + (Tensor(1),) * (return_rstd + return_mean)
    norms.layernorm_bwd = lambda x, weight, dout, rstd, mean: (Tensor(1), Tensor(1), Tensor(1))
    norms.rmsnorm_fwd = (
        lambda x, weight=None, bias=None, residual=None, out_dtype=None, residual_dtype=None, eps=1e-6,
        store_rstd=False, weight_offset=0.0: (Tensor(1), None, Tensor(1) if store_rstd else None))
    norms.rmsnorm_bwd = (lambda x, weight, dout, rstd, dresidual_out=None, has_bias=False, has_residual=False,
                         weight_offset=0.0: (Tensor(1),) * 4)
    layer, rms = (types.ModuleType("liger_kernel.ops.layer_norm"),
                  types.ModuleType("liger_kernel.ops.rms_norm"))
    layer.layer_norm_forward = lambda X, W, B, eps: (Tensor(1), X, Tensor(1), Tensor(1), 1024, 8)
    layer.layer_norm_backward = lambda dY, X, W, B, Mean, RSTD, needs_dw=None, needs_db=None: (Tensor(1),) * 3
    rms.rms_norm_forward = lambda X, W, eps, offset, casting_mode, row_mode: (
        Tensor(1), X, Tensor(1), 1024, 8, {"llama": 0}[casting_mode])
    rms.rms_norm_backward = (lambda dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place,
                             row_mode, needs_dw=None: (dY, Tensor(1)))
    found = {module.__name__: module for module in (quack, norms, layer, rms)}
    return found | {name: types.ModuleType(name) for name in ("liger_kernel", "liger_kernel.ops")}


def timed(torch, device, path=""):
    peer.imported.cache_clear()
    results = peer.Results(path, {"schema": peer.SCHEMA})
    with contextlib.redirect_stdout(io.StringIO()) as said:
        peer.time_all(torch, device, True, 10, results)
    return results.rows, said.getvalue()


def said_by(*arguments):
    ended = subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True)
    return ended.returncode, ended.stderr


def our_row(**changes):
    return {"name": "gelu_backward", "format": "bf16", "rows": 1, "columns": 4096, "us_median": 50.0,
            "gb_per_s": 18.0, **changes}


class TorchPeer(unittest.TestCase):
    def test_sets_exceed_the_cache_and_are_used_alike(self):
        self.assertEqual(peer.sets_of(1 << 20, 2, 50 << 20, 1 << 28), 75)
        self.assertEqual(peer.sets_of(1 << 20, 2, 50 << 20, 1 << 23), 8)  # all that there are
        self.assertEqual(peer.sets_of(1 << 28, 4, 50 << 20, 1 << 28), 1)
        self.assertEqual([peer.calls_of(sets) for sets in (1, 3, 19, 20, 75)], [20, 21, 38, 20, 75])

    def test_disturbed_rounds_are_left_out_of_every_row(self):
        rows = peer.finished([{"name": "copy", "bytes": 1000, "us": [1.0, 2.0, 1.1]},
                              {"name": "x", "bytes": 3000, "us": [4.0, 100.0, 2.0]},
                              {"name": "y", "failed": "why"}])
        self.assertEqual((rows[1]["kept_rounds"], rows[1]["us_median"]), (2, 3.0))
        self.assertAlmostEqual(rows[1]["gb_per_s"], 1e-3 * 3000 / 3.0)
        self.assertNotIn("us_median", rows[2])

    def test_every_row_on_both_devices(self):
        for device in ("cpu", "cuda"):
            rows, _ = timed(torch_of(Aten()), device)
            names = {"copy", "scale", "gelu_forward", "gelu_backward", "gated_silu_forward",
                     "gated_silu_backward", *peer.NORMS}
            for name in names:
                self.assertEqual({row["format"] for row in rows if row["name"] == name
                                  and "us_median" in row}, set(peer.FORMATS), name)
            if device == "cuda":  # 2 ms for a graph, as the events have it
                self.assertEqual({round(row["us_median"] * row["calls"])
                                  for row in rows if "us_median" in row}, {2000})
                compiled = [row for row in rows if row["name"].endswith("_compiled")]
                self.assertEqual({row["name"] for row in compiled},
                                 {name + "_compiled" for name in peer.COMPILED})
                self.assertTrue(all("triton" in row["failed"] for row in compiled if "failed" in row))

    def test_peers_are_timed_where_they_are_installed(self):
        version = {"quack-kernels": "0.6.5", "liger-kernel": "0.8.5"}.__getitem__
        of_version = unittest.mock.patch.object(peer.importlib.metadata, "version", version)
        with unittest.mock.patch.dict(sys.modules, peers()), of_version:
            rows, _ = timed(torch_of(Aten()), "cuda")
            self.assertFalse([row for row in timed(torch_of(Aten()), "cpu")[0] if "of" in row])
        for of, short in (("QuACK 0.6.5", "quack"), ("Liger-Kernel 0.8.5", "liger")):
            own = [row for row in rows if row.get("of") == of]
            self.assertEqual([row for row in own if "failed" in row], [])
            self.assertEqual({(row["name"], row["format"]) for row in own},
                             {(f"{short}_{norm}", format) for norm in peer.NORMS for format in peer.FORMATS})
        # 4 rows of 1024: x, y and, of a backward, dy for x and dx beside y; gamma, beta, their gradients;
        # mean and rstd, or rstd alone.
        bytes_of = {row["name"]: row["bytes"] for row in rows if row["format"] == "bf16" and "bytes" in row}
        for prefix in ("", "quack_", "liger_"):
            self.assertEqual([bytes_of[prefix + norm] for norm in peer.NORMS],
                             [16384 + 4096 + 32, 24576 + 8192 + 32, 16384 + 2048 + 16, 24576 + 4096 + 16])

    def test_peers_that_cannot_be_imported_are_rows_with_the_reason(self):
        broken = {"quack": None, "quack.rmsnorm": None, "liger_kernel": None}
        with unittest.mock.patch.dict(sys.modules, broken):
            rows, said = timed(torch_of(Aten()), "cuda")
        failed = {(row["of"], row["name"]): row["failed"] for row in rows if "of" in row}
        packages = (("QuACK", "quack"), ("Liger-Kernel", "liger"))
        self.assertEqual(set(failed),
                         {(of, f"{short}_{norm}") for of, short in packages for norm in peer.NORMS})
        for (of, _), why in failed.items():
            self.assertIn({"QuACK": "quack.rmsnorm", "Liger-Kernel": "liger_kernel"}[of], why)
        self.assertEqual(said.count("quack_layernorm_forward"), 1, "a failure is said once")
        lines = peer.comparison([our_row(name="copy")], rows)
        self.assertEqual([line for line in lines if line.startswith("no row: QuACK: ")], lines[-1:])

    def test_rmsnorm_without_a_fused_operation(self):
        aten = Aten(absent=("_fused_rms_norm", "_fused_rms_norm_backward"))
        for device in ("cpu", "cuda"):
            rows, _ = timed(torch_of(aten), device)
            self.assertFalse([row for row in rows if row["name"].startswith("rmsnorm") and "failed" in row])

    def test_one_failing_operation_leaves_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/torch.json"
            rows, said = timed(torch_of(Aten(broken=("native_layer_norm_backward",))), "cuda", path)
            failed = [row for row in rows if "failed" in row and not row["name"].endswith("_compiled")
                      and "of" not in row]
            self.assertEqual({(row["name"], row["failed"]) for row in failed},
                             {("layernorm_backward", "native_layer_norm_backward is not to be had")})
            self.assertTrue([row for row in rows if row["name"] == "rmsnorm_backward" and "us_median" in row])
            self.assertIn("FAILED: native_layer_norm_backward is not to be had", said)
            written = json.loads(pathlib.Path(path).read_text())
            self.assertEqual((written["schema"], written["complete"], written["timings"], written["device"]),
                             (peer.SCHEMA, True, rows, "Made-up GPU"))

    def test_the_table_joins_by_work(self):
        theirs = peer.finished([{"name": name, "format": "bf16", "rows": 1, "columns": 4096,
                                 "bytes": 1000, "us": us}
                                for name, us in (("copy", [10.0]), ("gelu_backward", [40.0]),
                                                 ("gelu_backward_compiled", [100.0]))])
        ours = [our_row(name="copy", columns=1 << 20, gb_per_s=12.0),
                our_row(name="scale", columns=1 << 20, gb_per_s=20.0)]
        lines = peer.comparison([our_row(), our_row(name="bias_gelu_forward"), our_row(format="f16"), *ours],
                                theirs)
        self.assertEqual(len(lines), 5)
        self.assertRegex(lines[1], r"^gelu_backward +bf16 +4096 +50\.00 +40\.00 +0\.80 .*BEHIND$")
        self.assertRegex(lines[2],
                         r"^gelu_backward_compiled *bf16 +4096 +50\.00 +100\.00 +2\.00 +90\.0% +10\.0%$")
        self.assertEqual(lines[3:], ["1 rows, behind PyTorch in 1", "1 rows, behind compiled PyTorch in 0"])
        shown = peer.comparison([our_row(), our_row(name="copy")], theirs)
        self.assertTrue(shown[1].startswith("copy ") and shown[4:] == lines[3:],
                        "a ceiling is shown, and counted nowhere")
        norm = {"format": "bf16", "rows": 8, "columns": 64}
        theirs += [{"name": "quack_rmsnorm_forward", "of": "QuACK 1", "us_median": 5.0,
                    "gb_per_s": 5.0, **norm},
                   {"name": "liger_rmsnorm_forward", "of": "Liger-Kernel",
                    "failed": "No module named 'liger_kernel'", **norm}]
        lines = peer.comparison([our_row(), our_row(name="rmsnorm_forward", us_median=10.0, **norm), *ours],
                                theirs)
        self.assertRegex(lines[3], r"^quack_rmsnorm_forward +bf16 +8 x 64 +10\.00 +5\.00 +0\.50 .*BEHIND$")
        self.assertEqual(lines[4:], ["1 rows, behind PyTorch in 1",
                                     "1 rows, behind compiled PyTorch in 0", "1 rows, behind QuACK 1 in 1",
                                     "no row: Liger-Kernel: No module named 'liger_kernel'"])

    def test_committed_results_are_shown_without_a_gpu(self):
        folder = pathlib.Path(SCRIPT).parents[2] / "notebooks_data/gpu/nvidia_h200"
        ended = subprocess.run([sys.executable, str(SCRIPT), "--ours", str(folder / "timing.json"),
                                "--theirs", str(folder / "torch.json")], capture_output=True, text=True)
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        readme = (folder.parent / "README.md").read_text().replace("\n", " ")
        count, behind = map(int,
                            re.search(r"^(\d+) rows, behind PyTorch in (\d+)$", ended.stdout, re.M).groups())
        self.assertIn(f"{count} rows of our kernels have a row of PyTorch's beside them; ours are faster in "
                      f"{count - behind}.", readme)
        rows = [line for line in ended.stdout.splitlines()[1:] if "%" in line
                and not line.startswith(("copy", "scale", "gelu_backward_compiled"))]
        self.assertEqual((len(rows), sum("BEHIND" in row for row in rows)), (count, behind))
        self.assertLessEqual(max(float(re.search(r"([0-9.]+)%", row)[1]) for row in rows), 100,
                             "none of ours is above the ceiling")
        for name, file in (("QuACK 0.6.5", "peers_quack.json"), ("Liger-Kernel 0.8.5", "peers_liger.json")):
            lines = peer.comparison(peer.read_rows(folder / "timing.json", "outgrad.gpu_time", ""),
                                    peer.read_rows(folder / file, "outgrad.gpu_torch", ""))
            count, behind = re.fullmatch(rf"(\d+) rows, behind {name} in (\d+)", lines[-1]).groups()
            self.assertRegex(readme, rf"{count} (rows )?of {name}( \(LayerNorm\))?( ours are faster)? in "
                                     rf"{int(count) - int(behind)}\b")
        for line in json.loads((folder / "checks.json").read_text())["digests"]["digests"]:
            self.assertEqual(line["sha256"], line["sweep"])

    def test_refuses_in_one_line(self):
        with tempfile.TemporaryDirectory() as folder:
            bad = pathlib.Path(folder) / "ours.json"
            for text in ("", "[]", "{}", '{"schema": "outgrad.gpu_torch/3", "timings": []}',
                         '{"schema": "outgrad.gpu_time/3", "timings": [{}]}',
                         '{"schema": "outgrad.gpu_time/3", "timings": []}', '{"schema": 3, "timings": []}',
                         '{"schema": "outgrad.gpu_time/3", "timings": 5}'):
                bad.write_text(text)
                status, said = said_by("--ours", str(bad))
                self.assertEqual((status, said), (2, f"outgrad: torch_peer: {bad}: is not what outgrad-gpu "
                                                     "time writes (outgrad.gpu_time)\n"))
            for arguments in (("--ours", folder + "/absent"), ("--theirs", str(bad)), ("--budget", "0"),
                              ("--budget", "x"), ("--nonsense",), ("--device", "tpu"), ("stray",)):
                status, said = said_by(*arguments)
                self.assertEqual((status, said.count("\n")), (2, 1), said)

    def test_what_is_here(self):
        if importlib.util.find_spec("torch") is None:
            status, said = said_by()
            self.assertEqual((status, said),
                             (3, "outgrad: torch_peer: PyTorch is not importable: No module named 'torch'\n"))
            return
        with tempfile.TemporaryDirectory() as folder:
            status, said = said_by("--device", "cpu", "--reduced", "--out", folder + "/torch.json")
            self.assertEqual(status, 0, said)
            rows = json.loads(pathlib.Path(folder, "torch.json").read_text())["timings"]
            self.assertEqual([row for row in rows if "failed" in row], [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
