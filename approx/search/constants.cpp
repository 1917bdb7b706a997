// Lists the storage intervals next to the minimum, and searches the constants by which rows reach the middles
// of these.
#include "approx/search/constants.h"

#include "approx/search/programme.h"
#include "kernels/host/errors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>
#include <utility>

namespace outgrad::approx {
namespace {

/// Ranges are listed up to this share of |s| = sqrt(-y*), where the left branch ends.
constexpr double kListedShare = 0.6;

/// g up to there by barycentric interpolation in 33 Chebyshev points: error below 1e-12, nothing beside R >=
/// 1e-6.
class LocalGradient {
 public:
  explicit LocalGradient(const Composite& composite)
      : reach_(kListedShare * std::sqrt(-composite.y_star().to_double())) {
    for (int k = 0; k < kPoints; ++k) {
      const double node = reach_ * std::cos(std::numbers::pi * k / (kPoints - 1));
      s_.push_back(node);
      g_.push_back(static_cast<double>(composite.gradient_at(composite.argument_of_root(Real(node)))));
    }
  }
  double operator()(double s) const {
    double above = 0, below = 0;
    for (size_t k = 0; k < s_.size(); ++k) {
      if (s == s_[k]) return g_[k];
      const double weight =
          (k % 2 == 0 ? 1.0 : -1.0) * (k == 0 || k + 1 == s_.size() ? 0.5 : 1.0) / (s - s_[k]);
      above += weight * g_[k];
      below += weight;
    }
    return above / below;
  }
  [[nodiscard]] double reach() const { return reach_; }

