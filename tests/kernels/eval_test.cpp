// The evaluators against a plain transcription of their definition, and each table entry's part in the
// result.
#include "kernels/eval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/fits.h"
#include "kernels/forward_fits.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::kernels {
namespace {

// A row's polynomial at u, term by term as each scheme's definition pairs them.
float polynomial(const float* c, int degree, float u, int scheme) {
  if (scheme == kEstrin) {
    std::vector<float> terms(c, c + degree + 1);
    for (float power = u; terms.size() > 1; power = power * power) {
      std::vector<float> joined;
      for (size_t k = 0; k < terms.size(); k += 2)
        joined.push_back(k + 1 < terms.size() ? std::fma(terms[k + 1], power, terms[k]) : terms[k]);
      terms = joined;
    }
    return terms[0];
  }
  const auto horner = [&](int top, int last, int step, float at) {
    float p = c[top];
    for (int k = top - step; k >= last; k -= step) p = std::fma(p, at, c[k]);
    return p;
  };
  if (scheme == kEvenOdd && degree >= 2) {
    const float square = u * u;
    const int even = degree % 2 == 0 ? degree : degree - 1, odd = degree % 2 == 1 ? degree : degree - 1;
    return std::fma(horner(odd, 1, 2, square), u, horner(even, 0, 2, square));
  }
  return horner(degree, 0, 1, u);
}

// The derivative by plain arithmetic, branches and std::fma instead of an operations object.
template <class Fit>
constexpr bool kHasTwoWords = requires { Fit::kTwoWord; };

template <class Fit, class Rows>
float derivative(float y, bool m, const Rows& table) {
  if (y > Fit::kYMax) y = Fit::kYMax;
  float v = y;
  if constexpr (Fit::kMasked) {
    float t = y - Fit::kYHi;
    if (Fit::kYLo != 0) t = t - Fit::kYLo;
    if (t < Fit::kTMin) t = Fit::kTMin;
    const float root = std::sqrt(t);
    v = m ? root : -root;
    if (!Fit::kHasLeft && v < Fit::kSMin) v = Fit::kSMin;
  } else {
    if (v < Fit::kYMin) v = Fit::kYMin;
  }
  u32 row = 0;
  if constexpr (!Fit::kHasBreaks) {
    row = bits_of(std::fma(v, Fit::kIndexScale, Fit::kIndexBias)) % Fit::kRows;
  } else if constexpr (Fit::kRows > 1) {
    for (int k = 0; k + 1 < Fit::kRows; ++k) row += v >= Fit::break_at(k);
  }
  if constexpr (Fit::kHasRight) {
    constexpr bool kBoth = requires { Fit::kRightBoth; };
    if (!((kBoth ? std::fabs(v) : v) < Fit::kRightS) && !std::isnan(v)) v = y;
  }
  if constexpr (Fit::kHasLeft) {
    if (!m && !(y <= Fit::kLeftY)) {
      v = y > 0 ? -0.0f : y;
      const int h = static_cast<int>((bits_of(v) & 0x7fffffffu) >> (23 - Fit::kLeftBits));
      row = static_cast<u32>(Fit::kLeftRow +
                             std::max((h + std::max(h, Fit::kLeftKnee)) / 2 - Fit::kLeftBase, 0)) %
            Fit::kRows;
    }
  }
  const float* words = table.w[row];
  const float u = Fit::kCentred ? v - words[0] : v;
  if constexpr (kHasTwoWords<Fit>) {
    float c[Fit::kDegree + 1] = {words[Fit::kDegree + 2]};
    std::copy(words + 2, words + Fit::kDegree + 2, c + 1);
    return words[1] + polynomial(c, Fit::kDegree, u, Fit::kScheme);
  } else {
    return polynomial(words + 1, Fit::kDegree, u, Fit::kScheme);
  }
}

template <class Fit>
class Backward : public testing::Test {};
using Fits =
    testing::Types<synthetic::WithLeft, synthetic::WithLeftAndRight, synthetic::TwoWord,
                   synthetic::WithoutLeft<8, 4>, synthetic::WithoutLeft<16, 5>,
                   synthetic::WithoutLeft<64, 6, kEstrin>, synthetic::WithoutLeft<8, 7, kEvenOdd>,
                   synthetic::WithoutLeft<8, 1, kEvenOdd>, synthetic::WithoutLeft<16, 16, kEstrin, false>,
                   synthetic::WithBreaks<5, 4>, synthetic::WithBreaks<20, 8, kEvenOdd>,
                   synthetic::WithBreaks<2, 9, kEstrin>, synthetic::OneRow<6>, synthetic::OneRow<7, kEstrin>,
                   synthetic::OneRow<0>, synthetic::Unmasked<16, 4>, synthetic::Unmasked<8, 5, kEstrin>,
                   synthetic::OnOneSide, generated::GeluF32, generated::GeluF16, generated::GeluBf16,
                   generated::GeluBf16Stored>;
TYPED_TEST_SUITE(Backward, Fits);

// Patterns, and the floats about each of `thresholds`: where a comparison's two sides are equal a random
// argument does not come by.
std::vector<float> patterns_and(const std::vector<float>& thresholds) {
  constexpr int kEachSide = 16;  // a root has as many arguments as round to one value of it, or more
  std::vector<float> values = patterns::f32_patterns(1000);
  for (const float threshold : thresholds) {
    float value = threshold;
    for (int k = 0; k < kEachSide; ++k) value = std::nextafterf(value, -INFINITY);
    for (int k = 0; k <= 2 * kEachSide; ++k, value = std::nextafterf(value, INFINITY))
      values.push_back(value);
  }
  return values;
}

// Every y at which the derivative's branches meet.
template <class Fit>
std::vector<float> thresholds_of() {
  std::vector<float> ys{Fit::kYMax};
  const auto add = [&](float v) {
    if constexpr (Fit::kMasked) {
      v = v * v + Fit::kYHi;
    }
    ys.push_back(v);
  };
  if constexpr (!Fit::kMasked) ys.push_back(Fit::kYMin);
  if constexpr (Fit::kHasLeft) ys.push_back(Fit::kLeftY);
  if constexpr (Fit::kHasRight) add(Fit::kRightS);
  if constexpr (Fit::kHasBreaks && Fit::kRows > 1) {
    for (int k = 0; k + 1 < Fit::kRows; ++k) add(Fit::break_at(k));
  }
  return ys;
}

TYPED_TEST(Backward, FollowsItsDefinition) {
  static constexpr auto kTable = TypeParam::table();
  for (const float y : patterns_and(thresholds_of<TypeParam>())) {
    for (const bool m : {false, true}) {
      ASSERT_EQ(canonical_bits(evaluate_backward<TypeParam>(FloatOps{}, y, m)),
                canonical_bits(derivative<TypeParam>(y, m, kTable)))
          << std::hexfloat << y << " m=" << m;
    }
  }
}

// Every row that some y reaches depends on every one of its words (an infinite one shows at any u); many rows
// are reached.
TYPED_TEST(Backward, EveryWordOfAReachedRowCounts) {
  std::vector<float> ys;
  for (const float y : patterns::f32_patterns(300)) {
    if (y > -0.25f && y < 16.0f) ys.push_back(y);
  }
  if constexpr (!TypeParam::kMasked) {
    constexpr float kStep = (TypeParam::kYMax - TypeParam::kYMin) / 64;
    for (float y = TypeParam::kYMin; y < TypeParam::kYMax; y += kStep) ys.push_back(y);
  }
  const auto table = TypeParam::table();
  int rows_reached = 0;
  for (int row = 0; row < TypeParam::kRows; ++row) {
    int words = 0;
    constexpr int kWords = TypeParam::kDegree + (kHasTwoWords<TypeParam> ? 3 : 2);
    for (int word = 0; word < kWords; ++word) {
      auto damaged = table;
      damaged.w[row][word] = INFINITY;
      bool changed = false;
      for (size_t i = 0; i < ys.size() && !changed; ++i) {
        for (const bool m : {false, true}) {
          changed |= canonical_bits(evaluate_backward(FloatOps{}, TypeParam{}, damaged, ys[i], m)) !=
                     canonical_bits(evaluate_backward(FloatOps{}, TypeParam{}, table, ys[i], m));
        }
      }
      words += changed;
    }
    const int meant = kWords - (TypeParam::kCentred ? 0 : 1);
    EXPECT_TRUE(words == 0 || words == meant) << "row " << row << ": " << words << " words count";
    rows_reached += words > 0;
  }
  EXPECT_GE(2 * rows_reached, std::min(TypeParam::kRows, 16));
}

TYPED_TEST(Backward, BranchIsChosenByTheMaskAlone) {
  // In the middle of the range the two branches differ; a flipped sign must not go unnoticed. Without a mask
  // there is one branch.
  int differing = 0;
  for (const float y : {-0.16f, -0.15f, -0.13f, -0.1f, -0.05f}) {
    differing += evaluate_backward<TypeParam>(FloatOps{}, y, false) !=
                 evaluate_backward<TypeParam>(FloatOps{}, y, true);
  }
  EXPECT_EQ(differing, TypeParam::kMasked && TypeParam::kDegree > 0 ? 5 : 0);
}

template <class Forward>
class Forwards : public testing::Test {};
using ForwardFits = testing::Types<synthetic::Forward<64>, synthetic::Forward<128>, generated::GeluForward,
                                   generated::SiluForward, generated::MishForward, generated::SigmoidForward,
                                   generated::TanhForward, generated::EluForward>;
TYPED_TEST_SUITE(Forwards, ForwardFits);

// p(u) of a row, by Horner's scheme or compensated.
template <class Forward>
float expected_core(float x) {
  static constexpr auto kCore = Forward::table();
  const float* words =
      kCore.w[bits_of(std::fma(x, Forward::kIndexScale, Forward::kIndexBias)) % Forward::kRows];
  const float u = x - words[0];
  float t = words[Forward::kDegree + 1];
  if constexpr (requires { Forward::kCompensated; }) {
    float slope_low = 0;
    if constexpr (requires { Forward::kSlopeLow; }) slope_low = Forward::kSlopeLow;
    for (int k = Forward::kDegree; k >= 3; --k) t = std::fma(t, u, words[k]);
    const volatile float high = std::fma(words[2], u, words[1]), lost = high - words[1];
    return high - std::fma(std::fma(t, u, slope_low), -u, std::fma(words[2], -u, lost));
  } else {
    for (int k = Forward::kDegree; k >= 1; --k) t = std::fma(t, u, words[k]);
    return t;
  }
}

template <class Forward>
float expected_forward(float x) {
  float v = x;
  if constexpr (requires { Forward::kTailX; }) {
    static constexpr auto kTail = Forward::tail();
    if (x < Forward::kTailX) {
      v = x < Forward::kXMin ? Forward::kXMin : x;
      const float* words = kTail.w[bits_of(std::fma(v, Forward::kTailIndexScale, Forward::kTailIndexBias)) %
                                   Forward::kTailRows];
      const float u = v - words[0];
      float p = words[Forward::kTailDegree + 1];
      for (int k = Forward::kTailDegree; k >= 1; --k) p = std::fma(p, u, words[k]);
      return p * words[Forward::kTailDegree + 2];
    }
  } else if (x < Forward::kXMin) {
    v = Forward::kXMin;
  }
  if (x < Forward::kXMax) return expected_core<Forward>(v);
  if constexpr (requires { Forward::kLevels; })
    return expected_core<Forward>(Forward::kXMax < x ? Forward::kXMax : x);
  return x;
}

TYPED_TEST(Forwards, FollowsItsDefinition) {
  float star = 0, tail = 0;
  if constexpr (kHasMask<TypeParam>) star = TypeParam::kXStar;
  if constexpr (requires { TypeParam::kTailX; }) tail = TypeParam::kTailX;
  for (const float x : patterns_and({star, TypeParam::kXMin, tail, TypeParam::kXMax})) {
    ASSERT_EQ(canonical_bits(evaluate_forward<TypeParam>(FloatOps{}, x)),
              canonical_bits(expected_forward<TypeParam>(x)))
        << std::hexfloat << x;
    if constexpr (kHasMask<TypeParam>) {
      EXPECT_EQ(evaluate_mask(FloatOps{}, TypeParam{}, x), x >= TypeParam::kXStar);
    }
  }
}

template <class Forward>
class RoundedForwards : public testing::Test {};
using RoundedForwardFits =
    testing::Types<synthetic::RoundedForward<F16, 64, 32>, synthetic::RoundedForward<BF16, 128, 16>,
                   generated::GeluForwardF16, generated::GeluForwardBf16, generated::SiluForwardBf16,
                   generated::MishForwardF16, generated::TanhForwardF16, generated::SigmoidForwardF16,
                   generated::SoftplusForwardBf16, generated::EluForwardBf16>;
TYPED_TEST_SUITE(RoundedForwards, RoundedForwardFits);

TYPED_TEST(RoundedForwards, FollowItsDefinition) {
  static constexpr auto kRows = TypeParam::table();
  float end = std::numeric_limits<float>::infinity(), tie = 0, pull = 0, star = 0;
  if constexpr (requires { TypeParam::kEnd; }) end = TypeParam::kEnd;
  if constexpr (requires { TypeParam::kTie; }) tie = TypeParam::kTie;
  if constexpr (requires { TypeParam::kPull; }) pull = TypeParam::kPull;
  if constexpr (kHasMask<TypeParam>) star = TypeParam::kXStar;
  for (const float x : patterns_and({star, TypeParam::kXMin, TypeParam::kXMax, 0.0f, -0.0f})) {
    const float v = x < TypeParam::kXMin ? TypeParam::kXMin : x,
                w = TypeParam::kXMax < v ? TypeParam::kXMax : v, enters = end < v ? end : v;
    const float q = std::fma(w, TypeParam::kIndexScale, TypeParam::kIndexBias);
    const float u = (kIsPlain<TypeParam> ? enters : w) - (q - TypeParam::kIndexBias) / TypeParam::kIndexScale;
    const float factor = pull == 0 ? enters : std::fma(enters, -std::copysign(1.0f, x) * pull, enters);
    const float* c = kRows.w[bits_of(q) % TypeParam::kRows];
    float t = std::fma(float_of(bits_of(c[3]) << TypeParam::kQuarticShift), u, c[3]);
    t = std::fma(std::fma(t, u, c[2]), u, c[1]);
    const volatile float wu = w * u;
    const volatile float vc = factor * c[0];
    float y = std::fma(wu, t, tie < kLeastNormal ? vc : std::fma(factor, c[0], tie));
    if (tie < kLeastNormal && y != 0) y += tie;
    y = kIsPlain<TypeParam> ? std::fma(u, t, c[0]) : std::copysign(y, x);
    ASSERT_EQ(canonical_bits(evaluate_forward(FloatOps{}, TypeParam{}, kRows, x)), canonical_bits(y))
        << std::hexfloat << x;
    if constexpr (kHasMask<TypeParam>) {
      EXPECT_EQ(evaluate_mask(FloatOps{}, TypeParam{}, x), x >= TypeParam::kXStar);
    }
  }
}

}  // namespace
}  // namespace outgrad::kernels
