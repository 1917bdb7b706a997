// Outputs of the device on their way to the host's hashes: each thread has a stream, arrays and pinned memory
// of its own, so that the device computes and copies chunks of some threads while others hash theirs.
#include "tests/gpu/device_digests.h"

#include <thread>

#include "tests/gpu/device_side.cuh"
#include "tests/gpu/launches.cuh"

namespace outgrad::tests::gpu {
namespace {

template <class T>
class Pinned {
 public:
  explicit Pinned(i64 n) {
    check(cudaMallocHost(reinterpret_cast<void**>(&data_), static_cast<size_t>(n) * sizeof(T)),
          "pinned memory");
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;
  ~Pinned() { cudaFreeHost(data_); }
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
};

template <class T>
class DeviceOutputs : public SweptOutputs<T> {
 public:
  static constexpr i64 kMost = std::min<i64>(kSweepChunk, i64{1} << std::min<size_t>(8 * sizeof(T), 32));

  DeviceOutputs()
      : y_(kMost), dx_(kMost), mask_(kMost / 32), host_y_(kMost), host_dx_(kMost), host_mask_(kMost / 32) {}

  typename SweptOutputs<T>::Chunk compute(u64 begin, i64 n) override {
    const cudaStream_t stream = stream_.get();
    fill(y_.get(), n, SweptAt<T>{begin}, stream);
    fill(dx_.get(), n, OneAt<T>{}, stream);
    check(launches::gelu_forward(y_.get(), y_.get(), mask_.get(), n, stream), "gelu_forward");
    check(launches::gelu_backward(dx_.get(), y_.get(), mask_.get(), dx_.get(), n, stream), "gelu_backward");
    const auto to_host = [&]<class Element>(const Pinned<Element>& to, const Array<Element>& from,
                                            i64 count) {
      check(cudaMemcpyAsync(to.get(), from.get(), static_cast<size_t>(count) * sizeof(Element),
                            cudaMemcpyDeviceToHost, stream),
            "copy to the host");
    };
    to_host(host_y_, y_, n);
    to_host(host_mask_, mask_, (n + 31) / 32);
    to_host(host_dx_, dx_, n);
    stream_.synchronise("gelu over all patterns");
    return {host_y_.get(), host_mask_.get(), host_dx_.get()};
  }

 private:
  Stream stream_;
  Array<T> y_, dx_;
  Array<u32> mask_;
  Pinned<T> host_y_, host_dx_;
  Pinned<u32> host_mask_;
};

}  // namespace

template <class T>
OutputDigests device_digests() {
  return digests_of<T>([] { return std::make_unique<DeviceOutputs<T>>(); },
                       static_cast<int>(std::thread::hardware_concurrency()));
}
template OutputDigests device_digests<float>();
template OutputDigests device_digests<kernels::F16>();
template OutputDigests device_digests<kernels::BF16>();

}  // namespace outgrad::tests::gpu
