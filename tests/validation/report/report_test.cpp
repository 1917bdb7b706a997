// The report: verdicts follow the figures, bad input is refused with its place, hostile names stay text, and the page stands alone.

#include "validation/report/report.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/options.h"
#include "validation/report/report_command.h"
#include "validation/sweep/sweep_json.h"
#include "validation/sweep/targets.h"

namespace outgrad::validation {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using kernels::SpecError;

constexpr const char* kHostile = "<script>alert(1)</script>|`x`\"'&";

/// What a faultless sweep of `format` leaves, by the writer itself: T = 1.01 O, R a quarter of its limit, every y correctly rounded.
Json sweep_json(const FloatFormat& format) {
  std::vector<DomainResult> results;
  for (const Domain& domain : domains_for(format)) {
    DomainResult result{domain, {}, 1e-6};
    Segment& all = result.all;
    all.patterns = domain.size();
    all.finite = domain.finite();
    for (const size_t branch : {0, 1}) {
      all.oracle[branch] = {0.01, -0.75f, -0.17f, 0, 0.01};
      all.total[branch] = all.stored[branch] = all.storage[branch] = {0.0101, -0.75f, -0.17f, 0, 0.0101};
      all.regret[branch] = {0x1p-13, -0.75f, -0.17f, 0, 0};
      for (PerBranch& foreign : all.foreign) foreign[branch] = {0.02, 0, 0, 0, 0};
      all.erff[branch] = {0.03, 0, 0, 0, 0};
    }
    for (Maximum& ulp : all.forward_ulp) ulp = {0.5, 0, 0, 0, 0};
    for (int bin = 0; bin < kCurveBins; bin += 20) all.curve[bin] = {-1e-7, 2e-7, 5e-8, {}, {}};  // a few: every test reads them
    results.push_back(std::move(result));
  }
  Subject subject{"gelu_" + std::string(format.name) + "+gelu_forward", format, "0", {}, {}, {}};
  return report_json(subject, results);
}

Json stability_json() {
  Json channels;
  const auto column = [&](const char* key, Json first, Json second) { channels[key] = Json::array({std::move(first), std::move(second)}); };
  column("gamma", 1.0, 0.0);
  column("beta", 0.1, 0.2);
  column("rho", 0.1, nullptr);  // gamma = 0: nothing bounds it
  column("class", "stable", "zero_gamma");
  for (const char* key : {"bits_lost", "x_hat_conditional", "dgamma_conditional"}) column(key, 0.5, nullptr);
  const Json bounds{{"dx_rms_relative", {{"worst", 0.01}, {"conditional", 0.01}}}};
  const Json norm{{"name", kHostile},
                  {"norm", "layernorm"},
                  {"columns", 2},
                  {"classes", {{"stable", 1}, {"degraded", 0}, {"unstable", 0}, {"zero_gamma", 1}}},
                  {"rho", {{"q50", 0.1}, {"max", nullptr}}},
                  {"policy", {{"name", "side_buffer"}, {"channels", {1}}, {"bytes_per_row", 4}}},
                  {"bounds", {{"from_output", {{"dx_rms_relative", {{"worst", nullptr}}}}}, {"recommended", bounds}}},
                  {"estimates", {{"dgamma_relative_l2", 0.001}}},
                  {"channels", channels}};
  return {{"schema", "outgrad.stability/1"},
          {"source", std::string("checkpoints/") + "a`b.npz"},
          {"options", {{"format", "bf16"}, {"eps", 1e-5}, {"mean_ratio", 10}, {"dy_max", 1}, {"x_hat_max", 6}, {"tau", 0.0625}}},
          {"norms", {norm}}};
}

Json tuning_record(const std::string& time, const std::string& variant, const std::string& state) {
  Json record{{"schema", "outgrad.tune/1"},
              {"time", time},
              {"device", {{"model", "a processor"}, {"threads", 2}}},
              {"compiler", "a compiler"},
              {"kernel", "gelu_backward"},
              {"format", "f32"},
              {"variant", variant},
              {"fit", {{"name", "fit_of_" + variant}, {"class", "abs:2^-10"}, {"as_accurate", true}}},
              {"default", variant == "usual"},
              {"state", state}};
  if (state == "rejected") record["rejected"] = {{"stage", "verify"}, {"reason", "wrong_answer"}, {"detail", kHostile}};
  if (state == "timed") {
    record.update({{"winner", variant == "best"},
                   {"gain", variant == "best"},
                   {"ceiling", {{"name", "triad"}}},
                   {"gb_per_s", 20.0},
                   {"share_of_ceiling", 0.75},
                   {"speedup", {{"median", 1.25}, {"low", 1.2}, {"high", 1.3}, {"confidence", 0.99}}}});
  }
  return record;
}

Json pareto_json() {
  const auto point = [](const char* name, int work, int bytes, double error) {
    return Json{{"name", name},      {"class", "abs:2^-10"}, {"work", work},    {"depth", work - 3}, {"table_bytes", bytes},
                {"a_plus_b", error}, {"total", 0.011},       {"regret", error}, {"oracle", 0.01},    {"operations", 7},
                {"roots", 1},        {"selects", 4},         {"integer", 1},    {"loads", 4},        {"spec", {{"schema", "outgrad.spec/2"}, {"name", name}}}};
  };
  return {{"schema", "outgrad.pareto/2"},
          {"activation", "gelu"},
          {"format", "bf16"},
          {"exact", false},
          {"tried", 9},
          {"skipped", 4},
          {"out_of_reach", 1},
          {"too_coarse", 1},
          {"covered", 1},
          {"points", {point("cheap_of_all", 12, 0, 0x1p-7), point(kHostile, 21, 384, 0x1p-10)}}};
}

/// Two cases: one of a bound that the search reached nearly, one of a row without dx.
Json attack_json() {
  const auto bound = [](Json tightness, double ours, Json unguarded) {
    return Json{{"evaluations", 1e6},
                {"violations", 0},
                {"tightness", std::move(tightness)},
                {"worst_over_bound", ours},
                {"peers_over_bound", {{"from_input", 0.5}, {"clamped_gamma", 123456.0}, {"unguarded", std::move(unguarded)}}}};
  };
  const auto one = [&](const char* parameters, Json gradients) {
    return Json{{"norm", "layernorm"},     {"format", "bf16"}, {"parameters", parameters},         {"x", "centred"},
                {"policy", "side_buffer"}, {"columns", 64},    {"gradients", std::move(gradients)}};
  };
  Json rstd = bound(2.0, 0.5, 0.0);
  rstd.erase("peers_over_bound");
  return {{"schema", "outgrad.norm_attack/1"},
          {"evaluations", 2e8},
          {"violations", 0},
          {"median_tightness", 2.5},
          {"share_within_4", 0.75},
          {"median_tightness_by_gradient", {{"dx", 2.25}, {"dgamma", 2}, {"dbeta", 1.5}}},
          {"median_tightness_of_dx_by_format", {{"bf16", 2}}},
          {"cases",
           {one(kHostile, {{"dx", bound(1.25, 0.8, nullptr)}, {"dgamma", bound(2.0, 0.5, 1.0)}, {"rstd", rstd}}),
            one("gamma 1", {{"dgamma", bound(nullptr, 0, 0.0)}})}}};
}

/// Two ways on two texts from two seeds; one run diverged.
Json ledger_json() {
  const Json kept{{"kept", 3 << 20}, {"state", 5}, {"batch", {{"11", 3}, {"80", 44}}}},
      less{{"kept", 1 << 19}, {"state", 5}, {"batch", {{"11", 30}, {"80", 440}}}};
  return {{"schema", "outgrad.ledger/1"},
          {"command", "python notebooks_data/studies/ledger.py --write"},
          {"length", 512},
          {"layers", {{"a layer", {{"ours", {{"fp32", 20.285}, {"pure bf16", 10.285}}}, {"theirs", {{"fp32", 69.008}, {"pure bf16", 37.008}}}}}}},
          {"models", {{"a model", {{"ours", {{"fp32", less}, {"pure bf16", less}}}, {"theirs", {{"fp32", kept}, {"pure bf16", kept}}}}}}}};
}

Json training_json() {
  const auto run = [](const char* text, int seed, const char* way, Json second) {
    return Json{{"text", text}, {"seed", seed}, {"way", way}, {"loss", {3.0 + seed, std::move(second)}}};
  };
  const auto end = [](const char* text, const char* way, int ended, Json difference) {
    return Json{{"text", text},
                {"way", way},
                {"n", ended},
                {"diverged", 2 - ended},
                {"validation_loss", {{"mean", 1.5}}},
                {"difference", std::move(difference)},
                {"relative_l2", {{"median", 0.001}, {"greatest", 0.002}}}};
  };
  const Json difference{{"mean", 0.0125}, {"low", -0.25}, {"high", 0.5}, {"confidence", 0.95}};
  return {{"schema", "outgrad.training/2"},
          {"command", "python notebooks_data/studies/training.py --write"},
          {"configuration",
           {{"model", {{"layers", 2}, {"width", 64}, {"parameters", 110000}}},
            {"steps", 20},
            {"seeds", {1, 2}},
            {"texts", {"prose", "sources"}},
            {"ways", {"exact", kHostile}}}},
          {"loss_steps", {10, 20}},
          {"runs",
           {run("prose", 1, "exact", 2.0), run("prose", 2, "exact", 2.5), run("prose", 1, kHostile, 2.25), run("prose", 2, kHostile, nullptr),
            run("sources", 1, "exact", 2.0)}},
          {"probes", {{{"other_batch", 0.75}}, {{"other_batch", nullptr}}}},
          {"summary", {end("prose", "exact", 2, nullptr), end("prose", kHostile, 1, difference)}}};
}

class Report : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("outgrad_report_test_" + std::to_string(::getpid()));
    for (const char* part : {"fits", "generated", "sweeps", "stability", "pareto", "attack", "proofs", "studies", "training", "tuned"})
      fs::create_directories(folder_ / part);
    for (const FloatFormat& format : {kF32, kF16, kBf16}) {
      const std::string name = "gelu_" + std::string(format.name);
      fs::copy(fs::path(OUTGRAD_SOURCE_DIR) / "kernels/generated" / (name + ".h"), folder_ / "generated");
      fs::copy(fs::path(OUTGRAD_SOURCE_DIR) / "notebooks_data/fits" / (name + ".json"), folder_ / "fits");
      write("sweeps/" + name + ".json", sweep_json(format).dump());
    }
    write("stability/checkpoint.json", stability_json().dump());
    write("pareto/gelu_bf16.json", pareto_json().dump());
    write("attack/norms.json", attack_json().dump());
    write("proofs/gelu_bf16.json", kernels::read_file(OUTGRAD_SOURCE_DIR "/notebooks_data/proofs/gelu_bf16.json"));
    write("studies/ledger.json", ledger_json().dump());
    write("training/masked_lm.json", training_json().dump());
    std::string lines = tuning_record("2030-01-01T00:00:00Z", "of a clock that ran ahead", "timed").dump() + "\n{\"schema\": \"outgrad.tu";
    for (const auto& [variant, state] : std::vector<std::pair<const char*, const char*>>{{"usual", "timed"}, {"best", "timed"}, {kHostile, "rejected"}}) {
      lines += "\n" + tuning_record("2021-01-01T00:00:00Z", variant, state).dump();
    }
    write("tuned/tune_cpu.jsonl", lines + "\n");
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  void write(const std::string& name, const std::string& text) const { kernels::write_file(path(name), text); }
  Results read() const { return read_results(folder_.string(), path("generated")); }

