/// The numbers a fit deploys, in the shape that kernels/eval.h evaluates and that the emitted header will
/// have.
#pragma once

#include "approx/function/format.h"
#include "approx/model/piece.h"
#include "kernels/eval.h"

#include <algorithm>
#include <array>
#include <limits>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace outgrad::approx {

/// The worst inputs found for bounds over y, by what the certificate calls the bound: K, B, AB, ulp, T, O, R.
/// Those for A are in the rows.
using FoundInputs = std::map<std::string, Found>;

/// Constants and rows of a backward fit; the members have the names of the generated header, so that the one
/// evaluator takes either.
struct BackwardModel {
  Format format = Format::f32;
  Format product = Format::f32;  ///< f16, bf16: y is the quotient of a product of that format (ProductBall)
  int kDegree = 0;
  int kRows = 0;
  int kScheme = kernels::kHorner;
  bool kCentred = true;
  bool kExactLimits = true;  ///< g is exactly its limit at both ends of the range of y
  bool kMasked = true;
  float kYHi = 0, kYLo = 0, kTMin = 0;
  float kSMin = 0;  ///< masked: least s, without a left segment
  float kYMin = 0;  ///< not masked: least y
  float kYMax = 0;  ///< g has its limit from here on
  bool kHasBreaks = false;
  std::vector<float> breaks;
  float kIndexScale = 0, kIndexBias = 0;
  bool kHasLeft = false;
  float kLeftY = 0;
  int kLeftBits = 1, kLeftRow = 0, kLeftKnee = 0, kLeftBase = 0;
  bool kHasRight = false, kRightBoth = false;
  float kRightS = 0;
  bool kTwoWord = false;  ///< c0 has a low part, the row's last word
  double kA = 0, kK = 0, kB = 0;
  double kAB = 0;  ///< sup over the rows of A + B, both absolute; headers of f32 say it, but in the class rel
  double kUlp = 0;  ///< f32, class ulp: A + B in ulp of g wherever |g| >= kUlpFrom
  double kT = 0, kO = 0, kR = 0;  ///< 16-bit formats, by enumeration; kT and kO of a product, over all reals
  double worst_ulp = 0;  ///< 16-bit formats: regret in ulp of the format at the middle, at worst
  /// T/O and R of the exact g with the chosen constants, next to y*
  double expected_ratio = 0, expected_regret = 0;
  /// storage-aware fits: what the programme reached, and proved that none can
  double programme_reached = 0, programme_dual = 0;
  FoundInputs found;
  std::vector<Piece> pieces;  ///< one a row, ascending by row

  /// What the coordinate takes for y*.
  [[nodiscard]] Ball y_c() const { return Ball(kYHi) + Ball(kYLo); }
  /// The greatest y that a row in y is given: y is held at y_max, which the row's v_hi may be rounded below.
  [[nodiscard]] double greatest_y(const Piece& piece) const {
    return piece.right_tail ? std::max(piece.v_hi, static_cast<double>(kYMax)) : piece.v_hi;
  }
  [[nodiscard]] bool of_product() const { return product != Format::f32; }
  /// Floats in a row: centre, coefficients, low part of c0.
  [[nodiscard]] int words() const { return kDegree + 2 + (kTwoWord ? 1 : 0); }
  [[nodiscard]] float break_at(int k) const { return breaks[static_cast<size_t>(k)]; }
};

/// Least |g| at which the class ulp of an f32 fit counts ulps; below it the ulp of 2^-6 stands for them.
inline constexpr double kUlpFrom = 0x1p-6;

const char* to_string_scheme(int scheme);

/// What a fit costs, counted by running the evaluator on a scalar that counts. `arithmetic` is fma + add +
/// mul from y to g; square roots, selects and comparisons, integer operations of the row index, and table
/// loads are counted beside it.
struct Cost {
  int arithmetic = 0, roots = 0, selects = 0, integer = 0, loads = 0;
  int depth = 0;  ///< the most of all these that stand one behind the other from y to g
  int table_bytes = 0;
  /// All of them together.
  [[nodiscard]] int work() const { return arithmetic + roots + selects + integer + loads; }
};
Cost cost_of(const BackwardModel& model);
/// What a direct table's sequence costs, its bytes aside.
Cost cost_of_direct(bool masked);

