// Batches of mutants and blocks of specifications, each judged in a process of its own.
#include "tests/attack/gate.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "tests/attack/brute_force.h"
#include "tests/attack/mutation.h"
#include "tests/attack/process.h"
#include "validation/certificate/check.h"
#include "kernels/support/json_node.h"

namespace outgrad::validation::gate {

using kernels::JsonNode;

namespace {

constexpr const char* kSchema = "outgrad.certificate_attack/1";
// What one specification may take on one core, and bad input of any kind.
constexpr Limits kLimits{60, std::uint64_t{2} << 30};
// So many mutants share a translation unit: what is included costs little beside them, and the compiler stays
// small.
constexpr size_t kBatch = 48;

// Which part of a judgement a process was at when it fell, in memory that outlives it.
class Stage {
 public:
  enum Name : int { brute_force, check };
  Stage()
      : at_(static_cast<int*>(
            mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    if (at_ == MAP_FAILED) throw kernels::EnvironmentError("attack: no shared memory");
  }
  ~Stage() { munmap(at_, sizeof(int)); }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  void set(Name name) { *at_ = name; }
  Name get() const { return static_cast<Name>(*at_); }

 private:
  int* at_;
};

// The names of counts in results; of specifications also those that judged() gives.
constexpr std::pair<const char*, std::int64_t MutantTally::*> kMutantCounts[] = {
    {"tried", &MutantTally::tried},
    {"killed", &MutantTally::killed},
    {"harmless", &MutantTally::harmless},
    {"survived", &MutantTally::survived},
    {"internal", &MutantTally::internal}};
using Specifications = SpecificationResult;
constexpr std::pair<const char*, std::int64_t Specifications::*> kSpecificationCounts[] = {
    {"tried", &Specifications::tried},         {"fitted", &Specifications::fitted},
    {"refused", &Specifications::refused},     {"undecided", &Specifications::undecided},
    {"false", &Specifications::false_claims},  {"survived", &Specifications::survived},
    {"contested", &Specifications::contested}, {"hung", &Specifications::hung},
    {"memory", &Specifications::memory},       {"internal", &Specifications::internal}};

std::string ending_text(const kernels::Ending& ending) {
  return ending.late     ? fmt::format("no end in {} s", kLimits.cpu_s)
         : ending.signal ? fmt::format("signal {}", ending.signal)
                         : fmt::format("exit status {}", ending.status);
}

// The falsehoods of one header of a batch, in words; empty where none was seen.
std::string falsehoods_of(const CompiledBatch& batch, size_t index, Library& library) {
  if (!batch.compiles(index)) return "does not compile";
  const Claims claims = batch.claims(index);
  std::vector<Falsehood> found = judge_subject(library, claims);
  if (found.empty()) {
    const Truth& truth = library.truth(claims);
    found = judge(library, claims, batch.run(index, truth.points));
  }
  std::string text;
  for (const Falsehood& falsehood : found) {
    text += (text.empty() ? "" : "; ") + falsehood.text();
    if (text.size() > 300) break;
  }
  return text;
}

// One word for the outcome, then why.
std::string verdict_of_checker(const Checker& checker, const std::string& text, const std::string& name,
                               const std::string& falsehood) {
  try {
    const Answer answer = checker(text, name);
    return answer.holds ? "survived\t" + falsehood
                        : (answer.violated ? "killed\t" : "undecided\t") + answer.why;
  } catch (const kernels::SpecError& error) {
    return std::string("killed\t") + error.what();
  } catch (const std::exception& error) {
    return std::string("internal\t") + error.what();
  }
}

std::pair<std::string, std::string> split(const std::string& line) {
  const size_t tab = line.find('\t');
  return tab == std::string::npos ? std::pair{line, std::string()}
                                  : std::pair{line.substr(0, tab), line.substr(tab + 1)};
}

void count(HeaderResult& result, const Mutant& mutant, const std::string& line) {
  const auto [outcome, why] = split(line);
  MutantTally& tally = result.kinds[fmt::format("{}: {}", to_string(mutant.site.kind), mutant.kind)];
  ++tally.tried;
  if (outcome == "killed" || outcome == "undecided") {
    ++tally.killed;
  } else if (outcome == "harmless") {
    ++tally.harmless;
  } else {
    ++(outcome == "survived" ? tally.survived : tally.internal);
    result.failures.push_back(
        {result.header, mutant.site.name, mutant.kind, outcome + ": " + why.substr(0, 400)});
  }
}

// What the brute force has against the header as it is, and the state that all judgements of its mutants
// share: made here, before processes fork.
std::map<int, double> look_at(const std::string& text, const Options& options, Library& library,
                              HeaderResult& result) {
  const kernels::ScratchFolder folder;
  const CompiledBatch batch(options.toolchain, folder.path(), {text});
  result.baseline = falsehoods_of(batch, 0, library);
  if (!batch.compiles(0)) return {};
  const Claims claims = batch.claims(0);
  if (!judge_subject(library, claims).empty()) return {};
  const Truth& truth = library.truth(claims);
  Sight sight = sight_of(library, claims, batch.run(0, truth.points));
  result.shares = std::move(sight.shares);
  return std::move(sight.row_fits);
}

}  // namespace

Answer check_text(const std::string& text, const std::string& name) {
  const CheckReport report = check_header(parse_header(text, name), Findings::to_failure);
  const Verdict verdict = report.verdict();
  if (verdict == Verdict::Holds) return {true, ""};
  // One proof has several findings: the first of those that decide.
  const auto decides = std::find_if(report.findings.begin(), report.findings.end(),
                                    [&](const Finding& finding) { return finding.verdict == verdict; });
  return {false, fmt::format("{} {}: {}", decides->name, to_string(verdict), decides->why),
          verdict == Verdict::Violated};
}

void MutantTally::add(const MutantTally& other) {
  for (const auto& [name, count] : kMutantCounts) this->*count += other.*count;
}

MutantTally HeaderResult::total() const {
  MutantTally sum;
  for (const auto& [kind, tally] : kinds) sum.add(tally);
  return sum;
}

std::vector<Site> sites_for(const std::string& text, const std::string& only) {
  std::vector<Site> sites = sites_of(text);
  if (!only.empty())
    std::erase_if(sites, [&](const Site& site) { return site.name != only && to_string(site.kind) != only; });
  return sites;
}

HeaderResult attack_header(const std::string& name, const std::string& text,
                           const std::vector<std::string>& donors, const Options& options) {
  HeaderResult result;
  result.header = name;
  Library own;
  Library& library = options.library ? *options.library : own;
  const std::map<int, double> row_fits = look_at(text, options, library, result);
  // The name enters the seed: headers have the same places, and should not get the same damage.
  std::uint64_t seed = options.seed;
  for (const char c : name) seed = seed * 0x100000001b3u ^ static_cast<unsigned char>(c);
  kernels::Random random(seed);
  const std::vector<Site> sites = sites_for(text, options.only);
  std::vector<Mutant> mutants;
  std::set<std::string> known{text};
  for (const auto& [site, damage] : plan(sites, options.passes, options.most, random)) {
    Mutant mutant = mutant_of(text, sites, site, damage,
                              donors.empty() ? text : donors[random.below(donors.size())], random);
    if (known.insert(mutant.text).second) mutants.push_back(std::move(mutant));
  }
  for (size_t begin = 0; begin < mutants.size(); begin += kBatch) {
    const std::span<const Mutant> batch_of(mutants.data() + begin, std::min(kBatch, mutants.size() - begin));
    const kernels::ScratchFolder folder;
    std::vector<std::string> texts;
    std::vector<size_t> place(batch_of.size());
    for (size_t i = 0; i < batch_of.size(); ++i) {
      place[i] = texts.size();
      if (!batch_of[i].refused_by_definition && !batch_of[i].row_claim) texts.push_back(batch_of[i].text);
    }
    const CompiledBatch batch(options.toolchain, folder.path(), texts);
    Stage stage;
    const auto checked = [&](size_t i, const std::string& falsehood) {
      stage.set(Stage::check);
      return verdict_of_checker(options.checker, batch_of[i].text, name, falsehood);
    };
    std::vector<size_t> crashed;
    const std::vector<std::string> lines = run_guarded(
        batch_of.size(),
        [&](size_t i) {
          const Mutant& mutant = batch_of[i];
          if (mutant.refused_by_definition) return checked(i, "not what emit writes");
          if (mutant.row_claim) {
            const auto seen = row_fits.find(mutant.row_claim->row);
            const double claimed = std::exp2(mutant.row_claim->log2);
            if (seen == row_fits.end() || seen->second <= claimed) return std::string("harmless");
            return checked(i, fmt::format("row {}: A of {:.9g} seen, {:.9g} claimed", seen->first,
                                          seen->second, claimed));
          }
          stage.set(Stage::brute_force);
          const std::string falsehood = falsehoods_of(batch, place[i], library);
          return falsehood.empty() ? std::string("harmless") : checked(i, falsehood);
        },
        kLimits,
        [&](size_t i, const kernels::Ending& ending) {
          if (stage.get() == Stage::check) return "internal\tcheck: " + ending_text(ending);
          crashed.push_back(i);  // a kernel that breaks down is false
          return "crashed\t" + ending_text(ending);
        });
    const std::vector<std::string> after = run_guarded(
        crashed.size(),
        [&](size_t k) {
          return checked(crashed[k], "the compiled header breaks down: " + split(lines[crashed[k]]).second);
        },
        kLimits,
        [&](size_t, const kernels::Ending& ending) { return "internal\tcheck: " + ending_text(ending); });
    for (size_t i = 0; i < batch_of.size(); ++i) {
      const auto fell = std::find(crashed.begin(), crashed.end(), i);
      count(result, batch_of[i],
            fell == crashed.end() ? lines[i] : after[static_cast<size_t>(fell - crashed.begin())]);
    }
  }
  return result;
}

namespace {

// A refusal's message without its numbers, names and place: what is counted.
std::string reason_of(std::string message) {
  if (const size_t line = message.find('\n'); line != std::string::npos) message.resize(line);
  // "outgrad: FUNCTION: [PLACE]: WHY"
  if (const size_t place = message.find("]: "); place != std::string::npos) message.erase(0, place + 3);
  static const std::regex quoted("'[^']*'"), number("[-+]?(0x)?[0-9][0-9a-fA-F.]*([ep][-+]?[0-9]+)?"),
      path("[^ ]*/[^ :]*: "), lists("\\[[^\\]]*\\]");
  message = std::regex_replace(message, quoted, "'..'");
  message = std::regex_replace(message, path, "");
  message = std::regex_replace(message, lists, "[..]");
  message = std::regex_replace(message, number, "N");
  return message.substr(0, 160);
}

// What a fit prints of T, O and R ("T 144.5", "R 2^-1.18") against what its header claims: in words, if they
// are not one number.
std::string false_print(const std::string& printed, const Claims& claims) {
  for (const auto& [name, claimed] :
       {std::pair{"T", claims.t}, {"O", claims.o}, {"R", claims.r}, {"T/O", claims.t / claims.o}}) {
    const std::regex pattern(fmt::format("(^|[ ,;]){} (<= )?(2\\^)?([-+.0-9e]+)", name));
    std::smatch found;
    if (!std::isfinite(claimed) || !std::regex_search(printed, found, pattern)) continue;
    const double number = std::strtod(found[4].str().c_str(), nullptr);
    const bool power = found[3].matched;
    // Two decimals of a logarithm, four of a ratio, or six digits, rounded either way.
    const double off = std::string_view(name) == "T/O" ? 1.1e-4 : number * 1.1e-5;
    const double least = power ? std::exp2(number - 0.0101) : number - off,
                 most = power ? std::exp2(number + 0.0101) : number + off;
    if (!(least <= claimed && claimed <= most))
      return fmt::format("fit prints{}, the header claims {:.9g}", found[0].str(), claimed);
  }
  return {};
}

// One specification from fit to verdict: "OUTCOME\tcpu seconds\twhy".
std::string judged(const Specification& spec, const std::string& folder, const Options& options) {
  const std::string input = folder + "/attacked.json", fit = folder + "/fit.json",
                    header = folder + "/attacked.h";
  for (const std::string& old : {fit, header}) std::filesystem::remove(old);
  std::ofstream(input) << spec.json;
  const kernels::Ending fitted =
      run_program({options.fitter, "fit", input, "--out", fit, "--threads", "1", "--no-check"}, kLimits);
  const auto line = [&](const char* outcome, const std::string& why) {
    return fmt::format("{}\t{:.1f}\t{}", outcome, fitted.cpu_s, why);
  };
  // The statuses of the contract are 0, 1 and 2; 3 would be this machine's fault, and a limit of memory is
  // ours.
  const auto broken = [&](const kernels::Ending& ending, const char* step) -> std::string {
    if (ending.late) return line("hung", step);
    if (ending.text.find("out of memory") != std::string::npos) return line("memory", step);
    if (ending.signal != 0 || ending.status > 2 || ending.text.find("internal error") != std::string::npos) {
      return line("internal",
                  fmt::format("{}: {} {}", step, ending_text(ending), ending.text.substr(0, 300)));
    }
    return {};
  };
  if (const std::string why = broken(fitted, "fit"); !why.empty()) return why;
  if (fitted.status != 0) return line("refused", reason_of(fitted.text));
  const kernels::Ending emitted = run_program({options.fitter, "emit", fit, "--out", header}, kLimits);
  if (const std::string why = broken(emitted, "emit"); !why.empty()) return why;
  if (emitted.status != 0)
    return line("internal", "emit refuses what fit wrote: " + emitted.text.substr(0, 300));
  const std::string text = kernels::read_file(header);
  Library library;
  const CompiledBatch batch(options.toolchain, folder, {text});
  std::string falsehood = falsehoods_of(batch, 0, library);
  if (falsehood.empty()) falsehood = false_print(fitted.text, batch.claims(0));
  const auto [verdict, why] = split(verdict_of_checker(options.checker, text, "attacked.h", ""));
  if (verdict == "internal") return line("internal", "check: " + why);
  if (!falsehood.empty()) return line(verdict == "survived" ? "survived" : "false", falsehood);
  if (verdict == "killed") return line("contested", "check: " + why);
  return verdict == "survived" ? line("fitted", "") : line("undecided", reason_of("check: " + why));
}

std::vector<Specification> drawn(size_t block, size_t all, const auto& draw) {
  std::vector<Specification> specs;
  for (size_t i = block * kBlock; i < std::min((block + 1) * kBlock, all); ++i) specs.push_back(draw(i));
  return specs;
}

}  // namespace

void SpecificationResult::add(const SpecificationResult& other) {
  for (const auto& [name, count] : kSpecificationCounts) this->*count += other.*count;
  longest_cpu_s = std::max(longest_cpu_s, other.longest_cpu_s);
  seconds.insert(seconds.end(), other.seconds.begin(), other.seconds.end());
  for (const auto& [reason, times] : other.reasons) reasons[reason] += times;
  failures.insert(failures.end(), other.failures.begin(), other.failures.end());
}

std::vector<Specification> specifications_of(size_t block, const Options& options) {
  kernels::Random random(options.seed * 0x9e3779b97f4a7c15u + block);
  return drawn(block, options.specifications, [&](size_t) { return random_specification(random); });
}

std::vector<Specification> stores_of(size_t block, const Options& options) {
  constexpr std::uint64_t kOtherStream = std::uint64_t{1} << 32;
  kernels::Random random(options.seed * 0x9e3779b97f4a7c15u + kOtherStream + block);
  return drawn(block, options.stores, [&](size_t number) { return random_store(number, random); });
}

SpecificationResult attack_specifications(const std::vector<Specification>& specs, const Options& options) {
  const kernels::ScratchFolder folder;
  const std::vector<std::string> lines = run_guarded(
      specs.size(), [&](size_t i) { return judged(specs[i], folder.path(), options); }, kLimits,
      [&](size_t, const kernels::Ending& ending) {
        return "internal\t0\tthe judgement itself: " + ending_text(ending);
      });
  SpecificationResult result;
  for (size_t i = 0; i < specs.size(); ++i) {
    const auto [outcome, rest] = split(lines[i]);
    const auto [seconds, why] = split(rest);
    ++result.tried;
    result.seconds.push_back(std::strtod(seconds.c_str(), nullptr));
    result.longest_cpu_s = std::max(result.longest_cpu_s, result.seconds.back());
    const auto* const named = std::ranges::find(
        kSpecificationCounts, outcome, [](const auto& count) { return std::string_view(count.first); });
    ++(named == std::end(kSpecificationCounts) ? result.internal : result.*named->second);
    if (outcome == "survived") ++result.false_claims;
    if (outcome == "refused" || outcome == "undecided") ++result.reasons[why];
    if (outcome == "fitted" || outcome == "refused" || outcome == "undecided") continue;
    result.failures.push_back({specs[i].json, outcome, outcome == lines[i] ? lines[i] : why.substr(0, 400)});
  }
  return result;
}

// ---- results ------------------------------------------------------------------------------------

namespace {

nlohmann::json to_json(const MutantTally& tally) {
  nlohmann::json counts;
  for (const auto& [name, count] : kMutantCounts) counts[name] = tally.*count;
  return counts;
}

MutantTally tally_of(const JsonNode& node) {
  MutantTally tally;
  for (const auto& [name, count] : kMutantCounts) tally.*count = node[name].count();
  return tally;
}

}  // namespace

nlohmann::json to_json(const HeaderResult& result) {
  nlohmann::json kinds = nlohmann::json::object(), failures = nlohmann::json::array();
  for (const auto& [kind, tally] : result.kinds) kinds[kind] = to_json(tally);
  for (const MutantFailure& failure : result.failures)
    failures.push_back({{"place", failure.place}, {"kind", failure.kind}, {"why", failure.why}});
  return {{"header", result.header},
          {"baseline", result.baseline},
          {"shares", result.shares},
          {"kinds", std::move(kinds)},
          {"failures", std::move(failures)}};
}

nlohmann::json to_json(const SpecificationResult& result) {
  nlohmann::json failures = nlohmann::json::array();
  for (const SpecificationFailure& failure : result.failures)
    failures.push_back(
        {{"specification", failure.specification}, {"outcome", failure.outcome}, {"why", failure.why}});
  nlohmann::json block{{"longest_cpu_s", result.longest_cpu_s},
                       {"seconds", result.seconds},
                       {"reasons", result.reasons},
                       {"failures", std::move(failures)}};
  for (const auto& [name, count] : kSpecificationCounts) block[name] = result.*count;
  return block;
}

namespace {

SpecificationResult specifications_from(const JsonNode& node) {
  SpecificationResult block;
  for (const auto& [name, count] : kSpecificationCounts) {
    if (std::string_view(name) != "contested" || node.has(name)) block.*count = node[name].count();
  }
  block.longest_cpu_s = node["longest_cpu_s"].finite();
  if (node.has("seconds")) {
    for (const JsonNode& seconds : node["seconds"].items()) block.seconds.push_back(seconds.finite());
  }
  for (const std::string& reason : node["reasons"].keys())
    block.reasons[reason] = node["reasons"][reason].count();
  for (const JsonNode& failure : node["failures"].items())
    block.failures.push_back(
        {failure["specification"].text(), failure["outcome"].text(), failure["why"].text()});
  return block;
}

HeaderResult header_from(const JsonNode& node) {
  HeaderResult result;
  result.header = node["header"].text(), result.baseline = node["baseline"].text();
  for (const std::string& kind : node["kinds"].keys()) result.kinds[kind] = tally_of(node["kinds"][kind]);
  // of a claim of 0
  for (const std::string& claim : node["shares"].keys()) result.shares[claim] = node["shares"][claim].bound();
  for (const JsonNode& failure : node["failures"].items()) {
    result.failures.push_back(
        {result.header, failure["place"].text(), failure["kind"].text(), failure["why"].text()});
  }
  return result;
}

}  // namespace

nlohmann::json document(const Units& units, std::uint64_t seed) {
  MutantTally all;
  std::map<std::string, MutantTally> kinds;
  nlohmann::json headers = nlohmann::json::object(), survivors = nlohmann::json::array(),
                 baselines = nlohmann::json::object();
  SpecificationResult specifications;
  const std::string file = "units";
  for (const auto& [name, unit] : units) {
    if (unit.is_null()) continue;
    const JsonNode node(unit, file, name);
    if (!node.has("header")) {
      specifications.add(specifications_from(node));
      continue;
    }
    const HeaderResult header = header_from(node);
    for (const auto& [kind, tally] : header.kinds) kinds[kind].add(tally);
    all.add(header.total());
    headers[header.header] = to_json(header.total());
    if (!header.baseline.empty()) baselines[header.header] = header.baseline;
    for (const MutantFailure& failure : header.failures) {
      survivors.push_back({{"header", failure.header},
                           {"place", failure.place},
                           {"kind", failure.kind},
                           {"why", failure.why}});
    }
  }
  nlohmann::json by_kind = nlohmann::json::object();
  for (const auto& [kind, tally] : kinds) by_kind[kind] = to_json(tally);
  nlohmann::json mutations = to_json(all);
  mutations["by_header"] = std::move(headers), mutations["by_kind"] = std::move(by_kind),
  mutations["failures"] = std::move(survivors);
  mutations["false_headers"] = std::move(baselines);
  return {{"schema", kSchema},
          {"seed", seed},
          {"mutations", std::move(mutations)},
          {"specifications", to_json(specifications)},
          {"units", units}};
}

Units read_units(const std::string& file, std::uint64_t seed) {
  const JsonNode node = kernels::read_json(file, kSchema);
  if (static_cast<std::uint64_t>(node["seed"].count()) != seed)
    node["seed"].fail(fmt::format("is not {}: other damage (--seed, or --fresh to begin anew)", seed));
  Units units;
  for (const std::string& name : node["units"].keys()) {
    const JsonNode unit = node["units"][name];
    if (!unit.null()) unit["key"].text();
    if (unit.has("header")) {
      header_from(unit);
    } else if (!unit.null()) {
      specifications_from(unit);
    }
    units[name] = unit.raw();
  }
  return units;
}

bool holds(const nlohmann::json& document) {
  const nlohmann::json &mutations = document.at("mutations"), &specifications = document.at("specifications");
  const auto none = [](const nlohmann::json& of, const char* key) {
    return of.at(key).get<std::int64_t>() == 0;
  };
  return none(mutations, "survived") && none(mutations, "internal") &&
         mutations.at("false_headers").empty() && none(specifications, "false") &&
         none(specifications, "contested") && none(specifications, "hung") &&
         none(specifications, "memory") && none(specifications, "internal");
}

}  // namespace outgrad::validation::gate
