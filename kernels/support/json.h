// JSON texts, read to their last byte.
//
// nlohmann's lexer takes a NUL for the end of its input, so that anything may stand after one, and the reader
// of a file sees another document than the person who looks at it. No JSON text has a NUL. All of our readers
// parse through this file (a test makes sure).
#pragma once

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/host/errors.h"

namespace outgrad::kernels {

/// Calls `use` with the text, in which a byte that no JSON text has either stands for each NUL: the parser
/// stops there, and says where.
template <class Use>
decltype(auto) with_json_text(std::string_view text, const Use& use) {
  if (text.find('\0') == text.npos) return use(text);
  std::string visible(text);
  std::replace(visible.begin(), visible.end(), '\0', '\x01');
  return use(std::string_view(visible));
}

/// Throws Json::parse_error, or Json::out_of_range where a number is beyond double's range.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text) {
  return with_json_text(text, [](std::string_view visible) { return Json::parse(visible); });
}

/// "line 3, column 5" of a byte, counted from 1 as the parser counts it. Columns count bytes.
inline std::string line_and_column(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, byte > 0 ? byte - 1 : 0);
  const std::size_t last = before.rfind('\n');
  return "line " + std::to_string(1 + std::count(before.begin(), before.end(), '\n')) + ", column " +
         std::to_string(before.size() - (last == before.npos ? 0 : last + 1) + 1);
}

/// ": unexpected end of input; expected '}'" of the parser's text; nothing where the text is of another form.
/// What it read last, before that, may be all of a file and is left out.
inline std::string reason_of(std::string_view error) {
  constexpr std::size_t kLongest = 120;
  const std::size_t begin = error.rfind("unexpected ");
  if (begin == error.npos || error.size() - begin > kLongest) return "";
  return ": " + std::string(error.substr(begin));
}

/// Tells `events`, a nlohmann::json_sax, what stands in the text; false where one of them, or the parser,
/// stops.
template <class Events>
bool scan_json(std::string_view text, Events& events) {
  return with_json_text(
      text, [&](std::string_view visible) { return nlohmann::json::sax_parse(visible, &events); });
}

/// Why a document that the parser takes is refused, if it is. Of two equal keys the parser keeps the last, so
/// that two readers may see two documents. And a file may nest as deeply as it is long, but copying,
/// comparing and writing a value recurse; ours nest less than ten deep. (A callback of the parser itself
/// would take time quadratic in the number of keys.)
class JsonGuard final : public nlohmann::json::json_sax_t {
 public:
  const std::string& refusal() const { return refusal_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    constexpr std::size_t kShown = 40;
    if (!keys_.back().insert(name).second) refusal_ = "the key '" + name.substr(0, kShown) + "' occurs twice";
    return refusal_.empty();
  }
  // the parser will report it
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override {
    return false;
  }

 private:
  bool enter() {
    constexpr std::size_t kDeepest = 32;
    if (keys_.size() == kDeepest) refusal_ = "nested deeper than " + std::to_string(kDeepest);
    keys_.emplace_back();
    return refusal_.empty();
  }
  bool leave() {
    keys_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> keys_;  // of the enclosing objects; empty for arrays
  std::string refusal_;
};

/// What JsonGuard says of a text; nothing of one that is no JSON.
inline std::string json_refusal(std::string_view text) {
  JsonGuard guard;
  scan_json(text, guard);
  return guard.refusal();
}

/// Throws SpecError with the line and column where the text is no JSON, and where JsonGuard refuses it.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const std::string& file) {
  if (const std::string why = json_refusal(text); !why.empty()) throw SpecError(file, "JSON", why);
  try {
    return parse_json<Json>(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw SpecError(file, line_and_column(text, error.byte), "is not JSON" + reason_of(error.what()));
  } catch (const nlohmann::json::out_of_range&) {  // whose text quotes all of the number
    throw SpecError(file, "JSON", "a number is beyond double's range");
  }
}

/// A discarded value where the text is no JSON, or JsonGuard refuses it: of a line that may be damaged.
inline nlohmann::json parse_json_line(std::string_view line) {
  if (!json_refusal(line).empty()) return nlohmann::json::value_t::discarded;
  return with_json_text(line, [](std::string_view visible) {
    return nlohmann::json::parse(visible, nullptr, /*allow_exceptions=*/false);
  });
}

}  // namespace outgrad::kernels
