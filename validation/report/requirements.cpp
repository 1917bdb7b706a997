// One list of rows, in the order of targets.h.
#include "validation/report/requirements.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "validation/sweep/targets.h"

namespace outgrad::validation {
namespace {

constexpr const char* kCertified = "certified";
constexpr const char* kExhaustive = "exhaustive";
constexpr const char* kCounted = "counted";

/// The sum of two bounds, rounded up.
double sum_up(double a, double b) { return std::nextafter(a + b, std::numeric_limits<double>::infinity()); }

/// The error of the header's fit and its evaluation.
double fit_and_evaluation(const BackwardHeader& header) {
  return header.bound_ab > 0 ? header.bound_ab : sum_up(header.bound_a, header.bound_b);
}

void add_format(const Results& results, const Targets& targets, std::vector<Requirement>& rows) {
  using Kind = Requirement::Kind;
  const std::string format = targets.format;
  const SweepResult* const sweep = results.sweep_of(format);
  const BackwardHeader* const header = results.backward_named("gelu_" + format);
  const auto of_header = [&](const char* quantity, Kind kind, double limit, auto value) {
    std::optional<double> found;
    if (header) found = std::invoke(value, *header);
    rows.push_back({format, quantity, kind, limit, found, kind == Kind::count ? kCounted : kCertified,
                    header ? check_command(header->file) : "./outgrad emit",
                    header ? results.origin(header->file) : ""});
  };
  const auto of_domain = [&](const std::string& x_format, const std::string& quantity, Kind kind,
                             std::optional<double> limit, auto value) {
    std::optional<double> found;
    for (const SweptDomain& domain : sweep ? sweep->domains : std::vector<SweptDomain>{}) {
      if (domain.x_format == x_format) found = static_cast<double>(std::invoke(value, domain));
    }
    rows.push_back({format, quantity, kind, limit, found, kind == Kind::count ? kCounted : kExhaustive,
                    validate_command(format), found ? results.origin(sweep->file) : ""});
  };
  std::vector<std::string> domains{format};
  if (format != "f32") domains.push_back("f32");  // a fused bias, or an accumulator wider than y
  for (const std::string& x : domains)
    of_domain(x, "T, the whole gradient, all " + x + " x", Kind::number, {}, &SweptDomain::total);
  // The x of any format are among those of f32, and PyTorch computes in f32 before it rounds dx.
  const SweepResult* const wide = results.sweep_of("f32");
  if (const std::optional<double> from_x = wide ? wide->domains.back().from_x : std::nullopt) {
    const std::string origin = results.origin(wide->file), command = validate_command("f32");
    rows.push_back({format,
                    "the same of PyTorch, which keeps x",
                    Kind::number,
                    {},
                    from_x,
                    kExhaustive,
                    command,
                    origin});
  }
  of_header("A, fit", Kind::error, targets.a, &BackwardHeader::bound_a);
  of_header("A + B, fit and evaluation", Kind::error, targets.a_plus_b, fit_and_evaluation);
  for (const std::string& x : domains) {
    of_domain(x, "max T / max O, all " + x + " x", Kind::ratio, targets.ratio, &SweptDomain::ratio);
    of_domain(x, "R, all " + x + " x", Kind::error, targets.regret, &SweptDomain::regret);
  }
  if (targets.near_ulp) {
    of_domain(format, "forward y, |x - x*| <= 0.1", Kind::ulp, targets.near_ulp, &SweptDomain::near_ulp);
    of_domain(format, "forward y, elsewhere", Kind::ulp, targets.far_ulp, &SweptDomain::far_ulp);
  }
  if (targets.misrounded) {
    const std::string quantity = "forward y not correctly rounded, all ";
    of_domain(format, quantity + format + " x", Kind::count, *targets.misrounded, &SweptDomain::misrounded);
    // For any other x, an f32 result that its own rounding puts on a tie of the format may go either way. No
    // fp32 forward can avoid that.
    of_domain("f32", quantity + "f32 x", Kind::count, {}, &SweptDomain::misrounded);
  }
  const auto wrong = [](const SweptDomain& domain) { return domain.wrong_mask + domain.wrong_special; };
  for (const std::string& x : domains)
    of_domain(x, "wrong masks, NaN, infinities, all " + x + " x", Kind::count, 0.0, wrong);
  of_header("operations per element, backward", Kind::count, targets.operations, &BackwardHeader::operations);
}

/// The runs that these files are of, each named once.
template <class Files>
std::string origin_of(const Results& results, const Files& files) {
  std::set<std::string> origins;
  for (const auto& one : files) origins.insert(results.origin(one.file));
  return fmt::format("{}", fmt::join(origins, "; "));
}

/// What `validate` held each sweep to: its header's claims and, of deployed kernels, what must be reached.
void add_sweeps(const Results& results, std::vector<Requirement>& rows) {
  std::size_t limits = 0, broken = 0;
  for (const SweepResult& sweep : results.sweeps) {
    limits += sweep.gates.size();
    broken += std::ranges::count_if(sweep.gates, [](const SweepGate& gate) { return !gate.holds(); });
  }
  rows.push_back({"sweeps",
                  limits > 0 ? fmt::format("limits broken, of {} in {} sweeps", limits, results.sweeps.size())
                             : "limits broken",
                  Requirement::Kind::count, 0.0, limits > 0 ? std::optional<double>(broken) : std::nullopt,
                  kCounted, "./outgrad validate --activation all --format all --fit all",
                  origin_of(results, results.sweeps)});
}

/// A search that was too short proves nothing, unless it broke a bound.
void add_norms(const Results& results, std::vector<Requirement>& rows) {
  const AttackFile* attack = nullptr;
  for (const AttackFile& one : results.attacks) {
    const bool tells = one.evaluations >= kAttackTargets.evaluations || one.violations > 0;
    if (tells && (!attack || one.violations > attack->violations)) attack = &one;
  }
  using Kind = Requirement::Kind;
  const auto add = [&](const char* quantity, Kind kind, double limit, double value) {
    rows.push_back({"norms", quantity, kind, limit, attack ? std::optional(value) : std::nullopt, "searched",
                    kAttackCommand, attack ? results.origin(attack->file) : ""});
  };
  add("violated bounds of dx, dgamma, dbeta", Kind::count, kAttackTargets.violations,
      attack ? attack->violations : 0);
  add("bound / largest error found, median", Kind::ratio, kAttackTargets.tightness,
      attack ? attack->median_tightness : 0);
}

/// What was found of codes, and of y that carries its branch, over what their headers prove; and of y in 8 or
/// 4 bits, whose x are all swept, but at some scales and in some blocks alone.
void add_stores(const Results& results, std::vector<Requirement>& rows) {
  struct Found {
    std::int64_t stores = 0;
    double ratio = 0;

    // Written in this form so that a NaN stays a NaN, which no requirement is met by.
    void see(double other) {
      if (!(other <= ratio)) ratio = other;
    }
  } whole, scaled;
  std::int64_t special = 0;
  for (const StoreSweep& sweep : results.store_sweeps) {
    Found& found = sweep.fit.find("_fp8") != std::string::npos ? scaled : whole;
    for (const SweptStore& store : sweep.stores) {
      ++found.stores, special += store.wrong_special;
      found.see(store.total / store.proven);
      if (store.bias) found.see(*store.bias / *store.proven_bias);
    }
  }
  const auto add = [&](const std::string& quantity, Requirement::Kind kind, double limit, double value,
                       const char* how, std::int64_t stores) {
    rows.push_back({"stores", quantity, kind, limit, stores > 0 ? std::optional(value) : std::nullopt, how,
                    kStoreCommand, origin_of(results, results.store_sweeps)});
  };
  const auto of = [](const char* quantity, std::int64_t stores, const char* which) {
    return stores > 0 ? fmt::format("{}, {} {}", quantity, stores, which)
                      : fmt::format("{}, {}", quantity, which);
  };
  add(of("T, bias / proven", whole.stores, "stores"), Requirement::Kind::ratio, 1, whole.ratio, kExhaustive,
      whole.stores);
  add(of("T / proven", scaled.stores, "at scales"), Requirement::Kind::ratio, 1, scaled.ratio, "searched",
      scaled.stores);
  add("wrong NaN, infinities", Requirement::Kind::count, 0, static_cast<double>(special), kExhaustive,
      whole.stores + scaled.stores);
}

/// The result of the gate.
void add_certificates(const Results& results, std::vector<Requirement>& rows) {
  const auto add = [&](const std::string& quantity, std::optional<double> value) {
    rows.push_back({"certificates", quantity, Requirement::Kind::count, 0.0, value, "searched",
                    kCertificateAttackCommand,
                    results.certificates ? results.origin(results.certificates->file) : ""});
  };
  if (!results.certificates) {
    for (const char* quantity : {"false headers accepted", "hangs, internal errors, false refutations"})
      add(quantity, {});
    return;
  }
  const CertificateAttack& attack = *results.certificates;
  if (attack.mutants > 0)
    add(fmt::format("false headers accepted, of {} mutants of {} headers", attack.mutants, attack.headers),
        attack.survived);
  else
    add("false headers accepted", {});
  if (attack.specifications > 0)
    add(fmt::format("false headers emitted, of {} random specifications", attack.specifications),
        attack.false_claims);
  add("hangs, internal errors, false refutations", attack.broken);
}

/// What Coq was asked.
void add_proofs(const Results& results, std::vector<Requirement>& rows) {
  int files = 0, open = 0;
  for (const CoqProof& proof : results.proofs) {
    for (const CoqBound& bound : proof.bounds) files += bound.files, open += bound.files - bound.proven;
    if (proof.unlisted > 0 || !proof.holds) ++open;
  }
  rows.push_back({"certificates",
                  files > 0 ? fmt::format("refused by Coq, of {} files", files) : "refused by Coq",
                  Requirement::Kind::count, 0.0, files > 0 ? std::optional<double>(open) : std::nullopt,
                  "proven", kProofCommand, origin_of(results, results.proofs)});
}

/// The bounds of functions that are the user's own. Nothing is required of them; what their headers claim,
/// `check` proves.
void add_own(const Results& results, std::vector<Requirement>& rows) {
  using Kind = Requirement::Kind;
  constexpr const char* kExpression = "expression";
  std::string command, from;
  const auto add = [&](const std::string& name, const std::string& quantity, Kind kind, double value) {
    rows.push_back({"own", name + ": " + quantity, kind, {}, value, kCertified, command, from});
  };
  const auto of_header = [&](const HeaderNames& header) {
    command = check_command(header.file), from = results.origin(header.file);
    return header.activation == kExpression;
  };
  const auto add_storage = [&](const std::string& name, const StorageClaims& storage) {
    if (!(storage.oracle > 0)) return;
    add(name, "T, the whole gradient, all real x", Kind::number, storage.total);
    add(name, "T / O, all real x", Kind::ratio, storage.total / storage.oracle);
    add(name, "R, all real x", Kind::error, storage.regret);
  };
  for (const BackwardHeader& header : results.backward) {
    if (!of_header(header)) continue;
    add_storage(header.name, header.storage);
    add(header.name, "A, fit", Kind::error, header.bound_a);
    add(header.name, "A + B, fit and evaluation", Kind::error, fit_and_evaluation(header));
    if (header.masked) add(header.name, "K, coordinate", Kind::error, header.bound_k);
  }
  for (const TableHeader& header : results.tables) {
    if (of_header(header)) add_storage(header.name, header.storage);
  }
  for (const ForwardHeader& header : results.forward) {
    if (of_header(header)) add(header.name, "A, fit", Kind::error, header.bound_a);
  }
  for (const RoundedForwardHeader& header : results.rounded) {
    if (of_header(header)) add(header.name, "A, fit", Kind::error, header.bound_a);
  }
  for (const CodeHeader& header : results.codes) {
    if (!of_header(header)) continue;
    for (std::size_t bits = 1; bits <= header.exact.size(); ++bits)
      add(header.name, fmt::format("T, code of {} {}", bits, bits == 1 ? "bit" : "bits"), Kind::number,
          header.exact[bits - 1]);
  }
  for (const FitResult& fit : results.fits) {  // those without a header
    const std::string name = fit.name + ": ";
    if (!fit.own || std::any_of(rows.begin(), rows.end(),
                                [&](const Requirement& row) { return row.quantity.starts_with(name); }))
      continue;
    command = "./outgrad emit " + shown_path(fit.file), from = results.origin(fit.file);
    add(fit.name, "A, fit", Kind::error, fit.bound_a);
    if (fit.bound_ab > 0) add(fit.name, "A + B, fit and evaluation", Kind::error, fit.bound_ab);
  }
}

std::string figure(const std::optional<double>& value, Requirement::Kind kind) {
  return value ? figure(*value, kind) : "-";
}

}  // namespace

const char* to_string(RequirementVerdict verdict) {
  constexpr std::array kNames{"PASS", "FAIL", "reported", "not measured"};
  return kNames.at(static_cast<std::size_t>(verdict));
}

RequirementVerdict Requirement::verdict() const {
  if (!value) return RequirementVerdict::not_measured;
  if (!limit) return RequirementVerdict::reported;
  return *value <= *limit ? RequirementVerdict::pass : RequirementVerdict::fail;
}

std::vector<Requirement> requirements(const Results& results) {
  std::vector<Requirement> rows;
  for (const Targets& targets : kTargets) add_format(results, targets, rows);
  add_sweeps(results, rows);
  add_norms(results, rows);
  add_stores(results, rows);
  add_certificates(results, rows);
  add_proofs(results, rows);
  add_own(results, rows);
  return rows;
}

std::string to_text(const std::vector<Requirement>& rows) {
  constexpr const char* kLine = "{:<6} {:<44} {:>10} {:>12}  {:<12}  {:<29} {}\n";
  std::string text = fmt::format(kLine, "format", "requirement", "at most", "found", "verdict", "of",
                                 "established, and made by");
  std::array<int, 4> count{};
  for (const Requirement& row : rows) {
    text +=
        fmt::format(kLine, row.format, row.quantity, figure(row.limit, row.kind), figure(row.value, row.kind),
                    to_string(row.verdict()), row.from, row.established + ": " + row.command);
    ++count[static_cast<size_t>(row.verdict())];
  }
  return text + fmt::format("{} pass, {} fail, {} reported, {} not measured\n", count[0], count[1], count[2],
                            count[3]);
}

Json to_json(const std::vector<Requirement>& rows) {
  constexpr std::array<const char*, 5> kKinds{"error", "number", "ratio", "ulp", "count"};
  const auto number = [](const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); };
  const auto shown = [](const std::optional<double>& value, Requirement::Kind kind) {
    return value ? Json(figure(*value, kind)) : Json(nullptr);
  };
  Json listed = Json::array();
  for (const Requirement& row : rows) {
    listed.push_back(
        {{"format", row.format},
         {"requirement", row.quantity},
         {"kind", kKinds.at(static_cast<size_t>(row.kind))},
         {"at_most", number(row.limit)},
         {"found", number(row.value)},
         {"shown", {{"at_most", shown(row.limit, row.kind)}, {"found", shown(row.value, row.kind)}}},
         {"verdict", to_string(row.verdict())},
         {"established", row.established},
         {"command", row.command},
         {"from", row.from}});
  }
  const bool holds = std::none_of(rows.begin(), rows.end(), [](const Requirement& row) {
    return row.verdict() == RequirementVerdict::fail;
  });
  return {{"schema", "outgrad.report/2"}, {"holds", holds}, {"requirements", listed}};
}

