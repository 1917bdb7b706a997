// Every header of kernels/ compiles alone under NVRTC for sm_80, sm_90 and sm_100, and so do the instantiated kernels (no GPU needed).
//
// kernels/host/ (threads, files) and kernels/c/ (the compiled library) are the host's side and are left out. Without a CUDA toolkit the tests are skipped, not passed.

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace outgrad::tests {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = OUTGRAD_SOURCE_DIR;

// The few NVRTC functions that are needed, loaded at run time: the tests build on machines without a toolkit.
class Nvrtc {
 public:
  static const Nvrtc* find() {
    static const Nvrtc instance;
    return instance.library_ == nullptr ? nullptr : &instance;
  }

  // Compiles source for one architecture. Returns the empty string, or the compiler's log.
  std::string compile(const std::string& source, const std::string& architecture) const {
    void* program = nullptr;
    if (create_(&program, source.c_str(), "outgrad.cu", 0, nullptr, nullptr) != 0) return "nvrtcCreateProgram failed";
    const std::vector<std::string> options = {"--gpu-architecture=" + architecture, "--std=c++20", "--include-path=" + kRoot.string()};
    std::vector<const char*> words;
    for (const std::string& option : options) words.push_back(option.c_str());
    const int result = compile_(program, static_cast<int>(words.size()), words.data());
    std::string log;
    if (result != 0) {
      std::size_t size = 0;
      log_size_(program, &size);
      log.resize(size);
      log_(program, log.data());
      if (log.empty()) log = "status " + std::to_string(result);
    }
    destroy_(&program);
    return log;
  }

 private:
  Nvrtc() {
    std::vector<std::string> candidates = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"};
    for (const char* variable : {"CUDA_PATH", "CUDA_HOME"}) {
      if (const char* value = std::getenv(variable)) candidates.push_back(std::string(value) + "/lib64/libnvrtc.so");
    }
    candidates.push_back("/usr/local/cuda/lib64/libnvrtc.so");
    for (const std::string& candidate : candidates) {
      library_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (library_ != nullptr) break;
    }
    if (library_ == nullptr) return;
    load(create_, "nvrtcCreateProgram");
    load(compile_, "nvrtcCompileProgram");
    load(log_size_, "nvrtcGetProgramLogSize");
    load(log_, "nvrtcGetProgramLog");
    load(destroy_, "nvrtcDestroyProgram");
  }

  template <class Function>
  void load(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (function == nullptr) ADD_FAILURE() << "libnvrtc has no " << name;
  }

  void* library_ = nullptr;
  int (*create_)(void**, const char*, const char*, int, const char* const*, const char* const*) = nullptr;
  int (*compile_)(void*, int, const char* const*) = nullptr;
  int (*log_size_)(void*, std::size_t*) = nullptr;
  int (*log_)(void*, char*) = nullptr;
  int (*destroy_)(void**) = nullptr;
};

class NvrtcTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    nvrtc_ = Nvrtc::find();
    if (nvrtc_ == nullptr) GTEST_SKIP() << "no CUDA toolkit here: libnvrtc was not found";
  }
  const Nvrtc* nvrtc_ = nullptr;
};

TEST_P(NvrtcTest, EveryKernelHeaderCompilesAlone) {
  std::size_t count = 0;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(kRoot / "kernels")) {
    const std::string header = fs::relative(entry.path(), kRoot).generic_string();
    const fs::path extension = entry.path().extension();
    if ((extension != ".h" && extension != ".cuh") || header.starts_with("kernels/host/") || header.starts_with("kernels/c/")) continue;
    ++count;
    EXPECT_EQ(nvrtc_->compile("#include \"" + header + "\"\n", GetParam()), "") << header;
  }
  EXPECT_GE(count, 12u) << "kernels/ holds at least the headers of the architecture";
}

