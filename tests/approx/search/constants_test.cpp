#include "approx/search/constants.h"

#include "approx/function/storage.h"
#include "approx/search/fitter.h"
#include "kernels/formats.h"
#include "kernels/support/files.h"
#include "tests/approx/shared.h"
#include "tests/refusal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

namespace outgrad::approx {
namespace {

std::string spec_text(const std::string& name) {
  return kernels::read_file(kRoot + "/approx/specs/" + name + ".json");
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

const Piece& row_at_0(const BackwardModel& m) {
  const auto at = std::find_if(m.pieces.begin(), m.pieces.end(), [](const Piece& p) {
    return p.coordinate == Coordinate::signed_root && p.v_lo < 0 && p.v_hi > 0;
  });
  EXPECT_NE(at, m.pieces.end());
  return *at;
}

/// T/O and R of a fit over the x of its format, y correctly rounded; every x.
template <class T>
std::pair<double, double> errors_over_own_arguments(const BackwardModel& m, const Activation& f,
                                                    double x_star, double end = 12) {
  std::map<std::pair<unsigned, bool>, std::pair<double, double>> ranges;
  const Composite composite(f);
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const float x = kernels::widen(T{static_cast<kernels::u16>(bits)});
    const auto d = static_cast<double>(x);
    if (!std::isfinite(x) || std::abs(d) > end) continue;  // g has its limit there
    const auto y = kernels::narrow<T>(static_cast<float>(f.value(d)));
    const double g = static_cast<double>(composite.gradient_at(Real(d)));
    const auto [place, fresh] = ranges.try_emplace({y.bits, d > x_star}, std::pair{g, g});
    place->second = {std::min(place->second.first, g), std::max(place->second.second, g)};
  }
  double total = 0, oracle = 0, regret = 0;
  for (const auto& [key, range] : ranges) {
    const auto g = static_cast<double>(
        deployed_gradient(m, kernels::widen(T{static_cast<kernels::u16>(key.first)}), key.second));
    const auto [lo, hi] = range;
    total = std::max({total, g - lo, hi - g});
    oracle = std::max(oracle, 0.5 * (hi - lo));
    regret = std::max(regret, std::abs(g - 0.5 * (lo + hi)));
  }
  return {total / oracle, regret};
}

constexpr double kDefaultRatio = 1.02;

TEST(Constants, DefaultsOfGeluAreWithinTwoPerCentOfTheOracleOverAllRealArguments) {
  for (const char* name : {"gelu_f32", "gelu_f16", "gelu_bf16"}) {
    const BackwardModel m = *committed(name).as<BackwardModel>();
    EXPECT_LE(m.kT, kDefaultRatio * m.kO) << name;
  }
  EXPECT_LE(committed("gelu_f16").as<BackwardModel>()->kR, 0x1p-11);
  EXPECT_LE(committed("gelu_bf16").as<BackwardModel>()->kR, 0x1p-9);
}

TEST(Constants, DefaultsOfGeluAreWithinTwoPerCentOfTheOracleOverTheArgumentsOfTheirFormat) {
  const Activation f = find_activation("gelu");
  const double x_star = Composite(f).x_star().to_double();
  const auto [f16_ratio, f16_regret] =
      errors_over_own_arguments<kernels::F16>(*committed("gelu_f16").as<BackwardModel>(), f, x_star);
  EXPECT_LE(f16_ratio, kDefaultRatio);
  EXPECT_LE(f16_regret, 0x1p-11);
  const auto [bf16_ratio, bf16_regret] =
      errors_over_own_arguments<kernels::BF16>(*committed("gelu_bf16").as<BackwardModel>(), f, x_star);
  EXPECT_LE(bf16_ratio, kDefaultRatio);
  EXPECT_LE(bf16_regret, 0x1p-9);
}

TEST(Constants, NightlyTheProgrammeStaysInItsTubeAndIsBetterThanConstantsAlone) {
  for (const char* name : {"gelu_f16", "gelu_bf16"}) {
    const Fit with = fit(parse_spec(spec_text(name), name), 1);
    const Fit without = fit(parse_spec(replaced(spec_text(name), ", \"programme\": true", ""), name), 1);
    const BackwardModel &m = *with.as<BackwardModel>(), &plain = *without.as<BackwardModel>();
    EXPECT_TRUE(row_at_0(m).storage_aware) << name;
    EXPECT_FALSE(row_at_0(plain).storage_aware) << name;
    EXPECT_LE(row_at_0(m).certified, with.target) << name;
    EXPECT_GT(row_at_0(m).certified, row_at_0(plain).certified) << name;
    // Next to y*, over both domains: the larger of the shares of the goal.
    const StorageGoal goal = parse_spec(spec_text(name), name).backward().storage;
    const auto cost = [&](const Fit& f) {
      return std::max((f.as<BackwardModel>()->expected_ratio - 1) / (goal.ratio - 1),
                      f.as<BackwardModel>()->expected_regret / goal.regret);
    };
    EXPECT_LT(cost(with), cost(without)) << name;
    EXPECT_LE(cost(with), 1) << name;
    // what was expected is what the enumeration finds
    EXPECT_LE(m.kT / m.kO, with.as<BackwardModel>()->expected_ratio * (1 + 0x1p-16)) << name;
  }
}

TEST(Constants, AGoalOutOfReachIsStretchedAndTheTubeIsNot) {
  const Fit hard = fit(
      parse_spec(replaced(spec_text("gelu_bf16"), "\"ratio\": 1.02", "\"ratio\": 1.001"), "spec.json"), 1);
  EXPECT_GT(hard.as<BackwardModel>()->expected_ratio, 1.001);
  EXPECT_LE(hard.as<BackwardModel>()->kA, hard.target);
  EXPECT_TRUE(row_at_0(*hard.as<BackwardModel>()).storage_aware);
}

/// Where 2% is missed, no function of the stored y and the bit would do: what is shipped is within 1/1000 of
/// the least.
TEST(Constants, WhereTwoPerCentIsMissedNoFunctionReachesIt) {
  for (const auto& [name, least] :
       std::vector<std::pair<const char*, double>>{{"silu_bf16", 1.0249}, {"swish_bf16", 1.0237}}) {
    const Spec spec = parse_spec(spec_text(name), name);
    const double proven = NearMinimum(Composite(spec.activation), spec.backward().format).least_ratio();
    EXPECT_GE(proven, least) << name;
    EXPECT_LE(committed(name).as<BackwardModel>()->expected_ratio, proven + 0.001) << name;
  }
  EXPECT_LE(NearMinimum(Composite(find_activation("gelu")), Format::bf16).least_ratio(), kDefaultRatio);
}

constexpr const char* kFarMinimum =
    R"spec({"schema": "outgrad.spec/2", "name": "far", "kind": "backward",
             "expression": "(x-16)*normal_cdf(x-16)", "format": "bf16", "target": "abs:2^-6", "degree": 4,
             "cells": 32})spec";
