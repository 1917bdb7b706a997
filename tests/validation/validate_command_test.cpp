// The command line of `validate`: what it refuses, and that a shard leaves its file and nothing else.

#include "validation/validate_command.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "kernels/host/errors.h"
#include "kernels/host/files.h"
#include "validation/sweep_json.h"

namespace outgrad::validation {
namespace {

class ValidateCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("outgrad_validate_test_" + std::to_string(::getpid()));
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name) const { return (folder_ / name).string(); }

  static int run(std::vector<std::string> arguments) {
    CLI::App app("test");
    int status = kernels::kExitHolds;
    add_validate(app, status);
    arguments.insert(arguments.begin(), "validate");
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    app.parse(arguments);
    return status;
  }

  std::filesystem::path folder_;
};

TEST_F(ValidateCommand, RefusesBadInput) {
  using kernels::SpecError;
  EXPECT_THROW(run({}), SpecError);
  EXPECT_THROW(run({"--format", "f64"}), SpecError);
  EXPECT_THROW(run({"--format", "f32", "--activation", "relu"}), SpecError);
  EXPECT_THROW(run({"--format", "f32", "--merge", file("a")}), SpecError);
  EXPECT_THROW(run({"--merge", file("absent")}), kernels::IoError);
  for (const char* shard : {"0/2", "3/2", "1/0", "1", "1/", "/2", "a/b", "1/2x", "1/9999", "-1/2"}) {
    EXPECT_THROW(run({"--format", "f32", "--shard", shard, "--out", file("out")}), SpecError) << shard;
  }
  kernels::write_file(file("garbage"), "{\"schema\": \"outgrad.sweep-part/1\"}");
  EXPECT_THROW(run({"--merge", file("garbage")}), SpecError);
  EXPECT_THROW(run({"--format", "f32", "--threads", "-1"}), CLI::ParseError);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1) << "nothing was written";
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

  // The shards of a sweep of codes keep what they are: the part says so, and the merged file would be the whole one's.
  EXPECT_EQ(run({"--foreign", regelu2, "--format", "f32", "--shard", "600/1024", "--out", file("part")}), kernels::kExitHolds);
  const SweepParts read = parts_from_json(kernels::read_file(file("part")), "part");
  EXPECT_TRUE(read.subject.code);
  EXPECT_FALSE(read.subject.own_forward);
  EXPECT_EQ(read.subject.name, "regelu2+code");
  EXPECT_EQ(read.subject.origin["kind"], "steps");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
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
  kernels::write_file(file("two"), other.dump());
  EXPECT_THROW(run({"--merge", file("one"), file("two"), "--out", file("out")}), kernels::SpecError);

  // The same kernels, swept otherwise: named as such, before anything is counted.
  const nlohmann::json one = nlohmann::json::parse(kernels::read_file(file("one")));
  for (const auto& [key, value] : std::vector<std::pair<std::string, nlohmann::json>>{
           {"subject", "other"}, {"code", true}, {"own_forward", false}, {"distributions", nlohmann::json::array()}, {"origin", "{}"}}) {
    other = one;
    other[key] = value;
    kernels::write_file(file("two"), other.dump());
    try {
      run({"--merge", file("one"), file("two"), "--out", file("out")});
      ADD_FAILURE() << key << " may differ";
    } catch (const kernels::SpecError& error) {
      EXPECT_NE(std::string(error.what()).find("describes another sweep than"), std::string::npos) << key << ": " << error.what();
    }
  }
}

}  // namespace
}  // namespace outgrad::validation