// Templates are compiled when they are instantiated: the kernels of every format.
TEST_P(NvrtcTest, EveryKernelCompiles) {
  std::string source =
      "#include \"kernels/cuda/bias.cuh\"\n"
      "#include \"kernels/cuda/elementwise.cuh\"\n"
      "#include \"kernels/cuda/layernorm.cuh\"\n"
      "#include \"kernels/fits.h\"\n"
      "using namespace outgrad::kernels;\n";
  for (const std::string t : {"float", "F16", "BF16"}) {
    source += "template __global__ void cuda::activation_backward<DefaultFit<" + t + ">::Type, " + t + ">(const " + t + "*, const " + t +
              "*, const u32*, " + t + "*, i64);\n";
    source += "template __global__ void cuda::gelu_forward<generated::GeluForward, " + t + ">(const " + t + "*, " + t + "*, u32*, i64);\n";
    for (const std::string wide : {"true", "false"}) {
      if (wide == "false" && t != "F16") continue;
      source += "template __global__ void cuda::bias_gelu_forward<generated::GeluForward, " + t + ", " + t + ", " + wide + ">(const " + t +
                "*, const " + t + "*, i64, i64, " + t + "*, u32*);\n";
      source += "template __global__ void cuda::bias_gelu_backward<DefaultFit<" + t + ">::Type, " + t + ", " + wide + ">(const " + t +
                "*, const " + t + "*, const u32*, cuda::SlotRows, i64, " + t + "*, float*);\n";
    }
  }
  EXPECT_EQ(nvrtc_->compile(source, GetParam()), "");
}

// Every shape of a fit: schemes, break points, both ends in y, one row, no mask, direct tables in shared memory and beyond it, 8-bit y.
TEST_P(NvrtcTest, EveryShapeOfAFitCompiles) {
  std::string source =
      "#include \"kernels/cuda/elementwise.cuh\"\n"
      "#include \"tests/kernels/synthetic_fit.h\"\n"
      "using namespace outgrad::kernels;\n"
      "struct Long : synthetic::Direct<F16, F16> {\n"
      "  static constexpr int kUpperLast = kUpperFirst + 15000, kEntries = kUpperBase + 15001;\n"
      "  static OUTGRAD_HD constexpr Entries<kEntries> entries() { return {}; }\n"
      "};\n";
  struct Shape {
    const char *fit, *t, *y;
  };
  for (const Shape& shape : {Shape{"synthetic::WithLeftAndRight", "float", "float"}, Shape{"synthetic::TwoWord", "float", "float"}, Shape{"synthetic::WithoutLeft<64, 6, kEstrin>", "F16", "F16"},
                             Shape{"synthetic::WithoutLeft<8, 7, kEvenOdd, false>", "BF16", "BF16"}, Shape{"synthetic::WithBreaks<5, 4>", "float", "float"},
                             Shape{"synthetic::OneRow<6>", "BF16", "BF16"}, Shape{"synthetic::Unmasked<16, 4>", "BF16", "BF16"},
                             Shape{"synthetic::Direct<BF16, F16>", "BF16", "BF16"}, Shape{"synthetic::Direct<BF16, BF16, false>", "float", "BF16"},
                             Shape{"Long", "F16", "F16"}, Shape{"synthetic::Direct<F8E4M3, F16>", "BF16", "F8E4M3"},
                             Shape{"synthetic::Direct<F8E5M2, BF16>", "float", "F8E5M2"}, Shape{"synthetic::WithLeft", "F16", "F8E4M3"}}) {
    const std::string t = shape.t;
    source += "template __global__ void cuda::activation_backward<" + std::string(shape.fit) + ", " + t + ", " + shape.y + ">(const " + t + "*, const " +
              shape.y + "*, const u32*, " + t + "*, i64);\n";
  }
  EXPECT_EQ(nvrtc_->compile(source, GetParam()), "");
}

