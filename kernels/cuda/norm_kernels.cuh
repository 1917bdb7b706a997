// LayerNorm and RMSNorm on a GPU, alone and of x + residual: the __global__ wrappers over the bodies and trees that the host runs, hence
// the host's bits. Launchers, with the contract: kernels/cuda/layernorm.cuh.
//
// Each element of x, or of dy and y, is read once: a row stays in registers or in shared memory between its sums and the pass that writes
// y or dx (kernels/cuda/rows.cuh), as long as the device has room for it. The backward's sums over rows come out of the same pass: the warps that
// own a slot take its rows one after the other, each thread with the sums of its own columns in registers, and write them at the slot's end.
// What may be varied: GpuNormSchedule in kernels/params.h.
#pragma once

#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/octets.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/layernorm.h"
#include "kernels/params.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

template <class Schedule>
inline constexpr int kNormThreads = kTreeLanes* Schedule::kSchedule.row_warps* Schedule::kSchedule.block_rows;

// --- Forward ---------------------------------------------------------------------------------------------------------------------

// A row of x, or of z = x + residual, which is stored on the way.
template <class T, bool Residual>
struct ForwardInput {
  static constexpr int kSources = Residual ? 2 : 1, kKept = 1;
  static constexpr bool kCombines = Residual;
  const T* source[kSources];
  T* z;
  const T* again[kKept];

  __device__ __forceinline__ ForwardInput(const NormForwardArrays<T>& a, i64 row) : z(a.z + row * a.n) {
    source[0] = a.x + row * a.n;
    if constexpr (Residual) source[1] = a.residual + row * a.n;
    again[0] = Residual ? z : source[0];
  }
  template <GpuNormSchedule S, bool Whole>
  __device__ __forceinline__ void combine(Octet<T> (&all)[kSources], i64 at, int count) const {
    float sum[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) sum[k] = add_rn(widened(all[0], k), widened(all[kSources - 1], k));
    all[0] = packed<T>(sum);
    store_part<S, Whole>(z + at, all[0], count);
  }
  __device__ __forceinline__ void combine(T (&all)[kSources], i64 j) const {
    all[0] = narrow<T>(add_rn(widen(all[0]), widen(all[kSources - 1])));
    z[j] = all[0];
  }
};

// Wide: rows are aligned to the schedule's accesses, gamma and beta to 16 bytes, and rows are whole octets. y may alias x, as on the host.
template <Norm N, class T, class Schedule, bool Wide = true, bool Residual = false>
__global__ void __launch_bounds__(kNormThreads<Schedule>, Schedule::kSchedule.resident_blocks) norm_forward(NormForwardArrays<T> a) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  static_assert(norm_schedule_holds<S>());
  using Input = ForwardInput<T, Residual>;
  using Row = typename RowOf<S, T, Input, Wide>::Type;
  RowThread<S.row_warps, S.block_rows> thread;
#pragma unroll 1
  for (i64 first = static_cast<i64>(blockIdx.x) * S.block_rows; first < a.rows; first += static_cast<i64>(gridDim.x) * S.block_rows) {
    const bool present = S.block_rows == 1 || first + thread.row < a.rows;
    const i64 row = present ? first + thread.row : first;  // every thread of the block comes to every barrier
    Row home;
    Input input(a, row);
    home.fetch(thread, input, a.n, present);
    float mean = 0.0f;
    if constexpr (N == Norm::layer) {
      const auto sum = home.template sum<1>(thread, a.n, [&](const typename Row::Octets& octet, i64, int count) {
        Tuple<float, 1> operands[kOctet];
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) {
          operands[k] = Row::kWhole || k < count ? Tuple<float, 1>{{widened(octet[0], k)}} : MeanTerms<T>::missing();
        }
        return chunk_of<MeanTerms<T>>(operands);
      });
      mean = mean_of(sum.v[0], a.n);
    }
    const auto squares = home.template sum<1>(thread, a.n, [&](const typename Row::Octets& octet, i64, int count) {
      Tuple<float, 1> operands[kOctet];
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k) {
        operands[k] = Row::kWhole || k < count ? Tuple<float, 1>{{sub_rn(widened(octet[0], k), mean)}} : VarianceTerms<T>::missing();
      }
      return chunk_of<VarianceTerms<T>>(operands);
    });
    home.forget_values();
    const float rstd = rstd_of(squares.v[0], a.n, a.eps);
    if (present && thread.first() == 0) a.rstd[row] = rstd;
    if (a.side.count > 0) {
      if constexpr (Residual) thread.barrier();  // z has been written
      if (present) {
        const T* const stored = input.again[0];
        for (i64 k = thread.first(); k < a.side.count; k += thread.kApart) {
          a.side.x_hat[row * a.side.count + k] = normalised(widen(stored[a.side.channels[k]]), mean, rstd);
        }
      }
      thread.barrier();  // x has been read wherever y, which may be x, is about to be written
    }
    T* const y = a.y + row * a.n;
    home.each(thread, a.n, [&](const typename Row::Octets& octet, i64 at, int count, int, bool there) {
      Tuple<float, kOctet> gamma, beta;
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k) gamma.v[k] = 1.0f, beta.v[k] = kMissingTerm;
      const i64 column = there ? at : 0;
      if (a.gamma) gamma = shared_words<Wide>(a.gamma + column, count, 1.0f);
      if (a.beta) beta = shared_words<Wide>(a.beta + column, count, kMissingTerm);
      float result[kOctet];
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k) result[k] = fma_rn(normalised(widened(octet[0], k), mean, rstd), gamma.v[k], beta.v[k]);
      if (there) home.put(thread, y, packed<T>(result), at, count);
    });
    home.finish(thread, y, a.n);
  }
}

