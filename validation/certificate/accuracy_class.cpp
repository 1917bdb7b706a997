// Parses kClass and holds a header's figures to it.
#include "validation/certificate/accuracy_class.h"

#include <cmath>
#include <cstdlib>
#include <utility>

namespace outgrad::validation {

AccuracyClass read_class(const std::string& text) {
  if (text == "oracle") return {ClassKind::oracle, 0};
  if (text == "rounded") return {ClassKind::rounded, 0};
  for (const auto& [begin, kind] : {std::pair{"abs:", ClassKind::abs},
                                    {"rel:", ClassKind::rel},
                                    {"ulp:", ClassKind::ulp},
                                    {"stored:", ClassKind::stored}}) {
    if (!text.starts_with(begin)) continue;
    std::string number = text.substr(std::string(begin).size());
    const bool power = number.starts_with("2^");
    if (power) number.erase(0, 2);
    char* end = nullptr;
    double value = std::strtod(number.c_str(), &end);
    if (power) value = std::exp2(value);
    const bool read = !number.empty() && *end == '\0' && std::isfinite(value) && value > 0;
    return read ? AccuracyClass{kind, value} : AccuracyClass{};
  }
  return {};
}

}  // namespace outgrad::validation
