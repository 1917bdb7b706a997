// What the device does instead of FloatOps, with the same bits: a square root without range checks, and a
// left segment that needs fewer instructions to find its row, because the fit's constants are known.
//
// The root. Fused multiply-adds refine a seed y0 of 1/sqrt(t) that is within kSeedError (P. Markstein,
// "Computation of elementary functions on the IBM RISC System/6000 processor", IBM J. Res. Dev. 34, 1990). A
// test tries all t of two binades with every float that may be a seed (50,859,330 pairs,
// tests/kernels/root_test.cpp). The coupled two-step form is correctly rounded for all of them. The one-step
// form is correctly rounded except for two pairs, whose t are kOneStepFails. Scaling t by 4 scales every
// intermediate value by a power of two, so two binades stand for all, as long as nothing underflows:
// kLeastRootArgument. A 16-bit y gives only few values of t. If none of them is one of the two, one step is
// enough; one_step_holds decides that for a fit at compile time.
//
// This also compiles on the host, with a seed that the caller provides: tests compare this code with
// FloatOps.
#pragma once

#include "kernels/direct.h"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/table.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// PTX ISA, rsqrt.approx.ftz.f32: maximum relative error 2^-22.9 over the positive finite floats.
inline constexpr double kSeedError = 0x1.125fbee25066ap-23;  // 2^-22.9, rounded up
// The residual t - s^2 is a multiple of about 2^-48 t and must not be subnormal. 2^-64 leaves a margin of 14
// binades.
inline constexpr float kLeastRootArgument = 0x1p-64f;
// In units of 4^k, the two t that have a seed for which one step is an ulp off.
inline constexpr double kOneStepFails[] = {0x1.f82294p+0, 0x1.dd26e4p+1};

template <bool OneStep>
OUTGRAD_HD float root_from_seed(float t, float seed) {
  float s = mul_rn(t, seed);
  float h = mul_rn(seed, 0.5f);
  if constexpr (!OneStep) {
    const float r = fma_rn(-s, h, 0.5f);
    h = fma_rn(h, r, h);
    s = fma_rn(s, r, s);
  }
  return fma_rn(fma_rn(-s, s, t), h, s);
}

// The number of significant bits of a format.
template <class Y>
inline constexpr int kPrecisionOf = 24;
template <>
inline constexpr int kPrecisionOf<F16> = 11;
template <>
inline constexpr int kPrecisionOf<BF16> = 8;
template <>
inline constexpr int kPrecisionOf<F8E4M3> = 4;
template <>
inline constexpr int kPrecisionOf<F8E5M2> = 3;

template <CarriesBranch Y>
inline constexpr int kPrecisionOf<Y> = kPrecisionOf<typename Format<Y>::Carrier>;

OUTGRAD_HD constexpr int smaller(int a, int b) { return a < b ? a : b; }
OUTGRAD_HD constexpr int larger(int a, int b) { return a > b ? a : b; }
OUTGRAD_HD constexpr double absolute(double a) { return a < 0 ? -a : a; }

// The unit in the last place of numbers of `precision` bits at the magnitude of a, which is not 0.
OUTGRAD_HD constexpr double ulp_at(double a, int precision) {
  double power = 1;
  while (power > absolute(a)) power /= 2;
  while (power * 2 <= absolute(a)) power *= 2;
  for (int bit = 1; bit < precision; ++bit) power /= 2;
  return power;
}

// Whether a y of `precision` bits and any exponent may have RN(y - y_hi) = t. Such a y lies within half an
// ulp of t of t + y_hi, and it is a multiple of half its own ulp there (half, because y may be in the binade
// below). All sums are exact in double.
OUTGRAD_HD constexpr bool may_be_reached(double t, double y_hi, int precision) {
  const double y = t + y_hi;
  const double reach = ulp_at(t, 24) / 2;
  if (absolute(y) <= reach) return true;
  const double quantum = ulp_at(y, precision) / 2;
  const double cells = absolute(y) / quantum;  // below 2^(precision + 1): exact, a power of two apart
  const double rest = (cells - static_cast<double>(static_cast<i64>(cells))) * quantum;
  return rest <= reach || quantum - rest <= reach;
}

