// Units, compiler processes, cache.
#include "autotune/cpu/compile.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <set>
#include <sstream>
#include <thread>

#include "autotune/measure/device.h"
#include "autotune/measure/timing.h"
#include "autotune/space/sources.h"
#include "kernels/support/digest.h"
#include "kernels/support/process.h"

#ifndef OUTGRAD_CXX_COMPILER
#define OUTGRAD_CXX_COMPILER ""
#endif

namespace outgrad::autotune {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

kernels::Launch launch_of(std::vector<std::string> command, int output = kernels::Launch::kCaptured) {
  kernels::Launch launch{std::move(command)};
  launch.environment = {"LC_ALL=C"};  // whose messages complaint() reads
  launch.out = launch.err = output;
  launch.leads_group = true;  // so that a kill reaches the compiler proper
  return launch;
}

// What `command --version` prints; empty when it does not run.
std::string version_of(std::vector<std::string> command) {
  if (command.empty()) return {};
  command.push_back("--version");
  const kernels::Ending ending = kernels::run(launch_of(std::move(command)));
  return ending.status == 0 ? ending.text : std::string();
}

std::string symbol_of(std::size_t position) { return "outgrad_variant_" + std::to_string(position); }

std::string unit_source(const std::vector<Candidate*>& unit) {
  std::string text = "// Variants of " + unit.front()->variant().problem.name() + ", written by the tuner.\n";
  const Problem& problem = unit.front()->variant().problem;
  const char* const header = kernels::is_norm(problem.kernel)     ? "layernorm"
                             : kernels::has_codes(problem.kernel) ? "code"
                             : problem.over_rows()                ? "bias"
                                                                  : "elementwise";
  text +=
      std::string("#include \"autotune/space/arguments.h\"\n#include \"kernels/host/") + header + ".h\"\n";
  if (problem.has_fit()) text += "#include \"kernels/fits.h\"\n";
  std::set<const FitChoice*> foreign;
  for (const Candidate* candidate : unit)
    if (const FitChoice* fit = candidate->variant().fit.get();
        fit != nullptr && !fit->header.empty() && foreign.insert(fit).second)
      text += included_text(fit->header, fit->name);
  for (std::size_t i = 0; i < unit.size(); ++i) {
    text += "\n// " + unit[i]->variant().name() +
            "\nextern \"C\" __attribute__((visibility(\"default\"))) void " + symbol_of(i) +
            "(const outgrad::autotune::Arguments& a) {\n  " + unit[i]->body() + "\n}\n";
  }
  return text;
}

// The first line that says what is wrong, for the record.
std::string first_error(const std::string& log) {
  std::istringstream lines(log);
  std::string line, first;
  while (std::getline(lines, line)) {
    if (first.empty()) first = line;
    if (line.find("error") != std::string::npos) return line;
  }
  return first.empty() ? "no message" : first;
}

// What every object of a toolchain depends on.
std::string key_of(const Toolchain& toolchain) {
  std::string key = toolchain.version + toolchain.headers_hash + toolchain.processor;
  for (const std::string& word : toolchain.compiler) key += word + '\n';
  for (const std::string& flag : toolchain.flags) key += flag + '\n';
  return key;
}

std::vector<std::string> command_of(const Toolchain& toolchain, const std::string& source,
                                    const std::string& output) {
  std::vector<std::string> command = toolchain.compiler;
  command.insert(command.end(), toolchain.flags.begin(), toolchain.flags.end());
  command.insert(command.end(), {source, "-o", output});
  return command;
}

// What is wrong by a compiler's log, unless that is that the cache is full.
std::string complaint(const std::string& log, const std::string& cache_folder) {
  if (log.find("No space left on device") != std::string::npos)
    throw kernels::IoError(cache_folder, "write", ENOSPC);
  return first_error(log);
}

struct Unit {
  std::vector<Candidate*> candidates;
  std::string base;  // path in the cache without its suffix
  std::string temporary;
  pid_t process = -1;
  Clock::time_point started;
};

void take(const Unit& unit, double milliseconds) {
  for (std::size_t i = 0; i < unit.candidates.size(); ++i)
    unit.candidates[i]->compiled(
        {unit.base + ".so", symbol_of(i), milliseconds / static_cast<double>(unit.candidates.size())});
}

}  // namespace