std::string rounded_up(double bound, int decimals) {
  if (!std::isfinite(bound)) return std::isnan(bound) ? "nan" : bound > 0 ? "inf" : "-inf";
  const double scale = std::pow(10.0, decimals);
  // A decimal that is exact in binary64, or nearly so, such as 1.05, must not be shown as the next decimal
  // above it.
  const double scaled = bound * scale, nearest = std::round(scaled);
  return fmt::format(
      "{:.{}f}",
      (std::abs(scaled - nearest) <= 1e-9 * std::abs(scaled) ? nearest : std::ceil(scaled)) / scale,
      decimals);
}

std::string power_of_two(double bound) {
  if (!(bound > 0) || !std::isfinite(bound)) return bound == 0 ? "0" : rounded_up(bound, 0);
  const double exponent = std::log2(bound);
  return exponent == std::round(exponent) ? fmt::format("2^{:.0f}", exponent)
                                          : "2^" + rounded_up(exponent, 2);
}

std::string figure(double value, Requirement::Kind kind) {
  switch (kind) {
    case Requirement::Kind::error: return power_of_two(value);
    case Requirement::Kind::number: return three_digits_up(value);
    case Requirement::Kind::ratio: return rounded_up(value, 4);
    case Requirement::Kind::ulp: return rounded_up(value, 4);
    case Requirement::Kind::count: break;
  }
  return rounded_up(value, 0);
}

std::string three_digits_up(double bound) {
  if (!(bound > 0) || !std::isfinite(bound)) return bound == 0 ? "0" : rounded_up(bound, 0);
  const double step = std::pow(10.0, std::floor(std::log10(bound)) - 2);
  // 1e-12: the quotient for a figure of three digits must not be raised by one
  return fmt::format("{:.3g}", step * std::ceil(bound / step * (1 - 1e-12)));
}

std::string shown_path(const std::string& path) {
  const std::filesystem::path near =
      std::filesystem::path(path).lexically_proximate(std::filesystem::current_path());
  return near.empty() || *near.begin() == ".." ? path : near.string();
}

std::string check_command(const std::string& header) { return "./outgrad check " + shown_path(header); }

std::string validate_command(const std::string& format) {
  return "./outgrad validate --activation gelu --format " + format;
}

}  // namespace outgrad::validation
