// Inputs and hashes that host and device make alike from an index, so that equality needs no transfer.
//
// The hash of an array is the sum, modulo 2^64, of one well-mixed term per (index, bits): any order of
// summation gives it, and a wrong bit, a swapped pair or a missing element changes it. NaNs enter as one
// pattern.
#pragma once

#include "kernels/formats.h"
#include "kernels/portable.h"

namespace outgrad::tests::gpu {

using kernels::i64;
using kernels::u16;
using kernels::u32;
using kernels::u64;

// The finaliser of splitmix64: a bijection in which every input bit reaches every output bit.
OUTGRAD_HD u64 mix(u64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

OUTGRAD_HD u64 hash_term(u64 index, u32 bits) { return mix(mix(index + 0x9e3779b97f4a7c15u) + bits); }

template <class T>
OUTGRAD_HD u32 hash_bits(T value) {
  return kernels::canonical_bits(value);
}
OUTGRAD_HD u32 hash_bits(u32 word) { return word; }

template <class T>
OUTGRAD_HD T from_bits(u32 bits) {
  if constexpr (sizeof(T) == sizeof(u32)) {
    return kernels::float_of(bits);
  } else {
    return T{static_cast<u16>(bits)};
  }
}

// The argument (x or y) at an index: bit pattern `index`, so 2^32 or 2^16 of them are all there are.
template <class T>
OUTGRAD_HD T argument(u64 index) {
  return from_bits<T>(static_cast<u32>(index));
}

// The argument at a place of the exhaustive sweeps' order: -largest ... -0, +0 ... largest, then +inf and its
// NaNs, -inf and its NaNs.
template <class T>
OUTGRAD_HD T swept(u64 index) {
  // The canonical NaN has one bit of the fraction, the one below the exponent.
  constexpr u32 kNan = kernels::Format<T>::kCanonicalNan;
  constexpr u64 kSign = u64{1} << (8 * sizeof(T) - 1), kInfinity = kNan & kNan << 1,
                kSpecial = kSign - kInfinity;
  if (index < kInfinity) return argument<T>(kSign + kInfinity - 1 - index);
  if (index < 2 * kInfinity) return argument<T>(index - kInfinity);
  const u64 special = index - 2 * kInfinity;
  return argument<T>(special < kSpecial ? kInfinity + special : kSign + kInfinity + special - kSpecial);
}

// dy: 1 at even indices, so that the derivative itself is compared, any bit pattern at odd ones.
template <class T>
OUTGRAD_HD T gradient(u64 index) {
  return index % 2 == 0 ? kernels::narrow<T>(1.0f) : from_bits<T>(static_cast<u32>(mix(index + 1)));
}

// Random mask bits; complemented they give every element its other value.
OUTGRAD_HD u32 mask_word(u64 word, bool complement) {
  const u32 bits = static_cast<u32>(mix(word + 0x5851f42d4c957f2du));
  return complement ? ~bits : bits;
}

// Uniform in [-2, 2) on a grid of 2^-22: exact in fp32. `stream` keeps arrays apart.
OUTGRAD_HD float uniform(u64 stream, u64 index) {
  return kernels::sub_rn(
      kernels::mul_rn(static_cast<float>(mix(stream * 0x2545f4914f6cdd1du + index) >> 40), 0x1p-22f), 2.0f);
}
inline constexpr u64 kXStream = 1, kDyStream = 2, kGammaStream = 3, kBetaStream = 4, kResidualStream = 5,
                     kNextStream = 6;

// Away from zero, of both signs: its reciprocal is finite, which the kernels require.
OUTGRAD_HD float gamma_at(u64 column) {
  const float g = uniform(kGammaStream, column);
  return g < 0.0f ? kernels::sub_rn(g, 0.25f) : kernels::add_rn(g, 0.25f);
}

}  // namespace outgrad::tests::gpu
