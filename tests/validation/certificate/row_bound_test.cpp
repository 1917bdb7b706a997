// The bound in ulp of the committed two-word header, attacked at dense y, and damage that A and B alone let
// pass.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <random>

#include "kernels/eval.h"
#include "kernels/generated/gelu_f32_ulp.h"
#include "tests/validation/certificate/sample_header.h"
#include "validation/certificate/check.h"
#include "validation/certificate/rounding_bound.h"

namespace outgrad::validation {
namespace {

const BackwardHeader& two_words() {
  static const auto h = committed("gelu_f32_ulp");
  return h;
}

// An x on the branch m with f(x) = y, and g there, to within 2^-90.
Interval gradient_at(double y, bool m) {
  const Activation& activation = activation_of(two_words());
  const Interval root = sqrt(Interval(y) - activation.y_star());
  return activation.only().f.at<1>(activation.inverse_signed_root(m ? root : -root))[1];
}

TEST(RowBound, HoldsAtRandomOutputsAndIsNotLoose) {
  const BackwardHeader& h = two_words();
  ASSERT_TRUE(h.two_word);
  EXPECT_LE(h.bound_ulp, 0.75);  // what the variant is for
  EXPECT_EQ(h.ulp_from, 0x1p-6);
  std::mt19937 random(11);
  double worst = 0;
  int counted = 0;
  for (const bool m : {false, true}) {
    // Over s, as f' is about linear in it; and towards y = 0.
    std::uniform_real_distribution<double> over_s(0.015, m ? 2.6 : 0.412);
    for (int i = 0; i < 6000; ++i) {
      const double s = over_s(random);
      const auto y = static_cast<float>(s * s + h.y_hi + h.y_lo);
      if (!m && !(y < 0)) continue;
      const Interval g = gradient_at(y, m);
      if (!(g.mignitude() >= h.ulp_from)) continue;
      const double ulp = std::ldexp(1.0, std::ilogb(g.middle()) - 23);
      const float computed =
          kernels::evaluate_backward<kernels::generated::GeluF32Ulp>(kernels::FloatOps{}, y, m);
      ASSERT_EQ(computed, deployed_gradient(h, y, m)) << std::hexfloat << y;
      // y* in two floats is off by less than 2^-51: nothing beside an ulp here.
      const double error = ((g - static_cast<double>(computed)).magnitude()) / ulp;
      ASSERT_LE(error, h.bound_ulp * (1 + 0x1p-10)) << std::hexfloat << y << " m=" << m;
      worst = std::max(worst, error), ++counted;
    }
  }
  EXPECT_GT(counted, 10000);
  EXPECT_GT(worst, 0.5);  // the last rounding alone
}

Verdict ulps(const BackwardHeader& h) { return prove_row_claims(h).back().verdict; }

TEST(RowBound, NightlyAClaimBelowTheTruthFails) {
  EXPECT_EQ(ulps(two_words()), Verdict::Holds);
  BackwardHeader h = two_words();
  h.bound_ulp = 0.55;
  EXPECT_NE(ulps(h), Verdict::Holds);
  h = two_words();
  h.ulp_from = 0x1p-9;  // there s carries too much rounding
  EXPECT_NE(ulps(h), Verdict::Holds);
}

// The default of f32: A + B row by row is below the sum of kA and kB, which belong to different rows.
TEST(RowBound, SumOfOneRowsErrorsIsProven) {
  const auto h = committed("gelu_f32");
  EXPECT_LE(h.bound_ab, 0x1p-23);
  EXPECT_GT(h.bound_a + h.bound_b, h.bound_ab);
  const std::vector<double> fit_errors = row_fit_errors(h);
  const Finding finding = prove_rows(h, fit_errors, RowMeasure::sum, h.bound_ab);
  EXPECT_EQ(finding.verdict, Verdict::Holds) << finding.why;
  // B alone needs most of it.
  EXPECT_NE(prove_rows(h, fit_errors, RowMeasure::sum, 0.95 * h.bound_ab).verdict, Verdict::Holds);
}

TEST(RowBound, DamageThatStaysWithinAFails) {
  // The row that serves |g| just above 2^-6 may err by far less than kA.
  const int row = deployed_selection(two_words(), two_words().y_hi + 0x1.8p-12f, true).row;
  const std::map<std::string, std::function<void(BackwardHeader&)>> damages{
      {"c0", [&](BackwardHeader& h) { h.table.row(row)[1] += 0x1.8p-30f; }},
      {"its low part", [&](BackwardHeader& h) { h.table.row(row)[h.degree + 2] += 0x1.8p-30f; }},
      {"c1", [&](BackwardHeader& h) { h.table.row(row)[2] *= 1 + 0x1p-20f; }},
      {"centre",
       [&](BackwardHeader& h) { h.table.row(row)[0] = std::nextafter(h.table.row(row)[0], 1.0f); }}};
  for (const auto& [what, damage] : damages) {
    BackwardHeader h = two_words();
    damage(h);
    EXPECT_NE(ulps(h), Verdict::Holds) << what;
  }
}

TEST(RowBound, NotANumberIsUndecided) {
  BackwardHeader h = two_words();
  h.table.row(300)[2] = std::nanf("");
  const std::vector<double> no_errors(static_cast<size_t>(h.rows), 0.0);
  for (const RowMeasure measure : {RowMeasure::sum, RowMeasure::ulps})
    EXPECT_EQ(prove_rows(h, no_errors, measure, 1).verdict, Verdict::Undecided);
}

TEST(RowBound, StructuralDamageFails) {
  const std::map<std::string, std::function<void(BackwardHeader&)>> damages{
      {"kRightBoth", [](BackwardHeader& h) { h.right_both = false; }},
      {"kLeftBits", [](BackwardHeader& h) { h.left_bits = 1; }},
      {"kTwoWord", [](BackwardHeader& h) { h.two_word = false; }},
      {"kUlp", [](BackwardHeader& h) { h.bound_ulp = 0.5; }},
      {"kClass", [](BackwardHeader& h) { h.accuracy = "ulp:0.6"; }}};
  for (const auto& [what, damage] : damages) {
    BackwardHeader h = two_words();
    damage(h);
    EXPECT_NE(check_header(h, Findings::to_failure).verdict(), Verdict::Holds) << what;
  }
}

// Where p is beyond a power of two that g is below, the last rounding is up to an ulp of g.
TEST(RowBound, TheLastRoundingBeyondAPowerOfTwoIsAnUlpOfG) {
  BackwardHeader h = two_words();
  float below = 0.5f, above = 0.75f;  // y where g comes to 1
  while (std::nextafter(below, above) < above) {
    const float middle = below + (above - below) / 2;
    (certainly_less(gradient_at(middle, true), Interval(1)) ? below : above) = middle;
  }
  const Selection selection = deployed_selection(h, below, true);
  h.table.row(selection.row)[h.degree + 2] += 0x1.6p-24f;
  double error = 0;
  for (int i = 0; i < 64; ++i, below = std::nextafter(below, 0.0f)) {
    ASSERT_EQ(deployed_selection(h, below, true).row, selection.row);
    const Interval off = gradient_at(below, true) - static_cast<double>(deployed_gradient(h, below, true));
    error = std::max(error, off.mignitude() / 0x1p-24);
  }
  EXPECT_GT(error, 2);
  const std::vector<double> fit_errors = row_fit_errors(h);
  EXPECT_GE(prove_rows(h, fit_errors, RowMeasure::ulps, 3).proven, error);
  EXPECT_NE(prove_rows(h, fit_errors, RowMeasure::ulps, 0.99 * error).verdict, Verdict::Holds);
}

}  // namespace
}  // namespace outgrad::validation
