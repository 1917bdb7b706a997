// The kernels as the sweep sees them: bit for bit what the element bodies give, in every format, and told
// apart by their fingerprint.

#include "validation/sweep/subject.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/fitted_forward.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::validation {
namespace {

using kernels::BF16;
using kernels::F16;
using kernels::widen;
template <class T>
using Forward = kernels::synthetic::ForwardOf<T, 64>;

template <class Fit>
struct OtherCoefficient : Fit {
  static OUTGRAD_HD constexpr auto table() {
    auto table = Fit::table();
    table.w[2][1] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(table.w[2][1]) + 1);
    return table;
  }
};

template <class Fit>
struct OtherConstant : Fit {
  static constexpr float kTMin = Fit::kTMin * 2;
};

template <class T>
struct Tested {
  using Fit = kernels::synthetic::WithoutLeft<8, 5>;
  static constexpr FloatFormat kFormat = std::is_same_v<T, F16> ? kF16 : kBf16;
};
template <>
struct Tested<float> {
  using Fit = kernels::synthetic::WithLeft;
  static constexpr FloatFormat kFormat = kF32;
};

template <class T>
class SubjectOf : public testing::Test {};
using Formats = testing::Types<float, F16, BF16>;
TYPED_TEST_SUITE(SubjectOf, Formats);

template <class T>
Subject subject_of() {
  return make_subject<typename Tested<T>::Fit, Forward<T>, T>(Tested<T>::kFormat);
}

bool same(float a, float b) { return kernels::canonical_bits(a) == kernels::canonical_bits(b); }

/// Blocks of f32 x, and of x that are values of T; lengths that are no multiple of anything; specials among
/// them.
template <class T>
std::vector<std::vector<float>> blocks_of_x() {
  std::mt19937 random(6);
  std::vector<std::vector<float>> blocks;
  for (const std::size_t n : {std::size_t{1}, std::size_t{31}, std::size_t{1000}, std::size_t{5000}}) {
    std::vector<float> any(n), stored(n);
    for (std::size_t i = 0; i < n; ++i) {
      any[i] = i % 2 != 0 ? std::bit_cast<float>(static_cast<std::uint32_t>(random()))
                          : static_cast<float>(random()) * 0x1p-29f - 4;
      stored[i] = widen(kernels::narrow<T>(any[i]));
    }
    any[n / 2] = 0.1f;  // no value of a 16-bit format
    blocks.insert(blocks.end(), {any, stored});
  }
  return blocks;
}

TYPED_TEST(SubjectOf, GivesTheElementBodiesResults) {
  using T = TypeParam;
  using Fit = typename Tested<T>::Fit;
  const Subject subject = subject_of<T>();
  for (const std::vector<float>& x : blocks_of_x<T>()) {
    const auto n = static_cast<std::int64_t>(x.size());
    std::vector<float> y(x.size()), g(x.size()), dx(x.size());
    std::vector<std::uint32_t> mask((x.size() + 31) / 32);
    subject.forward(x.data(), y.data(), mask.data(), n);
    subject.derivative(y.data(), mask.data(), g.data(), n);
    if (subject.gradient) subject.gradient(y.data(), mask.data(), dx.data(), n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const float want = kernels::fitted_forward_value<T>(kernels::FloatOps{}, Forward<T>{},
                                                          kernels::forward_tables<Forward<T>>(), x[i]);
      const bool m = (mask[i / 32] >> (i % 32) & 1) != 0;
      EXPECT_TRUE(same(y[i], widen(kernels::narrow<T>(want)))) << x[i];
      EXPECT_EQ(m, x[i] >= Forward<T>::kXStar) << x[i];
      const float derivative = kernels::evaluate_backward(kernels::FloatOps{}, Fit{}, Fit::table(), y[i], m);
      EXPECT_TRUE(same(g[i], derivative)) << x[i];
      if (subject.gradient) {
        EXPECT_TRUE(same(dx[i], widen(kernels::narrow<T>(derivative)))) << x[i];
      }
    }
  }
}

TYPED_TEST(SubjectOf, IdentityFollowsCoefficientsAndConstants) {
  using T = TypeParam;
  using Fit = typename Tested<T>::Fit;
  const std::string identity = subject_of<T>().identity;
  EXPECT_EQ(subject_of<T>().identity, identity);
  EXPECT_NE((make_subject<OtherCoefficient<Fit>, Forward<T>, T>(Tested<T>::kFormat).identity), identity);
  EXPECT_NE((make_subject<OtherConstant<Fit>, Forward<T>, T>(Tested<T>::kFormat).identity), identity);
  EXPECT_NE((make_subject<Fit, OtherCoefficient<Forward<T>>, T>(Tested<T>::kFormat).identity), identity);
}

}  // namespace
}  // namespace outgrad::validation
