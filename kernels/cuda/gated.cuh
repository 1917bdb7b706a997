// The gated pair y = f(a) b of gated MLPs on a GPU, forward and backward in one pass each (kernels/gate.h).
// Every bit is the host's; the contract is that of kernels/host/gated.h.
//
// A matrix whose rows lie apart is worked on row by row: a block takes a part of one row, and divides once to
// find it. Octets of whole, aligned rows move in 16-byte accesses; other rows go element by element.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/forward.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/gate.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

template <class Gate>
__device__ __forceinline__ decltype(auto) gate_tables() {
  if constexpr (gates::kReadsTables<typename Gate::Kind>) {
    return resident_forward<typename Gate::Kind::Forward, GatedSchedule::kSchedule.table,
                            GatedSchedule::kSchedule.threads>();
  } else {
    return NoTail{};
  }
}

// octet(at, dense) for whole octets of [rows, n], or element(at, dense) for elements, where a row's begin
// `stride` apart in one matrix, and n apart in another.
template <bool Wide, class Of>
__device__ __forceinline__ void over_gated(i64 rows, i64 n, i64 stride, const Of& of) {
  constexpr i64 kEach = Wide ? kOctet : 1, kThreads = GatedSchedule::kSchedule.threads;
  const i64 across = n / kEach, blocks_across = (across + kThreads - 1) / kThreads,
            work = rows * blocks_across;
#pragma unroll 1
  for (i64 index = blockIdx.x; index < work; index += gridDim.x) {
    const i64 row = rows == 1 ? 0 : index / blocks_across,
              own = (index - row * blocks_across) * kThreads + threadIdx.x;
    if (own < across) of(row * stride + own * kEach, row * n + own * kEach);
  }
}

// f(a) b of elements and octets of them.
template <class Gate, class Tables>
__device__ __forceinline__ float gated_value(const Tables& tables, float a, float b) {
  return mul_rn(evaluate_gate(FloatOps{}, Gate::kind(), tables, a).f, b);
}
template <class Gate, class T, class Tables>
__device__ __forceinline__ Octet<T> gated_octet(const Tables& tables, const Octet<T>& a, const Octet<T>& b) {
  float results[kOctet];
  OUTGRAD_UNROLL
  for (int k = 0; k < kOctet; ++k) results[k] = gated_value<Gate>(tables, widened(a, k), widened(b, k));
  return packed<T>(results);
}

// Where the gradients of a and b go, and what the forward gave, unless that is null.
template <class T>
struct GatedResults {
  T *da, *db, *y;

  template <class Gate, GpuSchedule S, class Tables>
  __device__ __forceinline__ void octet(const Tables& tables, const Octet<T>& dy, const Octet<T>& a,
                                        const Octet<T>& b, i64 at, i64 dense) const {
    float to_a[kOctet], to_b[kOctet], results[kOctet];
    OUTGRAD_UNROLL
    for (int k = 0; k < kOctet; ++k) {
      const auto value = evaluate_gate(FloatOps{}, Gate::kind(), tables, widened(a, k));
      const auto both = gate_gradients(FloatOps{}, value, widened(dy, k), widened(b, k));
      to_a[k] = both.da, to_b[k] = both.db, results[k] = mul_rn(value.f, widened(b, k));
    }
    store_octet<S>(da + at, packed<T>(to_a));
    store_octet<S>(db + at, packed<T>(to_b));
    if (y != nullptr) store_octet<S>(y + dense, packed<T>(results));
  }
  template <class Gate, class Tables>
  __device__ __forceinline__ void element(const Tables& tables, T dy, T a, T b, i64 at, i64 dense) const {
    const float factor = widen(b);
    const auto value = evaluate_gate(FloatOps{}, Gate::kind(), tables, widen(a));
    const auto both = gate_gradients(FloatOps{}, value, widen(dy), factor);
    da[at] = narrow<T>(both.da);
    db[at] = narrow<T>(both.db);
    if (y != nullptr) y[dense] = narrow<T>(mul_rn(value.f, factor));
  }
};

// Wide: rows consist of whole octets, and all arrays and the stride are aligned to 16 bytes.
template <class Gate, class T, bool Wide>
__global__ void __launch_bounds__(GatedSchedule::kSchedule.threads, GatedSchedule::kSchedule.resident_blocks)
    gated_forward(const T* a, const T* b, i64 rows, i64 n, i64 stride, T* y) {
  constexpr GpuSchedule S = GatedSchedule::kSchedule;
  const auto& tables = gate_tables<Gate>();
  over_gated<Wide>(rows, n, stride, [&](i64 at, i64 dense) {
    if constexpr (Wide) {
      store_octet<S>(y + dense, gated_octet<Gate>(tables, load_octet<S>(a + at), load_octet<S>(b + at)));
    } else {
      y[dense] = narrow<T>(gated_value<Gate>(tables, widen(a[at]), widen(b[at])));
    }
  });
}

