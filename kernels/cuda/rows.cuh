// Rows of a matrix for kernels that sum a row and then write it: where a row is held meanwhile, and its sums
// by the tree of kernels/reduce.h.
//
// A chunk of the tree is an octet, which is 16 bytes of a 16-bit format. In the W warps that share a row, the
// thread (warp w, lane l) has the octets 32 q + l of the steps q = w, w + W, .. It folds its own chunks
// itself. The warps' sums are folded through shared memory, and the lanes' sums by shuffles. This is the
// order of the tree for any W. A row's octets stay with the thread that loaded them, so a row that overwrites
// the row it was made from needs no barrier.
//   RegisterRow  the octets in registers, every index a constant; whole octets in wide loads, or through a
//                RowRing from rows that are on their way while others are worked on
//   SharedRow    in dynamic shared memory; rows that are not aligned come and go element by element,
//                neighbours by neighbours
//   MemoryRow    read again for each use
#pragma once

#include "kernels/cuda/gpu_ops.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octets.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/formats.h"
#include "kernels/params.h"
#include "kernels/portable.h"
#include "kernels/reduce.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// The part of a norm's schedule that matters for an octet's load and store.
template <GpuNormSchedule S>
inline constexpr GpuSchedule kAccessOf = {
    .access_bytes = S.access_bytes, .loads = S.loads, .stores = S.stores};

// A schedule all of whose members are set.
template <GpuNormSchedule S>
OUTGRAD_HD constexpr bool norm_schedule_holds() {
  constexpr auto is_power = [](int a, int most) { return a >= 1 && a <= most && (a & (a - 1)) == 0; };
  static_assert(is_power(S.row_warps, kTreeLanes), "1, 2, 4, 8, 16 or 32 warps share a row");
  static_assert(S.home != RowHome::automatic, "the launcher chooses a home");
  static_assert(S.home != RowHome::registers || is_power(S.octets, 8),
                "a thread keeps 1, 2, 4 or 8 octets of a row");
  static_assert(S.home != RowHome::registers || S.octets * S.row_warps <= kMostRegisterSteps,
                "registers hold one group of the tree, 2^14 elements");
  static_assert(is_power(S.row_lanes, kTreeLanes) && S.row_lanes >= kFewestLanes,
                "8, 16 or 32 lanes share a row");
  static_assert(S.row_lanes == kTreeLanes || (S.home == RowHome::registers && S.row_warps == 1),
                "a row that shares its warp with others lies in registers");
  static_assert(is_power(S.block_rows, kMostBlockRows), "a block has 1, 2, 4 or 8 rows side by side");
  static_assert(S.row_warps * S.block_rows <= 32, "a block has at most 1024 threads");
  static_assert(is_power(S.access_bytes, 16) && S.access_bytes >= 4, "an access is 4, 8 or 16 bytes");
  static_assert(S.blocks_per_sm >= 0 && S.resident_blocks >= 1);
  static_assert(S.rows_ahead >= 0 && S.rows_ahead <= 4, "at most four rows are loaded ahead");
  return true;
}

// --- Threads and their sums ----------------------------------------------------------------------

// A thread's place in a block of `Rows` rows side by side, with `Warps` warps each, or with `Lanes` lanes of
// a warp. Lanes of the tree that are that many apart, or more, are then octets of one thread, or have
// nothing, and are folded before the others, as in the tree. Apart: no row waits for the threads of another
// row. A block then takes all 16 of its barriers from an SM's 64 (for 32 blocks), because compilers do not
// know which barriers it uses. So at most 4 blocks are resident.
template <int Warps, int Rows, bool Apart = false, int Lanes = kTreeLanes>
struct RowThread {
  static_assert(Lanes == kTreeLanes || Warps == 1);
  static constexpr int kWarps = Warps, kRows = Rows;
  static constexpr u32 kApart = Lanes * Warps;  // octets between two octets of the same thread
  u32 lane = threadIdx.x % Lanes;
  u32 warp = threadIdx.x / kTreeLanes % Warps;
  u32 row = threadIdx.x / kApart;
  u32 turn = 0;  // which of two buffers the next exchange uses

