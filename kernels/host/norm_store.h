// LayerNorm and RMSNorm on the host whose backward reads y in 8 bits (kernels/norm_store.h): the forward that
// writes codes and scales, and the backward from them. Every schedule gives the same bits.
//
// Shapes, null gamma and beta, side channels, workspaces and errors are those of kernels/host/layernorm.h.
// codes are [rows, n]; scales are one number for NormE4m3, and [rows, n / kGroup] for the other stores, whose
// kGroup must divide n. T is the format of x, y, dy and dx. Side channels are stored in codes too, because
// the next product reads them; the backward takes their x^ from the side buffer.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <type_traits>

#include "kernels/host/layernorm.h"
#include "kernels/host/mxfp8_blocks.h"
#include "kernels/norm_store.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// A forward that writes codes and scales beside y, which may be null if only they are wanted. For NormE4m3
// `given` may name the tensor's scale, and codes beyond it saturate.
template <class Store, class T>
struct NormForward8bit {
  NormForward<T> norm{};
  typename Store::Code* codes = nullptr;
  typename Store::Scale* scales = nullptr;
  const float* given = nullptr;
};

// A backward that reads them in place of norm.y.
template <class Store, class T>
struct NormBackward8bit {
  NormBackward<T> norm{};
  const typename Store::Code* codes = nullptr;
  const typename Store::Scale* scales = nullptr;
};

// y and rstd as layernorm_forward or rmsnorm_forward gives them, codes and scales. For NormE4m3 without a
// given scale, it follows from the tensor, which takes the sums over each row twice. Allocates nothing.
// Throws SpecError, before anything is written, for the same reasons as these; for an n that is no whole
// number of groups; and for a given scale that is not positive, finite and normal, or that belongs to another
// store.
template <Norm N, CpuNormForwardSchedule S = kWidestSchedule, class Store, class T>
void norm_forward_8bit(const NormForward8bit<Store, T>& of);

// dx, dgamma and dbeta of layernorm_backward or rmsnorm_backward, with what the codes stand for in place of
// y, to the bit of that backward in fp32 if dx is rounded to T.
// Throws SpecError, before anything is written, for the same reasons as these, for an n that is no whole
// number of groups, and for a scale that is zero, negative, subnormal, infinite or (but for an int8 group's
// zero point) NaN.
template <Norm N, CpuNormBackwardSchedule S = kWidestSchedule, class Store, class T>
void norm_backward_8bit(const NormBackward8bit<Store, T>& of);

// -------------------------------------------------------------------------------------------------

namespace detail {

// What codes stand for, in vectors.
#ifdef OUTGRAD_AVX2
template <class Isa>
OUTGRAD_HD typename Isa::Float norm_values(const F8E4M3* codes, float scale) {
  return Isa::mul(Isa::load(codes), Isa::splat(scale));
}
template <class Isa>
OUTGRAD_HD typename Isa::Float norm_values(const F8E4M3* codes, E8M0 scale) {
  return norm_values<Isa>(codes, widen(scale));
}
template <class Isa>
OUTGRAD_HD typename Isa::Float norm_values(const u8* codes, Int8Scale scale) {
  constexpr float kUnits = 0x1p23f;  // code + 2^23 has the bits of 2^23 plus the code
  const auto raised = Isa::add(Isa::load_codes(codes), Isa::splat(static_cast<int>(0x4b000000)));
  return Isa::fma(Isa::sub(std::bit_cast<typename Isa::Float>(raised), Isa::splat(kUnits)),
                  Isa::splat(scale.step), Isa::splat(scale.zero));
}
#endif

// The Output of a backward (kernels/host/layernorm.h): one for all stores, because a row is staged in fp32
// before anything else reads it. So a norm is compiled once for all of them, which costs one call for each
// row.
struct StoredOutput {
  using Order = float;
  static constexpr bool kStaged = true;
  const u8* codes;
  const void* scales;
  // Sets to[j] to y - beta, for the n elements of a row.
  void (*stage)(const StoredOutput& y, i64 row, i64 n, const float* beta, float* to);

  const u8* elements() const { return codes; }
};

// The y of a row's elements.
template <class Store>
struct StoredRow {
  const typename Store::Code* codes;
  const typename Store::Scale* scales;

