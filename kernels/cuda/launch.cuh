// How host code starts a kernel, and how a kernel reaches its block's dynamic shared memory. Both are only
// here, so that the kernels' sources also compile for the host, where tests run a grid thread by thread.
#pragma once

#ifndef __CUDACC_RTC__
#include <cuda_runtime.h>

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
#endif

}  // namespace outgrad::kernels::inline OUTGRAD_ABI::cuda
