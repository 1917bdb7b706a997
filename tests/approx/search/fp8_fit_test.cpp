#include "approx/search/fp8_fit.h"

#include "approx/function/composite.h"
#include "approx/model/fit.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "tests/approx/shared.h"
#include "tests/refusal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace outgrad::approx {
namespace {

constexpr const char* kFp8Activations[] = {"gelu", "gelu_tanh", "quick_gelu", "silu", "swish", "mish"};

std::string fp8_spec_text(const std::string& name) {
  return kernels::read_file(kRoot + "/approx/specs/" + name + "_fp8.json");
}

std::string fp8_spec_with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error(from);
  return text.replace(at, from.size(), to);
}

std::string refusal_of_fp8(const std::string& text) {
  return refusal_of([&] {
    const Spec spec = parse_spec(text, "s.json");
    fit_fp8(Composite(spec.activation), spec);
  });
}

TEST(Fp8Fit, GelusBoundsReachTheirGoal) {
  const Fp8Model m = *committed("gelu_fp8").as<Fp8Model>();
  EXPECT_LE(m.e4m3.kT[1], 0.0649);
  EXPECT_LE(m.e4m3.kT[2], 0.0307);
  EXPECT_LE(m.int8.kT[1], 0.1014);
  EXPECT_LE(m.int8.kT[2], 0.0476);
}

/// The derivatives of one sign of y, cut into equal parts.
TEST(Fp8Fit, ThatOfTheSignIsHalfOfTheLongerSide) {
  for (const std::string name : kFp8Activations) {
    const Fit fit = committed(name + "_fp8"), code = committed(name + "_code");
    const Composite composite(parse_spec(fp8_spec_text(name), name).activation);
    const double at_0 = composite.gradient(Ball(0.0), 1)[0].to_double();
    const double longer = std::max(static_cast<double>(code.as<CodeModel>()->kHi) - at_0,
                                   at_0 - static_cast<double>(code.as<CodeModel>()->kLo));
    for (size_t bits = 0; bits < fit.as<Fp8Model>()->kSignT.size(); ++bits) {
      EXPECT_GE(fit.as<Fp8Model>()->kSignT[bits], std::ldexp(longer, -1 - static_cast<int>(bits)) - 0x1p-22)
          << name;
      EXPECT_LE(fit.as<Fp8Model>()->kSignT[bits],
                std::ldexp(longer, -1 - static_cast<int>(bits)) + 2 * fit.as<Fp8Model>()->kRoom)
          << name;
      for (const Fp8Model::Scales* scales : {&fit.as<Fp8Model>()->e4m3, &fit.as<Fp8Model>()->e5m2,
                                             &fit.as<Fp8Model>()->mxfp4, &fit.as<Fp8Model>()->nvfp4}) {
        EXPECT_LE(scales->kT[bits], fit.as<Fp8Model>()->kSignT[bits]) << name;
      }
    }
  }
}

/// Scales at which a code's interval begins at the minimum or a little above it, where f' changes most. With
/// b bits nothing is within less than what the better of two cuts gives there, and the claims are within
/// their room of the largest of these.
TEST(Fp8Fit, TheBoundsAreThoseOfTheLongestIntervalNextToTheMinimum) {
  for (const std::string name : kFp8Activations) {
    const Fp8Model m = *committed(name + "_fp8").as<Fp8Model>();
    const Composite composite(parse_spec(fp8_spec_text(name), name).activation);
    const double y_star = composite.y_star().to_double();
    const auto slope = [&](double y, bool right) {
      return y <= y_star
                 ? 0.0
                 : composite.gradient(composite.enclose_argument_of(Ball(y), right), 1)[0].to_double();
    };
    // What the number needs that comes after `before` numbers of its distance to the next.
    const auto needed = [&](int before, int parts) {
      double most = 0;
      for (int k = before + 1; k < before + 3; ++k) {  // relative to their size the longest
        const double ratio = (2 * k - 1.0) / (2 * k + 1.0);
        for (int step = 0; step < 50; ++step) {
          const double far = y_star * (1 - 4e-4 * step), near = far * ratio;
          const double left = slope(near, false), right = slope(near, true), left_begin = slope(far, false),
                       right_begin = slope(far, true);
          double half = (right - left) / (2 * parts);
          for (int on_left = 1; left_begin < right_begin && on_left < parts; ++on_left) {
            half = std::min(half, std::max((left_begin - left) / (2 * on_left),
                                           (right - right_begin) / (2 * (parts - on_left))));
          }
          most = std::max(most, half);
        }
      }
      return most;
    };
    constexpr double kStep = 1e-4;  // of the scales that are tried
    // e4m3 and e5m2 have the numbers 1 + k/8 and 1 + k/4; of int8 the least whose interval ends at the
    // minimum at a scale of the range.
    const int first = static_cast<int>(std::ceil(static_cast<double>(m.int8.least) * -y_star - 0.5));
    for (const auto& [scales, before] :
         {std::pair{m.e4m3, 8}, std::pair{m.e5m2, 4}, std::pair{m.int8, first - 1}}) {
      for (int bits : {1, 2}) {
        const double least = needed(before, 1 << bits), claim = scales.kT[static_cast<size_t>(bits)];
        EXPECT_GE(claim, least) << name;
        if (name != "mish" && before != first - 1) {  // whose largest code needs most at the largest scale
          EXPECT_LE(claim, least + 2 * m.kRoom + kStep) << name << " " << before << " " << bits;
        }
      }
    }
  }
}

