/// Layouts of a backward fit's rows: those worth trying, how near to g each comes by a quick look, and which
/// reaches a target at the least cost.
#pragma once

#include "approx/model/spec.h"
#include "approx/search/rounding.h"
#include "kernels/host/errors.h"

#include <string>
#include <vector>

namespace outgrad::approx {

/// Rows of a layout, as members of a specification.
struct Layout {
  int degree;
  std::string rows, suffix;  ///< suffix: of the name
};

/// Layouts that differ in degree alone, from the lowest degree on.
using Ladder = std::vector<Layout>;

/// Those worth trying for a target abs:2^-N.
std::vector<Ladder> absolute_layouts(Format format, const Composite& composite);

/// Samples of a row for a quick look.
inline constexpr int kRoughSamples = 32;

/// Room that a target leaves for the rounding of coefficients.
inline constexpr double kRoomOfTarget = 1.2;

/// No target lies below: nothing there counts, and the sampled level of an exact polynomial is noise.
inline constexpr double kNoise = 0x1p-45;

/// A few samples of g in each row of a model, by which the least A that a degree reaches is told to within
/// some percent.
class LayoutSamples {
 public:
  LayoutSamples(const Composite& composite, const BackwardModel& model);
  /// The rounding of coefficients aside.
  [[nodiscard]] double level(int degree) const;

 private:
  const BackwardModel& model_;
  std::vector<Samples> samples_;  ///< row by row; a constant one has none
};

/// A target that no layout reaches, while one reaches another.
struct OutOfReach : kernels::SpecError {
  OutOfReach(const std::string& why, double reached) : SpecError(why), reaches(reached) {}
  double reaches;  ///< to two decimals of its logarithm, rounded up
};

/// The layouts by which a target abs:2^-N can be reached, cheapest first, of the specification's degree where
/// it names one: as texts of members, "degree": 3, "cells": 16. Quick looks tell; a fit has the last word.
/// @throws OutOfReach "target: why" with a target that one of the layouts reaches, where none reaches this
/// one; kernels::SpecError where none can be fitted at all.
std::vector<std::string> layouts_within(const Composite& composite, const Spec& spec);

/// A specification with this layout in place of its own, if it has one.
Spec with_layout(const Spec& spec, const std::string& layout);

/// What turns a specification into with_layout's, in words: the members to write and, after "without", the
/// keys that must go.
std::string layout_in_place(const Spec& spec, const std::string& layout);

}  // namespace outgrad::approx
