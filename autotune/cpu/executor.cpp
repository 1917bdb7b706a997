// The CPU as an executor.
#include "autotune/cpu/executor.h"

#include <optional>

#include "autotune/cpu/compile.h"
#include "autotune/measure/workload.h"

namespace outgrad::autotune {
namespace {

class CpuExecutor : public Executor {
 public:
  std::function<void(const Arguments&)> function(const Candidate& candidate) override {
    return load(*candidate.code());
  }

  void allocate(const Problem& problem, std::uint64_t seed) override {
    problem_ = problem;
    arrays_.emplace(problem, seed);
  }
  // Streams of whole matrices: a copy where the kernel reads one of them, else a triad.
  Workload ceiling() override {
    const Arguments a = arrays_->arguments();
    std::vector<const float*> read;
    float* written = nullptr;
    const std::span<const Operand> all = operands(problem_.kernel);
    for (std::size_t k = 0; k < all.size(); ++k) {
      if (all[k].extent != Extent::kElements) continue;
      if (all[k].role == Role::kInput)
        read.push_back(static_cast<const float*>(a.array[k]));
      else if (written == nullptr)
        written = static_cast<float*>(a.array[k]);
    }
    const double bytes = static_cast<double>(problem_.elements()) * bytes_of(problem_.format);
    const auto floats =
        problem_.elements() * bytes_of(problem_.format) / static_cast<long long>(sizeof(float));
    if (read.size() > 1)
      return {"triad", 3 * bytes,
              [=, first = read[0], second = read[1]] { triad(first, second, written, floats); }};
    return {"copy", 2 * bytes, [=, first = read[0]] { copy(first, written, floats); }};
  }
  Workload workload(const Candidate& candidate) override {
    return {candidate.variant().name(), problem_.bytes(),
            [function = load(*candidate.code()), a = arrays_->arguments()] { function(a); }};
  }

 private:
  Problem problem_;
  std::optional<Workspace> arrays_;
};

}  // namespace

std::unique_ptr<Executor> open_cpu() { return std::make_unique<CpuExecutor>(); }

}  // namespace outgrad::autotune
