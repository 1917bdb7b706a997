// Launches, and arrays on their way to the device and back.
#include "autotune/gpu/session.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <sstream>
#include <stdexcept>

#include "autotune/measure/workload.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/jit/nvrtc.h"
#include "kernels/support/jit/plan_arguments.h"

namespace outgrad::autotune::gpu {
namespace {

using kernels::i64;
using kernels::cuda::DeviceKernel;
using kernels::cuda::PlannedLaunch;

// What every allocation is aligned to (CUDA C++ Programming Guide, "Device memory accesses"), and the bytes
// that are watched around an array.
constexpr std::size_t kAlignment = 256;
constexpr unsigned char kUntouched = 0xa5;

// Memory of the device, as far from 256-byte alignment as an array of the host, watched on both sides.
class Mirror {
 public:
  Mirror(const Device& device, const void* host, std::size_t bytes)
      : device_(device), bytes_(bytes),
        begin_(kAlignment + reinterpret_cast<std::uintptr_t>(host) % kAlignment),
        memory_(device, begin_ + bytes + kAlignment) {
    device_.fill(memory_.address(), kUntouched, memory_.bytes());
  }
  void upload(const void* host) { device_.upload(address(), host, bytes_); }
  std::uint64_t address() const { return memory_.address() + begin_; }
  // Its bytes now. Throws WroteOutside when those around it have changed.
  std::vector<unsigned char> bytes() const {
    std::vector<unsigned char> all(memory_.bytes());
    device_.download(all.data(), memory_.address(), all.size());
    const auto touched = [](unsigned char byte) { return byte != kUntouched; };
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin_),
               last = first + static_cast<std::ptrdiff_t>(bytes_);
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

std::size_t LoadedVariant::bytes(const Operand& operand, i64 rows, i64 cols) const {
  if (operand.role != Role::kScratch) return variant.problem.sized(rows, cols).array_bytes(operand);
  const i64 words = is_norm(variant.problem.kernel) ? kernels::cuda::norm_backward_workspace(rows, cols)
                                                    : kernels::cuda::bias_backward_workspace(rows, cols);
  return static_cast<std::size_t>(words) * sizeof(float);
}

void LoadedVariant::launch(const Device& device, const Addresses& addresses, i64 rows, i64 cols) const {
  const Problem& problem = variant.problem;
  if (!variant.takes(cols))
    throw std::logic_error(variant.name() + " does not take rows of " + std::to_string(cols) + " columns");
  const bool empty = rows * cols == 0;
  if (empty && problem.kernel == KernelId::kBiasGeluBackward) {  // as its launcher does
    const std::span<const Operand> all = operands(problem.kernel);
    for (std::size_t k = 0; k < all.size(); ++k)
      if (all[k].extent == Extent::kColumns) device.fill(addresses[k], 0, bytes(all[k], rows, cols));
  }
  if (empty && !(is_norm(problem.kernel) && !is_forward(problem.kernel))) return;
  Arguments arrays;
  for (std::size_t k = 0; k < addresses.size(); ++k) arrays.array[k] = reinterpret_cast<void*>(addresses[k]);
  arrays.rows = rows, arrays.cols = cols, arrays.eps = eps;
  const kernels::cuda::LaunchPlan plan =
      variant.plan(rows, cols, limits, kernels::jit::writes_sums(problem.kernel, arrays));
  kernels::jit::PlanArguments arguments(problem.kernel, arrays);
  for (int i = 0; i < plan.launches; ++i) {
    const PlannedLaunch& planned = plan.launch[i];
    const Device::Kernel kernel = kernels.at(planned.kernel);
    if (planned.most_shared_bytes > 0) device.allow_shared(kernel, planned.most_shared_bytes);
    arguments.with(plan, planned, [&](const std::vector<void*>& parameters) {
      device.launch(kernel, static_cast<unsigned>(planned.blocks), static_cast<unsigned>(planned.threads),
                    static_cast<unsigned>(planned.shared_bytes), parameters);
    });
  }
}

LoadedVariant load(const Device& device, const GpuVariant& variant, const std::vector<Cubin>& cubins) {
  const Architecture& limits = device.limits();
  LoadedVariant loaded{variant, {}, {.sms = limits.sms, .shared_bytes = limits.shared_per_block}};
  for (const Cubin& cubin : cubins) {
    const std::vector<Device::Kernel> handles = device.load(cubin.content, cubin.symbols);
    for (std::size_t i = 0; i < handles.size(); ++i)
      for (std::size_t k = 0; k < std::size(kernels::cuda::kDeviceKernelNames); ++k)
        if (const auto kernel = static_cast<DeviceKernel>(k); is_symbol_of(cubin.symbols[i], kernel))
          loaded.kernels[kernel] = handles[i];
  }
  if (loaded.kernels.count(variant.main_kernel()) == 0)
    throw std::logic_error(variant.name() + ": no " + name_of(variant.main_kernel()) + " in its code");
  if (!is_norm(variant.problem.kernel) && variant.schedule.blocks_per_sm == kernels::kAllResident)
    loaded.limits.resident_blocks =
        device.resident_blocks(loaded.kernels.at(variant.main_kernel()), variant.schedule.threads, 0);
  return loaded;
}

std::vector<Cubin> read_cubins(const Compiled& code) {
  std::vector<Cubin> cubins;
  std::istringstream paths(code.library), lines(code.symbol);
  for (std::string path, line; std::getline(paths, path) && std::getline(lines, line);) {
    cubins.push_back({kernels::read_file(path), {}});
    std::istringstream symbols(line);
    for (std::string symbol; symbols >> symbol;) cubins.back().symbols.push_back(symbol);
  }
  return cubins;
}

std::function<void(const Arguments&)> on_host_arrays(const Device& device, const LoadedVariant& loaded,
                                                     Placement placement) {
  return [&device, loaded, placement](const Arguments& a) {
    const std::span<const Operand> all = operands(loaded.variant.problem.kernel);
    std::vector<std::unique_ptr<Mirror>> mirrors(all.size());
    std::vector<bool> written(all.size());
    Addresses addresses{};
    for (std::size_t k = 0; k < all.size(); ++k) {
      const bool scratch = all[k].role == Role::kScratch;
      if (a.array[k] == nullptr && !scratch) continue;
      // An output in place of an input is that input's memory.
      for (const int input : all[k].may_alias) {
        if (input == kNoOperand || a.array[input] != a.array[k] || all[k].role != Role::kOutput) continue;
        addresses[k] = addresses[static_cast<std::size_t>(input)];
        written[static_cast<std::size_t>(input)] = true;
      }
      if (addresses[k] != 0) continue;
      mirrors[k] =
          std::make_unique<Mirror>(device, scratch || placement == Placement::kAligned ? nullptr : a.array[k],
                                   loaded.bytes(all[k], a.rows, a.cols));
      // What is written holds what the host's array holds: elements that the kernel leaves out are seen.
      if (!scratch) mirrors[k]->upload(a.array[k]);
      addresses[k] = mirrors[k]->address();
    }
    loaded.launch(device, addresses, a.rows, a.cols);
    device.synchronise();
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (mirrors[k] == nullptr) continue;
      const std::vector<unsigned char> now = mirrors[k]->bytes();
      if (now.empty() || all[k].role == Role::kScratch) continue;
      if (all[k].role == Role::kOutput || written[k])
        std::memcpy(a.array[k], now.data(), now.size());
      else if (std::memcmp(now.data(), a.array[k], now.size()) != 0)
        throw WroteOutside("wrote to an input");
    }
  };
}

std::string run_on_device(int index, const Problem& problem, const Arguments& arguments, float eps,
                          std::shared_ptr<const FitChoice> fit) {
  const Device device(index);
  const Architecture& limits = device.limits();
  const Nvrtc& nvrtc = Nvrtc::instance();
  nvrtc.require(limits.name);
  const GpuVariant variant = default_gpu_variant(problem, limits, std::move(fit));
  std::vector<Cubin> cubins;
  for (const std::string& source : {variant.source(), variant.helper_source()}) {
    if (source.empty()) continue;
    auto result = nvrtc.compile(source, limits.name);
    if (const auto* error = std::get_if<CompileError>(&result))
      throw kernels::EnvironmentError(variant.name() + ": NVRTC: " + error->message);
    auto& code = std::get<GpuCode>(result);
    cubins.push_back({std::move(code.cubin), {}});
    for (const auto& [symbol, resources] : code.kernels) cubins.back().symbols.push_back(symbol);
  }
  LoadedVariant loaded = load(device, variant, cubins);
  loaded.eps = eps;
  on_host_arrays(device, loaded, Placement::kAligned)(arguments);
  return variant.name();
}

namespace {

class GpuExecutor : public Executor {
 public:
  explicit GpuExecutor(int index) : device_(index) {}

