// What runs where nothing was tuned: of each kernel and format the schedule whose worst loss over all devices
// and sizes that were measured is the least. The fit stays the default's.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autotune/evidence/tuned_header.h"
#include "autotune/space/sources.h"

namespace outgrad::autotune {

// A variant that was measured everywhere. Its loss in a place is its time over the best time there, less 1;
// both are ratios to the default in the same rounds (merge.h), so that no times of different runs are
// compared.
struct Loss {
  // kDefaultName: what the library chooses by itself, whichever variant that is on a device
  std::string variant;
  nlohmann::json parameters;  // null of the default
  std::vector<double> losses;  // by place
  double worst = 0;
  // parameters in which it differs from the default, where that is most: the measure of simplicity
  int changes = 0;
  Interval speedup{};  // over the default: the least of each end over the places, and of the medians
  bool gains = false;  // in one place at least it would win (merge.h): more than the noise is for it
};

inline constexpr const char* kDefaultName = "default";

struct DefaultChoice {
  Problem problem;  // not sized
  std::vector<std::string> places;  // a device and a size: "layernorm_backward.bf16.16384x1024 on cpu: ..."
  // by worst loss; what was not measured in every place, or is barred in one, is not in it
  std::vector<Loss> table;
  // the simplest of those that tie with the first, both of the default and those that gain
  std::size_t chosen = 0;

  const Loss& choice() const { return table[chosen]; }
  bool is_default() const { return choice().variant == kDefaultName; }
};

// Worst losses that differ by no more than this tie: what interleaved rounds on a shared machine resolve.
inline constexpr double kLossTie = 0.01;

// A choice for every kernel and format that these sources were measured in, whatever the order of the
// records, which are all of CPUs or all of GPUs: a schedule is of one of them.
std::vector<DefaultChoice> choose_defaults(const std::vector<Record>& records, const SourceHashes& sources);

// The entries for every device and size; none where the default itself is chosen.
std::vector<TunedChoice> default_entries(const std::vector<DefaultChoice>& choices);

}  // namespace outgrad::autotune