  __device__ __forceinline__ u32 first() const { return warp * kTreeLanes + lane; }
  // The lanes of this warp that share the row. Rows of one warp may take different numbers of turns.
  static __device__ __forceinline__ u32 row_mask() {
    if constexpr (Lanes == kTreeLanes) return 0xffffffffu;
    return ((1u << Lanes % kTreeLanes) - 1) << threadIdx.x % kTreeLanes / Lanes * Lanes;
  }

  // Orders the memory accesses of the threads that share a row. All of these threads take part or, unless
  // rows are apart, every thread of the block. Of a block's barriers, __syncthreads uses number 0.
  __device__ __forceinline__ void barrier() const {
    if constexpr (Warps == 1) {
      __syncwarp(row_mask());
    } else if constexpr (Rows == 1 || !Apart) {
      __syncthreads();
    } else {
#ifdef __CUDA_ARCH__
      asm volatile("bar.sync %0, %1;" : : "r"(row + 1), "n"(kApart) : "memory");
#elif defined(OUTGRAD_GPU_STAND_IN)
      stand_in_barrier(row + 1, kApart);
#endif
    }
  }

  // Folds the warps' sums of each lane. There are two buffers: a thread that writes one of them for the
  // second time has passed a barrier that every warp reached after reading it.
  template <int Sums>
  __device__ __forceinline__ Tuple<float, Sums> fold_warps(const Tuple<float, Sums>& own) {
    if constexpr (Warps == 1) {
      return own;
    } else {
      __shared__ Tuple<float, Sums> shared[2][Rows][Warps][kTreeLanes];
      auto& buffer = shared[turn][row];
      turn ^= 1;
      buffer[warp][lane] = own;
      barrier();
      return fold<Warps * kTreeLanes, kTreeLanes>(&buffer[0][lane]);
    }
  }

  // finish(sum) of the lanes' sums. If there are two sums, each half of the lanes folds one and finishes it
  // for both halves.
  template <int Sums, class Finish>
  __device__ __forceinline__ Tuple<float, Sums> fold_lanes(const Tuple<float, Sums>& sum,
                                                           const Finish& finish) const {
    static_assert(Sums <= 2);
    const unsigned all = row_mask();
    constexpr int kHalf = Lanes / 2;
    const bool second = Sums == 2 && lane >= kHalf;
    float own = second ? sum.v[Sums - 1] : sum.v[0];
    own = add_rn(own, __shfl_xor_sync(all, second ? sum.v[0] : sum.v[Sums - 1], kHalf));
    OUTGRAD_UNROLL
    for (int half = kHalf / 2; half > 0; half /= 2) own = add_rn(own, __shfl_xor_sync(all, own, half));
    own = finish(own);
    if constexpr (Sums == 1) {
      return {{own}};
    } else {
      const float other = __shfl_xor_sync(all, own, kHalf);
      return {{second ? other : own, second ? own : other}};
    }
  }
};

// The sums over a row, where chunk(octet) is the chunk of this thread's octet `octet`. For rows of any
// length; fold_steps folds the steps of a group.
template <int Sums, class Thread, class Chunk, class Finish>
__device__ __forceinline__ Tuple<float, Sums> looped_sums(Thread& thread, i64 n, const Chunk& chunk,
                                                          const Finish& finish) {
  const auto neutral = neutral_sums<Sums>();
  const auto step = [&](i64 q) {
    const i64 octet = q * kTreeLanes + thread.lane;
    return octet * kOctet < n ? chunk(octet) : neutral;
  };
  const i64 steps = row_steps(n);
  Tuple<float, Sums> sum = neutral;
#pragma unroll 1
  for (i64 group = 0; group < steps; group += kGroupSteps) {
    const i64 end = group + kGroupSteps < steps ? group + kGroupSteps : steps;
    sum = add_rn(sum, thread.fold_warps(fold_steps<Thread::kWarps>(group + thread.warp, end, neutral, step)));
  }
  return thread.fold_lanes(sum, finish);
}

// A chunk from its operands.
template <class Terms>
__device__ __forceinline__ Tuple<float, Terms::kSums> chunk_of(
    const Tuple<float, Terms::kOperands> (&operands)[kOctet]) {
  Tuple<float, Terms::kSums> sums[kOctet / 2];
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet / 2; ++k) sums[k] = Terms::first_fold(operands[k], operands[k + kOctet / 2]);
  return fold<kOctet / 2>(sums);
}

