// The commands of outgrad-check. Each function adds one to the program, and its callback runs it.
//
// A callback throws kernels::SpecError or IoError for bad input and EnvironmentError where the machine
// lacks something. It sets `status`, which must outlive the parsing, to kExitViolated if what the command
// decides does not hold.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

#include "kernels/support/result.h"

namespace outgrad::validation {

/// `outgrad validate --header`: T, O and R of a header over every x of its format, counted. Prints, and
/// writes the result ("outgrad.own_sweep/1") to `out` (empty: beside the header, ending in .sweep.json).
/// Whether no error is above what the header claims. `histogram`: a file of x to weigh errors by, beside
/// N(0, sigma^2).
bool validate_header(const std::string& header, const std::string& histogram, const std::string& out,
                     const kernels::ResultForm& form);

/// `validate`: exhaustive sweeps of the kernels that this program was built with; decides the bounds of the
/// project. With --header if it is given what to do with one, which its room does not know.
void add_validate(CLI::App& app, int& status, decltype(validate_header)* sweep_header = nullptr);

/// `front`: what each way of keeping less for an activation's backward pass costs; decides whether an error
/// was found beyond a bound that a header states as proven.
void add_front(CLI::App& app, int& status);

/// `stability`: norm layers of a checkpoint, or given parameters, by norms/stability.h. An unstable channel
/// is a result and not a failure.
void add_stability(CLI::App& app);

/// `report`: HTML and Markdown from the results that the other stages left in a folder; decides the
/// requirements.
void add_report(CLI::App& app, int& status);

/// `compare`: two results side by side.
void add_compare(CLI::App& app);

/// `plot`: a fit as SVG.
void add_plot(CLI::App& app);

}  // namespace outgrad::validation
