// Entries from records, text from entries.
#include "autotune/evidence/tuned_header.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <span>
#include <tuple>

#include "autotune/evidence/merge.h"
#include "autotune/space/schedule.h"
#include "kernels/support/digest.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using kernels::SpecError;
using nlohmann::json;

// --- Schedules as text ---------------------------------------------------------------------------

// Calls action with a schedule of the type that the problem's kernel takes.
template <class Action>
decltype(auto) with_schedule(Backend backend, const Problem& problem, const Action& action) {
  const bool norm = kernels::is_norm(problem.kernel);
  if (backend == Backend::kCuda)
    return norm ? action(kernels::GpuNormSchedule{}) : action(kernels::GpuSchedule{});
  if (!norm) return action(kernels::CpuSchedule{});
  return is_backward(problem.kernel) ? action(kernels::CpuNormBackwardSchedule{})
                                     : action(kernels::CpuNormForwardSchedule{});
}

SpecError bad_parameter(const TunedChoice& choice, const std::string& why) {
  return SpecError("tuned variant " + choice.variant, "parameters", why);
}

// "CpuSchedule kSchedule{.threads = 0, .vector_bits = 512, ...}". A member that the parameters leave out
// keeps its own default.
std::string schedule_text(const TunedChoice& choice, Backend backend) {
  return with_schedule(backend, choice.problem, [&](auto schedule) {
    const json& parameters = choice.parameters;
    const auto has = [&](const char* name) { return parameters.contains(name); };
    std::size_t known = parameters.count("fit");
    try {
      each_field(schedule, [&](const char* name, auto& field) {
        if (has(name)) ++known, read_parameter(name, parameters[name], field);
      });
    } catch (const SpecError& error) {
      throw bad_parameter(choice, error.what());
    }
    const std::string type = type_name_of(schedule);
    if (known != parameters.size())
      throw bad_parameter(choice, "a " + type + " has no member for one of " + parameters.dump());
    return type + " kSchedule" + initialiser(schedule, has);
  });
}

// "GeluF32"; empty for a kernel without a fit.
std::string fit_of(const TunedChoice& choice) {
  if (!choice.parameters.is_object()) throw bad_parameter(choice, "no parameters");
  if (!choice.problem.has_fit()) return {};
  const auto fit = choice.parameters.find("fit");
  if (fit == choice.parameters.end() || !fit->is_string()) throw bad_parameter(choice, "no fit");
  const std::string type = fit->get<std::string>();
  const Fits& fits = fits_of(choice.problem);
  const bool listed =
      std::any_of(fits.begin(), fits.end(), [&](const auto& each) { return each->type == type; });
  if (!listed && choice.fit_header.empty()) throw bad_parameter(choice, "unknown fit '" + type + "'");
  return type;
}

// Whose schedule it is shows in the device that it was measured on.
Backend backend_of(const DeviceKey& device) {
  return device.family.rfind("cpu:", 0) == 0 ? Backend::kCpu : Backend::kCuda;
}

// Throws SpecError for what no header can say.
void choice_holds(const TunedChoice& choice) {
  fit_of(choice);
  schedule_text(choice, backend_of(choice.device));
}

// --- The rest of the text ------------------------------------------------------------------------

// A C++ string literal. What is not printable ASCII is a question mark: keys are lines (identity.h).
std::string literal(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c >= ' ' && c <= '~' ? c : '?';
  }
  return quoted + "\"";
}

std::string float_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4ff", value);
  return text;
}

bool is_for_every_device(const DeviceKey& key) {
  return key.device.empty() && key.architecture.empty() && key.family.empty();
}

std::string key_text(const DeviceKey& key) {
  const auto text = [](const std::string& line) { return line.empty() ? "nullptr" : literal(line); };
  // Nothing ran on the device of a prediction: it is nobody's exact device.
  return "{" + std::string(key.predicted ? "nullptr" : text(key.device)) + ", " + text(key.architecture) +
         ", " + text(key.family) + "}";
}

// Everything that an entry says, as an order: large problems first, so that the members of a table are those
// of the largest.
auto order_of(const TunedChoice& c) {
  return std::tuple(c.problem.kernel, c.problem.format, -c.problem.elements(), -c.problem.cols,
                    key_text(c.device), c.variant, c.evidence, -c.speedup.low);
}

struct Instance {
  std::string fit, schedule;
  bool operator==(const Instance&) const = default;
};

// The default on this choice's device, at another size.
TunedChoice default_beside(const TunedChoice& choice, i64 cols) {
  TunedChoice fence;
  fence.problem = choice.problem;
  fence.problem.cols = cols;
  fence.device = choice.device;
  fence.variant = "default";
  fence.evidence = kernels::Evidence::none;
  fence.speedup = {1, 1, 1};
  fence.standard = true;
  return fence;
}

