// The launchers with the schedule, and for GELU the fit, that a tuned header's tables have for the current
// device and the problem's size. The header is the one that OUTGRAD_TUNED_CUDA_HEADER names, or the default
// header. The device is asked for its name once. A launch then compares texts and sizes, and otherwise
// behaves like the launcher of that schedule: it allocates nothing, never synchronises, and may be captured
// in a graph.
#pragma once

#include "kernels/cuda/bias.cuh"
#include "kernels/cuda/choice.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/layernorm.cuh"

#ifndef __CUDACC_RTC__

#include <atomic>
#include <mutex>
#include <type_traits>

namespace outgrad::kernels::inline OUTGRAD_ABI {

namespace cuda {

// The current device, read by the first call for that device and then kept. The number of devices that are
// kept is limited. For other devices all texts of the key are null, so that they run the default.
inline cudaError_t this_device(DeviceKey& key) {
  constexpr int kMostDevices = 64;
  struct Kept {
    std::atomic<bool> known{false};
    GpuKey key;
  };
  static Kept kept[kMostDevices];
  static std::mutex writing;
  key = {};
  int device = 0;
  if (const cudaError_t status = cudaGetDevice(&device); status != cudaSuccess) return status;
  if (device < 0 || device >= kMostDevices) return cudaSuccess;
  Kept& own = kept[device];
  if (!own.known.load(std::memory_order_acquire)) {
    cudaDeviceProp properties;
    if (const cudaError_t status = cudaGetDeviceProperties(&properties, device); status != cudaSuccess)
      return status;
    const std::lock_guard lock(writing);
    if (!own.known.load(std::memory_order_relaxed)) {
      own.key = key_of(properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                       properties.totalGlobalMem);
      own.known.store(true, std::memory_order_release);
    }
  }
  key = own.key.key();
  return cudaSuccess;
}

namespace tuned {

// The tables' entry for a size on the current device.
template <class Table>
cudaError_t find(i64 rows, i64 cols, Found& found) {
  DeviceKey device;
  if constexpr (kChooses<Table>) {
    if (const cudaError_t status = this_device(device); status != cudaSuccess) return status;
  }
  found = find<Table>(device, rows, cols);
  return cudaSuccess;
}

// Calls body(Choice{}), a launch, with the table's choice for a problem of this size.
template <class Table, class Body>
cudaError_t run(i64 rows, i64 cols, const Body& body) {
  Found found;
  if constexpr (Table::Choices::kCount > 1) {
    if (const cudaError_t status = find<Table>(rows, cols, found); status != cudaSuccess) return status;
  }
  return with_choice(typename Table::Choices{}, Table::kEntries[found.entry].choice, body);
}

// Arguments and errors are those of the launchers with the same names in cuda::.

template <class T>
cudaError_t launch_gelu_forward(const T* x, T* y, u32* mask, i64 n, cudaStream_t stream) {
  return run<GeluForward<T>>(1, n, [&]<class Choice>(Choice) {
    return cuda::launch_gelu_forward<typename Choice::Fit, T, Choice>(x, y, mask, n, stream);
  });
}

template <class T>
cudaError_t launch_gelu_backward(const T* dy, const T* y, const u32* mask, T* dx, i64 n,
                                 cudaStream_t stream) {
  return run<GeluBackward<T>>(1, n, [&]<class Choice>(Choice) {
    return cuda::launch_gelu_backward<typename Choice::Fit, T, T, Choice>(dy, y, mask, dx, n, stream);
  });
}

template <class T>
cudaError_t launch_bias_gelu_forward(const T* x, const float* bias, i64 rows, i64 n, T* y, u32* mask,
                                     cudaStream_t stream) {
  return run<BiasGeluForward<T>>(rows, n, [&]<class Choice>(Choice) {
    return cuda::launch_bias_gelu_forward<typename Choice::Fit, T, float, Choice>(x, bias, rows, n, y, mask,
                                                                                  stream);
  });
}

template <class T>
cudaError_t launch_bias_gelu_backward(const T* dy, const T* y, const u32* mask, i64 rows, i64 n, T* dx,
                                      float* dbias, float* workspace, i64 workspace_words,
                                      cudaStream_t stream) {
  return run<BiasGeluBackward<T>>(rows, n, [&]<class Choice>(Choice) {
    return cuda::launch_bias_gelu_backward<typename Choice::Fit, T, Choice>(
        dy, y, mask, rows, n, dx, dbias, workspace, workspace_words, stream);
  });
}

template <Norm N, class T>
cudaError_t launch_norm_forward(const NormForwardArrays<T>& a, cudaStream_t stream) {
  using Table = std::conditional_t<N == Norm::layer, LayernormForward<T>, RmsnormForward<T>>;
  return run<Table>(a.rows, a.n,
                    [&]<class Choice>(Choice) { return cuda::launch_norm_forward<N, T, Choice>(a, stream); });
}

template <Norm N, class T>
cudaError_t launch_residual_norm_forward(const NormForwardArrays<T>& a, cudaStream_t stream) {
  using Table = std::conditional_t<N == Norm::layer, ResidualLayernormForward<T>, ResidualRmsnormForward<T>>;
  return run<Table>(a.rows, a.n, [&]<class Choice>(Choice) {
    return cuda::launch_residual_norm_forward<N, T, Choice>(a, stream);
  });
}

template <Norm N, class T>
cudaError_t launch_norm_backward(const NormBackwardArrays<T>& a, const NormBackwardColumns& of,
                                 cudaStream_t stream) {
  using Table = std::conditional_t<N == Norm::layer, LayernormBackward<T>, RmsnormBackward<T>>;
  return run<Table>(a.rows, a.n, [&]<class Choice>(Choice) {
    return cuda::launch_norm_backward<N, T, Choice>(a, of, stream);
  });
}

template <Norm N, class T>
cudaError_t launch_residual_norm_backward(const NormBackwardArrays<T>& a, const NormBackwardColumns& of,
                                          cudaStream_t stream) {
  using Table =
      std::conditional_t<N == Norm::layer, ResidualLayernormBackward<T>, ResidualRmsnormBackward<T>>;
  return run<Table>(a.rows, a.n, [&]<class Choice>(Choice) {
    return cuda::launch_residual_norm_backward<N, T, Choice>(a, of, stream);
  });
}

}  // namespace tuned
}  // namespace cuda
}  // namespace outgrad::kernels::inline OUTGRAD_ABI
#endif
