// Processes that crash, hang or grow do so alone.
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "kernels/support/errors.h"
#include "tests/attack/process.h"

namespace outgrad::validation::gate {
namespace {

TEST(AttackProcess, StatusErrorsAndSignalsComeBack) {
  const kernels::Ending ending = run_program({"sh", "-c", "echo said; echo wrong >&2; exit 5"}, {});
  EXPECT_EQ(ending.status, 5);
  EXPECT_EQ(ending.text, "said\nwrong\n");
  EXPECT_EQ(run_program({"sh", "-c", "kill -SEGV $$"}, {}).signal, SIGSEGV);
  EXPECT_THROW(run_program({"/nonexistent/program"}, {}), kernels::EnvironmentError);
}

TEST(AttackProcess, AHangEndsAtItsLimit) {
  const kernels::Ending ending =
      run_program({"sh", "-c", "while :; do :; done"}, {1, std::uint64_t{1} << 30});
  EXPECT_TRUE(ending.late);
}

// As a suspended machine, or a job that gives way: the caller sleeps past the clock, the child ended long
// before.
TEST(AttackProcess, NightlyWhoWasStoppedDoesNotCallTheOtherHung) {
  const kernels::Ending ending = run_program(
      {"sh", "-c",
       "parent=$PPID; (sleep 4; kill -CONT $parent) >/dev/null 2>&1 & echo done >&2; kill -STOP $parent"},
      {1, std::uint64_t{1} << 30, 3});
  EXPECT_FALSE(ending.late);
  EXPECT_EQ(ending.status, 0);
  EXPECT_EQ(ending.text, "done\n");
  EXPECT_TRUE(run_program({"sleep", "30"}, {1, std::uint64_t{1} << 30, 1}).late);
  // Both stopped, as a job that is suspended: the child has not ended when they go on.
  const kernels::Ending both =
      run_program({"sh", "-c",
                   "parent=$PPID; (sleep 4; kill -CONT $parent; sleep 0.1; kill -CONT $$) >/dev/null 2>&1 & "
                   "kill -STOP $parent; kill -STOP $$; echo done >&2"},
                  {1, std::uint64_t{1} << 30, 3});
  EXPECT_FALSE(both.late);
  EXPECT_EQ(both.text, "done\n");
}

TEST(AttackProcess, TheRestIsDoneWhereOneFalls) {
  const std::vector<std::string> lines = run_guarded(
      6,
      [](size_t i) -> std::string {
        if (i == 1) std::abort();
        if (i == 2) throw kernels::SpecError("two");
        for (volatile bool forever = i == 3; forever;) {
        }
        if (i == 4) return std::to_string(std::vector<char>(std::size_t{3} << 30, 1).size());
        return "line\n" + std::to_string(i);
      },
      {1, std::uint64_t{2} << 30},
      [](size_t i, const kernels::Ending& ending) {
        return std::to_string(i) + (ending.late ? " hung" : " fell");
      });
  EXPECT_EQ(lines, (std::vector<std::string>{"line 0", "1 fell", "exception: two", "3 hung",
                                             "exception: std::bad_alloc", "line 5"}));
}

TEST(AttackProcess, AFolderGoesWithWhatItHolds) {
  std::string path;
  {
    const kernels::ScratchFolder folder;
    path = folder.path();
    std::filesystem::create_directories(path + "/a/b");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace outgrad::validation::gate
