// Every header of kernels/ compiles alone under NVRTC for sm_80, sm_90 and sm_100, and so do the instantiated
// kernels (no GPU needed).
//
// kernels/host/ (threads, files) and kernels/c/ (the compiled library) are the host's side and are left out.
// Without a CUDA toolkit the tests are skipped, not passed.

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <variant>

#include <gtest/gtest.h>

#include "kernels/support/errors.h"
#include "kernels/support/jit/nvrtc.h"

namespace outgrad::tests {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = OUTGRAD_SOURCE_DIR;

// Compiles source for one architecture from the headers that the tuner carries. Returns the empty string, or
// the compiler's first error.
std::string compile(const std::string& source, const std::string& architecture) {
  const auto result = kernels::jit::Nvrtc::instance().compile(source, architecture);
  const auto* error = std::get_if<kernels::jit::CompileError>(&result);
  return error == nullptr ? "" : error->message;
}

std::string text_of(const std::string& path) {
  std::ifstream file(kRoot / path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class NvrtcTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    try {
      kernels::jit::Nvrtc::instance();
    } catch (const kernels::EnvironmentError& error) {
      GTEST_SKIP() << error.what();
    }
  }
};

TEST_P(NvrtcTest, NightlyEveryKernelHeaderCompilesAlone) {
  std::size_t count = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / "kernels")) {
    const std::string header = fs::relative(entry.path(), kRoot).generic_string();
    const fs::path extension = entry.path().extension();
    if ((extension != ".h" && extension != ".cuh") || header.starts_with("kernels/host/") ||
        header.starts_with("kernels/c/") || header.starts_with("kernels/support/") ||
        header.starts_with("kernels/torch/"))
      continue;
    // The CPU's schedules, the choice among them and what a tuned table must keep to are the host's too: a
    // device's are in kernels/cuda/tuned.cuh, which leaves the last to a host's compiler.
    if (header == "kernels/tuned.h" || header == "kernels/accuracy.h" ||
        header == "kernels/generated/tuned_default.h")
      continue;
    ++count;
    EXPECT_EQ(compile("#include \"" + header + "\"\n", GetParam()), "") << header;
  }
  EXPECT_GE(count, 12u) << "kernels/ holds at least the headers of the architecture";
}

// What a program reads, its first call waits for. A struct of a header that was read cannot be defined anew.
TEST_P(NvrtcTest, FewHeadersReadCoefficientsAndNoneADirectTable) {
  const auto defining = [](const std::string& header, const std::string& fit) {
    return compile("#include \"kernels/cuda/" + header +
                       "\"\nnamespace outgrad::kernels::generated { struct " + fit + " {}; }\n",
                   GetParam());
  };
  for (const char* header :
       {"norm_kernels.cuh", "bias.cuh", "dropout.cuh", "elementwise.cuh", "mxfp8.cuh", "tensor_codes.cuh"})
    EXPECT_EQ(defining(header, "GeluBf16"), "") << header;
  for (const char* header : {"code.cuh", "forwards.cuh", "fp8.cuh", "gated.cuh", "gated_codes.cuh",
                             "parity.cuh", "product.cuh", "softmax.cuh", "tuned.cuh"})
    EXPECT_EQ(defining(header, "GeluF16Oracle"), "") << header;
  EXPECT_NE(defining("code.cuh", "GeluBf16"), "");
}

