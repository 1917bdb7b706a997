// `outgrad reach` proves that no fit of one polynomial reaches a target.

#include "approx/search/reach.h"

#include "approx/commands/commands.h"
#include "approx/model/spec.h"
#include "kernels/eval.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"
#include "kernels/support/options.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <optional>
#include <vector>

namespace outgrad::approx {
namespace {

struct ReachAnswer {
  ReachProblem problem;
  ReachResult result;
};

std::string describe(const std::string& name, const ReachAnswer& answer) {
  const ReachQuestion& q = answer.problem.question;
  const ReachResult& r = answer.result;
  const std::string asked = fmt::format("{}: degree {}, T <= {} O, R <= 2^{:.2f}: {}", name, q.degree,
                                        q.ratio, std::log2(q.regret), to_string(r.verdict));
  if (r.verdict == ReachVerdict::out_of_reach) {
    return fmt::format("{}: no y_c, t_min >= 0, s_min, y_max and no coefficients (proven, {} boxes)", asked,
                       r.refuted);
  }
  const char* at = r.verdict == ReachVerdict::in_reach ? " at " : "; nearest: ";
  return fmt::format("{}{}y_c {:.9g}, t_min {:.6g}, s_min {:.6g}, y_max {:.6g} (level {:.4f}, {} boxes)",
                     asked, at, r.best.y_c, r.best.t_min, r.best.s_min, r.best.y_max, r.least_level, r.boxes);
}

struct ReachArguments {
  std::string spec, out;
  std::optional<int> degree;
  std::optional<double> regret, ratio;
  size_t most_boxes = 1'000'000;
  int threads = 0;
  bool least = false;
  kernels::ResultForm form;
};

/// Answers the question; with `least` also for lower degrees until one is out of reach, which settles those
/// below it too.
/// @return exit status: 0 when the question is out of reach, proven; with `least`, when it is in reach, and
/// out of reach with one degree less.
int decide(const ReachArguments& a) {
  const Spec spec = read_spec(a.spec);
  if (!spec.as<BackwardSpec>() || spec.backward().accuracy != AccuracyClass::stored ||
      spec.backward().cells != 1) {
    throw kernels::SpecError(a.spec, "target",
                             "a backward specification with target stored:RHO and cells 1 is needed");
  }
  ReachQuestion question{spec.backward().format, a.degree.value_or(spec.backward().degree),
                         a.ratio.value_or(spec.target),
                         a.regret ? std::exp2(*a.regret) : spec.backward().storage.regret};
  const Composite composite(spec.activation);
  const std::vector<StorageInterval> intervals = storage_intervals(composite, question.format);
  if (!a.out.empty()) kernels::require_writable(a.out, {a.spec});
  const JobLine line(spec.name);
  std::vector<ReachAnswer> answers;
  do {
    ReachAnswer answer{reach_problem(composite, intervals, question), {}};
    answer.result = decide_reach(answer.problem, a.most_boxes, a.threads);
    answers.push_back(std::move(answer));
    --question.degree;
  } while (a.least && answers.back().result.verdict == ReachVerdict::in_reach && question.degree > 0);
  std::string text = "[\n";
  for (const ReachAnswer& answer : answers) {
    text += to_json(answer.problem, answer.result, spec.name);
    text.back() = &answer == &answers.back() ? '\n' : ',';
    if (!a.form) fmt::print("{}\n", describe(spec.name, answer));
  }
  text += "]\n";
  if (!a.out.empty()) kernels::write_file(a.out, text);
  if (a.form) kernels::print_result(a.form, kernels::parse_json<nlohmann::ordered_json>(text), "");
  const bool proven = answers.back().result.verdict == ReachVerdict::out_of_reach;
  return proven && (!a.least || answers.size() == 2) ? kernels::kExitHolds : kernels::kExitViolated;
}

}  // namespace

void add_reach(CLI::App& app, int& status) {
  auto arguments = std::make_shared<ReachArguments>();
  CLI::App* const command = app.add_subcommand("reach",
                                               "proof that no constants and no coefficients of a one-row fit "
                                               "reach a stored:RHO target; exit status 0 if so");
  command
      ->add_option("SPEC", arguments->spec, "specification with target stored:RHO, cells 1, storage.regret")
      ->required();
  command->add_option("--degree", arguments->degree, "this degree in place of the specification's")
      ->check(kernels::in_range(1, kernels::kLargestDegree));
  command->add_option("--regret", arguments->regret, "log2 of this regret in place of the specification's")
      ->check(kernels::in_range(-40.0, 0.0));
  command->add_option("--ratio", arguments->ratio, "this bound of T/O in place of the target's")
      ->check(kernels::in_range(1.0, 1000.0));
  command->add_flag("--least", arguments->least,
                    "lower degrees too, until one is out of reach: exit status 0 if the specification's is "
                    "the least that is in reach");
  command->add_option("--boxes", arguments->most_boxes, "give up, undecided, beyond so many boxes");
  command->add_option("--out", arguments->out, "where the results go as JSON (default: nowhere)");
  add_threads(*command, arguments->threads);
  kernels::add_result_form(*command, arguments->form, "the results");
  command->callback([arguments, &status] { status = decide(*arguments); });
}

}  // namespace outgrad::approx
