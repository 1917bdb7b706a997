// Covers the constants by boxes, and refutes each by a few storage intervals that no polynomial meets.
#include "approx/search/reach.h"

#include "approx/progress.h"
#include "approx/search/programme.h"
#include "approx/search/remez.h"
#include "kernels/eval.h"
#include "kernels/host/errors.h"
#include "kernels/support/parallel.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <ranges>
#include <span>

namespace outgrad::approx {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic>;
using Vector = Eigen::Matrix<double, Eigen::Dynamic, 1>;

/// Candidates: this many pairs next to y* on each branch, and from there on one every so much of s, closer
/// where g bends, at y = 0-.
constexpr size_t kDenseAtMinimum = 16;
constexpr double kStep = 0x1p-6, kFineStep = 0x1p-10, kFineFrom = -0x1p-6;

double infinity() { return std::numeric_limits<double>::infinity(); }

double larger(double a, double b) { return std::max(a, b); }
Ball larger(const Ball& a, const Ball& b) {
  return (a - b).positive() ? a : (b - a).positive() ? b : Ball::hull(a, b);
}

/// An end of the range of |v|.
enum class End { least, most };

/// |v| at an end of its range over the box, over doubles or balls, without the rounding of the coordinate: it
/// rises with floor and clamps and falls as y_c (or 1/(y_first - y_c)) rises.
template <class Scalar>
Scalar magnitude_at(const ReachDomain& domain, const ReachPair& pair, const ReachBox& box, End end) {
  using std::sqrt;
  const auto& most = end == End::most ? box.hi : box.lo;
  const double a = (end == End::most ? box.lo : box.hi)[kCentreAxis],
               clamped = std::min(pair.y, most[pair.m ? kRightAxis : kLeftAxis]);
  const auto root = [&](double e) { return e <= a ? Scalar(0.0) : sqrt(Scalar(e) - Scalar(a)); };
  switch (box.region) {
    case ReachRegion::near: return larger(root(clamped), Scalar(most[kFloorAxis]));
    case ReachRegion::middle: return root(std::max(clamped, most[kFloorAxis]));
    case ReachRegion::far: break;
  }
  const Scalar z = Scalar(std::max(clamped, most[kFloorAxis])) - Scalar(domain.y_first);
  return Scalar(2.0) * z / (Scalar(1.0) + sqrt(Scalar(1.0) + Scalar(a) * z));
}

/// Whether the box says where the pair's coordinate is: not beyond a y_max without bound; the far region is
/// for the right branch alone.
bool usable(const ReachPair& pair, const ReachBox& box) {
  if (!pair.m) return box.region != ReachRegion::far;
  return std::isfinite(box.hi[kRightAxis]) || pair.y <= box.lo[kRightAxis];
}

struct CoordinateRange {
  double lo, hi;
  [[nodiscard]] double mid() const { return 0.5 * (lo + hi); }
  [[nodiscard]] double radius() const { return 0.5 * (hi - lo); }
};

/// In double, for the search alone.
CoordinateRange range_of(const ReachProblem& problem, const ReachPair& pair, const ReachBox& box) {
  double lo = magnitude_at<double>(problem.domain, pair, box, End::least),
         hi = magnitude_at<double>(problem.domain, pair, box, End::most);
  if (box.region != ReachRegion::far) {
    lo *= 1 - kCoordinateRounding;
    hi *= 1 + kCoordinateRounding;
  }
  return pair.m ? CoordinateRange{lo, hi} : CoordinateRange{-hi, -lo};
}

Ball ball_of(const ReachProblem& problem, const ReachPair& pair, const ReachBox& box) {
  Ball v = Ball::hull(magnitude_at<Ball>(problem.domain, pair, box, End::least),
                      magnitude_at<Ball>(problem.domain, pair, box, End::most));
  if (box.region != ReachRegion::far) v = v * Ball::hull(1 - kCoordinateRounding, 1 + kCoordinateRounding);
  return pair.m ? v : -v;
}

/// q over v, as its Taylor polynomial about the middle of v: the ball v enters with the small factor v -
/// middle only.
Ball value_over(const std::vector<double>& q, const Ball& v) {
  std::vector<Ball> c(q.begin(), q.end());
  const Ball middle = v.midpoint(), off = v - middle;
  for (size_t k = 0; k + 1 < c.size(); ++k) {
    for (size_t j = c.size() - 1; j-- > k;) c[j] = c[j] + c[j + 1] * middle;
  }
  Ball sum = c.back();
  for (size_t j = c.size() - 1; j-- > 0;) sum = sum * off + c[j];
  return sum;
}

struct Spread {
  double value, most;  ///< q at the middle; |q - value| over the range at most
};

Spread spread_of(const std::vector<double>& q, const CoordinateRange& range) {
  std::array<double, kernels::kLargestDegree + 1> c{};
  std::copy(q.begin(), q.end(), c.begin());
  const double middle = range.mid();
  for (size_t k = 0; k + 1 < q.size(); ++k) {
    for (size_t j = q.size() - 1; j-- > k;) c[j] += c[j + 1] * middle;
  }
  double most = 0;
  for (size_t j = q.size(); j-- > 1;) most = (most + std::abs(c[j])) * range.radius();
  return {c[0], most};
}

/// Where a side is cut. y_c: in the ratio of its distances from the lowest stored y, which its effect falls
/// with.
double cut(const ReachProblem& problem, const ReachBox& box, int axis) {
  const auto k = static_cast<size_t>(axis);
  if (axis != kCentreAxis || box.region == ReachRegion::far)
    return std::isfinite(box.hi[k]) ? 0.5 * (box.lo[k] + box.hi[k]) : box.lo[k];
  const double unit = problem.domain.floor_end - problem.domain.y_first,
               from = problem.domain.floor_end + unit;
  return from - std::sqrt((from - box.lo[k]) * (from - box.hi[k]));
}

/// The constants in the middle; where y_max is not bounded, its least.
ReachBox middle_of(const ReachProblem& problem, const ReachBox& box) {
  ReachBox middle = box;
  for (int axis = 0; axis < kReachAxes; ++axis)
    middle.lo[static_cast<size_t>(axis)] = middle.hi[static_cast<size_t>(axis)] = cut(problem, box, axis);
  return middle;
}

/// The minimax of the samples, ascending in v; those that share a v are merged.
std::optional<Minimax<double>> programme(const std::vector<Range>& samples, int degree, double reach) {
  const std::vector<Range> merged = intersected(samples);
  const auto rows = static_cast<Eigen::Index>(merged.size()), columns = static_cast<Eigen::Index>(degree) + 1;
  if (rows <= columns) return std::nullopt;
  Matrix a(rows, columns);
  Vector b(rows);
  for (Eigen::Index i = 0; i < rows; ++i) {
    const Range& s = merged[static_cast<size_t>(i)];
    // Ranges that have nothing in common: q goes between them, which refutes both.
    constexpr double kBetween = 0x1p-30;
    const double w = std::max(s.tolerance, kBetween);
    double power = 1 / w;
    for (Eigen::Index j = 0; j < columns; ++j, power *= s.v / reach) a(i, j) = power;
    b[i] = s.middle / w;
  }
  constexpr double kNear = 1e-3;  // share of the level: the proof needs a good q, not the best
  constexpr int kRounds = 200;
  auto best = exchange<double>(a, b, kNear, kRounds);
  double unscale = 1;
  for (Eigen::Index j = 0; j < columns; ++j, unscale /= reach) best.coefficients[j] *= unscale;
  return best;
}

std::vector<double> to_doubles(const Vector& c) {
  std::vector<double> d;
  for (Eigen::Index j = 0; j < c.size(); ++j) d.push_back(c[j]);
  return d;
}

/// Samples at the middle of the box; weights grow by what the polynomials may move over the box.
std::vector<Range> samples_of(const ReachProblem& problem, const ReachBox& box,
                              const std::vector<size_t>& among,
                              const std::vector<std::vector<double>>& movers = {}) {
  const ReachBox middle = middle_of(problem, box);
  std::vector<Range> samples;
  for (const size_t k : among) {
    const ReachPair& pair = problem.pairs[k];
    if (!usable(pair, box)) continue;
    const double v = range_of(problem, pair, middle).mid();
    double w = 0.5 * (pair.hi - pair.lo);
    const CoordinateRange range = range_of(problem, pair, box);
    const double r = std::max(range.hi - v, v - range.lo);
    double moved = 0;
    for (const std::vector<double>& q : movers) moved = std::max(moved, spread_of(q, {v - r, v + r}).most);
    w += moved;
    samples.push_back({v, 0.5 * (pair.lo + pair.hi), w});
  }
  return samples;
}

double reach_of(const std::vector<Range>& samples) {
  double reach = 0;
  for (const Range& s : samples) reach = std::max(reach, std::abs(s.v));
  return reach > 0 ? reach : 1;
}

/// The longest chain of pairs that q beats by turns, in double.
std::optional<Refutation> chain_of(const ReachProblem& problem, const ReachBox& box,
                                   const std::vector<double>& q) {
  struct Link {
    size_t pair;
    int side;
    double margin;
  };
  std::vector<Link> links;
  for (const size_t k : problem.candidates) {
    const ReachPair& pair = problem.pairs[k];
    if (!usable(pair, box)) continue;
    const Spread s = spread_of(q, range_of(problem, pair, box));
    const double below = pair.lo - (s.value + s.most), above = s.value - s.most - pair.hi;
    const double margin = std::max(below, above) / (0.5 * (pair.hi - pair.lo));
    if (!(margin > 0)) continue;
    const int side = below > above ? 1 : -1;
    if (links.empty() || links.back().side != side) {
      links.push_back({k, side, margin});
    } else if (margin > links.back().margin) {
      links.back() = {k, side, margin};
    }
  }
  const auto needed = static_cast<size_t>(problem.question.degree) + 2;
  if (links.size() < needed) return std::nullopt;
  // Those consecutive ones are taken that have the largest least margin.
  size_t first = 0;
  double best = -1;
  for (size_t k = 0; k + needed <= links.size(); ++k) {
    double least = infinity();
    for (size_t j = k; j < k + needed; ++j) least = std::min(least, links[j].margin);
    if (least > best) {
      best = least;
      first = k;
    }
  }
  Refutation r{q, {}, {}};
  for (size_t j = first; j < first + needed; ++j) {
    r.chain.push_back(links[j].pair);
    r.side.push_back(links[j].side);
  }
  return r;
}

/// The axis to cut: the one without whose width the programme, its weights grown by what the movers move,
/// would have the highest level.
int axis_to_cut(const ReachProblem& problem, const ReachBox& box,
                const std::vector<std::vector<double>>& movers, double reach) {
  int widest = -1;
  double highest = -1;
  for (int axis = 0; axis < kReachAxes; ++axis) {
    const auto k = static_cast<size_t>(axis);
    if (!(box.lo[k] < box.hi[k]) || !std::isfinite(box.hi[k])) continue;
    const double at = cut(problem, box, axis);
    if (!(box.lo[k] < at && at < box.hi[k])) continue;
    ReachBox flat = box;
    flat.lo[k] = flat.hi[k] = at;
    const auto best =
        programme(samples_of(problem, flat, problem.candidates, movers), problem.question.degree, reach);
    if (best && best->level > highest) {
      highest = best->level;
      widest = axis;
    }
  }
  return widest;
}

/// No constants that are not in another box too: a floor at or above floor_end, y_c above the floor (t_min >=
/// 0), or a floor so low that raising it to the lowest stored y changes nothing. Decided with room for the
/// rounding of these comparisons.
bool is_void(const ReachDomain& d, const ReachBox& box) {
  constexpr double kRoom = 0x1p-40;
  if (box.region == ReachRegion::far) return false;
  const double floor = box.hi[kFloorAxis];
  if (box.region == ReachRegion::middle) return box.lo[kCentreAxis] > floor;
  const double lowest = box.lo[kFloorAxis];
  return box.lo[kCentreAxis] + lowest * lowest > d.floor_end + kRoom ||
         floor * floor + kRoom < d.y_first - box.hi[kCentreAxis];
}

/// A box that is not decided, and the best polynomial at the middle of the one that it was cut from.
struct OpenBox {
  ReachBox box;
  std::vector<double> guess = {};
};

/// The whole domain.
std::vector<OpenBox> first_boxes(const ReachDomain& d) {
  std::vector<OpenBox> open;
  const double near = d.y_first - kNearCentre * (d.floor_end - d.y_first);
  // The largest sqrt(t_min) with y_c + t_min < floor_end, rounded up.
  const double largest_root = std::sqrt(d.floor_end - near) * (1 + 0x1p-40);
  for (const bool unbounded : {false, true}) {
    const double right = unbounded ? d.right_far : d.right_first,
                 right_end = unbounded ? infinity() : d.right_far;
    open.push_back({{ReachRegion::near,
                     {near, 0, d.left_first, right},
                     {d.floor_end, largest_root, d.left_last, right_end}}});
    open.push_back({{ReachRegion::middle,
                     {d.y_first - kFarthestCentre, d.y_first, d.left_first, right},
                     {near, d.floor_end, d.left_last, right_end}}});
    open.push_back({{ReachRegion::far,  // the right branch alone is used
                     {0, d.y_first, d.left_last, right},
                     {1 / kFarthestCentre, d.floor_end, d.left_last, right_end}}});
  }
  std::ranges::stable_sort(open, {}, [](const OpenBox& o) { return o.box.region; });
  return open;
}

ReachResult::Constants constants_of(const ReachProblem& problem, const ReachBox& box) {
  const ReachBox middle = middle_of(problem, box);
  const double c = box.region == ReachRegion::far ? problem.domain.y_first - 1 / middle.lo[kCentreAxis]
                                                  : middle.lo[kCentreAxis],
               floor = middle.lo[kFloorAxis];
  const double t_min = box.region == ReachRegion::near ? floor * floor : std::max(floor - c, 0.0);
  return {c, t_min, -std::sqrt(std::max(middle.lo[kLeftAxis] - c, 0.0)), middle.lo[kRightAxis]};
}

/// Coefficients that serve all pairs with the constants in the middle of the box, if there are such.
std::optional<std::vector<double>> solution_in(const ReachProblem& problem, const ReachBox& box) {
  std::vector<size_t> all(problem.pairs.size());
  std::iota(all.begin(), all.end(), size_t{0});
  auto samples = samples_of(problem, middle_of(problem, box), all);
  // What is in reach has the room left, in place of given away.
  for (Range& sample : samples) sample.tolerance -= 2 * kEvaluationRoom;
  const auto best = programme(samples, problem.question.degree, reach_of(samples));
  if (!best || best->error > 1) return std::nullopt;
  return to_doubles(best->coefficients);
}

}  // namespace

