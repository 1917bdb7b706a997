// Arguments, gates and tables of `outgrad validate`.
#include "validation/commands.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/support/bounds.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/lists.h"
#include "kernels/support/options.h"
#include "kernels/support/shard.h"
#include "kernels/support/suggestion.h"
#include "validation/sweep/fingerprint.h"
#include "validation/sweep/foreign.h"
#include "validation/sweep/product_sweep.h"
#include "validation/sweep/quantiser_audit.h"
#include "validation/sweep/shipped.h"
#include "validation/sweep/sweep.h"
#include "validation/sweep/sweep_gate.h"
#include "validation/sweep/sweep_json.h"
#include "validation/sweep/targets.h"

namespace outgrad::validation {

using kernels::SpecError;

namespace {

struct Arguments {
  std::string activation = "gelu";
  std::string format;
  std::string fit;
  std::string x = "all";
  std::string foreign;
  std::string activations;
  std::string header;
  std::string shard;
  std::vector<std::string> merge;
  std::string out;
  int threads = 0;
  kernels::ResultForm form;
};

const FloatFormat& format_of(const std::string& name) {
  for (const FloatFormat* format : {&kF32, &kF16, &kBf16}) {
    if (format->name == name) return *format;
  }
  throw SpecError("validate", "--format", "'" + name + "' is an unknown format (f32, f16, bf16)");
}

/// The members of `list` ("a,b", or "all" for all that are known), in the order of `known`, each once. An
/// unknown one is refused with `what`.
std::vector<std::string> members(const std::string& list, const std::vector<std::string>& known,
                                 const char* option, const char* what) {
  if (list == "all") return known;
  const std::vector<std::string> wanted = kernels::parts_of(list);
  for (const std::string& name : wanted) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      throw SpecError("validate", option,
                      fmt::format("'{}' {} ({}, all){}", name, what, fmt::join(known, ", "),
                                  kernels::did_you_mean(name, known)));
    }
  }
  std::vector<std::string> chosen;
  std::copy_if(known.begin(), known.end(), std::back_inserter(chosen), [&](const std::string& name) {
    return std::find(wanted.begin(), wanted.end(), name) != wanted.end();
  });
  return chosen;
}

