// The separate errors of g, against the limit set by storing y, and weighted by how often x occurs; and the errors of
// the forward.
#include "validation/report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/formats.h"

namespace outgrad::validation {

using namespace page;

namespace {
std::vector<Cell> error_row(const BackwardHeader& header, const SweptDomain* domain) {
  const StorageClaims& claims = header.storage;
  const bool enumerated = !domain && claims.oracle > 0;
  std::vector<Cell> row{header.name, header.accuracy, header.format, domain ? domain->x_format : enumerated ? "all real x" : "-"};
  for (const double bound : {header.bound_a, header.bound_k, header.bound_b}) row.emplace_back(power_of_two(bound));
  const Cell missing("-", Tone::muted);
  if (enumerated) {
    row.insert(row.end(), {missing, three_digits_up(claims.total), missing, three_digits_up(claims.oracle), three_digits_up(claims.regret),
                           rounded_up(claims.total / claims.oracle, 4), missing});
    return row;
  }
  if (!domain) {
    row.resize(row.size() + 7, missing);
    return row;
  }
  for (const SweptMaximum* m : {&domain->storage, &domain->total, &domain->stored, &domain->oracle, &domain->regret})
    row.emplace_back(three_digits_up(m->bound));
  row.emplace_back(rounded_up(domain->ratio, 4));
  row.emplace_back(scientific(domain->rms));
  return row;
}

/// Errors of g weighted by how often x occurs, for GELU and for published coefficients; empty if no sweep has them.
Table weighted_table(const Results& results) {
  Table table{
      "Errors of g over x of a distribution, each bit pattern weighed by the probability that x rounds to it. The share is that of x "
      "whose stored value leaves f' uncertain by at least half of max O. Our other activations' are in their sweeps.",
      "./outgrad validate --activation NAME --format FORMAT --activations notebooks_data/activations/all-MiniLM-L6-v2.json",
      {words("fit"),
       words("y in"),
       words("every x in"),
       words("x of"),
       {"rms"},
       {"bias", "mean signed error"},
       {"max", "of nearly all x"},
       {"share in the worst codes"}},
      {}};
  for (const std::vector<SweepResult>* sweeps : {&results.sweeps, &results.foreign}) {
    for (const SweepResult& sweep : *sweeps) {
      if (sweeps == &results.sweeps && sweep.activation != "gelu") continue;
      const SweptDomain& widest = sweep.domains.back();
      for (const WeightedErrors& w : widest.under) {
        table.rows.push_back({quoted(sweep.fit), sweep.format, widest.x_format, quoted(w.x), scientific(w.rms), scientific(w.bias), scientific(w.most),
                              fmt::format("{:.2g}%", 100 * w.share)});
      }
    }
  }
  return table;
}

/// One row of the plot of T against O.
struct Limit {
  std::string name;
  double total = 0, oracle = 0, regret = 0;
};

/// Sweeps of the format's own x and, for fits that were not swept, what their headers claim and the check enumerates.
std::vector<Limit> limits_of(const Results& results, const std::string& format) {
  std::vector<Limit> limits;
  for (const SweepResult& sweep : results.sweeps) {
    if (sweep.format != format) continue;
    for (const SweptDomain& d : sweep.domains) {
      const std::string over = sweep.domains.size() > 1 ? ", x in " + d.x_format : "";
      limits.push_back({sweep.fit + over, d.total.bound, d.oracle.value, d.regret.bound});
    }
  }
  const auto claimed = [&](const auto& headers) {
    for (const auto& header : headers) {
      if (header.format == format && header.storage.oracle > 0 && !results.sweep_of_fit(header.name))
        limits.push_back({header.name, header.storage.total, header.storage.oracle, header.storage.regret});
    }
  };
  claimed(results.backward);
  claimed(results.tables);
  std::sort(limits.begin(), limits.end(), [](const Limit& a, const Limit& b) { return a.name < b.name; });
  return limits;
}

/// One line per fit: O, T and R on one axis.
Plot limits_plot(const std::string& formats, const std::vector<Limit>& limits) {
  double least = 1, most = 0;
  Series oracle{"O, the floor", "orange", "ticks"}, total{"T", "blue", "dots"}, regret{"R", "grey", "rings"};
  Axis fits{.from = 0.3, .to = static_cast<double>(limits.size()) + 0.7};
  for (size_t i = 0; i < limits.size(); ++i) {
    const Limit& l = limits[i];
    const auto line = static_cast<double>(limits.size() - i);
    fits.ticks.emplace_back(line, quoted(l.name));
    for (const auto& [series, value] : {std::pair(&oracle, l.oracle), {&total, l.total}, {&regret, l.regret}}) {
      if (!(value > 0) || !std::isfinite(value)) continue;
      least = std::min(least, value), most = std::max(most, value);
      series->add(value, line);
    }
  }
  constexpr int kRowHeight = 17, kMargins = 105;
  if (!(most > 0)) least = 0.5, most = 1;
  return {fmt::format("y in {}: the total error T and the regret R of each fit beside the floor O", formats),
          "y in " + formats,
          {.log = 2, .from = least / 1.6, .to = most * 1.6},
          fits,
          {oracle, total, regret},
          460,
          std::max(170, kMargins + kRowHeight * static_cast<int>(limits.size()))};
}

/// rms of g under each distribution, from sweeps of GELU over f32 x: our default in each format, and other people's
/// coefficients in f32.
Plot often_plot(const Results& results, const std::vector<std::string>& distributions) {
  constexpr std::array<const char*, 7> kLineColours{"blue", "green", "orange", "red", "violet", "grey", "pale"};
  Plot plot{"root mean square error of g under each distribution of x, a line for each set of coefficients",
            "rms error of g, over every f32 x",
            {.from = 0.6, .to = static_cast<double>(distributions.size()) + 0.4},
            {.log = 2},
            {}};
  for (const std::string& distribution : distributions) plot.x.ticks.emplace_back(plot.x.ticks.size() + 1, quoted(distribution));
  const auto add = [&](const SweepResult& sweep) {
    const std::vector<WeightedErrors>& under = sweep.domains.back().under;
    if (under.empty() || plot.series.size() == kLineColours.size()) return;
    Series& line = plot.series.emplace_back(Series{quoted(sweep.fit), kLineColours[plot.series.size()], "chain"});
    for (size_t i = 0; i < distributions.size(); ++i) {
      for (const WeightedErrors& w : under) {
        if (w.x == distributions[i] && w.rms > 0 && std::isfinite(w.rms)) line.add(static_cast<double>(i + 1), w.rms);
      }
    }
  };
  for (const char* format : kernels::ActivationFormats::kNames) {
    if (const SweepResult* sweep = results.sweep_of(format)) add(*sweep);
  }
  for (const SweepResult& sweep : results.foreign) {
    if (sweep.activation == "gelu" && sweep.format == "f32") add(sweep);
  }
  return plot;
}

}  // namespace

Section limits_section(const Results& results) {
  Section section{"T against O", {}};
  Figure figure{
      "The total error T of every fit against O, the least that any function of the stored y can reach: a blue dot on the orange bar "
      "cannot be bettered "
      "without storing more. R, the distance from the middle of what is possible, is what a better fit could still gain. f32 is swept "
      "only; over 16 bits "
      "the fits that were not swept stand with what `./outgrad check` enumerates from every stored y.",
      "./outgrad validate --activation NAME --format FORMAT and ./outgrad check HEADER",
      {}};
  for (const std::vector<const char*>& together : {std::vector{"f16"}, std::vector{"bf16"}, std::vector{"f32", "e4m3", "e5m2"}}) {
    std::string formats;
    std::vector<Limit> limits;
    for (const char* format : together) {
      const std::vector<Limit> more = limits_of(results, format);
      if (!more.empty()) formats += (formats.empty() ? "" : ", ") + std::string(format);
      limits.insert(limits.end(), more.begin(), more.end());
    }
    if (!limits.empty()) figure.plots.push_back(limits_plot(formats, limits));
  }
  if (figure.plots.empty())
    section.blocks.push_back(nothing("T and O", validate_command("FORMAT")));
  else
    section.blocks.push_back(std::move(figure));
  return section;
}

Section often_section(const Results& results) {
  Section section{"Errors as x have them", {}};
  Table weighted = weighted_table(results);
  if (weighted.rows.empty()) {
    section.blocks.push_back(nothing("Errors weighed by how often x occurs", "./outgrad validate --activation gelu --format FORMAT"));
    return section;
  }
  section.blocks.push_back(
      Paragraph{"A maximum says nothing of how often. Here every bit pattern of x counts by the probability that x rounds to it, for normal "
                "distributions and for the inputs of a real model's GELUs."});
  std::vector<std::string> distributions;
  for (const std::vector<SweepResult>* sweeps : {&results.sweeps, &results.foreign}) {
    for (const SweepResult& sweep : *sweeps) {
      if (sweep.activation != "gelu") continue;
      for (const WeightedErrors& w : sweep.domains.back().under) {
        if (std::find(distributions.begin(), distributions.end(), w.x) == distributions.end()) distributions.push_back(w.x);
      }
    }
  }
  if (!distributions.empty())
    section.blocks.push_back(
        Figure{"Root mean square error of g under each distribution, over f32 x: ours with y in each format, and published coefficients in f32.",
               weighted.command,
               {often_plot(results, distributions)}});
  section.blocks.push_back(std::move(weighted));
  return section;
}

Section errors_section(const Results& results) {
  Section section{"Errors, kept apart", {}};
  section.blocks.push_back(Paragraph{"Absolute errors of g = f'(x), a pure number between -0.13 and 1.13 for GELU."});
  section.blocks.push_back(
      Definitions{{{"A", "the polynomials against the exact g; certified: ball arithmetic, Taylor models in x"},
                   {"K", "the constants of the coordinate s = sqrt(y - y_c) against the exact y*; certified"},
                   {"B", "rounding of the fp32 operations that run; certified"},
                   {"C", "an exact g at the stored y against f'(x): what storing y costs; exhaustive"},
                   {"T", "the kernel's g at the stored y against f'(x): all of the above together; T_dx the same for dx at dy = 1; exhaustive"},
                   {"O", "the least T that any function of the stored (y, mask) can have: the physical limit; exhaustive"},
                   {"R", "largest distance of the kernel's g from the middle of what the stored (y, mask) leaves possible; exhaustive"}}});
  Table table{
      "A, K, B, C, T, O and R of every fit. A, K and B are claims of the header that the check re-proves from its text alone; all else is "
      "over every bit "
      "pattern of x, by the sweep, or, over all real x, enumerated from "
      "every stored y by the fit and again by the check. A of the class rel is relative to g.",
      "./outgrad check HEADER and ./outgrad validate --activation NAME --format FORMAT",
      {words("fit"),
       words("class"),
       words("y in"),
       words("over"),
       {"A", "certified"},
       {"K", "certified"},
       {"B", "certified"},
       {"C", "exhaustive"},
       {"T", "exhaustive"},
       {"T_dx", "exhaustive"},
       {"O", "exhaustive"},
       {"R", "exhaustive"},
       {"T / O", "exhaustive"},
       {"rms T", "x in [-8, 8)"}},
      {}};
  for (const BackwardHeader& header : results.backward) {
    const SweepResult* sweep = results.sweep_of_fit(header.name);
    if (!sweep) {
      table.rows.push_back(error_row(header, nullptr));
    } else {
      for (const SweptDomain& domain : sweep->domains) table.rows.push_back(error_row(header, &domain));
    }
  }
  if (table.rows.empty())
    section.blocks.push_back(nothing("Headers", "./outgrad emit"));
  else
    section.blocks.push_back(std::move(table));

  Table where{"Where they are attained: x of the largest T and O on either side of the minimum.",
              "./outgrad validate --activation NAME --format FORMAT",
              {words("fit"),
               words("every x in"),
               {"patterns of x"},
               {"T, left at x ="},
               {"T, right at x ="},
               {"O, left at x ="},
               {"O, right at x ="},
               {"left to MPFR", "roundings of y"}},
              {}};
  for (const SweepResult& sweep : results.sweeps) {
    for (const SweptDomain& d : sweep.domains) {
      where.rows.push_back({quoted(sweep.fit), d.x_format, fmt::format("{}", d.patterns), quoted(d.total.x[0]), quoted(d.total.x[1]), quoted(d.oracle.x[0]),
                            quoted(d.oracle.x[1]), fmt::format("{}", d.oracle_decisions)});
    }
  }
  if (!where.rows.empty()) section.blocks.push_back(std::move(where));
  return section;
}

Section forward_section(const Results& results) {
  Section section{"Forward", {}};
  if (results.sweeps.empty()) {
    section.blocks.push_back(nothing("The forward's accuracy", validate_command("f32")));
    return section;
  }
  Table accuracy{"Accuracy of the forward y against the exact f(x), in ulp of the format of y; y other than the correctly rounded f(x) are counted.",
                 "./outgrad validate --activation NAME --format FORMAT",
                 {words("forward"),
                  words("y in"),
                  words("every x in"),
                  {"|x - x*| <= 0.1", "ulp"},
                  {"elsewhere", "ulp, tail and subnormals too"},
                  {"not correctly rounded"},
                  {"of finite x"},
                  {"wrong masks"},
                  {"wrong NaN, infinities"}},
                 {}};
  Table foreign{"T when y comes from another forward, that is off by so much before it is stored: near the minimum, where g is steepest in y.",
                "./outgrad validate --activation NAME --format FORMAT",
                {words("y in"), words("every x in")},
                {}};
  for (const SweepResult& sweep : results.sweeps) {
    if (&sweep != results.sweep_of(sweep.format)) continue;  // other fits have the same forward, and other activations have none
    for (const SweptDomain& d : sweep.domains) {
      accuracy.rows.push_back({quoted(sweep.forward), sweep.format, d.x_format, rounded_up(d.near_ulp, 4), rounded_up(d.far_ulp, 4),
                               fmt::format("{}", d.misrounded), fmt::format("{}", d.finite), fmt::format("{}", d.wrong_mask),
                               fmt::format("{}", d.wrong_special)});
      // The columns are those of the first sweep. A domain that has other forwards is left out of the table.
      if (foreign.columns.size() == 2) {
        for (const auto& [name, error] : d.foreign) foreign.columns.push_back({quoted(name), "T", false});
      }
      std::vector<Cell> row{sweep.format, d.x_format};
      for (const auto& [name, error] : d.foreign) row.emplace_back(three_digits_up(error));
      if (row.size() == foreign.columns.size()) foreign.rows.push_back(std::move(row));
    }
  }
  section.blocks.push_back(std::move(accuracy));
  section.blocks.push_back(std::move(foreign));
  return section;
}

}  // namespace outgrad::validation
