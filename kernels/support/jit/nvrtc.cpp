// Loads libnvrtc at run time, and reads ptxas's report.
#include "kernels/support/jit/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "kernels/support/errors.h"

namespace outgrad::kernels::jit {
namespace {

namespace fs = std::filesystem;

constexpr int kNvrtcSuccess = 0;      // NVRTC_SUCCESS
constexpr int kCompilationError = 6;  // NVRTC_ERROR_COMPILATION
constexpr int kNoBuiltins = 7;        // NVRTC_ERROR_BUILTIN_OPERATION_FAILURE

#if defined(__aarch64__)
constexpr const char* kTarget = "targets/sbsa-linux/lib";
#else
constexpr const char* kTarget = "targets/x86_64-linux/lib";
#endif

// The folders of toolkits: those named by the environment, then the one where nvcc is.
std::vector<fs::path> toolkits() {
  std::vector<fs::path> roots;
  for (const char* variable : {"CUDA_PATH", "CUDA_HOME"})
    if (const char* value = std::getenv(variable); value != nullptr && *value != '\0')
      roots.emplace_back(value);
  std::istringstream folders(std::getenv("PATH") != nullptr ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    std::error_code error;  // a link in /usr/bin may lead to the toolkit
    const fs::path nvcc = fs::canonical(fs::path(folder) / "nvcc", error);
    if (folder.empty() || error) continue;
    roots.push_back(nvcc.parent_path().parent_path());
    break;
  }
  return roots;
}

std::vector<std::string>& first_folders() {
  static std::vector<std::string> folders;
  return folders;
}

// The names to open; the first one that exists is used. The loader's own search comes before folders that
// nobody has named.
std::vector<std::string> candidates() {
  // the first name is missing where only the run-time part is installed
  constexpr const char* kNames[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};
  std::vector<std::string> paths;
  const auto add_folder = [&](const fs::path& folder) {
    std::error_code error;
    for (const char* name : kNames)
      if (const fs::path path = folder / name; fs::exists(path, error)) paths.push_back(path.string());
  };
  const auto add = [&](const fs::path& root) {
    for (const char* folder : {"lib64", "lib", kTarget}) add_folder(root / folder);
  };
  for (const std::string& folder : first_folders()) add_folder(folder);
  for (const fs::path& root : toolkits()) add(root);
  paths.insert(paths.end(), std::begin(kNames), std::end(kNames));
  add("/usr/local/cuda");
  return paths;
}

// When it compiles, libnvrtc asks the loader for its builtins by name, and the loader does not know the
// folder from which libnvrtc was opened. But if a library of that name is already loaded, the loader returns
// that one. A missing file is not an error here, because the loader's path may have it.
void load_builtins(const std::string& name, const void* symbol) {
  Dl_info origin{};
  if (::dladdr(symbol, &origin) == 0 || origin.dli_fname == nullptr) return;
  std::error_code error;
  const fs::path library = origin.dli_fname;
  for (const fs::path& path : {library, fs::canonical(library, error)})
    if (::dlopen((path.parent_path() / name).c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr) return;
}

template <class Function>
void load(void* library, const std::string& path, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function == nullptr) throw EnvironmentError(path + " has no " + name);
}

std::string first_error(const std::string& log) {
  std::istringstream lines(log);
  for (std::string line; std::getline(lines, line);)
    if (line.find("error") != std::string::npos) return line;
  return log.empty() ? "no message" : log.substr(0, log.find('\n'));
}

}  // namespace

void Nvrtc::look_first_in(std::vector<std::string> folders) { first_folders() = std::move(folders); }

const Nvrtc& Nvrtc::instance() {
  static const Nvrtc kInstance;
  return kInstance;
}

Nvrtc::Nvrtc() {
  void* library = nullptr;
  std::string searched;
  for (const std::string& path : candidates()) {
    library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      path_ = path;
      break;
    }
    searched += (searched.empty() ? "" : ", ") + path;
  }
  if (library == nullptr)
    throw EnvironmentError("no CUDA run-time compiler (tried " + searched +
                           "; the folders of CUDA_PATH, CUDA_HOME, nvcc and /usr/local/cuda)");
  int (*version_of)(int*, int*) = nullptr;
  int (*architecture_count)(int*) = nullptr;
  int (*supported)(int*) = nullptr;
  load(library, path_, "nvrtcVersion", version_of);
  load(library, path_, "nvrtcGetNumSupportedArchs", architecture_count);
  load(library, path_, "nvrtcGetSupportedArchs", supported);
  load(library, path_, "nvrtcCreateProgram", create_);
  load(library, path_, "nvrtcCompileProgram", compile_);
  load(library, path_, "nvrtcGetProgramLogSize", log_size_);
  load(library, path_, "nvrtcGetProgramLog", log_);
  load(library, path_, "nvrtcGetCUBINSize", cubin_size_);
  load(library, path_, "nvrtcGetCUBIN", cubin_);
  load(library, path_, "nvrtcDestroyProgram", destroy_);
  load(library, path_, "nvrtcGetErrorString", error_string_);
  int major = 0, minor = 0, count = 0;
  if (version_of(&major, &minor) != kNvrtcSuccess || architecture_count(&count) != kNvrtcSuccess ||
      count <= 0)
    throw EnvironmentError(path_ + " does not say its version");
  std::vector<int> numbers(static_cast<std::size_t>(count));
  if (supported(numbers.data()) != kNvrtcSuccess)
    throw EnvironmentError(path_ + " does not say its architectures");
  version_ = std::to_string(major) + "." + std::to_string(minor);
  load_builtins(builtins_name(), reinterpret_cast<const void*>(version_of));
  std::sort(numbers.begin(), numbers.end());
  for (const int number : numbers) architectures_.push_back("sm_" + std::to_string(number));
}

