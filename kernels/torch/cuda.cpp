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
#include "kernels/cuda/choice.h"
#include "kernels/cuda/plan.h"
#include "kernels/dropout.h"
#include "kernels/catalogue/few_bits.h"
#include "kernels/host/call.h"
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

// action(T{}) for the format's type T.
template <class Action>
decltype(auto) with_type(outgrad_format format, const Action& action) {
  switch (format) {
    case OUTGRAD_F32: return action(float{});
    case OUTGRAD_F16: return action(kernels::F16{});
    default: return action(kernels::BF16{});
  }
}
const char* type_of(outgrad_format format) {
  return with_type(format, []<class T>(T) { return kernels::Format<T>::kType; });
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
  };
  template <class Find>
  void launch(KernelId kernel, const LaunchPlan& plan, const Arguments& arguments, const Find& find,
              const OfNorms& of = {}) const {
    jit::PlanArguments own(kernel, arguments, of.watch, of.guard, of.dropout);
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
    case DeviceKernel::activation_backward_code: break;
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

}  // namespace

void Cuda::activation_forward(outgrad_activation activation, Elements of, const void* x, void* y,
                              std::uint32_t* mask) const {
  require_activation(activation);
  if (of.n == 0) return;
  const At at(on_);
  const Arguments arguments{{input(x), y, mask}, 1, of.n};
  with_type(of.format, [&]<class T>(T) {
    const kernels::cuda::ElementWork work{
        .forward = true, .bias = false, .element_bytes = sizeof(T), .rows = true};
    if (activation != OUTGRAD_GELU) {
      return launch_elementwise(
          at, KernelId::kGeluForward,
          {DeviceKernel::activation_forward, of.format, kernels::kActivationNames[activation],
           completed(kernels::cuda::ForwardsSchedule::kSchedule, work)},
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

void Cuda::activation_backward(outgrad_activation activation, Elements of, const void* dy, const void* y,
                               const std::uint32_t* mask, void* dx) const {
  require_activation(activation);
  if (of.n == 0) return;
  const At at(on_);
  const Arguments arguments{{input(dy), input(y), input(mask), dx}, 1, of.n};
  with_type(of.format, [&]<class T>(T) {
    const auto launch = [&](const FitFacts& fit, const GpuSchedule& schedule) {
      require(mask != nullptr || !fit.masked, "activation_backward", "mask is null");
      const kernels::cuda::ElementWork work{
          .forward = false, .bias = false, .element_bytes = sizeof(T), .rows = fit.rows};
      launch_elementwise(at, KernelId::kGeluBackward,
                         {DeviceKernel::activation_backward, of.format, fit.name, completed(schedule, work)},
                         arguments);
    };
    static constexpr auto kFits = facts_of(typename kernels::ActivationFits<T>::Type{});
    if (activation != OUTGRAD_GELU)
      return launch(kFits[static_cast<std::size_t>(activation)], kernels::DefaultGpuSchedule::kSchedule);
    with_tuned<kernels::cuda::tuned::GeluBackward<T>>(at.gpu, 1, of.n, [&]<class Choice>(Choice) {
      launch(facts_of<typename Choice::Fit>(), Choice::kSchedule);
    });
  });
}

// ---- Activations that keep something else than y and mask ---------------------------------------

namespace {

// Launches a kernel over elements, whose format it gets, with pointers to its parameters.
void launch_over(const Cuda::Where& on, Elementwise kernel, const Elements& of,
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
  return with_type(format, []<class T>(T) { return static_cast<int>(sizeof(T)); });
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
ParityOf parity_of(outgrad_activation activation, outgrad_format format, const char* kernel) {
  require_activation(activation);
  require(format != OUTGRAD_F32, kernel, "y carries its branch in f16 and bf16, not in f32");
  const char* const name = kernels::kActivationNames[activation];
  const auto of = [&]<class Y>(Y) {
    return ParityOf{parity_fit(typename kernels::ParityFits<Y>::Type{}, name), kernels::Format<Y>::kType};
  };
  const ParityOf found = format == OUTGRAD_F16 ? of(kernels::ParityF16{}) : of(kernels::ParityBf16{});
  require(found.fit.name != nullptr, kernel,
          (std::string(name) + " rises: there is no branch for y to carry").c_str());
  return found;
}

void require_codes(const CodesOf& of, i64 n, const char* kernel) {
  require(kernels::code_bits_hold(of.bits, of.seed != nullptr), kernel,
          "a code has 1 to 8 bits, and a dithered one 2 or 3");
  require(of.bytes >= static_cast<std::size_t>(kernels::code_bytes(of.bits, n)), kernel,
          "the codes' array is too small");
}

// Codes of a range: pointers are those to the arrays, and n, the seed and the rule follow.
void launch_coded(const Cuda::Where& on, DeviceKernel kernel, const CodesOf& codes_of, Elements of,
                  std::vector<void*> pointers) {
  const bool dithered = codes_of.seed != nullptr;
  const std::uint64_t* seed = codes_of.seed;
  kernels::CodeRule rule = dithered ? kernels::dithered_code({codes_of.lo, codes_of.hi}, codes_of.bits)
                                    : kernels::exact_code({codes_of.lo, codes_of.hi}, codes_of.bits);
  pointers.insert(pointers.end(), {&of.n, &seed, &rule});
  launch_over(on,
              {.kernel = kernel,
               .schedule = backward_schedule(of.format, false),
               .code_bits = codes_of.bits,
               .dithered = dithered},
              of, pointers);
}

void require_range(const CodesOf& of, const char* kernel) {
  require(kernels::code_range_holds({of.lo, of.hi}), kernel,
          "this is no range of f' that codes are proven for");
}

template <class... Code>
kernels::CodeRange range_of(kernels::FitList<Code...>, outgrad_activation activation) {
  constexpr kernels::CodeRange kRanges[] = {{Code::kLo, Code::kHi}...};
  return kRanges[activation];
}

}  // namespace

void Cuda::activation_forward_parity(outgrad_activation activation, Elements of, const void* x,
                                     void* y) const {
  const ParityOf parity = parity_of(activation, of.format, "activation_forward_parity");
  launch_over(on_,
              {.kernel = DeviceKernel::activation_forward_parity,
               .function = kernels::kActivationNames[activation],
               .schedule = forward_schedule(kernels::cuda::StoreSchedule::kSchedule, of.format),
               .stored = parity.type},
              of, {&x, &y, &of.n});
}

void Cuda::activation_backward_parity(outgrad_activation activation, Elements of, const void* dy,
                                      const void* y, void* dx) const {
  const ParityOf parity = parity_of(activation, of.format, "activation_backward_parity");
  const std::uint32_t* mask = nullptr;
  launch_over(on_,
              {.kernel = DeviceKernel::activation_backward,
               .function = parity.fit.name,
               .schedule = backward_schedule(of.format, parity.fit.rows),
               .stored = parity.type},
              of, {&dy, &y, &mask, &dx, &of.n});
}

void Cuda::activation_forward_code(const CodesOf& codes_of, Elements of, const void* x, void* y,
                                   void* codes) const {
  require_activation(codes_of.activation);
  require_codes(codes_of, of.n, "activation_forward_code");
  const std::uint64_t* seed = codes_of.seed;
  const std::string function = std::to_string(codes_of.activation);
  launch_over(on_,
              {.kernel = DeviceKernel::activation_forward_code,
               .function = function,
               .schedule = forward_schedule(kernels::cuda::StoreSchedule::kSchedule, of.format),
               .code_bits = codes_of.bits,
               .dithered = seed != nullptr},
              of, {&x, &y, &codes, &of.n, &seed});
}

void Cuda::activation_backward_code(const CodesOf& codes_of, Elements of, const void* dy, const void* codes,
                                    void* dx) const {
  require_activation(codes_of.activation);
  require_codes(codes_of, of.n, "activation_backward_code");
  const kernels::CodeRange range = range_of(kernels::ActivationCodes{}, codes_of.activation);
  CodesOf ranged = codes_of;
  ranged.lo = range.lo;
  ranged.hi = range.hi;
  launch_coded(on_, DeviceKernel::activation_backward_code, ranged, of, {&dy, &codes, &dx});
}

void Cuda::encode_gradients(const CodesOf& codes_of, Elements of, const void* g, void* codes) const {
  require_codes(codes_of, of.n, "encode_gradients");
  require_range(codes_of, "encode_gradients");
  launch_coded(on_, DeviceKernel::encode_gradients, codes_of, of, {&g, &codes});
}

void Cuda::backward_encoded(const CodesOf& codes_of, Elements of, const void* dy, const void* codes,
                            void* dx) const {
  require_codes(codes_of, of.n, "backward_encoded");
  require_range(codes_of, "backward_encoded");
  launch_coded(on_, DeviceKernel::activation_backward_code, codes_of, of, {&dy, &codes, &dx});
}

void Cuda::gelu_forward_mxfp8(Elements of, const void* x, std::uint8_t* codes, std::uint8_t* scales,
                              std::uint32_t* mask) const {
  launch_over(
      on_,
      {.kernel = DeviceKernel::gelu_forward_mxfp8,
       .function = with_type(of.format, []<class T>(T) { return kernels::ForwardFit<T>::Type::kName; }),
       .schedule = forward_schedule(kernels::DefaultGpuSchedule::kSchedule, of.format)},
      of, {&x, &codes, &scales, &mask, &of.n});
}

void Cuda::gelu_backward_mxfp8(Elements of, const void* dy, const std::uint8_t* codes,
                               const std::uint8_t* scales, const std::uint32_t* mask, void* dx) const {
  constexpr FitFacts kFit = facts_of<kernels::generated::GeluMxfp8>();
  kernels::BlockScaled<kernels::MxFp8> y{reinterpret_cast<const kernels::F8E4M3*>(codes),
                                         reinterpret_cast<const kernels::E8M0*>(scales)};
  launch_over(on_,
              {.kernel = DeviceKernel::activation_backward,
               .function = kFit.name,
               .schedule = backward_schedule(of.format, kFit.rows),
               .stored = kernels::Format<kernels::MxFp8>::kType},
              of, {&dy, &y, &mask, &dx, &of.n});
}

namespace {

// The format of the codes and the activation's name, or an exception.
struct Fp8Kernels {
  const char* format;
  std::string activation;
};
Fp8Kernels fp8_kernels(const Fp8Of& of, i64 n, const char* kernel) {
  constexpr const char* kFormats[] = {kernels::Format<kernels::F8E4M3>::kType,
                                      kernels::Format<kernels::F8E5M2>::kType,
                                      kernels::Format<kernels::I8>::kType};
  static_assert(OUTGRAD_STORE_E5M2 == OUTGRAD_STORE_E4M3 + 1 && OUTGRAD_STORE_INT8 == OUTGRAD_STORE_E4M3 + 2);
  require_activation(of.activation);
  require(of.store >= OUTGRAD_STORE_E4M3 && of.store <= OUTGRAD_STORE_INT8, kernel,
          "no such format of 8 bits");
  require(kernels::part_bits_hold(of.bits), kernel, "beside y are 0 to 2 bits");
  require(of.bytes >= static_cast<std::size_t>(kernels::code_bytes(of.bits, n)), kernel,
          "the parts' array is too small");
  const std::string name = kernels::kActivationNames[of.activation];
  const auto is_kept = []<class... S>(kernels::Fp8List<S...>, std::string_view activation) {
    return ((S::Header::kActivation == activation) || ...);
  };
  require(is_kept(kernels::Fp8Activations{}, name), kernel,
          (name + " rises: y alone gives its derivative").c_str());
  return {kFormats[of.store - OUTGRAD_STORE_E4M3], "Fp8Activation<" + jit::fit_type(name + "_fp8") + ">"};
}

// Enqueues the making of the table of the scale.
void make_fp8_table(const At& at, const Fp8Kernels& kernels_of, const Fp8Of& of) {
  constexpr DeviceKernel kKernel = DeviceKernel::fp8_table;
  const Kernel& code = kernel_of(at.gpu, {.kernel = kKernel,
                                          .format = OUTGRAD_F32,
                                          .function = kernels_of.activation,
                                          .stored = kernels_of.format});
  const float* scale = of.scale;
  void* table = of.workspace;
  int bits = of.bits;
  at.launch(code, {.kernel = kKernel, .blocks = 1, .threads = kernels::kFp8Codes}, {&scale, &bits, &table});
}

}  // namespace

std::size_t Cuda::fp8_workspace_bytes() const { return sizeof(kernels::Fp8Table); }

void Cuda::activation_forward_fp8(const Fp8Of& fp8_of, Elements of, const void* x, std::uint8_t* codes,
                                  void* parts) const {
  const Fp8Kernels kernels_of = fp8_kernels(fp8_of, of.n, "activation_forward_fp8");
  if (of.n == 0) return;
  make_fp8_table(At(on_), kernels_of, fp8_of);
  void* table = fp8_of.workspace;
  const float* scale = fp8_of.scale;
  launch_over(on_,
              {.kernel = DeviceKernel::activation_forward_fp8,
               .function = kernels_of.activation,
               .schedule = forward_schedule(kernels::cuda::StoreSchedule::kSchedule, of.format),
               .stored = kernels_of.format,
               .code_bits = fp8_of.bits},
              of, {&table, &scale, &x, &codes, &parts, &of.n});
}

void Cuda::activation_backward_fp8(const Fp8Of& fp8_of, Elements of, const void* dy,
                                   const std::uint8_t* codes, const void* parts, void* dx) const {
  const Fp8Kernels kernels_of = fp8_kernels(fp8_of, of.n, "activation_backward_fp8");
  if (of.n == 0) return;
  make_fp8_table(At(on_), kernels_of, fp8_of);
  void* table = fp8_of.workspace;
  launch_over(on_,
              {.kernel = DeviceKernel::activation_backward_fp8,
               .schedule = backward_schedule(of.format, false),
               .code_bits = fp8_of.bits},
              of, {&table, &dy, &codes, &parts, &dx, &of.n});
}

// ---- Softmax ------------------------------------------------------------------------------------

namespace {

// parameters: the kernel's pointers.
void launch_softmax(const At& at, DeviceKernel kernel, const Rows& over, std::vector<void*> parameters) {
  auto [format, rows, n] = over;
  require(n >= 1 && n <= kernels::kMostSoftmax, jit::name_of(kernel), "a row has 1 to 2^23 elements");
  if (rows == 0) return;
  const char* const type = type_of(format);
  const int warps = kernels::cuda::softmax_warps(n);
  const std::string key = key_of(type, GpuSchedule{}, kernel, warps);
  const Kernel& code =
      at.gpu.kernels_of(key, 0, [&] { return jit::softmax_source(kernel, type, warps); }).at(kernel);
  parameters.insert(parameters.end(), {&rows, &n});
  at.launch(code, kernels::cuda::softmax_launch(kernel, rows, warps), parameters);
}

}  // namespace

void Cuda::softmax_forward_code(const Rows& over, const void* x, void* y, void* codes) const {
  launch_softmax(At(on_), DeviceKernel::softmax_forward_code, over, {&x, &y, &codes});
}

void Cuda::softmax_backward_code(const Rows& over, const void* dy, const void* codes, void* dx) const {
  launch_softmax(At(on_), DeviceKernel::softmax_backward_code, over, {&dy, &codes, &dx});
}

// ---- Dropout ------------------------------------------------------------------------------------

namespace {

kernels::cuda::Seed device_seed(const SeedOf& seed) {
  return seed.on_host ? kernels::cuda::Seed{nullptr, *seed.at} : kernels::cuda::Seed{seed.at};
}

}  // namespace

void Cuda::dropout(Elements of, const void* x, void* y, const SeedOf& seed, double p) const {
  require(kernels::dropout_holds(p), "dropout", "p must lie in [0, 1]");
  kernels::cuda::Seed own = device_seed(seed);
  kernels::DropoutRule rule = kernels::dropout_rule(p);
  launch_over(on_,
              {.kernel = DeviceKernel::dropout,
               .schedule = forward_schedule(kernels::cuda::DropoutSchedule::kSchedule, of.format)},
              of, {&x, &y, &of.n, &own, &rule});
}

// ---- Bias + GELU --------------------------------------------------------------------------------

namespace {

// What comes before and after a norm's main kernels, for parameters in a format.
const Kernels& norm_helpers(Gpu& gpu, kernels::Norm norm, outgrad_format format, outgrad_format parameters) {
  static_assert(OUTGRAD_F32 == 0 && OUTGRAD_F16 == 1 && OUTGRAD_BF16 == 2, "in the order of ParameterFormat");
  return gpu.kernels_of(key_of("norm helpers", GpuNormSchedule{}, format, norm, parameters), 0, [&] {
    return jit::norm_helper_source(norm, type_of(format), true,
                                   static_cast<kernels::ParameterFormat>(parameters));
  });
}

}  // namespace

void Cuda::bias_gelu_forward(const BiasOf& of, const void* x, const void* bias, void* y,
                             std::uint32_t* mask) const {
  const auto [format, rows, n] = static_cast<const Rows&>(of);
  require(kernels::cuda::matrix_elements(rows, n) >= 0, "bias_gelu_forward", "the shape is none of a matrix");
  if (rows == 0) return;
  const At at(on_);
  const Arguments arguments{{input(x), input(bias), y, mask}, rows, n};
  const bool wide =
      n % kernels::cuda::kOctet == 0 && n <= kernels::cuda::kMostWideColumns && is_aligned(bias);
  with_type(format, [&]<class T>(T) {
    with_tuned<kernels::cuda::tuned::BiasGeluForward<T>>(at.gpu, rows, n, [&]<class Choice>(Choice) {
      const GpuSchedule schedule = completed(
          Choice::kSchedule, {.forward = true, .bias = true, .element_bytes = sizeof(T), .rows = true});
      const Kernel& code = kernel_of(at.gpu, {.kernel = DeviceKernel::bias_gelu_forward,
                                              .format = of.format,
                                              .function = Choice::Fit::kName,
                                              .schedule = schedule,
                                              .wide = wide,
                                              .bias = type_of(of.bias)});
      at.launch(
          KernelId::kBiasGeluForward,
          kernels::cuda::bias_forward_plan(schedule, arguments.elements(), wide, limits_with(at.gpu, code)),
          arguments, [&](const PlannedLaunch&) -> const Kernel& { return code; });
    });
  });
}

std::size_t Cuda::bias_workspace_bytes(const Rows& over) const {
  const bool any = kernels::cuda::matrix_elements(over.rows, over.n) > 0;
  return static_cast<std::size_t>(any ? kernels::slot_count(over.rows, over.n) * over.n : 0) * sizeof(float);
}

// The sums over rows end in the kernel in which a norm's end, which writes them in the bias's format.
void Cuda::bias_gelu_backward(const BiasOf& of, const void* dy, const void* y, const std::uint32_t* mask,
                              void* dx, void* dbias) const {
  auto [format, rows, n] = static_cast<const Rows&>(of);
  void* workspace = of.workspace;
  require(kernels::cuda::matrix_elements(rows, n) >= 0, "bias_gelu_backward",
          "the shape is none of a matrix");
  require(of.bytes >= bias_workspace_bytes(of), "bias_gelu_backward", "the workspace is too small");
  const At at(on_);
  if (rows == 0)
    return at.fill_with_zeros(
        dbias, static_cast<std::size_t>(n) * static_cast<std::size_t>(element_bytes_of(of.bias)));
  const Arguments arguments{{input(dy), input(y), input(mask), dx, workspace, workspace}, rows, n};
  const bool wide = n % kernels::cuda::kOctet == 0 && is_aligned(dy) && is_aligned(y) && is_aligned(dx) &&
                    is_aligned(workspace);
  with_type(format, [&]<class T>(T) {
    with_tuned<kernels::cuda::tuned::BiasGeluBackward<T>>(at.gpu, rows, n, [&]<class Choice>(Choice) {
      constexpr FitFacts kFit = facts_of<typename Choice::Fit>();
      const GpuSchedule schedule = completed(
          Choice::kSchedule, {.forward = false, .bias = true, .element_bytes = sizeof(T), .rows = kFit.rows});
      const Kernel& code =
          kernel_of(at.gpu, {DeviceKernel::bias_gelu_backward, of.format, kFit.name, schedule, wide});
      const Kernels& helpers = norm_helpers(at.gpu, kernels::Norm::layer, of.format, of.bias);
      i64 left = kernels::slot_count(rows, n), apart = 1;
      LaunchPlan plan = kernels::cuda::bias_backward_plan(schedule, rows, n, wide, limits_with(at.gpu, code));
      plan.launches = 1;
      for (; left > kernels::cuda::kFinishFan;
           left = (left + kernels::cuda::kSlotFan - 1) / kernels::cuda::kSlotFan,
           apart *= kernels::cuda::kSlotFan)
        ++plan.launches;
      at.launch(KernelId::kBiasGeluBackward, plan, arguments,
                [&](const PlannedLaunch& planned) -> const Kernel& {
                  return planned.kernel == DeviceKernel::add_slots ? helpers.at(planned.kernel) : code;
                });
      constexpr i64 kColumns = kernels::cuda::kFinishColumns;
      const PlannedLaunch finish{.kernel = DeviceKernel::norm_finish,
                                 .blocks = (n + kColumns - 1) / kColumns,
                                 .threads = kernels::cuda::kColumnThreads};
      const void* none = nullptr;
      at.launch(helpers.at(DeviceKernel::norm_finish), finish,
                {&workspace, &none, &none, &n, &n, &n, &left, &apart, &dbias, &none});
    });
  });
}

// ---- Norms --------------------------------------------------------------------------------------

namespace {

void require_norm(const NormOf& of, const char* kernel) {
  require(kernels::cuda::matrix_elements(of.rows, of.n) >= 0, kernel, "the shape is none of a matrix");
  require(of.side_count >= 0 && of.side_count <= of.n, kernel, "there are more side channels than columns");
  require(of.sum.seed.at == nullptr || kernels::dropout_holds(of.sum.p), kernel, "p must lie in [0, 1]");
}

void launch_norm(const At& at, KernelId id, const NormOf& of, const LaunchPlan& plan,
                 const Arguments& arguments) {
  const kernels::Norm norm = of.rms ? kernels::Norm::rms : kernels::Norm::layer;
  At::OfNorms extra;
  if (of.tau > 0) {
    with_type(of.format, [&]<class T>(T) {
      extra.watch = {kernels::near_limits<T>(of.tau), kernels::lost_limits<T>(of.tau), of.seen};
      extra.guard = {extra.watch.lost, 1};
    });
  }
  const bool residual =
                 has_content(id, kernels::Content::kResidual) || has_content(id, kernels::Content::kDzNext),
             drops = of.sum.seed.at != nullptr,
             unstored = !is_backward(id) && residual && of.sum.z == nullptr;
  if (drops) extra.dropout = {device_seed(of.sum.seed), kernels::dropout_rule(of.sum.p), of.sum.dx};
  const auto find = [&](const PlannedLaunch& planned) -> const Kernel& {
    const auto parameters = static_cast<kernels::ParameterFormat>(of.parameters);
    const auto of_rows = [&] {
      return jit::source(jit::NormInstance{planned.kernel, norm, residual, type_of(of.format), plan.wide,
                                           plan.side, plan.norm, parameters, drops, unstored});
    };
    switch (planned.kernel) {
      case DeviceKernel::norm_forward:
      case DeviceKernel::norm_backward:
      case DeviceKernel::norm_backward_slots: {
        // that kernel reads no parameters
        const int read = planned.kernel == DeviceKernel::norm_backward ? OUTGRAD_F32 : of.parameters;
        const std::string key = key_of("norm", plan.norm, planned.kernel, of.format, norm, plan.wide,
                                       plan.side, read, residual, drops, unstored);
        return at.gpu.kernels_of(key, 0, of_rows).at(planned.kernel);
      }
      default: return norm_helpers(at.gpu, norm, of.format, of.parameters).at(planned.kernel);
    }
  };
  at.launch(id, plan, arguments, find, extra);
}

template <class LayerTable, class RmsTable, class SumLayerTable, class SumRmsTable, class Body>
void with_tuned_norm(const Gpu& gpu, const NormOf& of, bool residual, const Body& body) {
  const auto choose = [&]<class Choice>(Choice) { body(GpuNormSchedule(Choice::kSchedule)); };
  if (residual) {
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
          .drops = of.sum.seed.at != nullptr};
}

}  // namespace

void Cuda::norm_forward(const NormOf& of, const void* x, void* y) const {
  const SumOf& sum = of.sum;
  require_norm(of, "norm_forward");
  require(of.eps >= 0.0f, "norm_forward", "eps must be at least 0");
  if (of.rows == 0) return;
  const At at(on_);
  Arguments arguments{{}, of.rows, of.n, of.eps, {of.side, of.side_count, of.side_x_hat}};
  std::size_t k = 0;
  const bool residual = sum.residual != nullptr;
  arguments.array[k++] = input(x);
  if (residual) arguments.array[k++] = input(sum.residual);
  arguments.array[k++] = input(of.gamma);
  if (!of.rms) arguments.array[k++] = input(of.beta);
  if (residual) arguments.array[k++] = sum.z;
  for (void* array : {y, static_cast<void*>(of.rstd)}) arguments.array[k++] = array;
  bool wide = of.n % kernels::cuda::kOctet == 0;
  for (const void* array :
       {x, sum.residual, of.gamma, of.beta, const_cast<const void*>(sum.z), const_cast<const void*>(y)})
    wide = wide && is_aligned(array);
  with_type(of.format, [&]<class T>(T) {
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

std::size_t Cuda::norm_workspace_bytes(const Rows& over) const {
  return static_cast<std::size_t>(kernels::cuda::norm_backward_workspace(over.rows, over.n)) * sizeof(float);
}

void Cuda::norm_backward(const NormOf& of, const void* dy, const void* y, const NormGradients& to) const {
  const SumOf& sum = of.sum;
  require_norm(of, "norm_backward");
  require(of.bytes >= norm_workspace_bytes(of), "norm_backward", "the workspace is too small");
  const At at(on_);
  Arguments arguments{{}, of.rows, of.n, 0, {of.side, of.side_count, of.side_x_hat}};
  std::size_t k = 0;
  const bool added = sum.dz_next != nullptr;
  for (void* array : {input(dy), input(y)}) arguments.array[k++] = array;
  if (added) arguments.array[k++] = input(sum.dz_next);
  arguments.array[k++] = input(of.gamma);
  if (!of.rms) arguments.array[k++] = input(of.beta);
  for (void* array : {static_cast<void*>(of.rstd), to.dx, to.dgamma}) arguments.array[k++] = array;
  if (!of.rms) arguments.array[k++] = to.dbeta;
  arguments.array[k] = of.workspace;
  bool wide = of.n % kernels::cuda::kOctet == 0;
  for (const void* array :
       {dy, y, sum.dz_next, const_cast<const void*>(to.dx), const_cast<const void*>(sum.dx)})
    wide = wide && is_aligned(array);
  kernels::cuda::NormTask task = task_of(of, added, wide);
  task.sums = to.dgamma != nullptr || to.dbeta != nullptr;
  task.aligned = is_aligned(of.gamma) && is_aligned(of.beta);
  with_type(of.format, [&]<class T>(T) {
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