  StoredRow(const StoredOutput& y, i64 row, i64 n)
      : codes(reinterpret_cast<const typename Store::Code*>(y.codes) + row * n),
        scales(static_cast<const typename Store::Scale*>(y.scales) + norm_scales_before(row, n)) {}

  // Of one element, and of a vector of them, which lies within one group.
  OUTGRAD_HD float read(LaneIo<float>, i64 j) const { return norm_value(codes[j], scale_of(j)); }
#ifdef OUTGRAD_AVX2
  template <class Isa>
  OUTGRAD_HD Vector<Isa> read(LaneIo<Vector<Isa>>, i64 j) const {
    static_assert(Store::kGroup % Isa::kLanes == 0);
    return {{norm_values<Isa>(codes + j, scale_of(j))}};
  }
  template <class Isa>
  OUTGRAD_HD Vector<Isa> read(const PartIo<Isa>& io, i64 j) const {
    alignas(64) u8 part[64];
    Isa::load_part(part, codes + j, io.count);
    return {{norm_values<Isa>(reinterpret_cast<const typename Store::Code*>(part), scale_of(j))}};
  }
#endif

 private:
  static i64 norm_scales_before(i64 row, i64 n) {
    return Store::kGroup == 0 ? 0 : norm_scales_of<Store>(row, n);
  }
  OUTGRAD_HD const typename Store::Scale& scale_of(i64 j) const {
    if constexpr (Store::kGroup == 0) {
      return *scales;
    } else {
      return scales[j / Store::kGroup];
    }
  }
};

template <class Store, class Lane>
void stage_stored(const StoredOutput& y, i64 row, i64 n, const float* beta, float* to) {
  const StoredRow<Store> from(y, row, n);
  for_columns<Lane, 1>(0, n, [=](auto io, i64 j) __attribute__((always_inline)) {
    io.store(to + j, sub_rn(from.read(io, j), io.load(beta + j)));
  });
}

template <class Lane, class T>
void stage_output(const BackwardArrays<T, StoredOutput>& a, i64 row, const StagedRow& staged) {
  a.y.stage(a.y, row, a.n, a.columns.beta, staged.c);
  if (a.side.count > 0) std::copy(staged.c, staged.c + a.n, staged.weighted);
}

template <class Store>
void require_groups(const char* function, i64 n) {
  if constexpr (Store::kGroup > 0) {
    if (n % Store::kGroup != 0) {
      refuse(refusal(function) + "n = " + std::to_string(n) + " is no whole number of groups of " +
             std::to_string(Store::kGroup) + ", which share a scale");
    }
  }
}

template <class Store>
void require_scales(const char* function, const typename Store::Scale* scales, i64 count) {
  for (i64 k = 0; k < count; ++k) {
    if (norm_scale_holds(scales[k])) continue;
    refuse(refusal(function) + "scale " + std::to_string(k) +
           " is zero, negative, subnormal, infinite or NaN");
  }
}

// The y of a row in fp32, whose sums are complete, a block at a time.
template <RowLoops L, class T>
struct OutputBlocks {
  static constexpr i64 kElements = 64;
  static_assert(kElements % NormMxFp8::kGroup == 0 && kElements % NormInt8::kGroup == 0);
  const ForwardArrays<T>* a;
  const T* x;
  float mean, rstd;

