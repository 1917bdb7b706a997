// The host loops over bf16.
#include "tests/kernels/elementwise_cases.h"

namespace outgrad::kernels {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Bf16, Elementwise, BF16);

}  // namespace
}  // namespace outgrad::kernels