  /// Applies `change` to a file's JSON, reads all, and puts the file back.
  void with_changed(const std::string& name, const std::function<void(Json&)>& change, const std::function<void()>& then) const {
    const std::string before = kernels::read_file(path(name));
    Json json = Json::parse(before);
    change(json);
    write(name, json.dump());
    then();
    write(name, before);
  }

  static int run(std::vector<std::string> arguments) {
    CLI::App app("test");
    int status = kernels::kExitHolds;
    add_report(app, status);
    arguments.insert(arguments.begin(), "report");
    kernels::parse(app, arguments);
    return status;
  }

  fs::path folder_;
};

std::vector<std::string> failing(const Results& results) {
  std::vector<std::string> rows;
  for (const Requirement& row : requirements(results)) {
    if (row.verdict() == RequirementVerdict::fail) rows.push_back(row.format + " " + row.quantity);
  }
  return rows;
}

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const SpecError& error) {
    return error.what();
  }
  return "accepted";
}

#define SKIP_WITHOUT_MATPLOTLIB()                                                                                                                       \
  if (std::system("for p in ${OUTGRAD_PYTHON:-python3 /usr/bin/python3}; do $p -c 'import jinja2, matplotlib' 2>/dev/null && exit; done; exit 1") != 0) \
  GTEST_SKIP() << "no Python here has jinja2 and matplotlib"

/// The rows of all tables, a line each.
std::string rows_of(const page::Document& document) {
  std::string text;
  for (const page::Section& section : document.sections) {
    for (const page::Block& block : section.blocks) {
      const auto* table = std::get_if<page::Table>(&block);
      for (const auto& row : table ? table->rows : std::vector<std::vector<page::Cell>>{}) {
        for (const page::Cell& cell : row) text += "| " + cell.text + " ";
        text += "|\n";
      }
    }
  }
  return text;
}

TEST_F(Report, EveryFaultFailsItsOwnRow) {
  const Results good = read();
  ASSERT_EQ(failing(good), std::vector<std::string>{});
  using Fault = std::pair<std::function<void(Results&)>, std::vector<std::string>>;
  for (const Targets& targets : kTargets) {
    const std::string f = targets.format;
    const auto header = [&](Results& r) -> BackwardHeader& {
      return *std::find_if(r.backward.begin(), r.backward.end(), [&](const BackwardHeader& h) { return h.name == "gelu_" + f; });
    };
    const auto domain = [&](Results& r) -> SweptDomain& {
      return std::find_if(r.sweeps.begin(), r.sweeps.end(), [&](const SweepResult& s) { return s.format == f; })->domains.front();
    };
    const double over = 1 + 0x1p-40;
    std::vector<Fault> faults{
        {[&](Results& r) { header(r).bound_a = targets.a * over; }, {f + " A, fit"}},
        {[&](Results& r) { (f == "f32" ? header(r).bound_ab : header(r).bound_b) = targets.a_plus_b * over; }, {f + " A + B, fit and evaluation"}},
        {[&](Results& r) { header(r).operations = targets.operations + 1; }, {f + " operations per element, backward"}},
        {[&](Results& r) { domain(r).ratio = targets.ratio * over; }, {f + " max T / max O, all " + f + " x"}},
        {[&](Results& r) { domain(r).ratio = std::nan(""); }, {f + " max T / max O, all " + f + " x"}},
        {[&](Results& r) { domain(r).wrong_mask = 1; }, {f + " wrong masks, NaN, infinities, all " + f + " x"}},
        {[&](Results& r) { domain(r).wrong_special = 1; }, {f + " wrong masks, NaN, infinities, all " + f + " x"}}};
    if (targets.regret) faults.push_back({[&](Results& r) { domain(r).regret.bound = *targets.regret * over; }, {f + " R, all " + f + " x"}});
    if (targets.misrounded) faults.push_back({[&](Results& r) { domain(r).misrounded = 1; }, {f + " forward y not correctly rounded, all " + f + " x"}});
    if (targets.near_ulp) {
      faults.push_back({[&](Results& r) { domain(r).near_ulp = 0.5101; }, {f + " forward y, |x - x*| <= 0.1"}});
      faults.push_back({[&](Results& r) { domain(r).far_ulp = 2.0001; }, {f + " forward y, elsewhere"}});
    }
    for (const auto& [damage, expected] : faults) {
      Results bad = good;
      damage(bad);
      EXPECT_EQ(failing(bad), expected);
    }
  }
}

