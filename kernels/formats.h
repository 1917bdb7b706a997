// Storage formats (f32, f16, bf16, and for a stored y also e4m3, e5m2 and int8): exact widening to fp32 and
// round-to-nearest-even narrowing, subnormals included.
//
// Narrowing works on the bits of the fp32 value. It adds half an ulp of the target, minus one if the kept
// part is even. The addition carries into the kept bits exactly when round-to-nearest-even rounds up, and a
// carry out of the significand leads to the next binade. Below 2^-14 (f16's least normal) the target's ulp is
// the fixed 2^-24, which is the ulp of 0.5f, so one fp32 addition of 0.5 rounds there. NaN payloads differ by
// machine, so every NaN narrows to one canonical pattern.
//
// e4m3 and e5m2 are those of the OCP 8-bit Floating Point Specification (OFP8), revision 1.0, without its
// saturating mode. e5m2 has IEEE 754's infinities and NaNs and overflows to infinity. e4m3 has no infinity
// and one NaN, S.1111.111. Its largest value is 448 = S.1111.110, and whatever rounds beyond that becomes
// NaN, infinities included.
#pragma once

#include "kernels/portable.h"

namespace outgrad::kernels {

struct F16 {
  u16 bits;
};

struct BF16 {
  u16 bits;
};

struct F8E4M3 {
  u8 bits;
};

struct F8E5M2 {
  u8 bits;
};

// Integers from -127 to 127. The code -128, which no number has, is that of a NaN.
struct I8 {
  u8 bits;
};

// e2m1 of the OCP Microscaling Formats specification 1.0, in the lowest four bits: 0, 1/2, 1, 3/2, 2, 3, 4, 6
// and a sign.
struct F4E2M1 {
  u8 bits;
};

// A scale of the OCP Microscaling Formats specification 1.0: 2^(bits - 127); 255 is NaN.
struct E8M0 {
  u8 bits;
};

// e4m3 in blocks of 32 that share an E8M0: MXFP8.
struct MxFp8 {};

// e2m1 in blocks of 32 that share an E8M0, MXFP4, and in blocks of 16 that share an e4m3 beside one fp32
// scale a tensor, NVFP4.
struct MxFp4 {};
struct NvFp4 {};

// The values of f16 and bf16, where the lowest bit of a negative y's code says its branch: 0 right of the
// minimum, 1 left of it (kernels/stores/parity.h).
struct ParityF16 : F16 {};
struct ParityBf16 : BF16 {};

inline constexpr u32 kCanonicalNanF32 = 0x7fc00000u;
inline constexpr u16 kCanonicalNanF16 = 0x7e00u;
inline constexpr u16 kCanonicalNanBf16 = 0x7fc0u;
inline constexpr u8 kNanI8 = 0x80u;
// the one NaN of e4m3; the NaN that CUDA's and PyTorch's conversions give in e5m2
inline constexpr u8 kCanonicalNanF8 = 0x7fu;

// Properties of a storage format T: its name in specs and on the command line, the type's name in C++, the
// integer of its size, its canonical NaN.
template <class T>
struct Format;

template <>
struct Format<float> {
  static constexpr const char* kName = "f32";
  static constexpr const char* kType = "float";
  using Bits = u32;
  static constexpr Bits kCanonicalNan = kCanonicalNanF32;
};

template <>
struct Format<F16> {
  static constexpr const char* kName = "f16";
  static constexpr const char* kType = "F16";
  using Bits = u16;
  static constexpr Bits kCanonicalNan = kCanonicalNanF16;
};

template <>
struct Format<BF16> {
  static constexpr const char* kName = "bf16";
  static constexpr const char* kType = "BF16";
  using Bits = u16;
  static constexpr Bits kCanonicalNan = kCanonicalNanBf16;
};

template <>
struct Format<F8E4M3> {
  static constexpr const char* kName = "e4m3";
  static constexpr const char* kType = "F8E4M3";
  using Bits = u8;
  static constexpr Bits kCanonicalNan = kCanonicalNanF8;
};

template <>
struct Format<F8E5M2> {
  static constexpr const char* kName = "e5m2";
  static constexpr const char* kType = "F8E5M2";
  using Bits = u8;
  static constexpr Bits kCanonicalNan = kCanonicalNanF8;
};

template <>
struct Format<I8> {
  static constexpr const char* kName = "int8";
  static constexpr const char* kType = "I8";
  using Bits = u8;
  static constexpr Bits kCanonicalNan = kNanI8;
};

template <>
struct Format<MxFp8> {
  static constexpr const char* kName = "mxfp8";
  static constexpr const char* kType = "MxFp8";
  using Element = F8E4M3;
  using Scale = E8M0;
  static constexpr int kBlock = 32;
};

template <>
struct Format<MxFp4> {
  static constexpr const char* kName = "mxfp4";
  using Scale = E8M0;
  static constexpr int kBlock = 32;
};

template <>
struct Format<NvFp4> {
  static constexpr const char* kName = "nvfp4";
  using Scale = F8E4M3;
  static constexpr int kBlock = 16;
};

template <>
struct Format<ParityF16> : Format<F16> {
  static constexpr const char* kName = "f16_parity";
  static constexpr const char* kType = "ParityF16";
  using Carrier = F16;
};

template <>
struct Format<ParityBf16> : Format<BF16> {
  static constexpr const char* kName = "bf16_parity";
  static constexpr const char* kType = "ParityBf16";
  using Carrier = BF16;
};

// Formats whose codes say the branch, so that no mask is read.
template <class Y>
concept CarriesBranch = requires { typename Format<Y>::Carrier; };

template <class... T>
struct FormatList {
  static constexpr const char* kNames[] = {Format<T>::kName...};
  static constexpr const char* kTypes[] = {Format<T>::kType...};
};

// The formats that kernels compute in, in the order of outgrad.h. A stored y may also have one of the other
// formats.
using ActivationFormats = FormatList<float, F16, BF16>;
using StoredFormats = FormatList<float, F16, BF16, F8E4M3, F8E5M2, MxFp8, ParityF16, ParityBf16>;

}  // namespace outgrad::kernels

