#include "approx/search/fitter.h"

#include "approx/model/emit.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "tests/approx/shared.h"
#include "tests/refusal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace outgrad::approx {
namespace {

std::vector<std::string> committed_fits() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kRoot + "/notebooks_data/fits"))
    names.push_back(entry.path().stem().string());
  return names;
}

/// Those of some kinds.
std::vector<std::string> committed_fits_of(const std::set<std::string>& kinds) {
  std::vector<std::string> names = committed_fits();
  std::erase_if(names, [&](const std::string& name) {
    return !kinds.contains(
        nlohmann::json::parse(kernels::read_file(kRoot + "/notebooks_data/fits/" + name + ".json"))
            .at("kind")
            .get<std::string>());
  });
  return names;
}

/// Each in one process: a process for each fit would take longer to start than to test.
void for_each_fit(const std::vector<std::string>& names, const auto& expect) {
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    expect(name);
  }
}

/// "abs", "ulp", "stored", ... of its target.
std::string class_of(const nlohmann::json& spec) {
  const std::string target = spec.value("target", "");
  return target.substr(0, target.find(':'));
}

/// What a specification asks of the fitter, whatever its activation and numbers: the kind, the format, the
/// class of accuracy, and the options that it names.
std::string way_of(const nlohmann::json& spec) {
  std::string way =
      spec.at("kind").get<std::string>() + " " + spec.value("format", "") + " " + class_of(spec);
  for (const auto& [option, value] : spec.items())
    if (option != "parameters") way += " " + option;
  return way;
}

/// The fit in the smallest file of each kind and class of accuracy; of each way, and of each activation that
/// is not among these.
struct Refitted {
  std::set<std::string> kinds, ways;
};
Refitted one_of_each() {
  std::vector<std::string> names = committed_fits();
  const auto size = [](const std::string& name) {
    return std::filesystem::file_size(kRoot + "/notebooks_data/fits/" + name + ".json");
  };
  std::sort(names.begin(), names.end(),
            [&](const auto& a, const auto& b) { return std::pair(size(a), a) < std::pair(size(b), b); });
  Refitted chosen;
  std::set<std::string> kinds, ways, activations;
  const auto choose = [&](std::set<std::string>& into, std::set<std::string>& seen, const auto& property) {
    for (const std::string& name : names) {
      const auto spec = nlohmann::json::parse(kernels::read_file(kRoot + "/approx/specs/" + name + ".json"));
      if (!seen.insert(property(spec)).second) continue;
      into.insert(name);
      activations.insert(spec.at("activation"));
    }
  };
  choose(chosen.kinds, kinds,
         [](const nlohmann::json& spec) { return spec.at("kind").get<std::string>() + class_of(spec); });
  choose(chosen.ways, ways, way_of);
  choose(chosen.ways, activations,
         [](const nlohmann::json& spec) { return spec.at("activation").get<std::string>(); });
  for (const std::string& name : chosen.kinds) chosen.ways.erase(name);
  return chosen;
}

std::vector<std::string> all_others() {
  const Refitted chosen = one_of_each();
  std::vector<std::string> others = committed_fits();
  std::erase_if(others, [&](const std::string& name) {
    return chosen.kinds.contains(name) || chosen.ways.contains(name);
  });
  return others;
}

/// Fitted anew: one fit of each kind and class in every run of the suite, one of each way every night, the
/// others in the exhaustive one.
class Refit : public testing::TestWithParam<std::string> {};

TEST_P(Refit, GivesTheCommittedFitByteForByte) {
  const Spec spec = read_spec(kRoot + "/approx/specs/" + GetParam() + ".json");
  EXPECT_EQ(to_json(fit(spec, 0)),
            kernels::read_file(kRoot + "/notebooks_data/fits/" + GetParam() + ".json"));
}

INSTANTIATE_TEST_SUITE_P(OneOfEachKind, Refit, testing::ValuesIn(one_of_each().kinds),
                         [](const auto& spec) { return spec.param; });
INSTANTIATE_TEST_SUITE_P(NightlyOneOfEachWay, Refit, testing::ValuesIn(one_of_each().ways),
                         [](const auto& spec) { return spec.param; });
INSTANTIATE_TEST_SUITE_P(ExhaustiveOthers, Refit, testing::ValuesIn(all_others()),
                         [](const auto& spec) { return spec.param; });

void expect_as_specified(const std::string& name) {
  const Fit result = committed(name);
  EXPECT_EQ(result.spec_sha256, read_spec(kRoot + "/approx/specs/" + name + ".json").sha256);
  EXPECT_EQ(emit_header(result, "notebooks_data/fits/" + name + ".json"),
            kernels::read_file(kRoot + "/kernels/generated/" + name + ".h"));
}

