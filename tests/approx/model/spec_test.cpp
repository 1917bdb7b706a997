#include "approx/model/spec.h"

#include "approx/model/emit.h"
#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "tests/header_names.h"
#include "tests/refusal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <random>

namespace outgrad::approx {
namespace {

const std::string kSpec = kernels::read_file(std::string(OUTGRAD_SOURCE_DIR) + "/approx/specs/gelu_f32.json");

std::string refusal_of_spec(const std::string& text) {
  return refusal_of([&] { parse_spec(text, "spec.json"); });
}

std::string with(const std::string& from, const std::string& to) {
  std::string text = kSpec;
  text.replace(text.find(from), from.size(), to);
  return text;
}

// A function of one's own, under a name of its own.
std::string with_expression(const std::string& expression) {
  std::string text = with("\"activation\": \"gelu\"", "\"expression\": \"" + expression + "\"");
  const std::string name = "\"gelu_f32\"";
  return text.replace(text.find(name), name.size(), "\"own\"");
}

// The least error of use is to the scale of f', which may be 10^10 or 10^-30.
TEST(Spec, ATargetMayBeOfAnySize) {
  for (const auto& [text, target] :
       {std::pair{"abs:2^26.25", 0x1p26 * std::sqrt(std::sqrt(2.0))}, {"abs:2^-105", 0x1p-105}}) {
    EXPECT_DOUBLE_EQ(
        parse_spec(with("\"target\": \"abs:2^-26.2\"", std::string("\"target\": \"") + text + '"'),
                   "spec.json")
            .target,
        target);
  }
}

TEST(Spec, ReadsTheCommittedOne) {
  const Spec spec = parse_spec(kSpec, "spec.json");
  EXPECT_EQ(spec.name, "gelu_f32");
  EXPECT_EQ(spec.target, std::exp2(-26.2));
  ASSERT_TRUE(spec.as<BackwardSpec>());
  EXPECT_EQ(spec.backward().accuracy, AccuracyClass::absolute);
  EXPECT_EQ(spec.backward().left->rows() + spec.backward().cells, 32);
}

TEST(Spec, SaysFilePlaceAndReason) {
  EXPECT_EQ(refusal_of_spec(with("\"gelu\"", "\"relu\"")),
            "spec.json: activation: activation 'relu' is unknown; known: gelu, gelu_tanh, quick_gelu, silu, "
            "swish, mish, tanh, sigmoid, softplus, elu; did you mean 'gelu'?");
  EXPECT_EQ(refusal_of_spec(with("\"f32\"", "\"f64\"")),
            "spec.json: format: format 'f64' is unknown; known: f32, f16, bf16, e4m3, e5m2, mxfp8, "
            "f16_parity, bf16_parity");
  EXPECT_EQ(
      refusal_of_spec(
          R"({"schema": "outgrad.spec/2", "name": "t", "kind": "backward", "activation": "gelu",
              "format": "f16_parity", "target": "oracle"})"),
      "spec.json: format: a parity format has no direct table, whose entries are found by y and a mask");
  EXPECT_EQ(
      refusal_of_spec(
          R"({"schema": "outgrad.spec/2", "name": "t", "kind": "backward", "activation": "gelu",
              "format": "mxfp8", "target": "oracle"})"),
      "spec.json: format: mxfp8 has no direct table: what a code stands for depends on the scale of its "
      "block");
  for (const Format format : kFormats) {
    const std::string table = fmt::format(
        R"({{"schema": "outgrad.spec/2", "name": "t", "kind": "backward", "activation": "gelu",
            "format": "{}", "target": "oracle"}})",
        to_string(format));
    EXPECT_EQ(refusal_of_spec(table).empty(), has_direct_table(format)) << to_string(format);
  }
  EXPECT_EQ(
      refusal_of_spec(with("2^-26.2", "1e-7")),
      "spec.json: target: 'abs:1e-7' is none of abs:2^-N, rel:2^-N, ulp:N, stored:RATIO, oracle, rounded");
  EXPECT_EQ(refusal_of_spec(with("abs:2^-26.2", "stored:1.05")),
            "spec.json: target: counts the values of a 16- or 8-bit format; the format is f32");
  EXPECT_EQ(refusal_of_spec(with_expression("x*")),
            "spec.json: expression: column 3: the expression ends here");
  EXPECT_EQ(
      refusal_of_spec(with("\"activation\": \"gelu\"", "\"activation\": \"gelu\", \"expression\": \"x\"")),
      "spec.json: activation: give either it or an expression");
  EXPECT_EQ(refusal_of_spec(with("\"degree\": 6", "\"degree\": 60")),
            "spec.json: degree: 60 is outside 1 .. 12");
  EXPECT_EQ(refusal_of_spec(with("\"degree\": 6", "\"degree\": 6.5")),
            "spec.json: degree: must be an integer");
  EXPECT_EQ(refusal_of_spec(with("\"degree\": 6", "\"dgree\": 6")),
            "spec.json: degree: is missing; 'dgree' is no key");
  EXPECT_EQ(refusal_of_spec(with("\"degree\": 6", "\"degree\": 6, \"x\": 1")),
            "spec.json: x: is not a key of this schema");
  EXPECT_EQ(refusal_of_spec(with("\"degree\": 6", "\"degree\": 6, \"sheme\": \"horner\"")),
            "spec.json: sheme: is not a key of this schema; did you mean 'scheme'?");
  EXPECT_EQ(
      refusal_of_spec(with("\"half_octaves\": 1", "\"half_octaves\": 2")),
      "spec.json: cells: cells and rows of the left segment add up to 33, not to a power of two up to 1024");
  EXPECT_EQ(refusal_of_spec(with("\"edge_log2\": -3", "\"edge_log2\": 7")),
            "spec.json: left_segment.edge_log2: 7 is outside -60 .. 6");
  // A parameter that the function does not have is no parameter of it.
  for (const std::string function : {"gelu", "elu", "swish"}) {
    const std::string text = with("\"activation\": \"gelu\"",
                                  "\"activation\": \"" + function + "\", \"parameters\": {\"beta\": 1.5}");
    EXPECT_EQ(refusal_of_spec(text),
              function == "swish" ? "" : "spec.json: parameters.beta: is of swish, not of " + function);
  }
  EXPECT_EQ(refusal_of_spec("[1]"), "spec.json: top level: must be an object");
  EXPECT_EQ(refusal_of_spec("{"),
            "spec.json: line 1, column 2: is not JSON: unexpected end of input; expected string literal");
  EXPECT_EQ(refusal_of_spec("{\"schema\": 1e999}"), "spec.json: JSON: a number is beyond double's range");
}

