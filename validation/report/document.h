// A document of sections, tables and plots, rendered as one self-contained HTML page or as Markdown.
//
// Text is plain: it is escaped for either language. Two marks are understood, because both languages can show them: `code` between
// backticks and a power as 2^-26. Text that a user or a file supplied goes through quoted() first.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "validation/report/plot.h"

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

/// Every figure in it is made by `command`. A long one is folded on the screen, and whole on paper.
struct Table {
  std::string caption;
  std::string command;
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

struct Heading {
  std::string text;
};

/// Symbols and what they mean.
struct Definitions {
  std::vector<std::pair<std::string, std::string>> items;
};

struct Tile {
  std::string figure, what, note;
  Tone tone = Tone::normal;
};

/// The handful of figures that people look for; `commands` make them.
struct Tiles {
  std::vector<Tile> tiles;
  std::vector<std::string> commands;
};

using Block = std::variant<Paragraph, Heading, Definitions, Table, Figure>;

struct Section {
  std::string title;
  std::vector<Block> blocks;
};

struct Verdict {
  Tone tone = Tone::muted;
  std::string headline, detail;
};

/// Title, verdict, key figures and summary stand before everything else: on a desktop they are the first screen.
struct Document {
  std::string title, lead;
  Verdict verdict;
  Tiles key_figures;
  std::vector<Block> summary, remarks;  // side by side where there is room
  std::vector<Section> sections;
};

/// `text` without marks and control characters.
std::string quoted(std::string text);

/// Draws the plots. Throws as draw().
std::string to_html(const Document& document);
/// Plots are references to the page `html`.
std::string to_markdown(const Document& document, const std::string& html);

}  // namespace outgrad::validation::page
