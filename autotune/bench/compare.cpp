// Two builds of the entry points, one timing path (timing.h).
#include "autotune/bench/compare.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "autotune/cpu/executor.h"
#include "autotune/evidence/tuned_header.h"
#include "autotune/measure/device.h"
#include "autotune/measure/workload.h"
#include "kernels/support/digest.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/statistics.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using nlohmann::json;

std::string entry_symbol(const Problem& problem) {
  return std::string("outgrad_enter_") + name_of(problem.kernel);
}
std::string choice_symbol(const Problem& problem) {
  return std::string("outgrad_choice_of_") + name_of(problem.kernel);
}

// The unit's text. It names by hash what it includes beyond what the toolchain's own hash covers: an object
// that a cache has for an earlier text of one of those is another program.
std::string source_of(const std::string& header, const std::string& root, FormatId format,
                      const std::vector<Problem>& problems) {
  std::vector<std::string> included = {root + "/autotune/bench/entry_points.h",
                                       root + "/kernels/generated/tuned_default.h"};
  if (!header.empty()) {
    included.push_back(header);
    const std::string tables = kernels::read_file(header), fit = "\"fits/";  // of tune --headers
    for (std::size_t at = tables.find(fit); at != tables.npos; at = tables.find(fit, at + 1))
      included.push_back(std::filesystem::path(header).replace_filename(
          tables.substr(at + 1, tables.find('"', at + 1) - at - 1)));
  }
  std::string text;
  for (const std::string& path : included) text += "// " + kernels::sha256(kernels::read_file(path)) + "\n";
  if (!header.empty()) text += "#define OUTGRAD_TUNED_HEADER \"" + header + "\"\n";
  text +=
      "#include \"autotune/bench/entry_points.h\"\nusing namespace outgrad::kernels;\nusing namespace "
      "outgrad::autotune;\n#define EXPORTED "
      "extern \"C\" __attribute__((visibility(\"default\")))\n";
  for (const Problem& problem : problems) {
    if (problem.format != format) continue;
    text += "EXPORTED void " + entry_symbol(problem) + "(const Arguments& a) { enter<KernelId::k" +
            type_name(name_of(problem.kernel)) + ", " + type_of(format) + ">(a); }\n";
    text += "EXPORTED void " + choice_symbol(problem) +
            "(const Arguments& a) { tell_choice<tuned::" + table_name(problem) + ">(a); }\n";
  }
  return text;
}

}  // namespace

Interval Comparison::gain() const { return ratio_interval(before_ns, after_ns, kept()); }

double Comparison::gb_per_s(const std::vector<double>& ns) const {
  return problem.bytes() / kernels::median(kept_of(ns, kept()));
}

json to_json(const Interval& interval, const std::vector<bool>& kept) {
  const bool told = is_figure(interval, count_of(kept));
  return {{"status", told ? "ok" : "too noisy"},
          {"median", told ? json(interval.median) : json()},
          {"low", interval.low},
          {"high", interval.high},
          {"confidence", kConfidence}};
}

json to_json(const Comparison& c) {
  const std::vector<bool> kept = c.kept();
  return {{"kernel", name_of(c.problem.kernel)},
          {"format", name_of(c.problem.format)},
          {"rows", c.problem.rows},
          {"cols", c.problem.cols},
          {"variant", c.choice.variant},
          {"rung", c.choice.rung},
          {"fit", c.choice.fit},
          {"ceiling", {{"name", c.ceiling}, {"bytes", c.ceiling_bytes}, {"ns", c.ceiling_ns}}},
          {"bytes", c.problem.bytes()},
          {"before_ns", c.before_ns},
          {"after_ns", c.after_ns},
          {"discarded_rounds", kept.size() - count_of(kept)},
          {"gain", to_json(c.gain(), kept)}};
}

std::string text_of(const Comparison& c) {
  const Interval gain = c.gain();
  const std::vector<bool> kept = c.kept();
  char text[256];
  if (is_figure(gain, count_of(kept))) {
    std::snprintf(text, sizeof text, "  %-47s %7.2f -> %7.2f GB/s  %.3fx [%.3f, %.3f]  %zu of %zu rounds",
                  c.problem.sized_name().c_str(), c.gb_per_s(c.before_ns), c.gb_per_s(c.after_ns),
                  gain.median, gain.low, gain.high, count_of(kept), kept.size());
  } else {
    std::snprintf(text, sizeof text, "  %-47s %s", c.problem.sized_name().c_str(),
                  too_noisy(gain, kept).c_str());
  }
  return text + ("  " + c.choice.variant) + " (" + c.choice.rung + (c.choice.claims.empty() ? "" : "; ") +
         c.choice.claims + ")\n";
}

