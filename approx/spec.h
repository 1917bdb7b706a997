/// What to fit, as users write it: approx/specs/*.json, schema "outgrad.spec/1".
#pragma once

#include "approx/constants.h"
#include "approx/fit_model.h"

#include <optional>
#include <string>

namespace outgrad::approx {

/// Left segment, in y: |y| < 2^edge_log2 in octaves, the `half_octaves` topmost octaves cut in two, everything below 2^merge_log2 in one row.
struct LeftSegment {
  int edge_log2, half_octaves, merge_log2;
  [[nodiscard]] int rows() const { return 1 + (edge_log2 - merge_log2) + half_octaves; }
};

struct BackwardSpec {
  Format format;
  int degree;
  int root_cells;  ///< uniform cells in s
  std::optional<LeftSegment> left;
  StorageGoal storage;
};

struct Cells {
  int degree, cells_per_unit, rows;
};

struct ForwardSpec {
  Cells core, tail;
};

struct Spec {
  std::string name, activation;
  double target;  ///< for A: absolute (backward), relative (forward)
  std::optional<BackwardSpec> backward;
  std::optional<ForwardSpec> forward;
  std::string text;    ///< the file as read
  std::string sha256;  ///< of the text
};

/// @throws kernels::SpecError "file: key: why", kernels::IoError.
Spec read_spec(const std::string& path);
/// The same from text; `path` is for messages.
Spec parse_spec(const std::string& text, const std::string& path);

/// Lower-case hexadecimal SHA-256.
std::string sha256_hex(const std::string& bytes);

}  // namespace outgrad::approx
