#include "approx/proof/gappa.h"

#include "approx/proof/certificate.h"
#include "approx/proof/witness.h"
#include "kernels/support/files.h"
#include "tests/approx/shared.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <stdexcept>

namespace outgrad::approx {
namespace {

/// For scripts that must fail: Gappa searches on for long when it finds no proof.
constexpr double kPatience = 8;

class Gappa : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!program_found("gappa")) GTEST_SKIP() << "gappa is not installed";
    // One folder a process: ctest runs these tests side by side.
    folder_ = std::filesystem::path(testing::TempDir()) / ("outgrad_gappa_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  Witnessed judge(const WitnessScript& script, double limit_s = kScriptLimit) const {
    const std::string path = (folder_ / script.name).string();
    kernels::write_file(path, script.text);
    return run_witness(script, path, limit_s);
  }
  void expect_proven(const std::vector<WitnessScript>& scripts) const {
    ASSERT_FALSE(scripts.empty());
    for (const WitnessScript& script : scripts) {
      const Witnessed result = judge(script);
      EXPECT_TRUE(result.proven) << script.name << (result.timed_out ? ": out of time" : "") << "\n"
                                 << result.output;
    }
  }

 private:
  std::filesystem::path folder_;
};

TEST_P(Gappa, ProvesEveryRow) {
  const Fit fit = committed(GetParam());
  double worst = 0;
  for (const Piece& piece : fit.as<BackwardModel>()->pieces) {
    expect_proven(gappa_scripts(fit.name, *fit.as<BackwardModel>(), piece));
    worst = std::max(worst, piece.evaluation);
  }
  EXPECT_EQ(worst, fit.as<BackwardModel>()->kB);
}

INSTANTIATE_TEST_SUITE_P(Committed, Gappa, testing::Values("gelu_bf16", "sigmoid_f32"),
                         [](const auto& fit) { return fit.param; });
INSTANTIATE_TEST_SUITE_P(NightlyCommitted, Gappa,
                         testing::Values("gelu_f32", "gelu_f16", "gelu_bf16_fast", "swish_f16", "elu_f32"),
                         [](const auto& fit) { return fit.param; });

/// The first row in a coordinate that lies right of 0 in s, or holds no 0 in y.
const Piece& row_in(const Fit& fit, Coordinate coordinate) {
  for (const Piece& p : fit.as<BackwardModel>()->pieces) {
    if (p.coordinate == coordinate && p.v_lo * p.v_hi > 0 &&
        (p.v_lo > 0 || coordinate == Coordinate::identity))
      return p;
  }
  throw std::runtime_error("no such row");
}

