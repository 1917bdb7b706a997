// Bounds as keys and as words.
#include "autotune/space/accuracy.h"

#include <cmath>
#include <cstdio>

namespace outgrad::autotune {
namespace {

using nlohmann::json;

std::string power_text(double bound) {
  if (!std::isfinite(bound)) return "not stated";
  if (bound == 0) return "0";
  char text[32];
  std::snprintf(text, sizeof text, "2^%.2f", std::ceil(100 * std::log2(bound)) / 100);
  return text;
}

}  // namespace

FitRecord fit_record(const std::string& name, const std::string& accuracy, const kernels::FitBounds& bounds) {
  return {name, accuracy, bounds.a_plus_b, bounds.t, bounds.r, {}, "", {}};
}

kernels::FitBounds bounds_from(const FitRecord& fit) {
  constexpr double kNone = kernels::FitBounds::kNone;
  return {fit.a_plus_b.value_or(kNone), fit.t.value_or(kNone), fit.r.value_or(kNone)};
}

json claims_json(const kernels::FitClaims& claims) {
  if (claims.name == nullptr) return json::object();
  return {{"fit", to_json(fit_record(claims.name, claims.accuracy, claims.bounds))}};
}

std::string claims_text(const std::string& accuracy, const kernels::FitBounds& bounds) {
  return accuracy + ", A + B " + (bounds.direct ? "none" : power_text(bounds.a_plus_b)) + ", R " +
         power_text(bounds.r);
}

std::string claims_text(const kernels::FitClaims& claims) {
  return claims.name == nullptr ? "" : claims_text(claims.accuracy, claims.bounds);
}

std::optional<std::string> why_less_accurate(const kernels::FitBounds& fit,
                                             const kernels::FitBounds& standard) {
  if (kernels::is_as_accurate(fit, standard)) return std::nullopt;
  const auto words = [](const char* name, double bound, double most) {
    return std::string(name) + " " + power_text(bound) +
           (std::isfinite(bound) ? " is larger than the default's " : ", the default's is ") +
           power_text(most);
  };
  if (!fit.direct && fit.a_plus_b > standard.a_plus_b) return words("A + B", fit.a_plus_b, standard.a_plus_b);
  if (fit.t > standard.t) return words("T", fit.t, standard.t);
  return words("R", fit.r, standard.r);
}

}  // namespace outgrad::autotune