// --- Octets --------------------------------------------------------------------------------------

// 8 words of an array that all rows share and that nobody writes meanwhile. Whole: it is aligned to 16 bytes;
// otherwise `count` words are read, and the others are `missing`.
template <bool Whole>
__device__ __forceinline__ Tuple<float, kOctet> shared_words(const float* from, int count, float missing) {
  Tuple<float, kOctet> words;
  if constexpr (Whole) {
    const float4* const quads = reinterpret_cast<const float4*>(from);
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet / 4; ++k) {
      const float4 quad = __ldg(quads + k);
      words.v[4 * k] = quad.x, words.v[4 * k + 1] = quad.y, words.v[4 * k + 2] = quad.z,
                  words.v[4 * k + 3] = quad.w;
    }
  } else {
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) words.v[k] = k < count ? __ldg(from + k) : missing;
  }
  return words;
}

// Stores to an address aligned to 16 bytes.
__device__ __forceinline__ void store_words(float* to, const Tuple<float, kOctet>& words) {
  float4* const quads = reinterpret_cast<float4*>(to);
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet / 4; ++k)
    quads[k] = make_float4(words.v[4 * k], words.v[4 * k + 1], words.v[4 * k + 2], words.v[4 * k + 3]);
}

template <class T>
__device__ __forceinline__ Octet<T> octet_of(const T (&element)[kOctet]) {
  Octet<T> octet;
  if constexpr (sizeof(T) == 4) {
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) octet.w[k] = bits_of(element[k]);
  } else {
    constexpr int kPer = 4 / static_cast<int>(sizeof(T)), kBits = 8 * static_cast<int>(sizeof(T));
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) {
      const u32 bits = static_cast<u32>(element[k].bits) << k % kPer * kBits;
      octet.w[k / kPer] = k % kPer == 0 ? bits : octet.w[k / kPer] | bits;
    }
  }
  return octet;
}

// Returns the same value, but hides this from the compiler, so that what was computed from it before is
// computed again rather than kept in registers.
__device__ __forceinline__ void forget([[maybe_unused]] u32& word) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+r"(word));
#endif
}
template <class T>
__device__ __forceinline__ void forget([[maybe_unused]] T*& pointer) {
#ifdef __CUDA_ARCH__
  asm volatile("" : "+l"(pointer));
#endif
}

// Stands in for elements beyond a row's end where a value is needed. The value is not used.
template <class T>
__device__ __forceinline__ Octet<T> zero_octet() {
  Octet<T> octet;
  OUTGRAD_UNROLL
  for (int k = 0; k < Octet<T>::kWords; ++k) octet.w[k] = 0;
  return octet;
}

// `count` elements of an octet, in wide accesses if all of them exist and are aligned.
template <GpuNormSchedule S, bool Whole, class T>
__device__ __forceinline__ Octet<T> load_part(const T* from, int count) {
  if constexpr (Whole) {
    return load_octet<kAccessOf<S>>(from);
  } else {
    T element[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) element[k] = k < count ? from[k] : T{};
    return octet_of(element);
  }
}

template <GpuNormSchedule S, bool Whole, class T>
__device__ __forceinline__ void store_part(T* to, const Octet<T>& octet, int count) {
  if constexpr (Whole) {
    store_octet<kAccessOf<S>>(to, octet);
  } else {
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) {
      if (k < count) to[k] = element_of(octet, k);
    }
  }
}

// The part of an Input (below) that says how to read it, if all of its sources are of T.
template <class T>
struct PlainSources {
  static OUTGRAD_HD constexpr int element_bytes(int) { return sizeof(T); }
  static OUTGRAD_HD constexpr int words_of(int) { return Octet<T>::kWords; }
  template <GpuNormSchedule S, bool Whole>
  static __device__ __forceinline__ Octet<T> load(int, const T* row, i64 at, int count) {
    return load_part<S, Whole>(row + at, count);
  }
};