/// The coordinate as deployed: s for y >= y* on the branch m (or y, clamped, without a mask).
float deployed_coordinate(const BackwardModel& model, float y, bool m);

/// Which row the deployed sequence picks, and what it evaluates the row's polynomial at.
kernels::Place<kernels::FloatOps> deployed_place(const BackwardModel& model, float y, bool m);

/// g as deployed, for a finished model.
float deployed_gradient(const BackwardModel& model, float y, bool m);

/// Constants and rows of a forward fit.
struct ForwardModel {
  bool kMasked = true, kLevels = false, kCompensated = false;
  float kXStar = 0, kXMin = 0, kXMax = 0;
  float kTailX = 0;  ///< 0: no tail
  float kSlopeLow = 0;
  int kDegree = 0, kRows = 0;
  float kIndexScale = 0, kIndexBias = 0;
  int kTailDegree = 0, kTailRows = 0;
  float kTailIndexScale = 0, kTailIndexBias = 0;
  double kA = 0;
  std::vector<Piece> core, tail;
};

/// Constants and rows of a forward fit for one 16-bit format, which rounds f(x) correctly for every x of it:
/// y = x p, p about f(x)/x, or, where f(0) is not 0, y = p.
struct RoundedForwardModel {
  static constexpr int kDegree = 4, kWords = 4;
  Format format = Format::bf16;
  bool kMasked = true, kPlain = false;
  float kXStar = 0, kXMin = 0, kXMax = 0, kTie = 0;
  float kEnd = std::numeric_limits<float>::infinity();  ///< the largest x that enters the result
  float kPull = 0;  ///< not plain: x less kPull |x| is what p's c0 is multiplied by
  int kRows = 0, kCoreFirst = 0, kCoreRows = 0, kQuarticShift = 0;
  float kIndexScale = 0, kIndexBias = 0;
  double kA = 0, kCoreA = 0;
  /// one a row, ascending by row; c_4 is the one that the low bits of c_3 stand for
  std::vector<Piece> pieces;
};

/// Codes for f'(x): members as in the emitted header.
struct CodeModel {
  float kLo = 0, kHi = 0;
  double kG = 0;
  std::array<double, 8> kT{};  ///< exact codes of 1 to 8 bits
  std::array<double, 2> kDithered{};  ///< dithered ones of 2 and 3
  double kBias = 0;
};

/// y in 8 bits at a scale, with 0 to 2 bits beside it: members as in the emitted header.
struct Fp8Model {
  std::string code;  ///< the code header whose range of f' the table is made with
  std::string fit;  ///< the f32 fit that it is made with, and whose g is told apart
  float kLeastAt = 0, kGreatestAt = 0;
  double kG = 0, kRoom = 0;
  /// The scales of a format whose T is claimed: the largest number over them is from 1 to 2^12, 2^26, and 8.
  struct Scales {
    float least, most;
    std::array<double, 3> kT{};  ///< with 0, 1 and 2 bits
  };
  /// The 4-bit formats have m of a block (kernels/stores/fp4.h) whose largest |y| is below 1.
  Scales mxfp4{8, std::numeric_limits<float>::max(), {}},
      nvfp4{5.625f, std::numeric_limits<float>::max(), {}};
  std::array<double, 3> kSignT{};  ///< holds for every format with a -0, at any scale
  Scales e4m3{0x1.cp-4f, 0x1.cp8f, {}}, e5m2{0x1.cp-11f, 0x1.cp15f, {}}, int8{127.0f / 8, 127.0f, {}};
};

/// A direct table; members as in the emitted header. Segments: m = 1 and y's sign clear (upper), m = 1 and
/// set (lower), m = 0 (left).
struct TableModel {
  Format format = Format::bf16, entry_format = Format::f16;
  bool kMasked = true;
  struct Segment {
    int first = 0, last = 0, base = 0;
  };
  Segment upper, lower, left;
  std::vector<std::uint16_t> entries;
  double kT = 0, kO = 0, kR = 0;
  FoundInputs found;

  /// As kernels/direct.h: sign and magnitude (2), the segment's three constants selected by the sign (3) and
  /// by the branch (3), the left segment's end by the sign again (1), clamp and addition (3).
  [[nodiscard]] int index_operations() const { return kMasked ? 12 : 8; }
  [[nodiscard]] float at(std::uint32_t code, bool m) const;
};

}  // namespace outgrad::approx