TEST_F(Report, WhatIsMissingIsNotMeasuredAndNeverAPass) {
  Results results = read();
  results.sweeps.clear();
  results.backward.clear();
  results.proofs.clear();
  results.attacks[0].evaluations = 0x1p26;  // a short search that found nothing
  for (const Requirement& row : requirements(results)) EXPECT_EQ(row.verdict(), RequirementVerdict::not_measured) << row.quantity;
  results.attacks[0].violations = 1;
  EXPECT_EQ(failing(results), std::vector<std::string>{"norms violated bounds of dx, dgamma, dbeta"}) << "however short the search";
  // The sweep of another fit says nothing of the default's header, nor that header of the sweep.
  results = read();
  for (SweepResult& sweep : results.sweeps) sweep.fit = "another";
  for (const Requirement& row : requirements(results)) {
    if (row.established == "exhaustive") {
      EXPECT_EQ(row.verdict(), RequirementVerdict::not_measured) << row.quantity;
    }
  }
}

TEST_F(Report, FiguresAreRoundedUp) {
  std::mt19937_64 random(1);
  std::uniform_real_distribution<double> exponent(-60, 3);
  for (int i = 0; i < 10'000; ++i) {
    const double value = std::exp2(exponent(random));
    EXPECT_GE(std::stod(power_of_two(value).substr(2)), std::log2(value) - 1e-8);
    EXPECT_LE(std::stod(power_of_two(value).substr(2)), std::log2(value) + 0.0101);
    EXPECT_GE(std::stod(rounded_up(value, 4)), value * (1 - 1e-8));
    EXPECT_GE(std::stod(three_digits_up(value)), value * (1 - 1e-11));
    EXPECT_LE(std::stod(three_digits_up(value)), value * 1.0101);
  }
  EXPECT_EQ(power_of_two(0x1p-26), "2^-26");
  EXPECT_EQ(rounded_up(1.05, 4), "1.0500");
  EXPECT_EQ(rounded_up(0.51, 2), "0.51");
  EXPECT_EQ(three_digits_up(0.00505), "0.00505");
  EXPECT_EQ(power_of_two(0), "0");
  EXPECT_EQ(rounded_up(std::numeric_limits<double>::infinity(), 2), "inf");
}

TEST_F(Report, RefusesDamageWithItsPlace) {
  const auto refused = [&] { return refusal([&] { read(); }); };
  // Every key on the way to a figure: without it, and with a value of the wrong type.
  const std::vector<std::pair<std::string, std::vector<const char*>>> keys{
      {"sweeps/gelu_f16.json",
       {"/schema", "/activation", "/format", "/subject", "/domains", "/domains/0/x_format", "/domains/1/counts", "/domains/0/counts/patterns", "/domains/0/T",
        "/domains/0/T/bound", "/domains/0/O/max", "/domains/0/R/left", "/domains/0/C", "/domains/0/T_dx", "/domains/0/T_over_O", "/domains/0/forward/max_ulp",
        "/domains/0/foreign/0/T", "/domains/0/curve/bin_width", "/domains/0/curve/rows"}},
      {"fits/gelu_f16.json",
       {"/schema", "/name", "/kind", "/spec_sha256", "/class", "/certificate", "/certificate/A", "/certificate/AB", "/certificate/K", "/certificate/B",
        "/pieces", "/pieces/3/certified", "/pieces/3/lower_bound"}},
      {"stability/checkpoint.json",
       {"/schema", "/source", "/options/tau", "/norms", "/norms/0/name", "/norms/0/columns", "/norms/0/classes/degraded", "/norms/0/policy/name",
        "/norms/0/bounds/recommended", "/norms/0/channels/rho", "/norms/0/channels/class"}},
      {"pareto/gelu_bf16.json",
       {"/schema", "/activation", "/format", "/tried", "/points", "/points/0/name", "/points/1/class", "/points/0/work", "/points/0/depth",
        "/points/0/table_bytes", "/points/1/a_plus_b", "/points/0/total", "/points/0/regret", "/points/0/oracle", "/points/0/operations",
        "/points/1/spec/name"}},
      {"attack/norms.json",
       {"/schema", "/evaluations", "/violations", "/median_tightness", "/share_within_4", "/median_tightness_by_gradient/dx", "/cases", "/cases/0/norm",
        "/cases/1/format", "/cases/0/columns", "/cases/0/gradients", "/cases/0/gradients/dx/violations", "/cases/0/gradients/dx/worst_over_bound",
        "/cases/0/gradients/dgamma/peers_over_bound/unguarded"}},
      {"proofs/gelu_bf16.json",
       {"/schema", "/name", "/spec_sha256", "/coq", "/cpu_s", "/bounds", "/bounds/0/bound", "/bounds/1/outcome", "/assumptions", "/assumptions/names",
        "/assumptions/unlisted"}},
      {"studies/ledger.json",
       {"/schema", "/command", "/length", "/layers", "/layers/a layer", "/layers/a layer/theirs/fp32", "/models", "/models/a model/ours/fp32/kept",
        "/models/a model/theirs/fp32/batch", "/models/a model/theirs/pure bf16/batch/80"}},
      {"training/masked_lm.json",
       {"/schema", "/command", "/configuration/model/layers", "/configuration/steps", "/configuration/seeds", "/configuration/texts", "/configuration/ways",
        "/loss_steps", "/runs", "/runs/0/text", "/runs/0/way", "/runs/0/loss", "/probes", "/probes/0/other_batch", "/summary", "/summary/0/n",
        "/summary/1/difference", "/summary/1/difference/low", "/summary/1/relative_l2/median"}}};
  for (const auto& [file, pointers] : keys) {
    for (const char* pointer : pointers) {
      const nlohmann::ordered_json::json_pointer at(pointer);
      const auto expect_refused = [&] {
        const std::string why = refused();
        EXPECT_EQ(why.rfind(path(file) + ": ", 0), 0u) << pointer << ": " << why;
      };
      with_changed(file, [&](Json& json) { json[at.parent_pointer()].erase(at.back()); }, expect_refused);
      with_changed(file, [&](Json& json) { json[at] = true; }, expect_refused);
    }
    const std::string whole = kernels::read_file(path(file));
    for (size_t part = 0; part < 20; ++part) {
      write(file, whole.substr(0, whole.size() * part / 20));
      EXPECT_EQ(refused().rfind(path(file) + ": byte ", 0), 0u);
    }
    write(file, whole);
  }
  const auto expect = [&](const char* words) { return [=] { EXPECT_NE(refused().find(words), std::string::npos) << words << ": " << refused(); }; };
  with_changed("sweeps/gelu_bf16.json", [](Json& json) { json["domains"][0]["counts"]["patterns"] = 65535; }, expect("not exhaustive"));
  with_changed("sweeps/gelu_bf16.json", [](Json& json) { json["subject"] = "gelu_f16+gelu_forward"; }, expect("already"));
  with_changed("fits/gelu_f32.json", [](Json& json) { json["certificate"]["B"] = "0x1p-30"; }, expect("certificate.B"));
  for (const char* bad : {"-0x1p-30", "0x1p-30x", "1e-9", "0x", "inf", "nan", "0x1p99999"}) {
    with_changed("fits/gelu_f32.json", [=](Json& json) { json["pieces"][0]["certified"] = bad; }, expect("pieces[0].certified"));
  }
  for (const char* bad : {"nan", "inf", "-inf"}) {
    with_changed("pareto/gelu_bf16.json", [=](Json& json) { json["points"][0]["regret"] = bad; }, expect("points[0].regret"));
  }
  with_changed("pareto/gelu_bf16.json", [](Json& json) { json["format"] = "f17"; }, expect("format"));
  with_changed("pareto/gelu_bf16.json", [](Json& json) { json["points"][0]["work"] = -1; }, expect("points[0].work"));
  with_changed("pareto/gelu_bf16.json", [](Json& json) { json["points"] = Json::array(); }, expect("points"));
  with_changed("pareto/gelu_bf16.json", [](Json& json) { json["exact"] = "yes"; }, expect("exact"));
  with_changed("attack/norms.json", [](Json& json) { json["cases"] = Json::array(); }, expect("cases"));
  with_changed("attack/norms.json", [](Json& json) { json["cases"][0]["gradients"]["dx"]["violations"] = 1; }, expect("not what the cases have"));
  with_changed("proofs/gelu_bf16.json", [](Json& json) { json["bounds"][0]["outcome"] = "undecided"; }, expect("holds: is not what the files have"));
  with_changed("proofs/gelu_bf16.json", [](Json& json) { json["assumptions"]["unlisted"].push_back("false"); }, expect("holds: is not what the files have"));
  with_changed("proofs/gelu_bf16.json", [](Json& json) { json["holds"] = "yes"; }, expect("holds"));
  with_changed("proofs/gelu_bf16.json", [](Json& json) { json["bounds"][0]["bound"] = "C"; }, expect("bounds[0].bound"));
  const auto of_a_row = [](const Json& one) { return one["bound"] == "A"; };
  with_changed("proofs/gelu_bf16.json", [&](Json& json) { (*std::ranges::find_if(json["bounds"], of_a_row))["claim"] = "0x1p-5"; }, expect("claims more than"));
  with_changed("proofs/gelu_bf16.json", [](Json& json) { json["spec_sha256"] = "0"; }, expect("spec_sha256: is not that of"));
  for (const char* file : {"attack/norms.json", "proofs/gelu_bf16.json", "studies/ledger.json", "training/masked_lm.json", "pareto/gelu_bf16.json"}) {
    with_changed(file, [](Json& json) { json["schema"] = json["schema"].get<std::string>() + "0"; }, expect("schema"));
  }
  with_changed("studies/ledger.json", [](Json& json) { json["layers"]["a layer"]["ours"]["fp32"] = -1; }, expect("layers.a layer.ours.fp32"));
  with_changed("studies/ledger.json", [](Json& json) { json["models"]["a model"]["ours"]["fp32"]["batch"]["eleven"] = 1; }, expect("batch"));
  with_changed("studies/ledger.json", [](Json& json) { json["layers"] = Json::object(); }, expect("layers"));
  with_changed("training/masked_lm.json", [](Json& json) { json["runs"][0]["way"] = "of nobody"; }, expect("runs[0].way"));
  with_changed("training/masked_lm.json", [](Json& json) { json["runs"][0]["loss"].push_back(1.0); }, expect("runs[0].loss"));
  with_changed("training/masked_lm.json", [](Json& json) { json["runs"][1]["loss"][1] = "2.5"; }, expect("runs[1].loss[1]"));
  with_changed("training/masked_lm.json", [](Json& json) { json["loss_steps"][0] = "nan"; }, expect("loss_steps[0]"));
  write("generated/gelu_f32.h", "garbage");
  expect("gelu_f32.h:1")();
}

