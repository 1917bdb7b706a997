// Each proof against quantities it must bound, sampled by other means; claims just above the truth hold,
// claims just below do not.
#include "validation/certificate/check.h"

#include <gtest/gtest.h>

#include <bit>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "kernels/eval.h"
#include "tests/validation/certificate/sample_header.h"
#include "validation/certificate/coordinate_bound.h"
#include "validation/certificate/fit_bound.h"
#include "validation/certificate/rounding_bound.h"
#include "validation/certificate/sup_norm.h"

namespace outgrad::validation {
namespace {

const BackwardHeader& bf16_sample() {
  static const BackwardHeader h = make_sample("bf16", 6, 16, false);
  return h;
}

// One of everything that a header may have.
const std::vector<BackwardHeader>& varied_samples() {
  static const std::vector<BackwardHeader> samples = [] {
    std::vector<BackwardHeader> made;
    SampleShape shape;
    const auto add = [&](const char* activation, const char* format, int degree, int rows, int scheme) {
      shape.activation = activation, shape.format = format, shape.degree = degree, shape.rows = rows,
      shape.scheme = scheme;
      made.push_back(make_sample(shape));
      shape = {};
    };
    shape.has_left = true, add("silu", "f32", 6, 32, kEstrin);
    shape.has_left = true, add("gelu_tanh", "f32", 7, 32, kHorner);
    shape.has_left = true, add("mish", "f32", 6, 32, kEvenOdd);
    shape.has_left = true, add("expression", "f32", 6, 32, kHorner);
    shape.has_breaks = shape.has_right = true, shape.bound_b = 0x1p-17, add("gelu", "f32", 6, 12, kEstrin);
    shape.has_breaks = shape.has_right = true, shape.bound_b = 0x1p-17, add("swish", "f32", 5, 14, kEvenOdd);
    shape.centred = false, shape.has_breaks = true, shape.bound_b = 0x1p-16,
    add("quick_gelu", "bf16", 7, 1, kEstrin);
    add("tanh", "f32", 6, 16, kHorner);
    add("softplus", "f32", 5, 16, kEstrin);
    add("softplus", "f16", 5, 8, kEvenOdd);
    add("sigmoid", "bf16", 4, 8, kHorner);
    shape.has_breaks = true, add("elu", "f32", 3, 4, kHorner);
    return made;
  }();
  return samples;
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
    // Any members' result must lie inside; long double is close enough to be judged with a last-bit
    // allowance.
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

// Elementary functions at points, where the upper end is the next number, and over ranges.
TEST(Interval, FunctionsEncloseTheirRange) {
  std::mt19937_64 random(6);
  std::uniform_real_distribution<double> uniform(-3, 3);
  for (int round = 0; round < 2000; ++round) {
    double a = uniform(random), b = round % 2 == 0 ? a : uniform(random);
    if (a > b) std::swap(a, b);
    const long double x = a + (b - a) * (0.5L + uniform(random) / 6);
    const auto expect_inside = [&](const Interval& r, long double exact) {
      EXPECT_LE(r.lower(), static_cast<double>(exact) + 0x1p-50);
      EXPECT_GE(r.upper(), static_cast<double>(exact) - 0x1p-50);
      if (a == b) {
        EXPECT_LT(r.width(), 0x1p-200);
      }
    };
    const Interval v(a, b);
    expect_inside(tanh(v), std::tanh(x));
    expect_inside(atan(v), std::atan(x));
    expect_inside(sin(v), std::sin(x));
    expect_inside(cos(v), std::cos(x));
    expect_inside(absolute(v), std::fabs(x));
    if (a > 0) expect_inside(log(v), std::log(x));
    if (a > -1) expect_inside(log1p(v), std::log1p(x));
  }
  EXPECT_EQ(log(Interval(-1, 2)).upper(), std::numeric_limits<double>::infinity());
}

TEST(Activation, InverseAndSlopeAgreeWithTheCurve) {
  for (const char* name : {"gelu", "gelu_tanh", "quick_gelu", "silu", "swish", "mish", "expression"}) {
    const ReferenceFunction& f = reference_function(name);
    const Activation& activation = activation_of(f.name, f.function, true);
    ASSERT_EQ(activation.problem(), "") << name;
    const Curve curve(f);
    EXPECT_NEAR(activation.y_star().middle(), curve.y_star(), 1e-16);
    EXPECT_LT(activation.x_star().width(), 0x1p-190);
    for (double x = -8.5; x < 6; x += 0.0937) {
      const CurvePoint p = curve.at(x);
      const Interval back = activation.inverse_signed_root(activation.signed_root(x));
      EXPECT_LE(back.lower(), x) << name;
      EXPECT_GE(back.upper(), x) << name;
      EXPECT_LT(back.width(), 1e-20) << name << " " << x;
      if (x < -4) continue;  // s loses x in double
      EXPECT_NEAR(activation.inverse_signed_root(p.s).middle(), x, 1e-8) << name;
      constexpr double kStep = 1e-5;
      const auto g = [&](double s) {
        return activation.only().f.at<1>(activation.inverse_signed_root(s))[1].middle();
      };
      if (p.s - kStep > activation.s_infimum().upper() && x > -3) {
        EXPECT_NEAR(activation.g_slope(p.s).middle(), (g(p.s + kStep) - g(p.s - kStep)) / (2 * kStep), 1e-4)
            << name << " " << x;
      }
    }
  }
}

// Where f'' may be 0 the range of f' is that of a curve about its top: a true header whose largest R lies
// there was undecided.
TEST(Activation, OverABracketOfAnInflectionTheSlopeHardlyMoves) {
  int brackets = 0;
  for (const char* function : {"(1+tanh(1.2497*x))/2", "x*sigmoid(x)"}) {
    for (const Formula::Part& part : activation_of("expression", function, function[0] == 'x').only().parts) {
      if (part.bend != 0) continue;
      ++brackets;
      EXPECT_LE(part.slopes.width(), 0x1p-70) << function << " at " << part.low;
    }
  }
  EXPECT_GE(brackets, 3);
}

// The range of f' over an interval holds every value and is not longer than they require.
TEST(Activation, RangesOfTheSlopeAreTight) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform(-7, 7);
  for (const char* name : {"gelu", "gelu_tanh", "silu", "mish", "tanh", "softplus"}) {
    const ReferenceFunction& f = reference_function(name);
    const Formula& formula = activation_of(f.name, f.function, f.masked).formulas().front();
    for (int round = 0; round < 60; ++round) {
      double a = uniform(random), b = uniform(random);
      if (a > b) std::swap(a, b);
      double least = HUGE_VAL, most = -HUGE_VAL;
      for (int i = 0; i <= 1000; ++i) {
        const double g = static_cast<double>(f.d1(a + (b - a) * i / 1000));
        least = std::min(least, g), most = std::max(most, g);
      }
      const Interval range = formula.slopes(a, b);
      EXPECT_LE(range.lower(), least + 1e-15) << name;  // the samples' own rounding
      EXPECT_GE(range.upper(), most - 1e-15) << name;
      EXPECT_NEAR(range.lower(), least, 1e-4) << name << " " << a << " " << b;
      EXPECT_NEAR(range.upper(), most, 1e-4) << name << " " << a << " " << b;
    }
  }
}

TEST(Activation, RefusesWhatTheProofsDoNotCover) {
  const auto problem = [](const char* function, bool masked) {
    return activation_of("expression", function, masked).problem();
  };
  EXPECT_EQ(problem("x*tanh(log(1+exp(x)))", true), "");
  EXPECT_NE(problem("x*tanh(log(1+exp(x)))", false).find("does not rise"), std::string::npos);
  EXPECT_NE(problem("sin(x)", true).find("not exactly one minimum"), std::string::npos);
  for (const char* function :
       {"1/x", "abs(x)", "x", "tanh(x)", "x^3", "log(x)", "sqrt(x)", "cos(3*x)*exp(-x^2)", "x^4-x^2"})
    EXPECT_NE(problem(function, true), "") << function;
  for (const char* function : {"1/x", "-x", "x^2", "sin(x)"})
    EXPECT_NE(problem(function, false), "") << function;
  EXPECT_NE(name_problem("silu", "x*sigmoid(1.0001*x)", true), "");
  EXPECT_NE(name_problem("swish", "x*sigmoid(-2*x)", true), "");
  EXPECT_NE(name_problem("silu", "x*sigmoid(x)", false), "");
  EXPECT_NE(name_problem("relu", "x", false), "");
  EXPECT_EQ(name_problem("quick_gelu", "x * sigmoid(1.7020*x)", true), "");
  EXPECT_EQ(name_problem("swish", "x*sigmoid(1.702*x)", true), "");
}

// f' is exactly 0 at the centre of an even function: y* is then a number, which enclosures alone would not
// tell.
TEST(Activation, AMinimumAtAShortFractionIsExact) {
  const Activation& shifted = activation_of("expression", "-0.75*exp(-(x-2.5)^2)", true);
  EXPECT_TRUE(shifted.x_star().identical(Interval(2.5)));
  EXPECT_TRUE(shifted.y_star().identical(Interval(-0.75)));
  EXPECT_FALSE(activation_of("silu", "x*sigmoid(x)", true).x_star().is_point());
}

// A question that the enclosures leave open is no fault of the header.
TEST(Check, WhatCannotBeToldIsUndecided) {
  const auto structure = [](const std::string& function, bool masked) {
    SampleShape shape;
    shape.activation = "expression", shape.format = "f32", shape.rows = 32;
    BackwardHeader h = make_sample(shape);
    if (!masked) h = committed("tanh_f32");
    h.activation = "expression", h.function = function, h.x_limit = kExpressionEnd;
    return check_structure(h);
  };
  const Finding open = structure("2*x-x", false);  // f'' = 0 everywhere
  EXPECT_EQ(open.verdict, Verdict::Undecided) << open.why;
  EXPECT_NE(open.why.find("could not be told"), std::string::npos) << open.why;
  for (const auto& [function, masked] : {std::pair{"sin(x)", true}, {"tanh(x)", true}, {"-tanh(x)", false}}) {
    EXPECT_EQ(structure(function, masked).verdict, Verdict::Violated)
        << function << ": " << structure(function, masked).why;
  }
  // Their one minimum, at -62.2 and 62.2, lies in a tail, of which only an enclosure is known.
  for (const char* function : {"softplus(x)-1e-27*x", "softplus(-x)+1e-27*x"}) {
    EXPECT_EQ(structure(function, true).verdict, Verdict::Undecided)
        << function << ": " << structure(function, true).why;
  }
}

// y that no x is stored as refute nothing, and do not keep those from being looked at that do.
TEST(Check, ABoundOfEvaluationIsRefutedByAStoredY) {
  for (const char* name : {"gelu_f32", "gelu_f16", "gelu_bf16"}) {
    const BackwardHeader h = committed(name);
    const Finding finding = prove_rounding(h, 0);
    EXPECT_EQ(finding.verdict, Verdict::Violated) << name << ": " << finding.why;
    EXPECT_TRUE(finding.witness) << name;
  }
}

// 1 / (1 + a^2 - 2 a x)-like poles at known distance make the truncation bound work for its living.
TEST(SupNorm, DecidesWithinAMillionthOfTheMaximum) {
  const auto pole = [](double centre) {
    return AnalyticFunction{[=](const Interval& x) { return Interval(1) / (square(x) + centre * centre); },
                            [=](double middle, double radius) {
                              const double distance = std::hypot(middle, centre) - radius;  // to +-i centre
                              return distance > 0 ? 1.001 / (distance * distance)
                                                  : std::numeric_limits<double>::infinity();
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
  const AnalyticFunction unbounded{[](const Interval& x) { return x; },
                                   [](double, double) { return std::numeric_limits<double>::infinity(); }};
  EXPECT_EQ(bound_sup_norm(unbounded, 0, 1, 10).verdict, Verdict::Undecided);
}

// The transcription from the format of the headers and the kernels' evaluator give the same bits.
struct RuntimeFit {
  const BackwardHeader& h;
  float kYHi = h.y_hi, kYLo = h.y_lo, kTMin = h.t_min, kSMin = h.s_min, kYMin = h.y_min, kYMax = h.y_max,
        kIndexScale = h.index_scale, kIndexBias = h.index_bias;
  bool kHasLeft = h.has_left, kHasRight = h.has_right, kHasBreaks = h.has_breaks, kMasked = h.masked,
       kCentred = h.centred, kRightBoth = h.right_both, kTwoWord = h.two_word;
  float kLeftY = h.left_y, kRightS = h.right_s;
  int kLeftBits = h.left_bits, kLeftRow = h.left_row, kLeftKnee = h.left_knee, kLeftBase = h.left_base,
      kDegree = h.degree, kRows = h.rows, kScheme = h.scheme;
  float break_at(int k) const { return h.breaks[static_cast<size_t>(k)]; }
};

std::vector<const BackwardHeader*> all_samples() {
  std::vector<const BackwardHeader*> samples{&bf16_sample(), &f32_sample()};
  for (const BackwardHeader& h : varied_samples()) samples.push_back(&h);
  return samples;
}

TEST(Deployed, EqualsTheKernelsEvaluatorBitForBit) {
  std::mt19937 random(3);
  for (const BackwardHeader* h : all_samples()) {
    kernels::Table<32, kernels::kLargestDegree + 4> table{};  // more words than the compiler can think of
    for (int row = 0; row < h->rows; ++row)
      std::copy(h->table.row(row).begin(), h->table.row(row).end(), table.w[row]);
    const RuntimeFit fit{*h};
    for (int round = 0; round < 100000; ++round) {
      const bool anything = round % 2 == 0;
      const float y = anything ? std::bit_cast<float>(static_cast<std::uint32_t>(random()))
                               : h->y_hi + std::ldexp(static_cast<float>(random() % 4096) / 4096,
                                                      static_cast<int>(random() % 30) - 25);
      const bool m = random() % 2 == 0;
      const float got = deployed_gradient(*h, y, m),
                  want = kernels::evaluate_backward(kernels::FloatOps{}, fit, table, y, m);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(got));
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(got), std::bit_cast<std::uint32_t>(want))
            << h->activation << " " << y << " " << m;
      }
    }
  }
}

TEST(Deployed, NightlyCellsAreWhatTheIndexSelects) {
  std::mt19937 random(4);
  for (const BackwardHeader* h : all_samples()) {
    const std::vector<Cell> cells = backward_cells(*h);
    for (int round = 0; round < 50000; ++round) {
      const float y = h->y_hi + std::ldexp(static_cast<float>(random() % 65536) / 65536,
                                           static_cast<int>(random() % 30) - 25);
      const bool m = random() % 2 == 0;
      if (!m && y > 0) continue;  // foreign data
      const Selection selection = deployed_selection(*h, y, m);
      const float place =
          selection.coordinate == Coordinate::left_output ? selection.v : deployed_s(*h, y, m);
      const auto holds = [&](const Cell& c) {
        return c.left == (selection.coordinate == Coordinate::left_output) && c.low <= place &&
               place <= c.high;
      };
      ASSERT_EQ(std::count_if(cells.begin(), cells.end(), holds), 1) << h->activation << " " << y << " " << m;
      const Cell& cell = *std::find_if(cells.begin(), cells.end(), holds);
      ASSERT_EQ(cell.row, selection.row) << y << " " << m;
      ASSERT_EQ(cell.evaluated, selection.coordinate) << y << " " << m;
    }
  }
}

TEST(Check, NightlyHonestSamplesHold) {
  for (const BackwardHeader* h : all_samples()) {
    const CheckReport report = check_header(parse_header(print_header(*h), "sample.h"));
    EXPECT_EQ(report.verdict(), Verdict::Holds) << h->activation << "\n" << to_text(report);
    EXPECT_EQ(report.findings.size(), 3u + (h->masked ? 1u : 0u) + (h->format == "f32" ? 1u : 3u));
    for (const Finding& finding : report.findings) EXPECT_LE(finding.proven, finding.claim) << finding.name;
    EXPECT_EQ(to_json({report})["holds"], true);
  }
}

// Every kind of header has A, K and B below what is seen, or a sign, a row or a constant changed.
TEST(Check, NightlyDamagedSamplesFail) {
  for (const BackwardHeader& h : varied_samples()) {
    double observed = 0;
    for (const Cell& cell : backward_cells(h))
      observed = std::max(observed, largest_error(h, cell, points_of_cell(h, cell, 100)));
    const Finding fit = prove_fit(h, h.bound_a);
    EXPECT_GE(fit.proven, observed - 1e-15) << h.activation;  // the samples' own rounding
    if (observed > 1e-15) {  // ELU's rows are g itself
      EXPECT_EQ(prove_fit(h, 0.99 * observed).verdict, Verdict::Violated) << h.activation;
      EXPECT_EQ(prove_fit(h, 0.99 * observed, Findings::to_failure).verdict, Verdict::Violated)
          << h.activation;
    }
    EXPECT_NE(prove_rounding(h, 0x1p-45).verdict, Verdict::Holds) << h.activation;
    if (h.masked) {
      EXPECT_NE(prove_coordinate(h, 0.98 * h.bound_k).verdict, Verdict::Holds) << h.activation;
    }
    const auto fails = [&](const char* what, auto&& damage) {
      BackwardHeader damaged = h;
      damage(damaged);
      EXPECT_NE(check_header(damaged, Findings::to_failure).verdict(), Verdict::Holds)
          << h.activation << ": " << what;
    };
    fails("c1's sign", [](BackwardHeader& d) {
      d.table.row(d.rows / 2)[2] =
          -d.table.row(d.rows / 2)[2] + (d.table.row(d.rows / 2)[2] == 0 ? 1.0f : 0.0f);
    });
    // One row that is not anchored at its ends, and g = 1 wherever y > 0, do not notice.
    if (h.exact_limits && h.activation != "elu") fails("kYMax", [](BackwardHeader& d) { d.y_max *= 0.75f; });
    fails("kScheme", [](BackwardHeader& d) { d.scheme = (d.scheme + 1) % 3; });
    fails("kCentred", [](BackwardHeader& d) { d.centred = !d.centred; });
    fails("kMasked", [](BackwardHeader& d) { d.masked = !d.masked; });
    fails("kFunction", [](BackwardHeader& d) {
      d.function = d.activation == "silu" ? "x*sigmoid(1.001*x)" : "x*sigmoid(x)";
    });
    fails("kActivation",
          [](BackwardHeader& d) { d.activation = d.activation == "gelu" ? "gelu_tanh" : "gelu"; });
    fails("kClass", [](BackwardHeader& d) { d.accuracy = "abs:2^-60"; });
    if (h.has_breaks && h.rows > 1) {
      fails("a break", [](BackwardHeader& d) { d.breaks[0] = std::nextafter(d.breaks[1], -1.0f); });
    } else if (!h.has_breaks) {
      fails("kIndexBias", [](BackwardHeader& d) { d.index_bias += 1; });
    }
    if (h.has_right) fails("kHasRight", [](BackwardHeader& d) { d.has_right = false; });
  }
}

// Lowered to what was proved, a claim passes again; 1% under the largest value seen, it does not, and the
// witness shows why.
TEST(Check, ClaimsAreTight) {
  for (const BackwardHeader* h : {&bf16_sample(), &f32_sample()}) {
    double observed = 0;
    for (const Cell& cell : backward_cells(*h))
      observed = std::max(observed, largest_error(*h, cell, points_of_cell(*h, cell, 100)));
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

TEST(Check, NightlyCoordinateBoundCoversSampledY) {
  for (const BackwardHeader* h :
       {&bf16_sample(), &f32_sample(), &varied_samples()[0], &varied_samples()[1], &varied_samples()[2]}) {
    const Activation& activation = activation_of(*h);
    const double y_star = activation.y_star().middle();
    const auto g_at = [&](const Interval& s) {
      return activation.only().f.at<1>(activation.inverse_signed_root(s))[1].middle();
    };
    for (const float shift : {0.0f, 0x1p-16f, -0x1p-16f}) {
      BackwardHeader shifted = *h;
      shifted.y_lo = h->y_lo + shift;
      shifted.t_min = 0x1p-18f;
      const double proven = prove_coordinate(shifted, 1).proven;
      ASSERT_LT(proven, 0.1);
      const double end = h->has_left ? h->left_y : -1e-3;
      // the stored y from RN(y*) on, then any y
      const double grid = std::ldexp(1.0, std::ilogb(y_star) - (h->format == "f32" ? 23 : 7));
      double largest = 0;
      for (int i = 0; i < 120; ++i) {
        const double y =
            i < 40 ? (std::nearbyint(y_star / grid) + i) * grid : -0.125 + std::ldexp(1.0, i / 2 - 56);
        for (const double sign : {1.0, -1.0}) {
          if (sign < 0 && y > end) continue;
          const double t = std::max(y - shifted.y_hi - shifted.y_lo, static_cast<double>(shifted.t_min));
          const double moved = g_at(sign * std::sqrt(t));
          const double still = y < y_star ? 0.0 : g_at(sqrt(Interval(y) - activation.y_star()) * sign);
          largest = std::max(largest, std::fabs(moved - still));
        }
      }
      EXPECT_LE(largest, proven * (1 + 1e-12));
      EXPECT_NE(prove_coordinate(shifted, 0.99 * largest).verdict, Verdict::Holds);
    }
  }
}

TEST(Check, NightlyRoundingBoundCoversSampledY) {
  for (const BackwardHeader* header : all_samples()) {
    const BackwardHeader& h = *header;
    if (h.format != "f32") continue;
    const double proven = prove_rounding(h, h.bound_b).proven;
    std::mt19937 random(5);
    double largest = 0;
    for (int round = 0; round < 300000; ++round) {
      const float y =
          (h.masked ? h.y_hi : h.y_min) + std::ldexp(static_cast<float>(random() % (1 << 20)) * 0x1p-20f,
                                                     static_cast<int>(random() % 20) - 16);
      const bool m = random() % 2 == 0;
      if (!m && y > 0) continue;
      const Selection selection = deployed_selection(h, y, m);
      double v = selection.v;
      if (selection.coordinate == Coordinate::root) {
        const double t = std::max(static_cast<double>(std::min(y, h.y_max)) - h.y_hi - h.y_lo,
                                  static_cast<double>(h.t_min));
        v = (m ? 1 : -1) * std::sqrt(t);
        if (!h.has_left) v = std::max(v, static_cast<double>(h.s_min));
      }
      const auto row = h.table.row(selection.row);
      double p = 0;
      for (int word = h.degree + 1; word >= 1; --word) p = p * (v - (h.centred ? row[0] : 0.0f)) + row[word];
      largest = std::max(largest, std::fabs(deployed_gradient(h, y, m) - p));
    }
    EXPECT_LE(largest, proven) << h.activation;
    // ELU: every operation is exact, or its error below what was sampled
    if (largest == 0) continue;
    EXPECT_GT(largest, proven / 32) << h.activation;  // a bound far above everything seen would prove little
    EXPECT_NE(prove_rounding(h, 0.99 * largest).verdict, Verdict::Holds) << h.activation;
  }
}

// The class rel: what an absolute bound of the same size would let pass where g is small.
TEST(Check, RelativeErrorsAreProven) {
  const BackwardHeader good = committed("gelu_f32_rel");
  EXPECT_EQ(prove_fit(good, good.bound_a).verdict, Verdict::Holds);
  EXPECT_NE(prove_fit(good, 0.98 * good.bound_a).verdict, Verdict::Holds);
  int damaged_rows = 0;
  for (const Cell& cell : backward_cells(good)) {
    if (cell.left && cell.high == 0) continue;  // absolute: it runs into the limit 0
    BackwardHeader h = good;
    auto row = h.table.row(cell.row);
    // Everything 2^-16 of itself larger: |p/g - 1| is then about 2^-16, four times the claim, also where |p -
    // g| is far below it.
    for (int word = 1; word < h.table.words; ++word) row[word] *= 1 + 0x1p-16f;
    EXPECT_NE(prove_cell(h, cell, h.bound_a).verdict, Verdict::Holds) << "row " << cell.row;
    h.accuracy = "abs:2^-18";
    damaged_rows += prove_cell(h, cell, h.bound_a).verdict == Verdict::Holds;
  }
  EXPECT_GT(damaged_rows, 10);  // the absolute claim holds there all the same
}

// The committed headers hold: the second witness for what the fitter certified.
void expect_held(const std::set<std::string>& files) {
  for (const std::string& file : files) {
    const CheckReport report = check_header(read_header(file));
    EXPECT_EQ(report.verdict(), Verdict::Holds) << to_text(report);
  }
}

int held(bool (*chosen)(const std::string& name)) {
  // in order, so that headers of one format follow each other: they share an enumeration
  std::set<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(OUTGRAD_SOURCE_DIR) / "kernels/generated")) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("tuned_") && chosen(name)) files.insert(entry.path().string());
  }
  expect_held(files);
  return static_cast<int>(files.size());
}

