// y in few bits at a scale, as today's products of 8 and 4 bits read it, and 0, 1 or 2 bits beside each code:
// what a layer may keep for its backward pass where the next product keeps the code anyway.
//
// For x in fp32, y is the library's fp32 forward of x, and the code is y s rounded to e4m3, e5m2, an integer
// (kernels/stores/fp8.h) or e2m1 (kernels/stores/fp4.h), where s is a scale and what exceeds the largest
// number is saturated. The code stands for code / s. Many x share a code: those with f(x) in an interval of
// y, left of f's minimum and right of it. Their f'(x) fill an interval on each side, and the bits beside the
// code say in which part of these f'(x) lies. PartTable holds the parts of all codes at one scale:
//   edges   part = number of the code's edges at or below g, where g is the library's fp32 fit at y and the
//           mask bit of x
//   values  the middle of each part, which the code and the part stand for
// int8 has one code for both zeros, so that this code has a y on either side of 0, the floating-point formats
// have two.
// The parts are as short as 2^bits parts can be: the whole from the least to the greatest f'(x) in equal
// parts, or, where a gap is between the two sides, each side in equal parts of its own. At the minimum the
// sides meet.
//
// The table is made from s by the library's fp32 fit. The y of a code are exactly known, since y s and its
// rounding rise with y: they are the floats from the least with that code on to the greatest. The fit at
// these two gives the ends of f' over the code, and the extrema of f' are added where one lies between. So
// for E = sup |fit(y, m) - g(y, m)| over the stored y, and G = sup |g - f'(x)| over x,
//   |what a code and a part stand for - f'(x)| <= table.widest / 2 + max(2 E, G) + G + rounding
// for every finite x and every s that scale_holds: g is within max(2 E, G) of a part of its own number,
// whatever f' does. The generated headers <activation>_fp8.h hold G, this last sum, kRoom, and the least
// upper bound kT over whole ranges of scales.
#pragma once

#include "kernels/formats.h"
#include "kernels/forward_fits.h"
#include "kernels/portable.h"
#include "kernels/saturated.h"
#include "kernels/stores/code.h"

namespace outgrad::kernels {

inline constexpr int kMostPartBits = 2, kMostParts = 1 << kMostPartBits, kFp8Codes = 256, kFp4Codes = 16;

template <int kCodes>
struct PartTable {
  int bits;
  float widest;  // the longest part
  float edges[kMostParts - 1][kCodes];  // ascending
  // NaN for a NaN and an infinity, which no x but a NaN has; 0 for codes below f's minimum, which none has
  float values[kMostParts][kCodes];
};
using Fp8Table = PartTable<kFp8Codes>;
using Fp4Table = PartTable<kFp4Codes>;

// The scales for which a header claims its kT of a store, and kT of 0, 1 and 2 bits.
struct Fp8Claims {
  float least, most;
  double total[kMostPartBits + 1];
};

}  // namespace outgrad::kernels

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Magnitudes of y as bits: all but a NaN's are below.
inline constexpr u32 kBeyondInfinity = 0x7f800001u;

OUTGRAD_HD constexpr bool part_bits_hold(int bits) { return bits >= 0 && bits <= kMostPartBits; }

// g of x, whose y forward_at gives.
template <class Fit, class Forward>
OUTGRAD_HD float fitted_gradient(float x, float y) {
  static_assert(Fit::kMasked && same_text(Fit::kFormat, Format<float>::kName) &&
                same_text(Fit::kActivation, Forward::kActivation));
  return evaluate_backward<Fit>(FloatOps{}, y, Forward::kXStar <= x);
}

// The code of y at that scale. An infinity is saturated, a NaN stays one.
template <class F>
OUTGRAD_HD F fp8_code(float y, float scale) {
  return narrow_saturated<F>(mul_rn(y, scale));
}

// The code of -v, where `code` is that of v >= 0: the same where a format has one zero.
template <class F>
OUTGRAD_HD constexpr int negated(int code) {
  return code | 0x80;
}
template <>
OUTGRAD_HD constexpr int negated<I8>(int code) {
  return -code & 0xff;
}
template <>
OUTGRAD_HD constexpr int negated<F4E2M1>(int code) {
  return code | 8;
}

// NaN has part 0.
template <int kCodes>
OUTGRAD_HD int part_of(const PartTable<kCodes>& table, u8 code, float g) {
  int part = 0;
  for (int k = 0; k + 1 < 1 << table.bits; ++k) part += table.edges[k][code] <= g;
  return part;
}

namespace detail {

// f' over the x of one side of the minimum that share a code.
struct SlopeRange {
  bool any = false;
  float lo = 0, hi = 0;

