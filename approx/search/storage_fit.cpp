// Fits rows to storage intervals by the programme of each, and rounds within what is left of the tube.
#include "approx/search/storage_fit.h"

#include "approx/search/partition.h"
#include "approx/search/programme.h"
#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace outgrad::approx {
namespace {

/// Precision of the search for the least T/O.
constexpr double kRatioStep = 0x1p-12;

/// The pairs that one row serves, those with equal v merged when tolerances are known.
struct RowPoints {
  std::vector<double> v, middle, half, ulp;
};

bool is_left_tail(const BackwardModel& model, const StorageInterval& i) {
  return model.kMasked && !i.m && i.y == 0;
}

std::vector<RowPoints> points_of(const BackwardModel& model, const std::vector<StorageInterval>& intervals,
                                 double thinning) {
  std::vector<RowPoints> rows(static_cast<size_t>(model.kRows));
  std::vector<std::vector<std::pair<double, const StorageInterval*>>> found(rows.size());
  for (const StorageInterval& i : intervals) {
    const auto place = deployed_place(model, i.y, i.m);
    found[place.row].emplace_back(static_cast<double>(place.v), &i);
  }
  for (size_t row = 0; row < rows.size(); ++row) {
    std::stable_sort(found[row].begin(), found[row].end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    double last = -INFINITY;
    const StorageInterval* previous = nullptr;
    for (size_t k = 0; k < found[row].size(); ++k) {
      const auto& [v, i] = found[row][k];
      // Thinned: neighbours that stand closer than `thinning` and for as long an interval say the same.
      const bool alone = (k == 0 || found[row][k - 1].first != v) &&
                         (k + 1 == found[row].size() || found[row][k + 1].first != v);
      const bool same = previous != nullptr && alone && v - last < thinning && previous->m == i->m &&
                        i->half() <= previous->half() * 1.0001;
      if (same) continue;
      last = v;
      previous = i;
      rows[row].v.push_back(v);
      // (y = -0, m = 0) stands for the whole left tail, where g is 0 by contract.
      rows[row].middle.push_back(is_left_tail(model, *i) ? 0 : i->middle());
      rows[row].half.push_back(i->half());
      rows[row].ulp.push_back(ulp_of(model.format, i->middle()));
    }
  }
  return rows;
}

/// Least max |p(v) - middle| / tolerance. No tolerance: infeasible.
std::optional<ProgrammeSolution> solve(const RowPoints& points, const std::vector<double>& tolerance,
                                       int degree, double centre) {
  std::vector<Range> ranges;
  for (size_t k = 0; k < points.v.size(); ++k)
    ranges.push_back({points.v[k], points.middle[k], tolerance[k]});
  return solve_programme(ranges, degree, centre);
}

std::vector<double> tolerances(const RowPoints& points, const BackwardSpec& spec, double oracle,
                               double bound) {
  std::vector<double> w(points.v.size());
  for (size_t k = 0; k < w.size(); ++k) {
    w[k] = spec.accuracy == AccuracyClass::ulp
               ? bound * points.ulp[k]
               : std::min(bound * oracle - points.half[k], spec.storage.regret);
    w[k] -= kRoundingRoom *
            std::max(std::abs(points.middle[k]),
                     0x1p-4 * (spec.accuracy == AccuracyClass::ulp ? std::abs(points.middle[k]) : 1.0));
  }
  return w;
}

/// Least bound up to `most` that the row reaches, and the largest that it provably does not.
struct RowBounds {
  double reached, dual;
  ProgrammeSolution solution;
};

/// T/O cannot be below 1; the tolerance of the pair that is O itself must stay positive.
constexpr double kLeastRatio = 1.001;

std::optional<RowBounds> least_bound(const RowPoints& points, const BackwardSpec& spec, double oracle,
                                     int degree, double centre, double most) {
  const auto at = [&](double bound) {
    return solve(points, tolerances(points, spec, oracle, bound), degree, centre);
  };
  if (spec.accuracy == AccuracyClass::ulp) {  // tolerances are proportional to the bound: one problem
    const auto one = at(1);
    if (!one || one->error > most) return std::nullopt;
    return RowBounds{one->error, one->level, *one};
  }
  const auto serves = [](const std::optional<ProgrammeSolution>& s) { return s && s->error <= 1; };
  auto best = at(most);
  if (!serves(best)) return std::nullopt;
  double hi = most, lo = kLeastRatio, dual = lo;
  if (const auto first = at(lo); serves(first)) return RowBounds{lo, lo, *first};
  while (hi - lo > kRatioStep) {
    const double mid = 0.5 * (lo + hi);
    const auto s = at(mid);
    if (serves(s)) {
      hi = mid;
      best = s;
    } else {
      lo = mid;
      if (!s || s->level > 1) dual = mid;
    }
  }
  return RowBounds{hi, dual, *best};
}

/// Share of the target that a row of lower degree may use up.
constexpr double kEnough = 0.75;

}  // namespace

StorageProgramme fit_to_storage(BackwardModel& model, const std::vector<StorageInterval>& intervals,
                                const BackwardSpec& spec, double target) {
  const double oracle = oracle_of(intervals);
  const std::vector<RowPoints> rows = points_of(model, intervals, 0);
  StorageProgramme programme;
  for (Piece& piece : model.pieces) {
    const RowPoints& points = rows[static_cast<size_t>(piece.row)];
    piece.centre = model.kCentred ? static_cast<float>(piece.nominal_centre) : 0.0f;
    const auto with_degree = [&](int degree, double most) {
      return least_bound(points, spec, oracle, degree, static_cast<double>(piece.centre), most);
    };
    auto bounds = with_degree(model.kDegree, target);
    piece.degree = model.kDegree;
    // Few points leave high coefficients free to do as they like between them: the lowest degree that serves
    // the class is taken instead.
    if (bounds && spec.accuracy == AccuracyClass::ulp) {
      const double enough = std::max(bounds->reached, kEnough * target);
      for (int degree = 0; degree < model.kDegree; ++degree) {
        if (auto lower = with_degree(degree, enough)) {
          bounds = std::move(lower);
          bounds->solution.c.resize(static_cast<size_t>(model.kDegree) + 1, 0.0);
          piece.degree = degree;
          break;
        }
      }
    }
    if (!bounds) {
      const auto s = solve(points, tolerances(points, spec, oracle, target), model.kDegree,
                           static_cast<double>(piece.centre));
      throw kernels::SpecError(fmt::format(
          "target {}:{} is out of reach: on row {} (v in [{:.4g}, {:.4g}]) {}",
          spec.accuracy == AccuracyClass::ulp ? "ulp" : "stored", target, piece.row, piece.v_lo, piece.v_hi,
          !s ? "two stored y share a coordinate and ask for different gradients"
             : fmt::format(
                   "no polynomial of degree {} errs by less than {:.4g} times what it allows (proven)",
                   model.kDegree, s->level)));
    }
    programme.reached = std::max(programme.reached, bounds->reached);
    programme.dual = std::max(programme.dual, bounds->dual);
    piece.c.clear();
    for (const double c : bounds->solution.c) piece.c.push_back(static_cast<float>(c));
    piece.storage_aware = true;
  }
  return programme;
}

ClampedConstants search_constants(const Composite& composite, const std::vector<StorageInterval>& intervals,
                                  const BackwardSpec& spec, double target) {
  const double spacing = composite.spacing_at_minimum(precision_bits(spec.format));
  const double oracle = oracle_of(intervals);
  struct Choice {
    double shift = 0, floor = 0.25, end = 0, begin = 1, cost = INFINITY;
  };
  // Points of the search: thinned to 1/256 of a unit in s, which moves g by less than a tenth of any 16-bit
  // tolerance.
  constexpr double kThinning = 0x1p-8;
  const double left_end = std::sqrt(-composite.y_star().to_double());
  const auto made = [&](const Choice& c) {
    const Real y_c = composite.y_star().mid() + Real(c.shift * spacing);
    return ClampedConstants{{static_cast<float>(y_c), 0.0f, static_cast<float>(c.floor * spacing), 0, 0},
                            static_cast<float>(c.end),
                            static_cast<float>(-left_end * c.begin),
                            c.cost};
  };
  const auto consider = [&](Choice c, Choice& best) {
    const ClampedConstants k = made(c);
    BackwardSpec tried = spec;
    tried.y_max = k.y_max;
    tried.s_min = k.s_min;
    const BackwardModel model = lay_out(composite, tried, k.constants, 1);
    const auto rows = points_of(model, intervals, kThinning);
    c.cost = 0;
    for (size_t row = 0; row < rows.size(); ++row) {
      const double centre =
          model.kCentred ? static_cast<double>(static_cast<float>(model.pieces[row].nominal_centre)) : 0.0;
      const auto s = solve(rows[row], tolerances(rows[row], spec, oracle, target), spec.degree, centre);
      c.cost = std::max(c.cost, s ? s->error : INFINITY);
    }
    if (c.cost < best.cost) best = c;
  };
  // First where g has come within half the regret of its limit; the clamp may come earlier or later.
  double near = 0;
  const double reach = composite.activation().reach, step_out = std::max(0.125, reach / 1024);
  for (double x = 4 * step_out; x < reach; x += step_out) {
    if (composite.activation().gradient_tail(Ball(x), true) < 0.5 * spec.storage.regret) {
      near = composite.activation().value(x);
      break;
    }
  }
  Choice best;
  for (const double end : {0.6, 0.75, 0.9, 1.05, 1.25, 1.5}) {
    for (const double begin : {1.0, 0.99, 0.98}) {
      for (const double shift : {-0.3, 0.0, 0.3}) {
        for (const double floor : {0.02, 0.1, 0.3}) consider({shift, floor, near * end, begin}, best);
      }
    }
  }
  constexpr int kMostMoves = 64;  // at one step; a search takes a handful
  for (double step = 0.5; step > 0.01; step *= 0.6) {
    bool moved = true;
    for (int moves = 0; moved && moves < kMostMoves; ++moves) {
      const Choice from = best;
      for (const double sign : {-1.0, 1.0}) {
        consider({from.shift + sign * 0.2 * step, from.floor, from.end, from.begin}, best);
        consider(
            {from.shift, std::max(1.0 / 1024, from.floor * std::exp2(sign * 2 * step)), from.end, from.begin},
            best);
        consider({from.shift, from.floor, from.end * (1 + sign * 0.2 * step), from.begin}, best);
        consider({from.shift, from.floor, from.end, std::min(1.0, from.begin * (1 + sign * 0.02 * step))},
                 best);
      }
      moved = best.cost < from.cost * (1 - 1e-4);
    }
  }
  return made(best);
}

}  // namespace outgrad::approx