/// Each grid has 41 shifts and 36 floors; a goal is stretched 74 times, then there is no programme, and the
/// last two grids have 11 by 11.
constexpr int kMostConsidered = 41 * 36 * (1 + 74 + 1) + 2 * 11 * 11;

// Next to the minimum at x = 15.25 the x of bf16 are 1/16 apart, so that no two share a y: O over them is 0,
// and no T is a multiple of it.
TEST(Constants, WhereNoTwoArgumentsShareAStoredYTheRegretAloneIsAskedFor) {
  const Spec spec = parse_spec(kFarMinimum, "far");
  const Composite composite(spec.activation);
  const NearMinimum near(composite, Format::bf16);
  const CoordinateConstants constants = near.choose_constants(spec.backward().storage);
  EXPECT_EQ(constants.considered, 41 * 36 + 2 * 11 * 11);
  EXPECT_TRUE(std::isfinite(near.least_ratio()));
  const Fit result = fit(spec, 1);
  const BackwardModel& m = *result.as<BackwardModel>();
  // An x of bf16 is a real x: where it is the only one with its y, its f' is the middle.
  EXPECT_LE(
      errors_over_own_arguments<kernels::BF16>(m, spec.activation, composite.x_star().to_double(), 24).second,
      m.kT);
  EXPECT_LE(m.kR, 0x1p-6 + m.kK + m.kA + m.kB);
  EXPECT_GE(m.kT, m.kO);
}

// A programme that asks for more than any stretch gives ends too.
TEST(Constants, TheSearchEndsWhereNoStretchServesAProgramme) {
  Spec spec = parse_spec(
      replaced(kFarMinimum, "\"cells\": 32",
               R"("cells": 32, "storage": {"ratio": 1.0001, "regret": "2^-40", "programme": true})"),
      "far");
  const Composite composite(spec.activation);
  const NearMinimum near(composite, Format::bf16);
  Piece row;
  row.v_lo = -0.1, row.v_hi = 0.1, row.nominal_centre = 0, row.allowed = 0x1p-50, row.storage_aware = true;
  row.coordinate = Coordinate::signed_root;
  row.c.assign(2, 0.0f);
  const CoordinateConstants constants = near.choose_constants(spec.backward().storage, {row});
  EXPECT_LE(constants.considered, kMostConsidered);
  EXPECT_GT(constants.considered, kMostConsidered - 41 * 36);
  EXPECT_TRUE(std::isfinite(constants.expected_regret));
}

TEST(Constants, TheProgrammeIsFor16BitFormatsOfClassAbs) {
  for (const auto& [name, from, to] : std::vector<std::array<const char*, 3>>{
           {"gelu_f32", "\"2^-18\"", "\"2^-18\", \"programme\": true"}, {"gelu_f16", "abs:2^-13", "ulp:1"}}) {
    const std::string why = refusal_of([&] { parse_spec(replaced(spec_text(name), from, to), "spec.json"); });
    EXPECT_NE(why.find("programme"), std::string::npos) << name << ": " << why;
  }
}

}  // namespace
}  // namespace outgrad::approx
