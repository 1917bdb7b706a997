// Collects the tube of p that each x of a row allows, and searches words of the row that stay in it.
#include "approx/search/rounded_forward.h"

#include "approx/proof/certificate.h"
#include "approx/search/partition.h"
#include "approx/search/programme.h"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/host/errors.h"
#include "kernels/support/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

namespace outgrad::approx {
namespace {

using kernels::SpecError;

/// Samples of a row's tube, at the extrema of a Chebyshev polynomial; 80 resolve the maxima of a degree-4
/// error to 1/1000 of their height.
constexpr int kChebyshevSamples = 80;
/// The least tube tried: half of fp32's last rounding.
constexpr double kLeastTube = 0x1p-25;
/// A tube that serves no candidate is widened by so much, so often: from 2^-25 to 2^-13.
constexpr double kWiden = 1.15;
constexpr int kWidenings = 60;
/// Below it the rest beside x/2 hardly counts: such x are only measured.
constexpr double kSmall = 0x1p-20;
/// Neighbours of the best c4 tried on either side: its last bit moves p by up to 2^-27, and c3's grid with
/// it.
constexpr int kQuartics = 6;
/// Width of the search after c3, c2 and c1.
constexpr size_t kKeptCandidates = 60;
/// x at which the deployed error of candidates that round correctly is compared.
constexpr int kProbes = 2000;

/// x and y as floats, whatever the format.
struct StoredFormat {
  Format format;
  [[nodiscard]] float at(unsigned code) const { return widened(format, static_cast<std::uint16_t>(code)); }
  [[nodiscard]] unsigned code(float value) const { return narrowed(format, value); }
  [[nodiscard]] float rounded(float value) const { return at(code(value)); }
  [[nodiscard]] double least_subnormal() const { return static_cast<double>(at(1)); }
};
constexpr unsigned kCodes = 0x10000, kSign = 0x8000;

/// One row as kernels/eval.h reads it.
struct OneRow {
  std::array<float, RoundedForwardModel::kWords> word;
  [[nodiscard]] float at(kernels::u32, int k) const { return word[static_cast<size_t>(k)]; }
};

/// c0 ... c4.
using Coefficients = std::array<double, RoundedForwardModel::kDegree + 1>;

float deployed(const RoundedForwardModel& m, const OneRow& row, float x) {
  return kernels::evaluate_forward(kernels::FloatOps{}, m, row, x);
}

/// f(x)/x, or f(x) of a plain fit.
double target_at(const Composite& composite, bool plain, double x) {
  return (plain ? composite.activation().value_ball(Ball(x))
                : composite.quotient(Ball(x), Ball(0.0), 1, 1)[0])
      .to_double();
}

/// Code of the correctly rounded f(x) of an x whose f(x) is on no tie. f has x's sign, or, plain, none.
unsigned correct_code(const Composite& composite, const StoredFormat& stored, bool plain, float x) {
  const Ball f = composite.activation().value_ball(Ball(x));
  const unsigned sign = !plain && std::signbit(x) ? kSign : 0;
  if (sign != 0 ? f.positive() : f.negative())
    throw SpecError(fmt::format("kind forward: f({}) {}, which a rounded forward needs", x,
                                plain ? "is not positive" : "has not the sign of x"));
  unsigned magnitude = stored.code(static_cast<float>(f.mid())) & (kSign - 1);
  // |f| against the middles between neighbours; the float may lie on one that f does not.
  const Ball size = abs(f);
  const auto middle = [&](unsigned below) {
    return Ball(0.5 * (static_cast<double>(stored.at(below)) + static_cast<double>(stored.at(below + 1))));
  };
  const auto above = [&](unsigned below) {
    const Ball difference = size - middle(below);
    if (!difference.positive() && !difference.negative())
      throw SpecError(fmt::format("undecided: f({:a}) on a tie", static_cast<double>(x)));
    return difference.positive();
  };
  if (above(magnitude)) {
    ++magnitude;
  } else if (magnitude > 0 && !above(magnitude - 1)) {
    --magnitude;
  }
  return sign | magnitude;
}

/// How many finite x of the format a row at an end of the table rounds wrongly: those of its cell and all
/// beyond.
int misrounded_to_the_end(const Composite& composite, const RoundedForwardModel& m, const Piece& piece,
                          bool right) {
  const StoredFormat stored{m.format};
  const OneRow row{{piece.c[0], piece.c[1], piece.c[2], piece.c[3]}};
  const auto served = [&](float x) {
    return (right ? x >= m.kXMax : x <= m.kXMin) ||
           kernels::forward_index(kernels::FloatOps{}, m, x) == 0x1p23f + static_cast<float>(piece.row);
  };
  int wrong = 0;
  for (unsigned code = 0; code < kCodes; ++code) {
    const float x = stored.at(code);
    if (!std::isfinite(x) || (right ? x < static_cast<float>(piece.v_lo) : x > m.kXMin) || !served(x))
      continue;
    wrong += stored.code(deployed(m, row, x)) != correct_code(composite, stored, m.kPlain, x);
  }
  return wrong;
}

/// An x of the format, and the p about f(x)/x, or f(x), that give the right y.
struct Point {
  float x;
  unsigned y;
  double ratio, low, high;
};

class RowFitter {
 public:
  RowFitter(const Composite& composite, const RoundedForwardModel& model, Piece& piece)
      : composite_(composite), m_(model), stored_{model.format}, piece_(piece) {}

