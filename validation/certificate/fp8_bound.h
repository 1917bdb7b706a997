// The claims of a header for y in 8 bits at a scale (kernels/stores/fp8.h), re-proved: where f' has its
// extrema, kRoom, and T over all scales.
//
// Extrema: f' at the y that the header names is within 2^-24 of the bounds of f' on its side. A code whose y
// end between that y and the true extremum then lacks no more than this.
// Room: max(2 E, G) + G and 2^-22 for the rounding of the table's floats, where E = A + B + K of the
// library's f32 fit bounds its error at a stored y (`outgrad check` proves these from its own header), and kG
// that of its g at an x.
// T: a code's rounding interval over the scale is [r v, v] in |y|, where r is the ratio of the interval's
// ends. Codes that differ by a power of two have the same r, so for normal numbers every v > 0 is looked at
// once, whatever the scale. The codes that have no such relatives, those next to 0 and the largest, and all
// of int8, are looked at for the v that their scales give. Over cells of v, halved where needed, f' is
// enclosed over the x of both sides by the inverse of s(x) and the monotone pieces of f', and half of the
// longest part of an equal cut, with the fit's errors, is compared with the claim. Of mxfp4 (y s below 8, all
// scales powers of two) and nvfp4 (y s below 6 17/16) every code is looked at so; those of mxfp4 at each
// scale by itself. In a format with a -0 no code is both of negative and of other y, which bounds T at any
// scale.
#pragma once

#include <vector>

#include "validation/certificate/fitted_gradient.h"
#include "validation/certificate/header_reader.h"
#include "validation/certificate/verdict.h"

namespace outgrad::validation {

/// The library's codes and f32 fit of an activation with a minimum, that these tables are made with; null if
/// there are none.
struct DeployedCodes {
  const char* name;
  const char* fit;
  const char* function;
  double fit_error;  // E
  float t_min;  // of the fit's coordinate
  FittedGradient gradient;
};
const DeployedCodes* deployed_codes(const std::string& activation);

/// `proven` is how far f' at kLeastAt and kGreatestAt is from its bounds, the claim 2^-24.
Finding prove_fp8_extrema(const Fp8Header& h);

/// sup |g - f'(x)| over the finite f32 x. A witness is in x.
Finding prove_fp8_gradient(const Fp8Header& h);

/// `proven` is what kRoom has to hold, given kG.
Finding prove_fp8_room(const Fp8Header& h);

/// T of 0, 1 and 2 bits in a format, "e4m3", "e5m2", "int8", "mxfp4" or "nvfp4", or, for "sign", in any with
/// a -0, given kRoom. Violated where no function of a code and so many bits reaches the claim at some scale;
/// the witness is that scale.
std::vector<Finding> prove_fp8_totals(const Fp8Header& h, const std::string& format);

}  // namespace outgrad::validation
