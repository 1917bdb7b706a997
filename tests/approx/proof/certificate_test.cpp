#include "approx/proof/certificate.h"

#include "kernels/eval.h"
#include "tests/approx/shared.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace outgrad::approx {
namespace {

/// |p - g| (or relative) at a point, in multi-precision.
double error_at(const Piece& p, double x) {
  const Real u = gelu().coordinate_at(p.coordinate, Real(x)) - Real(p.centre);
  Real value = 0;
  for (size_t k = p.c.size(); k-- > 0;) value = value * u + Real(p.c[k]);
  if (p.target == Target::gradient) return static_cast<double>(abs(value - gelu().gradient_at(Real(x))));
  return static_cast<double>(abs(value * p.scale / gelu().value_at(Real(x)) - 1));
}

TEST(Certificate, BoundHoldsBetweenTheSamplesAndIsWithinOnePercent) {
  std::mt19937 random(11);
  for (const char* name : {"gelu_f32", "gelu_bf16"}) {
    const Fit fit = committed(name);
    double observed = 0;
    for (const Piece& p : fit.as<BackwardModel>()->pieces) {
      std::uniform_real_distribution<double> place(static_cast<double>(p.x_lo), static_cast<double>(p.x_hi));
      for (int i = 0; i < 400; ++i) {
        const double e = error_at(p, place(random));
        ASSERT_LE(e, p.certified) << name << " row " << p.row;
        observed = std::max(observed, e);
      }
      observed = std::max(observed, p.observed);
    }
    EXPECT_LE(fit.as<BackwardModel>()->kA, 1.01 * observed) << name;
  }
}

TEST(Certificate, DamagedCoefficientRaisesTheBound) {
  const Fit fit = committed("gelu_f32");
  for (const Piece& original : fit.as<BackwardModel>()->pieces) {
    Piece p = original;
    p.c[1] *= 1.001f;
    // What the damage does at the piece's ends, against what is then certified.
    const double shown =
        std::max(error_at(p, static_cast<double>(p.x_lo)), error_at(p, static_cast<double>(p.x_hi)));
    p.observed = shown;
    EXPECT_GE(certify_approximation(gelu(), p, 2 * shown), shown * (1 - 1e-12)) << p.row;
  }
}

TEST(Certificate, UndecidedIsNeverAPass) {
  Piece p = committed("gelu_f32").as<BackwardModel>()->pieces[3];
  p.observed /= 2;  // asks for a bound that does not hold
  EXPECT_THROW(certify_approximation(gelu(), p, 0), std::runtime_error);
}

TEST(Certificate, NotANumberIsUndecided) {
  const Fit fit = committed("gelu_f32");
  for (const Piece& original : fit.as<BackwardModel>()->pieces) {
    Piece p = original;
    p.c[2] = std::nanf("");
    EXPECT_THROW(certify_evaluation(*fit.as<BackwardModel>(), p), std::runtime_error) << p.row;
    EXPECT_THROW(certify_approximation(gelu(), p, 0), std::runtime_error) << p.row;
  }
  const Fit in_ulps = committed("gelu_f32_ulp");
  for (const size_t row : {75U, 300U, 900U}) {
    Piece p = in_ulps.as<BackwardModel>()->pieces.at(row);
    p.c[2] = std::nanf("");
    EXPECT_THROW(certify_ulp(*in_ulps.as<BackwardModel>(), p), std::runtime_error) << row;
  }
}

/// A view of one row for the fp32 evaluator.
struct RowOps : kernels::FloatOps {
  float lookup(const Piece& p, unsigned, int word) const {
    const auto k = static_cast<size_t>(word);
    return word == 0 ? p.centre : k <= p.c.size() ? p.c[k - 1] : p.c0_low;
  }
};

/// The deployed sequence in real arithmetic for a row that is given.
Real exact_sequence(const BackwardModel& m, const Piece& p, float y, bool bit) {
  if (y > m.kYMax) y = m.kYMax;
  Real v(y);
  if (p.coordinate == Coordinate::signed_root) {
    Real t = Real(y) - Real(m.kYHi) - Real(m.kYLo);
    if (t < Real(m.kTMin)) t = Real(m.kTMin);
    v = bit ? sqrt(t) : Real(-sqrt(t));
    if (!m.kHasLeft && v < Real(m.kSMin)) v = Real(m.kSMin);
  }
  Real r = 0;
  for (size_t k = p.c.size(); k-- > 0;) r = r * (v - Real(p.centre)) + Real(p.c[k]);
  return r + Real(p.c0_low);
}

TEST(Certificate, EvaluationBoundHoldsForRandomOutputs) {
  std::mt19937 random(5);
  for (const char* name : {"gelu_f32", "gelu_f32_ulp", "gelu_f16", "gelu_bf16", "gelu_bf16_stored"}) {
    const Fit fit = committed(name);
    const BackwardModel& m = *fit.as<BackwardModel>();
    double worst = 0;
    for (const Piece& p : m.pieces) {
      std::uniform_real_distribution<double> place(p.v_lo, p.v_hi);
      for (int i = 0; i < (m.pieces.size() > 100 ? 100 : 3000); ++i) {
        const double v = place(random);
        const bool root = p.coordinate == Coordinate::signed_root;
        const bool right = p.region == Region::right;
        const auto y = static_cast<float>(root ? gelu().y_star().to_double() + v * v : v);
        const bool bit = right || (root && v > 0);
        // Row by row: an output at a cell's edge may belong to its neighbour, and is good for both.
        struct Ops : RowOps {
          unsigned row_index(float, int) const { return 0; }
          unsigned octave_row(float, int, int, int, int, int) const { return 0; }
        };
        const float computed = kernels::evaluate_backward(Ops{}, m, p, y, bit);
        if (root && !bit && m.kHasLeft && y > m.kLeftY) continue;
        // The edge of the right segment: s a little off picks the other polynomial.
        const double s = static_cast<double>(deployed_coordinate(m, y, bit));
        const bool in_right =
            m.kHasRight && (m.kRightBoth ? std::abs(s) : s) >= static_cast<double>(m.kRightS);
        if (p.region != Region::left && in_right != (right || p.region == Region::right_mirrored)) continue;
        const double e = static_cast<double>(abs(Real(computed) - exact_sequence(m, p, y, bit)));
        ASSERT_LE(e, p.evaluation) << name << " row " << p.row << " y " << y;
        if (p.two_word && std::abs(computed) >= static_cast<float>(2 * kUlpFrom)) {
          const double ulp = std::ldexp(1.0, std::ilogb(computed) - 23);
          ASSERT_LE((e + p.certified) / ulp, 2 * p.ulp) << name << " row " << p.row << " y " << y;
        }
        worst = std::max(worst, e / p.evaluation);
      }
    }
    EXPECT_GT(worst, 0.1) << name << ": the bound is absurdly loose";
  }
}

TEST(Certificate, CoordinateBoundHoldsNextToTheMinimum) {
  for (const char* name : {"gelu_f32", "gelu_f16", "gelu_bf16"}) {
    const Fit fit = committed(name);
    const BackwardModel& m = *fit.as<BackwardModel>();
    const double spacing = std::ldexp(1.0, -2 - precision_bits(m.format)),
                 y_star = gelu().y_star().to_double();
    double worst = 0;
    for (int j = 0; j < 40; ++j) {
      // from RN(y*), the lowest stored y, on
      const double y = (std::nearbyint(y_star / spacing) + j) * spacing;
      const Real t = Real(y) - gelu().y_star().mid();
      const double t_c = std::max(y - static_cast<double>(m.kYHi) - static_cast<double>(m.kYLo),
                                  static_cast<double>(m.kTMin));
      for (const int sign : {-1, 1}) {
        // f'(x*) = 0
        const Real g = t > 0 ? gelu().gradient_at(gelu().argument_of_root(sign * sqrt(t))) : Real(0);
        const Real g_c = gelu().gradient_at(gelu().argument_of_root(Real(sign * std::sqrt(t_c))));
        worst = std::max(worst, static_cast<double>(abs(g - g_c)));
      }
    }
    EXPECT_LE(worst, m.kK * (1 + 1e-12)) << name;
    EXPECT_GE(worst, 0.5 * m.kK) << name;
  }
}

/// Constants next to y* as a fit may choose them, for any activation with a minimum.
BackwardModel coordinate_only(const Composite& composite, Format format) {
  BackwardModel m;
  m.format = format;
  const double spacing = composite.spacing_at_minimum(precision_bits(format)),
               y_star = composite.y_star().to_double();
  m.kYHi = static_cast<float>(y_star + 0.2 * spacing);
  m.kYLo = static_cast<float>(y_star + 0.2 * spacing - static_cast<double>(m.kYHi));
  m.kTMin = static_cast<float>(0.3 * spacing);
  return m;
}

// Where y* lies just above, at or just below -2^-k, the format's grid changes next to it.
TEST(Certificate, CoordinateBoundHoldsWhereTheGridChanges) {
  for (const double beta : {1.1134, 1.1145, 1.116, 1.117, 1.12}) {
    const Composite swish(find_activation("swish", {.beta = beta}));
    const double y_star = swish.y_star().to_double();
    for (const Format format : {Format::f16, Format::bf16, Format::f16_parity, Format::bf16_parity}) {
      const BackwardModel m = coordinate_only(swish, format);
      const double bound = certify_coordinate(swish, m).bound,
                   y_c = static_cast<double>(m.kYHi) + static_cast<double>(m.kYLo);
      double worst = 0, least = NAN;
      int seen = 0;
      for (std::uint32_t code = 0xffff; code > 0x8000 && seen < 300; --code) {
        const double y = decode(format, code), next = decode(format, code - 1),
                     above = carries_branch(format) ? next : 0.5 * (y + next);
        if (!(above >= y_star)) continue;  // no f(x) rounds to it, or not a number
        if (seen++ == 0) least = y;
        const double t_c = std::max(y - y_c, static_cast<double>(m.kTMin)), t = y - y_star;
        for (const int sign : {-1, 1}) {
          if (!holds_branch(format, code, sign > 0)) continue;
          const Real g =
              t > 0 ? swish.gradient_at(swish.argument_of_root(Real(sign * std::sqrt(t)))) : Real(0);
          worst = std::max(
              worst, static_cast<double>(
                         abs(g - swish.gradient_at(swish.argument_of_root(Real(sign * std::sqrt(t_c)))))));
        }
      }
      ASSERT_EQ(seen, 300);
      EXPECT_LE(worst, bound * (1 + 1e-9))
          << beta << ' ' << to_string(format) << ", y* = " << y_star << ", least " << least;
      EXPECT_GE(worst, 0.5 * bound) << beta << ' ' << to_string(format) << ", y* = " << y_star << ", least "
                                    << least;
    }
  }
}

}  // namespace
}  // namespace outgrad::approx