  void fit() {
    collect();
    sample();
    const auto free = solve(samples_, {}, kTop);
    if (!free)
      throw SpecError(fmt::format("undecided: the samples of row {} contradict each other", piece_.row));
    piece_.lower_bound = std::nextafter(free->level, 0.0);
    piece_.minimax = free->error;
    constexpr double kRoom = 1.03;
    double tube = std::max(kRoom * free->error, kLeastTube);
    for (int k = 0; k < kWidenings && misrounded_ > 0; ++k, tube *= kWiden) search(tube);
    if (misrounded_ == std::numeric_limits<int>::max())
      throw SpecError(fmt::format("row {}: no polynomial passes through the ranges", piece_.row));
    piece_.c.assign(best_.begin(), best_.end());
    for (const Range& s : samples_) piece_.found.see(std::abs(exact_error(s)), s.v);
    piece_.observed = piece_.found.error;
  }
  [[nodiscard]] int misrounded() const { return misrounded_; }

 private:
  static constexpr int kTop = RoundedForwardModel::kDegree + 1;

  [[nodiscard]] double ratio_at(double x) const { return target_at(composite_, m_.kPlain, x); }

  /// An end of the cell may be the next one's.
  [[nodiscard]] bool is_mine(float x) const {
    return kernels::forward_index(kernels::FloatOps{}, m_, x) == 0x1p23f + static_cast<float>(piece_.row);
  }

  void collect() {
    for (unsigned code = 0; code < kCodes; ++code) {
      const float x = stored_.at(code);
      const auto d = static_cast<double>(x);
      if (!(d >= piece_.v_lo && d <= piece_.v_hi) || d == 0 || !is_mine(x)) continue;
      Point p{x, correct_code(composite_, stored_, m_.kPlain, x), ratio_at(d), -INFINITY, INFINITY};
      if (m_.kPlain || std::abs(d) >= kSmall) range(p);
      points_.push_back(p);
    }
  }

  /// p for which the exact product, or p itself, rounds to a float that narrows to y: the last rounding,
  /// which is the one there is next to 0. What kPull does before it is undone.
  void range(Point& p) const {
    const unsigned magnitude = p.y & (kSign - 1);
    const auto size = [&](unsigned code) { return static_cast<double>(stored_.at(code)); };
    const double x = std::abs(static_cast<double>(p.x)),
                 factor = m_.kPlain ? 1 : x - static_cast<double>(m_.kPull * p.x);
    // an end of the range, next to the middle between `below` and the code after it
    const auto end = [&](unsigned below, bool low) {
      const float towards = low ? INFINITY : -INFINITY,
                  middle = static_cast<float>(0.5 * (size(below) + size(below + 1)));
      const float inside = stored_.code(middle) == magnitude ? middle : std::nextafter(middle, towards);
      return 0.5 * (static_cast<double>(inside) + static_cast<double>(std::nextafter(inside, -towards))) /
             factor;
    };
    p.high = end(magnitude, false);
    if (magnitude > 0) p.low = end(magnitude - 1, true);
  }

