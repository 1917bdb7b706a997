// LayerNorm and RMSNorm on a GPU, alone and of x + residual: the __global__ wrappers over the bodies and
// trees that the host also runs, and hence with the host's bits. The launchers and their contract are in
// kernels/cuda/layernorm.cuh.
//
// Each element of x, or of dy and y, is read once: between its sums and the pass that writes y or dx, a row
// stays in registers or in shared memory (kernels/cuda/rows.cuh), as long as the device has room for it. The
// backward's sums over rows are computed in the same pass. The warps that own a slot process its rows one
// after the other, and each thread keeps the sums of its own columns in registers. Meanwhile the next rows
// are copied into shared memory. A block has consecutive slots, some one after the other and some side by
// side. It adds them up in the tree's order and then writes one row of sums. GpuNormSchedule in
// kernels/params.h says what may be varied.
#pragma once

#include "kernels/cuda/columns.cuh"
#include "kernels/cuda/dropped.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm_codes.cuh"
#include "kernels/cuda/octets.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/rows.cuh"
#include "kernels/layernorm.h"
#include "kernels/params.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// 8 elements of gamma or beta, as shared_words reads those in fp32.
template <ParameterFormat P, bool Whole>
__device__ __forceinline__ Tuple<float, kOctet> parameter_words(const void* parameters, i64 at, int count,
                                                                float missing) {
  using Element = typename ParameterIn<P>::Type;
  const Element* const from = static_cast<const Element*>(parameters) + at;
  if constexpr (P == ParameterFormat::f32) {
    return shared_words<Whole>(from, count, missing);
  } else {
    Tuple<float, kOctet> words;
    if constexpr (Whole) {
      Octet<Element> octet;
      *reinterpret_cast<uint4*>(octet.w) = __ldg(reinterpret_cast<const uint4*>(from));
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k) words.v[k] = widened(octet, k);
    } else {
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k) words.v[k] = k < count ? widen(from[k]) : missing;
    }
    return words;
  }
}

// Sets 8 elements of both; of an array that is not there, to what leaves x^ as it is.
template <ParameterFormat P, bool Whole, class T>
__device__ __forceinline__ void read_affine(const NormForwardArrays<T>& a, i64 at, int count,
                                            Tuple<float, kOctet>& gamma, Tuple<float, kOctet>& beta) {
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet; ++k) gamma.v[k] = 1.0f, beta.v[k] = kMissingTerm;
  if (a.gamma) gamma = parameter_words<P, Whole>(a.gamma, at, count, 1.0f);
  if (a.beta) beta = parameter_words<P, Whole>(a.beta, at, count, kMissingTerm);
}

// One element of gamma or beta, or `absent` where there is none.
template <ParameterFormat P>
__device__ __forceinline__ float parameter_at(const void* parameters, i64 j, float absent) {
  return parameters == nullptr ? absent
                               : widen(static_cast<const typename ParameterIn<P>::Type*>(parameters)[j]);
}

// The index of column j among the side channels, or -1.
template <class Float>
__device__ __forceinline__ i32 side_place(const SideBuffer<Float>& side, i64 j) {
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
  return low < side.count && side.channels[low] == j ? static_cast<i32>(low) : -1;
}

// Blocks that share the channels to test: all channels of a row of 8192 at once. With more of them the step
// would be a wide number.
inline constexpr u32 kWatchingBlocks = 64;

// Tests every channel once, each by another thread.
template <ParameterFormat P, class T>
__device__ __forceinline__ void watch_channels(const NormForwardArrays<T>& a) {
  if (a.watch.seen == nullptr || a.gamma == nullptr) return;
  const u32 sharing = gridDim.x < kWatchingBlocks ? gridDim.x : kWatchingBlocks;
  if (blockIdx.x >= sharing) return;
#pragma unroll 1
  for (i64 j = blockIdx.x * blockDim.x + threadIdx.x; j < a.n; j += sharing * blockDim.x) {
    const float gamma = parameter_at<P>(a.gamma, j, 1.0f), beta = parameter_at<P>(a.beta, j, 0.0f);
    if (is_told(a.watch.near, gamma, beta) || side_place(a.side, j) >= 0) continue;
    a.watch.seen[0] = 1;  // who else writes it writes the same
    if (!is_told(a.watch.lost, gamma, beta)) a.watch.seen[1] = 1;
  }
}

template <class Schedule>
inline constexpr int kNormThreads = block_threads(Schedule::kSchedule);
template <GpuNormSchedule S, bool Apart = false>
using NormThread = RowThread<S.row_warps, S.block_rows, Apart, S.row_lanes>;

// --- Forward -------------------------------------------------------------------------------------

// The dropout that a kernel is an instance with, or nothing.
template <bool Drops>
__device__ __forceinline__ Dropping dropping_of(const NormDropout& dropout) {
  if constexpr (!Drops) return {};
  const u64* seed = dropout.seed.at;
  // read where it is needed, in a backward for each row: kept meanwhile, it would take registers that the
  // sums need
  forget(seed);
  return {seed != nullptr ? __ldg(seed) : dropout.seed.value, dropout.rule};
}

// Whole: the octet begins with a counter's first word.
template <bool Whole, class T>
__device__ __forceinline__ Octet<T> dropped_part(const Dropping& dropping, const Octet<T>& octet, u64 first) {
  if constexpr (Whole) {
    return dropping.octet(octet, first / Dropping::kWords);
  } else {
    return dropping.octet_at(octet, first);
  }
}