bool of_gelu(const std::string& name) { return name.starts_with("gelu_") && !name.starts_with("gelu_tanh_"); }
bool of_a_forward(const std::string& name) { return name.find("_forward") != std::string::npos; }

// GELU's, and forwards of another activation: f = x p, and f = p, and those of f32.
TEST(Check, CommittedDefaultsHold) {
  std::set<std::string> files;
  for (const char* name :
       {"gelu_f32", "gelu_bf16", "gelu_f16", "gelu_forward", "gelu_forward_bf16", "silu_forward_bf16",
        "sigmoid_forward_f16", "gelu_tanh_forward", "quick_gelu_forward", "silu_forward", "swish_forward",
        "mish_forward", "tanh_forward", "sigmoid_forward", "softplus_forward", "elu_forward"}) {
    files.insert(std::string(OUTGRAD_SOURCE_DIR) + "/kernels/generated/" + name + ".h");
  }
  expect_held(files);
}

TEST(Check, NightlyCommittedHeadersOfGeluHold) { EXPECT_GE(held(of_gelu), 13); }
TEST(Check, NightlyCommittedForwardsHold) { EXPECT_GE(held(of_a_forward), 29); }

TEST(CheckExhaustive, CommittedHeadersOfOtherActivationsHold) {
  EXPECT_GE(held([](const std::string& name) { return !of_gelu(name) && !of_a_forward(name); }), 27);
}

