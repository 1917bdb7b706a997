// Dropout by counter: a seed and an element's index say whether it is dropped, so that no mask is kept and a
// backward pass drops the same elements again.
//
// The random words are those of Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011): for each 64-bit key a bijection of 128-bit counters, of four words each. Whatever
// the tensor's format, its element i takes word i % 4 of
//   Philox(counter = i / 4, key = seed),
// where the counter's upper 64 bits are 0. The element is kept exactly if
//   word >= threshold,  threshold = p 2^32 rounded to the nearest integer (ties up).
// So it is dropped with the probability threshold / 2^32 exactly, which is within 2^-33 of p; p = 0 keeps
// every element, and p = 1 drops every one. Then
//   y = RN_T(RN_f32(x scale)) if it is kept,  scale = RN_f32(1 / (1 - p)),
//   y = +0 if it is dropped, whatever x is: NaN and infinities too.
// A kept NaN gives a NaN, and a kept infinity or zero gives itself. Apart from its roundings the function is
// linear, so it is its own backward pass: applied to dy with the same seed and p, it gives dx. Tensors with
// the same seed use the same words, so each tensor needs a seed of its own in each training step.
#pragma once

#include "kernels/formats.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// The numbers that follow from a probability p (dropout_rule). A rule that is written by hand must have
// threshold <= 2^32.
struct DropoutRule {
  u64 threshold;  // a smaller word drops its element
  float scale;    // the factor of what is kept; 0 if nothing is
};

struct PhiloxWords {
  u32 word[4];
};

// The paper's constants: multipliers chosen for how well their products mix, and increments of the key that
// are 2^32 times the fractions of the golden ratio and of sqrt(3). Seven rounds are the fewest that pass the
// paper's tests; its authors recommend ten, for a margin.
inline constexpr int kPhiloxRounds = 10;
inline constexpr u32 kPhiloxEvenMultiplier = 0xd2511f53u, kPhiloxOddMultiplier = 0xcd9e8d57u;
inline constexpr u32 kPhiloxLowIncrement = 0x9e3779b9u, kPhiloxHighIncrement = 0xbb67ae85u;

// The rounds, on kCount sets of lanes side by side, written once for scalars and vectors. A lane has 64 bits
// and holds a word in its lower half. Its upper half may hold anything, because a product does not read it.
// So a product stays in place, and one shift reaches its upper half. Ops has the type Lanes, product(lanes,
// word) of the lower halves, and splat(word).
template <class Ops, int kCount>
OUTGRAD_HD void philox_rounds(typename Ops::Lanes (&c)[kCount][4], u64 key) {
  u32 low = static_cast<u32>(key), high = static_cast<u32>(key >> 32);
  OUTGRAD_UNROLL
  for (int round = 0; round < kPhiloxRounds; ++round) {
    OUTGRAD_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const typename Ops::Lanes even = Ops::product(c[k][0], kPhiloxEvenMultiplier),
                                odd = Ops::product(c[k][2], kPhiloxOddMultiplier);
      c[k][0] = (odd >> 32) ^ c[k][1] ^ Ops::splat(low);
      c[k][1] = odd;
      c[k][2] = (even >> 32) ^ c[k][3] ^ Ops::splat(high);
      c[k][3] = even;
    }
    low += kPhiloxLowIncrement;
    high += kPhiloxHighIncrement;
  }
}

struct PhiloxScalar {
  using Lanes = u64;
  static OUTGRAD_HD u64 product(u64 a, u32 b) { return u64{static_cast<u32>(a)} * b; }
  static OUTGRAD_HD u64 splat(u32 value) { return value; }
};

// The words of a 128-bit counter, least significant word first.
OUTGRAD_HD PhiloxWords philox(const PhiloxWords& counter, u64 key) {
  u64 c[1][4] = {{counter.word[0], counter.word[1], counter.word[2], counter.word[3]}};
  philox_rounds<PhiloxScalar>(c, key);
  return {{static_cast<u32>(c[0][0]), static_cast<u32>(c[0][1]), static_cast<u32>(c[0][2]),
           static_cast<u32>(c[0][3])}};
}

// The words of elements 4 counter .. 4 counter + 3.
OUTGRAD_HD PhiloxWords philox(u64 counter, u64 key) {
  return philox(PhiloxWords{{static_cast<u32>(counter), static_cast<u32>(counter >> 32), 0, 0}}, key);
}

// Whether p lies in [0, 1], -0 included. The test uses p's bits, because a negative subnormal compares equal
// to 0 if the caller has set denormals-are-zero.
OUTGRAD_HD bool dropout_holds(double p) {
  constexpr u64 kOne = u64{1023} << 52, kMinusZero = u64{1} << 63;
#ifdef __CUDA_ARCH__
  const u64 bits = static_cast<u64>(__double_as_longlong(p));
#else
  const u64 bits = __builtin_bit_cast(u64, p);
#endif
  return bits <= kOne || bits == kMinusZero;
}

// Whether 1 / (1 - p) lies above the midpoint v of two neighbouring floats a < b, where b >= 1, that is,
// whether v (1 - p) < 1. v and v - 1 are exact, and a fused multiply-add has the sign of the exact sum.
OUTGRAD_HD bool dropout_scale_above(float a, float b, double p) {
  const double v = 0.5 * (static_cast<double>(a) + static_cast<double>(b));
#ifdef __CUDA_ARCH__
  return __fma_rn(-v, p, v - 1) < 0;
#else
  return __builtin_fma(-v, p, v - 1) < 0;
#endif
}

// p satisfies dropout_holds. The result is the same in every floating-point environment: the threshold's
// operations are exact, and signs decide what the quotient leaves in doubt.
OUTGRAD_HD DropoutRule dropout_rule(double p) {
  const double words = p * 0x1p32;
  const u64 whole = static_cast<u64>(words);
  DropoutRule rule{whole + (words - static_cast<double>(whole) >= 0.5 ? 1 : 0), 0.0f};
  if (p < 1) {
    // The guess is rounded three times, so it is the nearest float or a neighbour of it. The exact quotient
    // is never a midpoint: 1 - p is an integer over a power of two, and its product with the midpoint's odd
    // numerator (above 1) would have to be a power of two.
    const float guess = static_cast<float>(1 / (1 - p));
    const float less = float_of(bits_of(guess) - 1), more = float_of(bits_of(guess) + 1);
    rule.scale = !dropout_scale_above(less, guess, p)  ? less
                 : dropout_scale_above(guess, more, p) ? more
                                                       : guess;
  }
  return rule;
}

OUTGRAD_HD bool dropout_keeps(const DropoutRule& rule, u32 word) { return word >= rule.threshold; }

// y of an element that has this word.
template <class T>
OUTGRAD_HD T dropout_element(const DropoutRule& rule, u32 word, T x) {
  return dropout_keeps(rule, word) ? narrow<T>(mul_rn(widen(x), rule.scale)) : T{};
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
