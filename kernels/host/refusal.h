// The beginning of an error message, in the namespace of the instruction set: see OUTGRAD_ABI in kernels/portable.h.
#pragma once

#include <string>

#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {
namespace detail {

// "function: ". The text is appended by a function that the standard library holds compiled. std::string(const char*)
// would leave its inline code in objects that are compiled for more than the baseline, and the linker might keep that
// copy for all.
inline std::string refusal(const char* function) {
  std::string text;
  text.append(function).append(": ");
  return text;
}

}  // namespace detail
}  // namespace outgrad::kernels::inline OUTGRAD_ABI
