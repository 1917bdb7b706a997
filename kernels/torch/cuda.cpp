// A kernel is found by the template instance that it is. The first call of a kernel compiles it, or reads the
// result of an earlier process.
#include "kernels/torch/cuda.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "kernels/activations.h"
#include "kernels/catalogue/codes.h"
#include "kernels/catalogue/few_bits.h"
#include "kernels/catalogue/stores.h"
#include "kernels/cuda/choice.h"
#include "kernels/cuda/plan.h"
#include "kernels/dropout.h"
#include "kernels/forward_fits.h"
#include "kernels/gate.h"
#include "kernels/host/call.h"
#include "kernels/norm_store.h"
#include "kernels/product_fits.h"
#include "kernels/softmax.h"
#include "kernels/stored.h"
#include "kernels/support/digest.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/jit/driver.h"
#include "kernels/support/jit/nvrtc.h"
#include "kernels/support/jit/plan_arguments.h"
#include "kernels/support/jit/program.h"
#include "kernels/support/jit/schedule.h"

namespace outgrad::torch_operators {
namespace {

using kernels::Arguments;
using kernels::GpuNormSchedule;
using kernels::GpuSchedule;
using kernels::i64;
using kernels::KernelId;
using kernels::SpecError;
using kernels::cuda::completed;
using kernels::cuda::DeviceKernel;
using kernels::cuda::LaunchPlan;
using kernels::cuda::PlannedLaunch;
using kernels::jit::Driver;

namespace jit = kernels::jit;

void require(bool holds, const char* kernel, const char* what) {
  if (!holds) throw SpecError(std::string("outgrad: ") + kernel + ": " + what);
}

const char* type_of(outgrad_format format) {
  return by_type(format, []<class T>(T) { return kernels::Format<T>::kType; });
}

// ---- Compiled programs --------------------------------------------------------------------------

// A cubin and the mangled names of its kernels.
struct Program {
  std::string cubin;
  std::vector<std::string> symbols;
};

// The folder where programs are kept between processes; empty if no place is named.
std::string cache_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  if (const std::string own = variable("OUTGRAD_CACHE"); !own.empty()) return own;
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) return cache + "/outgrad";
  if (const std::string home = variable("HOME"); !home.empty()) return home + "/.cache/outgrad";
  return "";
}

// Everything on which a program's code depends, apart from its own source.
std::string embedded_digest() {
  kernels::Sha256 digest;
  for (const jit::EmbeddedSource& source : jit::embedded_kernels()) {
    digest.add(source.name, std::string_view(source.name).size() + 1);
    digest.add(source.text, std::string_view(source.text).size() + 1);
  }
  return kernels::hex(digest.digest());
}

// The content of a file: the digest of all that follows, a line of symbols, the cubin. A damaged file gives
// nothing.
std::string file_of(const Program& program) {
  std::string content;
  for (const std::string& symbol : program.symbols) content += (content.empty() ? "" : " ") + symbol;
  content += "\n" + program.cubin;
  return kernels::sha256(content) + "\n" + content;
}
std::optional<Program> program_in(const std::string& file) {
  const std::size_t end = file.find('\n');
  if (end == std::string::npos ||
      kernels::sha256(std::string_view(file).substr(end + 1)) != file.substr(0, end))
    return {};
  const std::size_t line = file.find('\n', end + 1);
  if (line == std::string::npos) return {};
  Program program{file.substr(line + 1), {}};
  for (std::size_t at = end + 1; at < line;) {
    const std::size_t next = std::min(file.find(' ', at), line);
    program.symbols.push_back(file.substr(at, next - at));
    at = next + 1;
  }
  return program;
}

Program compiled(const std::string& source, const std::string& architecture) {
  const jit::Nvrtc& nvrtc = jit::Nvrtc::instance();
  static const std::string kEmbedded = embedded_digest();
  const std::string folder = cache_folder(), path = folder + "/" +
                                                    kernels::sha256(source + "\n" + architecture + "\n" +
                                                                    nvrtc.version() + "\n" + kEmbedded) +
                                                    ".cubin";
  if (!folder.empty()) {
    try {
      if (std::optional<Program> kept = program_in(kernels::read_file(path))) return *std::move(kept);
    } catch (const kernels::IoError&) {  // usually because it does not exist
    }
  }
  nvrtc.require(architecture);
  auto result = nvrtc.compile(source, architecture);
  if (const auto* error = std::get_if<jit::CompileError>(&result))
    throw kernels::EnvironmentError("outgrad: NVRTC " + nvrtc.version() + ": " + error->message);
  auto& code = std::get<jit::GpuCode>(result);
  Program program{std::move(code.cubin), {}};
  for (const auto& kernel : code.kernels) program.symbols.push_back(kernel.first);
  if (!folder.empty()) {
    try {
      kernels::write_file(path, file_of(program));
    } catch (const kernels::IoError&) {  // the next process then compiles it again
    }
  }
  return program;
}

// ---- A device and the kernels that are loaded there ---------------------------------------------

struct Kernel {
  Driver::Handle handle = nullptr;
  int resident_blocks = 0;  // for an elementwise kernel: blocks that an SM holds at once
  // bytes of dynamic shared memory that it may be launched with; read and written atomically
  mutable std::int64_t allowed_shared = 0;
};
using Kernels = std::map<DeviceKernel, Kernel>;

// While this object exists, calls that allocate memory are not an error during a capture on another stream,
// or on this one (CUDA driver API, "Stream management").
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  ~RelaxedCapture() { exchange(); }

 private:
  void exchange() { Driver::instance().exchange_capture_mode(&mode_); }
  int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED; afterwards the thread's own mode
};

class Gpu {
 public:
  // The first call for a device opens it.
  static Gpu& of(int device) {
    static std::array<std::atomic<Gpu*>, 64> known{};  // without a lock, for each launch
    if (device < 0 || static_cast<std::size_t>(device) >= known.size()) return opened(device);
    std::atomic<Gpu*>& gpu = known[static_cast<std::size_t>(device)];
    if (Gpu* found = gpu.load(std::memory_order_acquire); found != nullptr) return *found;
    Gpu& found = opened(device);
    gpu.store(&found, std::memory_order_release);
    return found;
  }

  void allow_shared(const Kernel& kernel, std::int64_t bytes) {
    if (std::atomic_ref(kernel.allowed_shared).load(std::memory_order_relaxed) >= bytes) return;
    const std::unique_lock lock(mutex_);
    if (kernel.allowed_shared >= bytes) return;
    Driver::instance().allow_shared(kernel.handle, bytes);
    std::atomic_ref(kernel.allowed_shared).store(bytes, std::memory_order_relaxed);
  }

  static Gpu& opened(int device) {
    static std::mutex opening;
    static std::map<int, std::unique_ptr<Gpu>> open;
    const std::lock_guard lock(opening);
    std::unique_ptr<Gpu>& gpu = open[device];
    if (gpu == nullptr) gpu.reset(new Gpu(device));
    return *gpu;
  }

  Driver::Handle context() const { return context_; }
  kernels::DeviceKey key() const { return key_.key(); }
  const kernels::cuda::PlanLimits& limits() const { return limits_; }