// Templates are compiled when they are instantiated: the kernels of every format.
TEST_P(NvrtcTest, NightlyEveryKernelCompiles) {
  std::string source =
      "#include \"kernels/cuda/bias.cuh\"\n"
      "#include \"kernels/cuda/dropout.cuh\"\n"
      "#include \"kernels/cuda/elementwise.cuh\"\n"
      "#include \"kernels/cuda/forwards.cuh\"\n"
      "#include \"kernels/cuda/layernorm.cuh\"\n"
      "#include \"kernels/fits.h\"\n"
      "using namespace outgrad::kernels;\n";
  for (const std::string t : {"float", "F16", "BF16"}) {
    source += "template __global__ void cuda::activation_backward<DefaultFit<" + t + ">::Type, " + t +
              ">(const " + t + "*, const " + t + "*, const u32*, " + t + "*, i64);\n";
    source += "template __global__ void cuda::gelu_forward<ForwardFit<" + t + ">::Type, " + t + ">(const " +
              t + "*, " + t + "*, u32*, i64);\n";
    source += "template __global__ void cuda::dropout<" + t + ">(const " + t + "*, " + t +
              "*, i64, cuda::Seed, DropoutRule);\n";
    for (const std::string f :
         {"GeluTanh", "QuickGelu", "Silu", "Swish", "Mish", "Tanh", "Sigmoid", "Softplus", "Elu"})
      source += "template __global__ void cuda::activation_forward<forwards::" + f + ", " + t + ">(const " +
                t + "*, " + t + "*, u32*, i64);\n";
    for (const std::string wide : {"true", "false"}) {
      if (wide == "false" && t != "F16") continue;
      source += "template __global__ void cuda::bias_gelu_forward<ForwardFit<" + t + ">::Type, " + t + ", " +
                t + ", " + wide + ">(const " + t + "*, const " + t + "*, i64, i64, " + t + "*, u32*);\n";
      source += "template __global__ void cuda::bias_gelu_backward<DefaultFit<" + t + ">::Type, " + t + ", " +
                wide + ">(const " + t + "*, const " + t + "*, const u32*, cuda::SlotRows, int, i64, " + t +
                "*, float*);\n";
    }
  }
  EXPECT_EQ(compile(source, GetParam()), "");
}

// The forwards that keep less than y and a mask, and the backward from codes.
TEST_P(NvrtcTest, EveryStoresKernelsCompileNightly) {
  std::string source =
      "#include \"kernels/cuda/code.cuh\"\n"
      "#include \"kernels/cuda/fp8.cuh\"\n"
      "#include \"kernels/cuda/gated_codes.cuh\"\n"
      "#include \"kernels/cuda/mxfp8.cuh\"\n"
      "#include \"kernels/cuda/parity.cuh\"\n"
      "#include \"kernels/cuda/product.cuh\"\n"
      "#include \"kernels/cuda/softmax.cuh\"\n"
      "using namespace outgrad::kernels;\n";
  for (const std::string y : {"F16", "BF16"}) {
    const std::string parity = y == "F16" ? "ParityF16" : "ParityBf16";
    for (const std::string f : {"generated::GeluForward", "forwards::Mish"})
      source += "template __global__ void cuda::activation_forward_parity<" + f + ", " + parity + ">(const " +
                y + "*, " + parity + "*, i64);\n";
  }
  for (const std::string t : {"float", "F16", "BF16"}) {
    source += "template __global__ void cuda::gelu_forward_mxfp8<ForwardFit<" + t + ">::Type, " + t +
              ">(const " + t + "*, F8E4M3*, E8M0*, u32*, i64);\n";
    const std::string in = "const " + t + "*", out = t + "*";
    source += "template __global__ void cuda::tensor_maxima<" + t + ">(" + in + ", u32*, i64);\n";
    for (const std::string f : {"F8E4M3", "F8E5M2"}) {
      source += "template __global__ void cuda::encode_tensor<" + f + ", " + t + ">(" + in +
                ", cuda::Maxima, float, " + f + "*, float*, i64);\n";
      source += "template __global__ void cuda::decode_tensor<" + f + ", " + t + ">(const " + f +
                "*, const float*, " + out + ", i64);\n";
    }
    source +=
        "template __global__ void cuda::encode_tensor_blocks<" + t + ">(" + in + ", F8E4M3*, E8M0*, i64);\n";
    source += "template __global__ void cuda::decode_tensor_blocks<" + t + ">(const F8E4M3*, const E8M0*, " +
              out + ", i64);\n";
    for (const std::string s : {"GeluFp8", "MishFp8"})
      source += "template __global__ void cuda::activation_forward_fp8<Fp8Activation<generated::" + s +
                ">, F8E4M3, " + t + ", 1>(const Fp8Table*, const float*, const " + t +
                "*, F8E4M3*, u8*, i64);\n";
    source += "template __global__ void cuda::activation_backward_fp8<" + t + ", 2>(const Fp8Table*, const " +
              t + "*, const u8*, const u8*, " + t + "*, i64);\n";
    for (const std::string gate : {"Silu", "GeluTanh", "Sigmoid", "Gelu"}) {
      for (const std::string wide : {"true", "false"}) {
        if ((wide == "true") != (t == "BF16")) continue;
        const std::string of = "<gates::" + gate + ", " + t + ", " + wide + ">(const " + t + "*, const " + t,
                          to = t + "*";
        source += "template __global__ void cuda::gated_forward" + of + "*, i64, i64, i64, " + to + ");\n";
        source += "template __global__ void cuda::gated_backward" + of + "*, const " + t +
                  "*, i64, i64, i64, " + to + ", " + to + ", " + to + ");\n";
        for (const std::string kept : {"cuda::AtScale<F8E5M2>", "cuda::InBlocks"}) {
          const std::string from = "<gates::" + gate + ", " + t + ", " + kept + ", " + wide + ">(" + in;
          source += "template __global__ void cuda::gated_forward_8bit" + from + ", " + in +
                    ", i64, i64, i64, " + out + ", cuda::Maxima, cuda::GatedCodes);\n";
          source += "template __global__ void cuda::gated_backward_8bit" + from +
                    ", cuda::GatedCodes, i64, i64, i64, " + out + ", " + out + ", " + out + ");\n";
        }
        if (t == "float" || gate == "Sigmoid") continue;
        source += "template __global__ void cuda::product_forward" + of + "*, i64, i64, i64, " + to + ", " +
                  to + ", u32*);\n";
        source += "template __global__ void cuda::product_backward" + of + "*, const " + t +
                  "*, const u32*, i64, i64, i64, " + to + ", " + to + ");\n";
      }
    }
    for (const std::string warps : {"1", "4", "16"}) {
      source += "template __global__ void cuda::softmax_forward_code<" + t + ", " + warps + ">(const " + t +
                "*, " + t + "*, u8*, i64, i64);\n";
      source += "template __global__ void cuda::softmax_backward_code<" + t + ", " + warps + ">(const " + t +
                "*, const u8*, " + t + "*, i64, i64);\n";
    }
    struct Code {
      const char *activation, *bits;
    };
    for (const auto& [activation, bits] : {Code{"0", "4"}, Code{"5", "5"}, Code{"0", "2, true"}}) {
      source += "template __global__ void cuda::activation_forward_code<CodedActivationAt<" +
                std::string(activation) + ">, " + t + ", " + bits + ">(const " + t + "*, " + t +
                "*, u8*, i64, const u64*);\n";
      source += "template __global__ void cuda::encode_gradients<" + t + ", " + bits + ">(const " + t +
                "*, u8*, i64, const u64*, CodeRule);\n";
      source += "template __global__ void cuda::activation_backward_code<" + t + ", " + bits + ">(const " +
                t + "*, const u8*, " + t + "*, i64, const u64*, CodeRule);\n";
    }
  }
  for (const std::string s : {"GeluFp8", "MishFp8"})
    source += "template __global__ void cuda::fp8_table<Fp8Activation<generated::" + s +
              ">, F8E5M2>(const float*, int, Fp8Table*);\n";
  EXPECT_EQ(compile(source, GetParam()), "");
}

