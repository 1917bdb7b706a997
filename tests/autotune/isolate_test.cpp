// Children that crash, hang, leave and throw: each an outcome with the right culprit, and the reports before it are not lost.
#include "autotune/isolate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <stdexcept>
#include <vector>

namespace outgrad::autotune {
namespace {

struct Ran {
  ChildEnd end;
  std::vector<int> reports;
};

Ran run(const std::function<void(const Channel&)>& body, double silence_seconds = 10) {
  Ran ran;
  IsolationLimits limits;
  limits.silence_seconds = silence_seconds;
  ran.end = run_isolated(
      body, [&](const nlohmann::json& report) { ran.reports.push_back(report.get<std::vector<int>>().front()); }, limits);
  return ran;
}

TEST(Isolate, ReportsArriveInOrderThoughTheyOverfillThePipe) {
  constexpr int kMany = 20'000;
  const Ran ran = run([](const Channel& channel) {
    for (int i = 0; i < kMany; ++i) channel.report(std::vector<int>{i});
  });
  EXPECT_EQ(ran.end.kind, ChildEnd::Kind::kFinished);
  ASSERT_EQ(ran.reports.size(), static_cast<std::size_t>(kMany));
  for (int i = 0; i < kMany; ++i) ASSERT_EQ(ran.reports[static_cast<std::size_t>(i)], i);
}

TEST(Isolate, ACrashBlamesWhatWasLaunchedLast) {
  const Ran ran = run([](const Channel& channel) {
    channel.launching(4);
    channel.report(std::vector<int>{4});
    channel.launching(7);
    ::raise(SIGSEGV);
  });
  EXPECT_EQ(ran.end.kind, ChildEnd::Kind::kCrashed);
  EXPECT_EQ(ran.end.last_launched, 7);
  EXPECT_NE(ran.end.detail.find("signal 11"), std::string::npos) << ran.end.detail;
  EXPECT_EQ(ran.reports, std::vector<int>{4});
}

TEST(Isolate, SilenceIsKilledButTalkIsNot) {
  const auto start = std::chrono::steady_clock::now();
  const Ran hung = run(
      [](const Channel& channel) {
        channel.launching(1);
        for (;;) ::pause();
      },
      0.3);
  EXPECT_EQ(hung.end.kind, ChildEnd::Kind::kHung);
  EXPECT_EQ(hung.end.last_launched, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  const Ran slow = run(
      [](const Channel& channel) {
        for (int i = 0; i < 5; ++i) {
          ::usleep(200'000);
          channel.launching(i);
        }
      },
      0.9);
  EXPECT_EQ(slow.end.kind, ChildEnd::Kind::kFinished);
}

TEST(Isolate, LeavingQuietlyIsACrashToo) {
  const Ran left = run([](const Channel&) { ::_exit(0); });
  EXPECT_EQ(left.end.kind, ChildEnd::Kind::kCrashed);
  EXPECT_NE(left.end.detail.find("exit status 0"), std::string::npos);
  const Ran threw = run([](const Channel&) { throw std::runtime_error("no such thing"); });
  EXPECT_EQ(threw.end.kind, ChildEnd::Kind::kCrashed);
  EXPECT_EQ(threw.end.detail, "no such thing");
}

TEST(Isolate, AMemoryHogFailsInsideItsLimit) {
  IsolationLimits limits;
  limits.memory_bytes = 1LL << 30;
  const ChildEnd end = run_isolated(
      [](const Channel& channel) {
        channel.launching(0);
        std::vector<std::vector<char>> hoard;
        for (;;) hoard.emplace_back(64 << 20);
      },
      [](const nlohmann::json&) {}, limits);
  EXPECT_EQ(end.kind, ChildEnd::Kind::kOutOfMemory);
  EXPECT_EQ(end.last_launched, 0);
}

}  // namespace
}  // namespace outgrad::autotune