TEST(CommittedFits, AreWhatTheirSpecificationsAskForAndGiveTheirHeadersByteForByte) {
  for_each_fit(committed_fits(), expect_as_specified);
}

void expect_near_lower_bounds(const std::string& name) {
  const Fit result = committed(name);
  ASSERT_TRUE(result.as<BackwardModel>());
  constexpr double kEqual = 0x1p-48;  // a row that equals g has no ratio
  for (const Piece& p : result.as<BackwardModel>()->pieces) {
    EXPECT_LE(p.observed, p.certified) << p.row;
    if (p.storage_aware || p.certified < kEqual) continue;
    EXPECT_LE(p.lower_bound, p.minimax) << p.row;
    EXPECT_LE(p.minimax_certified, 1.02 * p.lower_bound) << p.row;
    EXPECT_LE(p.certified, 1.15 * p.lower_bound) << p.row;
    EXPECT_LE(p.certified, 1.01 * p.observed) << p.row;
  }
}

/// Nearly optimal, row by row: what is certified against what no polynomial of the row's degree undercuts.
/// Forward rows are chosen by ulp, and direct tables and codes have none.
TEST(CommittedFits, RowsAreNearTheirLowerBounds) {
  for_each_fit(committed_fits_of({"backward"}), expect_near_lower_bounds);
}

TEST(Fitter, AnInfinityThatWasFoundIsReadAsItWasWritten) {
  Fit fit = committed("gelu_f16");
  fit.as<BackwardModel>()->found["T"].at = INFINITY;
  EXPECT_EQ(fit_from_json(to_json(fit), "fit").as<BackwardModel>()->found["T"].at, INFINITY);
}

void expect_found_below_bounds(const std::string& name) {
  const Fit result = committed(name);
  const auto below = [](const FoundInputs& found, const char* bound, double proven) {
    ASSERT_TRUE(found.contains(bound)) << bound;
    EXPECT_LE(found.at(bound).error, proven) << bound;
    // B is about any y of a row: over the few of 16 bits sums may be exact, as y + 1 is of ELU in f16.
    if (std::string(bound) != "B") {
      EXPECT_GT(found.at(bound).error, proven / 4) << bound;
    }
  };
  if (const auto* t = result.as<TableModel>()) {
    for (const auto& [bound, proven] : {std::pair{"T", t->kT}, {"O", t->kO}, {"R", t->kR}})
      below(t->found, bound, proven);
  }
  if (!result.as<BackwardModel>()) return;
  const BackwardModel& m = *result.as<BackwardModel>();
  below(m.found, "B", m.kB);
  if (m.kMasked && !m.of_product()) below(m.found, "K", m.kK);
  if (m.kTwoWord) below(m.found, "ulp", m.kUlp);
  if (m.format == Format::f32) below(m.found, "AB", m.kAB);
  if (m.format != Format::f32 || m.of_product()) {
    for (const auto& [bound, proven] : {std::pair{"T", m.kT}, {"O", m.kO}}) below(m.found, bound, proven);
  }
  if (m.format != Format::f32) below(m.found, "R", m.kR);
  constexpr double kEqual = 0x1p-48;
  for (const Piece& p : m.pieces) {
    EXPECT_LE(p.found.error, p.observed) << p.row;
    if (!p.storage_aware && p.certified > kEqual && p.found.error > 0) {
      EXPECT_GT(p.found.error, 0.8 * p.certified) << p.row;
    }
  }
}

/// What was found is below what is proven, and of rows that follow g just below.
TEST(CommittedFits, FoundErrorsAreBelowTheirBounds) {
  for_each_fit(committed_fits(), expect_found_below_bounds);
}

void expect_class_kept(const std::string& name) {
  const Fit result = committed(name);
  if (const auto* t = result.as<TableModel>()) {
    EXPECT_LE(t->kT, t->kO + 0.5 * ulp_of(t->entry_format, 1));
    return;
  }
  if (const auto* c = result.as<CodeModel>()) {
    EXPECT_LE(c->kG, result.target);
    return;
  }
  ASSERT_TRUE(result.as<BackwardModel>());
  const BackwardModel& m = *result.as<BackwardModel>();
  if (result.accuracy.starts_with("stored")) {
    EXPECT_LE(m.kT, result.target * m.kO);
    EXPECT_LE(m.kT / m.kO, 1.02 * m.programme_dual);
  } else if (result.accuracy.starts_with("ulp")) {
    EXPECT_LE(m.kTwoWord ? m.kUlp : m.worst_ulp, result.target);
  } else {
    EXPECT_LE(m.kA, result.target);
  }
}

TEST(CommittedFits, KeepTheirClasses) {
  for_each_fit(committed_fits_of({"backward", "table", "code"}), expect_class_kept);
}