// Every shape of a fit: schemes, break points, both ends in y, one row, no mask, direct tables in shared
// memory and beyond it, 8-bit y, alone and in blocks.
TEST_P(NvrtcTest, NightlyEveryShapeOfAFitCompiles) {
  std::string source =
      "#include \"kernels/cuda/elementwise.cuh\"\n" + text_of("tests/kernels/synthetic_fit.h") +
      text_of("tests/kernels/synthetic_format.h") +
      "using namespace outgrad::kernels;\n"
      "struct Long : synthetic::Direct<F16, F16> {\n"
      "  static constexpr int kUpperLast = kUpperFirst + 15000, kEntries = kUpperBase + 15001;\n"
      "  static OUTGRAD_HD constexpr Entries<kEntries> entries() { return {}; }\n"
      "};\n";
  struct Shape {
    const char *fit, *t, *y;
  };
  for (const Shape& shape :
       {Shape{"synthetic::WithLeftAndRight", "float", "float"}, Shape{"synthetic::TwoWord", "float", "float"},
        Shape{"synthetic::WithoutLeft<64, 6, kEstrin>", "F16", "F16"},
        Shape{"synthetic::WithoutLeft<8, 7, kEvenOdd, false>", "BF16", "BF16"},
        Shape{"synthetic::WithBreaks<5, 4>", "float", "float"}, Shape{"synthetic::OneRow<6>", "BF16", "BF16"},
        Shape{"synthetic::Unmasked<16, 4>", "BF16", "BF16"},
        Shape{"synthetic::Direct<BF16, F16>", "BF16", "BF16"},
        Shape{"synthetic::Direct<BF16, BF16, false>", "float", "BF16"}, Shape{"Long", "F16", "F16"},
        Shape{"synthetic::Direct<F8E4M3, F16>", "BF16", "F8E4M3"},
        Shape{"synthetic::Direct<F8E5M2, BF16>", "float", "F8E5M2"},
        Shape{"synthetic::WithLeft", "F16", "F8E4M3"}, Shape{"synthetic::WithLeft", "BF16", "MxFp8"},
        Shape{"synthetic::OneRow<6>", "float", "synthetic::BlocksOf16"},
        Shape{"synthetic::WithLeft", "BF16", "ParityBf16"},
        Shape{"synthetic::WithLeftAndRight", "float", "ParityF16"}}) {
    const std::string t = shape.t;
    source += "template __global__ void cuda::activation_backward<" + std::string(shape.fit) + ", " + t +
              ", " + shape.y + ">(const " + t + "*, Stored<" + shape.y + ">, const u32*, " + t + "*, i64);\n";
  }
  EXPECT_EQ(compile(source, GetParam()), "");
}