TEST_F(Report, TheLastRunCountsWhateverItsDateAndBrokenLinesAreWarnings) {
  const Results results = read();
  ASSERT_EQ(results.tuning.size(), 1u);
  const TuningResult& t = results.tuning[0];
  EXPECT_EQ(t.winner, "best");
  EXPECT_EQ(t.default_variant, "usual");
  EXPECT_EQ(t.timed, 2);
  ASSERT_EQ(t.rejected.size(), 1u);
  EXPECT_EQ(t.rejected[0].reason, "wrong_answer");
  ASSERT_EQ(results.warnings.size(), 1u);
  EXPECT_NE(results.warnings[0].find("tune_cpu.jsonl:2: "), std::string::npos);
}

TEST_F(Report, ATuningRecordOfANewerSchemaIsRefusedAsTheTunerRefusesIt) {
  const auto only_line = [&](const std::string& schema) {
    write("tuned/tune_cpu.jsonl", R"({"schema": ")" + schema +
                                      R"(", "variant": "best"})"
                                      "\n");
  };
  for (const std::string schema : {"outgrad.tune/2", "outgrad.tune/1.1", "outgrad.tune/99999999999"}) {
    only_line(schema);
    try {
      read();
      FAIL() << schema << " was passed over";
    } catch (const kernels::SpecError& error) {
      EXPECT_NE(std::string(error.what()).find("tune_cpu.jsonl:1: schema: '" + schema + "' is newer than this program's outgrad.tune/1"), std::string::npos)
          << error.what();
    }
  }
  for (const std::string schema : {"outgrad.tune/0", "outgrad.tune/x", "another/2"}) {
    only_line(schema);
    EXPECT_EQ(read().warnings.size(), 1u) << schema;
  }
}

// One reader: what is no record, no evidence or beyond its stack for the tuner is so for the report.
TEST_F(Report, ReadsATuningLineAsTheTunerDoes) {
  Json mistyped = tuning_record("2026-01-01T00:00:00Z", "mistyped", "timed"), earlier = mistyped, nobody = mistyped;
  mistyped["speedup"]["median"] = "fast";
  earlier["fit"].erase("as_accurate");
  nobody.erase("variant");
  const std::string deep = R"({"schema":"outgrad.tune/1","kernel":)" + std::string(100, '[') + std::string(100, ']') + "}";
  write("tuned/tune_cpu.jsonl", mistyped.dump() + "\n" + earlier.dump() + "\n" + deep + "\n" + nobody.dump() + "\n");
  const Results results = read();
  EXPECT_TRUE(results.tuning.empty());
  ASSERT_EQ(results.warnings.size(), 3u);
  EXPECT_NE(results.warnings[0].find("tune_cpu.jsonl:1: \"speedup.median\" is not a number, ignored"), std::string::npos) << results.warnings[0];
  EXPECT_NE(results.warnings[1].find("tune_cpu.jsonl:3: nested deeper"), std::string::npos) << results.warnings[1];
  EXPECT_NE(results.warnings[2].find("tune_cpu.jsonl:2: the first of 1 records of an earlier rule"), std::string::npos) << results.warnings[2];
}

// Each row names its machine: published tunings are of several.
TEST_F(Report, SaysOfATimingWhoseItIs) {
  Json on_a_gpu = tuning_record("2026-01-01T00:00:00Z", "best", "timed");
  on_a_gpu["device"] = {{"kind", "cuda"}, {"name", "a GPU"}};
  on_a_gpu["compiler"] = "NVRTC";
  write("tuned/tune_cpu.jsonl", tuning_record("2026-01-01T00:00:00Z", "best", "timed").dump() + "\n");
  write("tuned/tune_gpu.jsonl", on_a_gpu.dump() + "\n");
  const Results results = read();
  ASSERT_EQ(results.tuning.size(), 2u);
  const std::string page = Json(compose(results, requirements(results))).dump();
  EXPECT_NE(page.find("a processor, 2 threads; a compiler. a GPU; NVRTC. Timings"), std::string::npos);
  for (const char* machine : {"a processor, 2 threads", "a GPU"}) {
    std::string row;
    for (const std::string cell : {machine, "gelu_backward", "f32"}) row += (row.empty() ? "" : ",") + Json{{"text", cell}, {"tone", ""}}.dump();
    EXPECT_NE(page.find("[" + row), std::string::npos) << row;
  }
}

// What a line does not say is not 0.
TEST_F(Report, AWinnerWithoutFiguresIsNone) {
  for (const char* figure : {"speedup", "gb_per_s", "share_of_ceiling"}) {
    Json record = tuning_record("2026-01-01T00:00:00Z", "best", "timed");
    record.erase(figure);
    write("tuned/tune_cpu.jsonl", record.dump() + "\n");
    const Results results = read();
    EXPECT_EQ(results.tuning.at(0).winner, "") << figure;
    ASSERT_EQ(results.warnings.size(), 1u) << figure;
    EXPECT_NE(results.warnings[0].find("best is called the winner without its figures, ignored"), std::string::npos) << results.warnings[0];
  }
}