 private:
  double reach_;
  static constexpr int kPoints = 33;
  std::vector<double> s_, g_;
};

/// Stored y beyond this many spacings above y* are not touched by the constants any more.
constexpr int kHeights = 200;
/// Quotients stand for balls of x. So many of them are looked at over the length of a ball, and fewer from
/// one ball above y* on. Half a ball above is among them: the last whose ball reaches x*, and so the worst.
constexpr int kQuotientsABall = 64, kPartsOfHeight = 16;

/// `heights` has those of the right and of the left branch.
std::vector<StoredRange> intervals_of_reals(const LocalGradient& g,
                                            const std::array<std::vector<double>, 2>& heights,
                                            double spacing) {
  std::vector<StoredRange> r;
  for (size_t j = 0; j < heights[0].size(); ++j) {
    for (const bool right : {true, false}) {
      const double height = heights[right ? 0 : 1][j];
      if (std::sqrt((height + 1) * spacing) > g.reach() || height <= -0.5) continue;
      const double below = std::sqrt(std::max(0.0, height - 0.5) * spacing),
                   above = std::sqrt((height + 0.5) * spacing);
      r.push_back(right ? StoredRange{height, true, g(below), g(above)}
                        : StoredRange{height, false, g(-above), g(-below)});
    }
  }
  return r;
}

/// A number at or beyond the last x, on this side of x*, at which f is at most `height` above y*.
double last_within(const Composite& composite, bool right, double height) {
  const Activation& f = composite.activation();
  const double most = composite.y_star().to_double() + height;
  const double far = right ? f.reach : -f.reach;
  if (f.value(far) <= most) return right ? INFINITY : -INFINITY;
  return bisect(composite.x_star().to_double(), far, 60, [&](double x) { return !(f.value(x) <= most); })
      .second;
}

std::vector<StoredRange> intervals_of_format(const Composite& composite, Format format, double reach,
                                             double lowest, double spacing) {
  const double x_star = composite.x_star().to_double(), y_star = composite.y_star().to_double();
  // A first look in double keeps those out that are far away.
  const double height_in_double = 1.01 * reach * reach;
  const double first = last_within(composite, false, height_in_double),
               last = last_within(composite, true, height_in_double);
  const FormatShape shape = shape_of(format);
  std::map<std::pair<int, bool>, StoredRange> found;
  for (std::uint32_t code = 0; code < 2U << shape.sign_bit(); ++code) {
    const double x = decode(format, code);
    if (!std::isfinite(x) || x < first || x > last) continue;
    const double height = (static_cast<double>(composite.value_at(Real(x)) - Real(y_star))) / spacing;
    if (height * spacing > reach * reach) continue;
    const int j = static_cast<int>(std::nearbyint(height - lowest));
    if (j >= kHeights) continue;
    const double g = static_cast<double>(composite.gradient_at(Real(x)));
    auto [place, fresh] = found.try_emplace({j, x > x_star}, StoredRange{lowest + j, x > x_star, g, g});
    place->second.lo = std::min(place->second.lo, g);
    place->second.hi = std::max(place->second.hi, g);
  }
  std::vector<StoredRange> r;
  for (const auto& entry : found) r.push_back(entry.second);
  return r;
}

/// Samples of g that hold a row's polynomial in its tube: Chebyshev points, between 64 of which one of degree
/// 4 leaves it by less than 1/100 of its width; the certificate has the last word.
constexpr int kTubeSamples = 64;
/// Share of the target that the tube leaves to what lies between its samples and to fp32 coefficients.
constexpr double kTubeRoom = 0x1p-7;

/// A row that is fitted to the ranges in it.
struct ProgrammedRow {
  double v_lo, v_hi, centre;
  int degree;
  std::vector<Range> tube;
  [[nodiscard]] bool holds(double s) const { return s >= v_lo && s <= v_hi; }
};

double evaluate(const std::vector<double>& c, double u) {
  double p = 0;
  for (size_t k = c.size(); k-- > 0;) p = p * u + c[k];
  return p;
}

}  // namespace

class NearMinimum::Data {
 public:
  Data(const Composite& of, Format y_format, Format product)
      : composite(of), format(y_format), g(of), quotients(product != Format::f32),
        spacing(of.spacing_at_minimum(precision_bits(y_format)) * (carries_branch(y_format) ? 2 : 1)) {
    const double y_star = composite.y_star().to_double();
    if (quotients) {
      const ProductBall ball = product_ball(product);
      spacing = 2 * (ball.relative * -y_star + ball.absolute);
      std::vector<double> heights;
      for (double h = -0.5; h * spacing < g.reach() * g.reach();)
        heights.push_back(h += std::max(1.0 / kQuotientsABall, (h - 1) / kPartsOfHeight));
      add(intervals_of_reals(g, {heights, heights}, spacing));
      return;
    }
    // Each second number of a parity format belongs to a branch: even ones are multiples of the spacing, odd
    // ones lie midway.
    const auto first = [&](double offset) {
      return std::floor(y_star / spacing - offset) + offset - y_star / spacing;
    };
    const std::array lowest{first(0), first(carries_branch(format) ? 0.5 : 0)};
    std::array<std::vector<double>, 2> heights;
    for (int j = 0; j < kHeights; ++j) {
      for (const size_t branch : {0, 1}) heights[branch].push_back(lowest[branch] + j);
    }
    add(intervals_of_reals(g, heights, spacing));
    // An x is stored in 16 bits or more, whatever y is stored in.
    if (format == Format::f16 || format == Format::bf16)
      add(intervals_of_format(composite, format, g.reach(), lowest[0], spacing));
  }

  void add(std::vector<StoredRange> ranges) {
    double oracle = 0;
    for (const StoredRange& i : ranges) oracle = std::max(oracle, i.half());
    domains.push_back({std::move(ranges), oracle});
  }

  /// The coordinate of a stored y with constants in units of the spacing.
  [[nodiscard]] double coordinate(const StoredRange& i, double shift, double floor) const {
    const double s = std::sqrt(std::max(i.height - shift, floor) * spacing);
    return i.right ? s : -s;
  }

  [[nodiscard]] ProgrammedRow programmed(const Piece& p) const {
    const double centre = p.centre_is_0 ? 0 : static_cast<double>(static_cast<float>(p.nominal_centre));
    ProgrammedRow row{p.v_lo, p.v_hi, centre, static_cast<int>(p.c.size()) - 1, {}};
    for (int k = 0; k < kTubeSamples; ++k) {
      const double v = 0.5 * (p.v_lo + p.v_hi) -
                       0.5 * (p.v_hi - p.v_lo) * std::cos(std::numbers::pi * k / (kTubeSamples - 1));
      row.tube.push_back({v, static_cast<double>(composite.gradient_at(composite.argument_of_root(Real(v)))),
                          p.allowed * (1 - kTubeRoom)});
    }
    return row;
  }

