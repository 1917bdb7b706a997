// LayerNorm and RMSNorm on the host whose backward reads y in 8 bits (kernels/norm_store.h): the forward that writes codes and
// scales, and the backward from them. Every schedule gives the same bits.
//
// Shapes, null gamma and beta, side channels, workspaces and errors are those of kernels/host/layernorm.h. codes are [rows, n];
// scales are one number for NormE4m3, and [rows, n / kGroup] for the other stores, whose kGroup must divide n. T is the format
// of x, y, dy and dx. Side channels are stored in codes too, because the next product reads them; the backward takes their x^
// from the side buffer.
#pragma once

#include <algorithm>
#include <atomic>
#include <string>

#include "kernels/host/layernorm.h"
#include "kernels/norm_store.h"

namespace outgrad::kernels::inline OUTGRAD_ABI {

// y and rstd as layernorm_forward gives them, codes and scales. y may be null, if only the codes are wanted, or equal x. For
// NormE4m3 `given` may name the tensor's scale, and codes beyond it saturate. If it is null, the scale follows from the
// tensor, which takes the sums over each row twice. Allocates nothing.
// Throws SpecError, before anything is written, for the same reasons as layernorm_forward; for an n that is no whole number of
// groups; and for a given scale that is not positive, finite and normal, or that belongs to another store.
template <class Store, class T, CpuNormForwardSchedule S = kWidestSchedule>
void layernorm_forward_8bit(const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, const float* given, T* y,
                            typename Store::Code* codes, typename Store::Scale* scales, float* rstd, SideBuffer<float> side = {});

template <class Store, class T, CpuNormForwardSchedule S = kWidestSchedule>
void rmsnorm_forward_8bit(const T* x, const float* gamma, i64 rows, i64 n, float eps, const float* given, T* y, typename Store::Code* codes,
                          typename Store::Scale* scales, float* rstd, SideBuffer<float> side = {});

// dx, dgamma and dbeta of layernorm_backward, with what the codes stand for in place of y, to the bit of that backward in fp32
// if dx is rounded to T. dx may equal dy. Allocates nothing.
// Throws SpecError, before anything is written, for the same reasons as layernorm_backward, for an n that is no whole number of
// groups, and for a scale that is zero, negative, subnormal, infinite or (but for an int8 group's zero point) NaN.
template <class Store, class T, CpuNormBackwardSchedule S = kWidestSchedule>
void layernorm_backward_8bit(const T* dy, const typename Store::Code* codes, const typename Store::Scale* scales, const float* gamma, const float* beta,
                             const float* rstd, i64 rows, i64 n, T* dx, float* dgamma, float* dbeta, SideBuffer<const float> side, std::span<float> workspace);

template <class Store, class T, CpuNormBackwardSchedule S = kWidestSchedule>
void rmsnorm_backward_8bit(const T* dy, const typename Store::Code* codes, const typename Store::Scale* scales, const float* gamma, const float* rstd, i64 rows,
                           i64 n, T* dx, float* dgamma, SideBuffer<const float> side, std::span<float> workspace);

// ---------------------------------------------------------------------------------------------------------------------------------

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
  return Isa::fma(Isa::sub(std::bit_cast<typename Isa::Float>(raised), Isa::splat(kUnits)), Isa::splat(scale.step), Isa::splat(scale.zero));
}
#endif

// The Output of a backward (kernels/host/layernorm.h).
template <class Store>
struct StoredOutput {
  using Order = float;  // a row is staged in fp32
  static constexpr bool kStaged = true;
  const typename Store::Code* codes;
  const typename Store::Scale* scales;

  const u8* elements() const { return reinterpret_cast<const u8*>(codes); }

  const typename Store::Scale& scale_of(i64 row, i64 j, i64 n) const {
    if constexpr (Store::kGroup == 0) {
      return *scales;
    } else {
      return scales[row * (n / Store::kGroup) + j / Store::kGroup];
    }
  }
  // The y of one element, and of a vector of them, which lies within one group.
  static OUTGRAD_HD float read(LaneIo<float>, const typename Store::Code* from, const typename Store::Scale& scale) { return norm_value(*from, scale); }
#ifdef OUTGRAD_AVX2
  template <class Isa>
  static OUTGRAD_HD Vector<Isa> read(LaneIo<Vector<Isa>>, const typename Store::Code* from, const typename Store::Scale& scale) {
    static_assert(Store::kGroup % Isa::kLanes == 0);
    return {{norm_values<Isa>(from, scale)}};
  }
#endif
};