// --- Homes ---------------------------------------------------------------------------------------
//
// `Input` describes what a row is made of:
//   kSources, kKept         tensors that are read, and how many of them, the first ones, are kept
//   source[kSources]        their rows
//   kCombines               whether `combine` does anything
//   combine<S, Whole>(octets, at, count)
//                           what becomes of the octets of all sources at element `at`, before they are kept
//   combine(elements, at)   the same for an element
//   again[kKept]            where what was kept can be read once more
//   load<S, Whole>(c, row, at, count)
//                           the octet at element `at` of a row of source c, in the first words of an Octet<T>
//   element_bytes(c), words_of(c)
//                           bytes of an element of source c, a row of which is pointed to as if it were of T,
//                           and the words that its octet takes
// A home fetches a row from its Input. It gives the tree's sums of it by sum<Sums>(thread, chunk, finish)
// with chunk(octets, at, count, k) and finish(sum). It visits its octets by each(thread, body) with
// body(octets, at, count, k, present), where octets has the type Octets. k is the octet's number among the
// thread's own octets, and chunk gets it as well. kWhole: count is 8. kStaged: put only prepares what finish
// then writes, each thread every kApart-th element.
// Octets beyond the row's end are visited with present = false and must have no effect (only in RegisterRow,
// and fewer than 2^14 elements).

template <GpuNormSchedule S, class T, class Input>
struct RegisterRow {
  static constexpr bool kWhole = true, kStaged = false;
  static constexpr int kOctets = S.octets;
  using Octets = Octet<T>[Input::kSources];
  Octets octet[kOctets];
  u32 octets;  // of the row; 0: there is no row

  template <class Thread>
  __device__ __forceinline__ bool is_there(const Thread& thread, int k) const {
    return thread.first() + k * Thread::kApart < octets;
  }
  // The sum of a constant of the thread and k times a constant of the compiler.
  template <class Thread>
  static __device__ __forceinline__ i64 at(const Thread& thread, int k) {
    return static_cast<i64>(thread.first()) * kOctet + k * static_cast<i64>(Thread::kApart * kOctet);
  }

  // All loads come before anything is computed from them.
  template <class Thread>
  __device__ __forceinline__ void fetch(const Thread& thread, Input& input, i64 n, bool present) {
    octets = present ? static_cast<u32>(n) / kOctet : 0;
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctets; ++k) {
      OUTGRAD_UNROLL
      for (int c = 0; c < Input::kSources; ++c) {
        octet[k][c] = is_there(thread, k)
                          ? Input::template load<S, true>(c, input.source[c], at(thread, k), kOctet)
                          : zero_octet<T>();
      }
    }
    if constexpr (Input::kCombines) {
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctets; ++k) {
        if (is_there(thread, k)) input.template combine<S, true>(octet[k], at(thread, k), kOctet);
      }
    }
  }

  template <int Sums, class Thread, class Chunk, class Finish>
  __device__ __forceinline__ Tuple<float, Sums> sum(Thread& thread, i64, const Chunk& chunk,
                                                    const Finish& finish) const {
    const auto neutral = neutral_sums<Sums>();
    Tuple<float, Sums> chunks[kOctets];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctets; ++k) {
      const auto value = chunk(octet[k], at(thread, k), kOctet, k);
      OUTGRAD_UNROLL
      for (int s = 0; s < Sums; ++s) chunks[k].v[s] = is_there(thread, k) ? value.v[s] : neutral.v[s];
    }
    return thread.fold_lanes(thread.fold_warps(fold<kOctets>(chunks)), finish);
  }

  template <class Thread, class Body>
  __device__ __forceinline__ void each(const Thread& thread, i64, const Body& body) {
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctets; ++k) body(octet[k], at(thread, k), kOctet, k, is_there(thread, k));
  }

  // Between the sums and the pass that writes: what was widened for them would fill as many registers as the
  // row itself, twice over.
  __device__ __forceinline__ void forget_values() {
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctets; ++k) {
      OUTGRAD_UNROLL
      for (int c = 0; c < Input::kSources; ++c) {
        OUTGRAD_UNROLL
        for (int w = 0; w < Octet<T>::kWords; ++w) {
          if (w < Input::words_of(c)) forget(octet[k][c].w[w]);
        }
      }
    }
  }

  template <class Thread>
  __device__ __forceinline__ void put(const Thread&, T* to, const Octet<T>& value, i64 at, int) {
    store_octet<kAccessOf<S>>(to + at, value);
  }
  template <class Thread>
  __device__ __forceinline__ void finish(const Thread&, T*, i64) {}
};

