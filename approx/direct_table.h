/// Direct tables: for each stored y (16 or 8 bits) and mask bit the middle of its storage interval, rounded to 16 bits.
///
/// No polynomial can do better than T = O, and the table is within half an ulp of its entries of it. It is compacted by clamping: numbers
/// so small, or so large, that the middles there agree within half an ulp of an entry share one.
#pragma once

#include "approx/spec.h"
#include "approx/storage.h"

#include <cstdint>
#include <vector>

namespace outgrad::approx {

/// Members as in the emitted header. Segments: m = 1 and y's sign clear (upper), m = 1 and set (lower), m = 0 (left).
struct TableModel {
  Format format = Format::bf16, entry_format = Format::f16;
  bool kMasked = true;
  struct Segment {
    int first = 0, last = 0, base = 0;
  };
  Segment upper, lower, left;
  std::vector<std::uint16_t> entries;
  double kT = 0, kO = 0, kR = 0;

  /// As kernels/direct.h: sign and magnitude (2), the segment's three constants selected by the sign (3) and by the branch (3), the left
  /// segment's end by the sign again (1), clamp and addition (3).
  [[nodiscard]] int index_operations() const { return kMasked ? 12 : 8; }
  [[nodiscard]] float at(std::uint32_t code, bool m) const;
};

TableModel direct_table(const Composite& composite, const BackwardSpec& spec, const std::vector<StorageInterval>& intervals);

}  // namespace outgrad::approx
