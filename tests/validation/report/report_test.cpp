// The report: verdicts follow the figures, bad input is refused with its place, and what Python gets is what
// was read. The page itself is page_test.py's.
#include "validation/report/facts.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "kernels/support/options.h"
#include "tests/refusal.h"
#include "tests/validation/command_fixture.h"
#include "validation/commands.h"
#include "validation/report/requirements.h"
#include "validation/sweep/sweep_gate.h"
#include "validation/sweep/sweep_json.h"
#include "validation/sweep/targets.h"

namespace outgrad::validation {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using kernels::SpecError;

constexpr const char* kHostile = "<script>alert(1)</script>|`x`\"'&";

/// What a faultless sweep of `format` leaves, by the writer itself: T = 1.01 O, R a quarter of its limit,
/// every y correctly rounded.
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
    // a few: every test reads them
    for (int bin = 0; bin < kCurveBins; bin += 20) all.curve[bin] = {-1e-7, 2e-7, 5e-8, {}, {}};
    results.push_back(std::move(result));
  }
  Subject subject{"gelu_" + std::string(format.name) + "+gelu_forward", format, "0", {}, {}, {}};
  Json json = report_json(subject, results);
  json["gates"] = {gate_json({"masks other than [x >= x*]", 0, 0})};
  return json;
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
  if (state == "rejected")
    record["rejected"] = {{"stage", "verify"}, {"reason", "wrong_answer"}, {"detail", kHostile}};
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

/// As of a finalist of so many rounds.
Json with_rounds(Json record, int rounds) {
  record["finalist"] = true;
  record["final"] = {{"ns", std::vector<double>(static_cast<std::size_t>(rounds), 1e6)}};
  return record;
}

