// The x that share y and the bit are neighbours, since f is monotone on either branch.
#include "validation/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/support/bounds.h"
#include "kernels/support/files.h"
#include "validation/front/header_points.h"
#include "validation/sweep/distribution.h"
#include "validation/sweep/sweep.h"

namespace outgrad::validation {
namespace {

using Json = nlohmann::ordered_json;

/// The largest value, and the x and y where it is.
struct Worst {
  double value = 0;
  HeaderPoint at;
  void see(double seen, const HeaderPoint& point) {
    if (seen > value) value = seen, at = point;
  }
};

struct Swept {
  std::int64_t right = 0;
  Worst total, oracle, regret;
};

/// One (y, m): the x from `first` to before `last`.
void close_run(const std::vector<HeaderPoint>& points, std::size_t first, std::size_t last, Swept& swept) {
  const auto [least, most] = std::minmax_element(
      points.begin() + static_cast<std::ptrdiff_t>(first), points.begin() + static_cast<std::ptrdiff_t>(last),
      [](const HeaderPoint& a, const HeaderPoint& b) { return a.slope < b.slope; });
  swept.oracle.see((most->slope - least->slope) / 2, points[first]);
  swept.regret.see(std::fabs(static_cast<double>(points[first].g) - (most->slope + least->slope) / 2),
                   points[first]);
}

Swept sweep(const std::vector<HeaderPoint>& points) {
  Swept swept;
  std::size_t first = 0;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const HeaderPoint &p = points[i], &begin = points[first];
    swept.right += p.m ? 1 : 0;
    // NaN is an error without limit
    const double error = std::fabs(static_cast<double>(p.g) - p.slope);
    swept.total.see(std::isnan(error) ? INFINITY : error, p);
    if (p.m == begin.m && p.y == begin.y && std::signbit(p.y) == std::signbit(begin.y)) continue;
    close_run(points, first, i, swept);
    first = i;
  }
  close_run(points, first, points.size(), swept);
  return swept;
}

Json weighed(const std::vector<HeaderPoint>& points, const FloatFormat& format,
             const std::string& histogram) {
  std::vector<Distribution> distributions = usual_distributions();
  if (!histogram.empty())
    distributions.push_back(Distribution::parse(kernels::read_file(histogram), histogram));
  Json list = Json::array();
  for (const Distribution& of : distributions) {
    double mass = 0, square = 0, bias = 0;
    for (const HeaderPoint& p : points) {
      const auto [low, high] = rounding_interval(p.x, format);
      const double weight = of.mass(low, high) * (p.x == 0 ? 0.5 : 1),
                   error = static_cast<double>(p.g) - p.slope;
      mass += weight, square += weight * error * error, bias += weight * error;
    }
    list.push_back(
        {{"x", of.name()}, {"mass", mass}, {"rms", std::sqrt(square / mass)}, {"bias", bias / mass}});
  }
  return list;
}

Json place(const Worst& worst) {
  return {{"max", worst.value}, {"x", worst.at.x}, {"y", worst.at.y},
          {"m", worst.at.m},    {"g", worst.at.g}, {"want", worst.at.slope}};
}

std::string line(const char* name, const Worst& worst, double claim, bool holds) {
  return fmt::format("  {:<8} {} = {:.6g} <= {:.6g} at x = {:.9g}, y = {:.9g}, bit {:d}\n",
                     holds ? "holds" : "VIOLATED", name, worst.value, kernels::digits_up(claim, 6),
                     worst.at.x, worst.at.y, worst.at.m);
}

}  // namespace

bool validate_header(const std::string& file, const std::string& histogram, const std::string& out,
                     const kernels::ResultForm& form) {
  const Header header = read_header(file);
  const HeaderSummary summary = summary_of(header);
  const FloatFormat& format = swept_format(summary.format, file);
  const std::filesystem::path path(file);
  const std::string to = out.empty() ? (path.parent_path() / path.stem()).string() + ".sweep.json" : out;
  kernels::require_writable(to, {file, histogram});
  const std::vector<HeaderPoint> points = header_points(header, format);
  const Swept swept = sweep(points);
  Json json{{"schema", "outgrad.own_sweep/1"}, {"name", summary.name},
            {"function", summary.function},    {"format", summary.format},
            {"reach", kPointsReach},           {"counts", {{"x", points.size()}, {"right", swept.right}}},
            {"T", place(swept.total)},         {"O", place(swept.oracle)},
            {"R", place(swept.regret)},        {"under", weighed(points, format, histogram)},
            {"gates", Json::array()}};
  bool all = true;
  std::string text = fmt::format("{}: f(x) = {}, y in {}: all {} x of the format with |x| <= {:g}\n",
                                 summary.name, summary.function, summary.format, points.size(), kPointsReach);
  for (const auto& [name, worst, claim] :
       {std::tuple("T", &swept.total, summary.claims.total), {"O", &swept.oracle, summary.claims.oracle}}) {
    const bool holds = worst->value <= claim + kSweepMargin;
    all = all && holds;
    json["gates"].push_back({{"name", name}, {"value", worst->value}, {"limit", claim}, {"holds", holds}});
    text += line(name, *worst, claim, holds);
  }
  text += fmt::format("  R = {:.6g} at y = {:.9g}; T/O {:.4f} over these x\n", swept.regret.value,
                      swept.regret.at.y, swept.total.value / swept.oracle.value);
  for (const Json& under : json["under"])
    text += fmt::format("  x of {:<16} rms {:.4g}, bias {:+.2g}\n", under["x"].get<std::string>(),
                        under["rms"].get<double>(), under["bias"].get<double>());
  kernels::write_file(to, json.dump(1) + "\n");
  if (form)
    kernels::print_result(form, json, "gates");
  else
    fmt::print("{}written to {}\n", text, to);
  return all;
}

}  // namespace outgrad::validation