// A row of x, or of z = x + residual, where x is dropped first if Drops. z is stored on the way if Stores: in
// its own place or, where nobody wants it but the row is read again, in that of y.
template <class T, bool Residual, bool Drops = false, bool Stores = Residual, bool InY = false>
struct ForwardInput : PlainSources<T> {
  static_assert(Residual || (!Drops && !Stores));
  static constexpr int kSources = Residual ? 2 : 1, kKept = 1;
  static constexpr bool kCombines = Residual;
  const T* source[kSources];
  T* z;
  const T* again[kKept];
  [[maybe_unused]] const Dropping& dropping;
  [[maybe_unused]] u64 first;  // the index of the row's first element

  __device__ __forceinline__ ForwardInput(const NormForwardArrays<T>& a, i64 row,
                                          const Dropping& dropping_of_x)
      : z((InY ? a.y : a.z) + row * a.n), dropping(dropping_of_x), first(static_cast<u64>(row * a.n)) {
    source[0] = a.x + row * a.n;
    if constexpr (Residual) source[1] = a.residual + row * a.n;
    again[0] = Residual ? z : source[0];
  }
  template <GpuNormSchedule S, bool Whole>
  __device__ __forceinline__ void combine(Octet<T> (&all)[kSources], i64 at, int count) const {
    if constexpr (Drops) all[0] = dropped_part<Whole>(dropping, all[0], first + static_cast<u64>(at));
    float sum[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) sum[k] = add_rn(widened(all[0], k), widened(all[kSources - 1], k));
    all[0] = packed<T>(sum);
    if constexpr (Stores) store_part<S, Whole>(z + at, all[0], count);
  }
  __device__ __forceinline__ void combine(T (&all)[kSources], i64 j) const {
    if constexpr (Drops) all[0] = dropping.element(all[0], first + static_cast<u64>(j));
    all[0] = narrow<T>(add_rn(widen(all[0]), widen(all[kSources - 1])));
    if constexpr (Stores) z[j] = all[0];
  }
  // Element j of the row whose norm is computed, once all of a stored row has been written.
  __device__ __forceinline__ T element(i64 j) const {
    if constexpr (Residual && !Stores) {
      T all[kSources] = {source[0][j], source[kSources - 1][j]};
      combine(all, j);
      return all[0];
    } else {
      return again[0][j];
    }
  }
};

// Wide: rows consist of whole octets and are aligned to the schedule's accesses, and gamma and beta are
// aligned to 16 bytes. y may alias x, as on the host. With a residual: Drops x before it is added, and
// StoresZ where z is wanted. Store: of kernels/norm_store.h, if y's codes are written beside it, which are
// aligned to 8 bytes if Wide; at a scale of the tensor norm_encode writes them.
template <Norm N, class T, class Schedule, bool Wide = true, bool Residual = false,
          ParameterFormat P = ParameterFormat::f32, bool Drops = false, bool StoresZ = Residual,
          class Store = void>
__global__ void __launch_bounds__(kNormThreads<Schedule>, Schedule::kSchedule.resident_blocks)
    norm_forward(NormForwardArrays<T> a) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  static_assert(norm_schedule_holds<S>());
  constexpr bool kInY = Residual && !StoresZ && S.home == RowHome::memory, kStored = StoresZ || kInY;
  using Input = ForwardInput<T, Residual, Drops, kStored, kInY>;
  using Row = typename RowOf<S, T, Input, Wide>::Type;
  watch_channels<P>(a);
  const Dropping dropping = dropping_of<Drops>(a.dropout);
  OutputCodes<Store, S.home == RowHome::registers, Wide> codes(a.kept, a.n);
  NormThread<S> thread;
#pragma unroll 1
  for (i64 first = static_cast<i64>(blockIdx.x) * S.block_rows; first < a.rows;
       first += static_cast<i64>(gridDim.x) * S.block_rows) {
    const bool present = S.block_rows == 1 || first + thread.row < a.rows;
    const i64 row = present ? first + thread.row : first;  // every thread of the block reaches every barrier
    Row home;
    Input input(a, row, dropping);
    home.fetch(thread, input, a.n, present);
    float mean = 0.0f;
    if constexpr (N == Norm::layer) {
      const auto means = home.template sum<1>(
          thread, a.n,
          [&](const typename Row::Octets& octet, i64, int count, int) {
            Tuple<float, 1> operands[kOctet];
            OUTGRAD_UNROLL
            for (int k = 0; k < kOctet; ++k) {
              operands[k] = Row::kWhole || k < count ? Tuple<float, 1>{{widened(octet[0], k)}}
                                                     : MeanTerms<T>::missing();
            }
            return chunk_of<MeanTerms<T>>(operands);
          },
          [&](float sum) { return mean_of(sum, a.n); });
      mean = means.v[0];
    }
    const auto rstds = home.template sum<1>(
        thread, a.n,
        [&](const typename Row::Octets& octet, i64, int count, int) {
          Tuple<float, 1> operands[kOctet];
          OUTGRAD_UNROLL
          for (int k = 0; k < kOctet; ++k) {
            operands[k] = Row::kWhole || k < count ? Tuple<float, 1>{{sub_rn(widened(octet[0], k), mean)}}
                                                   : VarianceTerms<T>::missing();
          }
          return chunk_of<VarianceTerms<T>>(operands);
        },
        [&](float squares) { return rstd_of(squares, a.n, a.eps); });
    home.forget_values();
    const float rstd = rstds.v[0];
    if (present && thread.first() == 0) {
      a.rstd[row] = rstd;
      if constexpr (N == Norm::layer) codes.keep_mean(row, mean);
    }
    if (a.side.count > 0) {
      if constexpr (kStored) thread.barrier();  // z has been written
      if (present) {
        for (i64 k = thread.first(); k < a.side.count; k += thread.kApart) {
          a.side.x_hat[row * a.side.count + k] =
              normalised(widen(input.element(a.side.channels[k])), mean, rstd);
        }
      }
      thread.barrier();  // x, which may be y, has been read wherever y is about to be written
    }
    T* const y = a.y + row * a.n;
    home.each(thread, a.n, [&](const typename Row::Octets& octet, i64 at, int count, int, bool there) {
      Tuple<float, kOctet> gamma, beta;
      read_affine<P, Wide>(a, there ? at : 0, count, gamma, beta);
      float result[kOctet];
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k)
        result[k] = fma_rn(normalised(widened(octet[0], k), mean, rstd), gamma.v[k], beta.v[k]);
      if (there) home.put(thread, y, packed<T>(result), at, count);
      codes.add(result, row, at, there ? count : 0);
    });
    home.finish(thread, y, a.n);
  }
  codes.finish();
}

