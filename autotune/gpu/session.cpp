// Launches, and arrays on their way to the device and back.
#include "autotune/gpu/session.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace outgrad::autotune::gpu {
namespace {

using kernels::i64;

constexpr int kOctet = 8;
// What every allocation is aligned to (CUDA C++ Programming Guide, "Device memory accesses"), and the bytes that are watched around an array.
constexpr std::size_t kAlignment = 256;
constexpr unsigned char kUntouched = 0xa5;

// A host array's copy on the device, as far from 256-byte alignment as the array itself, watched on both sides.
class Mirror {
 public:
  Mirror(const Device& device, const void* host, std::size_t bytes)
      : device_(device),
        bytes_(bytes),
        begin_(kAlignment + reinterpret_cast<std::uintptr_t>(host) % kAlignment),
        memory_(device, begin_ + bytes + kAlignment) {
    device_.fill(memory_.address(), kUntouched, memory_.bytes());
    device_.upload(address(), host, bytes);
  }
  std::uint64_t address() const { return memory_.address() + begin_; }
  // Its bytes now. Throws WroteOutside when those around it have changed.
  std::vector<unsigned char> bytes() const {
    std::vector<unsigned char> all(memory_.bytes());
    device_.download(all.data(), memory_.address(), all.size());
    const auto touched = [](unsigned char byte) { return byte != kUntouched; };
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin_), last = first + static_cast<std::ptrdiff_t>(bytes_);
    if (std::any_of(all.begin(), first, touched)) throw WroteOutside("wrote before the start of an array");
    if (std::any_of(last, all.end(), touched)) throw WroteOutside("wrote past the end of an array");
    return {first, last};
  }

 private:
  const Device& device_;
  std::size_t bytes_, begin_;
  Device::Memory memory_;
};

}  // namespace

unsigned LoadedVariant::blocks(i64 n) const {
  constexpr i64 kGridLimit = 0x7fffffff;  // gridDim.x
  const i64 per_block = static_cast<i64>(variant.schedule.threads) * variant.schedule.octets * kOctet;
  const i64 most = variant.schedule.blocks_per_sm > 0 ? static_cast<i64>(sms) * variant.schedule.blocks_per_sm : kGridLimit;
  return static_cast<unsigned>(std::min((n + per_block - 1) / per_block, most));
}

void LoadedVariant::launch(const Device& device, std::uint64_t first, std::uint64_t second, std::uint64_t mask, std::uint64_t out, i64 n) const {
  std::vector<void*> parameters = {&first, &second, &mask, &out, &n};
  if (variant.problem.kernel == KernelId::kGeluForward) parameters = {&first, &out, &mask, &n};
  device.launch(kernel, blocks(n), static_cast<unsigned>(variant.schedule.threads), parameters);
}

LoadedVariant load(const Device& device, const GpuVariant& variant, const std::string& cubin, const std::string& symbol) {
  if (variant.schedule.octets <= 0) throw std::logic_error("a variant without octets cannot be launched: its trip is unknown");
  return {variant, device.load(cubin, symbol), device.identity().limits.sms};
}

std::function<void(const Arguments&)> on_host_arrays(const Device& device, const LoadedVariant& loaded) {
  return [&device, loaded](const Arguments& a) {
    if (a.elements == 0) return;
    const bool backward = loaded.variant.problem.kernel == KernelId::kGeluBackward, in_place = a.out == a.first;
    const std::size_t bytes = static_cast<std::size_t>(a.elements) * static_cast<std::size_t>(bytes_of(loaded.variant.problem.format));
    const std::size_t words = static_cast<std::size_t>((a.elements + 31) / 32) * sizeof(kernels::u32);
    const Mirror first(device, a.first, bytes), second(device, a.second, backward ? bytes : 0), mask(device, a.mask, words),
        out(device, a.out, in_place ? 0 : bytes);
    loaded.launch(device, first.address(), second.address(), mask.address(), in_place ? first.address() : out.address(), a.elements);
    device.synchronise();
    const auto unchanged = [](const Mirror& mirror, const void* host) {
      const std::vector<unsigned char> now = mirror.bytes();
      if (!now.empty() && std::memcmp(now.data(), host, now.size()) != 0) throw WroteOutside("wrote to an input");
    };
    if (!in_place) unchanged(first, a.first);
    unchanged(second, a.second);
    if (backward) unchanged(mask, a.mask);
    const std::vector<unsigned char> result = (in_place ? first : out).bytes();
    std::memcpy(a.out, result.data(), result.size());
    if (!backward) std::memcpy(a.mask, mask.bytes().data(), words);
  };
}

}  // namespace outgrad::autotune::gpu
