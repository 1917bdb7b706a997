// Reads arrays, runs the tuned host kernel, writes arrays.
#include "autotune/commands/commands.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "autotune/bench/deployed.h"
#include "autotune/commands/options.h"
#include "autotune/cpu/header.h"
#include "autotune/gpu/session.h"
#include "kernels/activations.h"
#include "kernels/host/functions.h"
#include "kernels/support/files.h"

namespace outgrad::autotune {
namespace {

using kernels::i64;
using kernels::u16;
using kernels::u32;
using kernels::u8;
using nlohmann::json;

// --op: those without a bias and a residual.
const std::map<std::string, KernelId>& operations() {
  static const std::map<std::string, KernelId> kOperations = {
      {"forward", KernelId::kGeluForward},
      {"backward", KernelId::kGeluBackward},
      {"layernorm_forward", KernelId::kLayernormForward},
      {"layernorm_backward", KernelId::kLayernormBackward},
      {"rmsnorm_forward", KernelId::kRmsnormForward},
      {"rmsnorm_backward", KernelId::kRmsnormBackward}};
  return kOperations;
}

struct EvalOptions {
  std::string op, activation, header, format, device = "cpu";
  i64 rows = 0, cols = 0;
  double eps = 1e-5;  // the default of the frameworks' layer norms
  kernels::ResultForm form;
  // by the operands' names in the catalogue; of a y in blocks also "scales"
  std::map<std::string, std::string> files{};

  bool has(const std::string& operand) const { return files.contains(operand); }
  const std::string& file(const std::string& operand) const;
};

kernels::SpecError bad(const std::string& name, const std::string& why) { return {"eval", "--" + name, why}; }

const std::string& EvalOptions::file(const std::string& operand) const {
  if (!has(operand)) throw bad(operand, "is required");
  return files.at(operand);
}

void require_one_of(const std::string& name, const std::string& value,
                    const std::vector<std::string>& allowed) {
  if (const std::string why = CLI::IsMember(allowed)(value); !why.empty()) throw bad(name, why);
}

struct Operation {
  std::vector<std::string> required, optional, written;
};

// Beside --op, --format and --device; with --header some of them are not needed (eval_header). A gamma that
// is left out is 1, a beta 0; a gradient that is left out is not computed.
Operation options_of(KernelId kernel) {
  Operation operation;
  if (kernels::over_rows(kernel))
    operation.required = {"rows", "cols"};
  else
    operation = {{"activation"}, {"header"}, {}};
  for (const Operand& operand : operands(kernel)) {
    if (operand.role == Role::kScratch) continue;
    (operand.optional ? operation.optional : operation.required).push_back(operand.name);
    if (operand.role == Role::kOutput) operation.written.push_back(operand.name);
  }
  if (kernels::is_norm(kernel) && !is_backward(kernel)) operation.optional.push_back("eps");
  return operation;
}

// All outputs of a command: written to temporary names first, renamed together at the end.
class Outputs {
 public:
  template <class Elements>
  void write(const std::string& path, const Elements& elements) {
    files_.emplace_back(path).write(std::as_bytes(std::span(elements)));
  }
  void commit() {
    for (kernels::OutputFile& file : files_) file.commit();
  }

