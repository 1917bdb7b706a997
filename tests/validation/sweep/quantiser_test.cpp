// Quantisers that are not ours: what the reader refuses, that the arithmetic is the file's, and that the
// audit's figures are those of a brute force over every x and every u, written here in floats.

#include "validation/sweep/quantiser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "kernels/formats.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "tests/refusal.h"
#include "validation/sweep/quantiser_audit.h"

namespace outgrad::validation {
namespace {

using Json = nlohmann::json;

std::string committed(const std::string& name) {
  return kernels::read_file(std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/foreign/" + name + ".json");
}

Json small_json() {
  return Json::parse(
      R"({"schema": "outgrad.foreign/1", "name": "small", "activation": "gelu", "kind": "quantiser",
    "source": {"work": "a test"},
    "keeps": "x", "bits": 4, "levels": 15, "epsilon": 0, "group": 32, "range": "given", "ranges": [[0.5, 3]],
    "x": [0.4375, 6], "rounding": "stochastic", "u": {"bits": 3, "offset": 1}, "overflow": "wrap",
    "arithmetic": "own", "fma": false, "kept_in": "same"})");
}

ForeignFunction function_of(const Json& json) { return parse_foreign(json.dump(), "file.json"); }

QuantiserErrors errors_of(const Json& json, const FloatFormat& format) {
  return quantiser_errors(function_of(json), 0, format, {}, "file.json");
}

// ---- the brute force ----------------------------------------------------------------------------

float rounded(float v, const FloatFormat& format) {
  if (format.bits == 32) return v;
  return format.precision == kF16.precision ? kernels::widen(kernels::narrow<kernels::F16>(v))
                                            : kernels::widen(kernels::narrow<kernels::BF16>(v));
}

/// The quantiser of a file in plain floats: products, sums and quotients of 16-bit numbers in f32 round to 16
/// bits as the exact ones do.
struct Plain {
  Json json;
  FloatFormat format, arithmetic;
  float min, max, s, kept_s, kept_min;
  int bits, levels;
  bool stochastic, wraps, fma, e4m3;
  std::vector<float> u{0.5f};

  Plain(const Json& of, const FloatFormat& in) : json(of), format(in), arithmetic(in) {
    const auto named = [](const std::string& name, const FloatFormat& same) {
      return name == "f32" ? kF32 : name == "f16" ? kF16 : name == "bf16" ? kBf16 : same;
    };
    arithmetic = named(json["arithmetic"], format);
    bits = json["bits"], levels = json["levels"];
    e4m3 = json.value("codes", "whole") == "e4m3";
    stochastic = json["rounding"] == "stochastic", wraps = json["overflow"] == "wrap", fma = json["fma"];
    min = rounded(json["ranges"][0][0], format), max = rounded(json["ranges"][0][1], format);
    set_range();
    if (stochastic) {
      const int count = 1 << json["u"]["bits"].get<int>();
      u.clear();
      for (int k = 0; k < count; ++k)
        u.push_back((static_cast<float>(k) + json["u"]["offset"].get<float>()) / static_cast<float>(count));
    }
  }
  void set_range() {
    const float c = rounded(max - min, arithmetic);
    s = rounded(static_cast<float>(levels / (c + json["epsilon"].get<double>())), arithmetic);
    if (e4m3)
      s = rounded(
          rounded(std::max(std::fabs(min), std::fabs(max)) + json["epsilon"].get<float>(), arithmetic) /
              static_cast<float>(levels),
          arithmetic);
    kept_s = s, kept_min = min;
    if (json["kept_in"] == "bf16") kept_s = rounded(s, kBf16), kept_min = rounded(min, kBf16);
  }