// The codes of y at the scale of the tensor, after norm_forward with the same arguments, whose x is not yet
// written over. Wide: as there. A block takes parts of rows, an octet or, if not Wide, an element for each
// thread.
template <class Store, class T, bool Wide = true, ParameterFormat P = ParameterFormat::f32>
__global__ void __launch_bounds__(kEncodingThreads) norm_encode(NormForwardArrays<T> a) {
  constexpr int kEach = Wide ? kOctet : 1;
  const float scale = e4m3_scale(__ldg(a.kept.amax));
  if (blockIdx.x == 0 && threadIdx.x == 0) *static_cast<typename Store::Scale*>(a.kept.scales) = scale;
  const i64 across = a.n / kEach, parts = (across + kEncodingThreads - 1) / kEncodingThreads;
#pragma unroll 1
  for (i64 part = blockIdx.x; part < a.rows * parts; part += gridDim.x) {
    const i64 row = part / parts, own = (part - row * parts) * kEncodingThreads + threadIdx.x;
    if (own >= across) continue;
    const i64 j = own * kEach, at = row * a.n + j;
    const float mean = a.kept.means != nullptr ? __ldg(a.kept.means + row) : 0.0f, rstd = __ldg(a.rstd + row);
    auto* const codes = static_cast<typename Store::Code*>(a.kept.codes) + at;
    if constexpr (Wide) {
      const Octet<T> x = load_octet<kCodeAccess>(a.x + at);
      Tuple<float, kOctet> gamma, beta;
      read_affine<P, true>(a, j, kOctet, gamma, beta);
      float quotient[kOctet];
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k)
        quotient[k] = div_rn(forward_output(widened(x, k), mean, rstd, gamma.v[k], beta.v[k]), scale);
      store_octet<kCodeAccess>(codes, packed_saturated<F8E4M3>(quotient));
    } else {
      *codes = norm_code(forward_output(widen(a.x[at]), mean, rstd, parameter_at<P>(a.gamma, j, 1.0f),
                                        parameter_at<P>(a.beta, j, kMissingTerm)),
                         scale);
    }
  }
}

// --- Backward ------------------------------------------------------------------------------------

template <Norm N>
inline constexpr int kColumnSums = column_sums(N);

// One thread for each of `padded` columns. The c of a lost channel is NaN, and with it m2 and dgamma.
template <ParameterFormat P = ParameterFormat::f32>
__global__ void __launch_bounds__(kColumnThreads)
    norm_prepare(NormColumns columns, i32* place, const void* gamma, const void* beta, i64 n, i64 padded,
                 SideBuffer<const float> side, SideGuard guard) {
  const i64 j = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (j >= padded) return;
  if (j >= n) {
    prepare_column(columns, nullptr, nullptr, j, false);
    place[j] = -1;
    return;
  }
  place[j] = side_place(side, j);
  const bool is_side = place[j] >= 0;
  const float g = parameter_at<P>(gamma, j, 1.0f), b = parameter_at<P>(beta, j, 0.0f);
  const bool lost = guard.tests != 0 && !is_side && !is_told(guard.lost, g, b);
  const float kept = lost ? float_of(kCanonicalNanF32) : b;
  const NormColumns own = {columns.gamma + j, columns.beta + j, columns.reciprocal + j, columns.divisor + j,
                           columns.weight + j};
  prepare_column(own, &g, &kept, 0, is_side);
}

template <SideChannels Side, class T>
__device__ __forceinline__ bool has_side(const NormBackwardArrays<T>& a) {
  return Side == SideChannels::some || (Side == SideChannels::either && a.side.count > 0);
}

// The columns' constants as norm_prepare left them: aligned, and padded to whole octets.
template <SideChannels Side, class T>
struct PreparedColumns {
  const NormBackwardArrays<T>& a;
  NormColumns columns;

  __device__ __forceinline__ explicit PreparedColumns(const NormBackwardArrays<T>& of)
      : a(of), columns(of.columns) {}
  __device__ __forceinline__ Tuple<float, kOctet> gamma(int, i64 at) const {
    return shared_words<true>(columns.gamma + at, kOctet, 1.0f);
  }
  __device__ __forceinline__ Tuple<float, kOctet> reciprocal(int, i64 at) const {
    return shared_words<true>(columns.reciprocal + at, kOctet, 1.0f);
  }
  // c of an octet: computed from y, or for side channels the kept values.
  __device__ __forceinline__ Tuple<float, kOctet> centred(int, const Tuple<float, kOctet>& y, i64 row,
                                                          i64 at) const {
    Tuple<float, kOctet> c = shared_words<true>(columns.beta + at, kOctet, 0.0f);
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) c.v[k] = sub_rn(y.v[k], c.v[k]);
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
  __device__ __forceinline__ Tuple<float, kOctet> weighted(int, const Tuple<float, kOctet>& c, i64 at) const {
    Tuple<float, kOctet> result = c;
    if (has_side<Side>(a)) {
      const Tuple<float, kOctet> weight = shared_words<true>(columns.weight + at, kOctet, 1.0f);
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k) result.v[k] = mul_rn(weight.v[k], c.v[k]);
    }
    return result;
  }
  // Values that were looked up for the sums are looked up again rather than kept.
  __device__ __forceinline__ void forget_values() {
    forget(columns.gamma);
    forget(columns.beta);
  }
};

