// HTML with its style sheet inside, and Markdown.
#include "validation/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>

namespace outgrad::validation::page {
namespace {

constexpr const char* kStyleSheet = R"css(
:root { --ink: #1c2128; --soft: #59636e; --line: #d8dee4; --pale: #f6f8fa; --good: #1a7f37; --bad: #b3261e; --link: #1f5fa8; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1120px; padding: 40px 28px 80px; background: #fff; color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 8px; letter-spacing: -0.01em; }
h2 { font-size: 20px; margin: 44px 0 10px; padding-top: 14px; border-top: 1px solid var(--line); }
p { max-width: 80ch; margin: 8px 0 12px; }
p.lead { font-size: 17px; color: var(--soft); }
nav { margin: 18px 0 0; font-size: 14px; }
nav a { color: var(--link); text-decoration: none; margin-right: 18px; white-space: nowrap; }
figure { margin: 20px 0 26px; }
figcaption { font-size: 13.5px; color: var(--soft); margin: 6px 0; max-width: 100ch; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(340px, 1fr)); gap: 8px 20px; }
.plots svg { width: 100%; height: auto; display: block; }
.plots svg text { font-family: inherit; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 12px; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top; white-space: nowrap; }
th { border-bottom: 2px solid #afb8c1; vertical-align: bottom; font-weight: 600; }
th small { display: block; font-weight: 400; color: var(--soft); }
th.left, td.left { text-align: left; }
td.long { white-space: normal; min-width: 40ch; }
tbody tr:hover { background: var(--pale); }
code { font: 0.92em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--pale); padding: 1px 4px; border-radius: 4px; }
sup { font-size: 0.75em; line-height: 0; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
.muted { color: var(--soft); }
@media print { body { max-width: none; padding: 0; } h2 { break-after: avoid; } figure { break-inside: avoid; } nav { display: none; } }
)css";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

/// The number of characters of a signed decimal after a '^' at `at`; 0 if there is none.
size_t exponent_length(const std::string& text, size_t at) {
  size_t end = at + 1;
  if (end < text.size() && text[end] == '-') ++end;
  const size_t digits = end;
  const auto digit = [&](size_t i) { return i < text.size() && std::isdigit(static_cast<unsigned char>(text[i])); };
  while (digit(end) || (end > digits && end < text.size() && text[end] == '.' && digit(end + 1))) ++end;
  return end > digits ? end - at - 1 : 0;
}

/// `plain(run)` for runs of ordinary text, `code(run)` between backticks, `power(exponent)` for ^exponent.
template <class Plain, class Code, class Power>
std::string marked(const std::string& text, Plain plain, Code code, Power power) {
  std::string out, run;
  const auto flush = [&] { out += plain(std::exchange(run, {})); };
  for (size_t i = 0; i < text.size(); ++i) {
    if (const size_t end = text[i] == '`' ? text.find('`', i + 1) : std::string::npos; end != std::string::npos) {
      flush();
      out += code(text.substr(i + 1, end - i - 1));
      i = end;
    } else if (const size_t length = text[i] == '^' ? exponent_length(text, i) : 0; length > 0) {
      flush();
      out += power(text.substr(i + 1, length));
      i += length;
    } else {
      run += text[i];
    }
  }
  flush();
  return out;
}

std::string html_text(const std::string& text) {
  return marked(
      text, escaped, [](const std::string& code) { return "<code>" + escaped(code) + "</code>"; },
      [](std::string exponent) {
        if (exponent.starts_with('-')) exponent.replace(0, 1, "\u2212");
        return "<sup>" + exponent + "</sup>";
      });
}

std::string markdown_text(const std::string& text) {
  const auto plain = [](const std::string& run) {
    std::string out;
    for (const char c : run) {
      if (std::string_view("\\`*_[]<>|#~").find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
    return out;
  };
  return marked(
      text, plain,
      [](std::string code) {
        std::replace(code.begin(), code.end(), '|', '/');  // a table cell ends at a bar, in code too
        return "`" + code + "`";
      },
      [](const std::string& exponent) { return "^" + exponent; });
}

const char* class_of(Tone tone) {
  switch (tone) {
    case Tone::good:
      return "good";
    case Tone::bad:
      return "bad";
    case Tone::muted:
      return "muted";
    case Tone::normal:
      break;
  }
  return "";
}

std::string anchor(const std::string& title) {
  std::string name;
  for (const char c : title)
    name += std::isalnum(static_cast<unsigned char>(c)) ? static_cast<char>(std::tolower(static_cast<unsigned char>(c))) : '-';
  return name;
}

std::string caption_of(const std::string& caption, const std::string& command) {
  return command.empty() ? caption : caption + " Made by `" + command + "`.";
}

std::string table_html(const Table& table) {
  std::string html = "<figure>\n<figcaption>" + html_text(caption_of(table.caption, table.command)) +
                     "</figcaption>\n<div class=\"scroll\"><table>\n<thead><tr>";
  for (const Column& column : table.columns) {
    html += fmt::format("<th{}>{}{}</th>", column.left ? " class=\"left\"" : "", html_text(column.name),
                        column.note.empty() ? "" : "<small>" + html_text(column.note) + "</small>");
  }
  html += "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      std::string classes = table.columns[i].left ? "left" : "";
      constexpr size_t kLongest = 110;  // characters on one line: a command fits, a sentence breaks
      if (row[i].text.size() > kLongest) classes += " long";
      if (row[i].tone != Tone::normal) classes += " " + std::string(class_of(row[i].tone));
      html += fmt::format("<td{}>{}</td>", classes.empty() ? "" : " class=\"" + classes + "\"", html_text(row[i].text));
    }
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n</figure>\n";
}

std::string table_markdown(const Table& table) {
  std::string head = "|", rule = "|", body;
  for (const Column& column : table.columns) {
    head += " " + markdown_text(column.note.empty() ? column.name : column.name + " (" + column.note + ")") + " |";
    rule += column.left ? " :--- |" : " ---: |";
  }
  for (const auto& row : table.rows) {
    body += "|";
    for (const Cell& cell : row) body += " " + markdown_text(cell.text) + " |";
    body += "\n";
  }
  return markdown_text(caption_of(table.caption, table.command)) + "\n\n" + head + "\n" + rule + "\n" + body + "\n";
}

}  // namespace

std::string quoted(std::string text) {
  for (char& c : text) {
    if (c == '`') c = '\'';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

std::string to_html(const Document& document) {
  std::vector<Plot> plots;
  for (const Section& section : document.sections) {
    for (const Block& block : section.blocks) {
      if (const auto* figure = std::get_if<Figure>(&block)) plots.insert(plots.end(), figure->plots.begin(), figure->plots.end());
    }
  }
  const std::vector<std::string> drawn = draw(plots);
  size_t next = 0;
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<h1>{}</h1>\n<p class=\"lead\">{}</p>\n<nav>",
      escaped(document.title), kStyleSheet, html_text(document.title), html_text(document.lead));
  for (const Section& section : document.sections)
    html += fmt::format("<a href=\"#{}\">{}</a> ", anchor(section.title), html_text(section.title));
  html += "</nav>\n";
  for (const Section& section : document.sections) {
    html += fmt::format("<h2 id=\"{}\">{}</h2>\n", anchor(section.title), html_text(section.title));
    for (const Block& block : section.blocks) {
      if (const auto* paragraph = std::get_if<Paragraph>(&block)) {
        const std::string tone = class_of(paragraph->tone);
        html += fmt::format("<p{}>{}</p>\n", tone.empty() ? "" : " class=\"" + tone + "\"", html_text(paragraph->text));
      } else if (const auto* table = std::get_if<Table>(&block)) {
        html += table_html(*table);
      } else {
        const auto& figure = std::get<Figure>(block);
        html += "<figure>\n<div class=\"plots\">\n";
        for (size_t i = 0; i < figure.plots.size(); ++i) html += drawn[next++] + "\n";
        html += "</div>\n<figcaption>" + html_text(caption_of(figure.caption, figure.command)) + "</figcaption>\n</figure>\n";
      }
    }
  }
  return html + "</body>\n</html>\n";
}

std::string to_markdown(const Document& document, const std::string& html) {
  std::string text = "# " + markdown_text(document.title) + "\n\n" + markdown_text(document.lead) + "\n\n";
  for (const Section& section : document.sections) {
    text += "## " + markdown_text(section.title) + "\n\n";
    for (const Block& block : section.blocks) {
      if (const auto* paragraph = std::get_if<Paragraph>(&block))
        text += markdown_text(paragraph->text) + "\n\n";
      else if (const auto* table = std::get_if<Table>(&block))
        text += table_markdown(*table);
      else {
        const auto& figure = std::get<Figure>(block);
        text +=
            fmt::format("[Plot]({}#{}): {}\n\n", html, anchor(section.title), markdown_text(caption_of(figure.caption, figure.command)));
      }
    }
  }
  return text;
}

}  // namespace outgrad::validation::page