template <class Lane, class T, class Store>
void stage_output(const BackwardArrays<T, StoredOutput<Store>>& a, i64 row, const StagedRow& staged) {
  const StoredOutput<Store> y = a.y;
  const i64 n = a.n;
  const auto* const codes = y.codes + row * n;
  const float* const beta = a.columns.beta;
  for_columns<Lane, 1>(0, n, [=](auto io, i64 j) __attribute__((always_inline)) {
    io.store(staged.c + j, sub_rn(y.read(io, codes + j, y.scale_of(row, j, n)), io.load(beta + j)));
  });
  if (a.side.count > 0) std::copy(staged.c, staged.c + n, staged.weighted);
}

template <class Store>
void require_groups(const char* function, i64 n) {
  if constexpr (Store::kGroup > 0) {
    if (n % Store::kGroup != 0) {
      throw SpecError(refusal(function) + "n = " + std::to_string(n) + " is no whole number of groups of " + std::to_string(Store::kGroup) +
                      ", which share a scale");
    }
  }
}

template <class Store>
void require_scales(const char* function, const typename Store::Scale* scales, i64 count) {
  for (i64 k = 0; k < count; ++k) {
    if (norm_scale_holds(scales[k])) continue;
    throw SpecError(refusal(function) + "scale " + std::to_string(k) + " is zero, negative, subnormal, infinite or NaN");
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
      io.store(y + (k - j), forward_output<Value>(io.load(row.x + k), io.splat(row.mean), io.splat(row.rstd), g, b));
    });
  }
};

// amax of a block, as bits. Here and below the number of elements is known where the loop is compiled, so that it becomes vectors.
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

// The codes and, but for e4m3, the scales of a row.
template <class Store, class Blocks>
void encode_row(const Blocks& row, i64 n, typename Store::Code* codes, typename Store::Scale* scales) {
  constexpr i64 kElements = Store::kGroup == 0 ? Blocks::kElements : Store::kGroup;
  alignas(64) float y[kElements] = {};
  alignas(64) typename Store::Code block[kElements];
  for (i64 j = 0; j < n; j += kElements) {
    const i64 count = std::min(kElements, n - j);
    row.read(j, count, y);
    if constexpr (Store::kGroup > 0) block_scale(y, scales[j / kElements]);
    const typename Store::Scale scale = scales[Store::kGroup == 0 ? 0 : j / kElements];
    for (i64 k = 0; k < kElements; ++k) block[k] = norm_code(y[k], scale);
    std::copy_n(block, count, codes + j);
  }
}

// body(blocks, rows) for every row, whose rstd and side channels have been written; `rows` can write its y.
template <Norm N, class T, RowLoops L, class Body>
void over_normed_rows(const RowTasks& how, const ForwardArrays<T>& a, const Body& body) {
  parallel_for((a.rows + how.task_rows - 1) / how.task_rows, how.threads, [&](i64 task) {
    const i64 end = std::min(a.rows, (task + 1) * how.task_rows);
    for (i64 row = task * how.task_rows; row < end; ++row) {
      Nothing meanwhile;
      const auto rows = norm_rows<N, T, L, false, 1>(a, row, meanwhile);
      body(row, OutputBlocks<L, T>{&a, rows.x, rows.mean[0], rows.rstd[0]}, rows);
    }
  });
}

template <Norm N, class T, RowLoops L>
u32 largest_output(const RowTasks& how, const ForwardArrays<T>& a) {
  std::atomic<u32> amax = 0;
  over_normed_rows<N, T, L>(how, a, [&](i64, const OutputBlocks<L, T>& blocks, const auto&) {
    constexpr i64 kElements = OutputBlocks<L, T>::kElements;
    alignas(64) float y[kElements];
    u32 most = 0;
    for (i64 j = 0; j < a.n; j += kElements) {
      const i64 count = std::min(kElements, a.n - j);
      blocks.read(j, count, y);
      std::fill(y + count, y + kElements, 0.0f);
      most = std::max(most, largest_in_block(y));
    }
    u32 so_far = amax.load(std::memory_order_relaxed);
    while (most > so_far && !amax.compare_exchange_weak(so_far, most, std::memory_order_relaxed)) {
    }
  });
  return amax.load();
}

