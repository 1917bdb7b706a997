// Coefficient tables: one row a piece, as the generated headers write them, and column by column for vector and device lookups.
#pragma once

#include "kernels/portable.h"

namespace outgrad::kernels {

template <int Rows, int Words>
struct Table {
  float w[Rows][Words];

  OUTGRAD_HD constexpr float at(u32 row, int word) const { return w[row][word]; }
};

// The `Rows` values of one word stand side by side: a permute by row picks that word for a whole vector, and on a GPU the lanes of a
// warp that read different rows of a word touch different banks of shared memory. Tables of fewer than 16 rows repeat them, so a row
// index may carry garbage above its own bits: 16 floats are the widest vector register.
template <int Words, int Rows>
struct alignas(64) Columns {
  static constexpr int kStored = Rows < 16 ? 16 : Rows;
  float w[Words][kStored];

  OUTGRAD_HD constexpr float at(u32 row, int word) const { return w[word][row]; }
};

template <int Rows, int Words>
OUTGRAD_HD constexpr Columns<Words, Rows> columns_of(const Table<Rows, Words>& table) {
  static_assert((Rows & (Rows - 1)) == 0, "rows are picked by the low bits of an index");
  Columns<Words, Rows> columns{};
  for (int word = 0; word < Words; ++word) {
    for (int row = 0; row < Columns<Words, Rows>::kStored; ++row) columns.w[word][row] = table.w[row % Rows][word];
  }
  return columns;
}

}  // namespace outgrad::kernels