  long raw(float z, float u_now) const {
    if (e4m3) {
      const int bits_of_number =
          kernels::narrow<kernels::F8E4M3>(std::clamp(rounded(z / s, arithmetic), -448.0f, 448.0f)).bits;
      return 126 + (bits_of_number & 0x80 ? -1 : 1) * (bits_of_number & 0x7f);
    }
    const float d = rounded(z - min, arithmetic);
    volatile float product = d * s;  // never contracted
    double t = rounded(product, arithmetic);
    if (stochastic) {
      t = static_cast<double>(fma && arithmetic.bits == 32 ? std::fma(d, s, u_now)
                                                           : static_cast<float>(t) + u_now) -
          0.5;
    }
    const long r = std::lrint(std::max(t, 0.0));
    return wraps ? r : std::min<long>(r, levels);
  }
  long most() const { return wraps ? (1L << bits) - 1 : e4m3 ? 252 : levels; }
  float value(long raw) const {
    if (e4m3) {
      const auto magnitude = static_cast<kernels::u8>(std::labs(raw - 126));
      return rounded(kernels::widen(kernels::F8E4M3{magnitude}) * (raw < 126 ? -kept_s : kept_s), arithmetic);
    }
    const auto code = static_cast<float>(raw & ((1L << bits) - 1));
    return rounded(rounded(code / kept_s, arithmetic) + kept_min, arithmetic);
  }
};

struct Found {
  double total = -1, wrapped = -1, bias = 0, maximum_wraps = 0;
  bool operator==(const Found&) const = default;
};

Found found(const QuantiserErrors& e) { return {e.total.value, e.wrapped.value, e.bias, e.maximum_wraps}; }

void expect_near(const Found& got, const Found& want, const std::string& what) {
  EXPECT_NEAR(got.total, want.total, 0x1p-48) << what;
  EXPECT_NEAR(got.wrapped, want.wrapped, 0x1p-48) << what;
  EXPECT_NEAR(std::fabs(got.bias), std::fabs(want.bias), 0x1p-44) << what;
  EXPECT_EQ(got.maximum_wraps, want.maximum_wraps) << what;
}

bool differs(const Found& a, const Found& b) {
  constexpr double kNear = 0x1p-40;
  return std::fabs(a.total - b.total) > kNear || std::fabs(a.wrapped - b.wrapped) > kNear ||
         std::fabs(std::fabs(a.bias) - std::fabs(b.bias)) > kNear || a.maximum_wraps != b.maximum_wraps;
}

/// Over x[i] with f'(x[i]) = slope[i] and what is kept of them, z[i].
Found brute_force(const Plain& plain, const std::vector<float>& x, const std::vector<float>& z,
                  const std::vector<double>& slope, const std::function<double(float value, float x)>& g) {
  Found worst;
  std::map<std::pair<float, bool>, double> known;
  const auto count = static_cast<double>(plain.u.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    double mean = 0;
    for (const float u : plain.u) {
      const long raw = plain.raw(z[i], u);
      const float value = plain.value(raw);
      mean += static_cast<double>(value) / count;
      const auto [entry, added] = known.try_emplace({value, x[i] >= kGeluXStar}, 0);
      if (added) entry->second = g(value, x[i]);
      double& most = raw > plain.most() ? worst.wrapped : worst.total;
      most = std::max(most, std::fabs(entry->second - slope[i]));
    }
    if (z[i] >= plain.min && z[i] <= plain.max && std::fabs(mean - z[i]) > std::fabs(worst.bias))
      worst.bias = mean - z[i];
  }
  for (const float u : plain.u) worst.maximum_wraps += (plain.raw(plain.max, u) > plain.most()) / count;
  return worst;
}

/// The numbers of the format in [from, to], with f' of each.
struct Elements {
  std::vector<float> x;
  std::vector<double> slope;