std::string included_text(std::string header, const std::string& path) {
  const std::string once = "#pragma once";  // a warning in what is the main file here
  if (const std::size_t at = header.find(once); at != std::string::npos)
    header.replace(at, once.size(), once.size(), ' ');
  std::string name;
  for (const char c : path) name += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
  return "#line 1 \"" + name + "\"\n" + header + "\n#line 1 \"the tuner's source\"\n";
}

Toolchain find_toolchain() {
  Toolchain toolchain;
  const char* chosen = std::getenv("CXX");
  std::vector<std::string> tried = {OUTGRAD_CXX_COMPILER, "c++", "g++"};
  if (chosen != nullptr && *chosen != '\0') tried = {chosen};
  for (const std::string& command : tried) {
    toolchain.compiler = words_of(command);
    toolchain.version = version_of(toolchain.compiler);
    if (!toolchain.version.empty()) break;
  }
  if (toolchain.version.empty())
    throw kernels::EnvironmentError(tried.size() == 1
                                        ? "the C++ compiler in CXX does not run: " + tried.front()
                                        : "no C++ compiler (tried CXX, c++, g++)");
  toolchain.source_root = source_root();
  toolchain.processor = processor_text();
  // The kernels' own flags (cmake/OutgradTargets.cmake); unique symbols would tie two variants of one
  // template together.
  toolchain.flags = {"-std=c++20",
                     "-O3",
                     "-march=native",
                     "-fopenmp",
                     "-fno-math-errno",
                     "-ffp-contract=off",
                     "-fvisibility=hidden",
                     "-fPIC",
                     "-shared",
                     "-I" + toolchain.source_root};
  if (toolchain.version.find("clang") == std::string::npos) toolchain.flags.push_back("-fno-gnu-unique");
  const SourceHashes hashes = hash_sources(toolchain.source_root);
  toolchain.headers_hash = kernels::sha256(
      hashes.kernels + hashes.coefficients +
      kernels::sha256(kernels::read_file(toolchain.source_root + "/autotune/space/arguments.h")));
  return toolchain;
}

namespace {

// Units in the order of their rank within the problem: the first unit of every problem comes before anyone's
// second.
std::deque<Unit> units_of(const std::vector<Candidate*>& candidates, std::size_t variants_per_unit) {
  struct Ranked {
    std::size_t rank;
    Unit unit;
  };
  std::vector<Ranked> ranked;
  std::vector<std::pair<Problem, std::size_t>> last_unit;  // problem, index into ranked
  for (Candidate* candidate : candidates) {
    const Problem problem = candidate->variant().problem;
    auto open = std::find_if(last_unit.begin(), last_unit.end(),
                             [&](const auto& entry) { return entry.first == problem; });
    const bool is_first = open == last_unit.end();
    if (is_first) open = last_unit.insert(open, {problem, 0});
    if (is_first || ranked[open->second].unit.candidates.size() == variants_per_unit) {
      ranked.push_back({is_first ? 0 : ranked[open->second].rank + 1, {}});
      open->second = ranked.size() - 1;
    }
    ranked[open->second].unit.candidates.push_back(candidate);
  }
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const Ranked& a, const Ranked& b) { return a.rank < b.rank; });
  std::deque<Unit> units;
  for (Ranked& each : ranked) units.push_back(std::move(each.unit));
  return units;
}

// Units on their way through as many compilers as there are jobs.
class Compilation {
 public:
  Compilation(std::deque<Unit> waiting, const Toolchain& toolchain, const CompileSettings& settings)
      : waiting_(std::move(waiting)), units_(waiting_.size()), toolchain_(toolchain), settings_(settings),
        common_(key_of(toolchain)) {}

