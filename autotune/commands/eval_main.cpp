// outgrad-eval: the kernels as callers get them, on arrays in files (eval) and beside this machine's
// bandwidth (bench).
#include "autotune/commands/commands.h"
#include "kernels/support/errors.h"

namespace {

constexpr const char* kBenchUsage =
    "usage: outgrad bench [--format F,G|all] [--elements N] [--rounds N] [--seed N] [--json | --csv]\n"
    "         the kernels beside this machine's bandwidth, and beside PyTorch if OUTGRAD_PYTHON names a "
    "Python that has it\n"
    "       outgrad bench --stores [--format F,G|all] [--elements N] [--rounds N] [--seed N] [--json | "
    "--csv]\n"
    "         GELU's kernels that keep less than y and a bit, beside those that keep these, in the same "
    "rounds\n"
    "       outgrad bench --tuned HEADER [--kernel K] [--format F] [--elements N] [--shape RxN,...] "
    "[--rounds N] [--seed N] [--out DIR] [--json | --csv]\n"
    "         the entry points without a tuned header and with it, in the same rounds\n";

constexpr const char* kEvalUsage =
    "usage: outgrad eval --op OP --format f32|f16|bf16 [--device cpu|cuda:N] [--json | --csv] ...\n"
    "         one kernel over raw little-endian arrays in files; OP is one of\n"
    "         forward             --activation A --x X --y Y [--mask M]\n"
    "         backward            --activation A --dy DY --y Y [--mask M] --dx DX\n"
    "                             A: gelu, gelu_tanh, quick_gelu, silu, swish, mish, which need --mask, or "
    "tanh, sigmoid, softplus, elu,\n"
    "                             which have none\n"
    "         forward, backward   --header FILE ... the kernel of a header that `emit` wrote, of any "
    "activation and format;\n"
    "                             --scales S for a y in blocks (mxfp8)\n"
    "         layernorm_forward   --rows R --cols N [--gamma G] [--beta B] [--eps E] --x X --y Y --rstd S\n"
    "         layernorm_backward  --rows R --cols N --dy DY --y Y [--gamma G] [--beta B] --rstd S --dx DX "
    "[--dgamma DG] [--dbeta DB]\n"
    "         rmsnorm_forward, rmsnorm_backward: the same without beta\n";

constexpr outgrad::autotune::Command kCommands[] = {{"bench", kBenchUsage, outgrad::autotune::bench_command},
                                                    {"eval", kEvalUsage, outgrad::autotune::eval_command}};

}  // namespace

int main(int argc, char** argv) {
  return outgrad::kernels::run_main([&] {
    return outgrad::autotune::run_command("outgrad-eval", kCommands,
                                          std::vector<std::string>(argv + 1, argv + argc));
  });
}
