// What can be kept of softmax's output, side by side: bits an element against e1 = sum |p' - p| of a row and
// the error of the gradient, for scores of a normal distribution.
//
// Rows come in groups of 64, which share a scale where a store has one (a part of an attention head).
// Quantisers are those of the files that `validate --foreign` reads, applied to p. Mesa applies its quantiser
// for GELU's x to softmax's output in this way (repository zip-group/Mesa at 8b7a0db,
// mesa/custom_softmax.py), and takes the gradient p' (dp - sum p' dp).
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "validation/sweep/quantiser.h"

namespace outgrad::validation {

inline constexpr const char* kSoftmaxFrontSchema = "outgrad.softmax_front/1";
inline constexpr std::int64_t kSoftmaxGroupRows = 64;

struct NamedQuantiser {
  std::string name;
  Quantiser quantiser;
};

struct SoftmaxFrontOptions {
  std::vector<std::int64_t> lengths{128, 1024, 4096};
  std::vector<double> spreads{1, 4};  // standard deviations of the scores
  int groups = 40;  // of each length and spread
  std::uint64_t seed = 1;
  std::vector<NamedQuantiser> quantisers;
};

struct SoftmaxFrontRow {
  std::int64_t length = 0;
  double spread = 0;
  std::string store;
  double bits = 0;
  // of every row; NaN: nothing less than 2 is known
  double e1_proven = std::numeric_limits<double>::quiet_NaN();
  // of sum |ds' - ds| / sum |ds|, apart from what has code 0
  double sum_proven = std::numeric_limits<double>::quiet_NaN();
  double e1 = 0, e1_most = 0;  // mean and largest over the rows
  // mean over the rows of |ds' - ds| / |ds| (Euclidean norms), and the standard deviation of this mean
  double relative = 0, relative_deviation = 0;
  double sum_most = 0;  // largest sum |ds' - ds| / sum |ds|

  bool holds() const { return !(e1_most > e1_proven); }
};

std::vector<SoftmaxFrontRow> softmax_front(const SoftmaxFrontOptions& options);

nlohmann::ordered_json softmax_front_json(const std::vector<SoftmaxFrontRow>& rows);
/// The same as a Markdown table.
std::string softmax_front_text(const std::vector<SoftmaxFrontRow>& rows);

}  // namespace outgrad::validation