// The fastest variant of each fit counts, and the sentence on the default class follows from its interval.
TEST_F(Report, SaysWhatAnAccuracyClassCosts) {
  const auto page_with = [&](double low, double high) {
    std::string lines;
    for (const double slower : {1.0, 0.5}) {
      Json record = tuning_record("2026-01-01T00:00:00Z", "tails" + std::to_string(slower), "timed");
      record["format"] = "bf16";
      record["speedup"] = {{"median", slower * (low + high) / 2}, {"low", slower * low}, {"high", slower * high}, {"confidence", 0.99}};
      record["fit"] = {{"name", "gelu_bf16_ulp"}, {"class", "ulp:1"}, {"as_accurate", true}};
      lines += record.dump() + "\n";
    }
    write("tuned/tune_cpu.jsonl", lines);
    const Results results = read();
    EXPECT_EQ(results.tuning.at(0).fits.size(), 1u);
    return Json(compose(results, requirements(results))).dump();
  };
  const std::string slow = page_with(0.27, 0.33);
  EXPECT_NE(slow.find("(`gelu_bf16_ulp`) runs at 0.300"), std::string::npos);
  EXPECT_NE(slow.find("the class abs stays it"), std::string::npos);
  EXPECT_NE(page_with(0.95, 0.97).find("it can be the default here"), std::string::npos);
  EXPECT_NE(page_with(0.85, 0.97).find("undecided"), std::string::npos);
}

TEST_F(Report, PublishedCoefficientsStandBesideOurs) {
  Json audit = sweep_json(kF32);
  audit["subject"] = "theirs+rounded";
  EXPECT_TRUE(read().foreign.empty());
  fs::create_directories(folder_ / "foreign" / "sweeps");
  write("foreign/sweeps/theirs_f32.json", audit.dump());
  EXPECT_THROW(read(), SpecError) << "not said to be foreign";
  audit["foreign"] = {{"stored", "y and one bit"}, {"source", {{"work", kHostile}}}};
  audit["domains"][0]["C"] = audit["domains"][0]["forward"] = nullptr;
  audit["domains"][0]["foreign"] = Json::array();
  audit["domains"][0]["T"]["bound"] = 2.75;
  audit["domains"][0]["under"] = Json::array({{{"x", "N(0, 1^2)"}, {"rms", 0.125}, {"bias", -0.0625}, {"max", "inf"}, {"share_in_worst_codes", 0.0334}}});
  write("foreign/sweeps/theirs_f32.json", audit.dump());
  const Results results = read();
  ASSERT_EQ(results.foreign.size(), 1u);
  EXPECT_EQ(results.sweeps.size(), 3u) << "nothing of ours";
  const std::string text = rows_of(compose(results, requirements(results)));
  EXPECT_NE(text.find("| theirs |"), std::string::npos);
  EXPECT_NE(text.find("2.75"), std::string::npos);
  EXPECT_NE(text.find("| 0.125 | -0.0625 | inf | 3.3% |"), std::string::npos);
  write("sweeps/theirs_f32.json", audit.dump());
  EXPECT_THROW(read(), SpecError) << "ours are in sweeps/";
}

TEST_F(Report, QuantisersStandBesideOurs) {
  EXPECT_TRUE(read().quantisers.empty());
  fs::create_directories(folder_ / "foreign" / "sweeps");
  const Json range{{"min", -4},
                   {"max", 4},
                   {"T", {{"bound", 0.0251}}},
                   {"T_wrapped", {{"bound", 1.129}}},
                   {"O", 0.025},
                   {"bias", {{"value", -0.00625}}},
                   {"maximum_wraps", 0.125},
                   {"under", {{{"x", "N(0, 1^2)"}, {"mass", 1}, {"rms", 0.00673}}, {{"x", "N(0, 2^2)"}, {"mass", 0.5}, {"rms", 0.0777}}}}};
  Json audit{{"schema", "outgrad.quantiser/1"},
             {"activation", "gelu"},
             {"format", "f16"},
             {"foreign", {{"name", "theirs"}, {"stored", "x in 8 bits"}, {"source", {{"work", kHostile}}}}},
             {"bits_per_element", 8.25},
             {"ranges", {range}},
             {"groups", {{{"x", "N(0, 1^2)"}, {"rms", 0.0321}}}},
             {"maximum_wraps", {{{"mean", 0.019}, {"greatest", 0.126}}, {{"mean", 0.018}, {"greatest", 0.127}}}},
             {"running", {{"share_of_steps", 0.38}}}};
  write("foreign/sweeps/theirs_f16.json", audit.dump());
  const Results results = read();
  ASSERT_EQ(results.quantisers.size(), 1u);
  EXPECT_TRUE(results.foreign.empty());
  const std::string text = rows_of(compose(results, requirements(results)));
  for (const char* shown :
       {"| theirs | 8.25 | f16 | -4, 4 | 0.0251 | 1.13 | 0.025 | -0.00625 | 0.125 | 0.00673 |", "| mean 0.019, most 0.127 | 0.0321 |", "| 38% of steps |"})
    EXPECT_NE(text.find(shown), std::string::npos) << shown << text;
  EXPECT_EQ(text.find("0.0777"), std::string::npos) << "half of that distribution lies beyond the x";
  for (const char* key : {"bits_per_element", "ranges", "groups", "maximum_wraps", "running", "foreign"}) {
    Json torn = audit;
    torn.erase(key);
    write("foreign/sweeps/theirs_f16.json", torn.dump());
    EXPECT_THROW(read(), SpecError) << key;
  }
}

TEST_F(Report, ShardsAreNoSweep) {
  write("sweeps/gelu_f32_1_of_2.json", R"({"schema": "outgrad.sweep-part/1"})");
  const Results results = read();
  EXPECT_EQ(results.sweeps.size(), 3u);
  EXPECT_EQ(results.warnings.size(), 2u);
}

TEST_F(Report, ThePageStandsAloneAndNamesStayText) {
  SKIP_WITHOUT_MATPLOTLIB();
  Results results = read();
  results.training[0].summary[1].way += std::string(500, 'w');  // wider than the picture
  const page::Document document = compose(results, requirements(results));
  const auto rendered = [&](const std::string& folder) {
    page::write_report({{"page", document}}, path(folder));
    return kernels::read_file(path(folder + "/index.html"));
  };
  const std::string html = rendered("one"), markdown = kernels::read_file(path("one/report.md"));
  for (const char* outside : {"<script", "<link", "src=", "@import", "url(http", "href=\"http", "<img"})
    EXPECT_EQ(html.find(outside), std::string::npos) << outside;
  const auto count = [&](const std::string& text, const std::string& pattern) {
    const std::regex regex(pattern);
    return std::distance(std::sregex_iterator(text.begin(), text.end(), regex), std::sregex_iterator());
  };
  EXPECT_EQ(count(html, "<svg"), 12 + 3 + 1 + 1 + 1 + 1 + 3) << "four curves a format; limits of f16, bf16 and the others; a front, a "
                                                                "histogram, an attack, coverage; loss in two formats and at the end";
  EXPECT_EQ(count(html, "(fill|stroke): (#|rgb)"), 0) << "every colour of a plot follows the page from light to dark";
  EXPECT_EQ(count(html, "<title id=\"plot[0-9]+-title\">[^<]{20}"), count(html, "<svg"));
  EXPECT_EQ(count(html, "atplotlib"), 0) << "plots are named by what they show";
  EXPECT_GT(count(html, "&lt;script&gt;[^<]*</text>"), 0) << "a hostile name in a picture";
  EXPECT_NE(html.find("cheap_of_all"), std::string::npos);
  for (const char* tag : {"svg", "table", "tr", "td", "th", "figure", "code", "sup", "p", "div", "g"}) {
    EXPECT_EQ(count(html, std::string("<") + tag + "(?=[ >])(?![^>]*/>)"), count(html, std::string("</") + tag + ">")) << tag;
  }
  std::set<std::string> ids;
  const std::regex id("\\bid=['\"]([^'\"]*)['\"]");
  for (std::sregex_iterator found(html.begin(), html.end(), id); found != std::sregex_iterator(); ++found) {
    EXPECT_TRUE(ids.insert((*found)[1]).second) << (*found)[1];
  }
  EXPECT_EQ(rendered("two"), html) << "the same results give the same bytes";
  // Every plot stands in its own figure: their names come in the document's order, each before its figure's caption.
  size_t place = 0;
  for (const page::Section& section : document.sections) {
    for (const page::Block& block : section.blocks) {
      const auto* figure = std::get_if<page::Figure>(&block);
      if (!figure) continue;
      for (const page::Plot& plot : figure->plots) {
        const size_t next = html.find("-title\">" + plot.title.substr(0, plot.title.find_first_of("<>&")), place);
        ASSERT_NE(next, std::string::npos) << plot.title;
        place = next + 1;
      }
      const size_t caption = html.find("<figcaption>", place), following = html.find("<svg", place);
      EXPECT_LT(caption, following) << figure->caption;
    }
  }

  // A row of a Markdown table has as many cells as its head, whatever the names in it.
  EXPECT_EQ(count(markdown, "[^\\\\`]<script"), 0) << "escaped, or within a code span";
  std::istringstream lines(markdown);
  long cells = 0;
  for (std::string line; std::getline(lines, line);) {
    const long bars = count(line, "(^|[^\\\\])\\|");
    if (line.starts_with("|") && cells > 0) {
      EXPECT_EQ(bars, cells) << line;
    }
    cells = line.starts_with("|") ? bars : 0;
  }
}

