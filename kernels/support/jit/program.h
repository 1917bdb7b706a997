// The programs of CUDA kernels, for NVRTC: an instance of a __global__ template of kernels/cuda/ that is known by values, at run time, as C++.
#pragma once

#include <string>
#include <string_view>

#include "kernels/cuda/plan.h"
#include "kernels/kernels.h"
#include "kernels/params.h"

namespace outgrad::kernels::jit {

// "GeluF32" for "gelu_f32": how the emitter names a header's struct, and kernels/kernels.h its types.
std::string type_name(std::string_view name);

// The name of a __global__ template.
const char* name_of(DeviceKernel kernel);
// Whether a mangled symbol is of an instance of it.
bool is_symbol_of(const std::string& symbol, DeviceKernel kernel);

// The kernel of a row of the catalogue that its plan calls main: of a norm's backward, the one for rows in this schedule.
DeviceKernel main_kernel(KernelId kernel, const GpuNormSchedule& schedule);

// Of a fit whose header is one of ours: its struct, and the line that declares it.
std::string fit_type(std::string_view fit);
std::string fit_include(std::string_view fit);

// A kernel of an activation, with or without a bias, or of dropout.
struct ElementwiseInstance {
  DeviceKernel kernel;
  std::string type;              // of the elements: "float", "F16", "BF16"
  std::string function{};        // "generated::GeluBf16", "forwards::Silu"; dropout has none
  std::string declaration{};     // what declares it, where the kernel's own header does not
  bool wide = false;             // of a kernel with a bias: whether its rows are taken by octets
  GpuSchedule schedule{};        // with nothing left open but `table`
};
std::string source(const ElementwiseInstance& instance);

// A kernel of a norm that goes by rows.
struct NormInstance {
  DeviceKernel kernel;  // norm_forward, norm_backward or norm_backward_slots
  Norm norm;
  bool residual = false;
  std::string type;
  bool wide = false;
  SideChannels side = SideChannels::none;  // of a backward
  GpuNormSchedule schedule{};  // with nothing left open but `sums` of a forward
};
std::string source(const NormInstance& instance);

// The kernels that follow or precede a backward's main one and are the same for all schedules: of bias + GELU, and of a norm without and with those
// that rows need whose sums do not come of the same pass.
std::string bias_helper_source();
std::string norm_helper_source(Norm norm, const std::string& type, bool apart);

}  // namespace outgrad::kernels::jit
