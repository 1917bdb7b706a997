// Sections of the report, each from one kind of result.
#include "validation/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>

#include "validation/targets.h"

namespace outgrad::validation {

using namespace page;

namespace {

constexpr double kXStar = -0.7517915247;  // where the plots mark the minimum

std::string scientific(double v) { return std::isfinite(v) ? fmt::format("{:.3g}", v) : std::isnan(v) ? "nan" : "inf"; }
std::string error_text(double bound) { return fmt::format("{} = {}", scientific(bound), power_of_two(bound)); }

/// A column of words.
Column words(const char* name) { return {name, "", true}; }

Tone tone_of(RequirementVerdict verdict) {
  switch (verdict) {
    case RequirementVerdict::pass:
      return Tone::good;
    case RequirementVerdict::fail:
      return Tone::bad;
    default:
      return Tone::muted;
  }
}

Paragraph nothing(const std::string& what, const std::string& command) {
  return {what + ": not measured; `" + command + "` makes it.", Tone::muted};
}

// ---- requirements ---------------------------------------------------------------------------------------------------

Section requirements_section(const std::vector<Requirement>& rows) {
  Table table{
      "What must hold, format by format. Figures are upper bounds and rounded up; \"certified\" is proved by ball arithmetic and stands in "
      "the header, \"exhaustive\" and \"counted\" are over every bit pattern of x.",
      "",
      {words("format"), words("requirement"), {"at most", ""}, {"found", ""}, words("verdict"), words("established"), words("made by")},
      {}};
  for (const Requirement& row : rows) {
    table.rows.push_back({row.format,
                          row.quantity,
                          row.limit ? figure(*row.limit, row.kind) : "-",
                          row.value ? figure(*row.value, row.kind) : "-",
                          {to_string(row.verdict()), tone_of(row.verdict())},
                          row.established,
                          "`" + row.command + "`"});
  }
  return {"Requirements", {std::move(table)}};
}

// ---- errors, kept apart ---------------------------------------------------------------------------------------------

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

/// Errors of g weighed by how often x occurs; empty if no sweep has them.
Table weighted_table(const Results& results) {
  Table table{
      "How often: errors of g over x of a distribution, each bit pattern weighed by the probability that x rounds to it. The share is that of x "
      "whose stored value leaves f' uncertain by at least half of max O.",
      "./outgrad validate --format FORMAT --activations notebooks_data/activations/all-MiniLM-L6-v2.json",
      {words("fit"), words("y in"), words("every x in"), words("x of"), {"rms"}, {"bias", "mean signed error"}, {"max", "of nearly all x"},
       {"share in the worst codes"}},
      {}};
  for (const std::vector<SweepResult>* sweeps : {&results.sweeps, &results.foreign}) {
    for (const SweepResult& sweep : *sweeps) {
      for (const SweptDomain& d : sweep.domains) {
        for (const WeightedErrors& w : d.under) {
          table.rows.push_back({quoted(sweep.fit), sweep.format, d.x_format, quoted(w.x), scientific(w.rms), scientific(w.bias), scientific(w.most),
                                fmt::format("{:.2g}%", 100 * w.share)});
        }
      }
    }
  }
  return table;
}

Section errors_section(const Results& results) {
  Section section{"Errors, kept apart", {}};
  section.blocks.push_back(
      Table{"What they are: absolute errors of g = f'(x), a pure number between -0.13 and 1.13.",
            "",
            {words("error"), words("what"), words("how")},
            {{"A", "the polynomials against the exact g", "certified: ball arithmetic, Taylor models in x"},
             {"K", "the constants of the coordinate s = sqrt(y - y_c) against the exact y*", "certified"},
             {"B", "rounding of the fp32 operations that run", "certified"},
             {"C", "an exact g at the stored y against f'(x): what storing y costs", "exhaustive"},
             {"T", "the kernel's g at the stored y against f'(x): all of the above together; T_dx the same for dx at dy = 1", "exhaustive"},
             {"O", "the least T that any function of the stored (y, mask) can have: the physical limit", "exhaustive"},
             {"R", "largest distance of the kernel's g from the middle of what the stored (y, mask) leaves possible", "exhaustive"}}});
  Table table{
      "A, K, B, C, T, O and R of every fit. A, K and B are claims of the header that `./outgrad check` re-proves from its text alone; all "
      "else is over every bit pattern of x, by `./outgrad validate --activation gelu --format FORMAT`, or, over all real x, enumerated from "
      "every stored y by the fit and again by the check. A of the class rel is relative to g.",
      "",
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
              "./outgrad validate --activation gelu --format FORMAT",
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
      where.rows.push_back({quoted(sweep.fit), d.x_format, fmt::format("{}", d.patterns), quoted(d.total.x[0]), quoted(d.total.x[1]),
                            quoted(d.oracle.x[0]), quoted(d.oracle.x[1]), fmt::format("{}", d.oracle_decisions)});
    }
  }
  if (!where.rows.empty()) section.blocks.push_back(std::move(where));
  if (Table weighted = weighted_table(results); !weighted.rows.empty()) section.blocks.push_back(std::move(weighted));
  return section;
}

// ---- error curves ---------------------------------------------------------------------------------------------------

constexpr double kPlotReach = 8;  // of the curves that sweeps leave

/// Signed error. Next to x* the storage of y alone makes errors that would flatten all others: the range is that of the rest, if that is
/// much smaller.
Plot signed_plot(const SweptDomain& domain, const std::string& format, bool& clipped) {
  double most = 0, away = 0;
  std::string data;
  for (const ErrorBin& p : domain.curve) {
    if (std::abs(p.x) > kPlotReach || !std::isfinite(p.least) || !std::isfinite(p.greatest)) continue;
    const double error = std::max(std::abs(p.least), std::abs(p.greatest));
    constexpr double kNearMinimum = 0.25;
    most = std::max(most, error);
    if (std::abs(p.x - kXStar) > kNearMinimum) away = std::max(away, error);
    data += fmt::format("{:.6g} {:.6g} {:.6g} {:.6g}\n", p.x, p.least, p.greatest, p.floor);
  }
  clipped = away > 0 && most > 4 * away;
  const double range = 1.15 * (clipped ? away : most > 0 ? most : 1);
  return {760, 300,
          fmt::format("set xrange [-{0}:{0}]\nset yrange [{1:.6g}:{2:.6g}]\nset format y '%g'\nset xlabel 'x'\n"
                      "set title \"{3}: signed error of g\"\n"
                      "plot data using 1:4 with lines lc rgb '#d98200' lw 1 title 'O, the floor', data using 1:(-$4) with lines lc rgb "
                      "'#d98200' lw 1 notitle, data using 1:2:3 with filledcurves lc rgb '#1f5fa8' title 'least to greatest error'",
                      kPlotReach, -range, range, format),
          data};
}

/// |error| on a logarithmic axis, with what others reach where they evaluate in fp32.
Plot magnitude_plot(const SweptDomain& domain, const std::string& format) {
  const bool single = format == "f32";
  std::string data;
  for (const ErrorBin& p : domain.curve) {
    if (std::abs(p.x) > kPlotReach) continue;
    const double error = std::max(std::abs(p.least), std::abs(p.greatest));
    if (!(error > 0) || !std::isfinite(error)) continue;
    data += fmt::format("{:.6g} {:.6g} {}\n", p.x, error, p.floor > 0 ? fmt::format("{:.6g}", p.floor) : "NaN");
  }
  data += "\n\n";
  for (const TempoError& t : kTempoErrors) {
    data += fmt::format("{} {}\n{} {}\n\n", std::max(t.x_from, -kPlotReach), t.error, t.x_to, t.error);
  }
  std::string plot =
      "plot data index 0 using 1:2 with lines lc rgb '#1f5fa8' lw 1.2 title 'largest |error|', data index 0 using 1:3 with points pt 7 ps "
      "0.15 lc rgb '#d98200' notitle, NaN with lines lc rgb '#d98200' lw 2 title 'O, the floor'";
  if (single) {
    plot += fmt::format(
        ", {} with lines lc rgb '#59636e' dt 2 lw 1.2 title 'PyTorch fp32, from x', data index 1 using 1:2 with lines lc rgb '#b3261e' lw "
        "1.6 title 'Tempo'",
        kPyTorchError);
  }
  return {
      760, 300,
      fmt::format(
          "set xrange [-{0}:{0}]\nset logscale y 2\nset yrange [2**{1}:2**{2}]\nset ytics 2**{5}\nset format y '2^{{%L}}'\nset xlabel 'x'\n"
          "set title \"{3}: largest error of g\"\n{4}",
          kPlotReach, single ? -36 : -30, single ? 4 : -4, format, plot, single ? 8 : 4),
      data};
}

Section curves_section(const Results& results) {
  Section section{"Error curves", {}};
  for (const Targets& targets : kTargets) {
    const std::string format = targets.format;
    const SweepResult* sweep = results.sweep_of(format);
    if (!sweep) {
      section.blocks.push_back(nothing("The error curve of " + format, validate_command(format)));
      continue;
    }
    const SweptDomain& widest = sweep->domains.back();
    bool clipped = false;
    Figure figure{"", validate_command(format), {}};
    figure.plots.push_back(signed_plot(widest, format, clipped));
    figure.plots.push_back(magnitude_plot(widest, format));
    figure.caption = fmt::format(
        "Total error T of {} over every {} x, y stored in {}: least and greatest error in each of {} bins of x.{}", quoted(sweep->fit),
        widest.x_format, format, widest.curve.size(),
        clipped
            ? fmt::format(
                  " In the first plot the peak at x* = -0.7518 is cut off: it reaches {} where no function of the stored y stays under {}.",
                  scientific(widest.total.bound), scientific(widest.oracle.value))
            : "");
    section.blocks.push_back(std::move(figure));
  }
  return section;
}

// ---- forward --------------------------------------------------------------------------------------------------------

Section forward_section(const Results& results) {
  Section section{"Forward", {}};
  if (results.sweeps.empty()) {
    section.blocks.push_back(nothing("The forward's accuracy", validate_command("f32")));
    return section;
  }
  Table accuracy{
      "Accuracy of the forward y against the exact f(x), in ulp of the format of y; y other than the correctly rounded f(x) are counted.",
      "./outgrad validate --activation gelu --format FORMAT",
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
  Table foreign{
      "T when y comes from another forward, that is off by so much before it is stored: near the minimum, where g is steepest in y.",
      "./outgrad validate --activation gelu --format FORMAT",
      {words("y in"), words("every x in")},
      {}};
  for (const SweepResult& sweep : results.sweeps) {
    for (const SweptDomain& d : sweep.domains) {
      accuracy.rows.push_back({quoted(sweep.forward), sweep.format, d.x_format, rounded_up(d.near_ulp, 4), rounded_up(d.far_ulp, 4),
                               fmt::format("{}", d.misrounded), fmt::format("{}", d.finite), fmt::format("{}", d.wrong_mask),
                               fmt::format("{}", d.wrong_special)});
      // The columns are the first sweep's; a domain that has other forwards than these is left out of the table.
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

// ---- coefficients ---------------------------------------------------------------------------------------------------

Section coefficients_section(const Results& results) {
  Section section{"Coefficients and cost", {}};
  Table cost{"Cost of an element: operations are fma + add + mul, beside one square root in the backward; tables are fp32.",
             "./outgrad emit FIT.json",
             {words("header"), words("kind"), words("y in"), {"degree"}, {"rows"}, {"operations"}, {"table", "bytes"}, {"A", "certified"}},
             {}};
  for (const BackwardHeader& h : results.backward) {
    cost.rows.push_back({h.name, "backward", h.format, fmt::format("{}", h.degree), fmt::format("{}", h.rows),
                         fmt::format("{}", h.operations), fmt::format("{}", h.table.values.size() * sizeof(float)),
                         power_of_two(h.bound_a)});
  }
  for (const ForwardHeader& h : results.forward) {
    cost.rows.push_back(
        {h.name, "forward", "all", fmt::format("{} and {}", h.degree, h.tail_degree), fmt::format("{} + {}", h.rows, h.tail_rows), "-",
         fmt::format("{}", (h.table.values.size() + h.tail.values.size()) * sizeof(float)), power_of_two(h.bound_a) + " of f"});
  }
  if (!cost.rows.empty()) section.blocks.push_back(std::move(cost));
  Table distance{
      "How near to optimal a fit is, in its worst piece: the certified error, and the least that any polynomial of this degree can have "
      "there, by de la Vall\u00e9e Poussin's bound. The forward's error is that of its fp32 coefficients, not of its degree.",
      "./outgrad fit SPEC.json",
      {words("fit"),
       {"pieces"},
       words("class"),
       {"certified", "worst piece"},
       {"least possible", "same piece"},
       {"ratio"},
       words("spec sha256")},
      {}};
  for (const FitResult& fit : results.fits) {
    const bool ratio = fit.kind == "backward" && fit.worst_lower_bound > 0;
    distance.rows.push_back({quoted(fit.name), fmt::format("{}", fit.pieces), quoted(fit.accuracy), power_of_two(fit.worst_certified),
                             ratio ? power_of_two(fit.worst_lower_bound) : "-",
                             ratio ? rounded_up(fit.worst_certified / fit.worst_lower_bound, 3) : "-",
                             "`" + quoted(fit.spec_sha256.substr(0, 16)) + "`"});
  }
  if (distance.rows.empty())
    section.blocks.push_back(nothing("Fits", "./outgrad fit SPEC.json"));
  else
    section.blocks.push_back(std::move(distance));
  return section;
}

// ---- what there is to choose from -----------------------------------------------------------------------------------

constexpr double kNone = std::numeric_limits<double>::infinity();

std::string pareto_command(const ParetoResult& front) {
  return fmt::format("./outgrad pareto --activation {} --format {}", quoted(front.activation), front.format);
}

/// Work against the error that tells fits of the format apart: A + B in f32, the regret R where T is enumerated over 16 bits. A colour for
/// each order of table sizes, the bytes beside the point.
Plot pareto_plot(const ParetoResult& front) {
  const bool single = front.format == "f32";
  struct Sizes {
    int most;
    const char *title, *colour;
  };
  constexpr std::array<Sizes, 4> kSizes{{{0, "no table", "#1b7f4d"}, {256, "to 256 bytes", "#1f5fa8"}, {2048, "to 2 KiB", "#d98200"}, {std::numeric_limits<int>::max(), "more", "#b3261e"}}};
  std::string data, plot;
  int below = -1;
  for (size_t k = 0; k < kSizes.size(); ++k) {
    for (const ParetoPointResult& p : front.points) {
      const double error = single ? p.a_plus_b : p.regret;
      if (p.table_bytes > below && p.table_bytes <= kSizes[k].most && error > 0) data += fmt::format("{} {:.6g} {}\n", p.work, error, p.table_bytes);
    }
    data += "NaN NaN NaN\n\n\n";  // a block with no point is a block all the same
    below = kSizes[k].most;
    plot += fmt::format(
        "{0}data index {1} using 1:2 with points pt 7 ps 0.6 lc rgb '{2}' title '{3}', data index {1} using 1:2:3 with labels left offset "
        "0.6,0.3 font ',9' textcolor rgb '{2}' notitle",
        k == 0 ? "plot " : ", ", k, kSizes[k].colour, kSizes[k].title);
  }
  return {430, 300,
          fmt::format("set logscale y 2\nset format y '2^{{%L}}'\nset offsets 1.5, 3, 0, 0\nset xlabel 'work, operations of all kinds' offset 0,0.6\n"
                      "set key outside bottom center horizontal samplen 1 font ',10'\nset title \"{}: {}\"\n{}",
                      front.format, single ? "A + B, certified" : "R, enumerated", plot),
          data};
}

Section pareto_section(const Results& results) {
  Section section{"What to choose from", {}};
  if (results.pareto.empty()) {
    section.blocks.push_back(nothing("Fronts of cost and error", "./outgrad pareto --activation gelu --format bf16"));
    return section;
  }
  section.blocks.push_back(
      Paragraph{"Of the fits of an activation and format these are worth choosing from: each is cheaper or more exact than any other by more "
                "than half a bit of A + B or R, or 1% of T. Work counts every operation from y to g, loads among them, as the evaluator "
                "itself performs them; depth counts those that wait for one another. Every point stands with its specification in the file."});
  // One figure an activation, its formats side by side; the files are in the order of their names.
  std::map<std::string, std::vector<const ParetoResult*>> of_activation;
  for (const ParetoResult& front : results.pareto) of_activation[front.activation].push_back(&front);
  Table ends{"Every front by its ends: the cheapest point and what the best point of each kind reaches.",
             "./outgrad pareto --activation ACTIVATION --format FORMAT",
             {words("activation"), words("format"), {"tried"}, {"points"}, {"work", "least to most"}, {"table bytes", "least to most"}, {"A + B", "least"}, {"T / O", "least"}, {"R", "least"}, words("remark")},
             {}};
  for (const auto& [activation, fronts] : of_activation) {
    Figure figure{quoted(activation) + ": work against error; the number at a point is the bytes of its table.", "./outgrad pareto --activation " + quoted(activation) + " --format FORMAT", {}};
    for (const ParetoResult* front : fronts) {
      double bound = front->points[0].a_plus_b, ratio = kNone, regret = front->points[0].regret;
      int least_bytes = front->points[0].table_bytes, most_bytes = 0, least_work = front->points[0].work, most_work = 0;
      for (const ParetoPointResult& p : front->points) {
        bound = std::min(bound, p.a_plus_b);
        regret = std::min(regret, p.regret);
        if (p.oracle > 0) ratio = std::min(ratio, p.total / p.oracle);
        least_bytes = std::min(least_bytes, p.table_bytes);
        most_bytes = std::max(most_bytes, p.table_bytes);
        least_work = std::min(least_work, p.work);
        most_work = std::max(most_work, p.work);
      }
      const bool enumerated = ratio < kNone;
      ends.rows.push_back({quoted(activation), front->format, fmt::format("{}", front->tried), fmt::format("{}", front->points.size()),
                           fmt::format("{} to {}", least_work, most_work), fmt::format("{} to {}", least_bytes, most_bytes), power_of_two(bound),
                           enumerated ? rounded_up(ratio, 4) : "-", enumerated ? power_of_two(regret) : "-",
                           front->exact ? "g is a polynomial in y: one fit has no error of its own" : ""});
      if (!front->exact && front->points.size() > 1) figure.plots.push_back(pareto_plot(*front));
    }
    if (!figure.plots.empty()) section.blocks.push_back(std::move(figure));
  }
  section.blocks.push_back(std::move(ends));
  for (const ParetoResult& front : results.pareto) {
    if (front.activation != "gelu") continue;
    Table points{fmt::format("The front of gelu in {}, out of {} candidates.", front.format, front.tried),
                 pareto_command(front),
                 {words("fit"), words("class"), {"work"}, {"depth"}, {"fma, add, mul"}, {"table", "bytes"}, {"A + B", "certified"}, {"T / O", "enumerated"}, {"R", "enumerated"}},
                 {}};
    for (const ParetoPointResult& p : front.points) {
      const bool enumerated = p.oracle > 0;
      points.rows.push_back({quoted(p.name), quoted(p.accuracy), fmt::format("{}", p.work), fmt::format("{}", p.depth), fmt::format("{}", p.operations),
                             fmt::format("{}", p.table_bytes), power_of_two(p.a_plus_b), enumerated ? rounded_up(p.total / p.oracle, 4) : "-",
                             enumerated ? power_of_two(p.regret) : "-"});
    }
    section.blocks.push_back(std::move(points));
  }
  return section;
}

// ---- LayerNorm ------------------------------------------------------------------------------------------------------

std::string stability_command(const StabilityFile& file) {
  return fmt::format("./outgrad stability {} --format {}", file.source.empty() ? "--gamma ..." : quoted(shown_path(file.source)),
                     quoted(file.format));
}

std::string source_name(const StabilityFile& file) {
  return file.source.empty() ? "given gamma and beta" : quoted(std::filesystem::path(file.source).filename().string());
}

/// Channels by log10 of rho; the ends of the axis gather what lies beyond, 0 (no beta) and infinity (gamma = 0) too.
Plot rho_plot(const StabilityFile& file) {
  constexpr double kReach = 4, kStep = 0.1;
  constexpr int kBins = static_cast<int>(2 * kReach / kStep);
  std::vector<std::array<int, kChannelClasses.size()>> bins(kBins);
  for (const NormResult& norm : file.norms) {
    for (const ChannelResult& channel : norm.channels) {
      const double place = (std::log10(channel.rho) + kReach) / kStep;  // -inf for 0
      const auto bin = static_cast<size_t>(std::clamp(place, 0.0, kBins - 1.0));
      const auto of_class = std::find(kChannelClasses.begin(), kChannelClasses.end(), channel.channel_class) - kChannelClasses.begin();
      ++bins[bin][static_cast<size_t>(of_class)];
    }
  }
  std::string data;
  for (int i = 0; i < kBins; ++i) {
    const auto& [stable, degraded, unstable, zero] = bins[static_cast<size_t>(i)];
    data += fmt::format("{:.3g} {} {} {}\n", std::pow(10.0, -kReach + (i + 0.5) * kStep), stable + degraded + unstable + zero,
                        degraded + unstable + zero, unstable + zero);
  }
  // Counts stack: each class is drawn over the sum of the ones before it, from the bottom of the axis.
  return {760, 260,
          "set logscale x 10\nset logscale y 10\nset yrange [0.7:*]\nset xrange [1e-4:1e4]\nset format x '10^{%L}'\nset xlabel 'rho = "
          "|beta / gamma|'\nset ylabel 'channels'\n"
          "half = 10**0.045\n"
          "plot data using 1:2:($1/half):($1*half):(0.7):2 with boxxyerror lc rgb '#7aa6d6' title 'stable', data using "
          "1:($3>0?$3:NaN):($1/half):($1*half):(0.7):3 with boxxyerror lc rgb '#d98200' title 'degraded', data using "
          "1:($4>0?$4:NaN):($1/half):($1*half):(0.7):4 with boxxyerror lc rgb '#b3261e' title 'unstable or gamma = 0'",
          data};
}

Table worst_channels(const StabilityFile& file) {
  constexpr size_t kShown = 8;
  std::vector<const ChannelResult*> channels;
  for (const NormResult& norm : file.norms) {
    for (const ChannelResult& channel : norm.channels) channels.push_back(&channel);
  }
  const size_t shown = std::min(kShown, channels.size());
  std::partial_sort(channels.begin(), channels.begin() + static_cast<std::ptrdiff_t>(shown), channels.end(),
                    [](const ChannelResult* a, const ChannelResult* b) { return a->bits_lost > b->bits_lost; });
  Table table{fmt::format("The worst channels of {} with y in {}: error bounds of rows whose |x\u0302| stays under {:g}.",
                          source_name(file), quoted(file.format), file.x_hat_max),
              stability_command(file),
              {words("layer"),
               {"channel"},
               {"gamma"},
               {"beta"},
               {"rho"},
               {"bits lost"},
               {"error of x\u0302", "bound"},
               {"dgamma", "bound, a row"},
               words("class")},
              {}};
  for (size_t k = 0; k < shown; ++k) {
    const ChannelResult& c = *channels[k];
    table.rows.push_back({quoted(c.layer),
                          fmt::format("{}", c.index),
                          scientific(c.gamma),
                          scientific(c.beta),
                          scientific(c.rho),
                          std::isfinite(c.bits_lost) ? fmt::format("{:.1f}", c.bits_lost) : "all",
                          scientific(c.x_hat),
                          scientific(c.dgamma),
                          {c.channel_class, c.channel_class == "stable"     ? Tone::normal
                                            : c.channel_class == "degraded" ? Tone::muted
                                                                            : Tone::bad}});
  }
  return table;
}

Section layernorm_section(const Results& results) {
  Section section{"LayerNorm from the output", {}};
  if (results.stability.empty()) {
    section.blocks.push_back(nothing("Channels of a checkpoint", "./outgrad stability CHECKPOINT"));
    return section;
  }
  section.blocks.push_back(
      Paragraph{"The backward pass takes x\u0302 = (y - beta) / gamma from the stored y, so a channel's rho = |beta / gamma| decides how "
                "much of it is left. A channel is stable if it loses at most one bit, degraded beyond that, unstable if the storage error "
                "of x\u0302 exceeds tau. The policy from_output reads every channel from y; side_buffer keeps x\u0302 of the unstable ones "
                "in fp32. Nothing is clamped."});
  for (const StabilityFile& file : results.stability) {
    Table layers{
        fmt::format("{}, y in {}; rows with |mean| rstd up to {:g}, |dy| up to {:g}, eps = {:g}, tau = {:g}. Error of dx: certified, rms "
                    "over a row, relative to rstd max|dy| rms(gamma). Error of dgamma: an estimate of the relative L2 error.",
                    source_name(file), quoted(file.format), file.mean_ratio, file.dy_max, file.eps, file.tau),
        stability_command(file),
        {words("layer"),
         {"N"},
         {"stable"},
         {"degraded"},
         {"unstable"},
         {"gamma = 0"},
         {"rho", "median"},
         {"rho", "largest"},
         {"dx", "all from y"},
         {"dx", "by policy"},
         {"dgamma", "estimate"},
         words("policy"),
         {"side buffer", "bytes a row"}},
        {}};
    for (const NormResult& n : file.norms) {
      std::vector<Cell> row{quoted(n.name), fmt::format("{}", n.columns)};
      for (const int count : n.classes) row.emplace_back(fmt::format("{}", count));
      for (const double v : {n.rho_median, n.rho_max, n.dx_from_output, n.dx_recommended, n.dgamma_estimate})
        row.emplace_back(scientific(v));
      row.emplace_back(quoted(n.policy));
      row.emplace_back(fmt::format("{}", n.side_buffer_bytes));
      layers.rows.push_back(std::move(row));
    }
    section.blocks.push_back(
        Figure{fmt::format("Channels of {} by rho, classed for y in {}; the first and the last bar gather what lies beyond.",
                           source_name(file), quoted(file.format)),
               stability_command(file),
               {rho_plot(file)}});
    section.blocks.push_back(std::move(layers));
    section.blocks.push_back(worst_channels(file));
  }
  return section;
}

// ---- tuning ---------------------------------------------------------------------------------------------------------

/// The ulp class is the default of a 16-bit format where it costs at most this share more time: who then goes without the tails gains nothing.
constexpr double kDefaultClassCost = 0.1;

/// Whether the timings of a format make the class ulp its default, in a sentence.
std::string default_class(const TuningResult& t) {
  const auto ulp = std::find_if(t.fits.begin(), t.fits.end(), [](const FitSpeed& f) { return f.accuracy.starts_with("ulp"); });
  if (ulp == t.fits.end()) return fmt::format("{}: the class ulp was not timed.", t.format);
  const double least = 1 / (1 + kDefaultClassCost);
  const std::string measured = fmt::format("{}: the class ulp (`{}`) runs at {:.3f} [{:.3f}, {:.3f}] of the default's speed", t.format, quoted(ulp->name), ulp->speedup, ulp->low, ulp->high);
  if (ulp->high < least) return measured + fmt::format("; at {:.3f} or more it would be the default, so the class abs stays it.", least);
  if (ulp->low >= least) return measured + fmt::format(", at least {:.3f}: it can be the default here.", least);
  return measured + fmt::format("; whether that is the {:.3f} that would make it the default is undecided.", least);
}

Section tuning_section(const Results& results) {
  Section section{"Tuning", {}};
  if (results.tuning.empty()) {
    section.blocks.push_back(nothing("Kernels of this machine", "./outgrad tune"));
    return section;
  }
  Table winners{
      "Winners of the latest run. Every candidate was accepted by bit equality with the reference before it was timed; the ceiling is a "
      "triad (backward) or a copy (forward) over arrays of the same size, timed in the same rounds.",
      "./outgrad tune",
      {words("kernel"),
       words("format"),
       words("size"),
       words("winner"),
       {"GB/s"},
       {"share of ceiling"},
       words("ceiling"),
       {"against the default", "ratio of speeds, interval"},
       {"timed"},
       {"rejected"}},
      {}};
  Table rejections{"Rejected candidates, with the stage they did not survive.",
                   "./outgrad tune",
                   {words("kernel"), words("format"), words("variant"), words("stage"), words("reason"), words("detail")},
                   {}};
  for (const TuningResult& t : results.tuning) {
    const bool won = !t.winner.empty();
    const std::string ratio =
        !won      ? "-"
        : !t.gain ? "the default, no gain"
                  : fmt::format("{:.3f} [{:.3f}, {:.3f}] at {:g}%", t.speedup, t.speedup_low, t.speedup_high, 100 * t.confidence);
    winners.rows.push_back({quoted(t.kernel), quoted(t.format), quoted(t.size), won ? "`" + quoted(t.winner) + "`" : "none",
                            won ? fmt::format("{:.1f}", t.gb_per_s) : "-", won ? fmt::format("{:.0f}%", 100 * t.share) : "-",
                            won ? quoted(t.ceiling) : "-", ratio, fmt::format("{}", t.timed), fmt::format("{}", t.rejected.size())});
    for (const Rejection& r : t.rejected) {
      rejections.rows.push_back(
          {quoted(t.kernel), quoted(t.format), "`" + quoted(r.variant) + "`", quoted(r.stage), quoted(r.reason), quoted(r.detail)});
    }
  }
  const TuningResult& any = results.tuning.front();
  section.blocks.push_back(
      Paragraph{fmt::format("{}, {} threads; {}. Timings are of this machine and moment, and no verdict depends on them.",
                            quoted(any.device), any.threads, quoted(any.compiler))});
  section.blocks.push_back(std::move(winners));
  Table fits{"Certified fits, each in its fastest timed variant: what an accuracy class costs.",
             "./outgrad tune",
             {words("kernel"), words("format"), words("fit"), words("class"), {"speed", "against the default, interval"}},
             {}};
  std::string classes;
  for (const TuningResult& t : results.tuning) {
    for (const FitSpeed& f : t.fits) {
      fits.rows.push_back({quoted(t.kernel), quoted(t.format), "`" + quoted(f.name) + "`", f.accuracy.empty() ? "-" : quoted(f.accuracy),
                           fmt::format("{:.3f} [{:.3f}, {:.3f}]", f.speedup, f.low, f.high)});
    }
    if (t.kernel == "gelu_backward" && t.format != "f32" && !t.fits.empty()) classes += (classes.empty() ? "" : " ") + default_class(t);
  }
  if (!fits.rows.empty()) section.blocks.push_back(std::move(fits));
  if (!classes.empty()) section.blocks.push_back(Paragraph{"The default class. " + classes});
  if (!rejections.rows.empty())
    section.blocks.push_back(std::move(rejections));
  else
    section.blocks.push_back(Paragraph{"No candidate was rejected."});
  return section;
}

// ---- what others have -----------------------------------------------------------------------------------------------

/// Greatest |error| of a curve over the bins whose middle lies in [from, to].
double greatest_within(const SweptDomain& domain, double from, double to) {
  double greatest = 0;
  for (const ErrorBin& p : domain.curve) {
    if (p.x >= from && p.x <= to) greatest = std::max({greatest, std::abs(p.least), std::abs(p.greatest)});
  }
  return greatest;
}

/// Published coefficients through the sweep that ours go through.
Table audit_table(const Results& results) {
  Table audit{
      "Published coefficients, as published, through the same exhaustive sweep as ours: every bit pattern of x, the same exact derivative, the "
      "same T, O and R. O is the least T of any function of what the backward pass is given: (y, bit), or a code of x.",
      "./outgrad validate --foreign notebooks_data/foreign/NAME.json --format FORMAT",
      {words("coefficients"),
       words("activation"),
       words("backward is given"),
       words("format"),
       words("every x in"),
       {"T", "exhaustive"},
       {"at x ="},
       {"O", "exhaustive"},
       {"R", "exhaustive"},
       {"T / O", "exhaustive"},
       {"rms T", "x in [-8, 8)"},
       {"wrong NaN, infinities"},
       {"T of ours", "same x and format"}},
      {}};
  for (const SweepResult& sweep : results.foreign) {
    const SweepResult* const ours = sweep.activation == "gelu" ? results.sweep_of(sweep.format) : nullptr;
    for (const SweptDomain& d : sweep.domains) {
      Cell same("not swept", Tone::muted);
      for (const SweptDomain& o : ours ? ours->domains : std::vector<SweptDomain>{}) {
        if (o.x_format == d.x_format) same = Cell(scientific(o.total.bound));
      }
      audit.rows.push_back({quoted(sweep.fit), sweep.activation, sweep.stored, sweep.format, d.x_format, scientific(d.total.bound),
                            quoted(d.total.worst()), scientific(d.oracle.value), scientific(d.regret.bound), fmt::format("{:.4g}", d.ratio),
                            scientific(d.rms), fmt::format("{}", d.wrong_special), same});
    }
  }
  return audit;
}

Section baselines_section(const Results& results) {
  Section section{"Beside others", {}};
  const SweepResult* sweep = results.sweep_of("f32");
  Table tempo{
      "Tempo's GELU backward from the output (UofT-EcoSystem/Tempo, commit 17e1a0b, `src/inplace_gelu/gelu_kernel.cu`): its published "
      "polynomials, evaluated in fp32 as published, against the exact derivative, measured once for this project; ours over the same x, by "
      "`" +
          validate_command("f32") + "`.",
      "",
      {{"x from"}, {"to"}, {"Tempo", "largest error"}, {"outgrad f32", "largest T"}, words("cause of theirs")},
      {}};
  for (const TempoError& t : kTempoErrors) {
    tempo.rows.push_back(
        {fmt::format("{:g}", t.x_from), fmt::format("{:g}", t.x_to), scientific(t.error),
         sweep ? Cell(scientific(greatest_within(sweep->domains.back(), t.x_from, t.x_to))) : Cell("not measured", Tone::muted), t.cause});
  }
  section.blocks.push_back(std::move(tempo));
  if (!results.foreign.empty()) section.blocks.push_back(audit_table(results));
  std::string ours = "not measured";
  if (const BackwardHeader* header = results.backward_named(sweep ? sweep->fit : "gelu_f32"))
    ours = error_text(header->bound_a + header->bound_b);
  section.blocks.push_back(
      Paragraph{fmt::format("PyTorch's own fp32 GELU backward reads x, not y, and is off by up to {} (measured once against the exact "
                            "derivative). What compares with it is the error of our fit and evaluation, A + B = {}, certified. What "
                            "storing y in place of x adds is bounded from below by O, for every method.",
                            error_text(kPyTorchError), ours)});
  return section;
}

Section inputs_section(const Results& results) {
  Section section{"Inputs", {}};
  Table files{"What this report was made from, by `./outgrad report`.", "", {words("kind"), words("file")}, {}};
  const auto list = [&](const char* kind, const auto& items) {
    for (const auto& item : items) {
      if (files.rows.empty() || files.rows.back()[1].text != quoted(item.file)) files.rows.push_back({kind, quoted(item.file)});
    }
  };
  list("header", results.backward);
  list("header", results.forward);
  list("fit", results.fits);
  list("sweep", results.sweeps);
  list("audit", results.foreign);
  list("stability", results.stability);
  list("front", results.pareto);
  list("tuning", results.tuning);
  section.blocks.push_back(std::move(files));
  for (const std::string& warning : results.warnings) section.blocks.push_back(Paragraph{"Warning: " + quoted(warning), Tone::bad});
  return section;
}

}  // namespace

Document compose(const Results& results, const std::vector<Requirement>& rows) {
  std::map<RequirementVerdict, int> count;
  for (const Requirement& row : rows) ++count[row.verdict()];
  const int judged = count[RequirementVerdict::pass] + count[RequirementVerdict::fail], missing = count[RequirementVerdict::not_measured];
  Document document{"outgrad: accuracy report",
                    fmt::format("GELU gradients from the output y and one bit, with proven error bounds. {} of {} requirements hold{}.",
                                count[RequirementVerdict::pass], judged, missing ? fmt::format("; {} were not measured", missing) : ""),
                    {}};
  document.sections = {requirements_section(rows), errors_section(results),       curves_section(results),
                       forward_section(results),   coefficients_section(results), pareto_section(results),
                       layernorm_section(results), tuning_section(results),       baselines_section(results), inputs_section(results)};
  return document;
}

}  // namespace outgrad::validation