// A tuple in shared memory, where quads of neighbouring threads are neighbours. `at` and `apart` are in
// quads.
__device__ __forceinline__ void put_tuple(float4* at, int apart, const Tuple<float, kOctet>& tuple) {
  OUTGRAD_UNROLL
  for (int q = 0; q < kOctet / 4; ++q) {
    at[q * apart] = make_float4(tuple.v[4 * q], tuple.v[4 * q + 1], tuple.v[4 * q + 2], tuple.v[4 * q + 3]);
  }
}
__device__ __forceinline__ Tuple<float, kOctet> taken_tuple(const float4* at, int apart) {
  Tuple<float, kOctet> tuple;
  OUTGRAD_UNROLL
  for (int q = 0; q < kOctet / 4; ++q) {
    const float4 quad = at[q * apart];
    tuple.v[4 * q] = quad.x, tuple.v[4 * q + 1] = quad.y, tuple.v[4 * q + 2] = quad.z,
                tuple.v[4 * q + 3] = quad.w;
  }
  return tuple;
}

// Octets that stand in for an absent gamma and an absent beta.
[[maybe_unused]] alignas(16) static __device__ const float kAbsentGamma[kOctet] = {1, 1, 1, 1, 1, 1, 1, 1};
[[maybe_unused]] alignas(16) static __device__ const u32 kAbsentGammaF16[kOctet / 2] = {
    0x3c003c00, 0x3c003c00, 0x3c003c00, 0x3c003c00};
[[maybe_unused]] alignas(16) static __device__ const u32 kAbsentGammaBf16[kOctet / 2] = {
    0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};
// in every format
[[maybe_unused]] alignas(16) static __device__ const float kAbsentBeta[kOctet] = {0, 0, 0, 0, 0, 0, 0, 0};

template <ParameterFormat P>
__device__ __forceinline__ const void* absent_gamma() {
  if constexpr (P == ParameterFormat::f32) return kAbsentGamma;
  if constexpr (P == ParameterFormat::f16) return kAbsentGammaF16;
  return kAbsentGammaBf16;
}

// The constants of a thread's own columns, which the thread computes itself if there are no side channels. A
// thread's reciprocals stay in its registers or, if Aside, in shared memory. If the thread has a single
// octet, its gamma and beta are kept, too. With more octets they would take what the sums need, so they are
// looked up in L1. Where a channel of the block is lost, all of its reciprocals are NaN.
template <Norm N, GpuNormSchedule S, class T, class Thread, bool Aside, ParameterFormat P>
struct OwnColumns {
  static constexpr bool kKept = S.octets == 1;
  static constexpr int kThreads = block_threads(S), kQuads = kOctet / 4;
  float4* aside;
  const void *from_gamma[S.octets], *from_beta[S.octets];
  Tuple<float, kOctet> reciprocals[S.octets], kept_gamma, kept_beta;

  __device__ __forceinline__ OwnColumns(const NormBackwardArrays<T>& a, const Thread& thread, float4* room,
                                        bool poisoned)
      : aside(room) {
    using Element = typename ParameterIn<P>::Type;
    // With a lost channel, m2 and so every dx are wrong: they are NaN with all reciprocals of the block,
    // which takes no register that the rows need.
    OUTGRAD_UNROLL
    for (int k = 0; k < S.octets; ++k) {
      const u32 octet = thread.first() + k * Thread::kApart;
      const bool there = octet < static_cast<u32>(a.n) / kOctet;
      from_gamma[k] = there && a.gamma != nullptr ? static_cast<const Element*>(a.gamma) + octet * kOctet
                                                  : absent_gamma<P>();
      from_beta[k] = there && a.beta != nullptr ? static_cast<const Element*>(a.beta) + octet * kOctet
                                                : static_cast<const void*>(kAbsentBeta);
      const Tuple<float, kOctet> g = read(from_gamma[k]);
      OUTGRAD_UNROLL
      for (int i = 0; i < kOctet; ++i) reciprocals[k].v[i] = div_rn(1.0f, g.v[i]);
      if (poisoned) reciprocals[k] = poison();
      if constexpr (Aside) put_tuple(aside + k * kQuads * kThreads, kThreads, reciprocals[k]);
      if constexpr (kKept) {
        kept_gamma = g;
        kept_beta = read(from_beta[k]);
      }
    }
  }
  // Calls action(k, i) for each lost channel, element i of the thread's octet k.
  template <class Action>
  __device__ __forceinline__ void each_lost(const NormBackwardArrays<T>& a, const Action& action) const {
    OUTGRAD_UNROLL
    for (int k = 0; k < S.octets; ++k) {
      const Tuple<float, kOctet> g = read(from_gamma[k]), b = read(from_beta[k]);
      OUTGRAD_UNROLL
      for (int i = 0; i < kOctet; ++i)
        if (!is_told(a.guard.lost, g.v[i], b.v[i])) action(k, i);
    }
  }
  __device__ __forceinline__ Tuple<float, kOctet> gamma(int k, i64) const {
    if constexpr (kKept) return kept_gamma;
    return read(from_gamma[k]);
  }
  __device__ __forceinline__ Tuple<float, kOctet> reciprocal(int k, i64) const {
    if constexpr (Aside) return taken_tuple(aside + k * kQuads * kThreads, kThreads);
    return reciprocals[k];
  }
  __device__ __forceinline__ Tuple<float, kOctet> centred(int k, const Tuple<float, kOctet>& y, i64,
                                                          i64) const {
    if constexpr (N == Norm::rms) return y;  // less a beta of 0
    Tuple<float, kOctet> c = kKept ? kept_beta : read(from_beta[k]);
    OUTGRAD_UNROLL
    for (int i = 0; i < kOctet; ++i) c.v[i] = sub_rn(y.v[i], c.v[i]);
    return c;
  }
  __device__ __forceinline__ Tuple<float, kOctet> weighted(int, const Tuple<float, kOctet>& c, i64) const {
    return c;
  }
  __device__ __forceinline__ void forget_values() {
    OUTGRAD_UNROLL
    for (int k = 0; k < S.octets && !kKept; ++k) {
      forget(from_gamma[k]);
      forget(from_beta[k]);
    }
  }