// The choices for a kernel on GPUs, and entries of the default around those that are not it. A lookup takes
// the nearest entry, however far away it is. But a norm's schedule says how many warps and octets hold a row
// of the length that it was measured at: a longer row does not fit into these registers and comes from shared
// memory or is read again, and a row of less than 0.7 of it leaves lanes without work. An elementwise
// kernel's schedule is taken down to 1/32 of the elements: fewer do not fill the GPU.
std::vector<TunedChoice> with_defaults_around(std::span<const TunedChoice> choices) {
  std::vector<TunedChoice> all(choices.begin(), choices.end());
  const auto add = [&](const TunedChoice& choice, i64 cols) {
    const bool known = std::any_of(all.begin(), all.end(), [&](const TunedChoice& c) {
      return key_text(c.device) == key_text(choice.device) && c.problem.cols == cols &&
             c.problem.rows == choice.problem.rows;
    });
    if (cols > 0 && !known) all.push_back(default_beside(choice, cols));
  };
  for (const TunedChoice& choice : choices) {
    if (choice.standard || choice.problem.cols == 0) continue;
    if (kernels::is_norm(choice.problem.kernel)) {
      add(choice, choice.problem.cols / 2);
      add(choice, choice.problem.cols + 1);
    } else if (!choice.problem.over_rows()) {
      add(choice, choice.problem.cols / 1024);
    }
  }
  std::sort(all.begin(), all.end(),
            [](const TunedChoice& a, const TunedChoice& b) { return order_of(a) < order_of(b); });
  return all;
}

std::string table_text(std::span<const TunedChoice> choices, Backend backend,
                       const std::vector<std::string>& devices, Accuracy accuracy) {
  const Problem& problem = choices.front().problem;
  const std::string base = type_name(problem.name().replace(problem.name().find('.'), 1, "_"));
  std::vector<Instance> instances;
  std::vector<std::size_t> index;
  for (const TunedChoice& choice : choices) {
    if (choice.standard) {
      index.push_back(std::string::npos);
      continue;
    }
    const Instance instance{fit_of(choice), schedule_text(choice, backend)};
    const auto found = std::find(instances.begin(), instances.end(), instance);
    index.push_back(static_cast<std::size_t>(found - instances.begin()));
    if (found == instances.end()) instances.push_back(instance);
  }
  std::string entries;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const TunedChoice& choice = choices[i];
    const auto device = std::find(devices.begin(), devices.end(), key_text(choice.device)) - devices.begin();
    entries += "      {" +
               (is_for_every_device(choice.device) ? "{}" : "kTunedDevices[" + std::to_string(device) + "]") +
               ", " + std::to_string(choice.problem.cols == 0 ? 0 : choice.problem.rows) + ", " +
               std::to_string(choice.problem.cols) + ", " +
               std::to_string(std::min(index[i], instances.size())) + ", " +
               literal(choice.standard ? "default" : choice.variant) + ",\n       " +
               "Evidence::" + name_of(choice.evidence) + ", {" + float_text(choice.speedup.median) + ", " +
               float_text(choice.speedup.low) + ", " + float_text(choice.speedup.high) + "}},\n";
  }
  std::string text, list;
  for (std::size_t i = 0; i < instances.size(); ++i) {
    const std::string name = base + "Choice" + std::to_string(i);
    text += "struct " + name + " {\n";
    if (!instances[i].fit.empty()) text += "  using Fit = generated::" + instances[i].fit + ";\n";
    text += "  static constexpr " + instances[i].schedule + ";\n};\n";
    list += name + ", ";
  }
  const std::string standard =
      problem.has_fit() ? std::string(is_backward(problem.kernel) ? "DefaultBackward<" : "DefaultForward<") +
                              type_of(problem.format) + ">"
      : kernels::has_codes(problem.kernel) ? "DefaultCode"
      : is_backward(problem.kernel)        ? "DefaultNormBackward"
                                           : "DefaultNormForward";
  const bool any = accuracy == Accuracy::kAny && problem.has_fit() && is_backward(problem.kernel);
  return text + "template <>\nstruct " + table_name(problem) + " : " +
         (instances.empty() ? standard : base + "Choice0") + " {\n  using Choices = kernels::Choices<" +
         list + standard + ">;\n" +
         (any ? "  static constexpr bool kAnyAccuracy = true;  // tune --accuracy any\n" : "") +
         "  static constexpr TunedEntry kEntries[] = {\n" + entries + "      {{}, 0, 0, " +
         std::to_string(instances.size()) + "}};\n};\n\n";
}

// --- Records -------------------------------------------------------------------------------------

std::optional<Problem> problem_of(const ProblemEvidence& evidence) {
  for (const KernelId kernel : kAllKernels)
    for (const FormatId format : kAllFormats) {
      if (evidence.kernel != name_of(kernel) || evidence.format != name_of(format)) continue;
      const Problem problem{kernel, format};
      const Problem sized = problem.over_rows() ? problem.sized(evidence.rows, evidence.cols)
                                                : problem.sized(1, evidence.elements);
      if (sized.rows > 0 && sized.cols > 0) return sized;
    }
  return std::nullopt;
}

