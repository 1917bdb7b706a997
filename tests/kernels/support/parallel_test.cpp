// Tasks on all cores, and what becomes of exceptions.
#include "kernels/support/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace outgrad::kernels {
namespace {

TEST(Parallel, EachIsDoneOnce) {
  for (const int threads : {0, 1, 7}) {
    std::vector<std::atomic<int>> done(1000);
    for_each_task(done.size(), threads, [&](std::size_t i) { ++done[i]; });
    for (const auto& times : done) EXPECT_EQ(times, 1);
  }
  for_each_task(0, 0, [](std::size_t) { FAIL(); });
}

// Whichever of two neighbours throws first.
TEST(Parallel, TheLeastTasksExceptionIsThrownWhenAllBeforeItAreDone) {
  for (const int threads : {1, 2, 8}) {
    for (const std::size_t slow : {33, 34}) {
      std::vector<std::atomic<int>> done(200);
      try {
        for_each_task(done.size(), threads, [&](std::size_t i) {
          std::this_thread::sleep_for(std::chrono::microseconds(i == slow ? 20'000 : 100));
          if (i == 33 || i == 34) throw std::runtime_error(std::to_string(i));
          ++done[i];
        });
        ADD_FAILURE() << "nothing was thrown";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "33");
      }
      for (std::size_t i = 0; i < 33; ++i) EXPECT_EQ(done[i], 1) << i;
      EXPECT_EQ(done[199], 0) << "nobody needs what comes after";
    }
  }
}

}  // namespace
}  // namespace outgrad::kernels