// y is null if it is not wanted.
template <class Gate, class T, bool Wide>
__global__ void __launch_bounds__(GatedSchedule::kSchedule.threads, GatedSchedule::kSchedule.resident_blocks)
    gated_backward(const T* dy, const T* a, const T* b, i64 rows, i64 n, i64 stride, T* da, T* db, T* y) {
  constexpr GpuSchedule S = GatedSchedule::kSchedule;
  const auto& tables = gate_tables<Gate>();
  const GatedResults<T> to{da, db, y};
  over_gated<Wide>(rows, n, stride, [&](i64 at, i64 dense) {
    if constexpr (Wide) {
      to.template octet<Gate, S>(tables, load_octet<S>(dy + dense), load_octet<S>(a + at),
                                 load_octet<S>(b + at), at, dense);
    } else {
      to.template element<Gate>(tables, dy[dense], a[at], b[at], at, dense);
    }
  });
}

#ifndef __CUDACC_RTC__
namespace detail {

// Whether every array is aligned for wide accesses, and with them every row.
inline bool gated_is_wide(i64 n, std::initializer_list<const void*> arrays) {
  constexpr u64 kQuad = 16;
  bool wide = n % kOctet == 0;
  for (const void* array : arrays) wide = wide && reinterpret_cast<u64>(array) % kQuad == 0;
  return wide;
}

// rows, n >= 1, of a packed matrix or of two.
inline bool gated_shape_holds(i64 rows, i64 n) {
  return n <= kMostElements / 2 && matrix_elements(rows, 2 * n) >= 0;
}

struct GatedLaunch {
  DeviceKernel kernel;
  i64 rows, n;
  bool wide;
  cudaStream_t stream;
};
template <class... Parameters, class... Arguments>
cudaError_t launch_gated(const GatedLaunch& of, void (*kernel)(Parameters...), ResidentBlocks& resident,
                         const Arguments&... arguments) {
  PlanLimits limits;
  if (const cudaError_t status = limits_for<GatedSchedule::kSchedule>(kernel, resident, limits);
      status != cudaSuccess)
    return status;
  const PlannedLaunch planned =
      gated_plan(of.kernel, GatedSchedule::kSchedule, of.rows, of.n, of.wide, limits).launch[0];
  return launch(kernel, static_cast<unsigned>(planned.blocks), planned.threads, 0, of.stream, arguments...);
}

}  // namespace detail

// Takes device pointers, aligned to their element: y [rows, n] and a, b [rows, n] or, where b is null, a
// [rows, 2 n], whose rows hold those of a and then those of b. y may equal a or b unless they are packed.
// rows = 0 launches nothing. The result is cudaErrorInvalidValue for a null pointer, another overlap with
// what is written, and an impossible shape.
template <class Gate, class T>
cudaError_t launch_gated_forward(const T* a, const T* b, i64 rows, i64 n, T* y, cudaStream_t stream) {
  if (!detail::gated_shape_holds(rows, n)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const bool packed = b == nullptr;
  const i64 elements = rows * n;
  if (!(packed ? detail::operands_hold({detail::operand(a, 2 * elements), detail::written(y, elements)})
               : detail::operands_hold({detail::operand(a, elements), detail::operand(b, elements),
                                        detail::written(y, elements, a, b)})))
    return cudaErrorInvalidValue;
  static constinit ResidentBlocks resident[2];
  const bool wide = detail::gated_is_wide(n, {a, b, y});
  return detail::launch_gated({DeviceKernel::gated_forward, rows, n, wide, stream},
                              wide ? gated_forward<Gate, T, true> : gated_forward<Gate, T, false>,
                              resident[wide], a, packed ? a + n : b, rows, n, packed ? 2 * n : n, y);
}

// da, db [rows, n] or, where b is null, da [rows, 2 n] of the gradients of both. y is null, or [rows, n] for
// what the forward gave. da may equal a, db b, and y dy.
template <class Gate, class T>
cudaError_t launch_gated_backward(const T* dy, const T* a, const T* b, i64 rows, i64 n, T* da, T* db, T* y,
                                  cudaStream_t stream) {
  if (!detail::gated_shape_holds(rows, n)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const bool packed = b == nullptr;
  const i64 elements = rows * n, of_a = packed ? 2 * elements : elements, of_b = packed ? 0 : elements;
  if (!detail::operands_hold({detail::operand(dy, elements), detail::operand(a, of_a),
                              detail::operand(b, of_b), detail::written(da, of_a, a),
                              detail::written(db, of_b, b),
                              detail::optional(detail::written(y, elements, dy))}))
    return cudaErrorInvalidValue;
  static constinit ResidentBlocks resident[2];
  const bool wide = detail::gated_is_wide(n, {dy, a, b, da, db, y});
  return detail::launch_gated({DeviceKernel::gated_backward, rows, n, wide, stream},
                              wide ? gated_backward<Gate, T, true> : gated_backward<Gate, T, false>,
                              resident[wide], dy, a, packed ? a + n : b, rows, n, packed ? 2 * n : n, da,
                              packed ? da + n : db, y);
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
