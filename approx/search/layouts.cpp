// Lists layouts by their cost, and looks roughly, in double, how near to g each comes.
#include "approx/search/layouts.h"

#include "approx/search/constants.h"
#include "approx/search/partition.h"
#include "approx/search/remez.h"
#include "kernels/host/errors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <tuple>

namespace outgrad::approx {
namespace {

/// The keys of a specification that lay out its rows.
constexpr const char* kLayoutKeys[] = {"degree",     "cells",      "split",  "left_segment",
                                       "right_from", "both_sides", "centred"};

/// Octaves of the left end, from the largest power of two below |y*| down.
std::string left_segment(int edge, int half_octaves, int octaves) {
  return fmt::format("\"left_segment\": {{\"edge_log2\": {}, \"half_octaves\": {}, \"merge_log2\": {}}}",
                     edge, half_octaves, edge - octaves);
}

/// As minimax_level, in double: 2^-45 is all that is asked for here, and layouts by the hundred are asked for
/// it. Infinite where a row cannot be fitted to the degree, because it has too few values that can be told
/// apart, or one beyond numbers.
double rough_level(const Samples& samples, const Piece& piece, int degree) {
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic>;
  const double centre = first_centre(piece);
  const int first = piece.anchor ? 1 : 0;
  double reach = 0;
  for (const Real& v : samples.v) reach = std::max(reach, std::abs(static_cast<double>(v) - centre));
  std::vector<std::pair<double, double>> used;
  for (size_t i = 0; i < samples.v.size(); ++i) {
    const double u = (static_cast<double>(samples.v[i]) - centre) / reach;
    constexpr double kAnchorShadow = 0x1p-16;  // there no coefficient moves the error
    if (first == 0 || std::abs(u) > kAnchorShadow)
      used.emplace_back(u, static_cast<double>(samples.target[i]) -
                               (piece.anchor ? static_cast<double>(piece.anchor->c0) : 0));
  }
  const auto finite = [](const auto& sample) {
    return std::isfinite(sample.first) && std::isfinite(sample.second);
  };
  if (used.size() <= static_cast<size_t>(degree + 1 - first) ||
      !std::all_of(used.begin(), used.end(), finite))
    return INFINITY;
  Matrix columns(static_cast<Eigen::Index>(used.size()), degree + 1 - first);
  Eigen::VectorXd target(columns.rows());
  for (Eigen::Index i = 0; i < columns.rows(); ++i) {
    const auto [u, g] = used[static_cast<size_t>(i)];
    for (int k = first; k <= degree; ++k) columns(i, k - first) = std::pow(u, k);
    target[i] = g;
  }
  constexpr double kRough = 1e-2;
  constexpr int kRounds = 100;
  return exchange<double>(columns, target, kRough, kRounds).error;
}

}  // namespace

std::vector<Ladder> absolute_layouts(Format format, const Composite& composite) {
  if (composite.activation().linear_from_zero) return {{{1, "\"cells\": 1, \"centred\": false", "d1"}}};
  const bool single = format == Format::f32, masked = composite.masked();
  std::vector<Ladder> all;
  const auto add = [&](const std::string& rows, const std::string& suffix, int lowest) {
    Ladder ladder;
    for (int degree = lowest; degree <= (single ? 7 : 6); ++degree)
      ladder.push_back({degree, rows, fmt::format("d{}_{}", degree, suffix)});
    all.push_back(std::move(ladder));
  };
  constexpr int kSquare = 2;  // g of tanh and of sigmoid is a polynomial of degree 2
  const int lowest = single ? 3 : 2;
  if (!masked) add("\"cells\": 1, \"centred\": false", "1", kSquare);
  for (const int rows : single ? std::vector{16, 32, 64} : std::vector{8, 16, 32}) {
    // In f32 s alone stays above 2^-16 at the left end, whatever the rows: one such table is enough.
    if (!(single && masked) || rows == 32)
      add(fmt::format("\"cells\": {}", rows), fmt::format("{}", rows), lowest);
    if (!masked) continue;
    const int edge = greatest_edge_log2(composite);
    // In f32 14 octaves, down to where y is 2^-17, leave nothing of g that counts; a 16-bit target leaves
    // less to do.
    const int octaves = single                  ? 14
                        : format == Format::f16 ? 4
                                                : 3,
              halves = rows >= 32 ? 1 : 0, left = 1 + octaves + halves;
    constexpr int kFewestOfCore = 3;
    if (rows - left < kFewestOfCore || edge < LeftSegment::kLeastEdge || edge > LeftSegment::kGreatestEdge)
      continue;
    // From about sqrt(-y*) on, where y > 0, y is finer than s.
    const std::string right = single ? ", \"right_from\": 0.44" : "";
    add(fmt::format("\"cells\": {}, {}{}", rows - left, left_segment(edge, halves, octaves), right),
        fmt::format("{}l", rows), lowest);
  }
  return all;
}

LayoutSamples::LayoutSamples(const Composite& composite, const BackwardModel& model)
    : model_(model), samples_(model.pieces.size()) {
#pragma omp parallel for schedule(dynamic, 1)
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (!model.pieces[i].constant) samples_[i] = sample(composite, model.pieces[i], kRoughSamples);
  }
  flint_cleanup();
}

