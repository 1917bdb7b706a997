// Fits with made-up coefficients, shaped like the generated ones: they exercise every path of the evaluators
// without being accurate. Only the rows at the ends hold what the kernels' contract asks of a fit: g = 1 at
// kYMax, g = 0 at y = -0, f(-0) = -0.
#pragma once

#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/table.h"

namespace outgrad::kernels::synthetic {

// Uniform in [-1, 1), a different value for every (row, word): a lookup of the wrong cell changes the result.
OUTGRAD_HD constexpr float coefficient(int row, int word) {
  u32 state = static_cast<u32>(row * 64 + word) * 2654435761u + 12345u;
  state ^= state >> 15;
  state *= 2246822519u;
  state ^= state >> 13;
  return static_cast<float>(static_cast<i32>(state >> 8) - (1 << 23)) * 0x1p-23f;
}

template <int Rows, int Words>
OUTGRAD_HD constexpr Table<Rows, Words> table_of_coefficients() {
  Table<Rows, Words> table{};
  for (int row = 0; row < Rows; ++row) {
    for (int word = 0; word < Words; ++word) table.w[row][word] = coefficient(row, word);
  }
  return table;
}

// A row that gives exactly `value` at its centre.
template <int Rows, int Words>
OUTGRAD_HD constexpr void pin(Table<Rows, Words>& table, int row, float centre, float value) {
  table.w[row][0] = centre;
  table.w[row][1] = value;
}

// What every backward fit here has unless it says otherwise; members for parts that a fit lacks are absent,
// as in generated headers.
template <int Rows, int Degree, int Scheme = kHorner, bool Centred = true>
struct Common {
  static constexpr const char* kActivation = "gelu";
  static constexpr const char* kFormat = "bf16";
  static constexpr int kDegree = Degree;
  static constexpr int kRows = Rows;
  static constexpr int kScheme = Scheme;
  static constexpr bool kCentred = Centred;
  static constexpr bool kMasked = true;
  static constexpr bool kHasBreaks = false;
  static constexpr bool kHasLeft = false;
  static constexpr bool kHasRight = false;
  static constexpr float kYHi = -0x1.5c1a2cp-3f;  // near GELU's minimum
  static constexpr float kSAtEnd = 0x1.7p+1f;
  // y - kYHi rounds to kSAtEnd^2, whose root is exact
  static constexpr float kYMax = kSAtEnd * kSAtEnd + kYHi;
  static OUTGRAD_HD constexpr Table<Rows, Degree + 2> table() {
    return table_of_coefficients<Rows, Degree + 2>();
  }
};

// Like the f32 fit: y* in two floats, 32 rows of degree 6, a left segment indexed by octaves of y.
struct WithLeft : Common<32, 6> {
  static constexpr const char* kName = "synthetic_left";
  static constexpr const char* kFormat = "f32";
  static constexpr float kYLo = 0x1.2p-29f;
  static constexpr float kTMin = 0x1p-30f;
  static constexpr float kSMin = -0x1.8p-2f;
  static constexpr float kIndexScale = 0x1.4p+2f;
  static constexpr float kIndexBias = 0x1p+23f + 3.0f;
  static constexpr bool kHasLeft = true;
  static constexpr float kLeftY = -0x1p-4f;
  static constexpr int kLeftRow = 18;
  static constexpr int kLeftBits = 1;
  static constexpr int kLeftKnee = 240;
  static constexpr int kLeftBase = 232;
  static OUTGRAD_HD constexpr Table<kRows, kDegree + 2> table() {
    Table<kRows, kDegree + 2> table = table_of_coefficients<kRows, kDegree + 2>();
    pin(table, 17, kSAtEnd, 1.0f);  // the cell nearest to 3 + 5 kSAtEnd
    pin(table, kLeftRow, 0.0f, 0.0f);
    return table;
  }
};

// The same with both ends in y.
struct WithLeftAndRight : WithLeft {
  static constexpr const char* kName = "synthetic_left_right";
  static constexpr bool kHasRight = true;
  static constexpr float kRightS = 0x1.8p-2f;
};

// Two words in c0, both sides of the core in y, octaves in quarters.
struct TwoWord : WithLeftAndRight {
  static constexpr const char* kName = "synthetic_two_word";
  static constexpr bool kTwoWord = true;
  static constexpr bool kRightBoth = true;
  static constexpr float kRightS = 0x1p-3f;
  static constexpr int kLeftBits = 2;
  static constexpr int kLeftKnee = 484;
  static constexpr int kLeftBase = 476;
  static OUTGRAD_HD constexpr Table<kRows, kDegree + 3> table() {
    Table<kRows, kDegree + 3> table = table_of_coefficients<kRows, kDegree + 3>();
    table.w[17][kDegree + 2] = table.w[kLeftRow][kDegree + 2] = 0.0f;
    pin(table, 17, kSAtEnd, 1.0f);
    pin(table, kLeftRow, 0.0f, 0.0f);
    return table;
  }
};

// Like the 16-bit fits: y_c is one float, no left segment.
template <int Rows, int Degree, int Scheme = kHorner, bool Centred = true>
struct WithoutLeft : Common<Rows, Degree, Scheme, Centred> {
  using Base = Common<Rows, Degree, Scheme, Centred>;
  static constexpr const char* kName = "synthetic";
  static constexpr const char* kClass = "abs:2^-1";
  static constexpr float kYLo = 0.0f;
  static constexpr float kTMin = 0x1p-12f;
  static constexpr float kSMin = -0x1.ap-2f;
  static constexpr float kIndexScale = 0x1.2p+1f;
  static constexpr float kIndexBias = 0x1p+23f + 1.0f;
  static OUTGRAD_HD constexpr Table<Rows, Degree + 2> table() {
    Table<Rows, Degree + 2> table = table_of_coefficients<Rows, Degree + 2>();
    pin(table, 7, Base::kSAtEnd, 1.0f);  // the cell nearest to 1 + 2.25 kSAtEnd
    pin(table, 0, kSMin, 0.0f);  // ... and to 1 + 2.25 kSMin
    return table;
  }
};

// Rows from break points of s, not evenly spaced and not a power of two of them, the last ones in y.
template <int Rows, int Degree, int Scheme = kHorner>
struct WithBreaks : Common<Rows, Degree, Scheme> {
  static constexpr const char* kName = "synthetic_breaks";
  static constexpr float kYLo = 0.0f;
  static constexpr float kTMin = 0x1p-12f;
  static constexpr float kSMin = -0x1.ap-2f;
  static constexpr bool kHasBreaks = true;
  static constexpr bool kHasRight = true;
  static constexpr float kRightS = 0x1.8p-1f;
  static OUTGRAD_HD constexpr float break_at(int k) {
    const float share = static_cast<float>(k + 1) / Rows;
    return kSMin + 3.0f * share * share;
  }
};

// One polynomial over both branches, in s itself: no row, no centre, no select.
template <int Degree, int Scheme = kHorner>
struct OneRow : Common<1, Degree, Scheme, false> {
  static constexpr const char* kName = "synthetic_one_row";
  static constexpr const char* kClass = "abs:2^-1";
  static constexpr float kYLo = 0.0f;
  static constexpr float kTMin = 0x1p-12f;
  static constexpr float kSMin = -0x1.ap-2f;
  static constexpr bool kHasBreaks = true;
};

// An increasing activation: the coordinate is y, and there is no mask.
template <int Rows, int Degree, int Scheme = kHorner>
struct Unmasked {
  static constexpr const char* kName = "synthetic_unmasked";
  static constexpr const char* kActivation = "tanh";
  static constexpr const char* kFormat = "bf16";
  static constexpr int kDegree = Degree;
  static constexpr int kRows = Rows;
  static constexpr int kScheme = Scheme;
  static constexpr bool kCentred = true;
  static constexpr bool kMasked = false;
  static constexpr float kYMin = -1.0f;
  static constexpr float kYMax = 1.0f;
  static constexpr bool kHasBreaks = false;
  static constexpr float kIndexScale = static_cast<float>(Rows / 2 - 1);
  static constexpr float kIndexBias = 0x1p+23f + kIndexScale;
  static constexpr bool kHasLeft = false;
  static constexpr bool kHasRight = false;
  static OUTGRAD_HD constexpr Table<Rows, Degree + 2> table() {
    Table<Rows, Degree + 2> table = table_of_coefficients<Rows, Degree + 2>();
    pin(table, 0, kYMin, 0.0f);
    pin(table, Rows - 2, kYMax, 0.0f);
    return table;
  }
};

// The same far from 0: no cell has 0 for its middle.
struct OnOneSide : Unmasked<16, 4> {
  static constexpr const char* kName = "synthetic_on_one_side";
  static constexpr float kYMin = -28.0f;
  static constexpr float kYMax = -20.0f;
  static constexpr float kFirst = -55;
  static constexpr float kIndexScale = (2 * kFirst + kRows - 1) / (kYMin + kYMax);
  static constexpr float kIndexBias = 0x1p+23f + (kRows - kFirst);
  static OUTGRAD_HD constexpr Table<kRows, kDegree + 2> table() {
    Table<kRows, kDegree + 2> table = table_of_coefficients<kRows, kDegree + 2>();
    pin(table, 0, kYMin, 0.0f);
    pin(table, kRows - 1, kYMax, 1.0f);
    return table;
  }
};

// The segments of a direct table beside the upper one. A header without a mask has no names of a left one.
template <class Y, bool Masked>
struct LowerSegments {
  static constexpr int kLowerFirst = 0;
  static constexpr int kLowerLast = sizeof(Y) == 1 ? 0x22 : 555;
  static constexpr int kLowerBase = 0;
};
template <class Y>
struct LowerSegments<Y, true> : LowerSegments<Y, false> {
  static constexpr int kLeftFirst = sizeof(Y) == 1 ? 5 : 640;
  static constexpr int kLeftLast = sizeof(Y) == 1 ? 0x22 : kLeftFirst + 333;
  static constexpr int kLeftBase = LowerSegments<Y, false>::kLowerLast + 1;
};

// A direct table for a y stored as Y with entries stored as E. The segments have different places and
// lengths, and share no entry; the last code of the last one is the last entry.
template <class Y, class E, bool Masked = true>
struct Direct : LowerSegments<Y, Masked> {
  static constexpr const char* kName = "synthetic_table";
  static constexpr const char* kClass = "oracle";
  static constexpr const char* kActivation = Masked ? "gelu" : "tanh";
  static constexpr const char* kFormat = Format<Y>::kName;
  static constexpr const char* kEntryFormat = Format<E>::kName;
  static constexpr bool kMasked = Masked;
  static constexpr int kUnit = sizeof(Y) == 1 ? 1 : 128;
  static constexpr int kUpperFirst = 8 * kUnit + 3;
  static constexpr int kUpperLast = sizeof(Y) == 1 ? 0x60 : kUpperFirst + 777;
  using Left = LowerSegments<Y, true>;
  static constexpr int kUpperBase = Left::kLeftBase + Left::kLeftLast - Left::kLeftFirst + 1;
  static constexpr int kEntries = kUpperBase + kUpperLast - kUpperFirst + 1;
  // Different for every index up to the clearing of infinities and NaNs.
  static OUTGRAD_HD constexpr u16 entry_at(int index) {
    constexpr int kExponent =
        sizeof(E) == 2 && Format<E>::kCanonicalNan == kCanonicalNanF16 ? 0x7c00 : 0x7f80;
    const int bits = (index + 7) * 40503 & 0xffff;
    return static_cast<u16>((bits & kExponent) == kExponent ? bits ^ 0x4000 : bits);
  }
  static OUTGRAD_HD constexpr Entries<kEntries> entries() {
    Entries<kEntries> entries{};
    for (int i = 0; i < kEntries; ++i) entries.w[i] = entry_at(i);
    return entries;
  }
};

template <int Rows>
struct Forward {
  static constexpr const char* kName = "synthetic_forward";
  static constexpr const char* kActivation = "gelu";
  static constexpr float kXStar = -0x1.80eb3p-1f;
  static constexpr float kXMin = -0x1.cp+3f;
  static constexpr float kXMax = 0x1.6p+2f;
  static constexpr int kDegree = 5;
  static constexpr int kRows = Rows;
  static constexpr float kIndexScale = 0x1p+3f;
  static constexpr float kIndexBias = 0x1p+23f + 16.0f;
  static constexpr float kTailX = -2.0f;
  static constexpr int kTailDegree = 4;
  static constexpr int kTailRows = 256;
  static constexpr float kTailIndexScale = 0x1p+4f;
  static constexpr float kTailIndexBias = 0x1p+23f + 256.0f;
  static OUTGRAD_HD constexpr Table<kRows, kDegree + 2> table() {
    Table<kRows, kDegree + 2> table = table_of_coefficients<kRows, kDegree + 2>();
    pin(table, 16, 0.0f, -0.0f);
    return table;
  }
  // The last word is the power-of-two factor, down to subnormal results.
  static OUTGRAD_HD constexpr Table<kTailRows, kTailDegree + 3> tail() {
    Table<kTailRows, kTailDegree + 3> table = table_of_coefficients<kTailRows, kTailDegree + 3>();
    float factor = 1.0f;
    for (int row = kTailRows - 1; row >= 0; --row) {
      table.w[row][kTailDegree + 2] = factor;
      if (row % 2 == 0) factor *= 0.5f;
    }
    pin(table, 32, kXMin, -1.0f);  // the cell nearest to 256 + 16 kXMin
    table.w[32][kTailDegree + 2] = 0.0f;
    return table;
  }
};

// A forward for T alone. The core reaches to the row of kXMax, as a fit's does: no row right of it is asked
// for.
template <class T, int Rows, int CoreRows>
struct RoundedForward {
  static constexpr const char* kName = "synthetic_rounded_forward";
  static constexpr const char* kActivation = "gelu";
  static constexpr const char* kFormat = Format<T>::kName;
  static constexpr float kXStar = -0x1.80eb3p-1f;
  static constexpr float kIndexScale = 0x1p+2f;
  static constexpr float kIndexBias = 0x1p+23f + 0.75f * Rows;
  static constexpr float kXMin = -0.75f * Rows / kIndexScale;
  static constexpr float kXMax = (0.25f * Rows - 4.0f) / kIndexScale;
  static constexpr float kTie = 0x1p-149f;
  static constexpr int kRows = Rows;
  static constexpr int kCoreFirst = Rows - CoreRows - 3;  // rows of the core wrap round
  static constexpr int kCoreRows = CoreRows;
  static constexpr int kQuarticShift = 17;
  static OUTGRAD_HD constexpr Table<kRows, 4> table() {
    Table<kRows, 4> table = table_of_coefficients<kRows, 4>();
    for (int word = 0; word < 4; ++word) table.w[0][word] = 0.0f;  // -0 at the left end
    for (int row = kCoreFirst + kCoreRows - 1; row < kRows; ++row) {
      for (int word = 0; word < 4; ++word) table.w[row][word] = word == 0 ? 1.0f : 0.0f;
    }
    return table;
  }
};

// One that T can be run with. NVRTC has no std::conditional_t.
template <class T, int Rows, bool Rounded = sizeof(T) == 2>
struct ForwardChoice {
  using Type = Forward<Rows>;
};
template <class T, int Rows>
struct ForwardChoice<T, Rows, true> {
  using Type = RoundedForward<T, Rows, Rows / 2>;
};
template <class T, int Rows>
using ForwardOf = typename ForwardChoice<T, Rows>::Type;

}  // namespace outgrad::kernels::synthetic
