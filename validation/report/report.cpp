// The order of the report, the files it was made from, and the words that its sections share.
#include "validation/report/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "validation/report/sections.h"

namespace outgrad::validation {

using namespace page;

std::string scientific(double v) { return std::isfinite(v) ? fmt::format("{:.3g}", v) : std::isnan(v) ? "nan" : v > 0 ? "inf" : "-inf"; }

std::string error_text(double bound) { return fmt::format("{} = {}", scientific(bound), power_of_two(bound)); }

Column words(const char* name) { return {name, "", true}; }

Tone tone_of(RequirementVerdict verdict) {
  switch (verdict) {
    case RequirementVerdict::pass: return Tone::good;
    case RequirementVerdict::fail: return Tone::bad;
    default: return Tone::muted;
  }
}

Paragraph nothing(const std::string& what, const std::string& command) { return {what + ": not measured; `" + command + "` makes it.", Tone::muted}; }

std::string grouped(std::int64_t count) {
  std::string digits = std::to_string(count);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > 0; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

namespace {

Section inputs_section(const Results& results) {
  Section section{"Inputs", {}};
  Table files{"What this report was made from.", "./outgrad report", {words("kind"), words("file"), words("of")}, {}};
  const auto list = [&](const char* kind, const auto& items) {
    for (const auto& item : items) {
      const std::string file = quoted(shown_path(item.file));
      if (files.rows.empty() || files.rows.back()[1].text != file) files.rows.push_back({kind, file, quoted(results.origin(item.file))});
    }
  };
  list("header", results.backward);
  list("header", results.tables);
  list("header", results.forward);
  list("header", results.rounded);
  list("header", results.codes);
  list("fit", results.fits);
  list("sweep", results.sweeps);
  list("sweep", results.store_sweeps);
  list("audit", results.foreign);
  list("audit", results.quantisers);
  list("front of bits", results.fronts);
  list("stability", results.stability);
  list("attack", results.attacks);
  if (results.certificates) list("attack", std::span(&*results.certificates, 1));
  list("proof", results.proofs);
  list("front", results.pareto);
  list("ledger", results.ledgers);
  list("training", results.training);
  list("tuning", results.tuning);
  section.blocks.push_back(sources(results));
  section.blocks.push_back(std::move(files));
  for (const std::string& warning : results.warnings) section.blocks.push_back(Paragraph{"Warning: " + quoted(warning), Tone::bad});
  return section;
}

}  // namespace

Document compose(const Results& results, const std::vector<Requirement>& rows) {
  const std::string made_by = quoted(results.provenance.made_by);
  Document document{"outgrad: accuracy report",
                    "Gradients of GELU, LayerNorm and RMSNorm from their outputs, and how wrong they can be." + (made_by.empty() ? "" : " By " + made_by + "."),
                    verdict_of(rows),
                    key_figures(results),
                    {matrix(rows)},
                    remarks(rows),
                    {}};
  document.sections = {curves_section(results),   limits_section(results),    pareto_section(results), channels_section(results), attack_section(results),
                       coverage_section(results), often_section(results),     others_section(results), bits_section(results),     ledger_section(results),
                       training_section(results), requirements_section(rows), errors_section(results), forward_section(results),  coefficients_section(results),
                       tuning_section(results),   inputs_section(results)};
  // Where a section shows files that are not of this run, it begins with a line that says of which they are.
  const auto say_origin = [&](const char* title, const auto&... lists) {
    std::map<std::string, int> files;  // how many are of each run
    const auto see = [&](const auto& list) {
      for (const auto& item : list) ++files[results.origin(item.file)];
    };
    (see(lists), ...);
    const auto section = std::find_if(document.sections.begin(), document.sections.end(), [&](const Section& one) { return one.title == title; });
    if (section == document.sections.end() || made_by.empty() || files.empty() || (files.size() == 1 && files.begin()->first == "this run")) return;
    std::string text;
    for (const auto& [origin, count] : files) text += fmt::format("{}{} ({} {})", text.empty() ? "" : ", ", origin, count, count == 1 ? "file" : "files");
    section->blocks.insert(section->blocks.begin(), Paragraph{"This section was made from: " + quoted(text) + ".", Tone::muted});
  };
  say_origin("Error curves", results.sweeps);
  say_origin("T against O", results.sweeps, results.backward, results.tables);
  say_origin("What to choose from", results.pareto);
  say_origin("Channel stability", results.stability);
  say_origin("Norm bounds under attack", results.attacks);
  say_origin("Sweep coverage", results.sweeps, results.foreign);
  say_origin("Errors as x have them", results.sweeps, results.foreign);
  say_origin("Beside others", results.foreign, results.quantisers);
  say_origin("Bits kept against the error of the gradient", results.fronts, results.store_sweeps);
  say_origin("Bytes kept", results.ledgers);
  say_origin("Training", results.training);
  say_origin("Errors, kept apart", results.backward, results.sweeps);
  say_origin("Forward", results.sweeps);
  say_origin("Coefficients and cost", results.backward, results.fits);
  return document;
}

}  // namespace outgrad::validation
