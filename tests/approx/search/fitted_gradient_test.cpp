#include "approx/search/fitted_gradient.h"

#include "approx/model/spec.h"
#include "kernels/activations.h"
#include "kernels/host/errors.h"
#include "kernels/stores/fp8.h"
#include "kernels/support/files.h"
#include "tests/approx/shared.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace outgrad::approx {
namespace {

using SwishFit = kernels::generated::SwishF32;
using SwishForward = kernels::forwards::Swish;

float swish_gradient(float x) {
  return kernels::fitted_gradient<SwishFit, SwishForward>(x, kernels::forward_at<SwishForward>(x));
}

const Composite& swish() {
  static const Composite composite(
      parse_spec(kernels::read_file(kRoot + "/approx/specs/swish_fp8.json"), "swish_fp8.json").activation);
  return composite;
}

FittedGradient swish_fit() {
  return {SwishFit::kAB, static_cast<double>(SwishFit::kYHi) + static_cast<double>(SwishFit::kYLo),
          swish_gradient};
}

/// Many x next to the minimum, where g is furthest from f', and elsewhere: none is beyond the bound, and one
/// comes near it.
TEST(FittedGradient, TheErrorIsWithinTheBoundAndNearIt) {
  const double bound = fitted_gradient_error(swish(), swish_fit());
  EXPECT_EQ(bound, committed("swish_fp8").as<Fp8Model>()->kG);
  double found = 0;
  const auto look = [&](float x) {
    const double truth = swish().gradient(Ball(static_cast<double>(x)), 1)[0].to_double();
    found = std::max(found, std::abs(static_cast<double>(swish_gradient(x)) - truth));
  };
  float up = static_cast<float>(swish().x_star().to_double()), down = up;
  for (int i = 0; i < 2048; ++i) {
    look(up), look(down);
    up = std::nextafter(up, 1.0f), down = std::nextafter(down, -9.0f);
  }
  for (int i = -2000; i <= 2000; ++i) look(0.01f * static_cast<float>(i));
  EXPECT_LE(found, bound);
  EXPECT_GE(found, 0.7 * bound);
}

/// An error of the deployed g next to the minimum is in the bound, and so is the fit's own everywhere.
TEST(FittedGradient, EveryErrorIsInTheBound) {
  FittedGradient off = swish_fit();
  off.gradient = [](float x) { return swish_gradient(x) + 0x1p-8f; };
  EXPECT_GT(fitted_gradient_error(swish(), off), 0x1p-8 - 0x1p-14);
  FittedGradient coarse = swish_fit();
  coarse.error = 0x1p-9;
  EXPECT_GE(fitted_gradient_error(swish(), coarse), 0x1p-9);
  FittedGradient shifted = swish_fit();
  shifted.y_c += 0x1p-12;  // y' is as far from f(x) then, and which x' it belongs to is not decided
  EXPECT_THROW(fitted_gradient_error(swish(), shifted), kernels::SpecError);
}

}  // namespace
}  // namespace outgrad::approx
