// Headers as the C++ compiler reads them: many mutants in one shared library, which is asked for the claims
// and the outputs of each.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tests/attack/probe_types.h"

namespace outgrad::validation::gate {

/// The compiler and the folder of the kernels' sources.
struct Toolchain {
  std::string compiler;
  std::string sources;
};
/// $CXX, or else c++. Throws kernels::EnvironmentError if there are no sources.
Toolchain default_toolchain();

/// A shared library with the headers that compile.
class CompiledBatch {
 public:
  /// Headers that the compiler names in an error are left out until the rest compiles. If it names none, the
  /// batch is halved.
  CompiledBatch(const Toolchain& toolchain, const std::string& folder,
                const std::vector<std::string>& headers);

  ~CompiledBatch();
  CompiledBatch(const CompiledBatch&) = delete;
  CompiledBatch& operator=(const CompiledBatch&) = delete;

  bool compiles(size_t index) const { return !libraries_[index].empty(); }
  /// What the compiler said about a header that does not compile.
  const std::string& complaint(size_t index) const { return complaints_[index]; }
  /// These two load the library into this process until the batch ends. A claim's texts belong to the
  /// library.
  Claims claims(size_t index) const;
  std::vector<Outcome> run(size_t index, std::span<const Point> points) const;

 private:
  void compile(const Toolchain& toolchain, const std::string& folder, std::vector<size_t> members);
  void* symbol(size_t index, const char* what) const;

  std::vector<std::string> types_, libraries_, complaints_;
  // The library is unloaded before its file is removed: the next file may get the same inode, by which the
  // loader recognises a library.
  mutable std::map<std::string, void*> handles_;
  int units_ = 0;
};

}  // namespace outgrad::validation::gate
