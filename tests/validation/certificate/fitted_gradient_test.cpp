// What is proven of the g that f32 fits have at an x, against what sweeps have found, and claims that are too
// small.
#include "validation/certificate/fitted_gradient.h"

#include <gtest/gtest.h>

#include <cmath>
#include <variant>

#include "kernels/support/files.h"
#include "validation/certificate/fp8_bound.h"

namespace outgrad::validation {
namespace {

Fp8Header header_of(const std::string& activation) {
  const std::string path = OUTGRAD_SOURCE_DIR "/kernels/generated/" + activation + "_fp8.h";
  return std::get<Fp8Header>(parse_header(kernels::read_file(path), path));
}

Finding finding_at(const Fp8Header& h, double claim) {
  return prove_fitted_gradient(activation_of(h.activation, h.function, true),
                               deployed_codes(h.activation)->gradient, claim);
}

TEST(FittedGradient, AnErrorIsShownByAnX) {
  for (const char* activation : {"gelu", "silu", "gelu_tanh"}) {
    const Fp8Header h = header_of(activation);
    const double claim = h.bound_g * 0.999;
    const Finding finding = finding_at(h, claim);
    EXPECT_EQ(finding.verdict, Verdict::Violated) << activation;
    ASSERT_TRUE(finding.witness) << activation;
    EXPECT_GT(finding.witness->got, claim) << activation;
  }
}

// What is proven lies above what the sweep of gelu_f32 has found over all x, and hardly above.
TEST(FittedGradient, GelusBoundIsThatOfTheSweep) {
  const Fp8Header h = header_of("gelu");
  const Finding finding = finding_at(h, h.bound_g);
  constexpr double kSwept = 3.92636799849701e-05;  // notebooks_data/sweeps/gelu_f32.json: T
  EXPECT_EQ(finding.verdict, Verdict::Holds);
  EXPECT_GE(finding.proven, kSwept);
  EXPECT_LE(finding.proven, kSwept * (1 + 1e-6));
}

// A g that is off far from the minimum, where no x is tried, is not proven by what the fit claims.
TEST(FittedGradient, AFitWithALargerErrorIsNotProven) {
  const Fp8Header h = header_of("gelu");
  FittedGradient fit = deployed_codes("gelu")->gradient;
  fit.bound_ab = static_cast<float>(h.bound_g);
  EXPECT_EQ(prove_fitted_gradient(activation_of(h.activation, h.function, true), fit, h.bound_g).verdict,
            Verdict::Undecided);
}

}  // namespace
}  // namespace outgrad::validation