bool has(const std::vector<std::string>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// What --activation and --format say.
struct Wanted {
  std::vector<std::string> activations, formats;

  explicit Wanted(const Arguments& arguments) {
    std::vector<std::string> known;
    for (const SweptActivation* activation : swept_activations()) known.emplace_back(activation->name);
    activations = members(arguments.activation, known, "--activation", "is not one that is swept");
    formats = members(arguments.format, {"f32", "f16", "bf16"}, "--format", "is an unknown format");
  }
  bool includes(const SweptActivation& activation, std::string_view format) const {
    return has(activations, activation.name) && has(formats, format);
  }
};

/// The shipped kernels that --activation, --format and --fit select; without --fit, the deployed ones.
std::vector<const Shipped*> chosen(const Arguments& arguments) {
  const Wanted of(arguments);
  std::vector<std::string> fits;
  std::vector<const Shipped*> candidates, result;
  for (const Shipped& one : shipped()) {
    if (!of.includes(*one.activation, one.format)) continue;
    candidates.push_back(&one);
    if (!has(fits, one.fit)) fits.push_back(one.fit);
  }
  const bool all = arguments.fit == "all", stores = arguments.fit == "stores";
  const auto wanted = all || stores ? fits
                                    : members(arguments.fit.empty() ? "all" : arguments.fit, fits, "--fit",
                                              "is no fit of this activation and format");
  std::copy_if(candidates.begin(), candidates.end(), std::back_inserter(result), [&](const Shipped* one) {
    if (arguments.fit.empty()) return one->deployed;
    return all || stores ? one->stores == stores : has(wanted, one->fit);
  });
  if (result.empty()) throw SpecError("validate", "--fit", "no store of this activation and format is swept");
  return result;
}

/// Whether --fit names fits of gated pairs' products, which are swept over pairs of inputs, by themselves.
bool names_products(const Arguments& arguments) {
  return arguments.fit == "products" || arguments.fit.find("_product") != std::string::npos;
}

std::vector<const ProductSubject*> chosen_products(const Arguments& arguments) {
  const Wanted of(arguments);
  std::vector<std::string> fits;
  std::vector<const ProductSubject*> result;
  for (const ProductSubject& one : shipped_products()) {
    if (of.includes(*one.activation, one.format.name)) fits.push_back(one.name);
  }
  const auto wanted = members(arguments.fit == "products" ? "all" : arguments.fit, fits, "--fit",
                              "is no product's fit of this activation and format");
  for (const ProductSubject& one : shipped_products()) {
    if (has(wanted, one.name)) result.push_back(&one);
  }
  if (result.empty())
    throw SpecError("validate", "--fit", "no product of this activation and format has a fit");
  return result;
}

/// What the forward's error may be, in ulp.
double forward_target(const Targets& target, ForwardRegion region, bool gelu) {
  const bool near = region == ForwardRegion::near_minimum;
  if (gelu) return near ? *target.near_ulp : *target.far_ulp;
  return near ? kOtherNearUlp : region == ForwardRegion::left_tail ? kOtherTailUlp : kOtherUlp;
}

/// What a sweep decides: for deployed kernels the limits of validation/sweep/targets.h, and always the claims
/// of the header. A violation leads to exit status 1.
std::vector<SweepGate> gates_of(const DomainResult& result, const Subject& subject) {
  const FloatFormat& format = subject.format;
  const Segment& all = result.all;
  if (!subject.origin.is_null()) {  // our targets do not apply to others, only what they publish
    std::vector<SweepGate> claimed;
    if (!subject.origin.contains("claims")) return claimed;
    for (const auto& [what, limit] : subject.origin["claims"].items()) {
      const PerBranch& maxima = what == "T" ? all.total : what == "T_dx" ? all.stored : all.regret;
      claimed.push_back({"published " + what, result.max(maxima) + kSweepMargin, limit.get<double>()});
    }
    return claimed;
  }
  std::vector<SweepGate> gates;
  if (!subject.code) gates.push_back({"masks other than [x >= x*]", static_cast<double>(all.wrong_mask), 0});
  gates.push_back({"NaN and infinities not as specified", static_cast<double>(all.wrong_special), 0});
  for (const Claim& claim : subject.claims) {
    // The header makes no claim for a y that is not correctly rounded.
    if (claim.what == Claim::kTotal && all.misrounded == 0)
      gates.push_back({"T within the header's kT", result.max(all.total) + kSweepMargin, claim.limit});
    if (claim.what == Claim::kOracle)
      gates.push_back({"O within the header's kO", result.max(all.oracle) + kSweepMargin, claim.limit});
    if (claim.what == Claim::kBias)
      gates.push_back({"bias within the header's kBias", result.max(all.bias) + kDitherMargin + kSweepMargin,
                       claim.limit});
    if (claim.what == Claim::kEvaluation) {
      gates.push_back({"D within the header's A + B + K",
                       std::max(result.max(all.deviation), 0.0) + kSweepMargin, claim.limit});
    }
  }
  if (!subject.deployed) return gates;
  const auto target = std::find_if(kTargets.begin(), kTargets.end(), [&](const Targets& t) {
    return t.format == std::string_view(format.name);
  });
  if (target->near_ulp && subject.own_forward) {
    for (std::size_t i = 0; i < all.forward_ulp.size(); ++i) {
      if (all.forward_ulp[i].value < 0) continue;  // f rises: nothing is near a minimum
      gates.push_back({fmt::format("forward, ulp, {}", kForwardRegionNames[i]), all.forward_ulp[i].value,
                       forward_target(*target, static_cast<ForwardRegion>(i), subject.activation == &kGelu)});
    }
  }
  // For a rising f T and O are close to half the step of y everywhere.
  if (!subject.activation->masked()) return gates;
  gates.insert(gates.begin(),
               {"max T / max O", result.ratio(), subject.activation == &kGelu ? target->ratio : kOtherRatio});
  // A fit's regret is about all real x, and the f32 x come near to all of these. Among the x of a 16-bit
  // format, a y has only one or two, so the middle of the range differs. GELU's fits meet the target there as
  // well.
  const bool dense = result.domain.x_format.precision == kF32.precision || subject.own_forward;
  if (target->regret && dense) gates.push_back({"R", result.max(all.regret) + kSweepMargin, *target->regret});
  // Applies only to the format's own x. For other x (a fused bias), an f32 result that its own rounding puts
  // on a tie of the format may go either way.
  if (target->misrounded && result.domain.x_format.precision == format.precision) {
    gates.push_back({"y not correctly rounded", static_cast<double>(all.misrounded),
                     static_cast<double>(*target->misrounded)});
  }
  return gates;
}

void print_maximum(const char* name, const PerBranch& maxima) {
  for (const std::size_t branch : {std::size_t{1}, std::size_t{0}}) {
    const Maximum& m = maxima[branch];
    if (m.value < 0) continue;  // f rises, so there is no left branch
    fmt::print("  {:<6} {:<5} {:<12.6g} at x = {:<16a} y = {:<16a} got {:<+13.9g} want {:+.9g}\n", name,
               branch ? "right" : "left", m.value, m.x, m.y, m.got, m.want);
  }
}

void print_forward(const Segment& all) {
  fmt::print("  forward: {} of {} y not correctly rounded; {} roundings decided by MPFR\n", all.misrounded,
             all.finite, all.oracle_decisions);
  for (const Mismatch& m : all.examples)
    fmt::print("    x = {:a}: y = {:a} instead of {:a}\n", m.x, m.got, m.want);
  for (std::size_t i = 0; i < all.forward_ulp.size(); ++i) {
    fmt::print("  forward error {:<13} {:.6g} ulp at x = {:a}\n", kForwardRegionNames[i],
               all.forward_ulp[i].value, all.forward_ulp[i].x);
  }
}

void print_gradient_ulp(const DomainResult& result, const FloatFormat& format) {
  const Segment& all = result.all;
  for (std::size_t i = 0; i < all.gradient_ulp.size(); ++i) {
    if (all.gradient_ulp[i].value < 0) continue;
    fmt::print("  dx error {:<13} {:.6g} ulp at dy = 1, x = {:a}; at most {:.6g} ulp for any dy",
               kGradientRegionNames[i], all.gradient_ulp[i].value, all.gradient_ulp[i].x,
               kernels::digits_up(gradient_ulp_for_any_dy(all.gradient_relative[i].value, format), 6));
    const Maximum& found = all.gradient_found[i];
    fmt::print("{}\n", found.value < 0
                           ? ""
                           : fmt::format(", {:.6g} at dy = {:a}, x = {:a}", found.value, found.got, found.x));
  }
}

void print_weighed(const DomainResult& result, const Subject& subject) {
  for (const auto& line : under_json(subject, result)) {
    fmt::print("  x of {:<16} rms {:<10.3g} bias {:<+11.3g} max {:<9.3g} within [{:.4g}, {:.4g}]{}\n",
               line["x"].get<std::string>(), line["rms"].is_number() ? line["rms"].get<double>() : INFINITY,
               line["bias"].is_number() ? line["bias"].get<double>() : INFINITY,
               line["max"].is_number() ? line["max"].get<double>() : INFINITY,
               line["max_within"][0].get<double>(), line["max_within"][1].get<double>(),
               line["worst_codes"].is_null() ? ""
                                             : fmt::format("; share in the {} worst codes {:.3g}",
                                                           line["worst_codes"].get<std::size_t>(),
                                                           line["share_in_worst_codes"].get<double>()));
  }
}

void print_result(const DomainResult& result, const Subject& subject) {
  const FloatFormat& format = subject.format;
  const Segment& all = result.all;
  const bool foreign = !subject.origin.is_null();
  const std::string of(subject.activation->name);
  const std::string name = foreign        ? subject.origin["name"].get<std::string>()
                           : subject.code ? of + ", " + subject.name
                                          : of;
  fmt::print("\n{}, {} in {}, every x in {}: {} patterns ({} finite, {} with m = 1, {} NaN, {} infinite)\n",
             name, subject.code ? "dx" : "y", format.name, result.domain.x_format.name, all.patterns,
             all.finite, all.right, all.nan, all.infinite);
  print_maximum("T", all.total);
  print_maximum("T_dx", all.stored);
  print_maximum("O", all.oracle);
  print_maximum("R", all.regret);
  if (!subject.code) print_maximum("C", all.storage);
  if (all.bias[1].value >= 0) {
    print_maximum("bias", all.bias);
  } else {
    fmt::print(
        "  T / O at most {:.6g}; {} masks other than [x >= x*], {} NaN and infinities not as specified\n",
        kernels::digits_up(result.ratio(), 6), all.wrong_mask, all.wrong_special);
  }
  fmt::print("  rms T over x in [-8, 8): {:.3g}\n", result.rms);
  if (!subject.code) print_gradient_ulp(result, format);
  print_weighed(result, subject);
  for (std::size_t k = 0; k < kForeignForwards.size() && result.max(all.foreign[k]) >= 0; ++k) {
    fmt::print("  T with y off by {:<14} {:.6g}\n", kForeignForwards[k].name, result.max(all.foreign[k]));
  }
  if (result.max(all.erff) >= 0) fmt::print("  T with y by erff           {:.6g}\n", result.max(all.erff));
  if (result.max(all.from_x) >= 0)
    fmt::print("  PyTorch's formula from x   {:.6g}\n", result.max(all.from_x));
  if (subject.own_forward) print_forward(all);
  for (const SweepGate& gate : gates_of(result, subject)) fmt::print("{}", gate.text());
}

/// Parts of earlier shards, which must all be of one subject; this is described in `subject`.
std::vector<DomainPart> read_parts(const std::vector<std::string>& files, Subject& subject) {
  std::vector<DomainPart> all;
  for (const std::string& file : files) {
    SweepParts read = parts_from_json(kernels::read_file(file), file);
    if (subject.identity.empty()) {
      subject = read.subject;
    } else if (read.subject.identity != subject.identity || read.subject.format.name != subject.format.name ||
               read.subject.swept != subject.swept) {
      throw SpecError(
          file, "identity",
          fmt::format("of {} {}, not of {} {} as {}", read.subject.format.name, read.subject.identity,
                      subject.format.name, subject.identity, files.front()));
    } else if (to_json(read.subject, {}) != to_json(subject, {})) {
      throw SpecError(file, "subject", fmt::format("describes another sweep than {}", files.front()));
    }
    std::move(read.parts.begin(), read.parts.end(), std::back_inserter(all));
  }
  return all;
}

/// One line of a table of many sweeps.
void print_row(const DomainResult& result, const Subject& subject, double seconds) {
  const Segment& all = result.all;
  std::vector<std::string> violated;
  for (const SweepGate& gate : gates_of(result, subject)) {
    if (!gate.holds())
      violated.push_back(fmt::format("{} {:.6g} > {:.6g}", gate.name, gate.value, gate.limit));
  }
  const std::string name =
      subject.code ? fmt::format("{} {}", subject.activation->name, subject.name) : subject.name;
  fmt::print("{:<30} {:<4} {:>10}", name, result.domain.x_format.name, all.patterns);
  for (const PerBranch* maxima : {&all.total, &all.stored, &all.oracle, &all.regret, &all.storage}) {
    fmt::print(" {:>10}", result.max(*maxima) < 0 ? "-" : fmt::format("{:.4g}", result.max(*maxima)));
  }
  const std::string ratio = result.max(all.oracle) < 0 ? "-" : fmt::format("{:.4f}", result.ratio());
  fmt::print(" {:>7} {:>6.1f}  {}\n", ratio, seconds,
             violated.empty() ? "holds" : fmt::format("VIOLATED {}", fmt::join(violated, ", ")));
  std::fflush(stdout);
}

void print_row_names() {
  fmt::print("{:<30} {:<4} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>7} {:>6}\n", "kernels", "x",
             "patterns", "T", "T_dx", "O", "R", "C", "T / O", "s");
}

/// Where a subject's result goes without --out: to the folders that the report reads, unless some of the x
/// are left out.
std::string default_folder(const Subject& subject) {
  if (!subject.origin.is_null()) return "out/foreign/sweeps";
  return subject.swept == SweptX::all || !subject.stores.empty()
             ? "out/sweeps"
             : std::string("out/sweeps/") + to_string(subject.swept);
}

std::string file_name(const Subject& subject, const std::string& fit, const SweepOptions& options) {
  const std::string by_fit = subject.origin.is_null() ? fit
                                                      : subject.origin["name"].get<std::string>() + "_" +
                                                            std::string(subject.format.name);
  const bool is_f32 = subject.format.precision == kF32.precision;
  return by_fit +
         (subject.swept == SweptX::all || is_f32 || !subject.stores.empty()
              ? ""
              : std::string("_x_") + to_string(subject.swept)) +
         (options.shards == 1 ? "" : fmt::format("_{}_of_{}", options.shard, options.shards)) + ".json";
}

/// What all subjects of a run share.
struct Session {
  const Arguments& arguments;
  SweepOptions options;
  bool merges = false, many = false;
  bool quiet() const { return arguments.form || options.shards > 1; }  // no text is wanted
  bool speaks() const { return options.ranks->rank() == 0; }
};

/// The files that the command reads, none of which it may write.
std::vector<std::string> inputs_of(const Arguments& arguments) {
  std::vector<std::string> files = arguments.merge;
  files.insert(files.end(), {arguments.foreign, arguments.activations});
  return files;
}

/// Sweeps `subject` (or uses `parts` of earlier shards), prints, and writes `out`. Returns the result; its
/// `gates` are those of the whole subject, and a shard has none.
nlohmann::ordered_json validate_one(const Subject& subject, std::vector<DomainPart> parts,
                                    const std::string& out, const Session& run) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Domain> domains = subject.domains();
  SweepOptions options = run.options;
  if (run.speaks()) kernels::require_writable(out, inputs_of(run.arguments));
  if (!run.merges) {
    options.log = out + ".chunks";
    parts = sweep(subject, domains, options);
    if (!run.speaks()) return {};
  }
  nlohmann::ordered_json json;
  if (options.shards == 1) {
    const std::vector<DomainResult> results = finish(std::move(parts), domains, subject.stored());
    json = report_json(subject, results);
    auto& listed = json["gates"] = nlohmann::ordered_json::array();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    for (const DomainResult& result : results) {
      const Subject& of = subject.of(result.domain);
      if (!run.quiet()) run.many ? print_row(result, of, seconds) : print_result(result, of);
      for (const SweepGate& gate : gates_of(result, of)) {
        auto& each = listed.emplace_back(nlohmann::ordered_json{{"x_format", result.domain.x_format.name}});
        each.update(gate_json(gate));
        if (!subject.stores.empty()) each["store"] = of.name;
      }
    }
  } else {
    json = to_json(subject, parts);
  }
  kernels::write_file(out, json.dump(1) + "\n");
  std::filesystem::remove(options.log);
  return json;
}