  // Whether one of the block's channels is lost, all of which its threads share.
  static __device__ __forceinline__ bool block_has_lost(const NormBackwardArrays<T>& a) {
    return a.guard.tests != 0 && a.gamma != nullptr && __syncthreads_or(has_lost(a)) != 0;
  }

 private:
  static __device__ __forceinline__ Tuple<float, kOctet> read(const void* from) {
    return parameter_words<P, true>(from, 0, kOctet, 0.0f);
  }
  static __device__ __forceinline__ Tuple<float, kOctet> poison() {
    Tuple<float, kOctet> nan;
    OUTGRAD_UNROLL
    for (int i = 0; i < kOctet; ++i) nan.v[i] = float_of(kCanonicalNanF32);
    return nan;
  }
  // Whether one of the channels that this thread tests is lost: the threads of a block share all of them.
  static __device__ __forceinline__ bool has_lost(const NormBackwardArrays<T>& a) {
    bool lost = false;
#pragma unroll 4
    for (u32 j = threadIdx.x; j < static_cast<u32>(a.n); j += blockDim.x)
      lost =
          lost || !is_told(a.guard.lost, parameter_at<P>(a.gamma, j, 1.0f), parameter_at<P>(a.beta, j, 0.0f));
    return lost;
  }
};

// Rows of dy and y, or its codes, and, if held in registers, of what is added to the gradient.
template <class T, int Sources, class Store = void>
struct BackwardInput : OutputSource<T, Store> {
  static constexpr int kSources = Sources, kKept = Sources;
  static constexpr bool kCombines = false;
  const T* source[kSources];
  const T* again[kKept];

  __device__ __forceinline__ BackwardInput(const NormBackwardArrays<T>& a, i64 at_row) {
    source[0] = a.dy + at_row;
    source[1] = OutputSource<T, Store>::row_of(a, at_row);
    if constexpr (Sources == 3) source[2] = a.dz_next + at_row;
    OUTGRAD_UNROLL
    for (int c = 0; c < Sources; ++c) again[c] = source[c];
  }
};

// LeavesNext: what is added to the gradient stays in shared memory until it is added.
template <class T, GpuNormSchedule S, bool Wide, bool Residual, bool LeavesNext = false, class Store = void>
struct BackwardHome {
  static constexpr bool kKeepsNext = Residual && S.home == RowHome::registers && !LeavesNext;
  using Input = BackwardInput<T, kKeepsNext ? 3 : 2, Store>;
  using Row = typename RowOf<S, T, Input, Wide>::Type;
  Row row;
  float rstd;

  template <class Thread>
  __device__ __forceinline__ void fetch(const NormBackwardArrays<T>& a, const Thread& thread, i64 index,
                                        bool present) {
    Input input(a, index * a.n);
    row.fetch(thread, input, a.n, present);
    rstd = present ? a.rstd[index] : 0.0f;
  }
};

// dx of a row that was fetched. add(k, i, dy, c) receives what the sums over rows need of element i of the
// thread's k-th octet. dx may alias dy and dz_next. `at_row` is row n, or the place where dx and dz_next have
// the row's first element. output gives y from what is kept of it. next_of(octets, at, count, k) is what is
// added to the gradient. Drops: what is stored is dz, and dx = dropout(dz) goes to a place of its own.
template <Norm N, class T, GpuNormSchedule S, bool Residual, bool Drops, class Thread, class Home,
          class Columns, class Output, class Next, class Add>
