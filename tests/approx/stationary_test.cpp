#include "approx/stationary.h"

#include "kernels/host/errors.h"

#include <gtest/gtest.h>

namespace outgrad::approx {
namespace {

/// x^2/(1 + x^2)-like shapes are not needed: the isolation only sees the series.
Activation with_series(std::function<Series(const Series&)> f) {
  Activation a = find_activation("gelu");
  a.name = "test";
  a.value_series = std::move(f);
  return a;
}

TEST(Stationary, EnclosesTheMinimumOfGelu) {
  const Minimum m = isolate_minimum(find_activation("gelu"));
  // x phi(x) + Phi(x) = 0, to 30 digits by mpmath's findroot and ncdf.
  const Real x_star("-0.75179152469356437714839345977");
  EXPECT_LT(abs(m.x_star - Ball(x_star)).magnitude(), 1e-16);
  EXPECT_LT(m.y_star.upper() - m.y_star.lower(), 0x1p-50);
  EXPECT_GT(arb_rel_accuracy_bits(m.x_star.raw()), 200);
  const Series f = find_activation("gelu").value_series(Series::variable(m.x_star, 3));
  EXPECT_TRUE(f[1].holds_zero());
  EXPECT_TRUE(f[2].positive());
}

TEST(Stationary, SeveralOrNoMinimaAreRefused) {
  const auto one = [](const Series& x) { return Series::constant(Ball(1.0), x.length()); };
  // x: no zero of f'. (x^2 - 1)^2: three.
  EXPECT_THROW(isolate_minimum(with_series([](const Series& x) { return x; })), kernels::SpecError);
  EXPECT_THROW(isolate_minimum(with_series([&](const Series& x) { return (x * x - one(x)) * (x * x - one(x)); })), kernels::SpecError);
  // x^2 is accepted: the refusals above are not of everything.
  EXPECT_TRUE(isolate_minimum(with_series([](const Series& x) { return x * x; })).x_star.holds_zero());
}

}  // namespace
}  // namespace outgrad::approx
