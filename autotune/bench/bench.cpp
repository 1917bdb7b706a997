// The cases, one timing path (timing.h).
#include "autotune/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <span>
#include <string_view>

#include "autotune/bench/deployed.h"
#include "autotune/bench/peer.h"
#include "autotune/measure/workload.h"
#include "kernels/host/parallel.h"
#include "kernels/support/statistics.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;

// a common hidden size; rows of 2 to 4 KiB stay in the first-level cache between passes
constexpr i64 kCols = 1024;
constexpr i64 kRows = 16384;       // at most: a batch of 8 sequences of 2048, tensors of 32 to 64 MiB
// libm is an order slower: it gets so many times fewer elements, still beyond the caches
constexpr i64 kPeerFraction = 16;

// The same functions from x with libm, as a loop that a user would write.
void libm_backward(const float* dy, const float* x, float* dx, i64 n) {
#pragma omp parallel for schedule(static)
  for (i64 i = 0; i < n; ++i) {
    const float cdf = 0.5f * (1 + std::erf(x[i] * 0.70710678f));                 // 1 / sqrt(2)
    dx[i] = dy[i] * (cdf + x[i] * 0.39894228f * std::exp(-0.5f * x[i] * x[i]));  // 1 / sqrt(2 pi)
  }
}

void libm_forward(const float* x, float* y, i64 n) {
#pragma omp parallel for schedule(static)
  for (i64 i = 0; i < n; ++i) y[i] = 0.5f * x[i] * (1 + std::erf(x[i] * 0.70710678f));
}

// Adds cases and what they run side by side.
struct Plan {
  std::vector<BenchCase> cases;
  std::vector<Workload> workloads;
  void add(std::string name, std::string variant, i64 elements, double bytes, std::function<void()> run) {
    add(std::move(name), {std::move(variant), ""}, elements, bytes, std::move(run));
  }
  void add(std::string name, Deployed chosen, i64 elements, double bytes, std::function<void()> run) {
    workloads.push_back({name, bytes, std::move(run)});
    cases.push_back({std::move(name),
                     std::move(chosen.variant),
                     std::move(chosen.rung),
                     chosen.fit,
                     static_cast<double>(elements),
                     bytes,
                     {}});
  }
};

// Rows of the matrices that norms and bias + GELU are timed on.
i64 norm_rows(i64 elements) { return std::min(kRows, elements / kCols); }

// Arrays that all cases share: inputs by what they hold, and a place for each kind of result.
class SharedArrays {
 public:
  SharedArrays(FormatId format, i64 elements, std::uint64_t seed)
      : x(filled(Content::kX, Element::kFormat, format, elements, seed)),
        dy(filled(Content::kDy, Element::kFormat, format, elements, seed)),
        y(filled(Content::kActivation, Element::kFormat, format, elements, seed)),
        out(filled(Content::kResult, Element::kFormat, format, elements, seed)),
        mask_(filled(Content::kMask, Element::kMaskWord, format, (elements + 31) / 32, seed)),
        codes_(filled(Content::kCodes, Element::kByte, format,
                      Problem{}.sized(1, elements).count_of(kernels::catalogue::kCodes), seed)),
        z_(filled(Content::kResult, Element::kFormat, format, elements, seed)),
        rstd_(static_cast<std::size_t>(norm_rows(elements)), 1.0f) {}

  Arguments arguments(const Problem& problem) {
    Arguments a = problem.arguments();
    const std::span<const Operand> all = operands(problem.kernel);
    for (std::size_t k = 0; k < all.size(); ++k) a.array[k] = place(all[k], problem);
    return a;
  }

  Array x, dy, y, out;

 private:
  void* place(const Operand& operand, const Problem& problem) {
    switch (operand.content) {
      case Content::kX:
      case Content::kDzNext: return x.get();
      case Content::kDy:
      case Content::kResidual: return dy.get();
      case Content::kActivation:
      case Content::kNormed: return y.get();
      case Content::kMask: return mask_.get();
      case Content::kCodes: return codes_.get();
      case Content::kGamma: return gamma_.data();
      case Content::kBeta:
      case Content::kBias: return beta_.data();
      case Content::kRstd: return rstd_.data();
      case Content::kResult: break;
    }
    const std::string_view name = operand.name;
    if (operand.element == Element::kFormat) return name == "z" ? z_.get() : out.get();
    if (operand.element == Element::kMaskWord) return mask_.get();
    if (operand.element == Element::kByte) return codes_.get();
    if (operand.extent == Extent::kRows) return rstd_.data();
    if (operand.extent == Extent::kColumns) return name == "dgamma" ? dgamma_.data() : dbeta_.data();
    workspaces_.emplace_back(static_cast<std::size_t>(problem.count_of(operand)));
    return workspaces_.back().data();
  }

