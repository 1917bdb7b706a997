// Starts Coq and Gappa on these files, and reads which assumptions their theorems rest on.
#include "approx/proof/coq_check.h"

#include "approx/proof/witness.h"
#include "kernels/support/digest.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/parallel.h"
#include "kernels/support/process.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <ranges>
#include <sstream>
#include <string_view>
#include <utility>

namespace outgrad::approx::coq {
namespace {

/// What the proofs use of the installed libraries, in miniature.
constexpr const char* kProbe =
    "From Coq Require Import Reals.\nFrom Coquelicot Require Import Coquelicot.\nFrom Flocq Require Import "
    "Core.\nFrom Interval Require Import Tactic.\n"
    "From Gappa Require Import Gappa_library.\nOpen Scope R_scope.\n"
    "Goal Rabs (RInt exp 0 1 - 17 / 10) <= 1 / 2.\nProof. integral with (i_prec 30%positive, i_degree 5). "
    "Qed.\n"
    "Goal forall u, 0 <= u <= 1 -> u - u * u <= 3 / 10.\n"
    "Proof. intros u Hu. interval with (i_bisect u, i_taylor u, i_degree 3%nat, i_prec 30%positive). Qed.\n";
constexpr double kProbeLimit = 300;
/// To a proof of Gappa's from so many bytes on there may be a shorter one, which cuts the range of y into so
/// many equal parts first; to find one may take so many seconds.
constexpr std::size_t kLongProof = std::size_t{1} << 18;
constexpr int kEqualParts[] = {4, 64, 3, 8};
constexpr double kEqualPartsLimit = 10;
constexpr std::string_view kDichotomy = " $ y;";
/// The last file of _CoqProject that A, B and the ranges need; T needs some of those behind it, too.
constexpr const char* kLastOfLibrary = "Index.v";

/// The first number with dots that a program prints when it is asked for its version.
std::string version_of(const std::string& program) {
  kernels::Launch launch{{program, "--version"}};
  launch.out = launch.err = kernels::Launch::kCaptured;
  const std::string text = kernels::run(launch, kProbeLimit).text;
  const size_t begin = text.find_first_of("0123456789");
  return begin == std::string::npos
             ? "unknown"
             : text.substr(begin, text.find_first_not_of("0123456789.", begin) - begin);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string module_of(const std::string& file) { return file.substr(0, file.rfind('.')); }

void add(Checked& checked, const Witnessed& result) {
  const bool out_of_memory = !result.proven && result.output.find("Out of memory") != std::string::npos;
  checked.outcome = result.proven                                        ? Outcome::proven
                    : result.timed_out || out_of_memory || result.killed ? Outcome::undecided
                                                                         : Outcome::refused;
  checked.seconds += result.seconds;
  checked.cpu_s += result.cpu_s;
  checked.peak_bytes = std::max(checked.peak_bytes, result.peak_bytes);
  if (!result.proven)
    checked.output = result.timed_out                 ? "out of time"
                     : out_of_memory || result.killed ? "out of memory"
                                                      : result.output;
}

Checked compile(const WitnessScript& script, const std::string& folder, double limit_s) {
  Checked checked{script.name, ' ', script.row, script.claim};
  for (const std::string& line : lines_of(script.text)) {
    if (line.starts_with("Theorem "))
      checked.theorems.push_back(line.substr(8, line.find_first_of(" :", 8) - 8));
  }
  const std::string path = folder + "/" + script.name;
  kernels::write_file(path, script.text);
  add(checked, run_witness(script, path, limit_s));
  return checked;
}

/// Gappa's proof of a script for Coq; of several, if it is long, the shortest, with the time of all.
Witnessed gappa_proof(const WitnessScript& script, const std::string& folder, double limit_s) {
  const auto prove = [&](const std::string& name, const std::string& text, double limit) {
    kernels::write_file(folder + "/" + name, text);
    return prove_for_coq(folder + "/" + name, limit);
  };
  Witnessed shortest = prove(script.name, script.text, limit_s);
  const size_t cut = script.text.rfind(kDichotomy);
  if (!shortest.proven || shortest.output.size() < kLongProof || cut == std::string::npos) return shortest;
  for (const int parts : kEqualParts) {
    std::string text = script.text;
    text.replace(cut, kDichotomy.size(), fmt::format(" $ y in {};", parts));
    Witnessed other =
        prove(fmt::format("{}.in_{}.gappa", module_of(script.name), parts), text, kEqualPartsLimit);
    if (other.proven && other.output.size() < shortest.output.size()) std::swap(other, shortest);
    shortest.seconds += other.seconds;
    shortest.cpu_s += other.cpu_s;
    shortest.peak_bytes = std::max(shortest.peak_bytes, other.peak_bytes);
    if (shortest.output.size() < kLongProof) break;
  }
  return shortest;
}

/// A library that says something else than the committed one proves something else: a definition of f' that
/// is another function, for one. @throws kernels::SpecError
void require_digests(const std::string& sources) {
  const std::string path = sources + "/library.sha256";
  std::map<std::string, std::string> digests;
  for (const std::string& line : lines_of(kernels::read_file(path))) {
    constexpr size_t kDigits = 64, kName = kDigits + 2;  // as sha256sum writes them
    if (line.size() > kName) digests[line.substr(kName)] = line.substr(0, kDigits);
  }
  for (const std::string& line : lines_of(kernels::read_file(sources + "/_CoqProject"))) {
    if (line.ends_with(".v") && kernels::sha256(kernels::read_file(sources + "/" + line)) != digests[line])
      throw kernels::SpecError(path, line,
                               "the file has another digest: what is proven over it is not believed");
  }
}

/// Has what the theorems of the accepted files assume printed, once for all, because each printing walks
/// through all that they rest on.
void look_at_assumptions(CheckedFit& checked, const std::string& listed, const std::string& folder,
                         double limit_s) {
  std::string modules, theorems;
  for (const Checked& file : checked.bounds) {
    if (file.outcome != Outcome::proven) continue;
    modules += " " + module_of(file.file);
    for (const std::string& theorem : file.theorems)
      theorems += fmt::format("{}{}.{}", theorems.empty() ? "" : ", ", module_of(file.file), theorem);
  }
  if (theorems.empty()) return;
  const WitnessScript script{
      "assumptions.v",
      fmt::format(
          "From Outgrad Require{}.\nDefinition all_theorems := ({}).\nPrint Assumptions all_theorems.\n",
          modules, theorems)};
  const std::string path = folder + "/" + script.name;
  kernels::write_file(path, script.text);
  const Witnessed result = run_witness(script, path, limit_s);
  checked.trust.file = script.name;
  add(checked.trust, result);
  if (!result.proven) return;
  const auto assumed = assumptions(result.output);
  checked.assumptions.assign(std::views::keys(assumed).begin(), std::views::keys(assumed).end());
  checked.unlisted = unlisted(assumed, assumptions(listed));
  // Theorems about real numbers rest on axioms about them: if none is printed, the printing was not
  // understood.
  const bool understood = std::ranges::any_of(
      checked.assumptions, [](const std::string& name) { return name.ends_with("sig_forall_dec"); });
  if (!understood) checked.trust.outcome = Outcome::refused;
}

}  // namespace

const char* to_string(Outcome outcome) {
  switch (outcome) {
    case Outcome::proven: return "proven";
    case Outcome::refused: return "refused";
    case Outcome::undecided: return "undecided";
  }
  return "";
}

std::string error_in(const std::string& output) {
  std::string text;
  for (const std::string& line : lines_of(output.substr(std::min(output.find("Error:"), output.size()))))
    text += (text.empty() ? "" : " ") + line;
  return text;
}

bool CheckedFit::holds() const {
  const auto proven = [](const Checked& file) { return file.outcome == Outcome::proven; };
  return std::ranges::all_of(library, proven) && std::ranges::all_of(bounds, proven) &&
         trust.outcome == Outcome::proven && unlisted.empty();
}

void find_programs(CheckedFit& checked, const std::string& folder) {
  for (const char* program : {"coqc", "gappa"}) {
    if (!program_found(program))
      throw kernels::EnvironmentError(
          fmt::format("{} is not installed (Debian packages {})", program, kCoqPackages));
  }
  checked.coq = version_of("coqc");
  checked.gappa = version_of("gappa");
  const WitnessScript probe{"probe.v", kProbe};
  const Checked result = compile(probe, folder, kProbeLimit);
  if (result.outcome != Outcome::proven)
    throw kernels::EnvironmentError(
        fmt::format("coqc {} lacks something that the proofs use (Debian packages {}): {}", checked.coq,
                    kCoqPackages, error_in(result.output)));
}

std::vector<Checked> compile_library(const std::string& sources, const std::string& folder, double limit_s,
                                     const KnownActivation& activation, bool total) {
  require_digests(sources);
  std::vector<Checked> files;
  for (const std::string& line : lines_of(kernels::read_file(sources + "/_CoqProject"))) {
    const bool of_another = std::ranges::any_of(modules(), [&](const std::string& module) {
      return module != activation.module && line.starts_with(module);
    });
    if (!line.ends_with(".v") || of_another) continue;
    std::string text = kernels::read_file(sources + "/" + line);
    if (line == "Activation.v") text.replace(text.rfind("Gelu"), 4, activation.module);
    if (line == "SwishSteepness.v") text = activation.steepness;
    files.push_back(compile({line, std::move(text)}, folder, limit_s));
    if (files.back().outcome != Outcome::proven || (!total && line == kLastOfLibrary)) break;
  }
  return files;
}

Checked check(const WitnessScript& script, const std::string& folder, double limit_s) {
  if (script.name.ends_with(".v")) {
    Checked checked = compile(script, folder, limit_s);
    checked.bound = script.bound;
    return checked;
  }
  Checked found{script.name, 'B', script.row, script.claim};
  const Witnessed proof = gappa_proof(script, folder, limit_s);
  add(found, proof);
  if (!proof.proven) return found;
  Checked checked = compile(evaluation_script(script, proof.output), folder, limit_s);
  checked.bound = 'B';
  checked.seconds += found.seconds;
  checked.cpu_s += found.cpu_s;
  checked.peak_bytes = std::max(checked.peak_bytes, found.peak_bytes);
  return checked;
}

CheckedFit check_all(const Groups& groups, const KnownActivation& activation, const std::string& sources,
                     const std::string& folder, double limit_s, int threads,
                     const std::function<void(const Checked&)>& said) {
  CheckedFit checked;
  find_programs(checked, folder);
  const bool total = std::ranges::any_of(groups | std::views::join, [](const WitnessScript& script) {
    return script.bound == 'T' || script.bound == 'G';
  });
  checked.library = compile_library(sources, folder, limit_s, activation, total);
  std::ranges::for_each(checked.library, said);
  if (checked.library.empty() || checked.library.back().outcome != Outcome::proven) return checked;
  for (const std::vector<WitnessScript>& group : groups) {
    const size_t first = checked.bounds.size();
    checked.bounds.resize(first + group.size());
    std::vector<bool> done(group.size());
    size_t next = 0;
    std::mutex guard;
    kernels::for_each_task(group.size(), threads, [&](size_t i) {
      Checked result = check(group[i], folder, limit_s);
      const std::lock_guard lock(guard);
      checked.bounds[first + i] = std::move(result);
      done[i] = true;
      for (; next < group.size() && done[next]; ++next) said(checked.bounds[first + next]);
    });
  }
  look_at_assumptions(checked, kernels::read_file(sources + "/assumptions"), folder, limit_s);
  return checked;
}

std::string to_json(const CheckedFit& checked, const Fit& fit) {
  using json = nlohmann::ordered_json;
  const auto hundredths = [](double seconds) { return std::round(100 * seconds) / 100; };
  const auto entry = [&](const Checked& file) {
    json j{{"file", file.file}};
    if (file.bound != ' ') {
      j["bound"] = std::string(1, file.bound);
      if (file.bound == 'A' || file.bound == 'B') j["row"] = file.row;
      if (file.claim > 0) j["claim"] = fmt::format("{:a}", file.claim);
    }
    if (!file.theorems.empty()) j["theorems"] = file.theorems;
    j["outcome"] = to_string(file.outcome);
    j["cpu_s"] = hundredths(file.cpu_s);
    j["peak_mib"] = file.peak_bytes >> 20;
    return j;
  };
  double cpu_s = checked.trust.cpu_s;
  json library = json::array(), bounds = json::array(), trust = entry(checked.trust);
  for (const auto& [files, list] :
       {std::pair(&checked.library, &library), std::pair(&checked.bounds, &bounds)}) {
    for (const Checked& file : *files) {
      list->push_back(entry(file));
      cpu_s += file.cpu_s;
    }
  }
  trust["names"] = checked.assumptions;
  trust["unlisted"] = checked.unlisted;
  return json{{"schema", "outgrad.proofs/1"}, {"name", fit.name},       {"spec_sha256", fit.spec_sha256},
              {"coq", checked.coq},           {"gappa", checked.gappa}, {"holds", checked.holds()},
              {"cpu_s", hundredths(cpu_s)},   {"library", library},     {"bounds", bounds},
              {"assumptions", trust}}
             .dump(1) +
         "\n";
}

}  // namespace outgrad::approx::coq