  void sample() {
    const double middle = 0.5 * (piece_.v_lo + piece_.v_hi), half = 0.5 * (piece_.v_hi - piece_.v_lo);
    for (int i = 0; i < kChebyshevSamples; ++i) {
      const double v = middle - half * std::cos(3.141592653589793 * i / (kChebyshevSamples - 1));
      const double ratio = ratio_at(v);
      samples_.push_back({v, ratio, std::abs(ratio)});
    }
  }

  [[nodiscard]] double u_of(double v) const { return v - static_cast<double>(piece_.centre); }

  [[nodiscard]] double exact_error(const Range& s) const {
    const double u = u_of(s.v);
    double p = 0;
    for (size_t k = best_.size(); k-- > 0;) p = p * u + static_cast<double>(best_[k]);
    return p / s.middle - 1;
  }

  /// The coefficients below c_top, with those from it on as in `fixed`; with an anchor c0 is known, too.
  [[nodiscard]] std::optional<ProgrammeSolution> solve(const std::vector<Range>& ranges,
                                                       const Coefficients& fixed, int top) const {
    const int lowest = piece_.anchor ? 1 : 0;
    std::vector<Range> rest;
    rest.reserve(ranges.size());
    for (const Range& r : ranges) {
      const double u = u_of(r.v);
      double known = 0;
      for (int k = RoundedForwardModel::kDegree; k >= top; --k)
        known = known * u + fixed[static_cast<size_t>(k)];
      known *= std::pow(u, top);
      if (lowest == 1) {
        if (u == 0) continue;
        known += static_cast<double>(piece_.anchor->c0);
      }
      const double scale = lowest == 1 ? u : 1;
      rest.push_back({r.v, (r.middle - known) / scale, r.tolerance / std::abs(scale)});
    }
    auto solution = solve_programme(rest, top - 1 - lowest, static_cast<double>(piece_.centre));
    if (solution && lowest == 1)
      solution->c.insert(solution->c.begin(), static_cast<double>(piece_.anchor->c0));
    return solution;
  }

  /// The tube, narrowed where the format's rounding asks for it.
  [[nodiscard]] std::vector<Range> ranges_within(double tube) const {
    std::vector<Range> all;
    for (Range s : samples_) {
      s.tolerance *= tube;
      all.push_back(s);
    }
    for (const Point& p : points_) {
      const double low = p.ratio * (1 - tube), high = p.ratio * (1 + tube);
      if (p.low <= low && p.high >= high) continue;
      const double a = std::max(low, p.low), b = std::min(high, p.high);
      if (!(a < b)) return {};
      all.push_back({static_cast<double>(p.x), 0.5 * (a + b), 0.5 * (b - a)});
    }
    std::stable_sort(all.begin(), all.end(), [](const Range& a, const Range& b) { return a.v < b.v; });
    return all;
  }

  struct Candidate {
    Coefficients c;
    double error;
  };
  static void keep_best(std::vector<Candidate>& beam) {
    std::stable_sort(beam.begin(), beam.end(),
                     [](const Candidate& a, const Candidate& b) { return a.error < b.error; });
    if (beam.size() > kKeptCandidates) beam.resize(kKeptCandidates);
  }