// What a reader sees first, and that nothing is shown without the command that makes it.
TEST_F(Report, OpensWithTheVerdictAndEveryFigureHasItsCommand) {
  Results results = read();
  const auto document = [&] { return compose(results, requirements(results)); };
  const page::Document all = document();
  EXPECT_EQ(all.verdict.tone, page::Tone::good);
  EXPECT_EQ(all.verdict.headline.find("All "), 0u) << all.verdict.headline;
  EXPECT_EQ(all.key_figures.tiles.size(), 4u) << "T, T / O, patterns, attack: nothing of others here, and no way called ours";
  EXPECT_EQ(all.key_figures.tiles[0].figure, "0.0101") << "the whole error comes first, as a number";
  EXPECT_EQ(all.key_figures.tiles[0].note, "in f16 0.0101, bf16 0.0101");
  EXPECT_FALSE(all.key_figures.commands.empty());
  const std::vector<std::string> order{"Error curves",
                                       "T against O",
                                       "What to choose from",
                                       "Channel stability",
                                       "Norm bounds under attack",
                                       "Sweep coverage",
                                       "Errors as x have them",
                                       "Beside others",
                                       "Bits kept against the error of the gradient",
                                       "Bytes kept",
                                       "Training",
                                       "Requirements",
                                       "Errors, kept apart",
                                       "Forward",
                                       "Coefficients and cost",
                                       "Tuning",
                                       "Inputs"};
  ASSERT_EQ(all.sections.size(), order.size());
  const std::string text = rows_of(all);
  EXPECT_LT(text.find("69.008"), text.find("20.285")) << "what keeps most comes first";
  EXPECT_NE(text.find("30 / 440"), std::string::npos);
  // The studies of bytes and of training are programs in Python; everything else is a command of the wrapper.
  const auto is_command = [](const std::string& command) { return command.starts_with("./outgrad ") || command.starts_with("python notebooks_data/studies/"); };
  const auto expect_commands = [&is_command](const std::vector<page::Block>& blocks, const std::string& where) {
    for (const page::Block& block : blocks) {
      if (const auto* table = std::get_if<page::Table>(&block)) {
        EXPECT_TRUE(is_command(table->command)) << where << ": " << table->caption << ", " << table->command;
        for (const auto& row : table->rows) EXPECT_EQ(row.size(), table->columns.size()) << where << ": " << table->caption;
      }
      if (const auto* figure = std::get_if<page::Figure>(&block)) {
        EXPECT_TRUE(is_command(figure->command)) << where << ": " << figure->caption << ", " << figure->command;
        EXPECT_FALSE(figure->plots.empty()) << where;
        for (const page::Plot& plot : figure->plots) EXPECT_FALSE(plot.title.empty()) << where;
      }
    }
  };
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(all.sections[i].title, order[i]);
    EXPECT_FALSE(all.sections[i].blocks.empty()) << order[i];
    expect_commands(all.sections[i].blocks, order[i]);
  }
  expect_commands(all.summary, "summary");
  EXPECT_NE(Json(all).dump().find("gelu: work against error"), std::string::npos);
  EXPECT_NE(text.find("4,294,967,296"), std::string::npos) << "the patterns of f32, counted";
  EXPECT_NE(text.find("1.23e+05"), std::string::npos) << "what clamping gamma costs";
  EXPECT_NE(text.find("| +0.013 | [-0.25, +0.5] |"), std::string::npos) << "a difference with its interval";

  EXPECT_NE(text.find("| gelu_bf16 | 16 of 16 | 2^-10.80 | 20 of 20 | 2^-23.20 | - | - | 93 |"), std::string::npos) << "what Coq accepted";
  results.proofs[0].bounds[1].proven = 19;
  EXPECT_EQ(failing(results), (std::vector<std::string>{"certificates refused by Coq, of 36 files"}));
  results.proofs[0].bounds[1].proven = 20;

  // Each requirement has its cell on the first screen, those of no format in particular too.
  results.certificates = CertificateAttack{.file = "certificates.json", .mutants = 7, .specifications = 3};
  const std::vector<Requirement> rows = requirements(results);
  const auto figures = [](const page::Table& table) {
    std::ptrdiff_t filled = 0;
    for (const auto& row : table.rows) {
      const auto n = std::count_if(row.begin() + 1, row.end(), [](const page::Cell& cell) { return !cell.text.empty(); });
      EXPECT_GE(n, 1) << row[0].text;
      filled += n;
    }
    return filled;
  };
  const page::Document attacked = document();
  EXPECT_EQ(figures(std::get<page::Table>(attacked.summary.at(0))) + figures(std::get<page::Table>(attacked.remarks.at(0))),
            static_cast<std::ptrdiff_t>(rows.size()));
  results.certificates.reset();

  results.sweeps[0].domains[0].ratio = 2;  // bf16
  const page::Document bad = document();
  EXPECT_EQ(bad.verdict.tone, page::Tone::bad);
  EXPECT_EQ(bad.verdict.headline.find("1 of "), 0u) << bad.verdict.headline;
  EXPECT_NE(Json(bad).dump().find("bf16 max T / max O, all bf16 x 2.0000, not 1.0200"), std::string::npos);
  results.attacks[0].violations = 1;
  EXPECT_EQ(document().verdict.headline.find("2 of "), 0u);

  // With nothing at all every section says what would make it, and nothing claims to hold.
  results = {};
  const page::Document none = document();
  EXPECT_EQ(none.verdict.tone, page::Tone::muted);
  EXPECT_EQ(none.verdict.headline, "Nothing was measured");
  for (const page::Section& section : none.sections) expect_commands(section.blocks, section.title);
}