const char* to_string(ReachVerdict v) {
  switch (v) {
    case ReachVerdict::out_of_reach: return "out of reach";
    case ReachVerdict::in_reach: return "in reach";
    case ReachVerdict::undecided: return "undecided";
  }
  return "?";
}

ReachProblem reach_problem(const Composite& composite, const std::vector<StorageInterval>& intervals,
                           const ReachQuestion& question) {
  if (question.format == Format::f32)
    throw kernels::SpecError("reach: f32 has too many stored values to be listed");
  if (!composite.masked())
    throw kernels::SpecError("reach: the function has no minimum, so no signed coordinate");
  if (question.degree < 0 || question.degree > kernels::kLargestDegree) {
    throw kernels::SpecError(
        fmt::format("reach: degree {} is not in [0, {}]", question.degree, kernels::kLargestDegree));
  }
  ReachProblem problem{question, oracle_of(intervals), {}, {}, {}};
  const auto add = [&](const StorageInterval& i) {
    const double w = std::min(question.ratio * problem.oracle - i.half(), question.regret);
    problem.pairs.push_back(
        {static_cast<double>(i.y), i.m, i.middle() - w - kEvaluationRoom, i.middle() + w + kEvaluationRoom});
  };
  // Each branch comes in ascending y: in the order of v the left one is turned round.
  for (size_t k = intervals.size(); k-- > 0;) {
    if (!intervals[k].m) add(intervals[k]);
  }
  const size_t left = problem.pairs.size();
  for (const StorageInterval& i : intervals) {
    if (i.m) add(i);
  }
  const std::vector<ReachPair>& pairs = problem.pairs;
  if (left == 0 || left == pairs.size())
    throw kernels::SpecError("reach: no stored pairs on one of the branches");

  // The ends of the domain: as soon as pairs that share a coordinate have nothing in common. All of a branch
  // never have.
  const auto meet_until_empty = [](const auto& branch) {
    double lo = -infinity(), hi = infinity();
    for (const ReachPair& pair : branch) {
      lo = std::max(lo, pair.lo);
      hi = std::min(hi, pair.hi);
      if (lo > hi) return pair.y;
    }
    throw kernels::SpecError("reach: one constant serves a whole branch");
  };
  const std::span inward = std::span(pairs).first(left), right = std::span(pairs).subspan(left);
  const auto leftward = inward | std::views::reverse;
  ReachDomain& d = problem.domain;
  d.y_first = std::min(pairs[left].y, pairs[left - 1].y);
  d.left_last = pairs.front().y;
  d.floor_end = std::min(meet_until_empty(right), meet_until_empty(leftward));
  d.left_first = meet_until_empty(inward);
  d.right_first = meet_until_empty(right | std::views::reverse);
  d.right_far = 2 * d.right_first;
  if (!(d.y_first <= d.floor_end && d.floor_end < d.left_first && d.left_first <= d.left_last &&
        d.left_last < d.right_first)) {
    throw kernels::SpecError(fmt::format(
        "reach: floor below {}, left clamp above {}, right clamp above {}: not a case that is treated",
        d.floor_end, d.left_first, d.right_first));
  }

  const double y_star = composite.y_star().to_double();
  const auto thin = [&](const auto& outward) {
    double last = 0;
    size_t seen = 0;
    for (const ReachPair& pair : outward) {
      const bool dense = seen++ < kDenseAtMinimum, is_last = seen == outward.size();
      const double s = std::sqrt(std::max(pair.y - y_star, 0.0));
      if (pair.m && pair.y > d.right_far && !is_last) continue;
      const double by = !pair.m && pair.y > kFineFrom ? kFineStep : kStep;
      if (dense || s - last >= by || is_last) {
        problem.candidates.push_back(static_cast<size_t>(&pair - pairs.data()));
        last = s;
      }
    }
  };
  thin(leftward);
  thin(right);
  std::sort(problem.candidates.begin(), problem.candidates.end());
  return problem;
}