  // Sets y[k] to element j + k, for k < count.
  void read(i64 j, i64 count, float* y) const {
    const float* const gamma = a->gamma;
    const float* const beta = a->beta;
    const OutputBlocks row = *this;
    for_columns<LaneOf<L>, 1>(j, j + count, [=](auto io, i64 k) __attribute__((always_inline)) {
      using Value = typename decltype(io)::Value;
      const Value g = gamma ? io.load(gamma + k) : io.splat(1.0f);
      const Value b = beta ? io.load(beta + k) : io.splat(kMissingTerm);
      io.store(y + (k - j),
               forward_output<Value>(io.load(row.x + k), io.splat(row.mean), io.splat(row.rstd), g, b));
    });
  }
};

// amax of a block, as bits. Here and below the number of elements is known where the loop is compiled, so
// that it becomes vectors.
template <i64 kCount>
u32 largest_in_block(const float (&y)[kCount]) {
  u32 magnitudes[kCount];
  for (i64 k = 0; k < kCount; ++k) magnitudes[k] = magnitude_in_block(y[k]);
  u32 amax = 0;
  for (const u32 magnitude : magnitudes) amax = magnitude > amax ? magnitude : amax;
  return amax;
}

// The scale of a block that has one of its own.
template <i64 kCount>
void block_scale(const float (&y)[kCount], E8M0& scale) {
  scale = shared_scale(largest_in_block(y));
}
template <i64 kCount>
void block_scale(const float (&y)[kCount], Int8Scale& scale) {
  OutputRange range;
  for (const float value : y) range.include(value);
  scale = int8_scale(range);
}

// The codes and, but for e4m3, the scales of a block of columns, whole groups of them.
template <class Store, i64 kCount>
__attribute__((noinline)) void encode_block(const float (&y)[kCount], typename Store::Code* codes,
                                            typename Store::Scale* scales) {
  constexpr i64 kGroup = Store::kGroup == 0 ? kCount : Store::kGroup;
  for (i64 first = 0; first < kCount; first += kGroup) {
    const auto& group = *reinterpret_cast<const float (*)[kGroup]>(y + first);
    typename Store::Scale& scale = scales[first / kGroup];
    if constexpr (Store::kGroup > 0) block_scale(group, scale);
    for (i64 k = 0; k < kGroup; ++k) codes[first + k] = norm_code(group[k], scale);
  }
}

#ifdef OUTGRAD_AVX2
// RN(v / s), for 0 <= v <= kMostQuotient s; the divisor is usual.
template <class Isa>
OUTGRAD_HD typename Isa::Float quotients(typename Isa::Float v, const Divisor& by) {
  const auto reciprocal = Isa::splat(by.reciprocal);
  const auto near = Isa::fma(v, reciprocal, Isa::mul(v, Isa::splat(by.rest)));
  return Isa::fma(Isa::fma(near, Isa::splat(-by.scale), v), reciprocal, near);
}

// Four vectors of y at the tensor's scale. Where one is NaN, nothing is written, and the result is false.
template <class Isa, bool kStreaming>
OUTGRAD_HD bool e4m3_vectors(const typename Isa::Float (&y)[4], const Divisor& by, F8E4M3* codes) {
  constexpr int kInfinity = 0x7f800000;
  typename Isa::Int magnitude[4], code[4];
  OUTGRAD_UNROLL
  for (int k = 0; k < 4; ++k) magnitude[k] = Isa::bit_and(Isa::bits(y[k]), Isa::splat(0x7fffffff));
  const auto most = Isa::max(Isa::max(magnitude[0], magnitude[1]), Isa::max(magnitude[2], magnitude[3]));
  if (__builtin_expect(Isa::any(Isa::greater(most, Isa::splat(kInfinity))), 0)) return false;
  OUTGRAD_UNROLL
  for (int k = 0; k < 4; ++k) {
    const auto v = Isa::at_most(std::bit_cast<typename Isa::Float>(magnitude[k]),
                                Isa::splat(Divisor::kMostQuotient * by.scale));
    const auto quotient = quotients<Isa>(v, by);
    code[k] = BlockVectors<Isa>::signed_code(
        float8_magnitude<Isa>(quotient, Isa::splat(Float8Grid<F8E4M3>::kDown)), y[k]);
  }
  BlockVectors<Isa>::template store<kStreaming>(codes, code[0], code[1], code[2], code[3]);
  return true;
}

// The first (with kSecond, the second) halves of a and b.
template <int kWidth, bool kSecond>
struct Halves {
  constexpr int operator()(int i) const {
    return i % (kWidth / 2) + (i < kWidth / 2 ? 0 : kWidth) + (kSecond ? kWidth / 2 : 0);
  }
};

// The least lane of a in every lane of the first half, that of b in the second.
template <class Isa>
OUTGRAD_HD Vector<Isa> least_of_halves(const Vector<Isa>& a, const Vector<Isa>& b) {
  constexpr int kWidth = Isa::kLanes;
  const auto least = [](const Vector<Isa>& p, const Vector<Isa>& q) __attribute__((always_inline)) {
    return Vector<Isa>{{Isa::at_most(p.v[0], q.v[0])}};
  };
  Vector<Isa> v = least(shuffled<Halves<kWidth, false>>(a, b), shuffled<Halves<kWidth, true>>(a, b));
  if constexpr (kWidth == 16) v = least(v, shuffled<Across<4>>(v, v));
  v = least(v, shuffled<Across<2>>(v, v));
  return least(v, shuffled<Across<1>>(v, v));
}

// A group of int8. Where one of its y is NaN or infinite, or its step is small, nothing is written, and the
// result is false.
template <class Isa, bool kStreaming, int kVectors>
OUTGRAD_HD bool int8_vectors(const typename Isa::Float (&y)[kVectors], u8* codes, Int8Scale& scale) {
  auto least = y[0], most = y[0];
  OUTGRAD_UNROLL
  for (int k = 1; k < kVectors; ++k) least = Isa::at_most(least, y[k]), most = Isa::at_least(most, y[k]);
  const Vector<Isa> ends = least_of_halves<Isa>({{least}}, {{Isa::negate(most)}});
  const Int8Scale found = int8_scale(ends.v[0][0], -ends.v[0][Isa::kLanes / 2]);
  const Divisor by = Divisor::of(found.step);
  // of an infinity zero is NaN
  if (__builtin_expect(!by.is_usual() || found.zero != found.zero, 0)) return false;
  typename Isa::Int code[kVectors], least_code = Isa::splat(0);
  OUTGRAD_UNROLL
  for (int k = 0; k < kVectors; ++k) {
    const auto quotient = quotients<Isa>(Isa::sub(y[k], Isa::splat(found.zero)), by);
    code[k] = BlockVectors<Isa>::rounded(quotient);
    least_code = Isa::min(least_code, code[k]);
  }
  if (__builtin_expect(Isa::any(Isa::greater(Isa::splat(0), least_code)), 0)) return false;  // of a NaN
  scale = found;
  OUTGRAD_UNROLL
  for (int k = 0; k < kVectors; k += 4) {
    auto* const to = reinterpret_cast<F8E4M3*>(codes + k * Isa::kLanes);  // any byte
    BlockVectors<Isa>::template store<kStreaming>(to, code[k], code[k + 1], code[k + 2], code[k + 3]);
  }
  return true;
}

// encode_block by vectors, to the bit; y are the vectors of a block.
template <class Store, class Isa, bool kStreaming, int kVectors>
OUTGRAD_HD void encode_vectors(const typename Isa::Float (&y)[kVectors], const Divisor& tensor,
                               typename Store::Code* codes, typename Store::Scale* scales) {
  constexpr int kTogether = std::is_same_v<Store, NormInt8> ? NormInt8::kGroup / Isa::kLanes : 4;
  using Together = typename Isa::Float[kTogether];
  OUTGRAD_UNROLL
  for (int k = 0; k < kVectors; k += kTogether) {
    const i64 at = k * Isa::kLanes;
    typename Store::Scale* const scale = Store::kGroup == 0 ? scales : scales + at / Store::kGroup;
    const Together& vectors = reinterpret_cast<const Together&>(y[k]);
    bool done;
    if constexpr (std::is_same_v<Store, NormInt8>) {
      done = int8_vectors<Isa, kStreaming>(vectors, codes + at, *scale);
    } else if constexpr (std::is_same_v<Store, NormMxFp8>) {
      done = mxfp8_blocks<Isa, kStreaming>(vectors, codes + at, scale);
    } else {
      done = tensor.is_usual() && e4m3_vectors<Isa, kStreaming>(vectors, tensor, codes + at);
    }
    if (__builtin_expect(!done, 0)) {
      float single[kTogether * Isa::kLanes];
      for (int v = 0; v < kTogether; ++v) Isa::template store<false>(single + v * Isa::kLanes, vectors[v]);
      encode_block<Store>(single, codes + at, scale);
    }
  }
}
#endif

// Rows whose sums are complete, as NormedRows: writes y, if it is wanted, its codes and, but for e4m3, the
// scales. y is computed once, a block of columns after the other.
template <class Store, class T, RowLoops L, bool kStreaming, int kRows>
struct StoredRows {
  static constexpr i64 kBlock = OutputBlocks<L, T>::kElements,
                       kGroup = Store::kGroup == 0 ? kBlock : Store::kGroup;
  NormedRows<T, L, kStreaming, kRows> rows;
  typename Store::Code* codes;  // of these rows
  typename Store::Scale* scales;  // of these rows, or of the tensor
  Divisor tensor;  // the tensor's scale

