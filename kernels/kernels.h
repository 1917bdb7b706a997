// The catalogue of kernels: their names, their arrays in order, and which output may overlap which input. To
// add a kernel, add its row here and its value to outgrad_kernel in kernels/c/outgrad.h. What a kernel
// computes is described in kernels/host/ and kernels/cuda/, at the functions with its name.
#pragma once

#include "kernels/portable.h"

#ifndef __CUDACC_RTC__
#include <cstddef>
#include <cstdlib>
#include <span>
#include <string_view>
#include <type_traits>
#endif

namespace outgrad::kernels {

enum class Element { kFormat, kF32, kMaskWord, kByte };
enum class Extent {
  kElements,
  kRows,
  kColumns,
  kMaskWords,      // one bit per element
  kCodes,          // bytes of codes, as many bits for each element as the call says (CodeChoice)
  kNormWorkspace,  // the workspace of the kernels on the host; a device's workspace has a size of its own
  kBiasWorkspace,
};
enum class Role { kInput, kOutput, kScratch };

// What an array holds, and hence how it is filled.
enum class Content {
  kX,
  kResidual,
  kActivation,  // y of a GELU
  kNormed,      // y of a norm
  kDy,
  kDzNext,
  kMask,
  kGamma,  // every element has a finite reciprocal
  kBeta,
  kBias,
  kRstd,
  kCodes,   // of f'(x) (kernels/stores/code.h): any bytes are some
  kResult,  // written by the kernel: nothing to fill
};

inline constexpr int kNoOperand = -1;

struct Operand {
  const char* name = nullptr;
  Content content = Content::kResult;
  Element element = Element::kFormat;
  Extent extent = Extent::kElements;
  Role role = Role::kOutput;
  bool optional = false;                        // may be null
  // indices of the inputs that an output may be the same array as
  int may_alias[2] = {kNoOperand, kNoOperand};
};

// Inputs come first, then outputs, then scratch. The function that has the kernel's name takes them in this
// order. The shape stands between inputs and outputs; for an elementwise kernel, the number of elements
// follows the outputs. A kernel of codes takes their choice before all, and a norm its arrays by these names
// (kernels/host/call.h).
namespace catalogue {

OUTGRAD_HD constexpr Operand matrix(const char* name, Content content) {
  return {name, content, Element::kFormat, Extent::kElements, Role::kInput};
}
OUTGRAD_HD constexpr Operand result(const char* name, int over, int or_over = kNoOperand) {
  return {name, Content::kResult, Element::kFormat, Extent::kElements, Role::kOutput, false, {over, or_over}};
}
OUTGRAD_HD constexpr Operand reals(const char* name, Content content, Extent extent, Role role,
                                   bool optional) {
  return {name, content, Element::kF32, extent, role, optional};
}
constexpr bool kOptional = true, kRequired = false;

inline constexpr Operand kX = matrix("x", Content::kX), kResidual = matrix("residual", Content::kResidual),
                         kDy = matrix("dy", Content::kDy), kDzNext = matrix("dz_next", Content::kDzNext),
                         kGeluY = matrix("y", Content::kActivation), kNormY = matrix("y", Content::kNormed),
                         kGamma = reals("gamma", Content::kGamma, Extent::kColumns, Role::kInput, kOptional),
                         kBeta = reals("beta", Content::kBeta, Extent::kColumns, Role::kInput, kOptional),
                         kBias = reals("bias", Content::kBias, Extent::kColumns, Role::kInput, kRequired),
                         kRstd = reals("rstd", Content::kRstd, Extent::kRows, Role::kInput, kRequired),
                         kMask{"mask", Content::kMask, Element::kMaskWord, Extent::kMaskWords, Role::kInput},
                         kCodes{"codes", Content::kCodes, Element::kByte, Extent::kCodes, Role::kInput};
inline constexpr Operand kDgamma =
                             reals("dgamma", Content::kResult, Extent::kColumns, Role::kOutput, kOptional),
                         kDbeta =
                             reals("dbeta", Content::kResult, Extent::kColumns, Role::kOutput, kOptional),
                         kDbias =
                             reals("dbias", Content::kResult, Extent::kColumns, Role::kOutput, kRequired),
                         kNewRstd = reals("rstd", Content::kResult, Extent::kRows, Role::kOutput, kRequired),
                         kNewMask{"mask", Content::kResult, Element::kMaskWord, Extent::kMaskWords,
                                  Role::kOutput},
                         kNewCodes{"codes", Content::kResult, Element::kByte, Extent::kCodes, Role::kOutput};
inline constexpr Operand kNormScratch = reals("workspace", Content::kResult, Extent::kNormWorkspace,
                                              Role::kScratch, kRequired),
                         kBiasScratch = reals("workspace", Content::kResult, Extent::kBiasWorkspace,
                                              Role::kScratch, kRequired);

}  // namespace catalogue

// row(type, function, value, default, operands...) for every kernel, in the order of the tuner's reports. Its
// KernelId is k<type>, its table of tuned choices is <type>, its functions are called <function>, and its
// outgrad_kernel is OUTGRAD_KERNEL_<value>. If nothing was tuned, it runs <default> of
// kernels/generated/tuned_default.h or tuned_tables_cuda.h. Operands are those of namespace catalogue.
// clang-format off
#define OUTGRAD_KERNELS(row)                                                                                \
  row(GeluBackward, gelu_backward, GELU_BACKWARD, DefaultBackward<T>,                                       \
      kDy, kGeluY, kMask, result("dx", 0))                                                                  \
  row(GeluForward, gelu_forward, GELU_FORWARD, DefaultForward<T>, kX, result("y", 0), kNewMask)             \
  row(BiasGeluBackward, bias_gelu_backward, BIAS_GELU_BACKWARD, DefaultBackward<T>,                         \
      kDy, kGeluY, kMask, result("dx", 0), kDbias, kBiasScratch)                                            \
  row(BiasGeluForward, bias_gelu_forward, BIAS_GELU_FORWARD, DefaultForward<T>,                             \
      kX, kBias, result("y", 0), kNewMask)                                                                  \
  row(LayernormBackward, layernorm_backward, LAYERNORM_BACKWARD, DefaultNormBackward,                       \
      kDy, kNormY, kGamma, kBeta, kRstd, result("dx", 0), kDgamma, kDbeta, kNormScratch)                    \
  row(LayernormForward, layernorm_forward, LAYERNORM_FORWARD, DefaultNormForward,                           \
      kX, kGamma, kBeta, result("y", 0), kNewRstd)                                                          \
  row(RmsnormBackward, rmsnorm_backward, RMSNORM_BACKWARD, DefaultNormBackward,                             \
      kDy, kNormY, kGamma, kRstd, result("dx", 0), kDgamma, kNormScratch)                                   \
  row(RmsnormForward, rmsnorm_forward, RMSNORM_FORWARD, DefaultNormForward,                                 \
      kX, kGamma, result("y", 0), kNewRstd)                                                                 \
  row(ResidualLayernormBackward, residual_layernorm_backward, RESIDUAL_LAYERNORM_BACKWARD,                  \
      DefaultNormBackward,                                                                                  \
      kDy, kNormY, kDzNext, kGamma, kBeta, kRstd, result("dz", 0, 2), kDgamma, kDbeta, kNormScratch)        \
  row(ResidualLayernormForward, residual_layernorm_forward, RESIDUAL_LAYERNORM_FORWARD, DefaultNormForward, \
      kX, kResidual, kGamma, kBeta, result("z", 0, 1), result("y", 0, 1), kNewRstd)                         \
  row(ResidualRmsnormBackward, residual_rmsnorm_backward, RESIDUAL_RMSNORM_BACKWARD, DefaultNormBackward,   \
      kDy, kNormY, kDzNext, kGamma, kRstd, result("dz", 0, 2), kDgamma, kNormScratch)                       \
  row(ResidualRmsnormForward, residual_rmsnorm_forward, RESIDUAL_RMSNORM_FORWARD, DefaultNormForward,       \
      kX, kResidual, kGamma, result("z", 0, 1), result("y", 0, 1), kNewRstd)                                \
  row(GeluBackwardCode, gelu_backward_code, GELU_BACKWARD_CODE, DefaultCode, kDy, kCodes, result("dx", 0))  \
  row(GeluForwardCode, gelu_forward_code, GELU_FORWARD_CODE, DefaultCode, kX, result("y", 0), kNewCodes)
// clang-format on

#define OUTGRAD_KERNEL_ID(type, ...) k##type,
enum class KernelId { OUTGRAD_KERNELS(OUTGRAD_KERNEL_ID) };
#undef OUTGRAD_KERNEL_ID

inline constexpr int kMostOperands = 10;  // in residual_layernorm_backward

struct Kernel {
  const char* name;
  Operand operands[kMostOperands];  // unused ones have no name
};

namespace catalogue {
#define OUTGRAD_KERNEL_ROW(type, function, value, standard, ...) {#function, {__VA_ARGS__}},
inline constexpr Kernel kTable[] = {OUTGRAD_KERNELS(OUTGRAD_KERNEL_ROW)};
#undef OUTGRAD_KERNEL_ROW
}  // namespace catalogue

inline constexpr int kKernels = sizeof(catalogue::kTable) / sizeof(Kernel);

// The __global__ templates of kernels/cuda/.
enum class DeviceKernel {
  activation_backward,
  gelu_forward,
  bias_gelu_backward,
  bias_gelu_forward,
  add_slots,
  norm_forward,
  norm_prepare,
  norm_slot_sums,
  norm_backward,
  norm_backward_slots,
  finish_columns,
  activation_forward,
  dropout,
  activation_forward_parity,
  gelu_forward_mxfp8,
  activation_forward_code,
  encode_gradients,
  activation_backward_code,
  fp8_table,
  activation_forward_fp8,
  activation_backward_fp8,
  softmax_forward_code,
  softmax_backward_code,
  gated_forward,
  gated_backward,
  product_forward,
  product_backward,
  norm_encode,
  tensor_maxima,
  encode_tensor,
  decode_tensor,
  encode_tensor_blocks,
  decode_tensor_blocks,
  gated_maxima,
  gated_forward_8bit,
  gated_backward_8bit,
};
// The name of its __global__ template.
inline constexpr const char* kDeviceKernelNames[] = {"activation_backward",
                                                     "gelu_forward",
                                                     "bias_gelu_backward",
                                                     "bias_gelu_forward",
                                                     "add_slots",
                                                     "norm_forward",
                                                     "norm_prepare",
                                                     "norm_slot_sums",
                                                     "norm_backward",
                                                     "norm_backward_slots",
                                                     "finish_columns",
                                                     "activation_forward",
                                                     "dropout",
                                                     "activation_forward_parity",
                                                     "gelu_forward_mxfp8",
                                                     "activation_forward_code",
                                                     "encode_gradients",
                                                     "activation_backward_code",
                                                     "fp8_table",
                                                     "activation_forward_fp8",
                                                     "activation_backward_fp8",
                                                     "softmax_forward_code",
                                                     "softmax_backward_code",
                                                     "gated_forward",
                                                     "gated_backward",
                                                     "product_forward",
                                                     "product_backward",
                                                     "norm_encode",
                                                     "tensor_maxima",
                                                     "encode_tensor",
                                                     "decode_tensor",
                                                     "encode_tensor_blocks",
                                                     "decode_tensor_blocks",
                                                     "gated_maxima",
                                                     "gated_forward_8bit",
                                                     "gated_backward_8bit"};

#ifndef __CUDACC_RTC__  // code compiled by NVRTC calls what it was told to; only hosts ask what there is
inline namespace OUTGRAD_ABI {

constexpr const char* name_of(KernelId kernel) { return catalogue::kTable[static_cast<int>(kernel)].name; }

constexpr std::span<const Operand> operands(KernelId kernel) {
  const Operand(&all)[kMostOperands] = catalogue::kTable[static_cast<int>(kernel)].operands;
  std::size_t count = 0;
  while (count < kMostOperands && all[count].name != nullptr) ++count;
  return {all, count};
}

// The place of the operand with this name, or kNoOperand.
constexpr int place_of(KernelId kernel, std::string_view name) {
  int place = 0;
  for (const Operand& each : operands(kernel)) {
    if (each.name == name) return place;
    ++place;
  }
  return kNoOperand;
}

constexpr bool has_content(KernelId kernel, Content content) {
  for (const Operand& each : operands(kernel))
    if (each.content == content) return true;
  return false;
}
constexpr bool has_extent(KernelId kernel, Extent extent) {
  for (const Operand& each : operands(kernel))
    if (each.extent == extent) return true;
  return false;
}
constexpr int count_of(KernelId kernel, Role role) {
  int count = 0;
  for (const Operand& each : operands(kernel)) count += each.role == role;
  return count;
}

constexpr bool is_backward(KernelId kernel) { return has_content(kernel, Content::kDy); }
// otherwise it is elementwise
constexpr bool over_rows(KernelId kernel) {
  return has_extent(kernel, Extent::kRows) || has_extent(kernel, Extent::kColumns);
}
// A kernel is a norm's, or keeps codes of GELU's derivative, or else is GELU's with a mask. Of the last, the
// fit is a parameter; there is one header of codes for all formats.
constexpr bool is_norm(KernelId kernel) { return has_extent(kernel, Extent::kRows); }
constexpr bool has_codes(KernelId kernel) { return has_extent(kernel, Extent::kCodes); }
constexpr bool has_fit(KernelId kernel) { return !is_norm(kernel) && !has_codes(kernel); }

// action(std::integral_constant<KernelId, kernel>{}): for code that is instantiated for each kernel.
template <class Action>
decltype(auto) with_kernel(KernelId kernel, const Action& action) {
#define OUTGRAD_KERNEL_CASE(type, ...) \
  if (kernel == KernelId::k##type) return action(std::integral_constant<KernelId, KernelId::k##type>{});
  OUTGRAD_KERNELS(OUTGRAD_KERNEL_CASE)
#undef OUTGRAD_KERNEL_CASE
  std::abort();  // not a value of the enumeration
}

}  // namespace OUTGRAD_ABI
#endif
}  // namespace outgrad::kernels
