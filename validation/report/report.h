// The accuracy report: requirements and verdicts, errors kept apart, error curves, LayerNorm channels, tuning, and what others have.
#pragma once

#include <vector>

#include "validation/report/page.h"
#include "validation/report/requirements.h"
#include "validation/report/results.h"

namespace outgrad::validation {

/// The whole report. Every table and plot names the command that makes its figures.
page::Document compose(const Results& results, const std::vector<Requirement>& rows);

}  // namespace outgrad::validation
