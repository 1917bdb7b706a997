// Tuning for a GPU that is not there: variants are compiled for its architecture, pruned by what the compiler
// says of them, and ranked by the model. Nothing runs, so nothing is measured: every figure is marked
// predicted.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "autotune/gpu/facts.h"
#include "autotune/gpu/model.h"
#include "autotune/gpu/variant.h"
#include "autotune/measure/candidate.h"
#include "autotune/measure/isolate.h"
#include "autotune/space/sources.h"

namespace outgrad::autotune::gpu {

// Why a variant was pruned.
struct Pruned {
  Reason reason;
  std::string detail;
};
struct Predicted {
  CodeFacts code;  // of the kernel of the schedule
  std::vector<CodeFacts> helpers;  // of the others: what they take, and their symbols
  Prediction prediction;
  // paths of the cubins, and of each the symbols of its kernels: a line for each cubin, words for symbols
  Compiled compiled;
};
struct Outcome {
  GpuVariant variant;
  std::variant<Pruned, Predicted> result;
};

// A problem's space on an architecture.
struct GpuSpace {
  const Problem& problem;
  const Fits& fits;
  const Architecture& architecture;
  const Space& space;
  const Points& valid;
};

// At most `count` points for a first look: those that differ from the kernel's own default in few parameters,
// in a random order that the seed fixes.
std::vector<std::size_t> near_default(const GpuSpace& of, std::size_t count, std::uint64_t seed);
// The default itself and these points' variants, `count` in all.
std::vector<GpuVariant> choose_gpu_variants(const GpuSpace& of, std::size_t count, std::uint64_t seed);

struct OfflineSettings {
  std::string cache_folder;
  int jobs = 1;  // compilers side by side
  // With a compiler that says nothing. The first program of all, the default's where that is not cached, is
  // the baseline.
  std::shared_ptr<Patience> patience =
      std::make_shared<Patience>(/*times=*/10, /*least_seconds=*/30, /*most_seconds=*/60);
  // no compilation starts later than this; what it leaves out is not in the outcomes
  double budget_seconds = 1e9;
  std::function<void(std::size_t done, std::size_t programs)> progress;
};

// The outcomes in the order of the variants. Throws EnvironmentError without a CUDA run-time compiler for the
// architecture, IoError when the cache cannot be written.
std::vector<Outcome> evaluate(const std::vector<GpuVariant>& variants, const Architecture& architecture,
                              const OfflineSettings& settings);

// The hashes of the embedded headers, on which every compiled kernel depends.
SourceHashes hash_of_embedded();

}  // namespace outgrad::autotune::gpu
