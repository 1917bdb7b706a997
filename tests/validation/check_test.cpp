// Each proof against quantities it must bound, sampled by other means; claims just above the truth hold, claims just below do not.
#include "validation/check.h"

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/eval.h"
#include "tests/validation/sample_header.h"
#include "validation/coordinate_bound.h"
#include "validation/fit_bound.h"
#include "validation/rounding_bound.h"
#include "validation/sup_norm.h"

namespace outgrad::validation {
namespace {

const BackwardHeader& bf16_sample() {
  static const BackwardHeader h = make_sample("bf16", 6, 16, false);
  return h;
}

const BackwardHeader& f32_sample() {
  static const BackwardHeader h = make_sample("f32", 6, 32, true);
  return h;
}

TEST(Interval, EnclosesExactResults) {
  std::mt19937_64 random(2);
  std::uniform_real_distribution<double> uniform(-3, 3);
  for (int round = 0; round < 2000; ++round) {
    double a = uniform(random), b = uniform(random), c = uniform(random), d = uniform(random);
    if (a > b) std::swap(a, b);
    if (c > d) std::swap(c, d);
    const Interval v(a, b), w(c, d);
    // Any members' result must lie inside; long double is close enough to be judged with a last-bit allowance.
    const double t = 0.5 + uniform(random) / 6, x = a + t * (b - a), y = c + (1 - t) * (d - c);
    const auto expect_inside = [&](const Interval& r, long double exact) {
      EXPECT_LE(r.lower(), static_cast<double>(exact) + 0x1p-50);
      EXPECT_GE(r.upper(), static_cast<double>(exact) - 0x1p-50);
    };
    expect_inside(v + w, static_cast<long double>(x) + y);
    expect_inside(v - w, static_cast<long double>(x) - y);
    expect_inside(v * w, static_cast<long double>(x) * y);
    expect_inside(square(v), static_cast<long double>(x) * x);
    expect_inside(exp(v), std::exp(static_cast<long double>(x)));
    expect_inside(erfc(v), std::erfc(static_cast<long double>(x)));
    if (!w.contains_zero()) {
      EXPECT_LE((v / w).lower(), x / y + std::fabs(x / y) * 0x1p-50);
      EXPECT_GE((v / w).upper(), x / y - std::fabs(x / y) * 0x1p-50);
    } else {
      EXPECT_EQ((v / w).upper(), std::numeric_limits<double>::infinity());
    }
  }
}

TEST(GeluInterval, InverseAndSlopeAgreeWithTheCurve) {
  Curve curve;
  for (double x = -9; x < 6; x += 0.037) {
    const CurvePoint p = curve.at(x);
    const Interval back = inverse_signed_root(signed_root(x));
    EXPECT_LE(back.lower(), x);
    EXPECT_GE(back.upper(), x);
    if (x < -5) continue;  // s loses x in double
    EXPECT_NEAR(inverse_signed_root(p.s).middle(), x, 1e-9);
    constexpr double kStep = 1e-5;
    const double slope = (gelu_d1(inverse_signed_root(p.s + kStep)).middle() - gelu_d1(inverse_signed_root(p.s - kStep)).middle()) / (2 * kStep);
    if (p.s - kStep > s_infimum().upper() && x > -3.5) {
      EXPECT_NEAR(g_slope(p.s).middle(), slope, 1e-5) << x;
    }
  }
  EXPECT_NEAR(g_slope(Interval(-1e-9, 1e-9)).middle(), 0.928971466, 1e-8);
}

// 1 / (1 + a^2 - 2 a x)-like poles at known distance make the truncation bound work for its living.
TEST(SupNorm, DecidesWithinAMillionthOfTheMaximum) {
  const auto pole = [](double centre) {
    return AnalyticFunction{[=](const Interval& x) { return Interval(1) / (square(x) + centre * centre); },
                            [=](double middle, double radius) {
                              const double distance = std::hypot(middle, centre) - radius;  // to +-i centre
                              return distance > 0 ? 1.001 / (distance * distance) : std::numeric_limits<double>::infinity();
                            }};
  };
  for (const double centre : {0.02, 0.3, 2.0}) {
    const double maximum = 1 / (centre * centre);
    EXPECT_EQ(bound_sup_norm(pole(centre), -1.1, 0.9, maximum * (1 + 1e-6)).verdict, Verdict::Holds);
    const SupNorm failed = bound_sup_norm(pole(centre), -1.1, 0.9, maximum * (1 - 1e-6));
    EXPECT_EQ(failed.verdict, Verdict::Violated);
    EXPECT_NEAR(failed.at, 0, 1e-2);
  }
  // A pole on the interval's edge is never proved away, nor is a function without a disc bound.
  EXPECT_NE(bound_sup_norm(pole(0), 0, 1, 10).verdict, Verdict::Holds);
  const AnalyticFunction unbounded{[](const Interval& x) { return x; }, [](double, double) { return std::numeric_limits<double>::infinity(); }};
  EXPECT_EQ(bound_sup_norm(unbounded, 0, 1, 10).verdict, Verdict::Undecided);
}

// The transcription from the format of the headers and the kernels' evaluator give the same bits.
struct RuntimeFit {
  const BackwardHeader& h;
  float kYHi = h.y_hi, kYLo = h.y_lo, kTMin = h.t_min, kSMin = h.s_min, kSMax = h.s_max, kIndexScale = h.index_scale, kIndexBias = h.index_bias;
  bool kHasLeft = h.has_left;
  float kLeftY = h.left_y;
  int kLeftRow = h.left_row, kLeftKnee = h.left_knee, kLeftBase = h.left_base, kDegree = h.degree, kRows = h.rows;
};

TEST(Deployed, EqualsTheKernelsEvaluatorBitForBit) {
  std::mt19937 random(3);
  for (const BackwardHeader* h : {&bf16_sample(), &f32_sample()}) {
    kernels::Table<32, 8> table{};
    for (int row = 0; row < h->rows; ++row) std::copy(h->table.row(row).begin(), h->table.row(row).end(), table.w[row]);
    const RuntimeFit fit{*h};
    for (int round = 0; round < 200000; ++round) {
      const bool anything = round % 2 == 0;
      const float y = anything ? std::bit_cast<float>(static_cast<std::uint32_t>(random()))
                               : -0.17f + std::ldexp(static_cast<float>(random() % 4096) / 4096, static_cast<int>(random() % 30) - 25);
      const bool m = random() % 2 == 0;
      const float got = deployed_gradient(*h, y, m), want = kernels::evaluate_backward(kernels::FloatOps{}, fit, table, y, m);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got));
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want)) << y << " " << m;
      }
    }
  }
}

