// One kernel for several instruction sets in one program, three ways, measured: outgrad-dispatch [--json] [--rounds N].
//
//   units     a translation unit for each set behind function pointers: the compiled library, through its C interface
//   clones    __attribute__((target_clones)) over the portable body
//   highway   Google Highway's dynamic dispatch
// GELU's backward in bf16 by its default fit, on one thread: arrays in the second-level cache, where arithmetic decides, and 64 elements,
// where the call does. Every round runs all three in random order; what counts are ratios within a round. `units` pays what a C interface owes its
// callers, the checks of its arguments and the floating-point environment; the other two do neither.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "autotune/bench/dispatch.h"
#include "autotune/device.h"
#include "autotune/options.h"
#include "autotune/timing.h"
#include "autotune/workload.h"
#include "kernels/c/outgrad.h"
#include "kernels/support/errors.h"
#include "kernels/support/statistics.h"

namespace {

using namespace outgrad::autotune;
using nlohmann::json;
using outgrad::kernels::BF16;
using outgrad::kernels::i64;
using outgrad::kernels::u32;

constexpr i64 kElementsARun = i64{1} << 16;  // 20 us and more: far above the clock's grain, below a scheduler's time slice
constexpr int kRounds = 50 * kLeastRounds;

struct Way {
  const char* name;
  void (*run)(const BF16* dy, const BF16* y, const u32* mask, BF16* dx, i64 n);
};

void by_units(const BF16* dy, const BF16* y, const u32* mask, BF16* dx, i64 n) { outgrad_gelu_backward(OUTGRAD_BF16, dy, y, mask, dx, n); }

constexpr Way kWays[] = {{"units", by_units}, {"clones", backward_by_clones}, {"highway", backward_by_highway}};

// One length: times, ratios to `units`, and whether the bits agree.
json measure(i64 n, int rounds) {
  const Problem problem{KernelId::kGeluBackward, FormatId::kBf16, 1, n};
  const Workspace workspace(problem, /*seed=*/1);
  const Arguments arrays = workspace.arguments();
  const auto *dy = arrays.at<const BF16>(0), *y = arrays.at<const BF16>(1);
  const u32* const mask = arrays.at<const u32>(2);
  BF16* const dx = arrays.at<BF16>(3);
  const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(BF16);
  const i64 calls = kElementsARun / n;
  std::vector<BF16> expected(static_cast<std::size_t>(n));
  by_units(dy, y, mask, expected.data(), n);
  std::vector<Workload> workloads;
  json ways = json::array();
  for (const Way& way : kWays) {
    std::memset(dx, 0, bytes);
    way.run(dy, y, mask, dx, n);
    ways.push_back({{"name", way.name}, {"equal_bits", std::memcmp(dx, expected.data(), bytes) == 0}});
    workloads.push_back({way.name, 0, [=] {
                           for (i64 call = 0; call < calls; ++call) way.run(dy, y, mask, dx, n);
                         }});
  }
  Rounds measured(std::move(workloads), /*ceiling=*/0, /*seed=*/1);
  measured.run(/*warm_up=*/true);
  constexpr int kPatience = 3;
  measured.run_until(rounds, kPatience * rounds);
  const std::vector<std::vector<double>>& ns = measured.times_ns();
  const std::vector<bool> kept = kept_rounds(ns[0]);
  for (std::size_t k = 0; k < ways.size(); ++k) {
    const Interval ratio = ratio_interval(ns[k], ns[0], kept, /*seed=*/1);
    ways[k]["ns_per_call"] = kernels::median(kept_of(ns[k], kept)) / static_cast<double>(calls);
    ways[k]["time_over_units"] = {{"median", ratio.median}, {"low", ratio.low}, {"high", ratio.high}, {"confidence", kConfidence}};
  }
  return {{"elements", n}, {"rounds", ns[0].size()}, {"discarded_rounds", std::count(kept.begin(), kept.end(), false)}, {"ways", ways}};
}

int run(const std::vector<std::string>& args) {
  const Options options("outgrad-dispatch", args, {"rounds"}, {"json"});
  const int rounds = static_cast<int>(options.integer("rounds", kRounds, 1, 100'000));
  outgrad_set_threads(1);
  const CpuIdentity cpu = identify_cpu();
  json lengths = json::array();
  for (const i64 n : {kElementsARun, i64{64}}) lengths.push_back(measure(n, rounds));
  if (options.has("json")) {
    std::printf("%s\n", json{{"schema", "outgrad.dispatch/1"},
                             {"device", to_json(device_record(cpu))},
                             {"kernel", outgrad_fit_name(OUTGRAD_GELU, OUTGRAD_BF16)},
                             {"units", outgrad_instruction_set()},
                             {"highway", highway_target()},
                             {"lengths", lengths}}
                            .dump(2)
                            .c_str());
    return outgrad::kernels::kExitHolds;
  }
  std::printf("%s; units: %s, highway: %s\n", cpu.model.c_str(), outgrad_instruction_set(), highway_target());
  for (const json& length : lengths) {
    std::printf("%lld elements a call\n", length["elements"].get<long long>());
    for (const json& way : length["ways"]) {
      const json& ratio = way["time_over_units"];
      std::printf("  %-8s %12.1f ns a call  %7.3f [%.3f, %.3f] of units' time, bits %s\n", way["name"].get<std::string>().c_str(),
                  way["ns_per_call"].get<double>(), ratio["median"].get<double>(), ratio["low"].get<double>(), ratio["high"].get<double>(),
                  way["equal_bits"].get<bool>() ? "equal" : "DIFFERENT");
    }
  }
  return outgrad::kernels::kExitHolds;
}

}  // namespace

int main(int argc, char** argv) {
  return outgrad::kernels::run_main([&] { return run(std::vector<std::string>(argv + 1, argv + argc)); });
}
