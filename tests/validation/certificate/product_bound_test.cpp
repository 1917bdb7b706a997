// T and O of quotients against dense samples of the forward's own closed form, and damaged claims.
#include "validation/certificate/product_bound.h"

#include <gtest/gtest.h>

#include <functional>

#include "kernels/host/errors.h"
#include "tests/validation/certificate/sample_header.h"
#include "validation/certificate/check.h"

namespace outgrad::validation {
namespace {

BackwardHeader of_product(const std::string& name) { return committed(name + "_product"); }

TEST(ProductBound, CommittedHeadersHold) {
  for (const char* name : {"silu_bf16", "silu_f16", "gelu_tanh_bf16", "gelu_tanh_f16"}) {
    const CheckReport report = check_header(of_product(name));
    EXPECT_EQ(report.verdict(), Verdict::Holds) << to_text(report);
  }
}
TEST(ProductBound, NightlyCommittedHeadersOfGeluHold) {
  for (const char* name : {"gelu_bf16", "gelu_f16"})
    EXPECT_EQ(check_header(of_product(name)).verdict(), Verdict::Holds) << name;
}

// What is proven is no less than any x shows, and no more than 2^-8 above: x on both sides of the minimum and
// everywhere else, y at the ends of the ball of each.
TEST(ProductBound, CoversDenseSamples) {
  const BackwardHeader h = of_product("gelu_tanh_f16");
  const ReferenceFunction& f = reference_function(h.activation);
  const Curve& curve = curve_of(h.activation);
  double seen = 0;
  for (int k = 0; k < 20000; ++k) {
    const double x =
        k % 2 == 0 ? -8 + 12.0 * k / 20000 : -0.7524614 + std::exp2(-10 - k / 2000.0) * (k % 4 - 2);
    const auto y = static_cast<double>(f.f(x));
    for (const int sign : {-1, 1}) {
      const auto s =
          static_cast<float>(y + sign * 0.9999 * (h.product.relative * std::fabs(y) + h.product.absolute));
      seen = std::max(
          seen, std::fabs(deployed_gradient(h, s, curve.right_of_minimum(x)) - static_cast<double>(f.d1(x))));
    }
  }
  EXPECT_LE(seen, h.product.total);
  EXPECT_GE(seen, 0.99 * h.product.total);
}

// Each damage with what has to refuse it.
TEST(ProductBound, DamagedClaimsAreRefused) {
  const BackwardHeader original = of_product("silu_bf16");
  const auto verdicts = [](const BackwardHeader& h) {
    std::vector<Verdict> found{check_structure(h).verdict};
    if (found[0] == Verdict::Holds) {
      for (const Finding& finding : prove_product(h)) found.push_back(finding.verdict);
    }
    return found;
  };
  using V = Verdict;
  ASSERT_EQ(verdicts(original), (std::vector{V::Holds, V::Holds, V::Holds}));
  struct Damage {
    const char* what;
    std::function<void(BackwardHeader&)> done;
    std::vector<Verdict> verdicts;
  };
  const Damage damages[] = {
      {"T below", [](BackwardHeader& h) { h.product.total *= 0.998; }, {V::Holds, V::Violated, V::Holds}},
      {"T above", [](BackwardHeader& h) { h.product.total *= 1.006; }, {V::Holds, V::Violated, V::Holds}},
      {"T below O", [](BackwardHeader& h) { h.product.total = h.product.oracle / 2; }, {V::Violated}},
      {"O above",
       [](BackwardHeader& h) { h.product.oracle *= 1 + 0x1p-18; },
       {V::Holds, V::Holds, V::Undecided}},
      {"O below",
       [](BackwardHeader& h) { h.product.oracle *= 1 - 0x1p-11; },
       {V::Holds, V::Holds, V::Violated}},
      {"another ball", [](BackwardHeader& h) { h.product.relative *= 0.5; }, {V::Violated}},
      {"no absolute part", [](BackwardHeader& h) { h.product.absolute = 0; }, {V::Violated}},
      {"another format", [](BackwardHeader& h) { h.product.format = "f16"; }, {V::Violated}},
      {"of 16-bit y", [](BackwardHeader& h) { h.format = "bf16"; }, {V::Violated}},
      {"of an expression",
       [](BackwardHeader& h) { h.activation = "expression", h.x_limit = 64; },
       {V::Violated}},
      {"a floor", [](BackwardHeader& h) { h.t_min *= 1.1f; }, {V::Holds, V::Violated, V::Holds}},
      {"y_c, and with it g's limit", [](BackwardHeader& h) { h.y_hi *= 1.001f; }, {V::Violated}},
      {"a coefficient",
       [](BackwardHeader& h) { h.table.row(1)[1] += 0x1p-9f; },
       {V::Holds, V::Violated, V::Holds}},
      {"T at another y",
       [](BackwardHeader& h) { h.product.found_total.at *= 1.01; },
       {V::Holds, V::Violated, V::Holds}},
      {"T at the other branch",
       [](BackwardHeader& h) { h.product.found_total.m = false; },
       {V::Holds, V::Violated, V::Holds}},
      {"T at no float",
       [](BackwardHeader& h) { h.product.found_total.at += 0x1p-40; },
       {V::Holds, V::Violated, V::Holds}},
      {"T at no input",
       [](BackwardHeader& h) { h.product.found_total.given = false; },
       {V::Holds, V::Undecided, V::Holds}},
      {"O at another y",
       [](BackwardHeader& h) { h.product.found_oracle.at *= 0.99; },
       {V::Holds, V::Holds, V::Violated}},
  };
  for (const Damage& damage : damages) {
    BackwardHeader h = original;
    damage.done(h);
    EXPECT_EQ(verdicts(h), damage.verdicts) << damage.what;
  }
}

// A quotient's constants are for balls: the fits of stored y, whose balls are half as long or none, and which
// say nothing of kProduct, do not serve.
TEST(ProductBound, AFitOfStoredYDoesNotServe) {
  const BackwardHeader quotients = of_product("silu_bf16");
  for (const char* name : {"silu_bf16", "silu_f32"}) {
    BackwardHeader h = committed(name);
    h.product = quotients.product;
    EXPECT_EQ(prove_product(h)[0].verdict, Verdict::Violated) << name;
  }
}

}  // namespace
}  // namespace outgrad::validation