  // `from` is a whole number of blocks.
  void write(i64 from, i64 to) const {
    for (i64 j = from; j < to; j += kBlock) {
      for (int r = 0; r < kRows; ++r) write_block(LaneOf<L>{}, r, j, std::min(kBlock, to - j));
    }
  }

 private:
  typename Store::Scale* scales_of(int r, i64 j) const {
    return Store::kGroup == 0 ? scales : scales + norm_scales_of<Store>(r, rows.a->n) + j / kGroup;
  }
  // y of the columns from j on, which is also stored.
  template <class Io>
  OUTGRAD_HD typename Io::Value output(const Io& io, int r, i64 j) const {
    using Value = typename Io::Value;
    const i64 n = rows.a->n;
    prefetch<L.prefetch>(io, rows.a->x + rows.ahead + place_ahead<T>(io, kRows, r, j, n));
    const Value g = rows.a->gamma ? io.load(rows.a->gamma + j) : io.splat(1.0f);
    const Value b = rows.a->beta ? io.load(rows.a->beta + j) : io.splat(kMissingTerm);
    const Value y = forward_output<Value>(io.load(rows.x + r * n + j), io.splat(rows.mean[r]),
                                          io.splat(rows.rstd[r]), g, b);
    if (rows.a->y) store_as<kStreaming>(io, rows.y + r * n + j, y);
    return y;
  }
  template <class Lane>
  void write_any_block(int r, i64 j, i64 count) const {
    alignas(64) float y[kBlock] = {};
    for_columns<Lane, 1>(0, count, [&](const auto& io, i64 k) __attribute__((always_inline)) {
      io.store(y + k, output(io, r, j + k));
    });
    typename Store::Code* const to = codes + r * rows.a->n + j;
    if (count == kBlock) return encode_block<Store>(y, to, scales_of(r, j));
    typename Store::Code block[kBlock];
    if constexpr (Store::kGroup == 0) {
      encode_block<Store>(y, block, scales);
    } else {  // whole groups
      for (i64 g = 0; g < count; g += kGroup)
        encode_block<Store>(*reinterpret_cast<const float (*)[kGroup]>(y + g), block + g,
                            scales_of(r, j + g));
    }
    std::copy_n(block, count, to);
  }
  void write_block(float, int r, i64 j, i64 count) const { write_any_block<float>(r, j, count); }
#ifdef OUTGRAD_AVX2
  template <class Isa>
  OUTGRAD_HD void write_block(Vector<Isa>, int r, i64 j, i64 count) const {
    constexpr int kStrip = 4, kVectors = kBlock / Isa::kLanes;
    if (count < kBlock) return write_any_block<Vector<Isa>>(r, j, count);
    typename Isa::Float y[kVectors];
    OUTGRAD_UNROLL
    for (int k = 0; k < kVectors; k += kStrip) {
      const auto strip = output(LaneIo<FloatPack<Isa, kStrip>>{}, r, j + k * Isa::kLanes);
      OUTGRAD_UNROLL
      for (int i = 0; i < kStrip; ++i) y[k + i] = strip.v[i];
    }
    encode_vectors<Store, Isa, kStreaming>(y, tensor, codes + r * rows.a->n + j, scales_of(r, j));
  }
#endif
};

template <Norm N, class Store, class T, RowLoops L, bool kStreaming>
void store_all_rows(const RowTasks& how, const ForwardArrays<T>& a, typename Store::Code* codes,
                    typename Store::Scale* scales) {
  over_rows<L, kStreaming>(how, a, [=, &a]<int kRows>(i64 row, i64 end) {
    using Rows = StoredRows<Store, T, L, kStreaming, kRows>;
    // of a block, by which the writer goes
    constexpr int kVectors = static_cast<int>(Rows::kBlock / LaneIo<LaneOf<L>>::kWidth);
    RowWriter<Rows, LaneOf<L>, kVectors, kStreaming, kRows> writer(a.n);
    Divisor tensor{};
    if constexpr (Store::kGroup == 0) tensor = Divisor::of(*scales);
    for (; end - row >= kRows; row += kRows) {
      const auto rows = norm_rows<N, T, L, kStreaming, kRows>(a, row, writer.meanwhile());
      writer.rest();
      writer.begin(Rows{rows, codes + row * a.n,
                        Store::kGroup == 0 ? scales : scales + norm_scales_of<Store>(row, a.n), tensor});
    }
    writer.rest();
    return row;
  });
}

template <Norm N, class T, RowLoops L>
u32 largest_output(const RowTasks& how, const ForwardArrays<T>& a) {
  std::atomic<u32> amax = 0;
  parallel_for((a.rows + how.task_rows - 1) / how.task_rows, how.threads, [&](i64 task) {
    const i64 end = std::min(a.rows, (task + 1) * how.task_rows);
    constexpr i64 kElements = OutputBlocks<L, T>::kElements;
    alignas(64) float y[kElements];
    u32 most = 0;
    for (i64 row = task * how.task_rows; row < end; ++row) {
      Nothing meanwhile;
      const auto rows = norm_rows<N, T, L, false, 1>(a, row, meanwhile);
      const OutputBlocks<L, T> blocks{&a, rows.x, rows.mean[0], rows.rstd[0]};
      for (i64 j = 0; j < a.n; j += kElements) {
        const i64 count = std::min(kElements, a.n - j);
        blocks.read(j, count, y);
        std::fill(y + count, y + kElements, 0.0f);
        most = std::max(most, largest_in_block(y));
      }
    }
    u32 so_far = amax.load(std::memory_order_relaxed);
    while (most > so_far && !amax.compare_exchange_weak(so_far, most, std::memory_order_relaxed)) {
    }
  });
  return amax.load();
}

}  // namespace detail