// Every value of a schedule that selects other code: widths of access, hints, homes of a table.
TEST_P(NvrtcTest, EverySchedulesKernelsCompile) {
  std::string source =
      "#include \"kernels/cuda/elementwise.cuh\"\n"
      "#include \"kernels/fits.h\"\n"
      "using namespace outgrad::kernels;\n";
  int index = 0;
  for (const std::string schedule :
       {".access_bytes = 4, .table = TableHome::columns",
        ".access_bytes = 8, .loads = CacheHint::streaming, .table = TableHome::rows",
        ".threads = 512, .octets = 1, .stores = CacheHint::streaming, .table = TableHome::spread",
        ".loads = CacheHint::streaming, .table = TableHome::caches"}) {
    const std::string name = "Schedule" + std::to_string(index++);
    source += "struct " + name + " { static constexpr GpuSchedule kSchedule{" + schedule + "}; };\n";
    source += "template __global__ void cuda::activation_backward<generated::GeluBf16, BF16, BF16, " + name +
              ">(const BF16*, const BF16*, const u32*, BF16*, i64);\n";
  }
  EXPECT_EQ(compile(source, GetParam()), "");
}

// The norms in every home of a row, wide and element by element, with a residual and with side channels.
TEST_P(NvrtcTest, NightlyEveryNormKernelCompiles) {
  std::string source =
      "#include \"kernels/cuda/layernorm.cuh\"\n"
      "using namespace outgrad::kernels;\n"
      "template <int Warps, RowHome Home, int Ahead>\n"
      "struct Fixed {\n"
      "  static constexpr GpuNormSchedule kSchedule{.row_warps = Warps, .octets = 2, .block_rows = 1, "
      ".resident_blocks = 1, .rows_ahead = "
      "Ahead, .home = Home, .row_lanes = 32};\n"
      "};\n"
      "using Registers = Fixed<4, RowHome::registers, 2>;\n"
      "using OneWarp = Fixed<1, RowHome::registers, 0>;\n"
      "using Shared = Fixed<8, RowHome::shared, 0>;\n"
      "using Memory = Fixed<16, RowHome::memory, 0>;\n";
  for (const std::string t : {"float", "F16", "BF16"}) {
    const std::string forward = "(cuda::NormForwardArrays<" + t + ">);\n",
                      backward = "(cuda::NormBackwardArrays<" + t + ">);\n";
    for (const std::string norm : {"Norm::layer", "Norm::rms"}) {
      const std::string of = "<" + norm + ", " + t;
      for (const std::string schedule : {"Registers", "OneWarp"}) {
        if (schedule == "OneWarp" && t != "BF16") continue;
        source +=
            "template __global__ void cuda::norm_forward" + of + ", " + schedule + ", true, true>" + forward;
        source += "template __global__ void cuda::norm_backward_slots" + of + ", " + schedule +
                  ", true, cuda::SideChannels::none>" + backward;
        source += "template __global__ void cuda::norm_backward_slots" + of + ", " + schedule +
                  ", false, cuda::SideChannels::some>" + backward;
      }
      source += "template __global__ void cuda::norm_slot_sums" + of + ">" + backward;
    }
    for (const std::string schedule : {"Shared", "Memory"}) {
      if (t != "F16") continue;
      for (const std::string wide : {"true", "false"}) {
        source += "template __global__ void cuda::norm_forward<Norm::layer, " + t + ", " + schedule + ", " +
                  wide + ", true>" + forward;
        source += "template __global__ void cuda::norm_backward<Norm::layer, " + t + ", " + schedule + ", " +
                  wide + ", true, cuda::SideChannels::either>" + backward;
      }
    }
  }
  source +=
      "template __global__ void cuda::norm_prepare<>(NormColumns, i32*, const void*, const void*, i64, i64, "
      "SideBuffer<const float>, SideGuard);\n";
  source +=
      "template __global__ void cuda::finish_columns<>(const float*, const float*, const void*, i64, i64, "
      "i64, "
      "i64, i64, void*, void*);\n";
  EXPECT_EQ(compile(source, GetParam()), "");
}

