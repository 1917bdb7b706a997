// How host code starts a kernel, what it asks of the arrays, and how a kernel reaches its block's dynamic
// shared memory. Both are only here, so that the kernels' sources also compile for the host, where tests run
// a grid thread by thread.
#pragma once

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>

#include <initializer_list>
#include <tuple>
#endif

#include "kernels/portable.h"

namespace outgrad::kernels::inline OUTGRAD_ABI::cuda {

#ifdef OUTGRAD_GPU_STAND_IN
template <class T>
T* dynamic_shared() {
  return static_cast<T*>(stand_in_dynamic_shared());
}
#else
// The launch's dynamic shared memory, aligned to 16 bytes.
template <class T>
__device__ __forceinline__ T* dynamic_shared() {
  extern __shared__ uint4 outgrad_dynamic_shared[];
  return reinterpret_cast<T*>(outgrad_dynamic_shared);
}
#endif

#ifndef __CUDACC_RTC__
// Enqueues kernel(arguments...) on a one-dimensional grid. The result is that of this launch only: errors
// left behind by earlier calls are not reported here.
template <class... Parameters, class... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, size_t shared_bytes,
                   cudaStream_t stream, const Arguments&... arguments) {
  std::tuple<Parameters...> values(arguments...);
  return std::apply(
      [&](auto&... value) {
        void* pointers[] = {&value...};
        return cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), pointers, shared_bytes, stream);
      },
      values);
}

namespace detail {

// An array that a launcher was given. If it has 0 bytes, its pointer may be anything.
struct Operand {
  u64 address;
  i64 bytes;
  u64 alignment;
  bool written;
  bool optional = false;  // may be null
  u64 may_equal[2] = {};  // addresses of arrays of the same size that an output may be equal to
};

template <class T>
Operand operand(const T* pointer, i64 count) {
  return {reinterpret_cast<u64>(pointer), count * static_cast<i64>(sizeof(T)), alignof(T), false};
}
template <class T>
Operand optional(const T* pointer, i64 count) {
  Operand result = operand(pointer, count);
  result.optional = true;
  return result;
}
template <class T>
Operand written(T* pointer, i64 count, const void* may_equal = nullptr, const void* or_equal = nullptr) {
  Operand result = operand(pointer, count);
  result.written = true;
  result.may_equal[0] = reinterpret_cast<u64>(may_equal);
  result.may_equal[1] = reinterpret_cast<u64>(or_equal);
  return result;
}
inline Operand optional(Operand result) {
  result.optional = true;
  return result;
}

// Whether every array is valid, and no output overlaps anything except the arrays that it may equal.
inline bool operands_hold(std::initializer_list<Operand> operands) {
  for (const Operand& each : operands) {
    if (each.bytes == 0 || (each.optional && each.address == 0)) continue;
    if (each.address == 0 || each.address % each.alignment != 0 ||
        each.address + static_cast<u64>(each.bytes) < each.address)
      return false;
  }
  for (const Operand& target : operands) {
    if (!target.written || target.address == 0) continue;
    for (const Operand& other : operands) {
      if (&other == &target || other.address == 0 || other.bytes == 0 || target.bytes == 0) continue;
      const bool apart = target.address + static_cast<u64>(target.bytes) <= other.address ||
                         other.address + static_cast<u64>(other.bytes) <= target.address;
      const bool same = target.address == other.address && target.bytes == other.bytes &&
                        (other.address == target.may_equal[0] || other.address == target.may_equal[1]);
      if (!apart && (!same || other.written)) return false;
    }
  }
  return true;
}

}  // namespace detail
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
