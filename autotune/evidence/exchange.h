// Recorded searches and the formats they come in: our database, Kernel Tuner's cache files, T4 results.
//
// Kernel Tuner (github.com/KernelTuner/kernel_tuner) appends to a cache file while it tunes; one that was not
// closed, with or without a comma at its end, is read as it reads it itself, and so are NaN, Infinity and
// parameters that are lists or None. A time that is no number is a run that failed. T4 1.0.0 is the results
// schema that autotuners share, where each measurement has a unit; what Kernel Tuner writes beyond it
// (times.compilation, times.benchmark, metadata.timeunit) is read and written too. Samples have no unit of
// their own: theirs is metadata.timeunit, else that of `time`, else ms. A file that breaks its format is a
// SpecError: path, place, why.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/space/space.h"

namespace outgrad::autotune {

// What is recorded of one point.
struct Evaluation {
  // the recorded figure: what Kernel Tuner calls time, the objective; nothing: it failed
  Outcome time_ms;
  // of T4's words: compile, runtime, correctness, constraints, timeout; empty: none
  std::string failure;
  std::vector<double> times_ms;  // samples, where they are recorded
  double compile_ms = 0, verify_ms = 0, benchmark_ms = 0, search_ms = 0, framework_ms = 0;
  std::string timestamp;  // as the file has it
};

struct Recording {
  std::string device, kernel;
  nlohmann::json problem_size;  // as the file has it: a number, a list, or a text
  // A parameter's values in `points` are the recorded ones where all are integers (or true and false), else
  // their positions in its list.
  Points points;
  std::vector<std::vector<nlohmann::json>> labels;  // the recorded values, by parameter and position
  std::vector<Evaluation> evaluations;  // by point

  Outcome best_ms() const;  // least time; nothing: all failed
  nlohmann::ordered_json configuration(std::size_t point) const;  // {"block_x": 32, "tile": 4}
  // "block_x=32,tile=4"
  std::string name_of(std::size_t point) const;
};

// Reads any of the three, told apart by content. `problem` picks one of a database that holds several
// ("gelu_backward.f32"); a database's times are in units of the default's time in the same rounds, scaled to
// its median, so that rows of different runs compare. Throws SpecError, IoError.
Recording read_recording(const std::string& path, std::string_view problem = {});

// Texts of files: a closed Kernel Tuner cache, and T4 1.0.0 results. Reading them gives the same points,
// times and failures again.
std::string kernel_tuner_cache(const Recording& recording);
std::string t4_results(const Recording& recording);

}  // namespace outgrad::autotune
