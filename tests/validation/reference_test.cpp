// The double reference against the MPFR witness: its proven bounds hold on dense samples, are not vacuous, and its roundings are right.

#include "validation/reference.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

namespace outgrad::validation {
namespace {

struct Gelu {
  using Oracle = GeluOracle;
  static const Reference& reference() { return GeluReference::instance(); }
  static constexpr int kFirst = -15, kLast = 9;
  static constexpr float kXStar = -0.75179154f;
};

struct Silu {
  using Oracle = SiluOracle;
  static const Reference& reference() { return SiluReference::instance(); }
  static constexpr int kFirst = -120, kLast = 44;
  static constexpr float kXStar = -1.2784646f;
};

template <class F>
struct Evaluated {
  explicit Evaluated(const std::vector<float>& x) : value(x.size()), lo(x.size()), hi(x.size()), derivative(x.size()) {
    F::reference().evaluate(x.data(), value.data(), lo.data(), hi.data(), derivative.data(),
                                       static_cast<std::int64_t>(x.size()));
  }
  std::vector<double> value, lo, hi, derivative;
};

/// Arguments that reach every cell, both ends of each, all binades, the borders between the proxies, and random bit patterns.
template <class F>
std::vector<float> dense_arguments() {
  std::vector<float> x{0.0f, -0.0f};
  const auto around = [&](float v) { x.insert(x.end(), {std::nextafter(v, -INFINITY), v, std::nextafter(v, INFINITY)}); };
  for (int j = (F::kFirst - 1) * 256 + 1; j <= (F::kLast + 1) * 256; j += 2) around(static_cast<float>(j) / 256.0f);  // where two cells meet
  for (int e = -148; e <= 126; ++e) {
    around(std::ldexp(1.0f, e));
    around(-std::ldexp(1.0f, e));
  }
  for (float v : {F::kFirst - 0x1p-8f, static_cast<float>(F::kLast), 0x1p-53f, -0x1p-53f, F::kXStar, std::numbers::sqrt2_v<float>}) around(v);
  std::mt19937_64 random(3);
  std::uniform_real_distribution<float> uniform(F::kFirst - 1, F::kLast + 1);
  for (int i = 0; i < 3000; ++i) x.push_back(uniform(random));
  for (int i = 0; i < 1000; ++i) {
    const float v = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(v)) x.push_back(v);
  }
  return x;
}

template <class F>
class ReferenceOf : public testing::Test {};
using Activations = testing::Types<Gelu, Silu>;
TYPED_TEST_SUITE(ReferenceOf, Activations);

TYPED_TEST(ReferenceOf, BoundsHoldAgainstTheOracleAndAreNotVacuous) {
  const std::vector<float> x = dense_arguments<TypeParam>();
  const Evaluated<TypeParam> at(x);
  typename TypeParam::Oracle oracle;
  double worst_derivative = 0, worst_value = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const DoubleBounds f = oracle.value_bounds(x[i]), g = oracle.derivative_bounds(x[i]);
    const double derivative_error = std::max(std::fabs(at.derivative[i] - g.lo), std::fabs(at.derivative[i] - g.hi));
    EXPECT_LE(derivative_error, Reference::kDerivativeBound) << x[i];
    worst_derivative = std::max(worst_derivative, derivative_error);
    if (x[i] < TypeParam::kFirst) {
      EXPECT_LT(std::fabs(f.lo), 0x1p-153) << "no format sees the left tail";
      continue;
    }
    if (x[i] == 0) continue;
    const double value_error = std::max(std::fabs(at.value[i] / f.lo - 1), std::fabs(at.value[i] / f.hi - 1));
    EXPECT_LE(value_error, Reference::kValueBound) << x[i];
    worst_value = std::max(worst_value, value_error);
  }
  // A bound a hundred times too large would hide a broken table as surely as a wrong one.
  EXPECT_GT(worst_derivative, Reference::kDerivativeBound / 16);
  EXPECT_GT(worst_value, Reference::kValueBound / 16);
  EXPECT_LE(TypeParam::reference().proven_derivative_bound(), Reference::kDerivativeBound);
  EXPECT_LE(2 * TypeParam::reference().proven_value_bound(), Reference::kValueBound);
}

TYPED_TEST(ReferenceOf, RoundsEveryFormatLikeTheOracle) {
  const std::vector<float> x = dense_arguments<TypeParam>();
  const Evaluated<TypeParam> at(x);
  typename TypeParam::Oracle oracle;
  std::vector<float> y(x.size());
  for (const FloatFormat& format : {kF32, kF16, kBf16}) {
    const std::int64_t decided = round_values(x.data(), at.lo.data(), at.hi.data(), y.data(), static_cast<std::int64_t>(x.size()), format, oracle);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float want = static_cast<float>(oracle.value(x[i], format));
      EXPECT_EQ(std::bit_cast<std::uint32_t>(y[i]), std::bit_cast<std::uint32_t>(want)) << format.name << ' ' << x[i];
    }
    EXPECT_LT(decided, static_cast<std::int64_t>(x.size() / 4)) << "the oracle must stay the exception, also on these hand-picked arguments";
  }
}

TYPED_TEST(ReferenceOf, SlicesAtAnyPlaceGiveTheSame) {
  const std::vector<float> x = dense_arguments<TypeParam>();
  const Evaluated<TypeParam> whole(x);
  for (std::size_t i = 0; i < x.size(); i += 97) {
    const Evaluated<TypeParam> one(std::vector<float>{x[i]});
    EXPECT_EQ(one.value[0], whole.value[i]);
    EXPECT_EQ(one.derivative[0], whole.derivative[i]);
  }
}

TEST(RoundToFormat, MatchesMpfrOnTiesSubnormalsAndOverflow) {
  std::mt19937_64 random(4);
  for (const FloatFormat& format : {kF32, kF16, kBf16}) {
    std::vector<double> v{0.0, -0.0, format.largest, 2 * format.largest};
    const double quantum = std::ldexp(1.0, format.quantum_exponent);
    for (int k = -20; k <= 20; ++k) v.insert(v.end(), {k * quantum, (k + 0.5) * quantum, (k + 0.25) * quantum});
    for (int i = 0; i < 20000; ++i) {
      const double near = std::ldexp(static_cast<double>(random() >> (63 - format.precision)) + 0.5, static_cast<int>(random() % 40) - 30);
      v.insert(v.end(), {near, std::nextafter(near, 0), std::nextafter(near, 1e300), -near});
    }
    for (double value : v) {
      Real exact(53);
      mpfr_set_d(exact.get(), value, MPFR_RNDN);
      const double want = round_to_format(exact, format), got = round_to_format(value, format);
      EXPECT_EQ(std::bit_cast<std::uint64_t>(got), std::bit_cast<std::uint64_t>(want)) << format.name << ' ' << value;
    }
  }
}

}  // namespace
}  // namespace outgrad::validation
