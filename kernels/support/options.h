// What the command lines of all programs have in common, on CLI11. It takes seconds to compile: for the
// sources that declare options, no header.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "kernels/support/errors.h"
#include "kernels/support/numbers.h"
#include "kernels/support/result.h"
#include "kernels/support/suggestion.h"

namespace outgrad::kernels {

// Passes a number from `least` to `most`. CLI::Range passes "nan", too.
template <class Number>
CLI::Validator in_range(Number least, Number most) {
  const std::string range = "from " + std::to_string(least) + " to " + std::to_string(most);
  const auto refusal = [=](const std::string& text) {
    const auto value = number_in<Number>(text);
    if (value && *value >= least && *value <= most) return std::string();
    return "'" + text + "' is not " + (std::integral<Number> ? "an integer " : "a number ") + range;
  };
  return CLI::Validator(refusal, range);
}

// Has the numbers of all commands read as a person writes them: CLI11 reads "010" as 8, "-1" as 2^64 - 1
// where a count is wanted, and no text at all as 0.
inline void read_decimal(CLI::App& app) {
  for (CLI::App* const command : app.get_subcommands(nullptr)) {
    for (CLI::Option* const option : command->get_options()) {
      const std::string type = option->get_type_name();
      const bool whole = type.starts_with("INT"), count = type.starts_with("UINT");
      if (!whole && !count && !type.starts_with("FLOAT")) continue;
      option->transform(CLI::Validator(
          [=](std::string& text) {
            const auto value = number_in<std::int64_t>(text);
            const auto large = number_in<std::uint64_t>(text);
            if (whole ? !value : count ? !large : text.empty())
              return "'" + text + "' is not " + (whole ? "an integer" : count ? "a count" : "a number");
            if (whole) text = std::to_string(*value);
            if (count) text = std::to_string(*large);
            return std::string();
          },
          ""));
    }
  }
}

// The options that choose the form of a result; `what` is what they print.
inline void add_result_form(CLI::App& app, ResultForm& form, const std::string& what) {
  CLI::Option* const json = app.add_flag("--json", form.json, "Print " + what + " as JSON");
  app.add_flag("--csv", form.csv, "Print " + what + " as comma-separated values, a head and a row for each")
      ->excludes(json);
}

// "; did you mean '--format'?" of a word that is none of the command's options.
inline std::string nearest_option(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* const option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return did_you_mean(word.substr(0, word.find('=')), names);
}

// Has the application read the words, a command and its options, and run the command; or prints its help
// where they ask for that. Throws SpecError for what it refuses: "command: --option: why".
inline void parse(CLI::App& app, std::vector<std::string> words) {
  read_decimal(app);
  std::ranges::reverse(words);  // CLI11 takes them from the back
  try {
    app.parse(std::move(words));
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
  } catch (const CLI::ParseError& error) {
    const std::vector<CLI::App*> commands = app.get_subcommands();
    if (!commands.empty()) {
      const CLI::App& command = *commands.front();
      const std::vector<std::string> unexpected = command.remaining();
      throw SpecError(command.get_name() + ": " + error.what() +
                      (unexpected.empty() ? "" : nearest_option(command, unexpected.front())));
    }
    // CLI11 calls a misspelt command a missing one.
    const std::vector<std::string> extras = app.remaining();
    std::vector<std::string> known;
    for (const CLI::App* const command : app.get_subcommands(nullptr)) known.push_back(command->get_name());
    throw SpecError(extras.empty()
                        ? error.what()
                        : "unknown command " + extras.front() + did_you_mean(extras.front(), known));
  }
}

}  // namespace outgrad::kernels