  Elements(const FloatFormat& format, double from, double to) {
    GeluOracle oracle;
    const Domain domain{format};
    for (std::int64_t i = domain.first_right(from); domain.at(i) <= to; ++i) {
      x.push_back(domain.at(i));
      slope.push_back(oracle.derivative(x.back()));
    }
  }
};

double slope_of_x(float value, float) {
  GeluOracle oracle;
  return oracle.derivative(value);
}

// ---- tests --------------------------------------------------------------------------------------

TEST(Quantiser, RefusesInOneLineWithThePlace) {
  const auto expect = [](const std::function<void(Json&)>& spoil, const std::string& place) {
    Json json = small_json();
    spoil(json);
    const std::string why = refusal_of([&] { errors_of(json, kF16); });
    EXPECT_NE(why.find("file.json: " + place), std::string::npos) << place << " | " << why;
    EXPECT_EQ(why.find('\n'), std::string::npos);
    EXPECT_LT(why.size(), 200u) << why;
  };
  expect([](Json& j) { j["bits"] = 0; }, "bits: is not from 1 to 8");
  expect([](Json& j) { j["bits"] = 9; }, "bits: is not from 1 to 8");
  expect([](Json& j) { j["bits"] = 3; }, "levels: is not from 1 to 7");
  expect([](Json& j) { j["levels"] = 0; }, "levels: ");
  expect([](Json& j) { j["levels"] = 1.5; }, "levels: is not a count");
  expect([](Json& j) { j["epsilon"] = -1; }, "epsilon: is negative");
  expect([](Json& j) { j["epsilon"] = "inf"; }, "epsilon: is not finite");
  expect([](Json& j) { j["epsilon"] = "nan"; }, "epsilon: is not finite");
  expect([](Json& j) { j["epsilon"] = 1e300; }, "ranges[0]: has the scale 0");
  expect([](Json& j) { j["group"] = 0; }, "group: is not positive");
  expect([](Json& j) { j["range"] = "guessed"; }, "range: 'guessed' is not one of exact, given, running");
  expect([](Json& j) { j["range"] = "running"; }, "top level: has not 'momentum' just for");
  expect([](Json& j) { j["momentum"] = 0.1; }, "top level: has not 'momentum' just for");
  expect([](Json& j) { j["range"] = "running", j["momentum"] = 0; }, "momentum: is not in (0, 1]");
  expect([](Json& j) { j["range"] = "exact"; }, "top level: has not 'x' just for");
  expect([](Json& j) { j["range"] = "exact", j["group"] = 1, j.erase("x"); }, "group: is 1");
  expect([](Json& j) { j["ranges"] = Json::array(); }, "ranges: has 0 ranges");
  expect([](Json& j) { j["ranges"][0] = {3, 0.5}; }, "ranges[0]: is not [from, to] with from < to");
  expect([](Json& j) { j["ranges"][0] = {3, 3}; }, "ranges[0]: is not [from, to] with from < to");
  expect([](Json& j) { j["ranges"][0] = {3, "nan"}; }, "ranges[0][1]: is not finite");
  expect([](Json& j) { j["ranges"][0] = {3}; }, "ranges[0]: has 1 elements");
  expect([](Json& j) { j["ranges"][0] = {1, "1.0001"}; }, "ranges[0]: has max - min = 0 in f16");
  expect([](Json& j) { j["ranges"][0] = {0, "1e-7"}; }, "ranges[0]: has the scale inf in f16");
  expect([](Json& j) { j["ranges"][0] = {-60000, 60000}; }, "ranges[0]: has max - min = inf in f16");
  expect([](Json& j) { j["ranges"][0] = {0.5, "0.5005"}; }, "ranges[0]: takes x up to 6 to the code ");
  expect([](Json& j) { j["x"] = {"1.0001", "1.0002"}; }, "ranges[0]: holds no x of the format");
  expect([](Json& j) { j["rounding"] = "down"; }, "rounding: 'down' is not one of nearest, stochastic");
  expect([](Json& j) { j["rounding"] = "nearest"; }, "top level: has not 'u' just for stochastic rounding");
  expect([](Json& j) { j["u"]["bits"] = 33; }, "u.bits: is not from 1 to 32");
  expect([](Json& j) { j["u"]["offset"] = 2; }, "u.offset: is not from 0 to 1");
  expect([](Json& j) { j["u"]["step"] = 2; }, "u: has an unknown key 'step'");
  expect([](Json& j) { j["overflow"] = "trap"; }, "overflow: 'trap' is not one of wrap, saturate");
  expect([](Json& j) { j["arithmetic"] = "f64"; }, "arithmetic: 'f64' is not one of own, f32, f16, bf16");
  expect([](Json& j) { j["kept_in"] = "fp8"; }, "kept_in: 'fp8' is not one of same");
  const auto e4m3 = [](Json& j) {
    j["codes"] = "e4m3", j["bits"] = 8, j["levels"] = 448, j["range"] = "exact", j["rounding"] = "nearest",
    j["overflow"] = "saturate";
    j.erase("x"), j.erase("u");
  };
  expect([](Json& j) { j["codes"] = "e5m2"; }, "codes: 'e5m2' is not one of whole, e4m3");
  expect([&](Json& j) { e4m3(j), j["bits"] = 7; }, "bits: is not 8, the width of e4m3");
  expect([&](Json& j) { e4m3(j), j["levels"] = 449; }, "levels: is not from 1 to 448");
  expect([&](Json& j) { e4m3(j), j["range"] = "given", j["x"] = {-1, 1}; },
         "range: is not exact, as it is for numbers of e4m3");
  expect([&](Json& j) { e4m3(j), j["rounding"] = "stochastic", j["u"] = {{"bits", 3}, {"offset", 1}}; },
         "rounding: is not nearest, as it is for numbers of e4m3");
  expect([&](Json& j) { e4m3(j), j["overflow"] = "wrap"; },
         "overflow: is not saturate, as it is for numbers of e4m3");
  expect([](Json& j) { j["keeps"] = "dx"; }, "keeps: 'dx' is not one of x, y");
  expect([](Json& j) { j["claims"]["R"] = 1; }, "claims: has an unknown key 'R'");
  expect([](Json& j) { j["thresholds"] = 1; }, "top level: has an unknown key 'thresholds'");
  const std::string whole = small_json().dump();
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_THROW(parse_foreign(whole.substr(0, length), "f"), kernels::SpecError) << length;
}

// curand_uniform(x) is x 2^-32 + 2^-33 in f32, of which 1 comes up once in 2^25 and 0 never.
TEST(Quantiser, UIsThatOfTheGenerator) {
  const Quantiser curand = *function_of(Json::parse(committed("mesa_gelu"))).quantiser;
  std::mt19937 random(3);
  for (int i = 0; i < 100'000; ++i) {
    const auto k = static_cast<std::uint32_t>(random() >> (i % 32));
    EXPECT_EQ(curand.u(k), static_cast<float>(k) * 0x1p-32f + 0x1p-33f);
  }
  EXPECT_EQ(curand.u(0xffffff80u), 1);
  EXPECT_LT(curand.u(0xffffff7fu), 1);
  EXPECT_EQ(curand.u(0), 0x1p-33);
}

TEST(Quantiser, TheAuditIsABruteForceIn16Bits) {
  for (const FloatFormat& format : {kF16, kBf16}) {
    const Elements right(format, 0.4375, 6), left(format, -4, -0.125);
    for (const bool negative : {false, true}) {
      for (int k = 0; k < 32; ++k) {
        Json json = small_json();
        if (negative) json["ranges"] = Json::array({Json::array({-3.3, -0.25})}), json["x"] = {-4, -0.125};
        if (k & 1) json["overflow"] = "saturate";
        if (k & 2) json["kept_in"] = "bf16";
        if (k & 4) json["arithmetic"] = "f32", json["fma"] = true;
        if (k & 8) json["bits"] = 8, json["levels"] = 255;
        if (k & 16) json["rounding"] = "nearest", json.erase("u");
        const Elements& elements = negative ? left : right;
        const Found want =
            brute_force(Plain(json, format), elements.x, elements.x, elements.slope, slope_of_x);
        const QuantiserErrors got = errors_of(json, format);
        expect_near(found(got), want, json.dump());
        EXPECT_GE(got.total_bound, want.total);
        EXPECT_LT(got.total_bound, want.total + 0x1p-45);
        EXPECT_GE(got.bias_bound, std::fabs(want.bias));
        EXPECT_EQ(got.wrapped.value < 0, json["overflow"] == "saturate") << "x goes beyond the range";
      }
    }
  }
}

// Codes that are numbers of e4m3, of which the largest magnitude of the group becomes 448.
TEST(Quantiser, NightlyTheAuditIsABruteForceOfE4m3) {
  for (const FloatFormat& format : {kF16, kBf16}) {
    for (const std::array<float, 2>& range : {std::array{-4.0f, 2.0f}, {-1.3f, 3.7f}, {-0.003f, 0.0025f}}) {
      for (const char* kept : {"same", "bf16"}) {
        for (const int levels : {448, 100}) {  // at 100, no number beyond 100 is used
          Json json = small_json();
          json["codes"] = "e4m3", json["bits"] = 8, json["levels"] = levels, json["epsilon"] = 1e-10,
          json["range"] = "exact", json["overflow"] = "saturate";
          json["rounding"] = "nearest", json["arithmetic"] = "f32", json["kept_in"] = kept,
          json["ranges"] = Json::array({range});
          json.erase("x"), json.erase("u");
          const Plain plain(json, format);
          const Elements elements(format, plain.min, plain.max);
          const Found want = brute_force(plain, elements.x, elements.x, elements.slope, slope_of_x);
          const QuantiserErrors got = errors_of(json, format);
          expect_near(found(got), want, json.dump());
          EXPECT_GT(got.total.value, 0) << json;
          EXPECT_GE(got.total_bound, want.total);
          EXPECT_EQ(got.step, 32 * static_cast<double>(plain.s));
        }
      }
    }
  }
}

// In f32, cells of x take the place of each x. The second stretch holds the maximum of f', where an error is
// greatest within a cell.
TEST(Quantiser, TheAuditBoundsABruteForceInF32) {
  for (const double from : {1.0, 0x1.6a0p+0}) {
    const double to = from + 0x1p-8;
    const Elements elements(kF32, from, to);
    for (int k = 0; k < 16; ++k) {
      Json json = small_json();
      json["bits"] = 5, json["levels"] = 31;
      json["x"] = {from, to};
      json["ranges"] = Json::array({Json::array({from - 0.0011, from + 0.003})});
      if (k & 1) json["overflow"] = "saturate";
      if (k & 2) json["kept_in"] = "bf16";
      if (k & 4) json["fma"] = true;
      if (k & 8) json["rounding"] = "nearest", json.erase("u");
      const Found want = brute_force(Plain(json, kF32), elements.x, elements.x, elements.slope, slope_of_x);
      const QuantiserErrors got = errors_of(json, kF32);
      EXPECT_LE(got.total.value, want.total + 0x1p-48) << json;
      EXPECT_GE(got.total_bound, want.total) << json;
      EXPECT_LT(got.total_bound, got.total.value + 1e-11) << json;
      EXPECT_EQ(got.wrapped.value < 0, want.wrapped < 0);
      if (want.wrapped >= 0) {
        EXPECT_LE(got.wrapped.value, want.wrapped + 0x1p-48) << json;
        EXPECT_GE(got.wrapped_bound, want.wrapped) << json;
        EXPECT_LT(got.wrapped_bound, got.wrapped.value + 1e-11) << json;
      }
      EXPECT_LE(std::fabs(got.bias), std::fabs(want.bias) + 0x1p-40) << json;
      EXPECT_GE(got.bias_bound, std::fabs(want.bias)) << json;
      EXPECT_LT(got.bias_bound, std::fabs(got.bias) + got.step) << json;
      EXPECT_EQ(got.maximum_wraps, want.maximum_wraps);
    }
  }
}

// What is kept of y is decoded on the side of x* where x is.
TEST(Quantiser, TheAuditIsABruteForceOfY) {
  GeluOracle oracle;
  const Elements elements(kF16, -3, -0.125);
  std::vector<float> y;
  for (const float x : elements.x) y.push_back(static_cast<float>(oracle.value(x, kF16)));
  const auto g = [&](float value, float x) { return oracle.derivative_at_value(value, x >= kGeluXStar); };
  for (const char* overflow : {"wrap", "saturate"}) {
    for (const char* range : {"given", "exact"}) {
      Json json = small_json();
      json["keeps"] = "y", json["overflow"] = overflow, json["x"] = {-3, -0.125}, json["range"] = range;
      json["ranges"] = Json::array({Json::array({-0.17, -0.0625})});
      Elements within = elements;
      std::vector<float> kept = y;
      const Plain plain(json, kF16);
      if (json["range"] == "exact") {  // only the y of the range, on either side
        json.erase("x");
        const Elements all(kF16, -12, 0);
        within.x.clear(), within.slope.clear(), kept.clear();
        for (std::size_t i = 0; i < all.x.size(); ++i) {
          const auto one = static_cast<float>(oracle.value(all.x[i], kF16));
          if (one < plain.min || one > plain.max) continue;
          within.x.push_back(all.x[i]), within.slope.push_back(all.slope[i]), kept.push_back(one);
        }
      }
      expect_near(found(errors_of(json, kF16)), brute_force(plain, within.x, kept, within.slope, g),
                  json.dump());
    }
  }
}

// A brute force of another arithmetic finds other figures, whichever part of it is another.
TEST(Quantiser, EveryPartOfTheArithmeticCounts) {
  const Elements elements(kF32, 1.0, 1.0 + 0x1p-8);
  Json json = small_json();
  json["bits"] = 5, json["levels"] = 30, json["epsilon"] = 1e-5, json["kept_in"] = "bf16", json["fma"] = true;
  json["x"] = {1.0, 1.0 + 0x1p-8};
  json["ranges"] = Json::array({Json::array({1.0 - 0.0011, 1.0 + 0.003})});
  const auto of = [&](const Json& changed) {
    return brute_force(Plain(changed, kF32), elements.x, elements.x, elements.slope, slope_of_x);
  };
  const auto got = [&](const Json& changed) { return found(errors_of(changed, kF32)); };
  const auto expect_other = [&](const char* key, const Json& value) {
    Json changed = json;
    changed[key] = value;
    EXPECT_TRUE(differs(of(json), of(changed))) << key;
    EXPECT_TRUE(differs(got(json), got(changed))) << key;
  };
  expect_other("levels", 29);
  expect_other("epsilon", 0);
  expect_other("kept_in", "same");
  expect_other("overflow", "saturate");
  expect_other("arithmetic", "f16");
  expect_other("ranges", Json::array({Json::array({1.0 - 0.0011, 1.0 + 0.00301})}));
  expect_other("u", {{"bits", 3}, {"offset", 0}});
  expect_other("u", {{"bits", 4}, {"offset", 1}});
  // One rounding less moves v by 2^-24 of itself, which shows in how often the maximum wraps.
  Json apart = Json::parse(committed("mesa_gelu"));
  const ForeignFunction fused = function_of(apart);
  apart["fma"] = false;
  const ForeignFunction rounded_twice = function_of(apart);
  const double c = 0x1.fc4af6p+0;
  EXPECT_NE(QuantisedGroup(*fused.quantiser, {0, c}, kF32).probability(c, 256),
            QuantisedGroup(*rounded_twice.quantiser, {0, c}, kF32).probability(c, 256));
}

TEST(Quantiser, AMaximumThatWrapsIsFound) {
  Json json = small_json();
  json["bits"] = 8, json["levels"] = 255, json["range"] = "exact";
  json["u"] = {{"bits", 10}, {"offset", 1}};
  json.erase("x");
  // Every c of a binade in f16, by brute force: 255 / c is rounded up for some, and c s reaches 255.125.
  std::int64_t wrapping = 0;
  double mean = 0, greatest = 0;
  float wraps = 0, holds = 0;
  Plain plain(json, kF16);
  for (int i = 0; i < 1024; ++i) {
    plain.min = 0, plain.max = 1 + static_cast<float>(i) / 1024;
    plain.set_range();
    double p = 0;
    for (const float u : plain.u) p += (plain.raw(plain.max, u) > 255) / 1024.0;
    (p > 0 ? wraps : holds) = plain.max;
    wrapping += p > 0;
    mean += p / 1024;
    greatest = std::max(greatest, p);
  }
  const std::vector<MaximumWraps> got = maximum_wraps(*function_of(json).quantiser, kF16);
  ASSERT_EQ(got.size(), 1u) << "every binade is alike";
  EXPECT_EQ(got[0].numbers, 1024);
  EXPECT_EQ(got[0].wrapping, wrapping);
  EXPECT_NEAR(got[0].mean, mean, 1e-12);
  EXPECT_EQ(got[0].greatest, greatest);
  EXPECT_NEAR(greatest, 0.125, 0.002);

  json["ranges"] = Json::array({Json::array({0, got[0].greatest_at}), Json::array({0, holds})});
  const ForeignFunction function = function_of(json);
  const QuantiserErrors found = quantiser_errors(function, 0, kF16, {}, "t");
  EXPECT_EQ(found.maximum_wraps, greatest);
  EXPECT_EQ(found.wrapped.x, static_cast<float>(got[0].greatest_at));
  EXPECT_EQ(found.wrapped.y, 0) << "the maximum became the minimum";
  EXPECT_NEAR(found.wrapped.value, found.wrapped.want - 0.5, 1e-12);
  EXPECT_NEAR(found.bias, -greatest * got[0].greatest_at, 0.002) << "and so its mean is far below it";
  const QuantiserErrors none = quantiser_errors(function, 1, kF16, {}, "t");
  EXPECT_EQ(none.maximum_wraps, 0);
  EXPECT_LT(none.wrapped.value, 0);
  json["overflow"] = "saturate";
  EXPECT_TRUE(maximum_wraps(*function_of(json).quantiser, kF16).empty());
  EXPECT_LT(quantiser_errors(function_of(json), 0, kF16, {}, "t").wrapped.value, 0);
}

// The quadrature over groups against groups drawn at random.
TEST(Quantiser, GroupsDrawnAtRandomHaveTheRms) {
  GeluOracle oracle;
  for (const auto& [name, published] :
       {std::pair{"actnn_2bit", 0.374}, {"actnn_4bit", 0.081}, {"coat_gelu", 0.0}}) {
    Json json = Json::parse(committed(name));
    const double rms = quantiser_group_rms(function_of(json), kF32, 1);
    if (published > 0) {
      EXPECT_NEAR(rms, published, 0.01 * published) << "as a prototype has it";
    }
    Json plain_json = json;
    if (json["rounding"] == "stochastic") plain_json["u"] = {{"bits", 1}, {"offset", 0.5}};
    plain_json["epsilon"] = std::stod(json["epsilon"].get<std::string>()),
    plain_json["ranges"] = Json::array({Json::array({-1, 1})});
    Plain plain(plain_json, kF32);
    std::mt19937_64 random(17);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> uniform;
    const auto of_group = json["group"].get<std::size_t>();
    const std::size_t groups = 76'800 / of_group;
    double square = 0;
    for (std::size_t i = 0; i < groups; ++i) {
      std::vector<float> x(of_group);
      for (float& v : x) v = normal(random);
      plain.min = *std::min_element(x.begin(), x.end()), plain.max = *std::max_element(x.begin(), x.end());
      plain.set_range();
      for (const float v : x) {
        const auto slope = [](double t) {
          return 0.5 * std::erfc(-t / std::sqrt(2.0)) + t * std::exp(-t * t / 2) / std::sqrt(2 * M_PI);
        };
        const double error = slope(plain.value(plain.raw(v, uniform(random)))) - slope(v);
        square += error * error / static_cast<double>(of_group * groups);
      }
    }
    EXPECT_NEAR(std::sqrt(square), rms, 0.02 * rms) << name;
  }
}

TEST(Quantiser, CommittedFilesGiveTheKnownFigures) {
  const auto at = [](const char* name, std::size_t index) {
    return quantiser_errors(function_of(Json::parse(committed(name))), index, kF32, usual_distributions(),
                            name);
  };
  // f' is steepest at 0, by 2 phi(0) = 0.7979, and a step is 8 / 255.
  const double step = 8.0 / 255 * 0.79788456;
  const QuantiserErrors saturated = at("mesa_gelu_saturated", 0), nearest = at("mesa_gelu_nearest", 0),
                        wrapping = at("mesa_gelu", 0);
  EXPECT_NEAR(saturated.total_bound, step, 1e-5);
  EXPECT_NEAR(nearest.total_bound, step / 2, 1e-5);
  EXPECT_LT(saturated.wrapped.value, 0);
  EXPECT_EQ(wrapping.total.value, saturated.total.value);
  EXPECT_NEAR(wrapping.wrapped.value, 1.1289, 1e-4) << "an x above the range takes the least f'";
  EXPECT_LT(std::fabs(saturated.bias), 2e-6);
  EXPECT_NEAR(std::fabs(nearest.bias), 4.0 / 255, 1e-5);
  for (const QuantiserErrors& e : {saturated, nearest}) {
    EXPECT_NEAR(e.under[1].mass, 1, 1e-12);
    EXPECT_LT(e.under[1].rms, e.total.value);
  }
  EXPECT_LT(nearest.under[1].rms, saturated.under[1].rms);
  // ActNN's scale in bf16: up to 2^-9 of the range beside what the minimum's rounding adds.
  const QuantiserErrors actnn = at("actnn_8bit", 2);
  EXPECT_NEAR(actnn.step, 0.048, 1e-5);
  EXPECT_GT(std::fabs(actnn.bias), 0.02);
  EXPECT_LT(std::fabs(actnn.bias), 12.24 * 0x1p-9 + 6.12 * 0x1p-9);
  // COAT's x^ is off by half a unit of e4m3 and a rounding of the scale to bf16; |x f''(x)| is at most
  // 0.3318.
  for (std::size_t range = 0; range < 3; ++range) {
    const QuantiserErrors coat = at("coat_gelu", range);
    EXPECT_LT(coat.total_bound, 0.3318 * (0x1p-4 + 0x1p-9) * 1.02) << "up to terms of second order";
    EXPECT_GT(coat.total.value, 0.3318 * 0x1p-4 * 0.8);
    EXPECT_NEAR(coat.under[1].rms, 0.006, 1e-4);
  }
  EXPECT_EQ(function_of(Json::parse(committed("coat_silu"))).quantiser->bits_per_element(kF32), 9);
  EXPECT_EQ(function_of(Json::parse(committed("actnn_2bit"))).quantiser->bits_per_element(kF32), 2.125);
  EXPECT_EQ(function_of(Json::parse(committed("actnn_4bit"))).quantiser->bits_per_element(kF32), 4.125);
}

// A running mean lags behind the maxima, and about half of them lie above it. It does not depend on the scale
// of x.
TEST(Quantiser, RunningRangesWrapInManySteps) {
  Json json = Json::parse(committed("mesa_gelu"));
  const auto share = [&](const FloatFormat& format) {
    return running_wraps(*function_of(json).quantiser, format, 2000).share();
  };
  EXPECT_GT(share(kF32), 0.3);
  EXPECT_LT(share(kF32), 0.5);
  EXPECT_NEAR(share(kF16), share(kF32), 0.1);
  json["momentum"] = 1;  // the group's own range: what wraps is the maximum, hardly ever
  EXPECT_LT(share(kF32), 0.001);
  EXPECT_GT(share(kF16), 0.001);

  // A group so small that all of its elements can be drawn.
  constexpr int kElements = 64, kSteps = 8000;
  json["momentum"] = 0.1, json["group"] = kElements, json["fma"] = false;
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;
  Json plain_json = small_json();
  plain_json["bits"] = 8, plain_json["levels"] = 255;
  Plain plain(plain_json, kF32);
  float min = -2, c = 4;
  int wrapping = 0;
  for (int step = -200; step < kSteps; ++step) {
    std::vector<float> x(kElements);
    for (float& v : x) v = normal(random);
    const float least = *std::min_element(x.begin(), x.end()),
                greatest = *std::max_element(x.begin(), x.end());
    plain.min = min -= 0.1f * (min - least);
    c -= 0.1f * (c - (greatest - least));
    plain.s = 255 / c;
    bool wraps = false;
    for (const float v : x) wraps = plain.raw(v, uniform(random)) > 255 || wraps;
    wrapping += step >= 0 && wraps;
  }
  EXPECT_NEAR(running_wraps(*function_of(json).quantiser, kF32, kSteps).share(),
              static_cast<double>(wrapping) / kSteps, 0.03);
}

}  // namespace
}  // namespace outgrad::validation
