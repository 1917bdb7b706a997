// The exception for a broken contract.
#pragma once

#include <stdexcept>
#include <string>

namespace outgrad::kernels {

// Usage or input that breaks a contract. `place` says where in the file the error is (a key, a line, a byte
// offset). The user reads "file: place: why".
class SpecError : public std::runtime_error {
 public:
  explicit SpecError(const std::string& why) : std::runtime_error(why) {}
  SpecError(const std::string& file, const std::string& place, const std::string& why)
      : std::runtime_error(file + ": " + place + ": " + why) {}
};

}  // namespace outgrad::kernels
