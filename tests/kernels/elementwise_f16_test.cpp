// The host loops over f16.
#include "tests/kernels/elementwise_cases.h"

namespace outgrad::kernels {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(F16, Elementwise, F16);

}  // namespace
}  // namespace outgrad::kernels