  void search(double tube) {
    const std::vector<Range> ranges = ranges_within(tube);
    if (ranges.empty()) return;
    const auto real = solve(ranges, {}, kTop);
    if (!real || real->error > 1) return;
    std::vector<Candidate> beam = quartics_and_cubics(ranges, *real);
    keep_best(beam);
    for (int k = 2; k >= (piece_.anchor ? 1 : 0); --k) {
      std::vector<Candidate> next;
      for (const Candidate& from : beam) {
        const auto nearest = static_cast<float>(from.c[static_cast<size_t>(k)]);
        for (const float choice :
             {nearest, std::nextafter(nearest, -INFINITY), std::nextafter(nearest, INFINITY)}) {
          Candidate to = from;
          to.c[static_cast<size_t>(k)] = static_cast<double>(choice);
          to.error = complete(ranges, to.c, k);
          next.push_back(to);
        }
      }
      beam = std::move(next);
      keep_best(beam);
    }
    for (const Candidate& c : beam) measure(c.c);
  }

  /// Fills in what is below c_k; the error with it.
  double complete(const std::vector<Range>& ranges, Coefficients& c, int k) const {
    if (k > (piece_.anchor ? 1 : 0)) {
      const auto solution = solve(ranges, c, k);
      if (!solution) return INFINITY;
      std::copy(solution->c.begin(), solution->c.end(), c.begin());
      return solution->error;
    }
    double worst = 0;
    for (const Range& r : ranges) {
      const double u = u_of(r.v);
      double p = 0;
      for (size_t j = c.size(); j-- > 0;) p = p * u + c[j];
      worst = std::max(worst, std::abs(p - r.middle) / r.tolerance);
    }
    return worst;
  }

  std::vector<Candidate> quartics_and_cubics(const std::vector<Range>& ranges,
                                             const ProgrammeSolution& real) const {
    const int shift = m_.kQuarticShift;
    const kernels::u32 step = 1U << shift, cubic_step = 1U << (32 - shift);
    std::vector<float> quartics;
    const kernels::u32 nearest = kernels::bits_of(static_cast<float>(real.c[4])) / step * step;
    for (int d = -kQuartics; d <= kQuartics; ++d)
      quartics.push_back(kernels::float_of(nearest + static_cast<kernels::u32>(d) * step));
    // Where p - c0 is odd, c4 is next to nothing, and its exponent is free to give c3 its low bits.
    if (piece_.anchor) {
      for (int e = -60; e <= -8; ++e) {
        for (const float size : {1.0f, 1.25f}) {
          quartics.push_back(std::ldexp(size, e));
          quartics.push_back(-std::ldexp(size, e));
        }
      }
    }
    std::vector<Candidate> found;
    for (const float c4 : quartics) {
      if (!(std::abs(c4) < 1)) continue;  // over the edge of the exponents
      Coefficients c{};
      c[4] = static_cast<double>(c4);
      const auto wanted = solve(ranges, c, 4);
      if (!wanted) continue;
      const kernels::u32 cubic = kernels::bits_of(static_cast<float>(wanted->c[3])) / cubic_step * cubic_step;
      for (int d = -1; d <= 1; ++d) {
        const float c3 = kernels::float_of((cubic + static_cast<kernels::u32>(d) * cubic_step) |
                                           kernels::bits_of(c4) >> shift);
        if (!std::isfinite(c3)) continue;
        Candidate candidate{c, 0};
        candidate.c[3] = static_cast<double>(c3);
        candidate.error = complete(ranges, candidate.c, 3);
        found.push_back(candidate);
      }
    }
    return found;
  }

  void measure(const Coefficients& c) {
    const auto word = [&](size_t k) { return static_cast<float>(c[k]); };
    const OneRow row{{word(0), word(1), word(2), word(3)}};
    int misrounded = 0;
    for (const Point& p : points_) misrounded += stored_.code(deployed(m_, row, p.x)) != p.y;
    if (misrounded > misrounded_) return;
    double worst = 0;
    for (int i = 0; i < kProbes; ++i) {
      const auto x = static_cast<float>(piece_.v_lo + (piece_.v_hi - piece_.v_lo) * (i + 0.37) / kProbes);
      const auto d = static_cast<double>(x);
      if (std::abs(d) < kSmall) continue;
      worst = std::max(
          worst, std::abs(static_cast<double>(deployed(m_, row, x)) / composite_.activation().value(d) - 1));
    }
    if (misrounded == misrounded_ && worst >= worst_) return;
    misrounded_ = misrounded;
    worst_ = worst;
    for (size_t k = 0; k < best_.size(); ++k) best_[k] = word(k);
  }

