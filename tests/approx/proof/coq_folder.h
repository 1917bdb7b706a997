// Where the tests of files for Coq have them compiled.
#pragma once

#include "approx/proof/coq_check.h"
#include "kernels/support/errors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace outgrad::approx::coq {

inline constexpr double kFilePatience = 900;  // seconds

/// A folder of its own for what Coq compiles; skips visibly where Coq or Gappa is not installed.
class CoqFolder : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(testing::TempDir()) / ("outgrad_coq_folder_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    try {
      CheckedFit versions;
      find_programs(versions, folder());
    } catch (const kernels::EnvironmentError& lacking) {
      GTEST_SKIP() << lacking.what();
    }
  }
  void TearDown() override {
    if (!folder_.empty()) std::filesystem::remove_all(folder_);
  }
  [[nodiscard]] Checked judge(const WitnessScript& script) const {
    return check(script, folder(), kFilePatience);
  }
  void expect_proven(const WitnessScript& script) const {
    const Checked result = judge(script);
    EXPECT_EQ(result.outcome, Outcome::proven) << script.name << ": " << result.output;
  }
  void expect_refused(const WitnessScript& script, const std::string& error) const {
    const Checked result = judge(script);
    EXPECT_EQ(result.outcome, Outcome::refused) << script.name;
    EXPECT_NE(result.output.find(error), std::string::npos) << script.name << ": " << result.output;
  }

  [[nodiscard]] std::string folder() const { return folder_.string(); }

 private:
  std::filesystem::path folder_;
};

}  // namespace outgrad::approx::coq
