// outgrad-tune: tune, bench and eval; all that a GPU machine needs.
#include <cstdio>
#include <string>
#include <vector>

#include "autotune/bench/bench.h"
#include "autotune/eval_command.h"
#include "autotune/tune_command.h"
#include "kernels/host/errors.h"

namespace {

constexpr const char* kUsage =
    "usage: outgrad COMMAND ...\n"
    "  tune   [--device cpu|auto|cuda:N|cuda:all|sm_XX [--board NAME]] [--kernel A,B|all] [--format F,G|all] [--shape RxN,...] [--elements N]\n"
    "         [--budget SECONDS] [--evaluations N] [--strategy S] [--shard i/n|mpi] [--fresh] [--accuracy default|any] [--headers DIR]\n"
    "         [--out DIR] [--seed N] [--publish] [--json]\n"
    "                        default: no fit with a larger A + B, T or R than the default's is chosen, published or taken along by the header\n"
    "         --merge FILE... --out FILE [--accuracy default|any] [--json]   databases of several runs and machines as one\n"
    "         --defaults FILE... [--out HEADER] [--json]   the schedules whose worst loss over the devices of these databases is least\n"
    "         --record DIR [--kernel K] [--format F] [--budget SECONDS] [--evaluations N] [--elements N] [--passes N]\n"
    "                      [--seed N]   every point of a CPU space\n"
    "         --device replay:FILE [--kernel K --format F] [--strategy S] [--evaluations N] [--seed N] [--json]   search a recording:\n"
    "                              a database, a Kernel Tuner cache, T4 results; S: model, evolutionary, local, random, exhaustive\n"
    "         --device replay:FILE [--export-kernel-tuner FILE] [--export-t4 FILE]\n"
    "         --device replay:FILE --ranking cpu|sm_XX [--kernel K --format F] [--shape RxN] [--out DIR] [--seed N] [--json]\n"
    "                              how well predictions, for which nothing runs, agree with it\n"
    "         --study FILE... [--seeds N] [--shares 1,2,5,10] [--strategy S] [--kernel-tuner all|none|A,B] [--out DIR] [--json]\n"
    "  bench  [--format f32|f16|bf16|all] [--elements N] [--rounds N] [--seed N] [--json]\n"
    "         --tuned HEADER [--kernel K] [--format F] [--elements N] [--shape RxN,...] [--rounds N] [--seed N] [--out DIR] [--json]\n"
    "                        the entry points without a tuned header and with it, in the same rounds\n"
    "  eval   --op OP --format f32|f16|bf16 [--device cpu|cuda:N] [--json] ...   raw little-endian arrays in files; OP is one of\n"
    "         forward             --activation gelu --x X --y Y --mask M\n"
    "         backward            --activation gelu --dy DY --y Y --mask M --dx DX\n"
    "         forward, backward   --header FILE ... the kernel of a header that outgrad emit wrote, of any activation and format\n"
    "         layernorm_forward   --rows R --cols N [--gamma G] [--beta B] [--eps E] --x X --y Y --rstd S\n"
    "         layernorm_backward  --rows R --cols N --dy DY --y Y [--gamma G] [--beta B] --rstd S --dx DX [--dgamma DG] [--dbeta DB]\n"
    "         rmsnorm_forward, rmsnorm_backward: the same without beta\n";

int run(const std::vector<std::string>& words) {
  const std::string command = words.empty() ? "" : words.front();
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(kUsage, stdout);
    return outgrad::kernels::kExitHolds;
  }
  const std::vector<std::string> args(words.begin() + (words.empty() ? 0 : 1), words.end());
  for (const std::string& arg : args)
    if (arg == "--help" || arg == "-h") return run({"help"});
  if (command == "tune") return outgrad::autotune::tune_command(args);
  if (command == "bench") return outgrad::autotune::bench_command(args);
  if (command == "eval") return outgrad::autotune::eval_command(args);
  if (command.empty()) throw outgrad::kernels::SpecError("outgrad-tune: no command (tune, bench, eval)");
  throw outgrad::kernels::SpecError("outgrad-tune: unknown command '" + command + "' (tune, bench, eval)");
}

}  // namespace

int main(int argc, char** argv) {
  return outgrad::kernels::run_main([&] { return run(std::vector<std::string>(argv + 1, argv + argc)); });
}
