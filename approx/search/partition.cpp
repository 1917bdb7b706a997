// Cuts the coordinate into the rows that the index arithmetic selects, and finds the limits of the tails.
#include "approx/search/partition.h"

#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

namespace outgrad::approx {
namespace {

/// The computed s is off by less than 2^-23 of itself: cells overlap by twice that share of the largest |s|.
constexpr double kOverlap = 0x1p-22;
/// y is exact; this covers the double arithmetic on the cells' ends.
constexpr double kExactOverlap = 0x1p-48;
/// Of neighbouring floats, relative, at most.
constexpr double kSpacing = 0x1p-23;
/// 2^23 + k, 0 <= k < 2^23: the fraction bits of such a float are the integer k, and sums are rounded to
/// integers. A multiple of the number of rows is added to every index, so that no sum falls below 2^23, where
/// halves would be kept.
constexpr float kMagic = 0x1p23f;

/// What takes the cell with number `first` to row 0.
float magic(int first, int rows) { return kMagic + static_cast<float>(rows - first); }

double outward_lo(const Real& r) { return std::nextafter(static_cast<double>(r), -INFINITY); }
double outward_hi(const Real& r) { return std::nextafter(static_cast<double>(r), INFINITY); }

/// Least x, up to 2^-40, beyond which f' is within `budget` of its right limit.
double right_tail_start(const Composite& composite, double budget) {
  const Activation& f = composite.activation();
  return bisect(0, f.reach, 48, [&](double x) { return f.gradient_tail(x, true) <= budget; }).second;
}

float float_above(double d) {
  const auto f = static_cast<float>(d);
  return static_cast<double>(f) < d ? std::nextafter(f, INFINITY) : f;
}

/// Builds a model's rows one after the other.
class RowBuilder {
 public:
  RowBuilder(const Composite& composite, const BackwardSpec& spec, const CoordinateConstants& constants,
             double target)
      : composite_(composite), spec_(spec) {
    m.format = spec.format;
    m.kDegree = spec.degree;
    m.kScheme = spec.scheme;
    m.kCentred = spec.centred;
    m.kMasked = composite.masked();
    m.kHasLeft = spec.left.has_value();
    m.kTwoWord = spec.accuracy == AccuracyClass::ulp && spec.format == Format::f32;
    // A quarter of the target: the last row has the rest to bend.
    const double budget = target / 4;
    if (m.kMasked) {
      m.kYHi = constants.y_hi;
      m.kYLo = constants.y_lo;
      m.kTMin = constants.t_min;
      // What the deployed sequence gives at y = -0, so that the anchored first row gives exactly 0 there.
      m.kSMin = spec.s_min ? *spec.s_min : -std::sqrt((0.0f - m.kYHi) - m.kYLo);
    } else {
      m.kYMin = static_cast<float>(composite.left_limit());
    }
    target_ = spec.accuracy == AccuracyClass::relative ? Target::gradient_relative : Target::gradient;
    bounded_right_ = std::isfinite(composite.right_limit());
    if (spec.y_max) {
      m.kYMax = *spec.y_max;
      const auto largest = static_cast<float>(composite.right_limit());
      const double least =
          m.kMasked ? std::max(0.0, static_cast<double>(composite.y_star().mid())) : composite.left_limit();
      if (m.kYMax > largest)
        throw kernels::SpecError(
            fmt::format("y_max: {} is beyond f's largest value; {} is not", m.kYMax, largest));
      if (!(static_cast<double>(m.kYMax) > least))
        throw kernels::SpecError(
            fmt::format("y_max: {} is not above {:.9g}: no y is left to be fitted", m.kYMax, least));
    } else if (bounded_right_) {
      m.kYMax = static_cast<float>(composite.right_limit());
    } else {
      m.kYMax = float_above(outward_hi(composite.value_at(Real(right_tail_start(composite, budget)))));
    }
    // Deeper than any target, so that the tail of a bounded f is nothing beside it.
    constexpr double kNothing = 0x1p-50;
    x_end_ = bounded_right_ ? Real(right_tail_start(composite, kNothing))
                            : composite.argument_of(Real(m.kYMax), true);
    if (m.kMasked) {
      lower_ = std::min(Real(m.kYHi) + Real(m.kYLo), composite.y_star().mid());
      v_begin_ = static_cast<double>(m.kSMin);
      if (spec.left) {
        m.kLeftY = -std::ldexp(1.0f, spec.left->edge_log2);
        if (!(Real(m.kLeftY) > lower_)) {
          throw kernels::SpecError(
              fmt::format("left_segment.edge_log2: -2^{} is not above the minimum {:.4f}; {} is",
                          spec.left->edge_log2, static_cast<double>(lower_), greatest_edge_log2(composite)));
        }
        v_begin_ = outward_lo(-sqrt(Real(m.kLeftY) - lower_));
      }
      v_end_ = static_cast<double>(deployed_coordinate(m, m.kYMax, true));
      overlap_ = kOverlap * std::max(-v_begin_, v_end_);
      if (spec.left) {
        v_begin_ -= overlap_;
        m.kSMin = static_cast<float>(v_begin_);
      }
    } else {
      v_begin_ = static_cast<double>(m.kYMin);
      v_end_ = static_cast<double>(m.kYMax);
      overlap_ = kExactOverlap * std::max(-v_begin_, v_end_);
    }
  }

