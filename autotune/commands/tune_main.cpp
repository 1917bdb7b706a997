// outgrad-tune: all that a GPU machine needs.
#include "autotune/commands/commands.h"
#include "kernels/support/errors.h"

namespace {

constexpr const char* kTuneUsage =
    "usage: outgrad tune [--device cpu|auto|cuda:N|cuda:all|sm_XX [--board NAME]] [--kernel A,B|all] "
    "[--format F,G|all] [--shape RxN,...]\n"
    "                    [--elements N] [--budget SECONDS] [--evaluations N] [--strategy S] [--shard "
    "i/n|mpi] [--fresh]\n"
    "                    [--accuracy default|any] [--headers DIR] [--out DIR] [--seed N] [--publish] "
    "[--json | --csv]\n"
    "         the fastest kernels of a machine; --accuracy default: no fit with a larger A + B, T or R than "
    "the default's is chosen,\n"
    "         published or taken along by the header\n"
    "       outgrad tune --merge FILE... --out FILE [--accuracy default|any] [--publish] [--json | --csv]\n"
    "         databases of several runs and machines as one\n"
    "       outgrad tune --defaults FILE... [--out HEADER] [--json | --csv]\n"
    "         the schedules whose worst loss over the devices of these databases is least\n"
    "       outgrad tune --record DIR [--kernel K] [--format F] [--budget SECONDS] [--evaluations N] "
    "[--elements N] [--passes N] [--seed N]\n"
    "         every point of a CPU space\n"
    "       outgrad tune --device replay:FILE [--kernel K --format F] [--strategy S] [--evaluations N] "
    "[--seed N] [--json | --csv]\n"
    "         search a recording: a database, a Kernel Tuner cache, T4 results; S: model, evolutionary, "
    "local, random, exhaustive\n"
    "       outgrad tune --device replay:FILE [--export-kernel-tuner FILE] [--export-t4 FILE]\n"
    "       outgrad tune --device replay:FILE --ranking sm_XX [--kernel K --format F] [--shape RxN] [--out "
    "DIR] [--json | --csv]\n"
    "         how well predictions, for which nothing runs, agree with it\n";

constexpr outgrad::autotune::Command kCommands[] = {{"tune", kTuneUsage, outgrad::autotune::tune_command}};

}  // namespace

int main(int argc, char** argv) {
  return outgrad::kernels::run_main([&] {
    return outgrad::autotune::run_command("outgrad-tune", kCommands,
                                          std::vector<std::string>(argv + 1, argv + argc));
  });
}
