/// Codes for f'(x) (kernels/stores/code.h): the range of f', and how far what a code stands for can be from
/// f'(x).
#pragma once

#include "approx/model/fit_model.h"
#include "approx/model/spec.h"

namespace outgrad::approx {

/// The certified range of f', the error of g, and the errors of all codes. g is the library's; of a user's
/// own function it is one that the caller computes, and its error what the target promises.
/// @throws kernels::SpecError where the function is not the library's of that name, f' leaves what a code can
/// hold, or g misses the target.
CodeModel fit_code(const Composite& composite, const Spec& spec);

}  // namespace outgrad::approx