// Whether one step suffices for every y that Y can store, because none of them gives a t in kOneStepFails.
template <class Fit, class Y>
OUTGRAD_HD constexpr bool one_step_holds() {
  if constexpr (kPrecisionOf<Y> >= 24) {
    return false;
  } else if constexpr (requires { Fit::kYHi; }) {
    if (Fit::kYLo != 0.0f) return false;
    const double last = static_cast<double>(Fit::kYMax) - static_cast<double>(Fit::kYHi);
    for (double t : kOneStepFails) {
      while (t <= last) t *= 4;
      for (; t >= static_cast<double>(Fit::kTMin) / 4; t /= 4) {
        if (may_be_reached(t, Fit::kYHi, kPrecisionOf<Y>)) return false;
      }
    }
    return true;
  } else {
    return false;
  }
}

// The largest magnitude, as a code, that is not a NaN.
template <class Y>
inline constexpr u32 kLargestNumber = 0;
template <>
inline constexpr u32 kLargestNumber<float> = 0x7f800000u;
template <>
inline constexpr u32 kLargestNumber<F16> = 0x7c00u;
template <>
inline constexpr u32 kLargestNumber<BF16> = 0x7f80u;
template <>
inline constexpr u32 kLargestNumber<F8E4M3> = 0x7eu;
template <>
inline constexpr u32 kLargestNumber<F8E5M2> = 0x7cu;

// The first and the last magnitude, as a code, of which a direct table says something.
template <class Fit>
OUTGRAD_HD constexpr int first_magnitude() {
  int first = smaller(Fit::kUpperFirst, Fit::kLowerFirst);
  if constexpr (Fit::kMasked) first = smaller(first, Fit::kLeftFirst);
  return first;
}
template <class Fit>
OUTGRAD_HD constexpr int last_magnitude() {
  int last = larger(Fit::kUpperLast, Fit::kLowerLast);
  if constexpr (Fit::kMasked) last = larger(last, Fit::kLeftLast);
  return last;
}

// A direct table with one segment of the same width for each branch (m, sign of y). Every place holds the
// entry to which the fit's own clamps would lead, so that the index is one clamp and a multiple of the width.
// In its members it is itself a direct table.
template <class Fit, class Y>
struct WideTable : Fit {
  static constexpr int kFirst = first_magnitude<Fit>(), kLast = last_magnitude<Fit>();
  static constexpr int kWidth = kLast - kFirst + 1;
  static constexpr int kEntries = kWidth * (Fit::kMasked ? 4 : 2);

  // kernels/direct.h, evaluate_direct
  static OUTGRAD_HD constexpr Entries<kEntries> entries() {
    constexpr auto kEntriesOfFit = Fit::entries();
    Entries<kEntries> result{};
    for (int branch = 0; branch < kEntries / kWidth; ++branch) {
      const bool negative = branch % 2 != 0, left = Fit::kMasked && branch < 2;
      int first = negative ? Fit::kLowerFirst : Fit::kUpperFirst,
          last = negative ? Fit::kLowerLast : Fit::kUpperLast;
      int base = negative ? Fit::kLowerBase : Fit::kUpperBase;
      if constexpr (Fit::kMasked) {
        if (left)
          first = Fit::kLeftFirst, last = negative ? Fit::kLeftLast : Fit::kLeftFirst, base = Fit::kLeftBase;
      }
      for (int i = 0; i < kWidth; ++i) {
        result.w[branch * kWidth + i] =
            kEntriesOfFit.w[smaller(larger(kFirst + i, first), last) - first + base];
      }
    }
    return result;
  }

  static constexpr int kSignBit = 8 * static_cast<int>(sizeof(Y)) - 1;
  static OUTGRAD_HD u32 magnitude_of(u32 code) { return code & ((1u << kSignBit) - 1); }

  // The place of the entry for the code of y.
  static OUTGRAD_HD u32 index(u32 code, bool m) {
    const int magnitude = static_cast<int>(magnitude_of(code));
    const u32 place = static_cast<u32>(smaller(larger(magnitude, kFirst), kLast) - kFirst) +
                      (code >> kSignBit) * static_cast<u32>(kWidth);
    return Fit::kMasked && m ? place + 2 * static_cast<u32>(kWidth) : place;
  }
};

