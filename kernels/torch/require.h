// The errors of the operators, in their own words alone. PyTorch's STD_TORCH_CHECK and TORCH_ERROR_CODE_CHECK
// would put a function's name before them, and the path that the sources had where they were compiled.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <sstream>
#include <stdexcept>

namespace outgrad::torch_operators {

template <class... Words>
[[noreturn]] void refuse(const Words&... words) {
  std::ostringstream text;
  text << "outgrad: ";
  (text << ... << words);
  throw std::runtime_error(text.str());
}

template <class... Words>
void require(bool holds, const Words&... words) {
  if (!holds) refuse(words...);
}

// For what a function of PyTorch returns. PyTorch has written its own reason to stderr.
inline void succeed(AOTITorchError code, const char* what) {
  require(code == AOTI_TORCH_SUCCESS, "PyTorch could not ", what);
}

}  // namespace outgrad::torch_operators
