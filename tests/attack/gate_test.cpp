// The gate's own power: before a checker that accepts everything, damage at the places that `check` once
// forgave must come out as survivors.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/host/errors.h"
#include "kernels/support/files.h"
#include "validation/certificate/header_reader.h"
#include "tests/attack/committed.h"
#include "tests/attack/brute_force.h"
#include "tests/attack/formula.h"
#include "tests/attack/gate.h"
#include "tests/attack/mutation.h"
#include "tests/attack/process.h"
#include "tests/attack/specification.h"

namespace outgrad::validation::gate {

using kernels::Random;

namespace {

Options options_of(const std::string& only, size_t most = 0) {
  Options options;
  options.toolchain = default_toolchain();
  options.only = only, options.most = most, options.passes = 10;
  return options;
}

// Where damage is done at one place alone and the rest of the header is true, a checker without the rule for
// that place has nothing to say either.
Answer accept_all(const std::string&, const std::string&) { return {true, ""}; }

// The four defects the gate was made for, by hand: what `check` forgave must come out as survivors of a
// checker without the rule.
TEST(Gate, NightlyWhatCheckOnceForgaveSurvivesACheckerThatAcceptsAll) {
  struct Defect {
    const char *header, *place, *claim;
  };
  const auto library = std::make_shared<Library>();
  for (const Defect& defect : {
           // a false K, as printed for y* just above -2^k
           Defect{"gelu_bf16", "kK", "kK"},
           // a row of the far left tail, whose ulps nobody counted
           Defect{"gelu_bf16_ulp", "row 140, word 2", "kClass"},
           Defect{"gelu_bf16_stored", "kO", "kO"},                  // kO from above only
           Defect{"gelu_bf16_stored", "kClass", "kClass"},          // T beyond RHO times the least O
           Defect{"gelu_bf16", "kTMin", "kT"},  // a constant on which every claim rests
           Defect{"gelu_forward_bf16", "kQuarticShift", "rounded"}  // of a forward
       }) {
    Options options = options_of(defect.place);
    options.checker = accept_all;
    options.library = library;
    const HeaderResult result =
        attack_header(defect.header, committed(defect.header), {committed(defect.header)}, options);
    EXPECT_EQ(result.baseline, "") << defect.header;
    EXPECT_GT(result.total().survived, 0) << defect.header << " " << defect.place;
    bool named = false;
    for (const MutantFailure& failure : result.failures)
      named = named || failure.why.find(defect.claim) != std::string::npos;
    EXPECT_TRUE(named) << defect.header << " " << defect.place;
    options.checker = check_text;
    options.most = 3;
    EXPECT_EQ(attack_header(defect.header, committed(defect.header), {committed(defect.header)}, options)
                  .total()
                  .internal,
              0);
  }
}

// Every claim of a code header is seen where it is damaged, and the brute force sees most of it where it is
// true.
TEST(Gate, NightlyTheClaimsOfCodesAreJudged) {
  const auto library = std::make_shared<Library>();
  for (const char* place : {"kLo", "kHi", "kG", "kT1", "kT4", "kT8", "kDithered2", "kDithered3", "kBias",
                            "kClass", "kActivation", "kFunction"}) {
    Options options = options_of(place);
    options.checker = accept_all;
    options.library = library;
    const HeaderResult result =
        attack_header("gelu_code", committed("gelu_code"), {committed("tanh_code")}, options);
    EXPECT_EQ(result.baseline, "");
    bool named = false;
    for (const MutantFailure& failure : result.failures)
      named = named || failure.why.find(place) != std::string::npos;
    EXPECT_TRUE(named) << place;
    for (const auto& [claim, share] : result.shares) {
      // No x has all the errors of g that its bound adds up.
      EXPECT_GT(share, claim == "kG" ? 0.1 : claim == "kBias" ? 0.02 : 0.95) << claim;
      EXPECT_LE(share, 1) << claim;
    }
    EXPECT_EQ(result.shares.size(), 12u);
  }
}

// The same of a quotient's header: T over the balls of its y, what is claimed of these, and the least error.
TEST(Gate, NightlyTheClaimsOfProductsAreJudged) {
  const auto library = std::make_shared<Library>();
  for (const auto& [place, claim] : {std::pair{"kT", "kT"},
                                     {"kO", "kO"},
                                     {"kRelative", "kRelative"},
                                     {"kAbsolute", "kAbsolute"},
                                     {"kTMin", "kT"},
                                     {"row 2, word 1", "kT"},
                                     {"kProduct", "kProduct"}}) {
    Options options = options_of(place);
    options.checker = accept_all;
    options.library = library;
    const std::string header = "silu_f16_product";
    const HeaderResult result =
        attack_header(header, committed(header), {committed("gelu_bf16_product")}, options);
    EXPECT_EQ(result.baseline, "") << place;
    bool named = false;
    for (const MutantFailure& failure : result.failures)
      named = named || failure.why.find(claim) != std::string::npos;
    EXPECT_TRUE(named) << place;
    for (const char* seen : {"kT", "kO"}) {
      EXPECT_GT(result.shares.at(seen), 0.99) << seen;
      EXPECT_LE(result.shares.at(seen), 1) << seen;
    }
    options.checker = check_text;
    EXPECT_EQ(
        attack_header(header, committed(header), {committed("gelu_bf16_product")}, options).total().survived,
        0)
        << place;
  }
}

// A comment that ends in a backslash and a blank: g++ and clang++ join it with the next line, a reader that
// does not sees a row that is not there.
TEST(Gate, NightlyACommentThatSwallowsARowIsFalse) {
  const std::string text = committed("gelu_bf16");
  const std::vector<Site> sites = sites_of(text);
  Random random(1);
  bool tried = false;
  for (size_t i = 0; i < sites.size() && !tried; ++i) {
    if (sites[i].kind != Site::Kind::comment || text.substr(sites[i].begin, 8) != " row 13:") continue;
    tried = true;
    const Mutant mutant = mutant_of(text, sites, i, 5, text, random);
    const kernels::ScratchFolder folder;
    const CompiledBatch batch(default_toolchain(), folder.path(), {mutant.text});
    ASSERT_TRUE(batch.compiles(0));
    Library library;
    const Claims claims = batch.claims(0);
    const Truth& truth = library.truth(claims);
    EXPECT_FALSE(judge(library, claims, batch.run(0, truth.points)).empty());
    EXPECT_TRUE(mutant.refused_by_definition);
  }
  EXPECT_TRUE(tried);
}

// What the brute force once called false and was not: B away from the stored y, and A at the last y of the
// left segment, where a moved y_c moves the deployed root by an ulp but not the true one.
TEST(Gate, TrueClaimsAreNotCalledFalse) {
  for (const auto& [header, place] : {std::pair{"elu_f16", "kB"}, std::pair{"quick_gelu_f32", "kYLo"}}) {
    const HeaderResult result =
        attack_header(header, committed(header), {committed(header)}, options_of(place));
    EXPECT_GT(result.total().tried, 5) << header;
    for (const MutantFailure& failure : result.failures)
      ADD_FAILURE() << header << " " << failure.place << ", " << failure.kind << ": " << failure.why;
  }
}

TEST(Gate, NightlyAHeaderThatDoesNotCompileIsFalse) {
  Options options = options_of("kRows");
  options.checker = accept_all;
  const HeaderResult result = attack_header("gelu_bf16", committed("gelu_bf16"), {}, options);
  EXPECT_GT(result.total().survived, 0);
  bool named = false;
  for (const MutantFailure& failure : result.failures)
    named = named || failure.why.find("compile") != std::string::npos;
  EXPECT_TRUE(named);
}

TEST(Gate, ACheckerThatBreaksDownIsAnInternalError) {
  Options options = options_of("kO");
  options.checker = [](const std::string& text, const std::string&) -> Answer {
    if (text.size() % 2 == 0) throw std::runtime_error("broken");
    std::abort();
  };
  const HeaderResult result = attack_header("gelu_e4m3_oracle", committed("gelu_e4m3_oracle"), {}, options);
  EXPECT_GT(result.total().internal, 0);
  EXPECT_EQ(result.total().internal + result.total().harmless, result.total().tried);
}

TEST(Gate, UnitsAddUpAndAreReadBack) {
  HeaderResult header;
  header.header = "a", header.kinds["constants: sign"] = {3, 2, 1, 0, 0};
  SpecificationResult block;
  block.tried = 20, block.fitted = 5, block.refused = 15, block.reasons["no"] = 15;
  Units units{{"header a", to_json(header)}, {"specifications 0", to_json(block)}};
  const nlohmann::json all = document(units, 1);
  Units keyed = units;
  for (auto& [name, unit] : keyed) unit["key"] = "0";
  EXPECT_TRUE(holds(all));
  EXPECT_EQ(all["mutations"]["killed"], 2);
  EXPECT_EQ(all["specifications"]["refused"], 15);
  const kernels::ScratchFolder folder;
  const std::string file = folder.path() + "/result.json";
  kernels::write_file(file, document(keyed, 1).dump());
  EXPECT_EQ(read_units(file, 1), keyed);
  EXPECT_THROW(read_units(file, 2), kernels::SpecError);  // another seed's damage
  header.kinds["constants: sign"] = {3, 1, 1, 1, 0};
  units["header a"] = to_json(header);
  EXPECT_FALSE(holds(document(units, 1)));
  block.hung = 1;
  EXPECT_FALSE(holds(document({{"specifications 0", to_json(block)}}, 1)));
}

// Each value of a result in turn is missing, or of another type: one line with the file and the place,
// nothing else.
TEST(Gate, DamagedResultsAreRefusedWithTheirPlace) {
  HeaderResult header;
  header.header = "a", header.kinds["constants: sign"] = {3, 2, 1, 0, 0}, header.shares["kA"] = 0.5,
  header.failures.push_back({"a", "kA", "sign", "why"});
  SpecificationResult block;
  block.tried = 2, block.refused = 2, block.reasons["no"] = 2,
  block.failures.push_back({"spec", "hung", "why"});
  Units units{{"header a", to_json(header)}, {"specifications 0", to_json(block)}};
  for (auto& [name, unit] : units) unit["key"] = "0";
  const nlohmann::json all = document(units, 1);
  const kernels::ScratchFolder folder;
  const std::string file = folder.path() + "/result.json";
  const auto refused = [&](const std::string& text) {
    kernels::write_file(file, text);
    try {
      read_units(file, 1);
    } catch (const kernels::SpecError& error) {
      return std::string(error.what()).starts_with(file + ": ") &&
             std::string(error.what()).find('\n') == std::string::npos;
    }
    return false;
  };
  EXPECT_TRUE(refused(""));
  EXPECT_TRUE(refused("[]"));
  EXPECT_TRUE(refused(all.dump().substr(0, 100)));
  int places = 0;
  const nlohmann::json flat =
      nlohmann::json{{"schema", all["schema"]}, {"seed", 1}, {"units", all["units"]}}.flatten();
  for (const auto& [pointer, value] : flat.items()) {
    nlohmann::json other = all;
    other[nlohmann::json::json_pointer(pointer)] = nlohmann::json::array({nlohmann::json::object()});
    EXPECT_TRUE(refused(other.dump())) << pointer;
    ++places;
  }
  EXPECT_GT(places, 25);
}

// The seed alone decides.
TEST(Gate, SpecificationsAreTheSameForASeed) {
  Random first(11), second(11);
  std::set<std::string> functions, formats;
  for (int i = 0; i < 200; ++i) {
    const Specification a = random_specification(first), b = random_specification(second);
    EXPECT_EQ(a.json, b.json);
    EXPECT_LE(a.function.size(), 200u);
    const nlohmann::json parsed = nlohmann::json::parse(a.json);
    functions.insert(a.function), formats.insert(parsed["format"]);
  }
  EXPECT_GT(functions.size(), 150u);
  EXPECT_EQ(formats.size(), 5u);
}

// Each in turn, and of those that have choices all of them.
TEST(Gate, StoresAreDrawnInTurn) {
  Options options;
  options.seed = 5, options.stores = 4 * kBlock + 3;
  std::map<std::string, std::set<std::string>> targets;
  std::set<std::string> functions, coded;
  std::map<std::string, size_t> drawn;
  for (size_t block = 0; block <= 4; ++block) {
    const std::vector<Specification> specs = stores_of(block, options);
    EXPECT_EQ(specs.size(), block < 4 ? kBlock : 3);
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_EQ(specs[i].json, stores_of(block, options)[i].json);
      const nlohmann::json parsed = nlohmann::json::parse(specs[i].json);
      const std::string store = parsed["kind"] == "code" ? "code" : parsed["format"].get<std::string>(),
                        target = parsed["target"];
      ++drawn[store];
      targets[store].insert(target.substr(0, target.find(':')));
      functions.insert(specs[i].function);
      if (store == "code") coded.insert(specs[i].function);
    }
  }
  EXPECT_EQ(drawn, (std::map<std::string, size_t>{
                       {"bf16_parity", 21}, {"code", 21}, {"f16_parity", 20}, {"mxfp8", 21}}));
  EXPECT_EQ(targets["code"], std::set<std::string>{"abs"});
  for (const char* store : {"bf16_parity", "mxfp8", "f16_parity"})
    EXPECT_GE(targets[store].size(), 3u) << store;
  EXPECT_GT(functions.size(), 50u);
  EXPECT_GT(coded.size(), 5u);
  EXPECT_NE(stores_of(0, options)[0].json, specifications_of(0,
                                                             [&] {
                                                               Options other = options;
                                                               other.specifications = 1;
                                                               return other;
                                                             }())[0]
                                               .json);
}

// A fitter that prints a line and emits a committed header, whatever it is asked.
std::string stand_in(const std::string& folder, const std::string& prints, const std::string& header) {
  const std::string program = folder + "/fitter", text = folder + "/header";
  kernels::write_file(text, header);
  kernels::write_file(program, "#!/bin/sh\n[ \"$1\" = fit ] && echo '" + prints +
                                   "' && : > \"$4\"\n[ \"$1\" = emit ] && cp '" + text +
                                   "' \"$4\"\nexit 0\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  return program;
}

// What is false is false whether the checker refuses it or not; "violated" of what is true is a fault, and so
// is a print that the header contradicts.
TEST(Gate, NightlyFalsePrintsAndFalseRefutationsAreFaults) {
  const kernels::ScratchFolder folder;
  Options options = options_of("");
  const std::string truth = committed("gelu_e4m3_oracle");
  const size_t bound = truth.find("kT = ") + 5;
  std::string damaged = truth;
  damaged.replace(bound, truth.find(';', bound) - bound, "0x1p-9");
  const auto attacked = [&](const std::string& prints, const std::string& header, const Answer& answer) {
    options.fitter = stand_in(folder.path(), prints, header);
    options.checker = [=](const std::string&, const std::string&) { return answer; };
    return attack_specifications({{"x*normal_cdf(x)", "{}"}}, options);
  };
  const Answer holds{true, ""}, violated{false, "T violated", true}, undecided{false, "T undecided"};
  EXPECT_EQ(attacked("", truth, holds).fitted, 1);
  EXPECT_EQ(attacked("", truth, undecided).undecided, 1);
  const SpecificationResult contested = attacked("", truth, violated);
  EXPECT_EQ(contested.contested, 1);
  EXPECT_EQ(contested.seconds.size(), 1u);
  nlohmann::json unit = to_json(contested);
  EXPECT_FALSE(gate::holds(document({{"specifications 0", unit}}, 1)));
  for (const Answer& answer : {holds, violated, undecided}) {
    const SpecificationResult result = attacked("", damaged, answer);
    EXPECT_EQ(result.false_claims, 1);
    EXPECT_EQ(result.survived, answer.holds ? 1 : 0);
  }
  const SpecificationResult printed =
      attacked("gelu: T 0.0711, O 0.0001, R 2^-20.00 (enumerated)", truth, holds);
  EXPECT_EQ(printed.false_claims, 1);
  ASSERT_EQ(printed.failures.size(), 1u);
  EXPECT_NE(printed.failures[0].why.find("fit prints"), std::string::npos) << printed.failures[0].why;
  const StorageClaims claims = std::get<TableHeader>(parse_header(truth, "h.h")).storage;
  const auto print = [&](double total, double oracle, double regret, double ratio) {
    return fmt::format("gelu: T {:.6g}, O {:.6g}, T/O {:.5f}, R 2^{:.2f} (enumerated)", total, oracle, ratio,
                       std::log2(regret));
  };
  const double ratio = claims.total / claims.oracle;
  EXPECT_EQ(attacked(print(claims.total, claims.oracle, claims.regret, ratio), truth, holds).fitted, 1);
  EXPECT_EQ(
      attacked(print(claims.total * 1.0001, claims.oracle, claims.regret, ratio), truth, holds).false_claims,
      1);
  EXPECT_EQ(
      attacked(print(claims.total, claims.oracle * 0.9999, claims.regret, ratio), truth, holds).false_claims,
      1);
  EXPECT_EQ(
      attacked(print(claims.total, claims.oracle, claims.regret * 1.02, ratio), truth, holds).false_claims,
      1);
  EXPECT_EQ(
      attacked(print(claims.total, claims.oracle, claims.regret, ratio * 1.001), truth, holds).false_claims,
      1);
}

// Where one proof has several findings, the verdict's own is told: a false O beside a class that holds is
// violated.
TEST(Gate, TellsTheFindingThatDecides) {
  std::string text = kernels::read_file(OUTGRAD_SOURCE_DIR "/kernels/generated/gelu_bf16_stored.h");
  const std::string key = "constexpr double kO = ";
  const size_t at = text.find(key) + key.size(), end = text.find(';', at);
  const double smaller = std::strtod(text.c_str() + at, nullptr) * (1 - 0x1p-20);
  text.replace(at, end - at, fmt::format("{:a}", smaller));
  const Answer answer = check_text(text, "gelu_bf16_stored.h");
  EXPECT_FALSE(answer.holds);
  EXPECT_TRUE(answer.violated) << answer.why;
  EXPECT_EQ(answer.why.rfind("O violated", 0), 0u) << answer.why;
}

// Far from 0, large and small, steep, lifted: of each there are some in a few hundred, for every format.
TEST(Gate, FunctionsAreMovedToWhereMostAreNot) {
  Random random(9);
  std::set<std::string> far, steep, small, large, lifted;
  for (int i = 0; i < 4000; ++i) {
    const Specification spec =
        i % 3 == 0 ? random_store(static_cast<size_t>(i / 3), random) : random_specification(random);
    const nlohmann::json parsed = nlohmann::json::parse(spec.json);
    if (!parsed.contains("expression")) continue;
    const std::string format = parsed["kind"] == "code" ? "code" : parsed["format"].get<std::string>(),
                      &f = spec.function;
    if (const size_t at = f.find("(x");
        at != std::string::npos && std::fabs(std::strtod(f.c_str() + at + 2, nullptr)) > 8)
      far.insert(format);
    if (const size_t at = f.find("sigmoid(");
        at != std::string::npos && std::strtod(f.c_str() + at + 8, nullptr) > 100)
      steep.insert(format);
    if (f[0] == '-' && f.find("*exp(-") != std::string::npos) {
      const double height = -std::strtod(f.c_str(), nullptr);
      EXPECT_GE(height, 0x1p-14 * 0.999);
      EXPECT_LE(height, 0x1p10 * 1.001);
      if (height < 0x1p-7) small.insert(format);
      if (height > 0x1p5) large.insert(format);
    }
    if (const size_t sign = f.find_last_of("+-");
        f.rfind(')') < sign && std::fabs(std::strtod(f.c_str() + sign, nullptr)) > 8)
      lifted.insert(format);
  }
  EXPECT_EQ(far.size(), 9u);
  EXPECT_GE(steep.size(), 6u);
  EXPECT_GE(small.size(), 6u);
  EXPECT_GE(large.size(), 6u);
  EXPECT_GE(lifted.size(), 6u);
}

// That is where enumerations of stored numbers change their grid: a minimum found there by chance would be
// one in thirty.
TEST(Gate, AQuarterOfTheFunctionsHaveTheirMinimumBesideAPowerOfTwo) {
  Random random(3);
  int drawn = 0, beside = 0;
  while (drawn < 200) {
    const Specification spec = random_specification(random);
    if (!spec.function.starts_with("x*")) continue;
    const Formula f(spec.function);
    ++drawn;
    double least = 0;
    for (double x = -40; x < 0; x += 0x1p-10) least = std::min(least, f.at(x).value);
    const double octaves = std::log2(-least);
    beside += std::fabs(octaves - std::round(octaves)) < 0x1p-6;
  }
  EXPECT_GT(beside, 50);
}

}  // namespace
}  // namespace outgrad::validation::gate
