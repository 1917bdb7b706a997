// Direct tables: an activation's derivative from the bits of a stored 16-bit or 8-bit output, by one lookup.
//
// The branch (mask bit and sign of y) chooses one of up to three segments of the table; the magnitude of y's
// code, clamped to what the segment holds, is the place in it: its first and last entry also serve what lies
// beyond. Nothing is rounded but the entry itself, and the header (kT, kR) holds what that costs. Beside
// those of eval.h, an operations object has
//
//   Value   load(view)               the stored values, widened
//   Row     load_codes(const T*)     their bits
//   Row     low_bits(row, bits)      row and bits
//   Mask    above(row, limit)        row > limit
//   Row     constant_row(int)
//   Row     row_in(row, first, last, shift) = clamp(row, first, last) + shift, for 0 <= row, first <= last
//           and a result that is not negative
//   Value   entry<E>(entries, row)   the entry, a stored E, widened
//
// The index takes 12 integer operations (selects among them), without a mask 8.
#pragma once

#include "kernels/eval.h"
#include "kernels/formats.h"
#include "kernels/portable.h"
#include "kernels/stored.h"
#include "kernels/table.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// Whether a generated header is a direct table; the others are polynomials.
template <class Fit>
inline constexpr bool kIsDirect = requires { Fit::kEntryFormat; };

OUTGRAD_HD constexpr bool same_text(const char* a, const char* b) {
  while (*a != '\0' && *a == *b) ++a, ++b;
  return *a == *b;
}

// The format of an entry: EntryOf<Fit>::Type.
template <class Fit, bool kHalf = same_text(Fit::kEntryFormat, Format<F16>::kName)>
struct EntryOf {
  using Type = F16;
};
template <class Fit>
struct EntryOf<Fit, false> {
  static_assert(same_text(Fit::kEntryFormat, Format<BF16>::kName), "kEntryFormat is f16 or bf16");
  using Type = BF16;
};

OUTGRAD_HD constexpr bool segment_holds(int first, int last, int base, int entries) {
  return 0 <= first && first <= last && base >= 0 && base < entries && last - first < entries - base;
}

// Compiles where every lookup of the table for a y stored as Y stays inside it.
template <class Fit, class Y>
OUTGRAD_HD constexpr bool direct_table_holds() {
  static_assert(!ScaledInBlocks<Y>, "a code alone does not say the value of a block format");
  static_assert(same_text(Fit::kFormat, Format<Y>::kName),
                "a direct table is read by the bits of y: y is stored in the header's kFormat");
  static_assert(segment_holds(Fit::kUpperFirst, Fit::kUpperLast, Fit::kUpperBase, Fit::kEntries),
                "upper segment beyond the table");
  static_assert(segment_holds(Fit::kLowerFirst, Fit::kLowerLast, Fit::kLowerBase, Fit::kEntries),
                "lower segment beyond the table");
  if constexpr (Fit::kMasked) {
    static_assert(segment_holds(Fit::kLeftFirst, Fit::kLeftLast, Fit::kLeftBase, Fit::kEntries),
                  "left segment beyond the table");
  }
  return true;
}

// g = f'(x) from the code of y = f(x), y itself, and m as in evaluate_backward. A NaN y gives NaN; foreign
// data, y > 0 with m = 0, is taken to the nearest end, the code of -0.
template <class Y, class Ops, class Fit, class TableView>
OUTGRAD_HD typename Ops::Value evaluate_direct(const Ops& ops, const Fit& fit, const TableView& entries,
                                               typename Ops::Row code, typename Ops::Value y,
                                               typename Ops::Mask m) {
  using Row = typename Ops::Row;
  constexpr int kMagnitude = (1 << (8 * sizeof(Y) - 1)) - 1;
  const Row magnitude = ops.low_bits(code, kMagnitude);
  const auto negative = ops.above(code, kMagnitude);
  Row first = ops.select(negative, ops.constant_row(fit.kLowerFirst), ops.constant_row(fit.kUpperFirst));
  Row last = ops.select(negative, ops.constant_row(fit.kLowerLast), ops.constant_row(fit.kUpperLast));
  Row shift = ops.select(negative, ops.constant_row(fit.kLowerBase - fit.kLowerFirst),
                         ops.constant_row(fit.kUpperBase - fit.kUpperFirst));
  if constexpr (Fit::kMasked) {
    first = ops.select(m, first, ops.constant_row(fit.kLeftFirst));
    // A segment that ends where it begins sends y > 0 to the entry of -0.
    last = ops.select(
        m, last, ops.select(negative, ops.constant_row(fit.kLeftLast), ops.constant_row(fit.kLeftFirst)));
    shift = ops.select(m, shift, ops.constant_row(fit.kLeftBase - fit.kLeftFirst));
  }
  const Row index = ops.row_in(magnitude, first, last, shift);
  return ops.select(ops.less_equal(y, y), ops.template entry<typename EntryOf<Fit>::Type>(entries, index), y);
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
