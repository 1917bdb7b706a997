// What was exhausted: for every fit that ships, the inputs that were swept and counted, or enumerated from every stored y.
#include "validation/report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace outgrad::validation {

using namespace page;

namespace {

struct Formats {  // of a sweep: that y is stored in, and that of its x
  const char *y, *x;
};
constexpr std::array<Formats, 5> kDomains{{{"f32", "f32"}, {"f16", "f16"}, {"f16", "f32"}, {"bf16", "bf16"}, {"bf16", "f32"}}};

constexpr size_t kLinesOfPlot = 20;  // fits, one below another

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

/// Fits whose y has one of these formats, in the order of their names.
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
  for (const SweepResult& sweep : results.sweeps) {  // whose header is not here
    if (std::none_of(lines.begin(), lines.end(), [&](const FitCoverage& line) { return line.fit == sweep.fit; }))
      add(sweep.fit, sweep.format, false);
  }
  std::sort(lines.begin(), lines.end(), [](const FitCoverage& a, const FitCoverage& b) { return a.fit < b.fit; });
  return lines;
}

Plot coverage_plot(const std::vector<FitCoverage>& lines) {
  std::string data;
  for (const Coverage kind : {Coverage::swept, Coverage::enumerated, Coverage::certified}) {
    for (size_t i = 0; i < lines.size(); ++i) {
      for (size_t k = 0; k < kDomains.size(); ++k) {
        if (lines[i].of[k] == kind) data += fmt::format("{} {} {}\n", k + 1, lines.size() - i, plain_name(lines[i].fit));
      }
    }
    data += "NaN NaN \"\"\n\n\n";
  }
  for (size_t i = 0; i < lines.size(); ++i) data += fmt::format("0 {} {}\n", lines.size() - i, plain_name(lines[i].fit));
  std::string tics;
  for (size_t k = 0; k < kDomains.size(); ++k)
    tics += fmt::format("{}'{}' {}", k ? ", " : "", fmt::format("y {}\\nx {}", kDomains[k].y, kDomains[k].x), k + 1);
  constexpr int kRowHeight = 15, kMargins = 120;
  // Tics take double quotes, whose \n breaks a line.
  std::replace(tics.begin(), tics.end(), '\'', '"');
  return {fmt::format("Coverage of the fits {} to {}: for each pair of formats of y and x whether every input was swept, enumerated over "
                      "all real x, or only certified",
                      quoted(lines.front().fit), quoted(lines.back().fit)),
          fmt::format("set xrange [0.4:5.6]\nset yrange [0.3:{}.7]\nset xtics ({})\nset ytics noenhanced font ',9'\nset key outside top "
                      "center samplen 1\nset bmargin 3.6\n"
                      "plot data index 3 using (NaN):2:ytic(3) with points notitle, data index 0 using 1:2 with points pt 5 ps 0.9 lc rgb "
                      "green title 'every input swept', "
                      "data index 1 using 1:2 with points pt 7 ps 0.7 lc rgb blue title 'all real x enumerated', "
                      "data index 2 using 1:2 with points pt 6 ps 0.7 lc rgb grey title 'A, K, B certified'",
                      lines.size(), tics),
          data, 460, kMargins + kRowHeight * static_cast<int>(lines.size())};
}

}  // namespace

Section coverage_section(const Results& results) {
  Section section{"Sweep coverage", {}};
  if (results.sweeps.empty() && results.foreign.empty()) {
    section.blocks.push_back(nothing("Sweeps", validate_command("FORMAT")));
    return section;
  }
  section.blocks.push_back(Paragraph{
      "A sweep that has not met every bit pattern of its domain is refused by this report: the count of patterns is the format's, NaN and "
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
