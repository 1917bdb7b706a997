// The CUDA run-time compiler, loaded when it is first needed. Building this program needs no toolkit, and
// compiling a kernel needs no GPU.
#pragma once

#include <string>
#include <variant>
#include <vector>

namespace outgrad::kernels::jit {

// A header of kernels/ that this program contains, under the name by which sources include it.
struct EmbeddedSource {
  const char* name;
  const char* text;
};
// All headers that device code can include. Defined by cmake/EmbedSources.cmake.
const std::vector<EmbeddedSource>& embedded_kernels();

// What ptxas reports of one kernel.
struct KernelResources {
  int registers = 0;     // per thread
  int stack_bytes = 0;   // per thread, in local memory
  int spill_bytes = 0;   // per thread: stores and loads
  int shared_bytes = 0;  // per block, declared statically
};

struct GpuCode {
  std::string cubin;
  std::vector<std::pair<std::string, KernelResources>> kernels;  // by mangled name
};

// The compiler's first error, or its whole output.
struct CompileError {
  std::string message;
};

class Nvrtc {
 public:
  // Folders that are searched before all others, until instance() has found a library.
  static void look_first_in(std::vector<std::string> folders);
  // Throws EnvironmentError, with the places that were searched, if no libnvrtc can be loaded.
  static const Nvrtc& instance();

  std::string version() const { return version_; }  // "13.0"
  // "sm_80", ... in ascending order.
  const std::vector<std::string>& architectures() const { return architectures_; }
  // Throws SpecError unless `architecture` has the form sm_XX, and EnvironmentError if this toolkit does not
  // know it.
  void require(const std::string& architecture) const;

  // Compiles a source that includes only embedded headers. Throws EnvironmentError if the library lacks its
  // other half, so that no source can be compiled, and runtime_error if it fails on this source.
  std::variant<GpuCode, CompileError> compile(const std::string& source,
                                              const std::string& architecture) const;

 private:
  Nvrtc();
  std::string builtins_name() const;

  using Program = void*;
  int (*create_)(Program*, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*compile_)(Program, int, const char* const*) = nullptr;
  int (*log_size_)(Program, std::size_t*) = nullptr;
  int (*log_)(Program, char*) = nullptr;
  int (*cubin_size_)(Program, std::size_t*) = nullptr;
  int (*cubin_)(Program, char*) = nullptr;
  int (*destroy_)(Program*) = nullptr;
  const char* (*error_string_)(int) = nullptr;
  std::string path_, version_;
  std::vector<std::string> architectures_;
};

// Reads "ptxas info" lines, as --ptxas-options=-v prints them, up to CUDA 13. Throws EnvironmentError, with
// the line, on a report without registers.
std::vector<std::pair<std::string, KernelResources>> read_ptxas_report(const std::string& log);

}  // namespace outgrad::kernels::jit