  std::function<void(const Arguments&)> function(const Candidate& candidate) override {
    return on_host_arrays(device_, loaded(candidate));
  }

  // Values repeat on the device as the host's Workspace repeats them.
  void allocate(const Problem& problem, std::uint64_t seed) override {
    problem_ = problem;
    const std::span<const Operand> all = operands(problem.kernel);
    for (std::size_t k = 0; k < all.size(); ++k) {
      const Operand& operand = all[k];
      if (operand.role == Role::kScratch) {
        scratch_ = k;
        continue;  // of the size that a variant says
      }
      arrays_[k] = Device::Memory(device_, problem.array_bytes(operand));
      addresses_[k] = arrays_[k].address();
      if (operand.role == Role::kOutput) continue;
      const i64 period = operand.element == Element::kMaskWord ? kWorkspacePeriod / 32 : kWorkspacePeriod,
                count = problem.count_of(operand), own = std::min(count, period);
      const Array values = filled(operand.content, operand.element, problem.format, own, seed);
      const std::size_t bytes = arrays_[k].bytes(),
                        own_bytes = static_cast<std::size_t>(own) *
                                    static_cast<std::size_t>(problem.element_bytes(operand));
      device_.upload(addresses_[k], values.get(), own_bytes);
      for (std::size_t done = own_bytes; done < bytes; done *= 2)
        device_.copy(addresses_[k] + done, addresses_[k], std::min(done, bytes - done));
    }
    device_.synchronise();
  }

