// Explicit instantiations.
#include "kernels/support/jit/program.h"

#include <cctype>

#include "kernels/support/jit/schedule.h"

namespace outgrad::kernels::jit {
namespace {

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(Norm norm) { return norm == Norm::layer ? "Norm::layer" : "Norm::rms"; }
std::string text_of(ParameterFormat format) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16"};
  return std::string("ParameterFormat::") + kNames[static_cast<int>(format)];
}
std::string text_of(SideChannels side) {
  return std::string("cuda::SideChannels::") + (side == SideChannels::none   ? "none"
                                                : side == SideChannels::some ? "some"
                                                                             : "either");
}

std::string instantiation(DeviceKernel kernel, const std::string& arguments, const std::string& parameters) {
  return std::string("template __global__ void cuda::") + name_of(kernel) + "<" + arguments + ">(" +
         parameters + ");\n";
}

// The number of blocks of a launch is not part of a kernel's code, so kernels that differ only in it have the
// same source.
template <class Schedule>
std::string schedule_struct(Schedule schedule) {
  schedule.blocks_per_sm = Schedule{}.blocks_per_sm;
  return std::string("struct Schedule {\n  static constexpr ") + type_name_of(schedule) + " kSchedule" +
         initialiser(schedule) + ";\n};\n";
}

const char* header_of(DeviceKernel kernel) {
  switch (kernel) {
    case DeviceKernel::bias_gelu_backward:
    case DeviceKernel::bias_gelu_forward: return "bias";
    case DeviceKernel::activation_forward: return "forwards";
    case DeviceKernel::dropout: return "dropout";
    case DeviceKernel::activation_forward_parity: return "parity";
    case DeviceKernel::gelu_forward_mxfp8: return "mxfp8";
    case DeviceKernel::activation_forward_code:
    case DeviceKernel::encode_gradients:
    case DeviceKernel::activation_backward_code: return "code";
    case DeviceKernel::fp8_table:
    case DeviceKernel::activation_forward_fp8:
    case DeviceKernel::activation_backward_fp8: return "fp8";
    case DeviceKernel::tensor_maxima:
    case DeviceKernel::encode_tensor:
    case DeviceKernel::decode_tensor:
    case DeviceKernel::encode_tensor_blocks:
    case DeviceKernel::decode_tensor_blocks: return "tensor_codes";
    default: return "elementwise";
  }
}

}  // namespace

std::string type_name(std::string_view name) {
  std::string type;
  bool capital = true;
  for (const char c : name) {
    if (c != '_') type += capital ? static_cast<char>(std::toupper(static_cast<unsigned char>(c))) : c;
    capital = c == '_';
  }
  return type;
}

const char* name_of(DeviceKernel kernel) { return kDeviceKernelNames[static_cast<std::size_t>(kernel)]; }

bool is_symbol_of(const std::string& symbol, DeviceKernel kernel) {
  // The mangled name of a template (Itanium C++ ABI): the length of its name, the name, and its arguments
  // between I and E.
  const std::string name = name_of(kernel);
  return symbol.find(std::to_string(name.size()) + name + "I") != std::string::npos;
}

DeviceKernel main_kernel(KernelId kernel, const GpuNormSchedule& schedule) {
  switch (kernel) {
    case KernelId::kGeluBackward: return DeviceKernel::activation_backward;
    case KernelId::kGeluForward: return DeviceKernel::gelu_forward;
    case KernelId::kBiasGeluBackward: return DeviceKernel::bias_gelu_backward;
    case KernelId::kBiasGeluForward: return DeviceKernel::bias_gelu_forward;
    case KernelId::kGeluBackwardCode: return DeviceKernel::activation_backward_code;
    case KernelId::kGeluForwardCode: return DeviceKernel::activation_forward_code;
    default:
      if (!is_backward(kernel)) return DeviceKernel::norm_forward;
      return schedule.home == RowHome::registers && schedule.sums != ColumnSums::separate
                 ? DeviceKernel::norm_backward_slots
                 : DeviceKernel::norm_backward;
  }
}

std::string fit_type(std::string_view fit) { return "generated::" + type_name(fit); }
std::string fit_include(std::string_view fit) {
  return "#include \"kernels/generated/" + std::string(fit) + ".h\"\n";
}

