// The gated pair z = f(a) b that keeps z, b and a bit on a GPU, forward and backward in one pass each
// (kernels/product.h). Every bit is the host's; the contract is that of kernels/host/product.h.
//
// Work is cut and moved as in kernels/cuda/gated.cuh, but that a thread always has an octet of z, and with it
// a byte of the mask. Elements of an octet that are not in one row, or not aligned, go one by one.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/gated.cuh"
#include "kernels/product.h"
#include "kernels/product_fits.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

// each(k, at, dense) for the elements of the octets, one by one: k-th of its octet, where it is in a matrix
// whose rows begin `stride` apart, and in a dense one. end(octet) after those of an octet.
template <class Each, class End>
__device__ __forceinline__ void over_ragged_octets(i64 rows, i64 n, i64 stride, const Each& each,
                                                   const End& end) {
  const i64 elements = rows * n, octets = (elements + kOctet - 1) / kOctet;
#pragma unroll 1
  for (i64 octet = blockIdx.x * i64{GatedSchedule::kSchedule.threads} + threadIdx.x; octet < octets;
       octet += gridDim.x * i64{GatedSchedule::kSchedule.threads}) {
#pragma unroll 1
    for (i64 dense = octet * kOctet; dense < elements && dense < (octet + 1) * kOctet; ++dense)
      each(static_cast<int>(dense % kOctet), dense / n * stride + dense % n, dense);
    end(octet);
  }
}

// Wide: rows consist of whole octets, and all arrays and the stride are aligned to 16 bytes.
template <class Gate, class T, bool Wide>
__global__ void __launch_bounds__(GatedSchedule::kSchedule.threads, GatedSchedule::kSchedule.resident_blocks)
    product_forward(const T* a, const T* b, i64 rows, i64 n, i64 stride, T* z, T* slot, u32* mask) {
  constexpr GpuSchedule S = GatedSchedule::kSchedule;
  constexpr float kXStar = ProductFit<Gate, T>::Forward::kXStar;
  const auto& tables = gate_tables<Gate>();
  auto* const bytes = reinterpret_cast<u8*>(mask);
  const auto kept = [&](float x, float factor) {
    const float f = evaluate_gate(FloatOps{}, Gate::kind(), tables, x).f;
    return keep_product(FloatOps{}, widen(narrow<T>(mul_rn(f, factor))), widen(narrow<T>(f)), factor);
  };
  if constexpr (Wide) {
    over_gated<true>(rows, n, stride, [&](i64 at, i64 dense) {
      const Octet<T> x = load_octet<S>(a + at), factor = load_octet<S>(b + at);
      float products[kOctet], slots[kOctet];
      u32 bits = 0;
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k) {
        const auto both = kept(widened(x, k), widened(factor, k));
        products[k] = both.z, slots[k] = both.slot;
        bits |= static_cast<u32>(kXStar <= widened(x, k)) << k;
      }
      store_octet<S>(z + dense, packed<T>(products));
      store_octet<S>(slot + dense, packed<T>(slots));
      bytes[dense / kOctet] = static_cast<u8>(bits);
    });
  } else {
    u32 bits = 0;
    over_ragged_octets(
        rows, n, stride,
        [&](int k, i64 at, i64 dense) {
          const float x = widen(a[at]);
          const auto both = kept(x, widen(b[at]));
          z[dense] = narrow<T>(both.z);
          slot[dense] = narrow<T>(both.slot);
          bits |= static_cast<u32>(kXStar <= x) << k;
        },
        [&](i64 octet) {
          bytes[octet] = static_cast<u8>(bits);
          bits = 0;
        });
  }
  clear_mask_end(bytes, rows * n);
}

