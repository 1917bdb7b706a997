// Proves A of each row, and hands it to the proof of B, which adds the two at each y.
#include "validation/certificate/row_bound.h"

#include <algorithm>

#include "validation/certificate/fit_bound.h"
#include "validation/certificate/rounding_bound.h"

namespace outgrad::validation {

std::vector<double> row_fit_errors(const BackwardHeader& h) {
  const std::vector<Cell> cells = backward_cells(h);
  std::vector<SupNorm> parts(cells.size());
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < cells.size(); ++i) parts[i] = prove_cell(h, cells[i], h.bound_a);
  std::vector<double> proven(static_cast<size_t>(h.rows), 0.0);
  for (size_t i = 0; i < cells.size(); ++i) {
    double& row = proven[static_cast<size_t>(cells[i].row)];
    row = std::max(row, parts[i].proven);
  }
  return proven;
}

std::vector<Finding> prove_row_claims(const BackwardHeader& h) {
  const std::vector<double> fit_errors = row_fit_errors(h);
  std::vector<Finding> findings{prove_rows(h, fit_errors, RowMeasure::sum, h.bound_ab)};
  findings.back().name = "A + B";
  if (h.two_word) {
    findings.push_back(prove_rows(h, fit_errors, RowMeasure::ulps, h.bound_ulp));
    findings.back().name = "(A + B) / ulp";
  }
  return findings;
}

}  // namespace outgrad::validation
