// The errors of the operators, in their own words alone. PyTorch's STD_TORCH_CHECK and TORCH_ERROR_CODE_CHECK
// would put a function's name before them, and the path that the sources had where they were compiled.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>

#include <sstream>
#include <stdexcept>
#include <string_view>

#include "kernels/c/outgrad.h"

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

// The compiled library's message without the names of C functions before it, since the caller has called none
// of them.
inline std::string_view said() {
  std::string_view message = outgrad_error_message();
  for (;;) {
    const std::size_t end = message.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_");
    if (end == 0 || end == message.npos || !message.substr(end).starts_with(": ")) return message;
    message.remove_prefix(end + 2);
  }
}

inline void succeed(outgrad_status status) {
  if (status != OUTGRAD_OK) refuse(said());
}

}  // namespace outgrad::torch_operators
