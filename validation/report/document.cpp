// Marks, then HTML, then Markdown.
#include "validation/report/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <functional>

#include "validation/report/style_sheet.h"

namespace outgrad::validation::page {
namespace {

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

/// Rows of a table that are shown without being asked for.
constexpr size_t kOpenRows = 32;

// ---- HTML -----------------------------------------------------------------------------------------------------------

/// The start of a tag; a class only where there is one.
std::string tag(const char* name, const std::string& classes) {
  return classes.empty() ? fmt::format("<{}>", name) : fmt::format("<{} class=\"{}\">", name, classes);
}

std::string made_by(const std::string& command) {
  return command.empty() ? "" : fmt::format(" <span class=\"made\">Made by <code>{}</code></span>", escaped(command));
}

std::string caption_html(const std::string& caption, const std::string& command) {
  return "<figcaption>" + html_text(caption) + made_by(command) + "</figcaption>\n";
}

std::string html_of(const Table& table) {
  std::string html;
  for (const Column& column : table.columns) {
    html += fmt::format("<th scope=\"col\"{}>{}{}</th>", column.left ? " class=\"left\"" : "", html_text(column.name),
                        column.note.empty() ? "" : "<small>" + html_text(column.note) + "</small>");
  }
  html = "<thead><tr>" + html + "</tr></thead>\n<tbody>\n";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      std::string classes = table.columns[i].left ? "left" : "";
      constexpr size_t kLongest = 60;  // characters on one line: a sentence and a long command break
      if (row[i].text.size() > kLongest) classes += " long";
      if (row[i].tone != Tone::normal) classes += " " + std::string(class_of(row[i].tone));
      const bool names_the_row = i == 0 && table.columns[i].left;
      html += fmt::format("<{0}{1}{2}>{3}</{0}>", names_the_row ? "th" : "td", names_the_row ? " scope=\"row\"" : "",
                          classes.empty() ? "" : " class=\"" + classes + "\"", html_text(row[i].text));
    }
    html += "</tr>\n";
  }
  // A box that scrolls is reached by the keyboard too.
  html = fmt::format("<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{}\"><table>\n{}</tbody></table></div>\n",
                     escaped(table.caption.substr(0, table.caption.find_first_of(".:;"))), html);
  if (table.rows.size() > kOpenRows) html = fmt::format("<details><summary>{} rows</summary>\n{}</details>\n", table.rows.size(), html);
  return "<figure class=\"table\">\n" + caption_html(table.caption, table.command) + html + "</figure>\n";
}

std::string html_of(const Paragraph& paragraph) { return tag("p", class_of(paragraph.tone)) + html_text(paragraph.text) + "</p>\n"; }

std::string html_of(const Heading& heading) { return "<h3>" + html_text(heading.text) + "</h3>\n"; }

std::string html_of(const Definitions& definitions) {
  std::string html = "<dl>\n";
  for (const auto& [symbol, meaning] : definitions.items) html += "<dt>" + html_text(symbol) + "</dt><dd>" + html_text(meaning) + "</dd>\n";
  return html + "</dl>\n";
}

std::string html_of(const Tiles& tiles) {
  std::string html = "<figure>\n<ul class=\"tiles\">\n";
  for (const Tile& tile : tiles.tiles) {
    html += fmt::format("<li>{}{}</b><span>{}</span><small>{}</small></li>\n", tag("b", class_of(tile.tone)), html_text(tile.figure),
                        html_text(tile.what), html_text(tile.note));
  }
  std::string commands;
  for (const std::string& command : tiles.commands) commands += (commands.empty() ? "" : "</code>, <code>") + escaped(command);
  return html + "</ul>\n<figcaption><span class=\"made\">Made by <code>" + commands + "</code></span></figcaption>\n</figure>\n";
}

/// Blocks of a section; takes the drawings of its plots from `next` on.
std::string blocks_html(const std::vector<Block>& blocks, const std::vector<std::string>& drawn, size_t& next) {
  std::string html;
  for (const Block& block : blocks) {
    if (const auto* figure = std::get_if<Figure>(&block)) {
      html += fmt::format("<figure>\n<div class=\"plots{}\">\n", figure->plots.size() % 3 == 0 ? " three" : "");
      for (size_t i = 0; i < figure->plots.size(); ++i) html += drawn[next++] + "\n";
      html += "</div>\n" + caption_html(figure->caption, figure->command) + "</figure>\n";
    } else {
      std::visit(
          [&](const auto& other) {
            if constexpr (!std::is_same_v<std::decay_t<decltype(other)>, Figure>) html += html_of(other);
          },
          block);
    }
  }
  return html;
}

void collect_plots(const std::vector<Block>& blocks, std::vector<Plot>& plots) {
  for (const Block& block : blocks) {
    if (const auto* figure = std::get_if<Figure>(&block)) plots.insert(plots.end(), figure->plots.begin(), figure->plots.end());
  }
}