double LayoutSamples::level(int degree) const {
  double level = 0;
#pragma omp parallel for schedule(dynamic, 1) reduction(max : level)
  for (size_t i = 0; i < samples_.size(); ++i) {
    if (!model_.pieces[i].constant)
      level = std::max(level, rough_level(samples_[i], model_.pieces[i], degree));
  }
  return level;
}

std::vector<std::string> layouts_within(const Composite& composite, const Spec& spec) {
  const BackwardSpec& wanted = spec.backward();
  CoordinateConstants constants{0, 0, 0, 0, 0};
  if (composite.masked()) constants = NearMinimum(composite, wanted.format).choose_constants(wanted.storage);
  struct Choice {
    std::tuple<int, int, int> cost;
    std::string layout;
  };
  std::vector<Choice> choices;
  double best = INFINITY;
  for (Ladder ladder : absolute_layouts(wanted.format, composite)) {
    if (wanted.degree > 0) {
      ladder.resize(1);
      ladder[0].degree = wanted.degree;
    }
    const auto text = [&](const Layout& layout) {
      return fmt::format("\"degree\": {}, {}", layout.degree, layout.rows);
    };
    BackwardModel model;
    try {
      model = lay_out(composite, with_layout(spec, text(ladder.front())).backward(), constants, spec.target);
    } catch (const TooFarFromZero&) {  // one row still holds all of y
      continue;
    }
    const LayoutSamples samples(composite, model);
    for (const Layout& layout : ladder) {
      const double level = std::max(samples.level(layout.degree) * kRoomOfTarget, kNoise);
      best = std::min(best, level);
      if (level > spec.target) continue;
      model.kDegree = layout.degree;
      const Cost cost = cost_of(model);
      choices.push_back({{cost.work(), cost.table_bytes, cost.depth}, text(layout)});
      break;
    }
  }
  if (choices.empty()) {
    if (!std::isfinite(best))
      throw kernels::SpecError(
          "target: no layout that was tried can be fitted: f is too large or too flat in a row of each");
    const double reached = std::ceil(100 * std::log2(best)) / 100;
    throw OutOfReach(
        fmt::format("target: no layout that was tried reaches abs:2^{:.2f}; one reaches abs:2^{:.2f}",
                    std::log2(spec.target), reached),
        std::exp2(reached));
  }
  std::stable_sort(choices.begin(), choices.end(),
                   [](const Choice& a, const Choice& b) { return a.cost < b.cost; });
  std::vector<std::string> layouts;
  for (Choice& choice : choices) layouts.push_back(std::move(choice.layout));
  return layouts;
}

Spec with_layout(const Spec& spec, const std::string& layout) {
  auto members = kernels::parse_json<nlohmann::ordered_json>(spec.text);
  for (const char* key : kLayoutKeys) members.erase(key);
  members.update(kernels::parse_json<nlohmann::ordered_json>("{" + layout + "}"));
  return parse_spec(members.dump(), spec.name);
}

std::string layout_in_place(const Spec& spec, const std::string& layout) {
  const auto members = kernels::parse_json<nlohmann::ordered_json>(spec.text),
             wanted = kernels::parse_json<nlohmann::ordered_json>("{" + layout + "}");
  std::vector<std::string> left_out;
  for (const char* key : kLayoutKeys)
    if (members.contains(key) && !wanted.contains(key)) left_out.push_back(fmt::format("\"{}\"", key));
  return left_out.empty() ? layout : fmt::format("{} without {}", layout, fmt::join(left_out, ", "));
}

}  // namespace outgrad::approx
