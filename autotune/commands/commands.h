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

}  // namespace outgrad::autotune
