// Lists that a person writes on a command line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outgrad::kernels {

// What stands between the commas of "A,B", empty parts too, so that their reader refuses these: CLI11's own
// delimiter passes over them.
inline std::vector<std::string> parts_of(std::string_view list) {
  std::vector<std::string> parts(1);
  for (const char c : list) {
    if (c == ',')
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

}  // namespace outgrad::kernels
