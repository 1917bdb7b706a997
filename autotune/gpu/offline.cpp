// Compilation in children, facts, ranking, the command.
#include "autotune/gpu/offline.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "autotune/compile.h"
#include "autotune/database.h"
#include "autotune/device.h"
#include "autotune/gpu/sass.h"
#include "autotune/isolate.h"
#include "autotune/timing.h"
#include "kernels/host/files.h"

namespace outgrad::autotune::gpu {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr const char* kCacheSchema = "outgrad.gpu_code/1";
constexpr long long kCompilerMemory = 8LL << 30;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

int number_of(const Architecture& architecture) { return std::stoi(architecture.name.substr(3)); }

// A program, the variants whose kernel it is, and what came of it.
struct Program {
  std::string source, base;  // base: its path in the cache, without extension
  std::vector<std::size_t> variants;
  std::optional<std::variant<Pruned, CodeFacts>> facts;
};

json to_json(const std::variant<Pruned, CodeFacts>& facts) {
  if (const auto* pruned = std::get_if<Pruned>(&facts)) return {{"schema", kCacheSchema}, {"reason", pruned->reason}, {"detail", pruned->detail}};
  const auto& code = std::get<CodeFacts>(facts);
  return {{"schema", kCacheSchema},
          {"symbol", code.symbol},
          {"registers", code.resources.registers},
          {"stack_bytes", code.resources.stack_bytes},
          {"spill_bytes", code.resources.spill_bytes},
          {"shared_bytes", code.resources.shared_bytes},
          {"instructions_per_element", code.instructions_per_element},
          {"prologue_instructions", code.prologue_instructions},
          {"shared_loads_per_element", code.shared_loads_per_element}};
}

// Nothing where the text is none of ours: a cache file that a crash cut short is compiled again.
std::optional<std::variant<Pruned, CodeFacts>> facts_from(const std::string& text) {
  try {
    const json facts = json::parse(text);
    if (facts.at("schema") != kCacheSchema) return std::nullopt;
    if (facts.contains("reason")) return Pruned{facts.at("reason").get<Reason>(), facts.at("detail").get<std::string>()};
    CodeFacts code;
    code.symbol = facts.at("symbol").get<std::string>();
    code.resources = {facts.at("registers").get<int>(), facts.at("stack_bytes").get<int>(), facts.at("spill_bytes").get<int>(),
                      facts.at("shared_bytes").get<int>()};
    code.instructions_per_element = facts.at("instructions_per_element").get<double>();
    code.prologue_instructions = facts.at("prologue_instructions").get<double>();
    code.shared_loads_per_element = facts.at("shared_loads_per_element").get<double>();
    return code;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

// In the child.
std::variant<Pruned, CodeFacts> compiled(const GpuVariant& variant, const Program& program, const Architecture& architecture) {
  const auto result = Nvrtc::instance().compile(program.source, architecture.name);
  if (const auto* error = std::get_if<CompileError>(&result)) return Pruned{Reason::kCompilerError, error->message};
  const auto& code = std::get<GpuCode>(result);
  kernels::write_file(program.base + ".cubin", code.cubin);
  try {
    return facts_of(variant, code, architecture);
  } catch (const std::runtime_error& error) {
    return Pruned{Reason::kNotUnderstood, error.what()};
  }
}

// Compiles programs[next], programs[next + 1], .. until there are no more: one thread of several.
class Worker {
 public:
  Worker(std::vector<Program*>& programs, const std::vector<GpuVariant>& variants, const Architecture& architecture,
         const OfflineSettings& settings)
      : programs_(programs), variants_(variants), architecture_(architecture), settings_(settings) {}

  // Share `index` of `count`: every count-th program. A child that dies is blamed on the program it had announced; another goes on.
  void run(std::size_t index, std::size_t count) {
    std::vector<std::size_t> waiting;
    for (std::size_t i = index; i < programs_.size(); i += count) waiting.push_back(i);
    while (!waiting.empty() && in_time()) {
      const auto body = [&](const Channel& channel) {
        for (const std::size_t item : waiting) {
          if (!in_time()) return;
          const Program& program = *programs_[item];
          channel.launching(static_cast<int>(item));
          json report = to_json(compiled(variants_[program.variants.front()], program, architecture_));
          report["item"] = item;
          channel.report(report);
        }
      };
      const auto on_report = [&](const json& report) {
        const auto item = report["item"].get<std::size_t>();
        programs_[item]->facts = facts_from(report.dump());
        waiting.erase(std::find(waiting.begin(), waiting.end(), item));
        tick();
      };
      const ChildEnd end = run_isolated(body, on_report, {settings_.limit_seconds, kCompilerMemory});
      if (end.kind == ChildEnd::Kind::kFinished) return;
      const auto blamed = std::find(waiting.begin(), waiting.end(), static_cast<std::size_t>(end.last_launched));
      if (end.last_launched < 0 || blamed == waiting.end()) throw kernels::EnvironmentError("tune: the compiler's process ended early: " + end.detail);
      programs_[*blamed]->facts = Pruned{end.kind == ChildEnd::Kind::kHung ? Reason::kCompilerTimeout : Reason::kCompilerCrashed, end.detail};
      waiting.erase(blamed);
      tick();
    }
  }

 private:
  bool in_time() const { return seconds_since(began_) < settings_.budget_seconds; }
  void tick() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++done_;
    if (settings_.progress) settings_.progress(done_, programs_.size());
  }

  std::vector<Program*>& programs_;
  const std::vector<GpuVariant>& variants_;
  const Architecture& architecture_;
  const OfflineSettings& settings_;
  Clock::time_point began_ = Clock::now();
  std::mutex mutex_;
  std::size_t done_ = 0;
};

json record_of(const Outcome& outcome, const Architecture& architecture) {
  json record = {{"schema", kSchema},
                 {"device", {{"kind", "offline"}, {"architecture", architecture.name}, {"board", architecture.board}}},
                 {"toolkit", Nvrtc::instance().version()},
                 {"kernel", autotune::name_of(outcome.variant.problem.kernel)},
                 {"format", autotune::name_of(outcome.variant.problem.format)},
                 {"variant", outcome.variant.name()},
                 {"parameters", outcome.variant.parameters()},
                 {"fit", {{"name", outcome.variant.fit->name}, {"class", outcome.variant.fit->accuracy}}}};
  if (const auto* pruned = std::get_if<Pruned>(&outcome.result)) {
    record["state"] = "rejected";
    record["rejected"] = {{"stage", "compile"}, {"reason", autotune::name_of(pruned->reason)}, {"detail", pruned->detail}};
    return record;
  }
  const auto& [code, prediction, compiled] = std::get<Predicted>(outcome.result);
  record["state"] = "predicted";
  record["resources"] = {{"registers", code.resources.registers}, {"shared_bytes", code.resources.shared_bytes}};
  record["instructions_per_element"] = code.instructions_per_element;
  record["predicted"] = {{"ns_per_element", prediction.ns},
                         {"memory_ns", prediction.memory_ns},
                         {"issue_ns", prediction.issue_ns},
                         {"shared_ns", prediction.shared_ns},
                         {"resident_blocks", prediction.resident_blocks},
                         {"occupancy", prediction.occupancy},
                         {"bytes_in_flight_per_sm", prediction.bytes_in_flight},
                         {"share_of_bandwidth", prediction.share_of_bandwidth}};
  return record;
}

// Faster first; equal predictions, which a model without a difference gives, by the smaller schedule's name.
bool is_better(const Outcome* a, const Outcome* b) {
  const double left = std::get<Predicted>(a->result).prediction.ns, right = std::get<Predicted>(b->result).prediction.ns;
  return left != right ? left < right : a->variant.name() < b->variant.name();
}

Outcome outcome_of(const GpuVariant& variant, const std::variant<Pruned, CodeFacts>& facts, const std::string& base,
                   const Architecture& architecture) {
  if (const auto* pruned = std::get_if<Pruned>(&facts)) return {variant, *pruned};
  const auto& code = std::get<CodeFacts>(facts);
  const KernelResources& use = code.resources;
  if (use.spill_bytes > 0 || use.stack_bytes > 0)
    return {variant, Pruned{Reason::kSpills, std::to_string(use.spill_bytes) + " bytes of registers spilled, " + std::to_string(use.stack_bytes) +
                                          " bytes of stack, per thread"}};
  if (resident_blocks(architecture, use, variant.schedule.threads) == 0)
    return {variant, Pruned{Reason::kNoBlockFits, std::to_string(use.registers) + " registers and " + std::to_string(use.shared_bytes) +
                                                 " bytes of shared memory leave no room for a block of " +
                                                 std::to_string(variant.schedule.threads) + " threads"}};
  return {variant, Predicted{code, predict(architecture, variant, code), {base + ".cubin", code.symbol, 0}}};
}

}  // namespace

CodeFacts facts_of(const GpuVariant& variant, const GpuCode& code, const Architecture& architecture) {
  constexpr int kOctet = 8;
  const std::vector<SassFunction> functions = decode_cubin(code.cubin, number_of(architecture));
  if (functions.size() != 1 || code.kernels.size() != 1) throw std::runtime_error("not one kernel in its cubin");
  const SassFunction& function = functions.front();
  const int element = bytes_of(variant.problem.format), access = std::min(variant.schedule.access_bytes, kOctet * element);
  PathRules rules;
  rules.wide_store = "." + std::to_string(8 * access);
  rules.wide_stores = variant.schedule.octets * kOctet * element / access;
  if (variant.problem.kernel == KernelId::kGeluForward) rules.also_stores = {".U8"};
  const HotPaths paths = hot_paths(function, rules);
  if (paths.path.empty()) throw std::runtime_error("no path that stores its octets " + rules.wide_store.substr(1) + " bits at a time");
  const LoopExtent loop = loop_around(function, paths, rules);
  if (loop.last == 0) throw std::runtime_error("its octets are stored outside any loop");
  CodeFacts facts;
  facts.symbol = code.kernels.front().first;
  facts.resources = code.kernels.front().second;
  const double elements = kOctet * variant.schedule.octets;
  for (const std::size_t at : paths.path) {
    if (at < loop.first || at > loop.last) {
      ++facts.prologue_instructions;
      continue;
    }
    facts.instructions_per_element += 1 / elements;
    static const std::map<std::string, int> kWidths = {{"LDS.U8", 1}, {"LDS.S8", 1}, {"LDS.U16", 2}, {"LDS.S16", 2}, {"LDS.32", 4}, {"LDS.64", 8}, {"LDS.128", 16}};
    if (const auto width = kWidths.find(function.instructions[at].opcode); width != kWidths.end()) {
      constexpr int kBank = 4;  // narrower loads occupy a bank each, too
      facts.shared_loads_per_element += std::max(width->second, kBank) / elements;
    }
  }
  return facts;
}

std::vector<std::size_t> near_default(const Problem& problem, const Fits& fits, const Space& space, const Points& valid, std::size_t count,
                                      std::uint64_t seed) {
  const json wanted = default_gpu_variant(problem).parameters();
  std::vector<std::pair<std::pair<long, std::uint64_t>, std::size_t>> ranked;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    const json parameters = gpu_variant_at(problem, fits, space, valid[i]).parameters();
    // Where the table lies is the kernel's own choice in the default, and in no point: any place is as near.
    const auto differing = std::count_if(parameters.items().begin(), parameters.items().end(), [&](const auto& item) {
      return item.key() != "table" && wanted.at(item.key()) != item.value();
    });
    ranked.push_back({{static_cast<long>(differing), next_random(seed)}, i});
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < ranked.size() && i < count; ++i) chosen.push_back(ranked[i].second);
  return chosen;
}