  void run() {
    while (!waiting_.empty() || !running_.empty()) {
      while (!waiting_.empty() && running_.size() < static_cast<std::size_t>(std::max(1, settings_.jobs))) {
        if (seconds_since(began_) > settings_.budget_seconds) {
          waiting_.clear();
          break;
        }
        Unit unit = std::move(waiting_.front());
        waiting_.pop_front();
        start(std::move(unit));
      }
      for (std::size_t i = 0; i < running_.size();) {
        if (!has_ended(running_[i])) {
          ++i;
          continue;
        }
        ++done_;
        running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
        if (settings_.progress) settings_.progress(done_, units_);
      }
      // far below a unit's seconds
      if (!running_.empty()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

 private:
  // Takes it from the cache where it is there.
  void start(Unit unit) {
    const std::string source = unit_source(unit.candidates);
    unit.base = settings_.cache_folder + "/" + kernels::sha256(common_ + source);
    std::error_code error;
    if (fs::exists(unit.base + ".so", error)) {
      take(unit, 0);
      ++done_;
      return;
    }
    kernels::write_file(unit.base + ".cpp", source);
    unit.temporary = unit.base + "." + std::to_string(::getpid()) + ".tmp";
    unit.started = Clock::now();
    const kernels::Descriptor log(
        ::open((unit.base + ".log").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (log.get() < 0) throw kernels::IoError(unit.base + ".log", "write", errno);
    unit.process =
        kernels::start(launch_of(command_of(toolchain_, unit.base + ".cpp", unit.temporary), log.get()));
    running_.push_back(std::move(unit));
  }

  bool has_ended(Unit& unit) {
    const bool overdue = seconds_since(unit.started) > settings_.patience->seconds();
    if (overdue) ::kill(-unit.process, SIGKILL);
    const auto ending = overdue ? kernels::wait_for(unit.process) : kernels::ended(unit.process);
    if (!ending) return false;
    if (!overdue && ending->status == 0 &&
        ::rename(unit.temporary.c_str(), (unit.base + ".so").c_str()) == 0) {
      const double seconds = seconds_since(unit.started);
      if (!settings_.patience->knows_baseline()) settings_.patience->baseline_took(seconds);
      take(unit, 1e3 * seconds);
    } else {
      refuse(unit, overdue);
    }
    return true;
  }

  // Compiles the candidates one by one, so that only the offender is rejected.
  void refuse(const Unit& unit, bool overdue) {
    std::error_code error;
    fs::remove(unit.temporary, error);
    const std::string why = complaint(kernels::read_file(unit.base + ".log"), settings_.cache_folder);
    if (unit.candidates.size() > 1) {
      for (Candidate* candidate : unit.candidates) waiting_.push_front({{candidate}, {}, {}, -1, {}});
      units_ += unit.candidates.size();
    } else {
      unit.candidates.front()->reject(Stage::kCompile,
                                      overdue ? Reason::kCompilerTimeout : Reason::kCompilerError,
                                      overdue ? "over " + settings_.patience->text() : why);
    }
  }

  std::deque<Unit> waiting_;
  std::vector<Unit> running_;
  std::size_t done_ = 0, units_;
  const Toolchain& toolchain_;
  const CompileSettings& settings_;
  const std::string common_;
  const Clock::time_point began_ = Clock::now();
};

}  // namespace

void compile(const std::vector<Candidate*>& candidates, const Toolchain& toolchain,
             const CompileSettings& settings) {
  kernels::create_folder(settings.cache_folder);
  const auto variants_per_unit = static_cast<std::size_t>(settings.variants_per_unit);
  Compilation(units_of(candidates, variants_per_unit), toolchain, settings).run();
}

Compiled compile_source(const std::string& source, const std::string& symbol, const std::string& origin,
                        const Toolchain& toolchain, const CompileSettings& settings) {
  kernels::create_folder(settings.cache_folder);
  std::error_code error;
  const std::string base = settings.cache_folder + "/" + kernels::sha256(key_of(toolchain) + source);
  const std::string library = base + ".so", temporary = base + "." + std::to_string(::getpid()) + ".tmp";
  if (fs::exists(library, error)) return {library, symbol, 0};
  kernels::write_file(base + ".cpp", source);
  const auto started = Clock::now();
  const kernels::Ending ending =
      kernels::run(launch_of(command_of(toolchain, base + ".cpp", temporary)), settings.patience->seconds());
  if (ending.status == 0 && ::rename(temporary.c_str(), library.c_str()) == 0)
    return {library, symbol, 1e3 * seconds_since(started)};
  fs::remove(temporary, error);
  if (ending.late)
    throw kernels::EnvironmentError(origin + ": the compiler did not end within " +
                                    settings.patience->text());
  throw kernels::SpecError(origin, "does not compile", complaint(ending.text, settings.cache_folder));
}

VariantFunction load(const Compiled& compiled) {
  void* library = ::dlopen(compiled.library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    throw kernels::EnvironmentError(std::string("cannot load a compiled variant: ") + ::dlerror());
  void* symbol = ::dlsym(library, compiled.symbol.c_str());
  if (symbol == nullptr) throw kernels::EnvironmentError(compiled.library + " lacks " + compiled.symbol);
  return reinterpret_cast<VariantFunction>(symbol);
}

}  // namespace outgrad::autotune
