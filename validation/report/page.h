// What the report's page shows, as values and as JSON (outgrad.report/1, validation/README.md). page.py renders HTML
// and Markdown from it.
//
// Text is plain, and page.py escapes it for either language. Two marks are understood, because both languages can show
// them: `code` between backticks, and a power as 2^-26. Text from a user or a file goes through quoted() first.
#pragma once

#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace outgrad::validation::page {

enum class Tone { normal, good, bad, muted };

struct Cell {
  std::string text;
  Tone tone = Tone::normal;
  Cell(std::string words, Tone colour = Tone::normal) : text(std::move(words)), tone(colour) {}  // implicit, because most cells are plain
  Cell(const char* words) : text(words) {}
};

struct Column {
  std::string name;
  std::string note = "";  // below the name: the unit, or how the figures were established
  bool left = false;      // words are aligned left, figures right
};

/// `command` makes every figure in the table. A long table is folded on the screen, and complete on paper.
struct Table {
  std::string caption;
  std::string command;
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;
};

inline constexpr double kOpen = std::numeric_limits<double>::quiet_NaN();

struct Axis {
  std::string label = "";
  int log = 0;                                             // the base of a logarithmic axis; 0: linear
  double from = kOpen, to = kOpen;                         // kOpen: where the data end
  std::vector<std::pair<double, std::string>> ticks = {};  // empty: chosen from the range
};

/// Points with a mark each, or a line through them. A point with a NaN is not drawn and breaks the line.
struct Series {
  std::string label;                    // in the legend; empty: not listed there
  std::string colour, mark;             // a key of COLOURS and one of MARKS in figures.py
  std::vector<double> x = {}, y = {};       // for steps, x has the edges, one more than y
  std::vector<double> low = {}, high = {};  // ends of a band over x, or of intervals along x
  std::vector<std::string> notes = {};      // beside the points
  void add(double at, double value) { x.push_back(at), y.push_back(value); }
};

struct Plot {
  std::string title;    // what the plot shows, for readers who cannot see it
  std::string heading;  // above the picture
  Axis x, y;
  std::vector<Series> series;
  int width = 460, height = 310;  // pixels at 100%; text of size 11 stays legible on a telephone, where the picture is 0.75 times as wide
};

/// Plots side by side, as many as the page's width allows.
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

/// Symbols and their meanings.
struct Definitions {
  std::vector<std::pair<std::string, std::string>> items;
};

struct Tile {
  std::string figure, what, note;
  Tone tone = Tone::normal;
};

/// The few figures that people look for; `commands` make them.
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

/// The title, verdict, key figures and summary come before everything else: on a desktop they fill the first screen.
struct Document {
  std::string title, lead;
  Verdict verdict;
  Tiles key_figures;
  std::vector<Block> summary, remarks;  // side by side if there is room
  std::vector<Section> sections;
};

/// `text` without marks and control characters.
std::string quoted(std::string text);

void to_json(nlohmann::ordered_json& json, const Document& document);

/// Writes `report`, of schema outgrad.report/1, as report.json into the folder, and index.html and report.md as page.py
/// renders them. If the page cannot be rendered, nothing is written. Throws kernels::EnvironmentError if no Python has
/// what page.py needs, and kernels::IoError.
void write_report(const nlohmann::ordered_json& report, const std::string& folder);

}  // namespace outgrad::validation::page
