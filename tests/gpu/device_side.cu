// Kernels that make stimuli and hash arrays.
#include "tests/gpu/device_side.cuh"

#include "kernels/cuda/launch.cuh"

namespace outgrad::tests::gpu {
namespace {

constexpr int kThreads = 256;
unsigned blocks_for(i64 n) {
  return static_cast<unsigned>(std::clamp<i64>((n + kThreads - 1) / kThreads, 1, 4096));
}

template <class T, class Value>
__global__ void fill_kernel(T* array, i64 n, Value value) {
  for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<i64>(gridDim.x) * blockDim.x)
    array[i] = value(static_cast<u64>(i));
}

template <class T>
__global__ void hash_kernel(const T* array, i64 n, u64 begin, unsigned long long* sum) {
  u64 own = 0;
  for (i64 i = static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += static_cast<i64>(gridDim.x) * blockDim.x)
    own += hash_term(begin + static_cast<u64>(i), hash_bits(array[i]));
  for (int half = 16; half > 0; half /= 2) own += __shfl_xor_sync(0xffffffffu, own, half);
  if (threadIdx.x % 32 == 0) atomicAdd(sum, static_cast<unsigned long long>(own));
}

constexpr int kScaleVectors = 4;  // of 16 bytes to a thread

template <class T>
struct alignas(16) Vector {
  T element[16 / sizeof(T)];
};

template <class T>
__global__ void scale_kernel(T* array, i64 n, float factor) {
  constexpr i64 kElements = 16 / sizeof(T);
  const i64 first = static_cast<i64>(blockIdx.x) * blockDim.x * kScaleVectors + threadIdx.x;
  Vector<T> vector[kScaleVectors];
  for (int k = 0; k < kScaleVectors; ++k) {
    const i64 at = (first + k * static_cast<i64>(blockDim.x)) * kElements;
    if (at + kElements <= n) vector[k] = *reinterpret_cast<const Vector<T>*>(array + at);
  }
  for (int k = 0; k < kScaleVectors; ++k) {
    const i64 at = (first + k * static_cast<i64>(blockDim.x)) * kElements;
    for (T& element : vector[k].element)
      element = kernels::narrow<T>(kernels::mul_rn(factor, kernels::widen(element)));
    if (at + kElements <= n) {
      *reinterpret_cast<Vector<T>*>(array + at) = vector[k];
    } else {
      for (i64 i = at; i < n; ++i)
        array[i] = kernels::narrow<T>(kernels::mul_rn(factor, kernels::widen(array[i])));
    }
  }
}

}  // namespace

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::string why = cudaGetErrorString(status);
  if (status == cudaErrorInsufficientDriver) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    const auto version = [](int number) {
      return std::to_string(number / 1000) + "." + std::to_string(number % 1000 / 10);
    };
    why = driver == 0 ? "no NVIDIA driver"
                      : "the driver is of CUDA " + version(driver) +
                            ", too old for this program's toolkit, " + version(runtime);
  }
  if (status == cudaErrorNoDevice)
    why =
        "no CUDA device (or CUDA_VISIBLE_DEVICES hides it, or its MIG mode is on and no instance is given to "
        "this user)";
  if (status == cudaErrorNoKernelImageForDevice)
    why = "the device is of an architecture that this program was not built for (CMAKE_CUDA_ARCHITECTURES)";
  if (status == cudaErrorDevicesUnavailable)
    why = "the device is busy: another process has it for itself, or its compute mode forbids all";
  if (status == cudaErrorMemoryAllocation) why = "out of memory: another process may hold the device's";
  throw kernels::CudaError(std::string("outgrad-gpu: ") + what + ": " + why);
}

template <class T, class Value>
void fill(T* array, i64 n, Value value, cudaStream_t stream) {
  if (n > 0)
    check(kernels::cuda::launch(fill_kernel<T, Value>, blocks_for(n), kThreads, 0, stream, array, n, value),
          "fill");
}

template <class T>
void scale_in_place(T* array, i64 n, float factor, cudaStream_t stream) {
  constexpr i64 kPerBlock = i64{kThreads} * kScaleVectors * (16 / sizeof(T));
  check(kernels::cuda::launch(scale_kernel<T>, static_cast<unsigned>((n + kPerBlock - 1) / kPerBlock),
                              kThreads, 0, stream, array, n, factor),
        "scale");
}

template <class T>
u64 device_hash(const Array<T>& array, u64 begin) {
  const Array<unsigned long long> sum(1);
  check(cudaMemset(sum.get(), 0, sizeof(unsigned long long)), "hash");
  check(kernels::cuda::launch(hash_kernel<T>, blocks_for(array.size()), kThreads, 0, nullptr, array.get(),
                              array.size(), begin, sum.get()),
        "hash");
  return sum.to_host().front();
}

#define OUTGRAD_FOR_FORMAT(T)                                 \
  template void fill(T*, i64, ArgumentAt<T>, cudaStream_t);   \
  template void fill(T*, i64, SweptAt<T>, cudaStream_t);      \
  template void fill(T*, i64, OneAt<T>, cudaStream_t);        \
  template void fill(T*, i64, GradientAt<T>, cudaStream_t);   \
  template void fill(T*, i64, UniformAt<T>, cudaStream_t);    \
  template void fill(T*, i64, NormalAt<T>, cudaStream_t);     \
  template void scale_in_place(T*, i64, float, cudaStream_t); \
  template u64 device_hash(const Array<T>&, u64);
OUTGRAD_FOR_FORMAT(float)
OUTGRAD_FOR_FORMAT(kernels::F16)
OUTGRAD_FOR_FORMAT(kernels::BF16)
#undef OUTGRAD_FOR_FORMAT
template void fill(u32*, i64, MaskAt, cudaStream_t);
template void fill(float*, i64, GammaAt, cudaStream_t);
template u64 device_hash(const Array<u32>&, u64);

}  // namespace outgrad::tests::gpu
