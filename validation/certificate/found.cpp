// Computes the error anew at each input that a header states, and compares two decimals.
#include "validation/certificate/found.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "kernels/formats.h"
#include "validation/certificate/coordinate_bound.h"
#include "validation/certificate/deployed.h"
#include "validation/certificate/fit_bound.h"
#include "validation/certificate/rounding_bound.h"
#include "validation/exact/activation.h"
#include "validation/limits.h"

namespace outgrad::validation {
namespace {

// half of the last decimal, and what both sides' own roundings can make of a tie
constexpr double kPrinted = 0.005 + 0x1p-20;
constexpr double kSharp = 1 + 0x1p-10;        // an enclosure wider than that tells no decimals apart

bool is_stored(const std::string& stored, double y) {
  const std::string format = carrier_of(stored);
  const auto number = static_cast<float>(y);
  if (!std::isfinite(y) || static_cast<double>(number) != y) return false;
  if (format == "f16") return kernels::widen(kernels::narrow<kernels::F16>(number)) == number;
  if (format == "bf16") return kernels::widen(kernels::narrow<kernels::BF16>(number)) == number;
  return true;
}

// g at the coordinate that the constants make of y: what the row that y selects stands for.
Interval gradient_of_coordinate(const BackwardHeader& h, float y, bool m) {
  const Activation& activation = activation_of(h.activation, h.function, h.masked);
  const Selection selection = deployed_selection(h, y, m);
  const Interval v = static_cast<double>(selection.v);
  if (!h.masked) {
    const Formula& formula = selection.v < 0 ? activation.formulas().front() : activation.formulas().back();
    return formula.f.at<1>(formula.inverse(v))[1];
  }
  const Interval root =
      selection.coordinate == Coordinate::root ? exact_root(h, y) : sqrt(maximum(v - activation.y_star(), 0));
  return activation.only().f.at<1>(activation.inverse_signed_root(m ? root : -root))[1];
}

double ulp_of(const Interval& g) { return std::ldexp(1.0, std::ilogb(g.mignitude()) - 23); }

// Looks at one input after the other, as far as the first that is not what is stated.
class Inputs {
 public:
  void require(const FoundInput& found, const std::string& bound_name, const std::string& where, double bound,
               const auto& error) {
    if (!found.given || problem_.verdict != Verdict::Holds) return;
    ++inputs_;
    problem_ = found_problem(bound_name, found, where, error(), bound);
  }
  void refuse(const std::string& why) {
    if (problem_.verdict == Verdict::Holds) problem_ = {Verdict::Violated, why};
  }
  std::optional<Finding> finding() const {
    if (problem_.verdict != Verdict::Holds) return Finding{"found", problem_.verdict, 0, 0, problem_.why};
    if (inputs_ == 0) return {};
    return Finding{"found", Verdict::Holds, 0, 0,
                   fmt::format("{} inputs beside the bounds, the error at each is the one stated", inputs_)};
  }

 private:
  int inputs_ = 0;
  FoundProblem problem_;
};

// A at an x: of all rows that x may ask for, or of one alone.
struct Rows {
  int first, last;
  bool left, core;  // which table of a forward header
};

// The inputs of a header's fit.
template <class Header>
class FitInputs : public Inputs {
 public:
  FitInputs(const Header& h, std::vector<Cell> cells) : h_(h), cells_(std::move(cells)) {}

  void require_fit(const FoundInput& found, const std::string& name, double bound, const Rows& rows) {
    require(found, name, fmt::format("x = {:a}", found.at), bound, [&] {
      Interval largest = 0;
      for (const Cell& cell : cells_) {
        if (cell.row < rows.first || cell.row > rows.last || !(cell.left ? rows.left : rows.core)) continue;
        const std::optional<Interval> error = fit_error_at(h_, cell, found.at);
        if (error) largest = maximum(largest, absolute(*error));
      }
      return largest;
    });
  }
  void require_rows(const CoefficientTable& table, bool left, bool core) {
    for (size_t row = 0; row < table.found.size(); ++row) {
      const int number = static_cast<int>(row);
      require_fit(table.found[row], fmt::format("row {}", row), std::exp2(table.log2_fit_errors[row]),
                  {number, number, left, core});
    }
  }

