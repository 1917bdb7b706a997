// Coefficients that are not ours: what the reader refuses, that the evaluator does what the file says in the
// arithmetic that it says, and that the files we ship give the figures that are known of them.

#include "validation/sweep/foreign.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/eval.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "tests/refusal.h"

namespace outgrad::validation {
namespace {

using Json = nlohmann::json;

std::string committed_function(const std::string& name) {
  return kernels::read_file(std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/foreign/" + name + ".json");
}

/// What is refused of `text`; empty if it was read.
std::string refusal(const std::string& text) {
  return refusal_of([&] { parse_foreign(text, "file.json"); });
}

Json one_piece() {
  return Json::parse(
      R"({"schema": "outgrad.foreign/1", "name": "one", "activation": "gelu", "kind": "pieces",
    "source": {"work": "a test"}, "arithmetic": "f32_fma",
    "left": [{"from": "-inf", "to": "inf", "includes": "none", "constant": 0}],
    "right": [{"from": "-inf", "to": 0.5, "includes": "none", "coordinate": "y", "centre": "0x1p-2",
               "coefficients": [0.5, "0x1.8p+0", "-0.25"], "order": "horner"},
              {"from": 0.5, "to": "inf", "includes": "from", "constant": 1}]})");
}

float g_of(const ForeignFunction& f, float y, bool right) {
  const std::uint32_t mask = right;
  float g = 0;
  f.derivative(&y, &mask, &g, 1);
  return g;
}

TEST(ForeignReader, ReadsWhatIsShipped) {
  for (const char* name : {"tempo_gelu", "tempo_gelu_centred", "regelu2", "resilu2"})
    EXPECT_EQ(parse_foreign(committed_function(name), name).name, name);
  EXPECT_EQ(refusal(one_piece().dump()), "");
}

TEST(ForeignReader, RefusesInOneLineWithThePlace) {
  const auto expect = [](const std::function<void(Json&)>& spoil, const std::string& place) {
    Json json = one_piece();
    spoil(json);
    const std::string why = refusal(json.dump());
    EXPECT_NE(why.find("file.json: " + place), std::string::npos) << place << " | " << why;
    EXPECT_EQ(why.find('\n'), std::string::npos);
    EXPECT_LT(why.size(), 200u) << why;
  };
  // A finding of the fuzzer: the whole number was quoted.
  EXPECT_EQ(refusal("{\"schema\": " + std::string(400, '7') + "}"),
            "file.json: JSON: a number is beyond double's range");
  expect([](Json& j) { j["schema"] = "outgrad.foreign/2"; }, "schema: is not outgrad.foreign/1");
  expect([](Json& j) { j["activation"] = "relu"; }, "activation: 'relu' is not one of gelu, silu");
  expect([](Json& j) { j["kind"] = "table"; }, "kind: ");
  expect([](Json& j) { j["name"] = "../x"; }, "name: ");
  expect([](Json& j) { j["typo"] = 1; }, "top level: has an unknown key 'typo'");
  expect([](Json& j) { j["arithmetic"] = "bf16"; }, "arithmetic: ");
  expect([](Json& j) { j.erase("left"); }, "top level: 'left' is missing");
  expect([](Json& j) { j["source"] = Json::object(); }, "source: ");
  expect([](Json& j) { j["right"][0]["coordinate"] = "log"; },
         "right[0].coordinate: 'log' is not one of y, signed_sqrt");
  expect([](Json& j) { j["right"][0]["coordinate"] = "signed_sqrt"; },
         "right[0].coordinate: needs 'constants'");
  expect([](Json& j) { j["right"][0]["order"] = "clenshaw"; }, "right[0].order: ");
  expect([](Json& j) { j["right"][0]["to"] = 0.4; }, "right[1].from: leaves a gap");
  expect([](Json& j) { j["right"][0]["to"] = 0.6; }, "right[1].from: overlaps");
  expect([](Json& j) { j["right"][0]["includes"] = "to"; }, "right[1].includes: 0.5 belongs to both");
  expect([](Json& j) { j["right"][1]["includes"] = "none"; }, "right[1].includes: 0.5 belongs to neither");
  expect([](Json& j) { j["right"][0]["from"] = -1; }, "right[0].from: leaves a gap");
  expect([](Json& j) { j["right"][1]["to"] = 7; }, "right: ends at 7");
  expect([](Json& j) { j["right"][1]["to"] = 0.5; }, "right[1]: 'from' is not below 'to'");
  expect([](Json& j) { j["right"][0]["coefficients"][1] = "nan"; }, "right[0].coefficients[1]: ");
  expect([](Json& j) { j["right"][0]["coefficients"][1] = "inf"; },
         "right[0].coefficients[1]: is not finite");
  expect([](Json& j) { j["right"][0]["coefficients"][1] = "1e39"; },
         "right[0].coefficients[1]: is not finite in f32");
  expect([](Json& j) { j["right"][0]["coefficients"][1] = nullptr; },
         "right[0].coefficients[1]: is not a number");
  expect([](Json& j) { j["right"][0]["coefficients"] = Json::array(); }, "right[0].coefficients: ");
  expect([](Json& j) { j["right"][0]["coefficients"] = std::vector<int>(100'001, 1); },
         "right[0].coefficients: has 100001 numbers");
  expect([](Json& j) { j["right"][0]["coefficients"] = std::vector<int>(1'000'001, 1); }, "size: ");
  expect([](Json& j) { j["right"] = Json::array(); }, "right: ");
  expect([](Json& j) { j["claims"]["O"] = 1; }, "claims: ");
  EXPECT_NE(refusal("[]").find("file.json: top level: "), std::string::npos);
  EXPECT_NE(refusal("").find("file.json: line 1, column "), std::string::npos);
  const std::string whole = one_piece().dump();
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_NE(refusal(whole.substr(0, length)), "") << length;

  const auto expect_steps = [](const std::function<void(Json&)>& spoil, const std::string& place) {
    Json json = Json::parse(committed_function("regelu2"));
    spoil(json);
    EXPECT_NE(refusal(json.dump()).find("file.json: " + place), std::string::npos)
        << place << " | " << refusal(json.dump());
  };
  expect_steps([](Json& j) { std::swap(j["thresholds"][0], j["thresholds"][1]); }, "thresholds: do not rise");
  expect_steps([](Json& j) { j["increments"].erase(0); },
               "increments: give 3 steps where 3 thresholds make 4");
  expect_steps([](Json& j) { j["code_bits"] = 1; }, "thresholds: has 3 numbers; at most 1");
  expect_steps([](Json& j) { j["code_bits"] = 9; }, "code_bits: ");
  expect_steps([](Json& j) { j["values"] = {0, 0, 1, 1}; }, "top level: has not just one of");
  expect_steps([](Json& j) { j["left"] = 1; }, "top level: has an unknown key 'left'");
}

TEST(ForeignFunction, EndsBelongWhereTheFileSays) {
  Json json = one_piece();
  const auto at_half = [&](const char* first, const char* second) {
    json["right"][0]["includes"] = first;
    json["right"][1]["includes"] = second;
    return g_of(parse_foreign(json.dump(), "t"), 0.5f, true);
  };
  EXPECT_EQ(at_half("none", "from"), 1);
  EXPECT_EQ(at_half("to", "none"), 0.5f + 0.25f * (1.5f - 0.25f * 0.25f));
  const ForeignFunction f = parse_foreign(one_piece().dump(), "t");
  EXPECT_EQ(g_of(f, 0.25f, true), 0.5f);
  EXPECT_EQ(g_of(f, 0.25f, false), 0);
  EXPECT_EQ(g_of(f, std::numeric_limits<float>::infinity(), true), 1);
  EXPECT_TRUE(std::isnan(g_of(f, std::numeric_limits<float>::quiet_NaN(), true)));
  Json silent = one_piece();
  silent["nan"] = 0;
  EXPECT_EQ(g_of(parse_foreign(silent.dump(), "t"), std::numeric_limits<float>::quiet_NaN(), false), 0);
}

// The evaluator of our own kernels is the witness for both orders; f32 without fma and f64 are written out.
TEST(ForeignFunction, EvaluatesInTheOrderAndArithmeticNamed) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> value(-2, 2);
  for (int degree = 1; degree <= 14; ++degree) {
    Json json = one_piece();
    Json& piece = json["right"][0];
    kernels::Table<1, kernels::kLargestDegree + 3> table{};
    std::vector<double> c(static_cast<std::size_t>(degree) + 1);
    table.w[0][0] = 0.125f;
    for (std::size_t k = 0; k < c.size(); ++k) c[k] = table.w[0][k + 1] = value(random);
    piece["centre"] = 0.125;
    piece["coefficients"] = c;
    for (const bool estrin : {false, true}) {
      piece["order"] = estrin ? "estrin" : "horner";
      json["arithmetic"] = "f32_fma";
      const ForeignFunction fused = parse_foreign(json.dump(), "t");
      json["arithmetic"] = "f32";
      const ForeignFunction plain = parse_foreign(json.dump(), "t");
      json["arithmetic"] = "f64";
      const ForeignFunction wide = parse_foreign(json.dump(), "t");
      int differ = 0;
      for (int i = 0; i < 2000; ++i) {
        const float y = std::min(value(random), 0.49f);
        const float want = kernels::evaluate_row(kernels::FloatOps{}, table, 0, degree, y,
                                                 estrin ? kernels::kEstrin : kernels::kHorner);
        EXPECT_EQ(g_of(fused, y, true), want);
        double exact = c.back();
        volatile float p = static_cast<float>(c.back());
        for (std::size_t k = c.size() - 1; k-- > 0;) {
          exact = exact * (static_cast<double>(y) - 0.125) + c[k];
          const volatile float product = p * (y - 0.125f);
          p = product + static_cast<float>(c[k]);
        }
        if (!estrin) {
          EXPECT_EQ(g_of(plain, y, true), p);
          EXPECT_EQ(g_of(wide, y, true), static_cast<float>(exact));
        }
        differ += g_of(plain, y, true) != want;
      }
      EXPECT_GT(differ, 0) << "an fma is one rounding less";
    }
  }
}

TEST(ForeignFunction, SignedRootsTakeTheSideOfTheMask) {
  Json json = one_piece();
  json["constants"] = {{"y_hi", "-0x1.5c19dep-3"}, {"y_lo", 0}, {"t_min", "0x1p-30"}};
  const Json piece = {{"from", "-inf"},     {"to", "inf"},
                      {"includes", "none"}, {"coordinate", "signed_sqrt"},
                      {"centre", 0},        {"coefficients", {0, 1}},
                      {"order", "horner"}};
  json["left"] = json["right"] = Json::array({piece});
  const ForeignFunction f = parse_foreign(json.dump(), "t");
  for (const float y : {-0.5f, -0.1f, 0.0f, 3.0f}) {
    const float root = std::sqrt(std::max(y - -0x1.5c19dep-3f, 0x1p-30f));
    EXPECT_EQ(g_of(f, y, true), root);
    EXPECT_EQ(g_of(f, y, false), -root);
  }
}

TEST(ForeignFunction, StepsCountTheThresholdsBelow) {
  const ForeignFunction f = parse_foreign(committed_function("regelu2"), "t");
  const std::vector<float> x{
      -INFINITY, -4, -3.1858810036855245f, -3, -0.001178821281161997f, 0, 3.190832613414926f, 3.2f,
      INFINITY,  NAN};
  std::vector<float> code(x.size()), g(x.size());
  f.codes(x.data(), code.data(), static_cast<std::int64_t>(x.size()));
  EXPECT_EQ(code, (std::vector<float>{0, 0, 0, 1, 1, 2, 2, 3, 3, 0}));
  f.derivative(code.data(), nullptr, g.data(), static_cast<std::int64_t>(x.size()));
  EXPECT_EQ(g[0], 0);
  EXPECT_EQ(g[3], -0.04922261145617846f);
  EXPECT_EQ(g[5], -0.04922261145617846f + 1.0979632065417297f);
  EXPECT_NEAR(g[8], 1, 1e-7);
}

/// Every pattern of the format.
DomainResult sweep_of(const std::string& name, const FloatFormat& format) {
  const Subject subject = make_subject(parse_foreign(committed_function(name), name), format);
  SweepOptions options;
  options.progress = false;
  const std::vector<Domain> domains{{format}};
  return finish(sweep(subject, domains, options), domains, subject.stored()).at(0);
}

// f' is steepest in the step of each: the code that begins next to x = 0 has a' = a1 + a2 = 1.0487 where
// f'(0) is 1/2, resp. 1.0403.
TEST(ForeignSweep, StepsAreOffByTheHeightOfTheStep) {
  for (const auto& [name, step, last] :
       {std::tuple{"regelu2", 1.0979632065417297 - 0.04922261145617846, 0.2348},
        {"resilu2", 1.080925428529668 - 0.04060357190528599, 0.2406}}) {
    for (const FloatFormat& format : {kF16, kBf16}) {
      const DomainResult result = sweep_of(name, format);
      EXPECT_NEAR(result.max(result.all.total), step - 0.5, 1.5e-3) << name;
      EXPECT_NEAR(result.max(result.all.regret), last, 1e-3) << name;
      // O: half the range of f' over the code that holds f'(0) and the maximum of f' (1.1290 for GELU, 1.0998
      // for SiLU).
      EXPECT_NEAR(result.max(result.all.oracle),
                  (std::string(name) == "regelu2" ? 1.12890 - 0.5 : 1.09984 - 0.5) / 2, 1e-3)
          << name;
      EXPECT_LT(result.max(result.all.storage), 0) << "nothing is stored of y";
      EXPECT_EQ(result.all.wrong_mask, 0);
      EXPECT_GE(result.all.wrong_special, 254) << "a code of two bits has no NaN";
      EXPECT_EQ(result.all.first.used, false);
    }
  }
}

TEST(ForeignSweep, TempoAddsWhereItShouldSubtract) {
  const DomainResult published = sweep_of("tempo_gelu", kF16), centred = sweep_of("tempo_gelu_centred", kF16);
  // The error grows up to y = 3, and f16 has no y between 3 - 2^-9 and 3.
  EXPECT_NEAR(published.all.total[1].value, 2.674, 0.001);
  EXPECT_GT(published.all.total[1].x, 3.0f);
  EXPECT_LT(published.all.total[1].x, 3.01f);
  const Domain f32{kF32};
  const std::int64_t at_three = f32.finite() / 2 + std::bit_cast<std::int32_t>(3.0f);
  const Segment near = sweep_range(make_subject(parse_foreign(committed_function("tempo_gelu"), "t"), kF32),
                                   f32, at_three, at_three + 40'000);
  EXPECT_NEAR(near.total[1].value, 2.695, 0.001);
  EXPECT_LT(centred.all.total[1].value, 0.13);
  EXPECT_EQ(published.all.total[0].value, centred.all.total[0].value);
  EXPECT_GT(published.all.total[0].value, 0.1);
  // What limits any function of the stored y is the format's, whosever coefficients they are.
  EXPECT_NEAR(published.all.oracle[1].value, 0.00484, 0.6e-5);
}

// What C's search takes for granted of each activation: a floor of O in every format and domain, from the x
// next to x* alone.
TEST(ForeignSweep, FloorsOfOHold) {
  for (const char* activation : {"gelu", "silu"}) {
    Json json = one_piece();
    json["activation"] = activation;
    const ForeignFunction f = parse_foreign(json.dump(), "t");
    for (const FloatFormat& format : {kF32, kF16, kBf16}) {
      const Subject subject = make_subject(f, format);
      for (const Domain& domain : domains_for(format)) {
        const std::int64_t middle = domain.first_right(f.activation->x_star),
                           reach = std::min<std::int64_t>(2'000'000, middle);
        Segment near = sweep_range(subject, domain, middle - reach, std::min(middle + reach, domain.size()));
        near.close(subject.stored());
        const double floor = f.activation->oracle_floor(format);
        for (const std::size_t branch : {0u, 1u}) {
          EXPECT_GE(near.oracle[branch].value, floor) << activation << ' ' << format.name;
          EXPECT_LT(near.oracle[branch].value, 3 * floor) << "a floor that low makes the search slow";
          // C of f32 x over a 16-bit y is what rounding y costs: more than O, at most twice the range.
          EXPECT_GE(near.storage[branch].value, near.oracle[branch].value * (1 - 1e-9))
              << activation << ' ' << format.name;
        }
      }
    }
  }
}

// A part of a sweep of codes says so: merged elsewhere, its runs are joined as codes.
TEST(ForeignSweep, CutsOfACodeAreJoined) {
  const Subject subject = make_subject(parse_foreign(committed_function("resilu2"), "t"), kF16);
  const Domain domain{kF16};
  Segment whole = sweep_range(subject, domain, 0, domain.size()), joined;
  for (std::int64_t at = 0; at < domain.size(); at += 999) {
    joined.append(sweep_range(subject, domain, at, std::min(domain.size(), at + 999)), subject.stored());
  }
  whole.close(subject.stored());
  joined.close(subject.stored());
  for (const std::size_t branch : {0u, 1u}) {
    EXPECT_EQ(whole.oracle[branch].value, joined.oracle[branch].value);
    EXPECT_EQ(whole.regret[branch].value, joined.regret[branch].value);
    EXPECT_EQ(whole.total[branch].value, joined.total[branch].value);
  }
}

}  // namespace
}  // namespace outgrad::validation
