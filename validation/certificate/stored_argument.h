// The x behind a stored y. A claim about stored numbers is violated only where such an x shows it: an end of
// an enclosure may be an argument that rounds to another number, or none at all.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "validation/exact/activation.h"

namespace outgrad::validation {

/// The numbers of a format whose y are fp32 numbers (f32, f16, bf16, their parity formats; of mxfp8 those of
/// any scale).
struct StoredGrid {
  int digits, least_exponent;
  bool parity;

  explicit StoredGrid(const std::string& format);
  double spacing(double y) const;
  double nearest(double y) const;
  /// The next number of the grid; in a parity format it belongs to the other branch where y < 0.
  double above(double y) const;
  double below(double y) const { return -above(-y); }
  /// The number y is stored for the f(x) between these.
  std::pair<double, double> range(double y) const;
  /// No f(x) is stored as a number below it.
  double lowest(double y_star) const;
  /// Whether y is stored for an x right (m) or left of the minimum. Of a negative y of parity format the
  /// significand's lowest bit decides.
  enum class Reach { no, unclear, yes };
  Reach reach(double y, bool m, const Interval& y_star) const;
};

/// The x of one side of the minimum (m: right of it, and x* itself) whose f(x) lies between two values and is
/// neither. If f has no minimum: of the whole line.
class StoredArguments {
 public:
  StoredArguments(const Activation& activation, const Formula& formula, bool masked, bool m, double low,
                  double high)
      : activation_(activation), formula_(formula), masked_(masked), m_(m), low_(low), high_(high) {}

  /// f'(x), if x is certainly one of them.
  std::optional<Interval> slope_at(double x) const;
  /// One of them, if bisection finds any.
  std::optional<double> find() const;

 private:
  const Activation& activation_;
  const Formula& formula_;
  bool masked_, m_;
  double low_, high_;
};

/// Whether y is a number of the grid that some x of the branch is certainly stored as, or may be if f has no
/// minimum.
bool is_stored(const Activation& activation, bool masked, const StoredGrid& grid, double y, bool m);
/// So many y that seem to refute a claim are looked at for an x.
inline constexpr int kMostRefutations = 256;
/// An x of the branch that is stored as y: as -0 one with f(x) < 0, as +0 one with f(x) > 0.
std::optional<double> argument_of(const Activation& activation, bool masked, const StoredGrid& grid, double y,
                                  bool m);

}  // namespace outgrad::validation
