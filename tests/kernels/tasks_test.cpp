// Tasks on all cores, and what becomes of exceptions.
#include "kernels/host/tasks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace outgrad::kernels {
namespace {

TEST(Tasks, EachIsDoneOnce) {
  for (const int threads : {0, 1, 7}) {
    std::vector<std::atomic<int>> done(1000);
    for_each_task(done.size(), threads, [&](std::size_t i) { ++done[i]; });
    for (const auto& times : done) EXPECT_EQ(times, 1);
  }
  for_each_task(0, 0, [](std::size_t) { FAIL(); });
}

TEST(Tasks, TheLeastTasksExceptionIsThrownAfterAllHaveEnded) {
  for (const int threads : {1, 2, 8}) {
    std::atomic<int> done = 0;
    try {
      for_each_task(200, threads, [&](std::size_t i) {
        ++done;
        if (i % 50 == 3) throw std::runtime_error(std::to_string(i));
      });
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "3");
    }
    EXPECT_EQ(done, 200);
  }
}

}  // namespace
}  // namespace outgrad::kernels
