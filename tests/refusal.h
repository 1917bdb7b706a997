// Why an input is refused.
#pragma once

#include <string>

#include "kernels/host/errors.h"

namespace outgrad {

/// The message of the SpecError that the action throws, or "".
std::string refusal_of(const auto& action) {
  try {
    action();
  } catch (const kernels::SpecError& error) {
    return error.what();
  }
  return "";
}

}  // namespace outgrad