bool verify(const ReachProblem& problem, const ReachBox& box, const Refutation& r) {
  const auto needed = static_cast<size_t>(problem.question.degree) + 2;
  if (r.chain.size() != needed || r.side.size() != needed || r.q.size() + 1 != needed) return false;
  for (size_t k = 0; k < needed; ++k) {
    if (r.chain[k] >= problem.pairs.size() || (r.side[k] != 1 && r.side[k] != -1)) return false;
    if (k > 0 && (r.chain[k] <= r.chain[k - 1] || r.side[k] == r.side[k - 1])) return false;
    const ReachPair& pair = problem.pairs[r.chain[k]];
    if (!usable(pair, box)) return false;
    const Ball value = value_over(r.q, ball_of(problem, pair, box));
    const bool beaten =
        r.side[k] > 0 ? (Ball(pair.lo) - value).positive() : (value - Ball(pair.hi)).positive();
    if (!beaten) return false;
  }
  return true;
}

std::optional<Refutation> refute(const ReachProblem& problem, const ReachBox& box, std::vector<double>& guess,
                                 double& level, int& axis) {
  level = infinity();
  axis = -1;
  const int degree = problem.question.degree;
  const auto plain = samples_of(problem, box, problem.candidates);
  const double reach = reach_of(plain);
  const auto solve = [&] {
    const auto best = programme(plain, degree, reach);
    if (!best) return false;
    level = best->level;
    guess = to_doubles(best->coefficients);
    return true;
  };
  if (guess.empty() && !solve()) return std::nullopt;
  // The polynomial found moves otherwise than the one its weights were made with: once more with both.
  constexpr int kRounds = 3;
  std::vector<std::vector<double>> movers{guess};
  for (int round = 0; round < kRounds; ++round) {
    const auto padded = programme(samples_of(problem, box, problem.candidates, movers), degree, reach);
    if (!padded) return std::nullopt;
    const std::vector<double> q = to_doubles(padded->coefficients);
    std::optional<Refutation> found = chain_of(problem, box, q);
    if (found && verify(problem, box, *found)) return found;
    if (padded->error < 1) break;
    movers.push_back(q);
  }
  solve();
  axis = axis_to_cut(problem, box, movers, reach);
  return std::nullopt;
}

