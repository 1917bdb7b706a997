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

constexpr size_t kMostPoints = 500;     // with more points, several would share a pixel
constexpr double kNearMinimum = 0.25;  // distance from x* within which the errors from the storage of y alone would flatten all others

/// GELU, which gives the place of a bin on the axis of y.
double gelu(double x) { return x * 0.5 * std::erfc(-x * std::sqrt(0.5)); }

double magnitude(const ErrorBin& bin) { return std::max(std::abs(bin.least), std::abs(bin.greatest)); }

bool drawable(const ErrorBin& bin) { return std::abs(bin.x) <= kCurveReach && std::isfinite(bin.least) && std::isfinite(bin.greatest); }

/// Joins neighbours until there are at most kMostPoints; the least and greatest values are kept.
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

/// A NaN, which breaks a line, for a value that a logarithmic axis cannot show.
double positive(double v) { return v > 0 && std::isfinite(v) ? v : std::nan(""); }

Axis over_x() { return {.label = "x", .from = -kCurveReach, .to = kCurveReach}; }

/// For magnitudes; errors of f32 are the smaller ones.
Axis errors_of(const std::string& format) {
  const bool single = format == "f32";
  return {.log = 2, .from = single ? 0x1p-36 : 0x1p-30, .to = single ? 0x1p-12 : 0x1p-4};
}

/// Signed error. The range is that of the errors away from x* if this is much smaller.
Plot signed_plot(const SweptDomain& domain, const std::string& format, bool& clipped) {
  double most = 0, away = 0;
  Series error{"least to greatest error", "blue", "band"}, above{"O, the floor", "orange", "line"}, below{"", "orange", "line"};
  for (const ErrorBin& p : thinned(domain.curve)) {
    if (!drawable(p)) continue;
    most = std::max(most, magnitude(p));
    if (std::abs(p.x - kXStar) > kNearMinimum) away = std::max(away, magnitude(p));
    error.x.push_back(p.x), error.low.push_back(p.least), error.high.push_back(p.greatest);
    above.add(p.x, p.floor), below.add(p.x, -p.floor);
  }
  clipped = away > 0 && most > 4 * away;
  const double range = 1.15 * (clipped ? away : most > 0 ? most : 1);
  return {format + ": least and greatest signed error of g over x from -8 to 8, and the floor O on either side",
          format + ": signed error of g over x",
          over_x(),
          {.from = -range, .to = range},
          {error, above, below}};
}

/// |error| on a logarithmic axis over x.
Plot magnitude_plot(const SweptDomain& domain, const std::string& format) {
  Series error{"largest |error|", "blue", "line"}, floor{"O, the floor", "orange", "line"};
  for (const ErrorBin& p : thinned(domain.curve)) {
    if (drawable(p)) error.add(p.x, positive(magnitude(p))), floor.add(p.x, positive(p.floor));
  }
  Plot plot{format + ": largest error of g over x from -8 to 8 on a logarithmic axis, beside the floor O",
            format + ": largest error of g over x",
            over_x(),
            errors_of(format),
            {error, floor}};
  if (domain.from_x) plot.series.push_back({"PyTorch fp32, from x", "grey", "dashed", {-kCurveReach, kCurveReach}, {*domain.from_x, *domain.from_x}});
  return plot;
}

/// The same over y: two branches, one for each value of the mask, which meet at y*.
Plot output_plot(const SweptDomain& domain, const std::string& format) {
  constexpr double kMostY = 1;
  Series right{"x >= x*", "blue", "line"}, left{"x < x*", "violet", "line"}, floor{"", "orange", "specks"};
  for (const ErrorBin& p : domain.curve) {
    if (!drawable(p) || gelu(p.x) > kMostY) continue;
    (p.x >= kXStar ? right : left).add(gelu(p.x), positive(magnitude(p)));
    floor.add(gelu(p.x), positive(p.floor));
  }
  const Series legend{"O, the floor", "orange", "thick"};  // a speck would not be visible there
  return {format + ": largest error of g over y, the left branch from y* to 0 and the right one from y* on, beside the floor O",
          format + ": largest error of g over y",
          {.label = "y", .from = -0.2, .to = kMostY},
          errors_of(format),
          {right, left, floor, legend}};
}