/// Whether all of its gates hold.
bool holds(const nlohmann::ordered_json& json) {
  const auto gates = json.find("gates");
  return gates == json.end() ||
         std::all_of(gates->begin(), gates->end(), [](const auto& gate) { return gate["holds"] == true; });
}

void print_quantiser(const nlohmann::ordered_json& json) {
  const auto real = [](const nlohmann::ordered_json& value) { return value.get<double>(); };
  const auto text = [](const nlohmann::ordered_json& value) { return value.get<std::string>(); };
  fmt::print("\n{} of {}: {} in {}, {:.6g} bits an element\n", text(json["foreign"]["name"]),
             text(json["activation"]), text(json["foreign"]["stored"]), text(json["format"]),
             real(json["bits_per_element"]));
  for (const auto& range : json["ranges"]) {
    fmt::print(" min {:.9g}, max {:.9g}, x from {:.9g} to {:.9g}, step {:.6g}\n", real(range["min"]),
               real(range["max"]), real(range["x"][0]), real(range["x"][1]), real(range["step"]));
    for (const auto& [name, key] : {std::pair{"T", "T"}, {"wraps", "T_wrapped"}}) {
      const auto& m = range[key];
      if (m.is_null()) continue;
      fmt::print(
          "  {:<6} {:<12.6g} at most {:<12.6g} at x = {:<16} kept as {:<16} got {:<+13.9g} want {:+.9g}\n",
          name, real(m["value"]), real(m["bound"]), text(m["x"]), text(m["kept"]), real(m["got"]),
          real(m["want"]));
    }
    fmt::print("  {:<6} {:.6g}\n", "O", real(range["O"]));
    fmt::print("  {:<6} {:<+12.6g} at most {:<12.6g} at {:.9g}\n", "bias", real(range["bias"]["value"]),
               real(range["bias"]["bound"]), real(range["bias"]["at"]));
    for (const auto& u : range["under"]) {
      if (!u["rms"].is_null())
        fmt::print("  x of {:<16} rms {:<10.4g} over a share of {:.6g}\n", text(u["x"]), real(u["rms"]),
                   real(u["mass"]));
    }
    fmt::print("  the maximum wraps with probability {:.6g}\n", real(range["maximum_wraps"]));
  }
  for (const auto& group : json["groups"]) {
    fmt::print(" groups of {}, each with its own range: rms {:.4g} (quadrature)\n", text(group["x"]),
               real(group["rms"]));
  }
  for (const auto& w : json["maximum_wraps"]) {
    if (w["wrapping"] == 0) continue;
    fmt::print(
        " max - min in [{:g}, {:g}): the maximum can wrap for {} of {} numbers; probability {:.6g} in the "
        "mean, {:.6g} at most, at {}\n",
        real(w["c_from"]), real(w["c_below"]), w["wrapping"].get<std::int64_t>(),
        w["numbers"].get<std::int64_t>(), real(w["mean"]), real(w["greatest"]), text(w["at"]));
  }
  if (const auto& running = json["running"]; !running.is_null()) {
    fmt::print(" a running range, x of {}: something wraps in {:.1f}% of {} steps (simulated)\n",
               text(running["x"]), 100 * real(running["share_of_steps"]),
               running["simulated_steps"].get<std::int64_t>());
  }
}