// The part of a home that reads its octets anew each time, with read(octets, n, index).
template <class Home, class Octets, bool Whole>
struct LoopedRow {
  template <int Sums, class Thread, class Chunk, class Finish>
  __device__ __forceinline__ Tuple<float, Sums> sum(Thread& thread, i64 n, const Chunk& chunk,
                                                    const Finish& finish) const {
    return looped_sums<Sums>(
        thread, n,
        [&](i64 index) {
          Octets all;
          static_cast<const Home*>(this)->read(all, n, index);
          return chunk(all, index * kOctet, left(n, index), 0);
        },
        finish);
  }
  template <class Thread, class Body>
  __device__ __forceinline__ void each(const Thread& thread, i64 n, const Body& body) {
#pragma unroll 1
    for (i64 index = thread.first(); index * kOctet < n; index += Thread::kApart) {
      Octets all;
      static_cast<const Home*>(this)->read(all, n, index);
      body(all, index * kOctet, left(n, index), 0, true);
    }
  }
  __device__ __forceinline__ void forget_values() {}

 protected:
  static __device__ __forceinline__ int left(i64 n, i64 index) {
    return Whole || n - index * kOctet >= kOctet ? kOctet : static_cast<int>(n - index * kOctet);
  }
};

// Whole: rows consist of whole octets and are aligned to the schedule's accesses.
template <GpuNormSchedule S, class T, class Input, bool Whole>
struct SharedRow : LoopedRow<SharedRow<S, T, Input, Whole>, Octet<T>[Input::kKept], Whole> {
  static constexpr bool kWhole = Whole, kStaged = !Whole;
  static constexpr int kKept = Input::kKept;
  using Octets = Octet<T>[kKept];

  static __device__ __forceinline__ Octet<T>* row(i64 n, int c) {
    return dynamic_shared<Octet<T>>() + c * ((n + kOctet - 1) / kOctet);
  }

  template <class Thread>
  __device__ __forceinline__ void fetch(const Thread& thread, Input& input, i64 n, bool) {
    if constexpr (Whole) {
#pragma unroll 1
      for (i64 octet = thread.first(); octet * kOctet < n; octet += Thread::kApart) {
        Octet<T> all[Input::kSources];
        OUTGRAD_UNROLL
        for (int c = 0; c < Input::kSources; ++c)
          all[c] = Input::template load<S, true>(c, input.source[c], octet * kOctet, kOctet);
        if constexpr (Input::kCombines) input.template combine<S, true>(all, octet * kOctet, kOctet);
        OUTGRAD_UNROLL
        for (int c = 0; c < kKept; ++c) row(n, c)[octet] = all[c];
      }
    } else {
      __syncthreads();  // the previous row has been written out
#pragma unroll 4
      for (i64 j = thread.first(); j < n; j += Thread::kApart) {
        T all[Input::kSources];
        OUTGRAD_UNROLL
        for (int c = 0; c < Input::kSources; ++c) all[c] = input.source[c][j];
        if constexpr (Input::kCombines) input.combine(all, j);
        OUTGRAD_UNROLL
        for (int c = 0; c < kKept; ++c) reinterpret_cast<T*>(row(n, c))[j] = all[c];
      }
      __syncthreads();
    }
  }

  __device__ __forceinline__ void read(Octets & all, i64 n, i64 index) const {
    OUTGRAD_UNROLL
    for (int c = 0; c < kKept; ++c) all[c] = row(n, c)[index];
  }

  // Writes to the first tensor's place, if neighbouring threads are to write neighbouring elements.
  template <class Thread>
  __device__ __forceinline__ void put(const Thread&, T* to, const Octet<T>& value, i64 at, int) {
    if constexpr (Whole) {
      store_octet<kAccessOf<S>>(to + at, value);
    } else {
      row(0, 0)[at / kOctet] = value;
    }
  }
  template <class Thread>
  __device__ __forceinline__ void finish(const Thread& thread, T* to, i64 n) {
    if constexpr (!Whole) {
      __syncthreads();
#pragma unroll 4
      for (i64 j = thread.first(); j < n; j += Thread::kApart)
        to[j] = reinterpret_cast<const T*>(row(n, 0))[j];
    }
  }
};