TEST_F(Report, ShowsAFrontOfBitsAndRefusesADamagedOne) {
  const auto under = [](double greatest, double rms) {
    return Json::array({{{"x", "normal(0.5)"}, {"greatest", greatest}, {"at", 1}, {"rms", 2 * rms}, {"bias", -0.001}, {"shrinkage", 0.97}},
                        {{"x", "normal(1)"}, {"greatest", greatest}, {"at", 1}, {"rms", rms}, {"bias", 0}, {"shrinkage", 1}}});
  };
  Json front{{"schema", "outgrad.front/1"}, {"activation", "gelu"}, {"x_format", "bf16"}};
  front["stores"] = {
      {{"name", "code of 4 bits"}, {"origin", "outgrad"}, {"bits_beyond", 4}, {"bits_all", 20}, {"proven", 0.0393}, {"under", under(0.039, 0.023)}},
      {{"name", "<script>"},
       {"origin", "somebody"},
       {"bits_beyond", 4.125},
       {"bits_all", 20.125},
       {"dominated_by", "code of 4 bits"},
       {"under", under(0.3, 0.081)}}};
  write("front/gelu.json", front.dump());
  const Results results = read();
  ASSERT_EQ(results.fronts.size(), 1u);
  EXPECT_FALSE(results.fronts[0].stores[1].proven.has_value());
  const page::Document document = compose(results, requirements(results));
  const std::string text = rows_of(document);
  EXPECT_NE(text.find("| code of 4 bits | 4 | 20 | 0.0393 | 0.039 |"), std::string::npos) << text;
  EXPECT_NE(text.find("| 0.046 | 0.023 | +0 | 1.00000 |"), std::string::npos) << text;
  const std::string json = Json(document).dump();
  EXPECT_NE(json.find("rms error, x of N(0, 1)"), std::string::npos);

  front["stores"][1]["under"].erase(1);
  write("front/gelu.json", front.dump());
  EXPECT_THROW(read(), kernels::SpecError);
  front["stores"] = Json::array();
  write("front/gelu.json", front.dump());
  EXPECT_THROW(read(), kernels::SpecError);
}