  [[nodiscard]] double begin() const { return v_begin_; }
  [[nodiscard]] double end() const { return v_end_; }
  [[nodiscard]] int left_rows() const { return spec_.left ? spec_.left->rows() : 0; }

  /// Rows are cells of equal width, [(j - 1/2) w, (j + 1/2) w].
  void uniform_core() {
    m.kRows = spec_.cells + left_rows();
    const std::optional<Lattice> on_one_side = cells_on_one_side(spec_.cells);
    const Lattice of = on_one_side.value_or(cells_about_zero(spec_.cells));
    // A row has the real y up to the next row's first float, which are no small part of such a cell.
    if (on_one_side) overlap_ = kSpacing * std::max(-v_begin_, v_end_);
    m.kIndexScale = of.scale;
    m.kIndexBias = magic(of.first, m.kRows);
    const auto scale = static_cast<double>(m.kIndexScale);
    for (int row = 0; row < of.used; ++row) {
      const int j = of.first + row;
      m.pieces.push_back(core_piece(row, (j - 0.5) / scale, (j + 0.5) / scale, of.used));
    }
    if (spec_.right_from) continue_in_y(-of.first);
  }

  /// Rows lie between break points; none is one row for all.
  void broken_core(const std::vector<float>& breaks) {
    m.kHasBreaks = true;
    m.breaks = breaks;
    const int cells = static_cast<int>(breaks.size()) + 1;
    m.kRows = cells + left_rows();
    for (int row = 0; row < cells; ++row) {
      const double lo = row == 0 ? -INFINITY : static_cast<double>(breaks[static_cast<size_t>(row) - 1]);
      const double hi = row + 1 == cells ? INFINITY : static_cast<double>(breaks[static_cast<size_t>(row)]);
      m.pieces.push_back(core_piece(row, lo, hi, cells));
    }
  }

  /// f(x) = x from 0 on: y < 0 is one polynomial, the rest is 1.
  void linear_core() {
    m.kHasBreaks = true;
    m.breaks = {0.0f};
    m.kRows = 2;
    Piece p = core_piece(0, -INFINITY, 0, 2);
    p.x_hi = Real(0);
    m.pieces.push_back(p);
    Piece one;
    one.row = 1;
    one.coordinate = Coordinate::identity;
    one.v_hi = v_end_;
    one.x_hi = x_end_;
    one.right_tail = true;
    one.anchor = Piece::Anchor{0.0f, 1.0f};
    one.constant = true;
    m.pieces.push_back(one);
  }

  void left_segment() {
    m.kLeftRow = static_cast<int>(m.pieces.size());
    const LeftSegment& left = *spec_.left;
    const int knee_exponent = 127 + left.edge_log2 - left.half_octaves, halves = left.octave_bits - 1;
    m.kLeftBits = left.octave_bits;
    m.kLeftKnee = knee_exponent << left.octave_bits;
    m.kLeftBase = ((127 + left.merge_log2 + knee_exponent) << halves) - 1;
    left_piece(-std::ldexp(1.0, left.merge_log2), 0);
    for (int e = left.merge_log2; e < left.edge_log2; ++e) {
      const double inner = -std::ldexp(1.0, e);
      const int steps = 1 << (e < left.edge_log2 - left.half_octaves ? halves : left.octave_bits);
      for (int k = 0; k < steps; ++k) left_piece(inner + inner * (k + 1) / steps, inner + inner * k / steps);
    }
  }

