// The schedules of kernels/params.h member by member, as the parameters of a record and as points of a space.
#pragma once

#include <algorithm>
#include <concepts>
#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#include "kernels/host/errors.h"
#include "kernels/support/jit/schedule.h"

namespace outgrad::autotune {

using kernels::jit::each_field;
using kernels::jit::initialiser;
using kernels::jit::name_of_value;
using kernels::jit::type_name_of;

// A member's value in a record: a number, a truth value, or an enumeration's word.
template <class Value>
nlohmann::json parameter_of(Value value) {
  if constexpr (std::is_enum_v<Value>)
    return name_of_value(value);
  else
    return value;
}

// Back from it. Throws SpecError: "table: unknown value \"moon\"".
template <class Value>
void read_parameter(const char* name, const nlohmann::json& parameter, Value& value) {
  if constexpr (std::is_enum_v<Value>) {
    const auto words = kernels::jit::names_of<Value>().values;
    const auto found =
        std::find_if(words.begin(), words.end(), [&](const char* word) { return parameter == word; });
    value = static_cast<Value>(found - words.begin());
    if (found != words.end()) return;
  } else if (std::same_as<Value, bool> ? parameter.is_boolean() : parameter.is_number_integer()) {
    value = parameter.get<Value>();
    return;
  }
  throw kernels::SpecError(std::string(name) + ": unknown value " + parameter.dump());
}

}  // namespace outgrad::autotune