TEST(Deployed, CellsAreWhatTheIndexSelects) {
  std::mt19937 random(4);
  for (const BackwardHeader* h : {&bf16_sample(), &f32_sample()}) {
    const std::vector<Cell> cells = backward_cells(*h);
    for (int round = 0; round < 100000; ++round) {
      const float y = -0.17f + std::ldexp(static_cast<float>(random() % 65536) / 65536, static_cast<int>(random() % 30) - 25);
      const bool m = random() % 2 == 0;
      if (!m && y > 0) continue;  // foreign data
      const Selection selection = deployed_selection(*h, y, m);
      const auto holds = [&](const Cell& c) { return c.left == selection.left && c.low <= selection.v && selection.v <= c.high; };
      ASSERT_EQ(std::count_if(cells.begin(), cells.end(), holds), 1) << y << " " << m;
      ASSERT_EQ(std::find_if(cells.begin(), cells.end(), holds)->row, selection.row) << y << " " << m;
    }
  }
}

TEST(Check, HonestSamplesHold) {
  for (const BackwardHeader* h : {&bf16_sample(), &f32_sample()}) {
    const CheckReport report = check_header(*h);
    EXPECT_EQ(report.verdict(), Verdict::Holds) << to_text(report);
    EXPECT_EQ(report.findings.size(), 4u);
    for (const Finding& finding : report.findings) EXPECT_LE(finding.proven, finding.claim) << finding.name;
    EXPECT_EQ(to_json({report})["holds"], true);
  }
}

// Lowered to what was proved, a claim passes again; 1% under the largest value seen, it does not, and the witness shows why.
TEST(Check, ClaimsAreTight) {
  for (const BackwardHeader* h : {&bf16_sample(), &f32_sample()}) {
    double observed = 0;
    for (const Cell& cell : backward_cells(*h)) observed = std::max(observed, largest_error(*h, cell, points_of_cell(cell, 100)));
    const Finding fit = prove_fit(*h, h->bound_a);
    EXPECT_GE(fit.proven, observed);
    EXPECT_EQ(prove_fit(*h, fit.proven).verdict, Verdict::Holds);
    const Finding low_fit = prove_fit(*h, 0.99 * observed);
    EXPECT_EQ(low_fit.verdict, Verdict::Violated);
    ASSERT_TRUE(low_fit.witness.has_value());
    EXPECT_GT(low_fit.witness->got, 0.99 * observed);

    const Finding coordinate = prove_coordinate(*h, h->bound_k);
    EXPECT_EQ(prove_coordinate(*h, coordinate.proven).verdict, Verdict::Holds);
    EXPECT_EQ(prove_coordinate(*h, 0.98 * coordinate.proven).verdict, Verdict::Violated);

    const Finding rounding = prove_rounding(*h, h->bound_b);
    EXPECT_EQ(prove_rounding(*h, rounding.proven).verdict, Verdict::Holds);
  }
  // Enumerated, hence exact.
  const Finding exact = prove_rounding(bf16_sample(), 1);
  EXPECT_EQ(prove_rounding(bf16_sample(), 0.99 * exact.proven).verdict, Verdict::Violated);
}

