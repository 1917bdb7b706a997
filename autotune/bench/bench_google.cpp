// The CPU figures as a Google Benchmark program: outgrad-bench [--benchmark_...].
//
// Google Benchmark presents; it does not measure. A share of the ceiling means something only when both were timed in the same
// disturbed seconds, and running one benchmark after the other, as the library does, cannot give that. So each format's group is
// measured once by the interleaved rounds of timing.h, and every kept round becomes one iteration in manual time.
#include <benchmark/benchmark.h>

#include <map>
#include <string>

#include "autotune/bench/bench.h"

namespace {

using namespace outgrad::autotune;

constexpr outgrad::kernels::i64 kElements = outgrad::kernels::i64{1} << 26;

// Measures all groups before the first is presented.
std::map<FormatId, BenchGroup> measure_groups() {
  std::map<FormatId, BenchGroup> groups;
  for (const FormatId format : kAllFormats) groups[format] = run_bench(format, bench_elements(format, kElements), kLeastRounds, /*seed=*/1);
  return groups;
}

void present(benchmark::State& state, const BenchGroup& group, const BenchCase& which) {
  const std::vector<double> ns = kept_of(which.ns, group.kept());
  std::size_t round = 0;
  for ([[maybe_unused]] auto iteration : state) state.SetIterationTime(1e-9 * ns[round++ % ns.size()]);
  const Interval share = group.share_of_triad(which);
  state.SetBytesProcessed(static_cast<std::int64_t>(which.bytes * static_cast<double>(state.iterations())));
  state.SetItemsProcessed(static_cast<std::int64_t>(which.elements * static_cast<double>(state.iterations())));
  state.counters["median_GB/s"] = group.gb_per_s(which);
  state.counters["share_of_triad"] = share.median;
  state.SetLabel(which.variant);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  const std::map<FormatId, BenchGroup> groups = measure_groups();
  for (const auto& [format, group] : groups)
    for (const BenchCase& which : group.cases) {
      const std::vector<double> kept = kept_of(which.ns, group.kept());
      benchmark::RegisterBenchmark((std::string(name_of(format)) + "/" + which.name).c_str(),
                                   [&group, &which](benchmark::State& state) { present(state, group, which); })
          ->UseManualTime()
          ->Iterations(static_cast<benchmark::IterationCount>(kept.size()))
          ->Unit(benchmark::kMillisecond);
    }
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
