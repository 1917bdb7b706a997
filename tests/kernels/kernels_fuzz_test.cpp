// kernels_fuzz.h with a fixed number of seeded cases, and the oracle against what is known of it.
#include "tests/kernels/kernels_fuzz.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include "kernels/c/outgrad.h"
#include "tests/kernels/kernels_fuzz_oracle.h"
#include "tests/kernels/patterns.h"

namespace outgrad::kernels::fuzz {
namespace {

TEST(KernelsFuzz, SeededCasesHold) {
  constexpr u64 kCases = 14'000;
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
  std::array<i64, kStatuses> refused{};
  for (int kind = 0; kind < kKinds; ++kind) {
    const auto& by_status = tally.refused[static_cast<size_t>(kind)];
    for (size_t status = 0; status < by_status.size(); ++status) refused[status] += by_status[status];
    const auto id = static_cast<c_calls::Id>(kind);
    for (int format = 0; const i64 count : tally.accepted[static_cast<size_t>(kind)]) {
      if (format++ == OUTGRAD_F32 && c_calls::is_product(id)) continue;
      EXPECT_GT(count, 50) << kind_name(kind);
    }
    if (kind >= kSizes) continue;
    if (!c_calls::is_coded(id) && !c_calls::is_softmax(id) && !c_calls::is_gated(id)) {
      EXPECT_GT(tally.judged[static_cast<size_t>(kind)], 150) << kind_name(kind);
    }
    for (const int status : {OUTGRAD_ERROR_NULL_POINTER, OUTGRAD_ERROR_SIZE, OUTGRAD_ERROR_OVERLAP,
                             OUTGRAD_ERROR_ALIGNMENT, OUTGRAD_ERROR_FORMAT})
      EXPECT_GT(by_status[static_cast<size_t>(status)], 2)
          << kind_name(kind) << ' ' << outgrad_status_name(status);
  }
  EXPECT_EQ(refused[OUTGRAD_ERROR_INTERNAL], 0);
  EXPECT_GT(refused[OUTGRAD_ERROR_VALUE], 100);
  EXPECT_GT(refused[OUTGRAD_ERROR_WORKSPACE], 20);
  EXPECT_GT(refused[OUTGRAD_ERROR_ACTIVATION], 5);
  EXPECT_GT(refused[OUTGRAD_ERROR_STORE], 5);
  EXPECT_GT(tally.aliased, 300);
  // Some, or they are not recognised; few, or the others are.
  EXPECT_GT(tally.astray, 0);
  EXPECT_LT(tally.astray, 40);
}

// The C interface has no dropout: PyTorch's operators call it in the table.
TEST(KernelsOfEveryInstructionSet, DropTheSame) {
  constexpr u64 kSeed = 7;
  patterns::Random random(kSeed);
  std::vector<u32> x(5001);
  for (u32& word : x) word = random.next() & 0xbfffbfff;  // in every format numbers, none of them infinite
  for (const outgrad_format format : {OUTGRAD_F32, OUTGRAD_F16, OUTGRAD_BF16}) {
    const i64 n = static_cast<i64>(x.size()) * (format == OUTGRAD_F32 ? 1 : 2) - 1;
    std::vector<u32> want;
    for (const c::FormatKernels* const kernels : kernels_of(format)) {
      std::vector<u32> y(x.size(), ~0u);
      kernels->dropout(x.data(), y.data(), n, kSeed, 0.25);
      if (want.empty()) want = y;
      EXPECT_EQ(y, want) << "format " << format;
    }
    EXPECT_NE(want, x);
    EXPECT_GT(std::ranges::count(want, 0u), 0);
  }
}

#if defined(__SSE2__)
// A finding: with denormals-are-zero set by the caller, a negative subnormal eps compared equal to 0 and was
// taken.
TEST(KernelsFuzz, NegativeSubnormalEpsIsRefusedWhateverTheCallersFlags) {
  const float x = 1.0f;
  float y = 7.0f, rstd = 7.0f;
  outgrad_call negative{.size = sizeof negative, .rows = 1, .n = 1, .eps = -0x1p-149f};
  negative.x = &x, negative.y = &y, negative.rstd = &rstd;
  outgrad_call zero = negative;
  zero.rows = 0, zero.eps = -0.0f;
  const unsigned before = _mm_getcsr();
  for (const unsigned flags : {0u, 0x8040u}) {  // flush-to-zero and denormals-are-zero
    _mm_setcsr(before | flags);
    const outgrad_status layer = outgrad_layernorm_forward(&negative), none = outgrad_rmsnorm_forward(&zero);
    _mm_setcsr(before);
    EXPECT_EQ(layer, OUTGRAD_ERROR_VALUE) << flags;
    EXPECT_EQ(none, OUTGRAD_OK) << flags;
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
