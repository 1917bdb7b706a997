// Mutational fuzzing of specifications and expressions: whatever the bytes, they are read or refused by
// SpecError, nothing else; and what is read evaluates to enclosures that agree with each other.
//
// Bytes that begin with '{' are a specification, all others an expression. As a test it replays
// tests/approx/model/spec_corpus/ and approx/specs/, and a fixed number of mutations of them from a fixed
// seed. With -DOUTGRAD_LIBFUZZER it is a libFuzzer target: `-DOUTGRAD_FUZZ=ON`, target outgrad-spec-fuzz.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "approx/function/stationary.h"
#include "approx/model/spec.h"
#include "kernels/host/errors.h"

namespace {

using namespace outgrad::approx;
using outgrad::kernels::SpecError;

[[noreturn]] void broken(const char* what, const std::string& text, double x) {
  std::fprintf(stderr, "%s at x = %a of: %.4200s\n", what, x, text.c_str());
  std::abort();
}

// Over a point and an interval around it: the series' values are the ball's, and what is decided over the
// interval holds at the point.
void evaluate(const Activation& f, double x, double radius) {
  constexpr slong kLength = 4;
  const std::string& text = f.function;
  static_cast<void>(f.value(x));
  static_cast<void>((*f.expression)(x));
  static_cast<void>(f.value_real(Real(x)));
  const Ball at(x), around = Ball::hull(Ball(x - radius), Ball(x + radius));
  const Ball point = f.value_ball(at), wide = f.value_ball(around);
  const Series point_series = f.value_series(Series::variable(at, kLength)),
               wide_series = f.value_series(Series::variable(around, kLength));
  const auto meet = [](const Ball& a, const Ball& b) {
    return !a.finite() || !b.finite() || arb_overlaps(a.raw(), b.raw()) != 0;
  };
  if (!meet(point, wide)) broken("a ball does not enclose its point", text, x);
  if (!meet(point, point_series[0]) || !meet(wide, wide_series[0]))
    broken("a series has another value than the ball", text, x);
  if (!point.finite() && point_series[0].finite())
    broken("a series has a value where the ball has none", text, x);
  for (slong k = 0; k < kLength; ++k) {
    // Undefined, not merely large.
    if (k > 0 && arf_is_nan(arb_midref(point_series[k - 1].raw())) != 0 && point_series[k].finite())
      broken("a derivative of what is undefined", text, x);
    if (!meet(point_series[k], wide_series[k])) broken("a series does not enclose its point", text, x);
    if (wide_series[k].finite() && !point_series[k].finite())
      broken("a series is decided over an interval and not at its point", text, x);
  }
}

// Whether the bytes were read; all that is done with them ends in bounded time.
bool read_and_evaluate(const std::string& bytes) {
  // Enough for simple functions, and for thousands of executions a second.
  constexpr size_t kWork = kSurveyWork / 256;
  try {
    Activation f =
        bytes.starts_with('{') ? parse_spec(bytes, "fuzz").activation : activation_from_expression(bytes);
    // Exact zeros, both sides of them, and where exponentials over- and underflow in double.
    for (const double x : {0.0, -1.25, 0.5, 40.0, -800.0})
      evaluate(f, x, x == 0 ? 0x1p-3 : std::abs(x) * 0x1p-6);
    if (f.name == "expression") survey(f, kWork);
    return true;
  } catch (const SpecError& error) {
    constexpr size_t kLongestMessage = 700;  // two quotations and a list of what is known
    if (std::string(error.what()).size() > kLongestMessage) broken("a message is long", error.what(), 0);
    return false;
  }
}

}  // namespace

#ifdef OUTGRAD_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  read_and_evaluate(std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}

#else

#include "tests/mutator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace {

TEST(SpecFuzz, TheCorpusAndItsMutationsAreReadOrRefused) {
  const std::vector<std::string> seeds =
      outgrad::texts_in({"tests/approx/model/spec_corpus", "approx/specs"});
  ASSERT_GT(seeds.size(), 20U);
  int accepted = 0, done = 0;
  const auto one = [&](const std::string& text) {
    accepted += read_and_evaluate(text);
    ++done;
  };
  for (const std::string& seed : seeds) one(seed);
  constexpr int kMutations = 50'000;
  outgrad::Mutator mutator(20240229, {"x",           "/x",
                                      "*0",          "^2",
                                      "^-1",         "^0",
                                      "^64",         "(x-x)",
                                      "sqrt(",       "log(",
                                      "abs(",        "exp(",
                                      "tanh(",       "erf(",
                                      "sin(",        ")",
                                      "1e-280",      "0x1p",
                                      "pi",          "-",
                                      "normal_cdf(", "\"",
                                      "{",           "1e999",
                                      ":",           "18446744073709551616"});
  for (int i = 0; i < kMutations; ++i)
    one(mutator.mutate(seeds[mutator.below(seeds.size())], seeds[mutator.below(seeds.size())]));
  // Both outcomes occur, or the mutations are too harsh or too mild to say anything.
  EXPECT_GT(accepted, done / 100);
  EXPECT_LT(accepted, done / 2);
}

}  // namespace

#endif