EntryPoints::EntryPoints(const std::string& header, const std::vector<Problem>& problems,
                         const Toolchain& toolchain, const CompileSettings& settings) {
  const std::string path = header.empty() ? "" : std::filesystem::absolute(header).string();
  for (const FormatId format : kAllFormats) {
    std::vector<Problem> kernels_of_format;  // each once, whatever its sizes
    for (const Problem& problem : problems) {
      const bool known = std::any_of(kernels_of_format.begin(), kernels_of_format.end(),
                                     [&](const Problem& p) { return p.kernel == problem.kernel; });
      if (problem.format == format && !known) kernels_of_format.push_back(problem);
    }
    if (kernels_of_format.empty()) continue;
    units_.emplace_back(
        format, compile_source(source_of(path, toolchain.source_root, format, kernels_of_format), "",
                               header.empty() ? "the default entry points" : header, toolchain, settings));
  }
}

Compiled EntryPoints::unit_of(const Problem& problem) const {
  const auto unit = std::find_if(units_.begin(), units_.end(),
                                 [&](const auto& each) { return each.first == problem.format; });
  if (unit == units_.end()) throw std::logic_error("EntryPoints: " + problem.name() + " was not compiled");
  return unit->second;
}

VariantFunction EntryPoints::function(const Problem& problem) const {
  Compiled unit = unit_of(problem);
  unit.symbol = entry_symbol(problem);
  return load(unit);
}

Choice EntryPoints::choice(const Problem& problem) const {
  Compiled unit = unit_of(problem);
  unit.symbol = choice_symbol(problem);
  const char* variant = nullptr;
  int rung = 0;
  kernels::FitClaims fit;
  Arguments question;
  question.array[0] = &variant;
  question.array[1] = &rung;
  question.array[2] = &fit;
  question.rows = problem.rows;
  question.cols = problem.cols;
  load(unit)(question);
  return {variant, name_of(static_cast<kernels::Rung>(rung)), claims_text(fit),
          fit.name == nullptr ? json() : to_json(fit_record(fit.name, fit.accuracy, fit.bounds))};
}

std::vector<Problem> tuned_problems(const std::string& header) {
  const std::string text = kernels::read_file(header);
  if (text.find("kernels/generated/tuned_default.h") == std::string::npos)
    throw kernels::SpecError(header, "#include \"kernels/generated/tuned_default.h\"",
                             "missing: it is no tuned header for a CPU");
  std::vector<Problem> problems;
  for (const KernelId kernel : kAllKernels)
    for (const FormatId format : kAllFormats)
      if (text.find("struct " + table_name({kernel, format}) + " ") != std::string::npos)
        problems.push_back({kernel, format});
  if (problems.empty()) throw kernels::SpecError(header, "struct", "no table of any kernel");
  return problems;
}

Comparison compare(const Problem& problem, const EntryPoints& before, const EntryPoints& after, int rounds,
                   std::uint64_t seed) {
  const auto executor = open_cpu();
  executor->allocate(problem, seed);
  const Workspace arrays(problem, seed);
  const Arguments a = arrays.arguments();
  Comparison result;
  result.problem = problem;
  result.choice = after.choice(problem);
  const Workload ceiling = executor->ceiling();
  result.ceiling = ceiling.name;
  result.ceiling_bytes = ceiling.bytes;
  const auto workload = [&](const char* name, const EntryPoints& entries) {
    return Workload{name, problem.bytes(), [function = entries.function(problem), a] { function(a); }};
  };
  const auto ns = timed_until({ceiling, workload("before", before), workload("after", after)}, rounds, seed);
  result.ceiling_ns = ns[0], result.before_ns = ns[1], result.after_ns = ns[2];
  return result;
}

i64 bench_elements(FormatId format, i64 wanted) {
  constexpr i64 kFloor = i64{1} << 20;
  constexpr i64 kArrays = 5;
  i64 elements = wanted;
  while (elements > kFloor && elements * bytes_of(format) * kArrays > available_memory_bytes() / 4)
    elements /= 2;
  return elements;
}

}  // namespace outgrad::autotune
