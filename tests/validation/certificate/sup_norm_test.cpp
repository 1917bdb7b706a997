// Claims at, below and far below the maximum of known functions, and the work that a refutation may take.
#include "validation/certificate/sup_norm.h"

#include <gtest/gtest.h>

#include <cmath>

namespace outgrad::validation {
namespace {

// E(z) = level exp(z); |exp(z)| <= exp(Re z).
struct Exponential {
  double level;
  int discs = 0;

  SupNorm bound(double claim) {
    return bound_sup_norm({[this](const Interval& x) { return exp(x) * level; },
                           [this](double middle, double radius) {
                             ++discs;
                             return level * std::exp(middle + radius) * (1 + 0x1p-40);
                           }},
                          -1, 1, claim);
  }
};

TEST(SupNorm, ClaimsOnBothSidesOfTheMaximumAreDecided) {
  const double truth = 1e-6 * std::exp(1.0);
  Exponential e{1e-6};
  const SupNorm above = e.bound(truth * 1.01), below = e.bound(truth * 0.99);
  EXPECT_EQ(above.verdict, Verdict::Holds);
  EXPECT_GE(above.proven, truth);
  EXPECT_EQ(below.verdict, Verdict::Violated);
  EXPECT_GT(below.observed, truth * 0.99);
  EXPECT_LE(below.observed, truth * (1 + 1e-12));
}

// A gradient's claim of 0 took over a minute: no interval was ever short enough for an error of 0 in its
// interpolation.
TEST(SupNorm, AClaimOfZeroIsRefutedWithoutEndlessHalving) {
  for (const double claim : {0.0, 0x1p-1000}) {
    Exponential e{1e-6};
    const SupNorm result = e.bound(claim);
    EXPECT_EQ(result.verdict, Verdict::Violated);
    EXPECT_TRUE(std::isfinite(result.proven));
    EXPECT_LT(e.discs, 200);
  }
}

TEST(SupNorm, AFunctionThatIsZeroMeetsAClaimOfZero) {
  Exponential zero{0};
  EXPECT_EQ(zero.bound(0).verdict, Verdict::Holds);
}

}  // namespace
}  // namespace outgrad::validation
