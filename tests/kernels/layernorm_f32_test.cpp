// LayerNorm and RMSNorm on the host over f32.
#include "tests/kernels/layernorm_cases.h"

namespace outgrad::kernels {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(F32, NormTest, float);

}  // namespace
}  // namespace outgrad::kernels
