// Error curves: over x, over y, and next to the branch point.
#include "validation/report/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "validation/sweep/sweep.h"
#include "validation/sweep/targets.h"

namespace outgrad::validation {

using namespace page;

namespace {

constexpr size_t kMostPoints = 500;     // more would share a pixel
constexpr double kNearMinimum = 0.25;  // of x*: where the storage of y alone makes errors that would flatten all others

/// GELU, for the place of a bin on the axis of y.
double gelu(double x) { return x * 0.5 * std::erfc(-x * std::sqrt(0.5)); }

double magnitude(const ErrorBin& bin) { return std::max(std::abs(bin.least), std::abs(bin.greatest)); }

bool drawable(const ErrorBin& bin) { return std::abs(bin.x) <= kCurveReach && std::isfinite(bin.least) && std::isfinite(bin.greatest); }

/// Neighbours joined until there are at most kMostPoints: least and greatest stay least and greatest.
std::vector<ErrorBin> thinned(const std::vector<ErrorBin>& curve) {
  const size_t join = (curve.size() + kMostPoints - 1) / kMostPoints;
  std::vector<ErrorBin> thin;
  for (size_t i = 0; i < curve.size(); i += join) {
    ErrorBin bin = curve[i];
    const size_t end = std::min(i + join, curve.size());
    for (size_t k = i + 1; k < end; ++k) {
      bin.least = std::min(bin.least, curve[k].least);
      bin.greatest = std::max(bin.greatest, curve[k].greatest);
      bin.floor = std::max(bin.floor, curve[k].floor);
    }
    bin.x = (curve[i].x + curve[end - 1].x) / 2;
    thin.push_back(bin);
  }
  return thin;
}

std::string positive(double v) { return v > 0 && std::isfinite(v) ? fmt::format("{:.6g}", v) : "NaN"; }

/// Signed error; the range is that of the errors away from x*, if that is much smaller.
Plot signed_plot(const SweptDomain& domain, const std::string& format, bool& clipped) {
  double most = 0, away = 0;
  std::string data;
  for (const ErrorBin& p : thinned(domain.curve)) {
    if (!drawable(p)) continue;
    most = std::max(most, magnitude(p));
    if (std::abs(p.x - kXStar) > kNearMinimum) away = std::max(away, magnitude(p));
    data += fmt::format("{:.6g} {:.6g} {:.6g} {:.6g}\n", p.x, p.least, p.greatest, p.floor);
  }
  clipped = away > 0 && most > 4 * away;
  const double range = 1.15 * (clipped ? away : most > 0 ? most : 1);
  return {fmt::format("{}: least and greatest signed error of g over x from -8 to 8, and the floor O on either side", format),
          fmt::format("set xrange [-{0}:{0}]\nset yrange [{1:.6g}:{2:.6g}]\nset format y '%g'\nset xlabel 'x'\n"
                      "set title \"{3}: signed error of g over x\"\n"
                      "plot data using 1:2:3 with filledcurves lc rgb blue title 'least to greatest error', data using 1:4 with lines lc "
                      "rgb orange lw 1 "
                      "title 'O, the floor', data using 1:(-$4) with lines lc rgb orange lw 1 notitle",
                      kCurveReach, -range, range, format),
          data};
}

/// |error| on a logarithmic axis over x.
Plot magnitude_plot(const SweptDomain& domain, const std::string& format) {
  const bool single = format == "f32";
  std::string data;
  for (const ErrorBin& p : thinned(domain.curve)) {
    if (drawable(p)) data += fmt::format("{:.6g} {} {}\n", p.x, positive(magnitude(p)), positive(p.floor));
  }
  std::string plot =
      "plot data using 1:2 with lines lc rgb blue lw 1.2 title 'largest |error|', data using 1:3 with lines lc rgb orange lw 1 title 'O, "
      "the floor'";
  if (domain.from_x) plot += fmt::format(", {} with lines lc rgb grey dt 2 lw 1.2 title 'PyTorch fp32, from x'", *domain.from_x);
  return {
      fmt::format("{}: largest error of g over x from -8 to 8 on a logarithmic axis, beside the floor O", format),
      fmt::format(
          "set xrange [-{0}:{0}]\nset logscale y 2\nset yrange [2**{1}:2**{2}]\nset ytics 2**{5}\nset format y '2^{{%L}}'\nset xlabel 'x'\n"
          "set title \"{3}: largest error of g over x\"\n{4}",
          kCurveReach, single ? -36 : -30, single ? -12 : -4, format, plot, 4),
      data};
}

/// The same over y: two branches, one for each value of the mask, that meet at y*.
Plot output_plot(const SweptDomain& domain, const std::string& format) {
  constexpr double kMostY = 1;
  const bool single = format == "f32";
  std::string data;
  for (const bool right : {false, true}) {
    for (const ErrorBin& p : domain.curve) {
      if (drawable(p) && (p.x >= kXStar) == right && gelu(p.x) <= kMostY)
        data += fmt::format("{:.6g} {} {}\n", gelu(p.x), positive(magnitude(p)), positive(p.floor));
    }
    data += "NaN NaN NaN\n\n\n";
  }
  return {
      fmt::format("{}: largest error of g over y, the left branch from y* to 0 and the right one from y* on, beside the floor O", format),
      fmt::format(
          "set xrange [-0.2:{0}]\nset logscale y 2\nset yrange [2**{1}:2**{2}]\nset ytics 2**4\nset format y '2^{{%L}}'\nset xlabel 'y'\n"
          "set title \"{3}: largest error of g over y\"\n"
          "plot data index 1 using 1:2 with lines lc rgb blue lw 1.2 title 'x >= x*', data index 0 using 1:2 with lines lc rgb violet lw "
          "1.2 title "
          "'x < x*', data using 1:3 with points pt 7 ps 0.15 lc rgb orange notitle, NaN with lines lc rgb orange lw 2 title 'O, the floor'",
          kMostY, single ? -36 : -30, single ? -12 : -4, format),
      data};
}

/// The branch point: |error| against the distance of y from y*, both logarithmic. g ~ sqrt(y - y*) there, so that the floor falls as 1 /
/// sqrt of the distance.
Plot branch_plot(const SweptDomain& domain, const std::string& format) {
  constexpr double kZoom = 0.4;  // of x about x*
  std::string data;
  double least = 1, most = 0;
  for (const bool right : {false, true}) {
    for (const ErrorBin& p : domain.curve) {
      const double distance = gelu(p.x) - kYStar;
      if (!drawable(p) || (p.x >= kXStar) != right || std::abs(p.x - kXStar) > kZoom || !(distance > 0)) continue;
      if (magnitude(p) > 0) least = std::min(least, magnitude(p)), most = std::max(most, magnitude(p));
      data += fmt::format("{:.6g} {} {}\n", distance, positive(magnitude(p)), positive(p.floor));
    }
    data += "NaN NaN NaN\n\n\n";
  }
  if (!(most > 0)) least = 0.5, most = 1;
  return {fmt::format(
              "{}: largest error of g next to the branch point, over the distance of y from y*, both axes logarithmic, beside the floor O",
              format),
          fmt::format("set logscale x 10\nset logscale y 2\nset yrange [{0:.6g}:{1:.6g}]\nset format x '10^{{%L}}'\nset format y "
                      "'2^{{%L}}'\nset xlabel 'y - y*'\n"
                      "set title \"{2}: zoomed to the branch point y*\"\n"
                      "plot data index 1 using 1:2 with linespoints lc rgb blue lw 1.2 pt 7 ps 0.25 title 'x >= x*', data index 0 using "
                      "1:2 with linespoints lc rgb "
                      "violet lw 1.2 pt 7 ps 0.25 title 'x < x*', data index 1 using 1:3 with lines lc rgb orange title 'O, the floor', "
                      "data index 0 using 1:3 with "
                      "lines lc rgb orange notitle, {3:.6g} with lines lc rgb orange dt 2 title 'max O'",
                      least / 2, most * 2, format, domain.oracle.value),
          data};
}

/// One activation, a line for each format.
Plot activation_plot(const std::string& activation, const std::vector<const SweepResult*>& sweeps) {
  std::string data, plot;
  constexpr std::array<const char*, 3> kFormatColours{"blue", "green", "orange"};
  for (size_t k = 0; k < kTargets.size(); ++k) {
    for (const SweepResult* sweep : sweeps) {
      if (sweep->format != kTargets[k].format) continue;
      for (const ErrorBin& p : thinned(sweep->domains.back().curve)) {
        if (drawable(p)) data += fmt::format("{:.6g} {}\n", p.x, positive(magnitude(p)));
      }
      break;  // the first of a format, in the order of the files' names
    }
    data += "NaN NaN\n\n\n";
    plot += fmt::format("{}data index {} using 1:2 with lines lc rgb {} lw 1.2 title '{}'", k == 0 ? "plot " : ", ", k, kFormatColours[k],
                        kTargets[k].format);
  }
  return {
      fmt::format("{}: largest error of g over x, one line for each format of y", activation),
      fmt::format(
          "set xrange [-{0}:{0}]\nset logscale y 2\nset yrange [2**-36:2**-4]\nset ytics 2**4\nset format y '2^{{%L}}'\nset xlabel 'x'\n"
          "set title \"{1}: largest error of g\" noenhanced\n{2}",
          kCurveReach, activation, plot),
      data};
}

/// Names of activations are ours where they are known: a file's text enters no plot's commands.
bool known_activation(const std::string& name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

}  // namespace

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
    figure.plots = {signed_plot(widest, format, clipped), magnitude_plot(widest, format), output_plot(widest, format),
                    branch_plot(widest, format)};
    figure.caption = fmt::format(
        "y in {}: total error T of `{}` over every {} x, least and greatest in each of {} bins of x. Blue on the orange floor is as good "
        "as any function "
        "of the stored y can be.{}",
        format, quoted(sweep->fit), widest.x_format, widest.curve.size(),
        clipped ? fmt::format(
                      " The first plot cuts the peak at x* = -0.7518 off: it reaches {}, where no function of the stored y stays under {}.",
                      scientific(widest.total.bound), scientific(widest.oracle.value))
                : "");
    section.blocks.push_back(std::move(figure));
  }
  std::map<std::string, std::vector<const SweepResult*>> others;
  for (const SweepResult& sweep : results.sweeps) {
    if (sweep.activation != "gelu" && known_activation(sweep.activation)) others[sweep.activation].push_back(&sweep);
  }
  if (!others.empty()) {
    Figure figure{"The other activations: largest total error T over every x, by the format of y.",
                  "./outgrad validate --activation NAME --format FORMAT",
                  {}};
    for (const auto& [activation, sweeps] : others) figure.plots.push_back(activation_plot(activation, sweeps));
    section.blocks.push_back(std::move(figure));
  }
  return section;
}

}  // namespace outgrad::validation
