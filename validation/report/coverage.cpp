// What was exhausted: for every fit that ships, the inputs that were swept and counted, or enumerated from every stored
// y.
#include "validation/report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace outgrad::validation {

using namespace page;

namespace {

struct Formats {  // of a sweep: the format in which y is stored, and the format of its x
  const char *y, *x;
};
constexpr std::array<Formats, 5> kDomains{{{"f32", "f32"}, {"f16", "f16"}, {"f16", "f32"}, {"bf16", "bf16"}, {"bf16", "f32"}}};

constexpr size_t kLinesOfPlot = 20;  // one fit per line

enum class Coverage { none, certified, enumerated, swept };

struct FitCoverage {
  std::string fit;
  std::array<Coverage, kDomains.size()> of{};
};

const SweptDomain* swept(const Results& results, const std::string& fit, const Formats& formats) {
  const SweepResult* sweep = results.sweep_of_fit(fit);
  if (!sweep || sweep->format != formats.y) return nullptr;
  for (const SweptDomain& one : sweep->domains) {
    if (one.x_format == formats.x) return &one;
  }
  return nullptr;
}

/// The fits whose y has one of these formats, in the order of their names.
std::vector<FitCoverage> lines_of(const Results& results) {
  std::vector<FitCoverage> lines;
  const auto add = [&](const std::string& name, const std::string& format, bool enumerated) {
    FitCoverage line{name, {}};
    bool any = false;
    for (size_t i = 0; i < kDomains.size(); ++i) {
      if (format != kDomains[i].y) continue;
      any = true;
      line.of[i] = swept(results, name, kDomains[i]) ? Coverage::swept : enumerated ? Coverage::enumerated : Coverage::certified;
    }
    if (any) lines.push_back(std::move(line));
  };
  for (const BackwardHeader& header : results.backward) add(header.name, header.format, header.storage.oracle > 0);
  for (const TableHeader& header : results.tables) add(header.name, header.format, header.storage.oracle > 0);
  for (const SweepResult& sweep : results.sweeps) {  // those whose header is not here
    if (std::none_of(lines.begin(), lines.end(), [&](const FitCoverage& line) { return line.fit == sweep.fit; })) add(sweep.fit, sweep.format, false);
  }
  std::sort(lines.begin(), lines.end(), [](const FitCoverage& a, const FitCoverage& b) { return a.fit < b.fit; });
  return lines;
}

Plot coverage_plot(const std::vector<FitCoverage>& lines) {
  Axis formats{.from = 0.4, .to = kDomains.size() + 0.6}, fits{.from = 0.3, .to = static_cast<double>(lines.size()) + 0.7};
  for (const Formats& one : kDomains) formats.ticks.emplace_back(formats.ticks.size() + 1, fmt::format("y {}\nx {}", one.y, one.x));
  Series swept{"every input swept", "green", "squares"}, enumerated{"all real x enumerated", "blue", "dots"}, certified{"A, K, B certified", "grey", "rings"};
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto line = static_cast<double>(lines.size() - i);
    fits.ticks.emplace_back(line, quoted(lines[i].fit));
    for (size_t k = 0; k < kDomains.size(); ++k) {
      const Coverage kind = lines[i].of[k];
      if (kind != Coverage::none)
        (kind == Coverage::swept ? swept : kind == Coverage::enumerated ? enumerated : certified).add(static_cast<double>(k + 1), line);
    }
  }
  constexpr int kRowHeight = 15, kMargins = 120;
  return {fmt::format("Coverage of the fits {} to {}: for each pair of formats of y and x whether every input was swept, enumerated over "
                      "all real x, or only certified",
                      quoted(lines.front().fit), quoted(lines.back().fit)),
          "",
          formats,
          fits,
          {swept, enumerated, certified},
          460,
          kMargins + kRowHeight * static_cast<int>(lines.size())};
}

}  // namespace

Section coverage_section(const Results& results) {
  Section section{"Sweep coverage", {}};
  if (results.sweeps.empty() && results.foreign.empty()) {
    section.blocks.push_back(nothing("Sweeps", validate_command("FORMAT")));
    return section;
  }
  section.blocks.push_back(
      Paragraph{"A sweep that has not met every bit pattern of its domain is refused by this report: the count of patterns is the format's, NaN and "
                "infinities among them."});
  if (const std::vector<FitCoverage> lines = lines_of(results); !lines.empty()) {
    std::vector<Plot> plots;
    for (size_t from = 0; from < lines.size(); from += kLinesOfPlot) {
      const auto begin = lines.begin() + static_cast<std::ptrdiff_t>(from);
      plots.push_back(coverage_plot({begin, begin + static_cast<std::ptrdiff_t>(std::min(kLinesOfPlot, lines.size() - from))}));
    }
    section.blocks.push_back(
        Figure{"Which inputs of which fit were exhausted. Green: every bit pattern of x through forward and backward, counted. Blue: T, O "
               "and R over all "
               "real x, enumerated from every stored y, again by the check. Grey: certified bounds A, K, B alone, which hold for every y "
               "there is.",
               "./outgrad validate --activation NAME --format FORMAT and ./outgrad check HEADER", std::move(plots)});
  }
  Table table{"Patterns of x that were swept, counted.",
              "./outgrad validate --activation NAME --format FORMAT",
              {words("coefficients"),
               words("activation"),
               words("y in"),
               words("every x in"),
               {"patterns"},
               {"of"},
               {"finite"},
               {"NaN, infinities"},
               {"left to MPFR", "roundings of y"},
               {"wrong masks, NaN, infinities"}},
              {}};
  std::int64_t all = 0;
  for (const std::vector<SweepResult>* sweeps : {&results.sweeps, &results.foreign}) {
    for (const SweepResult& sweep : *sweeps) {
      for (const SweptDomain& d : sweep.domains) {
        all += d.patterns;
        const std::int64_t wrong = d.wrong_mask + d.wrong_special;
        table.rows.push_back({quoted(sweep.fit),
                              sweep.activation,
                              sweep.format,
                              d.x_format,
                              grouped(d.patterns),
                              d.x_format == "f32" ? "2^32" : "2^16",
                              grouped(d.finite),
                              grouped(d.patterns - d.finite),
                              grouped(d.oracle_decisions),
                              {grouped(wrong), wrong > 0 ? Tone::bad : Tone::normal}});
      }
    }
  }
  table.caption += " " + grouped(all) + " in all.";
  section.blocks.push_back(std::move(table));
  return section;
}

}  // namespace outgrad::validation
