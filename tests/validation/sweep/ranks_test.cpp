// A process alone; several of them are started by tests/system/sweep_ranks_test.sh.
#include "validation/sweep/ranks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace outgrad::validation {
namespace {

TEST(Ranks, AloneDoesEveryTaskOnce) {
  const Ranks alone;
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(alone.rank(), 0);
  EXPECT_EQ(alone.broadcast("text"), "text");
  for (const std::int64_t tasks : {0, 1, 1000}) {
    std::vector<int> worked(static_cast<std::size_t>(tasks)), collected(worked.size());
    std::atomic<int> inside = 0;
    alone.share(
        tasks, 4,
        [&](std::int64_t task) {
          ++worked[static_cast<std::size_t>(task)];
          return std::to_string(task);
        },
        [&](std::int64_t task, const std::string& result) {
          EXPECT_EQ(++inside, 1) << "one at a time";
          EXPECT_EQ(result, std::to_string(task));
          ++collected[static_cast<std::size_t>(task)];
          --inside;
        });
    EXPECT_EQ(worked, std::vector<int>(worked.size(), 1));
    EXPECT_EQ(collected, worked);
  }
}

TEST(Ranks, TheFirstExceptionEndsIt) {
  const Ranks alone;
  std::atomic<int> worked = 0;
  const auto work = [&](std::int64_t task) {
    ++worked;
    if (task == 10) throw std::runtime_error("ten");
    return std::string();
  };
  EXPECT_THROW(alone.share(1'000'000, 2, work, [](std::int64_t, const std::string&) {}), std::runtime_error);
  EXPECT_LT(worked, 1'000'000);
  EXPECT_THROW(alone.share(
                   3, 2, [](std::int64_t) { return std::string(); },
                   [](std::int64_t, const std::string&) { throw std::logic_error("no"); }),
               std::logic_error);
}

}  // namespace
}  // namespace outgrad::validation
