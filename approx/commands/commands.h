/// The commands of outgrad-fit. Each function adds one with its options; the callback runs it and sets
/// `status` where something asked for does not hold. Callbacks throw SpecError or IoError for bad input,
/// EnvironmentError where a program is missing.
#pragma once

#include "approx/model/fit.h"
#include "kernels/support/progress.h"
#include "kernels/support/result.h"

#include <CLI/CLI.hpp>

#include <optional>
#include <string>

namespace outgrad::approx {

void add_fit(CLI::App& app, int& status);
void add_emit(CLI::App& app, int& status);
void add_table(CLI::App& app, int& status);
void add_pareto(CLI::App& app, int& status);
void add_reach(CLI::App& app, int& status);
void add_certify(CLI::App& app, int& status);

/// --threads, for a command whose result does not depend on it.
void add_threads(CLI::App& command, int& threads);

/// A function, for a command that takes no specification.
struct FunctionOptions {
  std::string activation, expression;  ///< one of them
  std::optional<double> beta, alpha;

  [[nodiscard]] bool given() const { return !activation.empty() || !expression.empty(); }
  /// The activation's, or, of what is none by itself, its words: "own_x_sigmoid_1_2_x".
  [[nodiscard]] std::string name() const;
  /// Members of a specification. @throws kernels::SpecError unless one of both is given.
  [[nodiscard]] std::string members() const;
};
/// --activation, --expression, --beta, --alpha.
void add_function(CLI::App& command, FunctionOptions& options);
/// --format of y. @throws CLI's error where it is required and missing.
CLI::Option* add_format(CLI::App& command, std::string& format);

/// What outgrad-check, the program beside this one, does not accept in the header of a fit; nothing if it
/// proves every claim again. @throws kernels::EnvironmentError where it is missing or cannot do its work.
std::string unproven(const Fit& fit);
/// Prints the text of a fit's file as --json, or its members as --csv.
void print_fit(const kernels::ResultForm& form, const std::string& text);
/// One line on stderr that says so.
void print_unproven(const Fit& fit, const std::string& why);

/// What `fit` is asked for without a specification.
struct OwnRequest {
  FunctionOptions function;
  std::string format, error, name, out;
  bool oracle = false, unchecked = false;
  kernels::ResultForm form;
  int threads = 0;
};
/// Fits, writes fit, specification and header, and prints what was reached; whether the second witness
/// agrees.
/// @throws kernels::SpecError, kernels::IoError.
bool fit_without_specification(const OwnRequest& request);

/// Draws how far the job of this scope is, by its stages; leaves nothing behind.
struct JobLine : kernels::JobLine {
  explicit JobLine(const std::string& label);
};
}  // namespace outgrad::approx
