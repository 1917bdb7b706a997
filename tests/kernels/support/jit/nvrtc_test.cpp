#include "kernels/support/jit/nvrtc.h"

#include <gtest/gtest.h>

#include "kernels/support/errors.h"

namespace outgrad::kernels::jit {
namespace {

constexpr const char* kReport =
    "ptxas info    : 3632 bytes gmem\n"
    "ptxas info    : Compiling entry function 'first' for 'sm_90'\n"
    "ptxas info    : Function properties for first\n"
    "ptxas         .     16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads\n"
    "ptxas info    : Used 96 registers, used 1 barriers, 16 bytes cumulative stack size, 8192 bytes smem\n"
    "ptxas info    : Compiling entry function 'second' for 'sm_90'\n"
    "ptxas info    : Function properties for helper\n"
    "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
    "ptxas info    : Used 12 registers, used 0 barriers\n"
    "ptxas info    : Compile time = 33.017 ms\n";

TEST(PtxasReport, GivesEveryKernelItsResources) {
  const auto kernels = read_ptxas_report(kReport);
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0].first, "first");
  EXPECT_EQ(kernels[0].second.registers, 96);
  EXPECT_EQ(kernels[0].second.stack_bytes, 16);
  EXPECT_EQ(kernels[0].second.spill_bytes, 64);
  EXPECT_EQ(kernels[0].second.shared_bytes, 8192);
  EXPECT_EQ(kernels[1].first, "second");
  EXPECT_EQ(kernels[1].second.registers, 12);
  EXPECT_EQ(kernels[1].second.shared_bytes, 0);
}

TEST(PtxasReport, WithoutRegistersIsAnError) {
  const std::string report = kReport;
  EXPECT_THROW(read_ptxas_report(report.substr(0, report.find("Used 12"))), EnvironmentError);
  EXPECT_TRUE(read_ptxas_report("").empty());
}

TEST(EmbeddedKernels, AreWhatDeviceCodeIncludes) {
  bool elementwise = false, host = false;
  for (const EmbeddedSource& source : embedded_kernels()) {
    const std::string name = source.name;
    elementwise = elementwise || name == "kernels/cuda/elementwise.cuh";
    host = host || name.find("kernels/host/") == 0;
    EXPECT_NE(std::string(source.text).find("#pragma once"), std::string::npos) << name;
  }
  EXPECT_TRUE(elementwise);
  EXPECT_FALSE(host);
}

class NvrtcLibrary : public testing::Test {
 protected:
  void SetUp() override {
    try {
      nvrtc_ = &Nvrtc::instance();
    } catch (const EnvironmentError& error) {
      GTEST_SKIP() << error.what();
    }
  }
  const Nvrtc* nvrtc_ = nullptr;
};

TEST_F(NvrtcLibrary, CompilesFromEmbeddedHeaders) {
  const auto result = nvrtc_->compile(
      "#include \"kernels/formats.h\"\nextern \"C\" __global__ void k(float* x) { *x = "
      "outgrad::kernels::fma_rn(*x, *x, 1.0f); }\n",
      "sm_90");
  ASSERT_TRUE(std::holds_alternative<GpuCode>(result)) << std::get<CompileError>(result).message;
  const auto& code = std::get<GpuCode>(result);
  ASSERT_EQ(code.kernels.size(), 1u);
  EXPECT_EQ(code.kernels[0].first, "k");
  EXPECT_GT(code.kernels[0].second.registers, 0);
  EXPECT_EQ(code.cubin.substr(1, 3), "ELF");
}

TEST_F(NvrtcLibrary, SaysWhatIsWrongWithASource) {
  const auto undeclared = nvrtc_->compile("__global__ void k() { undeclared(); }\n", "sm_90");
  ASSERT_TRUE(std::holds_alternative<CompileError>(undeclared));
  EXPECT_NE(std::get<CompileError>(undeclared).message.find("undeclared"), std::string::npos);
  const auto absent = nvrtc_->compile("#include \"kernels/host/parallel.h\"\n", "sm_90");
  EXPECT_TRUE(std::holds_alternative<CompileError>(absent)) << "the host's headers are not for device code";
}

TEST_F(NvrtcLibrary, KnowsItsArchitectures) {
  EXPECT_NO_THROW(nvrtc_->require("sm_90"));
  EXPECT_THROW(nvrtc_->require("sm_9000"), SpecError);
  EXPECT_THROW(nvrtc_->require("hopper"), SpecError);
  EXPECT_THROW(nvrtc_->require("sm_20"), EnvironmentError);
}

}  // namespace
}  // namespace outgrad::kernels::jit
