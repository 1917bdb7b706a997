// The command line of `validate`: what it refuses, and that a shard leaves its file and nothing else.

#include "validation/commands.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/support/errors.h"
#include "kernels/support/files.h"
#include "tests/refusal.h"
#include "tests/validation/command_fixture.h"
#include "validation/sweep/quantiser_audit.h"
#include "validation/sweep/sweep_json.h"

namespace outgrad::validation {
namespace {

class ValidateCommand : public CommandTest {
 protected:
  ValidateCommand()
      : CommandTest("validate", [](CLI::App& app, int& status) { add_validate(app, status); }) {}
};

TEST_F(ValidateCommand, RefusesBadInput) {
  using kernels::SpecError;
  EXPECT_THROW(run({}), SpecError);
  EXPECT_THROW(run({"--format", "f64"}), SpecError);
  EXPECT_THROW(run({"--format", "f32", "--activation", "relu"}), SpecError);
  EXPECT_THROW(run({"--format", "f32", "--activation", "tanh,relu"}), SpecError);
  EXPECT_THROW(run({"--format", "f32", "--activation", "tanh,"}), SpecError);
  EXPECT_THROW(run({"--format", "f32,", "--activation", "tanh"}), SpecError);
  EXPECT_THROW(run({"--format", "f32", "--activation", ""}), SpecError);
  EXPECT_THROW(run({"--format", "f32", "--fit", "gelu_bf16"}), SpecError) << "of another format";
  EXPECT_THROW(run({"--format", "bf16", "--activation", "silu", "--fit", "gelu_bf16"}), SpecError)
      << "of another activation";
  EXPECT_THROW(run({"--format", "bf16", "--x", "some"}), SpecError);
  EXPECT_THROW(run({"--format", "f32", "--merge", file("a")}), SpecError);
  EXPECT_THROW(run({"--merge", file("absent")}), kernels::IoError);
  for (const char* shard : {"0/2", "3/2", "1/0", "1", "1/", "/2", "a/b", "1/2x", "1/9999", "-1/2"}) {
    EXPECT_THROW(run({"--format", "f32", "--shard", shard, "--out", file("out")}), SpecError) << shard;
  }
  kernels::write_file(file("garbage"), "{\"schema\": \"outgrad.sweep-part/1\"}");
  EXPECT_THROW(run({"--merge", file("garbage")}), SpecError);
  EXPECT_THROW(run({"--format", "f32", "--threads", "-1"}), SpecError);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "nothing was written";
}

TEST_F(ValidateCommand, RefusesWhatProductsHaveNot) {
  const auto refused = [&](std::vector<std::string> more) {
    std::vector<std::string> arguments{"--activation",      "silu",  "--format", "bf16", "--fit",
                                       "silu_bf16_product", "--out", file("out")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_THROW(run(arguments), kernels::SpecError) << more.back();
  };
  refused({"--shard", "1/2"});
  refused({"--x", "own"});
  refused({"--activations", file("histogram")});
  for (const auto& [activation, format, fit] : {std::array{"mish", "bf16", "products"},
                                                {"silu", "f32", "products"},
                                                {"silu", "f16", "silu_bf16_product"},
                                                {"gelu", "bf16", "silu_bf16_product"},
                                                {"silu", "bf16", "silu_bf16,silu_bf16_product"}}) {
    EXPECT_THROW(run({"--activation", activation, "--format", format, "--fit", fit, "--out", file("out")}),
                 kernels::SpecError)
        << activation << ' ' << format << ' ' << fit;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 0) << "nothing was written";
}

/// A part with a digest of its own.
void write_part(const std::string& path, nlohmann::json part) {
  part["sha256"] = part_digest(part);
  kernels::write_file(path, part.dump());
}

TEST_F(ValidateCommand, AuditsPublishedCoefficients) {
  using kernels::SpecError;
  const std::string regelu2 = std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/foreign/regelu2.json";
  EXPECT_THROW(run({"--foreign", regelu2}), SpecError) << "no format";
  EXPECT_THROW(run({"--foreign", regelu2, "--format", "f32", "--fit", "gelu_f32"}), SpecError);
  EXPECT_THROW(run({"--foreign", regelu2, "--merge", file("one")}), SpecError);
  EXPECT_THROW(run({"--foreign", file("absent"), "--format", "f32"}), kernels::IoError);
  kernels::write_file(file("torn"), kernels::read_file(regelu2).substr(0, 300));
  EXPECT_THROW(run({"--foreign", file("torn"), "--format", "f32"}), SpecError);
  std::filesystem::remove(file("torn"));

  // The shards of a sweep of codes keep what they are: the part says so, and the merged file would be the
  // whole one's.
  EXPECT_EQ(run({"--foreign", regelu2, "--format", "f32", "--shard", "600/1024", "--out", file("part")}),
            kernels::kExitHolds);
  const SweepParts read = parts_from_json(kernels::read_file(file("part")), "part");
  EXPECT_TRUE(read.subject.code);
  EXPECT_FALSE(read.subject.own_forward);
  EXPECT_EQ(read.subject.name, "regelu2+code");
  EXPECT_EQ(read.subject.origin["kind"], "steps");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

TEST_F(ValidateCommand, AuditsQuantisers) {
  using kernels::SpecError;
  const std::string source =
      std::string(OUTGRAD_SOURCE_DIR) + "/notebooks_data/foreign/mesa_gelu_nearest.json";
  EXPECT_THROW(run({"--foreign", source, "--format", "f16", "--shard", "1/2"}), SpecError);
  EXPECT_THROW(run({"--foreign", source, "--format", "f16", "--x", "own"}), SpecError);
  EXPECT_EQ(run({"--foreign", source, "--format", "f16", "--out", file("audit")}), kernels::kExitHolds);
  const nlohmann::json audit = nlohmann::json::parse(kernels::read_file(file("audit")));
  EXPECT_EQ(audit["schema"], kQuantiserSchema);
  EXPECT_EQ(audit["foreign"]["stored"], "x in 8 bits");
  EXPECT_TRUE(audit["ranges"][0]["T_wrapped"].is_null());
  EXPECT_TRUE(audit["gates"].empty());
  const double found = audit["ranges"][2]["T"]["value"];  // the greatest of the three
  nlohmann::json claiming = nlohmann::json::parse(kernels::read_file(source));
  for (const double limit : {1.001 * found, 0.999 * found}) {
    claiming["claims"]["T"] = limit;
    kernels::write_file(file("claiming"), claiming.dump());
    EXPECT_EQ(run({"--foreign", file("claiming"), "--format", "f16", "--out", file("audit")}),
              limit > found ? kernels::kExitHolds : kernels::kExitViolated);
  }
}

TEST_F(ValidateCommand, SweepsManyIntoAFolder) {
  EXPECT_EQ(run({"--activation", "tanh,gelu", "--format", "bf16,f16", "--x", "own", "--out", file("many")}),
            kernels::kExitHolds);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(file("many")))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"gelu_bf16_x_own.json", "gelu_f16_x_own.json",
                                             "tanh_bf16_x_own.json", "tanh_f16_x_own.json"}));
  const nlohmann::json tanh = nlohmann::json::parse(kernels::read_file(file("many/tanh_bf16_x_own.json")));
  EXPECT_EQ(tanh["activation"], "tanh");
  EXPECT_EQ(tanh["domains"].size(), 1u);
  EXPECT_EQ(tanh["domains"][0]["counts"]["patterns"], 65536);
  EXPECT_TRUE(tanh["domains"][0]["T"]["left"].is_null());
  EXPECT_TRUE(tanh["domains"][0]["forward"].is_null());
  std::vector<std::string> gates;
  for (const auto& gate : tanh["gates"]) {
    gates.push_back(gate["name"]);
    EXPECT_TRUE(gate["holds"]) << gate.dump();
  }
  EXPECT_NE(std::find(gates.begin(), gates.end(), "T within the header's kT"), gates.end());
  // Every fit of a format: deployed, others, direct table.
  EXPECT_EQ(run({"--format", "bf16", "--fit", "all", "--x", "own", "--out", file("fits")}),
            kernels::kExitHolds);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(file("fits")), {}), 5);
  EXPECT_TRUE(std::filesystem::exists(file("fits/gelu_bf16_oracle_x_own.json")));
}

