/// What the fitter makes of a specification, and the file that holds it.
#pragma once

#include "approx/model/fit_model.h"

#include <string>
#include <variant>

namespace outgrad::approx {

struct Fit {
  /// function: text of the definition; accuracy: class and bound as in the spec
  std::string name, activation, function, accuracy, spec_sha256;
  double target = 0;
  std::variant<BackwardModel, ForwardModel, RoundedForwardModel, TableModel, CodeModel, Fp8Model> model;

  /// The model, if it is of this kind; else null.
  template <class Model>
  [[nodiscard]] Model* as() {
    return std::get_if<Model>(&model);
  }
  template <class Model>
  [[nodiscard]] const Model* as() const {
    return std::get_if<Model>(&model);
  }
};

/// Schema "outgrad.fit/3": numbers are hexadecimal floats in strings, so nothing is lost and the bytes are
/// deterministic.
std::string to_json(Fit fit);
/// @throws kernels::SpecError "path: key: why".
Fit fit_from_json(const std::string& text, const std::string& path);

}  // namespace outgrad::approx
