// Contracts of LayerNorm and RMSNorm on the host, and their limits in one format.
#include "tests/kernels/layernorm_cases.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "tests/refusal.h"

namespace outgrad::kernels {
namespace {

// A workspace is enough for every schedule, to its last word.
TEST(NormSchedules, NoNumberOfTasksNeedsMoreScratch) {
  for (const i64 slots : {1, 2, 64, 128, 256, 4096, 1 << 20})
    for (i64 tasks = 1; tasks <= std::min(slots, detail::kMostTasks); tasks *= 2)
      EXPECT_LE(tasks * detail::backward_task_words(slots, tasks, 40),
                std::min(slots, detail::kMostTasks) *
                    detail::backward_task_words(slots, std::min(slots, detail::kMostTasks), 40))
          << slots << " slots, " << tasks << " tasks";
}

// A request may be for any number of threads, of which OpenMP starts as many as it can.
TEST(NormSchedules, ThreadsWithoutEndHaveAllTasks) {
  for (const i64 most : {1, 16, 128}) {
    for (const int threads : {0, 1, 3, 17, 1 << 29, std::numeric_limits<int>::max()}) {
      const i64 tasks = tasks_for(most, threads);
      EXPECT_TRUE(1 <= tasks && tasks <= most && (tasks & (tasks - 1)) == 0) << tasks << " of " << threads;
      EXPECT_TRUE(tasks == most || thread_count(threads) < most) << tasks << " of " << threads;
    }
  }
}

// One thread needs the sums of one task. The pages of a new workspace come one by one, as they are touched.
TEST(NormSchedules, OneThreadTouchesTheScratchOfOneTask) {
  constexpr i64 kRows = 512, kColumns = 80;
  constexpr float kUntouched = 0x1.234p-100f;
  auto p = random_problem<float>(Norm::layer, kRows, kColumns, 1);
  auto r = run<kScalar>(p);
  std::vector<float> workspace(static_cast<size_t>(norm_backward_workspace(kRows, kColumns)), kUntouched);
  auto of = backward_arrays(p, r);
  of.workspace = workspace;
  layernorm_backward<float, kScalar>(of);
  const i64 touched = std::ranges::count_if(workspace, [](float word) { return word != kUntouched; });
  const i64 slots = slot_count(kRows, kColumns);
  EXPECT_EQ(slots, kRows);
  EXPECT_LE(touched, detail::kHostColumnArrays * detail::column_stride(kColumns) +
                         detail::backward_task_words(slots, 1, kColumns));
}

TEST(NormContract, GammaWithoutReciprocalIsNamedUnlessItIsASideChannel) {
  auto p = random_problem<float>(Norm::layer, 3, 50, 1);
  for (const float gamma : {0.0f, -0.0f, 0x1p-129f, -0x1p-149f}) {
    p.side.clear();
    p.gamma[17] = gamma;
    auto r = forward_of<kWidestSchedule>(p);
    const std::string why = refusal_of([&] { backward_of<kWidestSchedule>(p, r); });
    EXPECT_NE(why.find("channel 17"), std::string::npos) << why;
    EXPECT_EQ(why.find('\n'), std::string::npos);
    EXPECT_EQ(r.dgamma[0], -1.0f) << "an output was written before the error";
    p.side = {17};
    r = run<kWidestSchedule>(p);
    expect_gradients(p, r);
    EXPECT_EQ(r.bits(), formulas(p).bits());
    EXPECT_NE(r.dgamma[17], 0.0f);
  }
}

TEST(NormContract, TinyAndNegativeGammaStayAccurateInF32WithoutBeta) {
  auto p = random_problem<float>(Norm::rms, 4, 300, 1);
  for (size_t j = 0; j < p.gamma.size(); j += 7) p.gamma[j] = j % 2 ? 0x1p-100f : -0x1p-60f;
  expect_gradients(p, run<kWidestSchedule>(p));
}

TEST(NormContract, BadShapesWorkspacesAndChannelsAreRefused) {
  auto p = random_problem<float>(Norm::layer, 2, 10, 1);
  auto r = run<kWidestSchedule>(p);
  const auto forward = [&](i64 rows, i64 n, float eps) {
    return refusal_of([&] {
      layernorm_forward<float>(
          {.x = p.x.data(), .rows = rows, .n = n, .eps = eps, .y = r.y.data(), .rstd = r.rstd.data()});
    });
  };
  EXPECT_NE(forward(-1, 10, kEps).find("rows"), std::string::npos);
  EXPECT_NE(forward(2, 0, kEps).find("n = 0"), std::string::npos);
  EXPECT_NE(forward(2, 10, -1.0f).find("eps"), std::string::npos);
  EXPECT_NE(forward(2, 10, std::nanf("")).find("eps"), std::string::npos);
  const auto backward = [&](i64 rows, i64 n, size_t words) {
    std::vector<float> workspace(words);
    return refusal_of([&] {
      rmsnorm_backward<float>({.dy = p.dy.data(),
                               .y = r.y.data(),
                               .rstd = r.rstd.data(),
                               .rows = rows,
                               .n = n,
                               .dx = r.dx.data(),
                               .workspace = workspace});
    });
  };
  EXPECT_NE(backward(-1, 10, 1000).find("rows"), std::string::npos);
  EXPECT_NE(backward(2, 0, 1000).find("n = 0"), std::string::npos);
  EXPECT_NE(backward(2, 10, size_of(norm_backward_workspace(2, 10)) - 1).find("workspace"),
            std::string::npos);
  for (const std::vector<i32>& channels : {std::vector<i32>{-1}, {10}, {3, 3}, {4, 2}}) {
    p.side = channels;
    EXPECT_NE(refusal_of([&] { forward_of<kWidestSchedule>(p); }).find("channel"), std::string::npos);
  }
}

TEST(NormContract, OverflowOfAStored16BitOutputIsNotHidden) {
  auto p = random_problem<F16>(Norm::layer, 2, 64, 1);
  p.gamma[5] = 1e6f;
  const auto r = run<kWidestSchedule>(p);
  EXPECT_EQ(r.bits(), formulas(p).bits());
  EXPECT_TRUE(std::isinf(widen(r.y[5])));
  EXPECT_FALSE(std::isfinite(widen(r.dx[5])));
  EXPECT_FALSE(std::isfinite(r.dgamma[5]));
}

TEST(NormContract, ConstantRowsAndTheLargestFloats) {
  Problem<float> p{Norm::layer, 2,  512, std::vector<float>(1024, 3.0f), std::vector<float>(1024, 1.0f),
                   {},          {}, {}};
  const auto r = run<kWidestSchedule>(p);
  EXPECT_EQ(r.rstd[0], 1.0f / std::sqrt(kEps));
  for (const float y : r.y) EXPECT_EQ(y, 0.0f);
  for (const float dx : r.dx) EXPECT_EQ(dx, 0.0f);
  for (const float dbeta : r.dbeta) EXPECT_EQ(dbeta, 2.0f);
  // the sum overflows: visible, and the same at every width
  std::fill(p.x.begin(), p.x.end(), 0x1.fffffep127f);
  const auto overflowed = forward_of<kWidestSchedule>(p);
  EXPECT_TRUE(std::isnan(overflowed.y[0]));
  EXPECT_EQ(overflowed.bits(), forward_of<kScalar>(p).bits());
}

#ifdef __SSE2__
TEST(NormContract, CallersFlushToZeroIsIgnoredAndRestored) {
  auto p = random_problem<float>(Norm::rms, 40, 300, 1);
  for (float& dy : p.dy) dy *= 0x1p-130f;  // gradients are subnormal
  for (float& gamma : p.gamma) gamma *= 0x1p-20f;
  const auto expected = run<kWidestSchedule>(p);
  EXPECT_TRUE(std::any_of(expected.dx.begin(), expected.dx.end(),
                          [](float dx) { return std::fpclassify(dx) == FP_SUBNORMAL; }));
  const unsigned saved = _mm_getcsr();
  const unsigned flushing = saved | 0x8040u;  // FTZ, DAZ
  _mm_setcsr(flushing);
  const auto r = run<kWidestSchedule>(p);
  const unsigned left = _mm_getcsr();
  _mm_setcsr(saved);
  EXPECT_EQ(left & ~0x3fu, flushing & ~0x3fu);  // the sticky exception flags may differ
  EXPECT_EQ(r.bits(), expected.bits());
}
#endif

}  // namespace
}  // namespace outgrad::kernels
