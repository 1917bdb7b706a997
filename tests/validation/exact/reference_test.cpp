// The double reference of every activation against the MPFR witness: its proven bounds hold on dense samples,
// are not vacuous, and its roundings are right.

#include "validation/exact/reference.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <ostream>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "validation/exact/function_oracle.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::validation {

// A parameter by its name: an address would not be the same twice.
static void PrintTo(const SweptActivation* of, std::ostream* out) { *out << of->name; }

namespace {

struct Evaluated {
  Evaluated(const Reference& reference, const std::vector<float>& x)
      : value(x.size()), lo(x.size()), hi(x.size()), derivative(x.size()) {
    reference.evaluate(x.data(), value.data(), lo.data(), hi.data(), derivative.data(),
                       static_cast<std::int64_t>(x.size()));
  }
  std::vector<double> value, lo, hi, derivative;
};

class ReferenceOf : public testing::TestWithParam<const SweptActivation*> {
 protected:
  const SweptActivation& of() const { return *GetParam(); }
  const Reference& reference() const { return of().reference(); }
  /// The generic one, also of GELU and SiLU.
  FunctionOracle oracle() const { return {of().analysis(), of().ends, of().x_star}; }

  /// Arguments that reach every cell, both ends of each, all binades, the borders between the proxies, ties
  /// of the formats, and random bit patterns.
  std::vector<float> arguments() const {
    std::vector<float> x{0.0f, -0.0f};
    const auto around = [&](float v) {
      for (const float near : {std::nextafter(v, -INFINITY), v, std::nextafter(v, INFINITY)}) {
        if (std::isfinite(near)) x.push_back(near);
      }
    };
    std::mt19937_64 random(3);
    const std::vector<float> edges = reference().edges();
    for (std::size_t i = 0; i < edges.size(); ++i) {
      around(edges[i]);
      if (i > 0) x.push_back(std::uniform_real_distribution<float>(edges[i - 1], edges[i])(random));
    }
    for (int e = -148; e <= 127; ++e) {
      // ties of f16 and bf16 for f(x) = x and x / 2; fifths of 3 x
      for (const float significand : {1.0f, 1.00390625f, 1.00048828125f, 1.25f, 1.9990234375f}) {
        around(std::ldexp(significand, e));
        around(-std::ldexp(significand, e));
      }
    }
    if (of().masked()) around(static_cast<float>(of().x_star));
    std::uniform_real_distribution<float> uniform(-5, 5);
    for (int i = 0; i < 1000; ++i) x.push_back(uniform(random));
    for (int i = 0; i < 1000; ++i) {
      const float v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
      if (std::isfinite(v)) x.push_back(v);
    }
    return x;
  }
};

TEST_P(ReferenceOf, BoundsHoldAgainstTheOracleAndAreNotVacuous) {
  const std::vector<float> x = arguments();
  const Evaluated at(reference(), x);
  FunctionOracle oracle = this->oracle();
  double worst_derivative = 0, worst_value = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const DoubleBounds f = oracle.value_bounds(x[i]), g = oracle.derivative_bounds(x[i]);
    const double derivative_error =
        std::max(std::fabs(at.derivative[i] - g.lo), std::fabs(at.derivative[i] - g.hi));
    EXPECT_LE(derivative_error, Reference::kDerivativeBound) << x[i];
    worst_derivative = std::max(worst_derivative, derivative_error);
    if (x[i] < reference().left() && of().ends.left_limit == 0) {
      EXPECT_LT(std::max(std::fabs(f.lo), std::fabs(f.hi)), 0x1p-150) << "no format sees the left tail";
      continue;
    }
    if (f.lo == 0 || f.hi == 0) continue;
    const double value_error = std::max(std::fabs(at.value[i] / f.lo - 1), std::fabs(at.value[i] / f.hi - 1));
    EXPECT_LE(value_error, Reference::kValueBound) << x[i];
    worst_value = std::max(worst_value, value_error);
  }
  // A bound a hundred times too large would hide a broken table as surely as a wrong one.
  EXPECT_GT(worst_derivative, Reference::kDerivativeBound / 16);
  EXPECT_GT(worst_value, Reference::kValueBound / 16);
  EXPECT_LE(reference().proven_derivative_bound(), Reference::kDerivativeBound);
  EXPECT_LE(2 * reference().proven_value_bound(), Reference::kValueBound);
}

TEST_P(ReferenceOf, RoundsEveryFormatLikeTheOracle) {
  const std::vector<float> x = arguments();
  const Evaluated at(reference(), x);
  FunctionOracle oracle = this->oracle();
  std::vector<float> y(x.size());
  for (const FloatFormat& format : {kF32, kF16, kBf16}) {
    const std::int64_t decided =
        round_values({x.data(), at.lo.data(), at.hi.data(), static_cast<std::int64_t>(x.size())}, y.data(),
                     format, oracle);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float want = static_cast<float>(oracle.value(x[i], format));
      EXPECT_EQ(std::bit_cast<std::uint32_t>(y[i]), std::bit_cast<std::uint32_t>(want))
          << format.name << ' ' << x[i];
      // Without the oracle: the rounding is one of the two the bracket leaves.
      const double lo = round_to_format(at.lo[i], format), hi = round_to_format(at.hi[i], format);
      EXPECT_TRUE(want == lo || want == hi) << format.name << ' ' << x[i];
    }
    EXPECT_LT(decided, static_cast<std::int64_t>(x.size() / 4))
        << "the oracle must stay the exception, also on these hand-picked arguments";
  }
}

