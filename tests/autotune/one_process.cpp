// Lets go of OpenMP's threads after every test. Children of the tuner compute with OpenMP, and one that is
// forked from a process with such threads would wait for them for ever: so all tests pass in one process,
// too.
#include <gtest/gtest.h>
#include <omp.h>

namespace outgrad::autotune {
namespace {

class ThreadsEndWithTheirTest : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo&) override { omp_pause_resource_all(omp_pause_hard); }
};

[[maybe_unused]] const bool kListens = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new ThreadsEndWithTheirTest);
  return true;
}();

}  // namespace
}  // namespace outgrad::autotune
