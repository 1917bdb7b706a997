// Where a kernel's coefficients live. All forms give the same values at(row, word): from shared memory in
// several layouts, or through the caches.
//
// The lanes of a warp read 32 different rows. Word by word (columns), up to 32 rows lie in 32 banks, so no
// two lanes collide, but every word needs a load. Row by row, one load reads four words and serves 8 lanes at
// a time; two of these lanes collide if their rows differ and share banks. `spread` gives each of the 8 lanes
// a copy in banks of its own.
#pragma once

#include "kernels/activation.h"
#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/direct.h"
#include "kernels/params.h"
#include "kernels/portable.h"
#include "kernels/table.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// 16 bytes, moved by one instruction.
struct alignas(16) Quad {
  float v[4];
};
inline constexpr int kQuadWords = 4;
inline constexpr int kQuadBanks = 8;  // 16-byte groups in the 128 bytes of a row of banks

OUTGRAD_HD constexpr bool is_power_of_two(int a) { return a > 0 && (a & (a - 1)) == 0; }
OUTGRAD_HD constexpr int log_of(int power) { return power > 1 ? 1 + log_of(power / 2) : 0; }

OUTGRAD_HD constexpr int quads_of(int words) { return (words + kQuadWords - 1) / kQuadWords; }

// A table cut into quads, in the order in which `rows` and `spread` hold it.
template <int Rows, int Words>
struct QuadTable {
  Quad q[quads_of(Words)][Rows];
};

template <int Rows, int Words>
OUTGRAD_HD constexpr QuadTable<Rows, Words> quad_table(const Table<Rows, Words>& table) {
  QuadTable<Rows, Words> quads{};
  for (int row = 0; row < Rows; ++row) {
    for (int word = 0; word < Words; ++word)
      quads.q[word / kQuadWords][row].v[word % kQuadWords] = table.w[row][word];
  }
  return quads;
}

// Calls store(i) for all i < Count, by a block of `Threads` threads.
template <u32 Threads, u32 Count, class Store>
__device__ __forceinline__ void by_block(const Store& store) {
  constexpr u32 kTrips = (Count + Threads - 1) / Threads;
  if constexpr (kTrips <= 8) {
    OUTGRAD_UNROLL
    for (u32 trip = 0; trip < kTrips; ++trip) {
      const u32 i = threadIdx.x + trip * Threads;
      if ((trip + 1) * Threads <= Count || i < Count) store(i);
    }
  } else {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < Count; i += Threads) store(i);
  }
}

// (a & bits) | b in one instruction.
__device__ __forceinline__ u32 joined(u32 a, u32 bits, u32 b) {
#ifdef __CUDA_ARCH__
  u32 result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(a), "r"(bits), "r"(b));
  return result;
#else
  return (a & bits) | b;
#endif
}

// The quad that lies Apart quads times `which` behind a shared address; `which` is a constant once this is
// inlined. The table is never written after it is filled, so equal loads are merged. The distance is part of
// the instruction, because a compiler that added it first would add it for each row.
template <int Apart>
__device__ __forceinline__ Quad load_shared(u32 address, int which) {
#ifdef __CUDA_ARCH__
  constexpr int kBytes = Apart * static_cast<int>(sizeof(Quad));
  Quad quad;
#define OUTGRAD_LOAD_QUAD(bytes)                                           \
  asm("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4+%5];"                        \
      : "=f"(quad.v[0]), "=f"(quad.v[1]), "=f"(quad.v[2]), "=f"(quad.v[3]) \
      : "r"(address), "n"(bytes))
  if (which == 0) {
    OUTGRAD_LOAD_QUAD(0);
  } else if (which == 1) {
    OUTGRAD_LOAD_QUAD(kBytes);
  } else {
    address += static_cast<u32>(which * kBytes);
    OUTGRAD_LOAD_QUAD(0);
  }
#undef OUTGRAD_LOAD_QUAD
  return quad;
#else
  return static_cast<const Quad*>(__cvta_shared_to_generic(address))[which * Apart];
#endif
}

