// A limit that a sweep must keep; `validate` ends with exit status 1 if one does not hold.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

namespace outgrad::validation {

struct SweepGate {
  std::string name;
  double value, limit;
  bool holds() const { return value <= limit; }
  std::string text() const {
    return fmt::format("  {} {}: {:.6g} (at most {:.6g})\n", holds() ? "holds   " : "VIOLATED", name, value,
                       limit);
  }
};

inline nlohmann::ordered_json gate_json(const SweepGate& gate) {
  return {{"name", gate.name}, {"value", gate.value}, {"limit", gate.limit}, {"holds", gate.holds()}};
}

}  // namespace outgrad::validation