  BackwardModel m;

 private:
  /// Cells of one width, and the number j of the first.
  struct Lattice {
    int first, used;
    float scale;
  };

  /// Those of the least width, among which one has 0 for its middle.
  [[nodiscard]] Lattice cells_about_zero(int cells) const {
    double width = INFINITY;
    int left_cells = 0;
    for (int a = 0; a < cells; ++a) {
      const double w = std::max(-v_begin_ / (a + 0.5), v_end_ / (cells - 1 - a + 0.5));
      if (w < width) {
        width = w;
        left_cells = a;
      }
    }
    // Where both sides are as long, as tanh's are, half a cell more than is needed lies at either end: the
    // last one begins where the coordinate ends, and would have nothing to be fitted to. It is left out then,
    // and its row is never asked for.
    constexpr double kNearlyEmpty = 1 + 0x1p-12;
    int used = cells;
    if (const double inner = cells - 1 - left_cells - 0.5;
        inner > 0 && v_end_ <= inner * width * kNearlyEmpty) {
      width = std::max(width, v_end_ / inner);
      --used;
    }
    return {-left_cells, used, std::nextafter(static_cast<float>(1 / width), 0.0f)};
  }

  /// Those of a coordinate that keeps far enough from 0 on one side of it, as softplus(x) - 20 does: cells
  /// about 0 would be empty. As much is left over at one end as at the other.
  [[nodiscard]] std::optional<Lattice> cells_on_one_side(int cells) const {
    const double near = std::max({v_begin_, -v_end_, 0.0}), far = std::max(v_end_, -v_begin_);
    // Beyond, a cell is fewer than 128 floats wide.
    constexpr double kGreatestNumber = 0x1p16;
    const double greatest = std::floor(0.5 + cells * near / (far - near));
    if (!(greatest <= kGreatestNumber)) {
      throw TooFarFromZero(fmt::format("y in [{:g}, {:g}] is too far from 0 for {} cells of equal width",
                                       v_begin_, v_end_, cells));
    }
    // Counted away from 0. Where no float between the two limits is a scale, the next has more room.
    for (int first = static_cast<int>(greatest); first >= 1; --first) {
      const auto scale = static_cast<float>((2 * first + cells - 1) / (near + far));
      if ((first - 0.5) / static_cast<double>(scale) <= near - overlap_ &&
          (first + cells - 0.5) / static_cast<double>(scale) >= far + overlap_)
        return Lattice{v_begin_ > 0 ? first : 1 - first - cells, cells, scale};
    }
    return std::nullopt;
  }

  /// Where the coordinate of the core is v; beyond both ends clamped.
  Piece core_piece(int row, double lo, double hi, int cells) {
    Piece p;
    p.row = row;
    p.coordinate = m.kMasked ? Coordinate::signed_root : Coordinate::identity;
    p.v_lo = std::max(lo - overlap_, v_begin_);
    p.v_hi = std::min(hi + overlap_, v_end_);
    p.nominal_centre = 0.5 * (p.v_lo + p.v_hi);
    p.centre_is_0 = !spec_.centred;
    const bool anchored = spec_.anchored && spec_.centred && cells > 1;
    if (row == 0 && !spec_.left) {
      p.left_tail = true;
      if (anchored)
        p.anchor = Piece::Anchor{static_cast<float>(v_begin_),
                                 static_cast<float>(composite_.activation().left_limit_gradient)};
    }
    if (row + 1 == cells) {
      p.right_tail = true;
      if (anchored)
        p.anchor = Piece::Anchor{static_cast<float>(v_end_),
                                 static_cast<float>(composite_.activation().right_limit_gradient)};
    }
    p.target = target_;
    // The zero of g at s = 0 is met exactly, or its relative error would be infinite.
    if (target_ == Target::gradient_relative && m.kMasked && p.v_lo < 0 && p.v_hi > 0)
      p.anchor = Piece::Anchor{0.0f, 0.0f};
    const auto argument = [&](double v) {
      return m.kMasked ? composite_.argument_of_root(Real(v)) : composite_.argument_of(Real(v), true);
    };
    // Next to the limit 1 g is flatter than fp32 is fine: 1 at the end as c0, and the rest by the others,
    // says more than any c0 can.
    constexpr double kFlat = 0x1p-18;
    const auto& f = composite_.activation();
    if (anchored && !p.anchor && p.v_lo > 0 && f.right_limit_gradient == 1 &&
        f.gradient_tail(Ball(argument(p.v_lo)), true) < kFlat) {
      p.anchor = Piece::Anchor{static_cast<float>(v_end_), 1.0f};
    }
    p.x_lo = p.left_tail ? Real(composite_.tail_start()) : argument(p.v_lo);
    p.x_hi = p.right_tail ? x_end_ : argument(p.v_hi);
    return p;
  }

