// The gated pair that keeps a and b in 8 bits (kernels/tensor_codes.h), on a GPU: codes are written in the
// forward's pass, and the backward's reads them, with the bits that the passes by themselves would give.
//
// At one scale each, the largest magnitudes come from a pass before, as in kernels/cuda/tensor_codes.cuh.
#pragma once

#include "kernels/cuda/gated.cuh"
#include "kernels/cuda/tensor_codes.cuh"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// maxima[block] of a and, behind those of all blocks, of b, as in tensor_maxima.
template <class T, bool Wide>
__global__ void __launch_bounds__(GatedSchedule::kSchedule.threads, GatedSchedule::kSchedule.resident_blocks)
    gated_maxima(const T* a, const T* b, i64 rows, i64 n, i64 stride, u32* maxima) {
  constexpr GpuSchedule S = GatedSchedule::kSchedule;
  u32 of_a = 0, of_b = 0;
  over_gated<Wide>(rows, n, stride, [&](i64 at, i64) {
    if constexpr (Wide) {
      const Octet<T> first = load_octet<S>(a + at), second = load_octet<S>(b + at);
      of_a = with_octet(of_a, first);
      of_b = with_octet(of_b, second);
    } else {
      of_a = larger_magnitude(of_a, finite_magnitude(widen(a[at])));
      of_b = larger_magnitude(of_b, finite_magnitude(widen(b[at])));
    }
  });
  of_a = largest_of_block<S.threads, 0>(of_a);
  of_b = largest_of_block<S.threads, 1>(of_b);
  if (threadIdx.x == 0) maxima[blockIdx.x] = of_a, maxima[gridDim.x + blockIdx.x] = of_b;
}

// gated_forward, and the codes of a and b. maxima: what gated_maxima has left; of blocks, none. Rows that lie
// apart are whole blocks, and Wide ones, too, where they do not.
template <class Gate, class T, class Kept, bool Wide>
__global__ void __launch_bounds__(GatedSchedule::kSchedule.threads, GatedSchedule::kSchedule.resident_blocks)
    gated_forward_8bit(const T* a, const T* b, i64 rows, i64 n, i64 stride, T* y, Maxima maxima,
                       GatedCodes kept) {
  constexpr GpuSchedule S = GatedSchedule::kSchedule;
  const auto& tables = gate_tables<Gate>();
  using To = Encoder<Kept, T>;
  const To of_a = To::template of<S.threads, 0>(kept.codes_of_a, kept.scales_of_a, maxima, kLeastOfTensors);
  const To of_b = To::template of<S.threads, 1>(
      kept.codes_of_b, kept.scales_of_b, {maxima.of_blocks + maxima.count, maxima.count}, kLeastOfTensors);
  over_gated<Wide>(rows, n, stride, [&](i64 at, i64 dense) {
    if constexpr (Wide) {
      const Octet<T> x = load_octet<S>(a + at), factor = load_octet<S>(b + at);
      of_a.template octet<S>(x, static_cast<u64>(dense));
      of_b.template octet<S>(factor, static_cast<u64>(dense));
      store_octet<S>(y + dense, gated_octet<Gate>(tables, x, factor));
    } else {
      const u64 left = static_cast<u64>(rows * n - dense);
      of_a.element(a + at, static_cast<u64>(dense), left);
      of_b.element(b + at, static_cast<u64>(dense), left);
      y[dense] = narrow<T>(gated_value<Gate>(tables, widen(a[at]), widen(b[at])));
    }
  });
}

// gated_backward of what the codes stand for, in T.
template <class Gate, class T, class Kept, bool Wide>
__global__ void __launch_bounds__(GatedSchedule::kSchedule.threads, GatedSchedule::kSchedule.resident_blocks)
    gated_backward_8bit(const T* dy, GatedCodes kept, i64 rows, i64 n, i64 stride, T* da, T* db, T* y) {
  constexpr GpuSchedule S = GatedSchedule::kSchedule;
  using Code = typename Kept::Code;
  using Scale = typename Kept::Scale;
  const auto& tables = gate_tables<Gate>();
  const auto *const of_a = static_cast<const Code*>(kept.codes_of_a), *const of_b = static_cast<const Code*>(
                                                                          kept.codes_of_b);
  const Decoder<Kept, T> a(of_a, static_cast<const Scale*>(kept.scales_of_a)),
      b(of_b, static_cast<const Scale*>(kept.scales_of_b));
  const GatedResults<T> to{da, db, y};
  over_gated<Wide>(rows, n, stride, [&](i64 at, i64 dense) {
    const u64 own = static_cast<u64>(dense);
    if constexpr (Wide) {
      const Octet<T> gradient = load_octet<S>(dy + dense);
      const Octet<Code> first = load_octet<S>(of_a + dense), second = load_octet<S>(of_b + dense);
      to.template octet<Gate, S>(tables, gradient, a.octet(first, own), b.octet(second, own), at, dense);
    } else {
      to.template element<Gate>(tables, dy[dense], a.element(own), b.element(own), at, dense);
    }
  });
}

