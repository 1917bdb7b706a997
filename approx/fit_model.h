/// The numbers a fit deploys, in the shape that kernels/eval.h evaluates and that the emitted header will have.
#pragma once

#include "approx/piece.h"
#include "kernels/eval.h"

#include <cstdint>
#include <string>
#include <vector>

namespace outgrad::approx {

/// Stored formats of activations; e4m3 and e5m2 are the 8-bit ones of the OCP specification (e4m3 has no infinity).
enum class Format { f32, f16, bf16, e4m3, e5m2 };
inline constexpr Format kFormats[] = {Format::f32, Format::f16, Format::bf16, Format::e4m3, Format::e5m2};
const char* to_string(Format f);
/// @throws kernels::SpecError for an unknown name.
Format format_of(const std::string& name);
struct FormatShape {
  int exponent_bits, fraction_bits;
  bool has_infinity;
};
FormatShape shape_of(Format f);
/// Significand bits, the leading one included.
int precision_bits(Format f);
/// The number that `code` stands for; NaN and infinities as such.
double decode(Format f, std::uint32_t code);

/// Constants and rows of a backward fit; the members have the names of the generated header, so that the one evaluator takes either.
struct BackwardModel {
  Format format = Format::f32;
  int kDegree = 0;
  int kRows = 0;
  int kScheme = kernels::kHorner;
  bool kCentred = true;
  bool kExactLimits = true;  ///< g is exactly its limit at both ends of the range of y
  bool kMasked = true;
  float kYHi = 0, kYLo = 0, kTMin = 0;
  float kSMin = 0;           ///< masked: least s, without a left segment
  float kYMin = 0;           ///< not masked: least y
  float kYMax = 0;           ///< g has its limit from here on
  bool kHasBreaks = false;
  std::vector<float> breaks;
  float kIndexScale = 0, kIndexBias = 0;
  bool kHasLeft = false;
  float kLeftY = 0;
  int kLeftBits = 1, kLeftRow = 0, kLeftKnee = 0, kLeftBase = 0;
  bool kHasRight = false, kRightBoth = false;
  float kRightS = 0;
  bool kTwoWord = false;     ///< c0 has a low part, the row's last word
  double kA = 0, kK = 0, kB = 0;
  double kAB = 0;            ///< f32 but in the class rel: sup over the rows of A + B
  double kUlp = 0;           ///< f32, class ulp: A + B in ulp of g wherever |g| >= kUlpFrom
  double kT = 0, kO = 0, kR = 0;  ///< 16-bit formats, by enumeration
  std::vector<Piece> pieces;  ///< one a row, ascending by row

  /// Floats in a row: centre, coefficients, low part of c0.
  [[nodiscard]] int words() const { return kDegree + 2 + (kTwoWord ? 1 : 0); }
  [[nodiscard]] float break_at(int k) const { return breaks[static_cast<size_t>(k)]; }
};

/// Least |g| at which the class ulp of an f32 fit counts ulps; below it the ulp of 2^-6 stands for them.
inline constexpr double kUlpFrom = 0x1p-6;

const char* to_string_scheme(int scheme);

/// What a fit costs, counted by running the evaluator on a scalar that counts. `arithmetic` is fma + add + mul from y to g; square roots,
/// selects and comparisons, integer operations of the row index, and table loads are counted beside it.
struct Cost {
  int arithmetic = 0, roots = 0, selects = 0, integer = 0, loads = 0;
  int depth = 0;  ///< the most of all these that stand one behind the other from y to g
  int table_bytes = 0;
  /// All of them together.
  [[nodiscard]] int work() const { return arithmetic + roots + selects + integer + loads; }
};
Cost cost_of(const BackwardModel& model);
/// Of a direct table's sequence, its bytes aside.
Cost cost_of_direct(bool masked);

/// Of the deployed coordinate: s for y >= y* on the branch m (or y, clamped, without a mask).
float deployed_coordinate(const BackwardModel& model, float y, bool m);

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

/// Constants and rows of a forward fit for one 16-bit format, which rounds f(x) correctly for every x of it: y = x p, p about f(x)/x.
struct RoundedForwardModel {
  static constexpr int kDegree = 4, kWords = 4;
  Format format = Format::bf16;
  float kXStar = 0, kXMin = 0, kXMax = 0, kTie = 0;
  int kRows = 0, kCoreFirst = 0, kCoreRows = 0, kQuarticShift = 0;
  float kIndexScale = 0, kIndexBias = 0;
  double kA = 0, kCoreA = 0;
  std::vector<Piece> pieces;  ///< one a row, ascending by row; c_4 is the one that the low bits of c_3 stand for
};

}  // namespace outgrad::approx
