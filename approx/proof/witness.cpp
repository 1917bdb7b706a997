// Starts a witness's program on a script under a limit of time, and judges what it printed.
#include "approx/proof/witness.h"

#include "approx/function/composite.h"
#include "approx/proof/sollya.h"
#include "kernels/support/process.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>

namespace outgrad::approx {
namespace {

/// Words by which the programs report that something was not as we meant it. Gappa's other warnings tell of
/// hints it does not need.
bool complains(const std::string& program, const std::string& output) {
  const auto says = [&](const char* word) { return output.find(word) != std::string::npos; };
  if (program == "sollya") return says("Warning") || says("error") || says("FAILED");
  return program == "gappa" && (says("trivially equal") || says("Error"));  // coqc goes on after no error
}

bool says_proven(const std::string& program, const std::string& output) {
  return program != "sollya" || output.starts_with("PROVEN ") ||
         output.find("\nPROVEN ") != std::string::npos;
}

/// `proven`: it ended well.
Witnessed run_program(kernels::Launch launch, double limit_s) {
  launch.out = kernels::Launch::kCaptured;
  const std::string program = launch.words.front();
  const auto start = std::chrono::steady_clock::now();
  kernels::Ending ending = kernels::run(std::move(launch), limit_s);
  if (ending.status == kernels::Ending::kNotStarted)
    throw kernels::EnvironmentError(program + ": cannot be started");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {
      ending.status == 0, ending.late,           ending.signal != 0 && !ending.late, seconds, ending.cpu_s,
      ending.peak_bytes,  std::move(ending.text)};
}

}  // namespace

std::vector<WitnessScript> witness_scripts(const Fit& fit, const std::string& path) {
  if (!fit.as<BackwardModel>())
    throw kernels::SpecError(path, "kind",
                             "a backward fit is needed: a forward fit has no bound B, and a direct table or "
                             "a code neither A nor B");
  std::vector<WitnessScript> scripts;
  std::optional<Real> x_star;
  // f is given by its text; x (Sollya warns of a bare x) for x >= 0 where the activation says so.
  const bool linear = fit.activation != "expression" && find_activation(fit.activation).linear_from_zero;
  for (const Piece& piece : fit.as<BackwardModel>()->pieces) {
    if (piece.coordinate == Coordinate::signed_root && !x_star)
      x_star = Composite(activation_from_expression(fit.function)).x_star().mid();
    std::vector<WitnessScript> row = gappa_scripts(fit.name, *fit.as<BackwardModel>(), piece);
    std::move(row.begin(), row.end(), std::back_inserter(scripts));
    scripts.push_back(sollya_script(fit.name, linear && piece.x_lo >= 0 ? "1*x" : fit.function, piece,
                                    x_star.value_or(Real(0))));
  }
  return scripts;
}

std::string program_of(const WitnessScript& script) {
  if (script.name.ends_with(".v")) return "coqc";
  return script.name.ends_with(".gappa") ? "gappa" : "sollya";
}

bool program_found(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (::access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  }
  return false;
}

Witnessed run_witness(const WitnessScript& script, const std::string& path, double limit_s) {
  const std::string program = program_of(script);
  kernels::Launch launch{{program, path}};  // nothing on stdin: Sollya asks a terminal how to go on
  if (program == "gappa") launch.words.insert(launch.words.begin() + 1, kGappaOption);
  if (program == "coqc") {
    // What the packages themselves are warned of is not for us to see. It leaves caches in the folder where
    // it works.
    const std::filesystem::path file(path);
    launch.words = {program, "-q", "-w", "-ambiguous-paths", "-Q", ".", "Outgrad", file.filename()};
    launch.folder = file.parent_path();
    launch.limits = {{RLIMIT_AS, kCoqBytes}};
  }
  launch.err = kernels::Launch::kCaptured;
  Witnessed result = run_program(std::move(launch), limit_s);
  result.proven = result.proven && says_proven(program, result.output) && !complains(program, result.output);
  return result;
}

Witnessed prove_for_coq(const std::string& path, double limit_s) {
  return run_program({{"gappa", kGappaOption, "-Bcoq", path}}, limit_s);
}

}  // namespace outgrad::approx
