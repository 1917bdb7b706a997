/// Runs Gappa and Sollya on our scripts, and says what they found.
///
/// A script counts as proven only if its program ends well, says so, and complains of nothing: Sollya reads on after an error, and Gappa
/// takes a rewriting that it cannot check for true, with a warning.
#pragma once

#include "approx/proof/gappa.h"

#include <string>
#include <vector>

namespace outgrad::approx {

/// The Gappa and Sollya scripts of a backward fit, row by row. @throws kernels::SpecError for a forward fit.
std::vector<WitnessScript> witness_scripts(const Fit& fit, const std::string& path);

/// What a program made of a script.
struct Witnessed {
  bool proven = false;
  bool timed_out = false;
  double seconds = 0;
  std::string output;  ///< stdout and stderr
};

/// The program for a script, by its name's extension: "gappa" or "sollya".
std::string program_of(const WitnessScript& script);
/// Whether the PATH has it.
bool program_found(const std::string& program);

/// Runs the script's program on the file `path`, for at most `limit_s` seconds. @throws kernels::EnvironmentError when it cannot be started.
Witnessed run_witness(const WitnessScript& script, const std::string& path, double limit_s);

}  // namespace outgrad::approx