  // The kernels of the program that source() returns, found by its key. threads: those of a block of an
  // elementwise kernel, otherwise 0. Must be called in the device's context.
  template <class Source>
  // by value: the result refers to none of them
  const Kernels& kernels_of(std::string key, int threads, Source source) {
    {
      const std::shared_lock lock(mutex_);
      if (const auto found = loaded_.find(key); found != loaded_.end()) return found->second;
    }
    const std::unique_lock lock(mutex_);
    if (const auto found = loaded_.find(key); found != loaded_.end()) return found->second;
    // its address never changes
    return loaded_.emplace(std::move(key), load(compiled(source(), architecture_), threads)).first->second;
  }

 private:
  explicit Gpu(int index) {
    const Driver& driver = Driver::instance();
    int device = 0;
    driver.check(driver.get(&device, index), "cuDeviceGet");
    using enum jit::DeviceAttribute;
    const int major = driver.attribute_of(device, kMajor), minor = driver.attribute_of(device, kMinor);
    architecture_ = "sm_" + std::to_string(10 * major + minor);
    limits_.sms = driver.attribute_of(device, kMultiprocessors);
    limits_.shared_bytes = driver.attribute_of(device, kSharedPerBlock);
    char name[256] = {};
    std::size_t memory = 0;
    driver.check(driver.name(name, sizeof name - 1, device), "cuDeviceGetName");
    driver.check(driver.total(&memory, device), "cuDeviceTotalMem");
    key_ = kernels::cuda::key_of(name, major, minor, limits_.sms, memory);
    // PyTorch's own context; kept until the process ends
    driver.check(driver.retain(&context_, device), "cuDevicePrimaryCtxRetain");
  }

  static Kernels load(const Program& program, int threads) {
    const Driver& driver = Driver::instance();
    const RelaxedCapture relaxed;
    Driver::Handle module = nullptr;
    driver.check(driver.load(&module, program.cubin.data()), "cuModuleLoadData");
    Kernels kernels;
    for (const std::string& symbol : program.symbols) {
      Kernel kernel;
      driver.check(driver.function(&kernel.handle, module, symbol.c_str()), "cuModuleGetFunction");
      if (threads > 0) kernel.resident_blocks = driver.resident_blocks(kernel.handle, threads, 0);
      for (std::size_t k = 0; k < std::size(kernels::cuda::kDeviceKernelNames); ++k)
        if (const auto which = static_cast<DeviceKernel>(k); jit::is_symbol_of(symbol, which))
          kernels[which] = kernel;
    }
    return kernels;
  }

  std::string architecture_;
  kernels::cuda::PlanLimits limits_;
  kernels::cuda::GpuKey key_;
  Driver::Handle context_ = nullptr;
  std::shared_mutex mutex_;
  std::unordered_map<std::string, Kernels> loaded_;
};

