// The programs of CUDA kernels, for NVRTC: writes an instance of a __global__ template of kernels/cuda/,
// which is known by values at run time, as C++.
#pragma once

#include <string>
#include <string_view>

#include "kernels/cuda/plan.h"
#include "kernels/kernels.h"
#include "kernels/params.h"

namespace outgrad::kernels::jit {

// "GeluF32" for "gelu_f32". The emitter names a header's struct in this way, and kernels/kernels.h its types.
std::string type_name(std::string_view name);

// The name of a __global__ template.
const char* name_of(DeviceKernel kernel);
// Whether a mangled symbol belongs to an instance of it.
bool is_symbol_of(const std::string& symbol, DeviceKernel kernel);

// The kernel of a row of the catalogue that its plan calls main. For a norm's backward, it is the kernel for
// rows in this schedule.
DeviceKernel main_kernel(KernelId kernel, const GpuNormSchedule& schedule);

// For a fit whose header is one of ours: its struct, and the line that declares it.
std::string fit_type(std::string_view fit);
std::string fit_include(std::string_view fit);

// A kernel of an activation, with or without a bias, of dropout, or of any tensor's codes.
struct ElementwiseInstance {
  DeviceKernel kernel;
  std::string type;  // of the elements: "float", "F16", "BF16"
  // "generated::GeluBf16", "forwards::Silu", "CodedActivationAt<3>", "Fp8Activation<generated::GeluFp8>";
  // dropout, a backward from codes and a tensor's codes have none
  std::string function{};
  std::string declaration{};  // the line that declares it, if the kernel's own header does not
  bool wide = false;  // for a kernel with a bias: whether its rows are processed by octets
  GpuSchedule schedule{};  // only `table` may be left open
  std::string stored{};  // the format of y or of codes, if it is not `type`: "ParityBf16", "MxFp8", "F8E4M3"
  int code_bits = 0;  // for a kernel with codes; with y in 8 bits at a scale, the bits beside it
  bool dithered = false;
  std::string bias = "float";  // the format of a bias
};
std::string source(const ElementwiseInstance& instance);

// A gated pair, forward or backward, of the gate with an activation's name; gated_* or product_*. kept: what
// it keeps in 8 bits, "cuda::AtScale<F8E4M3>".
std::string gated_source(DeviceKernel kernel, const std::string& gate, const std::string& type, bool wide,
                         const std::string& kept = "");

// Softmax with codes, forward or backward, on rows that so many warps share.
std::string softmax_source(DeviceKernel kernel, const std::string& type, int warps);

// A kernel of a norm that works by rows.
struct NormInstance {
  DeviceKernel kernel;  // norm_forward, norm_encode, norm_backward or norm_backward_slots
  Norm norm;
  bool residual = false;
  std::string type;
  bool wide = false;
  SideChannels side = SideChannels::none;  // for a backward
  GpuNormSchedule schedule{};  // only `sums` of a forward may be left open
  ParameterFormat parameters = ParameterFormat::f32;
  bool drops = false;  // with dropout: of x before the residual is added, or of dz
  bool unstored = false;  // a forward with a residual whose z is not stored
  std::string store{};  // what is kept in 8 bits in place of y: "NormE4m3"; empty: y itself
};
std::string source(const NormInstance& instance);

// The kernels that follow or precede a backward's main kernel and are the same for all schedules: those of
// bias + GELU, and those of a norm. The latter exist without and with the kernels that are needed for rows
// whose sums come from a separate pass. store: as in NormInstance.
std::string bias_helper_source();
std::string norm_helper_source(Norm norm, const std::string& type, bool apart,
                               ParameterFormat parameters = ParameterFormat::f32,
                               const std::string& store = "");

}  // namespace outgrad::kernels::jit