void refuse(bool wrong, const char* option, const char* why) {
  if (wrong) throw SpecError("validate", option, why);
}

/// Audits a quantiser, prints, and writes the result. Returns whether the published T holds, if there is one.
bool validate_quantiser(const ForeignFunction& function, const Arguments& arguments) {
  refuse(!arguments.shard.empty(), "--shard", "cannot be given with a quantiser");
  refuse(arguments.x != "all", "--x", "cannot be given with a quantiser");
  std::vector<Distribution> distributions = usual_distributions();
  if (!arguments.activations.empty())
    distributions.push_back(
        Distribution::parse(kernels::read_file(arguments.activations), arguments.activations));
  const std::string out = !arguments.out.empty()
                              ? arguments.out
                              : "out/foreign/sweeps/" + function.name + "_" + arguments.format + ".json";
  kernels::require_writable(out, inputs_of(arguments));
  nlohmann::ordered_json json =
      audit_quantiser(function, format_of(arguments.format), distributions, arguments.foreign);
  auto& listed = json["gates"] = nlohmann::ordered_json::array();
  std::string gates;
  for (const auto& [what, limit] : function.claims) {
    double most = 0;
    for (const auto& range : json["ranges"]) {
      for (const char* key : {"T", "T_wrapped"}) {
        if (!range[key].is_null()) most = std::max(most, range[key]["bound"].get<double>());
      }
    }
    const SweepGate gate{"published " + what, most, limit};
    listed.push_back(gate_json(gate));
    gates += gate.text();
  }
  kernels::write_file(out, json.dump(1) + "\n");
  if (arguments.form) {
    kernels::print_result(arguments.form, json, "ranges");
    return holds(json);
  }
  print_quantiser(json);
  fmt::print("{}written to {}\n", gates, out);
  return holds(json);
}