TEST_F(Report, ShowsStoresBesideWhatTheirHeadersProveAndFailsOneBeyond) {
  const Json sound = Json::parse(kernels::read_file(std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/sweeps/gelu_code_bf16.json"));
  const auto written = [&](const char* place, const Json& value) {
    Json sweep = sound;
    if (*place) sweep[Json::json_pointer(place)] = value;
    write("sweeps/gelu_code_bf16.json", sweep.dump());
  };
  const auto failed = [&] {
    const std::vector<Requirement> rows = requirements(read());
    return std::count_if(rows.begin(), rows.end(), [](const Requirement& row) { return row.format == "stores" && row.verdict() == RequirementVerdict::fail; });
  };
  const auto before = read().sweeps.size();
  written("", {});
  const Results results = read();
  EXPECT_EQ(results.sweeps.size(), before) << "no fit of y and a bit";
  ASSERT_EQ(results.store_sweeps.size(), 1u);
  ASSERT_EQ(results.store_sweeps[0].stores.size(), 10u);
  EXPECT_FALSE(results.store_sweeps[0].stores[7].bias.has_value());
  EXPECT_GT(results.store_sweeps[0].stores[8].bias.value(), 0);
  EXPECT_EQ(failed(), 0);
  const std::string text = rows_of(compose(results, requirements(results)));
  EXPECT_NE(text.find("| gelu_code_bf16 | code of 4 bits | bf16 | 65,536 | 0.0394 | 0.0393 | 0.9999"), std::string::npos) << text;
  // Of y in 8 bits, which is swept at some scales, the row is another one, and it says so.
  Json scaled = Json::parse(kernels::read_file(std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/sweeps/gelu_fp8_bf16.json"));
  const auto searched = [&] {
    const std::vector<Requirement> rows = requirements(read());
    return std::count_if(rows.begin(), rows.end(), [](const Requirement& row) { return row.format == "stores" && row.established == "searched"; });
  };
  EXPECT_EQ(searched(), 0);
  write("sweeps/gelu_fp8_bf16.json", scaled.dump());
  EXPECT_EQ(searched(), 1);
  EXPECT_EQ(failed(), 0);
  scaled["domains"][4]["T"]["bound"] = 0.08;
  write("sweeps/gelu_fp8_bf16.json", scaled.dump());
  EXPECT_EQ(failed(), 1);
  fs::remove(path("sweeps/gelu_fp8_bf16.json"));
  written("/domains/3/T/bound", 0.04);
  EXPECT_EQ(failed(), 1);
  written("/domains/9/bias/bound", 1e-5);
  EXPECT_EQ(failed(), 1);
  written("/domains/2/counts/wrong_special", 1);
  EXPECT_EQ(failed(), 1);
  for (const auto& [place, value] :
       std::vector<std::pair<const char*, Json>>{{"/domains/0/counts/patterns", 65535}, {"/domains/5/T", nullptr}, {"/domains/1/proven/T", 0}}) {
    written(place, value);
    EXPECT_THROW(read(), kernels::SpecError) << place;
  }
}

// Next to kernels/, the committed results need no word on where the headers are.
TEST_F(Report, FindsTheHeadersOfACheckout) {
  SKIP_WITHOUT_MATPLOTLIB();
  fs::create_directories(folder_ / "kernels");
  fs::create_directories(folder_ / "notebooks_data");
  fs::rename(folder_ / "generated", folder_ / "kernels/generated");
  fs::rename(folder_ / "sweeps", folder_ / "notebooks_data/sweeps");
  EXPECT_EQ(run({"--in", path("notebooks_data"), "--out", path("report")}), kernels::kExitHolds);
  EXPECT_NE(kernels::read_file(path("report/report.md")).find("kernels/generated/gelu_f32.h"), std::string::npos);
}

// Headers of a checkout stand beside each of its folders. They are no results of that folder.
TEST_F(Report, AFolderWithoutResultsIsRefusedThoughHeadersStandBesideIt) {
  fs::create_directories(folder_ / "kernels");
  fs::create_directories(folder_ / "docs/pictures");
  fs::rename(folder_ / "generated", folder_ / "kernels/generated");
  write("docs/page.md", "# No results");
  EXPECT_NE(refusal([&] { run({"--in", path("docs")}); }).find(path("docs") + ": --in: holds no results"), std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "docs/report"));
}

// Nothing is required of a function of one's own: its bounds are reported, as its header claims them.
TEST_F(Report, AFunctionOfOnesOwnIsReported) {
  BackwardHeader own = std::get<BackwardHeader>(read_header(path("generated/gelu_bf16.h")));
  own.activation = "expression", own.function = "x*sigmoid(x)", own.name = "mine_bf16", own.x_limit = 64;
  for (const char* part : {"fits", "generated", "sweeps", "stability", "pareto", "attack", "proofs", "studies", "training", "tuned"}) {
    fs::remove_all(folder_ / part);
  }
  write("generated/mine_bf16.h", print_header(own));
  const auto reported = [](const Results& results) {
    std::map<std::string, double> found;
    for (const Requirement& row : requirements(results)) {
      EXPECT_EQ(row.verdict(), row.value ? RequirementVerdict::reported : RequirementVerdict::not_measured) << row.quantity;
      if (row.value) found[row.format + " " + row.quantity] = *row.value;
    }
    return found;
  };
  const Results results = read();
  const std::map<std::string, double> found = reported(results);
  EXPECT_EQ(found.size(), 6u);
  EXPECT_EQ(found.at("own mine_bf16: T, the whole gradient, all real x"), own.storage.total);
  EXPECT_EQ(found.at("own mine_bf16: R, all real x"), own.storage.regret);
  EXPECT_EQ(found.at("own mine_bf16: A, fit"), own.bound_a);
  EXPECT_EQ(found.at("own mine_bf16: K, coordinate"), own.bound_k);
  const page::Verdict verdict = compose(results, requirements(results)).verdict;
  EXPECT_EQ(verdict.headline, "6 figures are reported; nothing here has a limit");
  EXPECT_EQ(verdict.tone, page::Tone::muted);

  // A fit without its header says less; beside its header, nothing more.
  Json fit = Json::parse(kernels::read_file(OUTGRAD_SOURCE_DIR "/notebooks_data/fits/gelu_bf16.json"));
  fit["activation"] = "expression", fit["name"] = "mine_bf16";
  write("fits/mine_bf16.json", fit.dump());
  EXPECT_EQ(reported(read()), found);
  fs::remove_all(folder_ / "generated");
  EXPECT_EQ(reported(read()).size(), 2u);
  fit["activation"] = "gelu";
  write("fits/mine_bf16.json", fit.dump());
  EXPECT_TRUE(reported(read()).empty());
}

// Every figure says of which run it is, as provenance.json has it; what is not listed there is of not of this run.
TEST_F(Report, EveryFigureSaysOfWhichRunItIs) {
  const auto origins = [&](const Results& results) {
    std::map<std::string, std::set<std::string>> found;
    for (const Requirement& row : requirements(results)) {
      EXPECT_EQ(row.from.empty(), !row.value) << row.quantity;
      if (row.value) found[row.format].insert(row.from);
    }
    return found;
  };
  using Origins = std::map<std::string, std::set<std::string>>;
  const std::set<std::string> unknown{"not stated"}, ours{"this run"}, earlier{"not of this run"};
  EXPECT_EQ(origins(read()), (Origins{{"f32", unknown}, {"f16", unknown}, {"bf16", unknown}, {"norms", unknown}, {"certificates", unknown}}));
  EXPECT_NE(rows_of(compose(read(), {})).find("sweeps/gelu_bf16.json | not stated |"), std::string::npos);

  fs::create_directories(folder_ / "committed/attack");
  fs::create_directories(folder_ / "committed/sweeps");
  fs::rename(folder_ / "attack/norms.json", folder_ / "committed/attack/norms.json");
  Json same = sweep_json(kF32);
  same["domains"][0]["T_over_O"] = 7;  // of a file that this run has made itself, the committed one does not count
  write("committed/sweeps/gelu_f32.json", same.dump());
  Json provenance{{"schema", "outgrad.provenance/1"},
                  {"version", "1.2.3"},
                  {"commit", "abcdef0"},
                  {"date", "2026-11-26"},
                  {"machine", {{"cpu", "a processor"}, {"cores", 2}, {"gpu", ""}}},
                  {"run", {"sweeps/gelu_bf16.json", "generated/gelu_bf16.h", "sweeps/gelu_f32.json", "generated/gelu_f32.h"}},
                  {"committed", {{"attack/norms.json", {{"date", "2026-11-01"}, {"commit", "1234567"}}}}}};
  write("provenance.json", provenance.dump());
  const Results results = read();
  const std::set<std::string> committed{"committed 2026-11-01 1234567"};
  // PyTorch's error stands in the sweep of f32, which this writer leaves without it.
  EXPECT_EQ(origins(results), (Origins{{"f32", ours}, {"f16", earlier}, {"bf16", ours}, {"norms", committed}, {"certificates", earlier}}));
  EXPECT_EQ(failing(results), std::vector<std::string>{});
  EXPECT_NE(to_text(requirements(results)).find("committed 2026-11-01 1234567"), std::string::npos);
  EXPECT_EQ(to_json(requirements(results))["requirements"][0]["from"], "this run");
  const page::Document document = compose(results, requirements(results));
  EXPECT_NE(document.lead.find("By outgrad 1.2.3, commit abcdef0, 2026-11-26, on a processor, 2 cores, no GPU."), std::string::npos) << document.lead;
  const std::string tiles = Json(document)["key_figures"].dump(), rows = rows_of(document);
  EXPECT_NE(tiles.find("ours and others', this run; not of this run: 4.3 \u00d7 10^9"), std::string::npos) << tiles;  // bf16 and f32 of this run, f16 not
  for (const int headline : {0, 1}) EXPECT_NE(Json(document)["key_figures"]["tiles"][headline].dump().find("this run"), std::string::npos) << tiles;
  EXPECT_NE(tiles.find("8.6 \u00d7 10^9"), std::string::npos) << tiles;
  EXPECT_NE(tiles.find("found 2.50; committed 2026-11-01 1234567"), std::string::npos) << tiles;
  EXPECT_NE(rows.find("committed/attack/norms.json | committed 2026-11-01 1234567 |"), std::string::npos) << rows;
  EXPECT_NE(rows.find("sweeps/gelu_bf16.json | this run |"), std::string::npos) << rows;
  EXPECT_NE(Json(document).dump().find("This section was made from: committed 2026-11-01 1234567 (1 file)."), std::string::npos);

  for (const char* key : {"schema", "version", "commit", "date", "machine", "run", "committed"}) {
    with_changed("provenance.json", [&](Json& json) { json.erase(key); }, [&] { EXPECT_THROW(read(), SpecError) << key; });
  }
}

// Sweeps of another activation are no verdict on GELU, whatever their names.
TEST_F(Report, OtherActivationsAreNotTakenForGelu) {
  Json other = sweep_json(kBf16);
  other["activation"] = "elu";
  other["subject"] = "elu_bf16+rounded";
  other["domains"][0]["T_over_O"] = 7;
  write("sweeps/elu_bf16.json", other.dump());
  const Results results = read();
  ASSERT_EQ(results.sweeps.size(), 4u);
  EXPECT_EQ(results.sweep_of("bf16")->fit, "gelu_bf16");
  EXPECT_EQ(failing(results), std::vector<std::string>{});
}

TEST_F(Report, WritesThePageAndItsDataAndSaysWhetherAllHolds) {
  SKIP_WITHOUT_MATPLOTLIB();
  testing::internal::CaptureStdout();
  EXPECT_EQ(run({"--in", folder_.string(), "--json"}), kernels::kExitHolds);
  std::fflush(stdout);
  const Json shown = Json::parse(testing::internal::GetCapturedStdout());
  EXPECT_TRUE(fs::is_regular_file(folder_ / "report/index.html"));
  EXPECT_TRUE(fs::is_regular_file(folder_ / "report/report.md"));
  Json written = Json::parse(kernels::read_file(path("report/report.json")));
  EXPECT_EQ(written.at("schema"), "outgrad.report/1");
  EXPECT_EQ(written.at("page").at("sections").at(0).at("title"), "Error curves");
  written.erase("page");
  EXPECT_EQ(written, shown);
  with_changed(
      "sweeps/gelu_bf16.json", [](Json& json) { json["domains"][1]["T_over_O"] = 1.021; },
      [&] { EXPECT_EQ(run({"--in", folder_.string(), "--out", path("elsewhere")}), kernels::kExitViolated); });
  EXPECT_TRUE(fs::is_regular_file(folder_ / "elsewhere/index.html"));
  EXPECT_THROW(run({"--in", path("absent")}), SpecError);
  fs::create_directory(folder_ / "empty");
  EXPECT_THROW(run({"--in", path("empty")}), SpecError);
  write("file", "");
  EXPECT_THROW(run({"--in", folder_.string(), "--out", path("file")}), kernels::IoError);
}

// Neither without a Python nor where it lacks a module or fails halfway; what went wrong is said in a line.
TEST_F(Report, WhereThePageCannotBeRenderedNothingIsWritten) {
  const auto refused = [&](const std::string& python) -> std::string {
    ::setenv("OUTGRAD_PYTHON", python.c_str(), 1);
    try {
      run({"--in", folder_.string()});
    } catch (const kernels::EnvironmentError& error) {
      return error.what();
    }
    return "rendered";
  };
  const char* const chosen = std::getenv("OUTGRAD_PYTHON");
  const std::string before = chosen ? chosen : "", python = path("python");
  EXPECT_NE(refused("/nonexistent/python").find("/nonexistent/python: cannot be started"), std::string::npos);
  for (const char* status : {"3", "1"}) {
    write("python", std::string("#!/bin/sh\necho half >$3/index.html\necho Traceback >&2\necho 'No module named x' >&2\nexit ") + status + "\n");
    fs::permissions(python, fs::perms::owner_all);
    const std::string why = refused(python);
    EXPECT_NE(why.find("python3-jinja2"), std::string::npos) << why;
    EXPECT_TRUE(why.ends_with(": No module named x")) << why;
  }
  chosen ? ::setenv("OUTGRAD_PYTHON", before.c_str(), 1) : ::unsetenv("OUTGRAD_PYTHON");
  EXPECT_FALSE(fs::exists(folder_ / "report"));
}

}  // namespace
}  // namespace outgrad::validation
