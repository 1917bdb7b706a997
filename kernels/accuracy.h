// What a backward fit's header states of its accuracy, and which fits may stand in another's place where nothing but speed is asked for.
//
// T alone cannot say: next to y* no function of the stored y has less than O, so that max T / max O forgives an error of O everywhere else. A + B bounds the
// error at every real y, R the part of it that the storage of y does not excuse.
#pragma once

#include <limits>

#include "kernels/ladder.h"

namespace outgrad::kernels {

// Upper bounds; infinite where the header states none.
struct FitBounds {
  static constexpr double kNone = std::numeric_limits<double>::infinity();
  double a_plus_b = kNone;  // kA + kB: sup |fp32 value - g| over real y
  double t = kNone;         // kT: sup |value - f'(x)| over all x
  double r = kNone;         // kR: sup |value - middle of the range of f' over all that (y, bit) stands for|
  bool direct = false;      // a table by the bits of y: it approximates nothing between them, so that it has no A and no B
};

// Of a header. The texts are null, and nothing is bounded, where there is no backward fit.
struct FitClaims {
  const char* name = nullptr;
  const char* accuracy = nullptr;  // its class: "abs:2^-26.2"
  FitBounds bounds{};
};

inline namespace OUTGRAD_ABI {

// Of the class rel, kA is relative to g: it bounds no absolute error.
constexpr bool is_relative(const char* accuracy) { return accuracy[0] == 'r' && accuracy[1] == 'e' && accuracy[2] == 'l'; }

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

// Of what a tuned table chooses: a norm's has no fit, and a forward's is nobody's to choose.
template <class Choice>
constexpr FitClaims claims_of_choice() {
  if constexpr (requires { Choice::Fit::kMasked; }) {
    return claims_of<typename Choice::Fit>();
  } else {
    return {};
  }
}

// Whether no bound that the standard has is larger in the fit, or missing. Both are of one activation and format.
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

// What every tuned table keeps to, for a static_assert: it takes no fit along whose proven bounds are larger than the default's, the last choice's,
// unless it says that it was asked to.
template <class Table>
constexpr bool table_is_as_accurate() {
  if constexpr (requires { Table::kAnyAccuracy; }) {
    if (Table::kAnyAccuracy) return true;
  }
  return detail::are_as_accurate_as_the_last(typename Table::Choices{});
}

}  // namespace OUTGRAD_ABI
}  // namespace outgrad::kernels
