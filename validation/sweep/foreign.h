// Coefficients that are not ours, as the subject of a sweep: either pieces of g(y, m), or steps of f'(x) that
// are numbered by a code of a few bits. Or else a quantiser of x or y (quantiser.h), which is no function of
// x alone, and is audited by quantiser_audit.h.
//
// validation/README.md documents the file, schema "outgrad.foreign/1". The function is evaluated as its
// publishers do it, as stated in the file: with the same comparisons, the same order of evaluation and the
// same arithmetic. A piecewise function must cover the line. Its pieces are listed from -inf to +inf, each
// begins where the previous one ends, and exactly one of two neighbours includes their common end.
#pragma once

#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "validation/sweep/quantiser.h"
#include "validation/sweep/sweep.h"

namespace outgrad::validation {

inline constexpr const char* kForeignSchema = "outgrad.foreign/1";
// no published table is a hundredth of this size
inline constexpr std::size_t kForeignBytes = std::size_t{1} << 20;
inline constexpr std::size_t kForeignPieces = 256, kForeignCoefficients = 65;

enum class ForeignArithmetic { f32, f32_fma, f64 };
enum class ForeignCoordinate { y, signed_sqrt };
enum class ForeignOrder { horner, estrin };

/// The numbers that are used: rounded to f32 unless the arithmetic is f64.
struct ForeignPiece {
  double to = 0;  // the upper end; +inf for the last piece
  bool includes_to = false;  // whether `to` itself belongs to this piece
  ForeignCoordinate coordinate = ForeignCoordinate::y;
  ForeignOrder order = ForeignOrder::horner;
  double centre = 0;
  std::vector<double> coefficients;  // c0, c1, ...; c0 alone is a constant that takes no operation
};

struct ForeignFunction {
  std::string name;
  const SweptActivation* activation = &kGelu;
  ForeignArithmetic arithmetic = ForeignArithmetic::f32;
  bool steps = false;
  // For steps: pieces of x, each with a constant; the index is the code.
  // For pieces: pieces of y, for m = 0 and m = 1.
  std::array<std::vector<ForeignPiece>, 2> pieces;
  double y_hi = 0, y_lo = 0, t_min = 0;  // for the coordinate signed_sqrt
  double mask_from = 0;  // m = [x >= mask_from], where x is first rounded to the format of y
  bool erff = false;  // y is 0.5 x (1 + erff(x / sqrt 2)), not correctly rounded
  bool nan_passes = true;  // g of a NaN y is NaN; otherwise it is `nan`
  double nan = 0;
  int code_bits = 0;  // for steps
  std::optional<Quantiser> quantiser;  // instead of steps and pieces
  std::vector<std::pair<std::string, double>> claims;  // "T", "T_dx" or "R": the published upper limits
  nlohmann::ordered_json source;

  /// g of n elements.
  void derivative(const float* y, const std::uint32_t* mask, float* g, std::int64_t n) const;
  /// The codes of steps, as f32.
  void codes(const float* x, float* code, std::int64_t n) const;
};

/// Throws kernels::SpecError "file: place: why".
ForeignFunction parse_foreign(const std::string& text, const std::string& file);

/// Name, kind, source and claims, and what the backward pass is given: what a report says of it.
nlohmann::ordered_json origin_of(const ForeignFunction& function);

/// y (or the code's error, for steps) in `format`: dx = RN_format(g) at dy = 1. Not for a quantiser.
Subject make_subject(const ForeignFunction& function, const FloatFormat& format);

}  // namespace outgrad::validation
