// The CPU as an executor.
#include "autotune/executor.h"

#include <optional>

#include "autotune/compile.h"
#include "autotune/workload.h"

namespace outgrad::autotune {
namespace {

class CpuExecutor : public Executor {
 public:
  std::function<void(const Arguments&)> function(const Candidate& candidate) override { return load(*candidate.code()); }

  void allocate(const Problem& problem, kernels::i64 elements, std::uint64_t seed) override {
    problem_ = problem;
    arrays_.emplace(problem.format, elements, !backward(), backward(), seed);
  }
  Workload ceiling() override {
    const Arguments a = arguments();
    const auto *first = static_cast<const float*>(a.first), *second = static_cast<const float*>(a.second);
    auto* out = static_cast<float*>(a.out);
    const auto floats = static_cast<long long>(arrays_->bytes / sizeof(float));
    if (backward()) return {"triad", 3.0 * static_cast<double>(arrays_->bytes), [=] { triad(first, second, out, floats); }};
    return {"copy", 2.0 * static_cast<double>(arrays_->bytes), [=] { copy(first, out, floats); }};
  }
  Workload workload(const Candidate& candidate) override {
    const Arguments a = arguments();
    return {candidate.variant().name(), problem_.bytes_per_element() * static_cast<double>(a.elements),
            [function = load(*candidate.code()), a] { function(a); }};
  }

 private:
  bool backward() const { return problem_.kernel == KernelId::kGeluBackward; }
  Arguments arguments() const { return backward() ? arrays_->backward() : arrays_->forward(); }

  Problem problem_;
  std::optional<Workspace> arrays_;
};

}  // namespace

std::unique_ptr<Executor> open_cpu() { return std::make_unique<CpuExecutor>(); }

}  // namespace outgrad::autotune