// Rows side by side.
template <class Fit, int Threads>
struct SharedColumns {
  static constexpr int kRows = Fit::kRows, kWords = sizeof(Fit::table().w[0]) / sizeof(float);
  struct Words {
    float w[kWords][kRows];
  };
  Words words;

  static OUTGRAD_HD constexpr Words transposed() {
    constexpr auto kTable = Fit::table();
    Words result{};
    for (int row = 0; row < kRows; ++row) {
      for (int word = 0; word < kWords; ++word) result.w[word][row] = kTable.w[row][word];
    }
    return result;
  }
  __device__ __forceinline__ float at(u32 row, int word) const { return words.w[word][row]; }
  __device__ __forceinline__ const SharedColumns& view() const { return *this; }
  __device__ __forceinline__ void fill() {
    static constexpr Words kWordsInOrder = transposed();
    by_block<Threads, kWords * kRows>([&](u32 i) { (&words.w[0][0])[i] = (&kWordsInOrder.w[0][0])[i]; });
  }
};

// Quads of a row, in `Copies` copies (1 or kQuadBanks).
template <class Fit, int Threads, int Copies>
struct SharedQuads {
  static constexpr int kRows = Fit::kRows, kWords = sizeof(Fit::table().w[0]) / sizeof(float),
                       kQuads = quads_of(kWords);
  static constexpr int kRowBytes = Copies * static_cast<int>(sizeof(Quad));
  Quad quads[kQuads][kRows][Copies];

  // Shared addresses: the table's, which all threads have in common; the offset of this thread's copy of the
  // first row; and the sum of the two.
  struct View {
    static constexpr int kPlace = is_power_of_two(kRows) ? log_of(kRowBytes) : 0;
    u32 table, copy, first;
    __device__ __forceinline__ float at(u32 row, int word) const {
      return load_shared<kRows * Copies>(first + row * static_cast<u32>(kRowBytes), word / kQuadWords)
          .v[word % kQuadWords];
    }
    // The row is in the bits of `place` from kPlace on; all other bits are dropped. The load adds the table's
    // address.
    __device__ __forceinline__ float at_place(u32 place, int word) const {
      return load_shared<kRows * Copies>(table + joined(place, (kRows - 1) << kPlace, copy),
                                         word / kQuadWords)
          .v[word % kQuadWords];
    }
    // The same view, with rows numbered from this number on.
    __device__ __forceinline__ View from(u32 row) const {
      return {table, copy, first - row * static_cast<u32>(kRowBytes)};
    }
  };
  // To be called after the block has filled the table. The addresses come from a volatile statement, which
  // stays behind the barrier, and all loads depend on it. They are also opaque: otherwise the compiler would
  // add the copy to the row before it scales both.
  __device__ __forceinline__ View view() const {
    const u32 own = Copies == 1 ? 0 : threadIdx.x % Copies * static_cast<u32>(sizeof(Quad));
    u32 table = static_cast<u32>(__cvta_generic_to_shared(&quads[0][0][0])), first = table + own;
#ifdef __CUDA_ARCH__
    asm volatile("mov.b32 %0, %0; mov.b32 %1, %1;" : "+r"(table), "+r"(first) : : "memory");
#endif
    return {table, own, first};
  }
  __device__ __forceinline__ void fill() {
    static constexpr auto kInOrder = quad_table(Fit::table());
    by_block<Threads, kQuads * kRows * Copies>(
        [&](u32 i) { (&quads[0][0][0])[i] = (&kInOrder.q[0][0])[i / Copies]; });
  }
};

// The entries of a direct table, filled as 16-byte words.
template <class Fit, int Threads>
struct SharedEntries {
  static constexpr int kPerQuad = sizeof(Quad) / sizeof(u16),
                       kQuads = (Fit::kEntries + kPerQuad - 1) / kPerQuad;
  struct alignas(16) Padded {
    u16 w[kQuads * kPerQuad];
  };
  Padded entries;

