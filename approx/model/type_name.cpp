// Says which names a fit may have, so that its header compiles.
#include "approx/model/type_name.h"

#include "approx/function/activations.h"

#include <fmt/format.h>

#include <cctype>
#include <regex>

namespace outgrad::approx {

std::string type_name(const std::string& name) {
  std::string r;
  bool upper = true;
  for (const char ch : name) {
    if (ch == '_') {
      upper = true;
    } else {
      r += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(ch))) : ch;
      upper = false;
    }
  }
  return r;
}

std::string refusal_of_name(const std::string& name, bool own) {
  static const std::regex words("[a-z][a-z0-9]*(_[a-z0-9]+)*"), capitals("[A-Z][0-9]*[A-Z][A-Z0-9]*");
  constexpr size_t kLongest = 64;
  if (name.size() > kLongest || !std::regex_match(name, words)) {
    return "must be words of lower-case letters and digits, joined by single underscores, of up to 64 "
           "characters; the first is a letter";
  }
  const std::string type = type_name(name);
  if (type == "Table" || type == "Entries")
    return fmt::format("'{}' gives the type {}, which every header uses", name, type);
  if (std::regex_match(type, capitals))
    return fmt::format("'{}' gives the type {}, in capitals as macros are", name, type);
  if (!own) return "";
  for (const std::string& activation : activation_names()) {
    static const std::regex rest("(F32|F16|Bf16|E4m3|E5m2|Mxfp8|Code|Fp8|Forward)([A-Z].*)?");
    const std::string begin = type_name(activation);
    if (type.starts_with(begin) && std::regex_match(type.substr(begin.size()), rest)) {
      return fmt::format("'{}' is kept for the library's own header of {}", name, activation);
    }
  }
  return "";
}

}  // namespace outgrad::approx
