// Kernels, sizes, the table of operands.
#include "autotune/space/problem.h"

#include <gtest/gtest.h>

#include <set>

namespace outgrad::autotune {
namespace {

constexpr Problem kNorm{KernelId::kLayernormBackward, FormatId::kBf16, 16384, 1024};

TEST(Problem, NamesAndBytes) {
  EXPECT_EQ(kNorm.name(), "layernorm_backward.bf16");
  EXPECT_EQ(kNorm.sized_name(), "layernorm_backward.bf16.16384x1024");
  const Problem gelu{KernelId::kGeluBackward, FormatId::kF32, 1, 1 << 20};
  EXPECT_EQ(gelu.sized_name(), "gelu_backward.f32.1048576");
  EXPECT_EQ(gelu.bytes_per_element(), 12.125);
  EXPECT_EQ(gelu.bytes(), 12.125 * (1 << 20));
  // dy, y, dx; gamma, beta, dgamma, dbeta; rstd.
  EXPECT_EQ(kNorm.bytes(), 3 * 2.0 * 16384 * 1024 + 4 * 4 * 1024 + 4 * 16384);
  EXPECT_EQ((Problem{KernelId::kResidualRmsnormForward, FormatId::kF32, 2, 3}.bytes()), 4 * (4 * 6 + 3 + 2));
  EXPECT_EQ((Problem{KernelId::kBiasGeluForward, FormatId::kF16, 3, 11}.bytes()),
            2 * 33 + 4 * 11 + 2 * 33 + 4 * 2);
  Problem codes{KernelId::kGeluBackwardCode, FormatId::kBf16, 1, 13};
  EXPECT_EQ(codes.sized_name(), "gelu_backward_code.bf16.13");
  EXPECT_EQ(codes.bytes_per_element(), 4.5);
  EXPECT_EQ(codes.bytes(), 2 * 2 * 13 + 7);
  codes.code_bits = 3;
  EXPECT_EQ(codes.sized(1, 11).bytes(), 2 * 2 * 11 + 5);
}

TEST(Problem, KindsFollowFromTheOperands) {
  std::set<std::string> names;
  for (const KernelId kernel : kAllKernels) {
    const Problem problem{kernel, FormatId::kF32};
    const std::string name = name_of(kernel);
    EXPECT_TRUE(names.insert(name).second) << name;
    EXPECT_EQ(kernels::has_codes(kernel), name.ends_with("_code")) << name;
    EXPECT_EQ(problem.has_fit(), name.find("gelu") != std::string::npos && !name.ends_with("_code")) << name;
    EXPECT_EQ(problem.over_rows(), !name.starts_with("gelu")) << name;
    EXPECT_EQ(is_backward(kernel), name.find("backward") != std::string::npos) << name;
  }
  EXPECT_EQ(names.size(), 14u);
}

TEST(Operands, HoldTogether) {
  for (const KernelId kernel : kAllKernels) {
    SCOPED_TRACE(name_of(kernel));
    const std::span<const Operand> all = operands(kernel);
    const Problem problem{kernel, FormatId::kBf16, 5, 7};
    ASSERT_LE(all.size(), static_cast<std::size_t>(kMostOperands));
    std::set<std::string> names;
    bool input_ended = false;
    for (const Operand& operand : all) {
      EXPECT_TRUE(names.insert(operand.name).second) << operand.name;
      EXPECT_GT(problem.count_of(operand), 0) << operand.name;
      EXPECT_EQ(operand.role == Role::kInput, operand.content != Content::kResult) << operand.name;
      EXPECT_FALSE(operand.role == Role::kInput && input_ended) << operand.name << ": inputs come first";
      input_ended |= operand.role != Role::kInput;
      for (const int input : operand.may_alias) {
        if (input == kNoOperand) continue;
        EXPECT_EQ(operand.role, Role::kOutput);
        const Operand& over = all[static_cast<std::size_t>(input)];
        EXPECT_EQ(over.role, Role::kInput);
        EXPECT_EQ(problem.array_bytes(over), problem.array_bytes(operand))
            << operand.name << " over " << over.name;
      }
    }
  }
}

TEST(Problem, DefaultSizeStaysWithin) {
  constexpr kernels::i64 kMany = kernels::i64{1} << 30;
  EXPECT_EQ(sized_within({KernelId::kGeluForward, FormatId::kF32}, kMany).elements(), kMany);
  const Problem norm{KernelId::kRmsnormForward, FormatId::kF32};
  EXPECT_EQ(sized_within(norm, kMany), norm.sized(16384, 1024));
  EXPECT_EQ(sized_within(norm, 1 << 18), norm.sized(256, 1024));
  EXPECT_EQ(sized_within(norm, 100), norm.sized(1, 1024));
  EXPECT_EQ(sized_within(kNorm, 100), kNorm);  // what has a size keeps it
}

}  // namespace
}  // namespace outgrad::autotune
