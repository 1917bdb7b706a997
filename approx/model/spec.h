/// What to fit, as users write it: approx/specs/*.json, schema "outgrad.spec/2".
#pragma once

#include "approx/model/fit_model.h"

#include <optional>
#include <string>
#include <variant>

namespace outgrad::approx {

/// Left segment, in y: |y| < 2^edge_log2 in octaves, each cut into 2^(octave_bits - 1) rows, the
/// `half_octaves` topmost into twice as many; everything below 2^merge_log2 in one row.
struct LeftSegment {
  /// Of edge_log2. At the least, all that counts octaves stays positive, whatever the other members.
  static constexpr int kLeastEdge = -60, kGreatestEdge = 6;
  int edge_log2, half_octaves, merge_log2, octave_bits = 1;
  [[nodiscard]] int rows() const {
    return 1 + ((edge_log2 - merge_log2 + half_octaves) << (octave_bits - 1));
  }
};

enum class Split {
  uniform,   ///< cells of equal width in s (or y), found by one fused step
  /// as few rows as the degree and target allow, with levelled errors, found by comparing with break points
  levelled,
};

/// What an accuracy class bounds.
enum class AccuracyClass {
  absolute,  ///< "abs:2^-26": A
  stored,  ///< "stored:1.05": T <= 1.05 O, by the storage intervals
  /// "ulp:1": every |g - middle| <= 1 ulp of the format at the middle, tails included; f32: A + B in ulp of
  /// g >= kUlpFrom
  ulp,
  relative,  ///< "rel:2^-10": |p/g - 1|
  oracle,  ///< "oracle": a direct table of the middles
  rounded,  ///< "rounded", of a forward: y is the correctly rounded f(x) for every x of the format
};

/// What the constants are chosen for. Both count alike: the largest of (T/O - 1)/(ratio - 1) and R/regret is
/// minimised.
struct StorageGoal {
  double ratio;  ///< total error T over the oracle O
  double regret;  ///< distance R to the middle of the interval of true gradients
  /// the rows next to s = 0 are fitted to those intervals, inside the tube |p - g| <= A that the target names
  bool programme;
};

struct BackwardSpec {
  Format format;
  Format product = Format::f32;  ///< f16, bf16: y is the quotient of a product of that format (ProductBall)
  AccuracyClass accuracy = AccuracyClass::absolute;
  Format entries = Format::f16;  ///< a direct table's
  int degree = 0;
  int scheme = kernels::kHorner;
  bool centred = true;
  bool anchored = true;  ///< g is exactly its limit at the ends
  Split split = Split::uniform;
  /// uniform cells in s (or y); 0 of a uniform split: the layout is to be found, and the degree too where it
  /// is 0
  int cells = 0;
  std::optional<float> y_max;  ///< where g has its limit; chosen from the target if absent
  std::optional<float> s_min;  ///< clamp at the left end of s; the deployed s of y = -0 if absent
  std::optional<LeftSegment> left;
  std::optional<double> right_from;  ///< s from which rows are polynomials in y
  bool both_sides = false;  ///< and from -right_from downwards
  StorageGoal storage{};
};

struct Cells {
  int degree;
  double cells_per_unit;  ///< a multiple of 1/8
  int rows;
};

struct ForwardSpec {
  Cells core;
  std::optional<Cells> tail;  ///< where f tends to 0 at the left
  bool compensated = false;  ///< core rows by kernels::evaluate_compensated
};

struct RoundedForwardSpec {
  Format format;
  int cells_per_unit, rows, core_rows;
  int quartic_shift;  ///< by how many bits c_3 is shifted up to give c_4
  float x_max;  ///< f(x) rounds to x, or to f's limit, over the cell that ends here, and beyond
  std::optional<float> x_min;  ///< where the rows begin; the last x whose f(x) rounds to its limit if absent
};

/// Codes of f'.
struct CodeSpec {};

struct Fp8Spec {
  std::string code;  ///< name of the code header whose range of f' is used
  std::string fit;  ///< name of the f32 fit whose g is told apart
};

struct Spec {
  std::string name;
  Activation activation;
  std::string accuracy;  ///< class and bound as written, "abs:2^-26"
  /// the bound of the class: of A (of a code: of its g; of 8-bit y: what its parts may exceed), of the
  /// relative error, in ulp, or T/O
  double target;
  std::variant<BackwardSpec, ForwardSpec, RoundedForwardSpec, CodeSpec, Fp8Spec> kind;
  std::string text;  ///< the file as read
  std::string sha256;  ///< the digest of the text

  /// What is wanted, if it is of this kind; else null.
  template <class Kind>
  [[nodiscard]] const Kind* as() const {
    return std::get_if<Kind>(&kind);
  }
  /// @throws std::bad_variant_access for another kind.
  [[nodiscard]] const BackwardSpec& backward() const { return std::get<BackwardSpec>(kind); }
};

/// @throws kernels::SpecError "file: key: why", kernels::IoError.
Spec read_spec(const std::string& path);
/// The same from text; `path` is for messages.
Spec parse_spec(const std::string& text, const std::string& path);

}  // namespace outgrad::approx