// Whether a block should hold the wide form. The limit is like kMostSharedBytes in kernels/cuda/tables.cuh.
inline constexpr int kMostWideBytes = 32768;
template <class Fit, class Y>
OUTGRAD_HD constexpr bool is_widened() {
  if constexpr (kIsDirect<Fit>) {
    return WideTable<Fit, Y>::kEntries * static_cast<int>(sizeof(u16)) <= kMostWideBytes;
  } else {
    return false;
  }
}

// The hardware's reciprocal square root, for normal arguments.
struct DeviceSeed {
#ifdef __CUDACC__
  __device__ __forceinline__ float operator()(float t) const {
#ifdef __CUDA_ARCH__
    float seed;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(seed) : "f"(t));
    return seed;
#else
    return t;
#endif
  }
#elif defined(OUTGRAD_GPU_STAND_IN)
  float operator()(float t) const { return stand_in_rsqrt(t); }
#endif
};

// The normal float with these bits, computed by arithmetic: nvcc 13.0 breaks down over __builtin_bit_cast to
// a float in a constant of a template.
OUTGRAD_HD constexpr float constant_of(u32 bits) {
  float value = static_cast<float>((bits & 0x007fffffu) | 0x00800000u);
  int exponent = static_cast<int>(bits >> 23 & 0xffu) - 150;
  for (; exponent > 0; --exponent) value *= 2.0f;
  for (; exponent < 0; ++exponent) value *= 0.5f;
  return bits >> 31 != 0 ? -value : value;
}

OUTGRAD_HD constexpr u32 magnitude_bits(float value) { return __builtin_bit_cast(u32, value) & 0x7fffffffu; }

// Whether v scale + bias is never an odd multiple of a half, for any float v of which an index of `rows` rows
// is taken. If it were, the odd part of scale's significand would have to divide that multiple, which is too
// small for it.
OUTGRAD_HD constexpr bool has_no_ties(float scale, int rows) {
  u32 odd = (__builtin_bit_cast(u32, scale) & 0x007fffffu) | 0x00800000u;
  while (odd % 2 == 0) odd /= 2;
  return odd > 4u * static_cast<u32>(rows);
}

// fma, rounded down.
OUTGRAD_HD float fma_down(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rd(a, b, c);
#else
  const float nearest = fma_rn(a, b, c);
  // c and the result lie in one binade, so their difference is exact. The sign of what then remains of a b is
  // the sign of the rounding error.
  return fma_rn(a, b, sub_rn(c, nearest)) < 0 ? float_of(bits_of(nearest) - 1) : nearest;
#endif
}

// The fit with its rows rotated by kTurn places, so that the rows of a left segment are found without a final
// addition: octave_row's constant becomes a multiple of kRows. Rows in s follow by their bias, which changes
// by the same whole number. RN(v scale + bias) changes with it, except for a tie (ties go to even) and below
// 2^23, where the ulp is a half.
template <class Fit>
struct Turned : Fit {
  static constexpr int kShift = 23 - Fit::kLeftBits;
  // the sign bit of a negative z, as a bit of h
  static constexpr int kSign = 1 << (31 - kShift);
  static constexpr u32 kLargest = (magnitude_bits(Fit::kLeftY) - 1) >> kShift;  // the largest h
  // Whether h stays below the knee, or is the one above it at most; then the knee is a power of two
  // (kLeftBits = 1).
  static constexpr bool kBelowKnee = kLargest <= static_cast<u32>(Fit::kLeftKnee);
  static constexpr bool kOneAbove = Fit::kLeftBits == 1 && kLargest == static_cast<u32>(Fit::kLeftKnee) + 1;
  static constexpr bool kByExponent =
      Fit::kLeftKnee % 2 == 0 && (kBelowKnee || kOneAbove) && 2 * Fit::kLeftBase > Fit::kLeftKnee;
  static constexpr int kOffset = Fit::kLeftRow + Fit::kLeftKnee / 2 - Fit::kLeftBase - kSign / 2;
  // The row by exponent is (the bits of z, which is at most kFirstZ) >> kRowShift, plus kRest. Whole turns
  // are dropped.
  // the least h that has a row of its own
  static constexpr u32 kFirstH = static_cast<u32>(2 * Fit::kLeftBase - Fit::kLeftKnee);
  static constexpr u32 kFirstZ = 0x80000000u | kFirstH << kShift;
  static constexpr int kRowShift = kShift + 1;