// The key of an instance, which distinguishes it from all others without its source: any values of fixed
// size, and text.
template <class Schedule, class... Values>
std::string key_of(std::string_view function, Schedule schedule, Values... values) {
  std::string key(function);
  const auto add = [&](const auto& value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  key += '\0';
  (add(static_cast<int>(values)), ...);
  jit::each_field(schedule, [&](const char*, const auto& field) { add(static_cast<int>(field)); });
  return key;
}

// A device, in whose context this thread works for a while, and the stream.
class At {
 public:
  explicit At(const Cuda::Where& on) : gpu(Gpu::of(on.device)), stream_(on.stream) {
    const Driver& driver = Driver::instance();
    Driver::Handle current = nullptr;
    driver.check(driver.current(&current), "cuCtxGetCurrent");
    if (current == gpu.context()) return;  // as it is where PyTorch works on this device
    driver.check(driver.push_context(gpu.context()), "cuCtxPushCurrent");
    pushed_ = true;
  }
  At(const At&) = delete;
  At& operator=(const At&) = delete;
  ~At() {
    if (!pushed_) return;
    Driver::Handle popped = nullptr;
    Driver::instance().pop_context(&popped);
  }

  void launch(const Kernel& kernel, const PlannedLaunch& planned,
              const std::vector<void*>& parameters) const {
    const Driver& driver = Driver::instance();
    require(planned.blocks <= kernels::cuda::kGridLimit, jit::name_of(planned.kernel),
            "the arrays are larger than a device's grid");
    if (planned.most_shared_bytes > 0) gpu.allow_shared(kernel, planned.most_shared_bytes);
    driver.check(driver.launch(kernel.handle, static_cast<unsigned>(planned.blocks), 1, 1,
                               static_cast<unsigned>(planned.threads), 1, 1,
                               static_cast<unsigned>(planned.shared_bytes), stream_,
                               const_cast<void**>(parameters.data()), nullptr),
                 "cuLaunchKernel");
  }
  // Launches the plan's kernels in their order; kernel(planned) finds each.
  struct OfNorms {
    kernels::SideWatch watch = {};
    kernels::SideGuard guard = {};
    kernels::cuda::NormDropout dropout = {};
    kernels::cuda::NormCodes kept = {};
  };
  template <class Find>
  void launch(KernelId kernel, const LaunchPlan& plan, const Arguments& arguments, const Find& find,
              const OfNorms& of = {}) const {
    jit::PlanArguments own(kernel, arguments, of.watch, of.guard, of.dropout, of.kept);
    for (int i = 0; i < plan.launches; ++i) {
      own.with(plan, plan.launch[i], [&](const std::vector<void*>& parameters) {
        launch(find(plan.launch[i]), plan.launch[i], parameters);
      });
    }
  }
  void fill_with_zeros(void* array, std::size_t bytes) const {
    const Driver& driver = Driver::instance();
    driver.check(driver.fill(reinterpret_cast<std::uint64_t>(array), 0, bytes, stream_), "cuMemsetD8Async");
  }

  Gpu& gpu;

 private:
  void* stream_;
  bool pushed_ = false;
};

// for the widest access
bool is_aligned(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0; }

// The pointers of inputs are not used for writing. They are not const because a row of arguments has one
// type.
void* input(const void* pointer) { return const_cast<void*>(pointer); }

// ---- Elementwise kernels ------------------------------------------------------------------------

// What a launch needs to know about a fit.
struct FitFacts {
  const char* name;
  bool rows, masked;
};
template <class Fit>
constexpr FitFacts facts_of() {
  return {Fit::kName, kernels::cuda::has_rows<Fit>(), Fit::kMasked};
}
template <class... Fit>
constexpr std::array<FitFacts, kernels::kActivations> facts_of(kernels::FitList<Fit...>) {
  return {facts_of<Fit>()...};
}

// What the main kernel of a program is made from: a fit, an activation's name, for codes its place among the
// names, and for y in 8 bits at a scale the type of its activation.
struct Elementwise {
  DeviceKernel kernel;
  outgrad_format format = OUTGRAD_F32;
  std::string_view function = {};
  GpuSchedule schedule = {};
  bool wide = false;
  const char* stored = "";  // the type of what is stored in place of y, where it is not the format's
  int code_bits = 0;
  bool dithered = false;
  const char* bias = "float";  // the bias's format
};

std::string source_of(const Elementwise& of) {
  std::string_view function = of.function;
  jit::ElementwiseInstance instance{.kernel = of.kernel,
                                    .type = type_of(of.format),
                                    .wide = of.wide,
                                    .schedule = of.schedule,
                                    .stored = of.stored,
                                    .code_bits = of.code_bits,
                                    .dithered = of.dithered,
                                    .bias = of.bias};
  switch (of.kernel) {
    case DeviceKernel::dropout:
    case DeviceKernel::activation_backward_fp8:
    case DeviceKernel::encode_gradients:
    case DeviceKernel::activation_backward_code:
    case DeviceKernel::tensor_maxima:
    case DeviceKernel::encode_tensor:
    case DeviceKernel::decode_tensor:
    case DeviceKernel::encode_tensor_blocks:
    case DeviceKernel::decode_tensor_blocks: break;
    case DeviceKernel::fp8_table:
    case DeviceKernel::activation_forward_fp8: instance.function = function; break;
    case DeviceKernel::activation_forward_code:
      instance.function = "CodedActivationAt<" + std::string(function) + ">";
      break;
    case DeviceKernel::activation_forward:
    case DeviceKernel::activation_forward_parity:
      if (function != kernels::kActivationNames[OUTGRAD_GELU]) {
        instance.function = "forwards::" + jit::type_name(function);
        break;
      }
      function = kernels::ForwardFit<float>::Type::kName;
      [[fallthrough]];
    default: instance.function = jit::fit_type(function); instance.declaration = jit::fit_include(function);
  }
  return jit::source(instance);
}

const Kernel& kernel_of(Gpu& gpu, const Elementwise& of) {
  const std::string function = std::string(of.function) + '\0' + of.stored + '\0' + of.bias;
  return gpu
      .kernels_of(key_of(function, of.schedule, of.kernel, of.format, of.wide, of.code_bits, of.dithered),
                  of.schedule.threads, [&] { return source_of(of); })
      .at(of.kernel);
}

kernels::cuda::PlanLimits limits_with(const Gpu& gpu, const Kernel& kernel) {
  kernels::cuda::PlanLimits limits = gpu.limits();
  limits.resident_blocks = kernel.resident_blocks;
  return limits;
}

// Calls body(Choice{}) with a tuned table's choice.
template <class Table, class Body>
void with_tuned(const Gpu& gpu, i64 rows, i64 cols, const Body& body) {
  const kernels::Found found = kernels::cuda::tuned::find<Table>(gpu.key(), rows, cols);
  kernels::with_choice(typename Table::Choices{}, Table::kEntries[found.entry].choice, body);
}

void launch_elementwise(const At& at, KernelId id, const Elementwise& of, const Arguments& arguments) {
  const Kernel& code = kernel_of(at.gpu, of);
  at.launch(id,
            kernels::cuda::elementwise_plan(of.kernel, of.schedule, arguments.elements(),
                                            limits_with(at.gpu, code)),
            arguments, [&](const PlannedLaunch&) -> const Kernel& { return code; });
}

void require_activation(outgrad_activation activation) {
  if (activation < 0 || activation >= kernels::kActivations)
    throw SpecError("outgrad: activation " + std::to_string(activation) + " is unknown");
}

// ---- Activations with each store ----------------------------------------------------------------

void forward_with_y(const Cuda::Where& on, outgrad_call of) {
  if (of.n == 0) return;
  const At at(on);
  const Arguments arguments{{input(of.x), of.y, of.mask}, 1, of.n};
  by_type(of.format, [&]<class T>(T) {
    const kernels::cuda::ElementWork work{
        .forward = true, .bias = false, .element_bytes = sizeof(T), .rows = true};
    if (of.activation != OUTGRAD_GELU) {
      return launch_elementwise(
          at, KernelId::kGeluForward,
          {DeviceKernel::activation_forward, of.format, kernels::kActivationNames[of.activation],
           completed(kernels::cuda::forwards_schedule(
                         kernels::has_forward_fit<T>(kernels::kActivationNames[of.activation]), sizeof(T)),
                     work)},
          arguments);
    }
    with_tuned<kernels::cuda::tuned::GeluForward<T>>(at.gpu, 1, of.n, [&]<class Choice>(Choice) {
      launch_elementwise(
          at, KernelId::kGeluForward,
          {DeviceKernel::gelu_forward, of.format, Choice::Fit::kName, completed(Choice::kSchedule, work)},
          arguments);
    });
  });
}

void backward_from_y(const Cuda::Where& on, outgrad_call of) {
  if (of.n == 0) return;
  const At at(on);
  const Arguments arguments{{input(of.dy), of.y, of.mask, of.dx}, 1, of.n};
  by_type(of.format, [&]<class T>(T) {
    const auto launch = [&](const FitFacts& fit, const GpuSchedule& schedule) {
      require(of.mask != nullptr || !fit.masked, "activation_backward", "mask is null");
      const kernels::cuda::ElementWork work{
          .forward = false, .bias = false, .element_bytes = sizeof(T), .rows = fit.rows};
      launch_elementwise(at, KernelId::kGeluBackward,
                         {DeviceKernel::activation_backward, of.format, fit.name, completed(schedule, work)},
                         arguments);
    };
    static constexpr auto kFits = facts_of(typename kernels::ActivationFits<T>::Type{});
    if (of.activation != OUTGRAD_GELU)
      return launch(kFits[static_cast<std::size_t>(of.activation)], kernels::DefaultGpuSchedule::kSchedule);
    with_tuned<kernels::cuda::tuned::GeluBackward<T>>(at.gpu, 1, of.n, [&]<class Choice>(Choice) {
      launch(facts_of<typename Choice::Fit>(), Choice::kSchedule);
    });
  });
}

// Launches a kernel over elements, whose format it gets, with pointers to its parameters.
void launch_over(const Cuda::Where& on, Elementwise kernel, const outgrad_call& of,
                 const std::vector<void*>& parameters) {
  if (of.n == 0) return;
  const At at(on);
  kernel.format = of.format;
  const Kernel& code = kernel_of(at.gpu, kernel);
  at.launch(code,
            kernels::cuda::elementwise_plan(kernel.kernel, kernel.schedule, of.n, limits_with(at.gpu, code))
                .launch[0],
            parameters);
}

int element_bytes_of(outgrad_format format) {
  return by_type(format, []<class T>(T) { return static_cast<int>(sizeof(T)); });
}
GpuSchedule forward_schedule(const GpuSchedule& schedule, outgrad_format format) {
  return completed(schedule,
                   {.forward = true, .bias = false, .element_bytes = element_bytes_of(format), .rows = true});
}
GpuSchedule backward_schedule(outgrad_format format, bool rows) {
  return completed(
      kernels::DefaultGpuSchedule::kSchedule,
      {.forward = false, .bias = false, .element_bytes = element_bytes_of(format), .rows = rows});
}

[[noreturn]] void refuse_activation(const outgrad_call& of, const char* why) {
  throw SpecError(std::string("outgrad: ") + kernels::kActivationNames[of.activation] + why);
}

// The fit for a y that carries its branch.
template <class... Fit>
FitFacts parity_fit(kernels::ParityFitList<Fit...>, std::string_view activation) {
  FitFacts found{nullptr, false, true};
  ((activation == Fit::kActivation ? void(found = facts_of<Fit>()) : void()), ...);
  return found;
}

struct ParityOf {
  FitFacts fit;
  const char* type;
};
ParityOf parity_of(const outgrad_call& of) {
  if (of.format == OUTGRAD_F32) throw SpecError("outgrad: y carries its branch in f16 and bf16, not in f32");
  const auto parity = [&]<class Y>(Y) {
    return ParityOf{
        parity_fit(typename kernels::ParityFits<Y>::Type{}, kernels::kActivationNames[of.activation]),
        kernels::Format<Y>::kType};
  };
  const ParityOf found =
      of.format == OUTGRAD_F16 ? parity(kernels::ParityF16{}) : parity(kernels::ParityBf16{});
  if (found.fit.name == nullptr) refuse_activation(of, " rises: there is no branch for y to carry");
  return found;
}

void forward_with_parity(const Cuda::Where& on, outgrad_call of) {
  const ParityOf parity = parity_of(of);
  launch_over(on,
              {.kernel = DeviceKernel::activation_forward_parity,
               .function = kernels::kActivationNames[of.activation],
               .schedule = forward_schedule(kernels::cuda::StoreSchedule::kSchedule, of.format),
               .stored = parity.type},
              of, {&of.x, &of.y, &of.n});
}

void backward_from_parity(const Cuda::Where& on, outgrad_call of) {
  const ParityOf parity = parity_of(of);
  const std::uint32_t* mask = nullptr;
  launch_over(on,
              {.kernel = DeviceKernel::activation_backward,
               .function = parity.fit.name,
               .schedule = backward_schedule(of.format, parity.fit.rows),
               .stored = parity.type},
              of, {&of.dy, &of.y, &mask, &of.dx, &of.n});
}

void forward_with_code(const Cuda::Where& on, outgrad_call of) {
  const std::string function = std::to_string(of.activation);
  launch_over(on,
              {.kernel = DeviceKernel::activation_forward_code,
               .function = function,
               .schedule = forward_schedule(kernels::cuda::StoreSchedule::kSchedule, of.format),
               .code_bits = of.bits,
               .dithered = of.seed != nullptr},
              of, {&of.x, &of.y, &of.codes, &of.n, &of.seed});
}

// Codes of the call's range: pointers are those to the arrays, and n, the seed and the rule follow.
void launch_coded(const Cuda::Where& on, DeviceKernel kernel, outgrad_call& of, std::vector<void*> pointers) {
  if (!kernels::code_range_holds({of.lo, of.hi}))
    throw SpecError("outgrad: this is no range of f' that codes are proven for");
  const bool dithered = of.seed != nullptr;
  kernels::CodeRule rule = dithered ? kernels::dithered_code({of.lo, of.hi}, of.bits)
                                    : kernels::exact_code({of.lo, of.hi}, of.bits);
  pointers.insert(pointers.end(), {&of.n, &of.seed, &rule});
  launch_over(on,
              {.kernel = kernel,
               .schedule = backward_schedule(of.format, false),
               .code_bits = of.bits,
               .dithered = dithered},
              of, pointers);
}

template <class... Code>
kernels::CodeRange range_of(kernels::FitList<Code...>, outgrad_activation activation) {
  constexpr kernels::CodeRange kRanges[] = {{Code::kLo, Code::kHi}...};
  return kRanges[activation];
}

void backward_from_code(const Cuda::Where& on, outgrad_call of) {
  const kernels::CodeRange range = range_of(kernels::ActivationCodes{}, of.activation);
  of.lo = range.lo;
  of.hi = range.hi;
  launch_coded(on, DeviceKernel::activation_backward_code, of, {&of.dy, &of.codes, &of.dx});
}

void forward_in_mxfp8(const Cuda::Where& on, outgrad_call of) {
  launch_over(on,
              {.kernel = DeviceKernel::gelu_forward_mxfp8,
               .function = by_type(of.format, []<class T>(T) { return kernels::ForwardFit<T>::Type::kName; }),
               .schedule = forward_schedule(kernels::DefaultGpuSchedule::kSchedule, of.format)},
              of, {&of.x, &of.codes, &of.scales, &of.mask, &of.n});
}

void backward_from_mxfp8(const Cuda::Where& on, outgrad_call of) {
  constexpr FitFacts kFit = facts_of<kernels::generated::GeluMxfp8>();
  kernels::Stored<kernels::MxFp8> y = kernels::stored<kernels::MxFp8>(of.codes, of.scales);
  launch_over(on,
              {.kernel = DeviceKernel::activation_backward,
               .function = kFit.name,
               .schedule = backward_schedule(of.format, kFit.rows),
               .stored = kernels::Format<kernels::MxFp8>::kType},
              of, {&of.dy, &y, &of.mask, &of.dx, &of.n});
}

// y in 8 bits at a scale: the format of the codes and the activation's type.
struct ScaledOf {
  const char* format;
  std::string activation;
};
ScaledOf scaled_of(const outgrad_call& of) {
  const std::string name = kernels::kActivationNames[of.activation];
  const auto is_kept = [&]<class... S>(kernels::Fp8List<S...>) {
    return ((S::Header::kActivation == name) || ...);
  };
  if (!is_kept(kernels::Fp8Activations{})) refuse_activation(of, " rises: y alone gives its derivative");
  return {of.store == OUTGRAD_STORE_E4M3   ? kernels::Format<kernels::F8E4M3>::kType
          : of.store == OUTGRAD_STORE_E5M2 ? kernels::Format<kernels::F8E5M2>::kType
                                           : kernels::Format<kernels::I8>::kType,
          "Fp8Activation<" + jit::fit_type(name + "_fp8") + ">"};
}

// Enqueues the making of the scale's table.
ScaledOf with_table(const Cuda::Where& on, outgrad_call& of) {
  ScaledOf scaled = scaled_of(of);
  if (of.n == 0) return scaled;
  constexpr DeviceKernel kKernel = DeviceKernel::fp8_table;
  const At at(on);
  const Kernel& code = kernel_of(
      at.gpu,
      {.kernel = kKernel, .format = OUTGRAD_F32, .function = scaled.activation, .stored = scaled.format});
  at.launch(code, {.kernel = kKernel, .blocks = 1, .threads = kernels::kFp8Codes},
            {&of.scale, &of.bits, &of.workspace});
  return scaled;
}

void forward_at_scale(const Cuda::Where& on, outgrad_call of) {
  const ScaledOf scaled = with_table(on, of);
  launch_over(on,
              {.kernel = DeviceKernel::activation_forward_fp8,
               .function = scaled.activation,
               .schedule = forward_schedule(kernels::cuda::StoreSchedule::kSchedule, of.format),
               .stored = scaled.format,
               .code_bits = of.bits},
              of, {&of.workspace, &of.scale, &of.x, &of.codes, &of.parts, &of.n});
}

void backward_at_scale(const Cuda::Where& on, outgrad_call of) {
  with_table(on, of);
  launch_over(on,
              {.kernel = DeviceKernel::activation_backward_fp8,
               .schedule = backward_schedule(of.format, false),
               .code_bits = of.bits},
              of, {&of.workspace, &of.dy, &of.codes, &of.parts, &of.dx, &of.n});
}

// Where a store's forward and backward are launched.
struct StoreLaunches {
  void (*forward)(const Cuda::Where&, outgrad_call);
  void (*backward)(const Cuda::Where&, outgrad_call);
};
StoreLaunches launches_of(const outgrad_call& of) {
  require_activation(of.activation);
  switch (of.store) {
    case OUTGRAD_STORE_Y: return {forward_with_y, backward_from_y};
    case OUTGRAD_STORE_PARITY: return {forward_with_parity, backward_from_parity};
    case OUTGRAD_STORE_CODE: return {forward_with_code, backward_from_code};
    case OUTGRAD_STORE_MXFP8:
      if (of.activation != OUTGRAD_GELU) refuse_activation(of, ": y in mxfp8 is for gelu alone");
      return {forward_in_mxfp8, backward_from_mxfp8};
    case OUTGRAD_STORE_E4M3:
    case OUTGRAD_STORE_E5M2:
    case OUTGRAD_STORE_INT8: return {forward_at_scale, backward_at_scale};
    default:
      throw SpecError(std::string("outgrad: the store ") + kernels::kStores[of.store].name +
                      " is for CPUs alone");
  }
}

}  // namespace

