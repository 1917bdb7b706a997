// LayerNorm and RMSNorm on the host over f16.
#include "tests/kernels/layernorm_cases.h"

namespace outgrad::kernels {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(F16, NormTest, F16);

}  // namespace
}  // namespace outgrad::kernels
