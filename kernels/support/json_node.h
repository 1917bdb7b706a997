// JSON documents read through their schemas: every value knows its file and its place, and says both when it
// is not what is expected.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"
#include "kernels/support/suggestion.h"

namespace outgrad::kernels {

// A JSON value that knows where it stands, and keeps its document. Refusals are SpecError "file: place: why",
// and "place: why" of a document without a file.
class JsonNode {
 public:
  JsonNode(nlohmann::json value, std::string file, std::string place = "")
      : document_(std::make_shared<const Document>(Document{std::move(value), std::move(file)})),
        value_(&document_->value), place_(std::move(place)) {}

  [[noreturn]] void fail(const std::string& why) const {
    const std::string place = place_.empty() ? "top level" : place_;
    throw document_->file.empty() ? SpecError(place + ": " + why) : SpecError(document_->file, place, why);
  }

  bool has(const std::string& key) const { return value_->is_object() && value_->contains(key); }
  JsonNode operator[](const std::string& key) const {
    if (!has(key)) fail("'" + key + "' is missing");
    return {*this, value_->at(key), place_.empty() ? key : place_ + "." + key};
  }
  std::vector<JsonNode> items() const {
    if (!value_->is_array()) fail("is not an array");
    std::vector<JsonNode> nodes;
    nodes.reserve(value_->size());
    for (std::size_t i = 0; i < value_->size(); ++i)
      nodes.push_back({*this, (*value_)[i], place_ + "[" + std::to_string(i) + "]"});
    return nodes;
  }
  std::vector<JsonNode> items(std::size_t expected) const {
    auto nodes = items();
    if (nodes.size() != expected)
      fail("has " + std::to_string(nodes.size()) + " elements where " + std::to_string(expected) +
           " are expected");
    return nodes;
  }
  std::vector<std::string> keys() const {
    if (!value_->is_object()) fail("is not an object");
    std::vector<std::string> keys;
    for (const auto& [key, value] : value_->items()) keys.push_back(key);
    return keys;
  }
  // Refuses keys that are not among `known`: a misspelt one would be passed over.
  void expect_keys(std::initializer_list<std::string_view> known) const {
    for (const std::string& key : keys())
      if (std::find(known.begin(), known.end(), key) == known.end())
        fail("has an unknown key '" + key.substr(0, kShown) + "'" +
             did_you_mean(key, {known.begin(), known.end()}));
  }
  void expect_schema(const std::string& schema) const {
    const JsonNode found = (*this)["schema"];
    if (found.text() != schema) found.fail("is not " + schema);
  }

  bool null() const { return value_->is_null(); }
  std::string text() const {
    if (!value_->is_string()) fail("is not a string");
    return value_->get<std::string>();
  }
  bool boolean() const {
    if (!value_->is_boolean()) fail("is not true or false");
    return value_->get<bool>();
  }
  template <std::integral T = std::int64_t>
  T count() const {
    if (!value_->is_number_integer() || (!value_->is_number_unsigned() && value_->get<std::int64_t>() < 0))
      fail("is not a count");
    if (value_->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<T>::max()))
      fail("is too large");
    return value_->get<T>();
  }
  double number() const {
    if (!value_->is_number()) fail("is not a number");
    return value_->get<double>();
  }
  // A number; "inf", "-inf" and "nan" stand for what JSON has no word for.
  double real() const {
    if (*value_ == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (*value_ == "inf" || *value_ == "-inf")
      return (*value_ == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
    return number();
  }
  // A bound that is null where nothing holds.
  double bound() const { return null() ? std::numeric_limits<double>::infinity() : real(); }
  // A finite number, or a string of one: decimal or a hex float.
  double finite() const {
    double value = 0;
    if (value_->is_number()) {
      value = number();
    } else {
      const std::string digits = value_->is_string() ? text() : "";
      if (digits.starts_with("0x") || digits.starts_with("-0x")) return hex();
      if (!is_number(digits, std::chars_format::general, value)) fail("is not a number");
    }
    if (!std::isfinite(value)) fail("is not finite");
    return value;
  }
  // A finite hex float in a string.
  double hex() const {
    const std::string digits = text();
    const bool negative = digits.starts_with('-');
    const std::string_view magnitude = std::string_view(digits).substr(negative ? 1 : 0);
    double value = 0;
    if (!magnitude.starts_with("0x") || !is_number(magnitude.substr(2), std::chars_format::hex, value) ||
        !std::isfinite(value))
      fail("is not a finite hex float");
    return negative ? -value : value;
  }
  // An error bound: a hex float that is not negative.
  double hex_bound() const {
    const double value = hex();
    if (value < 0) fail("is negative");
    return value;
  }
  // The value of an enumeration, given as one of its words in the file.
  template <class Enum, std::size_t N>
  Enum word(const std::pair<std::string_view, Enum> (&words)[N]) const {
    const std::string found = text();
    std::string known;
    for (const auto& [name, value] : words) {
      if (name == found) return value;
      known += (known.empty() ? "" : ", ") + std::string(name);
    }
    fail("'" + found.substr(0, kShown) + "' is not one of " + known);
  }

  std::size_t size() const { return value_->size(); }
  const std::string& place() const { return place_; }
  const nlohmann::json& raw() const { return *value_; }

 private:
  static constexpr std::size_t kShown = 40;  // of a text that somebody else wrote
  struct Document {
    nlohmann::json value;
    std::string file;
  };

  JsonNode(const JsonNode& of, const nlohmann::json& value, std::string place)
      : document_(of.document_), value_(&value), place_(std::move(place)) {}

  static bool is_number(std::string_view digits, std::chars_format format, double& value) {
    const char* const end = digits.data() + digits.size();
    const auto [at, error] = std::from_chars(digits.data(), end, value, format);
    return error == std::errc() && at == end;
  }

  std::shared_ptr<const Document> document_;
  const nlohmann::json* value_;
  std::string place_;
};

// The document in a file, of this schema where one is named. Throws SpecError, IoError.
inline JsonNode read_json(const std::string& file, const std::string& schema = "") {
  JsonNode node(parse_json(read_file(file), file), file);
  if (!schema.empty()) node.expect_schema(schema);
  return node;
}

}  // namespace outgrad::kernels
