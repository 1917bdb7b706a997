// Every schedule of the host loops gives the bits of the plain one, for any length, alignment, aliasing and
// floating-point mode: cases over a format. A unit for each: all three together take minutes and gigabytes to
// compile with sanitizers.
#pragma once

#include "kernels/host/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "kernels/fits.h"
#include "kernels/simd.h"
#include "tests/kernels/patterns.h"
#include "tests/kernels/synthetic_fit.h"

namespace outgrad::kernels {
namespace {

constexpr CpuSchedule kPlain{.threads = 1};

template <int kBits>
constexpr bool kAvailable = kBits <= kBestVectorBits;

constexpr CpuSchedule vectors(int bits, int unroll, TablePlacement table = TablePlacement::permute,
                              int threads = 1) {
  return {.threads = threads,
          .vector_bits = bits,
          .unroll = unroll,
          .block_elements = 1024,
          .streaming_stores = true,
          .table = table};
}

// At once, and in parts: AVX2 has a large array of 16-bit y by the table of all g, a small one not.
template <CpuSchedule S, class Fit, class T>
void expect_backward(const patterns::Backward<T>& a, const std::vector<T>& expected) {
  if constexpr (kAvailable<S.vector_bits>) {
    std::vector<T> dx(a.y.size());
    if constexpr (detail::kGoesByCode<T, S> && !kIsDirect<Fit>) {
      constexpr i64 kPart = i64{1} << 15;
      ASSERT_GE(a.size(), 2 * detail::kCodes);
      ASSERT_EQ((detail::slopes_by_code<Fit, T, T, S>(kPart)), nullptr);
      ASSERT_NE((detail::slopes_by_code<Fit, T, T, S>(a.size())), nullptr);
      for (i64 i = 0; i < a.size(); i += kPart) {
        gelu_backward<Fit, T, S>(a.dy.data() + i, a.y.data() + i, a.mask.data() + i / 32, dx.data() + i,
                                 std::min(kPart, a.size() - i));
      }
      EXPECT_EQ(patterns::first_difference(dx, expected), -1)
          << Fit::kName << " in parts, vector_bits=" << S.vector_bits;
    }
    gelu_backward<Fit, T, S>(a.dy.data(), a.y.data(), a.mask.data(), dx.data(), a.size());
    const i64 at = patterns::first_difference(dx, expected);
    EXPECT_EQ(at, -1) << Fit::kName << ' ' << Format<T>::kName << " vector_bits=" << S.vector_bits
                      << " unroll=" << S.unroll
                      << " y=" << widen(a.y[static_cast<size_t>(std::max<i64>(at, 0))]);
  }
}

// At once, and in parts: AVX2 has a large array of 16-bit elements by the table of all outputs, a small one
// not.
template <CpuSchedule S, class Forward, class T>
void expect_forward(const std::vector<T>& x, const std::vector<T>& expected,
                    const std::vector<u32>& expected_mask) {
  if constexpr (kAvailable<S.vector_bits>) {
    constexpr i64 kPart = i64{1} << 15;
    static_assert(kPart < detail::kCodes);
    if (const i64 n = static_cast<i64>(x.size()); detail::kGoesByCode<T, S> && n > kPart) {
      std::vector<T> y(x.size());
      std::vector<u32> mask(expected_mask.size(), ~0u);
      for (i64 i = 0; i < n; i += kPart) {
        gelu_forward<Forward, T, S>(x.data() + i, y.data() + i, mask.data() + i / 32, std::min(kPart, n - i));
      }
      EXPECT_EQ(patterns::first_difference(y, expected), -1)
          << Forward::kName << " in parts, vector_bits=" << S.vector_bits;
      EXPECT_EQ(mask, expected_mask);
    }
    std::vector<T> y(x.size());
    std::vector<u32> mask(expected_mask.size(), ~0u);
    gelu_forward<Forward, T, S>(x.data(), y.data(), mask.data(), static_cast<i64>(x.size()));
    const i64 at = patterns::first_difference(y, expected);
    EXPECT_EQ(at, -1) << Forward::kName << ' ' << Format<T>::kName << " vector_bits=" << S.vector_bits
                      << " unroll=" << S.unroll
                      << " x=" << widen(x[static_cast<size_t>(std::max<i64>(at, 0))]);
    EXPECT_EQ(mask, expected_mask);
  }
}

// The plain schedule's results equal the element body's, whose proof it is.
template <class Fit, class T>
std::vector<T> reference_backward(const patterns::Backward<T>& a) {
  std::vector<T> dx(a.y.size());
  for (size_t i = 0; i < dx.size(); ++i) {
    dx[i] = activation_backward_element<Fit>(table_of<Fit>(), a.dy[i], &a.y[i],
                                             (a.mask[i / 32] >> (i % 32) & 1) != 0);
  }
  return dx;
}

template <class Fit, class T>
void expect_every_backward_schedule(int random_per_binade) {
  const auto a = patterns::backward<T>(random_per_binade);
  const std::vector<T> expected = reference_backward<Fit, T>(a);
  expect_backward<kPlain, Fit>(a, expected);
  expect_backward<CpuSchedule{.block_elements = 4096}, Fit>(a, expected);
  expect_backward<vectors(256, 1), Fit>(a, expected);
  expect_backward<vectors(256, 4), Fit>(a, expected);
  expect_backward<vectors(256, 2, TablePlacement::memory, 2), Fit>(a, expected);
  expect_backward<vectors(512, 1), Fit>(a, expected);
  expect_backward<vectors(512, 4, TablePlacement::permute, 2), Fit>(a, expected);
  expect_backward<vectors(512, 2, TablePlacement::memory), Fit>(a, expected);
}

template <class Forward, class T>
void expect_every_forward_schedule(const std::vector<T>& x) {
  static constexpr auto kTables = forward_tables<Forward>();
  std::vector<T> y(x.size());
  std::vector<u32> mask((x.size() + 31) / 32);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto element = fitted_forward_element(Forward{}, kTables, x[i]);
    y[i] = element.y;
    mask[i / 32] |= static_cast<u32>(element.m) << (i % 32);
  }
  expect_forward<kPlain, Forward>(x, y, mask);
  expect_forward<vectors(256, 1), Forward>(x, y, mask);
  expect_forward<vectors(256, 4, TablePlacement::memory), Forward>(x, y, mask);
  expect_forward<vectors(512, 1, TablePlacement::memory), Forward>(x, y, mask);
  expect_forward<vectors(512, 4, TablePlacement::permute, 2), Forward>(x, y, mask);
}

template <class Forward, class T>
void expect_every_forward_schedule(int random_per_binade) {
  expect_every_forward_schedule<Forward>(patterns::all<T>(random_per_binade));
}

template <class T>
class Elementwise : public testing::Test {};
TYPED_TEST_SUITE_P(Elementwise);

// All 2^16 patterns with both mask bits for the 16-bit formats; two million stratified values for f32.
TYPED_TEST_P(Elementwise, BackwardIsTheSameUnderEverySchedule) {
  expect_every_backward_schedule<typename DefaultFit<TypeParam>::Type, TypeParam>(2000);
  expect_every_backward_schedule<synthetic::WithLeft, TypeParam>(200);
  expect_every_backward_schedule<synthetic::WithoutLeft<8, 4>, TypeParam>(200);
  expect_every_backward_schedule<synthetic::WithoutLeft<16, 5>, TypeParam>(200);
  expect_every_backward_schedule<synthetic::WithoutLeft<64, 6>, TypeParam>(200);
}

TYPED_TEST_P(Elementwise, ForwardIsTheSameUnderEverySchedule) {
  expect_every_forward_schedule<typename ForwardFit<TypeParam>::Type, TypeParam>(1000);
  expect_every_forward_schedule<synthetic::ForwardOf<TypeParam, 64>, TypeParam>(200);
  expect_every_forward_schedule<synthetic::ForwardOf<TypeParam, 128>, TypeParam>(200);
}

// A vector with few elements in the left tail takes another path than one with many: from none to all of
// sixteen neighbours.
TYPED_TEST_P(Elementwise, AnyShareOfTheLeftTailIsTheSameUnderEverySchedule) {
  using T = TypeParam;
  std::vector<T> x;
  for (int tail = 0; tail <= 16; ++tail) {
    for (int i = 0; i < 1024; ++i) {
      const bool left = i * 7 % 16 < tail;
      x.push_back(
          narrow<T>(left ? -2.5f - 0.0117f * static_cast<float>(i) : 0.003f * static_cast<float>(i) - 1.0f));
    }
  }
  expect_every_forward_schedule<typename ForwardFit<T>::Type>(x);
}

// Widest vectors, small blocks; arrays with guards on both sides that must stay as they are.
constexpr CpuSchedule kWidest{.threads = 2,
                              .vector_bits = kBestVectorBits,
                              .unroll = kBestVectorBits > 0 ? 2 : 1,
                              .block_elements = 1024,
                              .streaming_stores = kBestVectorBits > 0};

template <class T>
std::vector<T> guarded(size_t count, typename Format<T>::Bits guard) {
  return std::vector<T>(count, __builtin_bit_cast(T, guard));
}

TYPED_TEST_P(Elementwise, EveryLengthAndAlignmentBackward) {
  using T = TypeParam;
  using Fit = typename DefaultFit<T>::Type;
  constexpr typename Format<T>::Bits kGuard = 0x5a5a;
  const auto a = patterns::backward<T>(20);
  const std::vector<T> expected = reference_backward<Fit, T>(a);
  for (i64 n = 0; n <= 100; ++n) {
    for (const i64 shift : {0, 1, 3}) {
      // Element `start + i` sits at place shift + i: the mask stays word-aligned, the tensors need not be
      // more than element-aligned.
      const i64 start = 32 * (n + 57 * shift);
      auto dy = guarded<T>(128, kGuard), y = guarded<T>(128, kGuard), dx = guarded<T>(128, kGuard);
      std::copy_n(a.dy.begin() + start, n, dy.begin() + shift);
      std::copy_n(a.y.begin() + start, n, y.begin() + shift);
      gelu_backward<Fit, T, kWidest>(dy.data() + shift, y.data() + shift, a.mask.data() + start / 32,
                                     dx.data() + shift, n);
      auto want = guarded<T>(128, kGuard);
      std::copy_n(expected.begin() + start, n, want.begin() + shift);
      ASSERT_EQ(patterns::first_difference(dx, want), -1) << "n=" << n << " shift=" << shift;

      gelu_backward<Fit, T, kWidest>(dy.data() + shift, y.data() + shift, a.mask.data() + start / 32,
                                     dy.data() + shift, n);
      ASSERT_EQ(patterns::first_difference(dy, want), -1) << "in place, n=" << n << " shift=" << shift;
    }
  }
}

TYPED_TEST_P(Elementwise, EveryLengthAndAlignmentForward) {
  using T = TypeParam;
  using Forward = typename ForwardFit<T>::Type;
  static constexpr auto kTables = forward_tables<Forward>();
  constexpr typename Format<T>::Bits kGuard = 0x5a5a;
  const std::vector<T> values = patterns::all<T>(20);
  for (i64 n = 0; n <= 100; ++n) {
    for (const i64 shift : {0, 1, 3}) {
      const i64 words = (n + 31) / 32;
      auto x = guarded<T>(128, kGuard), y = guarded<T>(128, kGuard), want = guarded<T>(128, kGuard);
      std::vector<u32> mask(8, 0xdeadbeefu), want_mask = mask;
      std::fill_n(want_mask.begin(), words, 0u);
      for (i64 i = 0; i < n; ++i) {
        const T value = values[static_cast<size_t>((n * 7919 + shift * 104729 + i * 613) %
                                                   static_cast<i64>(values.size()))];
        const auto element = fitted_forward_element(Forward{}, kTables, value);
        x[static_cast<size_t>(i + shift)] = value;
        want[static_cast<size_t>(i + shift)] = element.y;
        want_mask[static_cast<size_t>(i / 32)] |= static_cast<u32>(element.m) << (i % 32);
      }
      gelu_forward<Forward, T, kWidest>(x.data() + shift, y.data() + shift, mask.data(), n);
      ASSERT_EQ(patterns::first_difference(y, want), -1) << "n=" << n << " shift=" << shift;
      // bits beyond n are 0, words beyond are untouched
      ASSERT_EQ(mask, want_mask) << "n=" << n << " shift=" << shift;

      gelu_forward<Forward, T, kWidest>(x.data() + shift, x.data() + shift, mask.data(), n);
      ASSERT_EQ(patterns::first_difference(x, want), -1) << "in place, n=" << n << " shift=" << shift;
    }
  }
}

// Large and aligned enough to stream, several blocks and threads, and a tail.
TYPED_TEST_P(Elementwise, StreamedBlocksAreTheSame) {
  using T = TypeParam;
  using Fit = typename DefaultFit<T>::Type;
  constexpr CpuSchedule kStreamed{.threads = 3,
                                  .vector_bits = kBestVectorBits,
                                  .unroll = kBestVectorBits > 0 ? 4 : 1,
                                  .block_elements = 1 << 14,
                                  .streaming_stores = kBestVectorBits > 0};
  const auto a = patterns::backward<T>(20);
  const std::vector<T> expected = reference_backward<Fit, T>(a);
  // Whole mask words of the pattern set, repeated until 2 MiB and a bit are full.
  const i64 period = a.size() / 32 * 32;
  const i64 n = (i64{2} << 20) / static_cast<i64>(sizeof(T)) + 7 * 1024 + 13;
  std::vector<T> dy(static_cast<size_t>(n)), y(dy.size());
  std::vector<u32> mask(static_cast<size_t>((n + 31) / 32));
  for (i64 i = 0; i < n; ++i) {
    dy[static_cast<size_t>(i)] = a.dy[static_cast<size_t>(i % period)];
    y[static_cast<size_t>(i)] = a.y[static_cast<size_t>(i % period)];
    mask[static_cast<size_t>(i / 32)] = a.mask[static_cast<size_t>(i % period / 32)];
  }
  const std::unique_ptr<T, decltype(&std::free)> dx(
      static_cast<T*>(std::aligned_alloc(64, (dy.size() * sizeof(T) + 63) / 64 * 64)), &std::free);
  ASSERT_EQ((detail::streams<kStreamed>(dx.get(), n)), kBestVectorBits > 0);
  gelu_backward<Fit, T, kStreamed>(dy.data(), y.data(), mask.data(), dx.get(), n);
  for (i64 i = 0; i < n; ++i) {
    ASSERT_EQ(canonical_bits(dx.get()[i]), canonical_bits(expected[static_cast<size_t>(i % period)])) << i;
  }
  ASSERT_FALSE((detail::streams<kStreamed>(dx.get() + 1, n)));
  ASSERT_FALSE((detail::streams<kStreamed>(dx.get(), 1000)));
}

TYPED_TEST_P(Elementwise, CallersFloatingPointModeIsNeitherUsedNorChanged) {
#ifndef __SSE2__
  GTEST_SKIP() << "its floating-point mode is not set here";
#else
  using T = TypeParam;
  using Fit = typename DefaultFit<T>::Type;
  constexpr CpuSchedule kThreads{.threads = 2, .vector_bits = kBestVectorBits, .block_elements = 1024};
  const auto a = patterns::backward<T>(20);
  const std::vector<T> expected = reference_backward<Fit, T>(a);
  std::vector<T> dx(a.y.size());
  const unsigned saved = _mm_getcsr();
  // flush to zero, denormals are zero, round toward zero
  const unsigned hostile = 0x1f80 | 0x8000 | 0x0040 | 0x6000;
  _mm_setcsr(hostile);
  gelu_backward<Fit, T, kThreads>(a.dy.data(), a.y.data(), a.mask.data(), dx.data(), a.size());
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(after, hostile);
  EXPECT_EQ(patterns::first_difference(dx, expected), -1);
#endif
}

REGISTER_TYPED_TEST_SUITE_P(Elementwise, BackwardIsTheSameUnderEverySchedule,
                            ForwardIsTheSameUnderEverySchedule,
                            AnyShareOfTheLeftTailIsTheSameUnderEverySchedule, EveryLengthAndAlignmentBackward,
                            EveryLengthAndAlignmentForward, StreamedBlocksAreTheSame,
                            CallersFloatingPointModeIsNeitherUsedNorChanged);

}  // namespace
}  // namespace outgrad::kernels
