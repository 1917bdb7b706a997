// The grammar, and layouts whose rows add up.
#include "validation/attack/specification.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>

#include "kernels/host/errors.h"
#include "validation/attack/formula.h"

namespace outgrad::validation::gate {
namespace {

template <size_t N>
const char* one_of(const std::array<const char*, N>& of, Random& random) {
  return of[random.below(N)];
}

std::string number(double v, int digits) { return fmt::format("{:.{}g}", v, digits); }

// A polynomial that rises through 0, as the argument of a gate.
std::string argument(Random& random) {
  const double scale = std::exp2(random.uniform(-1, 1.5));
  switch (random.below(5)) {
    case 0: return "x";
    case 1: return fmt::format("({}*x+{}*x^3)", number(scale, 4), number(random.uniform(0.01, 0.2), 3));
    case 2: return fmt::format("({}*x{:+.3g})", number(scale, 5), random.uniform(-0.5, 0.5));
    case 3: return fmt::format("(x+{}*x^3)", number(random.uniform(0.01, 0.2), 3));
    default: return fmt::format("({}*x)", number(scale, 5));
  }
}

std::string gate(Random& random) {
  const std::string of = argument(random);
  switch (random.below(5)) {
    case 0: return "normal_cdf(" + of + ")";
    case 1: return "(1+tanh(" + of + "))/2";
    case 2: return "(1+erf(" + of + "))/2";
    case 3: return "1/(1+exp(-" + of + "))";
    default: return "sigmoid(" + of + ")";
  }
}

std::string smooth(Random& random) {
  // The fitter takes no limits of f' but 0 and 1: a quarter have others.
  switch (random.below(20)) {
    case 0: return "x*tanh(softplus(" + argument(random) + "))";
    case 1: return "softplus(" + argument(random) + ")";
    case 2: return "log(1+exp(x))";
    case 3: return "tanh(" + argument(random) + ")";
    case 4: return "erf(" + argument(random) + ")";
    case 5: return fmt::format("sqrt(x^2+{})", number(std::exp2(random.uniform(-3, 2)), 3));
    case 6: return "x*erf(" + argument(random) + ")";
    case 7: return "x*tanh(" + argument(random) + ")";
    case 8: return fmt::format("{}*x+{}", number(random.uniform(0.2, 1.2), 3), "tanh(" + argument(random) + ")");
    case 9: return "softplus(x)+softplus(-" + argument(random) + ")";
    default: return "x*" + gate(random);
  }
}

// Anything at all, by depth.
std::string anything(Random& random, int depth) {
  if (depth == 0) return random.chance(0.7) ? "x" : number(random.uniform(-3, 3), 3);
  const auto part = [&] { return anything(random, depth - 1 - static_cast<int>(random.below(2) & static_cast<size_t>(depth > 1))); };
  switch (random.below(8)) {
    case 0: return "(" + part() + "+" + part() + ")";
    case 1: return "(" + part() + "-" + part() + ")";
    case 2: return part() + "*" + part();
    case 3: return "(" + part() + ")/(" + part() + ")";
    case 4: return fmt::format("({})^{}", part(), 1 + random.below(4));
    default: {
      constexpr std::array<const char*, 11> kFunctions{"exp", "log", "sqrt", "tanh", "sigmoid", "softplus", "erf", "normal_cdf", "abs", "sin", "cos"};
      return std::string(one_of(kFunctions, random)) + "(" + part() + ")";
    }
  }
}

// y* of a function with one minimum on [-8, 8], as a scan in double sees it.
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

// y* moved next to a power of two, a few ulps of a 16-bit format to one side or the other.
std::string beside_a_power(const std::string& function, Random& random) {
  const std::optional<double> minimum = minimum_of(function);
  if (!minimum) return function;
  const double power = random.sign() * std::exp2(-static_cast<double>(random.below(6)) + 1);
  const double wanted = power * (1 + random.sign() * std::exp2(-random.uniform(7, 14)));
  if (random.chance(0.4) && *minimum < -0.01 && wanted < 0) return fmt::format("{}*{}", number(wanted / *minimum, 7), function);
  return fmt::format("{}{:+.7g}", function, wanted - *minimum);
}

std::string function_of(Random& random) {
  std::string f = random.chance(0.85) ? smooth(random) : anything(random, 3);
  if (random.chance(0.06)) f += fmt::format("{:+.3g}*x", random.uniform(-0.3, 0.3));
  if (random.chance(0.35)) {
    try {
      f = beside_a_power(f, random);
    } catch (const kernels::SpecError&) {  // too long: as it is, then
    }
  } else if (random.chance(0.15)) {
    f += fmt::format("{:+.2g}", random.uniform(-1, 1));
  }
  constexpr size_t kLongest = 200;  // a minute is promised for specifications whose function is no longer
  return f.size() <= kLongest ? f : f.substr(0, kLongest);
}

std::string layout_of(const std::string& format, const std::string& kind, Random& random) {
  int rows = 1 << random.below(6);  // 1 to 32
  if (kind == "ulp" || kind == "rel") rows = 1 << (4 + random.below(5));
  std::string keys = fmt::format(", \"degree\": {}", 1 + random.below(format == "f32" ? 7 : 5));
  bool left = false;
  if (random.chance(0.5) && rows >= 8) {
    const int edge = -1 - static_cast<int>(random.below(5)), halves = static_cast<int>(random.below(3));
    const int bits = random.chance(0.15) ? 2 : 1;
    int octaves = 2 + static_cast<int>(random.below(static_cast<size_t>(rows) / 4 + 2));
    const int merge = std::max(edge - halves - octaves, -149);
    const int left_rows = 1 + ((edge - merge + halves) << (bits - 1));
    const int cells = random.chance(0.9) ? rows - left_rows : 1 + static_cast<int>(random.below(40));
    if (cells > 0) {
      left = true;
      keys += fmt::format(R"(, "cells": {}, "left_segment": {{"edge_log2": {}, "half_octaves": {}, "merge_log2": {}{}}})", cells, edge, halves, merge,
                          bits > 1 ? fmt::format(R"(, "octave_bits": {})", bits) : "");
    }
  }
  if (!left) keys += kind == "abs" && random.chance(0.12) ? R"(, "split": "levelled")" : fmt::format(", \"cells\": {}", rows);
  if (random.chance(0.15)) keys += fmt::format(", \"right_from\": {}", number(random.uniform(0.1, 2), 3));
  if (random.chance(0.05)) keys += ", \"both_sides\": true";
  if (random.chance(0.15)) keys += fmt::format(", \"y_max\": {}", number(std::exp2(random.uniform(-1, 4)), 4));
  if (random.chance(0.2)) keys += fmt::format(", \"scheme\": \"{}\"", random.chance(0.5) ? "estrin" : "even_odd");
  if (random.chance(0.1)) keys += ", \"centred\": false";
  return keys;
}

}  // namespace

Specification random_specification(Random& random) {
  constexpr std::array<const char*, 8> kFormats{"bf16", "bf16", "bf16", "bf16", "f16", "f16", "f32", "e4m3"};
  std::string format = one_of(kFormats, random);
  if (format == "e4m3" && random.chance(0.5)) format = "e5m2";
  const bool tiny = format == "e4m3" || format == "e5m2", wide = format == "f32";
  const double kind_drawn = random.uniform();
  std::string kind = tiny || (!wide && kind_drawn > 0.93) ? "oracle" : kind_drawn > 0.8 ? (wide ? "rel" : "stored") : kind_drawn > 0.74 && !wide ? "ulp" : "abs";
  if (random.chance(0.01)) kind = "stored";  // also where the format has none
  Specification spec;
  std::string definition;
  if (random.chance(0.12)) {
    constexpr std::array<const char*, 10> kNames{"gelu", "gelu_tanh", "quick_gelu", "silu", "swish", "mish", "tanh", "sigmoid", "softplus", "elu"};
    spec.function = one_of(kNames, random);
    definition = fmt::format(R"("activation": "{}")", spec.function);
    // Swish's y* is -0.278/beta: this beta puts it next to a power of two.
    if (spec.function == "swish") {
      const double beta = 0.27846454276107 * std::exp2(static_cast<double>(random.below(4))) * (1 - random.sign() * std::exp2(-random.uniform(7, 14)));
      definition += fmt::format(R"(, "parameters": {{"beta": {:.7g}}})", beta);
      spec.function += fmt::format(" {:.7g}", beta);
    }
  } else {
    spec.function = function_of(random);
    definition = fmt::format(R"("expression": "{}")", spec.function);
  }
  const int bits = wide ? 8 + static_cast<int>(random.below(15)) : 5 + static_cast<int>(random.below(8));
  const std::string target = kind == "oracle"   ? "oracle"
                             : kind == "stored" ? fmt::format("stored:{}", number(1.005 + random.uniform() * 0.3, 4))
                             : kind == "ulp"    ? fmt::format("ulp:{}", number(random.uniform(0.6, 3), 2))
                                                : fmt::format("{}:2^-{}", kind, bits);
  spec.json = fmt::format(R"({{"schema": "outgrad.spec/2", "name": "attacked", "kind": "backward", {}, "format": "{}", "target": "{}")", definition, format, target);
  if (kind != "oracle") {
    spec.json += layout_of(format, kind, random);
    if (kind == "stored") {
      spec.json += fmt::format(R"(, "storage": {{"regret": "2^-{}"}})", 4 + random.below(6));
    } else if (random.chance(0.4)) {
      spec.json += fmt::format(R"(, "storage": {{"ratio": {}, "regret": "2^-{}"{}}})", number(1.01 + random.uniform(), 4), 3 + random.below(8),
                               !wide && kind == "abs" && random.chance(0.4) ? R"(, "programme": true)" : "");
    }
  } else if (random.chance(0.3)) {
    spec.json += R"(, "entries": "bf16")";
  }
  spec.json += "}\n";
  return spec;
}

}  // namespace outgrad::validation::gate
