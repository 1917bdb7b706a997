// Every backward pass that ships, as the subject of a sweep: the default of each activation and format,
// GELU's other fits and direct tables, the codes of f'(x), and the fits of a y that carries its branch.
//
// GELU's y comes from its own forward kernel; the others have none and use the correctly rounded f(x). Tables
// for y in e4m3 and e5m2 are not here, because no forward stores such y, and `outgrad check` enumerates all
// of their 256 codes; nor is what is kept in blocks or at a scale (store_subject.h).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "validation/sweep/sweep.h"

namespace outgrad::validation {

struct Shipped {
  const SweptActivation* activation;
  std::string format;
  std::string fit;  // kName of the header
  std::string name;  // of the result: codes, whose header serves all formats, have the format in it too
  // what the plain entry points run; where there are none, what represents the activation and format
  bool deployed;
  bool stores;  // whether what is kept is no y and a bit (store_subject.h)
  std::function<Subject()> make;
};

/// Ordered by swept_activations(), then by f32, f16, bf16; the deployed one comes first.
const std::vector<Shipped>& shipped();

}  // namespace outgrad::validation