// A row far below the header's kA is held to what it says of itself.
TEST(Check, EachRowsOwnClaimIsProven) {
  for (const BackwardHeader* h : {&bf16_sample(), &f32_sample()}) {
    EXPECT_EQ(prove_fit(*h, h->bound_a).verdict, Verdict::Holds) << h->name;
    for (const Cell& cell : backward_cells(*h)) {
      BackwardHeader damaged = *h;
      damaged.table.log2_fit_errors[static_cast<size_t>(cell.row)] =
          std::log2(prove_cell(*h, cell, h->bound_a).observed) - 0.01;
      const Finding finding = prove_fit(damaged, h->bound_a);
      EXPECT_EQ(finding.verdict, Verdict::Violated) << h->name << " row " << cell.row;
      EXPECT_EQ(finding.why.find(fmt::format("row {} ", cell.row)), 0u) << finding.why;
    }
  }
}

TEST(Check, TheDomainOfAnExpressionIsAClaim) {
  SampleShape shape;
  shape.activation = "expression", shape.format = "f32", shape.rows = 32, shape.has_left = true;
  BackwardHeader h = make_sample(shape);
  EXPECT_EQ(check_structure(h).verdict, Verdict::Holds);
  EXPECT_NE(print_header(h).find("static constexpr double kXLimit = 0x1p+6;"), std::string::npos);
  for (const double limit : {0.0, 63.0, 128.0}) {
    h.x_limit = limit;
    EXPECT_EQ(check_structure(h).verdict, Verdict::Violated) << limit;
  }
  BackwardHeader known = f32_sample();
  known.x_limit = 64;
  EXPECT_EQ(check_structure(known).verdict, Verdict::Violated);
}

