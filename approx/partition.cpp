#include "approx/partition.h"

#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

namespace outgrad::approx {
namespace {

/// The computed s is within 2^-21.5 of the exact one (|s| < 4, relative error below 2^-23): cells overlap by more than that.
constexpr double kOverlap = 0x1p-20;
/// From here on the tail bounds of the activation are below 2^-50, nothing beside any target.
constexpr double kTailStart = -9;
/// 2^23 + k, 0 <= k < 2^23: the fraction bits of such a float are the integer k, and sums are rounded to integers. A multiple of the
/// number of rows is added to every index, so that no sum falls below 2^23, where halves would be kept.
constexpr float kMagic = 0x1p23f;

double outward_lo(const Real& r) { return std::nextafter(static_cast<double>(r), -INFINITY); }
double outward_hi(const Real& r) { return std::nextafter(static_cast<double>(r), INFINITY); }

/// Least s, rounded up to a float, beyond which g is within `budget` of 1.
float right_end(const Composite& composite, double budget) {
  double lo = 2, hi = 40;
  for (int step = 0; step < 60; ++step) {
    const double mid = 0.5 * (lo + hi);
    (composite.activation().right_gradient_tail(Ball(mid)).magnitude() <= budget ? hi : lo) = mid;
  }
  const double s = outward_hi(composite.coordinate_at(Coordinate::signed_root, Real(hi)));
  return std::nextafter(static_cast<float>(s), INFINITY);
}

}  // namespace

BackwardModel lay_out(const Composite& composite, const BackwardSpec& spec, const CoordinateConstants& constants, double target) {
  BackwardModel m;
  m.format = spec.format;
  m.kDegree = spec.degree;
  m.kRows = spec.root_cells + (spec.left ? spec.left->rows() : 0);
  m.kYHi = constants.y_hi;
  m.kYLo = constants.y_lo;
  m.kTMin = constants.t_min;
  m.kSMax = right_end(composite, target / 4);  // a quarter of the target: the last row has the rest to bend
  m.kHasLeft = spec.left.has_value();
  m.kLeftRow = spec.root_cells;
  const Real y_c = Real(m.kYHi) + Real(m.kYLo), y_star = composite.y_star().mid();
  const Real lower = y_c < y_star ? y_c : y_star;
  double left_end = 0;
  if (spec.left) {
    m.kLeftY = -std::ldexp(1.0f, spec.left->edge_log2);
    left_end = outward_lo(-sqrt(Real(m.kLeftY) - lower)) - kOverlap;
    m.kSMin = static_cast<float>(left_end);
    const int knee_exponent = 127 + spec.left->edge_log2 - spec.left->half_octaves;
    m.kLeftKnee = 2 * knee_exponent;
    m.kLeftBase = 127 + spec.left->merge_log2 + knee_exponent - 1;
  } else {
    // What the deployed sequence gives at y = -0, so that the anchored first row gives exactly 0 there.
    m.kSMin = -std::sqrt((0.0f - m.kYHi) - m.kYLo);
    left_end = static_cast<double>(m.kSMin);
  }
  // Cells are [(j - 1/2) w, (j + 1/2) w]: choose how many lie left of 0 so that w is least.
  double width = INFINITY;
  int left_cells = 0;
  for (int a = 0; a < spec.root_cells; ++a) {
    const double w = std::max(-left_end / (a + 0.5), static_cast<double>(m.kSMax) / (spec.root_cells - 1 - a + 0.5));
    if (w < width) {
      width = w;
      left_cells = a;
    }
  }
  m.kIndexScale = std::nextafter(static_cast<float>(1 / width), 0.0f);
  m.kIndexBias = kMagic + static_cast<float>(m.kRows + left_cells);
  const double scale = static_cast<double>(m.kIndexScale);
  for (int row = 0; row < spec.root_cells; ++row) {
    const int j = row - left_cells;
    Piece p;
    p.row = row;
    p.coordinate = Coordinate::signed_root;
    p.v_lo = std::max((j - 0.5) / scale - kOverlap, left_end);
    p.v_hi = std::min((j + 0.5) / scale + kOverlap, static_cast<double>(m.kSMax));
    p.nominal_centre = 0.5 * (p.v_lo + p.v_hi);
    if (j == 0) {
      p.bend = spec.storage.bend;
      p.bend_radius = 0.5 / scale;
    }
    if (row == 0 && !spec.left) {
      p.left_tail = true;
      p.anchor = Piece::Anchor{m.kSMin, 0.0f};
    }
    if (row + 1 == spec.root_cells) {
      p.right_tail = true;
      p.anchor = Piece::Anchor{m.kSMax, 1.0f};
    }
    p.x_lo = p.left_tail ? Real(kTailStart) : composite.argument_of_root(Real(p.v_lo));
    p.x_hi = composite.argument_of_root(Real(p.v_hi));
    m.pieces.push_back(p);
  }
  if (!spec.left) return m;
  const auto left_piece = [&](double y_lo, double y_hi) {
    Piece p;
    p.row = static_cast<int>(m.pieces.size());
    p.coordinate = Coordinate::identity;
    p.v_lo = y_lo;
    p.v_hi = y_hi;
    p.nominal_centre = 0.5 * (y_lo + y_hi);
    p.left_tail = y_hi == 0;
    if (p.left_tail) p.anchor = Piece::Anchor{0.0f, 0.0f};
    p.x_lo = p.left_tail ? Real(kTailStart) : composite.argument_of(Real(y_hi), false);  // y falls from 0- to y* as x grows to x*
    p.x_hi = composite.argument_of(Real(y_lo), false);
    m.pieces.push_back(p);
  };
  left_piece(-std::ldexp(1.0, spec.left->merge_log2), 0);
  for (int e = spec.left->merge_log2; e < spec.left->edge_log2; ++e) {
    const double inner = -std::ldexp(1.0, e), outer = 2 * inner, middle = 1.5 * inner;
    if (e < spec.left->edge_log2 - spec.left->half_octaves) {
      left_piece(outer, inner);
    } else {
      left_piece(middle, inner);
      left_piece(outer, middle);
    }
  }
  return m;
}

ForwardModel lay_out(const Composite& composite, const ForwardSpec& spec) {
  ForwardModel m;
  m.kDegree = spec.core.degree;
  m.kRows = spec.core.rows;
  m.kTailDegree = spec.tail.degree;
  m.kTailRows = spec.tail.rows;
  m.kXStar = std::nextafter(static_cast<float>(composite.x_star().lower()), INFINITY);
  if (Ball(static_cast<double>(m.kXStar)).mid() < composite.x_star().mid()) m.kXStar = std::nextafter(m.kXStar, INFINITY);
  // Right: x stands for f(x) as soon as the relative difference is at most half an ulp at the top of a binade.
  const int per_unit = spec.core.cells_per_unit;
  int end = 2 * per_unit;
  while ((Ball(1.0) - composite.activation().value_ball(Ball(end / double(per_unit))) / Ball(end / double(per_unit))).magnitude() > 0x1p-25) ++end;
  m.kXMax = static_cast<float>(end) / static_cast<float>(per_unit);
  // Left: |f| < 2^-150 rounds to -0. |f| falls towards -inf there (f' < 0 left of x*).
  double lo = -38, hi = -2;
  for (int step = 0; step < 60; ++step) {
    const double mid = 0.5 * (lo + hi);
    (abs(composite.activation().value_ball(Ball(mid))).magnitude() < 0x1p-150 ? lo : hi) = mid;
  }
  m.kXMin = std::nextafter(static_cast<float>(lo), -INFINITY);

  const auto cells = [&](const Cells& c, int first, int last, double from, double to, std::vector<Piece>& pieces, bool scaled) {
    for (int j = first; j <= last; ++j) {
      Piece p;
      p.row = j - first;
      p.coordinate = Coordinate::argument;
      p.target = Target::value_relative;
      p.v_lo = std::max((j - 0.5) / c.cells_per_unit, from);
      p.v_hi = std::min((j + 0.5) / c.cells_per_unit, to);
      p.x_lo = Real(p.v_lo);
      p.x_hi = Real(p.v_hi);
      p.nominal_centre = 0.5 * (p.v_lo + p.v_hi);
      if (j == 0) p.anchor = Piece::Anchor{0.0f, -0.0f};  // f(-0) = -0
      if (scaled) {
        // p = f/scale has a normal leading coefficient; a subnormal y is rounded once, by the product with the scale.
        const int e = std::ilogb(static_cast<double>(composite.value_at(Real(p.nominal_centre))));
        p.scale = std::ldexp(1.0, std::max(e, -149));
      }
      pieces.push_back(p);
    }
  };
  const auto magic = [](int first, int rows) { return kMagic + static_cast<float>(rows - first); };
  const int first = end - spec.core.rows + 1;
  if (first >= 0) throw kernels::SpecError(fmt::format("core: {} rows of 1/{} do not reach from {} to below 0", spec.core.rows, per_unit, m.kXMax));
  m.kTailX = static_cast<float>((first - 0.5) / per_unit);
  m.kIndexScale = static_cast<float>(per_unit);
  m.kIndexBias = magic(first, m.kRows);
  cells(spec.core, first, end, static_cast<double>(m.kTailX), static_cast<double>(m.kXMax), m.core, false);
  const int tail_per_unit = spec.tail.cells_per_unit;
  const int tail_first = static_cast<int>(std::nearbyint(static_cast<double>(m.kXMin) * tail_per_unit));
  const int tail_last = static_cast<int>(std::nearbyint(static_cast<double>(m.kTailX) * tail_per_unit));
  if (tail_last - tail_first + 1 > spec.tail.rows) {
    throw kernels::SpecError(fmt::format("tail: {} rows of 1/{} do not reach from {} to {}", spec.tail.rows, tail_per_unit, m.kXMin, m.kTailX));
  }
  m.kTailIndexScale = static_cast<float>(tail_per_unit);
  m.kTailIndexBias = magic(tail_first, m.kTailRows);
  cells(spec.tail, tail_first, tail_last, static_cast<double>(m.kXMin), static_cast<double>(m.kTailX), m.tail, true);
  return m;
}

}  // namespace outgrad::approx