TEST_F(ValidateCommand, AShardOfAnActivationMergesAlone) {
  const std::vector<std::string> silu{"--activation", "silu", "--format", "bf16", "--x", "own"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> all = silu;
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  };
  EXPECT_EQ(with({"--shard", "1/1", "--out", file("whole")}), kernels::kExitHolds);
  EXPECT_EQ(with({"--shard", "2/2", "--out", file("two")}), kernels::kExitHolds);
  EXPECT_EQ(with({"--shard", "1/2", "--out", file("one")}), kernels::kExitHolds)
      << "one chunk: the other shard has none";
  EXPECT_EQ(run({"--merge", file("one"), file("two"), "--out", file("merged")}), kernels::kExitHolds);
  EXPECT_EQ(kernels::read_file(file("merged")), kernels::read_file(file("whole")));
  // Parts of a sweep of both domains do not make one of the format's own x, nor the other way round.
  nlohmann::json other = nlohmann::json::parse(kernels::read_file(file("two")));
  other["x"] = "all";
  write_part(file("three"), other);
  EXPECT_THROW(run({"--merge", file("one"), file("three"), "--out", file("out")}), kernels::SpecError);
  EXPECT_THROW(run({"--merge", file("three"), "--out", file("out")}), kernels::SpecError);
}