bool validate_products(const Arguments& arguments) {
  constexpr const char* kWhy = "cannot be given with a product's fit";
  refuse(!arguments.shard.empty(), "--shard", kWhy);
  refuse(!arguments.activations.empty(), "--activations", kWhy);
  refuse(arguments.x != "all", "--x", kWhy);
  return validate_products(chosen_products(arguments), arguments.out, arguments.form);
}

void check_arguments(const Arguments& arguments) {
  const bool merges = !arguments.merge.empty();
  refuse(!arguments.foreign.empty() && (!arguments.fit.empty() || merges), "--foreign",
         "cannot be given with --fit or --merge");
  refuse(merges && !arguments.format.empty(), "--merge", "cannot be given with --format");
  refuse(!merges && arguments.format.empty(), "--format",
         "is missing: f32, f16, bf16 or all; or give --header or --merge");
  refuse(merges && !arguments.shard.empty(), "--shard", "cannot be given with --merge");
  refuse(!arguments.shard.empty() && arguments.form.csv, "--shard",
         "is not printed as CSV: --merge joins shards, and prints the result");
  refuse(merges && !arguments.activations.empty(), "--activations",
         "cannot be given with --merge: the shards say what they were weighed by");
}

struct Swept {
  Subject subject;
  std::string fit;  // its name
};

