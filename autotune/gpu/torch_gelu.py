"""Times PyTorch's erf-GELU forward and backward (from x) with CUDA events, sizes and rounds as in gpu_main.cu.

Usage: torch_gelu.py OUT.json
"""

import json
import os
import statistics
import sys

import torch

ROUNDS = 40
WARM_UP = 20


def median_ms(call, start, stop):
    times = []
    for i in range(WARM_UP + ROUNDS):
        start.record()
        call()
        stop.record()
        stop.synchronize()
        if i >= WARM_UP:
            times.append(start.elapsed_time(stop))
    return statistics.median(times), times


def main(path):
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    rows = []
    for name, dtype, size in (("f32", torch.float32, 4), ("f16", torch.float16, 2), ("bf16", torch.bfloat16, 2)):
        n = 1 << 28
        while 5 * size * n > torch.cuda.mem_get_info()[0]:
            n //= 2
        x = torch.randn(n, device="cuda", dtype=dtype)
        dy = torch.randn_like(x)
        out = torch.empty_like(x)
        for kernel, streams, call in (
            ("gelu_forward", 2, lambda: torch.ops.aten.gelu.out(x, approximate="none", out=out)),
            ("gelu_backward", 3, lambda: torch.ops.aten.gelu_backward.grad_input(dy, x, approximate="none", grad_input=out)),
        ):
            ms, times = median_ms(call, start, stop)
            rows.append({"name": kernel, "format": name, "elements": n, "gb_per_s": streams * size * n / ms * 1e-6, "ms": times})
            print(f"torch {kernel:14s} {name:4s} {rows[-1]['gb_per_s']:8.1f} GB/s  {n / ms * 1e-6:8.2f} G elements/s")
        del x, dy, out
    result = {"schema": "outgrad.gpu_torch/1", "torch": torch.__version__, "device": torch.cuda.get_device_name(), "timings": rows}
    with open(path + ".tmp", "w") as file:
        json.dump(result, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)


if __name__ == "__main__":
    main(sys.argv[1])
