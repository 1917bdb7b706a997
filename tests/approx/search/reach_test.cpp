#include "approx/search/reach.h"

#include "approx/model/fit.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "tests/approx/shared.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

namespace outgrad::approx {
namespace {

const std::vector<StorageInterval>& intervals() {
  static const std::vector<StorageInterval> all = storage_intervals(gelu(), Format::bf16);
  return all;
}

/// What the class `fast` asks for.
constexpr double kRatio = 1.05;
const double kRegret = std::exp2(-7.4);
ReachProblem fast(int degree) {
  return reach_problem(gelu(), intervals(), {Format::bf16, degree, kRatio, kRegret});
}

struct Proof {
  ReachResult result;
  std::vector<ReachBox> boxes;
  std::vector<Refutation> refutations;
};

Proof decide(const ReachProblem& problem, size_t most_boxes = 100'000) {
  Proof proof;
  proof.result = decide_reach(problem, most_boxes, 0, [&](const ReachBox& box, const Refutation& r) {
    proof.boxes.push_back(box);
    proof.refutations.push_back(r);
  });
  return proof;
}

const Proof& of_degree_3() {
  static const Proof proof = decide(fast(3));
  return proof;
}

const Proof& of_degree_6() {
  static const Proof proof = decide(fast(6));
  return proof;
}

using Constants = ReachResult::Constants;

/// The coordinate as approx/search/reach.h defines it, in 60 digits, from the constants themselves.
Real coordinate(const Constants& c, double y, bool m) {
  Real t = Real(std::min(y, c.y_max)) - Real(c.y_c);
  if (t < Real(c.t_min)) t = Real(c.t_min);
  const Real s = m ? Real(sqrt(t)) : Real(-sqrt(t));
  return s < Real(c.s_min) ? Real(c.s_min) : s;
}

Constants constants_at(const ReachProblem& problem, const ReachBox& box,
                       const std::array<double, kReachAxes>& at) {
  const double y_c =
      box.region == ReachRegion::far ? problem.domain.y_first - 1 / at[kCentreAxis] : at[kCentreAxis];
  const double t_min =
      box.region == ReachRegion::near ? at[kFloorAxis] * at[kFloorAxis] : std::max(at[kFloorAxis] - y_c, 0.0);
  return {y_c, t_min, -std::sqrt(std::max(at[kLeftAxis] - y_c, 0.0)), at[kRightAxis]};
}

/// Whether q beats the ranges that T <= rho O and R ask for, by turns and in order, at these constants.
bool alternates(const ReachProblem& problem, const ReachBox& box, const Refutation& r, const Constants& c,
                const std::function<Real(double y, bool m)>& coordinate_of) {
  Real last = -1e300;
  int side = 0;
  for (size_t k = 0; k < r.chain.size(); ++k) {
    const ReachPair& pair = problem.pairs[r.chain[k]];
    const auto i = std::find_if(intervals().begin(), intervals().end(), [&](const StorageInterval& one) {
      return one.m == pair.m && static_cast<double>(one.y) == pair.y &&
             std::signbit(one.y) == std::signbit(pair.y);
    });
    if (i == intervals().end()) return false;
    Real v = coordinate_of(pair.y, pair.m);
    if (v < last) return false;
    last = v;
    if (box.region == ReachRegion::far) {
      const Real root = sqrt(Real(problem.domain.y_first) - Real(c.y_c));
      v = 2 * root * (v - root);
    }
    Real q = 0;
    for (size_t j = r.q.size(); j-- > 0;) q = q * v + Real(r.q[j]);
    // T: hi - rho O <= p <= lo + rho O; R: |p - middle| <= R.
    const double total = kRatio * problem.oracle;
    const int here = q < Real(std::max(i->hi - total, i->middle() - kRegret))   ? 1
                     : q > Real(std::min(i->lo + total, i->middle() + kRegret)) ? -1
                                                                                : 0;
    if (here == 0 || here == side) return false;
    side = here;
  }
  return r.chain.size() == static_cast<size_t>(problem.question.degree) + 2;
}

bool alternates(const ReachProblem& problem, const ReachBox& box, const Refutation& r, const Constants& c) {
  return alternates(problem, box, r, c, [&](double y, bool m) { return coordinate(c, y, m); });
}

/// The four constants as a box of the region has them; the floor no lower than the lowest stored y, the left
/// clamp no higher than the highest.
std::array<double, kReachAxes> place_of(const ReachDomain& d, ReachRegion region, const Constants& c) {
  const double floor = std::max(c.y_c + c.t_min, d.y_first);
  return {region == ReachRegion::far ? 1 / (d.y_first - c.y_c) : c.y_c,
          region == ReachRegion::near ? std::sqrt(std::max(floor - c.y_c, 0.0)) : floor,
          region == ReachRegion::far ? d.left_last : std::min(c.y_c + c.s_min * c.s_min, d.left_last),
          c.y_max};
}

bool holds(const ReachDomain& d, const ReachBox& box, const Constants& c) {
  if (box.region == ReachRegion::far && !(d.y_first > c.y_c)) return false;
  const std::array<double, kReachAxes> place = place_of(d, box.region, c);
  constexpr double kRoom = 1e-9;  // of the doubles in place_of
  for (size_t axis = 0; axis < kReachAxes; ++axis) {
    if (place[axis] < box.lo[axis] - kRoom || place[axis] > box.hi[axis] + kRoom) return false;
  }
  return true;
}

TEST(Reach, RefutationsHoldAtConstantsOfTheirBoxes) {
  const ReachProblem problem = fast(3);
  const Proof& proof = of_degree_3();
  ASSERT_EQ(proof.result.verdict, ReachVerdict::out_of_reach);
  ASSERT_EQ(proof.boxes.size(), proof.result.refuted);
  std::mt19937 random(11);
  std::uniform_real_distribution<double> unit(0, 1);
  for (size_t k = 0; k < proof.boxes.size(); ++k) {
    const ReachBox& box = proof.boxes[k];
    EXPECT_TRUE(verify(problem, box, proof.refutations[k]));
    for (int trial = 0; trial < 20; ++trial) {
      std::array<double, kReachAxes> at{};
      for (size_t axis = 0; axis < kReachAxes; ++axis) {
        const double hi = std::isfinite(box.hi[axis]) ? box.hi[axis] : 100 * box.lo[axis];
        // The corners first: that is where a range taken too short shows.
        const double share = trial < 16 ? (trial >> axis) & 1 : unit(random);
        at[axis] = box.lo[axis] + share * (hi - box.lo[axis]);
      }
      if (box.region == ReachRegion::far && at[kCentreAxis] == 0) continue;  // the limit: no constants
      const Constants c = constants_at(problem, box, at);
      if (box.region != ReachRegion::far && c.y_c > at[kLeftAxis]) continue;
      EXPECT_TRUE(alternates(problem, box, proof.refutations[k], c))
          << k << ": y_c " << c.y_c << " t_min " << c.t_min << " s_min " << c.s_min << " y_max " << c.y_max;
    }
  }
}

/// Rounds the constants to fp32. @return what deploys them.
BackwardModel rounded(Constants& c) {
  BackwardModel model;
  model.format = Format::bf16;
  model.kRows = 1;
  model.kHasBreaks = true;
  model.kYHi = static_cast<float>(c.y_c);
  model.kTMin = static_cast<float>(c.t_min);
  model.kSMin = static_cast<float>(c.s_min);
  model.kYMax = static_cast<float>(c.y_max);
  c = {static_cast<double>(model.kYHi), static_cast<double>(model.kTMin), static_cast<double>(model.kSMin),
       static_cast<double>(model.kYMax)};
  return model;
}

TEST(Reach, DeployedCoordinatesStayWithinTheirRoom) {
  const ReachProblem problem = fast(3);
  std::mt19937 random(15);
  std::uniform_real_distribution<double> unit(0, 1);
  double most = 0;
  for (int trial = 0; trial < 200; ++trial) {
    Constants c{problem.domain.floor_end - kFarthestCentre * std::pow(2, -24 * unit(random)), 0, 0,
                3 + unit(random)};
    c.t_min = std::max(problem.domain.floor_end - c.y_c, 0.0) * unit(random);
    c.s_min = -std::sqrt(-0.002 * unit(random) - c.y_c);
    const BackwardModel model = rounded(c);
    for (const size_t k : problem.candidates) {
      const ReachPair& pair = problem.pairs[k];
      const auto exact = static_cast<double>(coordinate(c, pair.y, pair.m));
      const double off =
          std::abs(static_cast<double>(deployed_place(model, static_cast<float>(pair.y), pair.m).v) - exact);
      if (exact != 0) most = std::max(most, off / std::abs(exact));
    }
  }
  // Half of the room is for a floor or a clamp that was moved to the end of the domain.
  EXPECT_LE(most, kCoordinateRounding / 2);
  EXPECT_GT(most, kCoordinateRounding / 8);
}

/// The same with the deployed sequence: every fp32 rounding of the coordinate is in the proof.
TEST(Reach, RefutationsHoldForDeployedCoordinates) {
  const ReachProblem problem = fast(6);
  const Proof& proof = of_degree_6();
  std::mt19937 random(14);
  std::uniform_real_distribution<double> unit(0, 1);
  int tried = 0;
  for (size_t k = 0; k < proof.boxes.size(); k += 3) {
    const ReachBox& box = proof.boxes[k];
    if (box.region == ReachRegion::far) continue;
    for (int trial = 0; trial < 4; ++trial) {
      std::array<double, kReachAxes> at{};
      for (size_t axis = 0; axis < kReachAxes; ++axis)
        at[axis] = std::lerp(box.lo[axis], std::min(box.hi[axis], 100.0), unit(random));
      Constants c = constants_at(problem, box, at);
      const BackwardModel model = rounded(c);
      const std::array<double, kReachAxes> place = place_of(problem.domain, box.region, c);
      bool within = c.t_min >= 0;
      for (size_t axis = 0; axis < kReachAxes; ++axis)
        within = within && box.lo[axis] <= place[axis] && place[axis] <= box.hi[axis];
      if (!within) continue;
      ++tried;
      EXPECT_TRUE(alternates(
          problem, box, proof.refutations[k], c,
          [&](double y, bool m) { return Real(deployed_place(model, static_cast<float>(y), m).v); }))
          << k << ": y_c " << c.y_c << " t_min " << c.t_min << " s_min " << c.s_min << " y_max " << c.y_max;
    }
  }
  EXPECT_GT(tried, 1000);
}

/// Constants of every size: a box holds them, or pairs that share a coordinate contradict each other.
TEST(Reach, NightlyBoxesCoverAllConstants) {
  const ReachProblem problem = fast(3);
  const ReachDomain& d = problem.domain;
  const Proof& proof = of_degree_3();
  std::mt19937 random(12);
  std::uniform_real_distribution<double> unit(0, 1);
  const auto log_uniform = [&](double from, double to) { return from * std::pow(to / from, unit(random)); };
  int inside = 0, outside = 0;
  for (int trial = 0; trial < 1000; ++trial) {
    Constants c{};
    c.y_c = d.floor_end + 1e-3 - log_uniform(1e-6, 1e3);
    c.t_min = trial % 3 == 0 ? 0
              : trial % 3 == 1
                  ? log_uniform(1e-7, 1e2)
                  : std::max(d.y_first - c.y_c + (d.floor_end - d.y_first) * 1.2 * unit(random), 0.0);
    c.s_min =
        -std::sqrt(std::max((trial % 2 == 0 ? d.left_first * 2 * unit(random) : unit(random)) - c.y_c, 0.0));
    c.y_max = log_uniform(d.right_first / 1.2, 50);
    // Shared coordinates, straight from the pairs.
    bool contradiction = false;
    std::vector<std::pair<Real, const ReachPair*>> placed;
    Real at = -1e300;
    double lo = -INFINITY, hi = INFINITY;
    for (size_t k = 0; k < problem.pairs.size();
         k += problem.pairs[k].y != 0 && std::abs(problem.pairs[k].y) < 1e-4 ? 64 : 1) {
      const ReachPair& pair = problem.pairs[k];
      if (pair.y > 4 * d.right_far && pair.y < 1e38) continue;
      const Real v = coordinate(c, pair.y, pair.m);
      if (v != at) {
        at = v;
        lo = -INFINITY;
        hi = INFINITY;
      }
      lo = std::max(lo, pair.lo);
      hi = std::min(hi, pair.hi);
      contradiction = contradiction || lo > hi;
    }
    bool held = false;
    for (size_t k = 0; k < proof.boxes.size() && !held; ++k) {
      held = holds(d, proof.boxes[k], c) && alternates(problem, proof.boxes[k], proof.refutations[k], c);
    }
    ++(held ? inside : outside);
    EXPECT_TRUE(held || contradiction)
        << "y_c " << c.y_c << " t_min " << c.t_min << " s_min " << c.s_min << " y_max " << c.y_max;
  }
  EXPECT_GT(inside, 100);
  EXPECT_GT(outside, 100);
}

/// Next to y*, where boxes are cut the most and some are left out as void, every floor that the domain
/// allows.
TEST(Reach, BoxesNextToTheMinimumLeaveNoGap) {
  const ReachDomain d = fast(6).domain;
  const Proof& proof = of_degree_6();
  std::mt19937 random(13);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int trial = 0; trial < 20000; ++trial) {
    Constants c{};
    const double width = d.floor_end - d.y_first;
    c.y_c = d.floor_end - 1.1 * kNearCentre * width * unit(random) * unit(random);
    const double floor = std::max(c.y_c, d.y_first);
    c.t_min = floor + (d.floor_end - floor) * unit(random) - c.y_c;
    c.s_min = -std::sqrt(d.left_first * unit(random) - c.y_c);
    c.y_max = d.right_first * (1 + 2 * unit(random));
    EXPECT_TRUE(std::any_of(proof.boxes.begin(), proof.boxes.end(),
                            [&](const ReachBox& box) { return holds(d, box, c); }))
        << "y_c " << c.y_c << " t_min " << c.t_min << " s_min " << c.s_min << " y_max " << c.y_max;
  }
}

/// Boxes wider than those of the proof: as soon as a corner is no longer refuted, `verify` must say no.
TEST(Reach, NightlyVerifySeesWhatABoxHolds) {
  const ReachProblem problem = fast(6);
  const ReachDomain& d = problem.domain;
  const Proof& proof = of_degree_6();
  int failing = 0;
  for (size_t k = 0; k < proof.boxes.size(); k += 29) {
    if (proof.boxes[k].region == ReachRegion::far || !std::isfinite(proof.boxes[k].hi[kRightAxis])) continue;
    for (size_t axis = 0; axis < kReachAxes; ++axis) {
      ReachBox box = proof.boxes[k];
      for (double step = 1.0 / 64; step < 64; step *= 2) {
        const double by = step * (proof.boxes[k].hi[axis] - proof.boxes[k].lo[axis]);
        const double least =
            axis == kFloorAxis ? (box.region == ReachRegion::near ? 0 : d.y_first) : -INFINITY;
        box.lo[axis] = std::max(proof.boxes[k].lo[axis] - by, least);
        box.hi[axis] = proof.boxes[k].hi[axis] + by;
        bool corners = true;
        for (int corner = 0; corner < 16; ++corner) {
          std::array<double, kReachAxes> at{};
          for (size_t j = 0; j < kReachAxes; ++j) at[j] = (corner >> j) & 1 ? box.hi[j] : box.lo[j];
          if (box.region == ReachRegion::middle && at[kFloorAxis] < at[kCentreAxis]) continue;  // t_min < 0
          if (at[kLeftAxis] < at[kCentreAxis]) continue;
          corners = corners && alternates(problem, box, proof.refutations[k], constants_at(problem, box, at));
        }
        if (corners) continue;
        ++failing;
        EXPECT_FALSE(verify(problem, box, proof.refutations[k]))
            << "box " << k << " axis " << axis << " step " << step;
        break;
      }
    }
  }
  EXPECT_GT(failing, 100);
}

TEST(Reach, VerifyTakesNothingThatDoesNotHold) {
  const ReachProblem problem = fast(3);
  const Proof& proof = of_degree_3();
  for (size_t k = 0; k < proof.boxes.size(); k += 37) {
    const ReachBox& box = proof.boxes[k];
    const Refutation& good = proof.refutations[k];
    ASSERT_TRUE(verify(problem, box, good));
    Refutation bad = good;
    for (int& side : bad.side) side = -side;
    EXPECT_FALSE(verify(problem, box, bad)) << "sides turned round";
    bad = good;
    bad.q[0] += 1;
    EXPECT_FALSE(verify(problem, box, bad)) << "q shifted";
    bad = good;
    bad.chain.pop_back();
    bad.side.pop_back();
    EXPECT_FALSE(verify(problem, box, bad)) << "one alternation short";
    bad = good;
    bad.q.push_back(0x1p-60);
    EXPECT_FALSE(verify(problem, box, bad)) << "q of a higher degree";
    bad = good;
    std::swap(bad.chain[1], bad.chain[2]);
    std::swap(bad.side[1], bad.side[2]);
    EXPECT_FALSE(verify(problem, box, bad)) << "out of order";
    bad = good;
    bad.chain[2] = bad.chain[0];
    EXPECT_FALSE(verify(problem, box, bad)) << "a pair twice";
    // Strictness: a range that q touches at one point is not beaten. A pair of the chain is widened until it
    // holds q somewhere in the box.
    ReachProblem wider = problem;
    (good.side[1] > 0 ? wider.pairs[good.chain[1]].lo : wider.pairs[good.chain[1]].hi) =
        good.side[1] > 0 ? -1e3 : 1e3;
    EXPECT_FALSE(verify(wider, box, good)) << "a range that holds q";
    // A box that is much larger than the proof was made for.
    ReachBox larger = box;
    larger.lo = {box.region == ReachRegion::far ? 0 : -60.0, problem.domain.y_first,
                 problem.domain.left_first, problem.domain.right_first};
    larger.hi = {1, 1, problem.domain.left_last, 4 * problem.domain.right_far};
    EXPECT_FALSE(verify(problem, larger, good)) << "another box";
  }
}

TEST(Reach, ATouchedRangeIsNotBeaten) {
  // One pair a side, degree 0, no width: q = 0 lies on the ends of both ranges, which the constant 0 serves.
  ReachProblem problem{{Format::bf16, 0, kRatio, kRegret},
                       0,
                       {{-0.1, false, 0, 1}, {-0.1, true, -1, 0}},
                       {0, 1},
                       {-0.2, -0.15, -0.05, 0, 3, 6}};
  const ReachBox box{ReachRegion::middle, {-1, -0.2, 0, 4}, {-1, -0.2, 0, 4}};
  EXPECT_FALSE(verify(problem, box, {{0.0}, {0, 1}, {1, -1}}));
  problem.pairs[0].lo = 0x1p-40;
  problem.pairs[1].hi = -0x1p-40;
  EXPECT_TRUE(verify(problem, box, {{0.0}, {0, 1}, {1, -1}}));
  // Two on the same side are no alternation.
  problem.pairs[1].lo = 0x1p-40;
  problem.pairs[1].hi = 1;
  EXPECT_FALSE(verify(problem, box, {{0.0}, {0, 1}, {1, 1}}));
}

TEST(Reach, SixIsOutOfReachForBf16AndSevenIsNot) {
  const ReachResult& six = of_degree_6().result;
  EXPECT_EQ(six.verdict, ReachVerdict::out_of_reach);

  const ReachProblem problem = fast(7);
  const ReachResult seven = decide(problem).result;
  ASSERT_EQ(seven.verdict, ReachVerdict::in_reach);
  double total = 0, regret = 0;
  for (const StorageInterval& i : intervals()) {
    const auto v = static_cast<double>(coordinate(seven.best, static_cast<double>(i.y), i.m));
    double p = 0;
    for (size_t j = seven.coefficients.size(); j-- > 0;) p = p * v + seven.coefficients[j];
    total = std::max({total, p - i.lo, i.hi - p});
    regret = std::max(regret, std::abs(p - i.middle()));
  }
  EXPECT_LE(total, kRatio * problem.oracle);
  EXPECT_LE(regret, kRegret);
}

TEST(Reach, ShippedConstantsAreNotRefuted) {
  const std::string path = OUTGRAD_SOURCE_DIR "/notebooks_data/fits/gelu_bf16_fast.json";
  const Fit fit = fit_from_json(kernels::read_file(path), path);
  const BackwardModel& m = *fit.as<BackwardModel>();
  const double y_c = static_cast<double>(m.kYHi) + static_cast<double>(m.kYLo),
               s_min = static_cast<double>(m.kSMin);
  ReachBox box{
      ReachRegion::near,
      {y_c, std::sqrt(static_cast<double>(m.kTMin)), y_c + s_min * s_min, static_cast<double>(m.kYMax)},
      {}};
  box.hi = box.lo;
  // The degree they are shipped with serves; one less does not, and is refuted on the same box.
  for (const int less : {0, 1}) {
    const ReachProblem problem =
        reach_problem(gelu(), intervals(), {Format::bf16, m.kDegree - less, kRatio, kRegret});
    std::vector<double> guess;
    double level = 0;
    int axis = 0;
    EXPECT_EQ(refute(problem, box, guess, level, axis).has_value(), less == 1);
  }
}

TEST(Reach, BadQuestionsAreRefused) {
  EXPECT_THROW((void)reach_problem(gelu(), intervals(), {Format::bf16, 99, kRatio, kRegret}),
               kernels::SpecError);
  EXPECT_THROW((void)reach_problem(gelu(), intervals(), {Format::f32, 3, kRatio, kRegret}),
               kernels::SpecError);
  // a constant serves all
  EXPECT_THROW((void)reach_problem(gelu(), intervals(), {Format::bf16, 3, kRatio * 1e3, 4}),
               kernels::SpecError);
  const Composite tanh(find_activation("tanh"));
  EXPECT_THROW(
      (void)reach_problem(tanh, storage_intervals(tanh, Format::bf16), {Format::bf16, 3, kRatio, kRegret}),
      kernels::SpecError);
}

}  // namespace
}  // namespace outgrad::approx
