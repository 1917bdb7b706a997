// `outgrad certify` writes the bounds of a fit as scripts that Sollya and Gappa prove, or as theorems that
// Coq checks.

#include "approx/commands/commands.h"
#include "approx/function/composite.h"
#include "approx/progress.h"
#include "approx/proof/coq.h"
#include "approx/proof/coq_activation.h"
#include "approx/proof/coq_check.h"
#include "approx/proof/coq_kernel.h"
#include "approx/proof/coq_product.h"
#include "approx/proof/coq_reals.h"
#include "approx/proof/coq_span.h"
#include "approx/proof/sollya.h"
#include "approx/proof/witness.h"
#include "approx/search/fitter.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"
#include "kernels/support/lists.h"
#include "kernels/support/numbers.h"
#include "kernels/support/options.h"
#include "kernels/support/parallel.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <ranges>
#include <vector>

namespace outgrad::approx {
namespace {

const std::string kCoqLibrary = OUTGRAD_SOURCES "/approx/proof/coq/";
/// With --coq. Seconds, far above what a proof takes on a busy machine, and processes, each of which takes
/// half a gigabyte.
constexpr double kCoqLimit = 900;
constexpr int kCoqThreads = 2;

void require_programs(const std::vector<WitnessScript>& scripts) {
  for (const WitnessScript& script : scripts) {
    const std::string program = program_of(script);
    if (!program_found(program))
      throw kernels::EnvironmentError(program + " is not installed (Debian package " + program + ")");
  }
}

/// All scripts, written to `folder` and run, `threads` at a time; a line each, in order.
std::vector<Witnessed> run_scripts(const std::vector<WitnessScript>& scripts, const std::string& folder,
                                   double limit_s, int threads) {
  std::vector<Witnessed> results(scripts.size());
  kernels::for_each_task(scripts.size(), threads, [&](size_t i) {
    results[i] = run_witness(scripts[i], folder + "/" + scripts[i].name, limit_s);
  });
  return results;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Runs the scripts of A and B, and says how each fared. @return exit status.
int confirm(const Fit& fit, const std::vector<WitnessScript>& scripts, const std::string& folder,
            double limit_s, int threads) {
  require_programs(scripts);
  const std::vector<Witnessed> results = run_scripts(scripts, folder, limit_s, threads);
  size_t proven_a = 0, proven_b = 0, all_a = 0, all_b = 0;
  for (size_t i = 0; i < scripts.size(); ++i) {
    const bool b = program_of(scripts[i]) == "gappa";
    ++(b ? all_b : all_a);
    if (results[i].proven) ++(b ? proven_b : proven_a);
    const char* outcome = results[i].proven ? "proven" : results[i].timed_out ? "OUT OF TIME" : "NOT PROVEN";
    fmt::print("{:<11} {:7.2f} s  {} <= {}  {}\n", outcome, results[i].seconds, b ? 'B' : 'A',
               power_of_two(scripts[i].claim), scripts[i].name);
    if (!results[i].proven && !results[i].timed_out)
      fmt::print("            {}\n", first_line(results[i].output));
  }
  fmt::print(
      "{}: A <= {}: {} of {} Sollya scripts proven (tails apart); B <= {}: {} of {} Gappa scripts proven\n",
      fit.name, power_of_two(fit.as<BackwardModel>()->kA), proven_a, all_a,
      power_of_two(fit.as<BackwardModel>()->kB), proven_b, all_b);
  return proven_a == all_a && proven_b == all_b ? kernels::kExitHolds : kernels::kExitViolated;
}

/// Has Coq check the bounds, and says how each fared; with a `form`, the result goes to stdout and these
/// lines to stderr. @return exit status.
int confirm_by_coq(const Fit& fit, const coq::Groups& groups, const std::string& folder, double limit_s,
                   int threads, const kernels::ResultForm& form) {
  std::FILE* const lines = form ? stderr : stdout;
  const JobLine line(fit.name);
  Stage stage("files", std::ranges::distance(groups | std::views::join));
  const auto say = [&](const coq::Checked& file) {
    if (file.bound != ' ') stage.tick();
    const char* const outcome = file.outcome == coq::Outcome::proven    ? "proven"
                                : file.outcome == coq::Outcome::refused ? "NOT PROVEN"
                                                                        : "UNDECIDED";
    const std::string claim = file.bound == ' '   ? "library"
                              : file.bound == 'x' ? "ranges"
                              : file.claim > 0 ? fmt::format("{} <= {}", file.bound, power_of_two(file.claim))
                                               : "forward";
    fmt::print(lines, "{:<11} {:7.2f} s {:5} MiB  {}  {}\n", outcome, file.cpu_s, file.peak_bytes >> 20,
               claim, file.file);
    if (file.outcome != coq::Outcome::proven)
      fmt::print(lines, "            {}\n",
                 file.outcome == coq::Outcome::refused ? coq::error_in(file.output) : file.output);
    std::fflush(lines);
  };
  const coq::CheckedFit checked =
      coq::check_all(groups, coq::known(fit.function), kCoqLibrary, folder, limit_s, threads, say);
  if (!checked.unlisted.empty())
    fmt::print(lines, "NOT PROVEN  what is assumed beyond {}assumptions: {}\n", kCoqLibrary,
               fmt::join(checked.unlisted, ", "));
  if (checked.trust.outcome != coq::Outcome::proven)
    fmt::print(lines, "UNDECIDED   what the theorems assume\n");
  std::vector<std::string> accepted;
  for (const auto& [bound, of] :
       {std::pair('A', "A of {} of {} rows"), std::pair('x', "the ranges in {} of {} files"),
        std::pair('B', "B in {} of {} cases"), std::pair('T', "T in {} of {} files"),
        std::pair('G', "the error at every y in {} of {} files")}) {
    const auto asked = std::ranges::count(checked.bounds, bound, &coq::Checked::bound);
    const auto proven = std::ranges::count_if(checked.bounds, [&](const coq::Checked& f) {
      return f.bound == bound && f.outcome == coq::Outcome::proven;
    });
    if (asked > 0) accepted.push_back(fmt::format(fmt::runtime(of), proven, asked));
  }
  fmt::print(lines, "{}: Coq {} accepts {}; {} axioms and machine operations assumed, {} beyond the list\n",
             fit.name, checked.coq, fmt::join(accepted, ", "), checked.assumptions.size(),
             checked.unlisted.size());
  const auto is = [](char bound, const char* end) {
    return [=](const coq::Checked& f) { return f.bound == bound && f.file.ends_with(end); };
  };
  if (std::ranges::any_of(checked.bounds, is('A', "")) &&
      std::ranges::none_of(checked.bounds, is('x', "_index.v")) &&
      std::ranges::none_of(checked.bounds, is('G', "_bound.v")))
    fmt::print(lines, "{}: no theorem here says that the kernel asks each row only for x of its range ({})\n",
               fit.name,
               coq::has_kernel(fit) || coq::has_spans(fit) ? "that one is for all rows"
                                                           : "Coq's library has no such kernel");
  if (form)
    kernels::print_result(form, kernels::parse_json<nlohmann::ordered_json>(coq::to_json(checked, fit)),
                          "bounds");
  return checked.holds() ? kernels::kExitHolds : kernels::kExitViolated;
}

/// The same pieces fitted by Sollya's fpminimax, with certified norms, and by us; a measurement, with no
/// verdict.
void beside_sollya(const std::string& spec_path, const std::string& folder, double limit_s) {
  const Spec spec = read_spec(spec_path);
  const auto start = std::chrono::steady_clock::now();
  const Fit fit = approx::fit(spec, 1);
  const double ours_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!fit.as<BackwardModel>())
    throw kernels::SpecError(spec_path, "kind", "a backward specification is needed");
  const Composite composite(activation_from_expression(fit.function));
  const Real x_star = composite.masked() ? composite.x_star().mid() : Real(0);
  std::vector<WitnessScript> scripts;
  for (const Piece& piece : fit.as<BackwardModel>()->pieces) {
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
    if (line != std::string::npos &&
        std::sscanf(result.output.c_str() + line, "BESIDE %lf %lf %lf", &bound, &fit_s, &norm_s) == 3) {
      ++done;
      if (ours <= bound) ++no_worse;
      if (ours <= kLevel * bound) ++level;
      fmt::print("{:3}   {:15.6e}   {:17.6e}   {:11.3f}   {:11.2f}   {:6.2f}\n", scripts[i].row, ours, bound,
                 bound / ours, fit_s, norm_s);
    } else {
      fmt::print("{:3}   {:15.6e}   {} after {:.1f} s: {}\n", scripts[i].row, ours,
                 result.timed_out ? "out of time" : "failed", result.seconds, first_line(result.output));
    }
  }
  fmt::print("{}: {} rows in {:.2f} s by us (one thread; layout, constants, A, K and B included); ", fit.name,
             scripts.size(), ours_s);
  fmt::print("Sollya: {} of them in {:.2f} s, limit {:.0f} s a row; ratio {:.1f}\n", done, sollya_s, limit_s,
             sollya_s / ours_s);
  fmt::print(
      "{}: our certified bound is at most Sollya's on {} of {} rows, at most {} times Sollya's on {}; ",
      fit.name, no_worse, done, kLevel, level);
  fmt::print("rows next to a limit of g have their centre and c0 pinned to it by us alone\n");
}

struct CertifyArguments {
  std::string fit, out = "out/witness", beside, bound, forward;
  bool prove = false, in_coq = false;
  kernels::ResultForm form;
  std::vector<int> rows;
  std::optional<double> limit_s;
  std::optional<int> threads;
};

std::vector<int> rows_in(const std::string& list) {
  std::vector<int> rows;
  for (const std::string& part : kernels::parts_of(list)) {
    const auto row = kernels::number_in<int>(part);
    if (!row) throw CLI::ValidationError("--rows", "'" + part + "' is not an integer");
    rows.push_back(*row);
  }
  return rows;
}

void require_consistent(const CertifyArguments& a) {
  if (a.fit.empty() == a.beside.empty())
    throw kernels::SpecError("certify: either a fit or --beside SPEC is needed");
  if (a.form && !(a.in_coq && a.prove))
    throw kernels::SpecError("certify: --json and --csv need --coq and --run");
  if (!a.forward.empty() && !a.in_coq) throw kernels::SpecError("certify: --forward needs --coq");
  if (a.bound == "T" && !a.in_coq) throw kernels::SpecError("certify: --bound T needs --coq");
  if (a.bound == "T" && !a.rows.empty()) throw kernels::SpecError("certify: --bound T is about all rows");
  if (!a.forward.empty() && !a.bound.empty() && a.bound != "T")
    throw kernels::SpecError("certify: --forward proves T, which --bound " + a.bound + " leaves out");
  const bool selects = a.in_coq || a.prove || !a.rows.empty() || !a.bound.empty() || a.threads.has_value();
  if (!a.beside.empty() && selects)
    throw kernels::SpecError("certify: --beside goes with --out and --limit alone");
}

/// The scripts of the bounds and rows that are asked for.
coq::Groups scripts_of(const CertifyArguments& a, const Fit& subject) {
  const auto* model = subject.as<BackwardModel>();
  if (model == nullptr) throw kernels::SpecError(a.fit, "kind", "a backward fit is needed");
  for (const int row : a.rows) {
    if (std::ranges::find(model->pieces, row, &Piece::row) == model->pieces.end())
      throw kernels::SpecError(a.fit, "pieces", fmt::format("there is no row {}", row));
  }
  coq::Groups groups =
      a.in_coq ? coq::scripts(subject, a.fit, a.rows) : coq::Groups{witness_scripts(subject, a.fit)};
  for (std::vector<WitnessScript>& group : groups) {
    std::erase_if(group, [&](const WitnessScript& s) {
      const char of = s.bound == 'x' ? 'A' : s.bound;  // A is over the ranges
      return (!a.rows.empty() && s.bound != 'x' && std::ranges::find(a.rows, s.row) == a.rows.end()) ||
             (!a.bound.empty() && a.bound[0] != of);
    });
  }
  if (!a.forward.empty()) {
    const Fit delivers = fit_from_json(kernels::read_file(a.forward), a.forward);
    const auto* rounded = delivers.as<RoundedForwardModel>();
    if (rounded == nullptr) throw kernels::SpecError(a.forward, "kind", "a rounded forward fit is needed");
    if (delivers.function != subject.function)
      throw kernels::SpecError(a.forward, "function", "differs from that of " + a.fit);
    if (rounded->format != model->format)
      throw kernels::SpecError(a.forward, "format", "differs from that of " + a.fit);
    const coq::Groups total = coq::exhaustion_scripts(delivers, subject, a.fit);
    if (a.bound.empty() || a.bound == "T") coq::add(groups, total);
  }
  if (a.bound == "T" && a.forward.empty())
    coq::add(groups,
             model->of_product() ? coq::product_scripts(subject, a.fit) : coq::reals_scripts(subject, a.fit));
  return groups;
}

/// @return exit status.
int certify(const CertifyArguments& a) {
  require_consistent(a);
  const double limit_s = a.limit_s.value_or(a.in_coq ? kCoqLimit : 120);
  if (!a.beside.empty()) {
    beside_sollya(a.beside, a.out, limit_s);
    return kernels::kExitHolds;
  }
  const Fit subject = fit_from_json(kernels::read_file(a.fit), a.fit);
  const coq::Groups groups = scripts_of(a, subject);
  if (a.in_coq && a.prove)
    return confirm_by_coq(subject, groups, a.out, limit_s,
                          a.threads.value_or(0) == 0 ? kCoqThreads : *a.threads, a.form);
  for (const WitnessScript& script : groups | std::views::join)
    kernels::write_file(a.out + "/" + script.name, script.text);
  if (a.prove) return confirm(subject, groups.front(), a.out, limit_s, a.threads.value_or(0));
  fmt::print("{}: {} scripts in {}\n", subject.name, std::ranges::distance(groups | std::views::join), a.out);
  return kernels::kExitHolds;
}

}  // namespace

void add_certify(CLI::App& app, int& status) {
  auto arguments = std::make_shared<CertifyArguments>();
  CLI::App* const command = app.add_subcommand("certify",
                                               "bounds A and B of a fit as scripts for Sollya and Gappa, or "
                                               "as theorems for Coq; --run has them proven");
  command->add_option("FIT", arguments->fit, "fit, schema outgrad.fit/3; of a backward kind");
  command->add_option(
      "--out", arguments->out,
      "folder for the scripts, NAME.row_K.sollya and NAME.row_K.gappa (default: out/witness)");
  command->add_flag(
      "--coq", arguments->in_coq,
      "a fit of GELU, its tanh form or x*sigmoid(W*x): theorems for Coq, NAME_row_K.v for A, and, "
      "with --run, NAME_row_K_B.v for B from Gappa's proofs; of an f32 fit NAME_bound.v, the error "
      "at every y");
  command
      ->add_option_function<std::string>(
          "--rows", [arguments](const std::string& list) { arguments->rows = rows_in(list); },
          "only these rows, as 0,3,12 (default: all)")
      ->type_name("ROWS");
  command
      ->add_option(
          "--bound", arguments->bound,
          "only A, only B, or only T (default: all). T needs --coq, and is over all real x where there "
          "is no --forward")
      ->check(CLI::IsMember({"A", "B", "T"}));
  command->add_option("--forward", arguments->forward,
                      "with --coq: the rounded forward fit of the same 16-bit format: T too, proven by "
                      "running both kernels at every number of the format");
  command->add_flag("--run", arguments->prove,
                    "have them proven: exit status 1 if one is not, 3 if a program is missing");
  command
      ->add_option("--limit", arguments->limit_s,
                   "seconds that one script may take (default: 120; with --coq 900)")
      ->check(kernels::in_range(1.0, 86400.0));
  command
      ->add_option("--threads", arguments->threads,
                   "scripts at a time, 0 for one a processor, or with --coq for two")
      ->check(kernels::in_range(0, 1024));
  kernels::add_result_form(
      *command, arguments->form,
      "what was proven with --coq --run (schema outgrad.proofs/1; its lines go to stderr)");
  command->add_option(
      "--beside", arguments->beside,
      "specification: fit its pieces by us and by Sollya's fpminimax, and print times and bounds");
  command->callback([arguments, &status] { status = certify(*arguments); });
}

}  // namespace outgrad::approx
