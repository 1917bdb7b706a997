// What a backward fit's header states about its accuracy, and which fits may replace another one where only
// speed is asked for.
//
// T alone cannot decide this. Next to y* no function of the stored y has an error below O, so max T / max O
// allows an error of O everywhere else. A + B bounds the error at every real y, and R bounds the part of it
// that the storage of y does not excuse.
#pragma once

#include <limits>

#include "kernels/ladder.h"

namespace outgrad::kernels {

// Upper bounds; infinite where the header states none.
struct FitBounds {
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  double a_plus_b = kNone;  // kA + kB: sup |fp32 value - g| over real y
  double t = kNone;         // kT: sup |value - f'(x)| over all x
  double r = kNone;  // kR: sup |value - middle of the range of f' over all that (y, bit) stands for|
  // a table indexed by the bits of y: it approximates nothing between them, so it has no A and no B
  bool direct = false;
};

// The claims of one header. If there is no backward fit, the texts are null and nothing is bounded.
struct FitClaims {
  const char* name = nullptr;
  const char* accuracy = nullptr;  // the header's accuracy class: "abs:2^-26.2"
  FitBounds bounds{};
};

inline namespace OUTGRAD_ABI {

// In the class rel, kA is relative to g, so it bounds no absolute error.
constexpr bool is_relative(const char* accuracy) {
  return accuracy[0] == 'r' && accuracy[1] == 'e' && accuracy[2] == 'l';
}

template <class Fit>
constexpr FitClaims claims_of() {
  FitClaims claims{Fit::kName, Fit::kClass};
  claims.bounds.direct = requires { Fit::kEntryFormat; };
  if constexpr (requires { Fit::kA + Fit::kB; }) {
    if (!is_relative(Fit::kClass)) claims.bounds.a_plus_b = Fit::kA + Fit::kB;
  }
  if constexpr (requires { Fit::kT; }) claims.bounds.t = Fit::kT;
  if constexpr (requires { Fit::kR; }) claims.bounds.r = Fit::kR;
  return claims;
}

// The claims of a tuned table's choice. A norm has no fit, and a forward's fit is never a choice.
template <class Choice>
constexpr FitClaims claims_of_choice() {
  if constexpr (requires { Choice::Fit::kMasked; }) {
    return claims_of<typename Choice::Fit>();
  } else {
    return {};
  }
}

// Whether the fit has every bound that the standard has, and none is larger. Both are of the same activation
// and format.
constexpr bool is_as_accurate(const FitBounds& fit, const FitBounds& standard) {
  return (fit.direct || fit.a_plus_b <= standard.a_plus_b) && fit.t <= standard.t && fit.r <= standard.r;
}

namespace detail {

template <class... Choice>
constexpr bool are_as_accurate_as_the_last(Choices<Choice...>) {
  const FitBounds all[] = {claims_of_choice<Choice>().bounds...};
  for (const FitBounds& one : all)
    if (!is_as_accurate(one, all[sizeof...(Choice) - 1])) return false;
  return true;
}

}  // namespace detail

// For a static_assert: no tuned table has a fit whose proven bounds are larger than those of the default,
// which is its last choice, unless the table says that it was asked to.
template <class Table>
constexpr bool table_is_as_accurate() {
  if constexpr (requires { Table::kAnyAccuracy; }) {
    if (Table::kAnyAccuracy) return true;
  }
  return detail::are_as_accurate_as_the_last(typename Table::Choices{});
}

}  // namespace OUTGRAD_ABI
}  // namespace outgrad::kernels
