// JSON texts, read to their last byte.
//
// nlohmann's lexer takes a NUL for the end of its input, so that anything may stand after one, and the reader
// of a file sees another document than the person who looks at it. No JSON text has a NUL. All of our readers
// parse through this file (a test makes sure).
#pragma once

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

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

/// Throws SpecError with the line and column where the text is no JSON.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text, const std::string& file) {
  try {
    return parse_json<Json>(text);
  } catch (const nlohmann::json::parse_error& error) {
    throw SpecError(file, line_and_column(text, error.byte), "is not JSON" + reason_of(error.what()));
  } catch (const nlohmann::json::out_of_range&) {  // whose text quotes all of the number
    throw SpecError(file, "JSON", "a number is beyond double's range");
  }
}

/// A discarded value where the text is no JSON: of a line that may be damaged.
inline nlohmann::json parse_json_line(std::string_view line) {
  return with_json_text(line, [](std::string_view visible) {
    return nlohmann::json::parse(visible, nullptr, /*allow_exceptions=*/false);
  });
}

/// Tells `events`, a nlohmann::json_sax, what stands in the text; false where one of them, or the parser,
/// stops.
template <class Events>
bool scan_json(std::string_view text, Events& events) {
  return with_json_text(
      text, [&](std::string_view visible) { return nlohmann::json::sax_parse(visible, &events); });
}

}  // namespace outgrad::kernels