  static OUTGRAD_HD constexpr Padded padded() {
    constexpr auto kEntries = Fit::entries();
    Padded result{};
    for (int i = 0; i < Fit::kEntries; ++i) result.w[i] = kEntries.w[i];
    return result;
  }
  __device__ __forceinline__ u16 at(u32 index) const { return entries.w[index]; }
  __device__ __forceinline__ const SharedEntries& view() const { return *this; }
  __device__ __forceinline__ void fill() {
    static constexpr Padded kInOrder = padded();
    by_block<Threads, kQuads>(
        [&](u32 i) { reinterpret_cast<Quad*>(entries.w)[i] = reinterpret_cast<const Quad*>(kInOrder.w)[i]; });
  }
};

// Part of the 48 KiB that a block may declare. Three such blocks fit an SM of the smallest kind (100 KiB).
inline constexpr int kMostSharedBytes = 32768;

// The home that `automatic` means: shared memory for direct tables and rows, if it suffices for several
// blocks; then `spread` if the copies are small, and `rows` otherwise.
template <class Fit>
OUTGRAD_HD constexpr TableHome home_of(TableHome wanted) {
  if (wanted != TableHome::automatic) return wanted;
  if constexpr (kIsDirect<Fit>) {
    return Fit::kEntries * static_cast<int>(sizeof(u16)) <= kMostSharedBytes ? TableHome::entries
                                                                             : TableHome::caches;
  } else {
    constexpr int kQuads = quads_of(sizeof(Fit::table().w[0]) / sizeof(float));
    constexpr int kBytes = kQuads * Fit::kRows * static_cast<int>(sizeof(Quad));
    if (Fit::kRows == 1) return TableHome::caches;
    return kBytes * kQuadBanks <= kMostSpreadBytes ? TableHome::spread
           : kBytes <= kMostSharedBytes            ? TableHome::rows
                                                   : TableHome::caches;
  }
}

// The shared table of a home, filled. Every thread of the block takes part.
template <class Shared>
__device__ __forceinline__ decltype(auto) filled() {
  __shared__ Shared shared;
  shared.fill();
  __syncthreads();
  return static_cast<const Shared&>(shared).view();
}

// The bit from which on a view of a table expects the index of a row; 0: it expects the index itself.
template <class View>
OUTGRAD_HD constexpr int place_of() {
  if constexpr (requires { View::kPlace; }) {
    return View::kPlace;
  } else {
    return 0;
  }
}

// The operations of a backward that reads its coefficients through this view.
template <class Fit, class Y, class View>
__device__ __forceinline__ GpuOps<DeviceFit<Fit, Y>, Y, DeviceSeed, place_of<View>()> ops_for(const View&) {
  return {};
}

// The bits of 2^23. An index of 2^23 plus the number of a row has these bits above that number.
inline constexpr u32 kTwoTo23 = 0x4b000000u;

// A view whose first row has the number First.
template <class Table, u32 First>
struct RowsFrom {
  const Table& table;
  __device__ __forceinline__ float at(u32 row, int word) const { return table.at(row - First, word); }
};
template <u32 First, class View>
__device__ __forceinline__ auto rows_from(const View& view) {
  if constexpr (requires { view.from(First); }) {
    return view.from(First);
  } else {
    return RowsFrom<View, First>{view};
  }
}

// The fit's table, in the place where the kernel reads it.
template <class Fit, TableHome Wanted, int Threads>
__device__ __forceinline__ decltype(auto) resident_table() {
  constexpr TableHome kHome = home_of<Fit>(Wanted);
  if constexpr (kHome == TableHome::caches) {
    static constexpr auto kTable = table_of<Fit>();
    return (kTable);
  } else if constexpr (kIsDirect<Fit>) {
    static_assert(kHome == TableHome::entries, "a direct table lies in `entries` or `caches`");
    return filled<SharedEntries<Fit, Threads>>();
  } else if constexpr (kHome == TableHome::columns) {
    return filled<SharedColumns<Fit, Threads>>();
  } else {
    static_assert(kHome == TableHome::rows || kHome == TableHome::spread, "`entries` is for direct tables");
    return filled<SharedQuads<Fit, Threads, kHome == TableHome::spread ? kQuadBanks : 1>>();
  }
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
