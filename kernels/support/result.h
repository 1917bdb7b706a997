// What --json and --csv print of a command's result: the one place that writes both.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/support/progress.h"

namespace outgrad::kernels {

// Which of the two is wanted, if any; what people read is printed otherwise.
struct ResultForm {
  bool json = false, csv = false;

  explicit operator bool() const { return json || csv; }
};

namespace csv {

using Row = std::vector<std::pair<std::string, std::string>>;  // columns and cells

// A cell as RFC 4180 has it: what holds a separator, a quote or an end of line is quoted.
inline std::string quoted(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == text.npos) return text;
  std::string cell = "\"";
  for (const char c : text) cell += c == '"' ? std::string("\"\"") : std::string(1, c);
  return cell + '"';
}

// What an object has, members of members under their path ("T.bound"). A list has no place in a row: JSON has
// it.
template <class Json>
void flatten(const Json& object, const std::string& prefix, Row& row) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object())
      flatten(value, prefix + key + ".", row);
    else if (value.is_string())
      row.emplace_back(prefix + key, value.template get<std::string>());
    else if (!value.is_array())
      row.emplace_back(prefix + key, value.is_null() ? "" : value.dump());
  }
}

// The rows of a list, or of the lists that `inner` names in its elements: an element of an inner list stands
// behind what the one around it says.
template <class Json>
void collect(const Json& list, const std::string& inner, std::vector<Row>& rows) {
  for (const Json& one : list) {
    Row row;
    flatten(one, "", row);
    if (inner.empty()) {
      rows.push_back(std::move(row));
      continue;
    }
    for (const Json& within : one.at(inner)) {
      rows.push_back(row);
      flatten(within, "", rows.back());
    }
  }
}

}  // namespace csv

// A table with a head and a row for each element of a list: `lists` is the key of the list in the document,
// or "outer.inner" for lists in the elements of one, without "outer" where the document itself is the list or
// the only element. Columns are those of all rows, in the order in which they come first.
template <class Json>
std::string to_csv(const Json& document, std::string_view lists) {
  const std::size_t dot = std::min(lists.find('.'), lists.size());
  const std::string outer(lists.substr(0, dot)), inner(lists.substr(std::min(dot + 1, lists.size())));
  const Json& found = outer.empty() ? document : document.at(outer);
  std::vector<csv::Row> rows;
  csv::collect(found.is_array() ? found : Json::array({found}), inner, rows);
  std::vector<std::string> columns;
  for (const csv::Row& row : rows) {
    for (const auto& [column, cell] : row)
      if (std::find(columns.begin(), columns.end(), column) == columns.end()) columns.push_back(column);
  }
  std::string text;
  const auto add_line = [&](const auto& cell_of) {
    for (std::size_t i = 0; i < columns.size(); ++i) text += (i > 0 ? "," : "") + cell_of(columns[i]);
    text += "\r\n";
  };
  add_line([](const std::string& column) { return csv::quoted(column); });
  for (const csv::Row& row : rows) {
    add_line([&](const std::string& column) {
      // Of a member that both lists have, the inner one's.
      const auto cell =
          std::find_if(row.rbegin(), row.rend(), [&](const auto& one) { return one.first == column; });
      return cell == row.rend() ? std::string() : csv::quoted(cell->second);
    });
  }
  return text;
}

// The document in the form that is wanted; bytes that are no UTF-8 are replaced.
template <class Json>
std::string to_text(const ResultForm& form, const Json& document, std::string_view lists) {
  return form.csv ? to_csv(document, lists)
                  : document.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

template <class Json>
void print_result(const ResultForm& form, const Json& document, std::string_view lists) {
  const std::string text = to_text(form, document, lists);
  keep_lines();
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace outgrad::kernels
