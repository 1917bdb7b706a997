#include "approx/fit.h"

#include "approx/emit.h"
#include "kernels/host/errors.h"
#include "kernels/host/files.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace outgrad::approx {
namespace {

const std::string kRoot = OUTGRAD_SOURCE_DIR;

std::vector<std::string> committed_specs() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot + "/approx/specs")) names.push_back(entry.path().stem().string());
  return names;
}

class CommittedFit : public testing::TestWithParam<std::string> {};

TEST_P(CommittedFit, IsWhatFitAndEmitGiveByteForByte) {
  const Spec spec = read_spec(kRoot + "/approx/specs/" + GetParam() + ".json");
  const Fit result = fit(spec, 0);
  const std::string text = to_json(result);
  EXPECT_EQ(text, kernels::read_file(kRoot + "/notebooks_data/fits/" + GetParam() + ".json"));
  EXPECT_EQ(emit_header(fit_from_json(text, "memory"), "notebooks_data/fits/" + GetParam() + ".json"),
            kernels::read_file(kRoot + "/kernels/generated/" + GetParam() + ".h"));
}

TEST_P(CommittedFit, RoundingLosesAtMostAQuarterOfTheMinimaxError) {
  const std::string path = kRoot + "/notebooks_data/fits/" + GetParam() + ".json";
  const Fit result = fit_from_json(kernels::read_file(path), path);
  if (!result.backward) GTEST_SKIP() << "forward rows are chosen by ulp, not by fit error";
  double minimax = 0, rounded = 0;
  for (const Piece& p : result.backward->pieces) {
    minimax = std::max(minimax, p.minimax);
    rounded = std::max(rounded, p.certified - p.bend);  // a bent row leaves g on purpose
    EXPECT_LE(p.lower_bound, p.minimax);
    EXPECT_LE(p.lower_bound, p.observed);
    EXPECT_LE(p.observed, p.certified);
  }
  EXPECT_LE(rounded, 1.25 * minimax);
}

INSTANTIATE_TEST_SUITE_P(Specs, CommittedFit, testing::ValuesIn(committed_specs()), [](const auto& spec) { return spec.param; });

TEST(Fit, SameBytesWithOneAndTwoThreadsAndTwice) {
  const Spec spec = read_spec(kRoot + "/approx/specs/gelu_f16.json");
  const std::string once = to_json(fit(spec, 1));
  EXPECT_EQ(once, to_json(fit(spec, 2)));
  EXPECT_EQ(once, to_json(fit(spec, 2)));
}

TEST(Fit, UnreachableTargetNamesTheProvenLowerBound) {
  std::string text = kernels::read_file(kRoot + "/approx/specs/gelu_bf16_left.json");
  text.replace(text.find("2^-10"), 5, "2^-40");
  try {
    fit(parse_spec(text, "spec.json"), 0);
    FAIL() << "2^-40 was reached with degree 3";
  } catch (const kernels::SpecError& error) {
    EXPECT_NE(std::string(error.what()).find("proven"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("out of reach"), std::string::npos) << error.what();
  }
}

TEST(Fit, JsonRoundTripsAndRefusesDamage) {
  const std::string path = kRoot + "/notebooks_data/fits/gelu_f16.json";
  const std::string text = kernels::read_file(path);
  EXPECT_EQ(to_json(fit_from_json(text, path)), text);
  for (size_t cut = 0; cut + 2 < text.size(); cut += 37) {
    EXPECT_THROW(fit_from_json(text.substr(0, cut), path), kernels::SpecError) << cut;
  }
  // Every character replaced in turn: refused with a SpecError, or still a well-formed fit.
  for (size_t i = 0; i < text.size(); i += 11) {
    std::string damaged = text;
    damaged[i] = damaged[i] == '7' ? '"' : '7';
    try {
      emit_header(fit_from_json(damaged, path), path);
    } catch (const kernels::SpecError&) {
    }
  }
}

}  // namespace
}  // namespace outgrad::approx