ReachResult decide_reach(const ReachProblem& problem, size_t most_boxes, int threads,
                         const std::function<void(const ReachBox&, const Refutation&)>& visit) {
  std::vector<OpenBox> open = first_boxes(problem.domain);
  ReachResult result;
  result.least_level = infinity();
  struct Outcome {
    std::optional<Refutation> refutation;
    double level = infinity();
    int axis = -1;
  };
  Stage stage("boxes");
  for (int depth = 0; !open.empty(); ++depth) {
    if (result.boxes + open.size() > most_boxes) return result;
    result.deepest = depth;
    std::vector<Outcome> outcomes(open.size());
    kernels::for_each_task(open.size(), threads, [&](size_t k) {
      Outcome& o = outcomes[k];
      o.refutation = refute(problem, open[k].box, open[k].guess, o.level, o.axis);
    });
    result.boxes += open.size();
    stage.tick(static_cast<std::int64_t>(open.size()));
    std::vector<OpenBox> next;
    for (size_t k = 0; k < open.size(); ++k) {
      const Outcome& o = outcomes[k];
      const ReachBox& box = open[k].box;
      if (o.level < result.least_level) {
        result.least_level = o.level;
        result.best = constants_of(problem, box);
      }
      if (o.refutation) {
        ++result.refuted;
        if (visit) visit(box, *o.refutation);
        continue;
      }
      if (box.region != ReachRegion::far && o.level <= 1) {
        if (auto coefficients = solution_in(problem, box)) {
          result.verdict = ReachVerdict::in_reach;
          result.least_level = o.level;
          result.best = constants_of(problem, box);
          result.coefficients = std::move(*coefficients);
          return result;
        }
      }
      if (o.axis < 0) return result;
      const double at = cut(problem, box, o.axis);
      for (const bool upper : {false, true}) {
        OpenBox half{box, open[k].guess};
        (upper ? half.box.lo : half.box.hi)[static_cast<size_t>(o.axis)] = at;
        if (!is_void(problem.domain, half.box)) next.push_back(std::move(half));
      }
    }
    open = std::move(next);
    stage.expect(static_cast<std::int64_t>(result.boxes + open.size()));
  }
  result.verdict = ReachVerdict::out_of_reach;
  return result;
}

