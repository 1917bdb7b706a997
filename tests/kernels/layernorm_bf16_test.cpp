// LayerNorm and RMSNorm on the host over bf16.
#include "tests/kernels/layernorm_cases.h"

namespace outgrad::kernels {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(Bf16, NormTest, BF16);

}  // namespace
}  // namespace outgrad::kernels
