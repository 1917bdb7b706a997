// A document of sections, tables and plots, rendered as one self-contained HTML page or as Markdown.
//
// Text is plain: it is escaped for either language. Two marks are understood, because both languages can show them: `code` between
// backticks and a power as 2^-26. Text that a user or a file supplied goes through quoted() first.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "validation/plot.h"

namespace outgrad::validation::page {

enum class Tone { normal, good, bad, muted };

struct Cell {
  std::string text;
  Tone tone = Tone::normal;
  Cell(std::string words, Tone colour = Tone::normal) : text(std::move(words)), tone(colour) {}  // implicit: most cells are plain
  Cell(const char* words) : text(words) {}
};

struct Column {
  std::string name;
  std::string note = "";  // under the name: unit, or how the figures were established
  bool left = false;      // words stand left, figures right
};

struct Table {
  std::string caption;
  std::string command;  // that makes the figures; empty: said in the caption
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
};

/// Plots side by side, as far as the page's width allows.
struct Figure {
  std::string caption;
  std::string command;
  std::vector<Plot> plots;
};

struct Paragraph {
  std::string text;
  Tone tone = Tone::normal;
};

using Block = std::variant<Paragraph, Table, Figure>;

struct Section {
  std::string title;
  std::vector<Block> blocks;
};

struct Document {
  std::string title, lead;
  std::vector<Section> sections;
};

/// `text` without marks and control characters.
std::string quoted(std::string text);

/// Draws the plots. Throws as draw().
std::string to_html(const Document& document);
/// Plots are references to the page `html`.
std::string to_markdown(const Document& document, const std::string& html);

}  // namespace outgrad::validation::page