std::string Nvrtc::builtins_name() const { return "libnvrtc-builtins.so." + version_; }

void Nvrtc::require(const std::string& architecture) const {
  static const std::regex kForm("sm_[0-9]{2,3}");
  if (!std::regex_match(architecture, kForm))
    throw SpecError("device", architecture, "no architecture (sm_80, sm_90, ...)");
  if (std::find(architectures_.begin(), architectures_.end(), architecture) == architectures_.end())
    throw EnvironmentError(architecture + ": CUDA " + version_ + " compiles for " + architectures_.front() +
                           " to " + architectures_.back() + ", not for it");
}

std::variant<GpuCode, CompileError> Nvrtc::compile(const std::string& source,
                                                   const std::string& architecture) const {
  std::vector<const char*> texts, names;
  for (const EmbeddedSource& header : embedded_kernels())
    texts.push_back(header.text), names.push_back(header.name);
  Program program = nullptr;
  if (create_(&program, source.c_str(), "variant.cu", static_cast<int>(texts.size()), texts.data(),
              names.data()) != kNvrtcSuccess)
    throw EnvironmentError("nvrtcCreateProgram failed");
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
  if (log_size_(program, &size) == kNvrtcSuccess && size > 0) {
    log.resize(size);
    if (log_(program, log.data()) != kNvrtcSuccess) log.clear();
    while (!log.empty() && log.back() == '\0') log.pop_back();
  }
  if (status == kCompilationError) return CompileError{first_error(log)};
  const std::string failure = "nvrtcCompileProgram: " + std::string(error_string_(status)) + " (status " +
                              std::to_string(status) + ")";
  if (status == kNoBuiltins)
    throw EnvironmentError(failure + ": " + path_ + " works with " + builtins_name() +
                           ", which is neither beside it nor on the loader's path");
  if (status != kNvrtcSuccess) throw std::runtime_error(failure);
  GpuCode code;
  if (cubin_size_(program, &size) != kNvrtcSuccess) throw std::runtime_error("nvrtcGetCUBINSize failed");
  code.cubin.resize(size);
  if (cubin_(program, code.cubin.data()) != kNvrtcSuccess) throw std::runtime_error("nvrtcGetCUBIN failed");
  code.kernels = read_ptxas_report(log);
  return code;
}

std::vector<std::pair<std::string, KernelResources>> read_ptxas_report(const std::string& log) {
  static const std::regex kEntry(R"(Compiling entry function '([^']+)')");
  static const std::regex kStack(
      R"((\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads)");
  static const std::regex kUsed(R"(Used (\d+) registers)"), kShared(R"((\d+) bytes smem)");
  std::vector<std::pair<std::string, KernelResources>> kernels;
  std::istringstream lines(log);
  bool open = false;  // whether an entry still lacks its registers
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
  if (open) throw EnvironmentError("ptxas reports no registers of " + kernels.back().first);
  return kernels;
}

}  // namespace outgrad::kernels::jit