  static OUTGRAD_HD constexpr bool can_turn() {
    constexpr double kFirstInteger = 0x1p23;
    return kByExponent && has_no_ties(Fit::kIndexScale, Fit::kRows) &&
           static_cast<double>(Fit::kSMin) * static_cast<double>(Fit::kIndexScale) +
                   static_cast<double>(Fit::kIndexBias) >
               kFirstInteger + 1 &&
           static_cast<double>(Fit::kIndexBias) + 3.0 * Fit::kRows < 2 * kFirstInteger;
  }
  static constexpr int kTurn = can_turn()
                                   ? (kOffset % Fit::kRows + Fit::kRows) % Fit::kRows == 0
                                         ? 0
                                         : Fit::kRows - (kOffset % Fit::kRows + Fit::kRows) % Fit::kRows
                                   : 0;
  static constexpr int kRest = (kOffset + kTurn) % Fit::kRows;
  static constexpr float kIndexBias = Fit::kIndexBias + static_cast<float>(kTurn);
  static constexpr int kLeftRow = (Fit::kLeftRow + kTurn) % Fit::kRows;
  static OUTGRAD_HD constexpr auto table() {
    auto table = Fit::table();
    constexpr auto kTable = Fit::table();
    for (int row = 0; row < Fit::kRows; ++row) {
      for (int word = 0; word < static_cast<int>(sizeof(kTable.w[0]) / sizeof(float)); ++word) {
        table.w[(row + kTurn) % Fit::kRows][word] = kTable.w[row][word];
      }
    }
    return table;
  }
};

// For rows that are held eight times: the share of each of eight blocks in the 128 KiB that an SM has left
// beside an L1 of 32 KiB or more.
inline constexpr int kMostSpreadBytes = 16384;

// The fit with two rows for each octave of its left segment. The half octave above the knee has a row of its
// own; in this form it is found like the others, by z's exponent and the first bit of its fraction. The rows
// in s stand before these rows, and follow by their bias as in Turned.
template <class Fit>
struct Halved : Turned<Fit> {
  using Base = Turned<Fit>;
  static constexpr int kRows = 2 * Fit::kRows, kFirst = static_cast<int>(Base::kFirstH),
                       kLast = static_cast<int>(Base::kLargest);
  static constexpr int kWords = static_cast<int>(sizeof(Fit::table().w[0]) / sizeof(float));
  static constexpr int kSpreadBytes = kRows * ((kWords + 3) / 4) * 16 * 8;
  static OUTGRAD_HD constexpr bool holds() {
    return Base::can_turn() && Base::kOneAbove && kLast - kFirst + 1 + Fit::kLeftRow <= kRows &&
           has_no_ties(Fit::kIndexScale, kRows) && kSpreadBytes <= kMostSpreadBytes;
  }
  static constexpr bool kOneAbove = false;
  static constexpr int kRowShift = Base::kShift, kRest = 0, kLeftRow = kFirst % kRows;
  // The place of the first row in s, which is the row that the fit's own bias gives index 0.
  static constexpr int kTurn = ((kFirst - Fit::kLeftRow) % kRows + kRows) % kRows;
  static constexpr float kIndexBias =
      0x1p23f + static_cast<float>(static_cast<int>(Fit::kIndexBias - 0x1p23f) % Fit::kRows + kTurn);
  static OUTGRAD_HD constexpr Table<kRows, kWords> table() {
    constexpr auto kTable = Fit::table();
    Table<kRows, kWords> table{};
    for (int word = 0; word < kWords; ++word) {
      for (int row = 0; row < Fit::kLeftRow; ++row)
        table.w[(row + kTurn) % kRows][word] = kTable.w[row][word];
      for (int h = kFirst; h <= kLast; ++h)
        table.w[h % kRows][word] =
            kTable.w[Fit::kLeftRow + ((h + larger(h, Fit::kLeftKnee)) >> 1) - Fit::kLeftBase][word];
    }
    return table;
  }
};

