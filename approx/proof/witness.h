/// Runs Gappa, Sollya and Coq on our scripts, and says what they found.
///
/// A script counts as proven only if its program ends well, says so, and complains of nothing: Sollya reads
/// on after an error, and Gappa takes a rewriting that it cannot check for true, with a warning. What a proof
/// in Coq assumes is for the caller to look at, in its output.
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
  bool killed = false;  ///< by a signal, of the system or of its own
  double seconds = 0;
  double cpu_s = 0;
  std::size_t peak_bytes = 0;
  std::string output;  ///< stdout and stderr; of prove_for_coq() stdout alone
};

/// The program for a script, by its name's extension: "gappa", "sollya" or "coqc".
std::string program_of(const WitnessScript& script);
/// Whether the PATH has it.
bool program_found(const std::string& program);

/// Runs the script's program on the file `path` for at most `limit_s` seconds. coqc finds the library, and
/// other modules, in the file's folder, and gets kCoqBytes of memory at most. @throws
/// kernels::EnvironmentError when it cannot be started.
Witnessed run_witness(const WitnessScript& script, const std::string& path, double limit_s);

/// Has Gappa write its proof of the file `path` for Coq, without whatever it has to say beside it.
Witnessed prove_for_coq(const std::string& path, double limit_s);

/// Address space that one proof in Coq may take, so that one which runs away does not take the machine with
/// it.
inline constexpr std::size_t kCoqBytes = std::size_t{3} << 30;

}  // namespace outgrad::approx
