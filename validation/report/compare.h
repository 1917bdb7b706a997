// Two results side by side: what changed, and whether it is more than noise.
//
// A result is a sweep, a bench, a bench of stores or a tuning database. A figure of a sweep is exact, for
// every input was counted: any difference is a change. A time has an interval, of the rounds of one run, and
// a change that the two intervals do not tell apart is noise.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace outgrad::validation {

struct ConfidenceInterval {
  double low = 0, high = 0;
};

struct Comparable {
  std::string of, quantity;  ///< "every bf16 x", "T"; "bf16 gelu_backward, 67108864", "ns"
  double value = 0;
  std::optional<ConfidenceInterval> interval{};  ///< none: exact, or, of a time, too few rounds for one
  bool measured = false;  ///< a time or a ratio of times, not a count
  bool more_is_better = false;
};

/// What a file has to be compared.
struct ComparedFile {
  std::string file, schema;
  std::string subject;  ///< files of two subjects are not compared: "sweep of gelu, y in bf16"
  std::string machine;  ///< of times; empty for counts
  std::vector<Comparable> figures;
};

enum class Change { same, better, worse, noise, undecided, only_a, only_b };
const char* to_string(Change change);

struct Difference {
  std::string of, quantity;
  std::optional<Comparable> a, b;
  Change change = Change::same;
};

/// The median of values with the interval that holds it with 99% confidence, by order statistics: no
/// assumption on how the values are spread. No interval of fewer than 8 values; NaN of none.
Comparable median_of(std::vector<double> values);

/// Reads a file by its schema: outgrad.sweep/1, outgrad.bench/1, outgrad.store_bench/2, or lines of
/// outgrad.tune/1, of which the latest run on each problem counts, as latest_runs() has it. Throws
/// kernels::SpecError "file: place: why" for any other file, and kernels::IoError.
ComparedFile read_compared(const std::string& file);

/// In the order of A, then what B alone has. Throws kernels::SpecError if the files are not of one kind and
/// subject.
std::vector<Difference> compare(const ComparedFile& a, const ComparedFile& b);

/// A table of at most 100 columns, and its end in words: how many figures changed.
std::string to_text(const ComparedFile& a, const ComparedFile& b, const std::vector<Difference>& differences);
/// Schema "outgrad.comparison/1".
nlohmann::ordered_json to_json(const ComparedFile& a, const ComparedFile& b,
                               const std::vector<Difference>& differences);

}  // namespace outgrad::validation