  OUTGRAD_HD void include(float g) {
    lo = !any || g < lo ? g : lo;
    hi = !any || hi < g ? g : hi;
    any = true;
  }
};

// Over y from `first` to `last`. The forward is within 2 ulp of f(x), so no y is more than 4 ulp below the
// minimum's.
template <class S>
OUTGRAD_HD SlopeRange slopes_of(float first, float last, bool m) {
  constexpr float kMinimum = S::Fit::kYHi, kLeast = kMinimum * (1 + 0x1p-21f);
  SlopeRange range;
  if (!(kLeast <= last)) return range;
  const auto gradient = [&](float y) { return evaluate_backward<typename S::Fit>(FloatOps{}, y, m); };
  range.include(first <= kMinimum ? 0.0f : gradient(first));
  range.include(gradient(last));
  const float at = m ? S::Header::kGreatestAt : S::Header::kLeastAt;
  if (first <= at && at <= last) range.include(m ? S::Code::kHi : S::Code::kLo);
  return range;
}

// Parts of [lo, hi], from number `begin` on, `count` of them.
template <int kCodes>
OUTGRAD_HD void cut(PartTable<kCodes>& table, int code, double lo, double hi, int begin, int count) {
  for (int k = 0; k < count; ++k) {
    if (k > 0) table.edges[begin + k - 1][code] = static_cast<float>(lo + (hi - lo) * k / count);
    table.values[begin + k][code] = static_cast<float>(lo + (hi - lo) * (2 * k + 1) / (2 * count));
  }
}

// Of one code, from f' left and right of the minimum. Returns the length of its longest part.
template <int kCodes>
OUTGRAD_HD double cut(PartTable<kCodes>& table, int code, const SlopeRange& left, const SlopeRange& right) {
  const int parts = 1 << table.bits;
  if (!left.any && !right.any) return 0;
  const double lo = left.any ? left.lo : right.lo, hi = right.any ? right.hi : left.hi;
  double length = (hi - lo) / parts;
  int on_left = 0;  // of a cut at the gap
  if (left.any && right.any && left.hi < right.lo) {
    for (int k = 1; k < parts; ++k) {
      const double each = (static_cast<double>(left.hi) - lo) / k, other = (hi - right.lo) / (parts - k),
                   longest = each < other ? other : each;
      if (longest < length) length = longest, on_left = k;
    }
  }
  if (on_left == 0) {
    cut(table, code, lo, hi, 0, parts);
  } else {
    cut(table, code, lo, left.hi, 0, on_left);
    cut(table, code, right.lo, hi, on_left, parts - on_left);
    table.edges[on_left - 1][code] = static_cast<float>((static_cast<double>(left.hi) + right.lo) / 2);
  }
  return length;
}

// The least magnitude of y, as bits, whose code has at least the magnitude `code`; beyond the infinity's if
// there is none.
template <class F>
OUTGRAD_HD u32 first_magnitude(int code, float scale) {
  u32 below = 0, at = kBeyondInfinity;  // below + 1 or more, and not above `at`
  while (below < at) {
    const u32 middle = below + (at - below) / 2;
    if (fp8_code<F>(float_of(middle), scale).bits >= code) {
      at = middle;
    } else {
      below = middle + 1;
    }
  }
  return at;
}

// What no y of this code changes.
template <class F, int kCodes>
OUTGRAD_HD void clear_code(PartTable<kCodes>& table, int code) {
  const float value = widen(F{static_cast<u8>(code)});
  for (int k = 0; k + 1 < kMostParts; ++k) table.edges[k][code] = float_of(0x7f800000u);
  // NaN for a NaN and for an infinity, which is no code of a y
  for (int k = 0; k < kMostParts; ++k) table.values[k][code] = value - value;
}

// Of the code of magnitudes from `first` to `last`, as bits, and of the code of their negatives, both cleared
// before. Returns the length of their longest part.
template <class S, class F, int kCodes>
OUTGRAD_HD double fill_code(PartTable<kCodes>& table, int code, u32 first, u32 last) {
  const float near = float_of(first), far = float_of(last);
  const int negative = negated<F>(code);
  const double positive_length = negative != code ? cut(table, code, {}, slopes_of<S>(near, far, true)) : 0;
  const double length = cut(table, negative, slopes_of<S>(-far, -near, false),
                            slopes_of<S>(-far, negative != code ? -near : far, true));
  return positive_length < length ? length : positive_length;
}

}  // namespace detail

// The code of the largest number.
template <class F>
OUTGRAD_HD int largest_code() {
  return narrow_saturated<F>(float_of(0x7f800000u)).bits;
}

// The table of S, an Fp8Activation of kernels/catalogue/few_bits.h, for codes in F of the y whose magnitudes,
// as bits, are below `end`; part_bits_hold(bits) and scale_holds(scale).
template <class S, class F, int kCodes>
OUTGRAD_HD void fill_fp8_table(float scale, int bits, PartTable<kCodes>& table, u32 end = kBeyondInfinity) {
  const int largest = largest_code<F>();
  table.bits = bits;
  for (int code = 0; code < kCodes; ++code) detail::clear_code<F>(table, code);
  double widest = 0;
  u32 first = 0;
  for (int code = 0; code <= largest; ++code) {
    const u32 first_of_next = code == largest ? end : detail::first_magnitude<F>(code + 1, scale),
              next = first_of_next < end ? first_of_next : end;
    if (next > first) {
      const double length = detail::fill_code<S, F>(table, code, first, next - 1);
      widest = widest < length ? length : widest;
    }
    first = next;
  }
  table.widest = static_cast<float>(widest);
}

// The proven bound of |what is kept stands for - f'(x)| at the scale that the table was made for.
template <class S, int kCodes>
OUTGRAD_HD double fp8_error(const PartTable<kCodes>& table) {
  return 0.5 * static_cast<double>(table.widest) + S::Header::kRoom;
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