__device__ __forceinline__ void backward_row(const NormBackwardArrays<T>& a, Thread& thread, i64 row,
                                             i64 at_row, Home& fetched, Columns& columns,
                                             const Output& output, const Next& next_of, const Add& add) {
  using Row = typename Home::Row;
  using Terms = GradientTerms<N, T, CentredOutput<T>>;
  Row& home = fetched.row;
  const float rstd = fetched.rstd;
  const auto means = home.template sum<Terms::kSums>(
      thread, a.n,
      [&](const typename Row::Octets& octet, i64 at, int count, int index) {
        const Tuple<float, kOctet> gamma = columns.gamma(index, at);
        const Tuple<float, kOctet> c =
            columns.weighted(index, columns.centred(index, output.octet(octet[1], at_row, at), row, at), at);
        Tuple<float, 3> operands[kOctet];
        OUTGRAD_UNROLL
        for (int k = 0; k < kOctet; ++k) {
          operands[k] = Row::kWhole || k < count ? Tuple<float, 3>{{widened(octet[0], k), gamma.v[k], c.v[k]}}
                                                 : Terms::missing();
        }
        return chunk_of<Terms>(operands);
      },
      [&](float sum) { return -mean_of(sum, a.n); });
  const float m1 = N == Norm::layer ? means.v[0] : -0.0f, m2 = means.v[Terms::kSums - 1];
  if constexpr (S.octets > 1) home.forget_values();
  columns.forget_values();
  T* const dx = a.dx + at_row;
  [[maybe_unused]] const Dropping dropping = dropping_of<Drops>(a.dropout);
  [[maybe_unused]] T* const dropped = static_cast<T*>(a.dropout.dx) + at_row;
  home.each(thread, a.n, [&](const typename Row::Octets& octet, i64 at, int count, int index, bool there) {
    const Tuple<float, kOctet> c = columns.centred(index, output.octet(octet[1], at_row, at), row, at);
    [[maybe_unused]] Octet<T> next;
    if constexpr (Residual) next = next_of(octet, at, count, index);
    float result[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) add(index, k, widened(octet[0], k), c.v[k]);
    const Tuple<float, kOctet> gamma = columns.gamma(index, at), reciprocal = columns.reciprocal(index, at);
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) {
      result[k] = input_gradient(widened(octet[0], k), c.v[k], gamma.v[k], reciprocal.v[k], m1, m2, rstd);
      if constexpr (Residual) result[k] = add_rn(result[k], widened(next, k));
    }
    if (!there) return;
    const Octet<T> stored = packed<T>(result);
    home.put(thread, dx, stored, at, count);
    if constexpr (Drops && !Row::kStaged) {
      store_part<S, Row::kWhole>(
          dropped + at, dropped_part<Row::kWhole>(dropping, stored, static_cast<u64>(at_row + at)), count);
    }
  });
  home.finish(thread, dx, a.n);
  if constexpr (Drops && Row::kStaged) {
    // Each thread takes the elements that it has just written.
    for (i64 j = thread.first(); j < a.n; j += Thread::kApart)
      dropped[j] = dropping.element(dx[j], static_cast<u64>(at_row + j));
  }
}

// dx. Each of the block's rows of threads processes one row after the other. Store: of kernels/norm_store.h,
// if y's codes are read in its place, which are aligned to 8 bytes if Wide.
template <Norm N, class T, class Schedule, bool Wide = true, bool Residual = false,
          SideChannels Side = SideChannels::none, bool Drops = false, class Store = void>
__global__ void __launch_bounds__(kNormThreads<Schedule>, Schedule::kSchedule.resident_blocks)
    norm_backward(NormBackwardArrays<T> a) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  static_assert(norm_schedule_holds<S>());
  const KeptOutput<T, Store> output(a);
  NormThread<S> thread;
#pragma unroll 1
  for (i64 first = static_cast<i64>(blockIdx.x) * S.block_rows; first < a.rows;
       first += static_cast<i64>(gridDim.x) * S.block_rows) {
    const bool present = S.block_rows == 1 || first + thread.row < a.rows;
    const i64 row = present ? first + thread.row : first;
    BackwardHome<T, S, Wide, Residual, false, Store> home;
    home.fetch(a, thread, row, present);
    PreparedColumns<Side, T> columns(a);
    using Home = decltype(home);
    const auto next_of = [&](const typename Home::Row::Octets& octet, i64 at, int count, int) {
      if constexpr (Home::kKeepsNext) {
        return octet[2];
      } else {
        return load_part<S, Home::Row::kWhole>(a.dz_next + row * a.n + at, count);
      }
    };
    backward_row<N, T, S, Residual, Drops>(a, thread, row, row * a.n, home, columns, output, next_of,
                                           [](int, int, float, float) {});
  }
}

// Sums of a thread's columns: those of dgamma and, for LayerNorm, those of dbeta.
template <Norm N, int Octets>
struct ColumnSumsOf {
  static constexpr int kTuples = Octets * kColumnSums<N>, kQuads = kOctet / 4;
  Tuple<float, kOctet> v[kTuples];  // v[k kColumnSums + s] belongs to octet k

  __device__ __forceinline__ void set(float value) {
    OUTGRAD_UNROLL
    for (int t = 0; t < kTuples; ++t) {
      OUTGRAD_UNROLL
      for (int i = 0; i < kOctet; ++i) v[t].v[i] = value;
    }
  }
  // Element i of octet k, where dgamma's term is dy c.
  __device__ __forceinline__ void add(int k, int i, float dy, float c) {
    float& dgamma = v[k * kColumnSums<N>].v[i];
    dgamma = fma_rn(dy, c, dgamma);
    if constexpr (N == Norm::layer) {
      float& dbeta = v[k * kColumnSums<N> + 1].v[i];
      dbeta = add_rn(dbeta, dy);
    }
  }
};

// The rows of a thread that are being copied ahead of the one that it works on.
template <GpuNormSchedule S, class T, class Input, int Taken, class Thread>
struct RowsAhead {
  using Ring = RowRing<S, T, Input, Taken>;
  const NormBackwardArrays<T>& a;
  const Thread& thread;
  Ring ring{};
  const i64 own_at = thread.first() * kOctet;
  const u32 octets = static_cast<u32>(a.n) / kOctet;
  float next_rstd = 0.0f;

  // Those of the `left` rows from `row` on, which begins at element `at_row`.
  __device__ __forceinline__ void begin(i64 row, i64 at_row, u32 left) {
    OUTGRAD_UNROLL
    for (u32 k = 0; k < S.rows_ahead; ++k) {
      fetch(at_row + k * a.n, k < left);
      fetch_rest(at_row + k * a.n, k < left);
    }
    if (left > 0) next_rstd = a.rstd[row];
  }
  // The first of `left` rows. The one that is fetched meanwhile is another one than that of dx, so it may be
  // fetched before dx, which may be dy or dz_next, is written.
  template <class Home>
  __device__ __forceinline__ void take(Home& home, i64 row, i64 at_row, u32 left) {
    home.row.octets = octets;
    home.rstd = next_rstd;
    ring.take(home.row);
    fetch(at_row + S.rows_ahead * a.n, left > S.rows_ahead);
    if (left > 1) next_rstd = a.rstd[row + 1];
  }
  __device__ __forceinline__ void fetch_rest(i64 at_row, bool present) {
    if constexpr (Ring::kBatches > 1)
      ring.template fetch<Ring::kTaken, Input::kSources>(thread, Input(a, at_row + own_at), octets, present);
    ring.move_on();
  }

