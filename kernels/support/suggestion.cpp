// The distance between words by dynamic programming, the last three rows of its table.
#include "kernels/support/suggestion.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>

namespace outgrad::kernels {
namespace {

std::size_t distance(std::string_view a, std::string_view b) {
  std::array<std::vector<std::size_t>, 3> rows;  // for the letters of a before, at and after the current one
  rows.fill(std::vector<std::size_t>(b.size() + 1));
  auto& [before, last, row] = rows;
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1] ? 1u : 0u)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());
  }
  return last[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr std::size_t kLongest = 64, kShort = 5, kPerSlip = 3;  // a longer word was no slip
  if (word.empty() || word.size() > kLongest) return "";
  std::size_t least = 2 + (std::max(word.size(), kShort) - kShort) / kPerSlip;
  std::string near;
  for (const std::string& candidate : candidates) {
    const std::size_t found = distance(word, candidate);
    if (found == 0 || found >= std::min(least, candidate.size())) continue;
    least = found;
    near = candidate;
  }
  return near;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string near = nearest(word, candidates);
  return near.empty() ? "" : "; did you mean '" + near + "'?";
}

}  // namespace outgrad::kernels