TEST_F(ValidateCommand, ShardLeavesItsFileAndMergeNeedsThemAll) {
  EXPECT_EQ(run({"--format", "f32", "--shard", "1/1024", "--out", file("one")}), kernels::kExitHolds);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "no log, no temporary";
  const SweepParts read = parts_from_json(kernels::read_file(file("one")), "one");
  ASSERT_EQ(read.parts.size(), 1u);
  EXPECT_EQ(read.parts[0].begin, 0);
  EXPECT_EQ(read.parts[0].end, std::int64_t{1} << 22);
  EXPECT_EQ(read.parts[0].segment.finite, std::int64_t{1} << 22);
  EXPECT_THROW(run({"--merge", file("one")}), kernels::SpecError);

  // A shard of other kernels.
  nlohmann::json other = nlohmann::json::parse(kernels::read_file(file("one")));
  other["identity"] = "0";
  write_part(file("two"), other);
  EXPECT_THROW(run({"--merge", file("one"), file("two"), "--out", file("out")}), kernels::SpecError);

  // The same kernels, swept otherwise: named as such, before anything is counted.
  const nlohmann::json one = nlohmann::json::parse(kernels::read_file(file("one")));
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"subject", "other"},
                                                           {"code", true},
                                                           {"own_forward", false},
                                                           {"distributions", nlohmann::json::array()},
                                                           {"origin", "{}"}}) {
    other = one;
    other[key] = value;
    write_part(file("two"), other);
    const std::string why =
        refusal_of([&] { run({"--merge", file("one"), file("two"), "--out", file("out")}); });
    EXPECT_NE(why.find("describes another sweep than"), std::string::npos) << key << ": " << why;
  }

  // A count and a digest that somebody changed.
  for (const char* const place : {"/parts/0/segment/finite", "/parts/0/segment/digests/0"}) {
    other = one;
    auto& value = other[nlohmann::json::json_pointer(place)];
    value = value.is_number() ? nlohmann::json(7) : nlohmann::json("00");
    kernels::write_file(file("two"), other.dump());
    const std::string why = refusal_of([&] { run({"--merge", file("two"), "--out", file("out")}); });
    EXPECT_NE(why.find("two: sha256: "), std::string::npos) << place << ": " << why;
  }
}

int threads_of_header = 0;

class ValidateHeader : public CommandTest {
 protected:
  ValidateHeader()
      : CommandTest("validate", [](CLI::App& app, int& status) { add_validate(app, status, &sweep); }) {}

 private:
  static bool sweep(const std::string&, const std::string&, const std::string&, const kernels::ResultForm&) {
    threads_of_header = omp_get_max_threads();
    return true;
  }
};

TEST_F(ValidateHeader, RunsOnSoManyThreads) {
  const int before = omp_get_max_threads();
  for (const int threads : {3, 1}) {
    run({"--header", "own.h", "--threads", std::to_string(threads)});
    EXPECT_EQ(threads_of_header, threads);
  }
  omp_set_num_threads(before);
}

}  // namespace
}  // namespace outgrad::validation
