// Reads the files; every error names the file and the place.
#include "validation/report/results.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <tuple>

#include "autotune/records/database.h"
#include "kernels/formats.h"
#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "validation/json_node.h"
#include "validation/limits.h"
#include "validation/report/page.h"

namespace outgrad::validation {

using kernels::SpecError;
namespace fs = std::filesystem;

namespace {

using Node = JsonNode;

/// The regular files whose names end in `extension`, sorted. They are in a folder (Iterator = fs::directory_iterator)
/// or also below it (fs::recursive_directory_iterator). There are none if the folder does not exist.
template <class Iterator = fs::directory_iterator>
std::vector<std::string> files_in(const fs::path& folder, const std::string& extension) {
  std::vector<std::string> files;
  std::error_code error;
  for (Iterator entry(folder, error); !error && entry != Iterator(); entry.increment(error)) {
    const bool hidden = entry->path().filename().string().starts_with('.');  // an output that is still being written
    if (entry->path().extension() == extension && !hidden && entry->is_regular_file()) files.push_back(entry->path().string());
  }
  if (error && error != std::errc::no_such_file_or_directory) throw kernels::IoError(folder.string(), "read", error.value());
  std::sort(files.begin(), files.end());
  return files;
}

// Direct tables, codes and 8-bit y have no rows and no A; what is proven of them is in their headers.
bool has_rows(const FitResult& fit) { return fit.kind != "table" && fit.kind != "code" && fit.kind != "fp8"; }

FitResult read_fit(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  node.expect_schema("outgrad.fit/3");
  FitResult fit;
  fit.file = file;
  fit.name = node["name"].text();
  fit.kind = node["kind"].text();
  fit.own = json.value("activation", nlohmann::json()) == "expression";
  fit.spec_sha256 = node["spec_sha256"].text();
  fit.accuracy = node["class"].text();
  if (!has_rows(fit)) return fit;
  const Node certificate = node["certificate"];
  fit.bound_a = certificate["A"].hex_bound();
  const auto read_pieces = [&](const Node& pieces) {
    for (const Node& piece : pieces.items()) {
      ++fit.pieces;
      const double certified = piece["certified"].hex_bound(), lower_bound = piece["lower_bound"].hex_bound();
      if (certified > fit.worst_certified) fit.worst_certified = certified, fit.worst_lower_bound = lower_bound;
    }
  };
  if (fit.kind == "backward") {
    fit.format = node["format"].text();
    fit.bound_k = certificate["K"].hex_bound();
    fit.bound_b = certificate["B"].hex_bound();
    fit.bound_ab = certificate["AB"].hex_bound();
    fit.bound_ulp = certificate["ulp"].hex_bound();
    read_pieces(node["pieces"]);
  } else if (fit.kind == "forward") {
    read_pieces(node["core"]["pieces"]);
    read_pieces(node["tail"]["pieces"]);
  } else if (fit.kind == "rounded_forward") {
    fit.format = node["format"].text();
    read_pieces(node["pieces"]);
  } else {
    node["kind"].fail("is none of backward, table, forward, rounded_forward, code, fp8");
  }
  return fit;
}

SweptMaximum read_maximum(const Node& node) {
  SweptMaximum maximum{node["max"].real(), node["bound"].real(), {}, 0};
  double greatest = -1;
  const std::array<const char*, 2> branches{"left", "right"};
  for (size_t i = 0; i < branches.size(); ++i) {
    if (node[branches[i]].null()) continue;
    maximum.x[i] = node[branches[i]]["x"].text();
    if (const double value = node[branches[i]]["value"].real(); value > greatest) greatest = value, maximum.worst_branch = static_cast<int>(i);
  }
  return maximum;
}

std::int64_t patterns_of(const Node& format) {
  const std::string name = format.text();
  if (name == "f32") return std::int64_t{1} << 32;
  if (name == "f16" || name == "bf16") return std::int64_t{1} << 16;
  format.fail("is not one of f32, f16, bf16");
}

/// The count of patterns, which must be all of them.
std::int64_t read_patterns(const Node& domain) {
  const Node patterns = domain["counts"]["patterns"];
  if (const std::int64_t all = patterns_of(domain["x_format"]); patterns.count() != all) {
    patterns.fail(fmt::format("{} of {}: the sweep is not exhaustive", patterns.count(), all));
  }
  return patterns.count();
}

std::vector<WeightedErrors> read_under(const Node& domain) {
  std::vector<WeightedErrors> under;
  if (!domain.has("under")) return under;
  for (const Node& one : domain["under"].items()) {
    const Node share = one["share_in_worst_codes"];  // null: it is not listed
    under.push_back({one["x"].text(), one["rms"].real(), one["bias"].real(), one["max"].real(), share.null() ? 0 : share.real()});
  }
  return under;
}

SweptStore read_store(const Node& node) {
  SweptStore store{
      node["store"].text(), read_patterns(node), node["counts"]["wrong_special"].count(), read_maximum(node["T"]), node["proven"]["T"].real(), {}, {},
      read_under(node)};
  if (node.has("bias")) store.bias = node["bias"]["bound"].real(), store.proven_bias = node["proven"]["bias"].real();
  if (!(store.proven > 0)) node["proven"]["T"].fail("is not positive");
  return store;
}

SweptDomain read_domain(const Node& node) {
  SweptDomain domain;
  domain.x_format = node["x_format"].text();
  const Node counts = node["counts"];
  domain.patterns = read_patterns(node);
  domain.finite = counts["finite"].count();
  domain.oracle_decisions = counts["oracle_decisions"].count();
  domain.misrounded = counts["misrounded"].count();
  domain.wrong_mask = counts["wrong_mask"].count();
  domain.wrong_special = counts["wrong_special"].count();
  domain.total = read_maximum(node["T"]);
  domain.stored = read_maximum(node["T_dx"]);
  domain.oracle = read_maximum(node["O"]);
  domain.regret = read_maximum(node["R"]);
  if (!node["C"].null()) domain.storage = read_maximum(node["C"]);
  domain.ratio = node["T_over_O"].real();
  domain.rms = node["rms_T"].real();
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
  for (const Node& foreign : node["foreign"].items()) domain.foreign.emplace_back(foreign["forward"].text(), foreign["T"]["bound"].real());
  domain.under = read_under(node);
  if (node.has("from_x")) domain.from_x = node["from_x"]["T"]["bound"].real();
  const double half_bin = node["curve"]["bin_width"].real() / 2;
  for (const Node& row : node["curve"]["rows"].items()) {
    const auto values = row.items(4);
    domain.curve.push_back({values[0].real() + half_bin, values[1].real(), values[2].real(), values[3].real()});
  }
  return domain;
}

/// Nothing for the result of a shard, which is not a sweep before it is merged.
std::optional<SweepResult> read_sweep(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  if (node["schema"].text().starts_with("outgrad.sweep-part/")) return {};
  node.expect_schema("outgrad.sweep/1");
  SweepResult sweep;
  sweep.file = file;
  sweep.activation = node["activation"].text();
  sweep.format = node["format"].text();
  patterns_of(node["format"]);
  const std::string subject = node["subject"].text();
  const size_t plus = subject.find('+');
  if (plus == std::string::npos) node["subject"].fail("is not BACKWARD+FORWARD");
  sweep.fit = subject.substr(0, plus);
  sweep.forward = subject.substr(plus + 1);
  if (node.has("foreign")) {
    sweep.stored = node["foreign"]["stored"].text();
    sweep.source = node["foreign"]["source"]["work"].text();
  }
  for (const Node& domain : node["domains"].items()) sweep.domains.push_back(read_domain(domain));
  if (sweep.domains.empty()) node["domains"].fail("is empty");
  return sweep;
}

/// Nothing if the sweep is not of stores.
std::optional<StoreSweep> read_store_sweep(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  if (node["schema"].text() != "outgrad.sweep/1") return {};
  const std::vector<Node> domains = node["domains"].items();
  if (domains.empty() || !domains.front().has("store")) return {};
  StoreSweep sweep{file, node["activation"].text(), node["format"].text(), node["subject"].text(), {}};
  sweep.fit.resize(std::min(sweep.fit.find('+'), sweep.fit.size()));
  for (const Node& domain : domains) sweep.stores.push_back(read_store(domain));
  return sweep;
}

/// Nothing if the file has another schema.
std::optional<QuantiserResult> read_quantiser_result(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  if (node["schema"].text() != "outgrad.quantiser/1") return {};
  patterns_of(node["format"]);
  QuantiserResult result;
  result.file = file;
  result.name = node["foreign"]["name"].text();
  result.activation = node["activation"].text();
  result.format = node["format"].text();
  result.stored = node["foreign"]["stored"].text();
  result.source = node["foreign"]["source"]["work"].text();
  result.bits = node["bits_per_element"].real();
  for (const Node& range : node["ranges"].items()) {
    QuantisedRange& one = result.ranges.emplace_back();
    one.min = range["min"].real(), one.max = range["max"].real();
    const auto bound = [&](const char* key) { return range[key].null() ? 0 : range[key]["bound"].real(); };
    one.total = bound("T"), one.wrapped = bound("T_wrapped");
    one.oracle = range["O"].real();
    one.bias = range["bias"]["value"].real();
    one.maximum_wraps = range["maximum_wraps"].real();
    for (const Node& under : range["under"].items()) {
      constexpr double kNearlyAll = 0.999;
      if (under["mass"].real() >= kNearlyAll) one.rms.emplace_back(under["x"].text(), under["rms"].real());
    }
  }
  if (result.ranges.empty()) node["ranges"].fail("is empty");
  for (const Node& group : node["groups"].items()) result.groups.emplace_back(group["x"].text(), group["rms"].real());
  for (const Node& binade : node["maximum_wraps"].items()) {
    result.wraps_mean = std::max(result.wraps_mean.value_or(0), binade["mean"].real());
    result.wraps_most = std::max(result.wraps_most.value_or(0), binade["greatest"].real());
  }
  if (const Node running = node["running"]; !running.null()) result.running_wraps = running["share_of_steps"].real();
  return result;
}

FrontResult read_front(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  node.expect_schema("outgrad.front/1");
  FrontResult result;
  result.file = file;
  result.activation = node["activation"].text();
  for (const Node& each : node["stores"].items()) {
    StoreResult& store = result.stores.emplace_back();
    store.name = each["name"].text();
    store.origin = each["origin"].text();
    store.beyond = each["bits_beyond"].real(), store.all = each["bits_all"].real();
    if (each.has("proven")) store.proven = each["proven"].real();
    if (each.has("condition")) store.condition = each["condition"].text();
    if (each.has("speed")) {
      store.forward_speed = each["speed"]["forward"]["median"].finite();
      store.backward_speed = each["speed"]["backward"]["median"].finite();
    }
    if (each.has("dominated_by")) store.dominated_by = each["dominated_by"].text();
    for (const Node& under : each["under"].items()) {
      store.under.push_back({under["x"].text(), under["greatest"].real(), under["rms"].real(), under["bias"].real(), under["shrinkage"].real()});
    }
    if (store.under.size() != result.stores.front().under.size() || store.under.empty()) each["under"].fail("has not the distributions of the first store");
  }
  if (result.stores.empty()) node["stores"].fail("is empty");
  return result;
}

NormResult read_norm(const Node& node) {
  NormResult norm;
  norm.name = node["name"].text();
  norm.norm = node["norm"].text();
  norm.columns = node["columns"].small();
  for (size_t i = 0; i < kChannelClasses.size(); ++i) norm.classes[i] = node["classes"][kChannelClasses[i]].small();
  norm.rho_median = node["rho"]["q50"].bound();
  norm.rho_max = node["rho"]["max"].bound();
  norm.policy = node["policy"]["name"].text();
  norm.side_buffer_bytes = node["policy"]["bytes_per_row"].small();
  const auto relative = [&](const char* which) { return node["bounds"][which]["dx_rms_relative"]["worst"].bound(); };
  norm.dx_from_output = relative("from_output");
  norm.dx_recommended = relative("recommended");
  norm.dgamma_estimate = node["estimates"]["dgamma_relative_l2"].bound();
  const Node channels = node["channels"];
  const auto columns = static_cast<size_t>(norm.columns);
  const auto gamma = channels["gamma"].items(columns), beta = channels["beta"].items(columns), rho = channels["rho"].items(columns),
             lost = channels["bits_lost"].items(columns), of_class = channels["class"].items(columns), x_hat = channels["x_hat_conditional"].items(columns),
             dgamma = channels["dgamma_conditional"].items(columns);
  for (size_t j = 0; j < columns; ++j) {
    norm.channels.push_back({norm.name, of_class[j].text(), static_cast<int>(j), gamma[j].real(), beta[j].real(), rho[j].bound(), lost[j].bound(),
                             x_hat[j].bound(), dgamma[j].bound()});
    if (std::find(kChannelClasses.begin(), kChannelClasses.end(), norm.channels.back().channel_class) == kChannelClasses.end()) {
      of_class[j].fail("is an unknown class");
    }
  }
  return norm;
}

StabilityFile read_stability(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  node.expect_schema("outgrad.stability/1");
  const Node options = node["options"];
  StabilityFile stability;
  stability.file = file;
  stability.source = node["source"].text();
  stability.format = options["format"].text();
  stability.mean_ratio = options["mean_ratio"].real();
  stability.dy_max = options["dy_max"].real();
  stability.eps = options["eps"].real();
  stability.tau = options["tau"].real();
  stability.x_hat_max = options["x_hat_max"].real();
  for (const Node& norm : node["norms"].items()) stability.norms.push_back(read_norm(norm));
  return stability;
}

void add_fit_speed(const autotune::Record& record, TuningResult& result) {
  const autotune::SpeedupRecord& ratio = *record.speedup;
  FitSpeed speed{record.fit.name, record.fit.accuracy.value_or(""), ratio.median, ratio.low, ratio.high};
  const auto known = std::find_if(result.fits.begin(), result.fits.end(), [&](const FitSpeed& f) { return f.name == speed.name; });
  if (known == result.fits.end()) {
    result.fits.push_back(std::move(speed));
  } else if (speed.speedup > known->speedup) {
    *known = std::move(speed);
  }
  std::sort(result.fits.begin(), result.fits.end(), [](const FitSpeed& a, const FitSpeed& b) { return a.speedup > b.speedup; });
}

void add_record(const autotune::Record& record, TuningResult& result, std::vector<std::string>& warnings) {
  if (record.is_default == true) result.default_variant = record.variant;
  result.compiler = record.run.compiler;
  const autotune::DeviceRecord& device = record.run.device;
  result.machine = device.kind == "cuda" ? device.name.value_or("") : fmt::format("{}, {} threads", device.model.value_or(""), device.threads.value_or(0));
  if (record.state == "rejected") {
    result.rejected.push_back({record.variant, record.rejected.stage, record.rejected.reason, record.rejected.detail.value_or("")});
  } else if (record.state == "timed") {
    ++result.timed;
    if (!record.fit.name.empty() && record.speedup) add_fit_speed(record, result);
  } else {
    ++result.unfinished;
  }
  if (record.winner != true) return;
  if (!record.speedup || !record.speedup->confidence || !record.gb_per_s || !record.share_of_ceiling) {
    warnings.push_back(fmt::format("{}: {} is called the winner without its figures, ignored", result.file, record.variant));
    return;
  }
  result.winner = record.variant;
  result.ceiling = record.ceiling.name;
  result.gain = record.gain == true;
  result.gb_per_s = *record.gb_per_s;
  result.share = *record.share_of_ceiling;
  result.speedup = record.speedup->median, result.speedup_low = record.speedup->low, result.speedup_high = record.speedup->high;
  result.confidence = *record.speedup->confidence;
}

/// The database grows with every run. For each kernel, format and size only the run of the last line counts, whatever
/// the clocks said; and for each variant only its last line, because a finalist has several. A line that is not a
/// record causes a warning, as in the tuner itself.
void read_tuning(const std::string& file, Results& results) {
  const autotune::Database database = autotune::load_database(file);
  results.warnings.insert(results.warnings.end(), database.warnings.begin(), database.warnings.end());
  using Problem = std::tuple<std::string, std::string, std::string>;
  std::map<Problem, std::vector<const autotune::Record*>> all;
  for (const autotune::Record& r : database.records) {
    const std::string size = r.cols > 0 ? fmt::format("{}x{}", r.rows, r.cols) : r.elements > 0 ? fmt::format("{}", r.elements) : "";
    if (r.is_of_a_variant()) all[{r.kernel, r.format, size}].push_back(&r);
  }
  for (auto& [problem, records] : all) {
    TuningResult result;
    result.file = file;
    std::tie(result.kernel, result.format, result.size) = problem;
    result.time = records.back()->run.time;
    std::erase_if(records, [&](const autotune::Record* r) { return r->run.time != result.time; });
    std::map<std::string, const autotune::Record*> last;
    for (const autotune::Record* r : records) last[r->variant] = r;
    for (const autotune::Record* r : records)
      if (last[r->variant] == r) add_record(*r, result, results.warnings);
    results.tuning.push_back(std::move(result));
  }
}

/// A figure of a front, which must be finite and not negative.
double figure_of(const Node& node) {
  const double value = node.real();
  if (!(value >= 0 && value < kInfinity)) node.fail("is not a bound");
  return value;
}

ParetoResult read_pareto(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  node.expect_schema("outgrad.pareto/2");
  ParetoResult front;
  front.file = file;
  front.activation = node["activation"].text();
  front.format = node["format"].text();
  const std::span<const char* const> known(kernels::StoredFormats::kNames);
  if (std::ranges::find(known, front.format) == known.end()) node["format"].fail(fmt::format("is not one of {}", fmt::join(known, ", ")));
  front.exact = node["exact"].boolean();
  front.tried = node["tried"].small();
  for (const Node& point : node["points"].items()) {
    ParetoPointResult p;
    p.name = point["name"].text();
    p.accuracy = point["class"].text();
    p.work = point["work"].small();
    p.depth = point["depth"].small();
    p.table_bytes = point["table_bytes"].small();
    p.operations = point["operations"].small();
    p.a_plus_b = figure_of(point["a_plus_b"]);
    p.total = figure_of(point["total"]);
    p.regret = figure_of(point["regret"]);
    p.oracle = figure_of(point["oracle"]);
    if (point["spec"]["name"].text() != p.name) point["spec"]["name"].fail("is not the point's");
    front.points.push_back(std::move(p));
  }
  if (front.points.empty()) node["points"].fail("is empty");
  return front;
}

AttackedCase read_attack_case(const Node& node) {
  AttackedCase attacked;
  attacked.norm = node["norm"].text();
  attacked.format = node["format"].text();
  attacked.parameters = node["parameters"].text();
  attacked.x = node["x"].text();
  attacked.policy = node["policy"].text();
  attacked.columns = node["columns"].small();
  const Node gradients = node["gradients"];
  for (const char* name : {"dgamma", "dx", "dbeta", "rstd"}) {
    if (name != std::string_view("dgamma") && !gradients.has(name)) continue;  // RMSNorm has no beta, and a case may be about dgamma alone
    const Node found = gradients[name];
    AttackedBound bound;
    bound.gradient = name;
    bound.evaluations = figure_of(found["evaluations"]);
    bound.violations = figure_of(found["violations"]);
    if (!found["tightness"].null()) bound.tightness = figure_of(found["tightness"]);
    bound.ours = found["worst_over_bound"].bound();
    if (found.has("peers_over_bound")) {
      for (size_t i = 0; i < kPeerWays.size(); ++i) bound.peers[i] = found["peers_over_bound"][kPeerWays[i]].bound();
    }
    attacked.bounds.push_back(std::move(bound));
  }
  return attacked;
}

AttackFile read_attack(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  node.expect_schema("outgrad.norm_attack/1");
  AttackFile attack;
  attack.file = file;
  attack.evaluations = figure_of(node["evaluations"]);
  attack.violations = figure_of(node["violations"]);
  attack.median_tightness = figure_of(node["median_tightness"]);
  attack.share_within_4 = figure_of(node["share_within_4"]);
  for (const char* gradient : {"dx", "dgamma", "dbeta"})
    attack.median_of_gradient.emplace_back(gradient, figure_of(node["median_tightness_by_gradient"][gradient]));
  for (const char* format : kernels::ActivationFormats::kNames) {
    if (node["median_tightness_of_dx_by_format"].has(format))
      attack.median_of_dx.emplace_back(format, figure_of(node["median_tightness_of_dx_by_format"][format]));
  }
  double violations = 0;
  for (const Node& one : node["cases"].items()) {
    attack.cases.push_back(read_attack_case(one));
    for (const AttackedBound& bound : attack.cases.back().bounds) violations += bound.violations;
  }
  if (attack.cases.empty()) node["cases"].fail("is empty");
  if ((violations > 0) != (attack.violations > 0)) node["violations"].fail("is not what the cases have");
  return attack;
}

CertificateAttack read_certificate_attack(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  node.expect_schema("outgrad.certificate_attack/1");
  const Node mutations = node["mutations"], specifications = node["specifications"];
  CertificateAttack attack{.file = file};
  attack.mutants = mutations["tried"].count(), attack.killed = mutations["killed"].count(), attack.harmless = mutations["harmless"].count();
  attack.survived = mutations["survived"].count();
  attack.specifications = specifications["tried"].count(), attack.fitted = specifications["fitted"].count(), attack.refused = specifications["refused"].count();
  attack.undecided = specifications["undecided"].count(), attack.false_claims = specifications["false"].count();
  const std::int64_t contested = specifications.has("contested") ? specifications["contested"].count() : 0;  // files before 0.2.0 have none
  attack.broken =
      mutations["internal"].count() + specifications["hung"].count() + specifications["memory"].count() + specifications["internal"].count() + contested;
  return attack;
}

CoqProof read_proof(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  node.expect_schema("outgrad.proofs/1");
  CoqProof proof{.file = file, .name = node["name"].text(), .spec_sha256 = node["spec_sha256"].text(), .coq = node["coq"].text()};
  proof.holds = node["holds"].boolean();
  proof.cpu_s = node["cpu_s"].finite();
  bool all_proven = true;
  for (const Node& one : node["bounds"].items()) {
    const bool proven = one["outcome"].text() == "proven";
    all_proven = all_proven && proven;
    if (one["bound"].text() == "x") continue;  // the ranges of x of the rows
    const auto bound = std::find(kCoqBounds.begin(), kCoqBounds.end(), one["bound"].text());
    if (bound == kCoqBounds.end()) one["bound"].fail("is none of A, B, T and x");
    CoqBound& of = proof.bounds[static_cast<std::size_t>(bound - kCoqBounds.begin())];
    ++of.files;
    if (proven) ++of.proven;
    if (one.has("claim")) of.claim = std::max(of.claim, one["claim"].hex_bound());
  }
  const Node assumed = node["assumptions"];
  proof.assumptions = assumed["names"].items().size(), proof.unlisted = assumed["unlisted"].items().size();
  if (proof.holds && (!all_proven || proof.unlisted > 0)) node["holds"].fail("is not what the files have");
  return proof;
}

/// A number, or nothing for null, which means that the run diverged.
std::optional<double> maybe(const Node& node) {
  if (node.null()) return {};
  const double value = node.real();
  if (!std::isfinite(value)) node.fail("is not finite");
  return value;
}

std::vector<std::string> texts(const Node& node) {
  std::vector<std::string> all;
  for (const Node& one : node.items()) all.push_back(one.text());
  return all;
}

/// The mean over the seeds, step by step.
std::vector<TrainingCurve> mean_curves(const Node& runs, const TrainingResult& training) {
  std::map<std::pair<std::string, std::string>, std::pair<int, std::vector<std::optional<double>>>> sums;
  for (const Node& run : runs.items()) {
    const std::string text = run["text"].text(), way = run["way"].text();
    const auto known = [](const std::vector<std::string>& all, const std::string& one) { return std::find(all.begin(), all.end(), one) != all.end(); };
    if (!known(training.texts, text)) run["text"].fail("is not in the configuration");
    if (!known(training.ways, way)) run["way"].fail("is not in the configuration");
    auto& [count, sum] = sums[{text, way}];
    if (sum.empty()) sum.assign(training.loss_steps.size(), 0.0);
    const std::vector<Node> losses = run["loss"].items(training.loss_steps.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      const std::optional<double> loss = maybe(losses[i]);
      sum[i] = sum[i] && loss ? std::optional(*sum[i] + *loss) : std::nullopt;
    }
    ++count;
  }
  std::vector<TrainingCurve> curves;
  for (const std::string& text : training.texts) {
    for (const std::string& way : training.ways) {
      const auto found = sums.find({text, way});
      if (found == sums.end()) continue;
      auto [count, sum] = found->second;
      for (std::optional<double>& loss : sum)
        if (loss) *loss /= count;
      curves.push_back({text, way, std::move(sum)});
    }
  }
  return curves;
}

/// The rows of layers or of models: {name: {recipe: {mode: a figure}}}. Every recipe must have the same modes.
template <class Figure>
std::vector<LedgerRow> ledger_rows(const Node& table, std::vector<std::string>& modes, const Figure& add_figure) {
  std::vector<LedgerRow> rows;
  for (const std::string& of : table.keys()) {
    const Node recipes = table[of];
    const auto begin = static_cast<std::ptrdiff_t>(rows.size());
    for (const std::string& recipe : recipes.keys()) {
      const Node figures = recipes[recipe];
      if (modes.empty()) modes = figures.keys();
      if (modes.empty() || figures.keys() != modes) figures.fail("has other modes than the recipes before it, or none");
      LedgerRow row{of, recipe, {}, {}};
      for (const std::string& mode : modes) add_figure(figures[mode], row);
      rows.push_back(std::move(row));
    }
    std::stable_sort(rows.begin() + begin, rows.end(), [](const LedgerRow& a, const LedgerRow& b) { return a.mib > b.mib; });
  }
  if (rows.empty()) table.fail("is empty");
  return rows;
}

/// A figure, which must be at least 0.
double amount_of(const Node& node) {
  const double amount = node.finite();
  if (amount < 0) node.fail("is negative");
  return amount;
}

LedgerResult read_ledger(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  node.expect_schema("outgrad.ledger/1");
  LedgerResult ledger;
  ledger.file = file;
  ledger.command = node["command"].text();
  ledger.length = node["length"].small();
  ledger.layers = ledger_rows(node["layers"], ledger.modes, [](const Node& mib, LedgerRow& row) { row.mib.push_back(amount_of(mib)); });
  ledger.models = ledger_rows(node["models"], ledger.modes, [&](const Node& figure, LedgerRow& row) {
    row.mib.push_back(amount_of(figure["kept"]) / (1 << 20));
    const Node batches = figure["batch"];
    std::vector<std::int64_t> memories;
    for (const std::string& gib : batches.keys()) memories.push_back(std::atoll(gib.c_str()));
    std::sort(memories.begin(), memories.end());
    if (ledger.memories.empty()) ledger.memories = memories;
    if (memories != ledger.memories) batches.fail("is for other memories than the ones before it");
    row.batches.emplace_back();
    for (const std::int64_t gib : memories) row.batches.back().push_back(batches[std::to_string(gib)].count());
  });
  return ledger;
}

TrainingResult read_training(const std::string& file) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  node.expect_schema("outgrad.training/2");
  TrainingResult training;
  training.file = file;
  training.command = node["command"].text();
  const Node configuration = node["configuration"], model = configuration["model"];
  training.model = fmt::format("{} layers of width {}, {} parameters", model["layers"].small(), model["width"].small(), model["parameters"].count());
  training.steps = configuration["steps"].small();
  training.seeds = static_cast<int>(configuration["seeds"].items().size());
  training.texts = texts(configuration["texts"]);
  training.ways = texts(configuration["ways"]);
  for (const Node& step : node["loss_steps"].items()) training.loss_steps.push_back(figure_of(step));
  training.curves = mean_curves(node["runs"], training);
  for (const Node& one : node["summary"].items()) {
    TrainedWay way;
    way.text = one["text"].text();
    way.way = one["way"].text();
    way.ended = one["n"].small();
    way.diverged = one["diverged"].small();
    if (!one["validation_loss"].null()) way.loss = maybe(one["validation_loss"]["mean"]);
    if (const Node difference = one["difference"]; !difference.null()) {
      way.difference = maybe(difference["mean"]);
      way.low = maybe(difference["low"]);
      way.high = maybe(difference["high"]);
      training.confidence = figure_of(difference["confidence"]);
    }
    if (const Node distance = one["relative_l2"]; !distance.null()) {
      way.distance_median = maybe(distance["median"]);
      way.distance_most = maybe(distance["greatest"]);
    }
    training.summary.push_back(std::move(way));
  }
  std::vector<double> noise;
  for (const Node& probe : node["probes"].items())
    if (const auto other = maybe(probe["other_batch"])) noise.push_back(*other);
  if (!noise.empty()) {
    const auto middle = noise.begin() + static_cast<std::ptrdiff_t>(noise.size() / 2);
    std::nth_element(noise.begin(), middle, noise.end());
    training.noise = *middle;
  }
  return training;
}

/// The folder, beside those of a run, with what was committed and the run has not made.
constexpr const char* kCommitted = "committed";

/// Paths in the file are relative to `in`.
Provenance read_provenance(const std::string& file, const fs::path& in) {
  const nlohmann::json json = read_json(file);
  const Node node(json, file, "");
  node.expect_schema("outgrad.provenance/1");
  const Node machine = node["machine"];
  const int cores = machine["cores"].small();
  const std::string commit = node["commit"].text(), gpu = machine["gpu"].text();
  Provenance provenance;
  provenance.made_by =
      page::quoted(fmt::format("outgrad {}{}, {}, on {}, {} {}, {}", node["version"].text(), commit.empty() ? "" : ", commit " + commit, node["date"].text(),
                               machine["cpu"].text(), cores, cores == 1 ? "core" : "cores", gpu.empty() ? "no GPU" : gpu));
  for (const Node& path : node["run"].items()) provenance.of_files[(in / path.text()).string()] = "this run";
  const Node committed = node["committed"];
  for (const std::string& path : committed.keys()) {
    const std::string date = committed[path]["date"].text(), at = committed[path]["commit"].text();
    provenance.of_files[(in / kCommitted / path).string()] = page::quoted(kCommitted + (date.empty() ? "" : " " + date) + (at.empty() ? "" : " " + at));
  }
  return provenance;
}

/// A header and the fit from which it claims to come must agree.
void expect_agreement(const Results& results) {
  for (const BackwardHeader& header : results.backward) {
    const FitResult* fit = results.fit_named(header.name);
    if (!fit) continue;
    const auto same = [](double claim, double certified) { return claim == 0 || claim == certified; };  // 0: the header has no such claim
    const std::array<std::pair<const char*, bool>, 5> claims{{{"A", fit->bound_a == header.bound_a},
                                                              {"K", fit->bound_k == header.bound_k},
                                                              {"B", fit->bound_b == header.bound_b},
                                                              {"AB", same(header.bound_ab, fit->bound_ab)},
                                                              {"ulp", same(header.bound_ulp, fit->bound_ulp)}}};
    for (const auto& [name, equal] : claims) {
      if (!equal) throw SpecError(fit->file, fmt::format("certificate.{}", name), "is not what " + header.file + " claims");
    }
  }
  for (const CoqProof& proof : results.proofs) {
    const FitResult* fit = results.fit_named(proof.name);
    if (!fit) continue;
    if (fit->spec_sha256 != proof.spec_sha256) throw SpecError(proof.file, "spec_sha256", "is not that of " + fit->file);
    const std::array<double, 2> certified{fit->bound_a, fit->bound_b.value_or(0)};
    for (std::size_t k = 0; k < certified.size(); ++k) {
      if (proof.bounds[k].claim > certified[k]) throw SpecError(proof.file, "bounds", fmt::format("{} claims more than {}", kCoqBounds[k], fit->file));
    }
  }
}

template <class T, class Predicate>
const T* find(const std::vector<T>& items, Predicate wanted) {
  const auto found = std::find_if(items.begin(), items.end(), wanted);
  return found == items.end() ? nullptr : &*found;
}

}  // namespace