namespace outgrad::kernels::inline OUTGRAD_ABI {

OUTGRAD_HD float widen(float value) { return value; }

OUTGRAD_HD float widen(BF16 value) { return float_of(static_cast<u32>(value.bits) << 16); }

OUTGRAD_HD float widen(F16 value) {
#ifdef __CUDA_ARCH__
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#else
  const u32 sign = (value.bits & 0x8000u) << 16;
  const u32 magnitude = (value.bits & 0x7fffu) << 13;  // f16's exponent field now ends where fp32's does
  // exponent 31: infinity, NaN
  if (magnitude >= 0x0f800000u) return float_of(sign | 0x7f800000u | magnitude);
  if (magnitude >= 0x00800000u) return float_of(sign | (magnitude + (112u << 23)));  // rebias 15 -> 127
  // Subnormal: 2^-14 + value is exact (its ulp is 2^-24 or finer), and so is subtracting 2^-14 again.
  return float_of(sign | bits_of(sub_rn(float_of(magnitude + (113u << 23)), float_of(113u << 23))));
#endif
}

OUTGRAD_HD float widen(E8M0 scale) {
  if (scale.bits == 255) return float_of(kCanonicalNanF32);
  return float_of(scale.bits == 0 ? 1u << 22 : static_cast<u32>(scale.bits) << 23);
}

// f16 with 8 bits cut off
OUTGRAD_HD float widen(F8E5M2 value) { return widen(F16{static_cast<u16>(value.bits << 8)}); }

OUTGRAD_HD float widen(F8E4M3 value) {
  const u32 sign = (value.bits & 0x80u) << 24;
  const u32 magnitude = (value.bits & 0x7fu) << 20;  // the exponent field now ends where fp32's does
  if (magnitude == 0x7f00000u) return float_of(sign | kCanonicalNanF32);
  if (magnitude >= 0x00800000u) return float_of(sign | (magnitude + (120u << 23)));  // rebias 7 -> 127
  // like f16's subnormals, but at 2^-6
  return float_of(sign | bits_of(sub_rn(float_of(magnitude + (121u << 23)), float_of(121u << 23))));
}

OUTGRAD_HD float widen(F4E2M1 value) {
  const u32 magnitude = value.bits & 7u;
  const float number = magnitude < 5 ? 0.5f * static_cast<float>(magnitude)
                                     : static_cast<float>(magnitude < 7 ? magnitude - 2 : 6);
  return float_of(bits_of(number) | (value.bits & 8u) << 28);
}

OUTGRAD_HD float widen(I8 value) {
  return value.bits == kNanI8 ? float_of(kCanonicalNanF32)
                              : static_cast<float>(static_cast<signed char>(value.bits));
}

// `narrow<T>(value)`: value rounded to nearest even in T; overflow gives infinity (e4m3, int8: NaN), NaN
// gives Format<T>::kCanonicalNan (f32: value).
template <class T>
OUTGRAD_HD T narrow(float value);

template <>
OUTGRAD_HD float narrow<float>(float value) {
  return value;
}

template <>
OUTGRAD_HD BF16 narrow<BF16>(float value) {
  const u32 bits = bits_of(value);
  const u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return BF16{(bits & 0x7fffffffu) > 0x7f800000u ? kCanonicalNanBf16 : static_cast<u16>(rounded)};
}

template <>
OUTGRAD_HD F16 narrow<F16>(float value) {
#ifdef __CUDA_ARCH__
  u16 converted;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(converted) : "f"(value));
  return F16{value != value ? kCanonicalNanF16 : converted};
#else
  const u32 bits = bits_of(value);
  const u32 magnitude = bits & 0x7fffffffu;
  const u32 sign = (bits >> 16) & 0x8000u;
  if (magnitude > 0x7f800000u) return F16{kCanonicalNanF16};
  // 65520, midway to 2^16, ties to the even infinity
  if (magnitude >= 0x477ff000u) return F16{static_cast<u16>(sign | 0x7c00u)};
  if (magnitude < (113u << 23)) {
    const u32 rounded = bits_of(add_rn(float_of(magnitude), 0.5f)) - bits_of(0.5f);
    return F16{static_cast<u16>(sign | rounded)};
  }
  const u32 rounded = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  return F16{static_cast<u16>(sign | rounded)};
#endif
}

