// Makes direct tables: entries from the storage intervals, clamped ends, and the proven T, O and R.
#include "approx/search/direct_table.h"

#include "kernels/formats.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace outgrad::approx {
namespace {

/// The 16 bits of an entry, rounded to nearest even.
std::uint16_t entry_bits(Format format, double g) {
  const auto f = static_cast<float>(g);
  return format == Format::f16 ? kernels::narrow<kernels::F16>(f).bits
                               : kernels::narrow<kernels::BF16>(f).bits;
}

/// One segment: intervals by magnitude, gaps (numbers that no x reaches) filled from their neighbour towards
/// 0.
struct Column {
  std::map<int, const StorageInterval*> by_magnitude;
};

}  // namespace

TableModel direct_table(const Composite& composite, const BackwardSpec& spec,
                        const std::vector<StorageInterval>& intervals) {
  TableModel t;
  t.format = spec.format;
  t.entry_format = spec.entries;
  t.kMasked = composite.masked();
  const int shift = shape_of(spec.format).sign_bit();
  Column upper, lower, left;
  double oracle = 0;
  for (const StorageInterval& i : intervals) {
    oracle = std::max(oracle, i.half());
    const bool negative = (i.code >> shift & 1U) != 0;
    Column& column = t.kMasked && !i.m ? left : negative ? lower : upper;
    column.by_magnitude[static_cast<int>(i.code & ((1U << shift) - 1))] = &i;
  }
  // An entry may stand for a neighbour's interval if it serves it as well as the neighbour's own entry has
  // to: within O and half an ulp.
  const auto serves = [&](double g, const StorageInterval& i) {
    const double own = i.middle(), rounded = 0.5 * ulp_of(t.entry_format, own);
    return std::max(g - i.lo, i.hi - g) <= std::max(i.half(), std::min(oracle, i.half() + rounded)) + rounded;
  };
  const auto rounded = [&](double g) {
    const std::uint16_t bits = entry_bits(t.entry_format, g);
    return static_cast<double>(t.entry_format == Format::f16 ? kernels::widen(kernels::F16{bits})
                                                             : kernels::widen(kernels::BF16{bits}));
  };
  const auto place = [&](const Column& column, TableModel::Segment& segment) {
    segment.base = static_cast<int>(t.entries.size());
    if (column.by_magnitude.empty()) {
      t.entries.push_back(0);
      return;
    }
    std::vector<std::pair<int, const StorageInterval*>> all(column.by_magnitude.begin(),
                                                            column.by_magnitude.end());
    // From both ends inwards: the run that one entry serves.
    const auto run = [&](auto begin, auto end) {
      double lo = -INFINITY, hi = INFINITY, pick = 0;
      auto last = begin;
      for (auto at = begin; at != end; ++at) {
        const StorageInterval& i = *at->second;
        const double slack =
            std::max(i.half(), std::min(oracle, i.half() + 0.5 * ulp_of(t.entry_format, i.middle())));
        lo = std::max(lo, i.hi - slack);
        hi = std::min(hi, i.lo + slack);
        const double middle = rounded(0.5 * (lo + hi));
        bool all_served = true;
        for (auto k = begin; k != at + 1 && all_served; ++k)
          all_served = (at - begin) % 16 != 0 || serves(middle, *k->second);
        // What serves the first alone is its own middle, even if a rounding has left no room around it.
        if (at == begin) {
          pick = rounded(i.middle());
          continue;
        }
        if (!(lo <= hi) || !all_served) break;
        pick = middle;
        last = at;
      }
      return std::pair(last, pick);
    };
    const auto [small_last, small_value] = run(all.begin(), all.end());
    const auto [large_last, large_value] = run(all.rbegin(), all.rend());
    segment.first = small_last->first;
    segment.last = std::max(segment.first, large_last->first);
    double previous = small_value;
    for (int magnitude = segment.first; magnitude <= segment.last; ++magnitude) {
      const auto found = column.by_magnitude.find(magnitude);
      double g = found == column.by_magnitude.end() ? previous : found->second->middle();
      if (magnitude == segment.first) g = small_value;
      if (magnitude == segment.last && segment.last > segment.first) g = large_value;
      t.entries.push_back(entry_bits(t.entry_format, g));
      previous = g;
    }
  };
  place(upper, t.upper);
  place(lower, t.lower);
  if (t.kMasked) place(left, t.left);
  const StorageErrors e =
      measure_storage(intervals, spec.format, [&](const StorageInterval& i) { return t.at(i.code, i.m); });
  t.kT = e.total;
  t.kO = e.oracle;
  t.kR = e.regret;
  t.found = {{"T", e.worst_total}, {"O", e.worst_oracle}, {"R", e.worst_regret}};
  return t;
}

}  // namespace outgrad::approx
