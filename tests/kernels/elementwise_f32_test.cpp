// The host loops over f32.
#include "tests/kernels/elementwise_cases.h"

namespace outgrad::kernels {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(F32, Elementwise, float);

}  // namespace
}  // namespace outgrad::kernels
