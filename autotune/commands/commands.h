// The command line of the programs of this folder: PROGRAM COMMAND OPTION...
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace outgrad::autotune {

struct Command {
  std::string_view name;
  const char* usage;
  int (*run)(const std::vector<std::string>&);
};

// Runs the command that the first word names, with the words behind it, or prints usages where --help asks
// for them. Returns the exit status. Throws SpecError for a command that is missing or unknown.
int run_command(std::string_view program, std::span<const Command> commands,
                const std::vector<std::string>& words);

// The commands. Each returns the exit status.

// `tune`: its first options say which of its modes is meant (tune_modes.h).
int tune_command(const std::vector<std::string>& words);
// `bench`: the kernels that this program runs beside the machine's ceiling and peers, with a tuned header and
// without one, or with stores that keep less.
int bench_command(const std::vector<std::string>& words);
// `eval`: one kernel on raw little-endian arrays in files, so that any language can test it; `--op` is
// forward, backward, layernorm_forward, layernorm_backward, rmsnorm_forward or rmsnorm_backward
// (autotune/README.md lists the options of each). Every size is checked before anything runs; no output
// appears unless all were written. Throws SpecError, IoError, EnvironmentError.
int eval_command(const std::vector<std::string>& words);

}  // namespace outgrad::autotune
