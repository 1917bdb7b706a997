#include "approx/proof/sollya.h"

#include "approx/proof/certificate.h"
#include "approx/proof/witness.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "tests/approx/shared.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <stdexcept>

namespace outgrad::approx {
namespace {

Real x_star() { return Composite(find_activation("gelu")).x_star().mid(); }

class Sollya : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!program_found("sollya")) GTEST_SKIP() << "sollya is not installed";
    // One folder a process: ctest runs these tests side by side.
    folder_ = std::filesystem::path(testing::TempDir()) / ("outgrad_sollya_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  Witnessed judge(const WitnessScript& script) const {
    const std::string path = (folder_ / script.name).string();
    kernels::write_file(path, script.text);
    return run_witness(script, path, kScriptLimit);
  }

 private:
  std::filesystem::path folder_;
};

TEST_P(Sollya, ConfirmsEveryRow) {
  const Fit fit = committed(GetParam());
  for (const WitnessScript& script : witness_scripts(fit, GetParam())) {
    if (program_of(script) != "sollya") continue;
    const Witnessed result = judge(script);
    EXPECT_TRUE(result.proven) << script.name << (result.timed_out ? ": out of time" : "") << "\n"
                               << result.output;
  }
}

INSTANTIATE_TEST_SUITE_P(Committed, Sollya, testing::Values("gelu_bf16", "sigmoid_f32"),
                         [](const auto& fit) { return fit.param; });
INSTANTIATE_TEST_SUITE_P(NightlyCommitted, Sollya,
                         testing::Values("gelu_f32", "gelu_f16", "gelu_bf16_fast", "swish_f16", "elu_f32"),
                         [](const auto& fit) { return fit.param; });

/// The first rows of each kind.
enum class Kind { left_of_minimum, holds_minimum, right_of_minimum, in_y, left_tail };
constexpr Kind kKinds[] = {Kind::left_of_minimum, Kind::holds_minimum, Kind::right_of_minimum, Kind::in_y,
                           Kind::left_tail};

Piece row_of(const Fit& fit, Kind kind) {
  for (const Piece& p : fit.as<BackwardModel>()->pieces) {
    const bool root = p.coordinate == Coordinate::signed_root;
    const Kind side = p.v_hi < 0   ? Kind::left_of_minimum
                      : p.v_lo > 0 ? Kind::right_of_minimum
                                   : Kind::holds_minimum;
    const Kind its = p.left_tail ? Kind::left_tail : root ? side : Kind::in_y;
    if (its == kind) return p;
  }
  throw std::runtime_error("no such row");
}

TEST_F(Sollya, RefusesAClaimTenPercentBelowTheObservedError) {
  const Fit fit = committed("gelu_f32");
  for (const Kind kind : kKinds) {
    Piece piece = row_of(fit, kind);
    piece.certified = 0.9 * piece.observed;
    const Witnessed result = judge(sollya_script(fit.name, fit.function, piece, x_star()));
    EXPECT_FALSE(result.proven) << piece.row;
    EXPECT_NE(result.output.find("FAILED"), std::string::npos) << result.output;
  }
}

TEST_F(Sollya, RefusesAnotherCentre) {
  const Fit fit = committed("gelu_f32");
  for (const Kind kind : kKinds) {
    Piece piece = row_of(fit, kind);
    const double slope = std::abs(static_cast<double>(piece.c[1]));
    piece.centre = std::nextafter(
        static_cast<float>(static_cast<double>(piece.centre) + 4 * piece.certified / slope), 10.0f);
    const Witnessed result = judge(sollya_script(fit.name, fit.function, piece, x_star()));
    EXPECT_FALSE(result.proven) << piece.row << result.output;
    EXPECT_NE(result.output.find("FAILED"), std::string::npos) << result.output;
  }
}

TEST_F(Sollya, RefusesAMinimumThatIsNotOne) {
  const Fit fit = committed("gelu_f32");
  const Witnessed result =
      judge(sollya_script(fit.name, fit.function, row_of(fit, Kind::holds_minimum), x_star() + Real(1e-30)));
  EXPECT_FALSE(result.proven);
  EXPECT_NE(result.output.find("FAILED: the minimum"), std::string::npos) << result.output;
}

TEST_F(Sollya, AScriptWithAnErrorIsNotProvenWhateverItSays) {
  const Fit fit = committed("gelu_f32");
  WitnessScript script = sollya_script(fit.name, fit.function, row_of(fit, Kind::in_y), x_star());
  ASSERT_TRUE(judge(script).proven);
  WitnessScript skipped = script;
  const size_t walk = skipped.text.rfind("cover(");
  skipped.text.replace(walk, 5, "cove_");
  EXPECT_NE(judge(skipped).output.find("FAILED"), std::string::npos);
  script.text.insert(0, "y = = 1;\n");
  const Witnessed result = judge(script);
  EXPECT_NE(result.output.find("PROVEN"), std::string::npos);
  EXPECT_FALSE(result.proven);
}

