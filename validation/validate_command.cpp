// Arguments, gates and tables of `outgrad validate`.
#include "validation/validate_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/fits.h"
#include "kernels/host/errors.h"
#include "kernels/host/files.h"
#include "kernels/tuned.h"
#include "validation/fingerprint.h"
#include "validation/foreign.h"
#include "validation/subject.h"
#include "validation/sweep.h"
#include "validation/sweep_json.h"
#include "validation/targets.h"

namespace outgrad::validation {

using kernels::SpecError;

namespace {

struct Arguments {
  std::string activation = "gelu";
  std::string format;
  std::string fit;
  std::string foreign;
  std::string activations;
  std::string shard;
  std::vector<std::string> merge;
  std::string out;
  int threads = 0;
  bool json = false;
};

struct Gate {
  std::string name;
  double value, limit;
  bool holds() const { return value <= limit; }
};

template <class T>
Subject deployed(const FloatFormat& format) {
  return make_subject<typename kernels::tuned::GeluBackward<T>::Fit, typename kernels::tuned::GeluForward<T>::Fit, T>(format);
}

const FloatFormat& format_of(const std::string& name) {
  for (const FloatFormat* format : {&kF32, &kF16, &kBf16}) {
    if (format->name == name) return *format;
  }
  throw SpecError("validate", "--format", "'" + name + "' is an unknown format (f32, f16, bf16)");
}

Subject deployed(const std::string& name) {
  const FloatFormat& format = format_of(name);
  if (format.precision == kF32.precision) return deployed<float>(format);
  return format.precision == kF16.precision ? deployed<kernels::F16>(format) : deployed<kernels::BF16>(format);
}

/// The storage type of a format's name.
template <class Fit>
using StorageOf = std::conditional_t<Fit::kFormat == std::string_view("f32"), float,
                                     std::conditional_t<Fit::kFormat == std::string_view("f16"), kernels::F16, kernels::BF16>>;

/// A fit of kernels/fits.h by name: a tuned kernel may use any of them.
Subject listed(const std::string& format, const std::string& name) {
  std::optional<Subject> found;
  std::string known;
  kernels::for_each_fit([&](auto fit) {
    using Fit = decltype(fit);
    // Direct tables are proven whole by `check`, which enumerates their pairs.
    if constexpr (!kernels::kIsDirect<Fit>) {
      if (format != Fit::kFormat) return;
      known += (known.empty() ? "" : ", ") + std::string(Fit::kName);
      if (name != Fit::kName) return;
      const FloatFormat& stored = format == kF32.name ? kF32 : format == kF16.name ? kF16 : kBf16;
      found = make_subject<Fit, typename kernels::tuned::GeluForward<StorageOf<Fit>>::Fit, StorageOf<Fit>>(stored);
    }
  });
  if (!found) throw SpecError("validate", "--fit", "'" + name + "' is no fit of format '" + format + "' (" + known + ")");
  return *found;
}

/// "i/n", 1 <= i <= n.
void parse_shard(const std::string& text, SweepOptions& options) {
  constexpr int kMostShards = 1024;  // a shard has at least one chunk
  const char* const end = text.data() + text.size();
  const auto [slash, first_error] = std::from_chars(text.data(), end, options.shard);
  if (first_error == std::errc() && slash != end && *slash == '/') {
    const auto [rest, second_error] = std::from_chars(slash + 1, end, options.shards);
    if (second_error == std::errc() && rest == end && 1 <= options.shard && options.shard <= options.shards && options.shards <= kMostShards) return;
  }
  throw SpecError("validate", "--shard", fmt::format("'{}' is not i/n with 1 <= i <= n <= {}", text, kMostShards));
}

/// The limits of validation/targets.h that a sweep decides; a violation is exit status 1.
std::vector<Gate> gates_of(const DomainResult& result, const Subject& subject) {
  const FloatFormat& format = subject.format;
  const Segment& all = result.all;
  if (!subject.origin.is_null()) {  // nobody else is held to our targets, only to what they publish
    std::vector<Gate> claimed;
    if (!subject.origin.contains("claims")) return claimed;
    for (const auto& [what, limit] : subject.origin["claims"].items()) {
      const PerBranch& maxima = what == "T" ? all.total : what == "T_dx" ? all.stored : all.regret;
      claimed.push_back({"published " + what, result.max(maxima) + kSweepMargin, limit.get<double>()});
    }
    return claimed;
  }
  const auto target = std::find_if(kTargets.begin(), kTargets.end(), [&](const Targets& t) { return t.format == std::string_view(format.name); });
  std::vector<Gate> gates{{"max T / max O", result.ratio(), target->ratio},
                          {"masks other than [x >= x*]", static_cast<double>(all.wrong_mask), 0},
                          {"NaN and infinities not as specified", static_cast<double>(all.wrong_special), 0}};
  if (target->near_ulp) {
    for (std::size_t i = 0; i < all.forward_ulp.size(); ++i) {
      const bool near = i == static_cast<std::size_t>(ForwardRegion::near_minimum);
      gates.push_back({fmt::format("forward, ulp, {}", kForwardRegionNames[i]), all.forward_ulp[i].value, near ? *target->near_ulp : *target->far_ulp});
    }
  }
  if (target->regret) gates.push_back({"R", result.max(all.regret) + kSweepMargin, *target->regret});
  // Of the format's own x; for other x (a fused bias) an f32 result that lies on a tie of the format by its own rounding may go either way.
  if (target->misrounded && result.domain.x_format.precision == format.precision) {
    gates.push_back({"y not correctly rounded", static_cast<double>(all.misrounded), static_cast<double>(*target->misrounded)});
  }
  return gates;
}

void print_maximum(const char* name, const PerBranch& maxima) {
  for (const std::size_t branch : {std::size_t{1}, std::size_t{0}}) {
    const Maximum& m = maxima[branch];
    fmt::print("  {:<6} {:<5} {:<12.6g} at x = {:<16a} y = {:<16a} got {:<+13.9g} want {:+.9g}\n", name, branch ? "right" : "left", m.value, m.x, m.y,
               m.got, m.want);
  }
}

void print_forward(const Segment& all) {
  fmt::print("  forward: {} of {} y not correctly rounded; {} roundings decided by MPFR\n", all.misrounded, all.finite, all.oracle_decisions);
  for (const Mismatch& m : all.examples) fmt::print("    x = {:a}: y = {:a} instead of {:a}\n", m.x, m.got, m.want);
  for (std::size_t i = 0; i < all.forward_ulp.size(); ++i) {
    fmt::print("  forward error {:<13} {:.6g} ulp at x = {:a}\n", kForwardRegionNames[i], all.forward_ulp[i].value, all.forward_ulp[i].x);
  }
}

void print_gradient_ulp(const DomainResult& result, const FloatFormat& format) {
  const Segment& all = result.all;
  for (std::size_t i = 0; i < all.gradient_ulp.size(); ++i) {
    if (all.gradient_ulp[i].value < 0) continue;
    fmt::print("  dx error {:<13} {:.6g} ulp at dy = 1, x = {:a}; at most {:.6g} ulp for any dy", kGradientRegionNames[i], all.gradient_ulp[i].value,
               all.gradient_ulp[i].x, gradient_ulp_for_any_dy(all.gradient_relative[i].value, format));
    const Maximum& found = all.gradient_found[i];
    fmt::print("{}\n", found.value < 0 ? "" : fmt::format(", {:.6g} at dy = {:a}, x = {:a}", found.value, found.got, found.x));
  }
}

void print_weighed(const DomainResult& result, const Subject& subject) {
  for (const auto& line : under_json(subject, result)) {
    fmt::print("  x of {:<16} rms {:<10.3g} bias {:<+11.3g} max {:<9.3g} within [{:.4g}, {:.4g}]; share in the {} worst codes {:.3g}\n",
               line["x"].get<std::string>(), line["rms"].is_number() ? line["rms"].get<double>() : INFINITY,
               line["bias"].is_number() ? line["bias"].get<double>() : INFINITY, line["max"].is_number() ? line["max"].get<double>() : INFINITY,
               line["max_within"][0].get<double>(), line["max_within"][1].get<double>(), line["worst_codes"].get<std::size_t>(),
               line["share_in_worst_codes"].get<double>());
  }
}

void print_result(const DomainResult& result, const Subject& subject) {
  const FloatFormat& format = subject.format;
  const Segment& all = result.all;
  const bool foreign = !subject.origin.is_null();
  fmt::print("\n{}, {} in {}, every x in {}: {} patterns ({} finite, {} with m = 1, {} NaN, {} infinite)\n",
             foreign ? subject.origin["name"].get<std::string>() : std::string(subject.activation->name), subject.code ? "dx" : "y", format.name,
             result.domain.x_format.name, all.patterns, all.finite, all.right, all.nan, all.infinite);
  print_maximum("T", all.total);
  print_maximum("T_dx", all.stored);
  print_maximum("O", all.oracle);
  print_maximum("R", all.regret);
  if (!subject.code) print_maximum("C", all.storage);
  fmt::print("  T / O at most {:.6g}; {} masks other than [x >= x*], {} NaN and infinities not as specified\n", result.ratio(), all.wrong_mask,
             all.wrong_special);
  fmt::print("  rms T over x in [-8, 8): {:.3g}\n", result.rms);
  if (!subject.code) print_gradient_ulp(result, format);
  print_weighed(result, subject);
  for (std::size_t k = 0; k < kForeignForwards.size() && result.max(all.foreign[k]) >= 0; ++k) {
    fmt::print("  T with y off by {:<14} {:.6g}\n", kForeignForwards[k].name, result.max(all.foreign[k]));
  }
  if (result.max(all.erff) >= 0) fmt::print("  T with y by erff           {:.6g}\n", result.max(all.erff));
  if (subject.own_forward) print_forward(all);
  for (const Gate& gate : gates_of(result, subject)) {
    fmt::print("  {} {}: {:.6g} (at most {:.6g})\n", gate.holds() ? "holds   " : "VIOLATED", gate.name, gate.value, gate.limit);
  }
}

/// Parts of earlier shards, all of one subject, which is described in `subject`.
std::vector<DomainPart> read_parts(const std::vector<std::string>& files, Subject& subject) {
  std::vector<DomainPart> all;
  for (const std::string& file : files) {
    SweepParts read = parts_from_json(kernels::read_file(file), file);
    if (subject.identity.empty()) {
      subject = read.subject;
    } else if (read.subject.identity != subject.identity || read.subject.format.name != subject.format.name) {
      throw SpecError(file, "identity", fmt::format("of {} {}, not of {} {} as {}", read.subject.format.name, read.subject.identity, subject.format.name,
                                                    subject.identity, files.front()));
    } else if (to_json(read.subject, {}) != to_json(subject, {})) {
      throw SpecError(file, "subject", fmt::format("describes another sweep than {}", files.front()));
    }
    std::move(read.parts.begin(), read.parts.end(), std::back_inserter(all));
  }
  return all;
}

/// Whether every gate holds; true for a shard, which has none.
bool validate(const Arguments& arguments) {
  if (!arguments.foreign.empty() && (!arguments.fit.empty() || !arguments.merge.empty())) {
    throw SpecError("validate", "--foreign", "cannot be given with --fit or --merge");
  }
  if (arguments.activation != "gelu") throw SpecError("validate", "--activation", "'" + arguments.activation + "': no kernels of this activation (gelu)");
  if (arguments.merge.empty() == arguments.format.empty()) throw SpecError("validate", "input", "give either --format or --merge");
  if (!arguments.merge.empty() && !arguments.shard.empty()) throw SpecError("validate", "--shard", "cannot be given with --merge");

  const Ranks ranks = Ranks::of_job();
  SweepOptions options;
  options.threads = arguments.threads;
  options.ranks = &ranks;
  if (!arguments.shard.empty()) parse_shard(arguments.shard, options);
  Subject subject{{}, kF32, {}, {}, {}, {}};
  std::vector<DomainPart> parts;
  if (!arguments.foreign.empty()) {
    subject = make_subject(parse_foreign(kernels::read_file(arguments.foreign), arguments.foreign), format_of(arguments.format));
  } else if (arguments.merge.empty()) {
    subject = arguments.fit.empty() ? deployed(arguments.format) : listed(arguments.format, arguments.fit);
  } else {
    parts = read_parts(arguments.merge, subject);
  }
  if (!arguments.activations.empty()) {
    if (!arguments.merge.empty()) throw SpecError("validate", "--activations", "cannot be given with --merge: the shards say what they were weighed by");
    const std::string text = kernels::read_file(arguments.activations);
    subject.distributions.push_back(Distribution::parse(text, arguments.activations));
    Fingerprint fingerprint;  // a stored partial sweep weighed by something else is not continued
    fingerprint.add(text.data(), text.size());
    subject.identity += fmt::format("-{:016x}", fingerprint.value());
  }
  const bool whole = options.shards == 1;
  std::string out = arguments.out;
  if (out.empty()) {
    const std::string of = subject.origin.is_null() ? "gelu" : subject.origin["name"].get<std::string>();
    const std::string name = arguments.fit.empty() ? of + "_" + std::string(subject.format.name) : arguments.fit;
    out = fmt::format("out/{}sweeps/{}{}.json", subject.origin.is_null() ? "" : "foreign/", name, whole ? "" : fmt::format("_{}_of_{}", options.shard, options.shards));
  }
  if (const auto folder = std::filesystem::path(out).parent_path(); ranks.rank() == 0 && !folder.empty()) std::filesystem::create_directories(folder);

  const std::vector<Domain> domains = domains_for(subject.format);
  if (arguments.merge.empty()) {
    options.log = out + ".chunks";
    parts = sweep(subject, domains, options);
    if (ranks.rank() != 0) return true;
  }
  bool holds = true;
  nlohmann::ordered_json json;
  if (whole) {
    const std::vector<DomainResult> results = finish(std::move(parts), domains, subject.stored());
    json = report_json(subject, results);
    auto& listed = json["gates"] = nlohmann::ordered_json::array();
    for (const DomainResult& result : results) {
      if (!arguments.json) print_result(result, subject);
      for (const Gate& gate : gates_of(result, subject)) {
        listed.push_back({{"x_format", result.domain.x_format.name}, {"name", gate.name}, {"value", gate.value}, {"limit", gate.limit}, {"holds", gate.holds()}});
        holds = holds && gate.holds();
      }
    }
  } else {
    json = to_json(subject, parts);
  }
  const std::string text = json.dump(1) + "\n";
  kernels::write_file(out, text);
  std::filesystem::remove(options.log);
  fmt::print("{}", arguments.json ? text : fmt::format("written to {}\n", out));
  return holds;
}

}  // namespace

void add_validate(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* const command = app.add_subcommand("validate", "Total error of the kernels by exhaustion over every bit pattern of x");
  command->add_option("--activation", arguments->activation, "Activation: gelu");
  command->add_option("--format", arguments->format, "Format of y: f32, f16, bf16 (x: the same, and every f32)");
  command->add_option("--fit", arguments->fit, "Backward fit of that format, of kernels/fits.h (default: the deployed one)");
  command->add_option("--foreign", arguments->foreign, "Audit these published coefficients (JSON, validation/README.md) in place of our kernels");
  command->add_option("--activations", arguments->activations, "Histogram of x to weigh errors by, beside N(0, sigma^2) (notebooks_data/activations/)");
  command->add_option("--shard", arguments->shard, "Only part i of n, written as i/n, for --merge");
  command->add_option("--merge", arguments->merge, "Join the results of all shards instead of sweeping");
  command->add_option("--out", arguments->out, "Result file; an interrupted sweep continues from the file of this name + .chunks");
  command->add_option("--threads", arguments->threads, "Threads (0: all)")->check(CLI::NonNegativeNumber);
  command->add_flag("--json", arguments->json, "Print the result as JSON");
  command->callback([arguments, &status] {
    if (!validate(*arguments)) status = kernels::kExitViolated;
  });
}

}  // namespace outgrad::validation