  /// The best polynomial of a row when the goal is stretched: T/O - 1 and R by that factor.
  [[nodiscard]] std::optional<ProgrammeSolution> solve(const ProgrammedRow& row, const StorageGoal& goal,
                                                       double stretch, double shift, double floor) const {
    std::vector<Range> ranges = row.tube;
    for (const Domain& domain : domains) {
      for (const StoredRange& i : domain.ranges) {
        const double s = coordinate(i, shift, floor);
        if (row.holds(s)) ranges.push_back({s, i.middle(), tolerance(goal, stretch, domain, i)});
      }
    }
    std::stable_sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.v < b.v; });
    return solve_programme(ranges, row.degree, row.centre);
  }

  struct Domain {
    std::vector<StoredRange> ranges;
    double oracle;
  };
  static double tolerance(const StorageGoal& goal, double stretch, const Domain& domain,
                          const StoredRange& i) {
    const double regret = stretch * goal.regret;
    // Where no two x share a (y, bit), T is R: there is no O to compare it with.
    return (domain.oracle > 0 ? std::min((1 + stretch * (goal.ratio - 1)) * domain.oracle - i.half(), regret)
                              : regret) -
           kRoundingRoom;
  }

  const Composite& composite;
  Format format;
  LocalGradient g;
  bool quotients;
  double spacing;  ///< between the numbers of one branch; of quotients, the length of the ball of each
  std::vector<Domain> domains;
};

NearMinimum::NearMinimum(const Composite& composite, Format format, Format product)
    : data_(std::make_unique<const Data>(composite, format, product)) {}
NearMinimum::~NearMinimum() = default;

double NearMinimum::reach() const { return data_->g.reach(); }

double NearMinimum::least_ratio() const {
  double least = 1;
  for (const Data::Domain& a : data_->domains) {
    for (const Data::Domain& b : data_->domains) {
      for (const StoredRange& i : a.ranges) {
        for (const StoredRange& j : b.ranges) {
          // A value within ratio O of both ends: hi - ratio O_a <= lo + ratio O_b.
          if (i.height == j.height && i.right == j.right && a.oracle + b.oracle > 0)
            least = std::max(least, (i.hi - j.lo) / (a.oracle + b.oracle));
        }
      }
    }
  }
  return least;
}

/// The search of choose_constants().
class NearMinimum::Choosing {
 public:
  Choosing(const Data& data, const StorageGoal& goal, const std::vector<Piece>& rows)
      : d_(data), goal_(goal) {
    for (const Piece& row : rows) {
      if (row.storage_aware) programmed_.push_back(d_.programmed(row));
      if (row.c.empty() || row.coordinate != Coordinate::signed_root) continue;
      fitted_.push_back({row.v_lo, row.v_hi, static_cast<double>(row.centre), {row.c.begin(), row.c.end()}});
    }
  }

  CoordinateConstants run() {
    // A goal that asks one (y, bit) for two gradients is stretched until it does not, in small steps and then
    // in large ones. Where that does not help, no row is fitted to it: the constants are chosen for g.
    constexpr double kStretch = 1 + 0x1p-5;
    constexpr int kSmallSteps = 64, kSteps = kSmallSteps + 10;
    for (int step = 0; !consider_all(); ++step) {
      if (step < kSteps) {
        stretch_ *= step < kSmallSteps ? kStretch : 2;
      } else if (!programmed_.empty()) {
        programmed_.clear();
      } else {
        throw kernels::SpecError(
            "undecided: next to the minimum no y_c and t_min that were tried give a finite error");
      }
    }
    for (double width : {1 / 250.0, 1 / 1000.0}) {
      const Choice around = best_;
      for (int i = -5; i <= 5; ++i) {
        for (int k = -5; k <= 5; ++k)
          consider(around.shift + i * width, std::max(kLeast, around.floor + k * width));
      }
    }
    const Real y_c = d_.composite.y_star().mid() + Real(best_.shift * d_.spacing);
    const auto y_hi = static_cast<float>(y_c);
    // A single float is fine enough for the 16-bit grids (1/16384 of a bf16 spacing) and saves a subtraction.
    const float y_lo =
        d_.format == Format::f32 && !d_.quotients ? static_cast<float>(y_c - Real(y_hi)) : 0.0f;
    return {y_hi, y_lo, static_cast<float>(best_.floor * d_.spacing), best_.ratio, best_.regret, considered_};
  }