  /// The rows from `right_from` on become polynomials in y, which is exact where s carries the rounding of a
  /// difference and a root.
  void continue_in_y(int left_cells) {
    const auto scale = static_cast<double>(m.kIndexScale);
    const Real higher = std::max(Real(m.kYHi) + Real(m.kYLo), composite_.y_star().mid());
    int first = -1;
    for (Piece& p : m.pieces) {
      const int j = p.row - left_cells;
      if (spec_.both_sides && -j - 0.5 >= *spec_.right_from * scale) {
        const double outer = p.v_lo, inner = p.v_hi;
        p.region = Region::right_mirrored;
        p.coordinate = Coordinate::identity;
        p.v_lo = outward_lo(Real(inner) * Real(inner) + lower_);
        p.v_hi = std::min(outward_hi(Real(outer) * Real(outer) + higher), static_cast<double>(m.kLeftY));
        p.nominal_centre = 0.5 * (p.v_lo + p.v_hi);
        p.x_lo = composite_.argument_of(Real(p.v_hi), false);
        p.x_hi = composite_.argument_of(Real(p.v_lo), false);
      }
      if (j - 0.5 < *spec_.right_from * scale) continue;
      if (first < 0) first = p.row;
      p.region = Region::right;
      p.coordinate = Coordinate::identity;
      p.v_lo = outward_lo(Real(p.v_lo) * Real(p.v_lo) + lower_);
      p.v_hi = std::min(outward_hi(Real(p.v_hi) * Real(p.v_hi) + higher), static_cast<double>(m.kYMax));
      p.nominal_centre = 0.5 * (p.v_lo + p.v_hi);
      if (p.anchor) p.anchor->centre = m.kYMax;
      p.x_lo = composite_.argument_of(Real(p.v_lo), true);
      if (!p.right_tail) p.x_hi = composite_.argument_of(Real(p.v_hi), true);
    }
    if (first < 0) return;
    // The least float that the index arithmetic takes to that row.
    float lo = 0, hi = static_cast<float>(v_end_);
    const auto reaches = [&](float s) {
      return static_cast<int>(std::fma(s, m.kIndexScale, m.kIndexBias) - kMagic) - m.kRows >= first;
    };
    while (std::nextafter(lo, hi) < hi) {
      const float mid = lo + 0.5f * (hi - lo);
      (reaches(mid) ? hi : lo) = mid;
    }
    m.kHasRight = true;
    // Rounding to even is symmetric about s = 0: the cells on both sides begin at the same |s|.
    m.kRightBoth = spec_.both_sides;
    m.kRightS = hi;
  }

  void left_piece(double y_lo, double y_hi) {
    Piece p;
    p.row = static_cast<int>(m.pieces.size());
    p.region = Region::left;
    p.coordinate = Coordinate::identity;
    p.v_lo = y_lo;
    p.v_hi = y_hi;
    p.nominal_centre = 0.5 * (y_lo + y_hi);
    p.centre_is_0 = !spec_.centred;
    p.left_tail = y_hi == 0;
    if (p.left_tail) p.anchor = Piece::Anchor{0.0f, 0.0f};
    p.x_hi = composite_.argument_of(Real(y_lo), false);
    // y falls from 0- to y* as x grows to x*. A row may lie in the tail as a whole.
    const Real beyond = p.x_hi - Real(0.5);
    p.x_lo = !p.left_tail                       ? composite_.argument_of(Real(y_hi), false)
             : beyond < composite_.tail_start() ? beyond
                                                : Real(composite_.tail_start());
    // The last row runs into the limit 0, where only an absolute error has a meaning.
    p.target = p.left_tail ? Target::gradient : target_;
    m.pieces.push_back(p);
  }