TEST_F(Sollya, ReadsFunctionsAsWeMeanThem) {
  const auto sigmoid = [](double z) { return 1 / (1 + std::exp(-z)); };
  const auto softplus = [](double z) { return std::log1p(std::exp(z)); };
  constexpr double x = 0.75;
  const std::vector<std::pair<std::string, double>> functions = {
      {"x*normal_cdf(x)", x * 0.5 * std::erfc(-x / std::sqrt(2.0))},
      {"x*sigmoid(1.702*x)", x * sigmoid(1.702 * x)},
      {"x*tanh(softplus(x))", x * std::tanh(softplus(x))},
      {"0.5*x*(1+tanh(sqrt(2/3.14159265358979)*(x+4.4715e-2*x^3)))",
       0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979) * (x + 0.044715 * x * x * x)))},
      {"-x^2*0x1.8p-1+pi/x^-1", -x * x * 0.75 + 3.14159265358979323846 * x},
      {"x*erf(x)-log(1+exp(x))", x * std::erf(x) - std::log(1 + std::exp(x))}};
  for (const auto& [function, value] : functions) {
    Piece piece;
    piece.c = {0, 0};
    piece.v_hi = 1;
    piece.x_lo = 0.5;
    piece.x_hi = 1;
    piece.certified = 1e9;
    WitnessScript script = sollya_script("f", function, piece, Real(0));
    script.text.insert(script.text.find("claim ="), "print(\"f\", mid(evaluate(f, [0.75])));\n");
    const Witnessed result = judge(script);
    // |0 - f'| is below 1e9: the script as such works with this function
    EXPECT_TRUE(result.proven) << result.output;
    ASSERT_TRUE(result.output.starts_with("f ")) << result.output;
    EXPECT_NEAR(std::stod(result.output.substr(2)), value, 1e-14) << function;
  }
}

TEST_F(Sollya, NightlyConfirmsRelativeErrorsToo) {
  // Rows of gelu's in f32 with c0 = 0 at s = 0 or c0 as it is, with the bounds that the fitter certifies for
  // them in relative error.
  const Composite composite(find_activation("gelu"));
  const Fit fit = committed("gelu_f32");
  for (const Kind kind : {Kind::holds_minimum, Kind::right_of_minimum, Kind::in_y}) {
    Piece piece = row_of(fit, kind);
    const int row = piece.row;
    piece.target = Target::gradient_relative;
    if (kind == Kind::holds_minimum) {
      // The odd series of g in s: p = g'(0) s + ..., the fitted coefficients moved to the centre 0.
      const double u = -static_cast<double>(piece.centre);
      std::vector<double> moved(piece.c.begin(), piece.c.end());
      for (size_t from = 0; from + 1 < moved.size(); ++from) {
        for (size_t k = moved.size() - 1; k-- > from;) moved[k] += u * moved[k + 1];
      }
      for (size_t k = 0; k < moved.size(); ++k) piece.c[k] = static_cast<float>(moved[k]);
      piece.centre = 0;
      piece.c[0] = 0;
      piece.anchor = Piece::Anchor{0.0f, 0.0f};
    }
    constexpr double kLoose = 1e-5;
    piece.certified = certify_approximation(composite, piece, kLoose);
    EXPECT_TRUE(judge(sollya_script(fit.name, fit.function, piece, x_star())).proven) << row;
    // Sollya's own interval, well below.
    const Witnessed loose = judge(sollya_script(fit.name, fit.function, piece, x_star()));
    double lower = 0, upper = 0;
    const size_t at = loose.output.find('[');
    ASSERT_NE(at, std::string::npos) << loose.output;
    ASSERT_EQ(std::sscanf(loose.output.c_str() + at, "[%lf;%lf]", &lower, &upper), 2) << loose.output;
    piece.certified = 0.9 * lower;
    EXPECT_FALSE(judge(sollya_script(fit.name, fit.function, piece, x_star())).proven) << row;
    piece.observed = upper;
    EXPECT_LE(certify_approximation(composite, piece, 0), 1.02 * upper) << row;  // two provers, one error
    EXPECT_GE(certify_approximation(composite, piece, 0), lower) << row;
  }
}

TEST(SollyaFunction, WritesDecimalsExactly) {
  EXPECT_EQ(sollya_function("x*sigmoid(1.702*x)"), "x*sigmoid((1702/10^3)*x)");
  EXPECT_EQ(sollya_function("1.5e3*x + 0.25"), "(15*10^2)*x + (025/10^2)");
  EXPECT_EQ(sollya_function("0x1.8p-1*x^-2"), "(0x1.8p-1)*x^(-2)");
}

TEST(SollyaFunction, RefusesWhatIsNotAnExpression) {
  for (const char* bad : {"bashexecute(x)", "x;x", "x*\"a\"", "f(x)", "1e", "x*y", "x = 1", "1.e5.5x", "{x}",
                          "x\nx", "1e99999*x"}) {
    EXPECT_THROW(sollya_function(bad), kernels::SpecError) << bad;
  }
}

TEST(Witness, AForwardFitHasNoSuchScripts) {
  EXPECT_THROW(witness_scripts(committed("gelu_forward"), "gelu_forward.json"), kernels::SpecError);
}

}  // namespace
}  // namespace outgrad::approx
