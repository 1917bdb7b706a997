// Compilation in children, facts, predictions.
#include "autotune/gpu/offline.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "autotune/gpu/sass.h"
#include "autotune/measure/timing.h"
#include "kernels/support/digest.h"
#include "kernels/support/files.h"
#include "kernels/support/json.h"
#include "kernels/support/parallel.h"
#include "kernels/support/progress.h"
#include "kernels/support/random.h"

namespace outgrad::autotune::gpu {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr const char* kCacheSchema = "outgrad.gpu_code/2";
constexpr long long kCompilerMemory = 8LL << 30;

// What a compiler says of a program's kernels.
using Facts = std::variant<Pruned, std::vector<CodeFacts>>;

// A program, the variants whose kernels it has, and what came of it.
struct Program {
  std::string source, base;  // base: its path in the cache, without extension
  bool helpers = false;      // the kernels that schedules share
  std::vector<std::size_t> variants;
  std::optional<Facts> facts;
};

void each_fact(auto& code, const auto& visit) {
  visit("symbol", code.symbol), visit("registers", code.resources.registers),
      visit("stack_bytes", code.resources.stack_bytes);
  visit("spill_bytes", code.resources.spill_bytes), visit("shared_bytes", code.resources.shared_bytes);
  visit("instructions_per_element", code.instructions_per_element),
      visit("prologue_instructions", code.prologue_instructions);
  visit("shared_loads_per_element", code.shared_loads_per_element),
      visit("row_instructions", code.row_instructions);
  visit("slot_instructions", code.slot_instructions), visit("counted", code.counted);
}

json to_json(const Facts& facts) {
  if (const auto* pruned = std::get_if<Pruned>(&facts))
    return {{"schema", kCacheSchema}, {"reason", pruned->reason}, {"detail", pruned->detail}};
  json kernels = json::array();
  for (const CodeFacts& code : std::get<std::vector<CodeFacts>>(facts)) {
    json& kernel = kernels.emplace_back();
    each_fact(code, [&](const char* name, const auto& fact) { kernel[name] = fact; });
  }
  return {{"schema", kCacheSchema}, {"kernels", kernels}};
}

// Nothing where the text is none of ours: a cache file that a crash cut short is compiled again.
std::optional<Facts> facts_from(const std::string& text) {
  try {
    const json facts = kernels::parse_json(text);
    if (facts.at("schema") != kCacheSchema) return std::nullopt;
    if (facts.contains("reason")) {
      const auto reason = facts.at("reason").get<Reason>();
      if (reason < Reason::kCompilerError || reason > Reason::kOutOfMemory) return std::nullopt;
      return Pruned{reason, facts.at("detail").get<std::string>()};
    }
    std::vector<CodeFacts> kernels;
    for (const json& kernel : facts.at("kernels"))
      each_fact(kernels.emplace_back(), [&](const char* name, auto& fact) { kernel.at(name).get_to(fact); });
    if (kernels.empty()) return std::nullopt;
    return kernels;
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

// In the child.
Facts compiled(const GpuVariant& variant, const Program& program, const Architecture& architecture) {
  const auto result = Nvrtc::instance().compile(program.source, architecture.name);
  if (const auto* error = std::get_if<CompileError>(&result))
    return Pruned{Reason::kCompilerError, error->message};
  const auto& code = std::get<GpuCode>(result);
  kernels::write_file(program.base + ".cubin", code.cubin);
  try {
    if (program.helpers) return helper_facts(code);
    return std::vector<CodeFacts>{facts_of(variant, code, architecture)};
  } catch (const std::runtime_error& error) {
    return Pruned{Reason::kNotUnderstood, error.what()};
  }
}

// Compiles programs[next], programs[next + 1], .. until there are no more: one thread of several.
class Worker {
 public:
  Worker(std::vector<Program*>& programs, const std::vector<GpuVariant>& variants,
         const Architecture& architecture, const OfflineSettings& settings)
      : programs_(programs), variants_(variants), architecture_(architecture), settings_(settings) {}

  // Share `index` of `count`: every count-th program. A child that dies is blamed on the program it had
  // announced; another goes on.
  void run(std::size_t index, std::size_t count) {
    std::vector<std::size_t> waiting;
    for (std::size_t i = index; i < programs_.size(); i += count) waiting.push_back(i);
    while (!waiting.empty() && in_time()) {
      const auto body = [&](const Channel& channel) {
        for (const std::size_t item : waiting) {
          if (!in_time()) return;
          const Program& program = *programs_[item];
          channel.launching(static_cast<int>(item));
          try {
            json report = to_json(compiled(variants_[program.variants.front()], program, architecture_));
            report["item"] = item;
            channel.report(report);
          } catch (const kernels::EnvironmentError& error) {
            return channel.report({{"refused", error.what()}});
          }
        }
      };
      std::string refusal;  // of the compiler, whatever the program
      const auto on_report = [&](const json& report) {
        if (report.contains("refused")) {
          refusal = report["refused"].get<std::string>();
          return;
        }
        const auto item = report["item"].get<std::size_t>();
        programs_[item]->facts = facts_from(report.dump());
        waiting.erase(std::find(waiting.begin(), waiting.end(), item));
        tick();
      };
      const ChildEnd end = run_isolated(
          body, on_report, {settings_.patience->seconds(), kCompilerMemory, settings_.patience.get()});
      if (!refusal.empty()) throw kernels::EnvironmentError(refusal);
      if (end.kind == ChildEnd::Kind::kFinished) return;
      const auto blamed =
          std::find(waiting.begin(), waiting.end(), static_cast<std::size_t>(end.last_launched));
      if (end.last_launched < 0 || blamed == waiting.end())
        throw kernels::EnvironmentError("tune: the compiler's process ended early: " + end.detail);
      programs_[*blamed]->facts =
          Pruned{end.kind == ChildEnd::Kind::kHung ? Reason::kCompilerTimeout : Reason::kCompilerCrashed,
                 end.detail};
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

// `helpers`: the second program, null where the variant has none.
Outcome outcome_of(const GpuVariant& variant, const Program& program, const Program* helpers,
                   const Architecture& architecture) {
  Predicted predicted;
  for (const Program* each : {&program, helpers}) {
    if (each == nullptr) continue;
    if (const auto* pruned = std::get_if<Pruned>(&*each->facts)) return {variant, *pruned};
    const std::string line = each == &program ? "" : "\n";
    predicted.compiled.library += line + each->base + ".cubin";
    predicted.compiled.symbol += line;
    for (const CodeFacts& code : std::get<std::vector<CodeFacts>>(*each->facts)) {
      if (each == helpers) predicted.helpers.push_back(code);
      predicted.compiled.symbol +=
          (predicted.compiled.symbol.empty() || predicted.compiled.symbol.back() == '\n' ? "" : " ") +
          code.symbol;
    }
  }
  const CodeFacts& code = predicted.code = std::get<std::vector<CodeFacts>>(*program.facts).front();
  const KernelResources use = resources_of(architecture, variant, code.resources);
  if (use.spill_bytes > 0 || use.stack_bytes > 0)
    return {variant,
            Pruned{Reason::kSpills, std::to_string(use.spill_bytes) + " bytes of registers spilled, " +
                                        std::to_string(use.stack_bytes) + " bytes of stack, per thread"}};
  if (resident_blocks(architecture, use, block_threads(variant)) == 0)
    return {variant,
            Pruned{Reason::kNoBlockFits, std::to_string(use.registers) + " registers and " +
                                             std::to_string(use.shared_bytes) +
                                             " bytes of shared memory leave no room for a block of " +
                                             std::to_string(block_threads(variant)) + " threads"}};
  predicted.prediction = predict(architecture, variant, code);
  return {variant, std::move(predicted)};
}

}  // namespace

std::vector<std::size_t> near_default(const GpuSpace& of, std::size_t count, std::uint64_t seed) {
  const auto& [problem, fits, architecture, space, valid] = of;
  const json wanted = default_gpu_variant(problem, architecture).parameters();
  std::vector<std::pair<std::pair<long, std::uint64_t>, std::size_t>> ranked;
  for (std::size_t i = 0; i < valid.size(); ++i) {
    const json parameters = gpu_variant_at(problem, fits, space, valid[i]).parameters();
    if (parameters == wanted) continue;
    // Where the table lies is the kernel's own choice in the default, and in no point: any place is as near.
    const auto differing = std::count_if(
        parameters.items().begin(), parameters.items().end(),
        [&](const auto& item) { return item.key() != "table" && wanted.at(item.key()) != item.value(); });
    ranked.push_back({{static_cast<long>(differing), kernels::next_random(seed)}, i});
  }
  std::sort(ranked.begin(), ranked.end());
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < ranked.size() && i < count; ++i) chosen.push_back(ranked[i].second);
  return chosen;
}

std::vector<GpuVariant> choose_gpu_variants(const GpuSpace& of, std::size_t count, std::uint64_t seed) {
  std::vector<GpuVariant> chosen = {default_gpu_variant(of.problem, of.architecture)};
  for (const std::size_t point : near_default(of, count - 1, seed))
    chosen.push_back(gpu_variant_at(of.problem, of.fits, of.space, of.valid[point]));
  return chosen;
}

SourceHashes hash_of_embedded() {
  std::vector<std::pair<std::string, std::string>> sources;
  for (const kernels::jit::EmbeddedSource& source : kernels::jit::embedded_kernels())
    sources.emplace_back(source.name, source.text);
  return hash_of(std::move(sources));
}

std::vector<Outcome> evaluate(const std::vector<GpuVariant>& variants, const Architecture& architecture,
                              const OfflineSettings& settings) {
  const Nvrtc& nvrtc = Nvrtc::instance();
  nvrtc.require(architecture.name);
  kernels::create_folder(settings.cache_folder);
  std::error_code error;
  const SourceHashes hashes = hash_of_embedded();
  const std::string key = hashes.kernels + hashes.coefficients + nvrtc.version() + architecture.name;
  std::map<std::string, Program> programs;  // by source
  std::vector<std::array<Program*, 2>> programs_of;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const std::string sources[] = {variants[i].source(), variants[i].helper_source()};
    programs_of.push_back({});
    for (std::size_t which = 0; which < std::size(sources); ++which) {
      if (sources[which].empty()) continue;
      Program& program = programs[sources[which]];
      program.source = sources[which];
      program.helpers = which > 0;
      program.variants.push_back(i);
      programs_of.back()[which] = &program;
    }
  }
  std::vector<Program*> waiting;
  for (auto& [source, program] : programs) {
    program.base = settings.cache_folder + "/" + kernels::sha256(key + source);
    if (std::filesystem::exists(program.base + ".json", error))
      program.facts = facts_from(kernels::read_file(program.base + ".json"));
    if (!program.facts) waiting.push_back(&program);
  }
  // In the order in which they were asked for, so that a budget leaves out the last.
  std::sort(waiting.begin(), waiting.end(),
            [](const Program* a, const Program* b) { return a->variants.front() < b->variants.front(); });
  Worker worker(waiting, variants, architecture, settings);
  const auto jobs = static_cast<std::size_t>(std::max(1, settings.jobs));
  kernels::Failure failure;
  {
    // not OpenMP's, which outlive their work: this process forks (autotune/measure/isolate.h)
    std::vector<std::jthread> threads;
    for (std::size_t job = 0; job < jobs; ++job)
      threads.emplace_back([&, job] { failure.guard([&] { worker.run(job, jobs); }, job); });
  }
  failure.rethrow();
  for (const Program* program : waiting)
    if (program->facts) kernels::write_file(program->base + ".json", to_json(*program->facts).dump() + "\n");

  std::vector<Outcome> outcomes;
  for (std::size_t i = 0; i < variants.size(); ++i) {
    const auto [program, helpers] = programs_of[i];
    if (program->facts && (helpers == nullptr || helpers->facts))
      outcomes.push_back(outcome_of(variants[i], *program, helpers, architecture));
  }
  return outcomes;
}

}  // namespace outgrad::autotune::gpu
