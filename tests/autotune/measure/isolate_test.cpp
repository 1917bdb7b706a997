// Children that crash, hang, leave and throw: each an outcome with the right culprit, and the reports before
// it are not lost.
#include "autotune/measure/isolate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <stdexcept>
#include <vector>

namespace outgrad::autotune {
namespace {

struct Ran {
  ChildEnd end;
  std::vector<int> reports;
};

Ran run(const std::function<void(const Channel&)>& body, double silence_seconds = 10,
        Patience* patience = nullptr) {
  Ran ran;
  IsolationLimits limits;
  limits.silence_seconds = silence_seconds;
  limits.patience = patience;
  ran.end = run_isolated(
      body,
      [&](const nlohmann::json& report) { ran.reports.push_back(report.get<std::vector<int>>().front()); },
      limits);
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
  const Ran hung = run(
      [](const Channel& channel) {
        channel.launching(1);
        for (;;) ::pause();  // for ever, were it not killed
      },
      0.3);
  EXPECT_EQ(hung.end.kind, ChildEnd::Kind::kHung);
  EXPECT_EQ(hung.end.last_launched, 1);
  // Longer in all than the limit, but never silent for a tenth of it: a machine may be busy with other
  // things.
  const Ran slow = run(
      [](const Channel& channel) {
        for (int i = 0; i < 24; ++i) {
          ::usleep(100'000);
          channel.launching(i);
        }
      },
      2);
  EXPECT_EQ(slow.end.kind, ChildEnd::Kind::kFinished);
}

// What is launched after the baseline may take so many times as long, not more; what is not launched, and the
// baseline, have the whole limit.
TEST(Isolate, PatienceIsMeasuredByTheBaseline) {
  constexpr double kBaseline = 0.1, kLimit = 60;
  const auto waits = [](double seconds) { ::usleep(static_cast<unsigned>(1e6 * seconds)); };
  Patience patience(10, 0.01, kLimit);
  EXPECT_EQ(patience.seconds(), kLimit);
  const auto body = [&](const Channel& channel) {
    channel.launching(0);
    waits(kBaseline);
    channel.report(std::vector<int>{0});
    waits(0.2);  // between items
    channel.launching(1);
    waits(2 * kBaseline);
    channel.report(std::vector<int>{1});
    channel.launching(2);
    for (;;) ::pause();
  };
  const Ran hung = run(body, kLimit, &patience);
  EXPECT_EQ(hung.end.kind, ChildEnd::Kind::kHung);
  EXPECT_EQ(hung.end.last_launched, 2);
  EXPECT_EQ(hung.reports, (std::vector<int>{0, 1}));
  // a sleep is never too short; on a busy machine it is longer
  EXPECT_GE(patience.seconds(), 10 * kBaseline);
  EXPECT_NE(hung.end.detail.find("10 times the baseline's"), std::string::npos) << hung.end.detail;
  // The next child needs no baseline of its own.
  const Ran next = run(
      [](const Channel& channel) {
        channel.launching(1);
        for (;;) ::pause();
      },
      kLimit, &patience);
  EXPECT_EQ(next.end.kind, ChildEnd::Kind::kHung);
  EXPECT_NE(next.end.detail.find("10 times the baseline's"), std::string::npos) << next.end.detail;
}

TEST(Isolate, PatienceHasLimits) {
  Patience patience(50, 2, 20);
  patience.baseline_took(1e-3);
  EXPECT_EQ(patience.seconds(), 2);
  patience.baseline_took(0.1);
  EXPECT_EQ(patience.seconds(), 5);
  patience.baseline_took(0.05);
  EXPECT_EQ(patience.seconds(), 5) << "the longest counts";
  patience.baseline_took(3);
  EXPECT_EQ(patience.seconds(), 20);
  EXPECT_EQ(Patience(50, 2, 0.5).seconds(), 0.5);
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