std::size_t Cuda::store_workspace_bytes(outgrad_store store) {
  return store >= OUTGRAD_STORE_E4M3 && store <= OUTGRAD_STORE_INT8 ? sizeof(kernels::Fp8Table) : 0;
}

void Cuda::activation_forward(const outgrad_call& of) const { launches_of(of).forward(on_, of); }

void Cuda::activation_backward(const outgrad_call& of) const { launches_of(of).backward(on_, of); }

void Cuda::encode_gradients(outgrad_call of) const {
  launch_coded(on_, DeviceKernel::encode_gradients, of, {&of.g, &of.codes});
}

void Cuda::backward_encoded(outgrad_call of) const {
  launch_coded(on_, DeviceKernel::activation_backward_code, of, {&of.dy, &of.codes, &of.dx});
}

// ---- Softmax ------------------------------------------------------------------------------------

namespace {

// parameters: the kernel's pointers.
void launch_softmax(const At& at, DeviceKernel kernel, outgrad_call& of, std::vector<void*> parameters) {
  require(of.n >= 1 && of.n <= kernels::kMostSoftmax, jit::name_of(kernel), "a row has 1 to 2^23 elements");
  if (of.rows == 0) return;
  const char* const type = type_of(of.format);
  const int warps = kernels::cuda::softmax_warps(of.n);
  const std::string key = key_of(type, GpuSchedule{}, kernel, warps);
  const Kernel& code =
      at.gpu.kernels_of(key, 0, [&] { return jit::softmax_source(kernel, type, warps); }).at(kernel);
  parameters.insert(parameters.end(), {&of.rows, &of.n});
  at.launch(code, kernels::cuda::softmax_launch(kernel, of.rows, warps), parameters);
}

}  // namespace