 private:
  __device__ __forceinline__ void fetch(i64 at_row, bool present) {
    ring.template fetch<0, Ring::kTaken>(thread, Input(a, at_row + own_at), octets, present);
  }
};

// Puts the sums of a slot aside, the `slot`-th of its thread, together with those of the neighbours that are
// there; leaves those of the last slot in `sums`. Neighbours are added first: the number of sums put aside
// that are added now is the number of ones at the end of the slot's number.
template <int Threads, class Sums>
__device__ __forceinline__ void join_neighbours(Sums& sums, float4* aside, u32 slot, bool last) {
  float4* at = aside;
  constexpr int kLevel = Sums::kTuples * Sums::kQuads * Threads;
#pragma unroll 1
  for (u32 ones = slot; (ones & 1) != 0; ones >>= 1, at += kLevel) {
    OUTGRAD_UNROLL
    for (int t = 0; t < Sums::kTuples; ++t)
      sums.v[t] = add_rn(taken_tuple(at + t * Sums::kQuads * Threads, Threads), sums.v[t]);
  }
  if (last) return;
  OUTGRAD_UNROLL
  for (int t = 0; t < Sums::kTuples; ++t) put_tuple(at + t * Sums::kQuads * Threads, Threads, sums.v[t]);
  sums.set(0.0f);
}

// Writes a block's row of sums. Of slots side by side, each of the block's rows of threads adds up some of
// the tuples.
template <Norm N, int BlockRows, int Threads, class T, class Thread, class Sums>
__device__ __forceinline__ void write_block_sums(const NormBackwardArrays<T>& a, const Thread& thread,
                                                 const Sums& sums) {
  float* const to = a.sums + kColumnSums<N> * static_cast<i64>(blockIdx.x) * a.stride;
  const auto write = [&](int t, const Tuple<float, kOctet>& tuple) {
    const i64 at = static_cast<i64>(thread.first() + t / kColumnSums<N> * Thread::kApart) * kOctet;
    if (at < a.n) store_words(to + t % kColumnSums<N> * a.stride + at, tuple);
  };
  if constexpr (BlockRows == 1) {
    OUTGRAD_UNROLL
    for (int t = 0; t < Sums::kTuples; ++t) write(t, sums.v[t]);
  } else {
    float4* const side = dynamic_shared<float4>();
    __syncthreads();  // the content of the shared memory is no longer needed
    OUTGRAD_UNROLL
    for (int t = 0; t < Sums::kTuples; ++t)
      put_tuple(side + t * Sums::kQuads * Threads + threadIdx.x, Threads, sums.v[t]);
    __syncthreads();
#pragma unroll 1
    for (int t = static_cast<int>(thread.row); t < Sums::kTuples; t += BlockRows) {
      Tuple<float, kOctet> values[BlockRows];
      OUTGRAD_UNROLL
      for (int r = 0; r < BlockRows; ++r) {
        values[r] = taken_tuple(
            side + t * Sums::kQuads * Threads + r * static_cast<int>(Thread::kApart) + thread.first(),
            Threads);
      }
      write(t, fold_neighbours(values));
    }
  }
}

// dx and the sums over rows. The warps that own slots process a.own_slots consecutive slots one after the
// other, and as many slots side by side as a block has rows. Each block writes one row of sums. Every element
// of dy and y is read once. Store: as in norm_backward.
template <Norm N, class T, class Schedule, bool Residual = false, SideChannels Side = SideChannels::none,
          ParameterFormat P = ParameterFormat::f32, bool Drops = false, class Store = void>
