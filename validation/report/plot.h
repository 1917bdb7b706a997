// Plots as SVG text, drawn by gnuplot in a child process.
#pragma once

#include <string>
#include <vector>

namespace outgrad::validation {

/// gnuplot commands, the last of them `plot`, that read the columns of "data". Commands are ours alone: what a user or a file names never
/// enters them, and enters the data through plain_name() only. Colours are the variables blue, pale, orange, red, green, violet, grey, line, ink: the page
/// gives each its shade in light and in dark.
struct Plot {
  std::string title;  // what it shows, for who cannot see it; plain text
  std::string commands;
  std::string data;
  int width = 460, height = 310;  // pixels at 100%: text of 11 that stays legible on a telephone, where the picture is 0.75 times as wide
};

/// One `<svg>` element each, without XML prologue, with the title as its accessible name; ids differ between plots, so that all of them can stand in one
/// page. Runs gnuplot once, with neither shell nor the user's settings, in a temporary folder that is removed. Throws kernels::EnvironmentError
/// if gnuplot is missing or fails, kernels::IoError.
std::vector<std::string> draw(const std::vector<Plot>& plots);

/// `name` as a quoted word of a plot's data: letters, digits and _ + - . ( ) ^ , blank; others become '?'.
std::string plain_name(const std::string& name);

/// The style sheet's variable of each colour, as "--plot-blue: #1f5fa8; ...".
std::string light_colours();
std::string dark_colours();

}  // namespace outgrad::validation
