// What every command of outgrad-gpu does on the device: memory, stimuli made in place, hashes, and the
// difference from the host's arrays.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/host_side.h"
#include "tests/gpu/stimulus.h"
#include "kernels/support/errors.h"

namespace outgrad::tests::gpu {

// Throws CudaError, with what a user can do about the failures that are the machine's.
void check(cudaError_t status, const char* what);

// Device memory of one array.
template <class T>
class Array {
 public:
  Array() = default;
  explicit Array(i64 n) : size_(n) {
    check(cudaMalloc(&data_, static_cast<size_t>(std::max<i64>(n, 1)) * sizeof(T)), "device memory");
  }
  Array(Array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Array& operator=(Array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~Array() { cudaFree(data_); }
  T* get() const { return data_; }
  i64 size() const { return size_; }
  std::vector<T> to_host() const {
    std::vector<T> host(static_cast<size_t>(size_));
    check(cudaMemcpy(host.data(), data_, host.size() * sizeof(T), cudaMemcpyDeviceToHost),
          "copy to the host");
    return host;
  }

 private:
  T* data_ = nullptr;
  i64 size_ = 0;
};

// A stream that does not wait for the default one.
class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }
  void synchronise(const char* what) const { check(cudaStreamSynchronize(stream_), what); }

 private:
  cudaStream_t stream_ = nullptr;
};

// What `enqueue` enqueues on a stream, to be launched as often as wanted. While it is captured, a launch on
// the default stream is an error, and so is an allocation or a wait.
class Graph {
 public:
  template <class Enqueue>
  Graph(const Stream& stream, const Enqueue& enqueue) {
    cudaGraph_t graph;
    check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "capture");
    enqueue();
    check(cudaStreamEndCapture(stream.get(), &graph), "capture");
    const cudaError_t status = cudaGraphInstantiateWithFlags(&instance_, graph, 0);
    cudaGraphDestroy(graph);
    check(status, "graph");
  }
  Graph(Graph&& other) noexcept : instance_(std::exchange(other.instance_, nullptr)) {}
  Graph& operator=(Graph&&) = delete;
  ~Graph() {
    if (instance_ != nullptr) cudaGraphExecDestroy(instance_);
  }
  void launch(const Stream& stream) const { check(cudaGraphLaunch(instance_, stream.get()), "graph"); }

 private:
  cudaGraphExec_t instance_ = nullptr;
};

// Elements by their index: the functions of stimulus.h, as objects that host and device call. Instances are
// in device_side.cu.
template <class T, class Value>
void fill(T* array, i64 n, Value value, cudaStream_t stream = nullptr);
template <class T, class Value>
void fill(const Array<T>& array, Value value, cudaStream_t stream = nullptr) {
  fill(array.get(), array.size(), value, stream);
}

template <class T>
struct ArgumentAt {
  u64 begin;
  OUTGRAD_HD T operator()(u64 i) const { return argument<T>(begin + i); }
};
template <class T>
struct SweptAt {
  u64 begin;
  OUTGRAD_HD T operator()(u64 i) const { return swept<T>(begin + i); }
};
template <class T>
struct OneAt {
  OUTGRAD_HD T operator()(u64) const { return kernels::narrow<T>(1.0f); }
};
template <class T>
struct GradientAt {
  u64 begin;
  OUTGRAD_HD T operator()(u64 i) const { return gradient<T>(begin + i); }
};
struct MaskAt {
  u64 begin_word;
  bool complement;
  OUTGRAD_HD u32 operator()(u64 i) const { return mask_word(begin_word + i, complement); }
};
template <class T>
struct UniformAt {
  u64 stream;
  OUTGRAD_HD T operator()(u64 i) const { return kernels::narrow<T>(uniform(stream, i)); }
};
// N(0, 1), by Box and Muller: for timing alone, since no two libraries agree on these functions' last bits.
template <class T>
struct NormalAt {
  u64 stream;
  OUTGRAD_HD T operator()(u64 i) const {
    const u64 bits = mix(stream * 0x2545f4914f6cdd1du + i);
    const float in_0_1 = (static_cast<float>(bits >> 40) + 1.0f) * 0x1p-24f,
                turn = static_cast<float>(bits & 0xffffffu) * 0x1p-24f;
    return kernels::narrow<T>(sqrtf(-2.0f * logf(in_0_1)) * cosf(6.2831853f * turn));
  }
};
struct GammaAt {
  OUTGRAD_HD float operator()(u64 i) const { return gamma_at(i); }
};

// Each element by a factor, in place: beside a copy the least that a kernel over these arrays can do. `array`
// is aligned to 16 bytes.
template <class T>
void scale_in_place(T* array, i64 n, float factor, cudaStream_t stream);

// Sum of hash_term(begin + i, bits of element i), as host_hash has it.
template <class T>
u64 device_hash(const Array<T>& array, u64 begin);

// Overwrites arrays, so that what is compared is what was computed last; done when this returns.
template <class... Arrays>
void spoil_all(const Arrays&... arrays) {
  constexpr int kByte = 0xcb;
  (check(cudaMemset(arrays.get(), kByte, static_cast<size_t>(arrays.size()) * sizeof(*arrays.get())),
         "spoil"),
   ...);
  check(cudaDeviceSynchronize(), "spoil");
}

// Empty when device and host agree, else the first element that differs.
template <class T>
std::string difference(const char* name, const Array<T>& device, const std::vector<T>& host, u64 begin,
                       u64& hash) {
  const u64 got = device_hash(device, begin), want = host_hash(host, begin);
  hash += got;
  if (got == want) return {};
  const std::vector<T> copied = device.to_host();
  for (size_t i = 0; i < host.size(); ++i) {
    if (hash_bits(copied[i]) == hash_bits(host[i])) continue;
    char text[96];
    std::snprintf(text, sizeof text, "%s[%llu]: device 0x%x, host 0x%x", name,
                  static_cast<unsigned long long>(begin + i), hash_bits(copied[i]), hash_bits(host[i]));
    return text;
  }
  return std::string(name) + ": hashes differ though all elements agree";
}

}  // namespace outgrad::tests::gpu
