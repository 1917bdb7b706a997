// JSON read through its schema: every value knows its file and its place, and says both when it is not what
// is expected.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"

namespace outgrad::validation {

/// A JSON value that knows where it stands. Refusals are kernels::SpecError "file: place: why". The value and
/// the file's name must outlive it.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, const std::string& file, std::string place)
      : value_(value), file_(file), place_(std::move(place)) {}

  [[noreturn]] void fail(const std::string& why) const {
    throw kernels::SpecError(file_, place_.empty() ? "top level" : place_, why);
  }

  bool has(const char* key) const { return value_.is_object() && value_.contains(key); }
  JsonNode operator[](const std::string& key) const {
    if (!value_.is_object() || !value_.contains(key)) fail("'" + key + "' is missing");
    return {value_.at(key), file_, place_.empty() ? key : place_ + "." + key};
  }
  std::vector<JsonNode> items() const {
    if (!value_.is_array()) fail("is not an array");
    std::vector<JsonNode> nodes;
    nodes.reserve(value_.size());
    for (size_t i = 0; i < value_.size(); ++i)
      nodes.push_back({value_[i], file_, fmt::format("{}[{}]", place_, i)});
    return nodes;
  }
  std::vector<JsonNode> items(size_t expected) const {
    auto nodes = items();
    if (nodes.size() != expected)
      fail(fmt::format("has {} elements where {} are expected", nodes.size(), expected));
    return nodes;
  }
  bool null() const { return value_.is_null(); }
  std::string text() const {
    if (!value_.is_string()) fail("is not a string");
    return value_.get<std::string>();
  }
  bool boolean() const {
    if (!value_.is_boolean()) fail("is not true or false");
    return value_.get<bool>();
  }
  std::int64_t count() const {
    if (!value_.is_number_integer() || value_.get<std::int64_t>() < 0) fail("is not a count");
    return value_.get<std::int64_t>();
  }
  int small() const {
    if (count() > std::numeric_limits<int>::max()) fail("is too large");
    return static_cast<int>(count());
  }
  /// A number; "inf", "-inf" and "nan" stand for what JSON has no word for.
  double real() const {
    if (value_.is_number()) return value_.get<double>();
    const std::string word = value_.is_string() ? value_.get<std::string>() : "";
    if (word == "inf" || word == "-inf")
      return word == "inf" ? std::numeric_limits<double>::infinity()
                           : -std::numeric_limits<double>::infinity();
    if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
    fail("is not a number");
  }
  /// A finite number, or a string of one: decimal or a hex float.
  double finite() const {
    double value = 0;
    if (value_.is_number()) {
      value = value_.get<double>();
    } else {
      const std::string digits = value_.is_string() ? value_.get<std::string>() : "";
      if (digits.starts_with("0x") || digits.starts_with("-0x")) return hex();
      const char* const end = digits.data() + digits.size();
      const auto [at, error] = std::from_chars(digits.data(), end, value);
      if (digits.empty() || error != std::errc() || at != end) fail("is not a number");
    }
    if (!std::isfinite(value)) fail("is not finite");
    return value;
  }
  /// Refuses keys that are not among `known`: a misspelt one would be passed over.
  void expect_keys(std::initializer_list<std::string_view> known) const {
    if (!value_.is_object()) fail("is not an object");
    for (const auto& [key, value] : value_.items()) {
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        constexpr std::size_t kShown = 40;
        fail("has an unknown key '" + key.substr(0, kShown) + "'");
      }
    }
  }
  std::vector<std::string> keys() const {
    if (!value_.is_object()) fail("is not an object");
    std::vector<std::string> keys;
    for (const auto& [key, value] : value_.items()) keys.push_back(key);
    return keys;
  }
  std::size_t size() const { return value_.size(); }
  const nlohmann::json& raw() const { return value_; }
  /// The bounds of a stability analysis: null where nothing holds.
  double bound() const { return null() ? std::numeric_limits<double>::infinity() : real(); }
  /// A finite hex float in a string.
  double hex() const {
    std::string digits = text();
    const bool negative = digits.starts_with('-');
    if (negative) digits.erase(0, 1);
    double value = 0;
    const bool prefixed = digits.starts_with("0x");
    const char* const end = digits.data() + digits.size();
    const auto [at, error] =
        std::from_chars(digits.data() + (prefixed ? 2 : 0), end, value, std::chars_format::hex);
    if (!prefixed || error != std::errc() || at != end || !std::isfinite(value))
      fail("is not a finite hex float");
    return negative ? -value : value;
  }
  /// An error bound: a hex float that is not negative.
  double hex_bound() const {
    const double value = hex();
    if (value < 0) fail("is negative");
    return value;
  }
  void expect_schema(const char* schema) const {
    const JsonNode found = (*this)["schema"];
    if (found.text() != schema) found.fail(fmt::format("is not {}", schema));
  }

 private:
  const nlohmann::json& value_;
  const std::string& file_;
  std::string place_;
};

/// The value of an enumeration, given as one of its words in the file.
template <class Enum, std::size_t N>
Enum word_of(const JsonNode& node, const std::pair<std::string_view, Enum> (&words)[N]) {
  const std::string text = node.text();
  std::string known;
  for (const auto& [name, value] : words) {
    if (name == text) return value;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  constexpr std::size_t kShown = 40;
  node.fail("'" + text.substr(0, kShown) + "' is not one of " + known);
}

inline nlohmann::json read_json(const std::string& file) {
  return kernels::parse_json(kernels::read_file(file), file);
}

}  // namespace outgrad::validation
