// One function's header as a page or a picture shows it: what was proven of it, and its curves.
#pragma once

#include "kernels/support/result.h"
#include "validation/certificate/header_reader.h"
#include "validation/report/requirements.h"

namespace outgrad::validation {

inline constexpr const char* kOwnSchema = "outgrad.own/1";

/// T, O and R.
Json storage_claims(const StorageClaims& claims);

/// Of a backward header or a direct table: its function, claims and cost; per branch, over y, the g that it
/// computes, the middle of the f' that y stands for, the row, and between what g - f' lies, thinned so that
/// no extreme is lost; and the stored y next to the worst, with the range of f' of each. Of f32, whose y are
/// not enumerated, the curves are samples over x ("sampled"). With `proves`, what check_header finds, too.
/// @throws kernels::SpecError for a header of another kind.
Json own_function(const Header& header, bool proves);

/// The page of a header, or of all headers of a folder, into the folder `out` (empty: beside them). Whether
/// all claims hold. @throws kernels::SpecError, kernels::IoError, kernels::EnvironmentError.
bool report_of_own(const std::string& path, const std::string& out, const kernels::ResultForm& form);

}  // namespace outgrad::validation