/// The subjects that are merged, audited or swept, and the parts of those that are merged.
std::vector<Swept> subjects_of(const Arguments& arguments, const ForeignFunction* foreign,
                               std::vector<DomainPart>& parts) {
  std::vector<Swept> subjects;
  if (foreign) {
    subjects.push_back({make_subject(*foreign, format_of(arguments.format)), ""});
  } else if (!arguments.merge.empty()) {
    Subject subject{{}, kF32};
    parts = read_parts(arguments.merge, subject);
    const std::string fit = subject.name.substr(0, subject.name.find('+'));
    subjects.push_back({std::move(subject), fit});
  } else {
    for (const Shipped* one : chosen(arguments)) subjects.push_back({one->make(), one->name});
  }
  return subjects;
}

/// Confines subjects to the x that are asked for.
void confine(std::vector<Swept>& subjects, SweptX swept) {
  for (auto& [subject, name] : subjects) {
    if (!subject.stores.empty() && swept == SweptX::f32 && subject.format.bits < kF32.bits) {
      throw SpecError(
          "validate", "--x",
          fmt::format("the kernels of {} read x in {} alone; codes of every f32 x are those of --format f32",
                      name, subject.format.name));
    }
    if (!subject.stores.empty()) continue;
    subject.swept = swept;
    // With both domains nothing is added to the identity, so that older stored sweeps can be continued.
    if (swept != SweptX::all) subject.identity += std::string("-") + to_string(swept);
  }
}

