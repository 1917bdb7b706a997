// What one can choose from: fronts of cost and error, and how near to optimal the fits are.
#include "validation/report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace outgrad::validation {

using namespace page;

namespace {
constexpr double kNone = std::numeric_limits<double>::infinity();

std::string pareto_command(const ParetoResult& front) {
  return fmt::format("./outgrad pareto --activation {} --format {}", quoted(front.activation), front.format);
}

/// Work against the error that distinguishes fits of the format: A + B in f32, and the regret R where T is enumerated
/// over 16 bits. Each order of table sizes has a colour, and the bytes stand beside the point.
Plot pareto_plot(const ParetoResult& front) {
  const bool single = front.format == "f32";
  struct Sizes {
    int most;
    const char *title, *colour;
  };
  constexpr std::array<Sizes, 4> kSizes{
      {{0, "no table", "green"}, {256, "to 256 bytes", "blue"}, {2048, "to 2 KiB", "orange"}, {std::numeric_limits<int>::max(), "more", "red"}}};
  Plot plot{fmt::format("{} in {}: work in operations against {}", quoted(front.activation), front.format, single ? "A + B" : "the regret R"),
            fmt::format("{}: {}", front.format, single ? "A + B, certified" : "R, enumerated"),
            {.label = "work, operations of all kinds"},
            {.log = 2},
            {}};
  int below = -1;
  for (const Sizes& sizes : kSizes) {
    Series& points = plot.series.emplace_back(Series{sizes.title, sizes.colour, "dots"});
    for (const ParetoPointResult& p : front.points) {
      const double error = single ? p.a_plus_b : p.regret;
      if (!(p.table_bytes > below && p.table_bytes <= sizes.most && error > 0)) continue;
      points.add(p.work, error);
      points.notes.push_back(fmt::format("{}", p.table_bytes));
    }
    below = sizes.most;
  }
  return plot;
}

}  // namespace

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
  // One figure for each activation, with its formats side by side. The files are in the order of their names.
  std::map<std::string, std::vector<const ParetoResult*>> of_activation;
  for (const ParetoResult& front : results.pareto) of_activation[front.activation].push_back(&front);
  Table ends{"Every front by its ends: the cheapest point and what the best point of each kind reaches.",
             "./outgrad pareto --activation ACTIVATION --format FORMAT",
             {words("activation"),
              words("format"),
              {"tried"},
              {"points"},
              {"work", "least to most"},
              {"table bytes", "least to most"},
              {"A + B", "least"},
              {"T / O", "least"},
              {"R", "least"},
              words("remark")},
             {}};
  for (const auto& [activation, fronts] : of_activation) {
    Figure figure{quoted(activation) + ": work against error; the number at a point is the bytes of its table.",
                  "./outgrad pareto --activation " + quoted(activation) + " --format FORMAT",
                  {}};
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
                 {words("fit"),
                  words("class"),
                  {"work"},
                  {"depth"},
                  {"fma, add, mul"},
                  {"table", "bytes"},
                  {"A + B", "certified"},
                  {"T / O", "enumerated"},
                  {"R", "enumerated"}},
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

namespace {

/// If g is almost a polynomial of the fit's degree, what is left is rounding, and the ratio says nothing. A few digits
/// of it are enough then.
std::string ratio_text(double ratio) {
  constexpr double kReadable = 100;
  return ratio < kReadable ? rounded_up(ratio, 3) : three_digits_up(ratio);
}

}  // namespace

namespace {

/// The witnesses of the default fits' bounds. Every header's bounds are the fitter's, and `check` proves them again.
Table who_proves(const Results& results) {
  Table table{
      "Who proves these bounds: the fitter and `check` all of them, by ball arithmetic; Coq, as theorems about the exact functions and the deployed "
      "operations, what stands here. Files accepted, of those asked for, and the greatest claim among them: a file for A of each row, one for each case "
      "of a row's B, and for T those that run the kernels at every number of the format.",
      kProofCommand,
      {words("fit"), {"A, rows"}, {"A"}, {"B, cases"}, {"B"}, {"T, files"}, {"T"}, {"assumed", "axioms and operations"}, {"processor", "s"}, words("Coq")},
      {}};
  for (const CoqProof& proof : results.proofs) {
    std::vector<Cell> row{quoted(proof.name)};
    for (const CoqBound& bound : proof.bounds) {
      const bool asked = bound.files > 0;
      row.emplace_back(asked ? fmt::format("{} of {}", bound.proven, bound.files) : "-", bound.proven < bound.files ? Tone::bad : Tone::normal);
      row.emplace_back(asked ? power_of_two(bound.claim) : "-");
    }
    row.emplace_back(proof.unlisted > 0 ? fmt::format("{}, {} beyond the list", proof.assumptions, proof.unlisted) : fmt::format("{}", proof.assumptions),
                     proof.unlisted > 0 ? Tone::bad : Tone::normal);
    row.emplace_back(fmt::format("{:.0f}", proof.cpu_s));
    row.emplace_back(quoted(proof.coq));
    table.rows.push_back(std::move(row));
  }
  return table;
}

}  // namespace

Section coefficients_section(const Results& results) {
  Section section{"Coefficients and cost", {}};
  Table cost{"Cost of an element: operations are fma + add + mul, beside one square root in the backward; tables are fp32.",
             "./outgrad emit FIT.json",
             {words("header"), words("kind"), words("y in"), {"degree"}, {"rows"}, {"operations"}, {"table", "bytes"}, {"A", "certified"}},
             {}};
  for (const BackwardHeader& h : results.backward) {
    cost.rows.push_back({h.name, "backward", h.format, fmt::format("{}", h.degree), fmt::format("{}", h.rows), fmt::format("{}", h.operations),
                         fmt::format("{}", h.table.values.size() * sizeof(float)), power_of_two(h.bound_a)});
  }
  for (const ForwardHeader& h : results.forward) {
    cost.rows.push_back({h.name, "forward", "all", fmt::format("{} and {}", h.degree, h.tail_degree), fmt::format("{} + {}", h.rows, h.tail_rows), "-",
                         fmt::format("{}", (h.table.values.size() + h.tail.values.size()) * sizeof(float)), power_of_two(h.bound_a) + " of f"});
  }
  for (const RoundedForwardHeader& h : results.rounded) {
    cost.rows.push_back({h.name, "forward", h.format, "4", fmt::format("{}", h.rows), "-", fmt::format("{}", h.table.values.size() * sizeof(float)),
                         power_of_two(h.bound_a) + " of f, " + power_of_two(h.bound_core) + " in the core"});
  }
  if (!cost.rows.empty()) section.blocks.push_back(std::move(cost));
  Table distance{
      "How near to optimal a fit is, in its worst piece: the certified error, and the least that any polynomial of this degree can have "
      "there, by de la Vall\u00e9e Poussin's bound. The forward's error is that of its fp32 coefficients, not of its degree.",
      "./outgrad fit SPEC.json",
      {words("fit"), {"pieces"}, words("class"), {"certified", "worst piece"}, {"least possible", "same piece"}, {"ratio"}, words("spec sha256")},
      {}};
  for (const FitResult& fit : results.fits) {
    const bool ratio = fit.kind == "backward" && fit.worst_lower_bound > 0;
    distance.rows.push_back({quoted(fit.name), fmt::format("{}", fit.pieces), quoted(fit.accuracy), power_of_two(fit.worst_certified),
                             ratio ? power_of_two(fit.worst_lower_bound) : "-", ratio ? ratio_text(fit.worst_certified / fit.worst_lower_bound) : "-",
                             "`" + quoted(fit.spec_sha256.substr(0, 16)) + "`"});
  }
  if (distance.rows.empty())
    section.blocks.push_back(nothing("Fits", "./outgrad fit SPEC.json"));
  else
    section.blocks.push_back(std::move(distance));
  if (!results.proofs.empty()) section.blocks.push_back(who_proves(results));
  return section;
}

}  // namespace outgrad::validation
