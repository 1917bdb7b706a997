/// Coefficient headers from fits: deterministic, byte for byte.
#pragma once

#include "approx/model/fit.h"

#include <string>

namespace outgrad::approx {

/// The text of kernels/generated/NAME.h, for a fit stored as `fit_path` (named in the banner's command).
std::string emit_header(const Fit& fit, const std::string& fit_path);

}  // namespace outgrad::approx
