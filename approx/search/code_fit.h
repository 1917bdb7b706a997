/// Codes for f'(x) (kernels/code.h): the range of f', and how far what a code stands for can be from f'(x).
#pragma once

#include "approx/model/fit_model.h"
#include "approx/model/spec.h"

namespace outgrad::approx {

/// The certified range of f', the error of the library's g, and the errors of all codes.
/// @throws kernels::SpecError where the library has no such activation, the function is another one, or the error of g is above the target.
CodeModel fit_code(const Composite& composite, const Spec& spec);

}  // namespace outgrad::approx
