// Arguments and outputs of `outgrad stability --attack`.
#include "tests/attack/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/options.h"
#include "tests/attack/norms.h"

namespace outgrad::validation {
namespace {

using kernels::SpecError;

struct NormArguments {
  bool attack = false;
  AttackOptions options;
  std::string out;
  kernels::ResultForm form;
};

std::string multiple(double value) { return value > 0 ? fmt::format("{:.3g}", value) : "0"; }

// One line per case: the worst errors of dx and dgamma in units of the bound, for our kernels and for the
// peers.
void print_attack(const std::vector<AttackResult>& results, double seconds) {
  fmt::print(
      "{:<9} {:<8} {:>5} {:>4} {:<26} {:<12} {:>5} {:>9}  {:>6} {:>6} {:>6}  {:>8} {:>8} {:>9}  {:>8} {:>8} "
      "{:>9}\n",
      "norm", "y", "N", "rows", "parameters", "x", "side", "compared", "dx", "dgamma", "dbeta", "dx: x",
      "clamp", "unguarded", "dg: x", "clamp", "unguarded");
  for (const AttackResult& r : results) {
    const AttackCase& c = r.subject;
    const GradientTally &dx = r.tally[static_cast<int>(Gradient::kDx)],
                        &dgamma = r.tally[static_cast<int>(Gradient::kDgamma)],
                        &dbeta = r.tally[static_cast<int>(Gradient::kDbeta)];
    fmt::print(
        "{:<9} {:<8} {:>5} {:>4} {:<26} {:<12} {:>5} {:>9.3g}  {:>6} {:>6} {:>6}  {:>8} {:>8} {:>9}  {:>8} "
        "{:>8} {:>9}{}\n",
        to_string(c.layer.norm), c.layer.format, c.layer.n, c.layer.rows, c.parameters, c.rows_kind,
        c.layer.side.size(), dx.evaluations + dgamma.evaluations + dbeta.evaluations,
        multiple(dx.tightness()), multiple(dgamma.tightness()), multiple(dbeta.tightness()),
        multiple(dx.peer_worst[0]), multiple(dx.peer_worst[1]), multiple(dx.peer_worst[2]),
        multiple(dgamma.peer_worst[0]), multiple(dgamma.peer_worst[1]), multiple(dgamma.peer_worst[2]),
        dx.violations + dgamma.violations + dbeta.violations +
                    r.tally[static_cast<int>(Gradient::kRstd)].violations >
                0
            ? "  VIOLATED"
            : "");
  }
  const AttackSummary s = summarise(results);
  fmt::print(
      "\ndx, dgamma, dbeta: tightness, the bound over the worst error found (inf: no error at all). Then the "
      "worst errors of the gradient from the\n"
      "input (x), and from the output with |gamma| raised to eps (clamp) and with the bare division "
      "(unguarded), in units of the same bounds.\n"
      "compared: output elements dx[i,j], dgamma[j], dbeta[j] against their bounds; rstd is compared as "
      "well, and not counted.\n"
      "{} cases, {:.4g} evaluations in {:.1f} s, {:.4g} elements without a bound; violations: {:g}\n"
      "median tightness: {:.2f} (dx {:.2f}, dgamma {:.2f}, dbeta {:.2f}; rstd {:.2f}), largest {:.3g}; the "
      "reference's own error: at most {:.1e} of a bound\n",
      s.cases, s.evaluations, seconds, s.excluded, s.violations, s.median_tightness_all,
      s.median_tightness[0], s.median_tightness[1], s.median_tightness[2], s.median_tightness[3],
      s.largest_tightness, s.reference_share);
  fmt::print("at most 4: {:.1f}%\n", 100 * s.share_within_4);
  for (const auto& [format, found] : s.by_format) {
    const auto dx_median = s.median_dx_by_format.find(format);
    fmt::print("y in {:<8} {:.4g} evaluations, {:g} violations, median tightness {:.2f}, of dx {}\n", format,
               found.evaluations, found.violations, found.median_tightness,
               dx_median == s.median_dx_by_format.end() ? "-" : fmt::format("{:.2f}", dx_median->second));
  }
}

std::string hex_row(const std::vector<float>& values) {
  constexpr size_t kShown = 64;  // the JSON has all of them
  std::string text;
  for (size_t k = 0; k < std::min(values.size(), kShown); ++k) text += fmt::format(" {:a}", values[k]);
  return values.size() > kShown ? text + " .." : text;
}

int run_norms(const NormArguments& arguments) {
  const AttackOptions& options = arguments.options;
  if (!(options.evaluations >= 1 && options.evaluations <= 1e15))
    throw SpecError("stability", "--evaluations", "must be between 1 and 1e15");
  if (options.max_columns < 1) throw SpecError("stability", "--max-columns", "must be at least 1");
  if (!arguments.out.empty()) kernels::require_writable(arguments.out);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<AttackResult> results = attack_all(options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!arguments.out.empty()) kernels::write_file(arguments.out, to_json(options, results).dump(-1) + "\n");
  if (arguments.form) {
    kernels::print_result(arguments.form, to_json(options, results), "cases");
  } else {
    print_attack(results, seconds);
  }
  int status = kernels::kExitHolds;
  for (const AttackResult& r : results) {
    for (int g = 0; g < kGradients; ++g) {
      const GradientTally& tally = r.tally[g];
      if (tally.violations == 0) continue;
      status = kernels::kExitViolated;
      const AttackWitness& w = tally.witness;
      fmt::print(
          stderr,
          "violated: {} {} N = {}, {}, {}: {}[{}, {}] = {:a}, exact {:a}, bound {:a}\n  x ={}\n  dy ={}\n",
          to_string(r.subject.layer.norm), r.subject.layer.format, r.subject.layer.n, r.subject.parameters,
          r.subject.rows_kind, to_string(static_cast<Gradient>(g)), w.row, w.column, w.got, w.want, w.bound,
          hex_row(w.x), hex_row(w.dy));
    }
  }
  return status;
}

}  // namespace

void add_stability_attack(CLI::App& app, int& status) {
  const auto arguments = std::make_shared<NormArguments>();
  AttackOptions& options = arguments->options;
  CLI::App* command = app.add_subcommand(
      "stability",
      "Search for rows that break the bounds of LayerNorm/RMSNorm gradients computed from the stored output");
  command
      ->add_flag("--attack", arguments->attack,
                 "Over cases of its own; exit status 1 with the row if one breaks a bound")
      ->required();
  command->add_option("--format", options.formats, "Formats of y, any that --format of the analysis has")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--evaluations", options.evaluations, "Output elements to compare, about")
      ->capture_default_str();
  command->add_option("--seed", options.seed, "The same seed, the same rows")->capture_default_str();
  command->add_option("--max-columns", options.max_columns, "Only cases of at most so many channels")
      ->capture_default_str();
  command->add_option("--out", arguments->out, "Write the JSON to this file");
  kernels::add_result_form(*command, arguments->form, "the cases");
  command->callback([arguments, &status] { status = run_norms(*arguments); });
}

}  // namespace outgrad::validation