/// Weighs the errors by the histogram of a file, too.
void weigh_by(const std::string& file, std::vector<Swept>& subjects) {
  const std::string text = kernels::read_file(file);
  const Distribution histogram = Distribution::parse(text, file);
  Fingerprint fingerprint;  // a stored partial sweep with other weights is not continued
  fingerprint.add(text.data(), text.size());
  for (auto& [subject, name] : subjects) {
    subject.distributions.push_back(histogram);
    for (Subject& store : subject.stores) store.distributions.push_back(histogram);
    subject.identity += fmt::format("-{:016x}", fingerprint.value());
  }
}

std::string out_of(const Swept& swept, const Session& run) {
  const auto& [subject, fit] = swept;
  const std::string& out = run.arguments.out;
  if (!run.many && !out.empty()) return out;
  // The deployed kernels of GELU get the name that the chain and the report look for.
  const bool by_format =
      run.arguments.fit.empty() && subject.activation == &kGelu && (!run.merges || subject.deployed);
  const std::string name =
      file_name(subject, by_format ? "gelu_" + std::string(subject.format.name) : fit, run.options);
  return (std::filesystem::path(out.empty() ? default_folder(subject) : out) / name).string();
}

/// Whether every gate of every subject holds.
bool validate(const Arguments& arguments) {
  check_arguments(arguments);
  const SweptX swept = swept_named(arguments.x, "validate", "--x");
  const Ranks ranks = Ranks::of_job();
  Session run{arguments, {}, !arguments.merge.empty()};
  run.options.threads = ranks.threads(arguments.threads);
  omp_set_num_threads(run.options.threads);  // also for what is built before the sweep
  run.options.ranks = &ranks;
  if (!arguments.shard.empty()) {
    const kernels::Shard shard = kernels::read_shard(arguments.shard, "validate");
    run.options.shard = shard.index, run.options.shards = shard.count;
  }
  std::optional<ForeignFunction> foreign;
  if (!arguments.foreign.empty()) {
    foreign = parse_foreign(kernels::read_file(arguments.foreign), arguments.foreign);
    if (foreign->quantiser) return !run.speaks() || validate_quantiser(*foreign, arguments);
  }
  if (names_products(arguments)) return !run.speaks() || validate_products(arguments);
  std::vector<DomainPart> parts;
  std::vector<Swept> subjects = subjects_of(arguments, foreign ? &*foreign : nullptr, parts);
  if (!run.merges) confine(subjects, swept);
  if (!arguments.activations.empty()) weigh_by(arguments.activations, subjects);
  run.many = subjects.size() > 1;
  if (run.many && !run.quiet() && run.speaks()) print_row_names();
  bool all_hold = true;
  std::string out;
  auto list = nlohmann::ordered_json::array();
  for (const Swept& each : subjects) {
    out = out_of(each, run);
    nlohmann::ordered_json json = validate_one(each.subject, std::move(parts), out, run);
    all_hold = holds(json) && all_hold;
    if (arguments.form) list.push_back(std::move(json));
  }
  if (!run.speaks()) return true;
  if (arguments.form.csv)
    kernels::print_result(arguments.form, list, ".domains");
  else if (arguments.form.json)
    kernels::print_result(arguments.form, run.many ? list : list.front(), "");
  else
    fmt::print("written to {}\n", run.many ? std::filesystem::path(out).parent_path().string() : out);
  return all_hold;
}

}  // namespace