// ---- Markdown -------------------------------------------------------------------------------------------------------

std::string caption_markdown(const std::string& caption, const std::string& command) {
  return markdown_text(command.empty() ? caption : caption + " Made by `" + command + "`.");
}

std::string markdown_of(const Table& table) {
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
  return caption_markdown(table.caption, table.command) + "\n\n" + head + "\n" + rule + "\n" + body + "\n";
}

std::string markdown_of(const Paragraph& paragraph) { return markdown_text(paragraph.text) + "\n\n"; }

std::string markdown_of(const Heading& heading) { return "### " + markdown_text(heading.text) + "\n\n"; }

std::string markdown_of(const Definitions& definitions) {
  std::string text;
  for (const auto& [symbol, meaning] : definitions.items) text += "- **" + markdown_text(symbol) + "**: " + markdown_text(meaning) + "\n";
  return text + "\n";
}

std::string markdown_of(const Tiles& tiles) {
  std::string text;
  for (const Tile& tile : tiles.tiles)
    text += "- **" + markdown_text(tile.figure) + "** " + markdown_text(tile.what) + ": " + markdown_text(tile.note) + "\n";
  std::string commands;
  for (const std::string& command : tiles.commands) commands += (commands.empty() ? "`" : ", `") + command + "`";
  return text + "\nMade by " + markdown_text(commands) + ".\n\n";
}

std::string blocks_markdown(const std::vector<Block>& blocks, const std::string& html, const std::string& section) {
  std::string text;
  for (const Block& block : blocks) {
    if (const auto* figure = std::get_if<Figure>(&block)) {
      text += fmt::format("[Plot]({}#{}): {}\n\n", html, section, caption_markdown(figure->caption, figure->command));
    } else {
      std::visit(
          [&](const auto& other) {
            if constexpr (!std::is_same_v<std::decay_t<decltype(other)>, Figure>) text += markdown_of(other);
          },
          block);
    }
  }
  return text;
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
  collect_plots(document.summary, plots);
  collect_plots(document.remarks, plots);
  for (const Section& section : document.sections) collect_plots(section.blocks, plots);
  const std::vector<std::string> drawn = draw(plots);
  size_t next = 0;
  const auto style = [](const char* page) { return std::string(page) + light_colours(); };
  std::string html = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width, "
      "initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<title>{}: {}</title>\n<style>\n:root {{ {} }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {}{} }} "
      "}}\n{}</style>\n</head>\n<body>\n",
      escaped(document.title), escaped(document.verdict.headline), style(kLightPage), kDarkPage, dark_colours(), kStyleSheet);
  html += fmt::format(
      "<header>\n<h1>{}</h1>\n<p class=\"lead\">{}</p>\n</header>\n<main>\n<section id=\"summary\">\n<h2 class=\"verdict {}\">{}</h2>\n",
      html_text(document.title), html_text(document.lead), class_of(document.verdict.tone), html_text(document.verdict.headline));
  html += "<p>" + html_text(document.verdict.detail) + "</p>\n";
  if (!document.key_figures.tiles.empty()) html += html_of(document.key_figures);
  html += "<div class=\"beside\">\n<div>" + blocks_html(document.summary, drawn, next);
  html += "</div>\n<div>" + blocks_html(document.remarks, drawn, next);
  html += "</div>\n</div>\n</section>\n<nav aria-label=\"Sections\">";
  for (const Section& section : document.sections)
    html += fmt::format("<a href=\"#{}\">{}</a> ", anchor(section.title), html_text(section.title));
  html += "</nav>\n";
  for (const Section& section : document.sections) {
    // On paper a heading stays with what follows it, unless that is a table, which may break over pages.
    const auto begin = section.blocks.begin(), rest = begin + (!section.blocks.empty() && !std::holds_alternative<Table>(*begin) ? 1 : 0);
    html += fmt::format("<section id=\"{}\">\n<div class=\"keep\"><h2>{}</h2>\n", anchor(section.title), html_text(section.title));
    html += blocks_html({begin, rest}, drawn, next);  // one after the other: both take drawings
    html += "</div>\n";
    html += blocks_html({rest, section.blocks.end()}, drawn, next);
    html += "</section>\n";
  }
  return html + "</main>\n</body>\n</html>\n";
}

std::string to_markdown(const Document& document, const std::string& html) {
  std::string text = "# " + markdown_text(document.title) + "\n\n" + markdown_text(document.lead) + "\n\n## " +
                     markdown_text(document.verdict.headline) + "\n\n" + markdown_text(document.verdict.detail) + "\n\n";
  if (!document.key_figures.tiles.empty()) text += markdown_of(document.key_figures);
  text += blocks_markdown(document.summary, html, "summary") + blocks_markdown(document.remarks, html, "summary");
  for (const Section& section : document.sections)
    text += "## " + markdown_text(section.title) + "\n\n" + blocks_markdown(section.blocks, html, anchor(section.title));
  return text;
}

}  // namespace outgrad::validation::page