/// Two cases: one of a bound that the search reached nearly, one of a row without dx.
Json attack_json() {
  const auto bound = [](Json tightness, double ours, Json unguarded) {
    return Json{{"evaluations", 1e6},
                {"violations", 0},
                {"tightness", std::move(tightness)},
                {"worst_over_bound", ours},
                {"peers_over_bound",
                 {{"from_input", 0.5}, {"clamped_gamma", 123456.0}, {"unguarded", std::move(unguarded)}}}};
  };
  const auto one = [&](const char* parameters, Json gradients) {
    return Json{
        {"norm", "layernorm"},     {"format", "bf16"}, {"parameters", parameters},         {"x", "centred"},
        {"policy", "side_buffer"}, {"columns", 64},    {"gradients", std::move(gradients)}};
  };
  Json rstd = bound(2.0, 0.5, 0.0);
  rstd.erase("peers_over_bound");
  return {
      {"schema", "outgrad.norm_attack/1"},
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

class Report : public CommandTest {
 protected:
  Report() : CommandTest("report", add_report) {}
  void SetUp() override {
    for (const char* part : {"fits", "generated", "sweeps", "attack", "proofs", "tuned"})
      fs::create_directories(folder_ / part);
    for (const FloatFormat& format : {kF32, kF16, kBf16}) {
      const std::string name = "gelu_" + std::string(format.name);
      fs::copy(fs::path(OUTGRAD_SOURCE_DIR) / "kernels/generated" / (name + ".h"), folder_ / "generated");
      fs::copy(fs::path(OUTGRAD_SOURCE_DIR) / "notebooks_data/fits" / (name + ".json"), folder_ / "fits");
      write("sweeps/" + name + ".json", sweep_json(format).dump());
    }
    write("attack/norms.json", attack_json().dump());
    for (const char* proof : {"proofs/gelu_bf16.json", "proofs/gelu_f32.json"})
      write(proof, kernels::read_file(std::string(OUTGRAD_SOURCE_DIR "/notebooks_data/") + proof));
    std::string lines = tuning_record("2020-01-01T00:00:00Z", "of an earlier run", "timed").dump() +
                        "\n{\"schema\": \"outgrad.tu";
    for (const auto& [variant, state] : std::vector<std::pair<const char*, const char*>>{
             {"usual", "timed"}, {"best", "timed"}, {kHostile, "rejected"}}) {
      lines += "\n" + tuning_record("2021-01-01T00:00:00Z", variant, state).dump();
    }
    write("tuned/tune_cpu.jsonl", lines + "\n");
  }

  void write(const std::string& name, const std::string& text) const {
    kernels::write_file(file(name), text);
  }
  Results read() const { return read_results(folder_.string(), file("generated")); }
  static Json committed(const std::string& name) {
    return Json::parse(kernels::read_file(OUTGRAD_SOURCE_DIR "/notebooks_data/" + name));
  }
  /// A sweep with another value at a place.
  void write_sweep(const std::string& name, Json sweep, const char* place, const Json& value) const {
    if (*place) sweep[Json::json_pointer(place)] = value;
    write("sweeps/" + name, sweep.dump());
  }
  /// How many stores fail.
  std::ptrdiff_t failed_stores() const {
    return std::ranges::count_if(requirements(read()), [](const Requirement& row) {
      return row.format == "stores" && row.verdict() == RequirementVerdict::fail;
    });
  }

  /// Applies `change` to a file's JSON, reads all, and puts the file back.
  void with_changed(const std::string& name, const std::function<void(Json&)>& change,
                    const std::function<void()>& then) const {
    const std::string before = kernels::read_file(file(name));
    Json json = Json::parse(before);
    change(json);
    write(name, json.dump());
    then();
    write(name, before);
  }
};

std::vector<std::string> failing(const Results& results) {
  std::vector<std::string> rows;
  for (const Requirement& row : requirements(results)) {
    if (row.verdict() == RequirementVerdict::fail) rows.push_back(row.format + " " + row.quantity);
  }
  return rows;
}

#define SKIP_WITHOUT_MATPLOTLIB()                                                                   \
  if (std::system("for p in ${OUTGRAD_PYTHON:-python3 /usr/bin/python3}; do $p -c 'import jinja2, " \
                  "matplotlib' 2>/dev/null && exit; done; exit 1") != 0)                            \
  GTEST_SKIP() << "no Python here has jinja2 and matplotlib"

TEST_F(Report, EveryFaultFailsItsOwnRow) {
  const Results good = read();
  ASSERT_EQ(failing(good), std::vector<std::string>{});
  using Fault = std::pair<std::function<void(Results&)>, std::vector<std::string>>;
  for (const Targets& targets : kTargets) {
    const std::string f = targets.format;
    const auto header = [&](Results& r) -> BackwardHeader& {
      return *std::find_if(r.backward.begin(), r.backward.end(),
                           [&](const BackwardHeader& h) { return h.name == "gelu_" + f; });
    };
    const auto domain = [&](Results& r) -> SweptDomain& {
      return std::find_if(r.sweeps.begin(), r.sweeps.end(),
                          [&](const SweepResult& s) { return s.format == f; })
          ->domains.front();
    };
    const double over = 1 + 0x1p-40;
    std::vector<Fault> faults{
        {[&](Results& r) { header(r).bound_a = targets.a * over; }, {f + " A, fit"}},
        {[&](Results& r) { (f == "f32" ? header(r).bound_ab : header(r).bound_b) = targets.a_plus_b * over; },
         {f + " A + B, fit and evaluation"}},
        {[&](Results& r) { header(r).operations = targets.operations + 1; },
         {f + " operations per element, backward"}},
        {[&](Results& r) { domain(r).ratio = targets.ratio * over; },
         {f + " max T / max O, all " + f + " x"}},
        {[&](Results& r) { domain(r).ratio = std::nan(""); }, {f + " max T / max O, all " + f + " x"}},
        {[&](Results& r) { domain(r).wrong_mask = 1; },
         {f + " wrong masks, NaN, infinities, all " + f + " x"}},
        {[&](Results& r) { domain(r).wrong_special = 1; },
         {f + " wrong masks, NaN, infinities, all " + f + " x"}}};
    if (targets.regret)
      faults.push_back(
          {[&](Results& r) { domain(r).regret = *targets.regret * over; }, {f + " R, all " + f + " x"}});
    if (targets.misrounded)
      faults.push_back({[&](Results& r) { domain(r).misrounded = 1; },
                        {f + " forward y not correctly rounded, all " + f + " x"}});
    if (targets.near_ulp) {
      faults.push_back(
          {[&](Results& r) { domain(r).near_ulp = 0.5101; }, {f + " forward y, |x - x*| <= 0.1"}});
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
  for (const Requirement& row : requirements(results))
    EXPECT_EQ(row.verdict(), RequirementVerdict::not_measured) << row.quantity;
  results.attacks[0].violations = 1;
  EXPECT_EQ(failing(results), std::vector<std::string>{"norms violated bounds of dx, dgamma, dbeta"})
      << "however short the search";
  // The sweep of another fit says nothing of the default's header, nor that header of the sweep.
  results = read();
  for (SweepResult& sweep : results.sweeps) sweep.fit = "another";
  for (const Requirement& row : requirements(results)) {
    if (row.established == "exhaustive") {
      EXPECT_EQ(row.verdict(), RequirementVerdict::not_measured) << row.quantity;
    }
  }
}

// Of other activations and fits than the defaults of GELU no figure has a row of its own.
TEST_F(Report, ASweepThatValidateRefusedFails) {
  Json other = committed("sweeps/silu_bf16.json");
  write("sweeps/silu_bf16.json", other.dump());
  EXPECT_EQ(failing(read()), std::vector<std::string>{});
  other["gates"][3]["value"] = 0.02;
  write("sweeps/silu_bf16.json", other.dump());
  EXPECT_EQ(failing(read()), std::vector<std::string>{"sweeps limits broken, of 15 in 4 sweeps"});
}

TEST_F(Report, AnAttackPassesByItsMutantsAndHeadersAlone) {
  Json attack = committed("attack/certificates.json");
  const auto accepted = [&] {
    write("attack/certificates.json", attack.dump());
    const std::vector<Requirement> rows = requirements(read());
    return std::ranges::find_if(
               rows,
               [](const Requirement& row) { return row.quantity.starts_with("false headers accepted"); })
        ->verdict();
  };
  EXPECT_EQ(accepted(), RequirementVerdict::pass);
  attack["mutations"]["false_headers"]["gelu_bf16"] = "kB is false";
  EXPECT_EQ(accepted(), RequirementVerdict::fail) << "undamaged";
  attack["mutations"]["tried"] = 0;
  EXPECT_EQ(accepted(), RequirementVerdict::not_measured);
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
  // Python's figures are the same (page_test.py).
  for (const Json& one :
       Json::parse(kernels::read_file(OUTGRAD_SOURCE_DIR "/tests/validation/report/rounded.json"))) {
    const double bound = one["bound"];
    EXPECT_EQ(power_of_two(bound), one["power_of_two"]) << bound;
    EXPECT_EQ(rounded_up(bound, 4), one["rounded_up_4"]) << bound;
    EXPECT_EQ(rounded_up(bound, 0), one["rounded_up_0"]) << bound;
    EXPECT_EQ(three_digits_up(bound), one["three_digits_up"]) << bound;
  }
  EXPECT_EQ(power_of_two(0x1p-26), "2^-26");
  EXPECT_EQ(rounded_up(1.05, 4), "1.0500");
  EXPECT_EQ(rounded_up(0.51, 2), "0.51");
  EXPECT_EQ(three_digits_up(0.00505), "0.00505");
  EXPECT_EQ(power_of_two(0), "0");
  EXPECT_EQ(rounded_up(std::numeric_limits<double>::infinity(), 2), "inf");
}

TEST_F(Report, RefusesDamageWithItsPlace) {
  const auto refused = [&] { return refusal_of([&] { read(); }); };
  // Every key on the way to a figure: without it, and with a value of the wrong type.
  const std::vector<std::pair<std::string, std::vector<const char*>>> keys{
      {"sweeps/gelu_f16.json",
       {"/schema", "/activation", "/format", "/subject", "/domains", "/domains/0/x_format",
        "/domains/1/counts", "/domains/0/counts/patterns", "/domains/0/T", "/domains/0/T/bound",
        "/domains/0/R/bound", "/domains/0/T_over_O", "/domains/0/forward/max_ulp", "/gates",
        "/gates/0/limit"}},
      {"fits/gelu_f16.json",
       {"/schema", "/name", "/kind", "/spec_sha256", "/certificate", "/certificate/A", "/certificate/AB",
        "/certificate/K", "/certificate/B"}},
      {"attack/norms.json",
       {"/schema", "/evaluations", "/violations", "/median_tightness", "/cases", "/cases/0/gradients",
        "/cases/0/gradients/dx/violations"}},
      {"proofs/gelu_bf16.json",
       {"/schema", "/name", "/spec_sha256", "/bounds", "/bounds/0/bound", "/bounds/1/outcome", "/assumptions",
        "/assumptions/unlisted"}}};
  for (const auto& [name, pointers] : keys) {
    for (const char* pointer : pointers) {
      const nlohmann::ordered_json::json_pointer at(pointer);
      const auto expect_refused = [&] {
        const std::string why = refused();
        EXPECT_EQ(why.rfind(file(name) + ": ", 0), 0u) << pointer << ": " << why;
      };
      with_changed(name, [&](Json& json) { json[at.parent_pointer()].erase(at.back()); }, expect_refused);
      with_changed(name, [&](Json& json) { json[at] = true; }, expect_refused);
    }
    const std::string whole = kernels::read_file(file(name));
    for (size_t part = 0; part < 20; ++part) {
      write(name, whole.substr(0, whole.size() * part / 20));
      EXPECT_EQ(refused().rfind(file(name) + ": line ", 0), 0u);
    }
    write(name, whole);
  }
  const auto expect = [&](const char* words) {
    return [=] { EXPECT_NE(refused().find(words), std::string::npos) << words << ": " << refused(); };
  };
  with_changed(
      "sweeps/gelu_bf16.json", [](Json& json) { json["domains"][0]["counts"]["patterns"] = 65535; },
      expect("not exhaustive"));
  with_changed(
      "sweeps/gelu_bf16.json", [](Json& json) { json["subject"] = "gelu_f16+gelu_forward"; },
      expect("already"));
  with_changed(
      "fits/gelu_f32.json", [](Json& json) { json["certificate"]["B"] = "0x1p-30"; },
      expect("certificate.B"));
  for (const char* bad : {"-0x1p-30", "0x1p-30x", "1e-9", "0x", "inf", "nan", "0x1p99999"}) {
    with_changed(
        "fits/gelu_f32.json", [=](Json& json) { json["certificate"]["A"] = bad; }, expect("certificate.A"));
  }
  with_changed(
      "attack/norms.json", [](Json& json) { json["cases"][0]["gradients"]["dx"]["violations"] = 1; },
      expect("not what the cases have"));
  with_changed(
      "proofs/gelu_bf16.json", [](Json& json) { json["bounds"][0]["outcome"] = "undecided"; },
      expect("holds: is not what the files have"));
  with_changed(
      "proofs/gelu_bf16.json", [](Json& json) { json["assumptions"]["unlisted"].push_back("false"); },
      expect("holds: is not what the files have"));
  with_changed("proofs/gelu_bf16.json", [](Json& json) { json["holds"] = "yes"; }, expect("holds"));
  with_changed(
      "proofs/gelu_bf16.json", [](Json& json) { json["bounds"][0]["bound"] = "C"; },
      expect("bounds[0].bound"));
  with_changed(
      "proofs/gelu_bf16.json", [](Json& json) { json["bounds"].clear(); },
      expect("holds: is not what the files have"));
  with_changed(
      "proofs/gelu_bf16.json",
      [](Json& json) { json["bounds"] = {{{"bound", "T"}, {"outcome", "proven"}, {"claim", "0x1p-6"}}}; },
      expect("T claims more than"));
  with_changed(
      "sweeps/gelu_bf16.json",
      [](Json& json) { json["gates"].push_back(gate_json({"T within the header's kT", 0.01, 0.0113})); },
      expect("gates: were held to another kT than"));
  const auto of_a_row = [](const Json& one) { return one["bound"] == "A"; };
  with_changed(
      "proofs/gelu_bf16.json",
      [&](Json& json) { (*std::ranges::find_if(json["bounds"], of_a_row))["claim"] = "0x1p-5"; },
      expect("claims more than"));
  with_changed(
      "proofs/gelu_bf16.json",
      [&](Json& json) { json["bounds"].erase(std::ranges::find_if(json["bounds"], of_a_row)); },
      expect("A is of 15 of the 16 rows of"));
  with_changed(
      "proofs/gelu_bf16.json",
      [&](Json& json) {
        for (Json& one : json["bounds"])
          if (of_a_row(one)) one["claim"] = "0x1p-20";
      },
      expect("A is of other coefficients than"));
  with_changed(
      "proofs/gelu_f32.json", [](Json& json) { json["bounds"].back()["claim"] = "0x1.4p-16"; },
      expect("G claims more than"));
  with_changed(
      "proofs/gelu_bf16.json", [](Json& json) { json["spec_sha256"] = "0"; },
      expect("spec_sha256: is not that of"));
  for (const char* file : {"attack/norms.json", "proofs/gelu_bf16.json"}) {
    with_changed(
        file, [](Json& json) { json["schema"] = json["schema"].get<std::string>() + "0"; }, expect("schema"));
  }
  write("generated/gelu_f32.h", "garbage");
  expect("gelu_f32.h:1")();
}

TEST_F(Report, TheLatestRunCountsAndBrokenLinesAreWarnings) {
  const Results results = read();
  ASSERT_EQ(results.tuned.size(), 1u);
  std::vector<std::string> variants;
  for (const nlohmann::json& record : results.tuned[0]["records"]) variants.push_back(record["variant"]);
  EXPECT_EQ(variants, (std::vector<std::string>{kHostile, "best", "usual"}));
  ASSERT_EQ(results.warnings.size(), 1u);
  EXPECT_NE(results.warnings[0].find("tune_cpu.jsonl:2: "), std::string::npos);
}

// `tune --merge` orders lines by what they say: a screening of the winner may be the last line of it.
TEST_F(Report, AFinalistsLineCountsWhereverItsScreeningStands) {
  Json screening = tuning_record("2021-01-01T00:00:00Z", "best", "timed"), crashed = screening;
  screening.update({{"finalist", false}, {"winner", false}, {"gain", false}, {"gb_per_s", 1.0}});
  const std::string final = with_rounds(tuning_record("2021-01-01T00:00:00Z", "best", "timed"), 24).dump();
  write("tuned/tune_cpu.jsonl", final + "\n" + screening.dump() + "\n");
  const auto of_best = [&] { return read().tuned.at(0)["records"].at(0); };
  EXPECT_EQ(of_best()["winner"], true);
  EXPECT_EQ(of_best()["gb_per_s"], 20.0);
  // What was rejected after its screening is rejected.
  crashed["state"] = "rejected", crashed["rejected"] = {{"stage", "time"}, {"reason", "crashed"}};
  write("tuned/tune_cpu.jsonl", crashed.dump() + "\n" + screening.dump() + "\n");
  EXPECT_EQ(of_best()["state"], "rejected");
}

// Of a default that was kept in too few rounds the page shows no figures.
TEST_F(Report, ADefaultKeptInTooFewRoundsIsTooNoisy) {
  const auto too_noisy = [&](const char* variant, int rounds) {
    Json record = tuning_record("2021-01-01T00:00:00Z", variant, "timed");
    record["winner"] = true;
    write("tuned/tune_cpu.jsonl", with_rounds(record, rounds).dump() + "\n");
    return read().tuned.at(0)["records"].at(0).value("too_noisy", false);
  };
  EXPECT_TRUE(too_noisy("usual", 19));
  EXPECT_FALSE(too_noisy("usual", 20));
  EXPECT_FALSE(too_noisy("best", 19));
}

// A run is what its lines share: neither another of the same second nor an order of lines changes it.
TEST_F(Report, ARunIsTheSameInAnyOrderOfLines) {
  std::vector<std::string> lines;
  for (const auto& [time, seed, hash] :
       std::vector<std::tuple<const char*, int, const char*>>{{"2021-01-01T00:00:00Z", 1, "k2"},
                                                              {"2021-01-01T00:00:00Z", 2, "k1"},
                                                              {"2021-01-01T00:00:00Z", 2, "k2"},
                                                              {"2020-01-01T00:00:00Z", 3, "k3"}}) {
    for (const char* variant : {"best", "usual", "slow"}) {
      Json record = tuning_record(time, variant, "timed");
      record.update({{"seed", seed}, {"kernels_sha256", hash}});
      record["gb_per_s"] = 10.0 * seed;
      for (int batch = 0; batch < 3; ++batch) {
        record["speedup"]["median"] = 1.21 + 0.01 * batch;
        lines.push_back(record.dump());
      }
      if (variant != std::string("slow")) lines.push_back(with_rounds(record, 24).dump());
    }
  }
  const auto tuned_of = [&](const std::vector<std::string>& those) {
    std::string text;
    for (const std::string& line : those) text += line + "\n";
    write("tuned/tune_cpu.jsonl", text);
    return read().tuned;
  };
  const std::vector<nlohmann::json> first = tuned_of(lines);
  ASSERT_EQ(first.size(), 1u);
  ASSERT_EQ(first[0]["records"].size(), 3u);
  for (const nlohmann::json& record : first[0]["records"]) {
    EXPECT_EQ(record["seed"], 2);
    EXPECT_EQ(record["kernels_sha256"], "k2");
  }
  std::mt19937 random(1);
  for (int trial = 0; trial < 20; ++trial) {
    std::ranges::shuffle(lines, random);
    lines.push_back(lines.front());  // as of a database that was appended to another
    EXPECT_EQ(tuned_of(lines), first) << trial;
  }
}

TEST_F(Report, ATuningRecordOfANewerSchemaIsRefusedAsTheTunerRefusesIt) {
  const auto only_line = [&](const std::string& schema) {
    write("tuned/tune_cpu.jsonl", R"({"schema": ")" + schema +
                                      R"(", "variant": "best"})"
                                      "\n");
  };
  for (const std::string schema : {"outgrad.tune/2", "outgrad.tune/1.1", "outgrad.tune/99999999999"}) {
    only_line(schema);
    const std::string why = refusal_of([&] { read(); });
    EXPECT_NE(
        why.find("tune_cpu.jsonl:1: schema: '" + schema + "' is newer than this program's outgrad.tune/1"),
        std::string::npos)
        << why;
  }
  for (const std::string schema : {"outgrad.tune/0", "outgrad.tune/x", "another/2"}) {
    only_line(schema);
    EXPECT_EQ(read().warnings.size(), 1u) << schema;
  }
}

// One reader: what is no record, no evidence or beyond its stack for the tuner is so for the report.
TEST_F(Report, ReadsATuningLineAsTheTunerDoes) {
  Json mistyped = tuning_record("2026-01-01T00:00:00Z", "mistyped", "timed"), earlier = mistyped,
       nobody = mistyped;
  mistyped["speedup"]["median"] = "fast";
  earlier["fit"].erase("as_accurate");
  nobody.erase("variant");
  const std::string deep =
      R"({"schema":"outgrad.tune/1","kernel":)" + std::string(100, '[') + std::string(100, ']') + "}";
  write("tuned/tune_cpu.jsonl",
        mistyped.dump() + "\n" + earlier.dump() + "\n" + deep + "\n" + nobody.dump() + "\n");
  const Results results = read();
  EXPECT_TRUE(results.tuned.empty());
  ASSERT_EQ(results.warnings.size(), 3u);
  EXPECT_NE(results.warnings[0].find("tune_cpu.jsonl:1: speedup.median: is not a number, ignored"),
            std::string::npos)
      << results.warnings[0];
  EXPECT_NE(results.warnings[1].find("tune_cpu.jsonl:3: nested deeper"), std::string::npos)
      << results.warnings[1];
  EXPECT_NE(results.warnings[2].find("tune_cpu.jsonl:2: the first of 1 records of an earlier rule"),
            std::string::npos)
      << results.warnings[2];
}

TEST_F(Report, PublishedCoefficientsAreNotOurs) {
  Json audit = sweep_json(kF32);
  audit["subject"] = "theirs+rounded";
  fs::create_directories(folder_ / "foreign" / "sweeps");
  write("foreign/sweeps/theirs_f32.json", audit.dump());
  EXPECT_THROW(read(), SpecError) << "not said to be foreign";
  audit["foreign"] = {{"stored", "y and one bit"}, {"source", {{"work", kHostile}}}};
  write("foreign/sweeps/theirs_f32.json", audit.dump());
  write("foreign/sweeps/quantiser.json", R"({"schema": "outgrad.quantiser/1", "format": "f16"})");
  const Results results = read();
  EXPECT_EQ(results.sweeps.size(), 3u) << "nothing of ours";
  EXPECT_EQ(results.files.at("foreign"), std::vector<std::string>{file("foreign/sweeps/theirs_f32.json")});
  EXPECT_EQ(results.files.at("quantisers").size(), 1u);
  audit["domains"][0]["counts"]["patterns"] = 65535;
  write("foreign/sweeps/theirs_f32.json", audit.dump());
  EXPECT_NE(refusal_of([&] { read(); }).find("not exhaustive"), std::string::npos);
  fs::remove(file("foreign/sweeps/theirs_f32.json"));
  write("sweeps/theirs_f32.json", audit.dump());
  EXPECT_THROW(read(), SpecError) << "ours are in sweeps/";
}

TEST_F(Report, ShardsAreNoSweep) {
  write("sweeps/gelu_f32_1_of_2.json", R"({"schema": "outgrad.sweep-part/1"})");
  const Results results = read();
  EXPECT_EQ(results.sweeps.size(), 3u);
  EXPECT_EQ(results.warnings.size(), 2u);
}

TEST_F(Report, AProductBeyondWhatItsHeaderProvesFails) {
  const Json sound = committed("sweeps/silu_bf16_product.json");
  const auto failed_with = [&](const char* place, const Json& value) {
    write_sweep("silu_bf16_product.json", sound, place, value);
    return failed_stores();
  };
  EXPECT_EQ(failed_with("", {}), 0);
  EXPECT_EQ(failed_with("/T/bound", 0.0164), 1);
  EXPECT_EQ(failed_with("/gates/1/value", 0.0039), 1) << "z / b is not that near";
  EXPECT_EQ(failed_with("/counts/wrong_special", 1), 1);
  EXPECT_THROW(failed_with("/counts/pairs", 65536), kernels::SpecError) << "not all pairs";
  EXPECT_THROW(failed_with("/claims/T", 0), kernels::SpecError);
}

TEST_F(Report, AStoreBeyondWhatItsHeaderProvesFails) {
  const Json sound = committed("sweeps/gelu_code_bf16.json");
  const auto written = [&](const char* place, const Json& value) {
    write_sweep("gelu_code_bf16.json", sound, place, value);
  };
  const auto before = read().sweeps.size();
  written("", {});
  const Results results = read();
  EXPECT_EQ(results.sweeps.size(), before) << "no fit of y and a bit";
  ASSERT_EQ(results.store_sweeps.size(), 1u);
  ASSERT_EQ(results.store_sweeps[0].stores.size(), 10u);
  EXPECT_FALSE(results.store_sweeps[0].stores[7].bias.has_value());
  EXPECT_GT(results.store_sweeps[0].stores[8].bias.value(), 0);
  EXPECT_EQ(failed_stores(), 0);
  // y in 8 bits, which is swept at some scales, has another row, which says so.
  Json scaled = committed("sweeps/gelu_fp8_bf16.json");
  const auto searched = [&] {
    return std::ranges::count_if(requirements(read()), [](const Requirement& row) {
      return row.format == "stores" && row.established == "searched" && row.value;
    });
  };
  EXPECT_EQ(searched(), 0);
  write("sweeps/gelu_fp8_bf16.json", scaled.dump());
  EXPECT_EQ(searched(), 1);
  EXPECT_EQ(failed_stores(), 0);
  scaled["domains"][4]["T"]["bound"] = 0.08;
  write("sweeps/gelu_fp8_bf16.json", scaled.dump());
  EXPECT_EQ(failed_stores(), 1);
  fs::remove(file("sweeps/gelu_fp8_bf16.json"));
  written("/domains/3/T/bound", 0.04);
  EXPECT_EQ(failed_stores(), 1);
  written("/domains/9/bias/bound", 1e-5);
  EXPECT_EQ(failed_stores(), 1);
  written("/domains/2/counts/wrong_special", 1);
  EXPECT_EQ(failed_stores(), 1);
  for (const auto& [place, value] : std::vector<std::pair<const char*, Json>>{
           {"/domains/0/counts/patterns", 65535}, {"/domains/5/T", nullptr}, {"/domains/1/proven/T", 0}}) {
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
  EXPECT_EQ(run({"--in", file("notebooks_data"), "--out", file("report")}), kernels::kExitHolds);
  EXPECT_NE(kernels::read_file(file("report/report.md")).find("kernels/generated/gelu_f32.h"),
            std::string::npos);
}

// Headers of a checkout stand beside each of its folders. They are no results of that folder.
TEST_F(Report, AFolderWithoutResultsIsRefusedThoughHeadersStandBesideIt) {
  fs::create_directories(folder_ / "kernels");
  fs::create_directories(folder_ / "docs/pictures");
  fs::rename(folder_ / "generated", folder_ / "kernels/generated");
  write("docs/page.md", "# No results");
  EXPECT_NE(refusal_of([&] { run({"--in", file("docs")}); }).find(file("docs") + ": --in: holds no results"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(folder_ / "docs/report"));
}

// Nothing is required of a function of one's own: its bounds are reported, as its header claims them.
TEST_F(Report, AFunctionOfOnesOwnIsReported) {
  BackwardHeader own = std::get<BackwardHeader>(read_header(file("generated/gelu_bf16.h")));
  own.activation = "expression", own.function = "x*sigmoid(x)", own.name = "mine_bf16", own.x_limit = 64;
  for (const char* part : {"fits", "generated", "sweeps", "attack", "proofs", "tuned"}) {
    fs::remove_all(folder_ / part);
  }
  write("generated/mine_bf16.h", print_header(own));
  const auto reported = [](const Results& results) {
    std::map<std::string, double> found;
    for (const Requirement& row : requirements(results)) {
      EXPECT_EQ(row.verdict(), row.value ? RequirementVerdict::reported : RequirementVerdict::not_measured)
          << row.quantity;
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

  // A fit without its header says less; beside its header, nothing more.
  Json fit = committed("fits/gelu_bf16.json");
  fit["activation"] = "expression", fit["name"] = "mine_bf16";
  write("fits/mine_bf16.json", fit.dump());
  EXPECT_EQ(reported(read()), found);
  fs::remove_all(folder_ / "generated");
  EXPECT_EQ(reported(read()).size(), 2u);
  fit["activation"] = "gelu";
  write("fits/mine_bf16.json", fit.dump());
  EXPECT_TRUE(reported(read()).empty());
}

// Every figure says of which run it is, as provenance.json has it; what is not listed there is of not of this
// run.
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
  EXPECT_EQ(origins(read()), (Origins{{"f32", unknown},
                                      {"f16", unknown},
                                      {"bf16", unknown},
                                      {"sweeps", unknown},
                                      {"norms", unknown},
                                      {"certificates", unknown}}));
  EXPECT_EQ(facts(read())["files"]["sweeps"][0],
            (Json{{"file", file("sweeps/gelu_bf16.json")}, {"origin", "not stated"}}));

  fs::create_directories(folder_ / "committed/attack");
  fs::create_directories(folder_ / "committed/sweeps");
  fs::rename(folder_ / "attack/norms.json", folder_ / "committed/attack/norms.json");
  Json same = sweep_json(kF32);
  // of a file that this run has made itself, the committed one does not count
  same["domains"][0]["T_over_O"] = 7;
  write("committed/sweeps/gelu_f32.json", same.dump());
  Json provenance{
      {"schema", "outgrad.provenance/1"},
      {"version", "1.2.3"},
      {"commit", "abcdef0"},
      {"date", "2026-11-26"},
      {"machine", {{"cpu", "a processor"}, {"cores", 2}, {"gpu", ""}}},
      {"run",
       {"sweeps/gelu_bf16.json", "generated/gelu_bf16.h", "sweeps/gelu_f32.json", "generated/gelu_f32.h"}},
      {"committed", {{"attack/norms.json", {{"date", "2026-11-01"}, {"commit", "1234567"}}}}}};
  write("provenance.json", provenance.dump());
  const Results results = read();
  const std::set<std::string> committed{"committed 2026-11-01 1234567"};
  // PyTorch's error stands in the sweep of f32, which this writer leaves without it.
  EXPECT_EQ(origins(results), (Origins{{"f32", ours},
                                       {"f16", earlier},
                                       {"bf16", ours},
                                       {"sweeps", {"not of this run; this run"}},
                                       {"norms", committed},
                                       {"certificates", earlier}}));
  EXPECT_EQ(failing(results), std::vector<std::string>{});
  EXPECT_NE(to_text(requirements(results)).find("committed 2026-11-01 1234567"), std::string::npos);
  EXPECT_EQ(to_json(requirements(results))["requirements"][0]["from"], "this run");
  const Json told = facts(results);
  EXPECT_EQ(told["made_by"], "outgrad 1.2.3, commit abcdef0, 2026-11-26, on a processor, 2 cores, no GPU");
  EXPECT_EQ(told["files"]["attacks"][0]["origin"], "committed 2026-11-01 1234567");
  EXPECT_EQ(told["files"]["sweeps"][0]["origin"], "this run");
  EXPECT_EQ(told["headers"]["backward"][1]["origin"], "not of this run");
  for (const char* key : {"schema", "version", "commit", "date", "machine", "run", "committed"}) {
    with_changed(
        "provenance.json", [&](Json& json) { json.erase(key); },
        [&] { EXPECT_THROW(read(), SpecError) << key; });
  }
}

// A run writes first what it will make: where it ends before its end, the report says what is missing.
TEST_F(Report, ARunThatDidNotFinishSaysWhatIsMissing) {
  EXPECT_TRUE(facts(read())["run"].is_null());
  Json provenance{{"schema", "outgrad.provenance/1"},
                  {"version", "1.2.3"},
                  {"commit", ""},
                  {"date", "2026-11-26"},
                  {"machine", {{"cpu", "a processor"}, {"cores", 2}, {"gpu", ""}}},
                  {"run", Json::array()},
                  {"pending", {"sweeps/gelu_bf16.json", "sweeps/gelu_`other`.json"}},
                  {"committed", Json::object()}};
  write("provenance.json", provenance.dump());
  EXPECT_EQ(facts(read())["run"],
            (Json{{"date", "2026-11-26"}, {"finished", false}, {"missing", {"sweeps/gelu_'other'.json"}}}));
  EXPECT_EQ(facts(read())["files"]["sweeps"][0]["origin"], "a run that did not finish, or one before it");
  provenance["run"] = std::exchange(provenance["pending"], Json::array());
  write("provenance.json", provenance.dump());
  EXPECT_EQ(facts(read())["run"],
            (Json{{"date", "2026-11-26"}, {"finished", true}, {"missing", {"sweeps/gelu_'other'.json"}}}));
}

// What nothing was found of is counted, not passed over: there are as many lines as with all results.
TEST_F(Report, WhatWasNotMeasuredIsCounted) {
  const auto unmeasured = [&] {
    std::map<std::string, int> count;
    for (const Requirement& row : requirements(read())) count[row.format] += !row.value;
    return count;
  };
  EXPECT_EQ(unmeasured()["certificates"], 2) << "the gate's";
  EXPECT_EQ(unmeasured()["stores"], 3);
  EXPECT_EQ(unmeasured()["norms"], 0);
  fs::remove_all(folder_ / "attack");
  fs::remove_all(folder_ / "proofs");
  EXPECT_EQ(unmeasured()["certificates"], 3);
  EXPECT_EQ(unmeasured()["norms"], 2);
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
  Json written = Json::parse(kernels::read_file(file("report/report.json")));
  EXPECT_EQ(written.at("schema"), "outgrad.report/2");
  EXPECT_EQ(written.at("facts").at("files").at("fits").size(), 3u);
  written.erase("facts");
  EXPECT_EQ(written, shown);
  with_changed(
      "sweeps/gelu_bf16.json", [](Json& json) { json["domains"][1]["T_over_O"] = 1.021; },
      [&] {
        EXPECT_EQ(run({"--in", folder_.string(), "--out", file("elsewhere")}), kernels::kExitViolated);
      });
  EXPECT_TRUE(fs::is_regular_file(folder_ / "elsewhere/index.html"));
  EXPECT_THROW(run({"--in", file("absent")}), SpecError);
  fs::create_directory(folder_ / "empty");
  EXPECT_THROW(run({"--in", file("empty")}), SpecError);
  write("file", "");
  EXPECT_THROW(run({"--in", folder_.string(), "--out", file("file")}), kernels::IoError);
}

// What only Python reads is refused as what is judged: with file, place and why, and nothing is written.
TEST_F(Report, DamageThatOnlyPythonSeesIsRefused) {
  SKIP_WITHOUT_MATPLOTLIB();
  with_changed(
      "sweeps/gelu_bf16.json", [](Json& json) { json["domains"][0]["curve"]["rows"][3][1] = kHostile; },
      [&] {
        EXPECT_EQ(refusal_of([&] { run({"--in", folder_.string()}); }),
                  file("sweeps/gelu_bf16.json") + ": domains[0].curve.rows[3][1]: is not a number");
      });
  EXPECT_FALSE(fs::exists(folder_ / "report"));
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
  const std::string before = chosen ? chosen : "", python = file("python");
  EXPECT_NE(refused("/nonexistent/python").find("/nonexistent/python: cannot be started"), std::string::npos);
  for (const char* status : {"3", "2", "1"}) {
    write(
        "python",
        std::string(
            "#!/bin/sh\necho half >$3/index.html\necho Traceback >&2\necho 'No module named x' >&2\nexit ") +
            status + "\n");
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