void Cuda::softmax_forward(outgrad_call of) const {
  launch_softmax(At(on_), DeviceKernel::softmax_forward_code, of, {&of.x, &of.y, &of.codes});
}

void Cuda::softmax_backward(outgrad_call of) const {
  launch_softmax(At(on_), DeviceKernel::softmax_backward_code, of, {&of.dy, &of.codes, &of.dx});
}

// ---- Gated pairs --------------------------------------------------------------------------------

namespace {

// The rows of a packed matrix's halves, as the kernels take them; of a product's backward, which has no b, db
// says that they are apart.
struct GatedHalves {
  const void *a, *b;
  void *da, *db;
  i64 stride;
};
GatedHalves halves_of(const outgrad_call& of) {
  if (of.b != nullptr || of.db != nullptr) return {of.x, of.b, of.dx, of.db, of.n};
  const i64 bytes = of.n * element_bytes_of(of.format);
  const auto behind = [&](auto* first) -> decltype(first) {
    using Byte =
        std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(first)>>, const char, char>;
    return first == nullptr ? nullptr : static_cast<Byte*>(first) + bytes;
  };
  return {of.x, behind(of.x), of.dx, behind(of.dx), 2 * of.n};
}

// parameters: the kernel's pointers.
const Kernel& gated_kernel(const At& at, DeviceKernel kernel, const outgrad_call& of, bool wide,
                           const char* kept = "") {
  const char *const type = type_of(of.format), *const gate = kernels::kActivationNames[of.activation];
  const GpuSchedule schedule = kernels::cuda::GatedSchedule::kSchedule;
  return at.gpu
      .kernels_of(key_of(std::string(gate) + '\0' + kept, schedule, kernel, of.format, wide),
                  schedule.threads, [&] { return jit::gated_source(kernel, gate, type, wide, kept); })
      .at(kernel);
}
void launch_gated(const At& at, DeviceKernel kernel, const outgrad_call& of, bool wide,
                  const std::vector<void*>& parameters, const char* kept = "") {
  const Kernel& code = gated_kernel(at, kernel, of, wide, kept);
  at.launch(code,
            kernels::cuda::gated_plan(kernel, kernels::cuda::GatedSchedule::kSchedule, of.rows, of.n, wide,
                                      limits_with(at.gpu, code))
                .launch[0],
            parameters);
}

// How the pair's kernels know its store.
const char* kept_by(const outgrad_call& of) {
  return of.store == OUTGRAD_STORE_E4M3   ? "cuda::AtScale<F8E4M3>"
         : of.store == OUTGRAD_STORE_E5M2 ? "cuda::AtScale<F8E5M2>"
                                          : "cuda::InBlocks";
}
kernels::cuda::GatedCodes codes_of(const GatedIn8Bits& of) {
  return {of.kept.codes_of_a, of.kept.scales_of_a, of.kept.codes_of_b, of.kept.scales_of_b};
}
bool codes_are_wide(const GatedIn8Bits& of) {
  return of.n % (of.store == OUTGRAD_STORE_MXFP8 ? kernels::Format<kernels::MxFp8>::kBlock
                                                 : kernels::cuda::kOctet) ==
             0 &&
         is_aligned(of.kept.codes_of_a) && is_aligned(of.kept.codes_of_b);
}

void require_gate(const outgrad_call& of, const char* kernel, bool of_product = false) {
  require_activation(of.activation);
  require(kernels::is_gate(of.activation), kernel, "the activation is no gate");
  require(!of_product || kernels::has_product(of.activation), kernel,
          "the activation has no pair that keeps its product");
  require(!of_product || of.format != OUTGRAD_F32, kernel, "a pair keeps its product in 16 bits only");
  require(of.n >= 1 && kernels::cuda::matrix_elements(of.rows, 2 * of.n) >= 0, kernel,
          "the shape is none of a matrix");
}

}  // namespace

void Cuda::gated_forward(outgrad_call of) const {
  require_gate(of, "gated_forward");
  if (of.rows == 0) return;
  GatedHalves halves = halves_of(of);
  const bool wide =
      of.n % kernels::cuda::kOctet == 0 && is_aligned(halves.a) && is_aligned(halves.b) && is_aligned(of.y);
  launch_gated(At(on_), DeviceKernel::gated_forward, of, wide,
               {&halves.a, &halves.b, &of.rows, &of.n, &halves.stride, &of.y});
}

void Cuda::gated_backward(outgrad_call of) const {
  require_gate(of, "gated_backward");
  if (of.rows == 0) return;
  GatedHalves halves = halves_of(of);
  const bool wide = of.n % kernels::cuda::kOctet == 0 && is_aligned(of.dy) && is_aligned(halves.a) &&
                    is_aligned(halves.b) && is_aligned(halves.da) && is_aligned(halves.db) &&
                    is_aligned(of.y);
  launch_gated(
      At(on_), DeviceKernel::gated_backward, of, wide,
      {&of.dy, &halves.a, &halves.b, &of.rows, &of.n, &halves.stride, &halves.da, &halves.db, &of.y});
}