std::string to_json(const ReachProblem& problem, const ReachResult& result, const std::string& name) {
  const ReachQuestion& q = problem.question;
  const ReachDomain& d = problem.domain;
  nlohmann::ordered_json j;
  j["schema"] = "outgrad.reach/1";
  j["name"] = name;
  j["format"] = to_string(q.format);
  j["degree"] = q.degree;
  j["ratio"] = q.ratio;
  j["regret"] = q.regret;
  j["regret_log2"] = std::log2(q.regret);
  j["oracle"] = problem.oracle;
  j["verdict"] = to_string(result.verdict);
  j["boxes"] = {{"examined", result.boxes}, {"refuted", result.refuted}, {"deepest", result.deepest}};
  j["least_level_cut"] = result.least_level;  // over the boxes that had to be cut; null where none had
  j["least_level_at"] = {{"y_c", result.best.y_c},
                         {"t_min", result.best.t_min},
                         {"s_min", result.best.s_min},
                         {"y_max", result.best.y_max}};
  j["domain"] = {{"y_c", "all"},
                 {"floor", {{"from", d.y_first}, {"to", d.floor_end}}},
                 {"left_clamp", {{"from", d.left_first}, {"to", d.left_last}}},
                 {"right_clamp", {{"from", d.right_first}, {"to", "infinity"}}}};
  j["room"] = {{"evaluation", kEvaluationRoom},
               {"coordinate", kCoordinateRounding},
               {"rounded_for_y_c_from", d.y_first - kFarthestCentre}};
  if (!result.coefficients.empty()) j["coefficients"] = result.coefficients;
  return j.dump(1) + "\n";
}

}  // namespace outgrad::approx
