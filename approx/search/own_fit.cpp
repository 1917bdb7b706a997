// Writes specifications from coarse wishes, until a fit holds.
#include "approx/search/own_fit.h"

#include "approx/function/stationary.h"
#include "approx/function/storage.h"
#include "approx/search/fitter.h"
#include "approx/search/layouts.h"
#include "approx/search/pareto.h"
#include "kernels/support/json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <optional>
#include <string>
#include <utility>

namespace outgrad::approx {
namespace {

using kernels::SpecError;

/// "2^-9.5": no larger than the error, in the three decimals that a specification may have.
std::string target_text(double error) {
  return fmt::format("2^{:g}", std::floor(1000 * std::log2(error) * (1 + 0x1p-48)) / 1000);
}

Spec spec_of(const OwnFunction& wanted, const std::string& target, const std::string& rows) {
  const std::string storage = wanted.oracle ? R"("entries": "f16")"
                                            : fmt::format(R"("storage": {{"ratio": 1.05, "regret": "{}"}})",
                                                          usual_regret(wanted.format));
  const std::string text =
      fmt::format(R"({{"schema": "outgrad.spec/2", "name": "{}", "kind": "backward", {}, "format": "{}", )"
                  R"("target": "{}"{}, {}}})",
                  wanted.name, wanted.definition, to_string(wanted.format), target, rows, storage);
  return parse_spec(kernels::parse_json<nlohmann::ordered_json>(text).dump(1) + "\n", "fit");
}

OwnFit fitted(Spec spec, int threads) {
  Fit result = fit(spec, threads);
  return {std::move(spec), std::move(result), ""};
}

/// As few rows as levelled errors need, where cells of equal width do not reach the target; 16-bit formats
/// alone: the search for break points works in double, on a curve of few points.
std::optional<OwnFit> fit_levelled(const OwnFunction& wanted, const std::string& target, int threads) {
  constexpr const char* kRows = R"(, "degree": 4, "split": "levelled")";
  if (precision_bits(wanted.format) > precision_bits(Format::f16)) return std::nullopt;
  try {
    return fitted(spec_of(wanted, target, kRows), threads);
  } catch (const SpecError&) {
    return std::nullopt;
  }
}

OwnFit fit_within(const OwnFunction& wanted, double error, int threads) {
  const std::string target = "abs:" + target_text(error);
  try {
    return fitted(spec_of(wanted, target, ""), threads);
  } catch (const OutOfReach&) {
    if (auto levelled = fit_levelled(wanted, target, threads)) return std::move(*levelled);
    throw;
  }
}

/// From the least error that is of use upwards, to the first that is reached; of a small f' both are small.
OwnFit fit_in_reach(const OwnFunction& wanted, const Composite& composite, int threads) {
  constexpr int kMostTried = 4;
  // What rounding the coefficients loses, where the quick look at a layout promised too much.
  constexpr double kStep = 1.25;
  const double scale = gradient_scale(composite);
  // A gradient that is off by more than this is of no use to training.
  const double coarsest = 0x1p-6 * scale;
  double error = error_resolution(wanted.format) * scale;
  for (int tried = 1;; ++tried) {
    try {
      return fit_within(wanted, error, threads);
    } catch (const OutOfReach& refusal) {
      if (tried == kMostTried || refusal.reaches > coarsest) throw;
      error = refusal.reaches;
    } catch (const SpecError&) {
      if (tried == kMostTried || error * kStep > coarsest) throw;
      error *= kStep;
    }
  }
}

/// Beside a refusal of an f' that is tiny or huge: what to do about it.
std::string advice_on_size(double gradient_scale) {
  constexpr double kTiny = 0x1p-30, kHuge = 0x1p50;
  if (gradient_scale > kTiny && gradient_scale < kHuge) return "";
  return fmt::format(
      "; f' may be too {} for the search for rows in double precision: fit c*f(x) with a number "
      "c that brings f' near 1, and divide the gradient by c",
      gradient_scale < 1 ? "small" : "large");
}

OwnFit fit_upright(const OwnFunction& wanted, int threads) {
  if (wanted.oracle) return fitted(spec_of(wanted, "oracle", ""), threads);
  // What stands in the way of every layout is said at once.
  const Composite composite(spec_of(wanted, "abs:2^-1", "").activation);
  if (wanted.error > 0) return fit_within(wanted, wanted.error, threads);
  try {
    return fit_in_reach(wanted, composite, threads);
  } catch (const SpecError& refusal) {
    const std::string advice = advice_on_size(gradient_scale(composite));
    if (advice.empty()) throw;
    throw SpecError(refusal.what() + advice);
  }
}

}  // namespace

OwnFit fit_own(OwnFunction wanted, int threads) {
  if (!wanted.oracle && (wanted.format == Format::e4m3 || wanted.format == Format::e5m2))
    wanted.oracle = true;
  try {
    return fit_upright(wanted, threads);
  } catch (const FallsToRight& refusal) {
    const nlohmann::ordered_json definition{{"expression", refusal.mirror}};
    const std::string member = definition.dump();
    wanted.definition = member.substr(1, member.size() - 2);
    OwnFit result = fit_upright(wanted, threads);
    result.mirror = refusal.mirror;
    return result;
  } catch (const SpecError& refusal) {
    const auto f = spec_of(wanted, wanted.oracle ? "oracle" : "abs:2^-1", "").activation.expression;
    if (!f || !f->divides_exponentials()) throw;
    throw SpecError(
        refusal.what() +
        std::string("; exp stands above and below a division, and where both grow alike no interval of x "
                    "shows how small f' is: write 1/(1+exp(-x)), which is sigmoid(x), for exp(x)/(1+exp(x)), "
                    "and tanh(x) for (exp(x)-exp(-x))/(exp(x)+exp(-x))"));
  }
}

}  // namespace outgrad::approx
