// The host kernels as this build deploys them: in the schedule, and GELU in the fit, that the tuned header chooses.
//
// Only deployed.cpp instantiates them, because compiling all of them takes half a minute.
#pragma once

#include <optional>
#include <string>

#include "autotune/arguments.h"
#include "autotune/problem.h"
#include "kernels/accuracy.h"

namespace outgrad::autotune {

// What was chosen for a problem, and on which rung of the tuner's ladder it was found; `fit` is empty for a norm.
struct Deployed {
  std::string variant, rung;
  kernels::FitClaims fit{};
};
Deployed deployed(const Problem& problem);

// Runs the chosen kernel. Throws what the kernel throws.
void run_deployed(const Problem& problem, const Arguments& arguments);

// The activations of the catalogue (kernels/activations.h) beside GELU, by their places there. They come from the compiled library (kernels/c/), which an
// OUTGRAD_LIBRARY=OFF build lacks.
struct DeployedActivation {
  bool masked;
  std::string instruction_set;
  kernels::FitClaims fit;
};
// Nothing in a build without the library.
std::optional<DeployedActivation> deployed_activation(int activation, FormatId format);
// Runs the problem's forward or backward. The mask of an activation that rises is not used. Throws SpecError with the library's message.
void run_deployed_activation(int activation, const Problem& problem, const Arguments& arguments);

}  // namespace outgrad::autotune