std::size_t Cuda::gated_forward_8bit_workspace_bytes() {
  return 2 * kernels::cuda::kMostMaxima * sizeof(kernels::u32);
}

void Cuda::gated_forward_8bit(GatedIn8Bits of) const {
  require_gate(of, "gated_forward_8bit");
  if (of.rows == 0) return;
  const At at(on_);
  GatedHalves halves = halves_of(of);
  const bool wide = codes_are_wide(of) && is_aligned(halves.a) && is_aligned(halves.b) && is_aligned(of.y);
  kernels::cuda::GatedCodes kept = codes_of(of);
  kernels::cuda::Maxima maxima{static_cast<const kernels::u32*>(of.workspace), 0};
  if (of.store != OUTGRAD_STORE_MXFP8) {
    const Kernel& code = gated_kernel(at, DeviceKernel::gated_maxima, of, wide);
    const PlannedLaunch planned = kernels::cuda::gated_maxima_launch(
        kernels::cuda::GatedSchedule::kSchedule, of.rows, of.n, wide, limits_with(at.gpu, code));
    maxima.count = planned.blocks;
    at.launch(code, planned, {&halves.a, &halves.b, &of.rows, &of.n, &halves.stride, &of.workspace});
  }
  launch_gated(at, DeviceKernel::gated_forward_8bit, of, wide,
               {&halves.a, &halves.b, &of.rows, &of.n, &halves.stride, &of.y, &maxima, &kept}, kept_by(of));
}

void Cuda::gated_backward_8bit(GatedIn8Bits of) const {
  require_gate(of, "gated_backward_8bit");
  if (of.rows == 0) return;
  GatedHalves halves = halves_of(of);
  kernels::cuda::GatedCodes kept = codes_of(of);
  const bool wide = codes_are_wide(of) && is_aligned(of.dy) && is_aligned(halves.da) &&
                    is_aligned(halves.db) && is_aligned(of.y);
  launch_gated(At(on_), DeviceKernel::gated_backward_8bit, of, wide,
               {&of.dy, &kept, &of.rows, &of.n, &halves.stride, &halves.da, &halves.db, &of.y}, kept_by(of));
}

void Cuda::product_forward(outgrad_call of) const {
  require_gate(of, "product_forward", true);
  if (of.rows == 0) return;
  GatedHalves halves = halves_of(of);
  const bool wide = of.n % kernels::cuda::kOctet == 0 && is_aligned(halves.a) && is_aligned(halves.b) &&
                    is_aligned(of.y) && is_aligned(of.slot);
  launch_gated(At(on_), DeviceKernel::product_forward, of, wide,
               {&halves.a, &halves.b, &of.rows, &of.n, &halves.stride, &of.y, &of.slot, &of.mask});
}

void Cuda::product_backward(outgrad_call of) const {
  require_gate(of, "product_backward", true);
  if (of.rows == 0) return;
  GatedHalves halves = halves_of(of);
  const bool wide = of.n % kernels::cuda::kOctet == 0 && is_aligned(of.dy) && is_aligned(of.y) &&
                    is_aligned(of.slot) && is_aligned(halves.da) && is_aligned(halves.db);
  launch_gated(At(on_), DeviceKernel::product_backward, of, wide,
               {&of.dy, &of.y, &of.slot, &of.mask, &of.rows, &of.n, &halves.stride, &halves.da, &halves.db});
}

// ---- Dropout ------------------------------------------------------------------------------------

namespace {

kernels::cuda::Seed device_seed(const Drop& drop) {
  return drop.on_host ? kernels::cuda::Seed{nullptr, *drop.seed} : kernels::cuda::Seed{drop.seed};
}

}  // namespace

void Cuda::dropout(outgrad_call of, const Drop& drop) const {
  require(kernels::dropout_holds(drop.p), "dropout", "p must lie in [0, 1]");
  kernels::cuda::Seed own = device_seed(drop);
  kernels::DropoutRule rule = kernels::dropout_rule(drop.p);
  launch_over(on_,
              {.kernel = DeviceKernel::dropout,
               .schedule = forward_schedule(kernels::cuda::DropoutSchedule::kSchedule, of.format)},
              of, {&of.x, &of.y, &of.n, &own, &rule});
}

// ---- Any tensor in 8 bits -----------------------------------------------------------------------

namespace {

Elementwise tensor_kernel(DeviceKernel kernel, const TensorOf& of) {
  // the maxima are the same for either format
  const char* const stored = kernel == DeviceKernel::tensor_maxima ? ""
                             : of.store == OUTGRAD_STORE_E4M3      ? kernels::Format<kernels::F8E4M3>::kType
                             : of.store == OUTGRAD_STORE_E5M2      ? kernels::Format<kernels::F8E5M2>::kType
                                                                   : "";
  return {.kernel = kernel,
          .format = of.format,
          .schedule = forward_schedule(kernels::DefaultGpuSchedule::kSchedule, of.format),
          .stored = stored};
}

}  // namespace

std::size_t Cuda::encode_tensor_workspace_bytes() {
  return kernels::cuda::kMostMaxima * sizeof(kernels::u32);
}

void Cuda::encode_tensor(TensorOf of) const {
  if (of.store == OUTGRAD_STORE_MXFP8)
    return launch_over(on_, tensor_kernel(DeviceKernel::encode_tensor_blocks, of), of,
                       {&of.x, &of.codes, &of.scales, &of.n});
  const At at(on_);
  const Elementwise encode = tensor_kernel(DeviceKernel::encode_tensor, of);
  const Kernel& code = kernel_of(at.gpu, encode);
  const LaunchPlan plan = kernels::cuda::encode_tensor_plan(encode.schedule, of.n, limits_with(at.gpu, code),
                                                            of.codes == nullptr);
  kernels::cuda::Maxima maxima{static_cast<const kernels::u32*>(of.workspace), 0};
  i64 encoded = of.codes != nullptr ? of.n : 0;
  if (of.n > 0) {
    maxima.count = plan.launch[0].blocks;
    at.launch(kernel_of(at.gpu, tensor_kernel(DeviceKernel::tensor_maxima, of)), plan.launch[0],
              {&of.x, &of.workspace, &of.n});
  }
  at.launch(code, plan.launch[plan.launches - 1],
            {&of.x, &maxima, &of.least, &of.codes, &of.scales, &encoded});
}

void Cuda::decode_tensor(TensorOf of) const {
  const bool blocks = of.store == OUTGRAD_STORE_MXFP8;
  launch_over(on_,
              tensor_kernel(blocks ? DeviceKernel::decode_tensor_blocks : DeviceKernel::decode_tensor, of),
              of, {&of.codes, &of.scales, &of.y, &of.n});
}

// ---- Bias + GELU --------------------------------------------------------------------------------

