// Mutational fuzzing of the reader of published coefficients: whatever the bytes, a file is read or refused
// by SpecError in one short line, and what is read is a function of every y: it evaluates, at a NaN and the
// infinities too. A quantiser that a format can hold has finite codes.
//
// As a test it replays notebooks_data/foreign/ and a fixed number of mutations of it from a fixed seed. With
// -DOUTGRAD_LIBFUZZER it is a libFuzzer target: `-DOUTGRAD_FUZZ=ON`, target outgrad-foreign-fuzz.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <string>

#include "kernels/host/errors.h"
#include "validation/sweep/foreign.h"

namespace {

using namespace outgrad::validation;

[[noreturn]] void broken(const char* what, const std::string& text) {
  std::fprintf(stderr, "%s: %.4200s\n", what, text.c_str());
  std::abort();
}

void evaluate(const Quantiser& quantiser, const std::string& bytes) {
  for (const FloatFormat& format : {kF32, kF16, kBf16}) {
    if (!(quantiser.bits_per_element(format) > quantiser.bits)) broken("a scale takes no room", bytes);
    for (const auto& [min, max] : quantiser.ranges) {
      const QuantisedGroup group(quantiser, min, max, format);
      if (!group.problem().empty()) continue;
      double least = 0, greatest = 0;
      for (const double z :
           {-format.largest, group.min(), (group.min() + group.max()) / 2, group.max(), format.largest}) {
        const double low = group.least_raw(z), high = group.greatest_raw(z);
        if (!(low >= least && high >= greatest && high >= low)) broken("r does not rise", bytes);
        least = low, greatest = high;
        for (const double raw : {low, high}) {
          const int code = group.code(raw);
          if (code < 0 || code >= 1 << quantiser.bits || !std::isfinite(group.value(code)))
            broken("a code stands for nothing", bytes);
        }
        const double p = group.probability(z, high);
        if (!(p > 0 && p <= 1 && group.probability(z, low) == 1)) broken("a probability is none", bytes);
      }
    }
  }
}

// Whether the bytes were read.
bool read_and_evaluate(const std::string& bytes) {
  try {
    const ForeignFunction function = parse_foreign(bytes, "fuzz");
    constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                    kNaN = std::numeric_limits<float>::quiet_NaN();
    const float y[] = {0.0f, -0.0f, -0.17f, 0.5f, 3.0f, -3e38f, 3e38f, kInfinity, -kInfinity, kNaN};
    float g[std::size(y)], code[std::size(y)];
    for (const std::uint32_t mask : {0u, ~0u}) {
      if (function.quantiser) {
        evaluate(*function.quantiser, bytes);
      } else if (function.steps) {
        function.codes(y, code, std::size(y));
        function.derivative(code, &mask, g, std::size(y));
        for (const float v : g) {
          if (!std::isfinite(v)) broken("a step is not finite", bytes);
        }
      } else {
        function.derivative(y, &mask, g, std::size(y));
        if (std::isnan(g[std::size(y) - 1]) != function.nan_passes)
          broken("a NaN is not treated as the file says", bytes);
      }
    }
    for (const auto& branch : function.pieces) {
      double reached = -std::numeric_limits<double>::infinity();
      for (const ForeignPiece& piece : branch) {
        if (!(piece.to > reached)) broken("pieces do not ascend", bytes);
        reached = piece.to;
        for (const double c : piece.coefficients) {
          if (!std::isfinite(c)) broken("a coefficient is not finite", bytes);
        }
      }
      if (!branch.empty() && !std::isinf(reached)) broken("pieces do not cover the line", bytes);
    }
    return true;
  } catch (const outgrad::kernels::SpecError& error) {
    const std::string why = error.what();
    constexpr std::size_t kLongestMessage = 300;
    if (why.size() > kLongestMessage) broken("a message is long", why);
    if (why.find('\n') != std::string::npos) broken("a message has two lines", why);
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

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/mutator.h"

namespace {

// Another value at a key's place.
void replace_value(outgrad::Mutator& mutator, std::string& text, std::size_t at) {
  const std::size_t colon = text.find(": ", at),
                    end = colon == std::string::npos ? colon : text.find_first_of(",\n", colon + 2);
  if (end != std::string::npos) text.replace(colon + 2, end - colon - 2, mutator.token());
}

TEST(ForeignFuzz, TheShippedFilesAndTheirMutationsAreReadOrRefused) {
  const std::vector<std::string> seeds = outgrad::texts_in({"notebooks_data/foreign"});
  ASSERT_GE(seeds.size(), 4U);
  for (const std::string& seed : seeds) EXPECT_TRUE(read_and_evaluate(seed));
  constexpr int kMutations = 50'000;
  outgrad::Mutator mutator(20240229, {"1e999",      "\"inf\"",  "\"-inf\"", "\"nan\"", "\"0x1p5000\"",
                                      "null",       "{",        "[",        "\"",      ",",
                                      "-",          "\"0x\"",   "1e-400",   "\"to\"",  "\"estrin\"",
                                      "\"f64\"",    "0",        "}",        "]",       "18446744073709551616",
                                      "\"exact\"",  "\"wrap\"", "\"bf16\"", "true",    "\"e4m3\"",
                                      "\"codes\":", "448"},
                           {&replace_value});
  int accepted = 0;
  for (int i = 0; i < kMutations; ++i)
    accepted += read_and_evaluate(
        mutator.mutate(seeds[mutator.below(seeds.size())], seeds[mutator.below(seeds.size())]));
  // Both outcomes occur, or the mutations are too harsh or too mild to say anything.
  EXPECT_GT(accepted, kMutations / 100);
  EXPECT_LT(accepted, kMutations / 2);
}

}  // namespace

#endif
