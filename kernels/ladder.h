// Decides which entry of a tuned table runs: a pure function of the device, the problem's size and the table.
//
// The ladder's rungs are, nearest first: this very device, its architecture, its family, every device. A
// lookup uses the nearest rung that has an entry, however different the sizes that were tuned there. Of the
// entries on that rung it takes the nearest in size: first in columns, then in rows. Sizes are compared by
// their ratio, because a schedule depends on the logarithm of a size. An elementwise kernel has one row.
// Every table has an entry for every device and every size, so there is always an answer. The order of the
// entries does not matter.
#pragma once

#include "kernels/portable.h"

namespace outgrad::kernels {

enum class Rung { device, architecture, family, all_devices };

// Texts are compared literally (autotune/evidence/identity.h says how they are made). A null text equals
// none.
struct DeviceKey {
  const char* device = nullptr;
  const char* architecture = nullptr;
  const char* family = nullptr;
};

enum class Evidence {  // the best first
  measured,  // on the entry's device, against the default in the same rounds
  measured_earlier,  // likewise, but the kernels' sources have changed since, perhaps this kernel's
  predicted,  // by the model of a device that was absent
  none,  // the schedule that runs where nothing was tuned
};

// What an entry's schedule gained over the default where it was tuned: the default's time divided by its own.
struct Speedup {
  float median = 1, low = 1, high = 1;
};

struct TunedEntry {
  DeviceKey device{};  // all null: for every device
  i64 rows = 0;  // the size of the problem it was tuned for; an elementwise kernel has one row
  i64 cols = 0;  // and as many columns as elements; 0: for every size
  int choice = 0;  // index among the table's Choices
  const char* variant = "default";
  Evidence evidence = Evidence::none;
  Speedup speedup{};
};

// How a lookup ended. This is as much a result as the entry itself.
struct Found {
  int entry = 0;  // its place in the table
  Rung rung = Rung::all_devices;
  // The larger of the requested size and the tuned size, divided by the smaller. 1: the sizes are equal; 0:
  // the entry is for every size.
  double cols_ratio = 0, rows_ratio = 0;
};

// A choice is a type with the member kSchedule and, if the kernel has a fit, the member Fit. The last choice
// is the default, which runs wherever the headers do.
template <class... Choice>
struct Choices {
  static constexpr int kCount = sizeof...(Choice);
};

// The table of a kernel for which nothing was tuned.
template <class Default>
struct Untuned : Default {
  using Choices = kernels::Choices<Default>;
  static constexpr TunedEntry kEntries[] = {{}};
};

#ifndef __CUDACC_RTC__  // NVRTC code looks nothing up: it names a table's members itself
inline namespace OUTGRAD_ABI {

constexpr const char* name_of(Rung rung) {
  switch (rung) {
    case Rung::device: return "exact device";
    case Rung::architecture: return "same architecture";
    case Rung::family: return "same family";
    default: return "default";
  }
}

constexpr const char* name_of(Evidence evidence) {
  switch (evidence) {
    case Evidence::measured: return "measured";
    case Evidence::measured_earlier: return "measured_earlier";
    case Evidence::predicted: return "predicted";
    default: return "none";
  }
}

// Whether this very device was tuned at this very size.
constexpr bool is_exact(const Found& found) {
  return found.rung == Rung::device && found.cols_ratio == 1 && found.rows_ratio == 1;
}

namespace detail {

constexpr int compare_texts(const char* a, const char* b) {
  for (; *a != '\0' && *a == *b; ++a) ++b;
  return static_cast<unsigned char>(*a) - static_cast<unsigned char>(*b);
}

constexpr bool same_text(const char* a, const char* b) {
  return a != nullptr && b != nullptr && compare_texts(a, b) == 0;
}

constexpr bool is_for_every_device(const DeviceKey& key) {
  return key.device == nullptr && key.architecture == nullptr && key.family == nullptr;
}

// Whether the entry stands on a rung for the device, and on which one.
constexpr bool stands(const TunedEntry& entry, const DeviceKey& device, Rung& rung) {
  if (is_for_every_device(entry.device)) {
    rung = Rung::all_devices;
  } else if (same_text(entry.device.device, device.device)) {
    rung = Rung::device;
  } else if (same_text(entry.device.architecture, device.architecture)) {
    rung = Rung::architecture;
  } else if (same_text(entry.device.family, device.family)) {
    rung = Rung::family;
  } else {
    return false;
  }
  return true;
}

constexpr double ratio_of(i64 asked, i64 tuned) {
  const double a = static_cast<double>(asked > 1 ? asked : 1), b = static_cast<double>(tuned > 1 ? tuned : 1);
  return a > b ? a / b : b / a;
}

// Below 0 if a is nearer to [rows, cols] than b, above 0 if b is nearer, and 0 only if both say the same of
// the same schedule. Criteria after the sizes make the order total: the better evidence, then the surer gain,
// then criteria that no table leaves open.
constexpr int compare_entries(const TunedEntry& a, const TunedEntry& b, i64 rows, i64 cols) {
  const auto three_way = [](auto x, auto y) { return x < y ? -1 : y < x ? 1 : 0; };
  if (const int order = three_way(a.cols == 0, b.cols == 0)) return order;
  if (const int order = three_way(ratio_of(cols, a.cols), ratio_of(cols, b.cols))) return order;
  if (const int order = three_way(ratio_of(rows, a.rows), ratio_of(rows, b.rows))) return order;
  if (const int order = three_way(a.evidence, b.evidence)) return order;
  if (const int order = three_way(b.speedup.low, a.speedup.low)) return order;
  if (const int order = three_way(a.cols, b.cols)) return order;
  if (const int order = three_way(a.rows, b.rows)) return order;
  return compare_texts(a.variant, b.variant);
}

}  // namespace detail

// The entries on the nearest rung for one device, from which every lookup of a process starts. Count is the
// number of the table's entries.
template <int Count>
struct Standing {
  Rung rung = Rung::all_devices;
  int count = 0;
  int entries[Count] = {};
};

// runs(entry) tells whether this build can run the entry's choice. Entries that it cannot run are skipped.
template <int Count, class Runs>
constexpr Standing<Count> stand(const TunedEntry (&entries)[Count], const DeviceKey& device,
                                const Runs& runs) {
  Standing<Count> standing;
  for (int i = 0; i < Count; ++i) {
    Rung rung = Rung::all_devices;
    if (!runs(entries[i]) || !detail::stands(entries[i], device, rung) || rung > standing.rung) continue;
    if (rung < standing.rung) {
      standing.rung = rung;
      standing.count = 0;
    }
    standing.entries[standing.count++] = i;
  }
  return standing;
}

// The nearest of those entries in size. standing.count must be positive.
template <int Count>
constexpr Found nearest(const TunedEntry (&entries)[Count], const Standing<Count>& standing, i64 rows,
                        i64 cols) {
  int best = standing.entries[0];
  for (int i = 1; i < standing.count; ++i) {
    const int entry = standing.entries[i];
    if (detail::compare_entries(entries[entry], entries[best], rows, cols) < 0) best = entry;
  }
  const bool sized = entries[best].cols > 0;
  return {best, standing.rung, sized ? detail::ratio_of(cols, entries[best].cols) : 0,
          sized ? detail::ratio_of(rows, entries[best].rows) : 0};
}

template <int Count, class Runs>
constexpr Found look_up(const TunedEntry (&entries)[Count], const DeviceKey& device, i64 rows, i64 cols,
                        const Runs& runs) {
  return nearest(entries, stand(entries, device, runs), rows, cols);
}

// Calls body(Choice{}) with the choice at this index. A choice that this build cannot run (runs_here, found
// beside its schedule's type) is not instantiated, and its index must not be passed. The last choice runs
// everywhere.
template <class First, class... Rest, class Body>
decltype(auto) with_choice(Choices<First, Rest...>, int index, const Body& body) {
  if constexpr (sizeof...(Rest) == 0) {
    return body(First{});
  } else {
    if constexpr (runs_here(First::kSchedule)) {
      if (index == 0) return body(First{});
    }
    return with_choice(Choices<Rest...>{}, index - 1, body);
  }
}

// Which choices this build can run, by index.
template <class... Choice>
constexpr bool choice_runs_here(Choices<Choice...>, int index) {
  const bool runs[] = {runs_here(Choice::kSchedule)...};
  return index >= 0 && index < Choices<Choice...>::kCount && runs[index];
}

// For a static_assert: every entry of a table names an existing choice, and one entry, whose choice always
// runs, is for every device and every size.
template <class Table>
constexpr bool table_holds() {
  bool always = false;
  for (const TunedEntry& entry : Table::kEntries) {
    if (entry.choice < 0 || entry.choice >= Table::Choices::kCount || entry.rows < 0 || entry.cols < 0)
      return false;
    always = always || (detail::is_for_every_device(entry.device) && entry.cols == 0 &&
                        entry.choice == Table::Choices::kCount - 1);
  }
  return always;
}

}  // namespace OUTGRAD_ABI
#endif
}  // namespace outgrad::kernels