TEST_F(Gappa, NightlyDoesNotProveHalfTheBound) {
  const Fit fit = committed("gelu_f32");
  for (const Coordinate coordinate : {Coordinate::identity, Coordinate::signed_root}) {
    Piece piece = row_in(fit, coordinate);
    piece.evaluation /= 2;
    EXPECT_FALSE(judge(gappa_scripts(fit.name, *fit.as<BackwardModel>(), piece).front(), kPatience).proven)
        << piece.row;
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST_F(Gappa, DoesNotProveADeployedCoefficientThatIsNotThePolynomials) {
  const Fit fit = committed("gelu_f32");
  const Piece& piece = row_in(fit, Coordinate::identity);
  Piece other = piece;
  other.c[0] = static_cast<float>(static_cast<double>(piece.c[0]) + 4 * piece.evaluation);
  ASSERT_NE(other.c[0], piece.c[0]);
  WitnessScript script = gappa_scripts(fit.name, *fit.as<BackwardModel>(), piece).front();
  const std::vector<std::string> mine = lines_of(script.text),
                                 theirs = lines_of(
                                     gappa_scripts(fit.name, *fit.as<BackwardModel>(), other).front().text);
  ASSERT_EQ(mine.size(), theirs.size());
  // The computed polynomial, and the real one at the computed u, with the other coefficient; the real one
  // throughout with the true.
  std::string altered, without_identity;
  int exchanged = 0;
  for (size_t i = 0; i < mine.size(); ++i) {
    const bool exchange = mine[i] != theirs[i] && (mine[i].starts_with('q') || mine[i].starts_with('M'));
    exchanged += exchange ? 1 : 0;
    const std::string line = (exchange ? theirs[i] : mine[i]) + "\n";
    altered += line;
    if (!line.starts_with('M') || line.find("->") == std::string::npos) without_identity += line;
  }
  ASSERT_EQ(exchanged, 2);
  // Gappa believes the identity M - P = (u - U) D, which no longer holds, and says so in a warning only.
  script.text = altered;
  const Witnessed believed = judge(script, kPatience);
  EXPECT_NE(believed.output.find("trivially equal"), std::string::npos) << believed.output;
  EXPECT_FALSE(believed.proven);
  script.text = without_identity;
  EXPECT_FALSE(judge(script, kPatience).proven);
}

TEST_F(Gappa, NightlyProvesTheOtherOrdersOfEvaluation) {
  Fit fit = committed("gelu_f32");
  BackwardModel& model = *fit.as<BackwardModel>();
  for (const int scheme : {kernels::kEstrin, kernels::kEvenOdd}) {
    model.kScheme = scheme;
    for (const Coordinate coordinate : {Coordinate::identity, Coordinate::signed_root}) {
      Piece piece = row_in(fit, coordinate);
      piece.evaluation = certify_evaluation(model, piece);
      expect_proven(gappa_scripts(fit.name, model, piece));
    }
  }
}

TEST_F(Gappa, ProvesARowInYOnTheRight) {
  Fit fit = committed("gelu_f32");
  BackwardModel& model = *fit.as<BackwardModel>();
  Piece piece = row_in(fit, Coordinate::signed_root);
  // The polynomial need not approximate anything: B is about its evaluation.
  piece.region = Region::right;
  piece.coordinate = Coordinate::identity;
  piece.v_lo = 1.0;
  piece.v_hi = 1.5;
  piece.centre = 1.25f;
  model.kHasRight = true;
  piece.evaluation = certify_evaluation(model, piece);
  expect_proven(gappa_scripts(fit.name, model, piece));
}

/// y is held at y_max, whatever the row's own end was rounded to.
TEST(GappaScripts, ReachToWhereYIsHeld) {
  for (const char* const name : {"gelu_tanh_f32", "silu_f32", "gelu_f32_ulp"}) {
    const Fit fit = committed(name);
    const BackwardModel& model = *fit.as<BackwardModel>();
    const Piece& last = model.pieces.at(static_cast<size_t>(model.kLeftRow) - 1);
    ASSERT_EQ(last.coordinate, Coordinate::identity) << name;
    ASSERT_TRUE(last.right_tail) << name;
    EXPECT_LT(last.v_hi, static_cast<double>(model.kYMax)) << name;
    const auto [integer, exponent] = integer_and_exponent(static_cast<double>(model.kYMax));
    EXPECT_NE(gappa_scripts(name, model, last).at(0).text.find(fmt::format(", {}b{}] ->", integer, exponent)),
              std::string::npos)
        << name;
  }
}

/// So does our own bound: y + 1 rounds more at y_max than at an end of the row that is far below.
TEST(GappaScripts, AreForABoundThatReachesAsFar) {
  const Fit fit = committed("silu_f32");
  const BackwardModel& model = *fit.as<BackwardModel>();
  Piece last = model.pieces.at(static_cast<size_t>(model.kLeftRow) - 1);
  last.centre = 0;
  std::ranges::fill(last.c, 0.0f);
  last.c[0] = last.c[1] = 1;
  last.v_lo = last.v_hi = 8;
  const double reaching = certify_evaluation(model, last);
  last.right_tail = false;
  EXPECT_GT(reaching, 1.5 * certify_evaluation(model, last));
}

}  // namespace
}  // namespace outgrad::approx