// The fit that the device evaluates for a y stored as Y.
template <class Fit, class Y, bool Direct = kIsDirect<Fit>>
struct DeviceFitOf {
  template <bool HasLeft, class Plain>
  struct Choice {
    using Type = Plain;
  };
  template <bool Holds, class Plain>
  struct Left {
    using Type = Turned<Plain>;
  };
  template <class Plain>
  struct Left<true, Plain> {
    using Type = Halved<Plain>;
  };
  template <class Plain>
  struct Choice<true, Plain> {
    using Type = typename Left<Halved<Plain>::holds(), Plain>::Type;
  };
  using Type = typename Choice<Fit::kHasLeft, Fit>::Type;
};
template <class Fit, class Y>
struct DeviceFitOf<Fit, Y, true> {
  template <bool Widened, class Narrow>
  struct Choice {
    using Type = Narrow;
  };
  template <class Narrow>
  struct Choice<true, Narrow> {
    using Type = WideTable<Narrow, Y>;
  };
  using Type = typename Choice<is_widened<Fit, Y>(), Fit>::Type;
};
template <class Fit, class Y>
using DeviceFit = typename DeviceFitOf<Fit, Y>::Type;

// Whether the left segment's polynomial is the same at both zeros. It is, unless a coefficient is -0.
template <class Fit>
OUTGRAD_HD constexpr bool zero_is_harmless() {
  if constexpr (requires { Fit::kLeftRow; }) {
    constexpr auto kTable = Fit::table();
    constexpr u32 kMinusZero = 0x80000000u;
    for (int word = 1; word < static_cast<int>(sizeof(kTable.w[0]) / sizeof(float)); ++word) {
      if (__builtin_bit_cast(u32, kTable.w[Fit::kLeftRow][word]) == kMinusZero) return false;
    }
    return true;
  } else {
    return false;
  }
}

// Whether |v scale| is at most the number of rows, so that no index leaves the room above its place. Of a
// function without a mask that keeps to one side of 0, the cells may lie anywhere.
template <class Fit>
OUTGRAD_HD constexpr bool cells_are_about_zero() {
  if constexpr (requires { Fit::kYMin; }) {
    constexpr auto kMost = static_cast<float>(Fit::kRows);
    return Fit::kMasked || (-Fit::kYMin * Fit::kIndexScale < kMost && Fit::kYMax * Fit::kIndexScale < kMost);
  } else {
    return true;
  }
}

// If the index is found by one addition and by y's exponent, it is produced directly at its place.
template <class Fit, int Place>
OUTGRAD_HD constexpr bool is_placed() {
  if constexpr (Place > 0 && requires { Fit::kIndexScale; }) {
    bool by_exponent = !Fit::kHasLeft;
    if constexpr (requires { Fit::kByExponent; }) by_exponent = Fit::kByExponent && zero_is_harmless<Fit>();
    return by_exponent && !Fit::kHasBreaks && cells_are_about_zero<Fit>() &&
           has_no_ties(Fit::kIndexScale, Fit::kRows);
  } else {
    return false;
  }
}

// The operations of a backward on y stored as Y, for a DeviceFit. A row is an index in the bits from Place
// on. The bits above the table's own bits may hold anything, and `lookup` removes them. For a table that asks
// for a place, this is also true of the bits below.
template <class Fit, class Y, class Seed = DeviceSeed, int Place = 0>
struct GpuOps : FloatOps {
  Seed seed{};

  static constexpr int kPlace = is_placed<Fit, Place>() ? Place : 0;

  // Adding a half and rounding down rounds an index to nearest, because there are no ties. Below the point
  // there are Place bits.
  template <class Any>
  OUTGRAD_HD u32 indexed_row(const Any&, float v) const
    requires(kPlace > 0)
  {
    constexpr float kUnit = static_cast<float>(1 << (23 - kPlace));
    constexpr int kOffset = static_cast<int>(Fit::kIndexBias - 0x1p23f) % Fit::kRows + Fit::kRows;
    return bits_of(fma_down(v, Fit::kIndexScale, kUnit + static_cast<float>(kOffset) + 0.5f));
  }

  // Under a predicate, not selected.
  template <class Any>
  OUTGRAD_HD void take_left(const Any&, bool left, float y, u32& row, float& v) const
    requires(kPlace > 0)
  {
    const u32 own = octave_row(y, 0, 0, 0, 0, 0);
    if (left) {
      row = own;
      v = non_positive(y);
    }
  }

