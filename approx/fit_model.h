/// The numbers a fit deploys, in the shape that kernels/eval.h evaluates and that the emitted header will have.
#pragma once

#include "approx/piece.h"

#include <string>
#include <vector>

namespace outgrad::approx {

/// Stored formats of activations.
enum class Format { f32, f16, bf16 };
const char* to_string(Format f);
/// Significand bits, the leading one included.
int precision_bits(Format f);

/// Constants and rows of a backward fit; the members have the names of the generated header, so that the one evaluator takes either.
struct BackwardModel {
  Format format = Format::f32;
  int kDegree = 0;
  int kRows = 0;
  float kYHi = 0, kYLo = 0, kTMin = 0;
  float kSMin = 0, kSMax = 0;
  float kIndexScale = 0, kIndexBias = 0;
  bool kHasLeft = false;
  float kLeftY = 0;
  int kLeftRow = 0, kLeftKnee = 0, kLeftBase = 0;
  double kA = 0, kK = 0, kB = 0;
  std::vector<Piece> pieces;  ///< one a row, ascending by row

  /// fma + add + mul from y to g (design: square roots, selects and loads are counted beside).
  [[nodiscard]] int operations() const { return (kYLo != 0.0f ? 2 : 1) + 1 + 1 + kDegree; }
};

/// Constants and rows of a forward fit.
struct ForwardModel {
  float kXStar = 0, kXMin = 0, kXMax = 0, kTailX = 0;
  int kDegree = 0, kRows = 0;
  float kIndexScale = 0, kIndexBias = 0;
  int kTailDegree = 0, kTailRows = 0;
  float kTailIndexScale = 0, kTailIndexBias = 0;
  double kA = 0;
  std::vector<Piece> core, tail;
};

}  // namespace outgrad::approx
