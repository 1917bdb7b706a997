// Direct tables: every code of every format with both mask bits against the plain definition, under every way
// to run them.
#include "kernels/direct.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <new>
#include <vector>

#include "kernels/activation.h"
#include "kernels/host/elementwise.h"
#include "kernels/simd.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::kernels {
namespace {

// The definition in words: NaN gives NaN; m = 0 reads the left segment, at magnitude 0 for y > 0; else the
// sign of y chooses.
template <class Fit, class Y>
float derivative(Y y, bool m) {
  if (std::isnan(widen(y))) return std::nanf("");
  const bool negative = std::signbit(widen(y));
  int magnitude = static_cast<int>(code_of(y)) % (1 << (8 * sizeof(Y) - 1));
  int first = Fit::kUpperFirst, last = Fit::kUpperLast, base = Fit::kUpperBase;
  if (negative) first = Fit::kLowerFirst, last = Fit::kLowerLast, base = Fit::kLowerBase;
  if constexpr (Fit::kMasked) {
    if (!m) first = Fit::kLeftFirst, last = Fit::kLeftLast, base = Fit::kLeftBase;
    if (!m && !negative) magnitude = 0;
  }
  return widen(typename EntryOf<Fit>::Type{Fit::entry_at(base + std::clamp(magnitude, first, last) - first)});
}

template <class Fit, class Y, class T, CpuSchedule S>
void expect_definition() {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    // Every code, and in the second half the other mask bit; an odd number of repetitions moves codes to
    // other lanes and to the tail.
    const std::vector<Y> codes = patterns::all<Y>();
    const size_t n = 2 * codes.size() + 13;
    patterns::Random random(5);
    std::vector<Y> y(n);
    std::vector<T> dy(n, narrow<T>(1.0f)), dx(n);
    std::vector<u32> mask((n + 31) / 32);
    for (size_t i = 0; i < n; ++i) {
      y[i] = codes[i * 7 % codes.size()];
      const u32 m = (static_cast<u32>(i * 7) >> 3 ^ static_cast<u32>(i / codes.size())) & 1u;
      mask[i / 32] |= m << (i % 32);
      if (i % 2 == 1) dy[i] = narrow<T>(static_cast<float>(static_cast<i32>(random.next())) * 0x1p-29f);
    }
    activation_backward<Fit, T, S, Y>(dy.data(), y.data(), Fit::kMasked ? mask.data() : nullptr, dx.data(),
                                      static_cast<i64>(n));
    for (size_t i = 0; i < n; ++i) {
      const bool m = (mask[i / 32] >> (i % 32) & 1) != 0;
      const float g = derivative<Fit>(y[i], m);
      ASSERT_EQ(canonical_bits(dx[i]), canonical_bits(narrow<T>(mul_rn(widen(dy[i]), g))))
          << Fit::kFormat << " code " << code_of(y[i]) << " m=" << m << " vector_bits=" << S.vector_bits;
    }
  }
}

template <class Fit, class Y, class T>
void expect_definition_everywhere() {
  expect_definition<Fit, Y, T, CpuSchedule{.threads = 1}>();
  expect_definition<Fit, Y, T,
                    CpuSchedule{.threads = 1, .vector_bits = 256, .table = TablePlacement::memory}>();
  expect_definition<Fit, Y, T, CpuSchedule{.vector_bits = 256, .unroll = 4, .block_elements = 1024}>();
  expect_definition<Fit, Y, T,
                    CpuSchedule{.threads = 2, .vector_bits = 512, .unroll = 4, .block_elements = 2048}>();
}

TEST(Direct, EveryCodeOfTheSixteenBitFormats) {
  expect_definition_everywhere<synthetic::Direct<BF16, F16>, BF16, BF16>();
  expect_definition_everywhere<synthetic::Direct<BF16, BF16>, BF16, BF16>();
  expect_definition_everywhere<synthetic::Direct<F16, F16>, F16, F16>();
  expect_definition_everywhere<synthetic::Direct<F16, BF16>, F16, float>();
  expect_definition_everywhere<synthetic::Direct<BF16, F16, false>, BF16, F16>();
}