 private:
  const Header& h_;
  std::vector<Cell> cells_;
};

}  // namespace

std::string found_place(const FoundInput& found, bool masked) {
  return fmt::format("y = {:a}", found.at) + (masked ? fmt::format(", m = {:d}", found.m) : "");
}

FoundProblem found_problem(const std::string& bound_name, const FoundInput& found, const std::string& where,
                           const Interval& error, double bound) {
  const double least = std::log2(error.mignitude()), most = std::log2(error.magnitude());
  const bool sharp = error.magnitude() <= error.mignitude() * kSharp,
             other = least > found.log2_error + kPrinted || most < found.log2_error - kPrinted;
  if (other || !sharp) {
    const std::string is = sharp && most > -kInfinity
                               ? fmt::format("2^{:.4f}", most)
                               : fmt::format("in [{:.6g}, {:.6g}]", error.lower(), error.upper());
    return {other ? Verdict::Violated : Verdict::Undecided,
            fmt::format("{}: the error at {} is {}, not 2^{:.2f}", bound_name, where, is, found.log2_error)};
  }
  if (error.mignitude() > bound)
    return {Verdict::Violated,
            fmt::format("{}: the error at {} is 2^{:.4f}, above the bound", bound_name, where, least)};
  return {};
}

std::optional<Finding> prove_found(const BackwardHeader& h) {
  FitInputs inputs(h, backward_cells(h));
  inputs.require_fit(h.found_a, "kA", h.bound_a, {0, h.rows - 1, true, true});
  inputs.require_rows(h.table, true, true);
  const auto at_y = [&](const FoundInput& found, const char* name, double bound, const auto& error) {
    const std::string where = found_place(found, h.masked);
    if (found.given && !is_stored(h.format, found.at))
      return inputs.refuse(fmt::format("{}: {} is no number of {}", name, where, h.format));
    inputs.require(found, name, where, bound, [&] { return error(static_cast<float>(found.at), found.m); });
  };
  const auto off_g = [&](float y, bool m) {
    return Interval(deployed_gradient(h, y, m)) - gradient_of_coordinate(h, y, m);
  };
  at_y(h.found_k, "kK", h.bound_k, [&](float y, bool m) { return coordinate_error_at(h, y, m); });
  at_y(h.found_b, "kB", h.bound_b, [&](float y, bool m) { return rounding_error_at(h, y, m); });
  at_y(h.found_ab, "kAB", h.bound_ab, off_g);
  at_y(h.found_ulp, "kUlp", h.bound_ulp, [&](float y, bool m) {
    const Interval g = gradient_of_coordinate(h, y, m);
    return g.mignitude() >= h.ulp_from ? off_g(y, m) / ulp_of(g) : Interval(0);
  });
  return inputs.finding();
}

std::optional<Finding> prove_found(const ForwardHeader& h) {
  FitInputs inputs(h, forward_cells(h));
  inputs.require_fit(h.found_a, "kA", h.bound_a, {0, std::max(h.rows, h.tail_rows), true, true});
  inputs.require_rows(h.table, false, true);
  inputs.require_rows(h.tail, true, false);
  return inputs.finding();
}

std::optional<Finding> prove_found(const RoundedForwardHeader& h) {
  FitInputs inputs(h, forward_cells(h));
  inputs.require_fit(h.found_a, "kA", h.bound_a, {0, h.rows - 1, true, true});
  inputs.require_fit(h.found_core, "kCoreA", h.bound_core, {h.core_first, h.rows - 1, true, true});
  inputs.require_rows(h.table, true, true);
  return inputs.finding();
}

}  // namespace outgrad::validation