template <class Gate, class T, bool Wide>
__global__ void __launch_bounds__(GatedSchedule::kSchedule.threads, GatedSchedule::kSchedule.resident_blocks)
    product_backward(const T* dz, const T* z, const T* slot, const u32* mask, i64 rows, i64 n, i64 stride,
                     T* da, T* db) {
  constexpr GpuSchedule S = GatedSchedule::kSchedule;
  // s is an fp32 number, whatever T is.
  using Fit = DeviceFit<typename ProductFit<Gate, T>::Type, float>;
  const auto& table = resident_table<Fit, S.table, S.threads>();
  const auto ops = ops_for<typename ProductFit<Gate, T>::Type, float>(table);
  const auto* const bytes = reinterpret_cast<const u8*>(mask);
  if constexpr (Wide) {
    over_gated<true>(rows, n, stride, [&](i64 at, i64 dense) {
      const Octet<T> gradient = load_octet<S>(dz + dense), product = load_octet<S>(z + dense),
                     own = load_octet<S>(slot + dense);
      const u32 bits = bytes[dense / kOctet];
      float to_a[kOctet], to_b[kOctet];
      OUTGRAD_UNROLL
      for (int k = 0; k < kOctet; ++k) {
        const auto both = product_gradients(ops, Fit{}, table, widened(gradient, k), widened(product, k),
                                            widened(own, k), is_set(bits, k));
        to_a[k] = both.da, to_b[k] = both.db;
      }
      store_octet<S>(da + at, packed<T>(to_a));
      store_octet<S>(db + at, packed<T>(to_b));
    });
  } else {
    over_ragged_octets(
        rows, n, stride,
        [&](int k, i64 at, i64 dense) {
          const auto both = product_gradients(ops, Fit{}, table, widen(dz[dense]), widen(z[dense]),
                                              widen(slot[dense]), is_set(bytes[dense / kOctet], k));
          da[at] = narrow<T>(both.da);
          db[at] = narrow<T>(both.db);
        },
        [](i64) {});
  }
}

#ifndef __CUDACC_RTC__
// Takes device pointers, aligned to their element: a and b as launch_gated_forward does, z and slot [rows,
// n], and the words of a mask. z may equal a and slot b unless they are packed. rows = 0 launches nothing.
// The result is cudaErrorInvalidValue for a null pointer, another overlap with what is written, and an
// impossible shape.
template <class Gate, class T>
cudaError_t launch_product_forward(const T* a, const T* b, i64 rows, i64 n, T* z, T* slot, u32* mask,
                                   cudaStream_t stream) {
  if (!detail::gated_shape_holds(rows, n)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const bool packed = b == nullptr;
  const i64 elements = rows * n;
  const auto bits = detail::written(mask, mask_words(elements));
  if (!(packed ? detail::operands_hold({detail::operand(a, 2 * elements), detail::written(z, elements),
                                        detail::written(slot, elements), bits})
               : detail::operands_hold({detail::operand(a, elements), detail::operand(b, elements),
                                        detail::written(z, elements, a), detail::written(slot, elements, b),
                                        bits})))
    return cudaErrorInvalidValue;
  static constinit ResidentBlocks resident[2];
  const bool wide = detail::gated_is_wide(n, {a, b, z, slot});
  return detail::launch_gated({DeviceKernel::product_forward, rows, n, wide, stream},
                              wide ? product_forward<Gate, T, true> : product_forward<Gate, T, false>,
                              resident[wide], a, packed ? a + n : b, rows, n, packed ? 2 * n : n, z, slot,
                              mask);
}

// da, db [rows, n] or, where db is null, da [rows, 2 n] of the gradients of both. da may equal dz, and db the
// slots, unless they are packed.
template <class Gate, class T>
cudaError_t launch_product_backward(const T* dz, const T* z, const T* slot, const u32* mask, i64 rows, i64 n,
                                    T* da, T* db, cudaStream_t stream) {
  if (!detail::gated_shape_holds(rows, n)) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const bool packed = db == nullptr;
  const i64 elements = rows * n;
  const auto of_dz = detail::operand(dz, elements), of_z = detail::operand(z, elements),
             of_slot = detail::operand(slot, elements), bits = detail::operand(mask, mask_words(elements));
  if (!(packed ? detail::operands_hold({of_dz, of_z, of_slot, bits, detail::written(da, 2 * elements)})
               : detail::operands_hold({of_dz, of_z, of_slot, bits, detail::written(da, elements, dz),
                                        detail::written(db, elements, slot)})))
    return cudaErrorInvalidValue;
  static constinit ResidentBlocks resident[2];
  const bool wide = detail::gated_is_wide(n, {dz, z, slot, da, db});
  return detail::launch_gated({DeviceKernel::product_backward, rows, n, wide, stream},
                              wide ? product_backward<Gate, T, true> : product_backward<Gate, T, false>,
                              resident[wide], dz, z, slot, mask, rows, n, packed ? 2 * n : n, da,
                              packed ? da + n : db);
}
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