std::string source(const ElementwiseInstance& i) {
  const std::string in = "const " + i.type + "*", out = i.type + "*", wide = text_of(i.wide) + ", Schedule",
                    plain = i.type + ", Schedule", at_scale = i.stored + ", " + plain;
  const std::string text = std::string("#include \"kernels/cuda/") + header_of(i.kernel) + ".cuh\"\n" +
                           i.declaration + "using namespace outgrad::kernels;\n" +
                           schedule_struct(i.schedule);
  const std::string code =
      i.type + ", " + std::to_string(i.code_bits) + ", " + text_of(i.dithered) + ", Schedule";
  switch (i.kernel) {
    case DeviceKernel::activation_backward: {
      const std::string y = i.stored.empty() ? i.type : i.stored,
                        view = i.stored.empty() ? in : "Stored<" + y + ">";
      return text + instantiation(i.kernel, i.function + ", " + i.type + ", " + y + ", Schedule",
                                  in + ", " + view + ", const u32*, " + out + ", i64");
    }
    case DeviceKernel::activation_forward_parity:
      return text + instantiation(i.kernel, i.function + ", " + i.stored + ", Schedule",
                                  in + ", " + i.stored + "*, i64");
    case DeviceKernel::gelu_forward_mxfp8:
      return text + instantiation(i.kernel, i.function + ", " + i.type + ", Schedule",
                                  in + ", F8E4M3*, E8M0*, u32*, i64");
    case DeviceKernel::activation_forward_code:
      return text +
             instantiation(i.kernel, i.function + ", " + code, in + ", " + out + ", u8*, i64, const u64*");
    case DeviceKernel::encode_gradients:
      return text + instantiation(i.kernel, code, in + ", u8*, i64, const u64*, CodeRule");
    case DeviceKernel::activation_backward_code:
      return text + instantiation(i.kernel, code, in + ", const u8*, " + out + ", i64, const u64*, CodeRule");
    case DeviceKernel::fp8_table:
      return text + instantiation(i.kernel, i.function + ", " + i.stored, "const float*, int, Fp8Table*");
    case DeviceKernel::activation_forward_fp8:
      return text + instantiation(i.kernel,
                                  i.function + ", " + i.stored + ", " + i.type + ", " +
                                      std::to_string(i.code_bits) + ", Schedule",
                                  "const Fp8Table*, const float*, " + in + ", " + i.stored + "*, u8*, i64");
    case DeviceKernel::activation_backward_fp8:
      return text + instantiation(i.kernel, i.type + ", " + std::to_string(i.code_bits) + ", Schedule",
                                  "const Fp8Table*, " + in + ", const u8*, const u8*, " + out + ", i64");
    case DeviceKernel::bias_gelu_backward:
      return text +
             instantiation(i.kernel, i.function + ", " + i.type + ", " + wide,
                           in + ", " + in + ", const u32*, cuda::SlotRows, int, i64, " + out + ", float*");
    case DeviceKernel::bias_gelu_forward:
      return text + instantiation(i.kernel, i.function + ", " + i.type + ", " + i.bias + ", " + wide,
                                  in + ", const " + i.bias + "*, i64, i64, " + out + ", u32*");
    case DeviceKernel::dropout:
      return text + instantiation(i.kernel, plain, in + ", " + out + ", i64, cuda::Seed, DropoutRule");
    case DeviceKernel::tensor_maxima: return text + instantiation(i.kernel, plain, in + ", u32*, i64");
    case DeviceKernel::encode_tensor:
      return text +
             instantiation(i.kernel, at_scale, in + ", cuda::Maxima, float, " + i.stored + "*, float*, i64");
    case DeviceKernel::decode_tensor:
      return text +
             instantiation(i.kernel, at_scale, "const " + i.stored + "*, const float*, " + out + ", i64");
    case DeviceKernel::encode_tensor_blocks:
      return text + instantiation(i.kernel, plain, in + ", F8E4M3*, E8M0*, i64");
    case DeviceKernel::decode_tensor_blocks:
      return text + instantiation(i.kernel, plain, "const F8E4M3*, const E8M0*, " + out + ", i64");
    default:
      return text + instantiation(i.kernel, i.function + ", " + i.type + ", Schedule",
                                  in + ", " + out + ", u32*, i64");
  }
}

