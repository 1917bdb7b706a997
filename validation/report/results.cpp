// Reads what is judged; every error names the file and the place.
#include "validation/report/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string_view>
#include <tuple>

#include "autotune/records/database.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/json_node.h"

namespace outgrad::validation {

using kernels::SpecError;
namespace fs = std::filesystem;

namespace {

using Node = kernels::JsonNode;

/// The regular files whose names end in `extension`, sorted. They are in a folder (Iterator =
/// fs::directory_iterator) or also below it (fs::recursive_directory_iterator). There are none if the folder
/// does not exist.
template <class Iterator = fs::directory_iterator>
std::vector<std::string> files_in(const fs::path& folder, const std::string& extension) {
  std::vector<std::string> files;
  std::error_code error;
  for (Iterator entry(folder, error); !error && entry != Iterator(); entry.increment(error)) {
    // an output that is still being written
    const bool hidden = entry->path().filename().string().starts_with('.');
    if (entry->path().extension() == extension && !hidden && entry->is_regular_file())
      files.push_back(entry->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory)
    throw kernels::IoError(folder.string(), "read", error.value());
  std::sort(files.begin(), files.end());
  return files;
}

/// `text` without marks and control characters.
std::string quoted(std::string text) {
  for (char& c : text) {
    if (c == '`') c = '\'';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return text;
}

// Direct tables, codes and 8-bit y have no rows and no A; what is proven of them is in their headers.
bool has_rows(const FitResult& fit) { return fit.kind != "table" && fit.kind != "code" && fit.kind != "fp8"; }

FitResult read_fit(const std::string& file) {
  const Node node = kernels::read_json(file, "outgrad.fit/3");
  FitResult fit;
  fit.file = file;
  fit.name = node["name"].text();
  fit.kind = node["kind"].text();
  fit.own = node.raw().value("activation", nlohmann::json()) == "expression";
  fit.spec_sha256 = node["spec_sha256"].text();
  if (!has_rows(fit)) return fit;
  const Node certificate = node["certificate"];
  fit.bound_a = certificate["A"].hex_bound();
  if (fit.kind == "backward") {
    fit.bound_k = certificate["K"].hex_bound();
    fit.bound_b = certificate["B"].hex_bound();
    fit.bound_ab = certificate["AB"].hex_bound();
    fit.bound_ulp = certificate["ulp"].hex_bound();
  } else if (fit.kind != "forward" && fit.kind != "rounded_forward") {
    node["kind"].fail("is none of backward, table, forward, rounded_forward, code, fp8");
  }
  return fit;
}

std::int64_t patterns_of(const Node& format) {
  const std::string name = format.text();
  if (name == "f32") return std::int64_t{1} << 32;
  if (name == "f16" || name == "bf16") return std::int64_t{1} << 16;
  format.fail("is not one of f32, f16, bf16");
}

void expect_all_patterns(const Node& domain) {
  const Node patterns = domain["counts"]["patterns"];
  if (const std::int64_t all = patterns_of(domain["x_format"]); patterns.count() != all) {
    patterns.fail(fmt::format("{} of {}: the sweep is not exhaustive", patterns.count(), all));
  }
}

SweptStore read_store(const Node& node) {
  expect_all_patterns(node);
  SweptStore store{
      node["counts"]["wrong_special"].count(), node["T"]["bound"].real(), node["proven"]["T"].real(), {}, {}};
  if (node.has("bias"))
    store.bias = node["bias"]["bound"].real(), store.proven_bias = node["proven"]["bias"].real();
  if (!(store.proven > 0)) node["proven"]["T"].fail("is not positive");
  return store;
}

SweptDomain read_domain(const Node& node) {
  expect_all_patterns(node);
  SweptDomain domain;
  domain.x_format = node["x_format"].text();
  const Node counts = node["counts"];
  domain.misrounded = counts["misrounded"].count();
  domain.wrong_mask = counts["wrong_mask"].count();
  domain.wrong_special = counts["wrong_special"].count();
  domain.total = node["T"]["bound"].real();
  domain.regret = node["R"]["bound"].real();
  domain.ratio = node["T_over_O"].real();
  const Node forward = node["forward"];
  const auto worst = [&](const char* region) {
    if (forward.null()) return 0.0;
    const Node maximum = forward["max_ulp"][region];
    return maximum.null() ? 0.0 : maximum["bound"].real();
  };
  domain.near_ulp = worst("near_minimum");
  for (const char* region : {"left_tail", "subnormal", "elsewhere"}) {
    // Written in this form so that a NaN stays a NaN.
    if (const double error = worst(region); !(error <= domain.far_ulp)) domain.far_ulp = error;
  }
  if (node.has("from_x")) domain.from_x = node["from_x"]["T"]["bound"].real();
  return domain;
}

/// The subject of a sweep is BACKWARD+FORWARD.
SweepResult read_sweep(const Node& node, const std::string& file) {
  node.expect_schema("outgrad.sweep/1");
  SweepResult sweep{
      file, node["activation"].text(), node["format"].text(), node["subject"].text(), node.has("foreign"), {},
      {}};
  patterns_of(node["format"]);
  const size_t plus = sweep.fit.find('+');
  if (plus == std::string::npos) node["subject"].fail("is not BACKWARD+FORWARD");
  sweep.fit.resize(plus);
  for (const Node& domain : node["domains"].items()) sweep.domains.push_back(read_domain(domain));
  if (sweep.domains.empty()) node["domains"].fail("is empty");
  for (const Node& gate : node["gates"].items())
    sweep.gates.push_back({gate["name"].text(), gate["value"].real(), gate["limit"].real()});
  return sweep;
}

/// A fit of a gated pair's product: what breaks a limit other than that of T counts as a wrong case.
StoreSweep read_product(const Node& node, const std::string& file) {
  const Node counts = node["counts"];
  const std::int64_t numbers = patterns_of(node["format"]), pairs = counts["pairs"].count();
  if (pairs != numbers * numbers) counts["pairs"].fail("are not all pairs of the format");
  SweptStore store{counts["wrong_special"].count() + counts["wrong_da"].count(),
                   node["T"]["bound"].real(),
                   node["claims"]["T"].real(),
                   {},
                   {}};
  if (!(store.proven > 0)) node["claims"]["T"].fail("is not positive");
  for (const Node& gate : node["gates"].items())
    store.wrong_special += !(gate["value"].real() <= gate["limit"].real());
  return {file, node["subject"].text(), {store}};
}

/// A file of sweeps/: of a fit, of stores, or of a shard, which is no sweep before it is merged.
void read_own_sweep(const std::string& file, Results& results) {
  const Node node = kernels::read_json(file);
  if (node["schema"].text().starts_with("outgrad.sweep-part/")) {
    results.warnings.push_back(file + ":1: a part of a sweep, ignored");
    return;
  }
  if (node["schema"].text() == "outgrad.product_sweep/1") {
    results.store_sweeps.push_back(read_product(node, file));
    results.files["product_sweeps"].push_back(file);
    return;
  }
  node.expect_schema("outgrad.sweep/1");
  const std::vector<Node> domains = node["domains"].items();
  if (!domains.empty() && domains.front().has("store")) {
    StoreSweep sweep{file, node["subject"].text(), {}};
    sweep.fit.resize(std::min(sweep.fit.find('+'), sweep.fit.size()));
    for (const Node& domain : domains) sweep.stores.push_back(read_store(domain));
    results.store_sweeps.push_back(std::move(sweep));
    results.files["store_sweeps"].push_back(file);
    return;
  }
  SweepResult sweep = read_sweep(node, file);
  if (sweep.foreign)
    throw SpecError(file, "foreign", "is a sweep of published coefficients: their folder is foreign/sweeps");
  if (const SweepResult* other = results.sweep_of_fit(sweep.fit))
    throw SpecError(file, "subject", sweep.fit + " was swept in " + other->file + " already");
  results.sweeps.push_back(std::move(sweep));
  results.files["sweeps"].push_back(file);
}

/// A file of foreign/sweeps/. Nothing is judged by it, but a sweep that is not exhaustive is none.
void read_foreign_sweep(const std::string& file, Results& results) {
  const Node node = kernels::read_json(file);
  const std::string schema = node["schema"].text();
  if (schema == "outgrad.quantiser/1") {
    patterns_of(node["format"]);
    results.files["quantisers"].push_back(file);
    return;
  }
  if (schema.starts_with("outgrad.sweep-part/") || !read_sweep(node, file).foreign)
    throw SpecError(file, "foreign", "is missing: this is no whole sweep of published coefficients");
  results.files["foreign"].push_back(file);
}

/// A figure that must be finite and not negative.
double figure_of(const Node& node) {
  const double value = node.real();
  if (!(value >= 0 && std::isfinite(value))) node.fail("is not a bound");
  return value;
}

AttackFile read_attack(const std::string& file) {
  const Node node = kernels::read_json(file, "outgrad.norm_attack/1");
  const AttackFile attack{file, figure_of(node["evaluations"]), figure_of(node["violations"]),
                          figure_of(node["median_tightness"])};
  double violations = 0;
  for (const Node& one : node["cases"].items()) {
    const Node gradients = one["gradients"];
    for (const std::string& name : gradients.keys()) violations += figure_of(gradients[name]["violations"]);
  }
  if ((violations > 0) != (attack.violations > 0)) node["violations"].fail("is not what the cases have");
  return attack;
}

CertificateAttack read_certificate_attack(const std::string& file) {
  const Node node = kernels::read_json(file, "outgrad.certificate_attack/1");
  const Node mutations = node["mutations"], specifications = node["specifications"];
  CertificateAttack attack{.file = file};
  attack.headers = mutations["by_header"].keys().size(), attack.mutants = mutations["tried"].count();
  attack.survived = mutations["survived"].count() + std::ssize(mutations["false_headers"].keys());
  attack.specifications = specifications["tried"].count(),
  attack.false_claims = specifications["false"].count();
  attack.broken = mutations["internal"].count();
  for (const char* key : {"hung", "memory", "internal"}) attack.broken += specifications[key].count();
  if (specifications.has("contested"))  // files before 0.2.0 have none
    attack.broken += specifications["contested"].count();
  return attack;
}

CoqProof read_proof(const std::string& file) {
  const Node node = kernels::read_json(file, "outgrad.proofs/1");
  CoqProof proof{.file = file, .name = node["name"].text(), .spec_sha256 = node["spec_sha256"].text()};
  proof.holds = node["holds"].boolean();
  bool all_proven = true;
  for (const Node& one : node["bounds"].items()) {
    const bool proven = one["outcome"].text() == "proven";
    all_proven = all_proven && proven;
    if (one["bound"].text() == "x") continue;  // the ranges of x of the rows
    const auto bound = std::find(kCoqBounds.begin(), kCoqBounds.end(), one["bound"].text());
    if (bound == kCoqBounds.end()) one["bound"].fail("is none of A, B, T, G and x");
    CoqBound& of = proof.bounds[static_cast<std::size_t>(bound - kCoqBounds.begin())];
    ++of.files;
    if (proven) ++of.proven;
    if (one.has("row") && !one["row"].null()) of.rows.insert(one["row"].count());
    if (one.has("claim")) of.claim = std::max(of.claim, one["claim"].hex_bound());
  }
  proof.unlisted = node["assumptions"]["unlisted"].items().size();
  if (proof.holds && (!all_proven || proof.unlisted > 0 || node["bounds"].items().empty()))
    node["holds"].fail("is not what the files have");
  return proof;
}

/// A line that is not a record causes a warning, as in the tuner itself.
void read_tuning(const std::string& file, Results& results) {
  const autotune::Database database = autotune::load_database(file);
  results.warnings.insert(results.warnings.end(), database.warnings.begin(), database.warnings.end());
  for (const TunedRun& run : latest_runs(database)) {
    nlohmann::json listed = nlohmann::json::array();
    for (const autotune::Record* r : run.records) {
      nlohmann::json& record = listed.emplace_back(to_json(*r));
      for (const char* rounds : {"screening", "final"}) record.erase(rounds);  // many, and not shown
      if (is_too_noisy(*r)) record["too_noisy"] = true;
    }
    results.tuned.push_back({{"file", file}, {"size", run.size}, {"records", std::move(listed)}});
  }
}

/// The folder, beside those of a run, with what was committed and the run has not made.
constexpr const char* kCommitted = "committed";

/// Paths in the file are relative to `in`.
Provenance read_provenance(const std::string& file, const fs::path& in) {
  const Node node = kernels::read_json(file, "outgrad.provenance/1");
  const Node machine = node["machine"];
  const int cores = machine["cores"].count<int>();
  const std::string commit = node["commit"].text(), gpu = machine["gpu"].text();
  Provenance provenance;
  provenance.made_by = quoted(fmt::format("outgrad {}{}, {}, on {}, {} {}, {}", node["version"].text(),
                                          commit.empty() ? "" : ", commit " + commit, node["date"].text(),
                                          machine["cpu"].text(), cores, cores == 1 ? "core" : "cores",
                                          gpu.empty() ? "no GPU" : gpu));
  provenance.date = quoted(node["date"].text());
  const auto of_run = [&](const char* list, const char* origin) {
    for (const Node& path : node[list].items()) {
      const fs::path made = in / path.text();
      provenance.of_files[made.string()] = origin;
      if (!fs::exists(made)) provenance.missing.push_back(quoted(path.text()));
    }
  };
  of_run("run", "this run");
  if (node.has("pending")) {
    of_run("pending", "a run that did not finish, or one before it");
    provenance.finished = node["pending"].items().empty();
  }
  const Node committed = node["committed"];
  for (const std::string& path : committed.keys()) {
    const std::string date = committed[path]["date"].text(), at = committed[path]["commit"].text();
    provenance.of_files[(in / kCommitted / path).string()] =
        quoted(kCommitted + (date.empty() ? "" : " " + date) + (at.empty() ? "" : " " + at));
  }
  return provenance;
}

/// A header and the fit from which it claims to come must agree, and so must a fit and the proofs of its
/// bounds.
void expect_agreement(const Results& results) {
  for (const BackwardHeader& header : results.backward) {
    const FitResult* fit = results.fit_named(header.name);
    if (!fit) continue;
    const auto same = [](double claim, double certified) {  // 0: the header has no such claim
      return claim == 0 || claim == certified;
    };
    const std::array<std::pair<const char*, bool>, 5> claims{
        {{"A", fit->bound_a == header.bound_a},
         {"K", fit->bound_k == header.bound_k},
         {"B", fit->bound_b == header.bound_b},
         {"AB", same(header.bound_ab, fit->bound_ab)},
         {"ulp", same(header.bound_ulp, fit->bound_ulp)}}};
    for (const auto& [name, equal] : claims) {
      if (!equal)
        throw SpecError(fit->file, fmt::format("certificate.{}", name),
                        "is not what " + header.file + " claims");
    }
  }
  for (const SweepResult& sweep : results.sweeps) {
    const BackwardHeader* header = results.backward_named(sweep.fit);
    for (const SweepGate& gate : sweep.gates) {
      if (header && gate.name.starts_with("T within") && gate.limit != header->storage.total)
        throw SpecError(sweep.file, "gates", "were held to another kT than " + header->file + " claims");
    }
  }
  for (const CoqProof& proof : results.proofs) {
    const FitResult* fit = results.fit_named(proof.name);
    if (!fit) continue;
    if (fit->spec_sha256 != proof.spec_sha256)
      throw SpecError(proof.file, "spec_sha256", "is not that of " + fit->file);
    const BackwardHeader* header = results.backward_named(proof.name);
    const double total = !header ? std::numeric_limits<double>::infinity()
                                 : std::max(header->storage.total, header->product.total);
    const std::array<double, kCoqBounds.size()> certified{fit->bound_a, fit->bound_b.value_or(0), total,
                                                          fit->bound_ab + fit->bound_k.value_or(0)};
    for (std::size_t k = 0; k < certified.size(); ++k) {
      const auto& [files, proven, rows, claim] = proof.bounds[k];
      if (claim > certified[k])
        throw SpecError(proof.file, "bounds",
                        fmt::format("{} claims more than {}", kCoqBounds[k], fit->file));
      // What `certify --rows` proves, or what was proven of other coefficients, is not that of the fit.
      const bool of_rows = kCoqBounds[k] == std::string_view("A") || kCoqBounds[k] == std::string_view("B");
      if (header && of_rows && files > 0 && rows.size() != header->table.log2_fit_errors.size())
        throw SpecError(proof.file, "bounds",
                        fmt::format("{} is of {} of the {} rows of {}", kCoqBounds[k], rows.size(),
                                    header->table.log2_fit_errors.size(), header->file));
      if (header && of_rows && files > 0 && claim < certified[k])
        throw SpecError(proof.file, "bounds",
                        fmt::format("{} is of other coefficients than {}", kCoqBounds[k], fit->file));
    }
  }
}

void read_headers(const std::string& folder, Results& results) {
  for (const std::string& file : files_in<fs::recursive_directory_iterator>(folder, ".h")) {
    // A tuned header has schedules and no coefficients.
    if (fs::path(file).filename().string().starts_with("tuned")) continue;
    Header header = read_header(file);
    if (auto* backward = std::get_if<BackwardHeader>(&header))
      results.backward.push_back(std::move(*backward));
    else if (auto* forward = std::get_if<ForwardHeader>(&header))
      results.forward.push_back(std::move(*forward));
    else if (auto* rounded = std::get_if<RoundedForwardHeader>(&header))
      results.rounded.push_back(std::move(*rounded));
    else if (auto* table = std::get_if<TableHeader>(&header))
      results.tables.push_back(std::move(*table));
    else if (auto* code = std::get_if<CodeHeader>(&header))
      results.codes.push_back(std::move(*code));
  }
}

template <class T, class Predicate>
const T* find(const std::vector<T>& items, Predicate wanted) {
  const auto found = std::find_if(items.begin(), items.end(), wanted);
  return found == items.end() ? nullptr : &*found;
}

}  // namespace

std::vector<TunedRun> latest_runs(const autotune::Database& database) {
  std::map<std::tuple<std::string, std::string, std::string>, TunedRun> all;
  for (const autotune::Record& r : database.records) {
    if (!r.is_of_a_variant()) continue;
    const std::string size = r.cols > 0       ? fmt::format("{}x{}", r.rows, r.cols)
                             : r.elements > 0 ? fmt::format("{}", r.elements)
                                              : "";
    all.try_emplace({r.kernel, r.format, size}, TunedRun{r.kernel, r.format, size, {}})
        .first->second.records.push_back(&r);
  }
  // What the lines of one run share.
  const auto run_of = [](const autotune::Record* r) {
    return std::tie(r->run.time, r->run.seed, r->run.hashes);
  };
  // A finalist has lines of its screening, too.
  const auto counts_before = [](const autotune::Record* a, const autotune::Record* b) {
    const auto rank = [](const autotune::Record& r) {
      return std::tuple(r.state != "rejected", -rounds_of(r));
    };
    if (a->variant != b->variant) return a->variant < b->variant;
    return rank(*a) != rank(*b) ? rank(*a) < rank(*b) : line_of(*a) < line_of(*b);
  };
  std::vector<TunedRun> runs;
  for (auto& [problem, run] : all) {
    const auto latest = run_of(*std::ranges::max_element(run.records, {}, run_of));
    std::erase_if(run.records, [&](const autotune::Record* r) { return run_of(r) != latest; });
    std::ranges::sort(run.records, counts_before);
    const auto others = std::ranges::unique(run.records, {}, &autotune::Record::variant);
    run.records.erase(others.begin(), others.end());
    runs.push_back(std::move(run));
  }
  return runs;
}

bool Results::empty(bool without_headers) const {
  const bool no_headers =
      backward.empty() && forward.empty() && rounded.empty() && tables.empty() && codes.empty();
  return (without_headers || no_headers) && files.empty() && tuned.empty();
}

std::string Results::origin(const std::string& file) const {
  if (provenance.made_by.empty()) return "not stated";
  const auto found = provenance.of_files.find(file);
  return found == provenance.of_files.end() ? "not of this run" : found->second;
}

const BackwardHeader* Results::backward_named(const std::string& name) const {
  return find(backward, [&](const BackwardHeader& header) { return header.name == name; });
}

const FitResult* Results::fit_named(const std::string& name) const {
  return find(fits, [&](const FitResult& fit) { return fit.name == name; });
}

const SweepResult* Results::sweep_of(const std::string& format) const {
  return find(sweeps, [&](const SweepResult& sweep) {
    return sweep.activation == "gelu" && sweep.fit == "gelu_" + format;
  });
}

const SweepResult* Results::sweep_of_fit(const std::string& name) const {
  return find(sweeps, [&](const SweepResult& sweep) { return sweep.fit == name; });
}

Results read_results(const std::string& folder, const std::string& headers) {
  if (!fs::is_directory(folder)) throw SpecError(folder, "--in", "is not a folder");
  const fs::path in(folder);
  Results results;
  read_headers(headers, results);
  const auto files = [&](const char* kind, const char* extension = ".json") {
    std::vector<std::string> found = files_in(in / kind, extension);
    for (const std::string& file : files_in(in / kCommitted / kind, extension)) {
      if (!fs::exists(in / kind / fs::path(file).filename())) found.push_back(file);
    }
    std::sort(found.begin(), found.end(), [](const fs::path& x, const fs::path& y) {
      return std::pair(x.filename(), x) < std::pair(y.filename(), y);
    });
    return found;
  };
  const auto list = [&](const char* kind, const std::string& file) { results.files[kind].push_back(file); };
  const auto is = [](const std::string& file, const char* name) { return fs::path(file).filename() == name; };
  for (const std::string& file : files("fits")) {
    FitResult fit = read_fit(file);
    if (!has_rows(fit)) continue;
    results.fits.push_back(std::move(fit));
    list("fits", file);
  }
  for (const std::string& file : files("sweeps")) read_own_sweep(file, results);
  for (const std::string& file : files("foreign/sweeps")) read_foreign_sweep(file, results);
  for (const std::string& file : files("stability")) list("stability", file);
  for (const std::string& file : files("pareto")) list("pareto", file);
  for (const std::string& file : files("front")) list("fronts", file);
  for (const std::string& file : files("attack")) {
    if (is(file, "certificates.json")) {
      results.certificates = read_certificate_attack(file);
      list("certificates", file);
    } else {
      results.attacks.push_back(read_attack(file));
      list("attacks", file);
    }
  }
  for (const std::string& file : files("proofs"))
    results.proofs.push_back(read_proof(file)), list("proofs", file);
  for (const std::string& file : files("studies")) {
    for (const auto& [name, kind] : {std::pair("ledger.json", "ledgers"),
                                     {"ledger_llama.json", "llama_ledgers"},
                                     {"package_speed.json", "speeds"}})
      if (is(file, name)) list(kind, file);
  }
  for (const std::string& file : files("training")) {
    if (is(file, "masked_lm.json")) list("training", file);
  }
  for (const std::string& file : files("tests")) list("tests", file);
  for (const std::string& file : files("tuned", ".jsonl")) read_tuning(file, results);
  if (const fs::path file = in / "provenance.json"; fs::exists(file))
    results.provenance = read_provenance(file.string(), in);
  expect_agreement(results);
  return results;
}

}  // namespace outgrad::validation
