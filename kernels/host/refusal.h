// How a kernel refuses what it is given, in the namespace of the instruction set: see OUTGRAD_ABI in
// kernels/portable.h.
#pragma once

#include <string>

#include "kernels/host/errors.h"
#include "kernels/portable.h"

#ifndef __cpp_exceptions
#include <cstdio>
#include <cstdlib>
#endif

namespace outgrad::kernels::inline OUTGRAD_ABI {
namespace detail {

// "function: ". The text is appended by a function that the standard library holds compiled.
// std::string(const char*) would leave its inline code in objects that are compiled for more than the
// baseline, and the linker might keep that copy for all.
inline std::string refusal(const char* function) {
  std::string text;
  text.append(function).append(": ");
  return text;
}

// Throws SpecError. In a unit without exceptions (-fno-exceptions), the program ends with the message on
// stderr.
[[noreturn]] inline void refuse(const std::string& why) {
#ifdef __cpp_exceptions
  throw SpecError(why);
#else
  std::fprintf(stderr, "outgrad: %s\n", why.c_str());
  std::abort();
#endif
}

}  // namespace detail
}  // namespace outgrad::kernels::inline OUTGRAD_ABI