template <>
OUTGRAD_HD F8E5M2 narrow<F8E5M2>(float value) {
  const u32 magnitude = bits_of(value) & 0x7fffffffu;
  const u32 sign = (bits_of(value) >> 24) & 0x80u;
  if (magnitude > 0x7f800000u) return F8E5M2{kCanonicalNanF8};
  // 61440, midway to 2^16, ties to the even infinity
  if (magnitude >= 0x47700000u) return F8E5M2{static_cast<u8>(sign | 0x7cu)};
  if (magnitude < (113u << 23)) {  // below 2^-14 an ulp is 2^-16, which is the ulp of 128 in fp32
    return F8E5M2{static_cast<u8>(sign | (bits_of(add_rn(float_of(magnitude), 128.0f)) - bits_of(128.0f)))};
  }
  return F8E5M2{
      static_cast<u8>(sign | ((magnitude - (112u << 23) + 0xfffffu + ((magnitude >> 21) & 1u)) >> 21))};
}

template <>
OUTGRAD_HD F8E4M3 narrow<F8E4M3>(float value) {
  const u32 magnitude = bits_of(value) & 0x7fffffffu;
  const u32 sign = (bits_of(value) >> 24) & 0x80u;
  if (magnitude > 0x7f800000u) return F8E4M3{kCanonicalNanF8};
  // 464 is midway between 448 and 480 and ties to the even 448
  if (magnitude > 0x43e80000u) return F8E4M3{static_cast<u8>(sign | 0x7fu)};
  if (magnitude < (121u << 23)) {  // below 2^-6 an ulp is 2^-9, which is the ulp of 2^14 in fp32
    return F8E4M3{static_cast<u8>(sign | (bits_of(add_rn(float_of(magnitude), 0x1p14f)) - bits_of(0x1p14f)))};
  }
  return F8E4M3{
      static_cast<u8>(sign | ((magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20))};
}

template <>
OUTGRAD_HD I8 narrow<I8>(float value) {
  const bool fits = -127.5f < value && value < 127.5f;  // beyond are a NaN, and what rounds to 128
  return I8{fits ? static_cast<u8>(bits_of(add_rn(value, 0x1.8p23f))) : kNanI8};  // an ulp of the sum is 1
}

// The bits of a stored value, with every NaN mapped to the canonical one. Hashes and equality tests compare
// these.
OUTGRAD_HD u32 canonical_bits(float value) { return value != value ? kCanonicalNanF32 : bits_of(value); }

OUTGRAD_HD u16 canonical_bits(F16 value) {
  return (value.bits & 0x7fffu) > 0x7c00u ? kCanonicalNanF16 : value.bits;
}

OUTGRAD_HD u16 canonical_bits(BF16 value) {
  return (value.bits & 0x7fffu) > 0x7f80u ? kCanonicalNanBf16 : value.bits;
}

OUTGRAD_HD u8 canonical_bits(F8E4M3 value) {
  return (value.bits & 0x7fu) == 0x7fu ? kCanonicalNanF8 : value.bits;
}

OUTGRAD_HD u8 canonical_bits(F8E5M2 value) {
  return (value.bits & 0x7fu) > 0x7cu ? kCanonicalNanF8 : value.bits;
}

// The unchanged bits of a stored value, which index a direct table.
OUTGRAD_HD u32 code_of(float value) { return bits_of(value); }

template <class T>
OUTGRAD_HD u32 code_of(T value) {
  return value.bits;
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
