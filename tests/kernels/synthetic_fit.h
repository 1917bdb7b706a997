// Fits with made-up coefficients, shaped like the generated ones: they exercise every path of the evaluators without being accurate.
// Only the rows at the ends hold what the kernels' contract asks of a fit: g = 1 at kSMax, g = 0 at y = -0, f(-0) = -0.
#pragma once

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

struct Common {
  static constexpr const char* kActivation = "gelu";
  static constexpr float kYHi = -0x1.5c1a2cp-3f;  // near GELU's minimum
  static constexpr float kSMax = 0x1.7p+1f;
};

// Like the f32 fit: y* in two floats, 32 rows of degree 6, a left segment indexed by octaves of y.
struct WithLeft : Common {
  static constexpr const char* kName = "synthetic_left";
  static constexpr const char* kFormat = "f32";
  static constexpr int kDegree = 6;
  static constexpr int kRows = 32;
  static constexpr float kYLo = 0x1.2p-29f;
  static constexpr float kTMin = 0x1p-30f;
  static constexpr float kSMin = -0x1.8p-2f;
  static constexpr float kIndexScale = 0x1.4p+2f;
  static constexpr float kIndexBias = 0x1p+23f + 3.0f;
  static constexpr bool kHasLeft = true;
  static constexpr float kLeftY = -0x1p-4f;
  static constexpr int kLeftRow = 18;
  static constexpr int kLeftKnee = 240;
  static constexpr int kLeftBase = 232;
  static OUTGRAD_HD constexpr Table<kRows, kDegree + 2> table() {
    Table<kRows, kDegree + 2> table = table_of_coefficients<kRows, kDegree + 2>();
    pin(table, 17, kSMax, 1.0f);  // the cell nearest to 3 + 5 kSMax
    pin(table, kLeftRow, 0.0f, 0.0f);
    return table;
  }
};

// Like the 16-bit fits: y_c is one float, no left segment.
template <int Rows, int Degree>
struct WithoutLeft : Common {
  static constexpr const char* kName = "synthetic";
  static constexpr const char* kFormat = "bf16";
  static constexpr int kDegree = Degree;
  static constexpr int kRows = Rows;
  static constexpr float kYLo = 0.0f;
  static constexpr float kTMin = 0x1p-12f;
  static constexpr float kSMin = -0x1.ap-2f;
  static constexpr float kIndexScale = 0x1.2p+1f;
  static constexpr float kIndexBias = 0x1p+23f + 1.0f;
  static constexpr bool kHasLeft = false;
  static OUTGRAD_HD constexpr Table<kRows, kDegree + 2> table() {
    Table<kRows, kDegree + 2> table = table_of_coefficients<kRows, kDegree + 2>();
    pin(table, 7, kSMax, 1.0f);  // the cell nearest to 1 + 2.25 kSMax
    pin(table, 0, kSMin, 0.0f);  // ... and to 1 + 2.25 kSMin
    return table;
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

}  // namespace outgrad::kernels::synthetic
