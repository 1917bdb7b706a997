// The host kernels as this build deploys them: those of the compiled library, or with a local tuned header
// the plain entry points, in the schedule, and GELU in the fit, that it chooses.
//
// Only deployed.cpp instantiates the latter, because compiling all of them takes half a minute.
#pragma once

#include <string>
#include <string_view>

#include "autotune/space/arguments.h"
#include "autotune/space/problem.h"
#include "kernels/accuracy.h"

namespace outgrad::autotune {

// What was chosen for a problem, and on which rung of the tuner's ladder it was found; `fit` is empty for a
// norm.
struct Deployed {
  std::string variant, rung;
  kernels::FitClaims fit{};
};
Deployed deployed(const Problem& problem);

// Runs the chosen kernel. Throws what the kernel throws.
void run_deployed(const Problem& problem, const Arguments& arguments);

// An activation of the catalogue (kernels/activations.h) beside GELU, by its place there: whether it needs a
// mask, and its backward's fit.
struct DeployedActivation {
  bool masked, has_rows;
  kernels::FitClaims fit;
};
DeployedActivation deployed_activation(int activation, FormatId format);
// The place of one of its names.
int activation_named(std::string_view name);
// Runs the problem's forward or backward of it and returns the instruction set. The mask of an activation
// that rises is not used. It comes from the compiled library (kernels/c/): EnvironmentError with its message
// where OUTGRAD_ISA asks for what there is not, SpecError with it otherwise.
std::string run_deployed_activation(int activation, const Problem& problem, const Arguments& arguments);

}  // namespace outgrad::autotune
