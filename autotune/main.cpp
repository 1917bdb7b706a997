// outgrad-tune: tune, bench and eval; all that a GPU machine needs.
#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/bench/bench.h"
#include "autotune/eval_command.h"
#include "autotune/tune_command.h"
#include "kernels/support/errors.h"

namespace {

constexpr const char* kTuneUsage =
    "usage: outgrad tune [--device cpu|auto|cuda:N|cuda:all|sm_XX [--board NAME]] [--kernel A,B|all] [--format F,G|all] [--shape RxN,...]\n"
    "                    [--elements N] [--budget SECONDS] [--evaluations N] [--strategy S] [--shard i/n|mpi] [--fresh]\n"
    "                    [--accuracy default|any] [--headers DIR] [--out DIR] [--seed N] [--publish] [--json]\n"
    "         the fastest kernels of a machine; --accuracy default: no fit with a larger A + B, T or R than the default's is chosen,\n"
    "         published or taken along by the header\n"
    "       outgrad tune --merge FILE... --out FILE [--accuracy default|any] [--json]\n"
    "         databases of several runs and machines as one\n"
    "       outgrad tune --defaults FILE... [--out HEADER] [--json]\n"
    "         the schedules whose worst loss over the devices of these databases is least\n"
    "       outgrad tune --record DIR [--kernel K] [--format F] [--budget SECONDS] [--evaluations N] [--elements N] [--passes N] [--seed N]\n"
    "         every point of a CPU space\n"
    "       outgrad tune --device replay:FILE [--kernel K --format F] [--strategy S] [--evaluations N] [--seed N] [--json]\n"
    "         search a recording: a database, a Kernel Tuner cache, T4 results; S: model, evolutionary, local, random, exhaustive\n"
    "       outgrad tune --device replay:FILE [--export-kernel-tuner FILE] [--export-t4 FILE]\n"
    "       outgrad tune --device replay:FILE --ranking cpu|sm_XX [--kernel K --format F] [--shape RxN] [--out DIR] [--seed N] [--json]\n"
    "         how well predictions, for which nothing runs, agree with it\n"
    "       outgrad tune --study FILE... [--seeds N] [--shares 1,2,5,10] [--strategy S] [--kernel-tuner all|none|A,B] [--out DIR] [--json]\n"
    "         how near to a recording's best each strategy comes within a share of the space\n";

constexpr const char* kBenchUsage =
    "usage: outgrad bench [--format F,G|all] [--elements N] [--rounds N] [--seed N] [--json]\n"
    "         the kernels beside this machine's bandwidth, and beside PyTorch if OUTGRAD_PYTHON names a Python that has it\n"
    "       outgrad bench --tuned HEADER [--kernel K] [--format F] [--elements N] [--shape RxN,...] [--rounds N] [--seed N] [--out DIR] [--json]\n"
    "         the entry points without a tuned header and with it, in the same rounds\n";

constexpr const char* kEvalUsage =
    "usage: outgrad eval --op OP --format f32|f16|bf16 [--device cpu|cuda:N] [--json] ...\n"
    "         one kernel over raw little-endian arrays in files; OP is one of\n"
    "         forward             --activation gelu --x X --y Y --mask M\n"
    "         backward            --activation gelu --dy DY --y Y --mask M --dx DX\n"
    "         forward, backward   --header FILE ... the kernel of a header that `emit` wrote, of any activation and format\n"
    "         layernorm_forward   --rows R --cols N [--gamma G] [--beta B] [--eps E] --x X --y Y --rstd S\n"
    "         layernorm_backward  --rows R --cols N --dy DY --y Y [--gamma G] [--beta B] --rstd S --dx DX [--dgamma DG] [--dbeta DB]\n"
    "         rmsnorm_forward, rmsnorm_backward: the same without beta\n";

struct Command {
  std::string_view name;
  const char* usage;
  int (*run)(const std::vector<std::string>&);
};
constexpr Command kCommands[] = {{"tune", kTuneUsage, outgrad::autotune::tune_command},
                                 {"bench", kBenchUsage, outgrad::autotune::bench_command},
                                 {"eval", kEvalUsage, outgrad::autotune::eval_command}};

bool asks_for_help(std::string_view word) { return word == "--help" || word == "-h"; }

int run(const std::vector<std::string>& words) {
  if (words.empty()) throw outgrad::kernels::SpecError("outgrad-tune: no command (tune, bench, eval)");
  if (asks_for_help(words.front()) || words.front() == "help") {
    for (const Command& command : kCommands) std::fputs(command.usage, stdout);
    return outgrad::kernels::kExitHolds;
  }
  for (const Command& command : kCommands) {
    if (words.front() != command.name) continue;
    const std::vector<std::string> args(words.begin() + 1, words.end());
    if (std::none_of(args.begin(), args.end(), asks_for_help)) return command.run(args);
    std::fputs(command.usage, stdout);
    return outgrad::kernels::kExitHolds;
  }
  throw outgrad::kernels::SpecError("outgrad-tune: unknown command '" + words.front() + "' (tune, bench, eval)");
}

}  // namespace

int main(int argc, char** argv) {
  return outgrad::kernels::run_main([&] { return run(std::vector<std::string>(argv + 1, argv + argc)); });
}
