// The scalar kernels that define the norms' bits.
#include "autotune/norm_abi.h"
#include "autotune/variant.h"
#include "kernels/formats.h"

namespace outgrad::autotune {
namespace {

template <class T>
VariantFunction norm_of(KernelId kernel) {
  switch (kernel) {
    case KernelId::kLayernormBackward: return &run_layernorm_backward<T, kReferenceSchedule>;
    case KernelId::kLayernormForward: return &run_layernorm_forward<T, kReferenceSchedule>;
    case KernelId::kRmsnormBackward: return &run_rmsnorm_backward<T, kReferenceSchedule>;
    case KernelId::kRmsnormForward: return &run_rmsnorm_forward<T, kReferenceSchedule>;
    case KernelId::kResidualLayernormBackward: return &run_residual_layernorm_backward<T, kReferenceSchedule>;
    case KernelId::kResidualLayernormForward: return &run_residual_layernorm_forward<T, kReferenceSchedule>;
    case KernelId::kResidualRmsnormBackward: return &run_residual_rmsnorm_backward<T, kReferenceSchedule>;
    case KernelId::kResidualRmsnormForward: return &run_residual_rmsnorm_forward<T, kReferenceSchedule>;
    default: return nullptr;
  }
}

}  // namespace

VariantFunction norm_reference(const Problem& problem) {
  return with_type(problem.format, [&]<class T>(T) { return norm_of<T>(problem.kernel); });
}

}  // namespace outgrad::autotune
