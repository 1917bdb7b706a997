// A mode each for the kernels of this program, for a tuned header and for stores.
#include "autotune/commands/commands.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "autotune/bench/bench.h"
#include "autotune/bench/compare.h"
#include "autotune/bench/stores.h"
#include "autotune/commands/options.h"
#include "autotune/measure/device.h"
#include "kernels/host/parallel.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using nlohmann::json;

constexpr i64 kLeastElements = 1024;  // a row of the norms

// What all modes have.
struct BenchOptions {
  std::string device = "cpu";
  std::vector<FormatId> formats{std::begin(kAllFormats), std::end(kAllFormats)};
  i64 elements = i64{1} << 26;
  int rounds = kLeastRounds;
  std::uint64_t seed = kSeed;
  kernels::ResultForm form;
};

Mode bench_mode(const char* name) {
  static constexpr std::string_view kOptions[] = {"--csv",  "--device", "--elements", "--format",
                                                  "--json", "--kernel", "--out",      "--rounds",
                                                  "--seed", "--shape",  "--stores",   "--tuned"};
  return {"bench", name, kOptions};
}

void add_timing_options(CLI::App& app, BenchOptions& o) {
  add_text(app, "--device", o.device);
  add_number<int>(app, "--rounds", o.rounds, static_cast<int>(kFewestRounds), 10'000);
  add_seed(app, o.seed);
  kernels::add_result_form(app, o.form, "the result");
}

void add_size_options(CLI::App& app, BenchOptions& o) {
  add_formats(app, o.formats);
  add_number<i64>(app, "--elements", o.elements, kLeastElements, i64{1} << 32);
}

// This machine, of whose threads OpenMP runs so many: two benches with other numbers of them do not compare.
CpuIdentity measured_cpu() {
  CpuIdentity cpu = identify_cpu();
  cpu.threads = kernels::thread_count(0);
  return cpu;
}

// Says on which machine, and with what.
void say_machine(const BenchOptions& options, const CpuIdentity& cpu, const std::string& what = "") {
  if (!options.form) std::printf("%s, %d threads%s\n", cpu.model.c_str(), cpu.threads, what.c_str());
}

// The text of one result at once, or its JSON at the end.
void show(const BenchOptions& options, json& results, const auto& result) {
  if (options.form)
    results.push_back(to_json(result));
  else
    std::printf("%s", text_of(result).c_str());
  std::fflush(stdout);
}

int kernels_mode(const Words& words) {
  BenchOptions options;
  read_options(bench_mode("bench without --tuned"), words, [&](CLI::App& app) {
    add_timing_options(app, options);
    add_size_options(app, options);
  });
  require_cpu_device("bench", options.device);
  const CpuIdentity cpu = measured_cpu();
  json groups = json::array();
  say_machine(options, cpu);
  for (const FormatId format : options.formats)
    show(options, groups,
         run_bench(format, bench_elements(format, options.elements), options.rounds, options.seed));
  if (options.form)
    kernels::print_result(
        options.form,
        json{{"schema", "outgrad.bench/1"}, {"device", to_json(device_record(cpu))}, {"groups", groups}},
        "groups.cases");
  return kernels::kExitHolds;
}

// The problems that are asked for and that the header has a table for, each of its size.
std::vector<Problem> tabled(const std::string& header, const ProblemChoice& choice) {
  constexpr i64 kElements = i64{1} << 26;  // as those of the mode without a header
  const std::vector<Problem> tables = tuned_problems(header);
  std::vector<Problem> problems;
  for (const Problem& wanted : problems_of("bench", choice)) {
    const auto is_it = [&](const Problem& p) {
      return p.kernel == wanted.kernel && p.format == wanted.format;
    };
    if (std::ranges::any_of(tables, is_it))
      problems.push_back(sized_within(wanted, bench_elements(wanted.format, kElements)));
  }
  if (problems.empty())
    throw kernels::SpecError("bench", "--tuned",
                             header + " has no table for what --kernel and --format leave");
  return problems;
}

int tuned_mode(const Words& words) {
  BenchOptions options;
  ProblemChoice choice;
  std::string header, out = "out/tuned";
  read_options(bench_mode("bench --tuned"), words, [&](CLI::App& app) {
    add_timing_options(app, options);
    add_text(app, "--tuned", header);
    add_problems(app, choice);
    add_text(app, "--out", out);
  });
  require_cpu_device("bench", options.device);
  const std::vector<Problem> problems = tabled(header, choice);
  CompileSettings settings;
  settings.cache_folder = out + "/variants";
  const Toolchain toolchain = find_toolchain();
  const EntryPoints before("", problems, toolchain, settings), after(header, problems, toolchain, settings);
  const CpuIdentity cpu = measured_cpu();
  json results = json::array();
  say_machine(options, cpu, "; without and with " + header + ", in the same rounds");
  for (const Problem& problem : problems)
    show(options, results, compare(problem, before, after, options.rounds, options.seed));
  if (options.form)
    kernels::print_result(options.form,
                          json{{"schema", "outgrad.bench_tuned/1"},
                               {"device", to_json(device_record(cpu))},
                               {"header", header},
                               {"problems", results}},
                          "problems");
  return kernels::kExitHolds;
}

json stores_json(const std::vector<StoreSpeed>& speeds) {
  json stores = json::array();
  for (const StoreSpeed& s : speeds)
    stores.push_back({{"store", s.store},
                      {"forward_bytes", s.forward_bytes},
                      {"backward_bytes", s.backward_bytes},
                      {"forward", to_json(s.forward, s.kept)},
                      {"backward", to_json(s.backward, s.kept)}});
  return stores;
}

void print_stores(const std::vector<StoreSpeed>& speeds) {
  for (const StoreSpeed& s : speeds) {
    const auto speed = [&](const Interval& i) {
      char text[64];
      std::snprintf(text, sizeof text, "%.2fx [%.2f, %.2f]", i.median, i.low, i.high);
      return is_figure(i, count_of(s.kept)) ? std::string(text) : too_noisy(i, s.kept);
    };
    std::printf("  %-26s forward %6.3f bytes  %s   backward %6.3f bytes  %s\n", s.store.c_str(),
                s.forward_bytes, speed(s.forward).c_str(), s.backward_bytes, speed(s.backward).c_str());
  }
}

int stores_mode(const Words& words) {
  BenchOptions options;
  bool stores = false;  // the mode itself
  read_options(bench_mode("bench --stores"), words, [&](CLI::App& app) {
    add_timing_options(app, options);
    add_size_options(app, options);
    add_flag(app, "--stores", stores);
  });
  require_cpu_device("bench", options.device);
  const CpuIdentity cpu = measured_cpu();
  json groups = json::array();
  say_machine(options, cpu);
  for (const FormatId format : options.formats) {
    for (const StoredLayer layer : {StoredLayer::gelu, StoredLayer::layernorm}) {
      const char* const name = layer == StoredLayer::gelu ? "gelu" : "layernorm";
      const i64 n = bench_elements(format, options.elements) / kLeastElements * kLeastElements;
      const std::vector<StoreSpeed> speeds = store_speeds(layer, format, n, options.rounds, options.seed);
      groups.push_back(
          {{"layer", name}, {"format", name_of(format)}, {"elements", n}, {"stores", stores_json(speeds)}});
      if (options.form) continue;
      std::printf("%s, %s, %lld elements: speed over that of the plain kernels\n", name, name_of(format),
                  static_cast<long long>(n));
      print_stores(speeds);
    }
  }
  if (options.form)
    kernels::print_result(
        options.form,
        json{{"schema", kStoreBenchSchema}, {"device", to_json(device_record(cpu))}, {"groups", groups}},
        "groups.stores");
  return kernels::kExitHolds;
}

}  // namespace

int bench_command(const std::vector<std::string>& words) {
  if (given(words, "--stores")) return stores_mode(words);
  if (given(words, "--tuned")) return tuned_mode(words);
  return kernels_mode(words);
}

}  // namespace outgrad::autotune
