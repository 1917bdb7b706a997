// What several of these tests work on.
#pragma once

#include <string>

#include "approx/model/fit.h"
#include "kernels/support/files.h"

namespace outgrad::approx {

inline const std::string kRoot = OUTGRAD_SOURCE_DIR;

/// Seconds: far above what a script of Gappa (4) or Sollya (1) takes on a busy machine.
inline constexpr double kScriptLimit = 120;

inline const Composite& gelu() {
  static const Composite composite(find_activation("gelu"));
  return composite;
}

/// A fit of notebooks_data/fits/.
inline Fit committed(const std::string& name) {
  const std::string path = kRoot + "/notebooks_data/fits/" + name + ".json";
  return fit_from_json(kernels::read_file(path), path);
}

}  // namespace outgrad::approx