// ELU's two formulas meet at 0: with y clamped to kYMax = -2^-41 every y above it has the wrong g, by less
// than is seen of one formula alone.
TEST(Check, AClampOnTheWrongSideOfTwoFormulasFails) {
  for (const char* name : {"elu_bf16", "elu_f16", "elu_f32"}) {
    const BackwardHeader h = committed(name);
    EXPECT_EQ(check_structure(h).verdict, Verdict::Holds) << name;
    BackwardHeader damaged = h;
    damaged.y_max = -h.y_max;
    EXPECT_NE(check_header(damaged, Findings::to_failure).verdict(), Verdict::Holds) << name;
  }
}

// More steps of the left segment than there are rows: numbers of rows repeat, and a row that is proven for
// one step serves another as well.
TEST(Check, ALeftSegmentDoesNotUseARowTwice) {
  SampleShape shape;
  shape.format = "f32", shape.rows = 8, shape.has_breaks = true;
  BackwardHeader h = make_sample(shape);
  h.has_left = true, h.left_y = -0.125f, h.left_bits = 3, h.left_row = 1;
  h.left_base = (123 << 3) + 7 - 11;  // the outermost of 12 steps has row 1 + 11 = 4 mod 8
  // One row serves all s, and no break is reached.
  for (size_t k = 0; k < h.breaks.size(); ++k) h.breaks[k] = 100.0f + static_cast<float>(k);
  h.exact_limits = false;
  std::ranges::fill(h.table.values, 0.0f);
  fit_row(h, {0, false, deployed_s(h, h.left_y, false), deployed_s(h, h.y_max, true), Coordinate::root}, 0.0f,
          std::numeric_limits<float>::quiet_NaN());
  h.table.row(4)[0] = -0.121f, h.table.row(4)[2] = 10;  // about 0 at the outermost step alone
  h.bound_a = 0.25, h.bound_b = 0x1p-15, h.bound_ab = 0.26;
  h.table.log2_fit_errors.assign(8, -2.0);
  const float y = -0.06f;
  ASSERT_EQ(deployed_selection(h, y, false).row, 4);
  const double g = activation_of(h).only().f.at<1>(argument_of(h, {4, true, y, y}, y))[1].middle();
  ASSERT_GT(std::fabs(deployed_gradient(h, y, false) - g), 0.5);
  const CheckReport report = check_header(parse_header(print_header(h), "sample.h"));
  EXPECT_EQ(report.verdict(), Verdict::Violated) << to_text(report);
}