template <Norm N, class Store, class T, CpuNormForwardSchedule S>
void norm_forward_8bit(const char* function, const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, const float* given, T* y,
                       typename Store::Code* codes, typename Store::Scale* scales, float* rstd, const SideBuffer<float>& side) {
  static_assert(norm_schedule_holds<S>() && S.task_elements > 0, "task_elements is positive");
  require_forward(function, rows, n, eps, side);
  require_groups<Store>(function, n);
  if (given && Store::kGroup > 0) throw SpecError(refusal(function) + "a scale is given, but " + Store::kName + " finds those of its groups itself");
  if (given && !scale_holds(*given)) throw SpecError(refusal(function) + "the given scale is zero, negative, subnormal, infinite or NaN");
  constexpr RowLoops kLoops = kRowLoops<S>;
  const RowTasks how{S.threads, std::max<i64>(S.task_elements / n, 1)};
  const ForwardArrays<T> arrays{x, {}, gamma, beta, rows, n, eps, y, rstd, side, S.rows_ahead};
  if constexpr (Store::kGroup == 0) {
    if (given) {
      *scales = *given;
    } else {
      const u32 amax = largest_output<N, T, kLoops>(how, arrays);
      const DefaultFloatEnvironment environment;
      *scales = e4m3_scale(amax);
    }
  }
  over_normed_rows<N, T, kLoops>(how, arrays, [&](i64 row, const OutputBlocks<kLoops, T>& blocks, const auto& rows_of_y) {
    encode_row<Store>(blocks, n, codes + row * n, Store::kGroup == 0 ? scales : scales + norm_scales_of<Store>(row, n));
    if (y) rows_of_y.write(0, n);
  });
}

template <Norm N, class Store, class T, CpuNormBackwardSchedule S>
void norm_backward_8bit(const char* function, const T* dy, const typename Store::Code* codes, const typename Store::Scale* scales, const float* gamma,
                        const float* beta, const float* rstd, i64 rows, i64 n, T* dx, float* dgamma, float* dbeta, const SideBuffer<const float>& side,
                        std::span<float> workspace) {
  require_shape(function, rows, n, side);
  require_groups<Store>(function, n);
  if (rows > 0) require_scales<Store>(function, scales, norm_scales_of<Store>(rows, n));
  norm_backward<N, T, S, false>(function, dy, StoredOutput<Store>{codes, scales}, nullptr, gamma, beta, rstd, rows, n, dx, dgamma, dbeta, side, workspace);
}

}  // namespace detail

template <class Store, class T, CpuNormForwardSchedule S>
void layernorm_forward_8bit(const T* x, const float* gamma, const float* beta, i64 rows, i64 n, float eps, const float* given, T* y,
                            typename Store::Code* codes, typename Store::Scale* scales, float* rstd, SideBuffer<float> side) {
  detail::norm_forward_8bit<Norm::layer, Store, T, S>("layernorm_forward_8bit", x, gamma, beta, rows, n, eps, given, y, codes, scales, rstd, side);
}

template <class Store, class T, CpuNormForwardSchedule S>
void rmsnorm_forward_8bit(const T* x, const float* gamma, i64 rows, i64 n, float eps, const float* given, T* y, typename Store::Code* codes,
                          typename Store::Scale* scales, float* rstd, SideBuffer<float> side) {
  detail::norm_forward_8bit<Norm::rms, Store, T, S>("rmsnorm_forward_8bit", x, gamma, nullptr, rows, n, eps, given, y, codes, scales, rstd, side);
}

template <class Store, class T, CpuNormBackwardSchedule S>
void layernorm_backward_8bit(const T* dy, const typename Store::Code* codes, const typename Store::Scale* scales, const float* gamma, const float* beta,
                             const float* rstd, i64 rows, i64 n, T* dx, float* dgamma, float* dbeta, SideBuffer<const float> side, std::span<float> workspace) {
  detail::norm_backward_8bit<Norm::layer, Store, T, S>("layernorm_backward_8bit", dy, codes, scales, gamma, beta, rstd, rows, n, dx, dgamma, dbeta, side,
                                                       workspace);
}

template <class Store, class T, CpuNormBackwardSchedule S>
void rmsnorm_backward_8bit(const T* dy, const typename Store::Code* codes, const typename Store::Scale* scales, const float* gamma, const float* rstd, i64 rows,
                           i64 n, T* dx, float* dgamma, SideBuffer<const float> side, std::span<float> workspace) {
  detail::norm_backward_8bit<Norm::rms, Store, T, S>("rmsnorm_backward_8bit", dy, codes, scales, gamma, nullptr, rstd, rows, n, dx, dgamma, nullptr, side,
                                                     workspace);
}

}  // namespace outgrad::kernels::inline OUTGRAD_ABI
