#include "approx/search/code_fit.h"

#include "approx/function/composite.h"
#include "approx/model/fit.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "tests/approx/shared.h"
#include "tests/refusal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

namespace outgrad::approx {
namespace {

std::string code_spec_text(const std::string& name) {
  return kernels::read_file(kRoot + "/approx/specs/" + name + "_code.json");
}

std::string code_spec_with(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  if (at == std::string::npos) throw std::runtime_error(from);
  return text.replace(at, from.size(), to);
}

std::string own_code_text(const std::string& expression, const std::string& target) {
  return fmt::format(
      R"({{"schema": "outgrad.spec/2", "name": "own_code", "kind": "code", "expression": "{}",
          "target": "abs:{}"}})",
      expression, target);
}

std::string refusal_of_code(const std::string& text) {
  return refusal_of([&] {
    const Spec spec = parse_spec(text, "s.json");
    fit_code(Composite(spec.activation), spec);
  });
}

/// Half a cell of f' by itself is 0.039306, 0.019653, 0.009827 and 0.002457.
TEST(CodeFit, GelusCodesReachTheirGoal) {
  const CodeModel m = *committed("gelu_code").as<CodeModel>();
  EXPECT_LE(m.kT[3], 0.03931);
  EXPECT_LE(m.kT[4], 0.01966);
  EXPECT_LE(m.kT[5], 0.00983);
  EXPECT_LE(m.kT[7], 0.00246);
  EXPECT_LE(m.kDithered[0], 0.2097);
  EXPECT_LE(m.kBias, 0x1p-16);
}

/// The range against a fine grid: f' is inside, and comes within the grid's own resolution of both ends.
TEST(CodeFit, TheRangeIsThatOfTheDerivative) {
  for (const std::string name :
       {"gelu", "gelu_tanh", "quick_gelu", "silu", "swish", "mish", "tanh", "sigmoid", "softplus", "elu"}) {
    const Fit fit = committed(name + "_code");
    const Composite composite(parse_spec(code_spec_text(name), name).activation);
    double least = 1, most = 0;
    for (int i = -3000; i <= 3000; ++i) {
      const double g = composite.gradient(Ball(0.01 * i), 1)[0].to_double();
      least = std::min(least, g), most = std::max(most, g);
    }
    EXPECT_LE(static_cast<double>(fit.as<CodeModel>()->kLo), least) << name;
    EXPECT_GE(static_cast<double>(fit.as<CodeModel>()->kHi), most) << name;
    EXPECT_NEAR(static_cast<double>(fit.as<CodeModel>()->kLo), least, 1e-4) << name;
    EXPECT_NEAR(static_cast<double>(fit.as<CodeModel>()->kHi), most, 1e-4) << name;
    EXPECT_LE(fit.as<CodeModel>()->kG, fit.target) << name;
    for (size_t i = 0; i < fit.as<CodeModel>()->kT.size(); ++i) {
      const double half = (most - least) / std::ldexp(2.0, static_cast<int>(i) + 1);
      EXPECT_GE(fit.as<CodeModel>()->kT[i], half) << name;
      EXPECT_LE(fit.as<CodeModel>()->kT[i], half + fit.as<CodeModel>()->kG + 3e-6) << name;
    }
  }
}

TEST(CodeFit, RefusesWhatItCannotCode) {
  const std::string text = code_spec_text("gelu");
  EXPECT_EQ(refusal_of_code(text), "");
  EXPECT_NE(refusal_of_code(code_spec_with(text, "2^-21.9", "2^-22"))
                .find("target abs:2^-22 is not reached: g is within 2^-21.91 of f'"),
            std::string::npos);
  EXPECT_NE(refusal_of_code(code_spec_with(text, "abs:2^-21.9", "ulp:1")).find("s.json: target: must be abs"),
            std::string::npos);
  EXPECT_NE(
      refusal_of_code(code_spec_with(text, "\"target\"", "\"fit\": \"gelu_f32\",\n  \"target\"")).find("fit"),
      std::string::npos);
  EXPECT_NE(refusal_of_code(code_spec_with(code_spec_text("swish"), "1.5", "1.25"))
                .find("the library's swish is x*sigmoid(0x1.8p+0*x)"),
            std::string::npos);
  EXPECT_NE(
      refusal_of_code(own_code_text("x*sigmoid(x)+3*tanh(x)", "2^-20"))
          .find("f' lies in [-0.0614708662, 3.52088213]; codes are for one within +-2 and of a range wider "
                "than 0.125"),
      std::string::npos);
  // Its f' reaches 2, with room for the second witness's enclosure beyond that.
  EXPECT_NE(
      refusal_of_code(own_code_text("tanh(2*x)", "2^-20")).find("f' lies in [0, 2.00000024]; codes are"),
      std::string::npos);
  EXPECT_NE(refusal_of_code(own_code_text("0.1*tanh(x)", "2^-20")).find("f' lies in [0, 0.1"),
            std::string::npos);
  EXPECT_NE(refusal_of_code(own_code_text("sin(x)", "2^-20")).find("several stationary points"),
            std::string::npos);
}

/// For a function of the library that is given as an expression the range is the same, and g is as near as
/// the caller says, though the library's were nearer.
TEST(CodeFit, AnExpressionHasTheCodesOfItsFunctionGivenThePromise) {
  for (const std::string name : {"silu", "softplus", "gelu_tanh"}) {
    const CodeModel known = *committed(name + "_code").as<CodeModel>();
    for (const int bits : {14, 20}) {
      const Spec spec =
          parse_spec(own_code_text(committed(name + "_code").function, fmt::format("2^-{}", bits)), "s.json");
      const CodeModel own = fit_code(Composite(spec.activation), spec);
      EXPECT_EQ(own.kG, std::ldexp(1.0, -bits));
      EXPECT_NEAR(static_cast<double>(own.kLo), static_cast<double>(known.kLo), 0x1p-23) << name;
      EXPECT_NEAR(static_cast<double>(own.kHi), static_cast<double>(known.kHi), 0x1p-23) << name;
      for (size_t i = 0; i < own.kT.size(); ++i)
        EXPECT_NEAR(own.kT[i] - own.kG, known.kT[i] - known.kG, 0x1p-20) << name;
      for (size_t i = 0; i < own.kDithered.size(); ++i)
        EXPECT_NEAR(own.kDithered[i] - own.kG, known.kDithered[i] - known.kG, 0x1p-20) << name;
      EXPECT_NEAR(own.kBias - own.kG, known.kBias - known.kG, 0x1p-22) << name;
    }
  }
}

TEST(CodeFit, TheFileHoldsEverything) {
  const Fit fit = committed("tanh_code");
  const std::string text = to_json(fit);
  EXPECT_EQ(text, kernels::read_file(kRoot + "/notebooks_data/fits/tanh_code.json"));
  for (const char* key : {"range", "certificate"}) {
    EXPECT_THROW(fit_from_json(code_spec_with(text, fmt::format("\"{}\"", key), "\"other\""), "f.json"),
                 kernels::SpecError)
        << key;
  }
}

}  // namespace
}  // namespace outgrad::approx