TEST(Direct, EveryCodeOfTheEightBitFormats) {
  expect_definition_everywhere<synthetic::Direct<F8E4M3, F16>, F8E4M3, BF16>();
  expect_definition_everywhere<synthetic::Direct<F8E4M3, BF16>, F8E4M3, float>();
  expect_definition_everywhere<synthetic::Direct<F8E5M2, F16>, F8E5M2, F16>();
  expect_definition_everywhere<synthetic::Direct<F8E5M2, BF16, false>, F8E5M2, BF16>();
}

// A polynomial takes an 8-bit y like any other.
template <class Fit, class Y, class T, CpuSchedule S>
void expect_polynomial() {
  if constexpr (S.vector_bits <= kBestVectorBits) {
    const std::vector<Y> codes = patterns::all<Y>();
    std::vector<Y> y;
    for (int repeat = 0; repeat < 3; ++repeat) y.insert(y.end(), codes.begin(), codes.end());
    y.resize(y.size() - 5);
    std::vector<T> dy(y.size(), narrow<T>(1.0f)), dx(y.size());
    std::vector<u32> mask((y.size() + 31) / 32);
    for (size_t i = 0; i < mask.size(); ++i) mask[i] = i < 8 ? ~0u : i < 16 ? 0u : 0x5a5a5a5au;
    activation_backward<Fit, T, S, Y>(dy.data(), y.data(), mask.data(), dx.data(),
                                      static_cast<i64>(y.size()));
    for (size_t i = 0; i < y.size(); ++i) {
      const float g = evaluate_backward<Fit>(FloatOps{}, widen(y[i]), (mask[i / 32] >> (i % 32) & 1) != 0);
      ASSERT_EQ(canonical_bits(dx[i]), canonical_bits(narrow<T>(g)))
          << code_of(y[i]) << " vector_bits=" << S.vector_bits;
    }
  }
}

TEST(Direct, PolynomialsTakeEightBitOutputsToo) {
  expect_polynomial<synthetic::WithLeft, F8E4M3, float, CpuSchedule{}>();
  expect_polynomial<synthetic::WithLeft, F8E4M3, float, CpuSchedule{.vector_bits = 256}>();
  expect_polynomial<synthetic::WithLeft, F8E5M2, BF16, CpuSchedule{.vector_bits = 512, .unroll = 2}>();
  expect_polynomial<synthetic::OneRow<6>, F8E5M2, F16, CpuSchedule{.vector_bits = 256, .unroll = 4}>();
}

#ifdef OUTGRAD_AVX2
// The last entry of a table that ends with the memory: a gather that reads past the table crashes.
template <class Isa, int kCount>
void expect_gathers_inside() {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  void* const memory = ::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::byte* const end = static_cast<std::byte*>(memory) + page;
  ASSERT_EQ(::mprotect(end, page, PROT_NONE), 0);
  Entries<kCount> entries{};
  for (int i = 0; i < kCount; ++i) entries.w[i] = static_cast<u16>(0x3c00 + i);
  const auto* const table = new (end - sizeof(PaddedEntries<kCount>)) PaddedEntries<kCount>(padded(entries));
  const LaneOps<Isa, 1, TablePlacement::memory> ops;
  const auto last = ops.constant_row(kCount - 1);
  float g[Isa::kLanes];
  ops.template store<false>(g, ops.template entry<BF16>(*table, last));
  for (const float lane : g) EXPECT_EQ(lane, widen(BF16{entries.w[kCount - 1]}));
  ::munmap(memory, 2 * page);
}

TEST(Direct, GathersStayInsideTheTable) {
  expect_gathers_inside<Avx2, 31>();
  expect_gathers_inside<Avx2, 32>();
#ifdef OUTGRAD_AVX512
  expect_gathers_inside<Avx512, 31>();
  expect_gathers_inside<Avx512, 32>();
#endif
}
#endif

}  // namespace
}  // namespace outgrad::kernels
