// What a program gets, what it leaves behind, and how it is ended.
#include "kernels/support/process.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <thread>

namespace outgrad::kernels {
namespace {

// Both streams of a shell's.
Launch shell(const std::string& script) {
  Launch launch{{"sh", "-c", script}};
  launch.out = launch.err = Launch::kCaptured;
  return launch;
}

TEST(Process, LeavesItsStatusOrItsSignalAndItsWords) {
  const Ending left = run(shell("echo one; echo two >&2; exit 5"));
  EXPECT_EQ(left.status, 5);
  EXPECT_EQ(left.signal, 0);
  EXPECT_EQ(left.text, "one\ntwo\n");
  const Ending killed = run(shell("kill -SEGV $$"));
  EXPECT_EQ(killed.status, -1);
  EXPECT_EQ(killed.signal, SIGSEGV);
  EXPECT_FALSE(killed.late);
  Launch led = shell("kill -SEGV $$");
  led.leads_group = true;
  EXPECT_EQ(run(led).signal, SIGSEGV);
}

TEST(Process, KeepsNoMoreThanIsAskedForAndReadsOn) {
  const Ending ending = run(shell("head -c 1000000 /dev/zero | tr '\\0' x; exit 3"), 60, 1000);
  EXPECT_EQ(ending.text, std::string(1000, 'x'));
  EXPECT_EQ(ending.status, 3);
}

TEST(Process, WhatIsNotThereIsNotStarted) {
  EXPECT_EQ(run(Launch{{"/nonexistent/program"}}).status, Ending::kNotStarted);
  Launch nowhere = shell("true");
  nowhere.folder = "/nonexistent";
  EXPECT_EQ(run(nowhere).status, Ending::kNotStarted);
}

TEST(Process, GetsStreamsFolderVariablesAndLimits) {
  Launch launch = shell("cat; pwd; echo $OUTGRAD_TEST; ulimit -c");
  launch.folder = "/usr";
  launch.environment = {"OUTGRAD_TEST=a b"};
  launch.limits = {{RLIMIT_CORE, 0}};
  EXPECT_EQ(run(launch).text, "/usr\na b\n0\n") << "nothing on stdin";
  Pipe pipe;
  launch.words.back() = "cat";
  launch.in = pipe.from.get();
  ASSERT_EQ(::write(pipe.to.get(), "in", 2), 2);
  pipe.to.close();
  EXPECT_EQ(run(launch).text, "in");
  testing::internal::CaptureStdout();
  launch = Launch{{"sh", "-c", "echo lost"}};
  EXPECT_EQ(run(launch).text, "");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST(Process, AHangEndsAtItsLimit) {
  Launch launch = shell("echo begun; exec sleep 600");
  const Ending ending = run(launch, 3);  // within which the shell begins on a busy machine, too
  EXPECT_TRUE(ending.late);
  EXPECT_EQ(ending.signal, SIGKILL);
  EXPECT_EQ(ending.text, "begun\n");
  launch = shell("while :; do :; done");
  launch.limits = {{RLIMIT_CPU, 1}};
  const Ending busy = run(launch);
  EXPECT_TRUE(busy.late);
  EXPECT_GT(busy.cpu_s, 0);
}

// The kill reaches what the program itself has started, which would hold the pipe for ten minutes.
TEST(Process, AGroupIsKilledAsAWhole) {
  Pipe pipe;
  Launch launch = shell("sleep 600 & echo begun; wait");
  launch.out = pipe.to.get();
  launch.leads_group = true;
  EXPECT_TRUE(run(launch, 3).late);
  pipe.to.close();
  std::string text;
  EXPECT_TRUE(read_to_end(pipe.from, 300, [&](std::string_view part) { text += part; }));
  EXPECT_EQ(text, "begun\n");
}

// Nobody can clean up after SIGKILL.
TEST(Process, WhatAKilledProgramStartedEndsWithIt) {
  for (const bool leads_group : {false, true}) {
    Pipe pipe;
    const pid_t copy = start_copy([&] {
      // of a group, what the started program itself has started, too
      Launch launch = shell(leads_group ? "sleep 600 & echo begun; wait" : "echo begun; exec sleep 600");
      launch.out = pipe.to.get();
      launch.leads_group = leads_group;
      return wait_for(start(launch)).status;
    });
    pipe.to.close();
    std::string text;
    EXPECT_TRUE(read_to_end(pipe.from, 300, [&](std::string_view part) {
      text += part;
      ::kill(copy, SIGKILL);
    })) << "the pipe is held on";
    EXPECT_EQ(text, "begun\n");
    EXPECT_EQ(wait_for(copy).signal, SIGKILL);
  }
}

TEST(Process, ACopyOfThisProgramLeavesWithItsBodysStatus) {
  int changed = 1;
  const pid_t child = start_copy([&] {
    changed = 2;
    return 40 + changed;
  });
  std::optional<Ending> ending;
  while (!(ending = ended(child))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(ending->status, 42);
  EXPECT_EQ(changed, 1);
}

}  // namespace
}  // namespace outgrad::kernels