  const Composite& composite_;
  const RoundedForwardModel& m_;
  StoredFormat stored_;
  Piece& piece_;
  std::vector<Point> points_;
  std::vector<Range> samples_;  ///< the values f(x)/x, with their size as tolerance
  std::array<float, RoundedForwardModel::kDegree + 1> best_{};
  int misrounded_ = std::numeric_limits<int>::max();
  double worst_ = INFINITY;
};

/// Constants and cells.
RoundedForwardModel laid_out(const Composite& composite, const RoundedForwardSpec& spec) {
  RoundedForwardModel m;
  const StoredFormat stored{spec.format};
  m.format = spec.format;
  m.kMasked = composite.masked();
  if (m.kMasked) m.kXStar = least_with_bit(composite);
  m.kXMax = spec.x_max;
  m.kRows = spec.rows;
  m.kCoreRows = spec.core_rows;
  m.kQuarticShift = spec.quartic_shift;
  const Ball at_zero = composite.activation().value_ball(Ball(0.0));
  m.kPlain = !at_zero.holds_zero();
  const double right_limit = composite.right_limit();
  const bool follows_x = std::isinf(right_limit);
  if (!follows_x) {
    m.kEnd = m.kXMax;
  } else if (m.kPlain) {
    m.kEnd = std::numeric_limits<float>::max();  // of an infinite x the row's zeros would make a NaN
  }
  // The first x from -2 leftwards at which f has rounded to its limit.
  const unsigned limit = stored.code(static_cast<float>(composite.left_limit())) | (m.kPlain ? 0 : kSign);
  unsigned code = stored.code(-2.0f);
  while (std::isfinite(stored.at(code)) &&
         correct_code(composite, stored, m.kPlain, stored.at(code)) != limit)
    ++code;
  m.kXMin = stored.at(code);
  if (!std::isfinite(m.kXMin))
    throw SpecError("kind forward: f rounds to no limit at the left, which a rounded forward needs");
  if (spec.x_min) {
    if (*spec.x_min > m.kXMin)
      throw SpecError(fmt::format("x_min: f(x) rounds to its limit from {} leftwards alone", m.kXMin));
    m.kXMin = *spec.x_min;
  }
  const Ball p_at_zero = m.kPlain ? at_zero : composite.gradient(Ball(0.0), 1)[0];
  const auto nearest = static_cast<float>(p_at_zero.mid());
  const bool anchored = (p_at_zero - Ball(nearest)).magnitude() < 0x1p-90;
  if (anchored && !m.kPlain && nearest == 0.5f) {
    // half the least subnormal is the least tie
    const int exponent = std::ilogb(0.5 * stored.least_subnormal());
    m.kTie = static_cast<float>(std::ldexp(1.0, std::max(exponent - 23, -149)));
  }
  const double cells = spec.cells_per_unit;
  int first = static_cast<int>(std::nearbyint(static_cast<double>(m.kXMin) * cells));
  // Below 2^23 floats lie half as far apart: an index further than a quarter before that of row 0 is not
  // rounded to it.
  if (static_cast<double>(m.kXMin) * cells < first - 0.25) m.kXMin = static_cast<float>(--first / cells);
  const int last = static_cast<int>(std::nearbyint(static_cast<double>(m.kXMax) * cells));
  const int used = last - first + 1;
  if (used > spec.rows || used < spec.core_rows) {
    throw SpecError(fmt::format("rows: cells of 1/{} from {} to {} are {} rows, of {} with {} in the core",
                                spec.cells_per_unit, m.kXMin, m.kXMax, used, spec.rows, spec.core_rows));
  }
  m.kCoreFirst = used - spec.core_rows;
  m.kIndexScale = static_cast<float>(spec.cells_per_unit);
  m.kIndexBias = 0x1p23f - static_cast<float>(first);
  for (int j = first; j <= last; ++j) {
    Piece p;
    p.row = j - first;
    p.coordinate = Coordinate::argument;
    p.target = m.kPlain ? Target::value_relative : Target::ratio_relative;
    p.v_lo = std::max((j - 0.5) / cells, static_cast<double>(m.kXMin));
    p.v_hi = std::min((j + 0.5) / cells, static_cast<double>(m.kXMax));
    p.x_lo = Real(p.v_lo);
    p.x_hi = Real(p.v_hi);
    p.degree = RoundedForwardModel::kDegree;
    p.nominal_centre = j / cells;
    p.centre = static_cast<float>(p.nominal_centre);
    if (j == 0 && anchored) p.anchor = Piece::Anchor{0.0f, nearest};
    p.constant = j == last && follows_x && p.v_lo > 0;
    m.pieces.push_back(p);
  }
  return m;
}

/// None if the row of x = 0 does without, or a sign with which it rounds every x of the format correctly.
/// Where ties at x/2 are decided by kTie, a pull would undo that.
void choose_pull(const Composite& composite, RoundedForwardModel& m) {
  const auto middle =
      std::find_if(m.pieces.begin(), m.pieces.end(), [](const Piece& p) { return p.nominal_centre == 0; });
  if (m.kPlain || m.kTie != 0 || middle == m.pieces.end()) return;
  // More than a half, less than one and a half of fp32's last place, whatever the significand.
  constexpr float kPull = 0x1.4p-24f;
  for (const float pull : {0.0f, kPull, -kPull, 0.0f}) {
    m.kPull = pull;
    Piece trial = *middle;
    try {
      RowFitter fitter(composite, m, trial);
      fitter.fit();
      if (fitter.misrounded() == 0) return;
    } catch (const SpecError&) {
      continue;  // the last turn leaves it to the fit of the row to say why
    }
  }
}

}  // namespace

RoundedForwardModel fit_rounded_forward(const Composite& composite, const RoundedForwardSpec& spec,
                                        const std::string& name, Stage& rows) {
  RoundedForwardModel m = laid_out(composite, spec);
  choose_pull(composite, m);
  rows.expect(static_cast<std::int64_t>(m.pieces.size()));
  kernels::for_each_task(m.pieces.size(), 0, [&](size_t i) {
    Piece& p = m.pieces[i];
    if (p.constant) {
      // y = x
      p.c = m.kPlain ? std::vector<float>{p.centre, 1, 0, 0, 0} : std::vector<float>{1, 0, 0, 0, 0};
      p.observed = std::abs((m.kPlain ? p.v_lo : 1) / target_at(composite, m.kPlain, p.v_lo) - 1);
      p.found = {p.observed, p.v_lo};
    } else {
      RowFitter fitter(composite, m, p);
      fitter.fit();
      if (fitter.misrounded() > 0) {
        throw SpecError(
            fmt::format("{}: row {} (x in [{:.4f}, {:.4f}]) rounds {} x of the format wrongly: more cells, "
                        "or another quartic_shift",
                        name, p.row, p.v_lo, p.v_hi, fitter.misrounded()));
      }
    }
    for (const bool right : {false, true}) {
      if (p.row != (right ? m.pieces.back().row : 0)) continue;
      if (const int wrong = misrounded_to_the_end(composite, m, p, right); wrong > 0) {
        throw SpecError(fmt::format("{}: {}{} x of the format {} {:.4f} are not rounded correctly{}", name,
                                    right ? "x_max: " : "", wrong, right ? "from" : "up to",
                                    right ? p.v_lo : static_cast<double>(m.kXMin),
                                    right ? ": a larger x_max" : ""));
      }
    }
    p.certified = certify_approximation(composite, p, 0);
    rows.tick();
  });
  flint_cleanup();
  for (const Piece& p : m.pieces) {
    m.kA = std::max(m.kA, p.certified);
    if (p.row >= m.kCoreFirst) m.kCoreA = std::max(m.kCoreA, p.certified);
  }
  return m;
}

}  // namespace outgrad::approx