TEST(Check, CoordinateBoundCoversSampledY) {
  for (const BackwardHeader* h : {&bf16_sample(), &f32_sample()}) {
    for (const float shift : {0.0f, 0x1p-16f, -0x1p-16f}) {
      BackwardHeader shifted = *h;
      shifted.y_lo = h->y_lo + shift;
      shifted.t_min = 0x1p-18f;
      const double proven = prove_coordinate(shifted, 1).proven;
      ASSERT_LT(proven, 0.1);
      const double end = h->has_left ? h->left_y : -1e-3;
      const double grid = h->format == "f32" ? 0x1p-26 : 0x1p-10;  // the stored y from RN(y*) on, then any y
      double largest = 0;
      for (int i = 0; i < 120; ++i) {
        const double y = i < 40 ? (std::nearbyint(y_star().middle() / grid) + i) * grid : -0.125 + std::ldexp(1.0, i / 2 - 56);
        for (const double sign : {1.0, -1.0}) {
          if (sign < 0 && y > end) continue;
          const double t = std::max(y - shifted.y_hi - shifted.y_lo, static_cast<double>(shifted.t_min));
          const double moved = gelu_d1(inverse_signed_root(sign * std::sqrt(t))).middle();
          const double still = y < y_star().middle() ? 0.0 : gelu_d1(inverse_signed_root(sqrt(Interval(y) - y_star()) * sign)).middle();
          largest = std::max(largest, std::fabs(moved - still));
        }
      }
      EXPECT_LE(largest, proven * (1 + 1e-12));
      EXPECT_NE(prove_coordinate(shifted, 0.99 * largest).verdict, Verdict::Holds);
    }
  }
}

TEST(Check, RoundingBoundCoversSampledY) {
  const BackwardHeader& h = f32_sample();
  const double proven = prove_rounding(h, h.bound_b).proven;
  std::mt19937 random(5);
  double largest = 0;
  for (int round = 0; round < 1000000; ++round) {
    const float y = -0.1699712f + std::ldexp(static_cast<float>(random() % (1 << 20)) * 0x1p-20f, static_cast<int>(random() % 20) - 16);
    const bool m = random() % 2 == 0;
    if (!m && y > 0) continue;
    const Selection selection = deployed_selection(h, y, m);
    const double t = std::max(static_cast<double>(y) - h.y_hi - h.y_lo, static_cast<double>(h.t_min));
    const double v = selection.left ? static_cast<double>(selection.v) : std::min((m ? 1 : -1) * std::sqrt(t), static_cast<double>(h.s_max));
    const auto row = h.table.row(selection.row);
    double p = 0;
    for (int word = h.degree + 1; word >= 1; --word) p = p * (v - row[0]) + row[word];
    largest = std::max(largest, std::fabs(deployed_gradient(h, y, m) - p));
  }
  EXPECT_LE(largest, proven);
  EXPECT_GT(largest, proven / 16);  // a bound far above everything seen would prove little
  EXPECT_NE(prove_rounding(h, 0.99 * largest).verdict, Verdict::Holds);
}

// The committed headers hold: the second witness for what the fitter certified.
TEST(Check, CommittedHeadersHold) {
  int backward = 0, forward = 0;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(OUTGRAD_SOURCE_DIR) / "kernels/generated")) {
    if (!entry.path().filename().string().starts_with("gelu_")) continue;
    const Header header = read_header(entry.path().string());
    ++(std::holds_alternative<ForwardHeader>(header) ? forward : backward);
    const CheckReport report = check_header(header);
    EXPECT_EQ(report.verdict(), Verdict::Holds) << to_text(report);
  }
  EXPECT_GE(backward, 3);
  EXPECT_GE(forward, 1);
}

}  // namespace
}  // namespace outgrad::validation