std::vector<GpuVariant> choose_gpu_variants(const Problem& problem, const Fits& fits, const Space& space, const Points& valid, std::size_t count,
                                            std::uint64_t seed) {
  std::vector<GpuVariant> chosen = {default_gpu_variant(problem)};
  for (const std::size_t point : near_default(problem, fits, space, valid, count - 1, seed))
    chosen.push_back(gpu_variant_at(problem, fits, space, valid[point]));
  return chosen;
}

SourceHashes hash_of_embedded() {
  std::string code, coefficients;
  for (const EmbeddedSource& source : embedded_kernels()) {
    const std::string name = source.name;
    (name.rfind("kernels/generated/", 0) == 0 ? coefficients : code) += sha256(name + "\n" + source.text);
  }
  return {sha256(code), sha256(coefficients)};
}

std::vector<Outcome> evaluate(const std::vector<GpuVariant>& variants, const Architecture& architecture, const OfflineSettings& settings) {
  const Nvrtc& nvrtc = Nvrtc::instance();
  nvrtc.require(architecture.name);
  create_folder(settings.cache_folder);
  std::error_code error;
  const SourceHashes hashes = hash_of_embedded();
  const std::string key = hashes.kernels + hashes.coefficients + nvrtc.version() + architecture.name;
  std::map<std::string, Program> programs;  // by source
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const std::string source = variants[i].source();
    Program& program = programs[source];
    program.source = source;
    program.variants.push_back(i);
  }
  std::vector<Program*> waiting;
  for (auto& [source, program] : programs) {
    program.base = settings.cache_folder + "/" + sha256(key + source);
    if (std::filesystem::exists(program.base + ".json", error)) program.facts = facts_from(kernels::read_file(program.base + ".json"));
    if (!program.facts) waiting.push_back(&program);
  }
  // In the order in which they were asked for, so that a budget leaves out the last.
  std::sort(waiting.begin(), waiting.end(), [](const Program* a, const Program* b) { return a->variants.front() < b->variants.front(); });
  Worker worker(waiting, variants, architecture, settings);
  const auto jobs = static_cast<std::size_t>(std::max(1, settings.jobs));
  std::vector<std::exception_ptr> failures(jobs);
  std::vector<std::thread> threads;
  for (std::size_t job = 0; job < jobs; ++job) {
    threads.emplace_back([&, job] {
      try {
        worker.run(job, jobs);
      } catch (...) {
        failures[job] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
  for (const Program* program : waiting)
    if (program->facts) kernels::write_file(program->base + ".json", to_json(*program->facts).dump() + "\n");

  std::vector<std::optional<Outcome>> outcomes(variants.size());
  for (const auto& [source, program] : programs) {
    if (!program.facts) continue;
    for (const std::size_t i : program.variants) outcomes[i] = outcome_of(variants[i], *program.facts, program.base, architecture);
  }
  std::vector<Outcome> kept;
  for (std::optional<Outcome>& outcome : outcomes)
    if (outcome) kept.push_back(std::move(*outcome));
  return kept;
}

int offline_command(const Options& options, const std::vector<Problem>& problems) {
  constexpr int kShown = 5;
  const std::string device = options.text("device", "");
  Nvrtc::instance().require(device);
  const Architecture& architecture = architecture_of(device);
  const std::string out = options.text("out", "out/tuned");
  const auto evaluations = static_cast<std::size_t>(options.integer("evaluations", 200, 1, 1'000'000));
  const auto seed = static_cast<std::uint64_t>(options.integer("seed", 1, 0, INT64_MAX));
  OfflineSettings settings;
  settings.cache_folder = out + "/" + device;
  settings.jobs = identify_cpu().threads;
  const double budget = options.number("budget", 60, 1, 1e6);
  const bool as_json = options.has("json"), terminal = ::isatty(STDERR_FILENO) != 0;
  const auto began = Clock::now();
  if (terminal) {
    settings.progress = [&](std::size_t done, std::size_t programs) {
      std::fprintf(stderr, "\rcompiling for %s: %zu of %zu, %.0f s ", device.c_str(), done, programs, seconds_since(began));
    };
  }
  if (!as_json) std::printf("%s as on %s; nothing runs: all figures are predicted\n", device.c_str(), architecture.board.c_str());
  json rankings = json::array();
  std::vector<json> records;
  for (std::size_t p = 0; p < problems.size(); ++p) {
    const Problem& problem = problems[p];
    const Fits& fits = fits_of(problem);
    const Space space = gpu_space(problem, fits, architecture.threads_per_sm);
    const Points points = space.construct();
    settings.budget_seconds = (budget - seconds_since(began)) / static_cast<double>(problems.size() - p);
    const std::vector<Outcome> outcomes = evaluate(choose_gpu_variants(problem, fits, space, points, evaluations, seed), architecture, settings);
    if (terminal) std::fprintf(stderr, "\r\033[K");
    std::vector<const Outcome*> ranked;
    std::map<std::string, int> pruned;
    for (const Outcome& outcome : outcomes) {
      records.push_back(record_of(outcome, architecture));
      if (const auto* why = std::get_if<Pruned>(&outcome.result))
        ++pruned[autotune::name_of(why->reason)];
      else
        ranked.push_back(&outcome);
    }
    std::sort(ranked.begin(), ranked.end(), is_better);
    if (as_json) {
      json ranking = json::array();
      for (const Outcome* outcome : ranked) ranking.push_back(record_of(*outcome, architecture));
      rankings.push_back({{"problem", autotune::name_of(problem.kernel)},
                          {"format", autotune::name_of(problem.format)},
                          {"pruned", pruned},
                          {"ranking", ranking}});
      continue;
    }
    std::printf("%s.%s: space: %s\n", autotune::name_of(problem.kernel), autotune::name_of(problem.format), size_report(points).c_str());
    std::printf("  %zu compiled, %zu ranked", outcomes.size(), ranked.size());
    for (const auto& [reason, count] : pruned) std::printf(", %d %s", count, reason.c_str());
    std::printf("\n");
    for (std::size_t i = 0; i < ranked.size() && i < kShown; ++i) {
      const auto& [code, prediction, compiled] = std::get<Predicted>(ranked[i]->result);
      std::printf("  predicted %5.1f%% of bandwidth  %5.1f instr/element  %3d registers  occupancy %3.0f%%  %s\n", 100 * prediction.share_of_bandwidth,
                  code.instructions_per_element, code.resources.registers, 100 * prediction.occupancy, ranked[i]->variant.name().c_str());
    }
  }
  const std::string database = out + "/tune_" + device + ".jsonl";
  append_records(database, records);
  if (as_json)
    std::printf("%s\n", json{{"schema", "outgrad.tune_offline/1"}, {"architecture", device}, {"board", architecture.board}, {"predicted", true}, {"database", database}, {"problems", rankings}}.dump(2).c_str());
  else
    std::printf("%s, in %.1f s\n", database.c_str(), seconds_since(began));
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune::gpu
