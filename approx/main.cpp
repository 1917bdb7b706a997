/// outgrad-fit: `fit` a specification, `emit` a header from a fit, `pareto` fronts, `reach`: what no fit can do, `certify` a fit by programs
/// that are not ours.

#include "approx/emit.h"
#include "approx/pareto.h"
#include "approx/progress.h"
#include "approx/reach.h"
#include "approx/sollya.h"
#include "approx/witness.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/parallel.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <thread>

namespace {

using namespace outgrad;

/// Draws on a terminal's stderr, once a second, how far the job of this scope is; leaves nothing behind.
class ProgressLine {
 public:
  explicit ProgressLine(const std::string& label) {
    if (isatty(STDERR_FILENO) == 0) return;
    drawer_ = std::thread([this, label] {
      const auto start = std::chrono::steady_clock::now();
      std::unique_lock lock(guard_);
      while (!over_.wait_for(lock, std::chrono::seconds(1), [this] { return is_over_; })) {
        const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        fmt::print(stderr, "\r\033[K{}: {:.0f} s: {}", label, seconds, approx::describe_progress());
      }
      if (std::chrono::steady_clock::now() - start > std::chrono::seconds(1)) fmt::print(stderr, "\r\033[K");
    });
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  ~ProgressLine() {
    if (!drawer_.joinable()) return;
    {
      const std::lock_guard lock(guard_);
      is_over_ = true;
    }
    over_.notify_one();
    drawer_.join();
  }

 private:
  std::mutex guard_;
  std::condition_variable over_;
  bool is_over_ = false;
  std::thread drawer_;
};

std::string power(double bound) { return bound > 0 ? fmt::format("2^{:.2f}", std::log2(bound)) : "0"; }

/// How far the rows' certified bounds are from what no polynomial of their degree can undercut, before and after rounding.
std::string optimality(const approx::BackwardModel& m) {
  double before = 0, after = 0, observed = 0;
  for (const approx::Piece& p : m.pieces) {
    if (p.storage_aware || !(p.lower_bound > 0x1p-55)) continue;  // rows that equal g have no ratio
    before = std::max(before, p.minimax_certified / p.lower_bound);
    after = std::max(after, p.certified / p.lower_bound);
    observed = std::max(observed, p.certified / p.observed);
  }
  return fmt::format("certified/lower bound {:.4f} before, {:.4f} after rounding, certified/observed {:.4f}", before, after, observed);
}

std::string summary(const approx::Fit& fit) {
  if (fit.forward) return fmt::format("{}: relative fit error <= {} (certified)", fit.name, power(fit.forward->kA));
  if (fit.rounded) {
    return fmt::format("{}: every x of the format rounded correctly (exhaustive); relative fit error <= {}, right of x = {:.6g} <= {} (certified)", fit.name,
                       power(fit.rounded->kA), fit.rounded->pieces[static_cast<size_t>(fit.rounded->kCoreFirst)].v_lo, power(fit.rounded->kCoreA));
  }
  if (fit.table) {
    const approx::TableModel& t = *fit.table;
    return fmt::format("{}: T {:.6g}, O {:.6g}, T/O {:.5f}, R {} (enumerated); {} entries, {} bytes, {} integer operations", fit.name, t.kT, t.kO, t.kT / t.kO,
                       power(t.kR), t.entries.size(), 2 * t.entries.size(), t.index_operations());
  }
  const approx::BackwardModel& m = *fit.backward;
  const approx::Cost cost = cost_of(m);
  std::string text =
      fmt::format("{}: A <= {}, B <= {}, A + B <= {}, K <= {:.3g} (certified); {} operations, {} rows of degree {}, {} bytes", fit.name,
                  power(m.kA), power(m.kB), power(m.kAB), m.kK, cost.arithmetic, m.kRows, m.kDegree, cost.table_bytes);
  if (m.kO > 0) text += fmt::format("; T/O {:.4f}, R {}", m.kT / m.kO, power(m.kR));
  if (m.kTwoWord) {
    text += fmt::format(", A + B <= {:.3f} ulp(g) where |g| >= {}", m.kUlp, power(approx::kUlpFrom));
  } else if (fit.accuracy.starts_with("ulp")) {
    text += fmt::format(", {:.3f} ulp", fit.worst_ulp);
  }
  if (fit.programme_dual > 0) {
    text += fmt::format("; programme {:.4f}, dual bound {:.4f}", fit.programme_reached, fit.programme_dual);
  } else {
    text += "; " + optimality(m);
  }
  return text;
}

void require_programs(const std::vector<approx::WitnessScript>& scripts) {
  for (const approx::WitnessScript& script : scripts) {
    const std::string program = approx::program_of(script);
    if (!approx::program_found(program)) throw kernels::EnvironmentError(program + " is not installed (Debian package " + program + ")");
  }
}

/// All scripts, written to `folder` and run, `threads` at a time; a line each, in order.
std::vector<approx::Witnessed> run_scripts(const std::vector<approx::WitnessScript>& scripts, const std::string& folder, double limit_s,
                                           int threads) {
  std::vector<approx::Witnessed> results(scripts.size());
  kernels::for_each_task(scripts.size(), threads,
                         [&](size_t i) { results[i] = approx::run_witness(scripts[i], folder + "/" + scripts[i].name, limit_s); });
  return results;
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Runs the scripts of A and B, and says how each fared. @return exit status.
int confirm(const approx::Fit& fit, const std::vector<approx::WitnessScript>& scripts, const std::string& folder, double limit_s, int threads) {
  require_programs(scripts);
  const std::vector<approx::Witnessed> results = run_scripts(scripts, folder, limit_s, threads);
  size_t proven_a = 0, proven_b = 0, all_a = 0, all_b = 0;
  for (size_t i = 0; i < scripts.size(); ++i) {
    const bool b = approx::program_of(scripts[i]) == "gappa";
    ++(b ? all_b : all_a);
    if (results[i].proven) ++(b ? proven_b : proven_a);
    const char* outcome = results[i].proven ? "proven" : results[i].timed_out ? "OUT OF TIME" : "NOT PROVEN";
    fmt::print("{:<11} {:7.2f} s  {} <= {}  {}\n", outcome, results[i].seconds, b ? 'B' : 'A', approx::power_of_two(scripts[i].claim), scripts[i].name);
    if (!results[i].proven && !results[i].timed_out) fmt::print("            {}\n", first_line(results[i].output));
  }
  fmt::print("{}: A <= {}: {} of {} Sollya scripts proven (tails apart); B <= {}: {} of {} Gappa scripts proven\n", fit.name,
             approx::power_of_two(fit.backward->kA), proven_a, all_a, approx::power_of_two(fit.backward->kB), proven_b, all_b);
  return proven_a == all_a && proven_b == all_b ? kernels::kExitHolds : kernels::kExitViolated;
}

/// The same pieces fitted by Sollya's fpminimax, with certified norms, and by us; a measurement, with no verdict.
void beside_sollya(const std::string& spec_path, const std::string& folder, double limit_s) {
  const approx::Spec spec = approx::read_spec(spec_path);
  const auto start = std::chrono::steady_clock::now();
  const approx::Fit fit = approx::fit(spec, 1);
  const double ours_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (!fit.backward) throw kernels::SpecError(spec_path, "kind", "a backward specification is needed");
  const approx::Composite composite(approx::activation_from_expression(fit.function));
  const approx::Real x_star = composite.masked() ? composite.x_star().mid() : approx::Real(0);
  std::vector<approx::WitnessScript> scripts;
  for (const approx::Piece& piece : fit.backward->pieces) {
    scripts.push_back(approx::sollya_fit_script(fit.name, fit.function, piece, x_star));
    kernels::write_file(folder + "/" + scripts.back().name, scripts.back().text);
  }
  require_programs(scripts);
  fmt::print("row   ours, certified   Sollya, certified   Sollya/ours   fpminimax s   norm s\n");
  constexpr double kLevel = 1.01;  // our certificates stop within 1% of the observed error
  double sollya_s = 0;
  size_t done = 0, no_worse = 0, level = 0;
  for (size_t i = 0; i < scripts.size(); ++i) {
    const approx::Witnessed result = approx::run_witness(scripts[i], folder + "/" + scripts[i].name, limit_s);
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

/// A row of the table of fits in approx/README.md.
std::string table_row(const approx::Fit& fit) {
  if (fit.forward || fit.rounded) return "";
  if (fit.table) {
    const approx::TableModel& t = *fit.table;
    return fmt::format("| {} | {} | {} integer | {} | - | {:.4f} | {} | |\n", fit.name, fit.accuracy, t.index_operations(),
                       2 * t.entries.size(), t.kT / t.kO, power(t.kR));
  }
  const approx::BackwardModel& m = *fit.backward;
  const approx::Cost cost = cost_of(m);
  double after = 0;
  for (const approx::Piece& p : m.pieces) {
    if (!p.storage_aware && p.lower_bound > 0x1p-55) after = std::max(after, p.certified / p.lower_bound);
  }
  const std::string ratio = m.kO > 0 ? fmt::format("{:.4f}", m.kT / m.kO) : "";
  std::string near = fit.programme_dual > 0 ? fmt::format("{:.3f} of {:.3f}", fit.programme_reached, fit.programme_dual)
                     : after > 0            ? fmt::format("{:.3f}", after)
                                            : "exact";
  if (m.kTwoWord) near += fmt::format("; A + B <= {:.3f} ulp", m.kUlp);
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", fit.name, fit.accuracy, cost.arithmetic, cost.table_bytes, power(m.kAB), ratio,
                     m.kO > 0 ? power(m.kR) : "", near);
}

struct ReachAnswer {
  approx::ReachProblem problem;
  approx::ReachResult result;
};

std::string describe(const std::string& name, const ReachAnswer& answer) {
  const approx::ReachQuestion& q = answer.problem.question;
  const approx::ReachResult& r = answer.result;
  const std::string asked = fmt::format("{}: degree {}, T <= {} O, R <= {}: {}", name, q.degree, q.ratio, power(q.regret), approx::to_string(r.verdict));
  if (r.verdict == approx::ReachVerdict::out_of_reach) {
    return fmt::format("{}: no y_c, t_min >= 0, s_min, y_max and no coefficients (proven, {} boxes)", asked, r.refuted);
  }
  const char* at = r.verdict == approx::ReachVerdict::in_reach ? " at " : "; nearest: ";
  return fmt::format("{}{}y_c {:.9g}, t_min {:.6g}, s_min {:.6g}, y_max {:.6g} (level {:.4f}, {} boxes)", asked, at, r.best.y_c, r.best.t_min, r.best.s_min,
                     r.best.y_max, r.least_level, r.boxes);
}

/// Answers the question; `least`: also for lower degrees until one is out of reach, which settles those below it too.
/// @return exit status: 0 when the question is out of reach, proven; with `least`, when it is in reach, and out of reach with one degree less.
int decide(const approx::Spec& spec, approx::ReachQuestion question, bool least, size_t most_boxes, int threads, const std::string& output, bool json) {
  const approx::Composite composite(spec.activation);
  const std::vector<approx::StorageInterval> intervals = approx::storage_intervals(composite, question.format);
  const ProgressLine line(spec.name);
  std::vector<ReachAnswer> answers;
  do {
    ReachAnswer answer{approx::reach_problem(composite, intervals, question), {}};
    answer.result = approx::decide_reach(answer.problem, most_boxes, threads);
    answers.push_back(std::move(answer));
    --question.degree;
  } while (least && answers.back().result.verdict == approx::ReachVerdict::in_reach && question.degree > 0);
  std::string text = "[\n";
  for (const ReachAnswer& answer : answers) {
    text += approx::to_json(answer.problem, answer.result, spec.name);
    text.back() = &answer == &answers.back() ? '\n' : ',';
    if (!json) fmt::print("{}\n", describe(spec.name, answer));
  }
  text += "]\n";
  if (!output.empty()) kernels::write_file(output, text);
  if (json) fmt::print("{}", text);
  const bool proven = answers.back().result.verdict == approx::ReachVerdict::out_of_reach;
  return proven && (!least || answers.size() == 2) ? kernels::kExitHolds : kernels::kExitViolated;
}

/// The fit of a specification read from `path`; a refusal names the specification or the file.
approx::Fit fit_of(const approx::Spec& spec, const std::string& path, int threads) {
  try {
    return approx::fit(spec, threads);
  } catch (const kernels::SpecError& error) {
    const std::string why = error.what();
    throw kernels::SpecError(why.find(spec.name) == 0 ? why : path + ": " + why);
  }
}

int run(int argc, char** argv) {
  CLI::App app{"Fits and certifies piecewise polynomials, and emits them as headers", "outgrad"};
  app.require_subcommand(1);
  std::string input, output;
  int threads = 0;
  bool json = false;
  CLI::App* fit = app.add_subcommand("fit", "fit one specification; writes fit and certificate as JSON");
  fit->add_option("SPEC", input, "specification, schema outgrad.spec/2")->required();
  fit->add_option("--out", output, "where the fit goes (default: out/fits/NAME.json)");
  fit->add_option("--threads", threads, "threads, 0 for all; the result does not depend on it")->check(CLI::Range(0, 1024));
  fit->add_flag("--json", json, "print the fit on stdout too");
  CLI::App* emit = app.add_subcommand("emit", "coefficient header from a fit, or those of every point of a front");
  emit->add_option("FILE", input, "fit, schema outgrad.fit/2, or front, schema outgrad.pareto/2, whose points are fitted first")->required();
  emit->add_option("--out", output, "where the header goes (default: out/generated/NAME.h); of a front the folder (default: out/generated/FRONT)");
  std::string recorded;
  emit->add_option("--as", recorded, "path of FILE to name in the banner (default: notebooks_data/fits/NAME.json; of a front notebooks_data/pareto/FILE)");
  CLI::App* certify = app.add_subcommand("certify", "bounds A and B of a fit as Sollya and Gappa scripts; --run has them proven");
  std::string beside;
  bool prove = false;
  double limit_s = 120;
  certify->add_option("FIT", input, "fit, schema outgrad.fit/2; of a backward kind");
  certify->add_option("--out", output, "folder for the scripts, NAME.row_K.sollya and NAME.row_K.gappa (default: out/witness)");
  certify->add_flag("--run", prove, "run sollya and gappa on them: exit status 1 if one is not proven, 3 if a program is missing");
  certify->add_option("--limit", limit_s, "seconds that one script may take (default: 120)")->check(CLI::Range(1.0, 86400.0));
  certify->add_option("--threads", threads, "scripts at a time, 0 for one a processor")->check(CLI::Range(0, 1024));
  certify->add_option("--beside", beside, "specification: fit its pieces by us and by Sollya's fpminimax, and print times and bounds");
  CLI::App* table = app.add_subcommand("table", "the table of fits in approx/README.md, from fits");
  std::vector<std::string> inputs;
  table->add_option("FIT", inputs, "fits, schema outgrad.fit/2")->required();
  CLI::App* pareto = app.add_subcommand("pareto", "the fits of an activation and format that no other beats in operations, bytes and errors");
  std::string activation, expression, format;
  auto* by_name = pareto->add_option("--activation", activation, fmt::format("{}", fmt::join(approx::activation_names(), ", ")));
  pareto->add_option("--expression", expression, "a function of x in place of an activation")->excludes(by_name);
  std::optional<double> beta, alpha;
  pareto->add_option("--beta", beta, "of swish");
  pareto->add_option("--alpha", alpha, "of elu");
  pareto->add_option("--format", format, "f32, f16, bf16, e4m3, e5m2")->required();
  pareto->add_option("--out", output, "where the front goes (default: out/pareto/ACTIVATION_FORMAT.json)");
  pareto->add_option("--threads", threads, "threads, 0 for all; the result does not depend on it")->check(CLI::Range(0, 1024));
  CLI::App* reach = app.add_subcommand("reach", "proof that no constants and no coefficients of a one-row fit reach a stored:RHO target; exit status 0 if so");
  std::string asked_regret;
  int asked_degree = 0;
  double asked_ratio = 0;
  bool least = false;
  size_t most_boxes = 1'000'000;
  reach->add_option("SPEC", input, "specification with target stored:RHO, cells 1, storage.regret")->required();
  reach->add_option("--degree", asked_degree, "this degree in place of the specification's")->check(CLI::Range(1, kernels::kLargestDegree));
  reach->add_option("--regret", asked_regret, "log2 of this regret in place of the specification's")->check(CLI::Range(-40.0, 0.0));
  reach->add_option("--ratio", asked_ratio, "this bound of T/O in place of the target's")->check(CLI::Range(1.0, 1000.0));
  reach->add_flag("--least", least, "lower degrees too, until one is out of reach: exit status 0 if the specification's is the least that is in reach");
  reach->add_option("--boxes", most_boxes, "give up, undecided, beyond so many boxes");
  reach->add_option("--out", output, "where the results go as JSON (default: nowhere)");
  reach->add_option("--threads", threads, "threads, 0 for all; the result does not depend on it")->check(CLI::Range(0, 1024));
  reach->add_flag("--json", json, "print the results as JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return 0;
  } catch (const CLI::ParseError& error) {
    throw kernels::SpecError(error.what());
  }
  if (*fit) {
    const approx::Fit result = [&] {
      const ProgressLine line(input);
      return fit_of(approx::read_spec(input), input, threads);
    }();
    const std::string text = approx::to_json(result);
    kernels::write_file(output.empty() ? "out/fits/" + result.name + ".json" : output, text);
    fmt::print("{}\n", json ? text : summary(result));
    return 0;
  }
  if (*reach) {
    const approx::Spec spec = approx::read_spec(input);
    if (!spec.backward || spec.backward->accuracy != approx::AccuracyClass::stored || spec.backward->cells != 1) {
      throw kernels::SpecError(input, "target", "a backward specification with target stored:RHO and cells 1 is needed");
    }
    const approx::ReachQuestion question{spec.backward->format, asked_degree > 0 ? asked_degree : spec.backward->degree,
                                         asked_ratio > 0 ? asked_ratio : spec.target,
                                         asked_regret.empty() ? spec.backward->storage.regret : std::exp2(std::stod(asked_regret))};
    return decide(spec, question, least, most_boxes, threads, output, json);
  }
  if (*certify) {
    const std::string folder = output.empty() ? "out/witness" : output;
    if (input.empty() == beside.empty()) throw kernels::SpecError("certify: either a fit or --beside SPEC is needed");
    if (!beside.empty()) {
      beside_sollya(beside, folder, limit_s);
      return kernels::kExitHolds;
    }
    const approx::Fit subject = approx::fit_from_json(kernels::read_file(input), input);
    const std::vector<approx::WitnessScript> scripts = approx::witness_scripts(subject, input);
    for (const approx::WitnessScript& script : scripts) kernels::write_file(folder + "/" + script.name, script.text);
    if (prove) return confirm(subject, scripts, folder, limit_s, threads);
    fmt::print("{}: {} scripts in {}\n", subject.name, scripts.size(), folder);
    return kernels::kExitHolds;
  }
  if (*table) {
    fmt::print("| fit | class | operations | table bytes | A + B | T/O | R | near the bound |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (const std::string& file : inputs) fmt::print("{}", table_row(approx::fit_from_json(kernels::read_file(file), file)));
    return 0;
  }
  if (*pareto) {
    if (activation.empty() == expression.empty()) throw kernels::SpecError("pareto: give --activation or --expression");
    const approx::Format of = approx::format_of(format);
    const std::string name = activation.empty() ? "expression" : activation;
    nlohmann::ordered_json definition{{activation.empty() ? "expression" : "activation", activation.empty() ? expression : activation}};
    for (const auto& [option, value] : {std::pair("beta", beta), std::pair("alpha", alpha)}) {
      if (value) definition["parameters"][option] = *value;
    }
    const std::string member = definition.dump();
    const ProgressLine line(name + " " + format);
    const approx::ParetoCandidates candidates = approx::pareto_candidates(name, member.substr(1, member.size() - 2), of, threads);
    const approx::ParetoFront front = approx::pareto_front(candidates, threads);
    kernels::write_file(output.empty() ? "out/pareto/" + name + "_" + format + ".json" : output, approx::to_json(front, name));
    for (const approx::ParetoPoint& p : front.points) {
      fmt::print("{:<36} work {:>3} depth {:>3} bytes {:>6} A + B <= {:<9} T {:<11} R {}\n", p.fit.name, p.merit.work, p.merit.depth, p.merit.table_bytes,
                 power(p.merit.a_plus_b), p.oracle > 0 ? fmt::format("{:.4f} O", p.merit.total / p.oracle) : "-", power(p.merit.regret));
    }
    fmt::print("{} {}: {} tried; {} too coarse, {} covered before they were fitted, {} out of reach, {} covered; {} on the front\n", name, format,
               front.tried, front.too_coarse, front.skipped, front.unreachable, front.covered, front.points.size());
    return 0;
  }
  const std::string text = kernels::read_file(input);
  if (approx::is_front(text)) {
    const std::string banner_path = recorded.empty() ? "notebooks_data/pareto/" + std::filesystem::path(input).filename().string() : recorded;
    const std::string folder = output.empty() ? "out/generated/" + std::filesystem::path(input).stem().string() : output;
    const std::vector<approx::Spec> specs = approx::specs_of_front(text, input);
    const ProgressLine line(input);
    approx::Stage points("points", static_cast<std::int64_t>(specs.size()));
    std::vector<std::string> headers;  // all of them before the first is written: a front is emitted whole or not at all
    for (const approx::Spec& spec : specs) {
      headers.push_back(approx::emit_header(fit_of(spec, input, threads), banner_path));
      points.tick();
    }
    for (size_t i = 0; i < specs.size(); ++i) kernels::write_file(folder + "/" + specs[i].name + ".h", headers[i]);
    return 0;
  }
  const approx::Fit result = approx::fit_from_json(text, input);
  const std::string banner_path = recorded.empty() ? "notebooks_data/fits/" + result.name + ".json" : recorded;
  kernels::write_file(output.empty() ? "out/generated/" + result.name + ".h" : output, approx::emit_header(result, banner_path));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return outgrad::kernels::run_main([&] { return run(argc, argv); });
}