  // A device-to-device copy, the ceiling that every figure is a share of: one stream in, one out.
  Workload ceiling() override {
    const std::span<const Operand> all = operands(problem_.kernel);
    std::size_t from = all.size(), to = all.size();
    for (std::size_t k = all.size(); k-- > 0;)
      if (all[k].extent == Extent::kElements) (all[k].role == Role::kInput ? from : to) = k;
    const std::size_t bytes = arrays_.at(to).bytes();
    return {"copy", 2.0 * static_cast<double>(bytes),
            [this, from, to, bytes] { device_.copy(addresses_[to], addresses_[from], bytes); }};
  }
  Workload workload(const Candidate& candidate) override {
    LoadedVariant code = loaded(candidate);
    if (scratch_ < kMostOperands && addresses_[scratch_] == 0) {
      arrays_[scratch_] = Device::Memory(
          device_, code.bytes(operands(problem_.kernel)[scratch_], problem_.rows, problem_.cols));
      addresses_[scratch_] = arrays_[scratch_].address();
    }
    return {candidate.variant().name(), problem_.bytes(), [this, code = std::move(code)] {
              code.launch(device_, addresses_, problem_.rows, problem_.cols);
            }};
  }
  Stopwatch stopwatch() const override {
    return [this](const std::function<void()>& run) { return device_.timed_ns(run); };
  }

 private:
  LoadedVariant loaded(const Candidate& candidate) const {
    return load(device_, candidate.variant_as<GpuVariant>(), read_cubins(*candidate.code()));
  }

  Device device_;
  Problem problem_;
  std::array<Device::Memory, kMostOperands> arrays_;
  Addresses addresses_{};
  std::size_t scratch_ = kMostOperands;  // none
};

}  // namespace

std::unique_ptr<Executor> open_device(int index) { return std::make_unique<GpuExecutor>(index); }

}  // namespace outgrad::autotune::gpu
