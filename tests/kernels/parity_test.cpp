// y that carries its branch, against the second witness: every x of the 16-bit formats with every activation
// that has a minimum, and every way to run the kernels against the scalar one.
#include "kernels/stores/parity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels/host/parity.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/tested_formats.h"
#include "validation/exact/oracle.h"
#include "validation/sweep/swept_activation.h"

namespace outgrad::kernels {
namespace {

template <class FitT, class YT>
struct Case {
  using Fit = FitT;
  using Y = YT;
  using Carrier = typename Format<Y>::Carrier;
  using Forward = ParityForward<Fit>;
};

template <class... List>
struct CasesOf;
template <class... Half, class... Brain>
struct CasesOf<ParityFitList<Half...>, ParityFitList<Brain...>> {
  using Type = testing::Types<Case<Half, ParityF16>..., Case<Brain, ParityBf16>...>;
};
struct Names {
  template <class Case>
  static std::string GetName(int) {
    return Case::Fit::kName;
  }
};

template <class Case>
class Parity : public testing::Test {};
using Cases = CasesOf<ParityFits<ParityF16>::Type, ParityFits<ParityBf16>::Type>::Type;
TYPED_TEST_SUITE(Parity, Cases, Names);

const validation::SweptActivation& witness(const char* activation) {
  const validation::SweptActivation* const found = validation::swept_activation(activation);
  if (found == nullptr) throw std::runtime_error(activation);
  return *found;
}

// f and f' of every finite x of a format, within the bounds of the reference.
template <class Case>
struct Truth {
  std::vector<float> x;
  std::vector<double> value, low, high, slope;
  std::unique_ptr<validation::Oracle> oracle;