template <GpuNormSchedule S, class T, class Input, bool Whole>
struct MemoryRow : LoopedRow<MemoryRow<S, T, Input, Whole>, Octet<T>[Input::kKept], Whole> {
  static constexpr bool kWhole = Whole, kStaged = false;
  static constexpr int kKept = Input::kKept;
  using Octets = Octet<T>[kKept];
  const T* again[kKept];

  template <class Thread>
  __device__ __forceinline__ void fetch(const Thread& thread, Input& input, i64 n, bool) {
    if constexpr (Input::kCombines) {
#pragma unroll 1
      for (i64 octet = thread.first(); octet * kOctet < n; octet += Thread::kApart) {
        Octet<T> all[Input::kSources];
        OUTGRAD_UNROLL
        for (int c = 0; c < Input::kSources; ++c)
          all[c] = Input::template load<S, Whole>(c, input.source[c], octet * kOctet, this->left(n, octet));
        input.template combine<S, Whole>(all, octet * kOctet, this->left(n, octet));
      }
    }
    OUTGRAD_UNROLL
    for (int c = 0; c < kKept; ++c) again[c] = input.again[c];
  }

  __device__ __forceinline__ void read(Octets & all, i64 n, i64 index) const {
    OUTGRAD_UNROLL
    for (int c = 0; c < kKept; ++c)
      all[c] = Input::template load<S, Whole>(c, again[c], index * kOctet, this->left(n, index));
  }

  template <class Thread>
  __device__ __forceinline__ void put(const Thread&, T* to, const Octet<T>& value, i64 at, int count) {
    store_part<S, Whole>(to + at, value, count);
  }
  template <class Thread>
  __device__ __forceinline__ void finish(const Thread&, T*, i64) {}
};

// --- Rows on their way ---------------------------------------------------------------------------

// Copies 4, 8 or 16 bytes from global to shared memory while the thread continues. Streaming: bypasses L1
// where that is possible.
template <int Bytes, bool Streaming>
__device__ __forceinline__ void copy_async([[maybe_unused]] void* to, [[maybe_unused]] const void* from) {
#ifdef __CUDA_ARCH__
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(to));
  if constexpr (Streaming && Bytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], %2;"
                 :
                 : "r"(address), "l"(from), "n"(Bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
                 :
                 : "r"(address), "l"(from), "n"(Bytes)
                 : "memory");
  }
#elif defined(OUTGRAD_GPU_STAND_IN)
  __pipeline_memcpy_async(to, from, Bytes);
#endif
}
// The next of 8 bytes that come in accesses of at most `Bytes`.
template <int Bytes>
__device__ __forceinline__ void copy_codes(void* to, const void* from) {
  copy_async<smaller(Bytes, kOctet), false>(to, from);
}
// Ends a batch of the thread's copies, which may be empty.
__device__ __forceinline__ void commit_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.commit_group;" : : : "memory");
#elif defined(OUTGRAD_GPU_STAND_IN)
  __pipeline_commit();
#endif
}
// Waits for all of the thread's batches except the last `Left`. This thread then sees the data that they
// brought.
template <int Left>
__device__ __forceinline__ void await_copies() {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.wait_group %0;" : : "n"(Left) : "memory");
#elif defined(OUTGRAD_GPU_STAND_IN)
  __pipeline_wait_prior(Left);
#endif
}

// S.rows_ahead rows that are being copied into the block's dynamic shared memory. Each thread copies its own
// octets and is the only one to read them, so it waits only for its own copies and for no other thread. In
// every row's part, 16-byte quads of neighbouring threads are neighbours. A row's first `Taken` tensors are
// taken into registers, and their places are at once filled from a later row. If there is one more tensor, it
// is read where it is needed, and its place is filled after that.
template <GpuNormSchedule S, class T, class Input, int Taken = Input::kSources>
struct RowRing {
  static constexpr int kRows = S.rows_ahead, kThreads = block_threads(S);
  static constexpr int kAccess = kAccessBytes<kAccessOf<S>, T>;
  static constexpr int kOctetQuads = static_cast<int>(sizeof(Octet<T>) / sizeof(uint4)),
                       kRowQuads = S.octets * Input::kSources * kOctetQuads;
  // In rows of f32, lanes have a stride of 32 bytes, so the second half of a sector is then found in L1.
  static constexpr bool kPastL1 = sizeof(T) < sizeof(float);
  static_assert(kRowQuads * static_cast<int>(sizeof(uint4)) ==
                detail::ring_bytes(S.octets, Input::kSources, sizeof(T)));
  // batches of copies per row
  static constexpr int kTaken = Taken, kBatches = Input::kSources > Taken ? 2 : 1;
  u32 place = 0;  // the place of the next row that is taken or fetched

