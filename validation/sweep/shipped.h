// Every backward pass that ships, as the subject of a sweep: the default of each activation and format, and GELU's other fits and direct tables.
//
// GELU's y is made by its own forward kernel; the others have none, and take the correctly rounded f(x). Tables for y in e4m3 and e5m2 are not here: no
// forward stores such y, and `outgrad check` enumerates all of their 256 codes.
#pragma once

#include <string>
#include <vector>

#include "validation/sweep/sweep.h"

namespace outgrad::validation {

struct Shipped {
  const SweptActivation* activation;
  std::string format;
  std::string fit;   // kName of the header
  bool deployed;     // what the plain entry points run, or what stands for the activation and format where there are none
  Subject (*make)();
};

/// In the order of swept_activations(), then f32, f16, bf16, then the deployed one first.
const std::vector<Shipped>& shipped();

}  // namespace outgrad::validation
