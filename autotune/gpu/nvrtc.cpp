// libnvrtc at run time, and ptxas's report.
#include "autotune/gpu/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <sstream>

#include "kernels/host/errors.h"

namespace outgrad::autotune::gpu {
namespace {

constexpr int kSuccess = 0;           // NVRTC_SUCCESS
constexpr int kCompilationError = 6;  // NVRTC_ERROR_COMPILATION

std::vector<std::string> candidates() {
  std::vector<std::string> paths;
  for (const char* variable : {"CUDA_PATH", "CUDA_HOME"})
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0') paths.push_back(std::string(value) + "/lib64/libnvrtc.so");
  paths.insert(paths.end(), {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"});
  return paths;
}

template <class Function>
void load(void* library, const std::string& path, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function == nullptr) throw kernels::EnvironmentError(path + " has no " + name);
}

std::string first_error(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);)
    if (line.find("error") != std::string::npos) return line;
  return log.empty() ? "no message" : log.substr(0, log.find('\n'));
}

}  // namespace

const Nvrtc& Nvrtc::instance() {
  static const Nvrtc kInstance;
  return kInstance;
}

Nvrtc::Nvrtc() {
  void* library = nullptr;
  std::string found, searched;
  for (const std::string& path : candidates()) {
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      found = path;
      break;
    }
    searched += (searched.empty() ? "" : ", ") + path;
  }
  if (library == nullptr) throw kernels::EnvironmentError("no CUDA run-time compiler (tried " + searched + ")");
  int (*version_of)(int*, int*) = nullptr;
  int (*architecture_count)(int*) = nullptr;
  int (*supported)(int*) = nullptr;
  load(library, found, "nvrtcVersion", version_of);
  load(library, found, "nvrtcGetNumSupportedArchs", architecture_count);
  load(library, found, "nvrtcGetSupportedArchs", supported);
  load(library, found, "nvrtcCreateProgram", create_);
  load(library, found, "nvrtcCompileProgram", compile_);
  load(library, found, "nvrtcGetProgramLogSize", log_size_);
  load(library, found, "nvrtcGetProgramLog", log_);
  load(library, found, "nvrtcGetCUBINSize", cubin_size_);
  load(library, found, "nvrtcGetCUBIN", cubin_);
  load(library, found, "nvrtcDestroyProgram", destroy_);
  int major = 0, minor = 0, count = 0;
  if (version_of(&major, &minor) != kSuccess || architecture_count(&count) != kSuccess || count <= 0)
    throw kernels::EnvironmentError(found + " does not say its version");
  std::vector<int> numbers(static_cast<std::size_t>(count));
  if (supported(numbers.data()) != kSuccess) throw kernels::EnvironmentError(found + " does not say its architectures");
  version_ = std::to_string(major) + "." + std::to_string(minor);
  std::sort(numbers.begin(), numbers.end());
  for (const int number : numbers) architectures_.push_back("sm_" + std::to_string(number));
}

void Nvrtc::require(const std::string& architecture) const {
  static const std::regex kForm("sm_[0-9]{2,3}");
  if (!std::regex_match(architecture, kForm)) throw kernels::SpecError("device", architecture, "no architecture (sm_80, sm_90, ...)");
  if (std::find(architectures_.begin(), architectures_.end(), architecture) == architectures_.end())
    throw kernels::EnvironmentError(architecture + ": CUDA " + version_ + " compiles for " + architectures_.front() + " to " +
                                    architectures_.back() + ", not for it");
}

std::variant<GpuCode, CompileError> Nvrtc::compile(const std::string& source, const std::string& architecture) const {
  std::vector<const char*> texts, names;
  for (const EmbeddedSource& header : embedded_kernels()) texts.push_back(header.text), names.push_back(header.name);
  Program program = nullptr;
  if (create_(&program, source.c_str(), "variant.cu", static_cast<int>(texts.size()), texts.data(), names.data()) != kSuccess)
    throw kernels::EnvironmentError("nvrtcCreateProgram failed");
  const struct Owner {
    const Nvrtc& nvrtc;
    Program& program;
    ~Owner() { nvrtc.destroy_(&program); }
  } owner{*this, program};
  const std::string target = "--gpu-architecture=" + architecture;
  const char* const options[] = {target.c_str(), "--std=c++20", "--ptxas-options=-v"};
  const int status = compile_(program, static_cast<int>(std::size(options)), options);
  std::size_t size = 0;
  std::string log;
  if (log_size_(program, &size) == kSuccess && size > 0) {
    log.resize(size);
    if (log_(program, log.data()) != kSuccess) log.clear();
    while (!log.empty() && log.back() == '\0') log.pop_back();
  }
  if (status == kCompilationError) return CompileError{first_error(log)};
  GpuCode code;
  if (status != kSuccess || cubin_size_(program, &size) != kSuccess)
    throw kernels::EnvironmentError("nvrtcCompileProgram failed with status " + std::to_string(status));
  code.cubin.resize(size);
  if (cubin_(program, code.cubin.data()) != kSuccess) throw kernels::EnvironmentError("nvrtcGetCUBIN failed");
  code.kernels = read_ptxas_report(log);
  return code;
}

std::vector<std::pair<std::string, KernelResources>> read_ptxas_report(const std::string& log) {
  static const std::regex kEntry(R"(Compiling entry function '([^']+)')");
  static const std::regex kStack(R"((\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads)");
  static const std::regex kUsed(R"(Used (\d+) registers)"), kShared(R"((\d+) bytes smem)");
  std::vector<std::pair<std::string, KernelResources>> kernels;
  std::istringstream lines(log);
  bool open = false;  // an entry whose registers are still to come
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    const auto number = [&](std::size_t group) { return std::stoi(match[group].str()); };
    if (std::regex_search(line, match, kEntry)) {
      kernels.emplace_back(match[1], KernelResources{});
      open = true;
    } else if (open && std::regex_search(line, match, kStack)) {
      kernels.back().second.stack_bytes = number(1);
      kernels.back().second.spill_bytes = number(2) + number(3);
    } else if (open && std::regex_search(line, match, kUsed)) {
      kernels.back().second.registers = number(1);
      if (std::regex_search(line, match, kShared)) kernels.back().second.shared_bytes = number(1);
      open = false;
    }
  }
  if (open) throw kernels::EnvironmentError("ptxas reports no registers of " + kernels.back().first);
  return kernels;
}

}  // namespace outgrad::autotune::gpu