std::string Results::origin(const std::string& file) const {
  if (provenance.made_by.empty()) return "not stated";
  const auto found = provenance.of_files.find(file);
  return found == provenance.of_files.end() ? "not of this run" : found->second;
}

const AttackedBound* AttackedCase::of(const std::string& gradient) const {
  return find(bounds, [&](const AttackedBound& bound) { return bound.gradient == gradient; });
}

const BackwardHeader* Results::backward_named(const std::string& name) const {
  return find(backward, [&](const BackwardHeader& header) { return header.name == name; });
}

const FitResult* Results::fit_named(const std::string& name) const {
  return find(fits, [&](const FitResult& fit) { return fit.name == name; });
}

const SweepResult* Results::sweep_of(const std::string& format) const {
  return find(sweeps, [&](const SweepResult& sweep) { return sweep.activation == "gelu" && sweep.fit == "gelu_" + format; });
}

const SweepResult* Results::sweep_of_fit(const std::string& name) const {
  return find(sweeps, [&](const SweepResult& sweep) { return sweep.fit == name; });
}

Results read_results(const std::string& folder, const std::string& headers) {
  if (!fs::is_directory(folder)) throw SpecError(folder, "--in", "is not a folder");
  const fs::path in(folder);
  Results results;
  for (const std::string& file : files_in<fs::recursive_directory_iterator>(headers, ".h")) {
    if (fs::path(file).filename().string().starts_with("tuned")) continue;  // it has schedules and no coefficients
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
  const auto files = [&](const char* kind, const char* extension) {
    std::vector<std::string> found = files_in(in / kind, extension);
    for (const std::string& file : files_in(in / kCommitted / kind, extension)) {
      if (!fs::exists(in / kind / fs::path(file).filename())) found.push_back(file);
    }
    std::sort(found.begin(), found.end(), [](const fs::path& x, const fs::path& y) { return std::pair(x.filename(), x) < std::pair(y.filename(), y); });
    return found;
  };
  for (const std::string& file : files("fits", ".json")) {
    if (FitResult fit = read_fit(file); has_rows(fit)) results.fits.push_back(std::move(fit));
  }
  for (const std::string& file : files("sweeps", ".json")) {
    if (std::optional<StoreSweep> stores = read_store_sweep(file)) {
      results.store_sweeps.push_back(std::move(*stores));
      continue;
    }
    std::optional<SweepResult> sweep = read_sweep(file);
    if (!sweep) {
      results.warnings.push_back(file + ":1: a part of a sweep, ignored");
      continue;
    }
    if (!sweep->stored.empty()) throw SpecError(file, "foreign", "is a sweep of published coefficients: their folder is foreign/sweeps");
    if (const SweepResult* other = results.sweep_of_fit(sweep->fit)) throw SpecError(file, "subject", sweep->fit + " was swept in " + other->file + " already");
    results.sweeps.push_back(std::move(*sweep));
  }
  for (const std::string& file : files("foreign/sweeps", ".json")) {
    if (std::optional<QuantiserResult> quantiser = read_quantiser_result(file)) {
      results.quantisers.push_back(std::move(*quantiser));
      continue;
    }
    std::optional<SweepResult> sweep = read_sweep(file);
    if (!sweep || sweep->stored.empty()) throw SpecError(file, "foreign", "is missing: this is no whole sweep of published coefficients");
    results.foreign.push_back(std::move(*sweep));
  }
  for (const std::string& file : files("stability", ".json")) results.stability.push_back(read_stability(file));
  for (const std::string& file : files("pareto", ".json")) results.pareto.push_back(read_pareto(file));
  for (const std::string& file : files("front", ".json")) results.fronts.push_back(read_front(file));
  for (const std::string& file : files("attack", ".json")) {
    if (fs::path(file).filename() == "certificates.json") {
      results.certificates = read_certificate_attack(file);
    } else {
      results.attacks.push_back(read_attack(file));
    }
  }
  for (const std::string& file : files("proofs", ".json")) results.proofs.push_back(read_proof(file));
  for (const std::string& file : files("studies", ".json")) {
    if (fs::path(file).filename() == "ledger.json") results.ledgers.push_back(read_ledger(file));
  }
  for (const std::string& file : files("training", ".json")) {
    if (fs::path(file).filename() == "masked_lm.json") results.training.push_back(read_training(file));
  }
  for (const std::string& file : files("tuned", ".jsonl")) read_tuning(file, results);
  if (const fs::path file = in / "provenance.json"; fs::exists(file)) results.provenance = read_provenance(file.string(), in);
  expect_agreement(results);
  return results;
}

}  // namespace outgrad::validation