void add_validate(CLI::App& app, int& status, decltype(validate_header)* sweep_header) {
  auto arguments = std::make_shared<Arguments>();
  std::string names;
  for (const SweptActivation* activation : swept_activations())
    names += (names.empty() ? "" : ", ") + std::string(activation->name);
  CLI::App* const command =
      app.add_subcommand("validate", "Total error of the kernels by exhaustion over every bit pattern of x");
  command->add_option("--activation", arguments->activation,
                      "Activations, a list or all: " + names + " (default: gelu)");
  command->add_option("--format", arguments->format, "Formats of y, a list or all: f32, f16, bf16");
  command->add_option(
      "--fit", arguments->fit,
      "Backward fits by the name of their header, a list, or all (default: the deployed "
      "ones); stores: all codes, y with its branch, and y in 8 or 4 bits; products: those of a "
      "gated pair's product, over all pairs of inputs");
  command->add_option("--x", arguments->x,
                      "Which x: own (those of the format of y), f32 (every f32), all (both; default)");
  command->add_option(
      "--foreign", arguments->foreign,
      "Audit these published coefficients (JSON, validation/README.md) in place of our kernels");
  command->add_option(
      "--activations", arguments->activations,
      "Histogram of x to weigh errors by, beside N(0, sigma^2) (notebooks_data/activations/)");
  command->add_option("--shard", arguments->shard,
                      "Only part i of n, from 1 on, written as i/n, for --merge");
  command->add_option("--merge", arguments->merge, "Join the results of all shards instead of sweeping");
  command->add_option("--out", arguments->out,
                      "Result file, or the folder of many; an interrupted sweep continues from the file of "
                      "this name + .chunks");
  command->add_option("--threads", arguments->threads, "Threads (0: all)")->check(kernels::in_range(0, 1024));
  kernels::add_result_form(*command, arguments->form, "the result");
  // The file of coefficients, and the shards, say themselves what they are of.
  command->get_option("--foreign")->excludes("--activation");
  for (const char* other : {"--activation", "--fit", "--x"}) command->get_option("--merge")->excludes(other);
  if (sweep_header) {
    CLI::Option* const header = command->add_option(
        "--header", arguments->header,
        "A header of your own in place of our kernels: every x of its format, f16 or bf16");
    for (const char* other : {"--activation", "--format", "--fit", "--x", "--foreign", "--shard", "--merge"})
      header->excludes(other);
  }
  command->callback([arguments, sweep_header, &status] {
    const Arguments& given = *arguments;
    bool holds = true;
    if (given.header.empty()) {
      holds = validate(given);
    } else {
      omp_set_num_threads(kernels::thread_count(given.threads));
      holds = sweep_header(given.header, given.activations, given.out, given.form);
    }
    if (!holds) status = kernels::kExitViolated;
  });
}

}  // namespace outgrad::validation
