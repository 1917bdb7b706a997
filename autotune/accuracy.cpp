// Bounds as keys and as words.
#include "autotune/accuracy.h"

#include <cmath>
#include <cstdio>

namespace outgrad::autotune {
namespace {

using nlohmann::json;

json bound_json(double bound) { return std::isfinite(bound) ? json(bound) : json(); }

std::string power_text(double bound) {
  if (!std::isfinite(bound)) return "not stated";
  if (bound == 0) return "0";
  char text[32];
  std::snprintf(text, sizeof text, "2^%.2f", std::ceil(100 * std::log2(bound)) / 100);
  return text;
}

}  // namespace

Accuracy accuracy_of(const Options& options) { return options.one_of("accuracy", {"default", "any"}) == "any" ? Accuracy::kAny : Accuracy::kAsDefault; }

json fit_json(const std::string& name, const std::string& accuracy, const kernels::FitBounds& bounds) {
  return {{"name", name}, {"class", accuracy}, {"a_plus_b", bound_json(bounds.a_plus_b)}, {"t", bound_json(bounds.t)}, {"r", bound_json(bounds.r)}};
}

kernels::FitBounds bounds_from(const json& fit) {
  const auto bound = [&](const char* key) {
    const auto found = fit.find(key);
    return found != fit.end() && found->is_number() ? found->get<double>() : kernels::FitBounds::kNone;
  };
  return {bound("a_plus_b"), bound("t"), bound("r")};
}

json claims_json(const kernels::FitClaims& claims) {
  if (claims.name == nullptr) return json::object();
  return {{"fit", fit_json(claims.name, claims.accuracy, claims.bounds)}};
}

std::string claims_text(const std::string& accuracy, const kernels::FitBounds& bounds) {
  return accuracy + ", A + B " + (bounds.direct ? "none" : power_text(bounds.a_plus_b)) + ", R " + power_text(bounds.r);
}

std::string claims_text(const kernels::FitClaims& claims) { return claims.name == nullptr ? "" : claims_text(claims.accuracy, claims.bounds); }

std::optional<std::string> why_less_accurate(const kernels::FitBounds& fit, const kernels::FitBounds& standard) {
  if (kernels::is_as_accurate(fit, standard)) return std::nullopt;
  const auto words = [](const char* name, double bound, double most) {
    return std::string(name) + " " + power_text(bound) + (std::isfinite(bound) ? " is larger than the default's " : ", the default's is ") + power_text(most);
  };
  if (!fit.direct && fit.a_plus_b > standard.a_plus_b) return words("A + B", fit.a_plus_b, standard.a_plus_b);
  if (fit.t > standard.t) return words("T", fit.t, standard.t);
  return words("R", fit.r, standard.r);
}

}  // namespace outgrad::autotune
