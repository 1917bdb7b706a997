// The formats that typed tests of kernels go through: bf16 by day, f32 and f16, each of which takes as long
// to compile, in programs that are run at night. By day the host's kernels of all formats are compared with
// kernels_fuzz's oracle, and the conversions are tested by themselves.
#pragma once

#include <gtest/gtest.h>

#include "kernels/formats.h"

namespace outgrad::kernels {

#ifdef OUTGRAD_NIGHTLY_FORMAT
inline constexpr bool kAtNight = true;  // every activation in every schedule, where one of a kind is by day
using TestedFormats = testing::Types<float, F16>;
using RowFormats = testing::Types<F16>;
#else
inline constexpr bool kAtNight = false;
using TestedFormats = testing::Types<BF16>;
using RowFormats = testing::Types<float, BF16>;  // of GPUs' norms, which hold f32's rows in another way
#endif

// action(T{}) for each of them.
template <class Action>
void in_tested_formats(const Action& action) {
  [&]<class... T>(testing::Types<T...>) { (action(T{}), ...); }(TestedFormats{});
}

}  // namespace outgrad::kernels