TEST_P(ReferenceOf, SlicesAtAnyPlaceGiveTheSame) {
  const std::vector<float> x = arguments();
  const Evaluated whole(reference(), x);
  for (std::size_t i = 0; i < x.size(); i += 97) {
    const Evaluated one(reference(), {x[i]});
    EXPECT_EQ(one.value[0], whole.value[i]);
    EXPECT_EQ(one.derivative[0], whole.derivative[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Activations, ReferenceOf, testing::ValuesIn(swept_activations()),
                         [](const auto& tested) { return std::string(tested.param->name); });

// What Ends says and an enclosure can contradict.
TEST(Reference, RefusesWrongFacts) {
  const auto make = [](const SweptActivation& of, auto spoil) {
    Ends ends = of.ends;
    spoil(ends);
    return Reference(of.analysis(), ends);
  };
  EXPECT_NO_THROW(make(*swept_activation("tanh"), [](Ends&) {}));
  EXPECT_THROW(make(*swept_activation("tanh"), [](Ends& e) { e.slope_p = 2; }), std::logic_error);
  EXPECT_THROW(make(*swept_activation("mish"), [](Ends& e) { e.slope_p = 1, e.slope_q = 2; }),
               std::logic_error);
  EXPECT_THROW(make(*swept_activation("tanh"), [](Ends& e) { e.left_limit = 0; }), std::logic_error);
  EXPECT_THROW(make(*swept_activation("tanh"), [](Ends& e) { e.right = Ends::Right::below_x; }),
               std::logic_error);
  EXPECT_THROW(make(*swept_activation("softplus"), [](Ends& e) { e.right = Ends::Right::below_one; }),
               std::logic_error);
}

TEST(SweptActivation, ConstantsOfTheSweepHold) {
  for (const SweptActivation* of : swept_activations()) {
    const SweptFacts& facts = of->facts();
    EXPECT_EQ(of->masked(), std::isfinite(of->x_star)) << of->name;
    if (of->masked()) {
      const std::unique_ptr<Oracle> oracle = of->oracle();
      EXPECT_LT(oracle->derivative(of->x_star), 0) << of->name;
      EXPECT_GT(oracle->derivative(std::nextafter(of->x_star, 0)), 0) << of->name;
    }
    // 2 |f''| by differences of f', which reach the bound to a few per cent.
    double steepest = 0;
    constexpr double kStep = 0x1p-10;
    for (double x = -8; x < 8; x += kStep) {
      const auto slope = [&](double at) {
        return of->analysis().formulas()[at >= 0 ? of->analysis().formulas().size() - 1 : 0].f.approximate(
            at)[1];
      };
      steepest = std::max(steepest, 2 * std::fabs(slope(x + kStep) - slope(x)) / kStep);
    }
    EXPECT_LE(steepest, facts.bend) << of->name;
    EXPECT_GE(steepest, facts.bend * 0.75) << of->name;
    for (const double floor : facts.floor) EXPECT_GT(floor, 0) << of->name;
    EXPECT_LT(facts.floor[0], facts.floor[1]);
    EXPECT_LT(facts.floor[1], facts.floor[2]);
    if (of->slope_of_value) {
      const std::unique_ptr<Oracle> oracle = of->oracle();
      for (const float x : {-30.0f, -2.0f, -0x1p-20f, 0.0f, 0x1p-3f, 1.5f, 20.0f}) {
        const auto y = static_cast<float>(oracle->value(x, kF32));
        double g = 0;
        of->slope_of_value(&y, &g, 1);
        EXPECT_NEAR(g, oracle->derivative_at_value(y, true), 0x1p-50) << of->name << ' ' << x;
      }
    }
  }
}

TEST(RoundToFormat, MatchesMpfrOnTiesSubnormalsAndOverflow) {
  std::mt19937_64 random(4);
  for (const FloatFormat& format : {kF32, kF16, kBf16}) {
    std::vector<double> v{0.0, -0.0, format.largest, 2 * format.largest};
    const double quantum = std::ldexp(1.0, format.quantum_exponent);
    for (int k = -20; k <= 20; ++k)
      v.insert(v.end(), {k * quantum, (k + 0.5) * quantum, (k + 0.25) * quantum});
    for (int i = 0; i < 20000; ++i) {
      const double near = std::ldexp(static_cast<double>(random() >> (63 - format.precision)) + 0.5,
                                     static_cast<int>(random() % 40) - 30);
      v.insert(v.end(), {near, std::nextafter(near, 0), std::nextafter(near, 1e300), -near});
    }
    for (double value : v) {
      Real exact(53);
      mpfr_set_d(exact.get(), value, MPFR_RNDN);
      const double want = round_to_format(exact, format), got = round_to_format(value, format);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(got), std::bit_cast<std::uint64_t>(want))
          << format.name << ' ' << value;
    }
  }
}

}  // namespace
}  // namespace outgrad::validation