TEST(Fit, F32GeluReachesItsGoal) {
  const BackwardModel m = *committed("gelu_f32").as<BackwardModel>();
  EXPECT_LE(m.kAB, 0x1p-23);
  EXPECT_LE(cost_of(m).arithmetic, 11);
  EXPECT_LE(cost_of(m).table_bytes, 1024);
}

TEST(Fit, NightlySameBytesWithOneAndTwoThreadsAndTwice) {
  const Spec spec = read_spec(kRoot + "/approx/specs/gelu_f16.json");
  const std::string once = to_json(fit(spec, 1));
  EXPECT_EQ(once, to_json(fit(spec, 2)));
  EXPECT_EQ(once, to_json(fit(spec, 2)));
}

TEST(Fit, UnreachableTargetNamesTheProvenLowerBound) {
  std::string text = kernels::read_file(kRoot + "/approx/specs/gelu_bf16.json");
  text.replace(text.find("2^-10"), 5, "2^-40");
  const std::string why = refusal_of([&] { fit(parse_spec(text, "spec.json"), 0); });
  EXPECT_NE(why.find("proven"), std::string::npos) << why;
  EXPECT_NE(why.find("out of reach"), std::string::npos) << why;
}

// A of the class rel bounds |p/g - 1|. As a bound of |p - g| it was too small wherever g is above 1: T and
// A + B claimed 0.00088 where 0.00152 was found.
TEST(Fit, BoundsOfAGradientAreAbsoluteInTheClassRel) {
  const Spec spec = parse_spec(
      R"spec({"schema": "outgrad.spec/2", "name": "steep", "kind": "backward",
          "expression": "x*sigmoid(2*x-5)", "format": "f32", "target": "rel:2^-10", "cells": 42, "degree": 3,
          "left_segment": {"edge_log2": -10, "half_octaves": 1, "merge_log2": -30},
          "storage": {"ratio": 1.5, "regret": "2^-3"}})spec",
      "steep");
  const Fit result = fit(spec, 1);
  const BackwardModel& m = *result.as<BackwardModel>();
  const Composite composite(spec.activation);
  double worst = 0;
  for (double x = 1; x < 8; x += 0x1p-10) {
    const auto y = static_cast<float>(composite.value_at(Real(x)));
    const double g = static_cast<double>(composite.gradient_at(Real(x)));
    worst = std::max(worst, std::abs(static_cast<double>(deployed_gradient(m, y, true)) - g));
  }
  EXPECT_GT(worst, 1.5 * m.kA);
  EXPECT_LT(worst, m.kAB);
  EXPECT_LT(worst, m.kT);
  EXPECT_LT(m.kT, 1.02 * worst);
  EXPECT_EQ(m.kR, m.kT);
}

// A finding of the gate: break points were counted through the left segment's rows, beyond the last one.
TEST(Fit, OneCellMayStandBesideALeftSegment) {
  const std::string text =
      R"({"schema": "outgrad.spec/2", "name": "own", "kind": "backward", "activation": "gelu",
          "format": "bf16", "target": "abs:2^-5", "degree": 5, "cells": 1,
          "left_segment": {"edge_log2": -5, "half_octaves": 2, "merge_log2": -9}})";
  const Fit one = fit(parse_spec(text, "spec.json"), 0);
  EXPECT_EQ(one.as<BackwardModel>()->pieces.size(), 8u);
  EXPECT_LE(one.as<BackwardModel>()->kA, 0x1p-5);
  EXPECT_LE(one.as<BackwardModel>()->kT, one.as<BackwardModel>()->kO + 0x1p-5 + one.as<BackwardModel>()->kK);
}