/// The branch point: |error| against the distance of y from y*, both logarithmic. g ~ sqrt(y - y*) there, so the floor
/// falls as 1 / sqrt of the distance.
Plot branch_plot(const SweptDomain& domain, const std::string& format) {
  constexpr double kZoom = 0.4;  // distance of x from x*
  Series right{"x >= x*", "blue", "chain"}, left{"x < x*", "violet", "chain"}, right_floor{"O, the floor", "orange", "line"}, left_floor{"", "orange", "line"};
  double least = 1, most = 0, near = 1, far = 0;
  for (const ErrorBin& p : domain.curve) {
    const double distance = gelu(p.x) - kYStar;
    if (!drawable(p) || std::abs(p.x - kXStar) > kZoom || !(distance > 0)) continue;
    if (magnitude(p) > 0) least = std::min(least, magnitude(p)), most = std::max(most, magnitude(p));
    near = std::min(near, distance), far = std::max(far, distance);
    const bool is_right = p.x >= kXStar;
    (is_right ? right : left).add(distance, positive(magnitude(p)));
    (is_right ? right_floor : left_floor).add(distance, positive(p.floor));
  }
  if (!(most > 0)) least = 0.5, most = 1;
  const Series limit{"max O", "orange", "dashed", {near, far}, {domain.oracle.value, domain.oracle.value}};
  return {format + ": largest error of g next to the branch point, over the distance of y from y*, both axes logarithmic, beside the floor O",
          format + ": zoomed to the branch point y*",
          {.label = "y - y*", .log = 10},
          {.log = 2, .from = least / 2, .to = most * 2},
          {right, left, right_floor, left_floor, limit}};
}

/// One activation, with a line for each format.
Plot activation_plot(const std::string& activation, const std::vector<const SweepResult*>& sweeps) {
  constexpr std::array<const char*, 3> kFormatColours{"blue", "green", "orange"};
  Plot plot{activation + ": largest error of g over x, one line for each format of y",
            activation + ": largest error of g",
            over_x(),
            {.log = 2, .from = 0x1p-36, .to = 0x1p-4},
            {}};
  for (size_t k = 0; k < kTargets.size(); ++k) {
    Series& line = plot.series.emplace_back(Series{kTargets[k].format, kFormatColours[k], "line"});
    for (const SweepResult* sweep : sweeps) {
      if (sweep->format != kTargets[k].format) continue;
      for (const ErrorBin& p : thinned(sweep->domains.back().curve)) {
        if (drawable(p)) line.add(p.x, positive(magnitude(p)));
      }
      break;  // only the first of a format, in the order of the files' names
    }
  }
  return plot;
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
    figure.plots = {signed_plot(widest, format, clipped), magnitude_plot(widest, format), output_plot(widest, format), branch_plot(widest, format)};
    figure.caption = fmt::format(
        "y in {}: total error T of `{}` over every {} x, least and greatest in each of {} bins of x. Blue on the orange floor is as good "
        "as any function "
        "of the stored y can be.{}",
        format, quoted(sweep->fit), widest.x_format, widest.curve.size(),
        clipped ? fmt::format(" The first plot cuts the peak at x* = -0.7518 off: it reaches {}, where no function of the stored y stays under {}.",
                              scientific(widest.total.bound), scientific(widest.oracle.value))
                : "");
    section.blocks.push_back(std::move(figure));
  }
  std::map<std::string, std::vector<const SweepResult*>> others;
  for (const SweepResult& sweep : results.sweeps) {
    if (sweep.activation != "gelu") others[sweep.activation].push_back(&sweep);
  }
  if (!others.empty()) {
    Figure figure{"The other activations: largest total error T over every x, by the format of y.", "./outgrad validate --activation NAME --format FORMAT", {}};
    for (const auto& [activation, sweeps] : others) figure.plots.push_back(activation_plot(quoted(activation), sweeps));
    section.blocks.push_back(std::move(figure));
  }
  return section;
}

}  // namespace outgrad::validation