#ifndef __CUDACC_RTC__
namespace detail {

// Of codes, wide accesses are of 8 bytes.
inline bool gated_codes_are_wide(bool wide, i64 n, bool in_blocks, const GatedCodes& kept) {
  constexpr i64 kBlock = Format<MxFp8>::kBlock;
  return wide && (!in_blocks || n % kBlock == 0) &&
         (reinterpret_cast<u64>(kept.codes_of_a) | reinterpret_cast<u64>(kept.codes_of_b)) % kOctet == 0;
}

template <class Kept>
bool gated_codes_hold(i64 elements, i64 n, bool packed) {
  return sizeof(typename Kept::Scale) > 1 || !packed || n % Format<MxFp8>::kBlock == 0 || elements == n;
}

template <class Kept>
i64 gated_scales(i64 elements) {
  return sizeof(typename Kept::Scale) > 1 ? 1 : scales_of<MxFp8>(elements);
}

}  // namespace detail

// What launch_gated_forward and launch_gated_backward say of their arrays; besides these, the codes of a and
// b, rows * n each, and their scales, one each or one for each 32 elements; maxima, 2 kMostMaxima words that
// are written, null for blocks. cudaErrorInvalidValue also for packed rows in blocks that are no whole ones.
// Nothing that is written may overlap anything.
template <class Gate, class Kept, class T>
cudaError_t launch_gated_forward_8bit(const T* a, const T* b, i64 rows, i64 n, T* y, const GatedCodes& kept,
                                      u32* maxima, cudaStream_t stream) {
  using Code = typename Kept::Code;
  using Scale = typename Kept::Scale;
  constexpr bool kInBlocks = sizeof(Scale) == 1;
  if (!detail::gated_shape_holds(rows, n)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const bool packed = b == nullptr;
  const i64 elements = rows * n, scales = detail::gated_scales<Kept>(elements);
  if (!detail::gated_codes_hold<Kept>(elements, n, packed) ||
      !detail::operands_hold({detail::operand(a, packed ? 2 * elements : elements),
                              detail::operand(b, packed ? 0 : elements), detail::written(y, elements),
                              detail::written(static_cast<Code*>(kept.codes_of_a), elements),
                              detail::written(static_cast<Code*>(kept.codes_of_b), elements),
                              detail::written(static_cast<Scale*>(kept.scales_of_a), scales),
                              detail::written(static_cast<Scale*>(kept.scales_of_b), scales),
                              detail::written(maxima, kInBlocks ? 0 : 2 * kMostMaxima)}))
    return cudaErrorInvalidValue;
  const T* const second = packed ? a + n : b;
  const i64 stride = packed ? 2 * n : n;
  const bool wide = detail::gated_codes_are_wide(detail::gated_is_wide(n, {a, b, y}), n, kInBlocks, kept);
  static constinit ResidentBlocks resident[2], of_maxima[2];
  Maxima found{maxima, 0};
  if constexpr (!kInBlocks) {
    PlanLimits limits;
    const auto kernel = wide ? gated_maxima<T, true> : gated_maxima<T, false>;
    if (const cudaError_t status = limits_for<GatedSchedule::kSchedule>(kernel, of_maxima[wide], limits);
        status != cudaSuccess)
      return status;
    const PlannedLaunch planned = gated_maxima_launch(GatedSchedule::kSchedule, rows, n, wide, limits);
    found.count = planned.blocks;
    if (const cudaError_t status =
            launch(kernel, static_cast<unsigned>(planned.blocks), static_cast<unsigned>(planned.threads), 0,
                   stream, a, second, rows, n, stride, maxima);
        status != cudaSuccess)
      return status;
  }
  return detail::launch_gated(
      {DeviceKernel::gated_forward_8bit, rows, n, wide, stream},
      wide ? gated_forward_8bit<Gate, T, Kept, true> : gated_forward_8bit<Gate, T, Kept, false>,
      resident[wide], a, second, rows, n, stride, y, found, kept);
}

template <class Gate, class Kept, class T>
cudaError_t launch_gated_backward_8bit(const T* dy, const GatedCodes& kept, i64 rows, i64 n, T* da, T* db,
                                       T* y, cudaStream_t stream) {
  using Code = typename Kept::Code;
  using Scale = typename Kept::Scale;
  if (!detail::gated_shape_holds(rows, n)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const bool packed = db == nullptr;
  const i64 elements = rows * n, scales = detail::gated_scales<Kept>(elements);
  if (!detail::gated_codes_hold<Kept>(elements, n, packed) ||
      !detail::operands_hold({detail::operand(dy, elements),
                              detail::operand(static_cast<const Code*>(kept.codes_of_a), elements),
                              detail::operand(static_cast<const Code*>(kept.codes_of_b), elements),
                              detail::operand(static_cast<const Scale*>(kept.scales_of_a), scales),
                              detail::operand(static_cast<const Scale*>(kept.scales_of_b), scales),
                              detail::written(da, packed ? 2 * elements : elements),
                              detail::written(db, packed ? 0 : elements),
                              detail::optional(detail::written(y, elements, dy))}))
    return cudaErrorInvalidValue;
  static constinit ResidentBlocks resident[2];
  const bool wide =
      detail::gated_codes_are_wide(detail::gated_is_wide(n, {dy, da, db, y}), n, sizeof(Scale) == 1, kept);
  return detail::launch_gated(
      {DeviceKernel::gated_backward_8bit, rows, n, wide, stream},
      wide ? gated_backward_8bit<Gate, T, Kept, true> : gated_backward_8bit<Gate, T, Kept, false>,
      resident[wide], dy, kept, rows, n, packed ? 2 * n : n, da, packed ? da + n : db, y);
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
