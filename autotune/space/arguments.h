// The one type of function that every compiled variant is.
#pragma once

#include "kernels/host/call.h"

namespace outgrad::autotune {

using kernels::Arguments;
using kernels::KernelId;
using kernels::kMostOperands;

inline constexpr float kTunedEps = Arguments{}.eps;

using VariantFunction = void (*)(const Arguments&);

}  // namespace outgrad::autotune