// --- Backward --------------------------------------------------------------------------------------------------------------------

template <Norm N>
inline constexpr int kColumnSums = column_sums(N);

// One thread to each of `padded` columns.
template <class = void>
__global__ void __launch_bounds__(kColumnThreads)
    norm_prepare(NormColumns columns, i32* place, const float* gamma, const float* beta, i64 n, i64 padded, SideBuffer<const float> side) {
  const i64 j = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= padded) return;
  if (j >= n) {
    prepare_column(columns, nullptr, nullptr, j, false);
    place[j] = -1;
    return;
  }
  i64 low = 0;
  i64 high = side.count;
  while (low < high) {
    const i64 middle = (low + high) / 2;
    if (side.channels[middle] < j) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool is_side = low < side.count && side.channels[low] == j;
  place[j] = is_side ? static_cast<i32>(low) : -1;
  prepare_column(columns, gamma, beta, j, is_side);
}

template <SideChannels Side, class T>
__device__ __forceinline__ bool has_side(const NormBackwardArrays<T>& a) {
  return Side == SideChannels::some || (Side == SideChannels::either && a.side.count > 0);
}

// c of an octet: from y, but of side channels as it was kept. The columns' arrays are aligned, and long enough for whole octets.
template <SideChannels Side, class T>
__device__ __forceinline__ Tuple<float, kOctet> centred(const NormBackwardArrays<T>& a, const NormColumns& columns, const Octet<T>& y, i64 row, i64 at) {
  Tuple<float, kOctet> c = shared_words<true>(columns.beta + at, kOctet, 0.0f);
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet; ++k) c.v[k] = sub_rn(widened(y, k), c.v[k]);
  if (has_side<Side>(a)) {
    const float* const x_hat = a.side.x_hat + row * a.side.count;
    const uint4* const places = reinterpret_cast<const uint4*>(a.place + at);
    OUTGRAD_UNROLL
    for (int half = 0; half < kOctet / 4; ++half) {
      const uint4 quad = __ldg(places + half);
      const u32 place[4] = {quad.x, quad.y, quad.z, quad.w};
      OUTGRAD_UNROLL
      for (int k = 0; k < 4; ++k) {
        if (static_cast<i32>(place[k]) >= 0) c.v[4 * half + k] = __ldg(x_hat + place[k]);
      }
    }
  }
  return c;
}

// Rows of dy and y; in registers also of what is added to the gradient.
template <class T, int Sources>
struct BackwardInput {
  static constexpr int kSources = Sources, kKept = Sources;
  static constexpr bool kCombines = false;
  const T* source[kSources];
  const T* again[kKept];

  __device__ __forceinline__ BackwardInput(const NormBackwardArrays<T>& a, i64 row) {
    source[0] = a.dy + row * a.n;
    source[1] = a.y + row * a.n;
    if constexpr (Sources == 3) source[2] = a.dz_next + row * a.n;
    OUTGRAD_UNROLL
    for (int c = 0; c < Sources; ++c) again[c] = source[c];
  }
};

template <class T, GpuNormSchedule S, bool Wide, bool Residual>
struct BackwardHome {
  static constexpr bool kKeepsNext = Residual && S.home == RowHome::registers;
  using Input = BackwardInput<T, kKeepsNext ? 3 : 2>;
  using Row = typename RowOf<S, T, Input, Wide>::Type;
  Row row;
  float rstd;

  template <class Thread>
  __device__ __forceinline__ void fetch(const NormBackwardArrays<T>& a, const Thread& thread, i64 index, bool present) {
    Input input(a, index);
    row.fetch(thread, input, a.n, present);
    rstd = present ? a.rstd[index] : 0.0f;
  }
};

