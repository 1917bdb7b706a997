// Makes direct tables: entries from the storage intervals, clamped ends, and the proven T, O and R.
#include "approx/search/direct_table.h"

#include "kernels/host/errors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace outgrad::approx {
namespace {

/// The intervals of one segment by magnitude; gaps are numbers that no x reaches.
using Column = std::map<int, const StorageInterval*>;

/// Appends segments to a table.
class TableBuilder {
 public:
  TableBuilder(TableModel& table, double oracle) : t_(table), oracle_(oracle) {}

  TableModel::Segment add(const Column& column) {
    TableModel::Segment segment;
    segment.base = static_cast<int>(t_.entries.size());
    if (column.empty()) {
      t_.entries.push_back(0);
      return segment;
    }
    const std::vector<Column::value_type> all(column.begin(), column.end());
    // From both ends inwards.
    const auto [small_last, small_value] = served_by_one(all.begin(), all.end());
    const auto [large_last, large_value] = served_by_one(all.rbegin(), all.rend());
    segment.first = small_last->first;
    segment.last = std::max(segment.first, large_last->first);
    // Gaps are filled from their neighbour towards 0.
    double previous = small_value;
    for (int magnitude = segment.first; magnitude <= segment.last; ++magnitude) {
      const auto found = column.find(magnitude);
      double g = found == column.end() ? previous : found->second->middle();
      if (magnitude == segment.first) g = small_value;
      if (magnitude == segment.last && segment.last > segment.first) g = large_value;
      t_.entries.push_back(entry_bits(g));
      previous = g;
    }
    return segment;
  }

 private:
  [[nodiscard]] std::uint16_t entry_bits(double g) const {
    return narrowed(t_.entry_format, static_cast<float>(g));
  }
  [[nodiscard]] double rounded(double g) const {
    return static_cast<double>(widened(t_.entry_format, entry_bits(g)));
  }
  [[nodiscard]] double half_ulp_at(double g) const { return 0.5 * ulp_of(t_.entry_format, g); }
  /// What an entry may be off the ends of the interval by, its rounding aside.
  [[nodiscard]] double slack_of(const StorageInterval& i) const {
    return std::max(i.half(), std::min(oracle_, i.half() + half_ulp_at(i.middle())));
  }
  /// An entry may stand for a neighbour's interval if it serves it as well as the neighbour's own entry has
  /// to: within O and half an ulp.
  [[nodiscard]] bool serves(double g, const StorageInterval& i) const {
    return std::max(g - i.lo, i.hi - g) <= slack_of(i) + half_ulp_at(i.middle());
  }

  /// The last of the run from `begin` that one entry serves, and that entry.
  template <class Iterator>
  [[nodiscard]] std::pair<Iterator, double> served_by_one(Iterator begin, Iterator end) const {
    // What serves the first alone is its own middle, even if a rounding has left no room around it.
    double lo = -INFINITY, hi = INFINITY, pick = rounded(begin->second->middle());
    Iterator last = begin;
    for (Iterator at = begin; at != end; ++at) {
      const StorageInterval& i = *at->second;
      lo = std::max(lo, i.hi - slack_of(i));
      hi = std::min(hi, i.lo + slack_of(i));
      if (at == begin) continue;
      const double middle = rounded(0.5 * (lo + hi));
      const bool looks = (at - begin) % 16 == 0;
      if (!(lo <= hi) ||
          (looks && !std::all_of(begin, at + 1, [&](const auto& k) { return serves(middle, *k.second); })))
        break;
      pick = middle;
      last = at;
    }
    return {last, pick};
  }

  TableModel& t_;
  const double oracle_;
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
  for (const StorageInterval& i : intervals) {
    if (!std::isfinite(widened(spec.entries, narrowed(spec.entries, static_cast<float>(i.middle())))))
      throw kernels::SpecError(
          fmt::format("entries: f' is {:.6g} at y = {:.6g}, beyond the largest number of {}{}", i.middle(),
                      i.y, to_string(spec.entries),
                      spec.entries == Format::f16 ? "; a specification may have \"entries\": \"bf16\"" : ""));
    const bool negative = (i.code >> shift & 1U) != 0;
    Column& column = t.kMasked && !i.m ? left : negative ? lower : upper;
    column[static_cast<int>(i.code & ((1U << shift) - 1))] = &i;
  }
  TableBuilder builder(t, oracle_of(intervals));
  t.upper = builder.add(upper);
  t.lower = builder.add(lower);
  if (t.kMasked) t.left = builder.add(left);
  const StorageErrors e =
      measure_storage(intervals, spec.format, [&](const StorageInterval& i) { return t.at(i.code, i.m); });
  t.kT = e.total;
  t.kO = e.oracle;
  t.kR = e.regret;
  t.found = {{"T", e.worst_total}, {"O", e.worst_oracle}, {"R", e.worst_regret}};
  return t;
}

}  // namespace outgrad::approx