  __device__ __forceinline__ uint4* quad(int octet, int source, int part) const {
    return dynamic_shared<uint4>() +
           (place * kRowQuads + (octet * Input::kSources + source) * kOctetQuads + part) * kThreads +
           threadIdx.x;
  }
  __device__ __forceinline__ void move_on() { place = place + 1 == kRows ? 0 : place + 1; }

  // Copies sources Begin to End - 1 to the current place, after they have been read there. If not `present`,
  // copies nothing, but counts a batch. `input` points at the thread's first octet.
  template <int Begin, int End, class Thread>
  __device__ __forceinline__ void fetch(const Thread& thread, const Input& input, u32 octets,
                                        bool present) const {
    OUTGRAD_UNROLL
    for (int k = 0; k < S.octets; ++k) {
      if (!present || thread.first() + k * Thread::kApart >= octets) continue;
      OUTGRAD_UNROLL
      for (int c = Begin; c < End; ++c) {
        const auto* const from = reinterpret_cast<const u8*>(input.source[c]) +
                                 k * Thread::kApart * kOctet * Input::element_bytes(c);
        OUTGRAD_UNROLL
        for (int part = 0; part < kOctetQuads; ++part) {
          auto* const to = reinterpret_cast<u8*>(quad(k, c, part));
          OUTGRAD_UNROLL
          for (int byte = 0; byte < static_cast<int>(sizeof(uint4)); byte += kAccess) {
            const int at = part * static_cast<int>(sizeof(uint4)) + byte;
            if (Input::element_bytes(c) == static_cast<int>(sizeof(T))) {
              copy_async<kAccess, kPastL1>(to + byte, from + at);
            } else if (at < kOctet) {  // bytes
              copy_codes<kAccess>(to + byte, from + at);
            }
          }
        }
      }
    }
    commit_copies();
  }
  // Takes the first tensors of the oldest row that was fetched. Octets beyond the row's end may have any
  // value.
  template <class Row>
  __device__ __forceinline__ void take(Row& row) const {
    await();
    OUTGRAD_UNROLL
    for (int k = 0; k < S.octets; ++k) {
      OUTGRAD_UNROLL
      for (int c = 0; c < kTaken; ++c) row.octet[k][c] = octet(k, c);
    }
  }
  // An octet of the last tensor, after the first tensors of a later row were fetched.
  __device__ __forceinline__ Octet<T> rest(int k) const {
    if (k == 0) await();
    return octet(k, kTaken);
  }

 private:
  // Waits for the oldest batch. The batches fetched after it are all but one of those of kRows rows.
  static __device__ __forceinline__ void await() { await_copies<kBatches * kRows - 1>(); }
  __device__ __forceinline__ Octet<T> octet(int k, int c) const {
    Octet<T> result;
    OUTGRAD_UNROLL
    for (int part = 0; part < kOctetQuads; ++part)
      reinterpret_cast<uint4*>(result.w)[part] = *quad(k, c, part);
    return result;
  }
};

template <GpuNormSchedule S, class T, class Input, bool Whole, RowHome Home = S.home>
struct RowOf {
  static_assert(Home == RowHome::registers && Whole, "registers hold whole octets");
  using Type = RegisterRow<S, T, Input>;
};
template <GpuNormSchedule S, class T, class Input, bool Whole>
struct RowOf<S, T, Input, Whole, RowHome::shared> {
  using Type = SharedRow<S, T, Input, Whole>;
};
template <GpuNormSchedule S, class T, class Input, bool Whole>
struct RowOf<S, T, Input, Whole, RowHome::memory> {
  using Type = MemoryRow<S, T, Input, Whole>;
};

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
