// The formats that typed tests of kernels go through: f32 and bf16, and f16, which takes as long to compile
// and has bf16's code but for its fits and conversions (these are tested by themselves), in a program that is
// run at night.
#pragma once

#include <gtest/gtest.h>

#include "kernels/formats.h"

namespace outgrad::kernels {

#ifdef OUTGRAD_NIGHTLY_FORMAT
inline constexpr bool kAtNight = true;  // every activation in every schedule, where one of a kind is by day
using TestedFormats = testing::Types<F16>;
#else
inline constexpr bool kAtNight = false;
using TestedFormats = testing::Types<float, BF16>;
#endif

// action(T{}) for each of them.
template <class Action>
void in_tested_formats(const Action& action) {
  [&]<class... T>(testing::Types<T...>) { (action(T{}), ...); }(TestedFormats{});
}

}  // namespace outgrad::kernels
