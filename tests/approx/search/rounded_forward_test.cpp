// Forward fits that round correctly: what is fitted against the C library's functions in long double, which
// share nothing with the fitter.
#include "approx/search/rounded_forward.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "approx/function/activations.h"
#include "approx/function/composite.h"
#include "approx/search/partition.h"
#include "kernels/eval.h"
#include "kernels/formats.h"
#include "tests/approx/shared.h"
#include "tests/refusal.h"

namespace outgrad::approx {
namespace {

Spec spec_named(const std::string& name) {
  return read_spec(OUTGRAD_SOURCE_DIR "/approx/specs/" + name + ".json");
}
RoundedForwardSpec spec_of(Format format) {
  return std::get<RoundedForwardSpec>(spec_named(std::string("gelu_forward_") + to_string(format)).kind);
}

RoundedForwardModel fitted(const Composite& composite, const RoundedForwardSpec& spec) {
  Stage rows("rows");
  return fit_rounded_forward(composite, spec, "tried", rows);
}
RoundedForwardModel fitted(const RoundedForwardSpec& spec) { return fitted(gelu(), spec); }
RoundedForwardModel fitted(const Spec& spec) {
  return fitted(Composite(spec.activation), *spec.as<RoundedForwardSpec>());
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

/// f by the C library, and its limits at the infinities.
struct Reference {
  long double (*value)(long double x);
  double left = -0.0, right = std::numeric_limits<double>::infinity();
};

template <class T>
void expect_every_x_rounded(const RoundedForwardModel& m, const Reference& reference) {
  int wrong = 0;
  for (unsigned code = 0; code < 0x10000; ++code) {
    const float x = kernels::widen(T{static_cast<kernels::u16>(code)});
    if (std::isnan(x)) continue;
    const unsigned got = deployed<T>(m, x);
    const auto wide = static_cast<long double>(x);
    const long double f = std::isinf(x) ? static_cast<long double>(x > 0 ? reference.right : reference.left)
                                        : reference.value(wide);
    // The neighbours of a correctly rounded value are no nearer. Beyond the largest number the middle counts
    // as if there were another one.
    const auto value = [](unsigned bits) {
      return static_cast<long double>(kernels::widen(T{static_cast<kernels::u16>(bits)}));
    };
    if (std::isinf(x) || f == 0) {
      wrong += value(got) != f || std::signbit(value(got)) != std::signbit(f);
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
    wrong += !std::isfinite(value(got)) || (sign != 0) != std::signbit(f);
  }
  EXPECT_EQ(wrong, 0);
}

void expect_quartics_in_the_cubics(const RoundedForwardModel& m) {
  ASSERT_LE(m.pieces.size(), static_cast<size_t>(m.kRows));
  for (const Piece& p : m.pieces) {
    ASSERT_EQ(p.c.size(), static_cast<size_t>(RoundedForwardModel::kDegree) + 1);
    EXPECT_EQ(kernels::bits_of(p.c[4]), kernels::bits_of(p.c[3]) << m.kQuarticShift) << p.row;
  }
}

/// Proven from below without regard to words, seen at samples, proven from above: in this order.
void expect_bounds_in_order(const RoundedForwardModel& m) {
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

TEST(RoundedForward, EveryXOfTheFormatIsRoundedCorrectlyAndBoundsAreInOrder) {
  const Reference reference{
      [](long double x) { return x * std::erfc(-x * 0.707106781186547524400844362104849039L) / 2; }};
  const RoundedForwardModel f16 = fitted(spec_of(Format::f16)), bf16 = fitted(spec_of(Format::bf16));
  expect_every_x_rounded<kernels::F16>(f16, reference);
  expect_every_x_rounded<kernels::BF16>(bf16, reference);
  for (const RoundedForwardModel* m : {&f16, &bf16}) {
    expect_quartics_in_the_cubics(*m);
    expect_bounds_in_order(*m);
  }
}

RoundedForwardModel model(const char* name) { return fitted(spec_named(name)); }

// With a pull; and with f(0) != 0, and x at the right.
TEST(RoundedForward, NightlySoIsThatOfOtherForms) {
  const RoundedForwardModel mish = model("mish_forward_f16");
  EXPECT_LT(mish.kPull, 0);
  EXPECT_EQ(mish.kTie, 0);
  expect_every_x_rounded<kernels::F16>(
      mish, {[](long double x) { return x * std::tanh(std::log1p(std::exp(x))); }});
  const RoundedForwardModel softplus = model("softplus_forward_bf16");
  EXPECT_TRUE(softplus.kPlain);
  EXPECT_EQ(softplus.kEnd, std::numeric_limits<float>::max());
  const auto log_of_sum = [](long double x) {
    return std::max(x, 0.0L) + std::log1p(std::exp(-std::abs(x)));
  };
  expect_every_x_rounded<kernels::BF16>(softplus, {log_of_sum, 0});
}

// With ties; levelling off on both sides, or on one, where f(0) != 0; and f = x from 0 on.
TEST(RoundedForward, NightlySoIsThatOfAllForms) {
  const auto silu = [](long double x) { return x / (1 + std::exp(-x)); };
  expect_every_x_rounded<kernels::BF16>(model("silu_forward_bf16"), {silu});
  const RoundedForwardModel tanh = model("tanh_forward_bf16");
  EXPECT_EQ(tanh.kEnd, tanh.kXMax);
  EXPECT_FALSE(tanh.kMasked);
  expect_every_x_rounded<kernels::BF16>(tanh, {[](long double x) { return std::tanh(x); }, -1, 1});
  const RoundedForwardModel sigmoid = model("sigmoid_forward_f16");
  EXPECT_TRUE(sigmoid.kPlain);
  expect_every_x_rounded<kernels::F16>(sigmoid, {[](long double x) { return 1 / (1 + std::exp(-x)); }, 0, 1});
  expect_every_x_rounded<kernels::F16>(model("elu_forward_f16"),
                                       {[](long double x) { return x > 0 ? x : std::expm1(x); }, -1});
}

// x* itself lies on either side of the float nearest to it.
TEST(RoundedForward, TheBitBeginsAtTheLeastFloatRightOfTheMinimum) {
  for (const char* name : {"gelu", "gelu_tanh", "quick_gelu", "silu", "mish"}) {
    const Composite composite(find_activation(name));
    const float least = least_with_bit(composite);
    EXPECT_FALSE((Ball(least) - composite.x_star()).negative()) << name;
    EXPECT_TRUE((Ball(std::nextafter(least, -INFINITY)) - composite.x_star()).negative()) << name;
  }
}

TEST(RoundedForward, RefusesWhatCannotBe) {
  const auto why = [](RoundedForwardSpec spec) { return refusal_of([&] { fitted(spec); }); };
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
  spec = spec_of(Format::f16);
  spec.x_min = -4.0f;  // f(-4) is not -0
  EXPECT_NE(why(spec).find("x_min: "), std::string::npos) << why(spec);
}

// The ties of kernels/forward_fits.h.
TEST(RoundedForward, RefusesSwishInF16) {
  Spec spec = spec_named("swish_forward_bf16");
  std::get<RoundedForwardSpec>(spec.kind).format = Format::f16;
  std::get<RoundedForwardSpec>(spec.kind).cells_per_unit = 4;
  const std::string why = refusal_of([&] { fitted(spec); });
  EXPECT_NE(why.find("no polynomial passes through the ranges"), std::string::npos) << why;
}

}  // namespace
}  // namespace outgrad::approx