// dx of a row that was fetched; add(k, i, dy, c) gets what the sums over rows need of element i of the thread's k-th octet. dx may alias dy and dz_next.
template <Norm N, class T, GpuNormSchedule S, bool Residual, SideChannels Side, class Thread, class Home, class Add>
__device__ __forceinline__ void backward_row(const NormBackwardArrays<T>& a, Thread& thread, i64 row, Home& fetched, const Add& add) {
  using Row = typename Home::Row;
  using Terms = GradientTerms<N, T, CentredOutput<T>>;
  constexpr bool kKeepsNext = Home::kKeepsNext;
  Row& home = fetched.row;
  const float rstd = fetched.rstd;
  NormColumns columns = a.columns;
  const auto sums = home.template sum<Terms::kSums>(thread, a.n, [&](const typename Row::Octets& octet, i64 at, int count) {
    const Tuple<float, kOctet> gamma = shared_words<true>(columns.gamma + at, kOctet, 1.0f);
    Tuple<float, kOctet> c = centred<Side>(a, columns, octet[1], row, at);
    if (has_side<Side>(a)) {
      const Tuple<float, kOctet> weight = shared_words<true>(columns.weight + at, kOctet, 1.0f);
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k) c.v[k] = mul_rn(weight.v[k], c.v[k]);
    }
    Tuple<float, 3> operands[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) {
      operands[k] = Row::kWhole || k < count ? Tuple<float, 3>{{widened(octet[0], k), gamma.v[k], c.v[k]}} : Terms::missing();
    }
    return chunk_of<Terms>(operands);
  });
  const NegatedMeans means = negated_means<N>(sums, a.n);
  home.forget_values();
  forget(columns.gamma);
  forget(columns.beta);
  T* const dx = a.dx + row * a.n;
  home.each(thread, a.n, [&](const typename Row::Octets& octet, i64 at, int count, int index, bool there) {
    const Tuple<float, kOctet> c = centred<Side>(a, columns, octet[1], row, at);
    [[maybe_unused]] Octet<T> next;
    if constexpr (Residual && !kKeepsNext) next = load_part<S, Row::kWhole>(a.dz_next + row * a.n + at, count);
    if constexpr (kKeepsNext) next = octet[2];
    float result[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) add(index, k, widened(octet[0], k), c.v[k]);
    const Tuple<float, kOctet> gamma = shared_words<true>(columns.gamma + at, kOctet, 1.0f);
    const Tuple<float, kOctet> reciprocal = shared_words<true>(columns.reciprocal + at, kOctet, 1.0f);
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) {
      result[k] = input_gradient(widened(octet[0], k), c.v[k], gamma.v[k], reciprocal.v[k], means.m1, means.m2, rstd);
      if constexpr (Residual) result[k] = add_rn(result[k], widened(next, k));
    }
    if (there) home.put(thread, dx, packed<T>(result), at, count);
  });
  home.finish(thread, dx, a.n);
}

// dx, one row after the other to each of the block's.
template <Norm N, class T, class Schedule, bool Wide = true, bool Residual = false, SideChannels Side = SideChannels::none>
__global__ void __launch_bounds__(kNormThreads<Schedule>, Schedule::kSchedule.resident_blocks) norm_backward(NormBackwardArrays<T> a) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  static_assert(norm_schedule_holds<S>());
  RowThread<S.row_warps, S.block_rows> thread;
#pragma unroll 1
  for (i64 first = static_cast<i64>(blockIdx.x) * S.block_rows; first < a.rows; first += static_cast<i64>(gridDim.x) * S.block_rows) {
    const bool present = S.block_rows == 1 || first + thread.row < a.rows;
    const i64 row = present ? first + thread.row : first;
    BackwardHome<T, S, Wide, Residual> home;
    home.fetch(a, thread, row, present);
    backward_row<N, T, S, Residual, Side>(a, thread, row, home, [](int, int, float, float) {});
  }
}

