// kernels_fuzz.h with a fixed number of seeded cases, and the oracle against what is known of it.
#include "tests/kernels/kernels_fuzz.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "kernels/c/outgrad.h"
#include "tests/kernels/kernels_fuzz_oracle.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels::fuzz {
namespace {

TEST(KernelsFuzz, SeededCasesHold) {
  constexpr u64 kCases = 8'000;
  Tally tally;
  int failures = 0;
  for (u64 seed = 0; seed < kCases && failures < 5; ++seed) {
    patterns::Random random(seed);
    std::array<std::uint8_t, 64> bytes;
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
    const std::string wrong = run_case(bytes, tally);
    EXPECT_EQ(wrong, "") << "seed " << seed;
    failures += !wrong.empty();
  }
  if (failures > 0) return;
  // All kinds were drawn.
  for (int function = 0; function < kFunctions; ++function) {
    const bool queries = function + 1 == kFunctions,
               workspace = function + 3 == kFunctions || function + 2 == kFunctions;
    for (const i64 count : tally.accepted[static_cast<size_t>(function)])
      EXPECT_GT(count, 50) << kFunctionNames[static_cast<size_t>(function)];
    if (queries || workspace) continue;
    EXPECT_GT(tally.judged[static_cast<size_t>(function)], 300)
        << kFunctionNames[static_cast<size_t>(function)];
    for (const int status : {OUTGRAD_ERROR_NULL_POINTER, OUTGRAD_ERROR_SIZE, OUTGRAD_ERROR_OVERLAP,
                             OUTGRAD_ERROR_ALIGNMENT, OUTGRAD_ERROR_FORMAT}) {
      EXPECT_GT(tally.refused[static_cast<size_t>(function)][static_cast<size_t>(status)], 3)
          << kFunctionNames[static_cast<size_t>(function)] << ' ' << outgrad_status_name(status);
    }
  }
  i64 values = 0, workspaces = 0, activations = 0;
  for (const auto& by_status : tally.refused) {
    values += by_status[OUTGRAD_ERROR_VALUE];
    workspaces += by_status[OUTGRAD_ERROR_WORKSPACE];
    activations += by_status[OUTGRAD_ERROR_ACTIVATION];
    EXPECT_EQ(by_status[OUTGRAD_ERROR_INTERNAL], 0);
  }
  EXPECT_GT(values, 100);
  EXPECT_GT(workspaces, 20);
  EXPECT_GT(activations, 5);
  EXPECT_GT(tally.aliased, 300);
  // Some, or they are not recognised; few, or the others are.
  EXPECT_GT(tally.astray, 0);
  EXPECT_LT(tally.astray, 40);
}

#if defined(__SSE2__)
// A finding: with denormals-are-zero set by the caller, a negative subnormal eps compared equal to 0 and was
// taken.
TEST(KernelsFuzz, NegativeSubnormalEpsIsRefusedWhateverTheCallersFlags) {
  const float x = 1.0f;
  float y = 7.0f, rstd = 7.0f;
  const unsigned before = _mm_getcsr();
  for (const unsigned flags : {0u, 0x8040u}) {  // flush-to-zero and denormals-are-zero
    _mm_setcsr(before | flags);
    const outgrad_status layer = outgrad_layernorm_forward(OUTGRAD_F32, &x, nullptr, nullptr, 1, 1,
                                                           -0x1p-149f, &y, &rstd, nullptr, 0, nullptr);
    const outgrad_status zero =
        outgrad_rmsnorm_forward(OUTGRAD_F32, &x, nullptr, 0, 1, -0.0f, &y, &rstd, nullptr, 0, nullptr);
    _mm_setcsr(before);
    EXPECT_EQ(layer, OUTGRAD_ERROR_VALUE) << flags;
    EXPECT_EQ(zero, OUTGRAD_OK) << flags;
    EXPECT_EQ(y, 7.0f);
  }
}
#endif

// Against identities that do not go by the oracle's own code: f' as a difference quotient, g = f' at the x
// that y came from, x* as GELU's.
TEST(KernelsFuzz, OracleAgreesWithItself) {
  for (int number = 0; number <= OUTGRAD_ELU; ++number) {
    const Activation f(number);
    if (f.masked()) {
      EXPECT_NEAR(static_cast<double>(f.derivative(f.x_star())), 0, 1e-15) << number;
    }
    for (const float x : {-9.0f, -3.25f, -1.5f, -0.6f, -0.125f, 0.3f, 1.75f, 6.0f}) {
      const long double step = 0x1p-20L;
      const long double slope = (f.value(x + step) - f.value(x - step)) / (2 * step);
      EXPECT_NEAR(static_cast<double>(slope), static_cast<double>(f.derivative(x)), 0x1p-36)
          << number << " at " << x;
      const auto g = f.derivative_at_value(f.value(x), f.masked() && x >= f.x_star());
      EXPECT_LE(g.low - 0x1p-36L, f.derivative(x)) << number << " at " << x;
      EXPECT_GE(g.high + 0x1p-36L, f.derivative(x)) << number << " at " << x;
      EXPECT_LT(g.high - g.low, 0x1p-24L) << number << " at " << x;
    }
  }
  EXPECT_NEAR(static_cast<double>(Activation(OUTGRAD_GELU).x_star()), -0.75179162, 1e-7);
  const Activation elu(OUTGRAD_ELU);  // the identity from 0 on
  EXPECT_EQ(elu.rounded_value(Stored::bf16, 1.00390f), 1.0f);
  EXPECT_EQ(elu.rounded_value(Stored::bf16, 1.00391f), 1.0078125f);
  EXPECT_TRUE(std::isnan(elu.rounded_value(Stored::bf16, 1.00390625f)));  // a tie: not decided
  EXPECT_EQ(elu.rounded_value(Stored::f16, 65519.0f), 65504.0f);
  EXPECT_EQ(elu.rounded_value(Stored::f16, 65521.0f), INFINITY);
  EXPECT_EQ(elu.rounded_value(Stored::f16, 0x1.1p-25f), 0x1p-24f);
}

}  // namespace
}  // namespace outgrad::kernels::fuzz