// Nothing where the variant's fit has a header that is not in `folder`.
std::optional<TunedChoice> choice_of(const Problem& problem, const DeviceKey& device, const Record& record,
                                     const Interval& speedup, const std::string& folder) {
  if (record.parameters.empty()) return std::nullopt;
  TunedChoice choice{
      problem,         device, record.variant, record.parameters, "", kernels::Evidence::measured, speedup,
      record.fit.name, ""};
  if (choice.fit.empty()) return choice;
  choice.claims = claims_text(record.fit.accuracy.value_or(""), bounds_from(record.fit));
  if (!record.fit.sha256.empty()) {
    choice.fit_header = "fits/" + choice.fit + ".h";
    const std::string path = folder + "/" + choice.fit_header;
    if (!std::filesystem::exists(path) || kernels::sha256(kernels::read_file(path)) != record.fit.sha256)
      return std::nullopt;
  }
  return choice;
}

}  // namespace

std::string table_name(const Problem& problem) {
  return type_name(name_of(problem.kernel)) + "<" + type_of(problem.format) + ">";
}

TunedChoice tuned_choice(const AnyVariant& variant, const DeviceKey& device, kernels::Evidence evidence,
                         const Interval& speedup) {
  const bool brought = variant.fit != nullptr && !variant.fit->header.empty();
  return {
      variant.problem, device, variant.name(), variant.parameters(), brought ? header_path(*variant.fit) : "",
      evidence,        speedup};
}

std::vector<TunedChoice> winners_in(const std::vector<Record>& records, const SourceHashes& sources,
                                    const std::string& folder, Accuracy accuracy, bool earlier_too) {
  std::vector<TunedChoice> winners;
  for (const ProblemEvidence& evidence : of_one_version(weigh(records, accuracy), {&sources, 1})) {
    const bool is_earlier = evidence.sources != sources;
    if (is_earlier && !earlier_too) continue;
    const std::optional<Problem> problem = problem_of(evidence);
    // Without a record of the default nothing is known to be better than it, and `winner` names no variant.
    if (!problem || evidence.baseline.empty()) continue;
    const VariantEvidence& winner = evidence.variants[evidence.winner];
    auto choice = choice_of(*problem, evidence.device, winner.record, winner.speedup, folder);
    if (!choice) continue;
    if (is_earlier) choice->evidence = kernels::Evidence::measured_earlier;
    try {
      choice_holds(*choice);
      choice->standard = winner.record.is_default == true && backend_of(evidence.device) == Backend::kCuda;
      winners.push_back(*std::move(choice));
    } catch (const SpecError& error) {  // edited by hand, or of a fit that is gone
      kernels::print_error_line("warning: " + evidence.name() + ": " + error.what() + ": the default stays");
    }
  }
  return winners;
}

std::string tuned_header(std::vector<TunedChoice> choices, Backend backend, const std::string& origin,
                         Accuracy accuracy) {
  std::sort(choices.begin(), choices.end(),
            [](const TunedChoice& a, const TunedChoice& b) { return order_of(a) < order_of(b); });
  std::vector<std::string> devices, headers;
  for (const TunedChoice& choice : choices) {
    if (!is_for_every_device(choice.device)) devices.push_back(key_text(choice.device));
    if (!choice.fit_header.empty()) headers.push_back(choice.fit_header);
  }
  for (std::vector<std::string>* list : {&devices, &headers}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }

  const bool cpu = backend == Backend::kCpu;
  const std::string space = cpu ? "tuned" : "cuda::tuned";
  std::string text = "// GENERATED by outgrad tune. DO NOT EDIT.\n// " + one_line(origin) +
                     "\n// An entry: device, rows, columns (of elementwise kernels the elements), its "
                     "choice, the variant's name, "
                     "evidence, and the default's time\n"
                     "// over its own: median, low, high.\n#pragma once\n\n#include \"kernels/generated/" +
                     (cpu ? "tuned_default.h" : "tuned_tables_cuda.h") + "\"\n";
  for (const std::string& header : headers) text += "#include \"" + header + "\"\n";
  text += "\nnamespace outgrad::kernels::inline OUTGRAD_ABI::" + space + " {\n\n";
  if (!devices.empty()) {
    text += "inline constexpr DeviceKey kTunedDevices[] = {\n";
    for (const std::string& device : devices) text += "    " + device + ",\n";
    text += "};\n\n";
  }
  for (auto first = choices.begin(); first != choices.end();) {
    const auto last = std::find_if(first, choices.end(), [&](const TunedChoice& c) {
      return c.problem.name() != first->problem.name();
    });
    text += cpu ? table_text({first, last}, backend, devices, accuracy)
                : table_text(with_defaults_around({first, last}), backend, devices, accuracy);
    first = last;
  }
  return text + "}  // namespace outgrad::kernels::inline OUTGRAD_ABI::" + space + "\n";
}

}  // namespace outgrad::autotune
