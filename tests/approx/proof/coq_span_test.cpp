// The fp32 numbers are cut into spans that leave none out, and Coq accepts the kernel's error over one of
// them but nothing that is a little wrong; exhaustively, at every fp32 number.
#include "approx/proof/coq_span.h"

#include "approx/proof/coq_text.h"
#include "kernels/eval.h"
#include "kernels/generated/gelu_f32.h"
#include "tests/approx/proof/coq_folder.h"
#include "tests/approx/shared.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <regex>
#include <string>
#include <utility>

namespace outgrad::approx::coq {
namespace {

const char* const kSpanFits[] = {"gelu_f32", "gelu_tanh_f32", "silu_f32"};

/// Ends of a span, in the order of its numbers: -bits where y < 0.
std::pair<int, int> ends_of(const WitnessScript& script) {
  int first = 0, last = 0;
  const std::string& text = script.text;
  EXPECT_EQ(std::sscanf(text.c_str() + text.find("first := Eval"),
                        "first := Eval vm_compute in at_numeral (%d)", &first),
            1);
  EXPECT_EQ(std::sscanf(text.c_str() + text.find("last := Eval"),
                        "last := Eval vm_compute in at_numeral (%d)", &last),
            1);
  return {first, last};
}
float number_of(int numeral) {
  const float magnitude = kernels::float_of(static_cast<std::uint32_t>(std::abs(numeral)));
  return numeral < 0 ? -magnitude : magnitude;
}

TEST(CoqSpans, LeaveNoNumberOutAndAreOfOneRow) {
  for (const char* const name : kSpanFits) {
    const Fit fit = committed(name);
    const auto& model = *fit.as<BackwardModel>();
    const double y_star = Composite(activation_from_expression(fit.function)).y_star().to_double();
    std::map<bool, int> next;
    const Groups groups = span_scripts(fit, name);
    for (const WitnessScript& script : groups.at(2)) {
      const bool right = script.name.ends_with("_right.v");
      const auto [first, last] = ends_of(script);
      if (next.contains(right)) {
        EXPECT_EQ(first, next[right]) << script.name;
      } else {
        EXPECT_GE(number_of(first), y_star);
        EXPECT_LT(number_of(first - 1), y_star);
      }
      next[right] = last + 1;
      constexpr int kLooks = 1000;
      for (int i = 0; i <= kLooks; ++i) {
        const float y = number_of(first + static_cast<int>((std::int64_t{last} - first) * i / kLooks));
        EXPECT_EQ(deployed_place(model, y, right).row, script.row) << script.name << ": " << y;
      }
    }
    EXPECT_EQ(number_of(next[true] - 1), model.kYMax);
    EXPECT_EQ(next[false], 0);
  }
}

/// J (z' - z) / (t + w) of a span in the coordinate, with the slope J: what the constants change there.
double constants_error_of(const std::string& text) {
  static const std::regex kNumber(R"(\((-?\d+)(?: / 2 \^ (\d+))?\))");
  const size_t begin = text.find("constants_error (") + 16;
  std::vector<double> numbers;
  for (std::sregex_iterator i(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(), kNumber);
       numbers.size() < 5; ++i)
    numbers.push_back(std::ldexp(std::stod((*i)[1]), (*i)[2].matched ? -std::stoi((*i)[2]) : 0));
  return numbers[4] * (numbers[1] - numbers[0]) / (numbers[2] + numbers[3]);
}

TEST(CoqSpans, ChangeNoMoreByTheConstantsThanThereIsRoomFor) {
  for (const char* const name : kSpanFits) {
    const Fit fit = committed(name);
    for (const WitnessScript& script : span_scripts(fit, name).at(2)) {
      if (script.text.find("constants_error (") != std::string::npos) {
        const auto& model = *fit.as<BackwardModel>();
        const auto row = std::ranges::find(model.pieces, script.row, &Piece::row);
        EXPECT_LE(row->certified + row->evaluation + constants_error_of(script.text), model.kAB + model.kK)
            << script.name;
      }
    }
  }
}

// k of docs/proofs.md, where K is k / |s| at most.
TEST(CoqSpans, SayHowKFallsWhereTheCoordinateGrows) {
  const std::string theorem = span_scripts(committed("gelu_f32"), "").at(3).at(0).text;
  double k = 0;
  int places = 0;
  ASSERT_EQ(std::sscanf(theorem.c_str() + theorem.find("Definition k := "), "Definition k := %lf / 2 ^ %d.",
                        &k, &places),
            2);
  EXPECT_LE(std::log2(std::ldexp(k, -places)), -28.67);
  EXPECT_GT(std::log2(std::ldexp(k, -places)), -28.68);
}

TEST(CoqSpans, AreOfTheKernelsThatTheLibraryHas) {
  for (const char* const name : {"gelu_bf16", "mish_f32", "silu_bf16_product", "gelu_forward"})
    EXPECT_THROW((void)span_scripts(committed(name), name), kernels::SpecError) << name;
}

using CoqSpan = CoqFolder;

// Row 5 of GELU, the first of its right segment.
TEST_F(CoqSpan, NightlyIsAcceptedAndNothingALittleWrong) {
  const Fit fit = committed("gelu_f32");
  ASSERT_TRUE(has_library(fit.function, true));
  const Groups groups = span_scripts(fit, "");
  const WitnessScript& kernel = groups[0].at(0);
  EXPECT_TRUE(accepts(kernel));
  const Groups bounds = scripts(fit, "", {5});
  for (const WitnessScript& script : bounds[1]) EXPECT_TRUE(accepts(script));
  const auto span = std::ranges::find(groups[2], "gelu_f32_span_5_right.v", &WitnessScript::name);
  ASSERT_NE(span, groups[2].end());
  EXPECT_TRUE(accepts(*span));

  // The kernel, against the compiled one.
  constexpr int kStep = 2097143, kCount = 2048;
  const auto same = [&](std::uint64_t results) {
    return same_results(fit.name, "24 128", kStep, kCount, results);
  };
  const std::uint64_t hash =
      Compiled<float, kernels::generated::GeluF32, void>{Format::f32}.hash_of_results(kStep, kCount);
  EXPECT_TRUE(accepts(same(hash)));
  EXPECT_TRUE(refuses(same(hash + 1), kUnequal));

  // A number more at either end is of another row.
  constexpr const char* kOtherSpan = "\"core_span kernel true true 5 first last = true\"";
  const auto [first, last] = ends_of(*span);
  const auto stretched = [&](int from, int to) {
    const auto value = [](int numeral) {
      const auto [integer, exponent] = integer_and_exponent(static_cast<double>(number_of(numeral)));
      return fmt::format("{} / 2 ^ {}", integer, -exponent);
    };
    WitnessScript script = *span;
    for (const auto& [what, was, is] : {std::tuple("first", first, from), std::tuple("last", last, to)}) {
      script = with(script, fmt::format("{} := Eval vm_compute in at_numeral ({})", what, was),
                    fmt::format("{} := Eval vm_compute in at_numeral ({})", what, is));
      script = with(script, fmt::format("value {} = {}.", what, value(was)),
                    fmt::format("value {} = {}.", what, value(is)));
    }
    return script;
  };
  EXPECT_TRUE(accepts(stretched(first, last)));
  EXPECT_TRUE(refuses(stretched(first - 1, last), kOtherSpan));
  EXPECT_TRUE(refuses(stretched(first, last + 1), kOtherSpan));

  // A lower claim, a coefficient that is not the kernel's, and a kernel whose right segment begins later.
  const BackwardModel& model = *fit.as<BackwardModel>();
  const Piece& piece = *std::ranges::find(model.pieces, 5, &Piece::row);
  Fit claiming = fit;
  claiming.as<BackwardModel>()->kAB = 0.999 * (piece.certified + piece.evaluation);
  claiming.as<BackwardModel>()->kK = 0;
  const Groups claim = span_scripts(claiming, "");
  EXPECT_TRUE(refuses(*std::ranges::find(claim[2], span->name, &WitnessScript::name), "Cannot find witness"));
  const auto refused_with = [&](const auto& change, const char* error) {
    Fit other = fit;
    change(*other.as<BackwardModel>());
    EXPECT_TRUE(accepts(span_scripts(other, "")[0].at(0)));
    EXPECT_TRUE(refuses(*span, error));
  };
  refused_with([](BackwardModel& m) { m.pieces.at(5).c[2] *= 1.0001F; }, "Unable to unify");
  refused_with([](BackwardModel& m) { m.kRightS *= 1.001F; }, kOtherSpan);
}

class CoqSpanExhaustive : public CoqFolder, public testing::WithParamInterface<const char*> {};

TEST_P(CoqSpanExhaustive, AcceptsEveryNumber) {
  const Fit fit = committed(GetParam());
  const CheckedFit checked = prove_all(scripts(fit, GetParam()), fit);
  EXPECT_NE(std::ranges::find(checked.bounds, std::string(GetParam()) + "_bound.v", &Checked::file),
            checked.bounds.end());
}

INSTANTIATE_TEST_SUITE_P(Committed, CoqSpanExhaustive, testing::ValuesIn(kSpanFits),
                         [](const auto& fit) { return std::string(fit.param); });

}  // namespace
}  // namespace outgrad::approx::coq