// dx and the slots' sums: a slot's rows one after the other through the warps that own it. Every element of dy and y is read once.
template <Norm N, class T, class Schedule, bool Residual = false, SideChannels Side = SideChannels::none>
__global__ void __launch_bounds__(kNormThreads<Schedule>, Schedule::kSchedule.resident_blocks) norm_backward_slots(NormBackwardArrays<T> a) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  static_assert(norm_schedule_holds<S>());
  static_assert(S.home == RowHome::registers, "columns stay with a thread as long as a row's octets do");
  // Slots side by side have row counts that differ by one; where their warps meet at barriers, all take as many turns.
  constexpr bool kInStep = S.row_warps > 1 && S.block_rows > 1;
  RowThread<S.row_warps, S.block_rows> thread;
  const i64 slot = static_cast<i64>(blockIdx.x) * S.block_rows + thread.row;
  const bool owns = S.block_rows == 1 || slot < a.slots;
  i64 row = owns ? a.slot_rows.begin(slot) : 0;
  // Less than 2^32: there are at most 2^48 elements, and at least 2^20 / n slots, or as many as half the rows.
  const u32 own = owns ? static_cast<u32>(a.slot_rows.begin(slot + 1) - row) : 0;
  u32 turns = kInStep ? static_cast<u32>(a.slot_rows.each + (a.slot_rows.left > 0 ? 1 : 0)) : own;
  [[maybe_unused]] const u32 idle = turns - own;  // turns at the end
  Tuple<float, kOctet> dgamma[S.octets], dbeta[S.octets];
  OUTGRAD_UNROLL
  for (int k = 0; k < S.octets; ++k) {
    OUTGRAD_UNROLL
    for (int i = 0; i < kOctet; ++i) dgamma[k].v[i] = dbeta[k].v[i] = 0.0f;
  }
  BackwardHome<T, S, true, Residual> home, ahead;
  if constexpr (S.rows_ahead > 0) ahead.fetch(a, thread, row, own > 0);
#pragma unroll 1
  for (; turns > 0; --turns, ++row) {
    const bool present = !kInStep || turns > idle;
    if constexpr (S.rows_ahead > 0) {
      home = ahead;
      home.row.octets = present ? static_cast<u32>(a.n) / kOctet : 0;  // known here without a register
      // Before dx, which may be dy or dz_next, is written: it is of another row.
      ahead.fetch(a, thread, row + 1, turns > (kInStep ? idle + 1 : 1));
    } else {
      home.fetch(a, thread, row, present);
    }
    backward_row<N, T, S, Residual, Side>(a, thread, present ? row : 0, home, [&](int k, int i, float dy, float c) {
      if (kInStep && !present) return;
      dgamma[k].v[i] = fma_rn(dy, c, dgamma[k].v[i]);
      if constexpr (N == Norm::layer) dbeta[k].v[i] = add_rn(dbeta[k].v[i], dy);
    });
  }
  if (!owns || !a.sums) return;
  float* const sums = a.sums + kColumnSums<N> * slot * a.stride;
  OUTGRAD_UNROLL
  for (int k = 0; k < S.octets; ++k) {
    const i64 at = static_cast<i64>(thread.first() + k * thread.kApart) * kOctet;
    if (at >= a.n) continue;
    store_words(sums + at, dgamma[k]);
    if constexpr (N == Norm::layer) store_words(sums + a.stride + at, dbeta[k]);
  }
}

// The slots' sums alone, for rows that registers do not hold. Block b has columns kColumnThreads (b % blocks_across) + threadIdx.x of slot
// b / blocks_across. Runs before norm_backward, whose dx may overwrite dy.
template <Norm N, class T>
__global__ void __launch_bounds__(kColumnThreads) norm_slot_sums(NormBackwardArrays<T> a) {
  const i64 blocks_across = (a.n + kColumnThreads - 1) / kColumnThreads;
  const i64 j = blockIdx.x % blocks_across * kColumnThreads + threadIdx.x;
  const i64 slot = blockIdx.x / blocks_across;
  if (j >= a.n) return;
  const float beta = a.columns.beta[j];
  const i64 place = a.place[j];
  float dgamma = 0.0f;
  float dbeta = 0.0f;
#pragma unroll 4
  for (i64 row = a.slot_rows.begin(slot); row < a.slot_rows.begin(slot + 1); ++row) {
    const float dy = widen(a.dy[row * a.n + j]);
    const float c = place < 0 ? sub_rn(widen(a.y[row * a.n + j]), beta) : a.side.x_hat[row * a.side.count + place];
    dgamma = fma_rn(dy, c, dgamma);
    if constexpr (N == Norm::layer) dbeta = add_rn(dbeta, dy);
  }
  float* const sums = a.sums + kColumnSums<N> * slot * a.stride;
  sums[j] = dgamma;
  if constexpr (N == Norm::layer) sums[a.stride + j] = dbeta;
}

template <class = void>
__global__ void __launch_bounds__(kColumnThreads) norm_finish(const float* sums, NormColumns columns, i64 n, i64 stride, float* dgamma, float* dbeta) {
  const i64 j = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= n) return;
  if (dgamma) dgamma[j] = div_rn(sums[j], columns.divisor[j]);
  if (dbeta) dbeta[j] = sums[stride + j];
}

}  // namespace outgrad::kernels::cuda
