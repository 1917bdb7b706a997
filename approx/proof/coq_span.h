/// The error of a deployed f32 kernel at every fp32 number as files for Coq: for every fp32 y and real x with
/// f(x) = y, |kernel(y, [x >= x*]) - f'(x)| <= A + B + min(K, k / |s|), where s is the coordinate of x.
///
/// The numbers are cut into spans, in which the kernel picks one row; the one next to y* is a span of its
/// own, left and right of x*. A file a span joins the row's theorems
/// of A and B (coq.h) by those of Span.v. Ends of spans are found here by running the kernel; wrong ones make
/// Coq refuse the file.
#pragma once

#include "approx/proof/coq.h"

#include <string>

namespace outgrad::approx::coq {

/// Whether Span.v is about the kernel of a fit: f32 with a mask, a left and a right segment, cells of equal
/// width, centred rows and Horner's scheme.
bool has_spans(const Fit& fit);

/// What proves the theorem NAME_bound over what scripts() writes of all rows: the kernel, a file
/// NAME_span_K_[star_]SIDE.v for each span, and the theorem in NAME_bound.v. Fit: has_spans().
Groups span_scripts(const Fit& fit, const std::string& path);

}  // namespace outgrad::approx::coq