// Every value of a schedule that selects other code: widths of access, hints, homes of a table.
TEST_P(NvrtcTest, EverySchedulesKernelsCompile) {
  std::string source =
      "#include \"kernels/cuda/elementwise.cuh\"\n"
      "#include \"kernels/fits.h\"\n"
      "using namespace outgrad::kernels;\n";
  int index = 0;
  for (const std::string schedule :
       {".access_bytes = 4, .table = TableHome::columns", ".access_bytes = 8, .loads = CacheHint::streaming, .table = TableHome::rows",
        ".threads = 512, .octets = 1, .stores = CacheHint::streaming, .table = TableHome::spread", ".loads = CacheHint::streaming, .table = TableHome::caches"}) {
    const std::string name = "Schedule" + std::to_string(index++);
    source += "struct " + name + " { static constexpr GpuSchedule kSchedule{" + schedule + "}; };\n";
    source += "template __global__ void cuda::activation_backward<generated::GeluBf16, BF16, BF16, " + name +
              ">(const BF16*, const BF16*, const u32*, BF16*, i64);\n";
  }
  EXPECT_EQ(nvrtc_->compile(source, GetParam()), "");
}

// The norms in every home of a row, wide and element by element, with a residual and with side channels.
TEST_P(NvrtcTest, EveryNormKernelCompiles) {
  std::string source =
      "#include \"kernels/cuda/layernorm.cuh\"\n"
      "using namespace outgrad::kernels;\n"
      "template <int Warps, RowHome Home, int Ahead>\n"
      "struct Fixed {\n"
      "  static constexpr GpuNormSchedule kSchedule{.row_warps = Warps, .octets = 2, .block_rows = 1, .resident_blocks = 1, .rows_ahead = Ahead, .home = Home};\n"
      "};\n"
      "using Registers = Fixed<4, RowHome::registers, 1>;\n"
      "using OneWarp = Fixed<1, RowHome::registers, 0>;\n"
      "using Shared = Fixed<8, RowHome::shared, 0>;\n"
      "using Memory = Fixed<16, RowHome::memory, 0>;\n";
  for (const std::string t : {"float", "F16", "BF16"}) {
    const std::string forward = "(cuda::NormForwardArrays<" + t + ">);\n", backward = "(cuda::NormBackwardArrays<" + t + ">);\n";
    for (const std::string norm : {"Norm::layer", "Norm::rms"}) {
      const std::string of = "<" + norm + ", " + t;
      for (const std::string schedule : {"Registers", "OneWarp"}) {
        if (schedule == "OneWarp" && t != "BF16") continue;
        source += "template __global__ void cuda::norm_forward" + of + ", " + schedule + ", true, true>" + forward;
        source += "template __global__ void cuda::norm_backward_slots" + of + ", " + schedule + ", true, cuda::SideChannels::none>" + backward;
        source += "template __global__ void cuda::norm_backward_slots" + of + ", " + schedule + ", false, cuda::SideChannels::some>" + backward;
      }
      source += "template __global__ void cuda::norm_slot_sums" + of + ">" + backward;
    }
    for (const std::string schedule : {"Shared", "Memory"}) {
      if (t != "F16") continue;
      for (const std::string wide : {"true", "false"}) {
        source += "template __global__ void cuda::norm_forward<Norm::layer, " + t + ", " + schedule + ", " + wide + ", true>" + forward;
        source += "template __global__ void cuda::norm_backward<Norm::layer, " + t + ", " + schedule + ", " + wide + ", true, cuda::SideChannels::either>" + backward;
      }
    }
  }
  source += "template __global__ void cuda::norm_prepare<>(NormColumns, i32*, const float*, const float*, i64, i64, SideBuffer<const float>);\n";
  EXPECT_EQ(nvrtc_->compile(source, GetParam()), "");
}

// The compiler that is asked does compile: an error in the source comes back as its log.
TEST_P(NvrtcTest, ErrorsAreSeen) {
  EXPECT_EQ(nvrtc_->compile("__global__ void sound(float* x) { *x = 1; }\n", GetParam()), "");
  EXPECT_NE(nvrtc_->compile("__global__ void broken() { undeclared(); }\n", GetParam()), "");
  EXPECT_NE(nvrtc_->compile("#include \"kernels/absent.h\"\n", GetParam()), "");
}

INSTANTIATE_TEST_SUITE_P(Architectures, NvrtcTest, testing::Values("sm_80", "sm_90", "sm_100"), [](const auto& parameter) { return parameter.param; });

}  // namespace
}  // namespace outgrad::tests
