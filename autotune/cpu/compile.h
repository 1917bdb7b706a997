// Compiles candidates with the host compiler into shared objects: several to a translation unit, in parallel,
// cached on disk.
//
// The key of the cache is everything that the object depends on: source, headers' contents, flags, the
// compiler's own version text, and the processor, which is what -march=native goes by.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "autotune/measure/candidate.h"
#include "autotune/measure/isolate.h"

namespace outgrad::autotune {

struct Toolchain {
  std::vector<std::string> compiler;  // the command's words: $CXX may be "ccache g++"
  std::string version;  // what it says of itself
  std::vector<std::string> flags;
  std::string source_root;  // holds kernels/ and autotune/
  std::string headers_hash;
  std::string processor;  // what -march=native means here
};

// $CXX, else the compiler that built this program, else c++ or g++. Throws EnvironmentError when none runs or
// the sources are gone.
Toolchain find_toolchain();

struct CompileSettings {
  std::string cache_folder;
  int jobs = 1;
  // amortises the headers (about one variant's worth of time) and still balances over few cores
  int variants_per_unit = 6;
  // One translation unit takes seconds. Once one is compiled, which is the default's where that is not
  // cached, others have ten times as long.
  std::shared_ptr<Patience> patience =
      std::make_shared<Patience>(/*times=*/10, /*least_seconds=*/30, /*most_seconds=*/120);
  // no unit starts later than this; the default of each problem is in its first unit
  double budget_seconds = 1e9;
  std::function<void(std::size_t done, std::size_t units)> progress;
};

// Takes the proposed candidates to compiled or rejected. Units never mix problems; a unit that fails is
// split, so that only the offender is rejected. Candidates that the budget left out stay proposed. Throws
// IoError when the cache cannot be written.
void compile(const std::vector<Candidate*>& candidates, const Toolchain& toolchain,
             const CompileSettings& settings);

// A header's text as part of a source: the compiler's messages name `path` and the lines of the header.
std::string included_text(std::string header, const std::string& path);

// Compiles one source of the caller's, which exports `symbol`, into the cache. Throws SpecError(`origin`,
// "does not compile", the first error) when the compiler refuses it, EnvironmentError when it does not end in
// time, IoError when the cache cannot be written.
Compiled compile_source(const std::string& source, const std::string& symbol, const std::string& origin,
                        const Toolchain& toolchain, const CompileSettings& settings);

// Loads a compiled candidate. Call it in the child process only: the code's static initialisers run. Throws
// EnvironmentError.
VariantFunction load(const Compiled& compiled);

}  // namespace outgrad::autotune
