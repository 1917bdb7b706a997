// A layout that is found reaches the target in the fit too, and a refusal names a target or a layout that
// does.
#include "approx/search/layouts.h"

#include "approx/search/fitter.h"
#include "tests/refusal.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace outgrad::approx {
namespace {

Spec own_spec(const std::string& expression, const std::string& format, const std::string& rest) {
  return parse_spec(
      fmt::format(
          R"({{"schema": "outgrad.spec/2", "name": "own_x", "kind": "backward", "expression": "{}",
              "format": "{}", {}}})",
          expression, format, rest),
      "spec.json");
}

std::string refusal_of_fit(const Spec& spec) {
  return refusal_of([&] { fit(spec, 0, /*advises=*/true); });
}

TEST(Layouts, TheOneThatIsFoundReachesTheTarget) {
  // g = 1 - y^2 of tanh: one row of degree 2 is exact.
  const Fit exact = fit(own_spec("tanh(x)", "bf16", R"("target": "abs:2^-6")"), 0);
  EXPECT_EQ(exact.as<BackwardModel>()->kRows, 1);
  EXPECT_EQ(exact.as<BackwardModel>()->kDegree, 2);
  // g = 1 - exp(-y) of softplus, and a degree that is asked for.
  const Fit found = fit(own_spec("log(1+exp(x))", "f32", R"("target": "abs:2^-10", "degree": 4)"), 0);
  EXPECT_EQ(found.as<BackwardModel>()->kDegree, 4);
  EXPECT_LE(found.as<BackwardModel>()->kA, 0x1p-10);
}

// The edge of a left segment is the largest power of two below |y*|: one that no specification may have was
// tried, and the function refused for it.
TEST(Layouts, OfAShallowOrADeepMinimumAreLayoutsOfASpecification) {
  for (const auto& [expression, segments] : {std::pair("x*sigmoid(x-20)", true),
                                             {"x*sigmoid(1e6*x)", true},
                                             {"x*sigmoid(x-45)", false},
                                             {"x*sigmoid(x)-300*exp(-x^2)", false}}) {
    SCOPED_TRACE(expression);
    const Spec spec = own_spec(expression, "bf16", R"("target": "abs:2^-8")");
    bool segmented = false;
    for (const Ladder& ladder : absolute_layouts(Format::bf16, Composite(spec.activation))) {
      segmented |= ladder[0].rows.find("left_segment") != std::string::npos;
      with_layout(spec, fmt::format("\"degree\": {}, {}", ladder[0].degree, ladder[0].rows));
    }
    EXPECT_EQ(segmented, segments);
  }
}

TEST(Layouts, NightlyARefusalNamesWhatReachesTheTarget) {
  // No polynomial of degree 1 on 8 cells reaches this: the line ends with members that do.
  const std::string tail = "; try ";
  const std::string coarse =
      refusal_of_fit(own_spec("log(1+exp(x))", "f32", R"("target": "abs:2^-10", "degree": 1, "cells": 8)"));
  ASSERT_NE(coarse.find(tail), std::string::npos) << coarse;
  EXPECT_EQ(
      refusal_of_fit(own_spec("log(1+exp(x))", "f32",
                              R"("target": "abs:2^-10", )" + coarse.substr(coarse.find(tail) + tail.size()))),
      "");
  // Nothing that is tried reaches 2^-60: the line ends with a target that something does.
  const std::string fine =
      refusal_of_fit(own_spec("log(1+exp(x))", "f32", R"("target": "abs:2^-60", "degree": 2)"));
  const std::string reached = "one reaches ";
  ASSERT_NE(fine.find(reached), std::string::npos) << fine;
  EXPECT_EQ(refusal_of_fit(own_spec(
                "log(1+exp(x))", "f32",
                R"("degree": 2, "target": ")" + fine.substr(fine.find(reached) + reached.size()) + "\"")),
            "");
  // The rows of g = 1 - y^2 are exact but for roundings, and a target that is noise is no advice.
  const std::string exact = refusal_of_fit(own_spec("tanh(x)", "bf16", R"("target": "abs:2^-60")"));
  EXPECT_EQ(
      refusal_of_fit(own_spec("tanh(x)", "bf16",
                              R"("target": ")" + exact.substr(exact.find(reached) + reached.size()) + "\"")),
      "")
      << exact;
  // Keys that the advice cannot stand beside are named.
  const std::string own =
      R"("degree": 3, "cells": 12, "left_segment": {"edge_log2": -3, "half_octaves": 0, "merge_log2": -6})";
  const std::string edge = refusal_of_fit(
                        own_spec("x*normal_cdf(2*x)", "bf16", R"("target": "abs:2^-8", )" + own)),
                    without = " without \"left_segment\"";
  ASSERT_TRUE(edge.ends_with(without)) << edge;
  const size_t from = edge.find(tail) + tail.size();
  const std::string advised = edge.substr(from, edge.size() - without.size() - from);
  EXPECT_EQ(refusal_of_fit(own_spec("x*normal_cdf(2*x)", "bf16", R"("target": "abs:2^-8", )" + advised)), "")
      << edge;
  // What has failed is not advised.
  const std::string again = R"("degree": 3, "cells": 1, "centred": false)";
  const std::string failed =
      refusal_of_fit(own_spec("tanh(x)", "bf16", R"("target": "abs:2^-52.73", )" + again));
  EXPECT_EQ(failed.find(tail + again), std::string::npos) << failed;
}

// Rows without values that can be told apart ended the search of a layout in a segmentation fault.
TEST(Layouts, ARowWithTooFewValuesIsRefusedInWords) {
  for (const auto& [expression, format, rest, why] :
       std::initializer_list<std::tuple<const char*, const char*, const char*, const char*>>{
           {"tanh((1.3705*x))", "bf16", R"("target": "abs:2^-3", "degree": 3, "cells": 2, "y_max": 1.049)",
            "y_max: 1.049 is beyond f's largest value; 1 is not"},
           {"tanh((0.77487*x))", "f16",
            R"("target": "abs:2^-3", "degree": 2, "split": "levelled", "y_max": 2.041)",
            "y_max: 2.041 is beyond f's largest value; 1 is not"},
           {"2+tanh(x)", "bf16", R"("target": "abs:2^-3", "degree": 2, "cells": 2, "y_max": 1)",
            "y_max: 1 is not above 1: no y is left to be fitted"},
           {"9.562e-05*tanh(5.06*x)-13.54", "bf16", R"("target": "abs:2^-12", "degree": 2, "cells": 32)",
            "y in [-13.5401, -13.5399] is too far from 0 for 32 cells of equal width"},
       }) {
    const std::string found = refusal_of_fit(own_spec(expression, format, rest));
    EXPECT_NE(found.find(why), std::string::npos) << expression << ": " << found;
  }
  // Far from 0 cells lie where the values are.
  for (const char* cells : {R"("cells": 4)", R"("cells": 1, "centred": false)"}) {
    EXPECT_EQ(refusal_of_fit(own_spec("0.0004953*sigmoid(0.4574*x)+3", "bf16",
                                      std::string(R"("target": "abs:2^-3", "degree": 2, )") + cells)),
              "");
  }
}

}  // namespace
}  // namespace outgrad::approx
