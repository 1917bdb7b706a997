// The cases, one timing path (timing.h), the table.
#include "autotune/bench/bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "autotune/bench/compare.h"
#include "autotune/bench/peer.h"
#include "autotune/device.h"
#include "autotune/options.h"
#include "autotune/workload.h"
#include "kernels/host/api.h"
#include "kernels/support/statistics.h"

namespace outgrad::autotune {
namespace {

namespace tuned = kernels::tuned;
using kernels::i64;
using nlohmann::json;

constexpr i64 kCols = 1024;        // a common hidden size; rows of 2 to 4 KiB stay in the first-level cache between passes
constexpr i64 kRows = 16384;       // at most: a batch of 8 sequences of 2048, tensors of 32 to 64 MiB
constexpr i64 kPeerFraction = 16;  // libm is an order slower: it gets so many times fewer elements, still beyond the caches

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

// What a table has for a size.
struct Chosen {
  std::string variant, rung;
  kernels::FitClaims fit{};
};
template <class Table>
Chosen chosen(i64 rows, i64 cols) {
  const tuned::Tuning tuning = tuned::tuning_of<Table>(rows, cols);
  return {tuning.entry->variant, name_of(tuning.found.rung), tuning.fit};
}

// Adds cases and what they run side by side.
struct Plan {
  std::vector<BenchCase> cases;
  std::vector<Workload> workloads;
  void add(std::string name, std::string variant, i64 elements, double bytes, std::function<void()> run) {
    add(std::move(name), {std::move(variant), ""}, elements, bytes, std::move(run));
  }
  void add(std::string name, Chosen chosen, i64 elements, double bytes, std::function<void()> run) {
    workloads.push_back({name, bytes, std::move(run)});
    cases.push_back({std::move(name), std::move(chosen.variant), std::move(chosen.rung), chosen.fit, static_cast<double>(elements), bytes, {}});
  }
};

// Rows of the matrices that norms and bias + GELU are timed on.
i64 norm_rows(i64 elements) { return std::min(kRows, elements / kCols); }

template <class T>
BenchGroup run_typed(FormatId format, i64 elements, int rounds, std::uint64_t seed) {
  std::string why;
  const auto torch = TorchPeer::start(format, elements, norm_rows(elements), kCols, kernels::thread_count(0), why);
  const auto array = [&](Content content) { return filled(content, Element::kFormat, format, elements, seed); };
  const Array x_array = array(Content::kX), dy_array = array(Content::kDy), y_array = array(Content::kActivation), out_array = array(Content::kResult),
              second_array = array(Content::kResult),  // for kernels of two outputs
      mask_array = filled(Content::kMask, Element::kMaskWord, format, (elements + 31) / 32, seed);
  const auto *x = reinterpret_cast<const T*>(x_array.get()), *dy = reinterpret_cast<const T*>(dy_array.get()), *y = reinterpret_cast<const T*>(y_array.get());
  T *const out = reinterpret_cast<T*>(out_array.get()), *const second_out = reinterpret_cast<T*>(second_array.get());
  kernels::u32* const mask = reinterpret_cast<kernels::u32*>(mask_array.get());
  const i64 rows = norm_rows(elements), floats = elements * static_cast<i64>(sizeof(T)) / static_cast<i64>(sizeof(float));
  std::vector<float> gamma(kCols, 0.75f), beta(kCols, 0.25f), dgamma(kCols), dbeta(kCols), rstd(static_cast<std::size_t>(rows), 1.0f);
  const i64 words = std::max(kernels::norm_backward_workspace(rows, kCols), kernels::bias_backward_workspace(rows, kCols));
  std::vector<float> workspace(static_cast<std::size_t>(words));
  const double n = static_cast<double>(elements), norm_n = static_cast<double>(rows * kCols), size = sizeof(T);
  const Problem backward{KernelId::kGeluBackward, format}, forward{KernelId::kGeluForward, format};

  Plan plan;
  plan.add("triad", "", floats, 3 * size * n,
           [&] { triad(reinterpret_cast<const float*>(dy), reinterpret_cast<const float*>(y), reinterpret_cast<float*>(out), floats); });
  plan.add("copy", "", floats, 2 * size * n, [&] { copy(reinterpret_cast<const float*>(x), reinterpret_cast<float*>(out), floats); });
  plan.add("gelu_backward", chosen<tuned::GeluBackward<T>>(1, elements), elements, backward.bytes_per_element() * n,
           [&] { kernels::gelu_backward<T>(dy, y, mask, out, elements); });
  plan.add("gelu_forward", chosen<tuned::GeluForward<T>>(1, elements), elements, forward.bytes_per_element() * n,
           [&] { kernels::gelu_forward<T>(x, out, mask, elements); });
  if (rows > 0) {
    const auto over_rows = [&](const char* name, const Chosen& choice, double bytes_per_element, std::function<void()> run) {
      plan.add(name, choice, rows * kCols, bytes_per_element * norm_n, std::move(run));
    };
    over_rows("layernorm_forward", chosen<tuned::LayernormForward<T>>(rows, kCols), 2 * size,
              [&] { tuned::layernorm_forward<T>(x, gamma.data(), beta.data(), rows, kCols, 1e-5f, out, rstd.data()); });
    over_rows("layernorm_backward", chosen<tuned::LayernormBackward<T>>(rows, kCols), 3 * size, [&] {
      tuned::layernorm_backward<T>(dy, y, gamma.data(), beta.data(), rstd.data(), rows, kCols, out, dgamma.data(), dbeta.data(), {}, workspace);
    });
    over_rows("rmsnorm_forward", chosen<tuned::RmsnormForward<T>>(rows, kCols), 2 * size,
              [&] { tuned::rmsnorm_forward<T>(x, gamma.data(), rows, kCols, 1e-5f, out, rstd.data()); });
    over_rows("rmsnorm_backward", chosen<tuned::RmsnormBackward<T>>(rows, kCols), 3 * size,
              [&] { tuned::rmsnorm_backward<T>(dy, y, gamma.data(), rstd.data(), rows, kCols, out, dgamma.data(), {}, workspace); });
    over_rows("residual_layernorm_forward", chosen<tuned::ResidualLayernormForward<T>>(rows, kCols), 4 * size,
              [&] { tuned::residual_layernorm_forward<T>(x, dy, gamma.data(), beta.data(), rows, kCols, 1e-5f, second_out, out, rstd.data()); });
    over_rows("residual_layernorm_backward", chosen<tuned::ResidualLayernormBackward<T>>(rows, kCols), 4 * size, [&] {
      tuned::residual_layernorm_backward<T>(dy, y, x, gamma.data(), beta.data(), rstd.data(), rows, kCols, out, dgamma.data(), dbeta.data(), {}, workspace);
    });
    over_rows("bias_gelu_forward", chosen<tuned::BiasGeluForward<T>>(rows, kCols), forward.bytes_per_element(),
              [&] { tuned::bias_gelu_forward<T>(x, beta.data(), rows, kCols, out, mask); });
    over_rows("bias_gelu_backward", chosen<tuned::BiasGeluBackward<T>>(rows, kCols), backward.bytes_per_element(),
              [&] { tuned::bias_gelu_backward<T>(dy, y, mask, rows, kCols, out, dbeta.data(), workspace); });
  }
  if constexpr (sizeof(T) == sizeof(float)) {
    const i64 few = elements / kPeerFraction;
    plan.add("libm_gelu_backward", "", few, 3 * size * static_cast<double>(few), [=] { libm_backward(dy, x, out, few); });
    plan.add("libm_gelu_forward", "", few, 2 * size * static_cast<double>(few), [=] { libm_forward(x, out, few); });
  }

  if (torch) {
    for (const std::string& kernel : torch->kernels()) {
      const auto ours = std::find_if(plan.cases.begin(), plan.cases.end(), [&](const BenchCase& c) { return c.name == kernel; });
      if (ours == plan.cases.end()) continue;
      const double streams = kernel.ends_with("backward") ? 3 : 2;
      plan.add("torch_" + kernel, torch->version(), static_cast<i64>(ours->elements), streams * size * ours->elements, [&, kernel] { torch->run(kernel); });
    }
  }

  Rounds measured(std::move(plan.workloads), 0, seed);
  measured.run(/*warm_up=*/true);
  constexpr int kPatience = 3;
  measured.run_until(rounds, kPatience * rounds);
  for (std::size_t c = 0; c < plan.cases.size(); ++c) plan.cases[c].ns = measured.times_ns()[c];
  return {format, std::move(plan.cases), why};
}

json to_json(const BenchGroup& group) {
  json cases = json::array();
  const std::vector<bool> kept = group.kept();
  for (const BenchCase& which : group.cases) {
    const Interval share = group.share_of_triad(which);
    cases.push_back({{"name", which.name},
                     {"variant", which.variant},
                     {"rung", which.rung},
                     {"elements", which.elements},
                     {"bytes", which.bytes},
                     {"ns", which.ns},
                     {"gb_per_s", group.gb_per_s(which)},
                     {"share_of_triad", {{"median", share.median}, {"low", share.low}, {"high", share.high}, {"confidence", kConfidence}}}});
    cases.back().update(claims_json(which.fit));
    if (const Interval speed = group.speed_against(which, "torch_" + which.name); speed.median > 0)
      cases.back()["against_torch"] = {{"median", speed.median}, {"low", speed.low}, {"high", speed.high}, {"confidence", kConfidence}};
  }
  return {{"format", name_of(group.format)}, {"discarded_rounds", std::count(kept.begin(), kept.end(), false)}, {"cases", cases}};
}

void print(const BenchGroup& group) {
  const std::vector<bool> kept = group.kept();
  std::printf("%s, %.0f elements, %zu rounds, %td of them discarded%s\n", name_of(group.format), group.cases[2].elements, kept.size(),
              std::count(kept.begin(), kept.end(), false), group.no_torch.empty() ? "" : ("; no PyTorch: " + group.no_torch).c_str());
  for (const BenchCase& which : group.cases) {
    const Interval share = group.share_of_triad(which);
    const double bandwidth = group.gb_per_s(which);
    std::string beside = which.rung.empty() || which.variant == which.rung ? which.variant : which.variant + " (" + which.rung + ")";
    if (which.fit.name != nullptr) beside += "; " + claims_text(which.fit);
    for (const char* peer : {"torch_", "libm_"})
      if (const Interval speed = group.speed_against(which, peer + which.name); speed.median > 0) {
        char text[64];
        std::snprintf(text, sizeof text, "  %.2fx [%.2f, %.2f] %s", speed.median, speed.low, speed.high, peer);
        (beside += text).pop_back();
      }
    std::printf("  %-27s %7.2f GB/s  %5.1f%% of triad [%.1f, %.1f]  %6.3f G elements/s  %s\n", which.name.c_str(), bandwidth, 100 * share.median,
                100 * share.low, 100 * share.high, bandwidth * which.elements / which.bytes, beside.c_str());
  }
}

}  // namespace

double BenchGroup::gb_per_s(const BenchCase& which) const { return which.bytes / kernels::median(kept_of(which.ns, kept())); }

Interval BenchGroup::share_of_triad(const BenchCase& which) const {
  const Interval ratio = ratio_interval(cases.front().ns, which.ns, kept(), /*seed=*/1);
  const double scale = which.bytes / cases.front().bytes;
  return {ratio.median * scale, ratio.low * scale, ratio.high * scale};
}

Interval BenchGroup::speed_against(const BenchCase& which, const std::string& peer) const {
  const auto other = std::find_if(cases.begin(), cases.end(), [&](const BenchCase& c) { return c.name == peer; });
  if (other == cases.end()) return {0, 0, 0};
  const Interval ratio = ratio_interval(other->ns, which.ns, kept(), /*seed=*/1);
  const double scale = which.elements / other->elements;
  return {ratio.median * scale, ratio.low * scale, ratio.high * scale};
}

BenchGroup run_bench(FormatId format, i64 elements, int rounds, std::uint64_t seed) {
  return with_type(format, [&]<class T>(T) { return run_typed<T>(format, elements, rounds, seed); });
}

int bench_command(const std::vector<std::string>& args) {
  const Options options("bench", args, {"device", "format", "elements", "rounds", "seed", "tuned", "kernel", "shape", "out"}, {"json"});
  require_cpu_device(options);
  if (options.has("tuned")) return compare_command(options);
  options.refuse_all_but("bench without --tuned", {"device", "format", "elements", "rounds", "seed", "json"});
  const std::vector<FormatId> formats = formats_of(options);
  const i64 wanted = options.integer("elements", i64{1} << 26, kCols, i64{1} << 32);
  const int rounds = static_cast<int>(options.integer("rounds", kLeastRounds, 1, 10'000));
  const auto seed = static_cast<std::uint64_t>(options.integer("seed", 1, 0, INT64_MAX));
  const bool as_json = options.has("json");

  const CpuIdentity cpu = identify_cpu();
  json groups = json::array();
  if (!as_json) std::printf("%s, %d threads\n", cpu.model.c_str(), cpu.threads);
  for (const FormatId f : formats) {
    const BenchGroup group = run_bench(f, bench_elements(f, wanted), rounds, seed);
    if (as_json)
      groups.push_back(to_json(group));
    else
      print(group);
    std::fflush(stdout);
  }
  if (as_json) std::printf("%s\n", json{{"schema", "outgrad.bench/1"}, {"device", to_json(device_record(cpu))}, {"groups", groups}}.dump(2).c_str());
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