 private:
  std::deque<kernels::OutputFile> files_;  // a deque never moves its elements
};

i64 mask_words(i64 elements) { return (elements + 31) / 32; }

// The operand's file, of `count` elements; -1: of any number.
std::vector<std::byte> read_operand(const EvalOptions& options, const Operand& operand,
                                    const Problem& problem, i64 count) {
  const auto size = static_cast<std::size_t>(problem.element_bytes(operand));
  std::vector<std::byte> bytes;
  kernels::read_elements(options.file(operand.name), size, count, [&](std::size_t elements) {
    bytes.resize(elements * size);
    return bytes.data();
  });
  return bytes;
}

// The place of --activation in the catalogue; GELU's, which is the first, for a norm.
int activation_of(const EvalOptions& options) {
  const std::vector<std::string> names(std::begin(kernels::kActivationNames),
                                       std::end(kernels::kActivationNames));
  if (options.activation.empty()) return 0;
  require_one_of("activation", options.activation, names);
  return activation_named(options.activation);
}

// For the device: the fit of its backward, or its forward.
std::shared_ptr<const FitChoice> choice_of(const DeployedActivation& activation, const std::string& name,
                                           bool backward) {
  const kernels::FitClaims& fit = activation.fit;
  if (!backward)
    return std::make_shared<FitChoice>(FitChoice{
        .type = type_name(name), .name = name, .has_rows = true, .forward = "forwards::" + type_name(name)});
  return std::make_shared<FitChoice>(FitChoice{.type = type_name(fit.name),
                                               .name = fit.name,
                                               .accuracy = fit.accuracy,
                                               .bounds = fit.bounds,
                                               .has_rows = activation.has_rows});
}

// The library's kernel over files, on the CPU or, in its default schedule, on a device. Every operand of the
// problem by its name: an option that reads a file, or one that names a file to write.
void eval_kernel(const EvalOptions& options, KernelId kernel, std::optional<int> device) {
  const FormatId format = *format_named(options.format);
  const int activation = activation_of(options);
  std::optional<DeployedActivation> other;  // than GELU
  if (activation > 0) other = deployed_activation(activation, format);
  if (other && !other->masked && options.has("mask"))
    throw bad("mask",
              "is not an option of " + options.activation + ", which rises: y tells on which side x lies");
  if (!kernels::over_rows(kernel) && (!other || other->masked)) options.file("mask");  // is required
  const std::span<const Operand> all = operands(kernel);
  Problem problem{kernel, format};
  if (problem.over_rows()) {
    problem.rows = options.rows, problem.cols = options.cols;
  } else {  // by y or x
    problem.cols =
        static_cast<i64>(read_operand(options, all[is_backward(kernel) ? 1 : 0], problem, -1).size()) /
        bytes_of(format);
  }
  std::vector<std::vector<std::byte>> arrays(all.size());
  Arguments arguments{.rows = problem.rows, .cols = problem.cols, .eps = static_cast<float>(options.eps)};
  for (std::size_t k = 0; k < all.size(); ++k) {
    const Operand& operand = all[k];
    if (operand.role == Role::kScratch ? device.has_value() : !options.has(operand.name)) continue;
    arrays[k] = operand.role == Role::kInput
                    ? read_operand(options, operand, problem, problem.count_of(operand))
                    : std::vector<std::byte>(problem.array_bytes(operand));
    arguments.array[k] = arrays[k].data();
  }
  json said = {{"op", options.op}};
  if (other) said["activation"] = options.activation;
  if (other && !device) {
    said["instruction_set"] = run_deployed_activation(activation, problem, arguments);
    if (is_backward(kernel)) said.update(claims_json(other->fit));
  } else if (!device) {
    run_deployed(problem, arguments);
    const Deployed choice = deployed(problem);
    said.update({{"variant", choice.variant}, {"rung", choice.rung}});
    said.update(claims_json(choice.fit));
  } else {
    // what the host's kernel refuses by itself
    if (is_backward(kernel) && problem.over_rows() && options.has("gamma")) {
      const std::vector<float> gamma = kernels::read_array<float>(options.file("gamma"), problem.cols);
      kernels::detail::require_reciprocals(options.op.c_str(), gamma.data(), problem.cols, {});
    }
    std::shared_ptr<const FitChoice> fit = kernels::has_fit(kernel) ? fits_of(problem).front() : nullptr;
    if (other) fit = choice_of(*other, options.activation, is_backward(kernel));
    said["variant"] = problem.rows > 0 || is_backward(kernel)
                          ? gpu::run_on_device(*device, problem, arguments, arguments.eps, fit)
                          : "";
    if (kernel == KernelId::kGeluBackward)
      said["fit"] = to_json(fit_record(fit->name, fit->accuracy, fit->bounds));
  }
  Outputs outputs;
  for (std::size_t k = 0; k < all.size(); ++k)
    if (all[k].role == Role::kOutput && options.has(all[k].name))
      outputs.write(options.file(all[k].name), arrays[k]);
  outputs.commit();
  if (options.form) kernels::print_result(options.form, said, "");
}

// The kernels of a generated header, on elements as their bits: T those of dy and dx (of x and y), Y those of
// y.
template <class T, class Y>
void eval_header_backward(const EvalOptions& options, const GeneratedHeader& header, FormatId format) {
  const std::vector<Y> y = kernels::read_array<Y>(options.file("y"));
  const i64 n = static_cast<i64>(y.size());
  const std::vector<T> dy = kernels::read_array<T>(options.file("dy"), n);
  std::vector<u32> mask;
  if (header.masked || options.has("mask"))
    mask = kernels::read_array<u32>(options.file("mask"), mask_words(n));
  std::vector<u8> scales;
  if (header.in_blocks())
    scales = kernels::read_array<u8>(options.file("scales"), kernels::scales_of<kernels::MxFp8>(n));
  const SharedArray dx(dy.size() * sizeof(T));
  Arguments arguments{{const_cast<T*>(dy.data()), const_cast<Y*>(y.data()), mask.data(), dx.data()}, 1, n};
  arguments.scales = scales.data();
  run_generated_header(header, format, arguments);
  Outputs outputs;
  outputs.write(options.file("dx"), std::span(static_cast<const T*>(dx.data()), dy.size()));
  outputs.commit();
}

template <class T>
void eval_header_forward(const EvalOptions& options, const GeneratedHeader& header, FormatId format) {
  const std::vector<T> x = kernels::read_array<T>(options.file("x"));
  const i64 n = static_cast<i64>(x.size());
  const std::size_t words = static_cast<std::size_t>(mask_words(n));
  const SharedArray y(x.size() * sizeof(T)), mask(words * sizeof(u32));
  run_generated_header(header, format, {{const_cast<T*>(x.data()), y.data(), mask.data()}, 1, n});
  Outputs outputs;
  outputs.write(options.file("y"), std::span(static_cast<const T*>(y.data()), x.size()));
  if (header.masked)
    outputs.write(options.file("mask"), std::span(static_cast<const u32*>(mask.data()), words));
  outputs.commit();
}

// --header: the header decides what is computed and how y is stored. --format is needed where that leaves the
// type of an array open: of dy and dx where y is stored in 8 bits.
void eval_header(const EvalOptions& options, bool forward) {
  const GeneratedHeader header = read_generated_header(options.header);
  if (header.forward != forward) {
    throw kernels::SpecError(
        header.path, "struct " + header.type,
        header.forward ? "is a forward header, for --op forward" : "is a backward header, for --op backward");
  }
  if (!options.activation.empty()) require_one_of("activation", options.activation, {header.activation});
  if (forward && header.masked != options.has("mask"))
    throw bad("mask", header.masked ? "is required" : header.activation + " rises and has none");
  if (options.has("scales") && !header.in_blocks())
    throw bad("scales", "y in " + header.format + " has no scales");
  if (options.has("mask") && header.carrier() != header.format)
    throw bad("mask", "y in " + header.format + " carries its branch");
  const bool open = header.y_bytes() == 1;
  if (open && options.format.empty()) throw bad("format", "is required");
  if (!options.format.empty())
    require_one_of("format", options.format,
                   open ? format_names() : std::vector<std::string>{header.carrier()});
  const std::string format = options.format.empty() ? header.carrier() : options.format;
  const FormatId id = *format_named(format);
  const bool wide = id == FormatId::kF32;
  if (forward)
    return wide ? eval_header_forward<u32>(options, header, id)
                : eval_header_forward<u16>(options, header, id);
  if (!open)
    return wide ? eval_header_backward<u32, u32>(options, header, id)
                : eval_header_backward<u16, u16>(options, header, id);
  return wide ? eval_header_backward<u32, u8>(options, header, id)
              : eval_header_backward<u16, u8>(options, header, id);
}

// A file that is written and named by another option, too, however they spell it, would silently lose an
// array.
void require_distinct(const EvalOptions& options, const std::vector<std::string>& written) {
  std::map<std::filesystem::path, std::string> known;
  const auto is_written = [&](const std::string& name) {
    return std::ranges::find(written, name) != written.end();
  };
  for (const bool of_written : {false, true})
    for (const auto& [name, path] : options.files) {
      if (is_written(name) != of_written) continue;
      const auto [at, is_new] = known.emplace(std::filesystem::weakly_canonical(path), name);
      if (of_written && !is_new) throw bad(name, "is the same file as --" + at->second);
    }
}

EvalOptions eval_options(const Words& words) {
  // beyond any memory, and small enough that a product of two is checked below
  constexpr i64 kMost = i64{1} << 40;
  std::vector<std::string> names;
  for (const auto& entry : operations()) names.push_back(entry.first);
  EvalOptions o;
  read_options({"eval", "eval"}, words, [&](CLI::App& app) {
    add_choice(app, "--op", o.op, names);
    add_text(app, "--activation", o.activation);
    add_text(app, "--header", o.header);
    add_text(app, "--format", o.format);
    add_text(app, "--device", o.device);
    add_number<i64>(app, "--rows", o.rows, 0, kMost);
    add_number<i64>(app, "--cols", o.cols, 1, kMost);
    add_number<double>(app, "--eps", o.eps, 0, 1);
    kernels::add_result_form(app, o.form, "the result");
    for (const char* file :
         {"x", "y", "mask", "dy", "dx", "gamma", "beta", "rstd", "dgamma", "dbeta", "scales"})
      add_value(app, std::string("--") + file, [&o, file](const std::string& path) { o.files[file] = path; });
  });
  if (o.op.empty()) throw bad("op", "is required");
  if (o.header.empty() && o.format.empty()) throw bad("format", "is required");
  if (!o.format.empty()) require_one_of("format", o.format, format_names());
  if (o.rows > 0 && o.cols > kMost / o.rows) throw bad("rows", "rows times cols is more than 2^40 elements");
  return o;
}

// What the operation does not have, and what it lacks.
void require_operation(const Words& words, const EvalOptions& options, const Operation& operation) {
  const bool with_header = !options.header.empty();
  const auto has = [&](const std::string& name) { return given(words, "--" + name).has_value(); };
  for (const std::string& name : operation.required) {
    // With a header, these are what it says.
    const bool needed = name != "mask" && (!with_header || name != "activation");
    if (needed && !has(name)) throw bad(name, "is required");
  }
  for (const char* name : {"activation", "header", "rows", "cols", "x", "y", "mask", "dy", "dx", "gamma",
                           "beta", "eps", "rstd", "dgamma", "dbeta"}) {
    const auto lists = [&](const std::vector<std::string>& known) {
      return std::ranges::find(known, name) != known.end();
    };
    if (has(name) && !lists(operation.required) && !lists(operation.optional))
      throw bad(name, "is not an option of --op " + options.op);
  }
  if (!with_header && has("scales"))
    throw bad("scales", "is not an option of --op " + options.op + " without --header");
  require_distinct(options, operation.written);
}

}  // namespace

int eval_command(const std::vector<std::string>& words) {
  const EvalOptions options = eval_options(words);
  const std::optional<int> device = cuda_device("eval", options.device);
  if (!device) require_cpu_device("eval", options.device);
  const KernelId kernel = operations().at(options.op);
  require_operation(words, options, options_of(kernel));
  const bool with_header = !options.header.empty();
  if (device && with_header)
    throw bad("header", "is for the CPU: --device cuda:N runs the library's own kernels");
  if (with_header) {
    if (options.form) throw bad(options.form.csv ? "csv" : "json", "--header names what runs");
    eval_header(options, options.op == "forward");
  } else {
    eval_kernel(options, kernel, device);
  }
  return kernels::kExitHolds;
}

}  // namespace outgrad::autotune
