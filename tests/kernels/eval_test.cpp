// The evaluators against a plain transcription of their definition, and each table entry's part in the result.
#include "kernels/eval.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/fits.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::kernels {
namespace {

// The derivative by plain arithmetic, branches and std::fma instead of an operations object.
template <class Fit>
float derivative(float y, bool m, const Table<Fit::kRows, Fit::kDegree + 2>& table) {
  float t = y - Fit::kYHi;
  if (Fit::kYLo != 0) t = t - Fit::kYLo;
  if (t < Fit::kTMin) t = Fit::kTMin;
  const float root = std::sqrt(t);
  float s = m ? root : -root;
  if (s > Fit::kSMax) s = Fit::kSMax;
  if (!Fit::kHasLeft && s < Fit::kSMin) s = Fit::kSMin;
  u32 row = bits_of(std::fma(s, Fit::kIndexScale, Fit::kIndexBias)) % Fit::kRows;
  float v = s;
  if constexpr (Fit::kHasLeft) {
    if (!m && !(y <= Fit::kLeftY)) {
      v = y > 0 ? -0.0f : y;
      const int h = static_cast<int>(bits_of(v) >> 22 & 0x1ff);
      row = static_cast<u32>(Fit::kLeftRow + std::max((h + std::max(h, Fit::kLeftKnee)) / 2 - Fit::kLeftBase, 0)) % Fit::kRows;
    }
  }
  const float* words = table.w[row];
  const float u = v - words[0];
  float p = words[Fit::kDegree + 1];
  for (int k = Fit::kDegree; k >= 1; --k) p = std::fma(p, u, words[k]);
  return p;
}

template <class Fit>
class Backward : public testing::Test {};
using Fits = testing::Types<synthetic::WithLeft, synthetic::WithoutLeft<8, 4>, synthetic::WithoutLeft<16, 5>, synthetic::WithoutLeft<64, 6>,
                            generated::GeluF32, generated::GeluF16, generated::GeluBf16>;
TYPED_TEST_SUITE(Backward, Fits);

TYPED_TEST(Backward, FollowsItsDefinition) {
  constexpr auto kTable = TypeParam::table();
  for (const float y : patterns::f32_patterns(1000)) {
    for (const bool m : {false, true}) {
      ASSERT_EQ(canonical_bits(evaluate_backward<TypeParam>(FloatOps{}, y, m)), canonical_bits(derivative<TypeParam>(y, m, kTable)))
          << std::hexfloat << y << " m=" << m;
    }
  }
}

// Every row that some y reaches depends on every one of its words (an infinite one shows at any u); many rows are reached.
TYPED_TEST(Backward, EveryWordOfAReachedRowCounts) {
  std::vector<float> ys;
  for (const float y : patterns::f32_patterns(300)) {
    if (y > -0.25f && y < 16.0f) ys.push_back(y);
  }
  const auto table = TypeParam::table();
  int rows_reached = 0;
  for (int row = 0; row < TypeParam::kRows; ++row) {
    int words = 0;
    for (int word = 0; word < TypeParam::kDegree + 2; ++word) {
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
    EXPECT_TRUE(words == 0 || words == TypeParam::kDegree + 2) << "row " << row << ": " << words << " words count";
    rows_reached += words > 0;
  }
  EXPECT_GE(2 * rows_reached, std::min(TypeParam::kRows, 16));
}

TYPED_TEST(Backward, BranchIsChosenByTheMaskAlone) {
  // In the middle of the range the two branches differ; a flipped sign must not go unnoticed.
  int differing = 0;
  for (const float y : {-0.16f, -0.15f, -0.13f, -0.1f, -0.05f}) {
    differing += evaluate_backward<TypeParam>(FloatOps{}, y, false) != evaluate_backward<TypeParam>(FloatOps{}, y, true);
  }
  EXPECT_EQ(differing, 5);
}

template <class Forward>
class Forwards : public testing::Test {};
using ForwardFits = testing::Types<synthetic::Forward<64>, synthetic::Forward<128>, generated::GeluForward>;
TYPED_TEST_SUITE(Forwards, ForwardFits);

TYPED_TEST(Forwards, FollowsItsDefinition) {
  constexpr auto kCore = TypeParam::table();
  constexpr auto kTail = TypeParam::tail();
  for (const float x : patterns::f32_patterns(1000)) {
    float expected;
    if (x < TypeParam::kTailX) {
      const float v = x < TypeParam::kXMin ? TypeParam::kXMin : x;
      const float* words = kTail.w[bits_of(std::fma(v, TypeParam::kTailIndexScale, TypeParam::kTailIndexBias)) % TypeParam::kTailRows];
      const float u = v - words[0];
      float p = words[TypeParam::kTailDegree + 1];
      for (int k = TypeParam::kTailDegree; k >= 1; --k) p = std::fma(p, u, words[k]);
      expected = p * words[TypeParam::kTailDegree + 2];
    } else if (x < TypeParam::kXMax) {
      const float* words = kCore.w[bits_of(std::fma(x, TypeParam::kIndexScale, TypeParam::kIndexBias)) % TypeParam::kRows];
      const float u = x - words[0];
      expected = words[TypeParam::kDegree + 1];
      for (int k = TypeParam::kDegree; k >= 1; --k) expected = std::fma(expected, u, words[k]);
    } else {
      expected = x;
    }
    ASSERT_EQ(canonical_bits(evaluate_forward<TypeParam>(FloatOps{}, x)), canonical_bits(expected)) << std::hexfloat << x;
    EXPECT_EQ(evaluate_mask(FloatOps{}, TypeParam{}, x), x >= TypeParam::kXStar);
  }
}

}  // namespace
}  // namespace outgrad::kernels