template <Norm N, CpuNormForwardSchedule S, class Store, class T>
void norm_forward_8bit(const NormForward8bit<Store, T>& of) {
  static_assert(detail::norm_schedule_holds<S>() && S.task_elements > 0, "task_elements is positive");
  constexpr const char* kFunction = N == Norm::layer ? "layernorm_forward_8bit" : "rmsnorm_forward_8bit";
  const NormForward<T>& norm = of.norm;
  detail::require_forward(kFunction, norm.rows, norm.n, norm.eps, norm.side);
  detail::require_groups<Store>(kFunction, norm.n);
  if (of.given && Store::kGroup > 0) {
    detail::refuse(detail::refusal(kFunction) + "a scale is given, but " + Store::kName +
                   " finds those of its groups itself");
  }
  if (of.given && !scale_holds(*of.given)) {
    detail::refuse(detail::refusal(kFunction) +
                   "the given scale is zero, negative, subnormal, infinite or NaN");
  }
  constexpr detail::RowLoops kLoops = detail::kRowLoops<S>;
  const detail::RowTasks how{S.threads, std::max<i64>(S.task_elements / norm.n, 1)};
  const detail::ForwardArrays<T> arrays{detail::arrays_of<N, false>(norm), S.rows_ahead};
  if constexpr (Store::kGroup == 0) {
    if (of.given) {
      *of.scales = *of.given;
    } else {
      const u32 amax = detail::largest_output<N, T, kLoops>(how, arrays);
      const DefaultFloatEnvironment environment;
      *of.scales = e4m3_scale(amax);
    }
  }
  if constexpr (S.streaming_stores && S.vector_bits > 0) {
    if (detail::rows_stream<S>(of.codes, norm.rows, norm.n) &&
        (!norm.y || detail::rows_stream<S>(norm.y, norm.rows, norm.n)))
      return detail::store_all_rows<N, Store, T, kLoops, true>(how, arrays, of.codes, of.scales);
  }
  detail::store_all_rows<N, Store, T, kLoops, false>(how, arrays, of.codes, of.scales);
}

template <Norm N, CpuNormBackwardSchedule S, class Store, class T>
void norm_backward_8bit(const NormBackward8bit<Store, T>& of) {
  constexpr const char* kFunction = N == Norm::layer ? "layernorm_backward_8bit" : "rmsnorm_backward_8bit";
  const i64 rows = of.norm.rows, n = of.norm.n;
  detail::require_shape(kFunction, rows, n, of.norm.side);
  detail::require_groups<Store>(kFunction, n);
  if (rows > 0) detail::require_scales<Store>(kFunction, of.scales, norm_scales_of<Store>(rows, n));
  constexpr detail::RowLoops kLoops = detail::kRowLoops<S>;
  using Lane = detail::LaneOf<kLoops>;
  detail::norm_backward<N, false, S>(kFunction, of.norm,
                                     detail::StoredOutput{reinterpret_cast<const u8*>(of.codes), of.scales,
                                                          detail::stage_stored<Store, Lane>});
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
