// Numbers in texts that a person wrote: decimal, and the whole text.
#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace outgrad::kernels {

// The number that the text is, nothing of it left over; no blank before it, no plus sign, no other base.
// Floating point may be inf or nan.
template <class Number>
std::optional<Number> number_in(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The two numbers of a text such as "3/8" or "16x1024", `between` standing between them.
template <class Number>
std::optional<std::pair<Number, Number>> numbers_in(std::string_view text, char between) {
  const std::size_t place = text.find(between);
  if (place == std::string_view::npos) return std::nullopt;
  const auto first = number_in<Number>(text.substr(0, place)),
             second = number_in<Number>(text.substr(place + 1));
  if (!first || !second) return std::nullopt;
  return std::pair(*first, *second);
}

}  // namespace outgrad::kernels
