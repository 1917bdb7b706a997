// The first screen: the verdict, the key figures, every requirement by format, what is only reported, and where the
// data came from.
#include "validation/report/sections.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include "validation/sweep/targets.h"

namespace outgrad::validation {

using namespace page;

namespace {

constexpr const char* kThisRun = "this run";

/// The run without the date and commit of each file.
std::string run_of(const std::string& origin) { return origin.starts_with("committed") ? "committed" : origin; }

std::string counted(std::size_t n, const char* one, const char* many) { return fmt::format("{} {}", n, n == 1 ? one : many); }

std::vector<const Requirement*> with(const std::vector<Requirement>& rows, RequirementVerdict verdict) {
  std::vector<const Requirement*> found;
  for (const Requirement& row : rows) {
    if (row.verdict() == verdict) found.push_back(&row);
  }
  return found;
}

std::string listed(const std::vector<const Requirement*>& rows) {
  std::string text;
  for (const Requirement* row : rows) {
    text += text.empty() ? "" : "; ";
    text += row->format + " " + row->quantity;
    if (row->value) text += " " + figure(*row->value, row->kind) + (row->limit ? ", not " + figure(*row->limit, row->kind) : "");
  }
  return text;
}

/// "max T / max O, all bf16 x" for bf16 and "..., all f16 x" for f16 share a line.
std::string line_of(const Requirement& row) {
  std::string name = row.quantity;
  const std::string own = "all " + row.format + " x";
  if (const size_t at = name.find(own); at != std::string::npos) name.replace(at, own.size(), "all x of the format");
  return name;
}

bool is_of_a_format(const Requirement& row) {
  return std::any_of(kTargets.begin(), kTargets.end(), [&](const Targets& targets) { return row.format == targets.format; });
}

/// The figure and its limit, with a mark that shows without colour whether the limit holds.
Cell judged(const Requirement& row) {
  const char* const mark = row.verdict() == RequirementVerdict::pass ? "\u2713\u00a0" : row.verdict() == RequirementVerdict::fail ? "\u2717\u00a0" : "";
  return Cell(row.value ? mark + figure(*row.value, row.kind) + (row.limit ? " \u2264\u00a0" + figure(*row.limit, row.kind) : "") : "not measured",
              tone_of(row.verdict()));
}

}  // namespace

Table matrix(const std::vector<Requirement>& rows) {
  Table table{"What must hold and what was found: upper bounds, rounded up.", "./outgrad report", {words("requirement")}, {}};
  for (const Targets& targets : kTargets) table.columns.push_back({targets.format, "found, at most"});
  for (const Requirement& row : rows) {
    if (!is_of_a_format(row)) continue;
    const std::string name = line_of(row);
    auto line = std::find_if(table.rows.begin(), table.rows.end(), [&](const auto& one) { return one[0].text == name; });
    if (line == table.rows.end()) {
      table.rows.push_back({name});
      line = table.rows.end() - 1;
      line->resize(table.columns.size(), Cell("", Tone::muted));
    }
    for (size_t i = 0; i < kTargets.size(); ++i) {
      if (row.format == kTargets[i].format) (*line)[i + 1] = judged(row);
    }
  }
  return table;
}

Table of_all_formats(const std::vector<Requirement>& rows) {
  Table table{"What is not of one format.", "./outgrad report", {words("requirement"), {"found", "at most"}}, {}};
  for (const Requirement& row : rows) {
    if (!is_of_a_format(row)) table.rows.push_back({row.format + ": " + row.quantity, judged(row)});
  }
  return table;
}

Tiles key_figures(const Results& results) {
  Tiles tiles;
  const auto tile = [&](Tile one, const std::string& command) {
    tiles.tiles.push_back(std::move(one));
    if (std::find(tiles.commands.begin(), tiles.commands.end(), command) == tiles.commands.end()) tiles.commands.push_back(command);
  };
  const auto stated = [&](const std::string& file) { return results.provenance.made_by.empty() ? "" : "; " + results.origin(file); };
  const SweepResult* worst = nullptr;
  std::map<std::string, std::int64_t> patterns;  // by run
  for (const std::vector<SweepResult>* sweeps : {&results.sweeps, &results.foreign}) {
    for (const SweepResult& sweep : *sweeps) {
      for (const SweptDomain& domain : sweep.domains) patterns[run_of(results.origin(sweep.file))] += domain.patterns;
    }
  }
  const SweepResult* const ours = results.sweep_of("f32");
  // The error of the whole gradient comes first, and beside it what one has that keeps x.
  std::string others, first, name;
  std::set<std::string> runs;
  for (const Targets& targets : kTargets) {
    const SweepResult* sweep = results.sweep_of(targets.format);
    if (!sweep) continue;
    runs.insert(results.origin(sweep->file));
    const std::string total = three_digits_up(sweep->domains.back().total.bound);
    if (first.empty())
      first = total, name = targets.format;
    else
      others += fmt::format("{} {}, ", targets.format, total);
  }
  if (!others.empty()) others = "in " + others.substr(0, others.size() - 2);
  if (ours && ours->domains.back().from_x) others += (others.empty() ? "" : "; ") + ("PyTorch's from x " + three_digits_up(*ours->domains.back().from_x));
  if (!results.provenance.made_by.empty()) others += fmt::format("{}{}", others.empty() ? "" : "; ", fmt::join(runs, ", "));
  if (!first.empty()) tile({first, "largest error of GELU's gradient, y in " + name, others}, validate_command("FORMAT"));
  double ratio = 0;
  for (const Targets& targets : kTargets) {
    const SweepResult* sweep = results.sweep_of(targets.format);
    for (const SweptDomain& domain : sweep ? sweep->domains : std::vector<SweptDomain>{}) {
      if (!(domain.ratio <= ratio)) ratio = domain.ratio, worst = sweep;
    }
  }
  if (worst) {
    tile({rounded_up(ratio, 4), "largest T / O of GELU's default fits", "1 is the limit that storing y sets; worst in " + worst->format + stated(worst->file)},
         validate_command("FORMAT"));
  }
  // What this run has swept is one figure; what was committed, or swept before, is another, and says so.
  const auto billions = [](std::int64_t count) { return fmt::format("{:.1f} \u00d7 10^9", static_cast<double>(count) / 1e9); };
  if (!patterns.empty()) {
    const auto shown = patterns.contains(kThisRun) ? patterns.find(kThisRun) : patterns.begin();
    std::string note = "ours and others'";
    if (!results.provenance.made_by.empty()) note += ", " + shown->first;
    for (const auto& [run, count] : patterns) {
      if (run != shown->first) note += "; " + run + ": " + billions(count);
    }
    tile({billions(shown->second), "inputs swept, every pattern counted", note}, validate_command("FORMAT"));
  }
  if (ours) {
    const SweepResult* theirs = nullptr;
    for (const SweepResult& sweep : results.foreign) {
      if (sweep.activation == "gelu" && sweep.format == "f32" && (!theirs || sweep.domains[0].total.bound > theirs->domains[0].total.bound)) theirs = &sweep;
    }
    if (theirs) {
      tile({three_digits_up(theirs->domains[0].total.bound), "largest error of " + quoted(theirs->fit) + ", as published",
            "ours over the same x: " + three_digits_up(ours->domains.back().total.bound) + stated(theirs->file)},
           "./outgrad validate --foreign notebooks_data/foreign/NAME.json --format FORMAT");
    }
  }
  for (const AttackFile& attack : results.attacks) {
    tile({fmt::format("{:.0f}", attack.violations), fmt::format("norm bounds broken in {:.2g} \u00d7 10^9 attacks", attack.evaluations / 1e9),
          fmt::format("median bound / error found {}{}", rounded_up(attack.median_tightness, 2), stated(attack.file)),
          attack.violations > 0 ? Tone::bad : Tone::normal},
         kAttackCommand);
  }
  for (const TrainingResult& training : results.training) {
    const TrainedWay* largest = nullptr;
    for (const TrainedWay& way : training.summary) {
      if (way.way == "ours" && way.difference && (!largest || std::abs(*way.difference) > std::abs(*largest->difference))) largest = &way;
    }
    if (largest) {
      tile({fmt::format("{:+.2g}", *largest->difference), "final loss against exact gradients",
            fmt::format("worst text: {}; {} seeds{}", quoted(largest->text), training.seeds, stated(training.file))},
           quoted(training.command));
    }
  }
  return tiles;
}

Verdict verdict_of(const std::vector<Requirement>& rows) {
  const auto count = [&](RequirementVerdict verdict) { return with(rows, verdict).size(); };
  const std::size_t pass = count(RequirementVerdict::pass), fail = count(RequirementVerdict::fail), missing = count(RequirementVerdict::not_measured),
                    reported = count(RequirementVerdict::reported), judged = pass + fail;
  Verdict verdict;
  verdict.tone = fail > 0 ? Tone::bad : missing > 0 || judged == 0 ? Tone::muted : Tone::good;
  verdict.headline = fail > 0 ? fmt::format("{} of {} requirements {} not hold", fail, judged, fail == 1 ? "does" : "do")
                     : judged == 0 && reported > 0
                         ? fmt::format("{} {} reported; nothing here has a limit", reported, reported == 1 ? "figure is" : "figures are")
                     : judged == 0 ? "Nothing was measured"
                                   : fmt::format("All {} requirements that were measured hold", judged);
  if (fail == 0 && missing == 0 && judged > 0) verdict.headline = fmt::format("All {} requirements hold", judged);
  verdict.detail =
      fmt::format("{} hold, {} fail, {} {} reported without a limit, {} not measured.", pass, fail, reported, reported == 1 ? "is" : "are", missing);
  return verdict;
}

std::vector<Block> remarks(const std::vector<Requirement>& rows) {
  std::vector<Block> blocks{of_all_formats(rows)};
  const auto say = [&](
                       const char* what, RequirementVerdict verdict, bool (*wanted)(const Requirement&) = [](const Requirement&) { return true; }) {
    auto found = with(rows, verdict);
    std::erase_if(found, [&](const Requirement* row) { return !wanted(*row); });
    if (found.empty()) return;
    blocks.push_back(Heading{what});
    blocks.push_back(Paragraph{listed(found) + ".", tone_of(verdict)});
  };
  const auto holding = with(rows, RequirementVerdict::pass);
  blocks.push_back(Heading{"What holds"});
  std::string ways;
  for (const char* way : {"certified", "exhaustive", "counted", "searched", "proven"}) {
    const auto n = std::count_if(holding.begin(), holding.end(), [&](const Requirement* row) { return row->established == way; });
    if (n > 0) ways += fmt::format("{}{} {}", ways.empty() ? "" : ", ", n, way);
  }
  blocks.push_back(Paragraph{holding.empty() ? "Nothing was shown to hold." : fmt::format("{} requirements: {}.", holding.size(), ways)});
  say("What fails", RequirementVerdict::fail);
  say("What is only reported", RequirementVerdict::reported, [](const Requirement& row) {
    return row.kind != Requirement::Kind::number || row.format == "own";  // GELU's T opens the page
  });
  say("What was not measured", RequirementVerdict::not_measured);
  return blocks;
}

Paragraph sources(const Results& results) {
  std::string from;
  const auto add = [&](std::size_t n, const char* one, const char* many) {
    if (n > 0) from += (from.empty() ? "" : ", ") + counted(n, one, many);
  };
  add(results.backward.size() + results.forward.size() + results.rounded.size() + results.tables.size(), "coefficient header", "coefficient headers");
  add(results.fits.size(), "fit with its certificate", "fits with their certificates");
  add(results.sweeps.size(), "exhaustive sweep", "exhaustive sweeps");
  add(results.store_sweeps.size(), "sweep of codes and of y with its branch", "sweeps of codes and of y with its branch");
  add(results.foreign.size(), "sweep of others' coefficients", "sweeps of others' coefficients");
  add(results.quantisers.size(), "audit of a quantiser", "audits of quantisers");
  add(results.fronts.size(), "front of bits and errors", "fronts of bits and errors");
  add(results.stability.size(), "stability analysis", "stability analyses");
  add(results.attacks.size(), "search against the norms' bounds", "searches against the norms' bounds");
  add(results.certificates ? 1 : 0, "attack on the certificates", "attacks on the certificates");
  add(results.proofs.size(), "run of Coq", "runs of Coq");
  add(results.pareto.size(), "front", "fronts");
  add(results.training.size(), "training study", "training studies");
  add(results.tuning.size(), "tuned problem", "tuned problems");
  return {from + ". The command named below every table and plot writes the files that it shows.", Tone::muted};
}

Section requirements_section(const std::vector<Requirement>& rows) {
  Table table{
      "What must hold, format by format, each with the command that makes its figure. Figures are upper bounds and rounded up; "
      "\"certified\" is proved by "
      "ball arithmetic and stands in the header, \"exhaustive\" and \"counted\" are over every bit pattern of x, \"searched\" is what an "
      "attack could not refute.",
      "./outgrad report",
      {words("format"), words("requirement"), {"at most", ""}, {"found", ""}, words("verdict"), words("of"), words("established"), words("made by")},
      {}};
  for (const Requirement& row : rows) {
    table.rows.push_back({row.format,
                          row.quantity,
                          row.limit ? figure(*row.limit, row.kind) : "-",
                          row.value ? figure(*row.value, row.kind) : "-",
                          {to_string(row.verdict()), tone_of(row.verdict())},
                          quoted(row.from),
                          row.established,
                          "`" + row.command + "`"});
  }
  return {"Requirements", {std::move(table)}};
}

}  // namespace outgrad::validation
