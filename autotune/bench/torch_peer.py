"""PyTorch's own kernels, run one at a time for `outgrad bench`: reads a name a line, runs that kernel once,
answers its time in ns.

Usage: torch_peer.py FORMAT ELEMENTS ROWS COLS THREADS

The first line says which PyTorch this is and the names it knows. Activations write into arrays that exist, as
ours do. LayerNorm has no such form on the CPU: its results are allocated anew, as in training, from memory
that the allocator keeps (autotune/bench/peer.cpp).
"""

import sys
import time

import torch


def main(format_name, elements, rows, cols, threads):
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[format_name]
    x = torch.empty(elements, dtype=torch.float32).normal_().to(dtype)
    dy = torch.empty(elements, dtype=torch.float32).uniform_(-1, 1).to(dtype)
    out = torch.empty_like(x)
    aten = torch.ops.aten
    kernels = {
        "gelu_backward": lambda: aten.gelu_backward.grad_input(dy, x, approximate="none", grad_input=out),
        "gelu_forward": lambda: aten.gelu.out(x, approximate="none", out=out),
        "gelu_tanh_forward": lambda: aten.gelu.out(x, approximate="tanh", out=out),
        "silu_forward": lambda: aten.silu.out(x, out=out),
        "mish_forward": lambda: aten.mish.out(x, out=out),
    }
    if rows > 0:
        x_rows, dy_rows = x[: rows * cols].view(rows, cols), dy[: rows * cols].view(rows, cols)
        gamma, beta = torch.full((cols,), 0.75, dtype=dtype), torch.full((cols,), 0.25, dtype=dtype)
        _, mean, rstd = aten.native_layer_norm(x_rows, [cols], gamma, beta, 1e-5)
        kernels["layernorm_forward"] = lambda: aten.native_layer_norm(x_rows, [cols], gamma, beta, 1e-5)
        kernels["layernorm_backward"] = lambda: aten.native_layer_norm_backward(
            dy_rows, x_rows, [cols], mean, rstd, gamma, beta, [True, True, True]
        )
    print(torch.__version__, *kernels, flush=True)
    for line in sys.stdin:
        kernel = kernels[line.strip()]
        start = time.perf_counter_ns()
        kernel()
        print(time.perf_counter_ns() - start, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