__global__ void __launch_bounds__(kNormThreads<Schedule>, Schedule::kSchedule.resident_blocks)
    norm_backward_slots(NormBackwardArrays<T> a) {
  constexpr GpuNormSchedule S = Schedule::kSchedule;
  static_assert(norm_schedule_holds<S>());
  static_assert(S.home == RowHome::registers, "columns stay with a thread as long as a row's octets do");
  // If registers are few, values that are needed later wait in shared memory: the columns' reciprocals, and
  // what is added to the gradient.
  constexpr bool kAside =
      Side == SideChannels::none &&
      detail::has_reciprocals_aside(
          S, detail::backward_use(N, sizeof(T), Residual, true, Side != SideChannels::none, Drops));
  using Home = BackwardHome<T, S, true, Residual, kAside && S.rows_ahead != 0, Store>;
  using Thread = NormThread<S, true>;
  using Sums = ColumnSumsOf<N, S.octets>;
  constexpr int kThreads = kNormThreads<Schedule>;
  [[maybe_unused]] bool poisoned = false;
  if constexpr (Side == SideChannels::none)
    poisoned = OwnColumns<N, S, T, Thread, kAside, P>::block_has_lost(a);
  const KeptOutput<T, Store> output(a);
  Thread thread;
  const u32 own_slots = static_cast<u32>(a.own_slots),
            first_slot = (blockIdx.x * S.block_rows + thread.row) * own_slots;
  const bool owns = S.block_rows == 1 || first_slot < a.slots;
  i64 row = owns ? a.slot_rows.begin(first_slot) : 0;
  // Below 2^32: there are at most 2^48 elements, and at least 2^20 / n slots, or as many as half the rows.
  u32 left = owns ? static_cast<u32>(a.slot_rows.begin(first_slot + own_slots) - row) : 0;
  i64 at_row = row * a.n;
  using Input = BackwardInput<T, Residual ? 3 : 2, Store>;
  using Ahead = RowsAhead<S, T, Input, Home::Input::kSources, Thread>;
  Ahead ahead{a, thread};
  if constexpr (S.rows_ahead > 0) ahead.begin(row, at_row, left);
  // Stands behind the rows that are being copied.
  float4* aside = dynamic_shared<float4>() + S.rows_ahead * Ahead::Ring::kRowQuads * kThreads + threadIdx.x;
  auto columns = [&] {
    if constexpr (Side == SideChannels::none) {
      return OwnColumns<N, S, T, Thread, kAside, P>(a, thread, aside, poisoned);
    } else {
      return PreparedColumns<Side, T>(a);
    }
  }();
  if constexpr (kAside) aside += S.octets * Sums::kQuads * kThreads;
  Sums sums;
  sums.set(owns ? 0.0f : kMissingTerm);
#pragma unroll 1
  for (u32 slot = 0; slot < own_slots; ++slot) {
    u32 turns = owns ? static_cast<u32>(a.slot_rows.begin(first_slot + slot + 1) -
                                        a.slot_rows.begin(first_slot + slot))
                     : 0;
    left -= turns;  // the rows behind this slot
#pragma unroll 1
    for (; turns > 0; --turns, ++row, at_row += a.n) {
      Home home;
      if constexpr (S.rows_ahead > 0) {
        ahead.take(home, row, at_row, left + turns);
      } else {
        home.fetch(a, thread, row, true);
      }
      const auto next_of = [&](const typename Home::Row::Octets& octet, i64, int, int k) {
        if constexpr (Home::kKeepsNext) {
          return octet[2];
        } else {
          return ahead.ring.rest(k);
        }
      };
      backward_row<N, T, S, Residual, Drops>(a, thread, row, at_row, home, columns, output, next_of,
                                             [&](int k, int i, float dy, float c) { sums.add(k, i, dy, c); });
      if constexpr (S.rows_ahead > 0)
        ahead.fetch_rest(at_row + S.rows_ahead * a.n, left + turns > S.rows_ahead);
    }
    if (a.sums && own_slots > 1 && owns) join_neighbours<kThreads>(sums, aside, slot, slot + 1 == own_slots);
  }
  if (!a.sums) return;
  if constexpr (Side == SideChannels::none) {
    if (a.guard.tests != 0)
      columns.each_lost(a,
                        [&](int k, int i) { sums.v[k * kColumnSums<N>].v[i] = float_of(kCanonicalNanF32); });
  }
  write_block_sums<N, S.block_rows, kThreads>(a, thread, sums);
}

// The sums over the rows of `slots` slots from `first` on: slots are added in pairs, then pairs of these, for
// at most Levels levels of the tree.
template <int Levels, class Slot>
__device__ __forceinline__ Tuple<float, 2> slots_sum(i64 first, i64 slots, const Slot& slot_sum) {
  if constexpr (Levels == 0) {
    return slot_sum(first);
  } else {
    Tuple<float, 2> sum = neutral_sums<2>();
    constexpr i64 kHalf = i64{1} << (Levels - 1);
    const i64 end = first + (slots < 2 * kHalf ? slots : 2 * kHalf);
#pragma unroll 1
    for (i64 slot = first; slot < end; slot += kHalf)
      sum = add_rn(sum, slots_sum<Levels - 1>(slot, slots, slot_sum));
    return sum;
  }
}

// Blocks that an SM must have room for, or 0. Left to itself, ptxas (13.0) spills what codes take to be read,
// so that an SM holds more of them.
template <class Store>
inline constexpr int kSlotSumBlocks = kCodeScales<Store> == CodeScales::none ? 0 : 4;

// Only the sums over rows, for rows that do not fit in registers. Block b has columns kColumnThreads (b %
// blocks_across) + threadIdx.x of the a.own_slots slots of row b / blocks_across of sums. It runs before
// norm_backward, because norm_backward's dx may overwrite dy.
template <Norm N, class T, class Store = void>
__global__ void __launch_bounds__(kColumnThreads, kSlotSumBlocks<Store>)
    norm_slot_sums(NormBackwardArrays<T> a) {
  constexpr int kLevels = 4;
  [[maybe_unused]] constexpr int kRowsAtOnce = kCodeScales<Store> == CodeScales::none ? 4 : 2;
  static_assert(kMostBlockSlots == 1 << kLevels);
  const i64 blocks_across = (a.n + kColumnThreads - 1) / kColumnThreads;
  const i64 j = blockIdx.x % blocks_across * kColumnThreads + threadIdx.x;
  const i64 sums_row = blockIdx.x / blocks_across;
  if (j >= a.n) return;
  const float beta = a.columns.beta[j];
  const i64 place = a.place[j];
  const KeptOutput<T, Store> output(a);
  const Tuple<float, 2> total = slots_sum<kLevels>(sums_row * a.own_slots, a.own_slots, [&](i64 slot) {
    Tuple<float, 2> sum = {};
#pragma unroll kRowsAtOnce
    for (i64 row = a.slot_rows.begin(slot); row < a.slot_rows.begin(slot + 1); ++row) {
      const float dy = widen(a.dy[row * a.n + j]);
      const float c =
          place < 0 ? sub_rn(output.element(row * a.n + j), beta) : a.side.x_hat[row * a.side.count + place];
      sum.v[0] = fma_rn(dy, c, sum.v[0]);
      if constexpr (N == Norm::layer) sum.v[1] = add_rn(sum.v[1], dy);
    }
    return sum;
  });
  float* const sums = a.sums + kColumnSums<N> * sums_row * a.stride;
  sums[j] = total.v[0];
  if constexpr (N == Norm::layer) sums[a.stride + j] = total.v[1];
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
