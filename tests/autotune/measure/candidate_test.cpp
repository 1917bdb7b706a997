// The life cycle: one step at a time, and nothing after a rejection.
#include "autotune/measure/candidate.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace outgrad::autotune {
namespace {

Candidate proposed() { return Candidate(default_variant({KernelId::kGeluForward, FormatId::kF16})); }

TEST(Candidate, GoesForwardOneStepAtATime) {
  Candidate candidate = proposed();
  EXPECT_THROW(candidate.verified(1), std::logic_error);
  EXPECT_THROW(candidate.timed({}, {}), std::logic_error);
  EXPECT_THROW(candidate.reject(Stage::kVerify, Reason::kCrashed, ""), std::logic_error);
  EXPECT_EQ(candidate.code(), nullptr);
  candidate.compiled({"lib.so", "symbol", 1});
  EXPECT_THROW(candidate.compiled({"lib.so", "symbol", 1}), std::logic_error);
  EXPECT_THROW(candidate.timed({}, {}), std::logic_error);
  candidate.verified(42);
  EXPECT_EQ(candidate.as<Verified>()->checked, 42);
  candidate.timed({1, 2}, {3});
  EXPECT_EQ(candidate.as<Timed>()->final_ns, std::vector<double>{3});
  EXPECT_EQ(candidate.code()->library, "lib.so");
  EXPECT_STREQ(candidate.state_name(), "timed");
}

TEST(Candidate, RejectionIsFinalAndKeepsItsReason) {
  Candidate candidate = proposed();
  candidate.compiled({"lib.so", "symbol", 1});
  candidate.reject(Stage::kVerify, Reason::kWrongAnswer, "dx[3]");
  const Rejected* why = candidate.as<Rejected>();
  ASSERT_NE(why, nullptr);
  EXPECT_EQ(why->detail, "dx[3]");
  EXPECT_EQ(candidate.code(), nullptr);
  EXPECT_THROW(candidate.verified(1), std::logic_error);
  EXPECT_THROW(candidate.reject(Stage::kTime, Reason::kHung, ""), std::logic_error);
  EXPECT_STREQ(candidate.state_name(), "rejected");
}

}  // namespace
}  // namespace outgrad::autotune
