/// The worst input that was found for a bound.
#pragma once

namespace outgrad::approx {

/// The largest error over the inputs that were looked at, and where it is. It proves nothing about other
/// inputs: a bound does, and this says how near to the bound errors really come.
struct Found {
  double error = 0;
  double at = 0;   ///< x of an approximation error, else a stored y
  bool m = true;   ///< the branch of y

  /// Keeps the larger error; of equal ones the first.
  void see(double seen, double where, bool branch = true) {
    if (seen > error) *this = {seen, where, branch};
  }
  void see(const Found& other) { see(other.error, other.at, other.m); }
};

}  // namespace outgrad::approx
