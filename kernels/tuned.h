// Chooses at run time, by processor and size, the fit and schedule that the plain entry points run. The
// choice comes from a tuned header's tables if the build names one, and from the committed default otherwise.
#pragma once

#ifdef OUTGRAD_TUNED_HEADER
#include OUTGRAD_TUNED_HEADER
#else
#include "kernels/generated/tuned_default.h"
#endif
#include "kernels/accuracy.h"
#include "kernels/host/identity.h"
#include "kernels/ladder.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Vectors wider than the unit's instruction set has are for other builds.
constexpr bool runs_here(const CpuSchedule& schedule) { return schedule.vector_bits <= kBestVectorBits; }
constexpr bool runs_here(const CpuNormForwardSchedule& schedule) {
  return schedule.vector_bits <= kBestVectorBits;
}
constexpr bool runs_here(const CpuNormBackwardSchedule& schedule) {
  return schedule.vector_bits <= kBestVectorBits;
}

namespace tuned {

// The table's entries for this processor. The first call climbs the ladder; later calls only compare sizes.
template <class Table>
Found find(i64 rows, i64 cols) {
  static_assert(table_holds<Table>(),
                "a table ends with the default's choice and has an entry of it for every device and size");
  static_assert(table_is_as_accurate<Table>(),
                "a fit's kA + kB, kT or kR is larger than the default's: tune again, or with --accuracy any");
  using All = typename Table::Choices;
  if constexpr (sizeof Table::kEntries == sizeof(TunedEntry)) {
    return {};
  } else {
    static const auto standing = stand(Table::kEntries, this_cpu(), [](const TunedEntry& entry) {
      return choice_runs_here(All{}, entry.choice);
    });
    return nearest(Table::kEntries, standing, rows, cols);
  }
}

// Calls body(Choice{}) with the table's choice for a problem of this size. With only one choice there is
// nothing to look up.
template <class Table, class Body>
decltype(auto) run(i64 rows, i64 cols, const Body& body) {
  using All = typename Table::Choices;
  if constexpr (All::kCount == 1) {
    return with_choice(All{}, 0, body);
  } else {
    return with_choice(All{}, Table::kEntries[find<Table>(rows, cols).entry].choice, body);
  }
}

// What run() runs for a size, how it was found and, for a backward, what its fit's header states.
struct Tuning {
  const TunedEntry* entry;
  Found found;
  FitClaims fit;
};
template <class Table>
Tuning tuning_of(i64 rows, i64 cols) {
  const Found found = find<Table>(rows, cols);
  const TunedEntry& entry = Table::kEntries[found.entry];
  return {&entry, found, with_choice(typename Table::Choices{}, entry.choice, []<class Choice>(Choice) {
            return claims_of_choice<Choice>();
          })};
}

}  // namespace tuned
}  // namespace outgrad::kernels::inline OUTGRAD_ABI