  const Composite& composite_;
  const BackwardSpec& spec_;
  double v_begin_ = 0, v_end_ = 0, overlap_ = 0;
  Real lower_, x_end_;
  bool bounded_right_ = false;
  Target target_ = Target::gradient;
};

}  // namespace

std::pair<double, double> core_range(const Composite& composite, const BackwardSpec& spec,
                                     const CoordinateConstants& constants, double target) {
  const RowBuilder layout(composite, spec, constants, target);
  return {layout.begin(), layout.end()};
}

BackwardModel lay_out(const Composite& composite, const BackwardSpec& spec,
                      const CoordinateConstants& constants, double target, const std::vector<float>& breaks) {
  RowBuilder layout(composite, spec, constants, target);
  if (composite.activation().linear_from_zero) {
    layout.linear_core();
  } else if (spec.split == Split::uniform && (spec.cells > 1 || spec.left)) {
    // break points would be counted through the left segment's rows
    layout.uniform_core();
  } else {
    layout.broken_core(breaks);
  }
  if (spec.left) layout.left_segment();
  return std::move(layout.m);
}

int greatest_edge_log2(const Composite& composite) {
  return static_cast<int>(std::ceil(std::log2(-composite.y_star().to_double()))) - 1;
}

float least_with_bit(const Composite& composite) {
  const auto nearest = static_cast<float>(composite.x_star().mid());
  return (Ball(nearest) - composite.x_star()).negative() ? std::nextafter(nearest, INFINITY) : nearest;
}

namespace {

/// Rows over [from, to], the middles of whose cells are the multiples j of a cell's width, from `first` to
/// `last`.
struct CellRange {
  const Cells& cells;
  int first, last;
  double from, to;
};

/// f(0) = 0, exactly.
bool vanishes_at_zero(const Composite& composite) {
  return composite.activation().value_ball(Ball(0.0)).holds_zero();
}

std::vector<Piece> cells_of(const Composite& composite, const CellRange& range, const ForwardModel* core) {
  std::vector<Piece> pieces;
  const bool vanishes = vanishes_at_zero(composite);
  for (int j = range.first; j <= range.last; ++j) {
    Piece p;
    p.row = j - range.first;
    p.coordinate = Coordinate::argument;
    p.target = Target::value_relative;
    p.v_lo = std::max((j - 0.5) / range.cells.cells_per_unit, range.from);
    p.v_hi = std::min((j + 0.5) / range.cells.cells_per_unit, range.to);
    p.x_lo = Real(p.v_lo);
    p.x_hi = Real(p.v_hi);
    p.nominal_centre = 0.5 * (p.v_lo + p.v_hi);
    if (core != nullptr) {
      p.compensated = core->kCompensated;
      p.c1_low = core->kSlopeLow;
      // An error of y costs most next to x*: c0 and little more is y there.
      const auto x_star = static_cast<double>(core->kXStar);
      if (p.compensated && core->kMasked && p.v_lo < x_star && x_star < p.v_hi) p.nominal_centre = x_star;
    }
    if (j == 0 && vanishes) {
      p.anchor = Piece::Anchor{0.0f, -0.0f};  // f(-0) = -0
      if (p.compensated) p.anchor->c1 = static_cast<float>(composite.gradient_at(Real(0)));
    }
    if (core == nullptr) {
      // p = f/scale has a normal leading coefficient; a subnormal y is rounded once, by the product with
      // the scale.
      const int e = std::ilogb(static_cast<double>(composite.value_at(Real(p.nominal_centre))));
      p.scale = std::ldexp(1.0, std::max(e, -149));
    }
    pieces.push_back(p);
  }
  return pieces;
}

/// The number of the first cell, counted away from 0 from where |x| is about 2, at whose middle f is as good
/// as its limit: within 2^-26 of it, where a float's nearest neighbour towards 0 lies 2^-24 away.
int cell_of_limit(const Composite& composite, double per_unit, int direction, double limit, int rows) {
  int j = direction * static_cast<int>(std::ceil(2 * per_unit));
  while (std::abs(j) <= rows &&
         (composite.activation().value_ball(Ball(j / per_unit)) - Ball(limit)).magnitude() >
             0x1p-26 * std::fabs(limit))
    j += direction;
  return j;
}

/// The last cell's number: x, or f's limit, stands for f(x) from its middle on.
int last_cell(const Composite& composite, const Cells& core, bool levels) {
  const Activation& activation = composite.activation();
  if (activation.linear_from_zero) return 0;
  const double per_unit = core.cells_per_unit;
  if (levels) return cell_of_limit(composite, per_unit, 1, composite.right_limit(), core.rows);
  // x stands for f(x) as soon as the relative difference is at most half an ulp at the top of a binade.
  int end = static_cast<int>(std::ceil(2 * per_unit));
  while (end < core.rows &&
         (Ball(1.0) - activation.value_ball(Ball(end / per_unit)) / Ball(end / per_unit)).magnitude() >
             0x1p-25)
    ++end;
  return end;
}

void lay_out_tail(const Composite& composite, const Cells& tail, ForwardModel& m) {
  m.kTailDegree = tail.degree;
  m.kTailRows = tail.rows;
  // |f| < 2^-150 rounds to 0. |f| falls towards -inf there: f' < 0 left of x*, or f rises from 0.
  constexpr double kFarLeft = -256;
  const double least = bisect(-2, kFarLeft, 60, [&](double x) {
                         return abs(composite.activation().value_ball(x)).magnitude() < 0x1p-150;
                       }).second;
  m.kXMin = std::nextafter(static_cast<float>(least), -INFINITY);
  const double per_unit = tail.cells_per_unit;
  const int first = static_cast<int>(std::nearbyint(static_cast<double>(m.kXMin) * per_unit)),
            last = static_cast<int>(std::nearbyint(static_cast<double>(m.kTailX) * per_unit));
  if (last - first + 1 > tail.rows)
    throw kernels::SpecError(fmt::format("tail: {} rows of 1/{} do not reach from {} to {}", tail.rows,
                                         per_unit, m.kXMin, m.kTailX));
  m.kTailIndexScale = static_cast<float>(per_unit);
  m.kTailIndexBias = magic(first, m.kTailRows);
  m.tail = cells_of(
      composite, {tail, first, last, static_cast<double>(m.kXMin), static_cast<double>(m.kTailX)}, nullptr);
}

}  // namespace

ForwardModel lay_out(const Composite& composite, const ForwardSpec& spec) {
  ForwardModel m;
  const Cells& core = spec.core;
  m.kDegree = core.degree;
  m.kRows = core.rows;
  m.kCompensated = spec.compensated;
  m.kMasked = composite.masked();
  if (m.kMasked) m.kXStar = least_with_bit(composite);
  if (m.kCompensated && vanishes_at_zero(composite)) {
    const Real slope = composite.gradient_at(Real(0));
    m.kSlopeLow = static_cast<float>(slope - Real(static_cast<float>(slope)));
  }
  m.kLevels = !std::isinf(composite.right_limit());
  const double per_unit = core.cells_per_unit;
  const int end = last_cell(composite, core, m.kLevels);
  m.kXMax = static_cast<float>(end) / static_cast<float>(per_unit);
  const bool fades = composite.left_limit() == 0;
  if (fades != spec.tail.has_value())
    throw kernels::SpecError(fades ? "tail: is needed, because f tends to 0 at the left"
                                   : "tail: f does not tend to 0 at the left");
  int first = end - core.rows + 1;
  if (!fades) {
    const int limit = cell_of_limit(composite, per_unit, -1, composite.left_limit(), core.rows);
    if (limit < first)
      throw kernels::SpecError(fmt::format("core: {} rows of 1/{} do not reach from {} to {}", core.rows,
                                           per_unit, limit / per_unit, m.kXMax));
    first = limit;
    m.kXMin = static_cast<float>(first) / static_cast<float>(per_unit);
  }
  if (first >= 0)
    throw kernels::SpecError(
        fmt::format("core: {} rows of 1/{} do not reach from {} to below 0", core.rows, per_unit, m.kXMax));
  m.kIndexScale = static_cast<float>(per_unit);
  m.kIndexBias = magic(first, m.kRows);
  if (fades) {
    // The end of the first cell need not be a float: the next x that has the cell's index.
    m.kTailX = static_cast<float>((first - 0.5) / per_unit);
    while (std::fma(m.kTailX, m.kIndexScale, m.kIndexBias) < kMagic + static_cast<float>(m.kRows))
      m.kTailX = std::nextafter(m.kTailX, 0.0f);
  }
  const double left = static_cast<double>(fades ? m.kTailX : m.kXMin);
  m.core = cells_of(composite, {core, first, end, left, static_cast<double>(m.kXMax)}, &m);
  if (fades) lay_out_tail(composite, *spec.tail, m);
  return m;
}

}  // namespace outgrad::approx