namespace {

// What comes before and after a norm's main kernels, for parameters in a format; store: as in NormInstance.
const Kernels& norm_helpers(Gpu& gpu, kernels::Norm norm, outgrad_format format, outgrad_format parameters,
                            const std::string& store = "") {
  static_assert(OUTGRAD_F32 == 0 && OUTGRAD_F16 == 1 && OUTGRAD_BF16 == 2, "in the order of ParameterFormat");
  return gpu.kernels_of(key_of("norm helpers" + store, GpuNormSchedule{}, format, norm, parameters), 0, [&] {
    return jit::norm_helper_source(norm, type_of(format), true,
                                   static_cast<kernels::ParameterFormat>(parameters), store);
  });
}

}  // namespace

void Cuda::bias_gelu_forward(const BiasOf& of) const {
  const i64 rows = of.rows, n = of.n;
  const void* const bias = of.own.bias;
  require(kernels::cuda::matrix_elements(rows, n) >= 0, "bias_gelu_forward", "the shape is none of a matrix");
  if (rows == 0) return;
  const At at(on_);
  const Arguments arguments{{input(of.x), input(bias), of.y, of.mask}, rows, n};
  const bool wide =
      n % kernels::cuda::kOctet == 0 && n <= kernels::cuda::kMostWideColumns && is_aligned(bias);
  by_type(of.format, [&]<class T>(T) {
    with_tuned<kernels::cuda::tuned::BiasGeluForward<T>>(at.gpu, rows, n, [&]<class Choice>(Choice) {
      const GpuSchedule schedule = completed(
          Choice::kSchedule, {.forward = true, .bias = true, .element_bytes = sizeof(T), .rows = true});
      const Kernel& code = kernel_of(at.gpu, {.kernel = DeviceKernel::bias_gelu_forward,
                                              .format = of.format,
                                              .function = Choice::Fit::kName,
                                              .schedule = schedule,
                                              .wide = wide,
                                              .bias = type_of(of.own.format)});
      at.launch(
          KernelId::kBiasGeluForward,
          kernels::cuda::bias_forward_plan(schedule, arguments.elements(), wide, limits_with(at.gpu, code)),
          arguments, [&](const PlannedLaunch&) -> const Kernel& { return code; });
    });
  });
}

std::size_t Cuda::bias_workspace_bytes(const outgrad_call& of) const {
  const bool any = kernels::cuda::matrix_elements(of.rows, of.n) > 0;
  const i64 sum_rows = any ? kernels::cuda::most_bias_sum_rows(kernels::slot_count(of.rows, of.n)) : 0;
  return static_cast<std::size_t>(sum_rows * of.n) * sizeof(float);
}

// The last kernel writes the sums over rows in the bias's format, also where there is one row of them.
void Cuda::bias_gelu_backward(BiasOf of) const {
  i64 rows = of.rows, n = of.n;
  require(kernels::cuda::matrix_elements(rows, n) >= 0, "bias_gelu_backward",
          "the shape is none of a matrix");
  require(of.workspace_bytes >= bias_workspace_bytes(of), "bias_gelu_backward", "the workspace is too small");
  const At at(on_);
  if (rows == 0)
    return at.fill_with_zeros(of.own.dbias, static_cast<std::size_t>(n) *
                                                static_cast<std::size_t>(element_bytes_of(of.own.format)));
  const Arguments arguments{{input(of.dy), of.y, of.mask, of.dx, of.own.dbias, of.workspace}, rows, n};
  const bool wide =
      n % kernels::cuda::kOctet == 0 && is_aligned(of.dy) && is_aligned(of.y) && is_aligned(of.dx);
  by_type(of.format, [&]<class T>(T) {
    with_tuned<kernels::cuda::tuned::BiasGeluBackward<T>>(at.gpu, rows, n, [&]<class Choice>(Choice) {
      constexpr FitFacts kFit = facts_of<typename Choice::Fit>();
      const GpuSchedule schedule = completed(
          Choice::kSchedule, {.forward = false, .bias = true, .element_bytes = sizeof(T), .rows = kFit.rows});
      const Kernel& code =
          kernel_of(at.gpu, {DeviceKernel::bias_gelu_backward, of.format, kFit.name, schedule, wide});
      const Kernels& helpers = norm_helpers(at.gpu, kernels::Norm::layer, of.format, of.own.format);
      at.launch(KernelId::kBiasGeluBackward,
                kernels::cuda::bias_backward_plan(schedule, rows, n, wide, limits_with(at.gpu, code), true),
                arguments, [&](const PlannedLaunch& planned) -> const Kernel& {
                  return planned.kernel == DeviceKernel::bias_gelu_backward ? code
                                                                            : helpers.at(planned.kernel);
                });
    });
  });
}

// ---- Norms --------------------------------------------------------------------------------------

namespace {

// What a norm keeps in place of y: the type of its store, empty for y itself, and which elements share a
// scale.
struct NormKept {
  std::string store;
  kernels::cuda::CodeScales scales = kernels::cuda::CodeScales::none;
};
NormKept kept_of(const outgrad_call& of) {
  using kernels::cuda::CodeScales;
  switch (of.store) {
    case OUTGRAD_STORE_E4M3: return {"NormE4m3", CodeScales::of_tensor};
    case OUTGRAD_STORE_MXFP8: return {"NormMxFp8", CodeScales::of_groups};
    case OUTGRAD_STORE_INT8: return {"NormInt8", CodeScales::of_groups};
    default: return {};
  }
}

void require_norm(const NormOf& of, const char* kernel) {
  require(kernels::cuda::matrix_elements(of.rows, of.n) >= 0, kernel, "the shape is none of a matrix");
  require(of.side_count >= 0 && of.side_count <= of.n, kernel, "there are more side channels than columns");
  require(of.drop.seed == nullptr || kernels::dropout_holds(of.drop.p), kernel, "p must lie in [0, 1]");
}

void launch_norm(const At& at, KernelId id, const NormOf& of, const LaunchPlan& plan,
                 const Arguments& arguments) {
  const kernels::Norm norm = of.rms ? kernels::Norm::rms : kernels::Norm::layer;
  At::OfNorms extra;
  if (of.tau > 0) {
    by_type(of.format, [&]<class T>(T) {
      extra.watch = {kernels::near_limits<T>(of.tau), kernels::lost_limits<T>(of.tau), of.seen};
      extra.guard = {extra.watch.lost, 1};
    });
  }
  const bool residual =
                 has_content(id, kernels::Content::kResidual) || has_content(id, kernels::Content::kDzNext),
             drops = of.drop.seed != nullptr, unstored = !is_backward(id) && residual && of.z == nullptr;
  if (drops) extra.dropout = {device_seed(of.drop), kernels::dropout_rule(of.drop.p), of.dropped};
  const std::string store = kept_of(of).store;
  if (!store.empty())
    extra.kept = kernels::cuda::norm_codes_at(of.codes, of.scales, norm,
                                              is_backward(id) ? nullptr : static_cast<float*>(of.workspace));
  const auto find = [&](const PlannedLaunch& planned) -> const Kernel& {
    const auto parameters = static_cast<kernels::ParameterFormat>(of.own.format);
    const auto of_rows = [&] {
      return jit::source(jit::NormInstance{planned.kernel, norm, residual, type_of(of.format), plan.wide,
                                           plan.side, plan.norm, parameters, drops, unstored, store});
    };
    switch (planned.kernel) {
      case DeviceKernel::norm_forward:
      case DeviceKernel::norm_encode:
      case DeviceKernel::norm_backward:
      case DeviceKernel::norm_backward_slots: {
        // that kernel reads no parameters
        const int read = planned.kernel == DeviceKernel::norm_backward ? OUTGRAD_F32 : of.own.format;
        const std::string key = key_of("norm" + store, plan.norm, planned.kernel, of.format, norm, plan.wide,
                                       plan.side, read, residual, drops, unstored);
        return at.gpu.kernels_of(key, 0, of_rows).at(planned.kernel);
      }
      default: return norm_helpers(at.gpu, norm, of.format, of.own.format, store).at(planned.kernel);
    }
  };
  at.launch(id, plan, arguments, find, extra);
}

template <class LayerTable, class RmsTable, class SumLayerTable, class SumRmsTable, class Body>
void with_tuned_norm(const Gpu& gpu, const NormOf& of, bool residual, const Body& body) {
  const auto choose = [&]<class Choice>(Choice) { body(GpuNormSchedule(Choice::kSchedule)); };
  if (!kept_of(of).store.empty()) {
    body(kernels::DefaultGpuNormSchedule::kSchedule);  // tuned for y
  } else if (residual) {
    of.rms ? with_tuned<SumRmsTable>(gpu, of.rows, of.n, choose)
           : with_tuned<SumLayerTable>(gpu, of.rows, of.n, choose);
  } else {
    of.rms ? with_tuned<RmsTable>(gpu, of.rows, of.n, choose)
           : with_tuned<LayerTable>(gpu, of.rows, of.n, choose);
  }
}
KernelId id_of(const NormOf& of, bool residual, bool backward) {
  if (backward && residual)
    return of.rms ? KernelId::kResidualRmsnormBackward : KernelId::kResidualLayernormBackward;
  if (backward) return of.rms ? KernelId::kRmsnormBackward : KernelId::kLayernormBackward;
  if (residual) return of.rms ? KernelId::kResidualRmsnormForward : KernelId::kResidualLayernormForward;
  return of.rms ? KernelId::kRmsnormForward : KernelId::kLayernormForward;
}

kernels::cuda::NormTask task_of(const NormOf& of, bool residual, bool wide) {
  return {.norm = of.rms ? kernels::Norm::rms : kernels::Norm::layer,
          .element_bytes = element_bytes_of(of.format),
          .residual = residual,
          .rows = of.rows,
          .n = of.n,
          .wide = wide,
          .side = of.side_count > 0,
          .sums = false,
          .drops = of.drop.seed != nullptr,
          .codes = kept_of(of).scales};
}

}  // namespace

