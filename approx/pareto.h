/// The Pareto front of an activation and format: which fits no other beats in operations, table bytes, A + B, T and R together.
#pragma once

#include "approx/fit.h"

#include <string>
#include <vector>

namespace outgrad::approx {

struct ParetoPoint {
  std::string spec;  ///< text of its specification, which `outgrad fit` takes as it is
  Fit fit;
  int operations = 0, table_bytes = 0, roots = 0, integer = 0, loads = 0;  ///< operations: arithmetic; of a table the integer ones count instead
  double a_plus_b = 0, total = 0, oracle = 0, regret = 0;
};

/// Fits every candidate layout of the activation (degree, rows, coordinate, scheme, class) and keeps those that none dominates, fewest
/// operations first. Candidates whose target is out of reach drop out. `definition` is a JSON member: "activation": "silu" and the like.
struct ParetoFront {
  std::vector<ParetoPoint> points;
  int tried = 0, unreachable = 0, dominated = 0;
};
ParetoFront pareto_front(const std::string& name, const std::string& definition, Format format, int threads,
                         const std::function<void(int done, int all)>& progress = {});

/// Schema "outgrad.pareto/1".
std::string to_json(const ParetoFront& front, const std::string& activation, Format format);

}  // namespace outgrad::approx