  Array mask_, codes_, z_;
  std::vector<float> gamma_ = std::vector<float>(kCols, 0.75f), beta_ = std::vector<float>(kCols, 0.25f),
                     dgamma_ = std::vector<float>(kCols), dbeta_ = std::vector<float>(kCols), rstd_;
  std::deque<std::vector<float>> workspaces_;
};

constexpr KernelId kTimed[] = {KernelId::kGeluBackward,
                               KernelId::kGeluForward,
                               KernelId::kLayernormForward,
                               KernelId::kLayernormBackward,
                               KernelId::kRmsnormForward,
                               KernelId::kRmsnormBackward,
                               KernelId::kResidualLayernormForward,
                               KernelId::kResidualLayernormBackward,
                               KernelId::kBiasGeluForward,
                               KernelId::kBiasGeluBackward,
                               KernelId::kGeluForwardCode,
                               KernelId::kGeluBackwardCode};

// Of the activations beside GELU, those that people train with; their backward is GELU's with another table.
constexpr std::string_view kTimedActivations[] = {"gelu_tanh", "silu", "mish"};

}  // namespace

BenchGroup run_bench(FormatId format, i64 elements, int rounds, std::uint64_t seed) {
  std::string why;
  const i64 rows = norm_rows(elements);
  const auto torch = TorchPeer::start(format, elements, rows, kCols, kernels::thread_count(0), why);
  SharedArrays arrays(format, elements, seed);
  const auto floats_of = [](const Array& array) { return reinterpret_cast<float*>(array.get()); };
  float *const x = floats_of(arrays.x), *const dy = floats_of(arrays.dy), *const y = floats_of(arrays.y),
               *const out = floats_of(arrays.out);
  const double n = static_cast<double>(elements), size = bytes_of(format);
  const i64 floats = elements * bytes_of(format) / static_cast<i64>(sizeof(float));

  Plan plan;
  plan.add("triad", "", floats, 3 * size * n, [=] { triad(dy, y, out, floats); });
  plan.add("copy", "", floats, 2 * size * n, [=] { copy(x, out, floats); });
  for (const KernelId kernel : kTimed) {
    const Problem plain{kernel, format},
        problem = plain.over_rows() ? plain.sized(rows, kCols) : plain.sized(1, elements);
    if (problem.rows == 0) continue;
    plan.add(name_of(kernel), deployed(problem), problem.elements(),
             problem.bytes_per_element() * static_cast<double>(problem.elements()),
             [problem, arguments = arrays.arguments(problem)] { run_deployed(problem, arguments); });
  }
  for (const std::string_view activation : kTimedActivations) {
    const Problem problem = Problem{KernelId::kGeluForward, format}.sized(1, elements);
    plan.add(std::string(activation) + "_forward", "", elements,
             problem.bytes_per_element() * static_cast<double>(elements),
             [problem, index = activation_named(activation), arguments = arrays.arguments(problem)] {
               run_deployed_activation(index, problem, arguments);
             });
  }
  if (format == FormatId::kF32) {
    const i64 few = elements / kPeerFraction;
    plan.add("libm_gelu_backward", "", few, 3 * size * static_cast<double>(few),
             [=] { libm_backward(dy, x, out, few); });
    plan.add("libm_gelu_forward", "", few, 2 * size * static_cast<double>(few),
             [=] { libm_forward(x, out, few); });
  }

  if (torch) {
    for (const std::string& kernel : torch->kernels()) {
      const auto ours = std::find_if(plan.cases.begin(), plan.cases.end(),
                                     [&](const BenchCase& c) { return c.name == kernel; });
      if (ours == plan.cases.end()) continue;
      const double streams = kernel.ends_with("backward") ? 3 : 2;
      plan.add("torch_" + kernel, torch->version(), static_cast<i64>(ours->elements),
               streams * size * ours->elements, [&, kernel] { torch->run(kernel); });
    }
  }

  const auto ns = timed_until(std::move(plan.workloads), rounds, seed);
  for (std::size_t c = 0; c < plan.cases.size(); ++c) plan.cases[c].ns = ns[c];
  return {format, std::move(plan.cases), why};
}

}  // namespace outgrad::autotune
