// Forward fits that round correctly: what is fitted against the C library's erfc in long double, which shares
// nothing with the fitter.
#include "approx/search/rounded_forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "approx/function/activations.h"
#include "approx/function/composite.h"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/host/errors.h"
#include "tests/approx/shared.h"

namespace outgrad::approx {
namespace {

RoundedForwardSpec spec_of(Format format) {
  return read_spec(std::string(OUTGRAD_SOURCE_DIR "/approx/specs/gelu_forward_") + to_string(format) +
                   ".json")
      .rounded.value();
}

RoundedForwardModel fitted(const RoundedForwardSpec& spec) {
  Stage rows("rows");
  return fit_rounded_forward(gelu(), spec, "tried", rows);
}

const RoundedForwardModel& shipped(Format format) {
  static const RoundedForwardModel f16 = fitted(spec_of(Format::f16)), bf16 = fitted(spec_of(Format::bf16));
  return format == Format::f16 ? f16 : bf16;
}

/// The model's rows as kernels/eval.h reads them.
struct Rows {
  const RoundedForwardModel& m;
  [[nodiscard]] float at(kernels::u32 row, int k) const {
    return m.pieces.at(row % static_cast<kernels::u32>(m.kRows)).c[static_cast<size_t>(k)];
  }
};

template <class T>
unsigned deployed(const RoundedForwardModel& m, float x) {
  return kernels::narrow<T>(kernels::evaluate_forward(kernels::FloatOps{}, m, Rows{m}, x)).bits;
}

template <class T>
void expect_every_x_rounded(const RoundedForwardModel& m) {
  int wrong = 0;
  for (unsigned code = 0; code < 0x10000; ++code) {
    const float x = kernels::widen(T{static_cast<kernels::u16>(code)});
    if (std::isnan(x)) continue;
    const unsigned got = deployed<T>(m, x);
    const auto wide = static_cast<long double>(x);
    const long double f = std::isinf(x)
                              ? (x > 0 ? wide : -0.0L)
                              : wide * std::erfc(-wide * 0.707106781186547524400844362104849039L) / 2;
    // The neighbours of a correctly rounded value are no nearer. Beyond the largest number the middle counts
    // as if there were another one.
    const auto value = [](unsigned bits) {
      return static_cast<long double>(kernels::widen(T{static_cast<kernels::u16>(bits)}));
    };
    if (std::isinf(x) || f == 0) {
      wrong += value(got) != f || std::signbit(value(got)) != std::signbit(x);
      continue;
    }
    const long double distance = std::abs(value(got) - f);
    const unsigned magnitude = got & 0x7fffu, sign = got & 0x8000u;
    for (const unsigned other : {magnitude + 1, magnitude - (magnitude > 0 ? 1 : 0)}) {
      if (other == magnitude || !std::isfinite(value(other))) continue;
      const long double theirs = std::abs(value(sign | other) - f);
      // Next to 0 long double loses what f(x) has beyond x/2, which is positive: a tie goes up.
      wrong += distance > theirs || (distance == theirs && value(got) < value(sign | other));
    }
    wrong += !std::isfinite(value(got)) || (sign != 0) != std::signbit(x);
  }
  EXPECT_EQ(wrong, 0);
}

TEST(RoundedForward, EveryXOfTheFormatIsRoundedCorrectly) {
  expect_every_x_rounded<kernels::F16>(shipped(Format::f16));
  expect_every_x_rounded<kernels::BF16>(shipped(Format::bf16));
}

TEST(RoundedForward, TheQuarticIsTheLowBitsOfTheCubic) {
  for (const Format format : {Format::f16, Format::bf16}) {
    const RoundedForwardModel& m = shipped(format);
    ASSERT_LE(m.pieces.size(), static_cast<size_t>(m.kRows));
    for (const Piece& p : m.pieces) {
      ASSERT_EQ(p.c.size(), static_cast<size_t>(RoundedForwardModel::kDegree) + 1);
      EXPECT_EQ(kernels::bits_of(p.c[4]), kernels::bits_of(p.c[3]) << m.kQuarticShift) << p.row;
    }
  }
}

// Proven from below without regard to words, seen at samples, proven from above: in this order.
TEST(RoundedForward, BoundsAreInOrder) {
  for (const Format format : {Format::f16, Format::bf16}) {
    const RoundedForwardModel& m = shipped(format);
    double worst = 0, core = 0;
    for (const Piece& p : m.pieces) {
      EXPECT_LE(p.lower_bound, p.certified) << p.row;
      EXPECT_LE(p.observed, p.certified) << p.row;
      EXPECT_GE(p.observed, 0.5 * p.certified) << p.row << ": the proof is loose";
      worst = std::max(worst, p.certified);
      if (p.row >= m.kCoreFirst) core = std::max(core, p.certified);
    }
    EXPECT_EQ(worst, m.kA);
    EXPECT_EQ(core, m.kCoreA);
  }
}

TEST(RoundedForward, RefusesWhatCannotBe) {
  const auto why = [](RoundedForwardSpec spec) -> std::string {
    try {
      fitted(spec);
    } catch (const kernels::SpecError& error) {
      return error.what();
    }
    return "";
  };
  RoundedForwardSpec spec = spec_of(Format::f16);
  spec.rows = 32;
  EXPECT_NE(why(spec).find("rows: "), std::string::npos);
  spec = spec_of(Format::f16);
  spec.x_max = 2.75f;  // f(2.75) is not 2.75
  EXPECT_NE(why(spec).find("x_max: "), std::string::npos) << why(spec);
  spec = spec_of(Format::f16);
  spec.cells_per_unit = 1;  // degree 4 does not follow f over a whole unit
  spec.core_rows = 8;
  spec.x_max = 5;
  EXPECT_NE(why(spec), "");
}

}  // namespace
}  // namespace outgrad::approx
