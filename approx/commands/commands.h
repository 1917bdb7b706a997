/// The commands of outgrad-fit. Each function adds one with its options; the callback runs it and sets
/// `status` where something asked for does not hold. Callbacks throw SpecError or IoError for bad input,
/// EnvironmentError where a program is missing.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <thread>

namespace outgrad::approx {

void add_fit(CLI::App& app, int& status);
void add_emit(CLI::App& app, int& status);
void add_table(CLI::App& app, int& status);
void add_pareto(CLI::App& app, int& status);
void add_reach(CLI::App& app, int& status);
void add_certify(CLI::App& app, int& status);

/// --threads, for a command whose result does not depend on it.
void add_threads(CLI::App& command, int& threads);

/// Draws on a terminal, once a second, how far the job of this scope is; leaves nothing behind.
class JobLine {
 public:
  explicit JobLine(const std::string& label);

 private:
  std::jthread drawer_;
};

/// "2^-26.01".
std::string power(double bound);

}  // namespace outgrad::approx
