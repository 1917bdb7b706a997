// The norms' CUDA kernels as the launchers choose them, run thread by thread on the host
// (tests/kernels/gpu_stand_in/), give the host kernels' bits: lengths, alignments, aliasing, side channels,
// residuals, orders of threads. Other schedules: gpu_norm_schedules_test.cpp.
#include "tests/kernels/gpu_norm_cases.h"
#include "tests/kernels/tested_formats.h"

namespace outgrad::kernels {
namespace {

using namespace gpu_norm_cases;

// Each format meets either norm, and each norm a residual; the bodies of the two are one template.
template <class T>
struct With;
template <>
struct With<float> {
  static constexpr Norm kNorm = Norm::layer;
  static constexpr bool kResidual = true;
};
template <>
struct With<F16> {
  static constexpr Norm kNorm = Norm::rms;
  static constexpr bool kResidual = true;
};
template <>
struct With<BF16> {
  static constexpr Norm kNorm = Norm::layer;
  static constexpr bool kResidual = false;
};

template <class T>
class StandInNorm : public testing::Test {
 protected:
  static void expect_default(const std::vector<Case>& cases) {
    expect_all<With<T>::kNorm, T, DefaultGpuNormSchedule, With<T>::kResidual>(cases);
  }
};
TYPED_TEST_SUITE(StandInNorm, RowFormats);

TYPED_TEST(StandInNorm, TheDefaultIsTheHosts) { this->expect_default(small_cases()); }

// All warps to a row, rows that registers do not hold, groups of steps that follow one another, rows beyond
// the shared memory.
TYPED_TEST(StandInNorm, WideRowsAreTheHosts) {
  std::vector<Case> cases;
  for (const i64 n : {8192, 8200, 16384, 16392, 16401}) cases.push_back({.rows = 2, .n = n});
  cases.push_back({.rows = 2, .n = 24'000, .over = 0, .side = true});
  cases.push_back({.rows = 1, .n = 33'000});
  cases.push_back({.rows = 2, .n = 60'000, .over = 0});
  cases.push_back({.rows = 1, .n = 60'001, .first_off = 1, .over = 0, .side = true});
  this->expect_default(cases);
}

// Slots of several rows, some one longer than the others: that takes more than kSlotSums elements.
TYPED_TEST(StandInNorm, SlotsOfManyRowsAreTheHosts) {
  this->expect_default({{.rows = 300, .n = 8192, .over = 0}});
}

// Slots that a block has one after the other and side by side, with as many rows and with one more; rows of
// sums that take another kernel to become few; without sums; for side channels. Short rows, as it takes many
// slots.
TYPED_TEST(StandInNorm, BlocksOfManySlotsAreTheHosts) {
  this->expect_default({{.rows = 4096 + 300, .n = 8, .over = 0},
                        {.rows = 4096, .n = 16, .sums = false},
                        {.rows = 3000, .n = 24, .side = true},
                        {.rows = 3000, .n = 24, .affine = false},
                        {.rows = 3000, .n = 24, .words_off = 1},
                        {.rows = 9000, .n = 8}});
}

TYPED_TEST(StandInNorm, TheOrderOfThreadsDoesNotMatter) {
  for (const Case& c :
       {Case{.rows = 5, .n = 4104, .over = 0, .side = true},
        Case{.rows = 5, .n = 1001, .over = 0, .side = true}, Case{.rows = 2, .n = 17'000, .over = 0}}) {
    for (int order = 0; order < 6; ++order) this->expect_default({c});
  }
}

}  // namespace
}  // namespace outgrad::kernels