std::string gated_source(DeviceKernel kernel, const std::string& gate, const std::string& type, bool wide,
                         const std::string& kept) {
  const std::string in = "const " + type + "*, ", out = type + "*", sizes = "i64, i64, i64, ",
                    shape = sizes + out;
  std::string arrays, header = "gated", of = "gates::" + type_name(gate) + ", " + type + ", ";
  switch (kernel) {
    case DeviceKernel::gated_forward: arrays = in + in + shape; break;
    case DeviceKernel::gated_backward: arrays = in + in + in + shape + ", " + out + ", " + out; break;
    case DeviceKernel::gated_maxima:
      header = "gated_codes", of = type + ", ", arrays = in + in + sizes + "u32*";
      break;
    case DeviceKernel::gated_forward_8bit:
      header = "gated_codes", of += kept + ", ",
      arrays = in + in + shape + ", cuda::Maxima, cuda::GatedCodes";
      break;
    case DeviceKernel::gated_backward_8bit:
      header = "gated_codes", of += kept + ", ";
      arrays = in + "cuda::GatedCodes, " + shape + ", " + out + ", " + out;
      break;
    case DeviceKernel::product_forward:
      header = "product", arrays = in + in + shape + ", " + out + ", u32*";
      break;
    default: header = "product", arrays = in + in + in + "const u32*, " + shape + ", " + out;
  }
  return "#include \"kernels/cuda/" + header + ".cuh\"\nusing namespace outgrad::kernels;\n" +
         instantiation(kernel, of + text_of(wide), arrays);
}

std::string softmax_source(DeviceKernel kernel, const std::string& type, int warps) {
  const bool forward = kernel == DeviceKernel::softmax_forward_code;
  const std::string in = "const " + type + "*, ", out = type + "*, ";
  return "#include \"kernels/cuda/softmax.cuh\"\nusing namespace outgrad::kernels;\n" +
         instantiation(kernel, type + ", " + std::to_string(warps),
                       in + (forward ? out + "u8*" : "const u8*, " + type + "*") + ", i64, i64");
}

std::string source(const NormInstance& i) {
  const bool forward = i.kernel == DeviceKernel::norm_forward;
  const std::string of = text_of(i.norm) + ", " + i.type + ", Schedule, ", residual = text_of(i.residual),
                    wide = text_of(i.wide) + ", ";
  const std::string text = "#include \"kernels/cuda/norm_kernels.cuh\"\nusing namespace outgrad::kernels;\n" +
                           schedule_struct(i.schedule);
  const std::string parameters = ", " + text_of(i.parameters);
  // a store is the last of the templates' arguments
  const std::string store = i.store.empty() ? "" : ", " + i.store,
                    drops = i.drops || !i.store.empty() ? ", " + text_of(i.drops) : "";
  if (i.kernel == DeviceKernel::norm_encode)
    return text + instantiation(i.kernel, i.store + ", " + i.type + ", " + text_of(i.wide) + parameters,
                                "cuda::NormForwardArrays<" + i.type + ">");
  if (forward) {
    const std::string stores = i.unstored        ? (i.drops ? ", true, false" : ", false, false")
                               : i.store.empty() ? drops
                                                 : ", false, false" + store;
    return text + instantiation(i.kernel, of + wide + residual + parameters + stores,
                                "cuda::NormForwardArrays<" + i.type + ">");
  }
  const bool prepared = i.kernel == DeviceKernel::norm_backward;  // reads neither gamma nor beta
  return text + instantiation(i.kernel,
                              of + (prepared ? wide : "") + residual + ", " + text_of(i.side) +
                                  (prepared ? "" : parameters) + drops + store,
                              "cuda::NormBackwardArrays<" + i.type + ">");
}

namespace {

std::string helpers(const char* header, ParameterFormat parameters) {
  return std::string("#include \"kernels/cuda/") + header + ".cuh\"\nusing namespace outgrad::kernels;\n" +
         instantiation(DeviceKernel::add_slots, "cuda::kSlotFan", "float*, i64, i64, i64") +
         instantiation(DeviceKernel::finish_columns, text_of(parameters),
                       "const float*, const float*, const void*, i64, i64, i64, i64, i64, void*, void*");
}

}  // namespace

std::string bias_helper_source() { return helpers("columns", ParameterFormat::f32); }

std::string norm_helper_source(Norm norm, const std::string& type, bool apart, ParameterFormat parameters,
                               const std::string& store) {
  const std::string of = text_of(parameters);
  std::string text = helpers("norm_kernels", parameters);
  if (!apart) return text;
  text += instantiation(
      DeviceKernel::norm_prepare, of,
      "NormColumns, i32*, const void*, const void*, i64, i64, SideBuffer<const float>, SideGuard");
  return text + instantiation(DeviceKernel::norm_slot_sums,
                              text_of(norm) + ", " + type + (store.empty() ? "" : ", " + store),
                              "cuda::NormBackwardArrays<" + type + ">");
}

}  // namespace outgrad::kernels::jit