TEST(Fp8Fit, TheExtremaAreThoseOfTheDerivative) {
  for (const std::string name : kFp8Activations) {
    const Fit fit = committed(name + "_fp8");
    const Composite composite(parse_spec(fp8_spec_text(name), name).activation);
    for (const bool right : {false, true}) {
      const auto at =
          static_cast<double>(right ? fit.as<Fp8Model>()->kGreatestAt : fit.as<Fp8Model>()->kLeastAt);
      const double there =
          composite.gradient(composite.enclose_argument_of(Ball(at), right), 1)[0].to_double();
      double extreme = 0;
      for (int i = 0; i < 1000; ++i) {
        const double g =
            composite.gradient(composite.x_star() + Ball((right ? 0.01 : -0.01) * i), 1)[0].to_double();
        extreme = right ? std::max(extreme, g) : std::min(extreme, g);
      }
      EXPECT_GE((right ? 1 : -1) * (there - extreme), -1e-12) << name;
      EXPECT_NEAR(there, extreme, 1e-4) << name;
    }
    EXPECT_LE(fit.as<Fp8Model>()->kRoom, fit.target) << name;
  }
}

TEST(Fp8Fit, RefusesWhatItCannotBound) {
  const std::string text = fp8_spec_text("gelu");
  EXPECT_EQ(refusal_of_fp8(fp8_spec_with(text, "gelu_code", "silu_code")),
            "gelu_fp8: code: 'silu_code' is not the library's, gelu_code");
  EXPECT_EQ(refusal_of_fp8(fp8_spec_with(text, "gelu_f32", "gelu_f32_ulp")),
            "gelu_fp8: fit: 'gelu_f32_ulp' is not the library's f32 fit, gelu_f32");
  EXPECT_NE(refusal_of_fp8(fp8_spec_with(text, "2^-13", "2^-14"))
                .find("target abs:2^-14 is not reached: the fit and its rounding take 2^-13.63"),
            std::string::npos);
  EXPECT_NE(refusal_of_fp8(fp8_spec_with(text, "abs:2^-13", "ulp:1")).find("s.json: target: must be abs"),
            std::string::npos);
  EXPECT_NE(refusal_of_fp8(fp8_spec_with(text, "\"code\"", "\"format\"")).find("s.json: code: is missing"),
            std::string::npos);
  EXPECT_NE(refusal_of_fp8(fp8_spec_with(text, "\"fit\"", "\"format\"")).find("s.json: fit: is missing"),
            std::string::npos);
  EXPECT_NE(refusal_of_fp8(fp8_spec_with(fp8_spec_text("swish"), "1.5", "1.25"))
                .find("swish_f32 is fitted for x*sigmoid(0x1.8p+0*x)"),
            std::string::npos);
  EXPECT_NE(refusal_of_fp8(fp8_spec_with(text, "\"gelu\"", "\"tanh\""))
                .find("no codes of an activation 'tanh' with a minimum"),
            std::string::npos);
}

TEST(Fp8Fit, TheFileHoldsEverything) {
  const std::string text = to_json(committed("mish_fp8"));
  EXPECT_EQ(text, kernels::read_file(kRoot + "/notebooks_data/fits/mish_fp8.json"));
  for (const char* key :
       {"code", "fit", "extrema", "certificate", "G", "least", "T", "int8", "mxfp4", "nvfp4", "sign"}) {
    EXPECT_THROW(fit_from_json(fp8_spec_with(text, fmt::format("\"{}\"", key), "\"other\""), "f.json"),
                 kernels::SpecError)
        << key;
  }
}

}  // namespace
}  // namespace outgrad::approx
