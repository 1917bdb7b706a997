/// The commands of outgrad-fit. Each function adds one with its options; the callback runs it and sets `status` where something asked for does not hold.
/// Callbacks throw SpecError or IoError for bad input, EnvironmentError where a program is missing.
#pragma once

#include <CLI/CLI.hpp>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace outgrad::approx {

void add_fit(CLI::App& app, int& status);
void add_emit(CLI::App& app, int& status);
void add_table(CLI::App& app, int& status);
void add_pareto(CLI::App& app, int& status);
void add_reach(CLI::App& app, int& status);
void add_certify(CLI::App& app, int& status);

/// Draws on a terminal's stderr, once a second, how far the job of this scope is; leaves nothing behind.
class ProgressLine {
 public:
  explicit ProgressLine(const std::string& label);
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine();

 private:
  std::mutex guard_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread drawer_;
};

/// "2^-26.01".
std::string power(double bound);

}  // namespace outgrad::approx
