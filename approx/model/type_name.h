/// The C++ type that a fit's header defines, and the names that give none.
#pragma once

#include <string>

namespace outgrad::approx {

/// gelu_f32 -> GeluF32.
std::string type_name(const std::string& name);

/// Why a fit cannot be called so, or "": `own` says that it is of a user's own function. A name is words of
/// lower-case letters and digits, joined by single underscores, whose type is no macro, no name that a header
/// itself uses and, of a user's own, none of the library's headers.
std::string refusal_of_name(const std::string& name, bool own);

}  // namespace outgrad::approx
