// Launches, and arrays on their way to the device and back.
#include "autotune/gpu/session.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "autotune/workload.h"
#include "kernels/host/files.h"

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
    const i64 n = a.elements();
    if (n == 0) return;
    const bool backward = loaded.variant.problem.kernel == KernelId::kGeluBackward;
    void *const host_first = a.array[0], *const host_second = backward ? a.array[1] : nullptr, *const host_mask = a.array[2],
                *const host_out = a.array[backward ? 3 : 1];
    const bool in_place = host_out == host_first;
    const std::size_t bytes = static_cast<std::size_t>(n) * static_cast<std::size_t>(bytes_of(loaded.variant.problem.format));
    const std::size_t words = static_cast<std::size_t>((n + 31) / 32) * sizeof(kernels::u32);
    const Mirror first(device, host_first, bytes), second(device, host_second, backward ? bytes : 0), mask(device, host_mask, words),
        out(device, host_out, in_place ? 0 : bytes);
    loaded.launch(device, first.address(), second.address(), mask.address(), in_place ? first.address() : out.address(), n);
    device.synchronise();
    const auto unchanged = [](const Mirror& mirror, const void* host) {
      const std::vector<unsigned char> now = mirror.bytes();
      if (!now.empty() && std::memcmp(now.data(), host, now.size()) != 0) throw WroteOutside("wrote to an input");
    };
    if (!in_place) unchanged(first, host_first);
    unchanged(second, host_second);
    if (backward) unchanged(mask, host_mask);
    const std::vector<unsigned char> result = (in_place ? first : out).bytes();
    std::memcpy(host_out, result.data(), result.size());
    if (!backward) std::memcpy(host_mask, mask.bytes().data(), words);
  };
}

namespace {

class GpuExecutor : public Executor {
 public:
  explicit GpuExecutor(int index) : device_(index) {}

  std::function<void(const Arguments&)> function(const Candidate& candidate) override { return on_host_arrays(device_, loaded(candidate)); }

  // Values repeat on the device as the host's Workspace repeats them.
  void allocate(const Problem& problem, std::uint64_t seed) override {
    problem_ = problem;
    const i64 elements = problem.elements();
    const bool backward = problem.kernel == KernelId::kGeluBackward;
    const i64 own = std::min(elements, kWorkspacePeriod);
    const Workspace workspace(problem.sized(1, own), seed);
    const Arguments values = workspace.arguments();
    const std::size_t size = static_cast<std::size_t>(bytes_of(problem.format)), words = static_cast<std::size_t>((elements + 31) / 32);
    const auto repeated = [&](const void* host, std::size_t host_bytes, std::size_t bytes) {
      Device::Memory memory(device_, bytes);
      if (host == nullptr) return memory;
      device_.upload(memory.address(), host, std::min(host_bytes, bytes));
      for (std::size_t done = host_bytes; done < bytes; done *= 2)
        device_.copy(memory.address() + done, memory.address(), std::min(done, bytes - done));
      return memory;
    };
    const std::size_t own_bytes = static_cast<std::size_t>(own) * size, bytes = static_cast<std::size_t>(elements) * size;
    first_ = repeated(values.array[0], own_bytes, bytes);
    second_ = repeated(backward ? values.array[1] : nullptr, own_bytes, backward ? bytes : 0);
    mask_ = repeated(values.array[2], static_cast<std::size_t>((own + 31) / 32) * sizeof(kernels::u32), words * sizeof(kernels::u32));
    out_ = repeated(nullptr, 0, bytes);
    device_.synchronise();
  }

  // A device-to-device copy, the ceiling that every figure is a share of: one stream in, one out.
  Workload ceiling() override {
    return {"copy", 2.0 * static_cast<double>(out_.bytes()), [this] { device_.copy(out_.address(), first_.address(), out_.bytes()); }};
  }
  Workload workload(const Candidate& candidate) override {
    return {candidate.variant().name(), problem_.bytes(), [this, code = loaded(candidate)] {
              code.launch(device_, first_.address(), second_.address(), mask_.address(), out_.address(), problem_.elements());
            }};
  }
  Stopwatch stopwatch() const override {
    return [this](const std::function<void()>& run) { return device_.timed_ns(run); };
  }

 private:
  LoadedVariant loaded(const Candidate& candidate) const {
    const Compiled& code = *candidate.code();
    return load(device_, candidate.variant_as<GpuVariant>(), kernels::read_file(code.library), code.symbol);
  }

  Device device_;
  Problem problem_;
  Device::Memory first_, second_, mask_, out_;
};

}  // namespace

std::unique_ptr<Executor> open_device(int index) { return std::make_unique<GpuExecutor>(index); }

}  // namespace outgrad::autotune::gpu