TEST(Spec, AProductsQuotientsAreAskedForInFull) {
  const std::string text = kernels::read_file(kRoot + "/approx/specs/silu_f16_product.json");
  const auto refusal = [&](const std::string& part, const std::string& other) {
    std::string changed = text;
    changed.replace(changed.find(part), part.size(), other);
    return refusal_of_spec(changed);
  };
  EXPECT_EQ(parse_spec(text, "spec.json").backward().product, Format::f16);
  EXPECT_EQ(refusal("\"product\": \"f16\"", "\"product\": \"f32\""),
            "spec.json: product: must be f16 or bf16");
  EXPECT_EQ(refusal("\"format\": \"f32\"", "\"format\": \"f16\""),
            "spec.json: format: must be f32 beside product: z / b is an fp32 number");
  EXPECT_EQ(refusal("abs:2^-13", "rel:2^-13"), "spec.json: target: must be abs:2^-N beside product");
  EXPECT_EQ(refusal("\"storage\": {\"ratio\": 1.02, \"regret\": \"2^-3\"}", "\"scheme\": \"horner\""),
            "spec.json: storage: is missing beside product");
}

TEST(Spec, WhatItQuotesStaysShort) {
  const std::string rubbish(100000, 'x');
  EXPECT_LT(refusal_of_spec(with("\"degree\": 6", "\"degree\": 6, \"" + rubbish + "\": 1")).size(), 600U);
  for (const char* value : {"outgrad.spec/2", "gelu_f32", "backward", "f32", "abs:2^-26.2"}) {
    EXPECT_LT(refusal_of_spec(with(value, value + rubbish)).size(), 600U) << value;
  }
  EXPECT_EQ(refusal_of_spec(with_expression("x+\\n1")),
            "spec.json: expression: column 3: the byte 0x0a is not expected here");
}