// B holds for every stored y, also where y_c = kYHi + kYLo lies far below kYHi.
TEST(Check, EvaluationIsBoundedFromYcOn) {
  SampleShape shape;
  shape.format = "f32", shape.rows = 12, shape.has_breaks = true, shape.bound_b = 0x1p-17;
  BackwardHeader h = make_sample(shape);
  ASSERT_EQ(prove_rounding(h, h.bound_b).verdict, Verdict::Holds);
  const double y_star = activation_of(h).y_star().middle();
  h.y_hi = static_cast<float>(y_star + 1e-4), h.y_lo = static_cast<float>(y_star - h.y_hi);
  // The row next to y* loses the digits of s beside its centre.
  h.breaks = {-0.12f, -0.06f, -0.03f, -0.009f, 0.009f, 0.1f, 0.4f, 0.7f, 1.0f, 1.3f, 1.7f};
  for (const Cell& cell : backward_cells(h)) {
    fit_row(h, cell, 0.5f * (cell.low + cell.high), std::numeric_limits<float>::quiet_NaN());
    if (cell.row != 4) continue;
    const auto row = h.table.row(cell.row);
    std::ranges::fill(row.subspan(3), 0.0f);
    row[0] = 1024, row[1] = 1024 * row[2];
  }
  double error = 0;
  for (int i = 0; i < 64; ++i) {
    const float y = static_cast<float>(y_star + 0x1p-15 + i * 0x1p-25);
    ASSERT_EQ(deployed_selection(h, y, true).row, 4);
    error = std::max(error, rounding_error_at(h, y, true).mignitude());
  }
  ASSERT_GT(error, 2 * h.bound_b);
  EXPECT_GE(prove_rounding(h, h.bound_b).proven, error);
  EXPECT_NE(prove_rounding(h, h.bound_b).verdict, Verdict::Holds);
  EXPECT_GE(prove_rows(h, std::vector<double>(12, 0.0), RowMeasure::sum, h.bound_b).proven, error);
}

// A row that the text says is never asked for is one of zeros: a claim wide enough would let it pass.
TEST(Check, RowsThatAreNeverAskedForAreNot) {
  BackwardHeader h = f32_sample();
  h.bound_a = 0.25, h.bound_ab = 0.26;
  h.table.log2_fit_errors.assign(static_cast<size_t>(h.rows - 1), -2.0);
  std::ranges::fill(h.table.row(h.rows - 1), 0.0f);
  ASSERT_EQ(deployed_selection(h, std::nextafter(h.left_y, 0.0f), false).row, h.rows - 1);
  const CheckReport report = check_header(parse_header(print_header(h), "sample.h"));
  EXPECT_EQ(report.verdict(), Verdict::Violated) << to_text(report);
}

}  // namespace
}  // namespace outgrad::validation
