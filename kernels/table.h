// Coefficient tables, stored by rows (one per piece) as the generated headers write them, and by columns for
// vector and device lookups. Also the entries of direct tables.
#pragma once

#include "kernels/portable.h"

namespace outgrad::kernels {

template <int Rows, int Words>
struct Table {
  float w[Rows][Words];

  OUTGRAD_HD constexpr float at(u32 row, int word) const { return w[row][word]; }
};

// The `Rows` values of one word stand side by side. A permute by row then picks that word for a whole vector,
// and on a GPU the lanes of a warp that read different rows of a word touch different banks of shared memory.
// The rows are repeated up to a power of two of at least 16 floats, which is the widest vector register. With
// a power of two of rows, a row index may carry garbage above its own bits.
OUTGRAD_HD constexpr int stored_rows(int rows) {
  int stored = 16;
  while (stored < rows) stored *= 2;
  return rows == 1 ? 1 : stored;
}

template <int Words, int Rows>
struct alignas(64) Columns {
  static constexpr int kStored = stored_rows(Rows);
  float w[Words][kStored];

  OUTGRAD_HD constexpr float at(u32 row, int word) const { return w[word][row]; }
};

template <int Rows, int Words>
OUTGRAD_HD constexpr Columns<Words, Rows> columns_of(const Table<Rows, Words>& table) {
  Columns<Words, Rows> columns{};
  for (int word = 0; word < Words; ++word) {
    for (int row = 0; row < Columns<Words, Rows>::kStored; ++row)
      columns.w[word][row] = table.w[row % Rows][word];
  }
  return columns;
}

// Rows for vectors that load whole ones, four words at a time; repeated as above.
template <int Words, int Rows>
struct alignas(64) AlignedRows {
  static constexpr int kStored = stored_rows(Rows), kStride = (Words + 3) / 4 * 4;
  float w[kStored][kStride];

  OUTGRAD_HD constexpr float at(u32 row, int word) const { return w[row][word]; }
};

template <int Rows, int Words>
OUTGRAD_HD constexpr AlignedRows<Words, Rows> aligned_rows_of(const Table<Rows, Words>& table) {
  AlignedRows<Words, Rows> rows{};
  for (int row = 0; row < AlignedRows<Words, Rows>::kStored; ++row) {
    for (int word = 0; word < Words; ++word) rows.w[row][word] = table.w[row % Rows][word];
  }
  return rows;
}

// A direct table: 16-bit floats, as the generated headers write them.
template <int Count>
struct Entries {
  u16 w[Count];

  OUTGRAD_HD constexpr u16 at(u32 index) const { return w[index]; }
};

// A vector gather reads 32 bits at an entry's place. One extra entry keeps the last read inside the array.
template <int Count>
struct alignas(64) PaddedEntries {
  u16 w[Count + 1];

  OUTGRAD_HD constexpr u16 at(u32 index) const { return w[index]; }
};

template <int Count>
OUTGRAD_HD constexpr PaddedEntries<Count> padded(const Entries<Count>& entries) {
  PaddedEntries<Count> result{};
  for (int i = 0; i < Count; ++i) result.w[i] = entries.w[i];
  return result;
}

}  // namespace outgrad::kernels
