// The schedules of the host loops over every shape of a fit; that a wrong coefficient is noticed.
#include "tests/kernels/elementwise_cases.h"

namespace outgrad::kernels {
namespace {

// The format does not meet the shape of a fit: each shape in one of them.
TEST(ElementwiseShapes, EveryShapeOfAFitIsTheSameUnderEverySchedule) {
  expect_every_backward_schedule<synthetic::WithLeftAndRight, float>(50);
  expect_every_backward_schedule<synthetic::TwoWord, float>(50);
  expect_every_backward_schedule<synthetic::WithoutLeft<64, 7, kEstrin>, BF16>(50);
  expect_every_backward_schedule<synthetic::WithoutLeft<8, 6, kEvenOdd, false>, F16>(50);
  expect_every_backward_schedule<synthetic::WithBreaks<5, 4>, float>(50);
  expect_every_backward_schedule<synthetic::WithBreaks<20, 5, kEvenOdd>, BF16>(50);
  expect_every_backward_schedule<synthetic::OneRow<6>, BF16>(50);
  expect_every_backward_schedule<synthetic::OneRow<5, kEstrin>, float>(50);
  expect_every_backward_schedule<synthetic::Unmasked<16, 4>, F16>(50);
  expect_every_backward_schedule<synthetic::OnOneSide, F16>(60);
}

// A schedule must not be able to hide a wrong coefficient: the comparison notices one ulp in one row.
struct Damaged : synthetic::WithLeft {
  static constexpr const char* kName = "damaged";
  static constexpr auto table() {
    auto damaged = synthetic::WithLeft::table();
    damaged.w[5][1] = __builtin_bit_cast(float, __builtin_bit_cast(u32, damaged.w[5][1]) + 1);
    return damaged;
  }
};

TEST(Elementwise, OneDamagedCoefficientIsNoticed) {
  const auto a = patterns::backward<float>(100);
  std::vector<float> dx(a.y.size());
  gelu_backward<Damaged, float, kWidest>(a.dy.data(), a.y.data(), a.mask.data(), dx.data(), a.size());
  EXPECT_NE(patterns::first_difference(dx, (reference_backward<synthetic::WithLeft, float>(a))), -1);
}

}  // namespace
}  // namespace outgrad::kernels