  // For t >= kTMin or NaN: y is clamped, so t is never infinite.
  OUTGRAD_HD float sqrt(float t) const {
    static_assert(Fit::kTMin >= kLeastRootArgument);
    return root_from_seed<one_step_holds<Fit, Y>()>(t, seed(t));
  }

  // min(a, -0) differs from the contract only for a = +0, where it gives -0. In both cases the polynomial is
  // then c0, unless a coefficient is -0, which zero_is_harmless rules out.
  OUTGRAD_HD float non_positive(float a) const {
    if constexpr (zero_is_harmless<Fit>()) {
      return at_most(a, -0.0f);
    } else {
      return FloatOps::non_positive(a);
    }
  }

  OUTGRAD_HD u32 row_index(float q, int) const { return bits_of(q); }

  // For y above kLeftY, or NaN; for other y any row will do. Up to the knee, (h + knee) >> 1 is one shift of
  // z's bits, and the rows' lower limit is a clamp of z. The only h above an even knee is the upper half of a
  // binade whose least magnitude is kKneeY. There 2 |z| - kKneeY is exact and lies in the next binade; below
  // that half it never lies in a higher binade than z.
  OUTGRAD_HD u32 octave_row(float z, int, int, int, int, int) const {
    if constexpr (Fit::kByExponent) {
      if constexpr (Fit::kOneAbove) {
        constexpr float kKneeY = constant_of(static_cast<u32>(Fit::kLeftKnee) << Fit::kShift);
        z = at_most(z, fma_rn(z, 2.0f, kKneeY));
      }
      return (bits_of(at_most(z, constant_of(Fit::kFirstZ))) >> (Fit::kRowShift - kPlace)) +
             (static_cast<u32>(Fit::kRest) << kPlace);
    } else if constexpr (zero_is_harmless<Fit>()) {  // z < 0 or z = -0, so the sign bit is a constant
      constexpr u32 kKnee = static_cast<u32>(Fit::kLeftKnee + Fit::kSign),
                    kBase = static_cast<u32>(Fit::kLeftBase + Fit::kSign);
      const u32 h = bits_of(z) >> Fit::kShift;
      const u32 above = (h + (h > kKnee ? h : kKnee)) >> 1;
      return (above > kBase ? above : kBase) + static_cast<u32>(Fit::kLeftRow) - kBase;
    } else {
      return FloatOps::octave_row(z, Fit::kLeftBits, Fit::kLeftKnee, Fit::kLeftBase, Fit::kLeftRow,
                                  Fit::kRows);
    }
  }

  template <class TableView>
  OUTGRAD_HD float lookup(const TableView& table, u32 row, int word) const {
    if constexpr (Fit::kRows == 1) {
      return table.at(0, word);
    } else if constexpr (kPlace > 0) {
      return table.at_place(row, word);
    } else if constexpr (Fit::kHasBreaks) {
      return table.at(row, word);
    } else {
      return table.at(low_bits(row, Fit::kRows - 1), word);
    }
  }

  // This hides the value from the compiler, which would otherwise shift first and then take the bits, and
  // leave nothing for a shift-and-add instruction.
  OUTGRAD_HD u32 low_bits(u32 row, int bits) const {
#ifdef __CUDA_ARCH__
    u32 low;
    asm("and.b32 %0, %1, %2;" : "=r"(low) : "r"(row), "r"(bits));
    return low;
#else
    return FloatOps::low_bits(row, bits);
#endif
  }
};

// g from the code of y = f(x), y itself, and m: the device's form of evaluate_backward and evaluate_direct.
template <class Fit, class Y, class Ops, class TableView>
OUTGRAD_HD float derivative(const Ops& ops, const TableView& table, u32 code, float y, bool m) {
  using Device = DeviceFit<Fit, Y>;
  if constexpr (is_widened<Fit, Y>()) {
    const float entry = ops.template entry<typename EntryOf<Fit>::Type>(table, Device::index(code, m));
    return Device::magnitude_of(code) > kLargestNumber<Y> ? float_of(kCanonicalNanF32) : entry;
  } else if constexpr (kIsDirect<Fit>) {
    return evaluate_direct<Y>(ops, Fit{}, table, code, y, m);
  } else {
    return evaluate_backward(ops, Device{}, table, y, m);
  }
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