std::size_t Cuda::norm_forward_workspace_bytes(const outgrad_call& of) {
  return static_cast<std::size_t>(kernels::cuda::norm_forward_workspace(kept_of(of).scales, of.rows)) *
         sizeof(float);
}

void Cuda::norm_forward(const NormOf& of) const {
  require_norm(of, "norm_forward");
  require(of.eps >= 0.0f, "norm_forward", "eps must be at least 0");
  const bool of_tensor = kept_of(of).scales == kernels::cuda::CodeScales::of_tensor;
  if (of.rows == 0 && !of_tensor) return;
  require(of.workspace_bytes >= norm_forward_workspace_bytes(of), "norm_forward",
          "the workspace is too small");
  const At at(on_);
  if (of_tensor) at.fill_with_zeros(of.workspace, sizeof(kernels::u32));  // amax
  Arguments arguments{{}, of.rows, of.n, of.eps, {of.side_channels, of.side_count, of.side_x_hat}};
  std::size_t k = 0;
  const bool residual = of.residual != nullptr;
  arguments.array[k++] = input(of.x);
  if (residual) arguments.array[k++] = input(of.residual);
  arguments.array[k++] = input(of.own.gamma);
  if (!of.rms) arguments.array[k++] = input(of.own.beta);
  if (residual) arguments.array[k++] = of.z;
  for (void* array : {of.y, static_cast<void*>(of.rstd)}) arguments.array[k++] = array;
  bool wide = of.n % kernels::cuda::kOctet == 0;
  for (const void* array : {of.x, of.residual, of.own.gamma, of.own.beta, const_cast<const void*>(of.z),
                            const_cast<const void*>(of.y), const_cast<const void*>(of.codes)})
    wide = wide && is_aligned(array);
  by_type(of.format, [&]<class T>(T) {
    namespace tuned = kernels::cuda::tuned;
    with_tuned_norm<tuned::LayernormForward<T>, tuned::RmsnormForward<T>, tuned::ResidualLayernormForward<T>,
                    tuned::ResidualRmsnormForward<T>>(
        at.gpu, of, residual, [&](const GpuNormSchedule& schedule) {
          const LaunchPlan plan =
              kernels::cuda::norm_forward_plan(schedule, task_of(of, residual, wide), at.gpu.limits());
          launch_norm(at, id_of(of, residual, false), of, plan, arguments);
        });
  });
}

std::size_t Cuda::norm_workspace_bytes(const outgrad_call& of) const {
  return static_cast<std::size_t>(kernels::cuda::norm_backward_workspace(of.rows, of.n)) * sizeof(float);
}

void Cuda::norm_backward(const NormOf& of) const {
  require_norm(of, "norm_backward");
  require(of.workspace_bytes >= norm_workspace_bytes(of), "norm_backward", "the workspace is too small");
  const At at(on_);
  Arguments arguments{{}, of.rows, of.n, 0, {of.side_channels, of.side_count, of.side_x_hat}};
  std::size_t k = 0;
  const bool added = of.dz_next != nullptr;
  for (void* array : {input(of.dy), of.y}) arguments.array[k++] = array;
  if (added) arguments.array[k++] = input(of.dz_next);
  arguments.array[k++] = input(of.own.gamma);
  if (!of.rms) arguments.array[k++] = input(of.own.beta);
  for (void* array : {static_cast<void*>(of.rstd), of.dx, of.own.dgamma}) arguments.array[k++] = array;
  if (!of.rms) arguments.array[k++] = of.own.dbeta;
  arguments.array[k] = of.workspace;
  bool wide = of.n % kernels::cuda::kOctet == 0;
  for (const void* array : {of.dy, const_cast<const void*>(of.y), of.dz_next, const_cast<const void*>(of.dx),
                            const_cast<const void*>(of.dropped), const_cast<const void*>(of.codes)})
    wide = wide && is_aligned(array);
  kernels::cuda::NormTask task = task_of(of, added, wide);
  task.sums = of.own.dgamma != nullptr || of.own.dbeta != nullptr;
  task.aligned = is_aligned(of.own.gamma) && is_aligned(of.own.beta);
  by_type(of.format, [&]<class T>(T) {
    namespace tuned = kernels::cuda::tuned;
    with_tuned_norm<tuned::LayernormBackward<T>, tuned::RmsnormBackward<T>,
                    tuned::ResidualLayernormBackward<T>, tuned::ResidualRmsnormBackward<T>>(
        at.gpu, of, added, [&](const GpuNormSchedule& schedule) {
          const LaunchPlan plan = kernels::cuda::norm_backward_plan(schedule, task, at.gpu.limits());
          launch_norm(at, id_of(of, added, true), of, plan, arguments);
        });
  });
}

}  // namespace outgrad::torch_operators