// The norms that keep y in 8 bits: rows in registers, with and without rows ahead, and in loops, by octets
// and element by element.
TEST_P(NvrtcTest, NightlyEveryNormKernelWithAStoreCompiles) {
  std::string source =
      "#include \"kernels/cuda/layernorm.cuh\"\n"
      "using namespace outgrad::kernels;\n"
      "template <RowHome Home, int Ahead>\n"
      "struct Fixed {\n"
      "  static constexpr GpuNormSchedule kSchedule{.row_warps = 4, .octets = 2, .block_rows = 1, "
      ".resident_blocks = 1, .rows_ahead = Ahead, .home = Home, .row_lanes = 32};\n"
      "};\n"
      "using Ahead = Fixed<RowHome::registers, 2>;\n"
      "using Registers = Fixed<RowHome::registers, 0>;\n"
      "using Shared = Fixed<RowHome::shared, 0>;\n"
      "using Memory = Fixed<RowHome::memory, 0>;\n";
  struct Instance {
    const char *store, *t, *norm, *registers, *home, *wide;
  };
  for (const Instance& i : {Instance{"NormE4m3", "BF16", "layer", "Ahead", "Memory", "false"},
                            Instance{"NormE4m3", "float", "rms", "Ahead", "Shared", "true"},
                            Instance{"NormMxFp8", "F16", "layer", "Ahead", "Shared", "true"},
                            Instance{"NormMxFp8", "float", "rms", "Registers", "Memory", "true"},
                            Instance{"NormInt8", "BF16", "rms", "Ahead", "Memory", "false"},
                            Instance{"NormInt8", "float", "layer", "Registers", "Shared", "true"}}) {
    const std::string t = i.t, store = i.store, of = "<Norm::" + std::string(i.norm) + ", " + t + ", ",
                      forward = "(cuda::NormForwardArrays<" + t + ">);\n",
                      backward = "(cuda::NormBackwardArrays<" + t + ">);\n", wide = i.wide, home = i.home,
                      registers = i.registers;
    const std::string first = "template __global__ void cuda::",
                      behind = ", false, ParameterFormat::bf16, false, false, " + store + ">" + forward;
    source += first + "norm_forward" + of + registers + ", true" + behind;
    source += first + "norm_forward" + of + home + ", " + wide + behind;
    source += first + "norm_backward_slots" + of + registers +
              ", false, cuda::SideChannels::none, ParameterFormat::bf16, false, " + store + ">" + backward;
    source += first + "norm_backward" + of + home + ", " + wide +
              ", false, cuda::SideChannels::either, false, " + store + ">" + backward;
    source += first + "norm_slot_sums" + of + store + ">" + backward;
    if (store == "NormE4m3")
      source +=
          first + "norm_encode<" + store + ", " + t + ", " + wide + ", ParameterFormat::bf16>" + forward;
  }
  EXPECT_EQ(compile(source, GetParam()), "");
}

// The compiler that is asked does compile: an error in the source comes back as its log.
TEST_P(NvrtcTest, ErrorsAreSeen) {
  EXPECT_EQ(compile("__global__ void sound(float* x) { *x = 1; }\n", GetParam()), "");
  EXPECT_NE(compile("__global__ void broken() { undeclared(); }\n", GetParam()), "");
  EXPECT_NE(compile("#include \"kernels/absent.h\"\n", GetParam()), "");
}

INSTANTIATE_TEST_SUITE_P(Hopper, NvrtcTest, testing::Values("sm_90"),
                         [](const auto& parameter) { return parameter.param; });
INSTANTIATE_TEST_SUITE_P(NightlyArchitectures, NvrtcTest, testing::Values("sm_80", "sm_100"),
                         [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace outgrad::tests
