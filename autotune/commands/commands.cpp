// Finds the command that the first word names, and runs it on the others.
#include "autotune/commands/commands.h"

#include <algorithm>
#include <cstdio>

#include "kernels/support/errors.h"
#include "kernels/support/suggestion.h"

namespace outgrad::autotune {
namespace {

bool asks_for_help(std::string_view word) { return word == "--help" || word == "-h"; }

std::string names_of(std::span<const Command> commands) {
  std::string names;
  for (const Command& command : commands) names += (names.empty() ? "" : ", ") + std::string(command.name);
  return names;
}

std::string nearest(const std::string& word, std::span<const Command> commands) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.emplace_back(command.name);
  return kernels::did_you_mean(word, names);
}

}  // namespace

int run_command(std::string_view program, std::span<const Command> commands,
                const std::vector<std::string>& words) {
  if (words.empty())
    throw kernels::SpecError(std::string(program) + ": no command (" + names_of(commands) + ")");
  if (asks_for_help(words.front()) || words.front() == "help") {
    for (const Command& command : commands) std::fputs(command.usage, stdout);
    return kernels::kExitHolds;
  }
  const auto command = std::ranges::find(commands, std::string_view(words.front()), &Command::name);
  if (command == commands.end())
    throw kernels::SpecError(std::string(program) + ": unknown command '" + words.front() + "' (" +
                             names_of(commands) + ")" + nearest(words.front(), commands));
  const std::vector<std::string> options(words.begin() + 1, words.end());
  if (std::ranges::none_of(options, asks_for_help)) return command->run(options);
  std::fputs(command->usage, stdout);
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