  Truth() : oracle(witness(Case::Fit::kActivation).oracle()) {
    for (const auto each : patterns::all<typename Case::Carrier>()) {
      if (std::isfinite(widen(each))) x.push_back(widen(each));
    }
    const size_t n = x.size();
    value.resize(n), low.resize(n), high.resize(n), slope.resize(n);
    witness(Case::Fit::kActivation)
        .reference()
        .evaluate(x.data(), value.data(), low.data(), high.data(), slope.data(), static_cast<i64>(n));
  }
};

template <class Case>
typename Case::Y output_of(float x) {
  return forward_to_branch<typename Case::Forward, typename Case::Y>(narrow<typename Case::Carrier>(x));
}

template <class Y>
double number(u32 code) {
  return widen(typename Format<Y>::Carrier{static_cast<u16>(code)});
}

// Whether low <= f(x) <= high: by MPFR, with as many digits as it takes.
bool is_between(validation::Oracle& oracle, double x, double low, double high) {
  for (mpfr_prec_t precision = 64; precision <= 1 << 14; precision *= 2) {
    validation::Real least(precision), most(precision);
    oracle.enclose_value(x, least, most);
    if (mpfr_cmp_d(least.get(), low) >= 0 && mpfr_cmp_d(most.get(), high) <= 0) return true;
    if (mpfr_cmp_d(most.get(), low) < 0 || mpfr_cmp_d(least.get(), high) > 0) return false;
  }
  throw std::runtime_error("f(x) is a boundary to the last digit");
}

// --- The forward ---------------------------------------------------------------------------------

TYPED_TEST(Parity, EveryYIsTheOneOnItsBranchThatTheExactValueAsksFor) {
  using Y = typename TypeParam::Y;
  constexpr validation::FloatFormat kFormat =
      std::is_same_v<Y, ParityF16> ? validation::kF16 : validation::kBf16;
  const Truth<TypeParam> truth;
  const double x_star = witness(TypeParam::Fit::kActivation).x_star;
  int left = 0, right = 0, positive = 0;
  for (size_t i = 0; i < truth.x.size(); ++i) {
    const double x = truth.x[i];
    const u32 code = output_of<TypeParam>(truth.x[i]).bits;
    if (!std::signbit(x)) {
      const double want = truth.oracle->value(x, kFormat);
      ASSERT_TRUE(number<Y>(code) == want && code < 0x8000) << x;
      ++positive;
      continue;
    }
    const bool m = x > x_star;
    ASSERT_EQ(code & 0x8001u, m ? 0x8000u : 0x8001u) << x;
    // The other branch's numbers on both sides; f < 0 here.
    const double low = number<Y>(code + 1), high = code <= 0x8001 ? 0 : number<Y>(code - 1);
    const double value = truth.value[i], off = 2 * validation::Reference::kValueBound * std::fabs(value);
    const bool certain = value - off > low && (high == 0 || value + off < high);
    ASSERT_TRUE(certain || is_between(*truth.oracle, x, low, high))
        << x << " gives " << number<Y>(code) << ", f is about " << value;
    // Not further than one code from what is stored beside a mask, hence at most a unit in the last place
    // from f.
    const double rounded = truth.oracle->value(x, kFormat);
    ASSERT_TRUE(rounded == number<Y>(code) || rounded == number<Y>(code + 1) ||
                (code > 0x8000 && rounded == number<Y>(code - 1)))
        << x;
    ++(m ? right : left);
  }
  EXPECT_GT(left, 14'000);
  EXPECT_GT(right, 14'000);
  EXPECT_EQ(left + right, positive);
}

TYPED_TEST(Parity, SpecifiedCases) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  using Carrier = typename TypeParam::Carrier;
  EXPECT_EQ(output_of<TypeParam>(-kInfinity).bits, 0x8001);
  EXPECT_EQ(output_of<TypeParam>(-0.0f).bits, 0x8000);
  EXPECT_EQ(output_of<TypeParam>(0.0f).bits, 0);
  EXPECT_EQ(output_of<TypeParam>(kInfinity).bits, narrow<Carrier>(kInfinity).bits);
  for (const u32 sign : {0u, 0x8000u}) {
    const Carrier nan{static_cast<u16>(Format<Carrier>::kCanonicalNan | sign)};
    EXPECT_EQ((forward_to_branch<typename TypeParam::Forward, typename TypeParam::Y>(nan).bits),
              Format<Carrier>::kCanonicalNan);
  }
}

template <class Y>
void expect_cut_at_the_other_branch() {
  int negative = 0;
  std::vector<float> values = patterns::f32_patterns(400);
  for (u32 code = 0; code < 0x10000; ++code) {
    for (const u32 step : {u32{0} - 1, u32{0}, u32{1}})
      values.push_back(float_of(bits_of(static_cast<float>(number<Y>(code))) + step));
  }
  const double largest = number<Y>(std::is_same_v<Y, ParityF16> ? 0x7bff : 0x7f7f);
  for (const float value : values) {
    for (const bool m : {false, true}) {
      const u32 code = narrow_to_branch<Y>(value, m).bits;
      if (std::isnan(value) || !std::signbit(value)) {
        ASSERT_EQ(code, narrow<typename Format<Y>::Carrier>(value).bits) << value;
        continue;
      }
      ++negative;
      ASSERT_EQ(code & 0x8001u, m ? 0x8000u : 0x8001u) << value;
      // Beyond the largest number m = 1 has the infinity and m = 0 the largest number, which is odd.
      const double above = code <= 0x8001 ? 0 : number<Y>(code - 1);
      if (static_cast<double>(value) < -largest) {
        ASSERT_EQ(number<Y>(code),
                  m ? -static_cast<double>(std::numeric_limits<float>::infinity()) : -largest)
            << value;
        continue;
      }
      const double below = number<Y>(code + 1);
      // A tie of m = 1 goes to the number nearer to 0.
      ASSERT_TRUE(m ? value >= below && (value < above || above == 0) : value > below && value <= above)
          << value << " becomes " << number<Y>(code);
    }
  }
  EXPECT_GT(negative, 100'000);
}

TEST(ParityNarrowing, EveryNumberGoesToTheNeighbourOnItsSideOfTheOtherBranch) {
  expect_cut_at_the_other_branch<ParityF16>();
  expect_cut_at_the_other_branch<ParityBf16>();
}

// --- The backward --------------------------------------------------------------------------------

TYPED_TEST(Parity, NoXHasAGradientFurtherOffThanTheHeaderClaims) {
  using Fit = typename TypeParam::Fit;
  using Y = typename TypeParam::Y;
  static_assert(same_text(Fit::kFormat, Format<Y>::kName));
  const Truth<TypeParam> truth;
  const i64 n = static_cast<i64>(truth.x.size());
  std::vector<Y> y(truth.x.size());
  for (size_t i = 0; i < y.size(); ++i) y[i] = output_of<TypeParam>(truth.x[i]);
  const std::vector<float> dy(y.size(), 1.0f);
  std::vector<float> g(y.size());
  activation_backward<Fit, float, CpuSchedule{.vector_bits = kBestVectorBits}, Y>(dy.data(), y.data(),
                                                                                  nullptr, g.data(), n);
  double largest = 0;
  for (size_t i = 0; i < y.size(); ++i)
    largest = std::max(largest, std::fabs(static_cast<double>(g[i]) - truth.slope[i]));
  EXPECT_LE(largest, Fit::kT + validation::Reference::kDerivativeBound);
  EXPECT_GT(largest, 0.5 * Fit::kT);  // the claim is of this size
  testing::Test::RecordProperty("largest_error", std::to_string(largest));
}

// Without a mask, the bits are those of the kernel that is given the mask that the codes say; for every code,
// NaN and infinities too.
template <class Fit, class Y, class T, int kBits, int kUnroll>
void expect_bits_of_the_masked() {
  using Carrier = typename Format<Y>::Carrier;
  constexpr CpuSchedule kSchedule{.vector_bits = kBits, .unroll = kUnroll};
  constexpr i64 kSize = 0x10000 + 37;
  std::vector<Carrier> y(kSize);
  std::vector<u32> mask((kSize + 31) / 32);
  std::vector<T> dy(kSize), dx(kSize), want(kSize);
  patterns::Random random(5);
  for (i64 i = 0; i < kSize; ++i) {
    const auto at = static_cast<size_t>(i);
    y[at] = Carrier{static_cast<u16>(i)};
    const bool left = y[at].bits >= 0x8000 && y[at].bits % 2 == 1;
    mask[at / 32] |= static_cast<u32>(!left) << (i % 32);
    dy[at] = narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-29f);
  }
  const std::vector<Y> carrying(reinterpret_cast<const Y*>(y.data()),
                                reinterpret_cast<const Y*>(y.data()) + y.size());
  activation_backward<Fit, T, CpuSchedule{.vector_bits = 0}, Carrier>(dy.data(), y.data(), mask.data(),
                                                                      want.data(), kSize);
  activation_backward<Fit, T, kSchedule, Y>(dy.data(), carrying.data(), nullptr, dx.data(), kSize);
  EXPECT_EQ(patterns::first_difference(dx, want), -1) << kBits << " bits, unroll " << kUnroll;
}

TYPED_TEST(Parity, EveryScheduleHasTheBitsOfTheKernelWithAMask) {
  using Fit = typename TypeParam::Fit;
  using Y = typename TypeParam::Y;
  using Carrier = typename TypeParam::Carrier;
  expect_bits_of_the_masked<Fit, Y, Carrier, kBestVectorBits, 1>();
  if constexpr (kAtNight || same_text(Fit::kActivation, "gelu")) {
    expect_bits_of_the_masked<Fit, Y, Carrier, 0, 1>();
    expect_bits_of_the_masked<Fit, Y, Carrier, kBestVectorBits, kBestVectorBits == 0 ? 1 : 4>();
    expect_bits_of_the_masked<Fit, Y, Carrier, kBestVectorBits / 2 < 256 ? 0 : 256, 2>();
    expect_bits_of_the_masked<Fit, Y, float, kBestVectorBits, 1>();
  }
}

TYPED_TEST(Parity, ArraysOfAnyLengthHaveTheBitsOfTheElement) {
  using Y = typename TypeParam::Y;
  std::vector<typename TypeParam::Carrier> x = patterns::all<typename TypeParam::Carrier>();
  for (const i64 n : {i64{0}, i64{1}, i64{33}, static_cast<i64>(x.size())}) {
    std::vector<Y> y(static_cast<size_t>(n) + 1, Y{{0x1234}});
    activation_forward_parity<typename TypeParam::Forward, Y,
                              CpuSchedule{.vector_bits = kBestVectorBits, .block_elements = 1024}>(
        x.data(), y.data(), n);
    for (i64 i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(y[at].bits, (forward_to_branch<typename TypeParam::Forward, Y>(x[at]).bits))
          << n << ", " << i;
    }
    ASSERT_EQ(y.back().bits, 0x1234);
  }
  Y* const over = reinterpret_cast<Y*>(x.data());
  const auto copy = x;
  activation_forward_parity<typename TypeParam::Forward, Y, CpuSchedule{}>(x.data(), over,
                                                                           static_cast<i64>(x.size()));
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_EQ(x[i].bits, (forward_to_branch<typename TypeParam::Forward, Y>(copy[i]).bits));
}

}  // namespace
}  // namespace outgrad::kernels