TEST(Spec, ALayoutThatIsNotGivenIsToBeFound) {
  const auto refusal = [](const std::string& more) {
    return refusal_of_spec(
        R"x({"schema": "outgrad.spec/2", "name": "t", "kind": "backward", "expression": "tanh(x)",
             "format": "bf16", )x" +
        more + "}");
  };
  EXPECT_EQ(refusal(R"("target": "abs:2^-6")"), "");
  EXPECT_EQ(refusal(R"("target": "abs:2^-6", "degree": 3)"), "");
  EXPECT_EQ(refusal(R"("target": "abs:2^-6", "cells": 16)"), "spec.json: degree: is missing");
  EXPECT_EQ(refusal(R"("target": "ulp:1", "degree": 3)"),
            "spec.json: cells: is missing (a layout is found for targets abs:2^-N alone): \"degree\": 3, "
            "\"cells\": 16 is a start");
  EXPECT_EQ(
      refusal(
          R"("target": "abs:2^-6", "left_segment": {"edge_log2": -3, "half_octaves": 0, "merge_log2": -6})"),
      "spec.json: cells: is missing beside left_segment: give \"degree\": 3, \"cells\": 12, or leave "
      "left_segment out, and the layout is found");
}

// A specification's name becomes a struct of C++, and so does a fit's.
TEST(Spec, NamesAreThoseWhoseHeadersCompileNightly) {
  auto fit = nlohmann::ordered_json::parse(
      kernels::read_file(std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/fits/softplus_bf16.json"));
  const Fit model = fit_from_json(fit.dump(), "fit.json");
  const auto header = [&](const std::string& name) {
    Fit own = model;
    own.name = name, own.activation = "expression";
    return emit_header(own, "fit.json");
  };
  const auto refusal = [](const std::string& name) {
    const nlohmann::json spec{{"schema", "outgrad.spec/2"},
                              {"name", name},
                              {"kind", "backward"},
                              {"expression", "softplus(x)"},
                              {"format", "bf16"},
                              {"target", "abs:2^-8"},
                              {"degree", 2},
                              {"cells", 16}};
    return refusal_of_spec(spec.dump());
  };
  tests::expect_names_compile(header, refusal);
  EXPECT_EQ(refusal("table"), "spec.json: name: 'table' gives the type Table, which every header uses");
  EXPECT_EQ(refusal("mish_bf16"),
            "spec.json: name: 'mish_bf16' is kept for the library's own header of mish");
  for (const char* name : {"table", "n_a_n", "_1x"}) {
    fit["name"] = name;
    EXPECT_THROW(fit_from_json(fit.dump(), "fit.json"), kernels::SpecError) << name;
  }
  fit["name"] = "softplus_f16", fit["activation"] = "expression";
  EXPECT_THROW(fit_from_json(fit.dump(), "fit.json"), kernels::SpecError);
}

TEST(Spec, MutationsAreRefusedOrParsedNeverFatal) {
  std::mt19937 random(3);
  std::uniform_int_distribution<size_t> place(0, kSpec.size() - 1);
  std::uniform_int_distribution<int> byte(0, 255);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = kSpec;
    for (int k = 0; k <= i % 3; ++k) text[place(random)] = static_cast<char>(byte(random));
    refused += !refusal_of_spec(text).empty();
  }
  EXPECT_GT(refused, 15000);
}

}  // namespace
}  // namespace outgrad::approx