 private:
  struct Fitted {
    double v_lo, v_hi, centre;
    std::vector<double> c;
  };
  struct Choice {
    double shift = 0, floor = 0, cost = INFINITY, ratio = 0, regret = 0;
  };
  static constexpr double kLeast =
      1.0 / 1024;  // the floor stays positive: the square root is of a normal number

  /// In units of the spacing: the optimum lies within half a spacing of y*; 1/50 first, then 1/1000 around
  /// the best.
  bool consider_all() {
    for (int i = -15; i <= 25; ++i) {
      for (int k = 0; k <= 35; ++k) consider(i / 50.0, std::max(kLeast, k / 50.0));
    }
    return best_.cost < INFINITY;
  }

  void consider(double shift, double floor) {
    ++considered_;
    Choice c{shift, floor, 0, 0, 0};
    std::vector<ProgrammeSolution> solved;
    for (const ProgrammedRow& row : programmed_) {
      auto solution = d_.solve(row, goal_, stretch_, shift, floor);
      if (!solution || solution->error >= best_.cost) return;
      c.cost = std::max(c.cost, solution->error);
      solved.push_back(std::move(*solution));
    }
    for (const Data::Domain& domain : d_.domains) {
      double total = 0, regret = 0;
      for (const StoredRange& i : domain.ranges) {
        const double s = d_.coordinate(i, shift, floor), off = std::abs(gradient(s, solved) - i.middle());
        regret = std::max(regret, off);
        total = std::max(total, off + i.half());
      }
      if (domain.oracle > 0) c.ratio = std::max(c.ratio, total / domain.oracle);
      c.regret = std::max(c.regret, regret);
    }
    // What a programme leaves unused of a goal it has reached is not for sale.
    if (programmed_.empty() || c.cost < 1)
      c.cost = std::max({c.cost, (c.ratio - 1) / (goal_.ratio - 1), c.regret / goal_.regret});
    if (c.cost < best_.cost) best_ = c;
  }

  /// What is deployed, with these solutions of the programmed rows; elsewhere g.
  [[nodiscard]] double gradient(double s, const std::vector<ProgrammeSolution>& solved) const {
    for (size_t k = 0; k < programmed_.size(); ++k) {
      if (programmed_[k].holds(s)) return evaluate(solved[k].c, s - programmed_[k].centre);
    }
    for (const Fitted& row : fitted_) {
      if (s >= row.v_lo && s <= row.v_hi) return evaluate(row.c, s - row.centre);
    }
    return d_.g(s);
  }

  const Data& d_;
  const StorageGoal& goal_;
  std::vector<ProgrammedRow> programmed_;
  std::vector<Fitted> fitted_;
  Choice best_;
  double stretch_ = 1;
  int considered_ = 0;
};

CoordinateConstants NearMinimum::choose_constants(const StorageGoal& goal,
                                                  const std::vector<Piece>& rows) const {
  return Choosing(*data_, goal, rows).run();
}

bool NearMinimum::fit(const StorageGoal& goal, const CoordinateConstants& constants, Piece& row) const {
  const Data& d = *data_;
  const double shift =
      static_cast<double>(Real(constants.y_hi) + Real(constants.y_lo) - d.composite.y_star().mid()) /
      d.spacing;
  const double floor = static_cast<double>(constants.t_min) / d.spacing;
  const ProgrammedRow programmed = d.programmed(row);
  const auto at = [&](double stretch) { return d.solve(programmed, goal, stretch, shift, floor); };
  const auto serves = [](const std::optional<ProgrammeSolution>& s) { return s && s->error <= 1; };
  auto found = at(1);
  if (!serves(found)) {
    // ranges that long ask for nothing: only the tube is left
    constexpr double kMost = 1024, kStep = 0x1p-10;
    double lo = 1, hi = 1;
    while (!serves(found) && hi < kMost) {
      lo = hi;
      hi *= 2;
      found = at(hi);
    }
    if (!serves(found)) return false;
    while (hi - lo > kStep * hi) {
      const double mid = 0.5 * (lo + hi);
      if (auto tighter = at(mid); serves(tighter)) {
        hi = mid;
        found = std::move(tighter);
      } else {
        lo = mid;
      }
    }
  }
  row.centre = static_cast<float>(programmed.centre);
  row.c.assign(found->c.begin(), found->c.end());
  row.c0_low = 0;
  row.degree = programmed.degree;
  return true;
}

}  // namespace outgrad::approx
