// The grammar, and layouts whose rows add up.
#include "tests/attack/specification.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>

#include "kernels/activations.h"
#include "kernels/host/errors.h"
#include "tests/attack/formula.h"

namespace outgrad::validation::gate {

using kernels::Random;

namespace {

template <size_t N>
const char* one_of(const std::array<const char*, N>& of, Random& random) {
  return of[random.below(N)];
}

std::string number(double v, int digits) { return fmt::format("{:.{}g}", v, digits); }

// Formulas contain X in places where x may be stretched.

// A rising polynomial, as the argument of a gate.
std::string argument(Random& random) {
  const double scale = std::exp2(random.uniform(-1, 1.5));
  switch (random.below(5)) {
    case 0: return "X";
    case 1: return fmt::format("({}*X+{}*X^3)", number(scale, 4), number(random.uniform(0.01, 0.2), 3));
    case 2: return fmt::format("({}*X{:+.3g})", number(scale, 5), random.uniform(-0.5, 0.5));
    case 3: return fmt::format("(X+{}*X^3)", number(random.uniform(0.01, 0.2), 3));
    default: return fmt::format("({}*X)", number(scale, 5));
  }
}

// From 0 to 1.
std::string gate(Random& random) {
  const std::string of = argument(random);
  switch (random.below(6)) {
    case 0: return "normal_cdf(" + of + ")";
    case 1: return "(1+tanh(" + of + "))/2";
    case 2: return "(1+erf(" + of + "))/2";
    case 3: return "1/(1+exp(-" + of + "))";
    case 4: return "tanh(softplus(" + of + "))";
    default: return "sigmoid(" + of + ")";
  }
}

// Functions with a minimum and with slopes that settle at 0 and 1, which the fitter is made for.
std::string gated(Random& random) {
  const size_t kind = random.below(6);
  const std::string first = gate(random);  // because arguments of a call are evaluated in no fixed order
  if (kind > 1) return "x*" + first;
  const std::string second = gate(random);
  if (kind == 0) return fmt::format("x*{}*{}", first, second);
  const int percent = 10 + static_cast<int>(random.below(81));
  return fmt::format("x*({}*{}+{}*{})", number(percent / 100.0, 2), first, number((100 - percent) / 100.0, 2),
                     second);
}

// Functions without a minimum whose slopes also settle at 0 or 1.
std::string rising(Random& random) {
  switch (random.below(6)) {
    case 0: return "softplus(x)";
    case 1: return "log(1+exp(x))";
    case 2: return gate(random);
    case 3: {
      const std::string factor = number(random.uniform(0.3, 3), 3);
      return factor + "*" + gate(random);
    }
    case 4: return "tanh(" + argument(random) + ")";
    default: return "erf(" + argument(random) + ")";
  }
}

// Smooth functions with limits that the fitter has to refuse, or nearly has to.
std::string refusable(Random& random) {
  switch (random.below(6)) {
    case 0: return fmt::format("sqrt(x^2+{})", number(std::exp2(random.uniform(-3, 2)), 3));
    case 1: return "x*erf(" + argument(random) + ")";
    case 2: return "softplus(" + argument(random) + ")";
    case 3: {
      const std::string slope = number(random.uniform(0.2, 1.2), 3);
      return slope + "*x+tanh(" + argument(random) + ")";
    }
    case 4: {
      const std::string f = gated(random);
      return f + fmt::format("{:+.3g}*x", random.uniform(-0.3, 0.3));
    }
    default: return "softplus(x)+softplus(-" + argument(random) + ")";
  }
}

std::string placed(const std::string& formula, const std::string& with) {
  std::string text;
  for (const char c : formula) c == 'X' ? text += with : text += c;
  return text;
}

std::string stretched(const std::string& formula, double by) {
  return placed(formula, by == 1 ? "x" : "(" + number(by, 7) + "*x)");
}

// Any function, by depth.
std::string anything(Random& random, int depth) {
  if (depth == 0) return random.chance(0.7) ? "x" : number(random.uniform(-3, 3), 3);
  const auto part = [&] {
    return anything(random, depth - 1 - static_cast<int>(random.below(2) & static_cast<size_t>(depth > 1)));
  };
  const size_t kind = random.below(8);
  const std::string first = part();  // because operands are evaluated in no fixed order
  if (kind < 4) {
    constexpr std::array<const char*, 4> kPatterns{"({}+{})", "({}-{})", "{}*{}", "({})/({})"};
    return fmt::format(fmt::runtime(kPatterns[kind]), first, part());
  }
  if (kind == 4) return fmt::format("({})^{}", first, 1 + random.below(4));
  constexpr std::array<const char*, 11> kFunctions{"exp", "log",        "sqrt", "tanh", "sigmoid", "softplus",
                                                   "erf", "normal_cdf", "abs",  "sin",  "cos"};
  return fmt::format("{}({})", one_of(kFunctions, random), first);
}

// A factor that differs from 1 by a few ulps of a 16-bit format.
double beside_one(Random& random) {
  const double sign = random.sign();
  return 1 + sign * std::exp2(-random.uniform(7, 14));
}

// y* of a function with one minimum on [-8, 8], found by a scan in double.
std::optional<double> minimum_of(const std::string& function) {
  const Formula f(function);
  double at = 0, least = HUGE_VAL;
  constexpr double kEnd = 8, kStep = 1.0 / 64;
  for (double x = -kEnd; x <= kEnd; x += kStep) {
    const double value = f.at(x).value;
    if (value < least) least = value, at = x;
  }
  if (!(std::fabs(at) < kEnd - kStep) || !std::isfinite(least)) return {};
  for (int i = 0; i < 60; ++i) {
    const Jet<double> jet = f.at(at);
    if (!(jet.bend > 0)) return {};
    at -= jet.slope / jet.bend;
  }
  const double value = f.at(at).value;
  return std::isfinite(value) && value <= least + 1e-6 ? std::optional(value) : std::nullopt;
}

// Puts |y*| next to a power of two, a few ulps of a 16-bit format to one side or the other: |y*| of x G(b x)
// is |y*| of x G(x) divided by b.
std::string beside_a_power(const std::string& formula, Random& random) {
  const std::string plain = stretched(formula, 1);
  const std::optional<double> minimum = minimum_of(plain);
  if (!minimum || !(*minimum < 0)) return plain;
  const double power = std::exp2(std::floor(std::log2(-*minimum)) + static_cast<double>(random.below(5)) - 2);
  return stretched(formula, -*minimum / (power * beside_one(random)));
}

// From 2^low to 2^high, evenly in octaves.
std::string octaves(double low, double high, Random& random) {
  return number(std::exp2(random.uniform(low, high)), 4);
}

// x - c, also from beyond where most functions end.
std::string shifted(Random& random) {
  const double to = random.sign() * random.uniform(0, 56);
  return fmt::format("(x{:+})", random.chance(0.5) ? std::round(to) : std::round(to * 1000) / 1000);
}

// What most functions are not: far from 0, large or small, steep, or lifted.
std::string moved(Random& random) {
  constexpr double kSteepest = 8.228;  // 2^this is 300
  const std::string height = octaves(-14, 10, random), slope = octaves(-3, kSteepest, random),
                    at = random.chance(0.6) ? shifted(random) : "x";
  std::string f;
  switch (random.below(8)) {
    case 0:
    case 1: f = "X*" + gate(random); break;
    case 2: f = fmt::format("X*sigmoid({}*X)", slope); break;
    case 3: f = fmt::format("-{}*exp(-{}*X^2)", height, slope); break;
    case 4: f = fmt::format("X*normal_cdf(X)-{}*exp(-{}*X^2)", height, octaves(-4, 4, random)); break;
    case 5: f = fmt::format("X*normal_cdf(X)+{}*sin(3*X)*exp(-X^2/2)", octaves(-6, -3, random)); break;
    case 6: f = fmt::format("{}*{}({}*X)", height, random.chance(0.5) ? "tanh" : "sigmoid", slope); break;
    default: f = "softplus(X)"; break;
  }
  f = placed(f, at);
  if (random.chance(0.3))
    f += random.chance(0.5) ? fmt::format("{:+}", std::round(random.uniform(-40, 40)))
                            : fmt::format("{:+.4g}", random.uniform(-40, 40));
  return f;
}

std::string function_of(Random& random) {
  // a minute is promised only for specifications whose function is no longer
  constexpr size_t kLongest = 200;
  if (random.chance(0.4)) return moved(random).substr(0, kLongest);
  const double drawn = random.uniform();
  std::string f;
  if (drawn < 0.6) {
    const std::string formula = gated(random);
    f = stretched(formula, 1);
    if (random.chance(0.5)) {
      try {
        f = beside_a_power(formula, random);
      } catch (const kernels::SpecError&) {  // too long to be read; the text is then left unchanged
      }
    }
  } else {
    f = stretched(drawn < 0.82 ? rising(random) : drawn < 0.92 ? refusable(random) : anything(random, 3), 1);
  }
  if (random.chance(0.08)) f += fmt::format("{:+.2g}", random.uniform(-1, 1));
  return f.substr(0, kLongest);
}

// The bits that this many rows of this degree can be expected to reach, within a few bits, over the few units
// in which f' moves.
int reachable_bits(const std::string& format, int degree, int rows, Random& random) {
  const double bits = (degree + 1) * (0.5 + std::log2(static_cast<double>(rows))) + random.uniform(-7, 1);
  return static_cast<int>(std::lround(std::clamp(bits, 3.0,
                                                 format == "f32"     ? 22.0
                                                 : format == "mxfp8" ? 7.0
                                                                     : 12.0)));
}

struct Layout {
  int degree, rows;
  std::string keys;
};

Layout layout_of(const std::string& format, const std::string& kind, Random& random) {
  int rows = 1 << random.below(6);  // 1 to 32
  if (kind == "ulp" || kind == "rel") rows = 1 << (4 + random.below(5));
  const int degree = 1 + static_cast<int>(random.below(format == "f32" ? 7 : 5));
  std::string keys = fmt::format(", \"degree\": {}", degree);
  bool left = false, levelled = false;
  if (random.chance(0.5) && rows >= 8) {
    const int edge = -2 - static_cast<int>(random.below(5)), halves = static_cast<int>(random.below(3));
    const int bits = random.chance(0.15) ? 2 : 1;
    int octaves = 2 + static_cast<int>(random.below(static_cast<size_t>(rows) / 4 + 2));
    const int merge = std::max(edge - halves - octaves, -149);
    const int left_rows = 1 + ((edge - merge + halves) << (bits - 1));
    const int cells = random.chance(0.9) ? rows - left_rows : 1 + static_cast<int>(random.below(40));
    if (cells > 0) {
      left = true;
      keys += fmt::format(
          R"(, "cells": {}, "left_segment": {{"edge_log2": {}, "half_octaves": {}, "merge_log2": {}{}}})",
          cells, edge, halves, merge, bits > 1 ? fmt::format(R"(, "octave_bits": {})", bits) : "");
    }
  }
  if (!left) {
    levelled = kind == "abs" && random.chance(0.12);
    keys += levelled ? R"(, "split": "levelled")" : fmt::format(", \"cells\": {}", rows);
  }
  // One in twenty where there is no room for it.
  if (random.chance(levelled || rows == 1 ? 0.05 : 0.15)) {
    keys += fmt::format(", \"right_from\": {}", number(random.uniform(0.1, 2), 3));
    if (random.chance(left ? 0.3 : 0.05)) keys += ", \"both_sides\": true";
  }
  if (random.chance(0.15))
    keys += fmt::format(", \"y_max\": {}", number(std::exp2(random.uniform(-1, 4)), 4));
  if (random.chance(0.2))
    keys += fmt::format(", \"scheme\": \"{}\"", random.chance(0.5) ? "estrin" : "even_odd");
  if (random.chance(0.1)) keys += ", \"centred\": false";
  return {degree, rows, keys};
}

// What is fitted, and the keys that say so.
struct Subject {
  std::string function;
  std::string keys;
};

Subject subject_of(double named, Random& random) {
  if (!random.chance(named)) {
    const std::string function = function_of(random);
    return {function, fmt::format(R"("expression": "{}")", function)};
  }
  const std::string name = one_of(std::to_array(kernels::kActivationNames), random);
  Subject subject{name, fmt::format(R"("activation": "{}")", name)};
  // Swish's y* is -0.278/beta: this beta puts it next to a power of two.
  if (name == "swish") {
    const double octaves = static_cast<double>(random.below(4)),
                 beta = 0.27846454276107 * std::exp2(octaves) * beside_one(random);
    subject.keys += fmt::format(R"(, "parameters": {{"beta": {:.7g}}})", beta);
    subject.function += fmt::format(" {:.7g}", beta);
  }
  return subject;
}

std::string specified(const std::string& kind, const Subject& subject, const std::string& rest) {
  return fmt::format(R"({{"schema": "outgrad.spec/2", "name": "attacked", "kind": "{}", {}{}}})", kind,
                     subject.keys, rest) +
         "\n";
}

Specification backward_specification(const std::string& format, const std::string& kind,
                                     const Subject& subject, Random& random) {
  const bool wide = format == "f32";
  const Layout layout = layout_of(format, kind, random);
  const int bits = reachable_bits(format, layout.degree, layout.rows, random);
  const std::string target = kind == "oracle" ? "oracle"
                             : kind == "stored"
                                 ? fmt::format("stored:{}", number(1.005 + random.uniform() * 0.3, 4))
                             : kind == "ulp" ? fmt::format("ulp:{}", number(random.uniform(0.6, 3), 2))
                                             : fmt::format("{}:2^-{}", kind, bits);
  std::string keys = fmt::format(R"(, "format": "{}", "target": "{}")", format, target);
  if (kind != "oracle") {
    keys += layout.keys;
    if (kind == "stored") {
      keys += fmt::format(R"(, "storage": {{"regret": "2^-{}"}})", 4 + random.below(6));
    } else if (random.chance(kind == "abs" && !wide ? 0.4 : 0.04)) {
      const std::string ratio = number(1.01 + random.uniform(), 4);
      const size_t regret = 3 + random.below(8);
      const bool programme = !wide && kind == "abs" && random.chance(0.4);
      keys += fmt::format(R"(, "storage": {{"ratio": {}, "regret": "2^-{}"{}}})", ratio, regret,
                          programme ? R"(, "programme": true)" : "");
    }
  } else if (random.chance(0.3)) {
    keys += R"(, "entries": "bf16")";
  }
  return {subject.function, specified("backward", subject, keys)};
}

// Codes are of the library's own activations, or of expressions; some are asked for of activations with other
// parameters.
Specification code_specification(Random& random) {
  const double drawn = random.uniform();
  Subject subject = subject_of(drawn < 0.2 ? 0 : 1, random);
  // the library's
  if (subject.function.starts_with("swish") && drawn >= 0.4)
    subject.keys = R"("activation": "swish", "parameters": {"beta": 1.5})";
  const std::string bits = number(random.uniform(10, drawn < 0.9 ? 21.9 : 26), 4);
  return {subject.function, specified("code", subject, fmt::format(R"(, "target": "abs:2^-{}")", bits))};
}

}  // namespace

Specification random_specification(Random& random) {
  constexpr std::array<const char*, 8> kFormats{"bf16", "bf16", "bf16", "bf16", "f16", "f16", "f32", "e4m3"};
  std::string format = one_of(kFormats, random);
  if (format == "e4m3" && random.chance(0.5)) format = "e5m2";
  const bool tiny = format == "e4m3" || format == "e5m2", wide = format == "f32";
  const double kind_drawn = random.uniform();
  std::string kind = tiny || (!wide && kind_drawn > 0.93) ? "oracle"
                     : kind_drawn > 0.8                   ? (wide ? "rel" : "stored")
                     : kind_drawn > 0.74 && !wide         ? "ulp"
                                                          : "abs";
  if (random.chance(0.01)) kind = "stored";  // even if the format has none
  return backward_specification(format, kind, subject_of(0.12, random), random);
}

Specification random_store(size_t number, Random& random) {
  constexpr std::array<const char*, 4> kStores{"bf16_parity", "mxfp8", "code", "f16_parity"};
  const std::string store = kStores[number % kStores.size()];
  if (store == "code") return code_specification(random);
  const double drawn = random.uniform();
  const std::string kind = drawn < 0.6    ? "abs"
                           : drawn < 0.8  ? "stored"
                           : drawn < 0.9  ? "ulp"
                           : drawn < 0.96 ? "rel"
                                          : "oracle";
  return backward_specification(store, kind, subject_of(0.25, random), random);
}

}  // namespace outgrad::validation::gate
