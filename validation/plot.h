// Plots as SVG text, drawn by gnuplot in a child process.
#pragma once

#include <string>
#include <vector>

namespace outgrad::validation {

/// gnuplot commands, the last of them `plot`, that read the columns of "data". Commands are ours alone: what a user or a file names never
/// enters them.
struct Plot {
  int width = 760, height = 300;  // pixels at 100%; the picture scales
  std::string commands;
  std::string data;
};

/// One `<svg>` element each, without XML prologue; ids differ between plots, so that all of them can stand in one page. Runs gnuplot once,
/// with neither shell nor the user's settings, in a temporary folder that is removed. Throws kernels::EnvironmentError if gnuplot is
/// missing or fails, kernels::IoError.
std::vector<std::string> draw(const std::vector<Plot>& plots);

}  // namespace outgrad::validation
