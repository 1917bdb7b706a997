// `outgrad certify`: the bounds of a fit as scripts that Sollya and Gappa prove.

#include "approx/commands/commands.h"
#include "approx/function/composite.h"
#include "approx/proof/sollya.h"
#include "approx/proof/witness.h"
#include "approx/search/fitter.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/options.h"
#include "kernels/support/parallel.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

namespace outgrad::approx {
namespace {

void require_programs(const std::vector<WitnessScript>& scripts) {
  for (const WitnessScript& script : scripts) {
    const std::string program = program_of(script);
    if (!program_found(program)) throw kernels::EnvironmentError(program + " is not installed (Debian package " + program + ")");
  }
}

/// All scripts, written to `folder` and run, `threads` at a time; a line each, in order.
std::vector<Witnessed> run_scripts(const std::vector<WitnessScript>& scripts, const std::string& folder, double limit_s, int threads) {
  std::vector<Witnessed> results(scripts.size());
  kernels::for_each_task(scripts.size(), threads, [&](size_t i) { results[i] = run_witness(scripts[i], folder + "/" + scripts[i].name, limit_s); });
  return results;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Runs the scripts of A and B, and says how each fared. @return exit status.
int confirm(const Fit& fit, const std::vector<WitnessScript>& scripts, const std::string& folder, double limit_s, int threads) {
  require_programs(scripts);
  const std::vector<Witnessed> results = run_scripts(scripts, folder, limit_s, threads);
  size_t proven_a = 0, proven_b = 0, all_a = 0, all_b = 0;
  for (size_t i = 0; i < scripts.size(); ++i) {
    const bool b = program_of(scripts[i]) == "gappa";
    ++(b ? all_b : all_a);
    if (results[i].proven) ++(b ? proven_b : proven_a);
    const char* outcome = results[i].proven ? "proven" : results[i].timed_out ? "OUT OF TIME" : "NOT PROVEN";
    fmt::print("{:<11} {:7.2f} s  {} <= {}  {}\n", outcome, results[i].seconds, b ? 'B' : 'A', power_of_two(scripts[i].claim), scripts[i].name);
    if (!results[i].proven && !results[i].timed_out) fmt::print("            {}\n", first_line(results[i].output));
  }
  fmt::print("{}: A <= {}: {} of {} Sollya scripts proven (tails apart); B <= {}: {} of {} Gappa scripts proven\n", fit.name, power_of_two(fit.backward->kA),
             proven_a, all_a, power_of_two(fit.backward->kB), proven_b, all_b);
  return proven_a == all_a && proven_b == all_b ? kernels::kExitHolds : kernels::kExitViolated;
}

/// The same pieces fitted by Sollya's fpminimax, with certified norms, and by us; a measurement, with no verdict.
void beside_sollya(const std::string& spec_path, const std::string& folder, double limit_s) {
  const Spec spec = read_spec(spec_path);
  const auto start = std::chrono::steady_clock::now();
  const Fit fit = approx::fit(spec, 1);
  const double ours_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!fit.backward) throw kernels::SpecError(spec_path, "kind", "a backward specification is needed");
  const Composite composite(activation_from_expression(fit.function));
  const Real x_star = composite.masked() ? composite.x_star().mid() : Real(0);
  std::vector<WitnessScript> scripts;
  for (const Piece& piece : fit.backward->pieces) {
    scripts.push_back(sollya_fit_script(fit.name, fit.function, piece, x_star));
    kernels::write_file(folder + "/" + scripts.back().name, scripts.back().text);
  }
  require_programs(scripts);
  fmt::print("row   ours, certified   Sollya, certified   Sollya/ours   fpminimax s   norm s\n");
  constexpr double kLevel = 1.01;  // our certificates stop within 1% of the observed error
  double sollya_s = 0;
  size_t done = 0, no_worse = 0, level = 0;
  for (size_t i = 0; i < scripts.size(); ++i) {
    const Witnessed result = run_witness(scripts[i], folder + "/" + scripts[i].name, limit_s);
    sollya_s += result.seconds;
    double bound = 0, fit_s = 0, norm_s = 0;
    const double ours = scripts[i].claim;
    const size_t line = result.output.find("BESIDE ");
    if (line != std::string::npos && std::sscanf(result.output.c_str() + line, "BESIDE %lf %lf %lf", &bound, &fit_s, &norm_s) == 3) {
      ++done;
      if (ours <= bound) ++no_worse;
      if (ours <= kLevel * bound) ++level;
      fmt::print("{:3}   {:15.6e}   {:17.6e}   {:11.3f}   {:11.2f}   {:6.2f}\n", scripts[i].row, ours, bound, bound / ours, fit_s, norm_s);
    } else {
      fmt::print("{:3}   {:15.6e}   {} after {:.1f} s: {}\n", scripts[i].row, ours, result.timed_out ? "out of time" : "failed", result.seconds,
                 first_line(result.output));
    }
  }
  fmt::print("{}: {} rows in {:.2f} s by us (one thread; layout, constants, A, K and B included); ", fit.name, scripts.size(), ours_s);
  fmt::print("Sollya: {} of them in {:.2f} s, limit {:.0f} s a row; ratio {:.1f}\n", done, sollya_s, limit_s, sollya_s / ours_s);
  fmt::print("{}: our certified bound is at most Sollya's on {} of {} rows, at most {} times Sollya's on {}; ", fit.name, no_worse, done, kLevel, level);
  fmt::print("rows next to a limit of g have their centre and c0 pinned to it by us alone\n");
}

}  // namespace

void add_certify(CLI::App& app, int& status) {
  struct Arguments {
    std::string fit, out = "out/witness", beside;
    bool prove = false;
    double limit_s = 120;
    int threads = 0;
  };
  auto arguments = std::make_shared<Arguments>();
  CLI::App* const command = app.add_subcommand("certify", "bounds A and B of a fit as Sollya and Gappa scripts; --run has them proven");
  command->add_option("FIT", arguments->fit, "fit, schema outgrad.fit/3; of a backward kind");
  command->add_option("--out", arguments->out, "folder for the scripts, NAME.row_K.sollya and NAME.row_K.gappa (default: out/witness)");
  command->add_flag("--run", arguments->prove, "run sollya and gappa on them: exit status 1 if one is not proven, 3 if a program is missing");
  command->add_option("--limit", arguments->limit_s, "seconds that one script may take (default: 120)")->check(kernels::in_range(1.0, 86400.0));
  command->add_option("--threads", arguments->threads, "scripts at a time, 0 for one a processor")->check(kernels::in_range(0, 1024));
  command->add_option("--beside", arguments->beside, "specification: fit its pieces by us and by Sollya's fpminimax, and print times and bounds");
  command->callback([arguments, &status] {
    const auto& [input, folder, beside, prove, limit_s, threads] = *arguments;
    if (input.empty() == beside.empty()) throw kernels::SpecError("certify: either a fit or --beside SPEC is needed");
    if (!beside.empty()) return beside_sollya(beside, folder, limit_s);
    const Fit subject = fit_from_json(kernels::read_file(input), input);
    const std::vector<WitnessScript> scripts = witness_scripts(subject, input);
    for (const WitnessScript& script : scripts) kernels::write_file(folder + "/" + script.name, script.text);
    if (prove) {
      status = confirm(subject, scripts, folder, limit_s, threads);
    } else {
      fmt::print("{}: {} scripts in {}\n", subject.name, scripts.size(), folder);
    }
  });
}

}  // namespace outgrad::approx
