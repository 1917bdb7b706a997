// Where the tests of files for Coq have them compiled, and what kernels that are compiled with them give.
#pragma once

#include "approx/function/format.h"
#include "approx/proof/coq_activation.h"
#include "approx/proof/coq_check.h"
#include "kernels/eval.h"
#include "kernels/support/errors.h"
#include "tests/approx/shared.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace outgrad::approx::coq {

inline const std::string kSources = kRoot + "/approx/proof/coq";
inline constexpr double kPatience = 1800;  // seconds, far above what a file takes on a busy machine

/// What coqc says where a computation has another result than is claimed.
inline constexpr const char* kUnequal = "The term \"eq_refl\" has type";

/// A folder of its own for what Coq compiles; skips visibly where Coq or Gappa is not installed.
class CoqFolder : public testing::Test {
 protected:
  void SetUp() override {
    // One folder a process: ctest runs these tests side by side.
    folder_ = std::filesystem::path(testing::TempDir()) / ("outgrad_coq_" + std::to_string(::getpid()));
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
  [[nodiscard]] std::string folder() const { return folder_.string(); }

  [[nodiscard]] Checked judge(const WitnessScript& script, double limit_s = kPatience) const {
    return check(script, folder(), limit_s);
  }
  [[nodiscard]] testing::AssertionResult accepts(const WitnessScript& script) const {
    return proven(judge(script));
  }
  /// For the reason that `error` is part of, and not for want of time or memory.
  [[nodiscard]] testing::AssertionResult refuses(const WitnessScript& script,
                                                 const std::string& error) const {
    const Checked result = judge(script);
    if (result.outcome == Outcome::refused && result.output.find(error) != std::string::npos)
      return testing::AssertionSuccess();
    return testing::AssertionFailure() << script.name << ": " << to_string(result.outcome) << "\n"
                                       << result.output;
  }
  /// Compiles the library for a function; `total`: with what T needs.
  [[nodiscard]] testing::AssertionResult has_library(const std::string& function, bool total) const {
    for (const Checked& file : compile_library(kSources, folder(), kPatience, known(function), total)) {
      if (const testing::AssertionResult result = proven(file); !result) return result;
    }
    return testing::AssertionSuccess();
  }
  [[nodiscard]] CheckedFit prove_all(const Groups& groups, const Fit& fit) const {
    CheckedFit checked = check_all(groups, known(fit.function), kSources, folder(), kPatience, 2,
                                   [](const Checked& file) { EXPECT_TRUE(proven(file)); });
    EXPECT_TRUE(checked.holds());
    return checked;
  }

 private:
  static testing::AssertionResult proven(const Checked& file) {
    if (file.outcome == Outcome::proven) return testing::AssertionSuccess();
    return testing::AssertionFailure() << file.file << ": " << to_string(file.outcome) << "\n" << file.output;
  }

  std::filesystem::path folder_;
};

/// `before` has to be there once.
inline std::string with(std::string text, const std::string& before, const std::string& after) {
  const std::size_t at = text.find(before);
  if (at == std::string::npos || text.find(before, at + 1) != std::string::npos)
    throw std::runtime_error("not there once: " + before);
  return text.replace(at, before.size(), after);
}

inline WitnessScript with(WitnessScript script, const std::string& before, const std::string& after) {
  script.text = with(script.text, before, after);
  return script;
}

inline WitnessScript of_library(const std::string& module) {
  return {module + ".v", kernels::read_file(kSources + "/" + module + ".v")};
}

/// The compiled kernels of two generated headers.
template <class T, class Backward, class Forward>
struct Compiled {
  Format format;
  static constexpr std::uint64_t kModulus = (std::uint64_t{1} << 61) - 1;

  static std::uint64_t hashed(std::uint64_t hash, float result) {
    __extension__ using Wide = unsigned __int128;
    return static_cast<std::uint64_t>((Wide{hash} * 1000003 + kernels::canonical_bits(result) + 1) %
                                      kModulus);
  }
  [[nodiscard]] float number(std::int64_t pattern) const {
    return static_cast<float>(decode(format, static_cast<std::uint32_t>(pattern)));
  }
  /// As hash_of_results in Kernel.v.
  [[nodiscard]] std::uint64_t hash_of_results(int step, int count) const {
    std::uint64_t hash = 0;
    for (int i = 0; i < count; ++i) {
      for (const bool m : {false, true})
        hash = hashed(hash, kernels::evaluate_backward<Backward>(kernels::FloatOps{},
                                                                 number(std::int64_t{step} * i), m));
    }
    return hash;
  }
  /// As hash_of_outputs in Forward.v.
  [[nodiscard]] std::uint64_t hash_of_outputs(int step, int count) const {
    static constexpr auto kTable = Forward::table();
    const kernels::FloatOps ops;
    std::uint64_t hash = 0;
    for (int i = 0; i < count; ++i) {
      const float x = number(i * step), y = kernels::widen(kernels::narrow<T>(
                                            kernels::evaluate_forward(ops, Forward{}, kTable, x)));
      hash = 2 * hashed(hash, y) + static_cast<std::uint64_t>(kernels::evaluate_mask(ops, Forward{}, x));
    }
    return hash;
  }
};

/// That the kernel in Coq of a fit has those results; `numbers`: the format, as in Format.v.
inline WitnessScript same_results(const std::string& fit, const char* numbers, int step, int count,
                                  std::uint64_t results) {
  return {"Same.v",
          fmt::format("From Coq Require Import ZArith.\nFrom Outgrad Require Import Kernel {0}_kernel.\n"
                      "Open Scope Z_scope.\nLemma results : hash_of_results kernel {1} 0 {2} {3} = {4}.\n"
                      "Proof. vm_cast_no_check (eq_refl {4}). Qed.\n",
                      fit, numbers, step, count, results)};
}

}  // namespace outgrad::approx::coq