TEST(Fit, ShapesThatASpecificationDoesNotFitAreRefusedByName) {
  const auto refusal = [](const std::string& function, const std::string& more, const char* format = "bf16") {
    const std::string text = fmt::format(
        R"({{"schema": "outgrad.spec/2", "name": "own", "kind": "backward", {}, "format": "{}",
            "target": "abs:2^-8", "degree": 3, {}}})",
        function, format, more);
    return refusal_of([&] { fit(parse_spec(text, "spec.json"), 0); });
  };
  const std::string left =
      R"("cells": 10, "left_segment": {"edge_log2": -3, "half_octaves": 2, "merge_log2": -6})";
  EXPECT_NE(refusal(R"("activation": "sigmoid")", left).find("left_segment: f rises"), std::string::npos);
  EXPECT_NE(
      refusal(R"("activation": "sigmoid")", left + R"(, "right_from": 0.4)").find("left_segment: f rises"),
      std::string::npos);
  EXPECT_NE(
      refusal(R"("activation": "sigmoid")", R"("cells": 16, "right_from": 0.4)").find("right_from: f rises"),
      std::string::npos);
  const std::string product =
      R"("cells": 16, "product": "f16", "storage": {"ratio": 1.02, "regret": "2^-3"})";
  EXPECT_NE(refusal(R"("activation": "tanh")", product, "f32").find("product: f rises"), std::string::npos);
  EXPECT_NE(refusal(R"-("expression": "x*sigmoid(x)")-", product, "f32").find("product: is of an activation"),
            std::string::npos);
  EXPECT_EQ(refusal(R"("activation": "tanh")", R"("cells": 16)", "bf16_parity"),
            "format bf16_parity: f rises: there is no branch for y to carry");
  for (const char* function : {"x*sigmoid(x)+1", "x*sigmoid(x)-1", "x*sigmoid(x)+0.1"}) {
    const std::string why = refusal(fmt::format(R"("expression": "{}")", function), R"("cells": 16)");
    EXPECT_NE(why.find("with a minimum f must tend to 0"), std::string::npos) << function << ": " << why;
  }
}

// What a forward's specification is refused for, or "".
std::string refusal_of_forward(const std::string& function, const std::string& kind) {
  const std::string text = fmt::format(
      R"({{"schema": "outgrad.spec/2", "name": "own", "kind": "forward", {}, {}}})", function, kind);
  return refusal_of([&] { fit(parse_spec(text, "spec.json"), 1); });
}

std::string refusal_of_rounded(const std::string& function) {
  return refusal_of_forward(
      function, R"("target": "rounded", "format": "bf16", "cells_per_unit": 1, "rows": 128, "core_rows": 32,
            "quartic_shift": 18, "x_max": 8)");
}

// The tables of a forward end where f(x) rounds to x or to a limit: the search for these ends has to end
// where there are none.
TEST(Fit, AForwardOfAnotherFunctionIsRefusedOrRounded) {
  const std::pair<const char*, const char*> refused[] = {
      {R"x("activation": "tanh")x", "tail: f does not tend to 0 at the left"},
      {R"x("activation": "silu")x", "core: 64 rows of 1/4 do not reach from 16 to below 0"},
      {R"x("expression": "-exp(-x^2)")x", "of an activation that has a name"},
      {R"x("expression": "x*sigmoid(x)")x", "of an activation that has a name"}};
  for (const auto& [function, why] : refused) {
    EXPECT_NE(
        refusal_of_forward(function,
                           R"("target": "rel:2^-26", "core": {"degree": 8, "cells_per_unit": 4, "rows": 64},
            "tail": {"degree": 8, "cells_per_unit": 1, "rows": 32})")
            .find(why),
        std::string::npos)
        << function;
  }
  const auto refusal_of_core = [](const char* activation, int degree, double per_unit) {
    return refusal_of_forward(fmt::format(R"("activation": "{}")", activation),
                              fmt::format(R"("target": "rel:2^-2", "compensated": true,
                       "core": {{"degree": {}, "cells_per_unit": {}, "rows": 64}})",
                                          degree, per_unit));
  };
  EXPECT_NE(refusal_of_core("sigmoid", 8, 1.5).find("tail: is needed"), std::string::npos);
  EXPECT_NE(refusal_of_core("tanh", 1, 3.25).find("at least 2"), std::string::npos);
  EXPECT_NE(refusal_of_core("tanh", 8, 3.3).find("a multiple of 1/8"), std::string::npos);
  EXPECT_NE(refusal_of_rounded(R"x("expression": "-exp(-x^2)")x").find("is not positive"), std::string::npos);
  EXPECT_NE(refusal_of_rounded(R"x("expression": "x*sigmoid(x)-0.1")x").find("is not positive"),
            std::string::npos);
  EXPECT_NE(refusal_of_rounded(R"x("expression": "x*(0.5+0.5*x/sqrt(x*x+0.0000000001))")x"), "");
}

TEST(Fit, NightlyAForwardOfAnExpressionIsRounded) {
  EXPECT_EQ(refusal_of_rounded(R"x("expression": "x*sigmoid(x)")x"), "");
}

TEST(Fit, JsonRoundTripsAndRefusesDamage) {
  const std::string path = kRoot + "/notebooks_data/fits/gelu_f16.json";
  const std::string text = kernels::read_file(path);
  EXPECT_EQ(to_json(fit_from_json(text, path)), text);
  for (size_t cut = 0; cut + 2 < text.size(); cut += 37) {
    EXPECT_THROW(fit_from_json(text.substr(0, cut), path), kernels::SpecError) << cut;
  }
  EXPECT_THROW(fit_from_json("{\"schema\": 1e999}", path), kernels::SpecError) << "not an internal error";
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
